/* shard show --verify: every copy of a shard is read through where it lies, by whoever holds it. */
#include <inttypes.h>
#include <string.h>

#include "cli/models/commands.h"

#define CHUNK         ((uint64_t)1 << 20) /* what has a checksum of its own */
#define MS_PER_SECOND 1000
#define SLOW_BYTES    ((uint64_t)64 << 20) /* per second, at worst */
#define PIECES_TEXT   512

/* Reading all of a copy takes a time that depends on its size. */
static hl_status timeout_of(struct cli *cli, const json_t *copy, int *out)
{
    int call_ms;
    uint64_t seconds = (uint64_t)hl_json_int(copy, "sizeBytes", 0) / SLOW_BYTES;
    HL_TRY(cli_timeout(cli, &call_ms));
    *out = call_ms + (int)(seconds < 3600 ? seconds : 3600) * MS_PER_SECOND;
    return HL_OK;
}

/* The Agent that has the copy; borrowed from `nodes`. */
static hl_status agent_of(struct cli *cli, const json_t *nodes, const char *name,
                          struct hl_rpc_peer **out)
{
    struct hl_rpc *rpc;
    size_t i;
    const json_t *n;
    json_array_foreach (nodes, i, n) {
        const json_t *node = json_object_get(n, "node");
        if (strcmp(hl_json_str(node, "name", ""), name) != 0)
            continue;
        HL_TRY(cli_runtime(cli, &rpc));
        return hl_rpc_open(rpc, hl_json_str(node, "agentAddress", ""), "Agent", out);
    }
    return hl_fail(HL_EUNAVAIL, "the Controller names no Agent of node %s", name);
}

static hl_status ask_agent(struct cli *cli, const char *id, const json_t *nodes, const json_t *copy,
                           json_t **out)
{
    struct hl_rpc_peer *agent;
    int timeout_ms;
    HL_TRY(timeout_of(cli, copy, &timeout_ms));
    HL_TRY(agent_of(cli, nodes, hl_json_str(copy, "node", ""), &agent));
    json_t *params = json_pack("{s:s s:s s:s}", "id", id, "tier", hl_json_str(copy, "tier", ""),
                               "device", hl_json_str(copy, "device", ""));
    hl_status st = hl_rpc_call(agent, "storeVerify", params, timeout_ms, out);
    json_decref(params);
    hl_rpc_peer_close(agent);
    return st;
}

static hl_status ask_l3(struct cli *cli, const char *id, const json_t *copy, json_t **out)
{
    struct hl_rpc_peer *l3;
    int timeout_ms;
    HL_TRY(timeout_of(cli, copy, &timeout_ms));
    HL_TRY(cli_l3(cli, &l3));
    json_t *params = json_pack("{s:s s:s}", "id", id, "tier", hl_json_str(copy, "tier", ""));
    hl_status st = hl_rpc_call(l3, "verify", params, timeout_ms, out);
    json_decref(params);
    return st;
}

/* One row of the answer; new reference. */
static json_t *verify_one(struct cli *cli, const char *id, const json_t *nodes, const json_t *copy)
{
    const char *node = hl_json_str(copy, "node", "");
    json_t *said = NULL;
    hl_status st =
        node[0] != '\0' ? ask_agent(cli, id, nodes, copy, &said) : ask_l3(cli, id, copy, &said);
    int ok = st == HL_OK && hl_json_bool(said, "ok", 0);
    json_t *row =
        json_pack("{s:s s:s s:s s:s s:I s:O* s:s}", "tier", hl_json_str(copy, "tier", ""), "node",
                  node, "device", hl_json_str(copy, "device", ""), "state",
                  ok            ? "ok"
                  : st == HL_OK ? "bad"
                                : "unknown",
                  "sizeBytes", (json_int_t)hl_json_int(copy, "sizeBytes", 0), "badChunks",
                  hl_json_list(said, "badChunks"), "error", st == HL_OK ? "" : hl_error_text());
    json_decref(said);
    return row;
}

/* What the Controller knows, and the pool, which it may not have looked into yet. */
static json_t *list_copies(const json_t *shard, const json_t *extent)
{
    json_t *list = json_array();
    size_t i;
    json_t *copy;
    int pool = extent == NULL;
    json_array_foreach (hl_json_list(shard, "copies"), i, copy) {
        pool |= strcmp(hl_json_str(copy, "tier", ""), "L3") == 0;
        json_array_append(list, copy);
    }
    if (!pool)
        json_array_append_new(list, json_pack("{s:s s:I}", "tier", "L3", "sizeBytes",
                                              (json_int_t)hl_json_int(extent, "sizeBytes", 0)));
    return list;
}

hl_status verify_copies(struct cli *cli, const char *id, const json_t *shard, const json_t *extent,
                        json_t **out)
{
    json_t *nodes = NULL, *rows = json_array(), *copy;
    size_t i;
    int ok = 1;
    HL_TRY(cli_call(cli, "listNodes", NULL, &nodes));
    json_t *copies = list_copies(shard, extent);
    json_array_foreach (copies, i, copy) {
        json_t *row = verify_one(cli, id, hl_json_list(nodes, "nodes"), copy);
        ok &= strcmp(hl_json_str(row, "state", ""), "ok") == 0;
        json_array_append_new(rows, row);
    }
    json_decref(copies);
    json_decref(nodes);
    *out = json_pack("{s:b s:o}", "ok", ok && json_array_size(rows) > 0, "copies", rows);
    return HL_OK;
}

static const char *place_text(const json_t *row, char *buf, size_t cap)
{
    const char *node = hl_json_str(row, "node", ""), *device = hl_json_str(row, "device", "");
    snprintf(buf, cap, "%s%s%s%s%s%s", hl_json_str(row, "tier", ""), node[0] != '\0' ? " of " : "",
             node, device[0] != '\0' ? " (" : "", device, device[0] != '\0' ? ")" : "");
    return buf;
}

/* "chunks 0, 3"; an archive can't tell them apart. */
static const char *chunks_text(const json_t *row, char *buf, size_t cap)
{
    size_t i, used = 0;
    const json_t *c, *list = hl_json_list(row, "badChunks");
    snprintf(buf, cap, "as a whole");
    json_array_foreach (list, i, c) {
        if (used < cap)
            used += (size_t)snprintf(buf + used, cap - used, "%s%lld", i == 0 ? "chunks " : ", ",
                                     (long long)json_integer_value(c));
    }
    return buf;
}

static void print_bad(const json_t *row)
{
    uint64_t size = (uint64_t)hl_json_int(row, "sizeBytes", 0);
    size_t i;
    const json_t *c;
    printf("bad");
    json_array_foreach (hl_json_list(row, "badChunks"), i, c) {
        uint64_t at = (uint64_t)json_integer_value(c) * CHUNK;
        uint64_t end = size - at < CHUNK ? size : at + CHUNK;
        printf("%s chunk %lld (bytes %" PRIu64 " to %" PRIu64 ")", i == 0 ? ":" : ",",
               (long long)json_integer_value(c), at, end - 1);
    }
    puts("");
}

void verify_print(const json_t *verified)
{
    size_t i;
    const json_t *row;
    char place[384];
    json_array_foreach (hl_json_list(verified, "copies"), i, row) {
        const char *state = hl_json_str(row, "state", "");
        cli_print(stdout, "verified    %s: ", place_text(row, place, sizeof(place)));
        if (strcmp(state, "bad") == 0)
            print_bad(row);
        else if (strcmp(state, "unknown") == 0)
            cli_print(stdout, "not known, %s\n", hl_json_str(row, "error", ""));
        else
            puts("ok, every chunk");
    }
}

static hl_status bad_verdict(const char *id, const json_t *rows)
{
    char list[PIECES_TEXT * 2] = "", place[384], pieces[PIECES_TEXT];
    size_t i, good = 0, used = 0;
    const json_t *row;
    json_array_foreach (rows, i, row) {
        good += strcmp(hl_json_str(row, "state", ""), "ok") == 0;
        if (strcmp(hl_json_str(row, "state", ""), "bad") == 0 && used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s (%s)",
                                     used > 0 ? ", " : "", place_text(row, place, sizeof(place)),
                                     chunks_text(row, pieces, sizeof(pieces)));
    }
    if (used == 0)
        return HL_OK;
    return hl_fail(HL_ECORRUPT, "shard %s fails its checksum in %s; %s", id, list,
                   good > 0 ? "another copy is good: drop the bad one with `helios shard drop`"
                            : "import the model again or use another version");
}

hl_status verify_verdict(const char *id, const json_t *verified)
{
    size_t i;
    const json_t *row, *rows = hl_json_list(verified, "copies");
    char place[384];
    if (verified == NULL || hl_json_bool(verified, "ok", 0))
        return HL_OK;
    HL_TRY(bad_verdict(id, rows));
    json_array_foreach (rows, i, row) {
        if (strcmp(hl_json_str(row, "state", ""), "unknown") == 0)
            return hl_fail(HL_EUNAVAIL, "shard %s: the copy in %s could not be verified: %s", id,
                           place_text(row, place, sizeof(place)), hl_json_str(row, "error", ""));
    }
    return hl_fail(HL_ENOENT, "shard %s: there is no copy to verify", id);
}
