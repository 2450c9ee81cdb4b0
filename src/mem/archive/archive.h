/* mem/archive/archive.h - the fourth tier: shards at rest, outside memory.
 *
 * An archived shard is its own bytes, a safetensors file anyone can open. Bytes are checked on the
 * way in and on the way out. A shard is either in the archive completely or not at all, whenever
 * its writer dies. A shard can be moved to the trash, where it is no longer found, and back. The
 * archive also records which cluster owns it.
 *
 * Owns:    the archive, which only one process at a time may have open (a directory is locked; for
 *          an S3 prefix the operator has to ensure it); not the caller's bytes.
 * Threads: any; puts, gets and removals of different shards run side by side. No call may be
 *          running when hl_archive_close is called.
 * Errors:  HL_ENOENT, HL_EEXIST (shards are immutable), HL_EBUSY (being written or removed, or the
 *          directory is open elsewhere), HL_ENOSPC (quota or disk; nothing is left behind),
 *          HL_ECORRUPT (bytes, size or checksum do not match the shard), HL_EIO. With s3 also
 *          HL_EPERM, HL_EUNAVAIL, HL_ETIMEDOUT, with the store's own code in the text.
 * Units:   bytes; CRC-32 as in base/crc32.h over all bytes of the shard; wall ms.
 * Limits:  shards whose header hl_safetensors_parse accepts. The trash does not count towards the
 *          quota; a shard that was trashed several times is in it several times. s3 moves objects
 *          of at most 5 GiB to the trash and back (HL_EUNSUPPORTED: they stay where they are).
 */
#ifndef HL_MEM_ARCHIVE_H
#define HL_MEM_ARCHIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"

struct hl_archive;

struct hl_archive_options {
    const char *url; /* "dir:PATH": the directory is created if missing. "s3://BUCKET/PREFIX": the
                        bucket has to exist */
    uint64_t quota_bytes;      /* 0 = only the medium's limit */
    const atomic_bool *cancel; /* true ends puts and gets with HL_ECANCELED; may be NULL */

    /* s3 only; NULL and 0 take the default */
    const char *s3_endpoint; /* "http://host:port"; "" = the AWS endpoint of the region */
    const char *s3_region;   /* "us-east-1" */
    /* file in the AWS tools' format; "" = AWS_ACCESS_KEY_ID and so on */
    const char *s3_credentials;
    uint64_t s3_part;         /* larger shards are sent in parts of this many bytes; 64 MiB */
    unsigned timeout_ms;      /* longest time without progress; 30 s */
    unsigned open_timeout_ms; /* the same while it is opened; 0 = timeout_ms */
};

/* archive.url, archive.quota, archive.s3_*. */
extern const struct hl_option_rows hl_archive_rows;

struct hl_archive_info {
    uint64_t quota_bytes;   /* 0 = none */
    uint64_t used_bytes;    /* shards, and what running puts will need */
    uint64_t writing_bytes; /* the part that running puts will need */
    const char *scheme;     /* "dir", "s3" */
    uint64_t count;         /* shards that can be read */
    uint64_t manifests;     /* of these, manifests rather than shards (core/catalog/manifest.h) */
    uint64_t discarded; /* partial files of interrupted puts, removed when the archive was opened */
    uint64_t trashed;   /* in the trash */
    uint64_t trashed_bytes;
    uint64_t foreign; /* objects in it that do not belong to the archive; they are left alone */
};

hl_status hl_archive_open(const struct hl_archive_options *options,
                          struct hl_archive **out) HL_CHECK;
/* Accepts NULL. */
void hl_archive_close(struct hl_archive *a);
/* Sets the calling thread's stop flag: while it is true, the thread's puts and gets end with
 * HL_ECANCELED. The flag is borrowed until another one replaces it; NULL = none. */
void hl_archive_stop_with(const atomic_bool *stop);
/* Returns once the shard is on disk. `crc` is the CRC that the bytes must have. */
hl_status hl_archive_put(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                         uint32_t crc) HL_CHECK;
/* Reads the whole shard into `dst`; after a failure dst's content is undefined. */
hl_status hl_archive_get(struct hl_archive *a, struct hl_id id, void *dst, uint64_t size,
                         uint32_t crc) HL_CHECK;
/* Reads `len` bytes from `offset` of a shard of `size` bytes (from hl_archive_size), and returns
 * their CRC. The caller has to check it, because the archive knows only the CRC of the whole
 * shard. */
hl_status hl_archive_read(struct hl_archive *a, struct hl_id id, uint64_t size, uint64_t offset,
                          void *dst, uint64_t len, uint32_t *crc) HL_CHECK;
hl_status hl_archive_size(struct hl_archive *a, struct hl_id id, uint64_t *out) HL_CHECK;
/* The CRC of a shard as it was stored. Where the medium has not kept it, it is the one that
 * hl_archive_state_crc has stated (HL_ECORRUPT if the header says another one). Else it is computed
 * from the shard's own header, and a changed bit in that header goes unnoticed; HL_ENOENT when the
 * header lacks the CRC of a tensor. */
hl_status hl_archive_crc(struct hl_archive *a, struct hl_id id, uint32_t *out) HL_CHECK;
/* Says which CRC the catalogue has of a shard. Ids that are not stored are skipped; no I/O. */
void hl_archive_state_crc(struct hl_archive *a, struct hl_id id, uint32_t crc);
/* Reads the whole shard and compares it with its CRC. */
hl_status hl_archive_verify(struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status hl_archive_remove(struct hl_archive *a, struct hl_id id) HL_CHECK;
/* Looks at the shard's object itself. HL_OK: it is there, with its size. HL_ENOENT: the shard is
 * not stored; *gone: the archive had it and forgets it now. HL_ECORRUPT: it has another size. Any
 * other failure means that the archive can't be looked at and says nothing about the shard. */
hl_status hl_archive_look(struct hl_archive *a, struct hl_id id, bool *gone) HL_CHECK;
typedef void (*hl_archive_missed)(void *arg, struct hl_id id, bool gone);
/* Looks at every shard and reports those for which hl_archive_look would fail. Also forgets what
 * has left the trash by other hands. Ends with the first failure to look. One call at a time. */
hl_status hl_archive_check(struct hl_archive *a, hl_archive_missed missed, void *arg) HL_CHECK;
void hl_archive_stat(struct hl_archive *a, struct hl_archive_info *out);

typedef hl_status (*hl_archive_visit)(void *arg, struct hl_id id, uint64_t size);
/* Every shard that can be read, in no order; a status other than HL_OK ends the list and is
 * returned. The visit may use the archive. */
hl_status hl_archive_list(struct hl_archive *a, hl_archive_visit visit, void *arg) HL_CHECK;

/* One stored shard. */
struct hl_archive_ref {
    struct hl_id id;
    uint64_t size;
    uint32_t crc;
    bool crc_known; /* false: `crc` is the stated one or 0; ask hl_archive_crc, which may read */
};

/* At most `max` shards from *cursor (0 = start); *cursor is 0 at the end. A shard that is present
 * throughout is listed exactly once. */
size_t hl_archive_page(struct hl_archive *a, uint64_t *cursor, struct hl_archive_ref *out,
                       size_t max);

/* ---- trash (trash.c) ---- */

struct hl_archive_trashed {
    struct hl_id id;
    uint64_t size;
    int64_t ms;     /* time at which it was moved there */
    char place[80]; /* below the archive's URL */
};

/* Moves the shard to the trash, durably unless a disk fails, which is logged. If the caller dies
 * meanwhile, the shard is in one of the two places or in both. `out` (may be NULL) says where it is
 * now. */
hl_status hl_archive_trash(struct hl_archive *a, struct hl_id id, int64_t now_ms,
                           struct hl_archive_trashed *out) HL_CHECK;
/* HL_ENOENT: the shard is not in the trash; HL_EEXIST: it is stored already. */
hl_status hl_archive_untrash(struct hl_archive *a, struct hl_id id) HL_CHECK;
/* As hl_archive_page. */
size_t hl_archive_trash_page(struct hl_archive *a, uint64_t *cursor, struct hl_archive_trashed *out,
                             size_t max);
/* Removes one shard that was moved there before `before_ms`, and reports which; HL_ENOENT: there is
 * none. */
hl_status hl_archive_trash_empty(struct hl_archive *a, int64_t before_ms,
                                 struct hl_archive_trashed *out) HL_CHECK;
/* Whether there is such a shard; does no I/O. */
bool hl_archive_trash_old(struct hl_archive *a, int64_t before_ms);

/* ---- whose it is (claim.c) ---- */

struct hl_archive_claim {
    struct hl_id cluster; /* no id: unclaimed, or damaged */
    uint64_t revision;    /* newest known revision of its catalogue */
    bool damaged;         /* there is a claim, but it can't be read */
    bool taken; /* another process has written it: there may be shards that the index lacks */
};

/* The claim as it was last read or written; does no I/O. */
void hl_archive_claimed(struct hl_archive *a, struct hl_archive_claim *out);
/* Reads the claim again: another process may have written it. Writes it again if its object is
 * gone. As hl_archive_claim. */
hl_status hl_archive_claim_keep(struct hl_archive *a) HL_CHECK;
/* Replaces the claim. In force on return, and durable at the latest before the next shard is
 * stored. One call at a time. */
hl_status hl_archive_claim(struct hl_archive *a, const struct hl_archive_claim *claim) HL_CHECK;

/* CRC of a safetensors file of `size` bytes whose first `len` bytes hold the header, combined from
 * the header's CRC and the recorded CRCs of the tensors. HL_ENOENT when one is missing. */
hl_status hl_archive_derive_crc(const void *head, size_t len, uint64_t size,
                                uint32_t *out) HL_CHECK;

#endif
