/* core/placement/rules.h - the rules: what should happen to one shard because of its use, in order
 * of precedence.
 *
 *     many servers read it        to L3, at once
 *     another server reads it     to that server's L2
 *     its readers are scattered   back to L3
 *     heat                        active, or cooling
 *     it stays cool               to L3
 *     it is not read              from L3 to L4
 *     it is read again            to the L2 of its latest reader
 *
 * A move that speeds up reads happens only if its gain exceeds its cost, which grows with fluidity;
 * moves that relieve a node or make room are not weighed. What the watermarks of L1 require depends
 * on many shards and is not decided here.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms; bytes per second; seconds of gain and cost.
 * Limits:  only one place of a shard counts, that of its nearest copy.
 */
#ifndef HL_CORE_PLACEMENT_RULES_H
#define HL_CORE_PLACEMENT_RULES_H

#include "core/placement/shards.h"

enum hl_move_path {
    HL_MOVE_INSIDE,    /* between L1 and L2 of a node */
    HL_MOVE_MIGRATION, /* from L2 to another node's L2 */
    HL_MOVE_BACKBONE,  /* between a node and L3 */
    HL_MOVE_ARCHIVE,   /* between L3 and L4 */
    HL_MOVE_PATHS
};

struct hl_rule_world {
    const struct hl_placement_params *params;
    const double *rates;      /* of each path, measured, > 0 */
    double backbone_busy_pct; /* raises the threshold of migrations */
    const bool *takes;        /* by node: shards may go there; false if it drains or flaps */
    uint32_t node_count;
    /* set by hl_rules_prepare; 0: unknown, so every heat is computed */
    int64_t warm_ms, cool_ms; /* a single access keeps heat above the threshold this long */
};

struct hl_verdict {
    enum hl_life_event event; /* HL_LIFE_EVENTS: nothing is to be done */
    struct hl_place goal;     /* its present place if it is not moved */
    double value, limit;      /* hl_life_event_numbers */
    double gain_s, cost_s;    /* of a move that was weighed, else 0 */
    int64_t recheck_ms;       /* unless something happens, the verdict stays the same until then */
};

/* Computes the fields that save work when many shards are judged. */
void hl_rules_prepare(struct hl_rule_world *world);
/* Other servers read the shard so often that a rule about them may apply. The answer stays the same
 * until the shard is accessed or moved. */
bool hl_rules_are_crowded(const struct hl_placed_shard *s,
                          const struct hl_placement_params *params);
/* Until when hl_rules_judge would do nothing with the shard. For most shards this takes a tenth of
 * the work and does not touch their readers: s->crowded stands for those. now_ms or less: judge
 * it. */
int64_t hl_rules_rests_until(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms);
struct hl_verdict hl_rules_judge(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                                 int64_t now_ms);

/* Whether an active shard in a node's L2 should go to L1: it is hot, settled, rarely moved, and
 * worth the copy. */
struct hl_wish {
    bool for_l1;
    int64_t recheck_ms; /* unless something happens, for_l1 can't become true before that */
};

struct hl_wish hl_rules_wish(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms);
/* Seconds that the readers of the last window would save in total in the next window. */
double hl_rules_gain(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms);
/* Seconds that the copy is expected to take. */
double hl_rules_seconds(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                        struct hl_place goal);
/* The same, increased for a shard that was moved recently. */
double hl_rules_cost(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms);
/* Accesses from another server above which a shard goes there. */
double hl_rules_migrate_threshold(const struct hl_rule_world *world);
/* The path from one place to another; if it uses several networks, the slowest. */
enum hl_move_path hl_rules_path(struct hl_place from, struct hl_place goal);

#endif
