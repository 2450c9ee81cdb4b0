/* Versions that gangs write: begun, committed rank by rank, made visible, or given up; drops.c
 * drops them.
 *
 *     rank 0  begin --+                      +-- commit(its shards) --+
 *     rank 1  begin --+--> version 8: OPEN --+-- commit --------------+--> VISIBLE
 *     rank 2  begin --+       |              +-- commit, the last ----+      | versions.keep
 *                             |                  L3.look first               '--> gone
 *                             '--a rank abandons it--> FAILED --attempt over, gc.grace--> gone
 *
 * If the catalogue is empty, the first begin waits until L3 has reported whose its pool is: with an
 * empty catalogue, unclaimed shards look like those of a lost catalogue.
 *
 * Every step is a change of the catalogue (commits.c): it is answered when it is durable, and
 * concurrent changes are carried out one after the other. So exactly one commit is the last.
 *
 * If the version is split differently from its model, what it must hold is planned before its first
 * commit is checked (layouts.c).
 *
 * The last commit makes the version visible, so its shards must be there by then. It is therefore
 * made in two turns:
 *
 *     make: it would complete --> HL_EBUSY, `completes`
 *         --> L3.look at all shards --> hl_commit_check --> proof_start, beside the loop
 *         --> `checked` --> make again: it completes
 *         --> refuted --> the version fails, and every rank of it hears why
 *
 * If versions.durability is not `pool`, the shards are copied into other failure domains before the
 * proof (secure.c).
 *
 * No change is in progress meanwhile, so another rank's commit or abandon may come in between; the
 * second make notices that by itself. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "controller/placement/placement.h"
#include "core/catalog/commit_check.h"
#include "core/catalog/importing.h"
#include "os/loop.h"

#define BEGIN_POLL_MS  50
#define SECURE_WAIT_NS (2000 * HL_NS_PER_MS)

static hl_status find_version(struct hl_controller *c, const char *model, int64_t number,
                              struct hl_version_rec **out)
{
    struct hl_model_rec *m;
    HL_TRY(hl_catalog_model(&c->catalog, model, &m));
    return hl_catalog_version(m, number, out);
}

/* A change of a version, caused by a rank's call. */
struct version_change {
    struct change change; /* must be first */
    struct hl_rpc_call *call;

    union { /* parameters of the call, valid until it is answered */
        const struct hl_api_controller_begin_version_params *begin;
        const struct hl_api_controller_commit_part_params *commit;
        const struct hl_api_controller_abandon_version_params *abandon;
    };

    int64_t now_ms;
    struct hl_version_rec *version; /* found or made */
    struct hl_id *ids;              /* shards that are no longer needed */
    size_t id_count;
    bool unplanned; /* commit: what the version must hold has to be planned first */
    bool planned;   /* planning was tried */
    bool completes; /* commit: it would become visible, so L3 is asked for the shards first */
    bool secured;   /* they are held in as many failure domains as required */
    bool checked;   /* L3 has them, and the proof succeeded or is impossible */
    struct hl_proof proof;
    char *config;                /* the model's config, as its first version defines it */
    struct version_change *next; /* begin: the next one that waits for the claim, too */
    uint64_t since_ns;           /* listened_ns when that wait began */
    hl_status refuted;           /* HL_OK, or the failure that the rank is told, with `why` */
    char why[HL_ERROR_TEXT_MAX];
};

static void version_change_free(struct version_change *vc)
{
    free(vc->config);
    free(vc->ids);
    free(vc);
}

/* For a call; NULL: the call was answered. */
static struct version_change *version_change_new(struct hl_controller *c, struct hl_rpc_call *call)
{
    hl_status st = claim_check(c);
    struct version_change *vc = st == HL_OK ? calloc(1, sizeof(*vc)) : NULL;
    if (st == HL_OK && vc == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a change of a version");
    if (st != HL_OK) {
        call_reject(call, st);
        return NULL;
    }
    vc->call = call;
    vc->now_ms = hl_wall_ms();
    return vc;
}

/* From here on the change owns itself: `done` answers the call and frees the change. */
static void version_change_start(struct hl_controller *c, struct version_change *vc,
                                 hl_status (*make)(struct change *),
                                 void (*done)(struct change *, hl_status))
{
    vc->change = (struct change){.make = make, .done = done};
    change_start(c, &vc->change);
}

/* Who writes a version, as reported by the rank; container -1: not reported. */
struct version_writer {
    const char *job, *verb;
    int attempt, container;
};

/* A rank has no part in what its gang saves now if its attempt is over, or if its container was
 * given up and still runs unseen. */
static hl_status check_writer(struct hl_controller *c, const struct version_writer *w)
{
    struct version_user j;
    if (!c->models->users->find_writer(c, w->job, &j))
        return HL_OK;
    if (j.over || w->attempt != j.attempt)
        return hl_fail(HL_ECONFLICT,
                       "attempt %d of job '%s' is over and can't %s a version; it is %s in attempt "
                       "%d",
                       w->attempt, w->job, w->verb, hl_api_job_state_name(j.state), j.attempt);
    if (w->container >= 0 && c->models->users->is_replaced(c, w->job, w->attempt, w->container))
        return hl_fail(HL_ECONFLICT,
                       "container %d of attempt %d of job '%s' was given up and can't %s a "
                       "version; the gang continues without this process",
                       w->container, w->attempt, w->job, w->verb);
    return HL_OK;
}

/* All ranks of one save use the same token: the first one opens the version, the others join. */
static hl_status begin_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    const struct hl_api_controller_begin_version_params *p = vc->begin;
    struct hl_version_begin b = {
        .model = p->model,
        .job = p->job,
        .attempt = p->attempt,
        .generation = p->generation,
        .step = p->step,
        .rank = p->rank,
        .world = p->world,
        .now_ms = vc->now_ms,
        .check = p->check,
        .split = p->split,
        .create = p->create,
        .config = p->config,
    };
    if (p->token[0] != '\0' && !hl_parse_hex(p->token, 16, &b.token))
        return hl_fail(HL_EINVAL, "the token of a save is '%.32s', not a hexadecimal number",
                       p->token);
    if (b.token == 0) /* without a token it would join whatever is open, and might mix two saves */
        return hl_fail(HL_EUNSUPPORTED, "a version is begun without the save's token: this client "
                                        "is older than the Controller; install the same release");
    if (!ch->durable) {
        const struct version_writer w = {
            .job = b.job, .verb = "begin", .attempt = b.attempt, .container = p->container};
        HL_TRY(check_writer(ch->c, &w));
        HL_TRY(durability_check(ch->c)); /* checked before the shards are put */
    }
    return hl_catalog_begin(&ch->c->catalog, &b, commit_records, ch->c, &vc->version);
}

static void begin_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    if (st != HL_OK)
        call_reject(vc->call, st);
    else
        hl_reply_controller_begin_version(
            vc->call, &(struct hl_api_controller_begin_version_results){vc->version->number,
                                                                        HL_API_VERSION_STATE_OPEN});
    if (st == HL_OK)
        drop_overtaken_versions(ch->c, vc->version);
    version_change_free(vc);
}

/* ---- begins that wait for the claim ---------------------------------------------------------- */

static bool begin_waits(const struct hl_controller *c)
{
    return claim_state(c) == HL_API_CLAIM_STATE_UNKNOWN && HASH_COUNT(c->catalog.shards) == 0;
}

/* Fails a begin that has waited too long for the rank, which may try again. */
HL_CHECK static hl_status check_waited(const struct hl_controller *c,
                                       const struct version_change *vc)
{
    char why[400];
    if (claim_ok(c, why, sizeof(why)) ||
        c->listening.listened_ns - vc->since_ns <= HL_IMPORT_SILENCE_NS)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL, "%s, and the catalogue is empty: %.200s; save again", why,
                   pool_info(c) == NULL ? pool_state(c) : "it answers, but not this call");
}

static void begins_tick(void *controller)
{
    struct hl_controller *c = controller;
    controller_check_clocks(c);
    const bool wait = begin_waits(c);
    for (struct version_change **at = &c->models->begins, *vc; (vc = *at) != NULL;) {
        hl_status st = claim_check(c);
        if (st == HL_OK && wait)
            st = check_waited(c, vc);
        if (st == HL_OK && wait) {
            at = &vc->next;
            continue;
        }
        *at = vc->next;
        if (st == HL_OK) {
            version_change_start(c, vc, begin_make, begin_done);
        } else {
            call_reject(vc->call, st);
            version_change_free(vc);
        }
    }
    if (c->models->begins == NULL) {
        hl_timer_destroy(c->models->begins_tick);
        c->models->begins_tick = NULL;
    }
}

/* Waiting begins are kept in the order of their calls. */
HL_CHECK static hl_status begin_later(struct hl_controller *c, struct version_change *vc)
{
    struct version_change **end = &c->models->begins;
    if (c->models->begins_tick == NULL)
        HL_TRY(hl_timer_create(c->opts.loop, BEGIN_POLL_MS, BEGIN_POLL_MS, begins_tick, c,
                               &c->models->begins_tick));
    while (*end != NULL)
        end = &(*end)->next;
    vc->since_ns = c->listening.listened_ns;
    *end = vc;
    return HL_OK;
}

void begins_fini(struct hl_controller *c)
{
    while (c->models->begins != NULL) {
        struct version_change *vc = c->models->begins;
        c->models->begins = vc->next;
        call_reject(vc->call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
        version_change_free(vc);
    }
}

void method_begin_version(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_begin_version_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct version_change *vc = version_change_new(c, call);
    if (vc == NULL)
        return;
    vc->begin = p;
    if (!begin_waits(c)) {
        version_change_start(c, vc, begin_make, begin_done);
        return;
    }
    hl_status st = begin_later(c, vc);
    if (st == HL_OK)
        return;
    call_reject(call, st);
    version_change_free(vc);
}

static hl_status abandon_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_abandon a = {
        .rank = vc->abandon->rank,
        .reason = vc->abandon->reason,
    };
    HL_TRY(find_version(ch->c, vc->abandon->model, vc->abandon->version, &a.version));
    return hl_catalog_abandon(&ch->c->catalog, &a, commit_records, ch->c, &vc->ids, &vc->id_count);
}

/* Frees the shards that were committed, and those that the rank has put but not committed. */
static void abandon_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    const struct hl_api_controller_abandon_version_params *p = vc->abandon;
    if (st != HL_OK) {
        call_reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    hl_warn("version abandoned model=%s version=%" PRId64 " rank=%d reason=\"%s\"", p->model,
            p->version, p->rank, p->reason);
    pool_free(ch->c, vc->ids, vc->id_count);
    pool_free_uncommitted(ch->c, &p->ids);
    hl_reply_controller_abandon_version(vc->call,
                                        &(struct hl_api_controller_abandon_version_results){0});
    version_change_free(vc);
}

void method_abandon_version(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_abandon_version_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct version_change *vc = version_change_new(c, call);
    if (vc == NULL)
        return;
    vc->abandon = p;
    version_change_start(c, vc, abandon_make, abandon_done);
}

static hl_status commit_part_make(struct change *ch);
static void commit_part_done(struct change *ch, hl_status st);

/* The version is over for the last rank as well: what that rank has put is freed, too. */
static void refute_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    const struct hl_api_controller_commit_part_params *p = vc->commit;
    if (st != HL_OK) {
        call_reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    hl_warn("version refuted model=%s version=%" PRId64 " rank=%d reason=\"%s\"", p->model,
            p->version, p->rank, vc->why);
    pool_free(ch->c, vc->ids, vc->id_count);
    pool_free_shards(ch->c, &p->shards);
    call_reject(vc->call, hl_fail(vc->refuted, "%s", vc->why));
    version_change_free(vc);
}

static hl_status refute_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_abandon a = {.rank = vc->commit->rank, .reason = vc->why, .refuted = true};
    HL_TRY(find_version(ch->c, vc->commit->model, vc->commit->version, &a.version));
    return hl_catalog_abandon(&ch->c->catalog, &a, commit_records, ch->c, &vc->ids, &vc->id_count);
}

/* HL_ENOMEM and HL_ECANCELED say nothing about the version. A save that does not match its config
 * may be given up by its rank. */
static void on_proved(void *arg, hl_status st, struct proved *proved)
{
    struct version_change *vc = arg;
    struct hl_controller *c = vc->change.c;
    if (controller_stopped(c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    if (st == HL_ENOMEM || st == HL_ECANCELED || (st != HL_OK && !proved->settled)) {
        call_reject(vc->call, st);
        version_change_free(vc);
    } else if (st != HL_OK) {
        vc->refuted = st;
        snprintf(vc->why, sizeof(vc->why), "version %" PRId64 " of '%s' is not whole: %s",
                 vc->commit->version, vc->commit->model, hl_error_text());
        version_change_start(c, vc, refute_make, refute_done);
    } else {
        vc->proof = proved->proof;
        vc->config = hl_steal(&proved->config);
        vc->checked = true;
        version_change_start(c, vc, commit_part_make, commit_part_done);
    }
}

/* After HL_ENOMEM and HL_ECANCELED the rank may try again. */
static void prove_version(struct hl_controller *c, struct version_change *vc)
{
    struct hl_version_rec *v;
    hl_status st = find_version(c, vc->commit->model, vc->commit->version, &v);
    if (st == HL_OK) {
        const struct hl_version_commit commit = {.version = v,
                                                 .rank = vc->commit->rank,
                                                 .shards = vc->commit->shards,
                                                 .expected = layout_find(c, v)};
        st = proof_start(c, &commit, on_proved, vc);
    }
    if (st == HL_OK)
        return;
    call_reject(vc->call, st);
    version_change_free(vc);
}

/* The version may have been removed while the call waited. */
static void reply_securing(struct version_change *vc, const struct securing_progress *progress)
{
    struct hl_version_rec *v;
    hl_status st = find_version(vc->change.c, vc->commit->model, vc->commit->version, &v);
    if (st == HL_OK)
        hl_reply_controller_commit_part(vc->call, &(struct hl_api_controller_commit_part_results){
                                                      .committed = v->committed_count,
                                                      .securing = true,
                                                      .done_bytes = progress->done_bytes,
                                                      .total_bytes = progress->total_bytes});
    else
        call_reject(vc->call, st);
    version_change_free(vc);
}

static void on_version_secured(void *arg, hl_status st, const char *text,
                               const struct securing_progress *progress)
{
    struct version_change *vc = arg;
    struct hl_controller *c = vc->change.c;
    if (st == HL_OK) {
        vc->secured = true;
        prove_version(c, vc);
    } else if (st == HL_ESTALE) {
        version_change_start(c, vc, commit_part_make, commit_part_done);
    } else if (st == HL_EBUSY) {
        reply_securing(vc, progress);
    } else {
        call_reject(vc->call, hl_fail(st, "version %" PRId64 " of '%s' is not visible: %s",
                                      vc->commit->version, vc->commit->model, text));
        version_change_free(vc);
    }
}

/* A rank repeats its call before its own deadline. */
static void secure_version(struct hl_controller *c, struct version_change *vc)
{
    const struct hl_api_controller_commit_part_params *p = vc->commit;
    uint64_t until_ns = p->waits ? hl_now_ns() + SECURE_WAIT_NS : UINT64_MAX;
    struct hl_version_rec *v;
    hl_status st = find_version(c, p->model, p->version, &v);
    if (st == HL_OK)
        st = secure_wait(c, v, p->rank, &p->shards, until_ns, on_version_secured, vc);
    if (st == HL_OK)
        return;
    call_reject(vc->call, st);
    version_change_free(vc);
}

/* L3 has answered, or failed to; without its answer nothing becomes visible. The version may have
 * been removed or given up meanwhile. */
static void on_looked(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_look_results *r)
{
    struct version_change *vc = arg;
    struct hl_controller *c = vc->change.c;
    struct hl_version_rec *v;
    if (controller_stopped(c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st != HL_OK)
        st = hl_fail(st, "the version's shards can't be looked up in the pool: %s", text);
    else if ((st = find_version(c, vc->commit->model, vc->commit->version, &v)) == HL_OK)
        st = hl_commit_check(v, &vc->commit->shards, &r->shards);
    if (st != HL_OK) {
        call_reject(vc->call, st);
        version_change_free(vc);
    } else if (copies_durability(c) == HL_DURABILITY_POOL) {
        prove_version(c, vc);
    } else {
        secure_version(c, vc);
    }
}

/* The version would become visible: asks L3 for its shards, including those of earlier commits. */
static void look_up(struct hl_controller *c, struct version_change *vc)
{
    struct hl_arena *arena = hl_rpc_call_arena(vc->call);
    struct hl_api_text_list ids = hl_commit_check_ids(vc->version, &vc->commit->shards, arena);
    vc->completes = false;
    if (secure_runs(c, vc->version, vc->commit->rank, &vc->commit->shards)) {
        secure_version(c, vc); /* they were looked up already */
        return;
    }
    if (hl_arena_failed(arena)) {
        call_reject(vc->call, hl_fail(HL_ENOMEM, "out of memory for the ids of a version"));
        version_change_free(vc);
        return;
    }
    controller_hold(c);
    hl_call_l3_look_async(c->l3, &(struct hl_api_l3_look_params){ids}, c->opts.rpc_timeout_ms,
                          c->opts.loop, on_looked, vc);
}

/* HL_EBUSY with `unplanned` or `completes` is not a failure, but leads to plan_layout or look_up.
 */
static hl_status commit_part_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_commit p = {
        .rank = vc->commit->rank,
        .shards = vc->commit->shards,
        .meta = vc->commit->meta,
        .now_ms = vc->now_ms,
        .proof = vc->checked ? &vc->proof : NULL,
        .config = vc->config,
    };
    HL_TRY(find_version(ch->c, vc->commit->model, vc->commit->version, &p.version));
    vc->version = p.version;
    if (p.version->state == HL_API_VERSION_STATE_OPEN && !ch->durable) {
        const struct version_writer w = {.job = p.version->job,
                                         .verb = "commit to",
                                         .attempt = p.version->attempt,
                                         .container = vc->commit->container};
        HL_TRY(check_writer(ch->c, &w));
    }
    if (p.version->state == HL_API_VERSION_STATE_OPEN)
        p.version->touched_ms = vc->now_ms; /* so that it is not dropped during the check */
    vc->unplanned = !ch->durable && !vc->planned && layout_is_missing(ch->c, p.version);
    if (vc->unplanned)
        return hl_fail(HL_EBUSY, "what the version has to hold is planned first");
    p.expected = layout_find(ch->c, p.version);
    vc->completes = !ch->durable && !vc->checked && hl_catalog_completes(p.version, p.rank);
    if (vc->completes)
        return hl_fail(HL_EBUSY, "L3 has to report the shards first");
    return hl_catalog_commit_part(&ch->c->catalog, &p, commit_records, ch->c);
}

/* Planned only once; if the version or its model has changed meanwhile, the commit plans by itself.
 */
static void on_layout_planned(void *arg)
{
    struct version_change *vc = arg;
    struct hl_controller *c = vc->change.c;
    vc->planned = true;
    if (!controller_stopped(c)) {
        version_change_start(c, vc, commit_part_make, commit_part_done);
        return;
    }
    call_reject(vc->call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
    version_change_free(vc);
}

static void plan_layout(struct hl_controller *c, struct version_change *vc)
{
    hl_status st = layout_plan(c, vc->version, on_layout_planned, vc);
    vc->unplanned = false;
    if (st == HL_OK)
        return;
    call_reject(vc->call, st);
    version_change_free(vc);
}

/* The rank is answered before the manifest is written: the manifest can be written again later, the
 * answer can't be given again. The call's parameters are gone with the answer. */
static void commit_part_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_rec *v = vc->version;
    if (st == HL_EBUSY && vc->unplanned) {
        plan_layout(ch->c, vc);
        return;
    }
    if (st == HL_EBUSY && vc->completes) {
        look_up(ch->c, vc);
        return;
    }
    if (st != HL_OK) {
        call_reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    bool visible = v->state == HL_API_VERSION_STATE_VISIBLE;
    if (visible)
        hl_info("version visible model=%s version=%" PRId64 " step=%" PRId64 " shards=%zu",
                v->model->name, v->number, v->step, v->shard_count);
    placement_written(ch->c,
                      ch->c->models->users->find_node(ch->c, v->job, v->attempt, vc->commit->rank),
                      &vc->commit->shards);
    hl_reply_controller_commit_part(
        vc->call, &(struct hl_api_controller_commit_part_results){.visible = visible,
                                                                  .committed = v->committed_count});
    if (visible) {
        if (vc->secured)
            durability_settle(ch->c, v);
        manifest_write(ch->c, v);
        layouts_forget(ch->c);
        drop_old_versions(ch->c, v);
        sweep_soon(ch->c);           /* so that it is archived, if it has to be */
        ch->c->slots_changed = true; /* a job may be waiting for a whole version */
    }
    version_change_free(vc);
}

void method_commit_part(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_commit_part_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct version_change *vc = version_change_new(c, call);
    if (vc == NULL)
        return;
    vc->commit = p;
    version_change_start(c, vc, commit_part_make, commit_part_done);
}
