/* l3d/l4_private.h - the archive side of the daemon, shared by l4*.c.
 *
 *     loop thread                                  workers (loads; fetches, stores: half as many)
 *     -----------                                  ----------------------------------------------
 *     l4_ask --> tasks (hash, by id and kind)
 *                  task: work, waiters ----------> task_run: load, store, drop, trash
 *     task_done <------- posted to the loop ------   st, text
 *     on_clock: waiters past their deadline
 *
 *     A task: asked --> running --> done, all its waiters are answered, freed
 *     A waiter: waiting --> answered with the task's result, or HL_ETIMEDOUT while the task runs on
 *
 * Threads: tasks, waiters and the clock belong to the loop; a running task's status and text belong
 *          to its worker.
 *
 * archive: NULL until the opener has reached the archive, then constant until l4_open_fini. So a
 * thread that has loaded the pointer (l4_archive) may use the archive without a lock.
 *
 * Locks, in locking order: room_lock (one eviction at a time; shards are looked at in the archive,
 * and in mode write-behind archived, while it is held: never taken on the loop), sign_lock (held
 * while the archive's owner is written), bad_lock, order_lock and filling_lock (guard `bad`,
 * `order`, `filling`; never held while blocking). */
#ifndef HL_L3D_L4_PRIVATE_H
#define HL_L3D_L4_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>

#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "l3d/workers.h"

struct l4_bad;
struct l4_order;
struct l4_opener;
struct task;
struct trash;
struct hl_timer;

/* A look at all archived shards. While it runs, its worker owns what follows `busy`. */
struct l4_check {
    struct work work;
    struct hl_l3d *d;
    bool busy;        /* the loop's */
    uint64_t next_ns; /* not again before this time */
    uint64_t missing; /* shards that it has found missing */
    struct hl_id first;
};

/* Makes room for writers that can't wait. */
struct l4_maker {
    struct work work;
    struct hl_l3d *d;
    pthread_mutex_t lock; /* guards what follows; while it runs, `size` stays and `comes` is the
                             worker's */
    bool running;
    bool comes; /* it made room */
    uint64_t size;
    unsigned evictable;     /* l4.evictable when it was asked for */
    uint64_t none_until_ns; /* until then, there is no room for `none_size` bytes */
    uint64_t none_size;
    unsigned none_evictable; /* l4.evictable then */
};

struct l4 {
    _Atomic(struct hl_archive *) archive; /* NULL: none, or not reached yet */
    struct l4_opener *opener;             /* NULL: none is configured */
    struct l4_opts opts;
    enum hl_api_archive_mode mode; /* of opts.mode */
    char *url;
    struct workers *loads;            /* for readers */
    struct workers *fetches, *stores; /* for moves, and for archiving: they yield to loads */
    struct task *tasks;               /* by kind and id */
    unsigned giving_way;              /* number of loads among them that yield */
    struct hl_timer *clock;
    unsigned filling; /* loads that have room; their shards can soon be evicted again */
    pthread_mutex_t filling_lock;
    struct trash *trash;       /* NULL: nothing is removed by age */
    pthread_mutex_t sign_lock; /* one thread at a time writes the archive's owner */
    struct l4_bad *bad;        /* by id; under bad_lock */
    pthread_mutex_t bad_lock;
    struct l4_check check;
    atomic_bool away;             /* the archive was reached, but can't be looked at now */
    atomic_uint_fast64_t look_ns; /* while it is unreachable: not before this time */
    struct l4_maker maker;
    atomic_uint evictable; /* grows when a shard of the pool has come into the archive or from it */
    struct l4_order *order; /* NULL: none was given; under order_lock */
    pthread_mutex_t order_lock;
    /* shards evicted by the order, and by their last use */
    atomic_uint_fast64_t evicted_ordered, evicted_unused;
    atomic_uint_fast64_t orders; /* that were given */
    pthread_mutex_t
        room_lock; /* one eviction at a time, so that each sees what is already in quarantine */
};

/* claim.c */
/* Call before a shard is stored: writes into the archive that it belongs to the pool's cluster,
 * with the newest revision that the pool knows. Blocks. HL_EPERM: it belongs to another cluster. */
hl_status claim_sign(struct hl_l3d *d, struct hl_archive *a) HL_CHECK;

/* trash.c; the first two block */
hl_status trash_now(struct hl_l3d *d, struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status untrash_now(struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status trash_start(struct hl_l3d *d) HL_CHECK;
void trash_stop(struct hl_l3d *d);
void trash_fini(struct hl_l3d *d);

/* l4_bad.c: any thread */
/* Marks an archived copy whose bytes are not the shard's; hl_error_text() says why. */
void l4_bad_mark(struct hl_l3d *d, struct hl_id id);
void l4_bad_clear(struct hl_l3d *d, struct hl_id id);
bool l4_bad_has(struct hl_l3d *d, struct hl_id id);
void l4_bad_fini(struct hl_l3d *d);

/* l4_look.c; all but l4_is_away and l4_check_soon block */
/* Looks at the archived object. HL_ENOENT: there is none, and if it has gone, the index forgets it.
 * HL_ECORRUPT: it is not the shard's. Any other failure: the archive can't be looked at. */
hl_status l4_look(struct hl_l3d *d, struct hl_id id) HL_CHECK;
/* Whether the archive has the shard of the pool, so that it can be loaded again. */
bool l4_holds(struct hl_l3d *d, const struct hl_pool_ref *ref);
/* After a read that found no object: HL_ENOENT, or why that is not certain. */
hl_status l4_gone(struct hl_l3d *d, struct hl_id id) HL_CHECK;

static inline bool l4_is_away(const struct hl_l3d *d)
{
    return atomic_load(&d->l4->away);
}

/* On the loop: looks at all shards, unless that was done a moment ago. */
void l4_check_soon(struct hl_l3d *d);
void l4_check_now(struct hl_l3d *d);

/* l4_room.c: after `stopping` was set; runs the loop until no room is being made. */
void l4_room_stop(struct hl_l3d *d);

/* l4_order.c: any thread */
/* For hl_pool_eviction.rank: shards of the order come first, in its order. */
uint64_t l4_order_rank(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns);
void l4_order_fini(struct hl_l3d *d);

/* l4_open.c */
/* The archive, which stays once reached; NULL: none, or not reached yet. Any thread. */
struct hl_archive *l4_archive(const struct hl_l3d *d);
/* Whether an archive is configured but not reached yet. */
bool l4_is_unreachable(const struct hl_l3d *d);
/* HL_EUNSUPPORTED without an archive; HL_EUNAVAIL, with the reason, while it is unreachable. */
hl_status l4_need(const struct hl_l3d *d, struct hl_archive **out) HL_CHECK;
/* A wrong configuration is a failure; an unreachable archive is tried again in a thread. */
hl_status l4_open(struct hl_l3d *d, const struct hl_archive_options *options) HL_CHECK;
void l4_open_stop(struct hl_l3d *d);
/* Closes the archive. */
void l4_open_fini(struct hl_l3d *d);

/* l4_store.c: for the table of counters. */
void l4_count_transfer(enum hl_api_tier source, enum hl_api_tier target, uint64_t size,
                       uint64_t begun_ns, hl_status st);

#endif
