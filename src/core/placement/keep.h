/* core/placement/keep.h - what a node keeps of the bytes that its reads bring: copies in L2 and L1,
 * beside those that the Controller places there.
 *
 * The bytes of a read are on the node already, so a copy costs no transfer; the next read of it
 * waits for no network. All of L1 and L2 is one memory, in which no shard is twice. S3-FIFO decides
 * which shards stay in it, and once more which of those are in L1: what is read once passes
 * through, be it a scan, and what is read again stays. docs/sim.md has what other rules would cost.
 *
 * What L1 gives up goes to L2 while the node keeps it. Such a copy is nobody's only one: it may go
 * at any time, and is not in the catalogue.
 *
 * Owns:    its records; zero after hl_keep_fini.
 * Threads: one at a time. Pure: no clock, no chance.
 * Errors:  HL_ENOMEM, HL_ENOSPC.
 * Units:   bytes.
 * Limits:  those of core/cache/cache.h.
 */
#ifndef HL_CORE_PLACEMENT_KEEP_H
#define HL_CORE_PLACEMENT_KEEP_H

#include "core/cache/cache.h"

enum hl_kept { HL_KEPT_NOT, HL_KEPT_L1, HL_KEPT_L2 };

struct hl_keep {
    struct hl_cache node; /* all it keeps */
    struct hl_cache l1;   /* those of them that are in L1 */
    uint64_t l2_bytes;
    uint64_t demoted_bytes; /* from L1 to L2, so far */
    /* Told of what the node begins to keep, and of what it gives up. */
    void (*changed)(void *arg, uint32_t shard, bool entered);
    void *arg;
};

/* It must not be moved afterwards. changed may be NULL. */
hl_status hl_keep_init(struct hl_keep *k, uint64_t l1_bytes, uint64_t l2_bytes,
                       void (*changed)(void *arg, uint32_t shard, bool entered),
                       void *arg) HL_CHECK;
void hl_keep_fini(struct hl_keep *k);
/* The node reads the shard, or has written it. *found: where it was kept until then. */
hl_status hl_keep_read(struct hl_keep *k, uint32_t shard, uint64_t size_bytes,
                       enum hl_kept *found) HL_CHECK;
enum hl_kept hl_keep_find(const struct hl_keep *k, uint32_t shard);
/* The shard is no more. */
void hl_keep_remove(struct hl_keep *k, uint32_t shard);
/* Bytes that are kept in L2; those in L1 are k->l1.used. */
uint64_t hl_keep_l2_used(const struct hl_keep *k);

#endif
