/* shard show --verify: every copy of a shard is read where it is, by the daemon that holds it. */
#include "cli/models/verify.h"

#include <inttypes.h>
#include <string.h>

#include "base/chunk.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

#define MS_PER_SECOND 1000
#define SLOW_BYTES    ((uint64_t)64 << 20) /* per second, at worst */
#define PIECES_TEXT   512

/* The time to read a whole copy depends on its size. */
static hl_status timeout_of(struct cli *cli, uint64_t size, int *out)
{
    int call_ms;
    uint64_t seconds = size / SLOW_BYTES;
    HL_TRY(cli_timeout(cli, &call_ms));
    *out = call_ms + (int)(seconds < 3600 ? seconds : 3600) * MS_PER_SECOND;
    return HL_OK;
}

static hl_status agent_of(struct cli *cli, const struct hl_api_node_state_list *nodes,
                          const char *name, struct hl_rpc_peer **out)
{
    struct hl_rpc *rpc;
    for (size_t i = 0; i < nodes->count; i++) {
        const struct hl_api_node_info *node = &nodes->items[i].node;
        if (strcmp(node->name, name) != 0)
            continue;
        HL_TRY(cli_runtime(cli, &rpc));
        return hl_rpc_open(rpc, node->agent_address, "Agent", out);
    }
    return hl_fail(HL_EUNAVAIL, "the Controller names no Agent of node %s", name);
}

struct verdict {
    bool ok;
    struct hl_api_uint32_list bad_chunks;
};

static hl_status ask_agent(struct cli *cli, const char *id,
                           const struct hl_api_node_state_list *nodes,
                           const struct hl_api_copy *copy, struct hl_arena *arena,
                           struct verdict *out)
{
    const struct hl_api_agent_store_verify_params p = {
        .id = id, .tier = copy->tier, .device = copy->device};
    struct hl_api_agent_store_verify_results r;
    struct hl_rpc_peer *agent;
    int timeout_ms;
    HL_TRY(timeout_of(cli, copy->size_bytes, &timeout_ms));
    HL_TRY(agent_of(cli, nodes, copy->node, &agent));
    hl_status st = hl_call_agent_store_verify(agent, &p, timeout_ms, arena, &r);
    hl_rpc_peer_close(agent);
    HL_TRY(st);
    *out = (struct verdict){r.ok, r.bad_chunks};
    return HL_OK;
}

/* A copy in the archive may be valid but belong to another shard: `shard` says what it should be.
 */
static hl_status ask_l3(struct cli *cli, const char *id, const struct hl_api_shard *shard,
                        const struct hl_api_copy *copy, struct hl_arena *arena, struct verdict *out)
{
    const struct hl_api_l3_verify_params p = {.id = id, .tier = copy->tier};
    struct hl_api_l3_verify_results r;
    struct hl_rpc_peer *l3;
    int timeout_ms;
    HL_TRY(timeout_of(cli, copy->size_bytes, &timeout_ms));
    HL_TRY(cli_l3(cli, &l3));
    HL_TRY(hl_call_l3_verify(l3, &p, timeout_ms, arena, &r));
    bool other = shard != NULL && r.crc32_known && r.crc32 != shard->crc32;
    *out = (struct verdict){r.ok && !other, r.bad_chunks};
    return HL_OK;
}

/* False: the node or the pool does not have the copy any more, as after a move or an eviction since
 * the listing. */
static bool verify_one(struct cli *cli, const char *id, const struct hl_api_shard *shard,
                       const struct hl_api_node_state_list *nodes, const struct hl_api_copy *copy,
                       struct hl_arena *arena, struct hl_api_verified_copy *out)
{
    struct verdict said = {0};
    const bool at_node = copy->node[0] != '\0';
    hl_status st = at_node ? ask_agent(cli, id, nodes, copy, arena, &said)
                           : ask_l3(cli, id, shard, copy, arena, &said);
    if (st == HL_ENOENT && (at_node || copy->tier == HL_API_TIER_L3))
        return false;
    *out = (struct hl_api_verified_copy){
        .tier = copy->tier,
        .node = copy->node,
        .device = copy->device,
        .state = st != HL_OK ? HL_API_COPY_VERDICT_UNKNOWN
                 : said.ok   ? HL_API_COPY_VERDICT_OK
                             : HL_API_COPY_VERDICT_BAD,
        .size_bytes = copy->size_bytes,
        .bad_chunks = said.bad_chunks,
        .error = st != HL_OK ? hl_arena_strdup(arena, hl_error_text()) : "",
    };
    return true;
}

/* Lists the copies that the Controller knows, and the one in the pool, which the Controller may not
 * have checked yet. */
static struct hl_api_copy_list list_copies(const struct hl_api_shard *shard,
                                           const struct hl_api_extent *extent,
                                           struct hl_arena *arena)
{
    size_t known = shard != NULL ? shard->copies.count : 0;
    struct hl_api_copy_list list = {.items = hl_arena_array(arena, known + 1, sizeof(*list.items))};
    bool pool = extent == NULL;
    for (size_t i = 0; list.items != NULL && i < known; i++) {
        list.items[list.count++] = shard->copies.items[i];
        pool |= shard->copies.items[i].tier == HL_API_TIER_L3;
    }
    if (!pool && list.items != NULL)
        list.items[list.count++] = (struct hl_api_copy){
            .tier = HL_API_TIER_L3, .node = "", .device = "", .size_bytes = extent->size_bytes};
    return list;
}

hl_status verify_copies(struct cli *cli, const char *id, const struct hl_api_shard *shard,
                        const struct hl_api_extent *extent, struct hl_arena *arena,
                        struct verified *out)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    struct hl_api_copy_list copies = list_copies(shard, extent, arena);
    size_t good = 0;
    struct hl_api_verification v = {0};
    v.copies.items = hl_arena_array(arena, copies.count, sizeof(*v.copies.items));
    for (size_t i = 0; v.copies.items != NULL && i < copies.count; i++) {
        struct hl_api_verified_copy *c = &v.copies.items[v.copies.count];
        if (!verify_one(cli, id, shard, &r.nodes, &copies.items[i], arena, c))
            continue;
        good += c->state == HL_API_COPY_VERDICT_OK;
        v.copies.count++;
    }
    v.ok = v.copies.count > 0 && good == v.copies.count;
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the copies of shard %s", id);
    *out = (struct verified){true, v};
    return HL_OK;
}

static const char *place_text(const struct hl_api_verified_copy *c, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s%s%s%s%s", hl_api_tier_name(c->tier), c->node[0] != '\0' ? " of " : "",
             c->node, c->device[0] != '\0' ? " (" : "", c->device, c->device[0] != '\0' ? ")" : "");
    return buf;
}

/* "chunks 0, 3"; an archive can only be checked as a whole. */
static const char *chunks_text(const struct hl_api_verified_copy *c, char *buf, size_t cap)
{
    size_t used = 0;
    snprintf(buf, cap, "as a whole");
    for (size_t i = 0; i < c->bad_chunks.count && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%" PRIu32, i == 0 ? "chunks " : ", ",
                                 c->bad_chunks.items[i]);
    return buf;
}

static void print_bad(const struct hl_api_verified_copy *c)
{
    printf("bad");
    for (size_t i = 0; i < c->bad_chunks.count; i++) {
        uint32_t chunk = c->bad_chunks.items[i];
        uint64_t at = chunk * HL_CHUNK;
        uint64_t end = c->size_bytes - at < HL_CHUNK ? c->size_bytes : at + HL_CHUNK;
        printf("%s chunk %" PRIu32 " (bytes %" PRIu64 " to %" PRIu64 ")", i == 0 ? ":" : ",", chunk,
               at, end - 1);
    }
    puts("");
}

void verify_print(const struct verified *v)
{
    char place[384];
    for (size_t i = 0; i < v->found.copies.count; i++) {
        const struct hl_api_verified_copy *c = &v->found.copies.items[i];
        cli_print(stdout, "verified    %s: ", place_text(c, place, sizeof(place)));
        if (c->state == HL_API_COPY_VERDICT_BAD)
            print_bad(c);
        else if (c->state == HL_API_COPY_VERDICT_UNKNOWN)
            cli_print(stdout, "not known, %s\n", c->error);
        else
            puts("ok, every chunk");
    }
}

/* What to do about bad copies. A read heals the pool's only: a reader of another node does not read
 * what a node has. */
static const char *advice_of(const struct verified *v)
{
    bool good = false, unknown = false, in_pool_only = true;
    for (size_t i = 0; i < v->found.copies.count; i++) {
        const struct hl_api_verified_copy *c = &v->found.copies.items[i];
        good |= c->state == HL_API_COPY_VERDICT_OK;
        unknown |= c->state == HL_API_COPY_VERDICT_UNKNOWN;
        in_pool_only &= c->state != HL_API_COPY_VERDICT_BAD || c->tier == HL_API_TIER_L3;
    }
    if (good && in_pool_only)
        return "another copy is good: the next read replaces the bad one by it";
    if (good)
        return "another copy is good: drop the bad one with `helios shard drop`";
    return unknown ? "another copy could not be verified: verify again when its holder answers"
                   : "import the model again or use another version";
}

static hl_status bad_verdict(const char *id, const struct verified *v)
{
    char list[PIECES_TEXT * 2] = "", place[384], pieces[PIECES_TEXT];
    size_t used = 0;
    for (size_t i = 0; i < v->found.copies.count; i++) {
        const struct hl_api_verified_copy *c = &v->found.copies.items[i];
        if (c->state == HL_API_COPY_VERDICT_BAD && used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s (%s)",
                                     used > 0 ? ", " : "", place_text(c, place, sizeof(place)),
                                     chunks_text(c, pieces, sizeof(pieces)));
    }
    if (used == 0)
        return HL_OK;
    return hl_fail(HL_ECORRUPT, "shard %s fails its checksum in %s; %s", id, list, advice_of(v));
}

hl_status verify_verdict(const char *id, const struct verified *v)
{
    char place[384];
    if (!v->asked || v->found.ok)
        return HL_OK;
    HL_TRY(bad_verdict(id, v));
    for (size_t i = 0; i < v->found.copies.count; i++)
        if (v->found.copies.items[i].state == HL_API_COPY_VERDICT_UNKNOWN)
            return hl_fail(HL_EUNAVAIL, "shard %s: the copy in %s could not be verified: %s", id,
                           place_text(&v->found.copies.items[i], place, sizeof(place)),
                           v->found.copies.items[i].error);
    return hl_fail(HL_ENOENT, "shard %s: there is no copy to verify", id);
}
