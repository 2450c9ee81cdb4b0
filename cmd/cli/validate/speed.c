/* Latency of reads, bandwidth of migrations, and the cost of the plank. A figure that this hardware
 * can't give is shown with what is missing, and is not judged. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/validate/validate.h"
#include "hw/topology.h"
#include "rpc/agent_calls.h"

#define READS_MAX      4096
#define READS_FIRST    16 /* warm-up of connections and places */
#define READ_NS        (2 * HL_NS_PER_S)
#define WRITES         3
#define PAIRS_MAX      64
#define RATE_METRIC    "\nhelios_plane_line_rate_bits{plane=\"migration\"} "
#define WRITE_MIN_SIZE ((uint64_t)1 << 20)

/* ---- reads ----------------------------------------------------------------------------------- */

static hl_status time_reads(struct validation *v, helios_client *client)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_SMALL];
    HL_AUTO(hl_freep) double *us = calloc(READS_MAX, sizeof(*us));
    HL_AUTO(hl_freep) unsigned char *bytes = malloc(s->size);
    helios_stats stats = {HELIOS_STATS_INIT};
    size_t count = 0;
    if (us == NULL || bytes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %d reads", READS_MAX);
    for (int i = 0; i < READS_FIRST; i++)
        HL_TRY((hl_status)helios_get(client, s->key, bytes, s->size));
    for (uint64_t end = hl_now_ns() + READ_NS; count < READS_MAX && hl_now_ns() < end;) {
        uint64_t start = hl_now_ns();
        HL_TRY((hl_status)helios_get(client, s->key, bytes, s->size));
        us[count++] = (double)(hl_now_ns() - start) / 1e3;
        HL_TRY(validate_check(v));
    }
    HL_TRY((hl_status)helios_get_stats(client, &stats));
    snprintf(v->speeds.read_path, sizeof(v->speeds.read_path), "%s", stats.path);
    v->speeds.read_us = hl_median(us, count);
    return HL_OK;
}

static hl_status measure_reads(struct validation *v)
{
    struct speeds *s = &v->speeds;
    struct hl_topo topo = {0};
    helios_client *client;
    if (s->read_known || v->facts.l3_data[0] == '\0')
        return HL_OK;
    HL_TRY(hl_topology_load_machine(&topo));
    s->nic = hl_topo_nic_beside(&topo, -1);
    hl_topo_fini(&topo);
    HL_TRY(scratch_client(v, "net", &client));
    hl_status st = time_reads(v, client);
    helios_close(client);
    HL_TRY(st);
    s->read_known = true;
    return HL_OK;
}

static hl_status judge_read(struct validation *v, struct found *f, bool cx6)
{
    const struct speeds *s = &v->speeds;
    HL_TRY(measure_reads(v));
    if (!s->read_known)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "a data port of the pool (`helios up --address`)");
    found_text(v, f, "%.3g us over %s: the median of verified reads of %llu bytes", s->read_us,
               s->read_path, (unsigned long long)v->shards[SCRATCH_SMALL].size);
    if (strcmp(s->read_path, "rdma") != 0) {
        f->row.value = s->read_us;
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "RDMA between this host and the pool");
    }
    bool fits = cx6 ? s->nic >= HL_NIC_CX6 : s->nic == HL_NIC_CX4 || s->nic == HL_NIC_CX5;
    if (!fits) {
        f->row.value = s->read_us;
        return found_missing(
            v, f, HL_API_VALIDATION_RESULT_ABSENT, "a %s on this host, which has a %s",
            cx6 ? "ConnectX-6 or newer" : "ConnectX-4 or 5", hl_nic_class_name(s->nic));
    }
    found_judge(f, s->read_us);
    return HL_OK;
}

hl_status row_read_cx4(struct validation *v, struct found *f)
{
    return judge_read(v, f, false);
}

hl_status row_read_cx6(struct validation *v, struct found *f)
{
    return judge_read(v, f, true);
}

/* ---- writes ---------------------------------------------------------------------------------- */

/* Bits per second of the node's migration network; 0: unknown. */
static hl_status line_rate(struct validation *v, const struct vnode *n, double *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_agent_metrics_results r;
    HL_TRY(CLI_CALL_AGENT(v->cli, n->agent, metrics, &(struct hl_api_agent_metrics_params){0},
                          &arena, &r));
    const char *at = strstr(r.text, RATE_METRIC);
    *out = at != NULL ? strtod(at + strlen(RATE_METRIC), NULL) : 0;
    return HL_OK;
}

static bool find_writers(const struct validation *v, const struct vnode **from,
                         const struct vnode **to)
{
    for (size_t i = 0; i < v->facts.count; i++)
        for (size_t k = 0; k < v->facts.count; k++) {
            const struct vnode *a = &v->facts.nodes[i], *b = &v->facts.nodes[k];
            if (!facts_same_host(a, b) && b->migrate[0] != '\0') {
                *from = a;
                *to = b;
                return true;
            }
        }
    return false;
}

/* Bytes per second of the best one. */
static hl_status time_writes(struct validation *v, const struct vnode *from, const struct vnode *to,
                             double *best)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_LARGE];
    struct hl_api_copy copy;
    HL_TRY(order_copy(v, s, from, HL_API_TIER_L2, HL_API_OPERATION_READ, &copy));
    *best = 0;
    for (int i = 0; i < WRITES; i++) {
        bool intact = false;
        HL_TRY(order_copy(v, s, to, HL_API_TIER_L2, HL_API_OPERATION_MIGRATE, &copy));
        HL_TRY(order_verify(v, s, to, HL_API_TIER_L2, &intact));
        if (!intact || copy.path != HL_API_ROUTE_PATH_ZMQ)
            return hl_fail(HL_EIO, "a migration to %s went by %s%s", to->name,
                           hl_api_route_path_name(copy.path),
                           intact ? "" : ", and its bytes are damaged");
        if (copy.seconds > 0)
            *best = fmax(*best, (double)s->size / copy.seconds);
        HL_TRY(order_drop(v, s, to, HL_API_TIER_L2));
    }
    return order_drop(v, s, from, HL_API_TIER_L2);
}

hl_status row_write(struct validation *v, struct found *f)
{
    const struct vnode *from, *to;
    double best = 0, rate_from = 0, rate_to = 0;
    uint64_t size = v->shards[SCRATCH_LARGE].size;
    char text[32];
    if (!find_writers(v, &from, &to))
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "two nodes with an L2 and a migration network on two hosts");
    if (from->l2_free < size || to->l2_free < size || size < WRITE_MIN_SIZE)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM,
                             "L2 of %s or %s, or --size, has no room for a large shard", from->name,
                             to->name);
    HL_TRY(time_writes(v, from, to, &best));
    HL_TRY(line_rate(v, from, &rate_from));
    HL_TRY(line_rate(v, to, &rate_to));
    double rate = fmin(rate_from, rate_to);
    hl_format_bytes(size, text, sizeof(text));
    if (!(rate > 0)) {
        found_text(v, f, "%.3g GB/s from %s to %s with %s", best / 1e9, from->name, to->name, text);
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "a migration network whose line rate is known "
                             "(plane.migration_rate)");
    }
    found_text(v, f, "%.3g GB/s of %.3g GB/s from %s to %s with %s", best / 1e9, rate / 8e9,
               from->name, to->name, text);
    found_judge(f, 100 * 8 * best / rate);
    return HL_OK;
}

/* ---- the plank ------------------------------------------------------------------------------- */

/* Median seconds of copies of the shard from the pool to a tier of the node. */
static hl_status time_copies(struct validation *v, const struct scratch_shard *s,
                             const struct vnode *n, enum hl_api_tier tier, double *out)
{
    double seconds[PAIRS_MAX];
    size_t count = 0;
    while (count < PAIRS_MAX && (int64_t)count < v->args->copies) {
        struct hl_api_copy copy;
        HL_TRY(order_copy(v, s, n, tier, HL_API_OPERATION_READ, &copy));
        HL_TRY(order_drop(v, s, n, tier));
        if (tier == HL_API_TIER_L1 && copy.path != HL_API_ROUTE_PATH_PLANK)
            return hl_fail(HL_EUNSUPPORTED, "copies into L1 of %s go by %s, not by the plank",
                           n->name, hl_api_route_path_name(copy.path));
        seconds[count++] = copy.seconds;
        snprintf(v->speeds.plank_transport, sizeof(v->speeds.plank_transport), "%s",
                 copy.transport);
    }
    *out = hl_median(seconds, count);
    return HL_OK;
}

/* Compares with the same bytes over the same network into host memory: the difference is the
 * plank. */
static hl_status measure_plank(struct validation *v)
{
    struct speeds *p = &v->speeds;
    const struct scratch_shard *small = &v->shards[SCRATCH_SMALL];
    const struct scratch_shard *large = &v->shards[SCRATCH_LARGE];
    double small_l1, small_l2, large_l1, large_l2;
    for (size_t i = 0; i < v->facts.count && !p->plank_known && p->plank_node == NULL; i++) {
        const struct vnode *n = &v->facts.nodes[i];
        if (n->devices > 0 && !facts_is_pools(v, n) && n->l1_free >= large->size &&
            n->l2_free >= large->size)
            p->plank_node = n;
    }
    const struct vnode *n = p->plank_node;
    if (p->plank_known || n == NULL)
        return HL_OK;
    HL_TRY(time_copies(v, small, n, HL_API_TIER_L1, &small_l1));
    HL_TRY(time_copies(v, small, n, HL_API_TIER_L2, &small_l2));
    HL_TRY(time_copies(v, large, n, HL_API_TIER_L1, &large_l1));
    HL_TRY(time_copies(v, large, n, HL_API_TIER_L2, &large_l2));
    p->plank_us = (small_l1 - small_l2) * 1e6;
    p->plank_loss_pct = 100 * (1 - large_l2 / large_l1);
    p->plank_known = true;
    return HL_OK;
}

static hl_status judge_plank(struct validation *v, struct found *f, bool latency)
{
    const struct speeds *p = &v->speeds;
    hl_status st = measure_plank(v);
    if (st == HL_EUNSUPPORTED)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT, "the plank: %s",
                             hl_error_text());
    HL_TRY(st);
    if (p->plank_node == NULL)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "a node with room in an L1, on another host than the pool's");
    double figure = latency ? p->plank_us : p->plank_loss_pct;
    if (latency)
        found_text(v, f, "%.3g us more into L1 of %s than into its L2, over %s", figure,
                   p->plank_node->name, p->plank_transport);
    else
        found_text(v, f, "%.3g %% slower into L1 of %s than into its L2, over %s", figure,
                   p->plank_node->name, p->plank_transport);
    f->row.value = figure;
    if (p->plank_node->emulated)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "a real device: L1 of %s is emulated", p->plank_node->name);
    if (strcmp(p->plank_transport, "rdma") != 0)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "RDMA between the pool's host and %s", p->plank_node->name);
    found_judge(f, figure);
    return HL_OK;
}

hl_status row_plank_latency(struct validation *v, struct found *f)
{
    return judge_plank(v, f, true);
}

hl_status row_plank_bandwidth(struct validation *v, struct found *f)
{
    return judge_plank(v, f, false);
}
