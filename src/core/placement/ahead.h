/* core/placement/ahead.h - prefetch by plan: which shards travel to which node, and when, so that a
 * gang finds them in its nodes' L2 when its containers start.
 *
 * Each node fetches one shard after the other on each path, as late as it can be in time, with a
 * tenth of the time to spare: what travels early takes room and is in vain if the plan changes.
 * Ranks are served one after the other, that with the least to fetch first: when the notice is too
 * short, some ranks find all they need, and the others not a slice each.
 *
 * Owns:    the moves; zero-initialise, end with hl_ahead_fini.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL for rates and nodes that are refused; HL_ENOMEM. *out is untouched then.
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
    struct hl_place place; /* of the nearest copy to that node */
    uint16_t node;         /* where the rank will be */
    uint32_t rank;
};

struct hl_ahead_gang {
    const struct hl_ahead_shard *shards; /* one that several ranks of a node read counts once */
    size_t count;
    int64_t start_ms; /* of its containers */
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
    struct hl_ahead_move *moves; /* the one that begins first comes first */
    size_t count;
    uint64_t bytes;   /* that the gang reads on its nodes */
    uint64_t local;   /* are there */
    uint64_t in_time; /* will be there */
    uint64_t no_room; /* have no room there, or the node takes nothing */
};

void hl_ahead_fini(struct hl_ahead *a);
hl_status hl_ahead_plan(const struct hl_ahead_gang *gang, const struct hl_ahead_world *world,
                        int64_t now_ms, struct hl_ahead *out) HL_CHECK;
/* 0..1: of its bytes, local when it starts; 1 for a gang that reads nothing. */
double hl_ahead_share(const struct hl_ahead *a);

#endif
