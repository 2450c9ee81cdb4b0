/* l3d/l4.h - the archive below the pool: loads what the pool lacks, and takes what it can't hold.
 *
 * One task per shard and kind runs at a time, in a worker; callers that ask for the same meanwhile
 * wait for it.
 *
 * Owns:    the archive, its workers, the tasks.
 * Threads: the loop's, except for l4_alloc, l4_verify, l4_load_now and l4_store_now, which block:
 *          call these on any other thread.
 * Errors:  HL_ENOENT (in neither), HL_EUNAVAIL (the archive is unreachable), HL_ETIMEDOUT (the task
 *          continues), HL_ENOSPC (nothing can be evicted), HL_ECANCELED (the daemon is stopping),
 *          and the archive's own.
 * Units:   bytes, ms.
 * Limits:  without an archive everything behaves as with an empty one.
 */
#ifndef HL_L3D_L4_H
#define HL_L3D_L4_H

#include <stdatomic.h>
#include <stdbool.h>

#include "api/types.h"
#include "base/buf.h"
#include "base/id.h"
#include "mem/archive/archive.h"
#include "mem/pool/pool.h"

struct hl_l3d;
struct work;

enum l4_kind {
    L4_LOAD,  /* into the pool */
    L4_STORE, /* into the archive; fine if it is there already */
    L4_DROP,  /* from the archive */
    L4_TRASH, /* from the archive into its trash */
    L4_UNTRASH,
};

/* On the loop, once; `text` says why when st is not HL_OK. */
typedef void (*l4_done)(void *arg, hl_status st, const char *text);

struct l4_opts {
    struct hl_archive_options archive; /* url "" = none; used only during the start */
    double low_pct;                    /* of the pool: eviction stops at this level */

    /* Set by options, see hl_l4_rows. */
    const char *mode; /* "manual", "write-behind" */
    unsigned threads; /* loads at a time; stores have half of them */
    unsigned load_timeout_ms;
    unsigned retry_ms;      /* longest pause between two attempts to reach an unreachable archive */
    unsigned hold_ms;       /* shards used more recently than this are not evicted */
    uint64_t trash_keep_ms; /* shards in the trash are removed after this time; 0 = never */
};

extern const struct hl_option_rows hl_l4_rows;

hl_status l4_start(struct hl_l3d *d, const struct l4_opts *opts) HL_CHECK;
/* Ends running tasks (d->stopping is set) and answers all waiters. */
void l4_stop(struct hl_l3d *d);
/* Call when no more calls can come. */
void l4_fini(struct hl_l3d *d);

/* What a caller asks for. */
struct l4_asked {
    enum l4_kind kind;
    struct hl_id id;
    struct hl_id order; /* no id: l4_stop_order does not end it */
    /* a load that yields: HL_EBUSY while others load, HL_ENOSPC without free room */
    bool gives_way;
};

/* `done` is never called before this has returned. */
void l4_ask(struct hl_l3d *d, const struct l4_asked *what, l4_done done, void *arg);
/* Ends the tasks that were asked for under that order and that no other caller waits for; returns
 * how many. */
unsigned l4_stop_order(struct hl_l3d *d, struct hl_id order);
/* Runs other work on the threads of the loads. */
void l4_run(struct hl_l3d *d, struct work *work);

/* Reads the whole archived copy and checks it against its header; blocks. *crc: of the whole copy.
 */
hl_status l4_verify(struct hl_l3d *d, struct hl_id id, uint32_t *crc) HL_CHECK;
/* Whether there is an archived copy that is not known to be damaged. */
bool l4_has(struct hl_l3d *d, struct hl_id id, uint64_t *size);
/* For a shard that the pool lacks: HL_OK, or HL_EUNAVAIL while the archive is unreachable and may
 * have it. */
hl_status l4_knows(const struct hl_l3d *d, struct hl_id id) HL_CHECK;

/* A request for room. */
struct l4_want {
    struct hl_id id; /* none: a new one */
    uint64_t size;
    int near;                         /* NUMA node; -1 = any */
    const struct hl_pool_ref *beside; /* replacement bytes for this shard; NULL: a new shard */
    const atomic_bool *cancel;        /* set when no caller waits any more; may be NULL */
    bool fills;           /* the room is for a load; call l4_filled when that has ended */
    bool takes_free_only; /* evict nothing for it */
};

/* Allocates room in the pool, evicting archived shards; waits until their quarantine is over. */
hl_status l4_alloc(struct hl_l3d *d, const struct l4_want *want,
                   struct hl_pool_extent *out) HL_CHECK;
void l4_filled(struct hl_l3d *d);
/* The same without blocking: HL_EBUSY when there will be room soon. */
hl_status l4_try_alloc(struct hl_l3d *d, const struct l4_want *want,
                       struct hl_pool_extent *out) HL_CHECK;
/* Whether evictions can make room for `bytes` of new shards. */
bool l4_makes_room(struct hl_l3d *d, uint64_t bytes);
/* Longest time that a writer waits for room. */
uint64_t l4_room_wait_ns(const struct hl_l3d *d);
/* Removes the shard from the pool and the archive; blocks. */
void l4_discard(struct hl_l3d *d, struct hl_id id);
/* Reads from the archive alone into room of the caller's; `crcs` has one entry per started MiB. */
hl_status l4_fetch(struct hl_l3d *d, const struct hl_pool_extent *x, uint32_t *crc,
                   uint32_t *crcs) HL_CHECK;
hl_status l4_store_now(struct hl_l3d *d, struct hl_id id) HL_CHECK;
/* Loads into the pool; fine if it is there already. */
hl_status l4_load_now(struct hl_l3d *d, struct hl_id id) HL_CHECK;

/* Sets the order in which a full pool evicts these shards, before any others. It is valid until
 * another order is given, and for ttl_ms at most. HL_EINVAL: an entry is not an id, and the
 * previous order remains. */
hl_status l4_order_give(struct hl_l3d *d, const struct hl_api_text_list *ids,
                        uint64_t ttl_ms) HL_CHECK;

/* Append a line when the archive is unreachable, and helios_archive_up. Call on the loop. */
void l4_health(const struct hl_l3d *d, struct hl_buf *out);
void l4_gauges(const struct hl_l3d *d, struct hl_buf *out);

#endif
