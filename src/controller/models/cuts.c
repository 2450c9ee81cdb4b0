/* Cuts: a version split for another tensor parallel size, made when the first reader asks for it.
 *
 *     requestShards --> cut_wait --> runs already? --no--> planned, beside the loop
 *                          |                                  '--> L3.cutShards
 *                          |                                             |
 *                          '--> waiters <----answered, when it is made---'
 *
 * A cut runs like an import (imports.c), once per version and tensor parallel size. The model is
 * planned for that size before L3 is asked, because L3 loads the version for the cut. When the cut
 * is made, the waiters are answered; when it fails, they are rejected. At its deadline a waiter is
 * told the progress, and then asks again. While L3 runs as many imports and cuts as it can, it is
 * asked again with every tick, as long as a reader waits; the reader is told that the cut is queued
 * and how far the others are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "core/catalog/catalog_cut.h"
#include "os/loop.h"

struct cut_waiter {
    struct hl_rpc_call *call;
    const struct hl_api_controller_request_shards_params *p; /* valid until the call is answered */
    cut_answer answer;
    uint64_t until_ns;
    struct cut_waiter *next;
};

static void cut_fini(struct import *im)
{
    while (im->waiters != NULL) {
        struct cut_waiter *w = im->waiters;
        im->waiters = w->next;
        call_reject(w->call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
        free(w);
    }
}

static void on_cut_started(void *arg, hl_status st, const char *text,
                           const struct hl_api_l3_cut_shards_results *r)
{
    struct import *im = arg;
    (void)r;
    if (controller_stopped(im->controller))
        return;
    im->queued = st == HL_EBUSY;
    if (im->queued && im->waiters != NULL)
        im->put_off = true; /* others run; `polling` stays, because L3 does not know this one yet */
    else
        import_started(im, st, text);
}

static void ask_cut(struct import *im)
{
    struct hl_controller *c = im->controller;
    const struct hl_id_text cluster = claim_cluster(c);
    const struct hl_api_l3_cut_shards_params p = {im->cut, cluster.s};
    if (!im->put_off)
        hl_info("cut begins name=%s version=%" PRId64 " tp=%d", im->cut.model, im->cut.version,
                im->cut.split.tp);
    im->put_off = false;
    controller_hold(c);
    hl_call_l3_cut_shards_async(c->l3, &p, c->opts.rpc_timeout_ms, c->opts.loop, on_cut_started,
                                im);
}

static void on_planned(void *arg, hl_status st)
{
    struct import *im = arg;
    if (controller_stopped(im->controller))
        return;
    im->heard_ns = im->controller->listening.listened_ns;
    if (st == HL_OK)
        ask_cut(im);
    else
        import_started(im, st, hl_error_text());
}

static void plan_cut(struct import *im)
{
    struct hl_controller *c = im->controller;
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    hl_status st = hl_catalog_model(&c->catalog, im->cut.model, &m);
    if (st == HL_OK)
        st = hl_catalog_version(m, im->cut.version, &v);
    if (st == HL_OK)
        st = cut_plan(c, v, &im->cut.split, on_planned, im);
    if (st != HL_OK)
        import_started(im, st, hl_error_text());
}

/* ---- a cut ----------------------------------------------------------------------------------- */

static hl_status cut_make(struct change *ch)
{
    struct import_change *ic = (struct import_change *)ch;
    const struct import *im = ic->im;
    struct hl_model_rec *m;
    if (!ch->durable)
        HL_TRY(claim_check(ch->c));
    HL_TRY(hl_catalog_model(&ch->c->catalog, im->cut.model, &m));
    HL_TRY(hl_catalog_version(m, im->cut.version, &ic->version));
    return hl_catalog_add_cut(&ch->c->catalog, ic->version, &im->cut.split, &im->result.shards,
                              commit_records, ch->c, &ic->replaced, &ic->replaced_count);
}

static void cut_made(const struct import_change *ic)
{
    struct import *im = ic->im;
    struct hl_controller *c = ic->change.c;
    struct cut_waiter *list = im->waiters, *w;
    im->waiters = NULL;
    hl_info("cut made name=%s version=%" PRId64 " tp=%d shards=%zu seconds=%.3f", im->cut.model,
            im->cut.version, im->cut.split.tp, im->progress.shards.count, im->progress.seconds);
    if (ic->replaced_count > 0)
        pool_free(c, ic->replaced, ic->replaced_count);
    while ((w = list) != NULL) {
        list = w->next;
        w->answer(c, w->call, w->p, w->until_ns);
        free(w);
    }
}

static void cut_failed(struct import *im, hl_status st, const char *text)
{
    while (im->waiters != NULL) {
        struct cut_waiter *w = im->waiters;
        im->waiters = w->next;
        call_reject(w->call,
                    hl_fail(st,
                            "version %" PRId64 " of '%s' can't be cut for tensor parallel size "
                            "%d: %s",
                            im->cut.version, im->cut.model, im->cut.split.tp, text));
        free(w);
    }
}

void cut_progress(const struct import *im, struct hl_api_controller_request_shards_results *out)
{
    out->queued = im->queued;
    out->done_bytes = im->progress.done_bytes;
    out->total_bytes = im->progress.total_bytes;
    for (const struct import *other = im->controller->models->imports; other != NULL;
         other = other->hh.next) {
        if (!im->queued || other == im || !import_running(other) || other->queued)
            continue;
        out->done_bytes += other->progress.done_bytes;
        out->total_bytes += other->progress.total_bytes;
    }
}

/* Answers the readers that have waited long enough with the progress. */
static void cut_tick(struct import *im)
{
    uint64_t now = hl_now_ns();
    if (im->put_off)
        ask_cut(im);
    for (struct cut_waiter **at = &im->waiters; *at != NULL;) {
        struct cut_waiter *w = *at;
        if (w->until_ns > now) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        struct hl_api_controller_request_shards_results r = {.version = im->cut.version,
                                                             .meta = "",
                                                             .config = "",
                                                             .l3_address =
                                                                 im->controller->opts.l3_address,
                                                             .skipped = "",
                                                             .split = im->cut.split,
                                                             .cutting = true,
                                                             .left_out = ""};
        cut_progress(im, &r);
        hl_reply_controller_request_shards(w->call, &r);
        free(w);
    }
}

static const struct import_kind import_of_cut = {.what = "cut",
                                                 .start = plan_cut,
                                                 .make = cut_make,
                                                 .made = cut_made,
                                                 .failed = cut_failed,
                                                 .tick = cut_tick,
                                                 .fini = cut_fini};

static struct import *find_cut(const struct hl_controller *c, const struct hl_version_rec *v,
                               const struct hl_api_split *split)
{
    for (struct import *im = c->models->imports; im != NULL; im = im->hh.next)
        if (im->kind == &import_of_cut && import_running(im) && im->cut.version == v->number &&
            strcmp(im->cut.model, v->model->name) == 0 && hl_split_same_cut(&im->cut.split, split))
            return im;
    return NULL;
}

/* Fills the request; its texts belong to its arena. */
static hl_status list_sources(struct hl_version_rec *v, struct import *im)
{
    struct hl_arena *arena = &im->request_arena;
    struct hl_api_shard_list *list = &im->cut.shards;
    const bool shares_state = hl_version_shares_state(v);
    list->items = hl_arena_array(arena, v->shard_count, sizeof(*list->items));
    for (size_t i = 0; list->items != NULL && i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        if (hl_shard_can_be_cut(s, shares_state))
            list->items[list->count++] =
                (struct hl_api_shard){.id = hl_id_print(s->id, arena),
                                      .pp = s->pp,
                                      .tp = s->tp,
                                      .ep = s->ep,
                                      .part = hl_arena_strdup(arena, s->part),
                                      .size_bytes = s->size_bytes,
                                      .crc32 = s->crc32};
    }
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory listing shards") : HL_OK;
}

static hl_status describe_cut(struct hl_version_rec *v, const struct hl_api_split *split,
                              struct import *im)
{
    HL_AUTO(hl_freep) char *config = NULL;
    const struct hl_api_split own = hl_version_split(v);
    HL_TRY(hl_split_config(v->model->config, &own, v->model->shape.layers, &config));
    im->cut = (struct hl_api_cut_request){
        .import_id = im->id,
        .model = hl_arena_strdup(&im->request_arena, v->model->name),
        .version = v->number,
        .config = hl_arena_strdup(&im->request_arena, config),
        .split = *split,
    };
    return list_sources(v, im);
}

static hl_status check_lost(const struct hl_version_rec *v)
{
    char why[160];
    if (hl_version_whole(v))
        return HL_OK;
    return hl_fail(HL_ENOENT,
                   "version %" PRId64 " of '%s' can't be cut for another tensor parallel size: %s; "
                   "use another version (`helios model show %s`)",
                   v->number, v->model->name, hl_version_trouble(v, why, sizeof(why)),
                   v->model->name);
}

static hl_status cut_begin(struct hl_controller *c, struct hl_version_rec *v,
                           const struct hl_api_split *want, struct import **out)
{
    const struct hl_api_split split = hl_version_cut_split(v, want);
    struct import *im;
    HL_TRY(claim_check(c));
    HL_TRY(check_lost(v));
    HL_TRY(hl_version_check_sizes(v, want));
    forget_old_imports(c);
    HL_TRY(import_new(c, &import_of_cut, &im));
    hl_status st = describe_cut(v, &split, im);
    if (st != HL_OK) {
        import_free(c, im);
        return st;
    }
    *out = im;
    return HL_OK;
}

static hl_status add_waiter(struct import *im, struct hl_rpc_call *call,
                            const struct hl_api_controller_request_shards_params *p,
                            cut_answer answer, uint64_t until_ns)
{
    struct cut_waiter *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory waiting for a cut");
    *w = (struct cut_waiter){call, p, answer, until_ns, im->waiters};
    im->waiters = w;
    return HL_OK;
}

void cut_wait(struct hl_controller *c, struct hl_version_rec *v, struct hl_rpc_call *call,
              const struct hl_api_controller_request_shards_params *p, cut_answer answer,
              uint64_t until_ns)
{
    const struct hl_api_split own = hl_version_split(v), want = hl_split_resolve(&p->split, &own);
    struct import *im = find_cut(c, v, &want);
    bool begins = im == NULL;
    hl_status st = HL_OK;
    /* The position is checked when the call is answered. The stages are checked now, also for a
     * reader that joins. */
    if (begins)
        st = cut_begin(c, v, &want, &im);
    else
        st = hl_split_check(&want, v->model->shape.layers);
    if (st == HL_OK)
        st = add_waiter(im, call, p, answer, until_ns);
    if (st != HL_OK) {
        if (begins && im != NULL)
            import_free(c, im);
        call_reject(call, st);
        return;
    }
    if (begins)
        import_start(c, im);
}
