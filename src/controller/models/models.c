/* Models: lists them and removes them. */
#include "controller/models/models.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/copies/copies.h"
#include "controller/damaged.h"
#include "controller/models/models_private.h"
#include "controller/placement/placement.h"
#include "os/loop.h"

void method_list_models(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_models_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_list_models_results r = {0};
    (void)p;
    r.models.items = hl_arena_array(arena, HASH_COUNT(c->catalog.models), sizeof(*r.models.items));
    r.imports.items =
        hl_arena_array(arena, HASH_COUNT(c->models->imports), sizeof(*r.imports.items));
    for (struct import *im = c->models->imports; im != NULL && r.imports.items != NULL;
         im = im->hh.next)
        if (import_is_listed(im))
            r.imports.items[r.imports.count++] = import_summary(im);
    for (struct hl_model_rec *m = c->catalog.models; m != NULL && r.models.items != NULL;
         m = m->hh.next)
        r.models.items[r.models.count++] = hl_model_rec_info(m, arena);
    hl_reply_controller_list_models(call, &r);
}

static void add_places(struct hl_controller *c, const struct hl_model_rec *m,
                       struct hl_api_model_version *io, struct hl_arena *arena)
{
    char text[HL_ERROR_TEXT_MAX];
    const struct hl_version_rec *v = m->versions;
    while (v != NULL && v->number != io->version)
        v = v->next;
    if (v == NULL)
        return;
    io->durability = hl_durability_word(copies_durability(c));
    io->lacking_shards = (uint32_t)version_lacking(c, v, text, sizeof(text));
    io->lacking = hl_arena_strdup(arena, text);
    if (v->state == HL_API_VERSION_STATE_VISIBLE)
        placement_describe_version(c, v, io);
}

void method_get_model(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_model_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_api_controller_get_model_results r;
    struct hl_model_rec *m;
    hl_status st = hl_catalog_model(&c->catalog, p->name, &m);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    r.model = hl_model_rec_info(m, hl_rpc_call_arena(call));
    for (size_t i = 0; i < r.model.versions.count; i++)
        add_places(c, m, &r.model.versions.items[i], hl_rpc_call_arena(call));
    hl_reply_controller_get_model(call, &r);
}

static hl_status check_unused(const struct hl_controller *c, const struct hl_version_rec *v)
{
    if (v->state == HL_API_VERSION_STATE_OPEN)
        return hl_fail(HL_EBUSY,
                       "version %" PRId64
                       " of '%s' is being written by job '%s': %d of %d ranks have committed; "
                       "`helios model rm --force` removes it anyway",
                       v->number, v->model->name, v->job, v->committed_count, v->world);
    struct version_user j;
    if (c->models->users->find_reader(c, v, &j))
        return hl_fail(HL_EBUSY,
                       "version %" PRId64
                       " of '%s' is used by job '%s', which is %s; wait or `helios cancel %s`, or "
                       "remove it anyway with `helios model rm --force`",
                       v->number, v->model->name, j.job, hl_api_job_state_name(j.state), j.job);
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
    struct change change; /* must be first */
    struct hl_rpc_call *call;
    const struct hl_api_controller_remove_model_params *p; /* valid until the call is answered */
    struct hl_id *ids, *manifests;
    size_t count, manifest_count;
    uint64_t bytes;
};

static hl_status removal_make(struct change *ch)
{
    struct removal *r = (struct removal *)ch;
    struct hl_model_rec *m;
    int64_t number = r->p->version;
    HL_TRY(hl_catalog_model(&ch->c->catalog, r->p->name, &m));
    if (!ch->durable && !r->p->force)
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
        call_reject(r->call, st);
    } else {
        pool_free(ch->c, r->manifests, r->manifest_count);
        pool_free(ch->c, r->ids, r->count);
        damaged_forget(ch->c, r->p->name, r->p->version);
        hl_reply_controller_remove_model(r->call, &(struct hl_api_controller_remove_model_results){
                                                      (uint32_t)r->count, r->bytes});
    }
    free(r->ids);
    free(r->manifests);
    free(r);
}

void method_remove_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_remove_model_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    hl_status st = claim_check(c);
    struct removal *r = st == HL_OK ? calloc(1, sizeof(*r)) : NULL;
    if (st == HL_OK && r == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for the removal of a model");
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    r->change.make = removal_make;
    r->change.done = removal_done;
    r->call = call;
    r->p = p;
    change_start(c, &r->change);
}

/* ---- state of this wing ---------------------------------------------------------------------- */

hl_status models_create(struct hl_controller *c, const struct version_users *users)
{
    c->models = calloc(1, sizeof(*c->models));
    if (c->models == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the table of imports");
    c->models->users = users;
    return HL_OK;
}

void models_stop(struct hl_controller *c)
{
    if (c->models == NULL)
        return;
    hl_timer_destroy(c->models->import_tick);
    c->models->import_tick = NULL;
    hl_timer_destroy(c->models->begins_tick);
    c->models->begins_tick = NULL;
    hl_timer_destroy(c->models->secure_timer);
    c->models->secure_timer = NULL;
}

void models_fini(struct hl_controller *c)
{
    if (c->models == NULL)
        return;
    imports_fini(c);
    layouts_fini(c);
    begins_fini(c);
    secures_fini(c);
    recover_fini(c);
    free(c->models);
    c->models = NULL;
}
