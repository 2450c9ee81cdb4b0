/* core/placement/rules.h - what follows from the use of one shard: the rules, in the order in which
 * they outrank each other.
 *
 *     many servers read it        to L3, at once
 *     another server reads it     to that server's L2
 *     its readers are scattered   back to L3
 *     heat                        active, or cooling
 *     it stays cool               to L3
 *     nobody reads it             from L3 to L4
 *     it is read again            to the L2 of its latest reader
 *
 * A move for the sake of reads happens where their gain is above its cost, which grows with
 * fluidity; moves that relieve a node or make room are not weighed. What L1's watermarks ask for
 * depends on many shards and is not decided here.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms; bytes per second; seconds of gain and cost.
 * Limits:  a shard has one place, its nearest one.
 */
#ifndef HL_CORE_PLACEMENT_RULES_H
#define HL_CORE_PLACEMENT_RULES_H

#include "core/placement/shards.h"

enum hl_move_path {
    HL_MOVE_INSIDE,    /* L1 and L2 of a node */
    HL_MOVE_MIGRATION, /* L2 to L2 of another node */
    HL_MOVE_BACKBONE,  /* a node and L3 */
    HL_MOVE_ARCHIVE,   /* L3 and L4 */
    HL_MOVE_PATHS
};

struct hl_rule_world {
    const struct hl_placement_params *params;
    const double *rates;      /* of each path, measured, > 0 */
    double backbone_busy_pct; /* raises the threshold of migrations */
    const bool *takes;        /* by node: shards may go there; not when it drains or flaps */
    uint32_t node_count;
    /* by hl_rules_prepare; 0: not known, and all heat is worked out */
    int64_t warm_ms, cool_ms; /* an access alone keeps heat above the threshold for so long */
};

struct hl_verdict {
    enum hl_life_event event; /* HL_LIFE_EVENTS: nothing follows */
    struct hl_place goal;     /* its place where it is not moved */
    double value, limit;      /* hl_life_event_numbers */
    double gain_s, cost_s;    /* of a move that is weighed, else 0 */
    int64_t recheck_ms;       /* without an event, the verdict is the same before that */
};

/* Works out what spares work with many shards. */
void hl_rules_prepare(struct hl_rule_world *world);
/* Servers other than its own read it so often that a rule about them may apply; without an access,
 * or another place, that stays so. */
bool hl_rules_are_crowded(const struct hl_placed_shard *s,
                          const struct hl_placement_params *params);
/* As hl_rules_judge says, nothing follows of the shard before that: known of most at a tenth of the
 * work, and without their readers, for which s->crowded stands. now_ms or less: judge it. */
int64_t hl_rules_rests_until(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms);
struct hl_verdict hl_rules_judge(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                                 int64_t now_ms);

/* Of an active shard in a node's L2: it is hot, settled, seldom moved, and worth a copy to L1. */
struct hl_wish {
    bool for_l1;
    int64_t recheck_ms; /* without an event it does not begin to wish before that */
};

struct hl_wish hl_rules_wish(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms);
/* Seconds that all readers of the last window would save in the next one. */
double hl_rules_gain(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms);
/* Seconds that the copy takes, more for a shard that was moved of late. */
double hl_rules_cost(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms);
/* Accesses from another server above which a shard goes there. */
double hl_rules_migrate_threshold(const struct hl_rule_world *world);
/* How a shard goes from one place to another; the slowest network where there are several. */
enum hl_move_path hl_rules_path(struct hl_place from, struct hl_place goal);

#endif
