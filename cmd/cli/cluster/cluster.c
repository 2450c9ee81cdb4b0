/* The cluster: look at nodes and state. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cluster/commands.h"
#include "cli/local/local.h"
#include "core/topo.h"
#include "hw/topology.h"

static int is_of_shards(const json_t *tier)
{
    return hl_json_str(tier, "kind", "")[0] == '\0';
}

/* "12.0 MiB/64.0 MiB" of a tier, all of the node's together; "-" when it has none. */
static void tier_cell(struct cli_table *t, const json_t *info, const char *tier)
{
    char used[32], quota[32];
    uint64_t sum_used = 0, sum_quota = 0;
    size_t i, n = 0;
    const json_t *x;
    json_array_foreach (hl_json_list(info, "tiers"), i, x) {
        if (strcmp(hl_json_str(x, "tier", ""), tier) != 0 || !is_of_shards(x))
            continue;
        n++;
        sum_used += (uint64_t)hl_json_int(x, "usedBytes", 0);
        sum_quota += (uint64_t)hl_json_int(x, "quotaBytes", 0);
    }
    if (n == 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%s/%s", hl_format_bytes(sum_used, used, sizeof(used)),
                 hl_format_bytes(sum_quota, quota, sizeof(quota)));
}

/* "3.0 MiB+40.0 MiB": HybridPS chunks of ranks in L1 and L2; "-" while there are no such ranks. */
static void chunks_cell(struct cli_table *t, const json_t *info)
{
    char text[2][32];
    uint64_t device = 0, host = 0;
    size_t i, n = 0;
    const json_t *x;
    json_array_foreach (hl_json_list(info, "tiers"), i, x) {
        if (is_of_shards(x))
            continue;
        n++;
        *(strcmp(hl_json_str(x, "tier", ""), "L1") == 0 ? &device : &host) +=
            (uint64_t)hl_json_int(x, "usedBytes", 0);
    }
    if (n == 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%s+%s", hl_format_bytes(device, text[0], sizeof(text[0])),
                 hl_format_bytes(host, text[1], sizeof(text[1])));
}

static void node_rows(struct cli_table *t, const json_t *n)
{
    const json_t *info = json_object_get(n, "node"), *tel = json_object_get(n, "telemetry");
    size_t i;
    json_t *slot;
    json_array_foreach (hl_json_list(info, "slots"), i, slot) {
        const json_t *use = json_array_get(json_object_get(n, "slots"), i);
        cli_cell(t, "%s:%" PRId64, hl_json_str(info, "name", ""), hl_json_int(slot, "numaId", 0));
        cli_cell(t, "%s", hl_json_str(n, "state", ""));
        cli_cell(t, "%s", hl_json_str(slot, "cpus", ""));
        cli_cell_bytes(t, (uint64_t)hl_json_int(slot, "memoryBytes", 0));
        cli_cell(t, "%zu", json_array_size(json_object_get(slot, "gpus")));
        cli_cell(t, "%zu", json_array_size(json_object_get(slot, "nics")));
        cli_cell(t, "%.0f%%", hl_json_real(tel, "cpuBusyPercent", 0));
        tier_cell(t, i == 0 ? info : NULL, "L1");
        tier_cell(t, i == 0 ? info : NULL, "L2");
        chunks_cell(t, i == 0 ? info : NULL);
        cli_cell(t, "%s",
                 hl_json_str(use, "job", "")[0] != '\0' ? hl_json_str(use, "job", "") : "-");
    }
}

hl_status cmd_nodes(struct cli *cli, int argc, char **argv)
{
    json_t *result, *node;
    size_t i;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(cli_call(cli, "listNodes", NULL, &result));
    if (cli->json) {
        json_t *nodes = json_incref(hl_json_list(result, "nodes"));
        json_decref(result);
        return cli_print_items(nodes);
    }
    struct cli_table t;
    cli_table_init(&t, "SLOT|!STATE|CPUS|>MEMORY|>GPUS|?>NICS|?>HOST CPU|?>L1|?>L2|?>CHUNKS|JOB");
    json_array_foreach (hl_json_list(result, "nodes"), i, node) {
        node_rows(&t, node);
    }
    json_decref(result);
    return cli_table_print(&t);
}

static void print_count(const char *what, int64_t count)
{
    printf("%-14s  %" PRId64 "\n", what, count);
}

static void print_damaged(const json_t *info)
{
    size_t i;
    const json_t *record;
    json_array_foreach (hl_json_list(info, "damagedRecords"), i, record)
        cli_print(stdout, "%-14s  %s\n", "damaged", json_string_value(record));
}

static void print_info(const json_t *info)
{
    const json_t *pool = json_object_get(info, "pool"), *path;
    size_t i;
    char used[32], capacity[32], read[32];
    cli_print(stdout, "%-14s  %s\n%-14s  %s, %s\n", "version", hl_json_str(info, "version", ""),
              "L3", hl_json_str(info, "l3Address", ""), hl_json_str(info, "l3State", ""));
    cli_print(stdout, "%-14s  %s, revision %" PRId64 " of the catalogue\n", "cluster",
              hl_json_str(info, "cluster", ""), hl_json_int(info, "revision", 0));
    if (hl_json_str(info, "kubernetesServer", "")[0] != '\0')
        cli_print(stdout, "%-14s  %s, %s\n", "Kubernetes",
                  hl_json_str(info, "kubernetesServer", ""),
                  hl_json_str(info, "kubernetesState", ""));
    print_damaged(info);
    cli_print(stdout, "%-14s  %s of %s used\n", "pool",
              hl_format_bytes((uint64_t)hl_json_int(pool, "usedBytes", 0), used, sizeof(used)),
              hl_format_bytes((uint64_t)hl_json_int(pool, "capacityBytes", 0), capacity,
                              sizeof(capacity)));
    print_count("models", hl_json_int(info, "models", 0));
    print_count("versions", hl_json_int(info, "versions", 0));
    print_count("shards", hl_json_int(info, "shards", 0));
    print_count("nodes", hl_json_int(info, "nodes", 0));
    print_count("jobs", hl_json_int(info, "jobs", 0));
    json_array_foreach (hl_json_list(info, "reads"), i, path)
        cli_print(stdout, "reads by %-5s  %" PRId64 ", %s\n", hl_json_str(path, "path", ""),
                  hl_json_int(path, "ops", 0),
                  hl_format_bytes((uint64_t)hl_json_int(path, "bytes", 0), read, sizeof(read)));
    cli_print(stdout, "%-14s  %" PRId64 " (%" PRId64 " retries, %" PRId64 " reads lost)\n",
              "CRC failures", hl_json_int(info, "crcFailures", 0),
              hl_json_int(info, "crcRetries", 0), hl_json_int(info, "lostReads", 0));
}

/* Of the local cluster's daemons, which ended, how and when. */
static json_t *ends_of(struct cli *cli)
{
    const json_t *cluster;
    if (cli->controller_from != CLI_LOCAL || cli_cluster(cli, &cluster) != HL_OK)
        return json_array();
    return local_ends(cluster);
}

static void print_ends(const json_t *ends)
{
    const json_t *x;
    size_t i;
    json_array_foreach (ends, i, x) {
        char line[CLI_END_MAX];
        cli_format_end(x, line, sizeof(line));
        cli_print(stdout, "%-14s  %s\n", hl_json_str(x, "name", ""), line);
    }
}

hl_status cmd_info(struct cli *cli, int argc, char **argv)
{
    json_t *result;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(cli_call(cli, "clusterInfo", NULL, &result));
    json_t *info = json_object_get(result, "info"), *ends = ends_of(cli);
    if (cli->json) {
        json_object_set_new(info, "ends", ends);
        json_incref(info);
        json_decref(result);
        return cli_print_json(info);
    }
    print_info(info);
    print_ends(ends);
    json_decref(ends);
    json_decref(result);
    return HL_OK;
}

hl_status cmd_topo(struct cli *cli, int argc, char **argv)
{
    struct hl_topo topo;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 1));
    HL_TRY(argc > 0 ? hl_topology_load_xml(argv[0], &topo) : hl_topology_load_machine(&topo));
    if (cli->json) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_node_info node = {0};
        hl_status st = hl_topo_to_api(&topo, &arena, &node.slots);
        json_t *all = st == HL_OK ? hl_api_to_json(&hl_api_node_info_type, &node) : NULL;
        json_t *doc =
            json_pack("{s:s s:O}", "machine", topo.machine, "slots", json_object_get(all, "slots"));
        json_decref(all);
        hl_topo_fini(&topo);
        return cli_print_json(doc);
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
