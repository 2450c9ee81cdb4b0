/* Asks an Agent or L3 where a shard is, and checks the answer. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "fetch/remote.h"
#include "mem/chunks.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

hl_status hl_extent_ask(struct hl_rpc_peer *peer, enum hl_extent_owner owner,
                        struct hl_api_text_list ids, int timeout_ms, struct hl_arena *arena,
                        struct hl_api_extent_list *out)
{
    if (owner == HL_EXTENT_OF_L3) {
        struct hl_api_l3_locate_results l3;
        HL_TRY(hl_call_l3_locate(peer, &(struct hl_api_l3_locate_params){.ids = ids}, timeout_ms,
                                 arena, &l3));
        *out = l3.extents;
        return HL_OK;
    }
    struct hl_api_agent_store_locate_results agent;
    HL_TRY(hl_call_agent_store_locate(peer, &(struct hl_api_agent_store_locate_params){.ids = ids},
                                      timeout_ms, arena, &agent));
    *out = agent.extents;
    return HL_OK;
}

hl_status hl_extent_parse(const struct hl_api_extent *said, struct hl_extent **out)
{
    size_t count = said->chunk_crcs.count;
    struct hl_id id;
    HL_TRY(hl_id_parse(said->id, &id));
    if (said->size_bytes == 0 || hl_chunk_count(said->size_bytes) != count)
        return hl_fail(HL_EPROTO, "locate of shard %s: %" PRIu64 " bytes with %zu chunk checksums",
                       said->id, said->size_bytes, count);
    HL_TRY(hl_chunks_check(id, said->size_bytes, said->crc32, said->chunk_crcs.items, count));
    struct hl_extent *x = calloc(1, sizeof(*x) + count * sizeof(x->crcs[0]));
    if (x == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu checksums", count);
    x->id = id;
    x->offset = said->offset;
    x->size = said->size_bytes;
    x->crc32 = said->crc32;
    x->gen = said->generation;
    memcpy(x->crcs, said->chunk_crcs.items, count * sizeof(x->crcs[0]));
    *out = x;
    return HL_OK;
}

hl_status hl_extent_locate(struct hl_rpc_peer *peer, enum hl_extent_owner owner, struct hl_id id,
                           int timeout_ms, struct hl_extent **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_id_text text = hl_id_format(id);
    const char *ids[] = {text.s};
    struct hl_api_extent_list found;
    HL_TRY(
        hl_extent_ask(peer, owner, (struct hl_api_text_list){ids, 1}, timeout_ms, &arena, &found));
    if (found.count != 1 || strcmp(found.items[0].id, text.s) != 0)
        return hl_fail(HL_EPROTO, "locate of shard %s: %zu extents%s", text.s, found.count,
                       found.count == 1 ? " of another shard" : "");
    return hl_extent_parse(&found.items[0], out);
}
