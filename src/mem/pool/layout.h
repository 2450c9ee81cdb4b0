/* mem/pool/layout.h - the bytes of a pool file, shared by its owner and by every reader.
 *
 *   0            superblock          one HL_POOL_UNIT; the table of regions at HL_POOL_REGIONS_AT
 *   index_offset index               `index_slots` entries of 64 bytes, open addressing, linear
 *   data_offset  data                extents of whole units
 *
 * An extent holds the shard's bytes, then, 8-aligned, one CRC per started MiB (the chunk table).
 * A shard of one chunk is checked by the CRC in its entry and never needs the table.
 *
 * Every change of an entry happens between two stores of its generation: an odd number (changing)
 * and then the next even one. A reader that sees the same even generation before and after knows
 * that what it read is consistent. An odd generation after a crash shows that the entry is not.
 *
 * Owns:    nothing.
 * Threads: one writer (the owner's lock), any number of readers in any process.
 * Errors:  none.
 * Units:   bytes, all little endian; offsets count from the start of the file; times are ns of
 *          CLOCK_MONOTONIC.
 * Limits:  2^32 - 1 slots.
 */
#ifndef HL_MEM_POOL_LAYOUT_H
#define HL_MEM_POOL_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/id.h"

#define HL_POOL_LAYOUT 1
#define HL_POOL_UNIT   ((uint64_t)64 << 10)

/* The eight bytes of the magic, read as a little-endian number: "HELIOSP1" once all is written,
 * "HELIOSP0" while the file is being made. */
#define HL_POOL_MAGIC  UINT64_C(0x3150534f494c4548)
#define HL_POOL_MAKING UINT64_C(0x3050534f494c4548)

struct hl_pool_super {
    _Atomic uint64_t magic;
    uint32_t layout;
    uint32_t fixed_crc; /* of the fields from uuid to data_offset */
    struct hl_id uuid;
    uint64_t capacity; /* bytes of the data area */
    uint64_t file_size;
    uint64_t index_offset;
    uint64_t index_slots; /* a power of two */
    uint64_t data_offset;
    uint64_t fixed_end;
    uint32_t region_count; /* 0 = one region, of unknown node: a pool made before regions existed */
    uint32_t region_crc;   /* of the table */
    /* Which cluster the shards belong to; only owners read it. All zero, or a wrong claim_crc,
     * means unclaimed; so are pools made before claims existed. */
    struct hl_id cluster;
    uint64_t revision;  /* newest known revision of the cluster's catalogue */
    uint32_t claim_crc; /* of cluster */
    uint32_t unused_word;
    uint64_t unused[1];
    /* The fields from here on change. They have a cache line of their own, which every reader
     * polls. */
    _Atomic uint64_t
        incarnation; /* random, new for every start of the owner; 0 = it has no owner */
    _Atomic uint64_t heartbeat_ns;
    _Atomic uint32_t owner_pid;
    uint32_t spare;
};

_Static_assert(offsetof(struct hl_pool_super, cluster) == 88, "behind what older owners know");
_Static_assert(offsetof(struct hl_pool_super, incarnation) == 128, "own cache line");

/* A part of the data area whose memory lies on one NUMA node. Regions are contiguous; only the
 * owner reads them. */
struct hl_pool_region_entry {
    int32_t numa_id;
    uint32_t spare;
    uint64_t end; /* from data_offset, in bytes; whole units */
};

#define HL_POOL_REGIONS_AT  ((uint64_t)256)
#define HL_POOL_REGIONS_MAX 32

enum hl_pool_state {
    HL_POOL_EMPTY = 0,   /* ends a search */
    HL_POOL_WRITING = 1, /* allocated, not yet readable */
    HL_POOL_SEALED = 2,  /* readable */
    HL_POOL_FREED = 3,   /* no longer found; its bytes stay until no reader can be reading them */
    HL_POOL_DELETED = 4, /* a search continues past it; the slot may be reused */
    HL_POOL_LEASED = 5,  /* private to one borrower: never found, and freed with its last pin */
    /* readable like a sealed one, but its owner may reclaim its room at any time */
    HL_POOL_KEPT = 6,
};

struct hl_pool_entry {
    _Atomic uint64_t id_hi;
    _Atomic uint64_t id_lo;
    _Atomic uint64_t offset;
    _Atomic uint64_t size; /* of the shard, without the chunk table */
    _Atomic uint32_t crc32;
    _Atomic uint32_t table_crc; /* of the chunk table */
    _Atomic uint32_t state;
    _Atomic uint32_t gen;
    _Atomic uint32_t entry_crc; /* of id, offset, size, crc32, table_crc */
    uint32_t spare[3];
};

_Static_assert(sizeof(struct hl_pool_entry) == 64, "one cache line");
_Static_assert(sizeof(struct hl_pool_super) <= HL_POOL_UNIT, "fits its unit");

/* Where the chunk table begins in an extent. */
static inline uint64_t hl_pool_table_offset(uint64_t size)
{
    return (size + 7) & ~UINT64_C(7);
}

/* Number of units that an extent of `size` bytes takes; size is below 2^62. */
static inline uint64_t hl_pool_units(uint64_t size)
{
    uint64_t bytes = hl_pool_table_offset(size) + hl_chunk_count(size) * sizeof(uint32_t);
    return (bytes + HL_POOL_UNIT - 1) / HL_POOL_UNIT;
}

/* Ids are random, so their low bits are the hash. */
static inline uint64_t hl_pool_home(struct hl_id id, uint64_t slots)
{
    return (id.lo ^ id.hi >> 32) & (slots - 1);
}

#endif
