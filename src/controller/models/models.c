/* Models: imports run in the L3 daemon, next to the pool; the Controller follows them and makes the
 * result visible in one commit. Nothing of a running import is on disk here, so whatever dies
 * leaves no half model: its shards are unknown to the catalogue and the sweep frees them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_private.h"
#include "os/loop.h"

#define IMPORT_POLL_MS    50
#define IMPORT_SILENCE_NS (10 * HL_NS_PER_S) /* of L3, after which an import has failed */
#define IMPORTS_MAX       1000

static int import_running(const struct import *im)
{
    return strcmp(hl_json_str(im->progress, "state", ""), "running") == 0;
}

static void import_fail(struct import *im, hl_status st, const char *text)
{
    json_object_set_new(im->progress, "state", json_string("failed"));
    json_object_set_new(im->progress, "error", json_string(text));
    json_object_set_new(im->progress, "errorStatus", json_string(hl_status_name(st)));
    hl_warn("import failed name=%s error=\"%s\"", hl_json_str(im->request, "name", "?"), text);
}

static void import_free(struct hl_controller *c, struct import *im)
{
    HASH_DEL(c->imports, im);
    json_decref(im->request);
    json_decref(im->progress);
    json_decref(im->result);
    free(im);
}

void imports_fini(struct hl_controller *c)
{
    struct import *im, *next;
    HASH_ITER (hh, c->imports, im, next) {
        import_free(c, im);
    }
}

static struct import *import_find(struct hl_controller *c, const char *id)
{
    struct import *im;
    HASH_FIND_STR(c->imports, id, im);
    return im;
}

static void free_shards(struct hl_controller *c, const json_t *shards)
{
    struct hl_id *ids = calloc(json_array_size(shards) + 1, sizeof(*ids));
    size_t i, n = 0;
    json_t *shard;
    json_array_foreach (ids == NULL ? NULL : shards, i, shard) {
        n += hl_id_parse(hl_json_str(shard, "id", ""), &ids[n]) == HL_OK;
    }
    free_in_pool(c, ids, n);
    free(ids);
}

struct import_change {
    struct change change; /* first */
    struct import *im;
    int64_t now_ms;
    struct hl_version_rec *version;
};

/* L3 says done: the model becomes visible, or its shards go. It may not have heard of a cancel. */
static hl_status import_make(struct change *ch)
{
    struct import_change *ic = (struct import_change *)ch;
    const struct import *im = ic->im;
    struct hl_import_done done = {
        .name = hl_json_str(im->request, "name", ""),
        .source = hl_json_str(im->request, "dir", ""),
        .tp = (int)hl_json_int(im->request, "tp", 1),
        .pp = (int)hl_json_int(im->request, "pp", 1),
        .virtual_stages = (int)hl_json_int(im->request, "virtualStages", 1),
        .config = hl_json_str(im->result, "config", "{}"),
        .seconds = hl_json_real(im->result, "seconds", 0),
        .now_ms = ic->now_ms,
        .shards = hl_json_list(im->result, "shards"),
    };
    if (!ch->durable && im->cancelled)
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    if (!ch->durable)
        HL_TRY(claim_check(ch->c));
    return hl_catalog_import(&ch->c->catalog, &done, commit_records, ch->c, &ic->version);
}

static void import_done(struct change *ch, hl_status st)
{
    struct import_change *ic = (struct import_change *)ch;
    struct import *im = ic->im;
    json_t *result = im->result;
    im->result = NULL;
    if (st != HL_OK) {
        import_fail(im, st, hl_error_text());
        free_shards(ch->c, hl_json_list(result, "shards"));
    } else {
        json_object_update(im->progress, result);
        ch->c->sweep_ns = 0; /* it may have to be archived */
        manifest_write(ch->c, ic->version);
        hl_info("model imported name=%s shards=%zu seconds=%.3f",
                hl_json_str(im->request, "name", ""), ic->version->shard_count,
                hl_json_real(result, "seconds", 0));
    }
    json_decref(result);
    free(ic);
}

/* It is "running" until the store has it. */
static void import_finish(struct import *im, json_t *result)
{
    struct import_change *ic = calloc(1, sizeof(*ic));
    if (ic == NULL)
        return; /* L3 is asked again, and says so again */
    ic->change.make = import_make;
    ic->change.done = import_done;
    ic->im = im;
    ic->now_ms = hl_wall_ms();
    im->result = json_incref(result);
    change_start(im->controller, &ic->change);
}

static void on_import_progress(void *arg, hl_status st, const char *text, json_t *result)
{
    struct import *im = arg;
    if (controller_landed(im->controller))
        return;
    im->polling = 0;
    if (st == HL_OK) {
        im->heard_ns = im->controller->listening.listened_ns;
        json_t *progress = json_object_get(result, "progress");
        const char *state = hl_json_str(progress, "state", "");
        if (strcmp(state, "done") != 0)
            json_object_update(im->progress, progress);
        if (strcmp(state, "failed") == 0)
            hl_warn("import failed name=%s error=\"%s\"", hl_json_str(im->request, "name", "?"),
                    hl_json_str(progress, "error", ""));
        else if (strcmp(state, "done") == 0)
            import_finish(im, progress);
    } else if (st == HL_ENOENT) {
        import_fail(im, HL_EUNAVAIL, "the L3 daemon was restarted during the import; import again");
    } else if (im->controller->listening.listened_ns - im->heard_ns > IMPORT_SILENCE_NS) {
        import_fail(im, st, text);
    }
}

static void on_cancel_told(void *arg, hl_status st, const char *text, json_t *result)
{
    (void)result;
    if (!controller_landed(arg) && st != HL_OK)
        hl_debug("cancelled import is told again error=\"%s\"", text);
}

/* How far it is; that it was cancelled is said each time, as L3 may not have had it yet. */
static void ask_l3(struct hl_controller *c, struct import *im)
{
    json_t *params = json_pack("{s:s}", "importId", im->id);
    if (im->cancelled)
        controller_call(c, c->l3, "cancelImport", params, on_cancel_told, c);
    im->polling = 1;
    controller_call(c, c->l3, "importProgress", params, on_import_progress, im);
    json_decref(params);
}

void imports_tick(void *controller)
{
    struct hl_controller *c = controller;
    struct import *im, *next;
    int running = 0;
    HASH_ITER (hh, c->imports, im, next) {
        if (!import_running(im))
            continue;
        running = 1;
        if (!im->polling && im->result == NULL)
            ask_l3(c, im);
    }
    if (!running) {
        hl_timer_destroy(c->import_tick);
        c->import_tick = NULL;
    }
}

static void on_import_started(void *arg, hl_status st, const char *text, json_t *result)
{
    struct import *im = arg;
    (void)result;
    if (controller_landed(im->controller))
        return;
    im->polling = 0;
    if (st != HL_OK)
        import_fail(im, st, text);
}

/* Ended imports are kept for late questions, the oldest go first. */
static void forget_old_imports(struct hl_controller *c)
{
    struct import *im, *next;
    HASH_ITER (hh, c->imports, im, next) {
        if (HASH_COUNT(c->imports) < IMPORTS_MAX)
            return;
        if (!import_running(im) && !im->polling)
            import_free(c, im);
    }
}

static hl_status check_request(struct hl_controller *c, const json_t *request)
{
    const char *name = hl_json_str(request, "name", "");
    struct hl_model_rec *m;
    HL_TRY(hl_model_name_check(name));
    HL_TRY(claim_check(c));
    if (hl_json_str(request, "dir", "")[0] != '/')
        return hl_fail(HL_EINVAL, "import of '%s': the directory must be an absolute path", name);
    if (hl_catalog_model(&c->catalog, name, &m) == HL_OK)
        return hl_fail(
            HL_EEXIST,
            "model '%s' exists already; `helios model rm %s` or import under another name", name,
            name);
    struct import *im, *next;
    HASH_ITER (hh, c->imports, im, next) {
        if (import_running(im) && strcmp(hl_json_str(im->request, "name", ""), name) == 0)
            return hl_fail(HL_EBUSY, "model '%s' is being imported right now", name);
    }
    return HL_OK;
}

void method_import_model(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    const json_t *request = json_object_get(params, "request");
    hl_status st = check_request(c, request);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    forget_old_imports(c);
    struct import *im = calloc(1, sizeof(*im));
    if (im == NULL) {
        reject(call, hl_fail(HL_ENOMEM, "import record"));
        return;
    }
    memcpy(im->id, hl_id_format(hl_id_random()).s, sizeof(im->id));
    im->controller = c;
    im->heard_ns = c->listening.listened_ns;
    im->request = json_deep_copy(request);
    json_object_set_new(im->request, "importId", json_string(im->id));
    json_object_set_new(im->request, "version", json_integer(1));
    im->progress = json_pack("{s:s s:s}", "importId", im->id, "state", "running");
    im->polling = 1;
    HASH_ADD_STR(c->imports, id, im);

    hl_info("import begins name=%s dir=%s", hl_json_str(request, "name", ""),
            hl_json_str(request, "dir", ""));
    json_t *l3_params =
        json_pack("{s:O s:s}", "request", im->request, "cluster", claim_cluster(c).s);
    controller_call(c, c->l3, "importModel", l3_params, on_import_started, im);
    json_decref(l3_params);
    if (c->import_tick == NULL && hl_timer_create(c->opts.loop, IMPORT_POLL_MS, IMPORT_POLL_MS,
                                                  imports_tick, c, &c->import_tick) != HL_OK)
        hl_error("%s", hl_error_text());
    hl_rpc_reply(call, json_pack("{s:s s:I}", "importId", im->id, "version", (json_int_t)1));
}

void method_import_progress(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    const char *id = hl_json_str(params, "importId", "");
    struct import *im = import_find(c, id);
    if (im == NULL)
        reject(call,
               hl_fail(HL_ENOENT,
                       "import '%s' is not known; was the Controller restarted? import again", id));
    else
        hl_rpc_reply(call, json_pack("{s:O}", "progress", im->progress));
}

void method_cancel_import(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    const char *id = hl_json_str(params, "id", "");
    struct import *im, *next, *found = NULL;
    HASH_ITER (hh, c->imports, im, next) {
        if (import_running(im) && im->result == NULL &&
            (strcmp(im->id, id) == 0 || strcmp(hl_json_str(im->request, "name", ""), id) == 0))
            found = im;
    }
    if (found == NULL) {
        reject(call, hl_fail(HL_ENOENT,
                             "nothing is being imported as '%.100s'; `helios model ls` shows what "
                             "is there, `helios model rm` removes it",
                             id));
        return;
    }
    found->cancelled = 1;
    hl_info("import is cancelled name=%s", hl_json_str(found->request, "name", "?"));
    hl_rpc_reply(call, json_pack("{s:s}", "importId", found->id));
}

static json_t *import_summary(const struct import *im)
{
    const json_t *r = im->request, *p = im->progress;
    return json_pack("{s:s s:s s:s s:I s:I s:I s:I}", "importId", im->id, "name",
                     hl_json_str(r, "name", ""), "dir", hl_json_str(r, "dir", ""), "tp",
                     (json_int_t)hl_json_int(r, "tp", 1), "pp", (json_int_t)hl_json_int(r, "pp", 1),
                     "doneBytes", (json_int_t)hl_json_int(p, "doneBytes", 0), "totalBytes",
                     (json_int_t)hl_json_int(p, "totalBytes", 0));
}

void method_list_models(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    json_t *models = json_array(), *imports = json_array();
    for (struct import *im = c->imports; im != NULL; im = im->hh.next)
        if (import_running(im))
            json_array_append_new(imports, import_summary(im));
    for (struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        json_array_append_new(models, hl_model_rec_to_json(m));
    hl_rpc_reply(call, json_pack("{s:o s:o}", "models", models, "imports", imports));
}

void method_get_model(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_model_rec *m;
    hl_status st = hl_catalog_model(&c->catalog, hl_json_str(params, "name", ""), &m);
    if (st != HL_OK)
        reject(call, st);
    else
        hl_rpc_reply(call, json_pack("{s:o}", "model", hl_model_rec_to_json(m)));
}

static int is_newest_visible(const struct hl_version_rec *v)
{
    struct hl_version_rec *newest;
    if (hl_catalog_version(v->model, -1, &newest) == HL_OK)
        return newest == v;
    hl_error_clear();
    return 0;
}

/* The job's ranks load the version, or would after a restart. */
static int job_needs(const struct job *j, const struct hl_version_rec *v)
{
    if (hl_job_state_ended(j->run.state) || strcmp(j->spec.model, v->model->name) != 0)
        return 0;
    return v->number == j->load_version || v->number == j->spec.model_version ||
           is_newest_visible(v);
}

static hl_status check_unused(const struct hl_controller *c, const struct hl_version_rec *v)
{
    if (v->state == HL_VERSION_OPEN)
        return hl_fail(HL_EBUSY,
                       "version %" PRId64
                       " of '%s' is being written by job '%s': %d of %d ranks have committed; "
                       "`helios model rm --force` removes it all the same",
                       v->number, v->model->name, v->job, v->committed_count, v->world);
    for (const struct job *j = c->jobs; j != NULL; j = j->hh.next)
        if (job_needs(j, v))
            return hl_fail(HL_EBUSY,
                           "version %" PRId64
                           " of '%s' is used by job '%s', which is %s; wait or `helios cancel "
                           "%s`, or remove it all the same with `helios model rm --force`",
                           v->number, v->model->name, j->id, hl_job_state_name(j->run.state),
                           j->id);
    return HL_OK;
}

static hl_status check_removable(const struct hl_controller *c, const struct hl_model_rec *m,
                                 int64_t number)
{
    struct hl_version_rec *only;
    if (number != -1) {
        HL_TRY(hl_catalog_version(m, number, &only));
        return check_unused(c, only);
    }
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        HL_TRY(check_unused(c, v));
    return HL_OK;
}

struct removal {
    struct change change; /* first */
    struct hl_rpc_call *call;
    const json_t *params; /* of the call, valid until it is answered */
    struct hl_id *ids, *manifests;
    size_t count, manifest_count;
    uint64_t bytes;
};

static hl_status removal_make(struct change *ch)
{
    struct removal *r = (struct removal *)ch;
    struct hl_model_rec *m;
    int64_t number = hl_json_int(r->params, "version", -1);
    HL_TRY(hl_catalog_model(&ch->c->catalog, hl_json_str(r->params, "name", ""), &m));
    if (!ch->durable && !hl_json_bool(r->params, "force", 0))
        HL_TRY(check_removable(ch->c, m, number));
    free(r->manifests);
    r->manifests = manifests_of(m, number, &r->manifest_count);
    return hl_catalog_remove(&ch->c->catalog, m, number, commit_records, ch->c, &r->ids, &r->count,
                             &r->bytes);
}

static void removal_done(struct change *ch, hl_status st)
{
    struct removal *r = (struct removal *)ch;
    if (st != HL_OK) {
        reject(r->call, st);
    } else {
        free_in_pool(ch->c, r->manifests, r->manifest_count);
        free_in_pool(ch->c, r->ids, r->count);
        damaged_forget(ch->c, hl_json_str(r->params, "name", ""),
                       hl_json_int(r->params, "version", -1));
        hl_rpc_reply(r->call, json_pack("{s:I s:I}", "shards", (json_int_t)r->count, "bytes",
                                        (json_int_t)r->bytes));
    }
    free(r->ids);
    free(r->manifests);
    free(r);
}

void method_remove_model(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    hl_status st = claim_check(c);
    struct removal *r = st == HL_OK ? calloc(1, sizeof(*r)) : NULL;
    if (st == HL_OK && r == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for the removal of a model");
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    r->change.make = removal_make;
    r->change.done = removal_done;
    r->call = call;
    r->params = params;
    change_start(c, &r->change);
}
