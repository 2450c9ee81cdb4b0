/* Shards: which ones a rank needs, and where they can be read.
 *
 *     model --> versions, the newest first --> shards, each at (pp, tp) --> copies
 *                                                                          L1, L2 of nodes, L3, L4
 *
 * Nothing is remembered of a reader and nothing is locked: an answer says what is durable now. A
 * version that is removed meanwhile makes its reader fail, who then asks again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"

#define LIST_MAX 10000

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

/* With their copies. */
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

/* version -1: the newest that is whole; what it passes over is said in `skipped`. A version that is
 * named is given only when this rank can read all of its part. */
/* The model's config, with the sizes and stages of the split that is read. */
static hl_status position_config(const struct hl_model_rec *m, const struct hl_position *position,
                                 struct hl_arena *arena, const char **out)
{
    const struct hl_api_split own = hl_model_split(m);
    char *text;
    *out = m->config;
    if (hl_split_equal(&own, &position->split))
        return HL_OK;
    HL_TRY(hl_split_config(m->config, &position->split, m->shape.layers, &text));
    *out = hl_arena_strdup(arena, text);
    free(text);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for the config of a model");
}

static hl_status request_shards(struct hl_controller *c,
                                const struct hl_api_controller_request_shards_params *p,
                                struct hl_arena *arena,
                                struct hl_api_controller_request_shards_results *out)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    char skipped[512] = "";
    HL_TRY(hl_catalog_model(&c->catalog, p->model, &m));
    HL_TRY(hl_catalog_version(m, p->version, &v));
    if (v->state == HL_API_VERSION_STATE_FAILED)
        return hl_fail(HL_ENOENT, "version %" PRId64 " of '%s' was given up by %s", v->number,
                       m->name, v->error != NULL ? v->error : "a rank");
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return hl_fail(HL_EBUSY,
                       "version %" PRId64 " of '%s' is not complete: %d of %d ranks have committed",
                       v->number, m->name, v->committed_count, v->world);
    struct hl_position position;
    HL_TRY(hl_version_position(v, &p->split, p->pp, p->tp, p->ep, arena, &position));
    const char *config;
    HL_TRY(position_config(m, &position, arena, &config));
    if (p->version == -1)
        hl_catalog_skipped(m, skipped, sizeof(skipped));
    *out = (struct hl_api_controller_request_shards_results){
        .shards = position_shards(c, &position, arena),
        .version = v->number,
        .meta = v->meta,
        .config = config,
        .l3_address = c->opts.l3_address,
        .skipped = hl_arena_strdup(arena, skipped),
        .split = position.split};
    return HL_OK;
}

void method_request_shards(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p)
{
    struct hl_api_controller_request_shards_results r;
    hl_status st = request_shards(controller_enter(arg), p, hl_rpc_call_arena(call), &r);
    if (st == HL_OK)
        hl_reply_controller_request_shards(call, &r);
    else
        call_reject(call, st);
}

/* The cursor is "INDEX": shards of a version keep their order while it lives. */
void method_list_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_shards_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_api_controller_list_shards_results r = {.next = ""};
    uint64_t at = 0, seen = 0;
    size_t limit = p->limit == 0 || p->limit > LIST_MAX ? LIST_MAX : p->limit;
    bool more = false;
    if (p->cursor[0] != '\0' && !hl_parse_number(p->cursor, SIZE_MAX, &at))
        return call_reject(
            call,
            hl_fail(HL_EINVAL, "the cursor is '%.32s', none that listShards has given", p->cursor));
    r.shards.items = hl_arena_array(arena, limit, sizeof(*r.shards.items));
    for (struct hl_model_rec *m = c->catalog.models; m != NULL && !more; m = m->hh.next) {
        if (p->model[0] != '\0' && strcmp(p->model, m->name) != 0)
            continue;
        for (struct hl_version_rec *v = m->versions; v != NULL && !more; v = v->next) {
            if (p->version != -1 && v->number != p->version)
                continue;
            for (size_t i = 0; r.shards.items != NULL && i < v->shard_count && !more; i++) {
                if (seen++ < at)
                    continue;
                more = r.shards.count == limit;
                if (!more)
                    r.shards.items[r.shards.count++] = copies_shard(c, v->shards[i], arena);
            }
        }
    }
    if (more)
        r.next = hl_arena_printf(arena, "%" PRIu64, at + limit);
    hl_reply_controller_list_shards(call, &r);
}
