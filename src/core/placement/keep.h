/* core/placement/keep.h - what a node keeps of the bytes that reads bring, beside what the
 * Controller places there: in its L2 and in its devices.
 *
 * The bytes of a read are on the node already, so a copy costs no transfer; the next read of it
 * waits for no network. S3-FIFO decides which shards stay: what is read once passes through, be it
 * a scan, and what is read again stays. docs/sim.md has what other rules would cost.
 *
 *     the node's rule    one over L2 and devices together: who stays on the node at all
 *     a device's rule    who of them is in the device; what leaves it goes down to the L2, and
 *                        takes room there from now on
 *
 * Such a copy is nobody's only one: it may go at any time, and is not in the catalogue. Copies that
 * the Controller places have the room first.
 *
 * Owns:    its records; zero after hl_keep_fini. It stays where it was initialized.
 * Threads: one at a time. Pure: no clock, no chance.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  HL_KEEP_DEVICES_MAX devices; those of core/cache/cache.h.
 */
#ifndef HL_CORE_PLACEMENT_KEEP_H
#define HL_CORE_PLACEMENT_KEEP_H

#include "core/cache/cache.h"

/* Shares of a node's L2 and L1 that it may use for this, as options say them. */
#define HL_KEEP_SHARE    "100%"
#define HL_KEEP_L1_SHARE "100%"

#define HL_KEEP_DEVICES_MAX 16
/* Where on the node; a device has its number, from 1. */
#define HL_KEEP_L2 0

/* It was kept there, and leaves. hl_keep_has: it stays on the node, and goes down to the L2. The
 * rules are not to be called from in here, but to be asked. */
typedef void (*hl_keep_left_fn)(void *arg, uint32_t shard, unsigned where);

struct hl_keep_device {
    struct hl_keep *keep;
    struct hl_cache cache;
};

struct hl_keep {
    struct hl_cache node;
    struct hl_keep_device devices[HL_KEEP_DEVICES_MAX];
    unsigned device_count;
    uint64_t l2_room;
    hl_keep_left_fn left;
    void *arg;
};

/* Of a tier of that many bytes: the share, as far as placed copies leave it. */
uint64_t hl_keep_room(uint64_t tier_bytes, double share_pct, uint64_t placed_bytes);

/* It has no room yet. `left` may be NULL. */
hl_status hl_keep_init(struct hl_keep *k, unsigned devices, hl_keep_left_fn left,
                       void *arg) HL_CHECK;
void hl_keep_fini(struct hl_keep *k);
/* Room there from now on; what has none leaves. */
void hl_keep_resize(struct hl_keep *k, unsigned where, uint64_t bytes);
/* The shard is read there, and kept from now on if the rules let it. */
hl_status hl_keep_read(struct hl_keep *k, unsigned where, uint32_t shard,
                       uint64_t size_bytes) HL_CHECK;
/* The same, by a read of the L2 that was told of already. */
hl_status hl_keep_raise(struct hl_keep *k, unsigned device, uint32_t shard,
                        uint64_t size_bytes) HL_CHECK;
/* Somewhere on the node. */
bool hl_keep_has(const struct hl_keep *k, uint32_t shard);
/* 0: it is in none, or its device's number. */
unsigned hl_keep_device_of(const struct hl_keep *k, uint32_t shard);
/* What is to leave next, leaves: a device for the L2, or the node. False: nothing is kept there. */
bool hl_keep_evict(struct hl_keep *k, unsigned where);
/* It is in the device no more; of the L2: it is on the node no more. */
void hl_keep_remove(struct hl_keep *k, unsigned where, uint32_t shard);
/* Of the L2: what is kept on the node, and in no device. */
uint64_t hl_keep_used(const struct hl_keep *k, unsigned where);

#endif
