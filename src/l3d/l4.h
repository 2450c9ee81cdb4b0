/* l3d/l4.h - the archive beneath the pool: what the pool misses is loaded, what it can't hold goes.
 *
 * One task per shard and kind runs at a time, in a worker; callers that ask meanwhile wait for it.
 *
 * Owns:    the archive, its workers, the tasks.
 * Threads: the loop's, but l4_alloc, l4_verify, l4_load_now and l4_store_now, which wait: any other
 *          thread.
 * Errors:  HL_ENOENT (in neither), HL_EUNAVAIL (the archive is away), HL_ETIMEDOUT (the task goes
 *          on), HL_ENOSPC (nothing that could be given up), HL_ECANCELED (the daemon ends), and
 *          the archive's own.
 * Units:   bytes, ms.
 * Limits:  without an archive everything behaves as if an empty one were there.
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
    L4_STORE, /* into the archive; there already: fine */
    L4_DROP,  /* from the archive */
    L4_TRASH, /* from the archive into its trash */
    L4_UNTRASH,
};

/* On the loop, once; `text` says why when st is not HL_OK. */
typedef void (*l4_done)(void *arg, hl_status st, const char *text);

struct l4_opts {
    struct hl_archive_options archive; /* url "" = none; needed during the start only */
    double low_pct;                    /* of the pool: eviction goes down to it */

    /* Options, by hl_l4_rows. */
    const char *mode; /* "manual", "write-behind" */
    unsigned threads; /* loads at a time; stores have half of them */
    unsigned load_timeout_ms;
    unsigned retry_ms; /* longest pause between two attempts to reach an archive that is away */
    unsigned hold_ms;  /* what was used more recently is not evicted */
    uint64_t trash_keep_ms; /* shards in the trash go after that; 0 = never */
};

extern const struct hl_option_rows hl_l4_rows;

hl_status l4_start(struct hl_l3d *d, const struct l4_opts *opts) HL_CHECK;
/* Ends what runs (d->stopping is set) and answers all waiters. */
void l4_stop(struct hl_l3d *d);
/* When no more calls come. */
void l4_fini(struct hl_l3d *d);

/* What a caller asks for. */
struct l4_asked {
    enum l4_kind kind;
    struct hl_id id;
    struct hl_id order; /* none: l4_stop_order does not end it */
    bool gives_way;     /* of a load: HL_EBUSY while others load, HL_ENOSPC without free room */
};

/* Never calls `done` before it has returned. */
void l4_ask(struct hl_l3d *d, const struct l4_asked *what, l4_done done, void *arg);
/* Ends what was asked for under that order and nobody else waits for, and returns how much. */
unsigned l4_stop_order(struct hl_l3d *d, struct hl_id order);
/* Another piece of work beside the loads. */
void l4_run(struct hl_l3d *d, struct work *work);

/* The archived copy, all of it; waits. */
/* *crc: of all of it, which is as its header says. */
hl_status l4_verify(struct hl_l3d *d, struct hl_id id, uint32_t *crc) HL_CHECK;
/* There is an archived copy that was not found damaged. */
bool l4_has(struct hl_l3d *d, struct hl_id id, uint64_t *size);
/* Of what the pool does not have: HL_OK, or HL_EUNAVAIL while the archive is away and may have it.
 */
hl_status l4_knows(const struct hl_l3d *d, struct hl_id id) HL_CHECK;

/* What room is wanted for. */
struct l4_want {
    struct hl_id id; /* none: a fresh one */
    uint64_t size;
    int near;                         /* NUMA node; -1 = any */
    const struct hl_pool_ref *beside; /* other bytes for this shard; NULL: a new one */
    const atomic_bool *cancel;        /* set once no caller waits any more; may be NULL */
    bool fills;                       /* it is a load's; l4_filled once that has ended */
    bool takes_free_only;             /* nothing leaves the pool for it */
};

/* Room in the pool, made by giving up archived shards; waits until they have rested. */
hl_status l4_alloc(struct hl_l3d *d, const struct l4_want *want,
                   struct hl_pool_extent *out) HL_CHECK;
void l4_filled(struct hl_l3d *d);
/* The same without waiting: HL_EBUSY when there will be room soon. */
hl_status l4_try_alloc(struct hl_l3d *d, const struct l4_want *want,
                       struct hl_pool_extent *out) HL_CHECK;
/* True when `bytes` of new shards can be had by giving up others. */
bool l4_makes_room(struct hl_l3d *d, uint64_t bytes);
/* How long a writer waits for room at most. */
uint64_t l4_room_wait_ns(const struct hl_l3d *d);
/* Out of the pool and the archive; waits. */
void l4_discard(struct hl_l3d *d, struct hl_id id);
/* From the archive alone into room that the caller has; `crcs` has one entry per started MiB. */
hl_status l4_fetch(struct hl_l3d *d, const struct hl_pool_extent *x, uint32_t *crc,
                   uint32_t *crcs) HL_CHECK;
hl_status l4_store_now(struct hl_l3d *d, struct hl_id id) HL_CHECK;
/* Into the pool; there already: fine. */
hl_status l4_load_now(struct hl_l3d *d, struct hl_id id) HL_CHECK;

/* A full pool gives up these shards first, in this order, until another one is given, and for
 * ttl_ms at most. HL_EINVAL: one is no id, and the order before stands. */
hl_status l4_order_give(struct hl_l3d *d, const struct hl_api_text_list *ids,
                        uint64_t ttl_ms) HL_CHECK;

/* A line when the archive is away; helios_archive_up. On the loop. */
void l4_health(const struct hl_l3d *d, struct hl_buf *out);
void l4_gauges(const struct hl_l3d *d, struct hl_buf *out);

#endif
