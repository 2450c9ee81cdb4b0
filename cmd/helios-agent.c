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
#include "program/conf.h"
#include "rpc/rpc.h"

#define STOP_CONTAINERS_MS 60000

struct daemon {
    struct program_conf conf;
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

static hl_status find_slots(const struct hl_agent_opts *conf, struct offer *out)
{
    struct hl_topo machine = {0}, share = {0};
    int index, nodes, slots;
    HL_TRY(conf->topology[0] != '\0' ? hl_topology_load_xml(conf->topology, &machine)
                                     : hl_topology_load_machine(&machine));
    hl_status st = HL_OK;
    const struct hl_topo *offer = &machine;
    if (conf->share[0] != '\0') {
        st = hl_topo_share_parse(conf->share, &index, &nodes, &slots);
        if (st == HL_OK)
            st = hl_topo_share(&machine, nodes, index, slots, &share);
        offer = &share;
    }
    if (st == HL_OK) {
        if (conf->topology[0] == '\0') /* a file's nodes need not be this machine's */
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
static void find_python(const struct hl_agent_opts *conf, char *out, size_t size)
{
    static const char *const places[] = {"../lib/helios/python/helios/__init__.py",
                                         "../../python/helios/__init__.py"};
    if (conf->python_dir[0] != '\0') {
        snprintf(out, size, "%s", conf->python_dir);
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

/* What the options say, and what this machine is. */
static struct hl_agent_opts agent_opts(struct daemon *d, const struct offer *offer)
{
    const struct program_conf *c = &d->conf;
    struct hl_agent_opts o = c->agent;
    o.loop = d->loop;
    o.rpc = d->rpc;
    o.calls = &c->calls;
    o.auth = &c->auth;
    o.data = &c->data;
    o.read = &c->read;
    o.slots = &offer->slots;
    o.machine = &offer->machine;
    o.foreign_topology = c->agent.topology[0] != '\0';
    o.telemetry = read_telemetry;
    o.telemetry_arg = &d->probe;
    o.store.l2_nodes = offer->numa;
    o.store.pool = c->pool;
    o.store.limits = c->tier;
    o.store.device = c->device;
    o.store.plank = c->plank;
    o.store.migrate = c->migrate;
    return o;
}

static hl_status agent_gauges(void *arg, struct hl_buf *out)
{
    struct daemon *d = arg;
    return hl_agent_gauges(d->agent, out);
}

static hl_status serve_agent(struct daemon *d, const struct offer *offer)
{
    const struct program_conf *c = &d->conf;
    char python[PATH_MAX], library[PATH_MAX];
    find_python(&c->agent, python, sizeof(python));
    find_library(library, sizeof(library));
    HL_TRY(hl_auth_use_file(c->auth.secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, c->daemon.log_file, c->daemon.log_max_size, c->daemon.log_keep,
                            &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    HL_TRY(hl_rpc_create(&d->rpc));
    struct hl_agent_opts opts = agent_opts(d, offer);
    opts.python_dir = python;
    opts.library = library;
    return hl_agent_start(&opts, &d->agent);
}

static hl_status start_agent(struct daemon *d, int argc, char **argv)
{
    struct offer offer = {0};
    enum hl_log_level level;
    const struct program_conf *c = &d->conf;
    hl_process_raise_files();
    hl_map_guard_install();
    HL_TRY(program_conf_load(HL_AGENT, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(c->daemon.log_level, &level));
    hl_log_init("agent", level);
    HL_TRY(hl_planes_apply(&d->conf.conf, &c->planes));
    HL_TRY(hl_conf_publish(&d->conf.conf));
    HL_TRY(find_slots(&c->agent, &offer));
    hl_status st = serve_agent(d, &offer);
    size_t count = offer.slots.count;
    hl_arena_fini(&offer.arena);
    HL_TRY(st);
    HL_TRY(hl_metrics_start(
        &(struct hl_metrics_opts){
            .listen = c->daemon.metrics_listen, .loop = d->loop, .gauges = agent_gauges, .arg = d},
        &d->metrics));
    hl_info("serving address=%s node=%s slots=%zu state=%s", hl_agent_address(d->agent),
            hl_agent_name(d->agent), count, c->agent.state_dir);
    return hl_conf_announce(c->daemon.ready_file,
                            json_pack("{s:s s:s s:s s:s s:s s:s}", "metrics",
                                      hl_metrics_address(d->metrics), "address",
                                      hl_agent_address(d->agent), "name", hl_agent_name(d->agent),
                                      "dataAddress", hl_agent_data_address(d->agent),
                                      "migrateAddress", hl_agent_migrate_address(d->agent),
                                      "storeSocket", hl_agent_store_socket(d->agent)));
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
    if (st == HL_OK && d.conf.agent.stop_containers)
        hl_agent_stop_containers(d.agent, STOP_CONTAINERS_MS);
    if (!hl_agent_stop(d.agent))
        _exit(0);
    hl_rpc_destroy(d.rpc);
    hl_logfile_stop(d.log);
    hl_loop_destroy(d.loop);
    program_conf_fini(&d.conf);
    hl_telemetry_fini(&d.probe);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
