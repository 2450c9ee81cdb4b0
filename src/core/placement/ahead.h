/* core/placement/ahead.h - planned prefetch: which shards are copied to which node, and when, so
 * that a gang finds them in its nodes' L2 when its containers start.
 *
 * On each path a node fetches one shard after another, as late as possible with a tenth of the time
 * to spare: a shard that arrives early takes up room, and is wasted if the plan changes. Ranks are
 * served one after another, starting with the one that has the least to fetch. So when the notice
 * is too short, some ranks find everything they need, instead of all ranks finding only a part.
 *
 * Owns:    the moves; zero-initialise, end with hl_ahead_fini.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL for invalid rates or nodes; HL_ENOMEM. *out is untouched then.
 * Units:   ms, bytes, bytes per second.
 * Limits:  none of its own.
 */
#ifndef HL_CORE_PLACEMENT_AHEAD_H
#define HL_CORE_PLACEMENT_AHEAD_H

#include "core/placement/rules.h"

/* A shard that a rank will read. */
struct hl_ahead_shard {
    struct hl_id id;
    uint64_t size_bytes;
    struct hl_place place; /* of the copy nearest to that node */
    uint16_t node;         /* where the rank will be */
    uint32_t rank;
};

struct hl_ahead_gang {
    /* a shard that several ranks of a node read counts once */
    const struct hl_ahead_shard *shards;
    size_t count;
    int64_t start_ms; /* when its containers start */
};

struct hl_ahead_world {
    double rates[HL_MOVE_PATHS];  /* of one node, measured */
    double shared[HL_MOVE_PATHS]; /* of all nodes together; HUGE_VAL: no limit */
    const uint64_t *l2_free;      /* by node */
    const bool *takes;
    uint32_t node_count;
};

struct hl_ahead_move {
    struct hl_id shard;
    uint64_t size_bytes;
    struct hl_place from, goal;
    enum hl_move_path path;
    int64_t begin_ms, end_ms; /* expected */
};

struct hl_ahead {
    struct hl_ahead_move *moves; /* in the order in which they begin */
    size_t count;
    uint64_t bytes;   /* bytes that the gang reads on its nodes */
    uint64_t local;   /* of these, already there */
    uint64_t in_time; /* of these, will arrive in time */
    uint64_t no_room; /* of these, have no room, or their node accepts nothing */
};

void hl_ahead_fini(struct hl_ahead *a);
hl_status hl_ahead_plan(const struct hl_ahead_gang *gang, const struct hl_ahead_world *world,
                        int64_t now_ms, struct hl_ahead *out) HL_CHECK;
/* Share of the gang's bytes that are local when it starts, 0..1; 1 for a gang that reads
 * nothing. */
double hl_ahead_share(const struct hl_ahead *a);

#endif
