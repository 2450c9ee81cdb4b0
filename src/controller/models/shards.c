/* Shards: which ones a rank needs, and where they can be read.
 *
 *     model --> versions, the newest first --> shards, each at (pp, tp) --> copies
 *                                                                          L1, L2 of nodes, L3, L4
 *
 * A split with another tensor parallel size reads a cut of the version (cuts.c):
 *
 *     requestShards --no cut--> waits for one --made--.
 *        |                                            v
 *        '--cut--> L3 is asked: all there? --yes--> answered
 *                     '--no: those are lost, the cut is made again
 *
 * Nothing is stored about a reader and nothing is locked: an answer describes what is durable now.
 * If a version is removed meanwhile, its reader fails and then asks again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "controller/placement/placement.h"
#include "core/catalog/catalog_cut.h"

#define LIST_MAX    10000
#define CUT_WAIT_NS (2 * HL_NS_PER_S) /* of a call; well below what callers wait for an answer */

static struct hl_api_shown_tensor_list shown_tensors(const struct hl_position_part *part,
                                                     struct hl_arena *arena)
{
    struct hl_api_shown_tensor_list list = {
        .items = hl_arena_array(arena, part->count, sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < part->count; i++)
        list.items[list.count++] =
            (struct hl_api_shown_tensor){part->names[i].stored, part->names[i].shown};
    return list;
}

/* The shards with their copies. */
static struct hl_api_shard_list
position_shards(struct hl_controller *c, const struct hl_position *position, struct hl_arena *arena)
{
    struct hl_api_shard_list list = {
        .items = hl_arena_array(arena, position->count, sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < position->count; i++) {
        const struct hl_position_part *part = &position->parts[i];
        struct hl_api_shard *shard = &list.items[list.count++];
        *shard = copies_shard(c, part->shard, arena);
        shard->renamed = part->renamed;
        shard->shown = shown_tensors(part, arena);
    }
    return list;
}

/* The model's config, with the sizes and stages of the split that is being read. */
static hl_status position_config(const struct hl_model_rec *m, const struct hl_position *position,
                                 struct hl_arena *arena, const char **out)
{
    const struct hl_api_split own = hl_model_split(m);
    char *text;
    *out = m->config;
    if (m->shape.unsliced || hl_split_equal(&own, &position->split))
        return HL_OK;
    HL_TRY(hl_split_config(m->config, &position->split, m->shape.layers, &text));
    *out = hl_arena_strdup(arena, text);
    free(text);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for the config of a model");
}

/* version -1: the newest whole one; `skipped` tells which versions were passed over. */
static hl_status find_version(struct hl_controller *c,
                              const struct hl_api_controller_request_shards_params *p,
                              struct hl_version_rec **out)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    HL_TRY(hl_catalog_model(&c->catalog, p->model, &m));
    HL_TRY(hl_catalog_version(m, p->version, &v));
    if (v->state == HL_API_VERSION_STATE_FAILED)
        return hl_fail(HL_ENOENT, "version %" PRId64 " of '%s' was abandoned by %s", v->number,
                       m->name, v->error != NULL ? v->error : "a rank");
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return hl_fail(HL_EBUSY,
                       "version %" PRId64 " of '%s' is not complete: %d of %d ranks have committed",
                       v->number, m->name, v->committed_count, v->world);
    *out = v;
    return HL_OK;
}

/* A version requested by number is given only if this rank can read its whole part. */
static hl_status request_shards(struct hl_controller *c,
                                const struct hl_api_controller_request_shards_params *p,
                                const struct hl_version_rec *v, const struct hl_position *position,
                                struct hl_arena *arena,
                                struct hl_api_controller_request_shards_results *out)
{
    char skipped[512] = "";
    const char *config;
    HL_TRY(position_config(v->model, position, arena, &config));
    if (p->version == -1)
        hl_catalog_skipped(v->model, skipped, sizeof(skipped));
    *out = (struct hl_api_controller_request_shards_results){
        .shards = position_shards(c, position, arena),
        .version = v->number,
        .meta = v->meta,
        .config = config,
        .l3_address = c->opts.l3_address,
        .skipped = hl_arena_strdup(arena, skipped),
        .split = position->split,
        .left_out = position->cut != NULL ? position->cut->left_out : ""};
    return HL_OK;
}

/* A call that waits for L3's answer about its cut. */
struct looking {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    const struct hl_api_controller_request_shards_params *p; /* valid until the call is answered */
    cut_answer answer;
    uint64_t until_ns;           /* the call's deadline */
    struct hl_api_text_list ids; /* belongs to the call's arena */
};

/* Marks as lost what the cut lacks in the pool, if anything. */
static void mark_missing(struct hl_controller *c, const struct hl_api_text_list *ids,
                         const struct hl_api_found_shard_list *found)
{
    size_t at = 0; /* both lists are in the order of the call */
    for (size_t i = 0; i < ids->count; i++) {
        struct hl_id id;
        if (at < found->count && strcmp(found->items[at].id, ids->items[i]) == 0) {
            at++;
            continue;
        }
        struct hl_shard_rec *s =
            hl_id_parse(ids->items[i], &id) == HL_OK ? hl_catalog_shard(&c->catalog, id) : NULL;
        if (s != NULL && s->cut != NULL)
            s->lost = s->unusable = true; /* even if a running sweep has seen it */
    }
}

static void answer_position(struct hl_controller *c, struct hl_rpc_call *call,
                            const struct hl_api_controller_request_shards_params *p,
                            const struct hl_version_rec *v)
{
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_request_shards_results r;
    struct hl_position position;
    hl_status st = hl_version_position(v, &p->split, p->pp, p->tp, p->ep, arena, &position);
    if (st == HL_OK)
        st = request_shards(c, p, v, &position, arena, &r);
    if (st == HL_OK)
        hl_reply_controller_request_shards(call, &r);
    else
        call_reject(call, st);
}

static void on_looked(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_look_results *r)
{
    struct looking *l = arg;
    struct hl_controller *c = l->c;
    struct hl_version_rec *v;
    if (controller_stopped(c)) {
        free(l);
        return;
    }
    if (st == HL_OK) {
        mark_missing(c, &l->ids, &r->shards);
        st = find_version(c, l->p, &v);
    } else {
        st = hl_fail(st, "the shards of another tensor parallel size: %s", text);
    }
    if (st != HL_OK)
        call_reject(l->call, st);
    else if (hl_version_needs_cut(v, &l->p->split))
        cut_wait(c, v, l->call, l->p, l->answer, l->until_ns);
    else
        answer_position(c, l->call, l->p, v);
    free(l);
}

static void on_touched(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_touch_results *r)
{
    (void)st;
    (void)text;
    (void)r;
    (void)controller_stopped(arg);
}

/* L3 gives up derived shards without asking. Shards that were just used stay as long as
 * archive.hold says, so they are marked as used first, and checked for completeness afterwards. */
static void look_at_cut(struct hl_controller *c, struct hl_rpc_call *call,
                        const struct hl_api_controller_request_shards_params *p,
                        const struct hl_cut_rec *cut, cut_answer answer, uint64_t until_ns)
{
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct looking *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        call_reject(call, hl_fail(HL_ENOMEM, "out of memory looking for a cut"));
        return;
    }
    *l = (struct looking){.c = c, .call = call, .p = p, .answer = answer, .until_ns = until_ns};
    l->ids.items = hl_arena_array(arena, cut->shard_count, sizeof(*l->ids.items));
    for (size_t i = 0; l->ids.items != NULL && i < cut->shard_count; i++)
        l->ids.items[l->ids.count++] = hl_id_print(cut->shards[i]->id, arena);
    controller_hold(c);
    hl_call_l3_touch_async(c->l3, &(struct hl_api_l3_touch_params){l->ids}, c->opts.rpc_timeout_ms,
                           c->opts.loop, on_touched, c);
    controller_hold(c);
    hl_call_l3_look_async(c->l3, &(struct hl_api_l3_look_params){l->ids}, c->opts.rpc_timeout_ms,
                          c->opts.loop, on_looked, l);
}

static void answer_call(struct hl_controller *c, struct hl_rpc_call *call,
                        const struct hl_api_controller_request_shards_params *p, uint64_t until_ns)
{
    struct hl_version_rec *v;
    hl_status st = find_version(c, p, &v);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    const struct hl_api_split own = hl_version_split(v), want = hl_split_resolve(&p->split, &own);
    const struct hl_cut_rec *cut =
        hl_split_same_cut(&own, &want) ? NULL : hl_version_find_cut(v, &want);
    if (hl_version_needs_cut(v, &want))
        cut_wait(c, v, call, p, answer_call, until_ns);
    else if (cut != NULL)
        look_at_cut(c, call, p, cut, answer_call, until_ns);
    else
        answer_position(c, call, p, v);
}

void method_request_shards(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p)
{
    answer_call(controller_enter(arg), call, p, hl_now_ns() + CUT_WAIT_NS);
}

/* A page of a listing. */
struct page {
    struct hl_controller *c;
    struct hl_arena *arena;
    struct hl_api_shard_list list;
    uint64_t at, seen; /* index of the page's first shard; shards passed so far */
    size_t limit;
    bool more; /* the page is full, and more follows */
};

static void page_add_shard(struct page *page, const struct hl_shard_rec *s)
{
    struct hl_api_shard *shard = &page->list.items[page->list.count++];
    *shard = copies_shard(page->c, s, page->arena);
    placement_describe(page->c, s->id, shard);
}

static void page_add(struct page *page, struct hl_shard_rec *const *shards, size_t count)
{
    for (size_t i = 0; page->list.items != NULL && i < count && !page->more; i++) {
        if (page->seen++ < page->at)
            continue;
        page->more = page->list.count == page->limit;
        if (!page->more)
            page_add_shard(page, shards[i]);
    }
}

static void page_add_model(struct page *page, const struct hl_model_rec *m, int64_t version)
{
    for (const struct hl_version_rec *v = m->versions; v != NULL && !page->more; v = v->next) {
        if (version != -1 && v->number != version)
            continue;
        page_add(page, v->shards, v->shard_count);
        for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next)
            page_add(page, cut->shards, cut->shard_count);
    }
}

/* The cursor is "INDEX": the shards of a version keep their order while the version exists. */
void method_list_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_shards_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct page page = {.c = c,
                        .arena = hl_rpc_call_arena(call),
                        .limit = p->limit == 0 || p->limit > LIST_MAX ? LIST_MAX : p->limit};
    if (p->cursor[0] != '\0' && !hl_parse_number(p->cursor, SIZE_MAX, &page.at))
        return call_reject(
            call,
            hl_fail(HL_EINVAL, "the cursor '%.32s' was not returned by listShards", p->cursor));
    page.list.items = hl_arena_array(page.arena, page.limit, sizeof(*page.list.items));
    for (const struct hl_model_rec *m = c->catalog.models; m != NULL && !page.more; m = m->hh.next)
        if (p->model[0] == '\0' || strcmp(p->model, m->name) == 0)
            page_add_model(&page, m, p->version);
    hl_reply_controller_list_shards(
        call, &(struct hl_api_controller_list_shards_results){
                  .shards = page.list,
                  .next = page.more ? hl_arena_printf(page.arena, "%" PRIu64, page.at + page.limit)
                                    : ""});
}
