/* helios-agent: one per node; starts containers for the Controller and tells it how they are.
 * `helios-agent shim DIR` is a container's shim, started by the agent itself. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "auth/secret.h"
#include "base/log.h"
#include "conf/options.h"
#include "conf/planes.h"
#include "core/topo.h"
#include "http/metrics.h"
#include "hw/process_executor.h"
#include "hw/telemetry.h"
#include "hw/topology.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "os/map_guard.h"
#include "os/process.h"
#include "rpc/rpc.h"

#define STOP_CONTAINERS_MS 60000

struct daemon {
    struct hl_conf conf;
    struct hl_logfile *log;
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_agent *agent;
    struct hl_metrics *metrics;
    struct hl_telemetry_probe probe;
};

static bool read_telemetry(void *arg, struct hl_api_telemetry *out)
{
    if (hl_telemetry_read(arg, out) == HL_OK)
        return true;
    hl_debug("telemetry: %s", hl_error_text());
    return false;
}

/* "0,2" */
static void write_nodes(const struct hl_topo *machine, const struct hl_topo *offer, char *out,
                        size_t size)
{
    int nodes[HL_TOPO_SLOTS_MAX];
    size_t used = 0, n = hl_topo_numa_of(machine, offer, nodes, HL_ARRAY_LEN(nodes));
    out[0] = '\0';
    for (size_t i = 0; i < n && used + 16 < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%d", i > 0 ? "," : "", nodes[i]);
}

/* What a node offers, and of what it is a share. */
struct offer {
    struct hl_arena arena;
    struct hl_api_slot_list slots, machine;
    char numa[512]; /* NUMA nodes in which the CPUs of the slots are */
};

static hl_status find_slots(const struct hl_conf *conf, struct offer *out)
{
    struct hl_topo machine = {0}, share = {0};
    int index, nodes, slots;
    HL_TRY(conf->agent_topology[0] != '\0' ? hl_topology_load_xml(conf->agent_topology, &machine)
                                           : hl_topology_load_machine(&machine));
    hl_status st = HL_OK;
    const struct hl_topo *offer = &machine;
    if (conf->agent_share[0] != '\0') {
        st = hl_topo_share_parse(conf->agent_share, &index, &nodes, &slots);
        if (st == HL_OK)
            st = hl_topo_share(&machine, nodes, index, slots, &share);
        offer = &share;
    }
    if (st == HL_OK) {
        if (conf->agent_topology[0] == '\0') /* a file's nodes need not be this machine's */
            write_nodes(&machine, offer, out->numa, sizeof(out->numa));
        st = hl_topo_to_api(offer, &out->arena, &out->slots);
    }
    if (st == HL_OK)
        st = hl_topo_to_api(&machine, &out->arena, &out->machine);
    hl_topo_fini(&share);
    hl_topo_fini(&machine);
    return st;
}

/* First of `places` (relative to this program) that exists, with links resolved; "" when none does.
 */
static void find_beside(const char *const *places, size_t count, char *out, size_t size)
{
    char exe[PATH_MAX], path[PATH_MAX + 64], real[PATH_MAX];
    out[0] = '\0';
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n <= 0)
        return;
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    for (size_t i = 0; i < count && out[0] == '\0'; i++) {
        snprintf(path, sizeof(path), "%s/%s", exe, places[i]);
        if (realpath(path, real) != NULL)
            snprintf(out, size, "%s", real);
    }
}

/* Where ranks import helios from: installed, or a source tree. */
static void find_python(const struct hl_conf *conf, char *out, size_t size)
{
    static const char *const places[] = {"../lib/helios/python/helios/__init__.py",
                                         "../../python/helios/__init__.py"};
    if (conf->agent_python[0] != '\0') {
        snprintf(out, size, "%s", conf->agent_python);
        return;
    }
    find_beside(places, HL_ARRAY_LEN(places), out, size);
    if (out[0] != '\0')
        *strstr(out, "/helios/__init__.py") = '\0';
}

/* The library that belongs to this program; a rank that names its own keeps it. */
static void find_library(char *out, size_t size)
{
    static const char *const places[] = {"../lib/libhelios.so.0",
                                         "../lib/x86_64-linux-gnu/libhelios.so.0",
                                         "../lib/powerpc64le-linux-gnu/libhelios.so.0"};
    find_beside(places, HL_ARRAY_LEN(places), out, size);
}

static hl_status migrate_tuning(const struct hl_conf *c, struct hl_migrate_tuning *out)
{
    struct hl_migrate_tuning t = {.window_bytes = c->migrate_window,
                                  .keep_ms = (int)c->migrate_keep_ms,
                                  .dead_ms = (int)c->migrate_dead_ms,
                                  .io_threads = (int)c->migrate_io_threads};
    if (hl_migrate_zstd_parse(c->migrate_zstd, &t.zstd) != HL_OK)
        return hl_fail_prefix(HL_EINVAL, "migrate.zstd: ");
    for (t.chunk_size = 8u << 20; t.chunk_size > c->migrate_chunk;)
        t.chunk_size /= 2;
    *out = t;
    return HL_OK;
}

/* What the modules below take for "none". */
static int or_none(int64_t value)
{
    return value > 0 ? (int)value : -1;
}

static struct store_opts store_opts(const struct hl_conf *c, const char *numa,
                                    struct hl_migrate_tuning tuning)
{
    return (struct store_opts){
        .host_id = c->agent_host_id,
        .l2_size = c->agent_l2_size,
        .l2_nodes = numa,
        .l2_pool = c->agent_l2_pool,
        .quarantine_ms = (uint32_t)c->l3_quarantine_ms,
        .lease_ms = (uint32_t)c->l3_lease_ms,
        .beat_ms = (uint32_t)c->l3_beat_ms,
        .prefault = (int)c->l3_prefault,
        .limits = {.high_pct = (unsigned)c->tier_high, .low_pct = (unsigned)c->tier_low},
        .devices = c->agent_devices,
        .cuda_driver = c->device_cuda_driver,
        .plank_piece = c->plank_piece,
        .plank_buffers = (unsigned)c->plank_buffers,
        .nic_class = c->agent_nic_class,
        .data_listen = c->agent_data_listen,
        .data_spin_us = or_none(c->data_spin_us),
        .data_put_queue = (int)c->data_put_queue,
        .data_put_timeout_ms = (int)c->data_put_timeout_ms,
        .data_connect_ms = (int)c->data_connect_timeout_ms,
        .data_endpoints = (int)c->data_endpoints,
        .data_batch_bytes = (size_t)c->data_batch_bytes,
        .data_batch_ms = or_none(c->data_batch_ms),
        .data_stall_ms = (int)c->data_stall_ms,
        .data_rdma_retry_ms = or_none(c->data_rdma_retry_ms),
        .migrate_listen = c->agent_migrate_listen,
        .migrate = tuning,
        .copies = (int)c->agent_copies,
        .locate_timeout_ms = (int)c->copy_locate_timeout_ms,
        .retry = {.count = (int)c->read_retries, .pause_ms = (int)c->read_retry_pause_ms},
        .retry_first_ms = c->route_retry_first_ms,
        .retry_max_ms = c->route_retry_max_ms,
    };
}

static hl_status agent_gauges(void *arg, struct hl_buf *out)
{
    struct daemon *d = arg;
    return hl_agent_gauges(d->agent, out);
}

static hl_status start_agent(struct daemon *d, int argc, char **argv)
{
    struct offer offer = {0};
    enum hl_log_level level;
    char python[PATH_MAX], library[PATH_MAX];
    struct hl_migrate_tuning tuning = {0};
    hl_process_raise_files();
    hl_map_guard_install();
    HL_TRY(hl_conf_load(HL_AGENT, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(d->conf.log_level, &level));
    hl_log_init("agent", level);
    HL_TRY(hl_planes_apply(&d->conf));
    HL_TRY(hl_conf_publish(&d->conf));
    HL_TRY(migrate_tuning(&d->conf, &tuning));
    HL_TRY(find_slots(&d->conf, &offer));
    find_python(&d->conf, python, sizeof(python));
    find_library(library, sizeof(library));
    hl_status st = hl_auth_use_file(d->conf.auth_secret_file);
    if (st == HL_OK)
        st = hl_loop_create(&d->loop);
    if (st == HL_OK)
        st = hl_logfile_start(d->loop, d->conf.log_file, d->conf.log_max_size,
                              (int)d->conf.log_keep, &d->log);
    if (st == HL_OK)
        st = hl_loop_stop_on_signals(d->loop);
    if (st == HL_OK)
        st = hl_rpc_create(&d->rpc);
    if (st == HL_OK)
        st = hl_agent_start(
            &(struct hl_agent_opts){
                .loop = d->loop,
                .secret_file = d->conf.auth_secret_file,
                .rpc = d->rpc,
                .name = d->conf.agent_name,
                .listen = d->conf.agent_listen,
                .controller = d->conf.agent_controller,
                .state_dir = d->conf.agent_state,
                .executor = d->conf.agent_executor,
                .rank_address = d->conf.agent_rank_address,
                .python_dir = python,
                .library = library,
                .slots = &offer.slots,
                .machine = &offer.machine,
                .foreign_topology = d->conf.agent_topology[0] != '\0',
                .log_max_bytes = d->conf.agent_log_max,
                .rpc_timeout_ms = (int)d->conf.rpc_timeout_ms,
                .chunk_memory = d->conf.agent_chunk_memory,
                .read_timeout_ms = (int)d->conf.read_timeout_ms,
                .read_retries = or_none(d->conf.read_retries),
                .read_retry_pause_ms = or_none(d->conf.read_retry_pause_ms),
                .store = store_opts(&d->conf, offer.numa, tuning),
                .telemetry = read_telemetry,
                .telemetry_arg = &d->probe,
            },
            &d->agent);
    size_t count = offer.slots.count;
    hl_arena_fini(&offer.arena);
    HL_TRY(st);
    HL_TRY(hl_metrics_start(
        &(struct hl_metrics_opts){
            .listen = d->conf.metrics_listen, .loop = d->loop, .gauges = agent_gauges, .arg = d},
        &d->metrics));
    hl_info("serving address=%s node=%s slots=%zu state=%s", hl_agent_address(d->agent),
            hl_agent_name(d->agent), count, d->conf.agent_state);
    return hl_conf_announce(
        &d->conf, json_pack("{s:s s:s s:s s:s s:s s:s}", "metrics", hl_metrics_address(d->metrics),
                            "address", hl_agent_address(d->agent), "name", hl_agent_name(d->agent),
                            "dataAddress", hl_agent_data_address(d->agent), "migrateAddress",
                            hl_agent_migrate_address(d->agent), "storeSocket",
                            hl_agent_store_socket(d->agent)));
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    struct daemon d = {0};
    hl_telemetry_init(&d.probe, "/proc");
    hl_status st = start_agent(&d, argc, argv);
    if (st == HL_OK)
        st = hl_loop_run(d.loop);
    if (st != HL_OK && st != HL_ECANCELED)
        fprintf(stderr, "helios-agent: %s\n", hl_error_text());
    hl_metrics_stop(d.metrics);
    if (st == HL_OK && d.conf.agent_stop_containers)
        hl_agent_stop_containers(d.agent, STOP_CONTAINERS_MS);
    if (!hl_agent_stop(d.agent))
        _exit(0);
    hl_rpc_destroy(d.rpc);
    hl_logfile_stop(d.log);
    hl_loop_destroy(d.loop);
    hl_conf_fini(&d.conf);
    hl_telemetry_fini(&d.probe);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
