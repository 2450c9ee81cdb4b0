/* core/placement/placement.h - tracks the use and the life cycle of all shards: access reports and
 * changes in, attributes and histories out.
 *
 * Owns:    the tables of shards, of their sets and of nodes.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL, HL_EEXIST, HL_ENOENT, HL_ENOSPC, HL_ENOMEM. A report never fails: what is not
 *          applied is counted in the stats.
 * Units:   ms of the receiver's monotonic clock; a time that goes back is replaced by the latest
 *          one.
 * Limits:  those given to init; HL_NODES_MAX nodes. The index of a removed node is not reused
 *          before its accesses have left both windows of the readers.
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
    int64_t removed_ms; /* when it was removed, if it is not known */
    int64_t left_ms;    /* when it was fenced; negative: never */
    bool known, fenced;
    bool flaps;                                    /* it was fenced twice within flap_ms */
    struct hl_index_list lists[HL_LISTED_KINDS];   /* unordered */
    uint64_t l1_arriving, l1_leaving, l2_arriving; /* bytes of moves in flight */
    uint64_t l1_pinned;                            /* of the shards whose place it is */
};

struct hl_placement_stats {
    uint64_t reports[HL_REPORT_FATES];
    uint64_t accesses;       /* applied */
    uint64_t unknown_shards; /* ignored entries */
    uint64_t clock_back;     /* how often a time went back */
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
    bool touched_all; /* the list was given up: most shards were touched, or memory ran out */
};

struct hl_placement_opts {
    struct hl_placement_params params;
    uint32_t shards_max;
    int64_t now_ms;                             /* >= 0 */
    void (*advise)(void *memory, size_t bytes); /* requests huge pages; NULL: don't */
};

hl_status hl_placement_init(struct hl_placement *p, const struct hl_placement_opts *opts) HL_CHECK;
void hl_placement_fini(struct hl_placement *p);
/* Applies the params, or refuses them and changes nothing. */
hl_status hl_placement_configure(struct hl_placement *p, const struct hl_placement_params *params,
                                 int64_t now_ms) HL_CHECK;
uint64_t hl_placement_bytes(const struct hl_placement *p);

/* ---- nodes ---- */

hl_status hl_placement_node_add(struct hl_placement *p, uint64_t incarnation, int64_t now_ms,
                                uint16_t *node) HL_CHECK;
/* A new incarnation of the node begins, and is not fenced. Reports of any other incarnation are
 * ignored from now on. */
hl_status hl_placement_node_start(struct hl_placement *p, uint16_t node,
                                  uint64_t incarnation) HL_CHECK;
/* Ignores the node's reports until its next incarnation. */
hl_status hl_placement_node_fence(struct hl_placement *p, uint16_t node) HL_CHECK;
/* Shards may go there: the node is known, not fenced, and does not flap. */
bool hl_placement_node_is_steady(const struct hl_placement *p, uint16_t node);
hl_status hl_placement_node_remove(struct hl_placement *p, uint16_t node, int64_t now_ms) HL_CHECK;

/* ---- shards ---- */

hl_status hl_placement_shard_add(struct hl_placement *p, struct hl_id id, uint64_t size_bytes,
                                 struct hl_place place, int64_t now_ms) HL_CHECK;
hl_status hl_placement_shard_remove(struct hl_placement *p, struct hl_id id) HL_CHECK;
/* A pinned shard is not moved away. */
hl_status hl_placement_shard_pin(struct hl_placement *p, struct hl_id id, bool pinned) HL_CHECK;
/* A copy of the shard to `goal` begins; otherwise as hl_placement_shard_change. */
hl_status hl_placement_shard_move(struct hl_placement *p, struct hl_id id,
                                  const struct hl_change *change, struct hl_place goal) HL_CHECK;
/* Makes one transition of the shard's life cycle; a copy that comes into force counts as a move.
 * HL_ECONFLICT: there is no such transition, and nothing changes. change->at_ms is now. */
hl_status hl_placement_shard_change(struct hl_placement *p, struct hl_id id,
                                    const struct hl_change *change) HL_CHECK;
/* A move ordered by a user has changed the shard's place without a transition: it counts as a
 * recent move. */
hl_status hl_placement_shard_moved(struct hl_placement *p, struct hl_id id,
                                   int64_t now_ms) HL_CHECK;
/* A move is over and its old copy stays: change->event says why. A migrated shard has settled. */
hl_status hl_placement_shard_kept(struct hl_placement *p, struct hl_id id,
                                  const struct hl_change *change) HL_CHECK;
/* Lists its changes, newest first, and returns how many; 0 = none, or unknown shard. */
unsigned hl_placement_shard_history(const struct hl_placement *p, struct hl_id id,
                                    struct hl_change out[HL_CHANGES_MAX]);
/* The shard's nearest copy was found at an unexpected place, without a move. Its life cycle starts
 * again there, from the beginning or as a shard that had cooled before; its usage statistics and
 * its history stay. A copy that was lost and is found where it was continues its life.
 * HL_ECONFLICT: it is moving. */
hl_status hl_placement_shard_found(struct hl_placement *p, struct hl_id id, struct hl_place place,
                                   int64_t now_ms) HL_CHECK;
/* No copy of the shard can be read: nothing is decided about it until one is found.
 * HL_ECONFLICT: it is moving. */
hl_status hl_placement_shard_lost(struct hl_placement *p, struct hl_id id, int64_t now_ms) HL_CHECK;
/* Borrowed; NULL: unknown. */
const struct hl_placed_shard *hl_placement_shard_find(const struct hl_placement *p,
                                                      struct hl_id id);

/* ---- sets ---- */

/* Adds a set: the shards of a rank, inside its version's set `above`. With HL_SET_NONE above it is
 * a version, or a set without one. */
hl_status hl_placement_set_add(struct hl_placement *p, uint32_t above, uint32_t *set) HL_CHECK;
/* HL_ECONFLICT: the set is not empty. */
hl_status hl_placement_set_remove(struct hl_placement *p, uint32_t set) HL_CHECK;
/* Puts the shard into that set and no other; HL_SET_NONE: into none. A removed shard leaves its
 * set. */
hl_status hl_placement_set_join(struct hl_placement *p, struct hl_id id, uint32_t set) HL_CHECK;
/* While a set is pinned, its shards and those of the sets in it are not moved away. */
hl_status hl_placement_set_pin(struct hl_placement *p, uint32_t set, bool pinned) HL_CHECK;

/* A set, including the sets in it. */
struct hl_set_view {
    uint32_t shards, pinned, moving;
    uint64_t bytes[HL_API_TIER_COUNT]; /* by the tier of their nearest copy */
    double heat, stability;            /* of its hottest shard, and of its most stable one */
    int64_t last_ms;                   /* negative: no access yet */
};

hl_status hl_placement_set_look(const struct hl_placement *p, uint32_t set,
                                struct hl_set_view *out) HL_CHECK;

/* ---- for the policy ---- */

void hl_placement_advance(struct hl_placement *p, int64_t now_ms);
/* Puts the shard into that list of the node where it is, and into no other. */
hl_status hl_placement_list(struct hl_placement *p, uint32_t index, enum hl_listed list) HL_CHECK;
/* Makes the next pass judge the shard. */
void hl_placement_touch(struct hl_placement *p, uint32_t index);
/* Takes the list of touched shards and leaves an empty one. The shards stay marked as touched.
 * Removed shards are not in the list; if *all, most touched shards are missing from it. */
void hl_placement_take_touched(struct hl_placement *p, struct hl_index_list *list, bool *all);

enum hl_report_fate hl_placement_report(struct hl_placement *p, uint16_t node,
                                        const struct hl_report *report, int64_t now_ms);
/* For a node with several processes that each number their own reports: the caller keeps one
 * `window` per process. */
enum hl_report_fate hl_placement_report_of(struct hl_placement *p, uint16_t node,
                                           struct hl_report_window *window,
                                           const struct hl_report *report, int64_t now_ms);

#endif
