/* shard copy, shard drop, store: shows where copies of shards are, and creates or removes them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/models/commands.h"
#include "cli/models/shard_id.h"
#include "core/copies/route.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

struct copy_args {
    char *to, *from;
    bool migrate, write;
};

#define AT(field) HL_OPTION_FIELD(struct copy_args, field)

static const struct hl_option copy_rows[] = {
    {"to", "--to", "", "Destination: NODE, NODE:l2, NODE:l1, NODE:l1:DEVICE, l3 or l4.",
     HL_OPT_STRING, 0, 0, NULL, AT(to)},
    {"migrate", "--migrate", "false",
     "Copy from a node's L2, between hosts over the migration network.", HL_OPT_BOOL, 0, 0, NULL,
     AT(migrate)},
    {"write", "--write", "false", "Have the source send, by the path with the highest bandwidth.",
     HL_OPT_BOOL, 0, 0, NULL, AT(write)},
};

static const struct hl_option drop_rows[] = {
    {"from", "--from", "", "Where: NODE, NODE:l2, NODE:l1, NODE:l1:DEVICE, l3 or l4.",
     HL_OPT_STRING, 0, 0, NULL, AT(from)},
};

/* The location of a copy, as the user names it. */
struct copy_place {
    char node[160], device[96];
    enum hl_api_tier tier;
};

/* Parses "node-1:l1:emu:0"; a device's name contains colons too. */
static hl_status parse_place(struct cli *cli, const char *text, struct copy_place *out)
{
    struct copy_place p = {.tier = HL_API_TIER_L2};
    const char *colon = strchr(text, ':');
    if (strcasecmp(text, "l3") == 0 || strcasecmp(text, "l4") == 0) {
        p.tier = text[1] == '3' ? HL_API_TIER_L3 : HL_API_TIER_L4;
        *out = p;
        return HL_OK;
    }
    size_t len = colon != NULL ? (size_t)(colon - text) : strlen(text);
    if (len == 0 || len >= sizeof(p.node))
        return cli_usage(
            cli, "unknown place '%s' (expected NODE, NODE:l2, NODE:l1:DEVICE, l3 or l4)", text);
    snprintf(p.node, sizeof(p.node), "%.*s", (int)len, text);
    if (colon != NULL) {
        if (strncasecmp(colon + 1, "l1", 2) != 0 && strcasecmp(colon + 1, "l2") != 0)
            return cli_usage(cli, "'%s': a node has only the tiers l1 and l2", text);
        p.tier = colon[2] == '1' ? HL_API_TIER_L1 : HL_API_TIER_L2;
        if (colon[3] != ':' && colon[3] != '\0')
            return cli_usage(cli, "'%s': a node has only the tiers l1 and l2", text);
        if (colon[3] == ':')
            snprintf(p.device, sizeof(p.device), "%s", colon + 4);
    }
    *out = p;
    return HL_OK;
}

/* The Controller takes the nearest way, so the result may differ from the request. */
static void print_copied(const struct hl_api_copy *copy, const struct copy_args *a)
{
    char size[32];
    cli_print(stdout, "%s%s%s%s%s: %s", hl_api_tier_name(copy->tier),
              copy->node[0] != '\0' ? " of " : "", copy->node, copy->device[0] != '\0' ? ", " : "",
              copy->device, hl_format_bytes(copy->size_bytes, size, sizeof(size)));
    if (copy->path != HL_API_ROUTE_PATH_UNSAID)
        cli_print(stdout, " by %s (%s, %s) in %.6f s", hl_api_route_path_name(copy->path),
                  copy->transport, hl_api_route_reason_name(copy->reason), copy->seconds);
    puts("");
    if (a->migrate && copy->path != HL_API_ROUTE_PATH_ZMQ)
        cli_print(stdout, "the migration network was not used: %s\n",
                  copy->path == HL_API_ROUTE_PATH_UNSAID ? "the copy was there already"
                                                         : hl_route_reason_text(copy->reason));
}

static hl_status shard_copy(struct cli *cli, const char *shard, const struct copy_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_copy_shard_results r;
    struct copy_place to;
    char id[HL_ID_TEXT_LEN + 1];
    if (a->to[0] == '\0')
        return cli_usage(cli, "--to is missing");
    if (a->migrate && a->write)
        return cli_usage(cli, "--migrate and --write exclude each other");
    HL_TRY(shard_resolve(cli, shard, id));
    HL_TRY(parse_place(cli, a->to, &to));
    const struct hl_api_controller_copy_shard_params p = {.id = id,
                                                          .node = to.node,
                                                          .tier = to.tier,
                                                          .device = to.device,
                                                          .operation =
                                                              a->migrate ? HL_API_OPERATION_MIGRATE
                                                              : a->write ? HL_API_OPERATION_WRITE
                                                                         : HL_API_OPERATION_READ};
    HL_TRY(CLI_CALL_FOR(cli, copy_shard, &p, CLI_COPY_TIMEOUT_MS, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_copy_type, &r.copy);
    print_copied(&r.copy, a);
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

static hl_status shard_drop(struct cli *cli, const char *shard, const char *text)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_drop_copy_results r;
    struct copy_place from;
    char id[HL_ID_TEXT_LEN + 1];
    if (text[0] == '\0')
        return cli_usage(cli, "--from is missing");
    HL_TRY(shard_resolve(cli, shard, id));
    HL_TRY(parse_place(cli, text, &from));
    const struct hl_api_controller_drop_copy_params p = {
        .id = id, .node = from.node, .tier = from.tier, .device = from.device};
    HL_TRY(CLI_CALL(cli, drop_copy, &p, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_controller_drop_copy_results_type, &r);
    puts(r.dropped ? "dropped" : "there was none");
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

static void text_cell(struct cli_table *t, const char *text)
{
    cli_cell(t, "%s", text[0] != '\0' ? text : "-");
}

hl_status copies_print(const struct hl_api_copy_list *copies)
{
    struct cli_table t;
    cli_table_init(&t, "TIER|NODE|?DEVICE|>SIZE|?>NUMA|PATH|?TRANSPORT|?>SECONDS|WHY|!MADE");
    for (size_t i = 0; i < copies->count; i++) {
        const struct hl_api_copy *x = &copies->items[i];
        bool moved = x->path != HL_API_ROUTE_PATH_UNSAID;
        cli_cell(&t, "%s", hl_api_tier_name(x->tier));
        text_cell(&t, x->node);
        text_cell(&t, x->device);
        cli_cell_bytes(&t, x->size_bytes);
        if (x->numa_id >= 0)
            cli_cell(&t, "%d", x->numa_id);
        else
            cli_cell(&t, "-");
        text_cell(&t, hl_api_route_path_name(x->path));
        cli_cell(&t, "%s", moved ? x->transport : "-");
        if (moved)
            cli_cell(&t, "%.6f", x->seconds);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s",
                 x->kept ? "kept after a read"
                 : moved ? hl_api_route_reason_name(x->reason)
                         : "-");
        cli_cell_time(&t, x->created_ms);
    }
    return cli_table_print(&t);
}

hl_status routes_print(const struct hl_api_route_list *routes)
{
    struct cli_table t;
    cli_table_init(&t, "READ BY|INTO|FROM|PATH|WHY");
    for (size_t i = 0; i < routes->count; i++) {
        const struct hl_api_route *r = &routes->items[i];
        cli_cell(&t, "%s", r->node);
        cli_cell(&t, "%s", hl_api_tier_name(r->target));
        cli_cell(&t, "%s", r->source);
        cli_cell(&t, "%s", hl_api_route_path_name(r->path));
        cli_cell(&t, "%s", r->text);
    }
    return cli_table_print(&t);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* 0 = there is no limit. */
static void limit_cell(struct cli_table *t, uint64_t bytes)
{
    if (bytes != 0)
        cli_cell_bytes(t, bytes);
    else
        cli_cell(t, "-");
}

static void tier_row(struct cli_table *t, const char *node, const struct hl_api_tier_info *x)
{
    cli_cell(t, "%s", node);
    cli_cell(t, "%s", hl_api_tier_name(x->tier));
    cli_cell(t, "%s", x->name);
    limit_cell(t, x->quota_bytes);
    cli_cell_bytes(t, x->used_bytes);
    cli_cell_bytes(t, x->writing_bytes);
    cli_cell_bytes(t, x->quarantined_bytes);
    cli_cell_bytes(t, x->kept_bytes);
    limit_cell(t, x->asked_bytes);
    cli_cell(t, "%" PRIu64, x->shards);
    limit_cell(t, x->low_bytes);
    limit_cell(t, x->high_bytes);
    cli_cell(t, "%s", hl_api_pressure_name(x->pressure));
    cli_cell(t, "%zu", x->regions.count);
    cli_cell(t, "%s", x->backing);
}

/* Shows how much of a tier of chunks each process uses. */
static void process_rows(struct cli_table *t, const char *node, const struct hl_api_tier_info *x)
{
    for (size_t i = 0; i < x->processes.count; i++) {
        cli_cell(t, "%s", node);
        cli_cell(t, "%s", hl_api_tier_name(x->tier));
        cli_cell(t, "  pid %d", x->processes.items[i].pid);
        cli_cell(t, "-");
        cli_cell_bytes(t, x->processes.items[i].used_bytes);
        for (int k = 0; k < 10; k++)
            cli_cell(t, "-");
    }
}

/* Gets the tiers of a node, or of the L3 host (node ""). */
static hl_status ask_agent(struct cli *cli, const char *address, struct hl_arena *arena,
                           struct hl_api_tier_info_list *out)
{
    struct hl_api_agent_store_info_results r;
    HL_TRY(CLI_CALL_AGENT(cli, address, store_info, &(struct hl_api_agent_store_info_params){0},
                          arena, &r));
    *out = r.tiers;
    return HL_OK;
}

/* An Agent's own numbers are exact; if it does not respond, those that the Controller received
 * last. */
static struct hl_api_store_tiers ask_node(struct cli *cli, const struct hl_api_node_info *info,
                                          struct hl_arena *arena)
{
    struct hl_api_store_tiers s = {info->name, info->tiers};
    if (ask_agent(cli, info->agent_address, arena, &s.tiers) != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
    return s;
}

static hl_status ask_l3(struct cli *cli, struct hl_arena *arena, struct hl_api_tier_info_list *out)
{
    struct hl_api_l3_pool_info_results r;
    HL_TRY(CLI_CALL_L3(cli, pool_info, &(struct hl_api_l3_pool_info_params){0}, arena, &r));
    *out = r.pool.tiers;
    return HL_OK;
}

/* The same for the pool's host. */
static hl_status ask_pool(struct cli *cli, struct hl_arena *arena, struct hl_api_store_tiers *out)
{
    struct hl_api_controller_cluster_info_results r;
    HL_TRY(
        CLI_CALL(cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0}, arena, &r));
    *out = (struct hl_api_store_tiers){"", r.info.pool.tiers};
    if (ask_l3(cli, arena, &out->tiers) != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
    return HL_OK;
}

static hl_status gather_stores(struct cli *cli, const char *only, struct hl_arena *arena,
                               struct hl_api_store_tiers_list *out)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    struct hl_api_store_tiers_list all = {
        hl_arena_array(arena, r.nodes.count + 1, sizeof(*all.items)), 0};
    if (all.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu nodes", r.nodes.count);
    for (size_t i = 0; i < r.nodes.count; i++)
        if (only[0] == '\0' || strcmp(only, r.nodes.items[i].node.name) == 0)
            all.items[all.count++] = ask_node(cli, &r.nodes.items[i].node, arena);
    if (only[0] == '\0')
        HL_TRY(ask_pool(cli, arena, &all.items[all.count++]));
    else if (all.count == 0)
        return hl_fail(HL_ENOENT, "there is no node '%s'; `helios nodes` lists them", only);
    *out = all;
    return HL_OK;
}

hl_status cmd_store(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_stores all;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 1));
    HL_TRY(gather_stores(cli, argv[0] != NULL ? argv[0] : "", &arena, &all.items));
    if (cli->json)
        return cli_print_value(&hl_api_stores_type, &all);
    struct cli_table t;
    cli_table_init(
        &t, "NODE|TIER|NAME|>QUOTA|>USED|?>WRITING|?>QUARANTINED|>KEPT|?>ASKED|>SHARDS|?>LOW|"
            "?>HIGH|!PRESSURE|?>REGIONS|?BACKING");
    for (size_t i = 0; i < all.items.count; i++) {
        const struct hl_api_store_tiers *store = &all.items.items[i];
        for (size_t k = 0; k < store->tiers.count; k++) {
            tier_row(&t, store->node[0] != '\0' ? store->node : "(L3 host)",
                     &store->tiers.items[k]);
            process_rows(&t, store->node, &store->tiers.items[k]);
        }
    }
    return cli_table_print(&t);
}
