/* controller/copies/copies_private.h - the table of copies, L3's answers, and the sweep's notes.
 *
 * Threads: the Controller's loop.
 */
#ifndef HL_CONTROLLER_COPIES_PRIVATE_H
#define HL_CONTROLLER_COPIES_PRIVATE_H

#include <uthash.h>

#include "base/arena.h"
#include "controller/copies/copies.h"
#include "controller/core.h"
#include "controller/nodes/nodes.h"
#include "core/catalog/sweep.h"

/* A copy in a node's L1 or L2. */
struct copy {
    struct hl_id id;
    struct node *node;
    enum hl_api_tier tier;
    bool dropping; /* its drop was ordered, so no plan counts on it */
    unsigned round;
    struct copy *next;
    struct copy *node_prev, *node_next; /* links of all copies of its node */
    /* except id, tier and node, which are above; its strings are in `texts` */
    struct hl_api_copy info;
    char texts[];
};

struct holding {
    struct hl_id id;
    struct copy *copies;
    bool gone;           /* the shard was removed: drop its copies */
    uint64_t unknown_ns; /* since when the catalogue has not known it; 0 = it does */
    bool unsettled;      /* in copies.unsettled */
    struct holding *prev, *next;
    UT_hash_handle hh;
};

/* The status of a call to a holder: a replaced connection cancels its calls, but HL_ECANCELED is
 * reserved for the end of the Controller itself. */
static inline hl_status holder_status(hl_status st)
{
    return st == HL_ECANCELED ? HL_EUNAVAIL : st;
}

struct orphan {
    struct hl_id id;
    struct hl_orphan seen;
    UT_hash_handle hh;
};

struct hl_timer;

/* A long walk, done in small parts, one per turn of the loop. */
struct turns {
    struct hl_controller *c;
    bool (*turn)(struct hl_controller *c); /* true: the walk is finished */
    void (*done)(struct hl_controller *c);
    struct hl_timer *timer; /* NULL: no turn is scheduled */
};

struct copy_task;
struct kept_manifest;
struct securing;

struct copies {
    bool (*importing)(const struct hl_controller *c);
    const struct copy_events *events; /* NULL: none */
    struct holding *holdings;         /* by shard */
    struct holding *unsettled;        /* those that the catalogue may not know */
    uint64_t shards_left; /* catalog.shards_left at the time when all others were known */
    struct orphan *orphans;
    struct copy_task *tasks;         /* that run */
    struct kept_manifest *manifests; /* by id: of the last sweep */
    int manifest_puts;               /* in flight */
    bool manifest_trouble;           /* trouble_is_new */
    struct hl_api_pool_info *pool;   /* as last heard, in pool_arena; NULL = L3 silent */
    struct hl_arena pool_arena;
    char l3_state[256];
    bool pool_asked;
    bool sweeping;
    bool sweep_waits; /* the sweep waits for the answer to its initial claim */
    unsigned sweep_round;
    uint64_t sweeps; /* completed, since this start */
    int pool_sweeps; /* sweeps finished since L3 started; below 0: one had begun before */
    uint64_t sweep_ns;
    struct turns settling;       /* after a sweep: handles what the pool has lost */
    struct hl_shard_rec *settle; /* the next one */
    unsigned settled_lost;
    struct turns pruning;     /* removes copies that inventories lacked */
    struct holding *prune;    /* the next one */
    bool archiving;           /* a batch is being archived */
    struct hl_id archived_to; /* last shard of the last full batch; none: start at the first */
    bool archive_trouble;     /* trouble_is_new */
    enum hl_durability durability;
    struct securing *securings; /* all */
    unsigned securing_count;    /* number in progress */
    struct securing *restoring; /* of visible versions */
    bool restore_trouble;       /* trouble_is_new */
    char restore_why[HL_ERROR_TEXT_MAX];
    size_t lacking; /* number of shards, according to the last sweep */
};

/* turns.c */
/* Runs the first turn now, and `done` if that was the last one. Does nothing if the walk is already
 * running. */
void turns_begin(struct turns *t);
void turns_stop(struct turns *t);

/* copy_task.c */
bool copy_task_runs(const struct hl_controller *c, struct hl_id shard);

/* sweep.c */
/* The shard is lost, and neither an absent node nor a running copy could bring it back. */
bool copies_shard_is_gone(struct hl_controller *c, const struct hl_shard_rec *s);
/* The round's inventories are complete: marks shards as lost, or as found again. */
void sweep_settle(struct hl_controller *c);
/* Tells L3 the CRCs of archived shards whose CRC it does not know, or has from the shard's own
 * header, which proves nothing of itself. `extents`: as L3 listed them. */
void sweep_state_archived(struct hl_controller *c, const struct hl_api_extent_list *extents);

/* copies.c */
/* The node's inventory is complete: forgets the copies that it did not list. */
void copies_listed(struct hl_controller *c, struct node *n);
/* Bytes that differ from what the catalogue says are not a copy, whatever their id. NULL: the
 * catalogue does not have the shard. */
bool copy_is_right(const struct hl_shard_rec *s, const struct hl_api_copy *info);
/* Takes a copy from an answer of a node's Agent. */
void copies_learn(struct hl_controller *c, struct node *n, const struct hl_api_copy *copy);
/* A copy was added or removed: notifies the watcher. */
void copies_changed(struct hl_controller *c, struct hl_id id);
/* Forgets copies of that kind, which don't exist (any more). */
void copies_forget(struct hl_controller *c, struct node *n, struct hl_id id, enum hl_api_tier tier,
                   const char *device);
void copies_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on);
/* The same for any place. */
void copies_mark_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on);
/* The shard was removed: drops its copies everywhere, now or when their node is back. */
void copies_remove(struct hl_controller *c, struct hl_id id);
void holdings_fini(struct hl_controller *c);

struct holders_query {
    const struct place *without; /* a copy that does not count; NULL: all count */
    int64_t awaited_ms; /* a node that was silent for less than this may come back, so it counts */
};

/* Lists the holders of copies in force, at most `max`. */
size_t copies_holders(struct hl_controller *c, const struct hl_shard_rec *s,
                      const struct holders_query *q, struct hl_holder *out, size_t max);

/* secure.c */
void securings_tick(struct hl_controller *c);
void securings_fini(struct hl_controller *c);
/* "L2 and L3": the tiers of holders that count; or "no tier". */
void holders_text(const struct hl_holder *holders, size_t count, char *buf, size_t cap);
/* What the durability requires, as a clause. */
const char *durability_wants(enum hl_durability durability);

/* lacking.c */
/* After a sweep: makes missing copies. */
void durability_restore(struct hl_controller *c);

/* write_behind.c */
/* After a sweep: archives shards that are not archived yet, if the L3 daemon is configured so. */
void archive_write_behind(struct hl_controller *c);

/* pool.c */
/* The current sweep, as input for core/catalog/sweep.h. */
struct hl_sweep copies_sweep(const struct hl_controller *c);

/* orphans.c */
/* Notes a shard in pool or archive that no version has; it is freed after its grace period. */
void orphan_note(struct hl_controller *c, struct hl_id id, bool archived);
/* At the end of a sweep: frees those whose grace period is over. */
void orphans_settle(struct hl_controller *c);
void orphans_fini(struct hl_controller *c);

/* manifests.c */
/* Notes a manifest that the sweep has seen, in the pool or in the archive. */
void manifests_note(struct hl_controller *c, struct hl_id id, bool archived);
/* The inventory is complete: writes missing manifests, and notes those without a version as
 * orphans. */
void manifests_settle(struct hl_controller *c);
/* Adds ids of manifests that are only in the pool, until the list has `max` entries, for which it
 * has room. */
void manifests_not_archived(const struct hl_controller *c, struct hl_api_text_list *ids, size_t max,
                            struct hl_arena *arena);
void manifests_fini(struct hl_controller *c);

/* cuts.c */
/* Removes cuts of which L3 has evicted a shard from the catalogue, and frees their remaining
 * shards. */
void cuts_drop_lost(struct hl_controller *c);
/* The shard has no good copy: if it belongs to a cut, drops the cut, so that the next reader has
 * the version cut again. */
void cuts_drop_damaged(struct hl_controller *c, struct hl_id id);

#endif
