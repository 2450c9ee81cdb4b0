/* What ranks report about their reads and transfers, and the Controller's metrics. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "conf/conf.h"
#include "controller/copies/copies.h"
#include "controller/jobs/jobs.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "controller/service/service_private.h"

#define METRICS_MAX ((size_t)4 << 20)

static void take_report(struct hl_controller *c, const struct hl_api_transfer_report *r)
{
    struct hl_plane_stats *s = &c->service->ranks[r->plane];
    hl_path_add(hl_api_operation_name(r->operation), hl_api_route_path_name(r->path),
                hl_api_route_reason_name(r->reason), r->failed, r->ops, r->bytes);
    s->ops[r->sent] += r->ops;
    s->bytes[r->sent] += r->bytes;
    s->failed += r->failed ? r->ops : 0;
    s->latency_ns += r->latency_ns;
    for (size_t i = 0; i < r->latency.count && i < HL_PLANE_BUCKETS; i++)
        s->latency[i] += r->latency.items[i];
}

/* Words of a report are looked up in our own lists, so that no rank can fill the table with its own
 * words. */
static void take_fault(const struct hl_api_fault_report *r)
{
    static const char *const causes[] = {"duplicate", "reordered",      "wrong-size",  "foreign",
                                         "garbled",   "read-elsewhere", "rdma-failed", "rdma-back"};
    static const char *const transports[] = {"rdma", "tcp", "emulated"};
    for (size_t i = 0; i < HL_ARRAY_LEN(causes); i++)
        for (size_t k = 0; k < HL_ARRAY_LEN(transports); k++)
            if (strcmp(causes[i], r->cause) == 0 && strcmp(transports[k], r->path) == 0)
                hl_fault_add(causes[i], transports[k], r->count);
}

/* Returns a word of our own, whatever the report contains. */
static const char *known_path(const struct hl_api_access_report *r)
{
    static const char *const paths[] = {"shm", "rdma", "tcp", "emulated"};
    for (size_t i = 0; i < HL_ARRAY_LEN(paths); i++)
        if (strcmp(paths[i], r->path) == 0)
            return paths[i];
    return "unknown";
}

/* There are more rows than known paths. */
static void count_path(struct hl_controller *c, const char *path, uint64_t ops, uint64_t bytes)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(c->service->paths); i++) {
        struct path_count *p = &c->service->paths[i];
        if (p->path[0] == '\0')
            snprintf(p->path, sizeof(p->path), "%s", path);
        if (strcmp(p->path, path) == 0) {
            p->ops += ops;
            p->bytes += bytes;
            return;
        }
    }
}

static void report_read(struct hl_controller *c, const struct hl_api_access_report *r)
{
    struct hl_id id;
    char key[HL_CATALOG_KEY_MAX];
    if (r->path[0] != '\0') /* "" = nothing was read */
        count_path(c, known_path(r), r->count, r->bytes);
    c->service->tier_reads[r->tier] += r->count;
    c->service->crc_failures += r->crc_failures;
    hl_fault_add(r->lost ? "lost" : "crc", known_path(r), r->crc_failures);
    c->service->crc_retries += r->retries;
    struct hl_shard_rec *s =
        hl_id_parse(r->id, &id) == HL_OK ? hl_catalog_shard(&c->catalog, id) : NULL;
    if (s == NULL)
        return;
    s->accesses += r->count;
    if (r->count > 0)
        s->last_access_ms = hl_wall_ms() - r->age_ms;
    c->service->lost_reads += r->lost;
    if (r->crc_failures > 0)
        hl_warn("shard failed its checksum shard=%s id=%s failures=%" PRIu32 " %s",
                hl_shard_key(s, key, sizeof(key)), hl_id_format(id).s, r->crc_failures,
                r->lost ? "and stayed bad" : "and was healed by a retry");
}

void service_count(struct hl_controller *c, const struct hl_api_controller_report_access_params *p)
{
    for (size_t i = 0; i < p->transfers.count; i++)
        take_report(c, &p->transfers.items[i]);
    for (size_t i = 0; i < p->faults.count; i++)
        take_fault(&p->faults.items[i]);
    for (size_t i = 0; i < p->reports.count; i++)
        report_read(c, &p->reports.items[i]);
}

void method_report_access(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_report_access_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    if (placement_report(c, p)) {
        archive_touch(c, &p->reports);
        service_count(c, p);
    }
    hl_reply_controller_report_access(call, &(struct hl_api_controller_report_access_results){0});
}

static void count_jobs(struct hl_controller *c, struct hl_buf *out)
{
    unsigned count[HL_API_JOB_STATE_COUNT];
    jobs_count_states(c, count);
    hl_metric_family(out, "helios_jobs", "gauge", "Jobs by state.");
    for (int s = 0; s < HL_API_JOB_STATE_COUNT; s++)
        (void)hl_buf_printf(out, "helios_jobs{state=\"%s\"} %u\n", hl_api_job_state_name(s),
                            count[s]);
}

hl_status hl_controller_gauges(struct hl_controller *c, struct hl_buf *out)
{
    unsigned ready = 0;
    for (const struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        ready += node_ready(n);
    hl_metric_family(out, "helios_nodes", "gauge", "Nodes by state.");
    (void)hl_buf_printf(out, "helios_nodes{state=\"ready\"} %u\nhelios_nodes{state=\"lost\"} %u\n",
                        ready, nodes_count(c) - ready);
    count_jobs(c, out);
    jobs_recovery_metrics(c, out);
    jobs_ledger_gauges(c, out);
    queue_gauges(c, out);
    hl_metric_family(out, "helios_catalogue_shards", "gauge", "Shards that the Controller knows.");
    (void)hl_buf_printf(out, "helios_catalogue_shards %u\n", HASH_COUNT(c->catalog.shards));
    hl_metric_family(out, "helios_pool_refused", "gauge",
                     "1 while L3 refuses changes by this Controller; `helios info` says why.");
    (void)hl_buf_printf(out, "helios_pool_refused %d\n", c->claim.state == CLAIM_REFUSED);
    hl_metric_family(out, "helios_rank_reads_total", "counter",
                     "Reads of shards that processes have reported, by the tier of their bytes.");
    for (int t = HL_API_TIER_L2; t <= HL_API_TIER_L3; t++)
        (void)hl_buf_printf(out, "helios_rank_reads_total{tier=\"%s\"} %" PRIu64 "\n",
                            hl_api_tier_name(t), c->service->tier_reads[t]);
    hl_metric_family(out, "helios_durability_lacking_shards", "gauge",
                     "Shards of visible versions in fewer failure domains than versions.durability "
                     "asks for; `helios model show` says which.");
    (void)hl_buf_printf(out, "helios_durability_lacking_shards %zu\n", durability_lacking(c));
    hl_metric_family(out, "helios_sweeps_total", "counter",
                     "Sweeps that were completed: comparisons of pool and archive with the "
                     "catalogue.");
    (void)hl_buf_printf(out, "helios_sweeps_total %" PRIu64 "\n", sweeps_completed(c));
    placement_gauges(c, out);
    hl_plane_families(out, "helios_ranks", c->service->ranks);
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory writing the metrics of the Controller")
                       : HL_OK;
}

void method_metrics(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_metrics_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_buf text = HL_BUF(METRICS_MAX);
    (void)p;
    hl_status st = hl_plane_metrics(&text);
    if (st == HL_OK)
        st = hl_controller_gauges(c, &text);
    if (st == HL_OK)
        hl_reply_controller_metrics(call,
                                    &(struct hl_api_controller_metrics_results){.text = text.data});
    else
        call_reject(call, st);
    hl_buf_fini(&text);
}

void method_options(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_options_params *p)
{
    (void)arg;
    (void)p;
    hl_reply_controller_options(call, &(struct hl_api_controller_options_results){
                                          .options = hl_conf_in_force(hl_rpc_call_arena(call))});
}
