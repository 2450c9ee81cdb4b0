/* The archive side of the daemon, shared by l4*.c.
 *
 *     loop thread                                  workers (loads; fetches, stores: half as many)
 *     -----------                                  ----------------------------------------------
 *     l4_ask --> tasks (hash, by id and kind)
 *                  task: work, waiters ----------> task_run: load, store, drop, trash
 *     task_done <------- posted to the loop ------   st, text
 *     on_clock: waiters past their deadline
 *
 *     A task: asked --> running --> done, all its waiters are answered, freed
 *     A waiter: waiting --> answered with the task's end, or HL_ETIMEDOUT while the task goes on
 *
 * Tasks, waiters and the clock are the loop's; a running task's status and text are its worker's.
 *
 * archive: NULL until the opener has reached it, then constant until l4_open_fini. So a thread that
 * has loaded the pointer (l4_archive) may use the archive without a lock.
 *
 * Locks, in their order: room_lock (one eviction at a time; in mode write-behind it archives shards
 * meanwhile), sign_lock (the archive's owner is being written), bad_lock, order_lock and
 * filling_lock (`bad`, `order`, `filling`; they never wait). */
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

struct l4 {
    _Atomic(struct hl_archive *) archive; /* NULL: none, or away */
    struct l4_opener *opener;             /* NULL: none is configured */
    struct l4_opts opts;
    enum hl_api_archive_mode mode; /* of opts.mode */
    char *url;
    struct workers *loads;            /* for readers */
    struct workers *fetches, *stores; /* of moves, and what is archived: they give way */
    struct task *tasks;               /* by kind and id */
    unsigned giving_way;              /* loads among them that others may end */
    struct hl_timer *clock;
    unsigned filling; /* loads that have room: soon they can be given up again */
    pthread_mutex_t filling_lock;
    struct trash *trash;       /* NULL: nothing leaves it by time */
    pthread_mutex_t sign_lock; /* one at a time writes the archive's owner */
    struct l4_bad *bad;        /* by id; under bad_lock */
    pthread_mutex_t bad_lock;
    struct l4_order *order; /* NULL: none was given; under order_lock */
    pthread_mutex_t order_lock;
    atomic_uint_fast64_t evicted_ordered, evicted_unused; /* shards: by the order, by their use */
    atomic_uint_fast64_t orders;                          /* that were given */
    pthread_mutex_t
        room_lock; /* one eviction at a time, so that each sees what is in quarantine already */
};

/* claim.c */
/* Before a shard is stored: the archive says that it is the pool's cluster's, and the newest
 * revision that the pool has heard of. Waits. HL_EPERM: it is another's. */
hl_status claim_sign(struct hl_l3d *d, struct hl_archive *a) HL_CHECK;

/* trash.c; the first two wait */
hl_status trash_now(struct hl_l3d *d, struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status untrash_now(struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status trash_start(struct hl_l3d *d) HL_CHECK;
void trash_stop(struct hl_l3d *d);
void trash_fini(struct hl_l3d *d);

/* l4_bad.c: any thread */
/* The archived copy is not the shard's bytes; hl_error_text() says how. */
void l4_bad_mark(struct hl_l3d *d, struct hl_id id);
void l4_bad_clear(struct hl_l3d *d, struct hl_id id);
bool l4_bad_has(struct hl_l3d *d, struct hl_id id);
void l4_bad_fini(struct hl_l3d *d);

/* l4_order.c: any thread */
/* hl_pool_eviction: those of the order in its order, before all others. */
uint64_t l4_order_rank(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns);
void l4_order_fini(struct hl_l3d *d);

/* l4_open.c */
/* Once it is there it stays; NULL: none, or away. Any thread. */
struct hl_archive *l4_archive(const struct hl_l3d *d);
/* Configured, and not reached yet. */
bool l4_is_unreachable(const struct hl_l3d *d);
/* HL_EUNSUPPORTED without an archive; HL_EUNAVAIL while it is away, saying why. */
hl_status l4_need(const struct hl_l3d *d, struct hl_archive **out) HL_CHECK;
/* What is set up wrongly is a failure; what can't be reached is tried again in a thread. */
hl_status l4_open(struct hl_l3d *d, const struct hl_archive_options *options) HL_CHECK;
void l4_open_stop(struct hl_l3d *d);
/* Closes the archive. */
void l4_open_fini(struct hl_l3d *d);

/* l4_store.c: for the table of counters. */
void l4_count_transfer(enum hl_api_tier source, enum hl_api_tier target, uint64_t size,
                       uint64_t begun_ns, hl_status st);

#endif
