/* core/placement/keep.h - what a tier of a node keeps of the bytes that reads bring, beside what
 * the Controller places there.
 *
 * The bytes of a read are on the node already, so a copy costs no transfer; the next read of it
 * waits for no network. S3-FIFO decides which shards stay: what is read once passes through, be it
 * a scan, and what is read again stays. docs/sim.md has what other rules would cost.
 *
 * Such a copy is nobody's only one: it may go at any time, and is not in the catalogue. Copies that
 * the Controller places have the room first.
 *
 * Owns:    its records; zero after hl_keep_fini.
 * Threads: one at a time. Pure: no clock, no chance.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of core/cache/cache.h.
 */
#ifndef HL_CORE_PLACEMENT_KEEP_H
#define HL_CORE_PLACEMENT_KEEP_H

#include "core/cache/cache.h"

/* Shares of a node's L2 and L1 that it may use for this, as options say them. */
#define HL_KEEP_SHARE    "100%"
#define HL_KEEP_L1_SHARE "0"

struct hl_keep {
    struct hl_cache cache;
};

/* Of a tier of that many bytes: the share, as far as placed copies leave it. */
uint64_t hl_keep_room(uint64_t tier_bytes, double share_pct, uint64_t placed_bytes);

/* It has no room yet. `changed` is told of what it begins to keep and of what it gives up; NULL =
 * none is. */
hl_status hl_keep_init(struct hl_keep *k, void (*changed)(void *arg, uint32_t shard, bool entered),
                       void *arg) HL_CHECK;
void hl_keep_fini(struct hl_keep *k);
/* Room from now on; what has none leaves. */
void hl_keep_resize(struct hl_keep *k, uint64_t bytes);
/* The shard is read here, and kept from now on if the rule lets it. *had: it was kept. */
hl_status hl_keep_read(struct hl_keep *k, uint32_t shard, uint64_t size_bytes, bool *had) HL_CHECK;
bool hl_keep_has(const struct hl_keep *k, uint32_t shard);
/* What is to leave next, leaves. False: nothing is kept. */
bool hl_keep_evict(struct hl_keep *k);
/* It is here no more. */
void hl_keep_remove(struct hl_keep *k, uint32_t shard);
uint64_t hl_keep_used(const struct hl_keep *k);

#endif
