/* helios-controller: metadata of models, shards and jobs; decides, and tells Agents and L3 what to
 * do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/log.h"
#include "conf/options.h"
#include "conf/planes.h"
#include "controller/controller.h"
#include "http/metrics.h"
#include "os/file.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "os/process.h"
#include "rpc/rpc.h"

struct daemon {
    struct hl_conf conf;
    struct hl_logfile *log;
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_controller *controller;
    struct hl_metrics *metrics;
};

static hl_status controller_gauges(void *arg, struct hl_buf *out)
{
    struct daemon *d = arg;
    return hl_controller_gauges(d->controller, out);
}

static hl_status start_controller(struct daemon *d, int argc, char **argv)
{
    enum hl_log_level level;
    char store[4200];
    hl_process_raise_files();
    HL_TRY(hl_conf_load(HL_CONTROLLER, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(d->conf.log_level, &level));
    hl_log_init("controller", level);
    HL_TRY(hl_planes_apply(&d->conf));
    HL_TRY(hl_conf_publish(&d->conf));
    HL_TRY(hl_dir_make(d->conf.controller_state, 0700));
    snprintf(store, sizeof(store), "sqlite:%s/controller.db", d->conf.controller_state);
    HL_TRY(hl_auth_use_file(d->conf.auth_secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, d->conf.log_file, d->conf.log_max_size, (int)d->conf.log_keep,
                            &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    HL_TRY(hl_rpc_create(&d->rpc));
    struct hl_kube_opts kube = {
        .config = d->conf.kube_config,
        .master = d->conf.kube_master,
        .ns = d->conf.kube_namespace,
        .queue = d->conf.kube_queue,
        .device = d->conf.kube_device,
        .topology_policy = d->conf.kube_topology_policy,
        .state_dir = d->conf.controller_state,
        .slot_devices = (int)d->conf.kube_slot_devices,
        .keep_s = (int)(d->conf.kube_keep_ms / 1000),
    };
    HL_TRY(hl_controller_start(
        &(struct hl_controller_opts){
            .loop = d->loop,
            .rpc = d->rpc,
            .listen = d->conf.controller_listen,
            .store_url = store,
            .l3_address = d->conf.controller_l3,
            .heartbeat_ms = (int)d->conf.heartbeat_ms,
            .node_lost_ms = (int)d->conf.node_lost_ms,
            .lost_after_ms = (int64_t)d->conf.nodes_lost_after_ms,
            .gc_interval_ms = (int)d->conf.gc_interval_ms,
            .gc_grace_ms = (int)d->conf.gc_grace_ms,
            .versions_keep = (int)d->conf.versions_keep,
            .jobs_keep = (int)d->conf.jobs_keep,
            .jobs_keep_age_ms = (int64_t)d->conf.jobs_keep_age_ms,
            .nodes_keep = (int)d->conf.nodes_keep,
            .nodes_keep_age_ms = (int64_t)d->conf.nodes_keep_age_ms,
            .rpc_timeout_ms = (int)d->conf.rpc_timeout_ms,
            .copy_timeout_ms = (int)d->conf.copy_timeout_ms,
            .stop_grace_ms = (int)d->conf.job_stop_grace_ms,
            .stop_resend_ms = (int)d->conf.job_stop_resend_ms,
            .start_timeout_ms = (int)d->conf.job_start_timeout_ms,
            .kube = strcmp(d->conf.controller_executor, "kubernetes") == 0 ? &kube : NULL,
        },
        &d->controller));
    HL_TRY(hl_metrics_start(&(struct hl_metrics_opts){.listen = d->conf.metrics_listen,
                                                      .loop = d->loop,
                                                      .gauges = controller_gauges,
                                                      .arg = d},
                            &d->metrics));
    hl_info("serving address=%s l3=%s state=%s", hl_controller_address(d->controller),
            d->conf.controller_l3, d->conf.controller_state);
    return hl_conf_announce(&d->conf,
                            json_pack("{s:s s:s}", "metrics", hl_metrics_address(d->metrics),
                                      "address", hl_controller_address(d->controller)));
}

int main(int argc, char **argv)
{
    struct daemon d = {0};
    hl_status st = start_controller(&d, argc, argv);
    if (st == HL_OK)
        st = hl_loop_run(d.loop);
    if (st != HL_OK && st != HL_ECANCELED)
        fprintf(stderr, "helios-controller: %s\n", hl_error_text());
    hl_metrics_stop(d.metrics);
    hl_controller_stop(d.controller);
    hl_rpc_destroy(d.rpc);
    hl_logfile_stop(d.log);
    hl_loop_destroy(d.loop);
    hl_conf_fini(&d.conf);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
