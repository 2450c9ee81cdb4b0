/* core/validation/judge.h - how `helios validate` judges its observations: figures against targets,
 * and paths of bytes against the specification. It does not use core/route, which decided those
 * paths.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none: an unknown figure meets no target.
 * Units:   per cent; seconds; bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_VALIDATION_JUDGE_H
#define HL_CORE_VALIDATION_JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/copies/route.h"

enum hl_target_side { HL_TARGET_AT_LEAST, HL_TARGET_AT_MOST };

struct hl_target {
    enum hl_target_side side;
    double value;
};

bool hl_target_is_met(const struct hl_target *target, double figure);

/* How many of all cases were as they should be. */
struct hl_tally {
    uint32_t good, all;
};

static inline void hl_tally_add(struct hl_tally *tally, bool good)
{
    tally->good += good;
    tally->all++;
}

/* NaN: there were no cases. */
double hl_tally_pct(struct hl_tally tally);

/* One transfer, and the capabilities of the hardware on its path. */
struct hl_seen_transfer {
    enum hl_api_operation op;
    enum hl_api_tier source, target;
    bool same_host;
    bool rdma;          /* on the backbone between the two hosts */
    bool migration_net; /* reaches the target */
    bool device_direct; /* the device lets a NIC access its memory */
    enum hl_nic_class nic;
};

/* The path is the one that the specification requires (3.3, 3.4, 3.7). */
bool hl_path_is_asked_for(const struct hl_seen_transfer *t, enum hl_api_route_path path);

/* What core/route decides for transfers over RDMA into a device that NICs reach, beside a NIC of
 * that class: how many of them go by `path`. direct: what is known of the direct path. */
struct hl_tally hl_decided_into_device(enum hl_nic_class nic, enum hl_route_direct direct,
                                       enum hl_api_route_path path);

/* The median; NaN if there are no values. Sorts them in place. */
double hl_median(double *values, size_t count);

/* ---- room ---- */

/* Of the L1 of a node, for the rows about its watermarks. */
struct hl_l1_room {
    uint64_t quota; /* of all its devices */
    unsigned devices;
    double high_pct; /* watermark */
};

/* Shards that fill it: two hot ones and `cold_count` cold ones. The cold ones alone are below the
 * watermark, with one hot one they are above it, and all of them fit. */
struct hl_l1_fill {
    uint64_t hot_bytes, cold_bytes; /* of each; 0: no such fill, as the watermark is too high */
    unsigned cold_count;
    uint64_t bytes; /* of all */
};

struct hl_l1_fill hl_l1_fill_of(const struct hl_l1_room *room);

/* A shard that was in L1 when its use was above the high watermark. */
struct hl_l1_shard {
    uint64_t bytes;
    double stability;
    unsigned set; /* shards leave by sets; a set is as stable as its most stable shard */
    bool leaves;
};

/* Those that leave bring the use to the watermark or below it, and none stays of a set that is less
 * stable than theirs. */
bool hl_l1_is_relieved(const struct hl_l1_shard *shards, size_t count, uint64_t used,
                       uint64_t high_bytes);

#endif
