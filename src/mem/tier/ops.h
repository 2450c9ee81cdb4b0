/* mem/tier/ops.h - the interface that a back end of a tier implements, and what tier.c does for it.
 *
 * The front (tier.c) checks arguments, keeps quota and watermarks, and tracks the open slots: a
 * back end is called with a slot only between its reserve and the one seal or abort that ends it.
 * The back end keeps the index and the counters, and changes them together under its own lock.
 *
 * Owns:    the back end embeds struct hl_tier_store as its first member and frees it in close.
 * Threads: any; reserve is called under the front's lock, which is taken before a back end's.
 * Errors:  as in tier.h.
 * Units:   bytes; `room` and counts in the medium's whole units.
 * Limits:  as in tier.h.
 */
#ifndef HL_MEM_TIER_OPS_H
#define HL_MEM_TIER_OPS_H

#include <pthread.h>

#include "mem/tier/tier.h"

struct hl_tier_open;
struct hl_pool_region;

/* A consistent snapshot of the counters. */
struct hl_tier_counts {
    uint64_t used; /* sealed and reserved */
    uint64_t writing;
    uint64_t quarantined;
    uint64_t shards;
    uint64_t kept, kept_shards; /* neither in `used` nor in `shards` */
};

struct hl_tier_ops {
    void (*close)(struct hl_tier_store *t);
    /* The room that a shard of that size takes. */
    uint64_t (*room)(const struct hl_tier_store *t, uint64_t size);
    /* id and size of the slot are set; HL_EEXIST when the shard is sealed here. */
    hl_status (*reserve)(struct hl_tier_store *t, struct hl_tier_slot *slot, int numa_node);
    hl_status (*fill)(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint64_t offset,
                      const void *src, size_t len); /* NULL: slots have a host pointer */
    hl_status (*seal)(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint32_t crc32,
                      const uint32_t *chunk_crcs, size_t chunks, struct hl_tier_ref *ref);
    void (*abort)(struct hl_tier_store *t, const struct hl_tier_slot *slot);
    hl_status (*find)(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out);
    hl_status (*pin)(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out);
    void (*unpin)(struct hl_tier_store *t, const struct hl_tier_ref *ref);
    hl_status (*read)(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint64_t offset,
                      void *dst, size_t len); /* the range is inside */
    hl_status (*chunk_crcs)(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint32_t *out);
    hl_status (*share)(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                       struct hl_device_share *out); /* may be NULL */
    hl_status (*drop)(struct hl_tier_store *t, struct hl_id id);
    size_t (*list)(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out, size_t max);
    void (*counts)(struct hl_tier_store *t, struct hl_tier_counts *out);
    void (*reclaim)(struct hl_tier_store *t); /* ends quarantines that are over; may be NULL */
    void (*backing)(struct hl_tier_store *t, char *out, size_t len);
    /* Returns how many regions there are; *numa_id is their common node, -1 when they differ. NULL:
     * the tier is not in host memory. */
    size_t (*regions)(struct hl_tier_store *t, struct hl_pool_region *out, size_t max,
                      int *numa_id);
    hl_status (*audit)(struct hl_tier_store *t); /* compares index, counters and medium */
};

struct hl_tier_store {
    const struct hl_tier_ops *ops;
    enum hl_api_tier tier;
    char name[96];
    uint64_t quota; /* 0 = none */
    uint64_t high, low;

    pthread_mutex_t lock; /* guards what follows; one reserve at a time */
    struct hl_tier_open *open;
    uint64_t open_room;
    enum hl_api_pressure pressure;
    hl_tier_watch_fn watch;
    void *watch_arg;
};

/* `medium` is the medium's capacity, 0 = unknown; a larger quota is refused. */
hl_status hl_tier_init(struct hl_tier_store *t, const struct hl_tier_ops *ops,
                       enum hl_api_tier tier, const char *name, uint64_t medium,
                       const struct hl_tier_limits *limits) HL_CHECK;
void hl_tier_fini(struct hl_tier_store *t);

#endif
