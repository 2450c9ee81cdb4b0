/* shard copy, shard drop, store: where copies of shards are, and putting them there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/models/commands.h"
#include "cli/models/shard_id.h"
#include "core/route.h"

struct copy_args {
    char *to, *from;
    int64_t migrate, write;
};

#define AT(field) offsetof(struct copy_args, field)

static const struct hl_option copy_rows[] = {
    {"to", "--to", "", "Where to: NODE, NODE:l2, NODE:l1, NODE:l1:DEVICE, l3 or l4.", HL_OPT_STRING,
     0, 0, NULL, AT(to), 0},
    {"migrate", "--migrate", "false",
     "From a node's L2, over the migration network where the hosts differ.", HL_OPT_BOOL, 0, 0,
     NULL, AT(migrate), 0},
    {"write", "--write", "false", "The source sends, by the path of highest bandwidth.",
     HL_OPT_BOOL, 0, 0, NULL, AT(write), 0},
};

static const struct hl_option drop_rows[] = {
    {"from", "--from", "", "Where: NODE, NODE:l2, NODE:l1, NODE:l1:DEVICE, l3 or l4.",
     HL_OPT_STRING, 0, 0, NULL, AT(from), 0},
};

/* "node-1:l1:emu:0" to {"id", "node", "tier", "device"}; a device's name has colons too. */
static hl_status parse_place(struct cli *cli, const char *id, const char *text, json_t **out)
{
    char node[160] = "", tier[8] = "l2", device[96] = "";
    const char *colon = strchr(text, ':');
    if (strcasecmp(text, "l3") == 0 || strcasecmp(text, "l4") == 0) {
        snprintf(tier, sizeof(tier), "%s", text);
    } else {
        size_t len = colon != NULL ? (size_t)(colon - text) : strlen(text);
        if (len == 0 || len >= sizeof(node))
            return cli_usage(
                cli, "unknown place '%s' (expected NODE, NODE:l2, NODE:l1:DEVICE, l3 or l4)", text);
        snprintf(node, sizeof(node), "%.*s", (int)len, text);
        if (colon != NULL && strncasecmp(colon + 1, "l1", 2) != 0 &&
            strcasecmp(colon + 1, "l2") != 0)
            return cli_usage(cli, "'%s': a node has l1 and l2", text);
        if (colon != NULL)
            snprintf(tier, sizeof(tier), "%.2s", colon + 1);
        if (colon != NULL && colon[3] == ':')
            snprintf(device, sizeof(device), "%s", colon + 4);
        else if (colon != NULL && colon[3] != '\0')
            return cli_usage(cli, "'%s': a node has l1 and l2", text);
    }
    for (char *p = tier; *p != '\0'; p++)
        *p = (char)(*p == 'l' ? 'L' : *p);
    *out = json_pack("{s:s s:s s:s s:s}", "id", id, "node", node, "tier", tier, "device", device);
    return HL_OK;
}

/* "L2 of node-1, emu:0" */
static void print_place(const json_t *copy)
{
    const char *node = hl_json_str(copy, "node", ""), *device = hl_json_str(copy, "device", "");
    cli_print(stdout, "%s%s%s%s%s", hl_json_str(copy, "tier", ""), node[0] != '\0' ? " of " : "",
              node, device[0] != '\0' ? ", " : "", device);
}

/* The Controller takes the nearest way: what was asked for and what was done may differ. */
static void print_copied(const json_t *copy, const struct copy_args *a)
{
    char size[32];
    const char *path = hl_json_str(copy, "path", "");
    print_place(copy);
    cli_print(stdout, ": %s",
              hl_format_bytes((uint64_t)hl_json_int(copy, "sizeBytes", 0), size, sizeof(size)));
    if (path[0] != '\0')
        cli_print(stdout, " by %s (%s, %s) in %.6f s", path, hl_json_str(copy, "transport", ""),
                  hl_json_str(copy, "reason", ""), hl_json_real(copy, "seconds", 0));
    puts("");
    if (a->migrate && strcmp(path, hl_route_path_name(HL_PATH_ZMQ)) != 0) {
        enum hl_route_reason reason = hl_route_reason_by_name(hl_json_str(copy, "reason", ""));
        cli_print(stdout, "the migration network was not used: %s\n",
                  path[0] == '\0'            ? "the copy was there already"
                  : reason < HL_REASON_COUNT ? hl_route_reason_text(reason)
                                             : hl_json_str(copy, "reason", ""));
    }
}

static hl_status shard_copy(struct cli *cli, const char *shard, const struct copy_args *a)
{
    json_t *params, *result;
    char id[HL_ID_TEXT_LEN + 1];
    if (a->to[0] == '\0')
        return cli_usage(cli, "--to is missing");
    if (a->migrate && a->write)
        return cli_usage(cli, "--migrate and --write exclude each other");
    HL_TRY(shard_resolve(cli, shard, id));
    HL_TRY(parse_place(cli, id, a->to, &params));
    json_object_set_new(params, "operation",
                        json_string(a->migrate ? "migrate"
                                    : a->write ? "write"
                                               : "read"));
    HL_TRY(cli_call_for(cli, "copyShard", params, CLI_COPY_TIMEOUT_MS, &result));
    json_t *copy = json_object_get(result, "copy");
    if (cli->json) {
        cli_hex_checksums(copy);
        json_incref(copy);
        json_decref(result);
        return cli_print_json(copy);
    }
    print_copied(copy, a);
    json_decref(result);
    return HL_OK;
}

hl_status cmd_shard_copy(struct cli *cli, int argc, char **argv)
{
    struct copy_args a = {0};
    HL_TRY(cli_args(cli, copy_rows, HL_ARRAY_LEN(copy_rows), argc, argv, &a, 1, 1));
    hl_status st = shard_copy(cli, argv[0], &a);
    hl_args_fini(copy_rows, HL_ARRAY_LEN(copy_rows), &a);
    return st;
}

static hl_status shard_drop(struct cli *cli, const char *shard, const char *from)
{
    json_t *params, *result;
    char id[HL_ID_TEXT_LEN + 1];
    if (from[0] == '\0')
        return cli_usage(cli, "--from is missing");
    HL_TRY(shard_resolve(cli, shard, id));
    HL_TRY(parse_place(cli, id, from, &params));
    HL_TRY(cli_call(cli, "dropCopy", params, &result));
    int dropped = hl_json_bool(result, "dropped", 0);
    if (cli->json)
        return cli_print_json(result);
    json_decref(result);
    puts(dropped ? "dropped" : "there was none");
    return HL_OK;
}

hl_status cmd_shard_drop(struct cli *cli, int argc, char **argv)
{
    struct copy_args a = {0};
    HL_TRY(cli_args(cli, drop_rows, HL_ARRAY_LEN(drop_rows), argc, argv, &a, 1, 1));
    hl_status st = shard_drop(cli, argv[0], a.from);
    hl_args_fini(drop_rows, HL_ARRAY_LEN(drop_rows), &a);
    return st;
}

/* ---- where a shard is ------------------------------------------------------------------------ */

hl_status copies_print(const json_t *shard)
{
    struct cli_table t;
    size_t i;
    const json_t *x;
    cli_table_init(&t, "TIER|NODE|?DEVICE|>SIZE|?>NUMA|PATH|?TRANSPORT|?>SECONDS|WHY|!MADE");
    json_array_foreach (hl_json_list(shard, "copies"), i, x) {
        const char *path = hl_json_str(x, "path", "");
        cli_cell(&t, "%s", hl_json_str(x, "tier", ""));
        cli_cell(&t, "%s",
                 hl_json_str(x, "node", "")[0] != '\0' ? hl_json_str(x, "node", "") : "-");
        cli_cell(&t, "%s",
                 hl_json_str(x, "device", "")[0] != '\0' ? hl_json_str(x, "device", "") : "-");
        cli_cell_bytes(&t, (uint64_t)hl_json_int(x, "sizeBytes", 0));
        if (hl_json_int(x, "numaId", -1) >= 0)
            cli_cell(&t, "%" PRId64, hl_json_int(x, "numaId", -1));
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", path[0] != '\0' ? path : "-");
        cli_cell(&t, "%s", path[0] != '\0' ? hl_json_str(x, "transport", "") : "-");
        if (path[0] != '\0')
            cli_cell(&t, "%.6f", hl_json_real(x, "seconds", 0));
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", path[0] != '\0' ? hl_json_str(x, "reason", "") : "-");
        cli_cell_time(&t, hl_json_int(x, "createdMs", 0));
    }
    return cli_table_print(&t);
}

hl_status routes_print(const json_t *routes)
{
    struct cli_table t;
    size_t i;
    const json_t *r;
    cli_table_init(&t, "READ BY|INTO|FROM|PATH|WHY");
    json_array_foreach (routes, i, r) {
        cli_cell(&t, "%s", hl_json_str(r, "node", ""));
        cli_cell(&t, "%s", hl_json_str(r, "target", ""));
        cli_cell(&t, "%s", hl_json_str(r, "source", ""));
        cli_cell(&t, "%s", hl_json_str(r, "path", ""));
        cli_cell(&t, "%s", hl_json_str(r, "text", ""));
    }
    return cli_table_print(&t);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* 0 = there is none. */
static void limit_cell(struct cli_table *t, const json_t *x, const char *key)
{
    uint64_t bytes = (uint64_t)hl_json_int(x, key, 0);
    if (bytes != 0)
        cli_cell_bytes(t, bytes);
    else
        cli_cell(t, "-");
}

static void tier_row(struct cli_table *t, const char *node, const json_t *x)
{
    cli_cell(t, "%s", node);
    cli_cell(t, "%s", hl_json_str(x, "tier", ""));
    cli_cell(t, "%s", hl_json_str(x, "name", ""));
    limit_cell(t, x, "quotaBytes");
    cli_cell_bytes(t, (uint64_t)hl_json_int(x, "usedBytes", 0));
    cli_cell_bytes(t, (uint64_t)hl_json_int(x, "writingBytes", 0));
    cli_cell_bytes(t, (uint64_t)hl_json_int(x, "quarantinedBytes", 0));
    cli_cell(t, "%" PRId64, hl_json_int(x, "shards", 0));
    limit_cell(t, x, "lowBytes");
    limit_cell(t, x, "highBytes");
    cli_cell(t, "%s", hl_json_str(x, "pressure", ""));
    cli_cell(t, "%zu", json_array_size(hl_json_list(x, "regions")));
    cli_cell(t, "%s", hl_json_str(x, "backing", ""));
}

/* Who has how much of a tier of chunks. */
static void process_rows(struct cli_table *t, const char *node, const json_t *x)
{
    const json_t *p;
    size_t i;
    json_array_foreach (hl_json_list(x, "processes"), i, p) {
        cli_cell(t, "%s", node);
        cli_cell(t, "%s", hl_json_str(x, "tier", ""));
        cli_cell(t, "  pid %" PRId64, hl_json_int(p, "pid", 0));
        cli_cell(t, "-");
        cli_cell_bytes(t, (uint64_t)hl_json_int(p, "usedBytes", 0));
        for (int k = 0; k < 8; k++)
            cli_cell(t, "-");
    }
}

/* {"node", "tiers"} of an Agent, asked itself: its numbers are exact. What the Controller heard
 * last when it does not answer. */
static json_t *ask_node(struct cli *cli, const json_t *info)
{
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    int timeout_ms = 0;
    json_t *result = NULL;
    json_t *tiers = json_deep_copy(json_object_get(info, "tiers"));
    const char *name = hl_json_str(info, "name", "");
    if (cli_timeout(cli, &timeout_ms) == HL_OK && cli_runtime(cli, &rpc) == HL_OK &&
        hl_rpc_open(rpc, hl_json_str(info, "agentAddress", ""), "Agent", &peer) == HL_OK) {
        if (hl_rpc_call(peer, "storeInfo", NULL, timeout_ms, &result) == HL_OK) {
            json_decref(tiers);
            tiers = json_deep_copy(json_object_get(result, "tiers"));
            json_decref(result);
        } else {
            fprintf(stderr, "helios: %s\n", hl_error_text());
        }
        hl_rpc_peer_close(peer);
    }
    return json_pack("{s:s s:o}", "node", name, "tiers", tiers != NULL ? tiers : json_array());
}

/* The same of the pool's host. */
static json_t *ask_pool(struct cli *cli, const json_t *heard)
{
    json_t *result = NULL, *tiers = NULL;
    if (cli_call_l3(cli, "poolInfo", NULL, &result) == HL_OK) {
        tiers = json_deep_copy(json_object_get(json_object_get(result, "pool"), "tiers"));
        json_decref(result);
    } else {
        fprintf(stderr, "helios: %s\n", hl_error_text());
        tiers = json_deep_copy(json_object_get(heard, "tiers"));
    }
    return json_pack("{s:s s:o}", "node", "", "tiers", tiers != NULL ? tiers : json_array());
}

static hl_status gather(struct cli *cli, const char *only, json_t **out)
{
    json_t *nodes, *info, *n;
    size_t i;
    HL_TRY(cli_call(cli, "listNodes", NULL, &nodes));
    json_t *all = json_array();
    json_array_foreach (hl_json_list(nodes, "nodes"), i, n) {
        const json_t *node = json_object_get(n, "node");
        if (only[0] == '\0' || strcmp(only, hl_json_str(node, "name", "")) == 0)
            json_array_append_new(all, ask_node(cli, node));
    }
    json_decref(nodes);
    hl_status st = HL_OK;
    if (only[0] != '\0' && json_array_size(all) == 0)
        st = hl_fail(HL_ENOENT, "there is no node '%s'; `helios nodes` lists them", only);
    if (st == HL_OK && only[0] == '\0' &&
        (st = cli_call(cli, "clusterInfo", NULL, &info)) == HL_OK) {
        const json_t *pool = json_object_get(json_object_get(info, "info"), "pool");
        json_array_append_new(all, ask_pool(cli, pool));
        json_decref(info);
    }
    if (st != HL_OK)
        json_decref(all);
    else
        *out = all;
    return st;
}

hl_status cmd_store(struct cli *cli, int argc, char **argv)
{
    json_t *all, *n, *tier;
    size_t i, k;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 1));
    HL_TRY(gather(cli, argc > 0 ? argv[0] : "", &all));
    if (cli->json)
        return cli_print_items(all);
    struct cli_table t;
    cli_table_init(&t, "NODE|TIER|NAME|>QUOTA|>USED|?>WRITING|?>QUARANTINED|>SHARDS|?>LOW|?>HIGH|"
                       "!PRESSURE|?>REGIONS|?BACKING");
    json_array_foreach (all, i, n) {
        const char *name = hl_json_str(n, "node", "");
        json_array_foreach (hl_json_list(n, "tiers"), k, tier) {
            tier_row(&t, name[0] != '\0' ? name : "(L3 host)", tier);
            process_rows(&t, name, tier);
        }
    }
    json_decref(all);
    return cli_table_print(&t);
}
