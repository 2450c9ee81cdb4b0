/* Interface Agent: a worker carries out each call, and the loop answers it. Parameters and results
 * live as long as the call; between submit and answer only the worker touches them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "conf/conf.h"
#include "core/copies/tier_metrics.h"
#include "hw/load/oom_log.h"

#define METRICS_MAX ((size_t)4 << 20)

struct request {
    uv_work_t work;
    struct hl_agent *agent;
    struct hl_rpc_call *call;
    const void *params;
    void *results;
    uint64_t lapses_ms; /* link_lapses_ms when the call came */
    hl_status (*run)(struct request *r);
    void (*reply)(struct hl_rpc_call *call, const void *results);
    hl_status st;
    char *text;
};

/* ---- from the loop to a worker and back ---- */

static void request_work(uv_work_t *w)
{
    struct request *r = w->data;
    r->st = r->run(r);
    if (r->st != HL_OK)
        r->text = strdup(hl_error_text());
}

static void request_answer(uv_work_t *w, int status)
{
    struct request *r = w->data;
    (void)status;
    if (r->st == HL_OK)
        r->reply(r->call, r->results);
    else
        hl_rpc_reject(r->call, r->st, r->text != NULL ? r->text : hl_status_text(r->st));
    r->agent->pending--;
    free(r->text);
    free(r);
}

/* `given` has the method, its parameters and the room for its results. */
static void request_submit(struct hl_agent *a, struct request given)
{
    HL_ON_LOOP(a->loop);
    struct request *r = malloc(sizeof(*r));
    if (a->closing || r == NULL || given.results == NULL) {
        hl_rpc_reject(given.call, a->closing ? HL_EUNAVAIL : HL_ENOMEM,
                      a->closing ? "the Agent is shutting down" : "out of memory taking the call");
        free(r);
        return;
    }
    *r = given;
    r->agent = a;
    r->lapses_ms = link_lapses_ms(a);
    r->work.data = r;
    a->pending++;
    uv_queue_work(hl_loop_uv(a->loop), &r->work, request_work, request_answer);
}

/* Defines handle_METHOD: a worker thread evaluates `work`, which can use a (the Agent), p
 * (parameters), out (results) and arena (of the call). */
#define IN_WORKER(method, work)                                                                    \
    static hl_status method##_run(struct request *r)                                               \
    {                                                                                              \
        struct hl_agent *a = r->agent;                                                             \
        struct hl_arena *arena = hl_rpc_call_arena(r->call);                                       \
        const struct hl_api_agent_##method##_params *p = r->params;                                \
        struct hl_api_agent_##method##_results *out = r->results;                                  \
        (void)a, (void)arena, (void)p, (void)out;                                                  \
        return work;                                                                               \
    }                                                                                              \
    static void method##_reply(struct hl_rpc_call *call, const void *results)                      \
    {                                                                                              \
        hl_reply_agent_##method(call, results);                                                    \
    }                                                                                              \
    static void handle_##method(void *arg, struct hl_rpc_call *call,                               \
                                const struct hl_api_agent_##method##_params *params)               \
    {                                                                                              \
        const size_t size = sizeof(struct hl_api_agent_##method##_results);                        \
        request_submit(arg,                                                                        \
                       (struct request){.call = call,                                              \
                                        .params = params,                                          \
                                        .results = hl_arena_alloc(hl_rpc_call_arena(call), size),  \
                                        .run = method##_run,                                       \
                                        .reply = method##_reply});                                 \
    }

/* Notes the Controller's epoch, so that a Controller that has asked what is here knows that no drop
 * of an older one follows. */
static hl_status asked_by(struct hl_agent *a, uint64_t epoch)
{
    return obeyed_hear(&a->obeyed, "", epoch);
}

/* Queries of an older Controller are refused. */
#define ASKED_IN_WORKER(method, work)                                                              \
    IN_WORKER(method, asked_by(a, p->epoch) != HL_OK ? HL_EPERM : (work))

/* ---- containers ---- */

static void tell_on_loop(void *arg)
{
    link_tell(arg);
}

/* An order that waited while this Agent was suspended may belong to a gang that continues
 * elsewhere. */
static hl_status check_heard(uint64_t lapses_ms)
{
    if (hl_now_ns() / HL_NS_PER_MS <= lapses_ms)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL,
                   "this Agent was silent for so long that the Controller may have given up what "
                   "runs here: it starts nothing until it has heard from the Controller again");
}

static hl_status start_container(struct hl_agent *a, const struct request *r,
                                 const struct hl_api_container_spec *given, struct hl_arena *arena,
                                 struct hl_api_container_status *out)
{
    struct hl_container_spec spec;
    struct hl_container_status status;
    HL_TRY(check_heard(r->lapses_ms));
    HL_TRY(hl_container_spec_from_api(given, &spec));
    hl_status st = env_complete(a, &spec);
    if (st == HL_OK && spec.replace.max > 0 && strcmp(a->executor->ops->name, "process") != 0)
        st = hl_fail(HL_EUNSUPPORTED,
                     "node %s runs containers with %s, which can't replace one rank; remove "
                     "recovery from the job file or use nodes whose executor is process",
                     a->name, a->executor->ops->name);
    if (st == HL_OK)
        st = steps_prepare(a, &spec);
    if (st == HL_OK)
        st = orders_start(&a->orders, &spec, &status);
    if (st != HL_OK) {
        char why[HL_ERROR_TEXT_MAX];
        snprintf(why, sizeof(why), "%s", hl_error_text());
        steps_forget_refused(a, spec.id);
        st = hl_fail(st, "%s", why);
    }
    hl_container_spec_fini(&spec);
    HL_TRY(st);
    hl_info("container started id=%s state=%s", status.id, hl_run_state_text(status.state));
    *out = hl_container_status_to_api(&status, arena);
    hl_container_status_fini(&status);
    hl_loop_post(a->loop, tell_on_loop, a);
    return HL_OK;
}

static hl_status stop_container(struct hl_agent *a,
                                const struct hl_api_agent_stop_container_params *p)
{
    hl_info("container stops id=%s", p->id);
    return orders_stop(&a->orders, p->epoch, p->id, p->grace_ms);
}

static hl_status list_containers(struct hl_agent *a, struct hl_arena *arena,
                                 struct hl_api_container_status_list *out)
{
    HL_TRY(hl_executor_list(a->executor, arena, out));
    steps_tell(a, arena, out);
    return HL_OK;
}

static hl_status forget_container(struct hl_agent *a,
                                  const struct hl_api_agent_forget_container_params *p)
{
    HL_TRY(orders_forget(&a->orders, p->epoch, p->id));
    steps_forget(a, p->id);
    return HL_OK;
}

static hl_status read_log(struct hl_agent *a, const struct hl_api_agent_read_log_params *p,
                          struct hl_arena *arena, struct hl_api_agent_read_log_results *out)
{
    struct hl_log_slice s;
    HL_TRY(hl_executor_read_log(a->executor, p->id, p->rank, p->offset, p->max_bytes, &s));
    *out = (struct hl_api_agent_read_log_results){
        .data = {.bytes = hl_arena_text(arena, s.data.len > 0 ? s.data.data : "", s.data.len),
                 .size = s.data.len},
        .offset = s.offset,
        .size = s.size,
        .finished = s.finished};
    hl_buf_fini(&s.data);
    return HL_OK;
}

static hl_status put_rank_table(struct hl_agent *a,
                                const struct hl_api_agent_put_rank_table_params *p)
{
    if (p->meeting[0] != '\0')
        HL_TRY(hl_executor_put_meeting(a->executor, p->id, p->meeting));
    return p->document[0] != '\0' ? hl_executor_put_rank_table(a->executor, p->id, p->document)
                                  : HL_OK;
}

IN_WORKER(start_container, start_container(a, r, &p->spec, arena, &out->status))
IN_WORKER(stop_container, stop_container(a, p))
IN_WORKER(list_containers, list_containers(a, arena, &out->containers))
IN_WORKER(read_log, read_log(a, p, arena, out))
IN_WORKER(forget_container, forget_container(a, p))
IN_WORKER(list_strays, orders_list_strays(&a->orders, p, arena, &out->ids))
IN_WORKER(end_strays, orders_end_strays(&a->orders, p, &out->ended))
ASKED_IN_WORKER(end_rank, rank_end(a, p, arena, &out->ended))
ASKED_IN_WORKER(put_rank_table, put_rank_table(a, p))

/* ---- the node ---- */

static hl_status info_fill(struct hl_agent *a, struct hl_arena *arena,
                           struct hl_api_agent_info_results *out)
{
    struct hl_api_container_status_list containers;
    HL_TRY(hl_executor_list(a->executor, arena, &containers));
    agent_telemetry(a, &containers, arena, &out->telemetry);
    HL_TRY(agent_node(a, arena, &out->node));
    return health_tell(a, arena, &out->node.health);
}

hl_status hl_agent_gauges(struct hl_agent *a, struct hl_buf *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list containers;
    struct hl_api_tier_info_list tiers;
    HL_TRY(hl_executor_list(a->executor, &arena, &containers));
    HL_TRY(agent_tiers(a, &arena, &tiers));
    hl_metric_family(out, "helios_containers", "gauge", "Containers that this Agent keeps.");
    HL_TRY(hl_buf_printf(out, "helios_containers %zu\n", containers.count));
    struct hl_api_telemetry telemetry;
    agent_telemetry(a, &containers, &arena, &telemetry);
    if (telemetry.time_ms != 0)
        HL_TRY(hl_telemetry_gauges(&telemetry, out));
    store_keep_metrics(a->store, out);
    return hl_tier_gauges(&tiers, out);
}

static hl_status metrics_text(struct hl_agent *a, struct hl_arena *arena, const char **out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(METRICS_MAX);
    HL_TRY(hl_plane_metrics(&text));
    HL_TRY(hl_agent_gauges(a, &text));
    *out = hl_arena_strdup(arena, text.data);
    return HL_OK;
}

static hl_status options_list(struct hl_arena *arena, struct hl_api_option_value_list *out)
{
    *out = hl_conf_in_force(arena);
    return HL_OK;
}

IN_WORKER(find_port, ports_find(&a->ports, p->ports, &out->port))
IN_WORKER(info, info_fill(a, arena, out))
IN_WORKER(test_health, health_test(a, true, arena, &out->health))

/* A kernel log that we can't read yields no evidence. */
static hl_status kill_evidence(struct hl_agent *a,
                               const struct hl_api_agent_kill_evidence_params *p,
                               struct hl_arena *arena, const char **out)
{
    char text[1024] = "", group[256] = "";
    struct timespec boot;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    int64_t boot_ms = (int64_t)boot.tv_sec * 1000 + boot.tv_nsec / 1000000;
    int64_t since_ms = boot_ms - (hl_wall_ms() - p->since_ms);
    if (p->container[0] != '\0' &&
        hl_executor_memory_group(a->executor, p->container, p->rank, group, sizeof(group)) != HL_OK)
        hl_debug("%s", hl_error_text());
    const struct hl_oom_query query = {
        .pid = p->pid, .group = group, .since_us = since_ms > 0 ? (uint64_t)since_ms * 1000 : 0};
    if (hl_oom_log_find(HL_OOM_LOG, &query, text, sizeof(text)) != HL_OK)
        hl_debug("%s", hl_error_text());
    *out = hl_arena_strdup(arena, text);
    return HL_OK;
}

IN_WORKER(kill_evidence, kill_evidence(a, p, arena, &out->text))
IN_WORKER(prepare_image, hl_image_pulls_prepare(a->pulls, p->image, arena, out))
IN_WORKER(metrics, metrics_text(a, arena, &out->text))
IN_WORKER(options, options_list(arena, &out->options))

/* ---- the store ---- */

static hl_status store_info(struct hl_agent *a, struct hl_arena *arena,
                            struct hl_api_agent_store_info_results *out)
{
    out->data_address = a->node.data_address;
    out->migrate_address = a->node.migrate_address;
    out->socket_path = store_socket(a->store);
    return agent_tiers(a, arena, &out->tiers);
}

static hl_status drop_by(struct hl_agent *a, const struct hl_api_agent_store_drop_params *p,
                         struct hl_api_agent_store_drop_results *out)
{
    HL_TRY(obeyed_begin(&a->obeyed, p->epoch));
    hl_status st = store_drop(a->store, p, out);
    obeyed_end(&a->obeyed);
    return st;
}

IN_WORKER(store_info, store_info(a, arena, out))
IN_WORKER(store_drop, drop_by(a, p, out))
ASKED_IN_WORKER(store_list, store_list(a->store, p, arena, out))
ASKED_IN_WORKER(store_locate, store_locate(a->store, p, arena, out))
ASKED_IN_WORKER(store_verify, store_verify(a->store, p, arena, out))
IN_WORKER(store_reads, store_reads(a->store, p))
IN_WORKER(store_kept, store_kept(a->store, p, arena, out))

/* For calls that have threads of their own. False: the call was answered. */
static bool is_obeyed(struct hl_agent *a, struct hl_rpc_call *call, uint64_t epoch)
{
    hl_status st = obeyed_hear(&a->obeyed, "", epoch);
    if (st != HL_OK)
        hl_rpc_reject(call, st, NULL);
    return st == HL_OK;
}

static void handle_store_copy(void *arg, struct hl_rpc_call *call,
                              const struct hl_api_agent_store_copy_params *params)
{
    struct hl_agent *a = arg;
    if (is_obeyed(a, call, params->request.epoch))
        store_copy(a->store, call, &params->request);
}

static void handle_store_send(void *arg, struct hl_rpc_call *call,
                              const struct hl_api_agent_store_send_params *params)
{
    struct hl_agent *a = arg;
    if (is_obeyed(a, call, params->request.epoch))
        store_send(a->store, call, &params->request);
}

static void handle_store_keep(void *arg, struct hl_rpc_call *call,
                              const struct hl_api_agent_store_keep_params *params)
{
    struct hl_agent *a = arg;
    store_keep(a->store, call, &params->request);
}

static void handle_store_stop(void *arg, struct hl_rpc_call *call,
                              const struct hl_api_agent_store_stop_params *params)
{
    struct hl_agent *a = arg;
    struct hl_id migration;
    if (!is_obeyed(a, call, params->epoch))
        return;
    hl_status st = hl_id_parse(params->migration_id, &migration);
    if (st == HL_OK)
        hl_reply_agent_store_stop(call, &(struct hl_api_agent_store_stop_results){
                                            store_stop_copies(a->store, migration)});
    else
        hl_rpc_reject(call, st, NULL);
}

const struct hl_agent_handlers calls_handlers = {
    .start_container = handle_start_container,
    .stop_container = handle_stop_container,
    .list_containers = handle_list_containers,
    .read_log = handle_read_log,
    .forget_container = handle_forget_container,
    .list_strays = handle_list_strays,
    .end_strays = handle_end_strays,
    .info = handle_info,
    .test_health = handle_test_health,
    .kill_evidence = handle_kill_evidence,
    .prepare_image = handle_prepare_image,
    .end_rank = handle_end_rank,
    .store_info = handle_store_info,
    .store_copy = handle_store_copy,
    .store_send = handle_store_send,
    .store_drop = handle_store_drop,
    .store_list = handle_store_list,
    .store_locate = handle_store_locate,
    .metrics = handle_metrics,
    .store_verify = handle_store_verify,
    .put_rank_table = handle_put_rank_table,
    .find_port = handle_find_port,
    .options = handle_options,
    .store_keep = handle_store_keep,
    .store_reads = handle_store_reads,
    .store_stop = handle_store_stop,
    .store_kept = handle_store_kept,
};
