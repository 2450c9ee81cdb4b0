/* The cluster: bring one up on this machine, look at nodes and state. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/options.h"
#include "core/topo.h"
#include "helios/commands.h"
#include "helios/local.h"
#include "hw/topology.h"

struct up_args {
    int64_t nodes;
    int64_t slots;
    uint64_t l3_size;
    uint64_t l2_size;
    char *devices;
    char *topology;
    char *executor;
    char *address;
    char *kubeconfig;
    char *master;
    char *kube_namespace;
    char *kube_device;
    int64_t kube_slot_devices;
    char *config;
    uint64_t timeout_ms;
};

#define AT(field) offsetof(struct up_args, field)

/* clang-format off */
static const struct hl_option up_rows[] = {
    {"nodes", "--nodes", "1", "Agents to start; 0 is for Kubernetes.",
     HL_OPT_INT, 0, 256, NULL, AT(nodes), 0},
    {"slots", "--slots", "0", "Slots of each node; 0 for the NUMA nodes of its share.",
     HL_OPT_INT, 0, 1024, NULL, AT(slots), 0},
    {"l3-size", "--l3-size", "1GiB", "Capacity of the L3 pool.",
     HL_OPT_BYTES, 1 << 20, 1ll << 46, NULL, AT(l3_size), 0},
    {"l2-size", "--l2-size", "0", "Capacity of each node's L2, host memory for copies; 0 for none.",
     HL_OPT_BYTES, 0, 1ll << 46, NULL, AT(l2_size), 0},
    {"devices", "--devices", "", "Each node's device memory (L1), as agent.devices: emu:64MiB,...",
     HL_OPT_STRING, 0, 0, NULL, AT(devices), 0},
    {"topology", "--topology", "", "hwloc XML (version 2) that every node takes its slots from.",
     HL_OPT_PATH, 0, 0, NULL, AT(topology), 0},
    {"executor", "--executor", "process",
     "What runs containers: this machine, as processes, or Kubernetes with Volcano.",
     HL_OPT_ENUM, 0, 0, "process|kubernetes", AT(executor), 0},
    {"address", "--address", "127.0.0.1",
     "Address or name of this machine that daemons serve on; pods must reach it.",
     HL_OPT_STRING, 0, 0, NULL, AT(address), 0},
    {"kubeconfig", "--kubeconfig", "",
     "A kubeconfig; empty for $KUBECONFIG, ~/.kube/config, or what a pod is given.",
     HL_OPT_PATH, 0, 0, NULL, AT(kubeconfig), 0},
    {"master", "--master", "", "URL of the API server instead of the kubeconfig's.",
     HL_OPT_STRING, 0, 0, NULL, AT(master), 0},
    {"kube-namespace", "--kube-namespace", "", "Namespace of the jobs; empty for the context's.",
     HL_OPT_STRING, 0, 0, NULL, AT(kube_namespace), 0},
    {"kube-device", "--kube-device", "",
     "Resource that a rank with a GPU or NPU asks for, as nvidia.com/gpu; empty for none.",
     HL_OPT_STRING, 0, 0, NULL, AT(kube_device), 0},
    {"kube-slot-devices", "--kube-slot-devices", "0",
     "Devices of one NUMA node of the cluster; 0 for what kube.slot_devices says.",
     HL_OPT_INT, 0, 64, NULL, AT(kube_slot_devices), 0},
    {"config", "--config", "",
     "YAML file of options for all daemons, as HELIOS_CONFIG. Of metrics.listen L3 takes the port, "
     "the Controller the next, then the nodes.",
     HL_OPT_PATH, 0, 0, NULL, AT(config), 0},
    {"timeout", "--timeout", "60s",
     "How long a daemon may take to be ready (a big pool is touched first), then all nodes.",
     HL_OPT_DURATION, 1000, 86400000, NULL, AT(timeout_ms), 0},
};

/* clang-format on */

/* The daemons read the file themselves, as they do HELIOS_...: it is only checked here, before
 * anything starts. */
static hl_status pass_config(const struct up_args *a, struct hl_conf *out)
{
    char path[PATH_MAX], program[] = "helios-controller", *argv[] = {program, NULL};
    const char *file = a->config[0] != '\0' ? a->config : getenv("HELIOS_CONFIG");
    if (file != NULL && file[0] != '\0') {
        HL_TRY(cli_absolute(file, path));
        if (setenv("HELIOS_CONFIG", path, 1) != 0)
            return hl_fail(HL_ENOMEM, "environment");
    }
    return hl_conf_load(HL_CONTROLLER, 1, argv, out, NULL);
}

static int is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0 ||
           strcmp(address, "::1") == 0 || strcmp(address, "[::1]") == 0;
}

static void print_up(const struct up_args *a, const json_t *result, int kubernetes)
{
    size_t n = json_array_size(json_object_get(result, "started"));
    printf("%s: %d node%s, controller %s, L3 %s%s\n", n > 0 ? "up" : "already up", (int)a->nodes,
           a->nodes == 1 ? "" : "s", hl_json_str(result, "controller", ""),
           hl_json_str(result, "l3", ""), kubernetes ? ", gangs on Kubernetes" : "");
    if (kubernetes && is_loopback(a->address))
        fprintf(stderr,
                "helios: pods on other machines do not reach %s; give --address, then also after "
                "helios down\n",
                a->address);
}

static hl_status start_up(struct cli *cli, const struct up_args *a, const struct hl_conf *conf)
{
    struct hl_rpc *rpc;
    char state[PATH_MAX], topology[PATH_MAX] = "", kubeconfig[PATH_MAX] = "";
    int kubernetes = strcmp(a->executor, "kubernetes") == 0 ||
                     strcmp(conf->controller_executor, "kubernetes") == 0;
    json_t *result;
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(cli_absolute(cli->state, state));
    if (a->topology[0] != '\0')
        HL_TRY(cli_absolute(a->topology, topology));
    if (a->kubeconfig[0] != '\0')
        HL_TRY(cli_absolute(a->kubeconfig, kubeconfig));
    struct local_kube kube = {.config = kubeconfig,
                              .master = a->master,
                              .ns = a->kube_namespace,
                              .device = a->kube_device,
                              .slot_devices = (int)a->kube_slot_devices};
    HL_TRY(local_up(&(struct local_opts){.rpc = rpc,
                                         .state = state,
                                         .nodes = (int)a->nodes,
                                         .slots = (int)a->slots,
                                         .topology = topology,
                                         .address = a->address,
                                         .kube = kubernetes ? &kube : NULL,
                                         .l3_size = a->l3_size,
                                         .l2_size = a->l2_size,
                                         .devices = a->devices,
                                         .ready_ms = a->timeout_ms,
                                         .metrics = conf->metrics_listen},
                    &result));
    if (cli->json)
        return cli_print_json(result);
    print_up(a, result, kubernetes);
    json_decref(result);
    return HL_OK;
}

static hl_status run_up(struct cli *cli, const struct up_args *a)
{
    struct hl_conf conf = {0};
    HL_TRY(pass_config(a, &conf));
    hl_status st = start_up(cli, a, &conf);
    hl_conf_fini(&conf);
    return st;
}

hl_status cmd_up(struct cli *cli, int argc, char **argv)
{
    struct up_args a = {0};
    hl_status st = cli_args(cli, up_rows, HL_ARRAY_LEN(up_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK)
        st = run_up(cli, &a);
    hl_args_fini(up_rows, HL_ARRAY_LEN(up_rows), &a);
    return st;
}

hl_status cmd_down(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"keep", "--keep", "false", "Keep pool, metadata and logs for the next up.", HL_OPT_BOOL, 0,
         0, NULL, 0, 0},
    };

    struct {
        int64_t keep;
    } a = {0};
    struct hl_rpc *rpc;
    char state[PATH_MAX];
    json_t *result;
    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0));
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(cli_absolute(cli->state, state));
    HL_TRY(local_down(rpc, state, (int)a.keep, &result));
    if (cli->json)
        return cli_print_json(result);
    size_t n = json_array_size(json_object_get(result, "stopped"));
    if (n == 0)
        puts("nothing was running");
    else
        printf("down: %zu daemons stopped%s\n", n, a.keep ? ", pool and metadata kept" : "");
    json_decref(result);
    return HL_OK;
}

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

static void print_info(const json_t *info)
{
    const json_t *pool = json_object_get(info, "pool"), *path;
    size_t i;
    char used[32], capacity[32], read[32];
    cli_print(stdout, "%-14s  %s\n%-14s  %s, %s\n", "version", hl_json_str(info, "version", ""),
              "L3", hl_json_str(info, "l3Address", ""), hl_json_str(info, "l3State", ""));
    if (hl_json_str(info, "kubernetesServer", "")[0] != '\0')
        cli_print(stdout, "%-14s  %s, %s\n", "Kubernetes",
                  hl_json_str(info, "kubernetesServer", ""),
                  hl_json_str(info, "kubernetesState", ""));
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

hl_status cmd_info(struct cli *cli, int argc, char **argv)
{
    json_t *result;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(cli_call(cli, "clusterInfo", NULL, &result));
    json_t *info = json_object_get(result, "info");
    if (cli->json) {
        json_incref(info);
        json_decref(result);
        return cli_print_json(info);
    }
    print_info(info);
    json_decref(result);
    return HL_OK;
}

hl_status cmd_topo(struct cli *cli, int argc, char **argv)
{
    struct hl_topo topo;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 1));
    HL_TRY(argc > 0 ? hl_topology_load_xml(argv[0], &topo) : hl_topology_load_machine(&topo));
    json_t *slots = hl_topo_to_json(&topo);
    if (cli->json) {
        json_t *doc = json_pack("{s:s s:o}", "machine", topo.machine, "slots", slots);
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
        cli_cell(&t, "%s%s", hl_json_str(json_array_get(slots, i), "cpus", ""),
                 s->cpus_shared ? " (shared)" : "");
        cli_cell_bytes(&t, s->memory_bytes);
        cli_cell(&t, "%s", gpus.len > 0 ? gpus.data : "-");
        cli_cell(&t, "%s", nics.len > 0 ? nics.data : "-");
        hl_buf_fini(&gpus);
        hl_buf_fini(&nics);
    }
    json_decref(slots);
    hl_topo_fini(&topo);
    return cli_table_print(&t);
}

hl_status cmd_conf(struct cli *cli, int argc, char **argv)
{
    struct hl_conf conf = {0};
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    char name[] = "helios", *own[] = {name, NULL};
    int rest;
    HL_TRY(hl_conf_load(HL_CLI, 1, own, &conf, &rest));
    json_t *rows = hl_conf_dump(&conf), *row;
    hl_conf_fini(&conf);
    if (cli->json)
        return cli_print_items(rows);
    struct cli_table t;
    size_t i;
    cli_table_init(&t, "NAME|VALUE|FROM|WHAT");
    json_array_foreach (rows, i, row) {
        cli_cell(&t, "%s", hl_json_str(row, "name", ""));
        cli_cell(&t, "%s", hl_json_str(row, "value", ""));
        cli_cell(&t, "%s", hl_json_str(row, "origin", ""));
        cli_cell(&t, "%s", hl_json_str(row, "help", ""));
    }
    json_decref(rows);
    return cli_table_print(&t);
}
