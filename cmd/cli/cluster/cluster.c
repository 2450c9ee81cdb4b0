/* The cluster: shows nodes and state. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/cluster/commands.h"
#include "cli/local/local.h"
#include "core/planner/topo.h"
#include "hw/topology.h"

static bool is_of_shards(const struct hl_api_tier_info *tier)
{
    return tier->kind[0] == '\0';
}

/* "12.0 MiB/64.0 MiB" for a tier, summed over all of the node's; "-" if the node has none. */
static void tier_cell(struct cli_table *t, const struct hl_api_tier_info_list *tiers,
                      enum hl_api_tier tier)
{
    char used[32], quota[32];
    uint64_t sum_used = 0, sum_quota = 0;
    size_t n = 0;
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *x = &tiers->items[i];
        if (x->tier != tier || !is_of_shards(x))
            continue;
        n++;
        sum_used += x->used_bytes;
        sum_quota += x->quota_bytes;
    }
    if (n == 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%s/%s", hl_format_bytes(sum_used, used, sizeof(used)),
                 hl_format_bytes(sum_quota, quota, sizeof(quota)));
}

/* "3.0 MiB+40.0 MiB": HybridPS chunks of ranks in L1 and L2; "-" if there are no such ranks. */
static void chunks_cell(struct cli_table *t, const struct hl_api_tier_info_list *tiers)
{
    char text[2][32];
    uint64_t device = 0, host = 0;
    size_t n = 0;
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *x = &tiers->items[i];
        if (is_of_shards(x))
            continue;
        n++;
        *(x->tier == HL_API_TIER_L1 ? &device : &host) += x->used_bytes;
    }
    if (n == 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%s+%s", hl_format_bytes(device, text[0], sizeof(text[0])),
                 hl_format_bytes(host, text[1], sizeof(text[1])));
}

/* "drained" as soon as the node has no jobs left. */
static const char *state_of(const struct hl_api_node_state *n)
{
    if (n->state != HL_API_NODE_LIFE_READY)
        return hl_api_node_life_name(n->state);
    if (n->drained_ms == 0 && n->reason[0] == '\0' && n->reserved_until_ms > 0 &&
        n->reserved_from_ms <= hl_wall_ms())
        return "reserved";
    if (n->drained_ms == 0)
        return n->reason[0] != '\0' ? "blocked" : hl_api_node_life_name(n->state);
    for (size_t i = 0; i < n->slots.count; i++)
        if (n->slots.items[i].job[0] != '\0')
            return "draining";
    return "drained";
}

/* Why the node gets no new jobs, or only some. */
static void reason_cell(struct cli_table *t, const struct hl_api_node_state *n)
{
    char from[32], until[32];
    if (n->drain_reason[0] != '\0')
        cli_cell(t, "%s", n->drain_reason);
    else if (n->reserved_until_ms > 0)
        cli_cell(t, "reserved from %s until %s%s%s",
                 cli_format_time(n->reserved_from_ms, from, sizeof(from)),
                 cli_format_time(n->reserved_until_ms, until, sizeof(until)),
                 n->reserved_reason[0] != '\0' ? ": " : "", n->reserved_reason);
    else
        cli_cell(t, "-");
}

/* What concerns the whole node is in the row of its first slot. */
static void node_rows(struct cli_table *t, const struct hl_api_node_state *n)
{
    static const struct hl_api_tier_info_list none;
    for (size_t i = 0; i < n->node.slots.count; i++) {
        const struct hl_api_slot *slot = &n->node.slots.items[i];
        const struct hl_api_tier_info_list *tiers = i == 0 ? &n->node.tiers : &none;
        const char *job = i < n->slots.count ? n->slots.items[i].job : "";
        cli_cell(t, "%s:%d", n->node.name, slot->numa_id);
        cli_cell(t, "%s", state_of(n));
        cli_cell(t, "%s", slot->cpus);
        cli_cell_bytes(t, slot->memory_bytes);
        cli_cell(t, "%zu", slot->gpus.count);
        cli_cell(t, "%zu", slot->nics.count);
        cli_cell(t, "%.0f%%", n->telemetry.cpu_busy_percent);
        tier_cell(t, tiers, HL_API_TIER_L1);
        tier_cell(t, tiers, HL_API_TIER_L2);
        chunks_cell(t, tiers);
        cli_cell(t, "%s", n->node.leaf[0] != '\0' ? n->node.leaf : "-");
        cli_cell(t, "%s", n->node.spine[0] != '\0' ? n->node.spine : "-");
        cli_cell(t, "%s", job[0] != '\0' ? job : "-");
        if (i == 0)
            reason_cell(t, n);
        else
            cli_cell(t, "-");
    }
}

hl_status cmd_nodes(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &arena, &r));
    if (cli->json)
        return cli_print_items(&hl_api_node_state_type, r.nodes.items, r.nodes.count);
    struct cli_table t;
    cli_table_init(&t, "SLOT|!STATE|CPUS|>MEMORY|>GPUS|?>NICS|?>HOST "
                       "CPU|?>L1|?>L2|?>CHUNKS|?LEAF|?SPINE|JOB|?REASON");
    for (size_t i = 0; i < r.nodes.count; i++)
        node_rows(&t, &r.nodes.items[i]);
    HL_TRY(cli_table_print(&t));
    for (size_t i = 0; i < r.nodes.count; i++)
        if (r.nodes.items[i].reason[0] != '\0')
            cli_print(stdout, "%s gets no new containers: %s\n", r.nodes.items[i].node.name,
                      r.nodes.items[i].reason);
    return HL_OK;
}

static void print_count(const char *what, uint32_t count)
{
    printf("%-14s  %" PRIu32 "\n", what, count);
}

static void print_info(const struct hl_api_cluster_info *info)
{
    char used[32], capacity[32], read[32];
    cli_print(stdout, "%-14s  %s\n%-14s  %s, %s\n", "version", info->version, "L3",
              info->l3_address, info->l3_state);
    cli_print(stdout, "%-14s  %s, revision %" PRIu64 " of the catalogue\n", "cluster",
              info->cluster, info->revision);
    if (info->kubernetes_server[0] != '\0')
        cli_print(stdout, "%-14s  %s, %s%s%s\n", "Kubernetes", info->kubernetes_server,
                  info->kubernetes_state, info->kubernetes_warning[0] != '\0' ? ", but " : "",
                  info->kubernetes_warning);
    if (info->kubernetes_engine[0] != '\0')
        cli_print(stdout, "%-14s  %s\n", "gangs by", info->kubernetes_engine);
    for (size_t i = 0; i < info->damaged_records.count; i++)
        cli_print(stdout, "%-14s  %s\n", "damaged", info->damaged_records.items[i]);
    cli_print(stdout, "%-14s  %s of %s used\n", "pool",
              hl_format_bytes(info->pool.used_bytes, used, sizeof(used)),
              hl_format_bytes(info->pool.capacity_bytes, capacity, sizeof(capacity)));
    print_count("models", info->models);
    print_count("versions", info->versions);
    print_count("shards", info->shards);
    print_count("nodes", info->nodes);
    print_count("jobs", info->jobs);
    for (size_t i = 0; i < info->reads.count; i++)
        cli_print(stdout, "reads by %-5s  %" PRIu64 ", %s\n", info->reads.items[i].path,
                  info->reads.items[i].ops,
                  hl_format_bytes(info->reads.items[i].bytes, read, sizeof(read)));
    cli_print(stdout, "%-14s  %" PRIu64 " (%" PRIu64 " retries, %" PRIu64 " reads lost)\n",
              "CRC failures", info->crc_failures, info->crc_retries, info->lost_reads);
}

/* Which of the local cluster's daemons ended, how and when. */
static struct hl_api_local_ends ends_of(struct cli *cli, struct hl_arena *arena)
{
    const struct hl_api_local_cluster *cluster;
    if (cli->controller_from != CLI_LOCAL || cli_cluster(cli, &cluster) != HL_OK)
        return (struct hl_api_local_ends){0};
    return local_ends(cluster, arena);
}

static void print_ends(const struct hl_api_local_end_list *ends)
{
    for (size_t i = 0; i < ends->count; i++) {
        char line[CLI_END_MAX];
        cli_format_end(&ends->items[i], line, sizeof(line));
        cli_print(stdout, "%-14s  %s\n", ends->items[i].name, line);
    }
}

hl_status cmd_info(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cluster_info_results r;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(CLI_CALL(cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0}, &arena,
                    &r));
    struct hl_api_local_ends all = ends_of(cli, &arena);
    if (cli->json)
        return cli_print_value(&hl_api_cluster_report_type,
                               &(struct hl_api_cluster_report){r.info, all});
    print_info(&r.info);
    print_ends(&all.ends);
    return HL_OK;
}

hl_status cmd_topo(struct cli *cli, int argc, char **argv)
{
    struct hl_topo topo;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 1));
    HL_TRY(argv[0] != NULL ? hl_topology_load_xml(argv[0], &topo)
                           : hl_topology_load_machine(&topo));
    if (cli->json) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_topology doc = {.machine = topo.machine};
        hl_status st = hl_topo_to_api(&topo, &arena, &doc.slots);
        if (st == HL_OK)
            st = cli_print_value(&hl_api_topology_type, &doc);
        hl_topo_fini(&topo);
        return st;
    }
    struct cli_table t;
    cli_table_init(&t, ">SLOT|CPUS|>MEMORY|GPUS|NICS");
    for (size_t i = 0; i < topo.slot_count; i++) {
        const struct hl_topo_slot *s = &topo.slots[i];
        struct hl_buf gpus = HL_BUF(4096), nics = HL_BUF(4096);
        for (size_t k = 0; k < s->gpu_count; k++)
            (void)!hl_buf_printf(&gpus, "%s%s", k > 0 ? " " : "", s->gpus[k].pci);
        for (size_t k = 0; k < s->nic_count; k++)
            (void)!hl_buf_printf(&nics, "%s%s (%s)", k > 0 ? " " : "", s->nics[k].pci,
                                 hl_nic_class_name(s->nics[k].nic_class));
        cli_cell(&t, "%d", s->numa_id);
        HL_AUTO(hl_freep) char *cpus = hl_cpus_format(&s->cpus);
        cli_cell(&t, "%s%s", cpus != NULL ? cpus : "", s->cpus_shared ? " (shared)" : "");
        cli_cell_bytes(&t, s->memory_bytes);
        cli_cell(&t, "%s", gpus.len > 0 ? gpus.data : "-");
        cli_cell(&t, "%s", nics.len > 0 ? nics.data : "-");
        hl_buf_fini(&gpus);
        hl_buf_fini(&nics);
    }
    hl_topo_fini(&topo);
    return cli_table_print(&t);
}
