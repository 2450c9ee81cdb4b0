/* Shards: which ones a rank needs, how they are read, and how a gang writes a new version. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_private.h"
#include "controller/copies/copies.h"

static hl_status find_version(struct hl_controller *c, const json_t *params,
                              struct hl_version_rec **out)
{
    struct hl_model_rec *m;
    HL_TRY(hl_catalog_model(&c->catalog, hl_json_str(params, "model", ""), &m));
    return hl_catalog_version(m, hl_json_int(params, "version", -1), out);
}

void method_request_shards(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_version_rec *v;
    hl_status st = find_version(c, params, &v);
    if (st == HL_OK && v->state == HL_VERSION_FAILED)
        st = hl_fail(HL_ENOENT, "version %" PRId64 " of '%s' was given up by %s", v->number,
                     v->model->name, v->error != NULL ? v->error : "a rank");
    else if (st == HL_OK && v->state != HL_VERSION_VISIBLE)
        st = hl_fail(HL_EBUSY,
                     "version %" PRId64 " of '%s' is not complete: %d of %d ranks have committed",
                     v->number, v->model->name, v->committed_count, v->world);
    int pp = (int)hl_json_int(params, "pp", 0);
    int tp = (int)hl_json_int(params, "tp", 0);
    if (st == HL_OK)
        st = hl_version_readable(v, pp, tp);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    json_t *shards = json_array();
    for (size_t i = 0; i < v->shard_count; i++)
        if (v->shards[i]->pp == pp && v->shards[i]->tp == tp)
            json_array_append_new(shards, copies_shard_json(c, v->shards[i]));
    if (json_array_size(shards) == 0) {
        json_decref(shards);
        reject(call, hl_fail(HL_ENOENT,
                             "'%s' version %" PRId64
                             " has no shards at pp %d, tp %d: it is sliced TP%d x PP%d",
                             v->model->name, v->number, pp, tp, v->model->tp, v->model->pp));
        return;
    }
    char skipped[512] = "";
    if (hl_json_int(params, "version", -1) == -1)
        hl_catalog_skipped(v->model, skipped, sizeof(skipped));
    hl_rpc_reply(call, json_pack("{s:o s:I s:s s:s s:s s:s}", "shards", shards, "version",
                                 (json_int_t)v->number, "meta", v->meta, "config", v->model->config,
                                 "l3Address", c->opts.l3_address, "skipped", skipped));
}

/* The cursor is "INDEX": shards of a version keep their order while it lives. */
void method_list_shards(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    size_t at = (size_t)strtoull(hl_json_str(params, "cursor", "0"), NULL, 10);
    size_t limit = (size_t)hl_json_int(params, "limit", 0);
    if (limit == 0 || limit > 10000)
        limit = 10000;
    const char *model = hl_json_str(params, "model", "");
    int64_t version = hl_json_int(params, "version", -1);
    json_t *shards = json_array();
    size_t seen = 0;
    int more = 0;
    for (struct hl_model_rec *m = c->catalog.models; m != NULL && !more; m = m->hh.next) {
        if (model[0] != '\0' && strcmp(model, m->name) != 0)
            continue;
        for (struct hl_version_rec *v = m->versions; v != NULL && !more; v = v->next) {
            if (version != -1 && v->number != version)
                continue;
            for (size_t i = 0; i < v->shard_count && !more; i++) {
                if (seen++ < at)
                    continue;
                if (json_array_size(shards) == limit)
                    more = 1;
                else
                    json_array_append_new(shards, copies_shard_json(c, v->shards[i]));
            }
        }
    }
    char next[24] = "";
    if (more)
        snprintf(next, sizeof(next), "%zu", at + limit);
    hl_rpc_reply(call, json_pack("{s:o s:s}", "shards", shards, "next", next));
}

static void count_path(struct hl_controller *c, const char *path, uint64_t ops, uint64_t bytes)
{
    if (path[0] == '\0')
        return;
    for (size_t i = 0; i < HL_ARRAY_LEN(c->paths); i++) {
        struct path_count *p = &c->paths[i];
        if (p->path[0] == '\0')
            snprintf(p->path, sizeof(p->path), "%s", path);
        if (strcmp(p->path, path) == 0) {
            p->ops += ops;
            p->bytes += bytes;
            return;
        }
    }
}

/* A word of ours, whatever the report holds. */
static const char *known_path(const json_t *report)
{
    static const char *const paths[] = {"shm", "rdma", "tcp", "emulated"};
    for (size_t i = 0; i < HL_ARRAY_LEN(paths); i++)
        if (strcmp(paths[i], hl_json_str(report, "path", "")) == 0)
            return paths[i];
    return "unknown";
}

void method_report_access(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    metrics_report(c, hl_json_list(params, "transfers"), hl_json_list(params, "faults"));
    archive_touch(c, hl_json_list(params, "reports"));
    size_t i;
    json_t *r;
    json_array_foreach (hl_json_list(params, "reports"), i, r) {
        struct hl_id id;
        uint64_t count = (uint64_t)hl_json_int(r, "count", 0);
        uint64_t failures = (uint64_t)hl_json_int(r, "crcFailures", 0);
        count_path(c, hl_json_str(r, "path", ""), count, (uint64_t)hl_json_int(r, "bytes", 0));
        c->crc_failures += failures;
        hl_fault_add(hl_json_bool(r, "lost", 0) ? "lost" : "crc", known_path(r), failures);
        c->crc_retries += (uint64_t)hl_json_int(r, "retries", 0);
        if (hl_id_parse(hl_json_str(r, "id", ""), &id) != HL_OK)
            continue;
        struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
        if (s == NULL)
            continue;
        s->accesses += count;
        s->last_access_ms = hl_wall_ms();
        char key[HL_CATALOG_KEY_MAX];
        int lost = hl_json_bool(r, "lost", 0);
        c->lost_reads += (uint64_t)lost;
        if (failures > 0)
            hl_warn("shard failed its checksum shard=%s id=%s failures=%" PRIu64 " %s",
                    hl_shard_key(s, key, sizeof(key)), hl_id_format(id).s, failures,
                    lost ? "and stayed bad" : "and was healed by a retry");
    }
    hl_rpc_reply(call, NULL);
}

/* A change of a version: by a call of a rank, or by ourselves (drop). */
struct version_change {
    struct change change; /* first */
    struct hl_rpc_call *call;
    const json_t *params; /* of the call, valid until it is answered */
    int64_t now_ms;
    struct hl_version_rec *version; /* found or made */
    char *model;                    /* drop */
    int64_t number;                 /* drop */
    struct hl_id *ids;              /* shards that nobody needs any more */
    size_t id_count;
    bool completes; /* commit: the version would become visible; L3 is asked for its shards first */
    bool looked;    /* L3 has them */
    struct hl_id *manifests; /* drop */
    size_t manifest_count;
};

static void version_change_free(struct version_change *vc)
{
    free(vc->model);
    free(vc->ids);
    free(vc->manifests);
    free(vc);
}

static void version_change_start(struct hl_controller *c, struct hl_rpc_call *call,
                                 const json_t *params, hl_status (*make)(struct change *),
                                 void (*done)(struct change *, hl_status))
{
    hl_status st = claim_check(c);
    struct version_change *vc = st == HL_OK ? calloc(1, sizeof(*vc)) : NULL;
    if (st == HL_OK && vc == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a change of a version");
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    vc->change.make = make;
    vc->change.done = done;
    vc->call = call;
    vc->params = params;
    vc->now_ms = hl_wall_ms();
    change_start(c, &vc->change);
}

/* A rank of an attempt that is over can't begin a version. */
static hl_status check_attempt(struct hl_controller *c, const struct hl_version_begin *b)
{
    struct job *j;
    HASH_FIND_STR(c->jobs, b->job, j);
    if (j == NULL || (!hl_job_state_ended(j->run.state) && b->attempt == j->run.attempt))
        return HL_OK;
    return hl_fail(HL_ECONFLICT,
                   "attempt %d of job '%s' is over and can't begin a version; it is %s in attempt "
                   "%d",
                   b->attempt, j->id, hl_job_state_name(j->run.state), j->run.attempt);
}

static hl_status begin_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    const json_t *params = vc->params;
    struct hl_version_begin b = {
        .model = hl_json_str(params, "model", ""),
        .job = hl_json_str(params, "job", ""),
        .attempt = (int)hl_json_int(params, "attempt", 0),
        .step = hl_json_int(params, "step", 0),
        .rank = (int)hl_json_int(params, "rank", 0),
        .world = (int)hl_json_int(params, "world", 0),
        .token = strtoull(hl_json_str(params, "token", ""), NULL, 16),
        .now_ms = vc->now_ms,
    };
    HL_TRY(hl_layout_check_parse(hl_json_str(params, "check", ""), &b.check));
    if (b.token == 0) /* it would join whatever is open, and may mix two saves */
        return hl_fail(HL_EUNSUPPORTED, "a version is begun without a token of the save: this "
                                        "client is older than the Controller; install the same "
                                        "release");
    if (!ch->durable)
        HL_TRY(check_attempt(ch->c, &b));
    return hl_catalog_begin(&ch->c->catalog, &b, commit_records, ch->c, &vc->version);
}

static void begin_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    if (st != HL_OK)
        reject(vc->call, st);
    else
        hl_rpc_reply(vc->call, json_pack("{s:I s:s}", "version", (json_int_t)vc->version->number,
                                         "state", "open"));
    version_change_free(vc);
}

void method_begin_version(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    version_change_start(c, call, params, begin_make, begin_done);
}

/* What a rank put and can't commit any more. */
static void free_uncommitted(struct hl_controller *c, const json_t *texts)
{
    struct hl_id *ids = calloc(json_array_size(texts) + 1, sizeof(*ids));
    size_t i, n = 0;
    json_t *text;
    json_array_foreach (ids == NULL ? NULL : texts, i, text) {
        if (hl_id_parse(json_string_value(text), &ids[n]) == HL_OK &&
            hl_catalog_shard(&c->catalog, ids[n]) == NULL)
            n++;
    }
    free_in_pool(c, ids, n);
    free(ids);
}

static hl_status abandon_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_abandon a = {
        .rank = (int)hl_json_int(vc->params, "rank", -1),
        .reason = hl_json_str(vc->params, "reason", ""),
    };
    HL_TRY(find_version(ch->c, vc->params, &a.version));
    return hl_catalog_abandon(&ch->c->catalog, &a, commit_records, ch->c, &vc->ids, &vc->id_count);
}

static void abandon_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    const json_t *params = vc->params;
    if (st != HL_OK) {
        reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    hl_warn("version given up model=%s version=%" PRId64 " rank=%d reason=\"%s\"",
            hl_json_str(params, "model", ""), hl_json_int(params, "version", -1),
            (int)hl_json_int(params, "rank", -1), hl_json_str(params, "reason", ""));
    free_in_pool(ch->c, vc->ids, vc->id_count);
    free_uncommitted(ch->c, hl_json_list(params, "ids"));
    hl_rpc_reply(vc->call, NULL);
    version_change_free(vc);
}

void method_abandon_version(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    version_change_start(c, call, params, abandon_make, abandon_done);
}

static hl_status drop_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_model_rec *m;
    uint64_t bytes;
    HL_TRY(hl_catalog_model(&ch->c->catalog, vc->model, &m));
    free(vc->manifests);
    vc->manifests = manifests_of(m, vc->number, &vc->manifest_count);
    return hl_catalog_remove(&ch->c->catalog, m, vc->number, commit_records, ch->c, &vc->ids,
                             &vc->id_count, &bytes);
}

static void drop_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    if (st == HL_OK) {
        free_in_pool(ch->c, vc->manifests, vc->manifest_count);
        free_in_pool(ch->c, vc->ids, vc->id_count);
    } else if (st != HL_ENOENT && st != HL_ECANCELED) { /* somebody else has removed it; stopped */
        hl_error("version not removed model=%s version=%" PRId64 " error=\"%s\"", vc->model,
                 vc->number, hl_error_text());
    }
    version_change_free(vc);
}

static bool is_being_dropped(const struct hl_controller *c, const struct hl_version_rec *v)
{
    for (const struct change *ch = c->changes; ch != NULL; ch = ch->next) {
        const struct version_change *vc = (const struct version_change *)ch;
        if (ch->make == drop_make && vc->number == v->number &&
            strcmp(vc->model, v->model->name) == 0)
            return true;
    }
    return false;
}

/* Have it removed, which waits for the disk. */
static void drop_version(struct hl_controller *c, const struct hl_version_rec *v)
{
    struct version_change *vc = calloc(1, sizeof(*vc));
    char *model = strdup(v->model->name);
    if (vc == NULL || model == NULL || c->claim.state == CLAIM_REFUSED) {
        free(vc);
        free(model);
        return; /* a later round finds it again */
    }
    vc->change.make = drop_make;
    vc->change.done = drop_done;
    vc->model = model;
    vc->number = v->number;
    change_start(c, &vc->change);
}

/* The newest `versions_keep` whole versions of a job stay, and what is newer than the oldest of
 * them; imports and other jobs' versions always. */
static void drop_old_versions(struct hl_controller *c, struct hl_version_rec *newest)
{
    struct hl_model_rec *m = newest->model;
    int seen = 0;
    struct hl_version_rec *next;
    for (struct hl_version_rec *v = m->versions; v != NULL && c->opts.versions_keep > 0; v = next) {
        next = v->next;
        if (v->state != HL_VERSION_VISIBLE || v->world == 0 || strcmp(v->job, newest->job) != 0)
            continue;
        if (seen < c->opts.versions_keep || is_being_dropped(c, v)) {
            seen += hl_version_whole(v);
            continue;
        }
        hl_info("old version is removed model=%s version=%" PRId64, m->name, v->number);
        drop_version(c, v);
    }
}

static void on_looked(void *arg, hl_status st, const char *text, json_t *result)
{
    struct version_change *vc = arg;
    struct hl_controller *c = vc->change.c;
    struct hl_version_rec *v;
    if (controller_landed(c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st != HL_OK)
        st = hl_fail(st, "the version's shards can't be looked up in the pool: %s", text);
    else if ((st = find_version(c, vc->params, &v)) == HL_OK)
        st = commit_check(v, hl_json_list(vc->params, "shards"), hl_json_list(result, "shards"));
    if (st != HL_OK) {
        reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    vc->looked = true;
    vc->change = (struct change){.make = vc->change.make, .done = vc->change.done};
    change_start(c, &vc->change);
}

static void look_up(struct hl_controller *c, struct version_change *vc)
{
    json_t *params = json_pack("{s:o}", "ids",
                               commit_check_ids(vc->version, hl_json_list(vc->params, "shards")));
    vc->completes = false;
    controller_call(c, c->l3, "look", params, on_looked, vc);
    json_decref(params);
}

static hl_status commit_part_make(struct change *ch)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_commit p = {
        .rank = (int)hl_json_int(vc->params, "rank", -1),
        .shards = hl_json_list(vc->params, "shards"),
        .meta = hl_json_str(vc->params, "meta", ""),
        .now_ms = vc->now_ms,
    };
    HL_TRY(find_version(ch->c, vc->params, &p.version));
    vc->version = p.version;
    vc->completes = !ch->durable && !vc->looked && hl_catalog_completes(p.version, p.rank);
    if (vc->completes)
        return hl_fail(HL_EBUSY, "L3 is asked for the shards first");
    return hl_catalog_commit_part(&ch->c->catalog, &p, commit_records, ch->c);
}

static void commit_part_done(struct change *ch, hl_status st)
{
    struct version_change *vc = (struct version_change *)ch;
    struct hl_version_rec *v = vc->version;
    if (st == HL_EBUSY && vc->completes) {
        look_up(ch->c, vc);
        return;
    }
    if (st != HL_OK) {
        reject(vc->call, st);
        version_change_free(vc);
        return;
    }
    int visible = v->state == HL_VERSION_VISIBLE;
    if (visible)
        hl_info("version visible model=%s version=%" PRId64 " step=%" PRId64 " shards=%zu",
                v->model->name, v->number, v->step, v->shard_count);
    hl_rpc_reply(vc->call,
                 json_pack("{s:b s:i}", "visible", visible, "committed", v->committed_count));
    if (visible) {
        manifest_write(ch->c, v);
        drop_old_versions(ch->c, v);
        ch->c->sweep_ns = 0;      /* it may have to be archived */
        ch->c->slots_changed = 1; /* a job may wait for a version that is whole */
    }
    version_change_free(vc);
}

void method_commit_part(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    version_change_start(c, call, params, commit_part_make, commit_part_done);
}

/* An open or failed one that is not being dropped. */
static struct hl_version_rec *find_incomplete(const struct hl_controller *c, const char *job,
                                              int attempt)
{
    for (struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (v->state != HL_VERSION_VISIBLE && v->attempt < attempt &&
                strcmp(v->job, job) == 0 && !is_being_dropped(c, v))
                return v;
    return NULL;
}

void drop_open_versions(struct hl_controller *c, const char *job, int attempt)
{
    struct hl_version_rec *v;
    while (!c->closing && (v = find_incomplete(c, job, attempt)) != NULL) {
        hl_info("incomplete version is dropped model=%s version=%" PRId64 " job=%s committed=%d/%d",
                v->model->name, v->number, job, v->committed_count, v->world);
        drop_version(c, v);
        if (!is_being_dropped(c, v))
            return; /* refused at once: drop_stale_versions tries again */
    }
}

static int is_written_by_job(const struct hl_controller *c, const struct hl_version_rec *v)
{
    struct job *j;
    HASH_FIND_STR(c->jobs, v->job, j);
    return j != NULL && !hl_job_state_ended(j->run.state);
}

/* No job of ours, and no begin or commit for the grace period: its writer has died. */
static struct hl_version_rec *find_stale(struct hl_controller *c, struct hl_model_rec *m,
                                         int64_t now_ms)
{
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (v->state == HL_VERSION_VISIBLE || is_written_by_job(c, v) || is_being_dropped(c, v))
            continue;
        if (v->touched_ms == 0)
            v->touched_ms = now_ms; /* it was there before this start */
        if (now_ms - v->touched_ms > c->opts.gc_grace_ms)
            return v;
    }
    return NULL;
}

void shift_open_versions(struct hl_controller *c, int64_t stepped_ms)
{
    for (struct hl_model_rec *m = stepped_ms != 0 ? c->catalog.models : NULL; m != NULL;
         m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            v->touched_ms += v->touched_ms != 0 ? stepped_ms : 0;
}

void drop_stale_versions(struct hl_controller *c)
{
    struct hl_model_rec *m, *next;
    if (c->claim.state == CLAIM_REFUSED)
        return;
    HASH_ITER (hh, c->catalog.models, m, next) {
        struct hl_version_rec *v = find_stale(c, m, hl_wall_ms());
        if (v == NULL)
            continue;
        hl_warn("incomplete version is dropped, its writer is gone model=%s version=%" PRId64
                " job=%s committed=%d/%d",
                m->name, v->number, v->job, v->committed_count, v->world);
        drop_version(c, v);
    }
}
