/* Which shards a rank needs, from the Controller.
 *
 *     client->derived   id --> the request that listed it      under names_lock
 *
 * A list is requested under client->lock. The table uses the lock of the names, because a read
 * without client->lock looks up an id here when the shard is gone. What is handed out of the table
 * is copied under the lock: another thread may forget all entries right after. */
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "base/log.h"
#include "client/client_private.h"
#include "core/catalog/derived_id.h"
#include "core/model/model_config.h"
#include "core/model/split.h"

#define DERIVED_MAX 65536 /* entries */

/* Derived shards are evicted when the pool needs room. If one is gone or damaged when it is read,
 * it is listed again: the version is cut again, into shards with other ids. */
struct derived_shard {
    struct hl_id id;
    struct hl_arena arena; /* for the texts */
    struct hl_api_controller_request_shards_params request;
    const char *part;
    int pp, tp, ep; /* as in the stored shard */
    UT_hash_handle hh;
};

/* Call with names_lock held. */
static void forget_derived(helios_client *client)
{
    struct derived_shard *d, *next;
    HASH_ITER (hh, client->derived, d, next) {
        HASH_DEL(client->derived, d);
        hl_arena_fini(&d->arena);
        free(d);
    }
}

void list_fini(helios_client *client)
{
    forget_derived(client);
}

static hl_status keep_request(struct derived_shard *d, const struct hl_api_shard *shard,
                              const struct hl_api_controller_request_shards_params *p)
{
    HL_TRY(hl_api_copy(&hl_api_controller_request_shards_params_type, p, &d->arena, &d->request));
    d->request.version = shard->version;
    d->part = hl_arena_strdup(&d->arena, shard->part);
    d->pp = shard->pp;
    d->tp = shard->tp;
    d->ep = shard->ep;
    return d->part != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for a derived shard");
}

/* A full table is emptied. Shards that were listed earlier can then not be listed again, which only
 * costs a failed read. Being out of memory has the same effect for one shard. */
static void remember_derived(helios_client *client, struct hl_id id,
                             const struct hl_api_shard *shard,
                             const struct hl_api_controller_request_shards_params *p)
{
    struct derived_shard *d;
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->derived, &id, sizeof(id), d);
    if (d == NULL && (d = calloc(1, sizeof(*d))) != NULL) {
        if (HASH_COUNT(client->derived) >= DERIVED_MAX)
            forget_derived(client);
        d->id = id;
        if (keep_request(d, shard, p) == HL_OK) {
            HASH_ADD(hh, client->derived, id, sizeof(d->id), d);
        } else {
            hl_arena_fini(&d->arena);
            free(d);
            hl_error_clear();
        }
    }
    pthread_mutex_unlock(&client->names_lock);
}

/* The arena owns everything that the list points to. */
struct owned_list {
    helios_shard_list list;
    struct hl_arena arena;
};

void helios_shard_list_free(helios_shard_list *list)
{
    if (list == NULL)
        return;
    struct owned_list *o = (struct owned_list *)list;
    hl_arena_fini(&o->arena);
    free(o);
}

static hl_status take_shard(helios_client *c,
                            const struct hl_api_controller_request_shards_params *p,
                            const struct hl_api_shard *from, helios_shard *to)
{
    struct hl_id id;
    const char *part = from->part, *model = p->model;
    HL_TRY(hl_id_parse(from->id, &id));
    if (strlen(part) >= sizeof(to->part))
        return hl_fail(HL_EPROTO, "part '%s' of model '%s' has a name that is too long", part,
                       model);
    to->id = (helios_id){.hi = id.hi, .lo = id.lo};
    memcpy(to->part, part, strlen(part) + 1);
    to->size = from->size_bytes;
    to->crc32 = from->crc32;
    to->tensors = from->tensors;
    names_add(c, id, model, from->version, from->pp, from->tp, from->ep, part);
    names_expect(c, id, to->size, to->crc32);
    if (hl_id_is_derived(id))
        remember_derived(c, id, from, p);
    return HL_OK;
}

/* NULL names: the arena is out of memory. */
static helios_shard_view view_of(const struct hl_api_shard *s, struct hl_arena *arena)
{
    helios_tensor_name *names = hl_arena_array(arena, s->shown.count, sizeof(*names));
    for (size_t i = 0; names != NULL && i < s->shown.count; i++)
        names[i] = (helios_tensor_name){s->shown.items[i].stored, s->shown.items[i].shown};
    return (helios_shard_view){.pp = s->pp,
                               .tp = s->tp,
                               .renamed = s->renamed,
                               .ep = s->ep,
                               .count = s->shown.count,
                               .names = names};
}

/* If a rank's job divides its stages into other chunks than the model does, the rank would train
 * other layers than it loads. Both divisions are known only for the model that the job names. */
static hl_status check_virtual_stages(const char *model, const char *config)
{
    const char *own = getenv("HELIOS_MODEL"), *job = getenv("VIRTUAL_PIPELINE_PARALLEL_SIZE");
    if (own == NULL || job == NULL || *job == '\0')
        return HL_OK;
    size_t n = strcspn(own, "@");
    if (strncmp(model, own, n) != 0 || model[n] != '\0')
        return HL_OK;
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    int chunks = hl_split_chunks(&c.split);
    char *end;
    long long wanted = strtoll(job, &end, 10);
    if (*end != '\0' || wanted != chunks)
        return hl_fail(HL_EINVAL,
                       "VIRTUAL_PIPELINE_PARALLEL_SIZE is '%.20s', but model '%s' was imported "
                       "with --virtual-stages %d; ask for a position of the job's split "
                       "(helios_request_position, helios pull --virtual-stages)",
                       job, model, chunks);
    return HL_OK;
}

/* The order of parts in a model: "embedding" < "layer-0000" < … < "experts-0000" < … < "head" <
 * "optim-embedding" < … */
static int part_rank(const char *part)
{
    bool optim = strncmp(part, "optim-", 6) == 0;
    if (optim)
        part += 6;
    int kind = strcmp(part, "embedding") == 0 ? 0 : strncmp(part, "layer-", 6) == 0 ? 1 : 2;
    return optim * 3 + kind;
}

static int by_part(const void *a, const void *b)
{
    const struct hl_api_shard *x = a, *y = b;
    int order = part_rank(x->part) - part_rank(y->part);
    return order != 0 ? order : strcmp(x->part, y->part);
}

static hl_status take_list(helios_client *c,
                           const struct hl_api_controller_request_shards_params *p,
                           const struct hl_api_controller_request_shards_results *r,
                           struct owned_list *o)
{
    const char *model = p->model;
    size_t count = r->shards.count;
    helios_shard *shards = hl_arena_array(&o->arena, count, sizeof(*shards));
    helios_shard_view *views = hl_arena_array(&o->arena, count, sizeof(*views));
    if (r->skipped[0] != '\0') /* the version is older than the one saved last */
        hl_warn("model %s: reading version %lld, because newer ones are not whole (%s)", model,
                (long long)r->version, r->skipped);
    if (r->left_out[0] != '\0')
        hl_warn("model %s: reading version %lld without %s", model, (long long)r->version,
                r->left_out);
    qsort(r->shards.items, count, sizeof(*r->shards.items), by_part);
    for (size_t i = 0; shards != NULL && views != NULL && i < count; i++) {
        HL_TRY(take_shard(c, p, &r->shards.items[i], &shards[i]));
        views[i] = view_of(&r->shards.items[i], &o->arena);
    }
    if (hl_arena_failed(&o->arena))
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu shards", count);
    o->list = (helios_shard_list){.version = r->version,
                                  .count = count,
                                  .shards = shards,
                                  .meta_json = r->meta[0] != '\0' ? r->meta : "{}",
                                  .config_json = r->config[0] != '\0' ? r->config : "{}",
                                  .skipped = r->skipped,
                                  .views = views,
                                  .left_out = r->left_out};
    return HL_OK;
}

/* Only a hint: the pool may be mapped or unmapped right after, and a read locates the shard itself.
 */
static void learn_places(struct operation *op, const helios_shard_list *list)
{
    helios_client *c = op->client;
    if (atomic_load_explicit(&c->attach.shm, memory_order_relaxed) != NULL)
        return;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {.items =
                                       hl_arena_array(&arena, list->count, sizeof(*ids.items))};
    for (size_t i = 0; ids.items != NULL && i < list->count; i++)
        ids.items[ids.count++] = hl_id_print(id_of(list->shards[i].id), &arena);
    net_prefetch(op, c->attach.net, ids);
}

/* The bytes of a queued cut are those of the cuts before it; a cut that has not begun has no
 * planned bytes. */
static hl_status fail_cut(const char *model,
                          const struct hl_api_controller_request_shards_results *r)
{
    long long version = (long long)r->version;
    unsigned long long done = r->done_bytes, total = r->total_bytes;
    if (r->queued)
        return hl_fail(HL_ETIMEDOUT,
                       "version %lld of '%s' waits to be cut for tensor parallel size %d, and the "
                       "imports and cuts before it have stopped at %llu of %llu bytes; look at the "
                       "log of the L3 daemon",
                       version, model, r->split.tp, done, total);
    if (total == 0)
        return hl_fail(
            HL_ETIMEDOUT,
            "version %lld of '%s' is to be cut for tensor parallel size %d, but the cut has not "
            "begun: the L3 daemon is loading the version from its archive; try again later",
            version, model, r->split.tp);
    return hl_fail(HL_ETIMEDOUT,
                   "version %lld of '%s' is being cut for tensor parallel size %d and has stopped "
                   "at %llu of %llu bytes; look at the log of the L3 daemon",
                   version, model, r->split.tp, done, total);
}

/* Each message is logged once: that the cut is queued, and that it is being made. */
struct cut_told {
    bool queued, made;
};

static void tell_cut(const char *model, const struct hl_api_controller_request_shards_results *r,
                     struct cut_told *told)
{
    if (r->queued && !told->queued)
        hl_info("a version waits to be cut: L3 is running as many imports and cuts as it can "
                "name=%s version=%lld tp=%d",
                model, (long long)r->version, r->split.tp);
    else if (!r->queued && !told->made)
        hl_info("this reader waits for a version that is being cut name=%s version=%lld tp=%d "
                "done=%llu of=%llu",
                model, (long long)r->version, r->split.tp, (unsigned long long)r->done_bytes,
                (unsigned long long)r->total_bytes);
    *(r->queued ? &told->queued : &told->made) = true;
}

/* Waits until the version is cut for that split. The deadline restarts whenever bytes were made
 * since the last answer, for this cut or for those before it. */
static hl_status request_cut(struct operation *op,
                             const struct hl_api_controller_request_shards_params *p,
                             struct hl_arena *arena,
                             struct hl_api_controller_request_shards_results *r)
{
    uint64_t seen = UINT64_MAX;
    struct cut_told told = {0};
    for (;;) {
        hl_status st;
        do
            st = hl_call_controller_request_shards(op->client->controller, p, operation_left_ms(op),
                                                   arena, r);
        while (controller_again(op, st));
        HL_TRY(st);
        if (!r->cutting)
            return HL_OK;
        if (r->done_bytes != seen)
            operation_extend(op);
        else if (operation_expired(op))
            return fail_cut(p->model, r);
        tell_cut(p->model, r, &told);
        seen = r->done_bytes;
    }
}

static hl_status request_list(struct operation *op,
                              const struct hl_api_controller_request_shards_params *p,
                              struct owned_list *o)
{
    struct hl_api_controller_request_shards_results r;
    HL_TRY(controller_named(op, "requestShards"));
    HL_TRY(request_cut(op, p, &o->arena, &r));
    if (!hl_split_said(&p->split))
        HL_TRY(check_virtual_stages(p->model, r.config));
    HL_TRY(take_list(op->client, p, &r, o));
    learn_places(op, &o->list);
    return HL_OK;
}

/* Finds the request that listed the shard; its texts belong to the arena. */
static hl_status recall_derived(helios_client *client, struct hl_id id, struct hl_arena *arena,
                                struct derived_shard *out)
{
    struct derived_shard *d;
    hl_status st = HL_ENOENT;
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->derived, &id, sizeof(id), d);
    if (d != NULL) {
        *out = *d;
        st = hl_api_copy(&hl_api_controller_request_shards_params_type, &d->request, arena,
                         &out->request);
        out->part = hl_arena_strdup(arena, d->part);
    }
    pthread_mutex_unlock(&client->names_lock);
    return st == HL_OK && out->part == NULL ? hl_fail(HL_ENOMEM, "out of memory for a listing")
                                            : st;
}

/* HL_ENOENT without a text: the shard is in no list. `why`: why it can't be read as listed. */
static hl_status request_again(struct operation *op, struct hl_id id, const char *why,
                               struct hl_id *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_request_shards_results r;
    struct derived_shard d;
    helios_shard shard;
    char name[400];
    if (recall_derived(op->client, id, &arena, &d) != HL_OK)
        return HL_ENOENT;
    hl_status st = request_cut(op, &d.request, &arena, &r);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s %s, and cutting its version again failed: ",
                              names_text(op->client, id, name, sizeof(name)), why);
    for (size_t i = 0; i < r.shards.count; i++) {
        const struct hl_api_shard *s = &r.shards.items[i];
        if (s->pp != d.pp || s->tp != d.tp || s->ep != d.ep || strcmp(s->part, d.part) != 0)
            continue;
        HL_TRY(take_shard(op->client, &d.request, s, &shard));
        *out = id_of(shard.id);
        return HL_OK;
    }
    return hl_fail(HL_ENOENT, "%s %s, and its version no longer has that part",
                   names_text(op->client, id, name, sizeof(name)), why);
}

/* The Controller hands out a damaged shard until L3 has reported the result of the check. The
 * reader may not have waited for that, so it repeats its report until then. *out is another shard,
 * or the same one, which is good by then. */
static hl_status replace_damaged(struct operation *op, struct hl_id id, struct hl_id *out)
{
    for (;;) {
        hl_status healed = copies_heal(op, id);
        if (healed == HL_OK)
            return HL_OK;
        if (healed != HL_ECORRUPT) {
            if (!hl_status_retryable(healed) || !operation_pause_for_controller(op))
                return healed;
            continue;
        }
        HL_TRY(request_again(op, id, "is damaged", out));
        return hl_id_equal(id, *out) ? HL_ECORRUPT : HL_OK;
    }
}

hl_status list_again(struct operation *op, struct hl_id id, hl_status failed, struct hl_id *out)
{
    char text[HL_ERROR_TEXT_MAX];
    const bool damaged = failed == HL_ECORRUPT;
    if (!hl_id_is_derived(id) || (failed != HL_ENOENT && !damaged))
        return failed;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    hl_error_clear();
    hl_status st = request_again(op, id, damaged ? "is damaged" : "was evicted", out);
    if (st == HL_OK && damaged && hl_id_equal(id, *out) && replace_damaged(op, id, out) != HL_OK)
        return hl_fail(failed, "%s", text);
    if (st == HL_OK)
        return HL_OK;
    return hl_error_text()[0] != '\0' ? st : hl_fail(failed, "%s", text);
}

int helios_request_place(helios_client *client, const char *model, int64_t version,
                         const helios_split *split, const helios_place *place,
                         helios_shard_list **out)
{
    struct operation op;
    helios_place at;
    if (client == NULL || model == NULL || place == NULL || out == NULL)
        return hl_fail(HL_EINVAL,
                       "shards of a position: client, model, place and out must not be NULL");
    HL_TRY(HL_ABI_READ(helios_place, place, &at));
    struct hl_api_controller_request_shards_params p = {
        .model = model, .version = version, .pp = at.pp, .tp = at.tp, .ep = at.ep};
    if (at.pp < 0 || at.tp < 0 || at.ep < 0 || version < -1)
        return hl_fail(HL_EINVAL,
                       "shards of a position: pp %d, tp %d and ep %d count from 0, version %lld "
                       "from 1 (-1 is the newest)",
                       at.pp, at.tp, at.ep, (long long)version);
    HL_TRY(split_read(split, &p.split));
    struct owned_list *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of shards");
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    hl_status st = request_list(&op, &p, o);
    pthread_mutex_unlock(&client->lock);
    if (st != HL_OK) {
        helios_shard_list_free(&o->list);
        return st;
    }
    hl_error_clear();
    *out = &o->list;
    return HL_OK;
}

int helios_request_position(helios_client *client, const char *model, int64_t version,
                            const helios_split *split, int pp, int tp, helios_shard_list **out)
{
    const helios_place place = {HELIOS_PLACE_INIT, .pp = pp, .tp = tp};
    return helios_request_place(client, model, version, split, &place, out);
}

int helios_request_shards(helios_client *client, const char *model, int64_t version, int pp, int tp,
                          helios_shard_list **out)
{
    return helios_request_position(client, model, version, NULL, pp, tp, out);
}
