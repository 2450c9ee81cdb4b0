/* mem/reshard/reshard_private.h - shared between the files of reshard.
 *
 * Threads: those of a run (run.c); the members that they change are atomic or guarded by `mutex`.
 */
#ifndef HL_MEM_RESHARD_RESHARD_PRIVATE_H
#define HL_MEM_RESHARD_RESHARD_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>

#include "mem/reshard/reshard.h"
#include "mem/shard_sums.h"

struct hl_resharding {
    const struct hl_reshard_run *run;
    struct hl_import_shard *shards;
    struct hl_safetensors_image *headers; /* per shard of b that is wanted */
    struct hl_import_slot *slots;
    unsigned char *sealed;    /* each byte is written only by the worker of that shard */
    uint64_t *tensor_at;      /* where tensor i of a begins in its shard */
    atomic_uchar *verified;   /* per MiB of all sources */
    uint64_t *verified_first; /* of shard i of a */
    uint64_t total_bytes;
    atomic_size_t next;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t verified_bytes;
    atomic_bool failed;
    pthread_mutex_t mutex; /* guards status and text */
    hl_status status;
    char text[HL_ERROR_TEXT_MAX];
};

static inline bool hl_resharding_wants(const struct hl_resharding *r, size_t shard)
{
    if (r->run->wanted != NULL)
        return r->run->wanted[shard] != 0;
    return r->run->plan->shards[shard].alias == HL_RESHARD_NONE;
}

/* Checks bytes [offset, offset + len) of a source shard against its checksums. */
hl_status hl_resharding_verify(struct hl_resharding *r, uint32_t shard, uint64_t offset,
                               uint64_t len) HL_CHECK;
/* Reads the headers of the source shards that the wanted shards need. */
hl_status hl_resharding_open_sources(struct hl_resharding *r) HL_CHECK;
/* Writes shard `shard` of b, header included, into sums->dst; *crc is the CRC of the whole
 * shard. */
hl_status hl_resharding_fill(struct hl_resharding *r, size_t shard, struct hl_shard_sums *sums,
                             uint32_t *crc) HL_CHECK;

#endif
