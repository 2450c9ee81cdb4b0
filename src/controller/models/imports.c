/* Imports and cuts run in the L3 daemon, next to the pool. The Controller follows them and makes
 * the result visible in one commit. A running import stores nothing on disk here, so no crash
 * leaves half a model: the catalogue does not know its shards, and the sweep frees them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "core/catalog/importing.h"
#include "os/loop.h"

#define IMPORT_POLL_MS 50

static const struct import_kind import_of_directory;

bool import_running(const struct import *im)
{
    return im->progress.state == HL_API_IMPORT_STATE_RUNNING;
}

bool import_is_listed(const struct import *im)
{
    return im->kind == &import_of_directory && import_running(im);
}

bool imports_running(const struct hl_controller *c)
{
    for (const struct import *im = c->models->imports; im != NULL; im = im->hh.next)
        if (import_running(im))
            return true;
    return false;
}

struct hl_api_import_summary import_summary(const struct import *im)
{
    return (struct hl_api_import_summary){.import_id = im->id,
                                          .name = im->request.name,
                                          .dir = im->request.dir,
                                          .tp = im->request.tp,
                                          .pp = im->request.pp,
                                          .done_bytes = im->progress.done_bytes,
                                          .total_bytes = im->progress.total_bytes,
                                          .queued = im->queued};
}

static const char *import_model(const struct import *im)
{
    return im->kind == &import_of_directory ? im->request.name : im->cut.model;
}

static void import_fail(struct import *im, hl_status st, const char *text)
{
    const char *kept = hl_arena_strdup(&im->progress_arena, text);
    im->progress.state = HL_API_IMPORT_STATE_FAILED;
    im->progress.error = kept != NULL ? kept : "";
    im->progress.error_status = hl_status_name(st);
    hl_warn("%s failed name=%s error=\"%s\"", im->kind->what, import_model(im), text);
    if (im->kind->failed != NULL)
        im->kind->failed(im, st, text);
}

/* If there is no memory, the previous progress stays. */
static void import_set_progress(struct import *im, const struct hl_api_import_progress *heard)
{
    struct hl_api_import_progress kept;
    struct hl_arena arena = {0};
    if (hl_api_copy(&hl_api_import_progress_type, heard, &arena, &kept) != HL_OK) {
        hl_arena_fini(&arena);
        return;
    }
    hl_arena_fini(&im->progress_arena);
    hl_arena_move(&im->progress_arena, &arena);
    im->progress = kept;
    im->progress.import_id = im->id;
}

void import_free(struct hl_controller *c, struct import *im)
{
    HASH_DEL(c->models->imports, im);
    if (im->kind->fini != NULL)
        im->kind->fini(im);
    hl_arena_fini(&im->request_arena);
    hl_arena_fini(&im->progress_arena);
    hl_arena_fini(&im->result_arena);
    free(im);
}

void imports_fini(struct hl_controller *c)
{
    struct import *im, *next;
    HASH_ITER (hh, c->models->imports, im, next) {
        import_free(c, im);
    }
}

static struct import *import_find(struct hl_controller *c, const char *id)
{
    struct import *im;
    HASH_FIND_STR(c->models->imports, id, im);
    return im;
}

/* L3 reports that the import is done: the model becomes visible, or its shards are freed. L3 may
 * not have heard of a cancellation. */
static hl_status import_make(struct change *ch)
{
    struct import_change *ic = (struct import_change *)ch;
    const struct import *im = ic->im;
    struct hl_import_done done = {
        .name = im->request.name,
        .source = im->request.dir,
        .tp = im->request.tp,
        .pp = im->request.pp,
        .virtual_stages = im->request.virtual_stages,
        .config = im->result.config,
        .meta = im->result.meta,
        .seconds = im->result.seconds,
        .now_ms = ic->now_ms,
        .shards = im->result.shards,
        .proof = &ic->proof,
    };
    if (!ch->durable && im->cancelled)
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    if (!ch->durable)
        HL_TRY(claim_check(ch->c));
    return hl_catalog_import(&ch->c->catalog, &done, commit_records, ch->c, &ic->version);
}

static void import_made(const struct import_change *ic)
{
    if (ic->held)
        durability_settle(ic->change.c, ic->version);
    manifest_write(ic->change.c, ic->version);
    hl_info("model imported name=%s shards=%zu seconds=%.3f", ic->im->request.name,
            ic->version->shard_count, ic->im->progress.seconds);
}

static void import_done(struct change *ch, hl_status st)
{
    struct import_change *ic = (struct import_change *)ch;
    struct import *im = ic->im;
    im->finishing = false;
    if (st != HL_OK) {
        import_fail(im, st, hl_error_text());
        pool_free_shards(ch->c, &im->result.shards);
    } else {
        hl_arena_fini(&im->progress_arena);
        hl_arena_move(&im->progress_arena, &im->result_arena);
        im->progress = im->result;
        sweep_soon(ch->c); /* so that it is archived, if it has to be */
        im->kind->made(ic);
    }
    hl_arena_fini(&im->result_arena);
    im->result = (struct hl_api_import_progress){0};
    free(ic->replaced);
    free(ic);
}

/* The import is now held as versions.durability requires. */
static void on_import_secured(void *arg, hl_status st, const char *text)
{
    struct import_change *ic = arg;
    if (st == HL_ECANCELED) { /* the Controller was stopped, and the import was freed with it */
        free(ic);
        return;
    }
    ic->im->securing = NULL;
    ic->held = st == HL_OK;
    if (st == HL_OK)
        change_start(ic->change.c, &ic->change);
    else
        import_done(&ic->change,
                    hl_fail(st, "'%s' does not exist: %s", ic->im->request.name, text));
}

HL_CHECK static hl_status secure_import(struct import_change *ic)
{
    const struct hl_api_shard_list *shards = &ic->im->result.shards;
    HL_AUTO(hl_freep) struct securable *list = calloc(shards->count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the shards of an import");
    for (size_t i = 0; i < shards->count; i++) {
        const struct hl_api_shard *s = &shards->items[i];
        list[i] = (struct securable){
            .size_bytes = s->size_bytes, .crc32 = s->crc32, .node = "", .name = s->part};
        HL_TRY(hl_id_parse(s->id, &list[i].id));
    }
    ic->im->secured = ic;
    return securing_start(ic->change.c, list, shards->count, on_import_secured, ic,
                          &ic->im->securing);
}

/* An import whose proof fails never becomes a model. */
static void on_import_proved(void *arg, hl_status st, struct proved *proved)
{
    struct import_change *ic = arg;
    struct hl_controller *c = ic->change.c;
    if (controller_stopped(c)) {
        free(ic); /* the import went with the Controller; its shards in L3 are orphans */
    } else if (st != HL_OK) {
        import_done(&ic->change, hl_fail_prefix(st, "the import is incomplete: "));
    } else {
        ic->proof = proved->proof;
        if (copies_durability(c) == HL_DURABILITY_POOL) {
            change_start(c, &ic->change);
            return;
        }
        st = secure_import(ic);
        if (st != HL_OK)
            import_done(&ic->change, st);
    }
}

/* Runs in a thread; the change of the catalogue follows. */
static void prove_import(struct import_change *ic)
{
    const struct import *im = ic->im;
    ic->change.c = im->controller;
    hl_status st = proof_start_import(im->controller, im->result.config, &im->result.shards,
                                      on_import_proved, ic);
    if (st != HL_OK)
        import_done(&ic->change, st);
}

/* The import counts as running until the store has it. */
static void import_finish(struct import *im, const struct hl_api_import_progress *result)
{
    struct import_change *ic = calloc(1, sizeof(*ic));
    if (ic == NULL || hl_api_copy(&hl_api_import_progress_type, result, &im->result_arena,
                                  &im->result) != HL_OK) {
        hl_arena_fini(&im->result_arena);
        free(ic);
        return; /* L3 is asked again, and answers the same */
    }
    im->result.import_id = im->id;
    ic->change.make = im->kind->make;
    ic->change.done = import_done;
    ic->im = im;
    ic->now_ms = hl_wall_ms();
    im->finishing = true;
    if (im->kind != &import_of_directory)
        change_start(im->controller, &ic->change);
    else
        prove_import(ic);
}

static void on_import_progress(void *arg, hl_status st, const char *text,
                               const struct hl_api_l3_import_progress_results *r)
{
    struct import *im = arg;
    if (controller_stopped(im->controller))
        return;
    uint64_t now_ns = im->controller->listening.listened_ns;
    const struct hl_import_answer answer = {
        st, st == HL_OK ? r->progress.state : HL_API_IMPORT_STATE_RUNNING, now_ns - im->heard_ns};
    im->polling = false;
    if (st == HL_OK)
        im->heard_ns = now_ns;
    switch (hl_import_judge(&answer)) {
    case HL_IMPORT_GOES_ON:
        import_set_progress(im, &r->progress);
        break;
    case HL_IMPORT_MADE:
        import_finish(im, &r->progress);
        break;
    case HL_IMPORT_FAILED:
        import_set_progress(im, &r->progress);
        import_fail(im, hl_status_by_name(r->progress.error_status), r->progress.error);
        break;
    case HL_IMPORT_FORGOTTEN:
        import_fail(im, HL_EUNAVAIL, "the L3 daemon was restarted meanwhile; try again");
        break;
    case HL_IMPORT_SILENT:
        import_fail(im, st, text);
        break;
    case HL_IMPORT_UNHEARD:
        break;
    }
}

static void on_cancel_sent(void *arg, hl_status st, const char *text,
                           const struct hl_api_l3_cancel_import_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_debug("cancel of an import is sent again error=\"%s\"", text);
}

/* Asks for the progress. A cancellation is repeated each time, because L3 may not have heard of it
 * yet. */
static void ask_l3(struct hl_controller *c, struct import *im)
{
    if (im->cancelled) {
        controller_hold(c);
        hl_call_l3_cancel_import_async(c->l3, &(struct hl_api_l3_cancel_import_params){im->id},
                                       c->opts.rpc_timeout_ms, c->opts.loop, on_cancel_sent, c);
    }
    im->polling = true;
    controller_hold(c);
    hl_call_l3_import_progress_async(c->l3, &(struct hl_api_l3_import_progress_params){im->id},
                                     c->opts.rpc_timeout_ms, c->opts.loop, on_import_progress, im);
}

static void imports_tick(void *controller)
{
    struct hl_controller *c = controller;
    struct import *im, *next;
    bool running = false;
    HASH_ITER (hh, c->models->imports, im, next) {
        if (!import_running(im))
            continue;
        running = true;
        if (im->kind->tick != NULL)
            im->kind->tick(im);
        if (import_running(im) && !im->polling && !im->finishing)
            ask_l3(c, im);
    }
    if (!running) {
        hl_timer_destroy(c->models->import_tick);
        c->models->import_tick = NULL;
    }
}

void import_started(struct import *im, hl_status st, const char *text)
{
    im->polling = false;
    if (st != HL_OK)
        import_fail(im, st, text);
}

/* An import has begun or failed, so the next one need not wait for the tick. */
static void imports_go_on(struct hl_controller *c)
{
    for (struct import *im = c->models->imports; im != NULL; im = im->hh.next)
        if (import_is_listed(im))
            im->kind->tick(im);
}

static void on_import_started(void *arg, hl_status st, const char *text,
                              const struct hl_api_l3_import_model_results *r)
{
    struct import *im = arg;
    (void)r;
    if (controller_stopped(im->controller))
        return;
    im->heard_ns = im->controller->listening.listened_ns;
    bool waited = im->queued;
    im->begun = st == HL_OK;
    im->queued = st == HL_EBUSY && im->request.wait_ms > 0;
    if (im->queued) {
        im->put_off = true; /* others run; `polling` stays, because L3 does not know this one yet */
        return;
    }
    if (st == HL_OK && waited)
        hl_info("import leaves the queue name=%s", im->request.name);
    import_started(im, st, text);
    imports_go_on(im->controller);
}

/* Ended imports are kept for late queries; the oldest are dropped first. */
void forget_old_imports(struct hl_controller *c)
{
    struct import *im, *next;
    HASH_ITER (hh, c->models->imports, im, next) {
        bool in_use = import_running(im) || im->polling || im->finishing;
        if (hl_import_is_evicted(HASH_COUNT(c->models->imports), in_use))
            import_free(c, im);
    }
}

static hl_status check_request(struct hl_controller *c, const struct hl_api_import_request *request)
{
    const char *name = request->name;
    struct hl_model_rec *m;
    HL_TRY(hl_model_name_check(name));
    HL_TRY(claim_check(c));
    HL_TRY(durability_check(c));
    if (request->dir[0] != '/')
        return hl_fail(HL_EINVAL, "import of '%s': the directory must be an absolute path", name);
    if (hl_catalog_model(&c->catalog, name, &m) == HL_OK)
        return hl_fail(
            HL_EEXIST,
            "model '%s' exists already; `helios model rm %s` or import under another name", name,
            name);
    struct import *im, *next;
    HASH_ITER (hh, c->models->imports, im, next) {
        if (import_is_listed(im) && strcmp(im->request.name, name) == 0)
            return hl_fail(HL_EBUSY, "model '%s' is being imported right now", name);
    }
    return HL_OK;
}

static hl_status take_base(struct hl_controller *c, struct import *im)
{
    struct hl_api_import_request *r = &im->request;
    struct hl_model_rec *base;
    r->base_config = "";
    if (r->base[0] == '\0')
        return HL_OK;
    hl_status st = hl_catalog_model(&c->catalog, r->base, &base);
    if (st != HL_OK)
        return hl_fail_prefix(st, "the base of the adapter, named by --base or else by "
                                  "adapter_config.json: ");
    if (base->damaged || base->shape.layers == 0)
        return hl_fail(HL_EUNSUPPORTED, "base '%s': its split is not recorded", r->base);
    HL_TRY(hl_import_as_base(&base->shape.split, r));
    r->base_config = hl_arena_strdup(&im->request_arena, base->config);
    return r->base_config != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for an import");
}

hl_status import_new(struct hl_controller *c, const struct import_kind *kind, struct import **out)
{
    struct import *im = calloc(1, sizeof(*im));
    if (im == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for an import");
    im->kind = kind;
    memcpy(im->id, hl_id_format(hl_id_random()).s, sizeof(im->id));
    im->controller = c;
    im->asked_ns = im->heard_ns = c->listening.listened_ns;
    im->progress = (struct hl_api_import_progress){.import_id = im->id,
                                                   .state = HL_API_IMPORT_STATE_RUNNING,
                                                   .error = "",
                                                   .error_status = "",
                                                   .config = "",
                                                   .meta = ""};
    HASH_ADD_STR(c->models->imports, id, im);
    *out = im;
    return HL_OK;
}

static hl_status import_of_request(struct hl_controller *c,
                                   const struct hl_api_import_request *request, struct import **out)
{
    struct import *im;
    HL_TRY(import_new(c, &import_of_directory, &im));
    hl_status st =
        hl_api_copy(&hl_api_import_request_type, request, &im->request_arena, &im->request);
    if (st != HL_OK) {
        import_free(c, im);
        return st;
    }
    im->request.import_id = im->id;
    im->request.version = 1;
    im->request.tp = request->tp != 0 ? request->tp : 1;
    im->request.pp = request->pp != 0 ? request->pp : 1;
    st = take_base(c, im);
    if (st != HL_OK) {
        import_free(c, im);
        return st;
    }
    *out = im;
    return HL_OK;
}

/* True if an import that was requested earlier has not begun: L3 has no place for it, or has not
 * answered yet. */
static bool import_is_behind(const struct import *im, bool of_queued)
{
    for (const struct import *o = im->controller->models->imports; o != im; o = o->hh.next)
        if (import_is_listed(o) && !o->begun && (o->queued || !of_queued))
            return true;
    return false;
}

/* The imports it waits for: those that have begun, and those in front of it in the queue. */
static struct hl_api_text_list import_waits_for(const struct import *im, struct hl_arena *arena)
{
    const struct hl_controller *c = im->controller;
    struct hl_api_text_list out = {0};
    bool before = true;
    if (!im->queued)
        return out;
    out.items = hl_arena_array(arena, HASH_COUNT(c->models->imports), sizeof(*out.items));
    for (const struct import *o = c->models->imports; o != NULL && out.items != NULL;
         o = o->hh.next) {
        before = before && o != im;
        if (o != im && import_running(o) && (before || !o->queued))
            out.items[out.count++] = import_model(o);
    }
    return out;
}

/* Waits until L3 has reported whose its pool is: with an empty catalogue, unclaimed shards look
 * like those of a lost catalogue. */
static void ask_import(struct import *im)
{
    struct hl_controller *c = im->controller;
    const struct hl_id_text cluster = claim_cluster(c);
    const struct hl_api_l3_import_model_params p = {im->request, cluster.s};
    im->put_off = claim_state(c) == HL_API_CLAIM_STATE_UNKNOWN;
    if (im->put_off)
        return;
    if (!im->queued)
        hl_info("import begins name=%s dir=%s", im->request.name, im->request.dir);
    controller_hold(c);
    hl_call_l3_import_model_async(c->l3, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                  on_import_started, im);
}

HL_CHECK static hl_status check_put_off(const struct import *im)
{
    const struct hl_controller *c = im->controller;
    char why[400];
    if (im->cancelled)
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    HL_TRY(claim_check(c));
    if (claim_ok(c, why, sizeof(why)) ||
        c->listening.listened_ns - im->heard_ns <= HL_IMPORT_SILENCE_NS)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL, "%s: %.200s; try again", why,
                   pool_info(c) == NULL ? pool_state(c) : "it answers, but not this call");
}

/* For an import that L3 had no place for when it was asked. */
HL_CHECK static hl_status check_queued(const struct import *im)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    uint64_t waited = im->controller->listening.listened_ns - im->asked_ns;
    const struct hl_api_text_list before = import_waits_for(im, &arena);
    if (hl_import_may_wait(waited, im->request.wait_ms))
        return HL_OK;
    return hl_fail(
        HL_ETIMEDOUT,
        "the import has not begun in %" PRIu64
        " ms, because '%.100s' and %zu more had not ended; import it again with a longer --wait",
        im->request.wait_ms, before.count > 0 ? before.items[0] : "",
        before.count > 0 ? before.count - 1 : 0);
}

/* If other imports wait for a place, this one waits behind them, if it may. */
HL_CHECK static hl_status join_queue(struct import *im)
{
    if (!import_is_behind(im, true))
        return HL_OK;
    im->queued = im->request.wait_ms > 0;
    return im->queued ? HL_OK
                      : hl_fail(HL_EBUSY,
                                "other imports are already waiting; import it again with --wait");
}

/* Only the oldest import that has not begun asks L3. The others stay behind it, so that none takes
 * a place that became free after the oldest was refused. */
static void import_tick(struct import *im)
{
    if (!im->put_off)
        return;
    hl_status st = check_put_off(im);
    if (st == HL_OK)
        st = join_queue(im);
    if (st == HL_OK && im->queued)
        st = check_queued(im);
    if (st == HL_OK && !import_is_behind(im, false)) {
        ask_import(im);
    } else if (st != HL_OK) {
        im->put_off = im->queued = false;
        import_started(im, st, hl_error_text());
    }
}

static void begin_import(struct import *im)
{
    im->put_off = true;
    import_tick(im);
}

static const struct import_kind import_of_directory = {.what = "import",
                                                       .start = begin_import,
                                                       .make = import_make,
                                                       .made = import_made,
                                                       .tick = import_tick};

void import_start(struct hl_controller *c, struct import *im)
{
    im->polling = true;
    im->kind->start(im);
    if (c->models->import_tick == NULL &&
        hl_timer_create(c->opts.loop, IMPORT_POLL_MS, IMPORT_POLL_MS, imports_tick, c,
                        &c->models->import_tick) != HL_OK)
        hl_error("%s", hl_error_text());
}

void method_import_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_import_model_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct import *im = NULL;
    hl_status st = check_request(c, &p->request);
    if (st == HL_OK) {
        forget_old_imports(c);
        st = import_of_request(c, &p->request, &im);
    }
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    import_start(c, im);
    hl_reply_controller_import_model(
        call, &(struct hl_api_controller_import_model_results){im->id, im->request.version});
}

void method_import_progress(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_import_progress_params *p)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct import *im = import_find(controller_enter(arg), p->import_id);
    if (im == NULL || im->kind != &import_of_directory) {
        call_reject(call,
                    hl_fail(HL_ENOENT,
                            "import '%s' is unknown; was the Controller restarted? import again",
                            p->import_id));
        return;
    }
    struct hl_api_controller_import_progress_results r = {im->progress};
    r.progress.waits_for = import_waits_for(im, &arena);
    hl_reply_controller_import_progress(call, &r);
}

void method_cancel_import(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_cancel_import_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct import *im, *next, *found = NULL;
    HASH_ITER (hh, c->models->imports, im, next) {
        if (import_is_listed(im) && (!im->finishing || im->securing != NULL) &&
            (strcmp(im->id, p->id) == 0 || strcmp(im->request.name, p->id) == 0))
            found = im;
    }
    if (found == NULL) {
        call_reject(call, hl_fail(HL_ENOENT,
                                  "no import of '%.100s' is running; `helios model ls` lists the "
                                  "models, `helios model rm` removes one",
                                  p->id));
        return;
    }
    found->cancelled = true;
    hl_info("import is cancelled name=%s", found->request.name);
    if (found->securing != NULL) {
        securing_cancel(found->securing);
        found->securing = NULL;
        import_done(&found->secured->change, hl_fail(HL_ECANCELED, "the import was cancelled"));
    }
    hl_reply_controller_cancel_import(call,
                                      &(struct hl_api_controller_cancel_import_results){found->id});
}
