/* mem/archive/ops.h - the interface that a back end of the archive implements.
 *
 * Owns:    the back end embeds struct hl_archive as its first member and frees it in close.
 * Threads: any; of two concurrent calls for one id both are reads.
 * Errors:  as in archive.h; the front checks existence, quota, and the sizes and checksums of gets.
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

/* The only object that is not a shard: it records who owns the archive. */
#define HL_ARCHIVE_CLAIM     "helios-cluster.json"
#define HL_ARCHIVE_CLAIM_MAX 4096
#define HL_ARCHIVE_TRASH     "trash"
/* MS-ID.safetensors */
#define HL_ARCHIVE_TRASH_NAME_MAX 80

struct hl_archive {
    const struct hl_archive_ops *ops;
    pthread_mutex_t lock;             /* guards what follows */
    struct hl_archive_entry *entries; /* sorted by number */
    uint64_t last_number;
    unsigned check_round;
    struct hl_archive_info info;
    struct hl_archive_trash_entry *trash;
    uint64_t last_trash_number;
    struct hl_archive_claim claim;
    bool claim_found;          /* the scan has found one */
    const atomic_bool *cancel; /* may be NULL */
};

/* Whether `cancel` (may be NULL) or this thread's own flag asks to stop. */
bool archive_is_stopped(const atomic_bool *cancel);
/* Takes this thread's flag away, for work that a stop must not leave undone; give it back with
 * hl_archive_stop_with. */
const atomic_bool *archive_take_stop(void);

struct hl_archive_ops {
    const char *scheme;
    bool reads_are_cheap; /* of a header: no request to another host */
    hl_status (*open)(const char *rest, const struct hl_archive_options *options,
                      struct hl_archive **out);
    void (*close)(struct hl_archive *a);
    /* Reports every shard with hl_archive_found, trashed ones with hl_archive_found_trash, and the
     * claim by setting claim_found. Removes the partial files of interrupted puts and counts them,
     * and counts foreign objects. */
    hl_status (*scan)(struct hl_archive *a);
    /* All or nothing, durable. HL_ECORRUPT when the bytes do not match the CRC. HL_EEXIST when
     * something that the index does not know has the shard's name; it is not replaced. */
    hl_status (*put)(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                     uint32_t crc);
    /* Reads `len` bytes from `offset` of a shard of `size` bytes, and returns their CRC.
     * HL_ECORRUPT when the size differs. */
    hl_status (*read)(struct hl_archive *a, struct hl_id id, uint64_t size, uint64_t offset,
                      void *dst, uint64_t len, uint32_t *crc);
    hl_status (*remove)(struct hl_archive *a, struct hl_id id);
    /* As hl_archive_look; HL_ENOENT only if the archive as a whole is there. */
    hl_status (*look)(struct hl_archive *a, struct hl_id id, uint64_t size);
    /* Calls archive_seen for every shard in the medium, and archive_seen_trash for every trashed
     * one; NULL: the looks cost no more. */
    hl_status (*list)(struct hl_archive *a);
    /* CRC of the whole shard as the medium keeps it; HL_ENOENT when it keeps none. May be NULL. */
    hl_status (*crc)(struct hl_archive *a, struct hl_id id, uint32_t *out);
    /* Move a shard to its name in the trash, and back; durable. After a failure the shard is where
     * it was. Neither replaces an existing object. */
    hl_status (*trash)(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name);
    hl_status (*untrash)(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name);
    /* As look, of a trashed shard; its size need not be checked. */
    hl_status (*trash_look)(struct hl_archive *a, uint64_t size, const char *name);
    hl_status (*trash_remove)(struct hl_archive *a, const char *name);
    /* Read at most `cap` bytes of HL_ARCHIVE_CLAIM (HL_ENOENT: there is none), and replace its text
     * atomically. */
    hl_status (*claim_read)(struct hl_archive *a, char *out, size_t cap, size_t *len);
    hl_status (*claim_write)(struct hl_archive *a, const char *text, size_t len);
};

extern const struct hl_archive_ops hl_archive_dir, hl_archive_s3;

/* For scan only. */
hl_status hl_archive_found(struct hl_archive *a, struct hl_id id, uint64_t size) HL_CHECK;
/* True: `name` is the name of a trashed shard. */
bool hl_archive_found_trash(struct hl_archive *a, const char *name, uint64_t size);

/* For list only. */
void archive_seen(struct hl_archive *a, struct hl_id id, uint64_t size);
void archive_seen_trash(struct hl_archive *a, const char *name);

/* ---- archive.c, for the trash ---- */

/* Keeps all other threads from changing the shard until archive_end_removal. */
hl_status archive_begin_removal(struct hl_archive *a, struct hl_id id, uint64_t *size) HL_CHECK;
void archive_end_removal(struct hl_archive *a, struct hl_id id, hl_status st);
/* Charges the size to the quota at once. `crc` NULL: not known. */
hl_status archive_begin_put(struct hl_archive *a, struct hl_id id, uint64_t size) HL_CHECK;
void archive_end_put(struct hl_archive *a, struct hl_id id, uint64_t size, const uint32_t *crc,
                     hl_status st);

/* claim.c: when the archive is opened */
hl_status archive_read_claim(struct hl_archive *a) HL_CHECK;
/* Accepts arbitrary bytes. True: they name an owner; otherwise `out` is untouched. */
hl_status archive_claim_parse(const char *text, size_t len, struct hl_archive_claim *out) HL_CHECK;
/* The two parts of hl_archive_check, after the list: archive.c, trash.c */
hl_status archive_check_shards(struct hl_archive *a, hl_archive_missed missed, void *arg) HL_CHECK;
hl_status archive_check_trash(struct hl_archive *a) HL_CHECK;
/* trash.c */
void archive_trash_fini(struct hl_archive *a);
void archive_entries_fini(struct hl_archive *a);

#endif
