/* mem/reshard/reshard.h - makes shards of a different layout from the sealed shards of a version.
 *
 * The source shards are mapped. Every MiB of them is checked against its CRC before its first byte
 * is used. A target shard is written block by block: first the parts of all operations that fall
 * into the block, then the block's checksums.
 *
 * Guarantees: a sealed shard has the bytes that the plan says, from sources whose checksums were
 * correct, with CRCs per tensor, per MiB and of the whole. After a failure or cancellation the sink
 * has no shard of this run. In addition to the target shards, memory is needed for their headers
 * and for tables of a few bytes per tensor and per source MiB.
 *
 * Owns:    none of its arguments; the resulting list of shards belongs to the caller.
 * Threads: hl_reshard_run works in the calling thread and in threads of its own, which call sink
 *          and progress concurrently; it returns when they have ended. The cancel flag may be set
 *          from anywhere.
 * Errors:  HL_ECORRUPT names the source shard and its bad MiB; HL_EINVAL names a source that is not
 *          the plan's; the sink's errors; HL_ECANCELED.
 * Units:   bytes, nanoseconds.
 * Limits:  1..64 threads.
 */
#ifndef HL_MEM_RESHARD_RESHARD_H
#define HL_MEM_RESHARD_RESHARD_H

#include <stdatomic.h>

#include "core/reshard/reshard.h"
#include "mem/sink.h"

/* A sealed shard of the source; tensors are found in it by name, whatever their order. */
struct hl_reshard_source {
    struct hl_id id;
    const void *bytes; /* chunks.size of them: header and data; NULL = not available */
    struct hl_chunks chunks;
};

struct hl_reshard_run {
    const char *model; /* recorded in the shards */
    int64_t version;
    const struct hl_partition_plan *a;
    const struct hl_partition_plan *b;
    const struct hl_reshard_plan *plan; /* of a and b */
    /* one per shard of a; only those that are read must be set */
    const struct hl_reshard_source *sources;
    const unsigned char *wanted; /* per shard of b, 1 = make it. NULL = all that are not aliases */
    const struct hl_import_sink *sink;
    int threads;               /* 0 = 2 */
    const atomic_bool *cancel; /* true = stop soon; NULL = never */
    void (*progress)(void *arg, uint64_t done_bytes,
                     uint64_t total_bytes); /* NULL = none; any worker */
    void *progress_arg;
};

struct hl_reshard_done {
    struct hl_import_shard *shards; /* per shard of b; zeroed for shards that were not wanted */
    size_t made;
    uint64_t copied_bytes;   /* of the made shards, headers included */
    uint64_t verified_bytes; /* of the sources */
    uint64_t ns;
};

/* free() out->shards. */
hl_status hl_reshard_run(const struct hl_reshard_run *run, struct hl_reshard_done *out) HL_CHECK;

#endif
