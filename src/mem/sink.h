/* mem/sink.h - where new shards go: memory that the maker of a shard fills.
 *
 * Owns:    nothing; a slot belongs to the sink.
 * Threads: the functions are called from several threads at once, for different slots.
 * Errors:  the sink's own; a shard whose seal failed is aborted.
 * Units:   bytes; chunk CRCs are of every started MiB of a shard.
 * Limits:  none.
 */
#ifndef HL_MEM_SINK_H
#define HL_MEM_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"
#include "core/model/partition.h"
#include "mem/chunks.h"

struct hl_import_shard {
    struct hl_id id;
    int pp;
    int tp;
    int ep;
    char part[HL_PARTITION_PART_MAX];
    uint64_t size_bytes;
    uint32_t crc32;
    uint32_t tensors;
};

/* One shard in the sink's memory. */
struct hl_import_slot {
    struct hl_id id;
    void *ptr;    /* `size` writable bytes until seal or abort */
    void *handle; /* the sink's own */
};

/* Where shards go. Every successful alloc is followed by exactly one seal or abort; a sealed shard
 * of a run that fails later gets one discard. */
struct hl_import_sink {
    void *arg;
    /* Everything in `shard` is set but id and CRC. */
    hl_status (*alloc)(void *arg, const struct hl_import_shard *shard, struct hl_import_slot *out);
    hl_status (*seal)(void *arg, struct hl_import_slot *slot, uint32_t crc32,
                      const uint32_t *chunk_crcs, size_t chunks);
    void (*abort)(void *arg, struct hl_import_slot *slot);
    void (*discard)(void *arg, struct hl_import_slot *slot);
};

#endif
