/* What the files of this wing share: the table of copies, what L3 said, and the sweep's notes. */
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
    bool dropping; /* ordered to go: no plan counts on it */
    unsigned round;
    struct copy *next;
    struct copy *node_prev, *node_next; /* all of its node */
    struct hl_api_copy info; /* but for id, tier and node, which are above; texts lie behind it */
    char texts[];
};

struct holding {
    struct hl_id id;
    struct copy *copies;
    bool gone;           /* the shard was removed: copies are to be dropped */
    uint64_t unknown_ns; /* since when the catalogue does not know it, 0 = it does */
    bool unsettled;      /* in copies.unsettled */
    struct holding *prev, *next;
    UT_hash_handle hh;
};

/* How a call to a holder has ended: a connection that was replaced cancels its calls, and
 * HL_ECANCELED is kept for the end of the Controller itself. */
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

/* A walk over much, some in each turn of the loop. */
struct turns {
    struct hl_controller *c;
    bool (*turn)(struct hl_controller *c); /* true: it is over */
    void (*done)(struct hl_controller *c);
    struct hl_timer *timer; /* NULL: none is to come */
};

struct copy_task;
struct kept_manifest;
struct securing;

struct copies {
    bool (*importing)(const struct hl_controller *c);
    const struct copy_events *events; /* NULL: none */
    struct holding *holdings;         /* by shard */
    struct holding *unsettled;        /* those of them that the catalogue may not know */
    uint64_t shards_left;             /* catalog.shards_left when all others were known */
    struct orphan *orphans;
    struct copy_task *tasks;         /* that run */
    struct kept_manifest *manifests; /* by id: of the last sweep */
    int manifest_puts;               /* under way */
    bool manifest_trouble;           /* trouble_is_new */
    struct hl_api_pool_info *pool;   /* as last heard, in pool_arena; NULL = L3 silent */
    struct hl_arena pool_arena;
    char l3_state[256];
    bool pool_asked;
    bool sweeping;
    bool sweep_waits; /* for the answer to the claim that it begins with */
    unsigned sweep_round;
    int pool_sweeps; /* that are over, since L3 has started; below 0: one had begun before */
    uint64_t sweep_ns;
    struct turns settling;       /* what the pool has lost, after a sweep */
    struct hl_shard_rec *settle; /* the next one */
    unsigned settled_lost;
    struct turns pruning;  /* copies that inventories had not */
    struct holding *prune; /* the next one */
    bool archiving;        /* a batch is on its way into the archive */
    bool archive_trouble;  /* trouble_is_new */
    enum hl_durability durability;
    struct securing *securings; /* all */
    unsigned securing_count;    /* that go on */
    struct securing *restoring; /* of visible versions */
    bool restore_trouble;       /* trouble_is_new */
    char restore_why[HL_ERROR_TEXT_MAX];
    size_t lacking; /* shards, by the last sweep */
};

/* turns.c */
/* The first turn now, and `done` with it where it is the last one too. Nothing where it goes on
 * already. */
void turns_begin(struct turns *t);
void turns_stop(struct turns *t);

/* copy_task.c */
bool copy_task_runs(const struct hl_controller *c, struct hl_id shard);

/* sweep.c */
/* Lost, and nobody who is away, or brings it now, could change that. */
bool copies_shard_is_gone(struct hl_controller *c, const struct hl_shard_rec *s);
/* The round's inventories are complete: shards become lost, or are found again. */
void sweep_settle(struct hl_controller *c);

/* copies.c */
/* The node has told all that it has: of what it has not told the copies go. */
void copies_listed(struct hl_controller *c, struct node *n);
/* An answer of a node's Agent. */
void copies_learn(struct hl_controller *c, struct node *n, const struct hl_api_copy *copy);
/* A copy of it has come or gone: says so to who watches. */
void copies_changed(struct hl_controller *c, struct hl_id id);
/* The copies of that kind are not there (any more). */
void copies_forget(struct hl_controller *c, struct node *n, struct hl_id id, enum hl_api_tier tier,
                   const char *device);
void copies_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on);
/* The same of any place. */
void copies_mark_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, bool on);
/* The shard was removed: its copies go wherever they are, now or when their node is back. */
void copies_remove(struct hl_controller *c, struct hl_id id);
void holdings_fini(struct hl_controller *c);

struct holders_query {
    const struct place *without; /* that copy does not count; NULL: all do */
    int64_t awaited_ms;          /* a node that was silent for less may come back: it counts */
};

/* Holders of copies in force, at most `max`. */
size_t copies_holders(struct hl_controller *c, const struct hl_shard_rec *s,
                      const struct holders_query *q, struct hl_holder *out, size_t max);

/* secure.c */
void securings_tick(struct hl_controller *c);
void securings_fini(struct hl_controller *c);
/* "L2 and L3", as far as they count; "no tier". */
void holders_text(const struct hl_holder *holders, size_t count, char *buf, size_t cap);
/* As a clause. */
const char *durability_wants(enum hl_durability durability);

/* lacking.c */
/* After a sweep: what lacks copies gets them again. */
void durability_restore(struct hl_controller *c);

/* write_behind.c */
/* After a sweep: archive what is not yet, where the L3 daemon wants that. */
void archive_write_behind(struct hl_controller *c);

/* pool.c */
/* The sweep as of now, for what core/catalog/sweep.h decides. */
struct hl_sweep copies_sweep(const struct hl_controller *c);

/* orphans.c */
/* A shard in pool or archive that no version holds; it is freed after its grace. */
void orphan_note(struct hl_controller *c, struct hl_id id, bool archived);
/* At the end of a sweep: free those whose grace is over. */
void orphans_settle(struct hl_controller *c);
void orphans_fini(struct hl_controller *c);

/* manifests.c */
/* The sweep has seen one, in the pool or in the archive. */
void manifests_note(struct hl_controller *c, struct hl_id id, bool archived);
/* The whole inventory was seen: missing ones are written, those of no version are noted as
 * orphans. */
void manifests_settle(struct hl_controller *c);
/* Adds ids of those that are in the pool only, until the list has `max`, for which it has room. */
void manifests_not_archived(const struct hl_controller *c, struct hl_api_text_list *ids, size_t max,
                            struct hl_arena *arena);
void manifests_fini(struct hl_controller *c);

/* cuts.c */
/* Cuts of which L3 has evicted a shard leave the catalogue; what is left of them is freed. */
void cuts_drop_lost(struct hl_controller *c);
/* No copy of the shard is good: if it belongs to a cut, the next reader has the version cut again.
 */
void cuts_drop_damaged(struct hl_controller *c, struct hl_id id);

#endif
