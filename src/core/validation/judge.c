#include "core/validation/judge.h"

#include <math.h>
#include <stdlib.h>

#define COLD_PER_DEVICE 3
#define COLD_MAX        24
#define HOT_SHARE       0.55 /* of what is above the watermark: one and a half of them fit there */

bool hl_target_is_met(const struct hl_target *target, double figure)
{
    return target->side == HL_TARGET_AT_LEAST ? figure >= target->value : figure <= target->value;
}

double hl_tally_pct(struct hl_tally tally)
{
    return tally.all > 0 ? 100.0 * tally.good / tally.all : NAN;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* 3.7: a ConnectX-4 or older must not write into a device; if the direct path is available, it is
 * used. */
static bool device_path_is_asked_for(const struct hl_seen_transfer *t, enum hl_api_route_path path)
{
    bool into = t->target == HL_API_TIER_L1;
    bool direct = t->rdma && t->device_direct && !(into && hl_nic_plank_forced(t->nic));
    return path == (direct ? HL_API_ROUTE_PATH_DIRECT : HL_API_ROUTE_PATH_PLANK);
}

bool hl_path_is_asked_for(const struct hl_seen_transfer *t, enum hl_api_route_path path)
{
    if (t->same_host)
        return path == HL_API_ROUTE_PATH_MAPPED || path == HL_API_ROUTE_PATH_LOCAL_COPY;
    if (t->op != HL_API_OPERATION_READ && t->target == HL_API_TIER_L3)
        return path == HL_API_ROUTE_PATH_UCX_TAGGED;
    if (t->source == HL_API_TIER_L1 || t->target == HL_API_TIER_L1)
        return device_path_is_asked_for(t, path);
    if (t->op == HL_API_OPERATION_READ)
        return path == (t->rdma ? HL_API_ROUTE_PATH_DIRECT : HL_API_ROUTE_PATH_TCP);
    bool zmq = t->source == HL_API_TIER_L2 && t->migration_net;
    return path == (zmq ? HL_API_ROUTE_PATH_ZMQ : HL_API_ROUTE_PATH_UCX_TAGGED);
}

struct hl_tally hl_decided_into_device(enum hl_nic_class nic, enum hl_route_direct direct,
                                       enum hl_api_route_path path)
{
    static const enum hl_api_operation ops[] = {HL_API_OPERATION_READ, HL_API_OPERATION_WRITE};

    static const enum hl_api_tier sources[] = {HL_API_TIER_L2, HL_API_TIER_L3};
    struct hl_tally tally = {0};
    for (size_t i = 0; i < HL_ARRAY_LEN(ops); i++)
        for (size_t k = 0; k < HL_ARRAY_LEN(sources); k++) {
            struct hl_route r = hl_route_choose(&(struct hl_route_query){.op = ops[i],
                                                                         .source = sources[k],
                                                                         .target = HL_API_TIER_L1,
                                                                         .link = HL_LINK_RDMA,
                                                                         .migration_net = true,
                                                                         .nic = nic,
                                                                         .device_direct = true,
                                                                         .direct = direct});
            hl_tally_add(&tally, r.path == path);
        }
    return tally;
}

static int compare_values(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

double hl_median(double *values, size_t count)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof(*values), compare_values);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- the watermarks of L1 -------------------------------------------------------------------- */

/* In per cent, for a watermark of 85: each hot one 8.25, all cold ones 80.9. One hot one makes
 * 89.1, two make 97.4. */
struct hl_l1_fill hl_l1_fill_of(const struct hl_l1_room *room)
{
    struct hl_l1_fill fill = {0};
    double hot = HOT_SHARE * (100 - room->high_pct);
    double cold = room->high_pct - hot / 2;
    unsigned count = COLD_PER_DEVICE * (room->devices > 0 ? room->devices : 1);
    if (room->quota == 0 || !(hot > 0) || !(cold > 0))
        return fill;
    fill.cold_count = count < COLD_MAX ? count : COLD_MAX;
    fill.hot_bytes = (uint64_t)((double)room->quota * hot / 100);
    fill.cold_bytes = (uint64_t)((double)room->quota * cold / 100) / fill.cold_count;
    fill.bytes = 2 * fill.hot_bytes + fill.cold_count * fill.cold_bytes;
    return fill;
}

static double set_stability(const struct hl_l1_shard *shards, size_t count, unsigned set)
{
    double most = 0;
    for (size_t i = 0; i < count; i++)
        if (shards[i].set == set)
            most = fmax(most, shards[i].stability);
    return most;
}

bool hl_l1_is_relieved(const struct hl_l1_shard *shards, size_t count, uint64_t used,
                       uint64_t high_bytes)
{
    double most = -INFINITY; /* of the sets from which some shard leaves */
    for (size_t i = 0; i < count; i++) {
        if (!shards[i].leaves)
            continue;
        used -= used < shards[i].bytes ? used : shards[i].bytes;
        most = fmax(most, set_stability(shards, count, shards[i].set));
    }
    for (size_t i = 0; i < count; i++)
        if (!shards[i].leaves && set_stability(shards, count, shards[i].set) < most)
            return false;
    return used <= high_bytes;
}
