/* mem/pool/evict.h - giving up shards that lie elsewhere too, the least recently used first.
 *
 * Owns:    nothing; the pool is its owner's.
 * Threads: any.
 * Errors:  none: what can't be evicted stays.
 * Units:   bytes, in whole units of the pool.
 * Limits:  the owner sees only the uses it is told of (hl_pool_touch): a read through a mapping
 *          asks nobody.
 */
#ifndef HL_MEM_POOL_EVICT_H
#define HL_MEM_POOL_EVICT_H

#include "mem/pool/pool.h"

/* The shard was used now. One that was freed meanwhile: nothing happens. */
void hl_pool_touch(struct hl_pool *pool, const struct hl_pool_ref *ref);

/* 1 = may go. Called without a lock, for each shard at most once. */
typedef int (*hl_pool_may_go)(void *arg, const struct hl_pool_ref *ref);

struct hl_pool_eviction {
    uint64_t bytes;   /* to be freed */
    uint64_t hold_ns; /* what was used more recently stays, so that whoever asked for it gets it */
    hl_pool_may_go may_go;
    void *arg;
};

struct hl_pool_evicted {
    uint64_t shards;
    uint64_t bytes; /* they rest like every freed extent before they are free */
    uint64_t held;  /* bytes that could go if they had not been used just now */
};

/* Free sealed, unpinned shards that may go until enough of them are freed. */
hl_status hl_pool_evict(struct hl_pool *pool, const struct hl_pool_eviction *what,
                        struct hl_pool_evicted *out) HL_CHECK;
/* This one: 1 when it is freed, 0 when it is pinned, or no longer what `ref` says. */
int hl_pool_evict_one(struct hl_pool *pool, const struct hl_pool_ref *ref);

#endif
