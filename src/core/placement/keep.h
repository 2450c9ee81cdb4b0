/* core/placement/keep.h - which shards a node caches after reading them, in its L2 and in its
 * devices, in addition to what the Controller places there.
 *
 * The bytes of a read are already on the node, so keeping a copy costs no transfer, and the next
 * read needs no network. S3-FIFO decides which shards stay: a shard that is read only once, as in a
 * scan, passes through, and one that is read again stays. docs/sim.md compares the cost of other
 * rules.
 *
 *     the node's rule    one over L2 and devices together: who stays on the node at all
 *     a device's rule    who of them is in the device; what leaves it goes down to the L2, and
 *                        takes room there from now on
 *
 * Such a copy is never the only one: it may be dropped at any time, and it is not in the catalogue.
 * Copies that the Controller places take precedence over it for room.
 *
 * Owns:    its records; zero after hl_keep_fini. The struct must not move after init.
 * Threads: one at a time. Pure: no clock, no randomness.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  HL_KEEP_DEVICES_MAX devices; those of core/cache/cache.h.
 */
#ifndef HL_CORE_PLACEMENT_KEEP_H
#define HL_CORE_PLACEMENT_KEEP_H

#include "core/cache/cache.h"

/* Defaults of the options: shares of a node's L2 and L1 that may be used for this. */
#define HL_KEEP_SHARE    "100%"
#define HL_KEEP_L1_SHARE "100%"

#define HL_KEEP_DEVICES_MAX 16
/* `where` on the node: the L2, or the number of a device, from 1. */
#define HL_KEEP_L2 0

/* The shard was kept there, and leaves. If hl_keep_has is true it stays on the node and moves down
 * to the L2. The callback may query the rules, but must not change them. */
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

/* Room in a tier of that many bytes: the share, as far as placed copies leave it free. */
uint64_t hl_keep_room(uint64_t tier_bytes, double share_pct, uint64_t placed_bytes);

/* Starts without room: call hl_keep_resize. `left` may be NULL. */
hl_status hl_keep_init(struct hl_keep *k, unsigned devices, hl_keep_left_fn left,
                       void *arg) HL_CHECK;
void hl_keep_fini(struct hl_keep *k);
/* Sets the room there; shards that no longer fit leave. */
void hl_keep_resize(struct hl_keep *k, unsigned where, uint64_t bytes);
/* The shard is read there, and is kept from now on if the rules allow it. */
hl_status hl_keep_read(struct hl_keep *k, unsigned where, uint32_t shard,
                       uint64_t size_bytes) HL_CHECK;
/* The same for a device, when the read was already counted for the L2. */
hl_status hl_keep_raise(struct hl_keep *k, unsigned device, uint32_t shard,
                        uint64_t size_bytes) HL_CHECK;
/* The shard is kept somewhere on the node. */
bool hl_keep_has(const struct hl_keep *k, uint32_t shard);
/* Number of the device that keeps the shard; 0: none does. */
unsigned hl_keep_device_of(const struct hl_keep *k, uint32_t shard);
/* Evicts the next shard in line: from a device to the L2, or from the node. False: nothing is kept
 * there. */
bool hl_keep_evict(struct hl_keep *k, unsigned where);
/* The shard is no longer in the device; for the L2: no longer on the node. */
void hl_keep_remove(struct hl_keep *k, unsigned where, uint32_t shard);
/* Bytes kept there; for the L2: those on the node that are in no device. */
uint64_t hl_keep_used(const struct hl_keep *k, unsigned where);

#endif
