/* core/placement/policy.h - the policy: what the rules and the watermarks of L1 ask for now, as a
 * list of decisions in the order of their urgency, within room and budgets.
 *
 * A pass looks at the shards that were read or changed since the last one, at those whose verdict
 * may have changed with time, and at what stood open; it decides the same as one that looks at all.
 *
 *     above the high watermark    sets of least stability leave L1 until it is not above it; those
 *                                 that came only now are the last ones
 *     below the low watermark     active shards of the node's L2, the hottest sets first, until it
 *                                 is not below it; what is often moved stays in L2
 *     between them                nothing: neither undoes the other
 *
 * Of L1 a pass looks at HL_POLICY_LOOK_MAX shards, and then ends the node; the next pass goes on
 * with the one after it.
 *
 * Owns:    its timers and lists; decisions are borrowed until the next pass.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOMEM; HL_EINVAL for limits that are refused. After an error the next pass is full.
 * Units:   ms, bytes, bytes per second.
 * Limits:  none of its own.
 */
#ifndef HL_CORE_PLACEMENT_POLICY_H
#define HL_CORE_PLACEMENT_POLICY_H

#include "core/placement/leaving.h"
#include "core/placement/placement.h"
#include "core/placement/rules.h"
#include "core/placement/timers.h"

#define HL_POLICY_LOOK_MAX 8192

struct hl_node_limits {
    uint64_t l1_bytes, l1_used; /* with the chunks of HybridPS; l1_bytes 0: it has no L1 */
    uint64_t l2_bytes, l2_used;
    bool takes; /* false: it drains; one that is fenced or flaps takes nothing anyway */
};

struct hl_policy_limits {
    const struct hl_node_limits *nodes; /* by index */
    uint32_t node_count;
    double rates[HL_MOVE_PATHS];   /* measured */
    int64_t budget[HL_MOVE_PATHS]; /* moves begin while it is above 0; the last may exceed it */
    double backbone_busy_pct;      /* NaN or below 0: not known */
};

struct hl_decision {
    struct hl_id shard;
    enum hl_life_event event;
    struct hl_place from, goal; /* the same: only the state changes */
    uint64_t size_bytes;
    double value, limit;   /* hl_life_event_numbers */
    double gain_s, cost_s; /* of a move that was weighed */
    double order;          /* among those of its event */
};

struct hl_policy {
    struct hl_timers timers;
    struct hl_index_list now; /* to be judged */
    size_t open;              /* shards that the next pass judges again whatever happens */
    struct hl_decision *decisions;
    size_t count, room;
    struct hl_leaving_list leaving;    /* of one node */
    size_t judged;                     /* shards that the last pass has looked at */
    size_t deferred;                   /* decisions without room or budget */
    struct hl_placement_params params; /* of the last pass: with others, all is judged again */
    double rates[HL_MOVE_PATHS];
    bool *takes;
    uint64_t *l2_free;
    uint32_t node_count;
    uint32_t pass;      /* below 2^31 */
    uint32_t next_node; /* whose L1 is looked at first */
    bool primed;
    bool failed; /* the last pass has: some of its timers are lost */
};

/* Zero-initialise before the first pass, which is a full one. */
void hl_policy_fini(struct hl_policy *y);
hl_status hl_policy_pass(struct hl_policy *y, struct hl_placement *p,
                         const struct hl_policy_limits *limits, bool full, int64_t now_ms) HL_CHECK;
/* Of its timers, lists and decisions. */
uint64_t hl_policy_bytes(const struct hl_policy *y);
/* Carries the decision into the life of its shard; the copy is the caller's to make. */
hl_status hl_policy_begin(struct hl_placement *p, const struct hl_decision *decision,
                          int64_t now_ms) HL_CHECK;

#endif
