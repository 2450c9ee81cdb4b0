/* mem/tier/indexed.h - base of the tiers that keep an index of their own: devices and the archive.
 *
 *     struct device_tier, struct archive_tier
 *       struct hl_tier_indexed          what both do the same way: the calls below
 *         struct hl_tier_store          what every tier has
 *         struct hl_tier_index          id -> entry: size, checksums, pins, holds
 *         struct hl_tier_medium         what only the back end knows: bytes of an entry
 *
 * Owns:    the index; the back end owns its medium.
 * Threads: any. While a call accesses the medium it holds its entry, but no lock.
 * Errors:  those of hl_tier_ops.
 * Units:   bytes.
 * Limits:  those of the index.
 */
#ifndef HL_MEM_TIER_INDEXED_H
#define HL_MEM_TIER_INDEXED_H

#include "mem/tier/index.h"

struct hl_tier_indexed;

struct hl_tier_medium {
    /* Reads bytes of a held entry into dst and returns their CRC. */
    hl_status (*fetch)(struct hl_tier_indexed *t, const struct hl_tier_entry *e, uint64_t offset,
                       void *dst, uint64_t len, uint32_t *crc);
    /* Removes the bytes of a dropped entry. HL_OK or HL_ENOENT: they are gone; on another status
     * the entry is restored. */
    hl_status (*remove)(struct hl_tier_indexed *t, const struct hl_tier_entry *e);
    /* Learn the CRC, and the chunk table, of a held entry that was found in the medium. NULL: no
     * entry is ever found there. */
    hl_status (*learn_crc)(struct hl_tier_indexed *t, struct hl_tier_entry *e);
    hl_status (*learn_chunks)(struct hl_tier_indexed *t, struct hl_tier_entry *e);
    hl_tier_medium_fn compare_counts; /* arg: the struct hl_tier_indexed */
};

struct hl_tier_indexed {
    struct hl_tier_store store; /* first */
    struct hl_tier_index index;
    const struct hl_tier_medium *medium;
};

/* Call after hl_tier_init. */
void hl_tier_indexed_init(struct hl_tier_indexed *t, const struct hl_tier_medium *medium,
                          int numa_id);
/* Makes a copy of a chunk table for hl_tier_index_seal. */
hl_status hl_tier_indexed_keep_crcs(struct hl_id id, const uint32_t *crcs, size_t chunks,
                                    uint32_t **out) HL_CHECK;

/* For struct hl_tier_ops. */
hl_status hl_tier_indexed_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out);
hl_status hl_tier_indexed_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out);
void hl_tier_indexed_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref);
hl_status hl_tier_indexed_read(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                               uint64_t offset, void *dst, size_t len);
hl_status hl_tier_indexed_chunk_crcs(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                                     uint32_t *out);
hl_status hl_tier_indexed_drop(struct hl_tier_store *t, struct hl_id id);
/* An entry whose CRC can't be learned is not listed; find says why. */
size_t hl_tier_indexed_list(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out,
                            size_t max);
void hl_tier_indexed_counts(struct hl_tier_store *t, struct hl_tier_counts *out);
hl_status hl_tier_indexed_audit(struct hl_tier_store *t);

#endif
