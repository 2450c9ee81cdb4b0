/* helios-l3d: the L3 pool. Its memory is a named file that outlives this process. */
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "l3d/l3d.h"
#include "os/copy_measure.h"
#include "os/map_guard.h"
#include "program/daemon.h"

struct l3d_program {
    struct hl_l3d *l3d;
    char pool[4096];
    char socket[4096];
    struct hl_pool_region_options regions[HL_POOL_REGIONS_MAX];
    size_t region_count;
};

static void default_paths(struct l3d_program *p, const struct hl_l3d_opts *o)
{
    if (o->pool_path[0] != '\0')
        snprintf(p->pool, sizeof(p->pool), "%s", o->pool_path);
    else
        snprintf(p->pool, sizeof(p->pool), "/dev/shm/helios-%u-%s.pool", (unsigned)getuid(),
                 o->name);
    if (o->socket_path[0] != '\0')
        snprintf(p->socket, sizeof(p->socket), "%s", o->socket_path);
    else
        snprintf(p->socket, sizeof(p->socket), "%.4000s.sock", p->pool);
}

/* Combines the options with what was made from them. */
static struct hl_l3d_opts l3d_opts(const struct l3d_program *p, const struct program_daemon *d)
{
    const struct program_conf *c = &d->conf;
    struct hl_l3d_opts o = c->l3d;
    o.loop = d->loop;
    o.rpc = d->rpc;
    o.net = &c->data;
    o.read_retry = c->read.retry;
    o.socket_path = p->socket;
    o.pool = c->pool;
    o.pool.path = p->pool;
    o.pool.capacity = c->l3d.size;
    o.pool.regions = p->regions;
    o.pool.region_count = p->region_count;
    o.limits = c->tier;
    o.archive = c->l4;
    o.archive.archive = c->archive;
    o.archive.low_pct = c->tier.low_pct;
    return o;
}

static hl_status start_l3d(void *arg, struct program_daemon *d, struct hl_api_daemon_ready *ready)
{
    struct l3d_program *p = arg;
    const struct hl_l3d_opts *given = &d->conf.l3d;
    hl_map_guard_install();
    hl_copy_measure();
    default_paths(p, given);
    HL_TRY(hl_pool_regions_parse(given->numa, given->size, p->regions, &p->region_count));
    const struct hl_l3d_opts opts = l3d_opts(p, d);
    HL_TRY(hl_l3d_start(&opts, &p->l3d));
    ready->address = hl_l3d_address(p->l3d);
    ready->data_address = hl_l3d_data_address(p->l3d);
    ready->socket = p->socket;
    ready->pool = p->pool;
    hl_info("serving address=%s data=%s socket=%s", ready->address, ready->data_address,
            ready->socket);
    return HL_OK;
}

static bool stop_l3d(void *arg, struct program_daemon *d, bool told)
{
    struct l3d_program *p = arg;
    (void)d;
    (void)told;
    hl_l3d_stop(p->l3d);
    return true;
}

static hl_status l3d_gauges(void *arg, struct hl_buf *out)
{
    struct l3d_program *p = arg;
    return hl_l3d_gauges(p->l3d, out);
}

static hl_status l3d_health(void *arg, struct hl_buf *out)
{
    struct l3d_program *p = arg;
    return hl_l3d_health(p->l3d, out);
}

int main(int argc, char **argv)
{
    struct l3d_program p = {0};
    const struct program_service service = {.program = HL_L3D,
                                            .name = "helios-l3d",
                                            .log_name = "l3d",
                                            .start = start_l3d,
                                            .gauges = l3d_gauges,
                                            .health = l3d_health,
                                            .stop = stop_l3d};
    return program_daemon_run(&service, &p, argc, argv);
}
