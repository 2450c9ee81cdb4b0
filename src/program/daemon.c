#include "program/daemon.h"

#include <unistd.h>

#include "auth/secret.h"
#include "base/log.h"
#include "http/metrics.h"
#include "os/background.h"
#include "os/logfile.h"
#include "os/loop.h"
#include "rpc/rpc.h"

static hl_status load_options(const struct program_service *service, struct program_daemon *d,
                              int argc, char **argv)
{
    enum hl_log_level level;
    HL_TRY(program_conf_load(service->program, argc, argv, &d->conf, NULL));
    HL_TRY(hl_log_level_parse(d->conf.daemon.log_level, &level));
    hl_log_init(service->log_name, level);
    HL_TRY(hl_planes_apply(&d->conf.conf, &d->conf.planes));
    hl_background_nice(d->conf.copy_nice);
    return hl_conf_publish(&d->conf.conf);
}

static hl_status open_tools(struct program_daemon *d)
{
    const struct program_daemon_conf *c = &d->conf.daemon;
    HL_TRY(hl_auth_use_file(d->conf.auth.secret_file));
    HL_TRY(hl_loop_create(&d->loop));
    HL_TRY(hl_logfile_start(d->loop, c->log_file, c->log_max_size, c->log_keep, &d->log));
    HL_TRY(hl_loop_stop_on_signals(d->loop));
    return hl_rpc_create(&d->rpc);
}

static hl_status start_service(const struct program_service *service, struct program_daemon *d,
                               void *arg)
{
    struct hl_api_daemon_ready ready = {.pid = getpid()};
    const struct program_daemon_conf *c = &d->conf.daemon;
    HL_TRY(service->start(arg, d, &ready));
    HL_TRY(hl_metrics_start(&(struct hl_metrics_opts){.listen = c->metrics_listen,
                                                      .loop = d->loop,
                                                      .gauges = service->gauges,
                                                      .health = service->health,
                                                      .arg = arg},
                            &d->metrics));
    ready.metrics = hl_metrics_address(d->metrics);
    return hl_conf_announce(c->ready_file, &ready);
}

static hl_status start_daemon(const struct program_service *service, struct program_daemon *d,
                              void *arg, int argc, char **argv)
{
    program_begin();
    HL_TRY(load_options(service, d, argc, argv));
    HL_TRY(open_tools(d));
    return start_service(service, d, arg);
}

int program_daemon_run(const struct program_service *service, void *arg, int argc, char **argv)
{
    struct program_daemon d = {0};
    hl_status st = start_daemon(service, &d, arg, argc, argv);
    if (st == HL_OK)
        st = hl_loop_run(d.loop);
    int status = program_exit(service->name, st);
    hl_metrics_stop(d.metrics);
    if (!service->stop(arg, &d, st == HL_OK))
        _exit(status);
    hl_rpc_destroy(d.rpc);
    hl_logfile_stop(d.log);
    hl_loop_destroy(d.loop);
    program_conf_fini(&d.conf);
    return status;
}
