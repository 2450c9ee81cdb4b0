/* helios-controller: keeps the metadata of models, shards and jobs, decides, and gives orders to
 * Agents and L3. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "controller/controller.h"
#include "os/file.h"
#include "program/daemon.h"

static hl_status start_controller(void *arg, struct program_daemon *d,
                                  struct hl_api_daemon_ready *ready)
{
    struct hl_controller **controller = arg;
    const struct program_conf *c = &d->conf;
    char store[4200];
    HL_TRY(hl_dir_make(c->controller.state_dir, 0700));
    snprintf(store, sizeof(store), "sqlite:%s/controller.db", c->controller.state_dir);
    struct hl_kube_opts kube = c->kube;
    kube.state_dir = c->controller.state_dir;
    struct hl_controller_opts opts = c->controller;
    opts.loop = d->loop;
    opts.rpc = d->rpc;
    opts.store_url = store;
    opts.rpc_timeout_ms = c->calls.timeout_ms;
    opts.placement = &c->placement;
    opts.kube = strcmp(c->controller.executor, "kubernetes") == 0 ? &kube : NULL;
    HL_TRY(hl_controller_start(&opts, controller));
    ready->address = hl_controller_address(*controller);
    hl_info("serving address=%s l3=%s state=%s", ready->address, c->controller.l3_address,
            c->controller.state_dir);
    return HL_OK;
}

static bool stop_controller(void *arg, struct program_daemon *d, bool told)
{
    struct hl_controller **controller = arg;
    (void)d;
    (void)told;
    hl_controller_stop(*controller);
    return true;
}

static hl_status controller_gauges(void *arg, struct hl_buf *out)
{
    struct hl_controller **controller = arg;
    return hl_controller_gauges(*controller, out);
}

int main(int argc, char **argv)
{
    struct hl_controller *controller = NULL;
    const struct program_service service = {.program = HL_CONTROLLER,
                                            .name = "helios-controller",
                                            .log_name = "controller",
                                            .start = start_controller,
                                            .gauges = controller_gauges,
                                            .stop = stop_controller};
    return program_daemon_run(&service, &controller, argc, argv);
}
