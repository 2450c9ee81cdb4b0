#include "controller/controller.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_private.h"
#include "controller/copies/copies.h"
#include "os/loop.h"

#define TICK_MS       500
#define PAUSE_TOLD_NS (2 * HL_NS_PER_S)

static const struct method {
    const char *name;
    method_fn fn;
} methods[] = {
    {"importModel", method_import_model},
    {"importProgress", method_import_progress},
    {"cancelImport", method_cancel_import},
    {"listModels", method_list_models},
    {"getModel", method_get_model},
    {"removeModel", method_remove_model},
    {"beginVersion", method_begin_version},
    {"commitPart", method_commit_part},
    {"abandonVersion", method_abandon_version},
    {"planJob", method_plan_job},
    {"submitJob", method_submit_job},
    {"listJobs", method_list_jobs},
    {"getJob", method_get_job},
    {"cancelJob", method_cancel_job},
    {"readLog", method_read_log},
    {"rankTable", method_rank_table},
    {"recover", method_recover},
};

static const struct hl_controller_handlers handlers = {
    .register_node = method_register_node,
    .heartbeat = method_heartbeat,
    .request_shards = method_request_shards,
    .list_shards = method_list_shards,
    .report_access = method_report_access,
    .list_nodes = method_list_nodes,
    .cluster_info = method_cluster_info,
    .get_shard = method_get_shard,
    .copy_shard = method_copy_shard,
    .drop_copy = method_drop_copy,
    .report_bad_copy = method_report_bad_copy,
    .metrics = method_metrics,
    .options = method_options,
};

void reject(struct hl_rpc_call *call, hl_status st)
{
    hl_rpc_reject(call, st, NULL);
}

void controller_check_clocks(struct hl_controller *c)
{
    struct hl_listening_gap gap = hl_listening_check(&c->listening, hl_now_ns(), hl_wall_ms());
    if (gap.paused_ns >= PAUSE_TOLD_NS)
        hl_warn("the Controller stood still, which is not counted as silence of others ms=%" PRIu64,
                gap.paused_ns / HL_NS_PER_MS);
    if (gap.stepped_ms != 0)
        hl_warn(
            "the wall clock was set; ages and deadlines do not change by it stepped_ms=%" PRId64,
            gap.stepped_ms);
    if (gap.paused_ns > 0 || gap.stepped_ms != 0)
        jobs_shift_deadlines(c, &gap);
    shift_open_versions(c, gap.stepped_ms);
}

struct hl_controller *controller_enter(void *arg)
{
    controller_check_clocks(arg);
    return arg;
}

int64_t controller_steady_ms(const struct hl_controller *c)
{
    return hl_listening_steady_ms(&c->listening, hl_now_ns());
}

static void dispatch(void *arg, struct hl_rpc_call *call, const char *method, const json_t *params)
{
    controller_check_clocks(arg);
    for (size_t i = 0; i < HL_ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].name, method) == 0) {
            methods[i].fn(arg, call, params);
            return;
        }
    }
    hl_rpc_reject(call, HL_EUNSUPPORTED,
                  "this Controller does not know the method; is it older than the caller?");
}

static void on_tick(void *arg)
{
    struct hl_controller *c = arg;
    controller_check_clocks(c);
    pool_tick(c);
    nodes_tick(c);
    copies_tick(c);
    jobs_tick(c);
    gangs_tick(c);
    retention_tick(c);
}

hl_status hl_controller_start(const struct hl_controller_opts *opts, struct hl_controller **out)
{
    struct hl_controller *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "controller");
    c->opts = *opts;
    c->refs = 1;
    hl_listening_init(&c->listening, 2 * TICK_MS * HL_NS_PER_MS, hl_now_ns(), hl_wall_ms());
    hl_status st = hl_rpc_open(opts->rpc, opts->l3_address, "L3", &c->l3);
    if (st == HL_OK)
        st = state_load(c);
    if (st == HL_OK)
        st = hl_store_writer_start(c->store, opts->loop, &c->writer);
    if (st == HL_OK)
        st = hl_serve_controller(
            opts->rpc,
            &(struct hl_rpc_serve_opts){
                .address = opts->listen, .loop = opts->loop, .handler = dispatch, .arg = c},
            &handlers, &c->server);
    if (st == HL_OK && opts->kube != NULL)
        st = gangs_start(c, opts->kube, &c->gangs);
    c->opts.kube = NULL; /* only borrowed for this */
    if (st == HL_OK)
        st = hl_timer_create(opts->loop, 0, TICK_MS, on_tick, c, &c->tick);
    if (st != HL_OK) {
        hl_controller_stop(c);
        return st;
    }
    jobs_resume(c);
    *out = c;
    return HL_OK;
}

static void controller_drop(struct hl_controller *c)
{
    if (--c->refs > 0)
        return;
    jobs_fini(c);
    copies_fini(c);
    nodes_fini(c);
    imports_fini(c);
    pool_fini(c);
    json_decref(c->damaged);
    manifests_fini(c);
    recover_fini(c);
    hl_catalog_fini(&c->catalog);
    free(c);
}

void controller_call(struct hl_controller *c, struct hl_rpc_peer *peer, const char *method,
                     const json_t *params, hl_rpc_done done, void *arg)
{
    controller_call_for(c, peer, method, params, c->opts.rpc_timeout_ms, done, arg);
}

void controller_call_for(struct hl_controller *c, struct hl_rpc_peer *peer, const char *method,
                         const json_t *params, int timeout_ms, hl_rpc_done done, void *arg)
{
    c->refs++;
    hl_rpc_call_async(peer, method, params, timeout_ms, c->opts.loop, done, arg);
}

int controller_landed(struct hl_controller *c)
{
    int closing = c->closing;
    if (!closing)
        controller_check_clocks(c);
    controller_drop(c);
    return closing;
}

void hl_controller_stop(struct hl_controller *c)
{
    if (c == NULL)
        return;
    c->closing = 1;
    hl_timer_destroy(c->tick);
    hl_timer_destroy(c->import_tick);
    if (c->server != NULL)
        hl_rpc_server_close(c->server);
    gangs_stop(c->gangs);
    c->gangs = NULL;
    nodes_disconnect(c);
    hl_rpc_peer_close(c->l3);
    changes_stop(c);
    jobs_stop(c);
    hl_store_writer_stop(c->writer); /* what was put is still committed */
    hl_store_close(c->store);
    controller_drop(c);
}

const char *hl_controller_address(const struct hl_controller *c)
{
    return hl_rpc_server_address(c->server);
}
