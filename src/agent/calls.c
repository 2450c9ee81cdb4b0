/* Interface Agent: every call is done by a worker and answered from the loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/base64.h"
#include "base/log.h"
#include "base/plane.h"
#include "conf/options.h"
#include "core/json.h"
#include "core/tier_metrics.h"

#define METRICS_MAX ((size_t)4 << 20)

struct request;
typedef hl_status (*method_fn)(struct request *r);

struct request {
    uv_work_t work;
    struct hl_agent *agent;
    struct hl_rpc_call *call;
    method_fn method;
    json_t *params;
    json_t *result;
    hl_status st;
    char *text;
};

/* ---- the methods, in worker threads ---- */

static hl_status start_container(struct request *r)
{
    struct hl_container_spec spec;
    struct hl_container_status status;
    HL_TRY(hl_container_spec_decode(json_object_get(r->params, "spec"), &spec));
    hl_status st = env_complete(r->agent, &spec);
    if (st == HL_OK)
        st = hl_executor_start(r->agent->executor, &spec, &status);
    hl_container_spec_fini(&spec);
    HL_TRY(st);
    hl_info("container started id=%s state=%s", status.id, hl_run_state_text(status.state));
    r->result = json_pack("{so}", "status", hl_container_status_encode(&status));
    hl_container_status_fini(&status);
    return HL_OK;
}

static hl_status stop_container(struct request *r)
{
    const char *id = hl_json_str(r->params, "id", "");
    hl_info("container stops id=%s", id);
    return hl_executor_stop(r->agent->executor, id, (int)hl_json_int(r->params, "graceMs", 0));
}

static hl_status list_containers(struct request *r)
{
    json_t *list;
    HL_TRY(hl_executor_list(r->agent->executor, &list));
    r->result = json_pack("{so}", "containers", list);
    return HL_OK;
}

static hl_status read_log(struct request *r)
{
    struct hl_log_slice s;
    HL_TRY(hl_executor_read_log(r->agent->executor, hl_json_str(r->params, "id", ""),
                                (int)hl_json_int(r->params, "rank", 0),
                                hl_json_int(r->params, "offset", 0),
                                (size_t)hl_json_int(r->params, "maxBytes", 0), &s));
    struct hl_buf data = HL_BUF(s.data.len / 3 * 4 + 8); /* Data travels as base64 in JSON */
    hl_status st = hl_base64_encode(s.data.data, s.data.len, &data);
    hl_buf_fini(&s.data);
    if (st == HL_OK)
        r->result = json_pack("{ss sI sI sb}", "data", data.data, "offset", (json_int_t)s.offset,
                              "size", (json_int_t)s.size, "finished", s.finished);
    hl_buf_fini(&data);
    return st;
}

static hl_status forget_container(struct request *r)
{
    return hl_executor_forget(r->agent->executor, hl_json_str(r->params, "id", ""));
}

static hl_status put_rank_table(struct request *r)
{
    return hl_executor_put_rank_table(r->agent->executor, hl_json_str(r->params, "id", ""),
                                      hl_json_str(r->params, "document", ""));
}

static hl_status find_port(struct request *r)
{
    int port;
    HL_TRY(ports_find(&r->agent->ports, hl_json_list(r->params, "ports"), &port));
    r->result = json_pack("{si}", "port", port);
    return HL_OK;
}

static hl_status info(struct request *r)
{
    struct hl_agent *a = r->agent;
    json_t *telemetry = a->telemetry != NULL ? a->telemetry(a->telemetry_arg) : NULL;
    json_t *node = json_deep_copy(a->node);
    json_object_set_new(node, "tiers", agent_tiers(a));
    json_object_set_new(node, "storeEpoch", json_integer((json_int_t)store_epoch(a->store)));
    r->result = json_pack("{so so}", "node", node, "telemetry",
                          telemetry != NULL ? telemetry : json_object());
    return HL_OK;
}

static hl_status store_info(struct request *r)
{
    struct hl_agent *a = r->agent;
    r->result =
        json_pack("{so ss ss ss}", "tiers", agent_tiers(a), "dataAddress",
                  hl_json_str(a->node, "dataAddress", ""), "migrateAddress",
                  hl_json_str(a->node, "migrateAddress", ""), "socketPath", store_socket(a->store));
    return HL_OK;
}

static hl_status drop_copy(struct request *r)
{
    return store_drop(r->agent->store, r->params, &r->result);
}

static hl_status verify_copy(struct request *r)
{
    return store_verify(r->agent->store, r->params, &r->result);
}

static hl_status list_copies(struct request *r)
{
    return store_list(r->agent->store, r->params, &r->result);
}

static hl_status locate_copies(struct request *r)
{
    return store_locate(r->agent->store, r->params, &r->result);
}

hl_status hl_agent_gauges(struct hl_agent *a, struct hl_buf *out)
{
    json_t *containers = NULL;
    HL_TRY(hl_executor_list(a->executor, &containers));
    hl_metric_family(out, "helios_containers", "gauge", "Containers that this Agent keeps.");
    (void)hl_buf_printf(out, "helios_containers %zu\n", json_array_size(containers));
    json_decref(containers);
    json_t *tiers = agent_tiers(a);
    struct hl_arena arena = {0};
    struct hl_api_agent_store_info_results r;
    json_t *all = json_pack("{s:O}", "tiers", tiers);
    hl_status st = hl_api_from_json(&hl_api_agent_store_info_results_type, all, &arena, &r);
    if (st == HL_OK)
        st = hl_tier_gauges(&r.tiers, out);
    hl_arena_fini(&arena);
    json_decref(all);
    json_decref(tiers);
    return st;
}

static hl_status metrics(struct request *r)
{
    struct hl_buf text = HL_BUF(METRICS_MAX);
    hl_status st = hl_plane_metrics(&text);
    if (st == HL_OK)
        st = hl_agent_gauges(r->agent, &text);
    if (st == HL_OK)
        r->result = json_pack("{ss}", "text", text.data);
    hl_buf_fini(&text);
    return st;
}

static hl_status options(struct request *r)
{
    r->result = json_pack("{s:o}", "options", hl_conf_published());
    return r->result != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory listing the options");
}

static const struct {
    const char *name;
    method_fn fn;
} methods[] = {
    {"startContainer", start_container},
    {"stopContainer", stop_container},
    {"listContainers", list_containers},
    {"readLog", read_log},
    {"forgetContainer", forget_container},
    {"putRankTable", put_rank_table},
    {"findPort", find_port},
    {"info", info},
    {"storeInfo", store_info},
    {"storeDrop", drop_copy},
    {"storeList", list_copies},
    {"storeLocate", locate_copies},
    {"metrics", metrics},
    {"options", options},
    {"storeVerify", verify_copy},
};

/* ---- from the loop to a worker and back ---- */

static void work(uv_work_t *w)
{
    struct request *r = w->data;
    r->st = r->method(r);
    if (r->st != HL_OK)
        r->text = strdup(hl_error_text());
}

static void answer(uv_work_t *w, int status)
{
    struct request *r = w->data;
    struct hl_agent *a = r->agent;
    (void)status;
    if (r->st == HL_OK)
        hl_rpc_reply(r->call, hl_steal(&r->result));
    else
        hl_rpc_reject(r->call, r->st, r->text != NULL ? r->text : hl_status_text(r->st));
    if (r->method == start_container && r->st == HL_OK)
        link_tell(a);
    json_decref(r->result);
    json_decref(r->params);
    free(r->text);
    free(r);
    a->pending--;
}

void calls_handle(void *arg, struct hl_rpc_call *call, const char *method, const json_t *params)
{
    struct hl_agent *a = arg;
    HL_ON_LOOP(a->loop);
    method_fn fn = NULL;
    if (strcmp(method, "storeCopy") == 0) {
        store_copy(a->store, call, json_object_get(params, "request"));
        return;
    }
    if (strcmp(method, "storeSend") == 0) {
        store_send(a->store, call, json_object_get(params, "request"));
        return;
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(methods); i++)
        if (strcmp(methods[i].name, method) == 0)
            fn = methods[i].fn;
    if (fn == NULL || a->closing) {
        hl_rpc_reject(call, fn == NULL ? HL_EUNSUPPORTED : HL_EUNAVAIL,
                      fn == NULL ? "the Agent has no such method" : "the Agent is ending");
        return;
    }
    struct request *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        hl_rpc_reject(call, HL_ENOMEM, "out of memory");
        return;
    }
    r->work.data = r;
    r->agent = a;
    r->call = call;
    r->method = fn;
    r->params = json_deep_copy(params); /* of its own: jansson's counts are not for two threads */
    a->pending++;
    uv_queue_work(hl_loop_uv(a->loop), &r->work, work, answer);
}
