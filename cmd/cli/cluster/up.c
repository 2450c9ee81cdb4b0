/* `helios up` and `helios down`: parsing and output. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/up_process.h"
#include "cli/local/local.h"

/* Only used for parsing: local_up takes the given flags by their names. */
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
    bool no_supervise;
    uint64_t timeout_ms;
};

#define AT(field) HL_OPTION_FIELD(struct up_args, field)

/* clang-format off */
static const struct hl_option up_rows[] = {
    {"nodes", "--nodes", "1", "Agents to start; 0 is for Kubernetes.",
     HL_OPT_INT, 0, 256, NULL, AT(nodes)},
    {"slots", "--slots", "0", "Slots of each node; 0 for the NUMA nodes of its share.",
     HL_OPT_INT, 0, 1024, NULL, AT(slots)},
    {"l3-size", "--l3-size", "1GiB", "Capacity of the L3 pool.",
     HL_OPT_BYTES, 1 << 20, 1ll << 46, NULL, AT(l3_size)},
    {"l2-size", "--l2-size", "0", "Capacity of each node's L2, host memory for copies; 0 for none.",
     HL_OPT_BYTES, 0, 1ll << 46, NULL, AT(l2_size)},
    {"devices", "--devices", "", "Each node's device memory (L1), as agent.devices: emu:64MiB,...",
     HL_OPT_STRING, 0, 0, NULL, AT(devices)},
    {"topology", "--topology", "",
     "hwloc XML (version 1 or 2) that every node takes its slots from.",
     HL_OPT_PATH, 0, 0, NULL, AT(topology)},
    {"executor", "--executor", "process",
     "What runs containers: this machine, as processes or by docker or podman, or Kubernetes with "
     "Volcano.",
     HL_OPT_ENUM, 0, 0, "process|docker|podman|kubernetes", AT(executor)},
    {"address", "--address", "",
     "Serve over TCP, on this address or name of this machine; pods must reach it. If it is not "
     "given: Unix sockets in the state directory, which other users cannot reach, and no port; "
     "with Kubernetes 127.0.0.1.",
     HL_OPT_STRING, 1, 0, NULL, AT(address)},
    {"kubeconfig", "--kubeconfig", "",
     "A kubeconfig; empty for $KUBECONFIG, ~/.kube/config, or the credentials of the pod.",
     HL_OPT_PATH, 0, 0, NULL, AT(kubeconfig)},
    {"master", "--master", "", "URL of the API server, instead of that in the kubeconfig.",
     HL_OPT_STRING, 0, 0, NULL, AT(master)},
    {"kube-namespace", "--kube-namespace", "", "Namespace of the jobs; empty for the context's.",
     HL_OPT_STRING, 0, 0, NULL, AT(kube_namespace)},
    {"kube-device", "--kube-device", "",
     "Resource that a rank with a GPU or NPU asks for, such as nvidia.com/gpu; empty for none.",
     HL_OPT_STRING, 0, 0, NULL, AT(kube_device)},
    {"kube-slot-devices", "--kube-slot-devices", "0",
     "Devices per NUMA node of the cluster; 0 for the value of kube.slot_devices.",
     HL_OPT_INT, 0, 64, NULL, AT(kube_slot_devices)},
    {"config", "--config", "",
     "YAML file of options for all daemons, as HELIOS_CONFIG; without either, "
     "~/.config/helios/helios.yaml. L3 serves metrics at the port of metrics.listen, the "
     "Controller at the next one, then the nodes.",
     HL_OPT_PATH, 0, 0, NULL, AT(config)},
    {"no-supervise", "--no-supervise", "false",
     "Start no supervisor: a daemon that ends stays down.",
     HL_OPT_BOOL, 0, 0, NULL, AT(no_supervise)},
    {"timeout", "--timeout", "60s",
     "How long a daemon that starts may go without progress. Filling the pool counts as progress.",
     HL_OPT_DURATION, 1000, 86400000, NULL, AT(timeout_ms)},
};

/* clang-format on */

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0 ||
           strcmp(address, "::1") == 0 || strcmp(address, "[::1]") == 0;
}

/* "node-0, node-1" */
static void join_names(const struct hl_api_text_list *names, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < names->count && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%s", i > 0 ? ", " : "", names->items[i]);
}

static void print_ends(struct local_cluster *c)
{
    struct hl_api_local_ends all = local_ends(&c->doc, &c->arena);
    for (size_t i = 0; i < all.ends.count; i++) {
        char line[CLI_END_MAX];
        cli_format_end(&all.ends.items[i], line, sizeof(line));
        printf("  %s: %s\n", all.ends.items[i].name, line);
    }
}

static void print_up(struct local_cluster *c, const struct hl_api_local_start *start)
{
    char names[512];
    const struct hl_api_local_cluster *doc = &c->doc;
    bool kubernetes = strcmp(doc->executor, "kubernetes") == 0;
    join_names(&start->started, names, sizeof(names));
    if (start->started.count == 0)
        printf("already up: ");
    else if (start->restarted)
        printf("up: started %s again; ", names);
    else
        printf("up: ");
    printf("%d node%s, controller %s, L3 %s%s\n", doc->nodes, doc->nodes == 1 ? "" : "s",
           doc->controller, doc->l3, kubernetes ? ", gangs on Kubernetes" : "");
    print_ends(c);
    const char *address = doc->serving;
    if (kubernetes && is_loopback(address))
        fprintf(stderr,
                "helios: pods on other machines cannot reach %s; run `helios down --keep`, then "
                "`helios up` with --address\n",
                address);
}

/* Makes paths absolute, because they are remembered and a later `up` may run elsewhere. */
static hl_status make_absolute(struct hl_arena *arena, struct hl_api_key_value_list *given)
{
    static const char *const paths[] = {"topology", "kubeconfig", "config"};
    char path[PATH_MAX];
    for (size_t i = 0; i < HL_ARRAY_LEN(paths); i++) {
        const char *text = hl_api_pair_find(given, paths[i], "");
        if (text[0] == '\0')
            continue;
        HL_TRY(cli_absolute(text, path));
        hl_api_pair_set(arena, given, paths[i], path);
    }
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory noting the flags") : HL_OK;
}

static hl_status run_up(struct cli *cli, const char *state, const struct up_args *a,
                        const struct hl_api_key_value_list *given, bool *supervises)
{
    struct hl_rpc *rpc;
    HL_AUTO(local_cluster_fini) struct local_cluster c = {0};
    struct hl_api_local_start start;
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(local_up(&(struct local_opts){.rpc = rpc,
                                         .state = state,
                                         .given = given,
                                         .ready_ms = a->timeout_ms,
                                         .supervises = supervises},
                    &c, &start));
    if (cli->json)
        return cli_print_value(&hl_api_local_up_type, &(struct hl_api_local_up){c.doc, start});
    print_up(&c, &start);
    return HL_OK;
}

static hl_status start_up(struct cli *cli, const struct up_args *a, struct hl_arena *arena,
                          struct hl_api_key_value_list *given)
{
    char state[PATH_MAX];
    struct up_process process;
    bool supervises = false;
    hl_api_pair_remove(given, "timeout"); /* applies to this call only */
    HL_TRY(make_absolute(arena, given));
    HL_TRY(cli_absolute(cli->state, state));
    if (a->no_supervise)
        return run_up(cli, state, a, given, NULL);
    HL_TRY(up_process_begin(cli, &process));
    if (!process.works)
        return HL_OK;
    hl_status st = run_up(cli, state, a, given, &supervises);
    return supervises ? up_process_supervise(cli, &process, state, st) : st;
}

hl_status cmd_up(struct cli *cli, int argc, char **argv)
{
    struct up_args a = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list given;
    hl_status st =
        cli_args_given(cli, up_rows, HL_ARRAY_LEN(up_rows), argc, argv, &a, 0, 0, &arena, &given);
    if (st == HL_OK)
        st = start_up(cli, &a, &arena, &given);
    hl_args_fini(up_rows, HL_ARRAY_LEN(up_rows), &a);
    return st;
}

/* "the pool (1.0 GiB, 1 model, 2 versions), the metadata and the logs of 3 jobs" */
static void describe_kept(const struct hl_api_local_stop *r, char *out, size_t cap)
{
    char size[32], content[128] = "", jobs[64] = "the logs";
    if (r->models >= 0) {
        snprintf(content, sizeof(content), ", %" PRId64 " model%s, %" PRId64 " version%s",
                 r->models, r->models == 1 ? "" : "s", r->versions, r->versions == 1 ? "" : "s");
        snprintf(jobs, sizeof(jobs), "the logs of %" PRId64 " job%s", r->jobs,
                 r->jobs == 1 ? "" : "s");
    }
    hl_format_bytes((uint64_t)r->pool_bytes, size, sizeof(size));
    if (r->pool_bytes > 0)
        snprintf(out, cap, "the pool (%s%s), the metadata and %s", size, content, jobs);
    else /* a reboot empties /dev/shm */
        snprintf(out, cap, "the metadata and %s (the pool no longer existed)", jobs);
}

static void print_down(const struct hl_api_local_stop *r)
{
    char what[256];
    size_t n = r->stopped.count;
    if (!r->removed && !r->kept) {
        printf("there is no cluster in %s\n", r->state);
        return;
    }
    describe_kept(r, what, sizeof(what));
    if (n == 0)
        printf("no daemon was running; ");
    else
        printf("down: stopped %zu daemon%s; ", n, n == 1 ? "" : "s");
    if (r->removed)
        printf("removed %s of %s\n", what, r->state);
    else
        printf("kept %s in %s: `helios up` goes on with them, `helios down --purge` removes them\n",
               what, r->state);
}

struct down_args {
    bool keep, purge;
};

hl_status cmd_down(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"keep", "--keep", "false", "Keep the pool, the metadata and the logs for the next up.",
         HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct down_args, keep)},
        {"purge", "--purge", "false",
         "Remove the pool, the metadata and the logs, also those that an earlier --keep kept.",
         HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct down_args, purge)},
    };
    struct down_args a = {0};
    struct hl_rpc *rpc;
    char state[PATH_MAX];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_local_stop result;
    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0));
    if (a.keep && a.purge)
        return cli_usage(cli, "--keep and --purge exclude each other");
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(cli_absolute(cli->state, state));
    HL_TRY(local_down(rpc, state,
                      a.keep    ? LOCAL_DOWN_KEEP
                      : a.purge ? LOCAL_DOWN_PURGE
                                : LOCAL_DOWN,
                      &arena, &result));
    if (cli->json)
        return cli_print_value(&hl_api_local_stop_type, &result);
    print_down(&result);
    return HL_OK;
}
