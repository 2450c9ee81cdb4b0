/* core/placement/policy.h - the policy: computes what the rules and the watermarks of L1 require
 * now, as a list of decisions in order of urgency, within the available room and budgets.
 *
 * A pass looks only at the shards that were read or changed since the last pass, those whose
 * verdict may have changed with time, and those left open. Its decisions are the same as if it
 * looked at all shards.
 *
 *     above the high watermark    sets of least stability leave L1 until it is not above it; those
 *                                 that came only now are the last ones
 *     below the low watermark     active shards of the node's L2, the hottest sets first, until it
 *                                 is not below it; what is often moved stays in L2
 *     between them                nothing: neither undoes the other
 *
 * Per pass at most about HL_POLICY_LOOK_MAX shards in L1 are looked at: after that many the pass
 * finishes the current node, and the next pass continues with the node after it.
 *
 * Owns:    its timers and lists; decisions are borrowed until the next pass.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_ENOMEM; HL_EINVAL for invalid limits. After an error the next pass is a full one.
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
    uint64_t l1_bytes, l1_used; /* including the chunks of HybridPS; l1_bytes 0: no L1 */
    uint64_t l2_bytes, l2_used;
    bool takes; /* false: it drains. A node that is fenced or flaps gets nothing in any case */
};

struct hl_policy_limits {
    const struct hl_node_limits *nodes; /* by index */
    uint32_t node_count;
    double rates[HL_MOVE_PATHS]; /* measured */
    /* moves begin while it is above 0; the last one may exceed it */
    int64_t budget[HL_MOVE_PATHS];
    double backbone_busy_pct; /* NaN or below 0: unknown */
};

struct hl_decision {
    struct hl_id shard;
    enum hl_life_event event;
    struct hl_place from, goal; /* if equal, only the state changes */
    uint64_t size_bytes;
    double value, limit;   /* hl_life_event_numbers */
    double gain_s, cost_s; /* only of a move that was weighed */
    double copy_s;         /* expected duration of the copy; 0: there is none */
    double order;          /* order among decisions with the same event */
};

struct hl_policy {
    struct hl_timers timers;
    struct hl_index_list now; /* to be judged */
    size_t open;              /* shards that the next pass judges again in any case */
    struct hl_decision *decisions;
    size_t count, room;
    struct hl_leaving_list leaving; /* of one node */
    size_t judged;                  /* shards that the last pass looked at */
    size_t deferred;                /* decisions for which there was no room or budget */
    /* of the last pass; if they change, everything is judged again */
    struct hl_placement_params params;
    double rates[HL_MOVE_PATHS];
    bool *takes;
    uint64_t *l2_free;
    uint32_t node_count;
    uint32_t pass;      /* below 2^31 */
    uint32_t next_node; /* the node whose L1 is looked at first */
    bool primed;
    bool failed; /* the last pass failed, so some timers are lost */
};

/* Zero-initialise the policy before its first pass, which is a full one. */
void hl_policy_fini(struct hl_policy *y);
hl_status hl_policy_pass(struct hl_policy *y, struct hl_placement *p,
                         const struct hl_policy_limits *limits, bool full, int64_t now_ms) HL_CHECK;
/* Memory of its timers, lists and decisions. */
uint64_t hl_policy_bytes(const struct hl_policy *y);
/* Records the decision in the shard's life cycle; the caller makes the copy. */
hl_status hl_policy_begin(struct hl_placement *p, const struct hl_decision *decision,
                          int64_t now_ms) HL_CHECK;

#endif
