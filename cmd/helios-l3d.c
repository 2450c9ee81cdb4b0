/* helios-l3d: the L3 pool. Its memory is a named file that outlives this process. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/log.h"
#include "conf/options.h"
#include "conf/planes.h"
#include "http/metrics.h"
#include "l3d/l3d.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "os/map_guard.h"
#include "os/process.h"
#include "rpc/rpc.h"

struct daemon {
    struct hl_conf conf;
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
    const struct hl_conf *c = &d->conf;
    if (c->l3_pool[0] != '\0')
        snprintf(d->pool, sizeof(d->pool), "%s", c->l3_pool);
    else
        snprintf(d->pool, sizeof(d->pool), "/dev/shm/helios-%u-%s.pool", (unsigned)getuid(),
                 c->l3_name);
    if (c->l3_socket[0] != '\0')
        snprintf(d->socket, sizeof(d->socket), "%s", c->l3_socket);
    else
        snprintf(d->socket, sizeof(d->socket), "%.4000s.sock", d->pool);
}

static struct l4_opts archive_opts(const struct hl_conf *c, enum hl_api_archive_mode mode)
{
    return (struct l4_opts){.archive = {.url = c->archive_url,
                                        .quota_bytes = c->archive_quota,
                                        .s3_endpoint = c->archive_s3_endpoint,
                                        .s3_region = c->archive_s3_region,
                                        .s3_credentials = c->archive_s3_credentials,
                                        .s3_part = c->archive_s3_part,
                                        .timeout_ms = (unsigned)c->archive_s3_timeout_ms},
                            .mode = mode,
                            .threads = (unsigned)c->archive_threads,
                            .load_timeout_ms = (unsigned)c->archive_load_timeout_ms,
                            .retry_ms = (unsigned)c->archive_retry_ms,
                            .trash_keep_ms = (uint64_t)c->archive_trash_keep_ms,
                            .hold_ms = (unsigned)c->archive_hold_ms,
                            .low_pct = c->tier_low};
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
    enum hl_api_archive_mode mode;
    const struct hl_conf *c = &d->conf;
    hl_process_raise_files();
    hl_map_guard_install();
    HL_TRY(hl_conf_load(HL_L3D, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(c->log_level, &level));
    HL_TRY(hl_api_archive_mode_parse(c->archive_mode, &mode));
    hl_log_init("l3d", level);
    HL_TRY(hl_planes_apply(&d->conf));
    HL_TRY(hl_conf_publish(&d->conf));
    default_paths(d);
    HL_TRY(hl_pool_regions_parse(c->l3_numa, c->l3_size, d->regions, &d->region_count));
    HL_TRY(hl_auth_use_file(c->auth_secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, c->log_file, c->log_max_size, (int)c->log_keep, &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    HL_TRY(hl_rpc_create(&d->rpc));
    HL_TRY(hl_l3d_start(
        &(struct hl_l3d_opts){
            .loop = d->loop,
            .rpc = d->rpc,
            .listen = c->l3_listen,
            .data_listen = c->l3_data_listen,
            .data_spin_us = c->data_spin_us > 0 ? (int)c->data_spin_us : -1,
            .data_put_queue = (int)c->data_put_queue,
            .data_put_timeout_ms = (int)c->data_put_timeout_ms,
            .data_connect_ms = (int)c->data_connect_timeout_ms,
            .read_retry = {.count = (int)c->read_retries, .pause_ms = (int)c->read_retry_pause_ms},
            .socket_path = d->socket,
            .import_threads = (int)c->l3_import_threads,
            .remove_pool = (int)c->l3_remove_pool,
            .pool = {.path = d->pool,
                     .capacity = c->l3_size,
                     .quarantine_ms = (uint32_t)c->l3_quarantine_ms,
                     .lease_ms = (uint32_t)c->l3_lease_ms,
                     .beat_ms = (uint32_t)c->l3_beat_ms,
                     .prefault = (int)c->l3_prefault,
                     .regions = d->regions,
                     .region_count = d->region_count},
            .limits = {.high_pct = (unsigned)c->tier_high, .low_pct = (unsigned)c->tier_low},
            .archive = archive_opts(c, mode)},
        &d->l3d));
    HL_TRY(hl_metrics_start(&(struct hl_metrics_opts){.listen = d->conf.metrics_listen,
                                                      .loop = d->loop,
                                                      .gauges = l3d_gauges,
                                                      .health = l3d_health,
                                                      .arg = d},
                            &d->metrics));
    hl_info("serving address=%s data=%s socket=%s", hl_l3d_address(d->l3d),
            hl_l3d_data_address(d->l3d), d->socket);
    return hl_conf_announce(
        &d->conf, json_pack("{s:s s:s s:s s:s s:s}", "metrics", hl_metrics_address(d->metrics),
                            "address", hl_l3d_address(d->l3d), "dataAddress",
                            hl_l3d_data_address(d->l3d), "socket", d->socket, "pool", d->pool));
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
    hl_conf_fini(&d.conf);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
