/* core/placement/placement.h - the use and the life of all shards: access reports and changes
 * in, attributes and histories out.
 *
 * Owns:    the tables of shards and of their sets, and what is known of nodes.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL, HL_EEXIST, HL_ENOENT, HL_ENOSPC, HL_ENOMEM. A report has no error: what
 *          is not applied is counted in the stats.
 * Units:   ms of the receiver's monotonic clock; one that goes back stands still.
 * Limits:  those of init; HL_NODES_MAX nodes. The index of a node that was removed is not used for
 *          another one before its accesses have left both windows of the readers.
 */
#ifndef HL_CORE_PLACEMENT_PLACEMENT_H
#define HL_CORE_PLACEMENT_PLACEMENT_H

#include "core/placement/index_list.h"
#include "core/placement/params.h"
#include "core/placement/reports.h"
#include "core/placement/sets.h"
#include "core/placement/shards.h"

#define HL_NODES_MAX 65535

struct hl_placement_node {
    struct hl_report_window reports;
    int64_t removed_ms; /* of one that is not known */
    int64_t left_ms;    /* it was fenced then; negative: never */
    bool known, fenced;
    bool flaps;                                    /* it was fenced twice within flap_ms */
    struct hl_index_list lists[HL_LISTED_KINDS];   /* in no order */
    uint64_t l1_arriving, l1_leaving, l2_arriving; /* bytes of moves in flight */
};

struct hl_placement_stats {
    uint64_t reports[HL_REPORT_FATES];
    uint64_t accesses;       /* applied */
    uint64_t unknown_shards; /* entries that were ignored */
    uint64_t clock_back;     /* times that were before an earlier one */
};

struct hl_placement {
    struct hl_placement_params params;
    struct hl_shard_table shards;
    struct hl_set_table sets;
    struct hl_history history;
    struct hl_placement_node *nodes;
    uint32_t node_count, node_room;
    int64_t now_ms;
    struct hl_placement_stats stats;
    struct hl_index_list touched;
    bool touched_all; /* the list ends: most were touched, or there was no memory */
};

struct hl_placement_opts {
    struct hl_placement_params params;
    uint32_t shards_max;
    int64_t now_ms;                             /* >= 0 */
    void (*advise)(void *memory, size_t bytes); /* asks for huge pages; NULL: nobody does */
};

hl_status hl_placement_init(struct hl_placement *p, const struct hl_placement_opts *opts) HL_CHECK;
void hl_placement_fini(struct hl_placement *p);
/* The params are in force, or refused and nothing has changed. */
hl_status hl_placement_configure(struct hl_placement *p, const struct hl_placement_params *params,
                                 int64_t now_ms) HL_CHECK;
uint64_t hl_placement_bytes(const struct hl_placement *p);

/* ---- nodes ---- */

hl_status hl_placement_node_add(struct hl_placement *p, uint64_t incarnation, int64_t now_ms,
                                uint16_t *node) HL_CHECK;
/* Another life of the node begins: reports of another one are ignored from now on, and it is not
 * fenced.
 */
hl_status hl_placement_node_start(struct hl_placement *p, uint16_t node,
                                  uint64_t incarnation) HL_CHECK;
/* Its reports are ignored until its next life. */
hl_status hl_placement_node_fence(struct hl_placement *p, uint16_t node) HL_CHECK;
/* Shards may go there: it is known, not fenced, and does not come and go. */
bool hl_placement_node_is_steady(const struct hl_placement *p, uint16_t node);
hl_status hl_placement_node_remove(struct hl_placement *p, uint16_t node, int64_t now_ms) HL_CHECK;

/* ---- shards ---- */

hl_status hl_placement_shard_add(struct hl_placement *p, struct hl_id id, uint64_t size_bytes,
                                 struct hl_place place, int64_t now_ms) HL_CHECK;
hl_status hl_placement_shard_remove(struct hl_placement *p, struct hl_id id) HL_CHECK;
/* A pinned shard is not moved away. */
hl_status hl_placement_shard_pin(struct hl_placement *p, struct hl_id id, bool pinned) HL_CHECK;
/* A copy of it begins to go to `goal`; as below. */
hl_status hl_placement_shard_move(struct hl_placement *p, struct hl_id id,
                                  const struct hl_change *change, struct hl_place goal) HL_CHECK;
/* Carries it one step on in its life; a copy that came into force is a move. HL_ECONFLICT: the life
 * cycle has no such transition, and nothing has changed. change->at_ms is now. */
hl_status hl_placement_shard_change(struct hl_placement *p, struct hl_id id,
                                    const struct hl_change *change) HL_CHECK;
/* An ordered move has changed its place, of which its life knows nothing: it counts as one of late.
 */
hl_status hl_placement_shard_moved(struct hl_placement *p, struct hl_id id,
                                   int64_t now_ms) HL_CHECK;
/* The newest first; 0 = none, or not known. */
unsigned hl_placement_shard_history(const struct hl_placement *p, struct hl_id id,
                                    struct hl_change out[HL_CHANGES_MAX]);
/* Its nearest copy was found at another place than known, and no move brought it there: its life
 * begins there anew, or as one that has cooled before; what is known of its use stays.
 * HL_ECONFLICT: it moves. */
hl_status hl_placement_shard_found(struct hl_placement *p, struct hl_id id, struct hl_place place,
                                   int64_t now_ms) HL_CHECK;
/* Borrowed; NULL: not known. */
const struct hl_placed_shard *hl_placement_shard_find(const struct hl_placement *p,
                                                      struct hl_id id);

/* ---- sets ---- */

/* The shards of a rank, in its version; above HL_SET_NONE: a version, or a set without one. */
hl_status hl_placement_set_add(struct hl_placement *p, uint32_t above, uint32_t *set) HL_CHECK;
/* HL_ECONFLICT: it is not empty. */
hl_status hl_placement_set_remove(struct hl_placement *p, uint32_t set) HL_CHECK;
/* The shard is in that set and in no other; HL_SET_NONE: in none. A removed shard leaves its set.
 */
hl_status hl_placement_set_join(struct hl_placement *p, struct hl_id id, uint32_t set) HL_CHECK;
/* Its shards, and those of the sets in it, are not moved away. */
hl_status hl_placement_set_pin(struct hl_placement *p, uint32_t set, bool pinned) HL_CHECK;

/* A set with the sets in it. */
struct hl_set_view {
    uint32_t shards, pinned, moving;
    uint64_t bytes[HL_API_TIER_COUNT]; /* by the tier of their nearest copy */
    double heat, stability;            /* of its hottest and of its most stable shard */
    int64_t last_ms;                   /* negative: no access yet */
    bool in_memory;                    /* no reader of it waits for L4 */
};

hl_status hl_placement_set_look(const struct hl_placement *p, uint32_t set,
                                struct hl_set_view *out) HL_CHECK;

/* ---- for the policy ---- */

void hl_placement_advance(struct hl_placement *p, int64_t now_ms);
/* It is in that list of the node of its place, and in no other. */
hl_status hl_placement_list(struct hl_placement *p, uint32_t index, enum hl_listed list) HL_CHECK;
/* The next pass judges it. */
void hl_placement_touch(struct hl_placement *p, uint32_t index);
/* What was touched, in exchange for an empty list. Each of them is marked as touched still; not in
 * the list is what was removed, or, if *all, most of them. */
void hl_placement_take_touched(struct hl_placement *p, struct hl_index_list *list, bool *all);

enum hl_report_fate hl_placement_report(struct hl_placement *p, uint16_t node,
                                        const struct hl_report *report, int64_t now_ms);
/* Of one of several processes of the node that number their own reports: in `window`, which the
 * caller keeps for each. */
enum hl_report_fate hl_placement_report_of(struct hl_placement *p, uint16_t node,
                                           struct hl_report_window *window,
                                           const struct hl_report *report, int64_t now_ms);

#endif
