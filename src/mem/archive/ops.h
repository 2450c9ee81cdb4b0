/* mem/archive/ops.h - what a back end of the archive has to do.
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
#include <stdbool.h>

#include "mem/archive/archive.h"

struct hl_archive_ops;
struct hl_archive_entry;
struct hl_archive_trash_entry;

/* The one object that is not a shard: who owns the archive. */
#define HL_ARCHIVE_CLAIM     "helios-cluster.json"
#define HL_ARCHIVE_CLAIM_MAX 4096
#define HL_ARCHIVE_TRASH     "trash"
/* MS-ID.safetensors */
#define HL_ARCHIVE_TRASH_NAME_MAX 80

struct hl_archive {
    const struct hl_archive_ops *ops;
    pthread_mutex_t lock;             /* guards what follows */
    struct hl_archive_entry *entries; /* in the order of their numbers */
    uint64_t last_number;
    struct hl_archive_info info;
    struct hl_archive_trash_entry *trash;
    uint64_t last_trash_number;
    struct hl_archive_claim claim;
    bool claim_found;          /* by the scan */
    const atomic_bool *cancel; /* may be NULL */
};

/* By `cancel`, which may be NULL, or by this thread's own flag. */
bool archive_is_stopped(const atomic_bool *cancel);

struct hl_archive_ops {
    const char *scheme;
    hl_status (*open)(const char *rest, const struct hl_archive_options *options,
                      struct hl_archive **out);
    void (*close)(struct hl_archive *a);
    /* Reports every shard with hl_archive_found, what is in the trash with
     * hl_archive_found_trash, and the claim by claim_found; removes halves, counts both kinds of
     * the rest. */
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
    /* Between ID and its name in the trash; durable. Neither replaces anything. */
    hl_status (*trash)(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name);
    hl_status (*untrash)(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name);
    hl_status (*trash_remove)(struct hl_archive *a, const char *name);
    /* HL_ARCHIVE_CLAIM: at most `cap` bytes of it; and in one step another text. */
    hl_status (*claim_read)(struct hl_archive *a, char *out, size_t cap, size_t *len);
    hl_status (*claim_write)(struct hl_archive *a, const char *text, size_t len);
};

extern const struct hl_archive_ops hl_archive_dir, hl_archive_s3;

/* For scan only. */
hl_status hl_archive_found(struct hl_archive *a, struct hl_id id, uint64_t size) HL_CHECK;
/* True: the name is one of the trash. */
bool hl_archive_found_trash(struct hl_archive *a, const char *name, uint64_t size);

/* ---- archive.c, for the trash ---- */

/* No other thread changes the shard until the end of it. */
hl_status archive_begin_removal(struct hl_archive *a, struct hl_id id, uint64_t *size) HL_CHECK;
void archive_end_removal(struct hl_archive *a, struct hl_id id, hl_status st);
/* Takes it out of the quota at once. `crc` NULL: not known. */
hl_status archive_begin_put(struct hl_archive *a, struct hl_id id, uint64_t size) HL_CHECK;
void archive_end_put(struct hl_archive *a, struct hl_id id, uint64_t size, const uint32_t *crc,
                     hl_status st);

/* claim.c: when the archive is opened */
hl_status archive_read_claim(struct hl_archive *a) HL_CHECK;
/* Of any bytes. True: they name an owner, else `out` is untouched. */
hl_status archive_claim_parse(const char *text, size_t len, struct hl_archive_claim *out) HL_CHECK;
/* trash.c */
void archive_trash_fini(struct hl_archive *a);
void archive_entries_fini(struct hl_archive *a);

#endif
