#include <inttypes.h>
#include <string.h>

#include "conf/options.h"
#include "controller/controller_private.h"
#include "core/route.h"

#define METRICS_MAX ((size_t)4 << 20)

/* HL_PLANE_COUNT for a word that is none. */
static enum hl_plane plane_by_name(const char *name)
{
    int p = 0;
    while (p < HL_PLANE_COUNT && strcmp(hl_plane_name(p), name) != 0)
        p++;
    return p;
}

static uint64_t number(const json_t *o, const char *key)
{
    json_int_t n = hl_json_int(o, key, 0);
    return n > 0 ? (uint64_t)n : 0;
}

/* Words of a report are looked up, so that no rank can fill the table with its own. */
static void take_report(struct hl_controller *c, const json_t *r)
{
    enum hl_plane plane = plane_by_name(hl_json_str(r, "plane", ""));
    enum hl_route_op op = hl_route_op_by_name(hl_json_str(r, "operation", ""));
    enum hl_route_path path = hl_route_path_by_name(hl_json_str(r, "path", ""));
    enum hl_route_reason reason = hl_route_reason_by_name(hl_json_str(r, "reason", ""));
    if (plane == HL_PLANE_COUNT || op == HL_ROUTE_OP_COUNT || path == HL_PATH_COUNT ||
        reason == HL_REASON_COUNT)
        return;
    struct hl_plane_stats *s = &c->ranks[plane];
    int failed = hl_json_bool(r, "failed", 0), sent = hl_json_bool(r, "sent", 0) != 0;
    uint64_t ops = number(r, "ops"), bytes = number(r, "bytes");
    hl_path_add(hl_route_op_name(op), hl_route_path_name(path), hl_route_reason_name(reason),
                failed, ops, bytes);
    s->ops[sent] += ops;
    s->bytes[sent] += bytes;
    s->failed += failed ? ops : 0;
    s->latency_ns += number(r, "latencyNs");
    size_t i;
    const json_t *n;
    json_array_foreach (hl_json_list(r, "latency"), i, n)
        if (i < HL_PLANE_BUCKETS && json_integer_value(n) > 0)
            s->latency[i] += (uint64_t)json_integer_value(n);
}

static void take_fault(const json_t *r)
{
    static const char *const causes[] = {"duplicate", "reordered",      "wrong-size",  "foreign",
                                         "garbled",   "read-elsewhere", "rdma-failed", "rdma-back"};
    static const char *const transports[] = {"rdma", "tcp", "emulated"};
    const char *cause = hl_json_str(r, "cause", ""), *path = hl_json_str(r, "path", "");
    for (size_t i = 0; i < HL_ARRAY_LEN(causes); i++)
        for (size_t k = 0; k < HL_ARRAY_LEN(transports); k++)
            if (strcmp(causes[i], cause) == 0 && strcmp(transports[k], path) == 0)
                hl_fault_add(causes[i], transports[k], number(r, "count"));
}

void metrics_report(struct hl_controller *c, const json_t *transfers, const json_t *faults)
{
    size_t i;
    const json_t *r;
    json_array_foreach (transfers, i, r)
        take_report(c, r);
    json_array_foreach (faults, i, r)
        take_fault(r);
}

static void count_jobs(struct hl_controller *c, struct hl_buf *out)
{
    unsigned count[HL_JOB_STATE_COUNT] = {0};
    for (const struct job *j = c->jobs; j != NULL; j = j->hh.next)
        count[j->run.state]++;
    hl_metric_family(out, "helios_jobs", "gauge", "Jobs by state.");
    for (int s = 0; s < HL_JOB_STATE_COUNT; s++)
        (void)hl_buf_printf(out, "helios_jobs{state=\"%s\"} %u\n", hl_job_state_name(s), count[s]);
}

hl_status hl_controller_gauges(struct hl_controller *c, struct hl_buf *out)
{
    unsigned ready = 0;
    for (const struct node *n = c->nodes; n != NULL; n = n->hh.next)
        ready += node_ready(n) != 0;
    hl_metric_family(out, "helios_nodes", "gauge", "Nodes by state.");
    (void)hl_buf_printf(out, "helios_nodes{state=\"ready\"} %u\nhelios_nodes{state=\"lost\"} %u\n",
                        ready, HASH_COUNT(c->nodes) - ready);
    count_jobs(c, out);
    hl_metric_family(out, "helios_catalogue_shards", "gauge", "Shards that the Controller knows.");
    (void)hl_buf_printf(out, "helios_catalogue_shards %u\n", HASH_COUNT(c->catalog.shards));
    hl_metric_family(out, "helios_pool_refused", "gauge",
                     "1 while L3 lets this Controller change nothing; `helios info` says why.");
    (void)hl_buf_printf(out, "helios_pool_refused %d\n", c->claim.state == CLAIM_REFUSED);
    hl_plane_families(out, "helios_ranks", c->ranks);
    return out->failed ? hl_fail(HL_ENOMEM, "metrics of the Controller") : HL_OK;
}

void method_metrics(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_buf text = HL_BUF(METRICS_MAX);
    (void)params;
    hl_status st = hl_plane_metrics(&text);
    if (st == HL_OK)
        st = hl_controller_gauges(c, &text);
    if (st == HL_OK)
        hl_rpc_reply(call, json_pack("{s:s}", "text", text.data));
    else
        reject(call, st);
    hl_buf_fini(&text);
}

void method_options(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    (void)c;
    (void)params;
    hl_rpc_reply(call, json_pack("{s:o}", "options", hl_conf_published()));
}
