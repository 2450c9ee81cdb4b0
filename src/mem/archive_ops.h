/* mem/archive_ops.h - what a back end of the archive has to do.
 *
 * Owns:    the back end embeds struct hl_archive as its first member and frees it in close.
 * Threads: any; no two calls for one id at once but reads.
 * Errors:  as in archive.h; existence, quota, sizes and checksums of gets are decided above.
 * Units:   bytes.
 * Limits:  as in archive.h.
 */
#ifndef HL_MEM_ARCHIVE_OPS_H
#define HL_MEM_ARCHIVE_OPS_H

#include <pthread.h>

#include "mem/archive.h"

struct hl_archive_ops;
struct hl_archive_entry;

struct hl_archive {
    const struct hl_archive_ops *ops;
    pthread_mutex_t lock;             /* guards what follows */
    struct hl_archive_entry *entries; /* in the order of their numbers */
    uint64_t last_number;
    struct hl_archive_info info;
    const atomic_int *cancel; /* may be NULL */
};

static inline int hl_archive_cancelled(const struct hl_archive *a)
{
    return a->cancel != NULL && atomic_load_explicit(a->cancel, memory_order_relaxed) != 0;
}

struct hl_archive_ops {
    const char *scheme;
    hl_status (*open)(const char *rest, const struct hl_archive_options *options,
                      struct hl_archive **out);
    void (*close)(struct hl_archive *a);
    /* Reports every shard with hl_archive_found, removes halves, counts both kinds of the rest. */
    hl_status (*scan)(struct hl_archive *a);
    /* All or nothing, durable. Bytes that don't have the CRC: HL_ECORRUPT. */
    hl_status (*put)(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                     uint32_t crc);
    /* `len` bytes from `offset` of a shard of `size` bytes, and their CRC. Another size:
     * HL_ECORRUPT. */
    hl_status (*read)(struct hl_archive *a, struct hl_id id, uint64_t size, uint64_t offset,
                      void *dst, uint64_t len, uint32_t *crc);
    hl_status (*remove)(struct hl_archive *a, struct hl_id id);
    /* CRC of the whole shard as the medium keeps it; HL_ENOENT: it does not. May be NULL. */
    hl_status (*crc)(struct hl_archive *a, struct hl_id id, uint32_t *out);
};

extern const struct hl_archive_ops hl_archive_dir, hl_archive_s3;

/* For scan only. */
hl_status hl_archive_found(struct hl_archive *a, struct hl_id id, uint64_t size) HL_CHECK;

#endif
