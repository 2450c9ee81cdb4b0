/* helios-l3d: the L3 pool. Its memory is a named file that outlives this process. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/log.h"
#include "conf/planes.h"
#include "http/metrics.h"
#include "l3d/l3d.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "os/map_guard.h"
#include "os/process.h"
#include "program/conf.h"
#include "rpc/rpc.h"

struct daemon {
    struct program_conf conf;
    struct hl_logfile *log;
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_l3d *l3d;
    struct hl_metrics *metrics;
    char pool[4096];
    char socket[4096];
    struct hl_pool_region_options regions[HL_POOL_REGIONS_MAX];
    size_t region_count;
};

static void default_paths(struct daemon *d)
{
    const struct hl_l3d_opts *o = &d->conf.l3d;
    if (o->pool_path[0] != '\0')
        snprintf(d->pool, sizeof(d->pool), "%s", o->pool_path);
    else
        snprintf(d->pool, sizeof(d->pool), "/dev/shm/helios-%u-%s.pool", (unsigned)getuid(),
                 o->name);
    if (o->socket_path[0] != '\0')
        snprintf(d->socket, sizeof(d->socket), "%s", o->socket_path);
    else
        snprintf(d->socket, sizeof(d->socket), "%.4000s.sock", d->pool);
}

/* What the options say, and what has been made of them. */
static struct hl_l3d_opts l3d_opts(const struct daemon *d)
{
    const struct program_conf *c = &d->conf;
    struct hl_l3d_opts o = c->l3d;
    o.loop = d->loop;
    o.rpc = d->rpc;
    o.net = &c->data;
    o.read_retry = c->read.retry;
    o.socket_path = d->socket;
    o.pool = c->pool;
    o.pool.path = d->pool;
    o.pool.capacity = c->l3d.size;
    o.pool.regions = d->regions;
    o.pool.region_count = d->region_count;
    o.limits = c->tier;
    o.archive = c->l4;
    o.archive.archive = c->archive;
    o.archive.low_pct = c->tier.low_pct;
    return o;
}

static hl_status l3d_gauges(void *arg, struct hl_buf *out)
{
    struct daemon *d = arg;
    return hl_l3d_gauges(d->l3d, out);
}

static hl_status l3d_health(void *arg, struct hl_buf *out)
{
    struct daemon *d = arg;
    return hl_l3d_health(d->l3d, out);
}

static hl_status start_l3d(struct daemon *d, int argc, char **argv)
{
    enum hl_log_level level;
    const struct program_conf *c = &d->conf;
    hl_process_raise_files();
    hl_map_guard_install();
    HL_TRY(program_conf_load(HL_L3D, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(c->daemon.log_level, &level));
    hl_log_init("l3d", level);
    HL_TRY(hl_planes_apply(&d->conf.conf, &c->planes));
    HL_TRY(hl_conf_publish(&d->conf.conf));
    default_paths(d);
    HL_TRY(hl_pool_regions_parse(c->l3d.numa, c->l3d.size, d->regions, &d->region_count));
    HL_TRY(hl_auth_use_file(c->auth.secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, c->daemon.log_file, c->daemon.log_max_size, c->daemon.log_keep,
                            &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    HL_TRY(hl_rpc_create(&d->rpc));
    const struct hl_l3d_opts opts = l3d_opts(d);
    HL_TRY(hl_l3d_start(&opts, &d->l3d));
    HL_TRY(hl_metrics_start(&(struct hl_metrics_opts){.listen = c->daemon.metrics_listen,
                                                      .loop = d->loop,
                                                      .gauges = l3d_gauges,
                                                      .health = l3d_health,
                                                      .arg = d},
                            &d->metrics));
    hl_info("serving address=%s data=%s socket=%s", hl_l3d_address(d->l3d),
            hl_l3d_data_address(d->l3d), d->socket);
    return hl_conf_announce(
        c->daemon.ready_file,
        json_pack("{s:s s:s s:s s:s s:s}", "metrics", hl_metrics_address(d->metrics), "address",
                  hl_l3d_address(d->l3d), "dataAddress", hl_l3d_data_address(d->l3d), "socket",
                  d->socket, "pool", d->pool));
}

int main(int argc, char **argv)
{
    struct daemon d = {0};
    hl_status st = start_l3d(&d, argc, argv);
    if (st == HL_OK)
        st = hl_loop_run(d.loop);
    if (st != HL_OK && st != HL_ECANCELED)
        fprintf(stderr, "helios-l3d: %s\n", hl_error_text());
    hl_metrics_stop(d.metrics);
    hl_l3d_stop(d.l3d);
    hl_rpc_destroy(d.rpc);
    hl_logfile_stop(d.log);
    hl_loop_destroy(d.loop);
    program_conf_fini(&d.conf);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
