/* Starts and stops the Controller: creates its wings, connects them, and serves RPC. */
#include "controller/controller.h"

#include <stdlib.h>

#include "base/clock.h"
#include "controller/commits.h"
#include "controller/copies/copies.h"
#include "controller/jobs/jobs.h"
#include "controller/kube/gangs.h"
#include "controller/models/models.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "controller/service/service_private.h"
#include "os/loop.h"
#include "store/store.h"
#include "store/writer.h"

#define TICK_MS 500

static const struct hl_controller_handlers handlers = {
    .register_node = method_register_node,
    .heartbeat = method_heartbeat,
    .request_shards = method_request_shards,
    .list_shards = method_list_shards,
    .report_access = method_report_access,
    .list_nodes = method_list_nodes,
    .test_node = method_test_node,
    .cluster_info = method_cluster_info,
    .get_shard = method_get_shard,
    .gone_shards = method_gone_shards,
    .copy_shard = method_copy_shard,
    .drop_copy = method_drop_copy,
    .report_bad_copy = method_report_bad_copy,
    .metrics = method_metrics,
    .options = method_options,
    .import_model = method_import_model,
    .import_progress = method_import_progress,
    .cancel_import = method_cancel_import,
    .list_models = method_list_models,
    .get_model = method_get_model,
    .remove_model = method_remove_model,
    .begin_version = method_begin_version,
    .commit_part = method_commit_part,
    .abandon_version = method_abandon_version,
    .recover = method_recover,
    .plan_job = method_plan_job,
    .submit_job = method_submit_job,
    .list_jobs = method_list_jobs,
    .explain_job = method_explain_job,
    .list_queue = method_list_queue,
    .get_job = method_get_job,
    .cancel_job = method_cancel_job,
    .read_log = method_read_log,
    .first_failure = method_first_failure,
    .rank_table = method_rank_table,
    .join_gang = method_join_gang,
    .set_option = method_set_option,
    .shard_placement = method_shard_placement,
    .move_shard = method_move_shard,
    .list_moves = method_list_moves,
    .cancel_move = method_cancel_move,
    .pin = method_pin,
    .drain_node = method_drain_node,
    .reserve_nodes = method_reserve_nodes,
    .record_accesses = method_record_accesses,
};

static void on_node_registered(struct hl_controller *c, struct node *n)
{
    copies_relist(c, n);
    placement_node_registered(c, n);
    if (n->readdressed)
        rank_tables_renew(c, n->name);
    else
        rank_tables_resend(c, n->name);
    n->readdressed = false;
}

static void on_node_reported(struct hl_controller *c, struct node *n,
                             const struct hl_api_container_status_list *containers)
{
    jobs_containers(c, n, containers);
    purge_stale_containers(c, n, containers);
}

static void on_node_silent(struct hl_controller *c, struct node *n)
{
    placement_node_silent(c, n);
    jobs_node_silent(c, n);
}

static void on_node_forgotten(struct hl_controller *c, struct node *n)
{
    copies_forget_node(c, n);
    placement_node_forgotten(c, n);
}

static const struct node_events node_events = {
    .registered = on_node_registered,
    .reported = on_node_reported,
    .silent = on_node_silent,
    .back = jobs_node_back,
    .needed = jobs_need_node,
    .holds = jobs_hold_containers,
    .wants = jobs_want_container,
    .asks = placement_asks,
    .forgotten = on_node_forgotten,
};

static const struct version_users version_users = {
    .find_writer = jobs_find_writer,
    .find_reader = jobs_find_reader,
    .find_node = jobs_find_node,
    .is_replaced = jobs_is_replaced,
};

/* A stored job that does not belong to Kubernetes belongs to the Agents. */
static const struct job_executor *const executors[] = {&kube_executor, &agents_executor, NULL};

static hl_status wings_create(struct hl_controller *c)
{
    HL_TRY(nodes_create(c, &node_events));
    HL_TRY(copies_create(c, imports_running));
    HL_TRY(placement_create(c, jobs_gang_starts));
    HL_TRY(models_create(c, &version_users));
    HL_TRY(jobs_create(c, executors, c->opts.kube != NULL ? &kube_executor : &agents_executor));
    HL_TRY(queue_create(c));
    placement_gangs(c, &jobs_gang_source);
    jobs_watch(c, &placement_gang_watch);
    return HL_OK;
}

/* Ended jobs and lost nodes are not kept for ever. */
static void retention_tick(struct hl_controller *c)
{
    nodes_reap(c);
    if (hl_now_ns() - c->service->retention_ns < (uint64_t)c->opts.gc_interval_ms * HL_NS_PER_MS)
        return;
    c->service->retention_ns = hl_now_ns();
    drop_stale_versions(c);
    jobs_retain(c);
    nodes_retain(c);
}

static void on_tick(void *arg)
{
    struct hl_controller *c = arg;
    controller_check_clocks(c);
    pool_tick(c);
    nodes_tick(c);
    copies_tick(c);
    placement_tick(c);
    jobs_tick(c);
    retention_tick(c);
}

/* Called when the last hold on the Controller is gone. */
static void controller_destroy(struct hl_controller *c)
{
    jobs_fini(c);
    placement_fini(c);
    copies_fini(c);
    nodes_fini(c);
    models_fini(c);
    json_decref(c->damaged);
    hl_catalog_fini(&c->catalog);
    free(c->service);
    free(c);
}

hl_status hl_controller_start(const struct hl_controller_opts *opts, struct hl_controller **out)
{
    struct hl_controller *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Controller");
    c->opts = *opts;
    c->refs = 1;
    c->destroy = controller_destroy;
    c->clocks_shifted = jobs_shift;
    hl_listening_init(&c->listening, 2 * TICK_MS * HL_NS_PER_MS, hl_now_ns(), hl_wall_ms());
    c->service = calloc(1, sizeof(*c->service));
    hl_status st = c->service != NULL ? wings_create(c)
                                      : hl_fail(HL_ENOMEM, "out of memory allocating the service");
    if (st == HL_OK)
        st = hl_rpc_open(opts->rpc, opts->l3_address, "L3", &c->l3);
    if (st == HL_OK)
        st = state_load(c);
    if (st == HL_OK)
        st = hl_store_writer_start(c->store, opts->loop, &c->writer);
    if (st == HL_OK)
        st = placement_start(c);
    if (st == HL_OK)
        st = hl_serve_controller(
            opts->rpc,
            &(struct hl_rpc_serve_opts){.address = opts->listen, .loop = opts->loop, .arg = c},
            &handlers, &c->server);
    if (st == HL_OK)
        st = executors_start(c);
    c->opts.kube = NULL; /* only borrowed for this call */
    if (st == HL_OK)
        st = hl_timer_create(opts->loop, 0, TICK_MS, on_tick, c, &c->service->tick);
    if (st != HL_OK) {
        hl_controller_stop(c);
        return st;
    }
    jobs_resume(c);
    *out = c;
    return HL_OK;
}

void hl_controller_stop(struct hl_controller *c)
{
    if (c == NULL)
        return;
    c->closing = true;
    if (c->service != NULL)
        hl_timer_destroy(c->service->tick);
    copies_end_walks(c);
    queue_destroy(c);
    placement_stop(c);
    models_stop(c);
    if (c->server != NULL)
        hl_rpc_server_close(c->server);
    executors_stop(c);
    nodes_disconnect(c);
    hl_rpc_peer_close(c->l3);
    changes_stop(c);
    jobs_stop(c);
    hl_store_writer_stop(c->writer); /* what was put before is still committed */
    hl_store_close(c->store);
    controller_release(c);
}
