/* Last commits wait until each shard of their version is held in as many failure domains as
 * versions.durability asks for (controller/copies/secure.c copies them there).
 *
 *     commit --secure_wait--> waiter --held, or failed--> its commit goes on, or is refused
 *                               '--at its deadline--> told how far it is; the rank asks again
 *
 * The state outlives the calls: a rank that asks again joins the copies that are in flight, or is
 * told how they ended. None of it is on disk. After a restart of the Controller the version is open
 * as before, and the repeated commit finds the copies that were made. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "os/loop.h"

#define TICK_MS 200

struct secure_waiter {
    version_secured done;
    void *arg;
    uint64_t until_ns;
    struct secure_waiter *next;
};

struct version_securing {
    struct hl_controller *c;
    char model[HL_MODEL_NAME_MAX + 1];
    int64_t number;
    int rank;
    struct securing *task; /* NULL: it has ended with `st` */
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    uint64_t ended_ns;
    struct securing_progress progress;
    struct hl_id *ids; /* ids that the rank has named */
    size_t id_count;
    struct secure_waiter *waiters;
    struct version_securing *next;
};

static struct version_securing *find_securing(const struct hl_controller *c,
                                              const struct hl_version_rec *v, int rank)
{
    struct version_securing *x = c->models->securings;
    while (x != NULL &&
           (x->number != v->number || x->rank != rank || strcmp(x->model, v->model->name) != 0))
        x = x->next;
    return x;
}

static void securing_forget(struct version_securing *x)
{
    struct version_securing **at = &x->c->models->securings;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    if (x->task != NULL)
        securing_cancel(x->task);
    free(x->ids);
    free(x);
}

/* The entry is removed before the ranks are answered, because each of them may start again. */
static void securing_answer(struct version_securing *x, hl_status st, const char *text)
{
    struct secure_waiter *list = x->waiters;
    const struct securing_progress progress = x->progress;
    char copy[HL_ERROR_TEXT_MAX];
    snprintf(copy, sizeof(copy), "%s", text);
    securing_forget(x);
    while (list != NULL) {
        struct secure_waiter *w = list;
        list = w->next;
        w->done(w->arg, st, copy, &progress);
        free(w);
    }
}

static void on_secured(void *arg, hl_status st, const char *text)
{
    struct version_securing *x = arg;
    x->progress = securing_look(x->task);
    x->task = NULL;
    x->st = st;
    x->ended_ns = x->c->listening.listened_ns;
    snprintf(x->text, sizeof(x->text), "%s", text);
    if (x->waiters != NULL || st == HL_ECANCELED)
        securing_answer(x, st, x->text);
}

/* ---- with time ------------------------------------------------------------------------------- */

static void tell_progress(struct version_securing *x, uint64_t now_ns)
{
    for (struct secure_waiter **at = &x->waiters, *w; (w = *at) != NULL;) {
        if (now_ns < w->until_ns) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->done(w->arg, HL_EBUSY, "", &x->progress);
        free(w);
    }
}

static struct hl_version_rec *open_version(const struct version_securing *x)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (hl_catalog_model(&x->c->catalog, x->model, &m) != HL_OK ||
        hl_catalog_version(m, x->number, &v) != HL_OK || v->state != HL_API_VERSION_STATE_OPEN)
        return NULL;
    return v;
}

static void securing_tick(struct version_securing *x, uint64_t now_ns)
{
    const struct hl_controller *c = x->c;
    struct hl_version_rec *v = open_version(x);
    if (v == NULL) { /* it was given up, or is visible: the repeated commit tells which */
        securing_answer(x, HL_ESTALE, "");
        return;
    }
    if (x->task == NULL) { /* it was not requested again */
        if (now_ns - x->ended_ns > (uint64_t)c->opts.gc_grace_ms * HL_NS_PER_MS)
            securing_forget(x);
        return;
    }
    struct securing_progress now = securing_look(x->task);
    if (now.done_bytes != x->progress.done_bytes)
        v->touched_ms = hl_wall_ms(); /* it is not stale */
    x->progress = now;
    tell_progress(x, now_ns);
}

static void securings_tick_all(void *controller)
{
    struct hl_controller *c = controller;
    controller_check_clocks(c);
    for (struct version_securing *x = c->models->securings, *next; x != NULL; x = next) {
        next = x->next;
        securing_tick(x, hl_now_ns());
    }
    if (c->models->securings == NULL) {
        hl_timer_destroy(c->models->secure_timer);
        c->models->secure_timer = NULL;
    }
}

/* ---- the begin ------------------------------------------------------------------------------- */

/* Where the rank runs it will read again after a restart. */
static const char *node_of_rank(struct hl_controller *c, const struct hl_version_rec *v, int rank)
{
    return c->models->users->find_node(c, v->job, v->attempt, rank);
}

/* Those of earlier commits, and those that are named now. */
static hl_status list_shards(struct hl_controller *c, const struct hl_version_rec *v,
                             const struct hl_api_shard_list *named, int rank,
                             struct securable *list)
{
    size_t n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        list[n++] = (struct securable){.id = v->shards[i]->id,
                                       .size_bytes = v->shards[i]->size_bytes,
                                       .crc32 = v->shards[i]->crc32,
                                       .node = node_of_rank(c, v, v->shards[i]->rank),
                                       .name = v->shards[i]->part};
    for (size_t i = 0; i < named->count; i++) {
        list[n] = (struct securable){.size_bytes = named->items[i].size_bytes,
                                     .crc32 = named->items[i].crc32,
                                     .node = node_of_rank(c, v, rank),
                                     .name = named->items[i].part};
        HL_TRY(hl_id_parse(named->items[i].id, &list[n++].id));
    }
    return HL_OK;
}

static hl_status securing_begin(struct version_securing *x, const struct hl_version_rec *v,
                                const struct hl_api_shard_list *named)
{
    size_t count = v->shard_count + named->count;
    HL_AUTO(hl_freep) struct securable *list = calloc(count + 1, sizeof(*list));
    x->ids = calloc(named->count + 1, sizeof(*x->ids));
    if (list == NULL || x->ids == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the shards of a version");
    HL_TRY(list_shards(x->c, v, named, x->rank, list));
    for (size_t i = 0; i < named->count; i++)
        x->ids[x->id_count++] = list[v->shard_count + i].id;
    hl_info("version is secured model=%s version=%" PRId64 " shards=%zu durability=%s", x->model,
            x->number, count, hl_durability_word(copies_durability(x->c)));
    return securing_start(x->c, list, count, on_secured, x, &x->task);
}

static hl_status securing_new(struct hl_controller *c, const struct hl_version_rec *v, int rank,
                              const struct hl_api_shard_list *named, struct version_securing **out)
{
    if (c->models->secure_timer == NULL)
        HL_TRY(hl_timer_create(c->opts.loop, TICK_MS, TICK_MS, securings_tick_all, c,
                               &c->models->secure_timer));
    struct version_securing *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return hl_fail(HL_ENOMEM, "out of memory securing a version");
    *x = (struct version_securing){
        .c = c, .number = v->number, .rank = rank, .next = c->models->securings};
    snprintf(x->model, sizeof(x->model), "%s", v->model->name);
    c->models->securings = x;
    hl_status st = securing_begin(x, v, named);
    if (st != HL_OK) {
        securing_forget(x);
        return st;
    }
    *out = x;
    return HL_OK;
}

/* The rank names the same as when its shards were looked up. */
static bool names_the_same(const struct version_securing *x, const struct hl_api_shard_list *named)
{
    struct hl_id id;
    for (size_t i = 0; i < named->count; i++)
        if (i >= x->id_count || hl_id_parse(named->items[i].id, &id) != HL_OK ||
            !hl_id_equal(id, x->ids[i]))
            return false;
    return named->count == x->id_count;
}

bool secure_runs(const struct hl_controller *c, const struct hl_version_rec *v, int rank,
                 const struct hl_api_shard_list *named)
{
    const struct version_securing *x = find_securing(c, v, rank);
    return x != NULL && names_the_same(x, named);
}

hl_status secure_wait(struct hl_controller *c, const struct hl_version_rec *v, int rank,
                      const struct hl_api_shard_list *named, uint64_t until_ns,
                      version_secured done, void *arg)
{
    struct version_securing *x = find_securing(c, v, rank);
    struct secure_waiter *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a commit that waits");
    *w = (struct secure_waiter){done, arg, until_ns, NULL};
    hl_status st = HL_OK;
    if (x != NULL && !names_the_same(x, named)) {
        securing_answer(x, HL_ECONFLICT, "its last rank has committed other shards meanwhile");
        x = NULL;
    }
    if (x == NULL)
        st = securing_new(c, v, rank, named, &x);
    if (st != HL_OK) {
        free(w);
        return st;
    }
    w->next = x->waiters;
    x->waiters = w;
    if (x->task == NULL)
        securing_answer(x, x->st, x->text);
    return HL_OK;
}

/* Those that wait have been answered: the copies wing has ended their tasks. */
void secures_fini(struct hl_controller *c)
{
    while (c->models->securings != NULL)
        securing_forget(c->models->securings);
}
