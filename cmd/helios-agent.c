/* helios-agent: one per node; starts containers for the Controller and reports their states to it.
 * `helios-agent shim DIR` is a container's shim, started by the agent itself. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/log.h"
#include "core/planner/topo.h"
#include "hw/process/process_executor.h"
#include "hw/slurm.h"
#include "hw/topology.h"
#include "os/copy_measure.h"
#include "os/map_guard.h"
#include "program/daemon.h"

#define NVIDIA_GPUS        "/proc/driver/nvidia/gpus"
#define STOP_CONTAINERS_MS 60000
/* Slurm kills what is left 30 s (KillWait) after it has asked processes to end. */
#define SLURM_STOP_MS  25000
#define SLURM_GRACE_MS 15000

struct agent_program {
    struct hl_agent *agent;
};

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

/* What a node offers, and which machine that is a share of. */
struct offer {
    struct hl_arena arena;
    struct hl_api_slot_list slots, machine;
    char numa[512]; /* NUMA nodes that contain the CPUs of the slots */
};

static hl_status find_slots(const struct hl_agent_opts *conf, struct offer *out)
{
    struct hl_topo machine = {0}, share = {0};
    int index, nodes, slots;
    HL_TRY(conf->topology[0] != '\0' ? hl_topology_load_xml(conf->topology, &machine)
                                     : hl_topology_load_machine(&machine));
    hl_status st = hl_slurm_inside() ? hl_slurm_keep(NVIDIA_GPUS, &machine) : HL_OK;
    const struct hl_topo *offer = &machine;
    if (st == HL_OK && conf->share[0] != '\0') {
        st = hl_topo_share_parse(conf->share, &index, &nodes, &slots);
        if (st == HL_OK)
            st = hl_topo_share(&machine, nodes, index, slots, &share);
        offer = &share;
    }
    if (st == HL_OK) {
        if (conf->topology[0] == '\0') /* a file's nodes may be those of another machine */
            write_nodes(&machine, offer, out->numa, sizeof(out->numa));
        st = hl_topo_to_api(offer, &out->arena, &out->slots);
    }
    if (st == HL_OK)
        st = hl_topo_to_api(&machine, &out->arena, &out->machine);
    hl_topo_fini(&share);
    hl_topo_fini(&machine);
    return st;
}

/* Finds the first of `places` (relative to this program) that exists, with links resolved; "" if
 * none does.
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

/* Where ranks import helios from: an installation, or a source tree. */
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
    static const char *const places[] = {
        "../lib/libhelios.so.0", "../lib/x86_64-linux-gnu/libhelios.so.0",
        "../lib/powerpc64le-linux-gnu/libhelios.so.0", "../lib/aarch64-linux-gnu/libhelios.so.0"};
    find_beside(places, HL_ARRAY_LEN(places), out, size);
}

/* Combines the options with what this machine is. */
static struct hl_agent_opts agent_opts(const struct program_daemon *d, const struct offer *offer)
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
    o.store.l2_nodes = offer->numa;
    o.store.pool = c->pool;
    o.store.limits = c->tier;
    o.store.device = c->device;
    o.store.plank = c->plank;
    o.store.migrate = c->migrate;
    return o;
}

static hl_status serve_agent(struct agent_program *p, const struct program_daemon *d,
                             const struct offer *offer)
{
    char python[PATH_MAX], library[PATH_MAX];
    find_python(&d->conf.agent, python, sizeof(python));
    find_library(library, sizeof(library));
    struct hl_agent_opts opts = agent_opts(d, offer);
    char name[128];
    hl_slurm_node_name(name, sizeof(name));
    if (hl_slurm_inside() && opts.name[0] == '\0') /* several may share a host name */
        opts.name = name;
    opts.python_dir = python;
    opts.library = library;
    return hl_agent_start(&opts, &p->agent);
}

static hl_status start_agent(void *arg, struct program_daemon *d, struct hl_api_daemon_ready *ready)
{
    struct agent_program *p = arg;
    struct offer offer = {0};
    hl_map_guard_install();
    hl_copy_measure();
    hl_status st = find_slots(&d->conf.agent, &offer);
    if (st == HL_OK)
        st = serve_agent(p, d, &offer);
    size_t count = offer.slots.count;
    hl_arena_fini(&offer.arena);
    HL_TRY(st);
    const struct hl_agent *a = p->agent;
    ready->address = hl_agent_address(a);
    ready->name = hl_agent_name(a);
    ready->data_address = hl_agent_data_address(a);
    ready->migrate_address = hl_agent_migrate_address(a);
    ready->store_socket = hl_agent_store_socket(a);
    ready->incarnation = hl_agent_incarnation(a);
    hl_info("serving address=%s node=%s slots=%zu state=%s", ready->address, ready->name, count,
            d->conf.agent.state_dir);
    return HL_OK;
}

static bool stop_agent(void *arg, struct program_daemon *d, bool told)
{
    struct agent_program *p = arg;
    if (told && hl_slurm_inside()) /* with the allocation, the CPUs go to others */
        hl_agent_stop_containers(p->agent, SLURM_GRACE_MS, SLURM_STOP_MS);
    else if (told && d->conf.agent.stop_containers)
        hl_agent_stop_containers(p->agent, -1, STOP_CONTAINERS_MS);
    return hl_agent_stop(p->agent);
}

static hl_status agent_gauges(void *arg, struct hl_buf *out)
{
    struct agent_program *p = arg;
    return hl_agent_gauges(p->agent, out);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    struct agent_program p = {0};
    const struct program_service service = {.program = HL_AGENT,
                                            .name = "helios-agent",
                                            .log_name = "agent",
                                            .start = start_agent,
                                            .gauges = agent_gauges,
                                            .stop = stop_agent};
    return program_daemon_run(&service, &p, argc, argv);
}
