/* helios-controller: metadata of models, shards and jobs; decides, and tells Agents and L3 what to
 * do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/log.h"
#include "conf/planes.h"
#include "controller/controller.h"
#include "http/metrics.h"
#include "os/file.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "os/process.h"
#include "program/conf.h"
#include "rpc/rpc.h"

struct daemon {
    struct program_conf conf;
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
    const struct program_conf *c = &d->conf;
    hl_process_raise_files();
    HL_TRY(program_conf_load(HL_CONTROLLER, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(c->daemon.log_level, &level));
    hl_log_init("controller", level);
    HL_TRY(hl_planes_apply(&d->conf.conf, &c->planes));
    HL_TRY(hl_conf_publish(&d->conf.conf));
    HL_TRY(hl_dir_make(c->controller.state_dir, 0700));
    snprintf(store, sizeof(store), "sqlite:%s/controller.db", c->controller.state_dir);
    HL_TRY(hl_auth_use_file(c->auth.secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, c->daemon.log_file, c->daemon.log_max_size, c->daemon.log_keep,
                            &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    HL_TRY(hl_rpc_create(&d->rpc));
    struct hl_kube_opts kube = c->kube;
    kube.state_dir = c->controller.state_dir;
    struct hl_controller_opts opts = c->controller;
    opts.loop = d->loop;
    opts.rpc = d->rpc;
    opts.store_url = store;
    opts.rpc_timeout_ms = c->calls.timeout_ms;
    opts.kube = strcmp(c->controller.executor, "kubernetes") == 0 ? &kube : NULL;
    HL_TRY(hl_controller_start(&opts, &d->controller));
    HL_TRY(hl_metrics_start(&(struct hl_metrics_opts){.listen = c->daemon.metrics_listen,
                                                      .loop = d->loop,
                                                      .gauges = controller_gauges,
                                                      .arg = d},
                            &d->metrics));
    hl_info("serving address=%s l3=%s state=%s", hl_controller_address(d->controller),
            c->controller.l3_address, c->controller.state_dir);
    return hl_conf_announce(c->daemon.ready_file,
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
    program_conf_fini(&d.conf);
    return st == HL_OK || st == HL_ECANCELED ? 0 : st == HL_EINVAL ? 2 : 1;
}
