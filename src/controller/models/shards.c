/* Shards: which ones a rank needs, and where they can be read.
 *
 *     model --> versions, the newest first --> shards, each at (pp, tp) --> copies
 *                                                                          L1, L2 of nodes, L3, L4
 *
 * Nothing is remembered of a reader and nothing is locked: an answer says what is durable now. A
 * version that is removed meanwhile makes its reader fail, who then asks again. */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"

#define LIST_MAX 10000

/* Those of the position, with their copies. */
static struct hl_api_shard_list position_shards(struct hl_controller *c,
                                                const struct hl_version_rec *v, int pp, int tp,
                                                struct hl_arena *arena)
{
    struct hl_api_shard_list list = {0};
    size_t n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->pp == pp && v->shards[i]->tp == tp;
    list.items = hl_arena_array(arena, n, sizeof(*list.items));
    for (size_t i = 0; list.items != NULL && i < v->shard_count; i++)
        if (v->shards[i]->pp == pp && v->shards[i]->tp == tp)
            list.items[list.count++] = copies_shard(c, v->shards[i], arena);
    return list;
}

/* version -1: the newest that is whole; what it passes over is said in `skipped`. A version that is
 * named is given only when this rank can read all of its part. */
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
    HL_TRY(hl_version_readable(v, p->pp, p->tp));
    struct hl_api_shard_list shards = position_shards(c, v, p->pp, p->tp, arena);
    if (shards.count == 0)
        return hl_fail(HL_ENOENT,
                       "'%s' version %" PRId64
                       " has no shards at pp %d, tp %d: it is sliced TP%d x PP%d",
                       m->name, v->number, p->pp, p->tp, m->tp, m->pp);
    if (p->version == -1)
        hl_catalog_skipped(m, skipped, sizeof(skipped));
    *out = (struct hl_api_controller_request_shards_results){.shards = shards,
                                                             .version = v->number,
                                                             .meta = v->meta,
                                                             .config = m->config,
                                                             .l3_address = c->opts.l3_address,
                                                             .skipped =
                                                                 hl_arena_strdup(arena, skipped)};
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
