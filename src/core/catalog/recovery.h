/* core/catalog/recovery.h - what pool, archive and manifests say about versions that the catalogue
 * has lost: which come back, which don't and why, and which shards are left over.
 *
 *     hl_recovery_note          objects of the lists of pool, archive and trash
 *     hl_recovery_add_manifest  candidates
 *     hl_recovery_judge         which of them come back; again whenever more was read
 *     hl_recovery_decide        what follows from it
 *
 * Owns:    objects and candidates (hl_recovery_fini).
 * Threads: one owner. Pure: no I/O, no clock.
 * Errors:  HL_ECORRUPT for an invalid manifest, or that of another version; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of core/catalog/manifest.h; left-over shards are told in at most 4096 groups.
 */
#ifndef HL_CORE_CATALOG_RECOVERY_H
#define HL_CORE_CATALOG_RECOVERY_H

#include <stdbool.h>
#include <uthash.h>

#include "api/types.h"
#include "core/catalog/manifest.h"

/* One shard or manifest, wherever it is. */
struct hl_recovery_object {
    struct hl_id id;
    bool pooled, archived, trashed;
    bool read;            /* size, crc and header are what L3 has read of it */
    bool claimed;         /* a version that comes back or is known has it */
    uint64_t size;        /* in the pool, else in the archive, else in the trash */
    uint32_t crc;         /* pooled, or read */
    char unreadable[160]; /* why not, else "" */
    char *model;          /* by its header, NULL = not read */
    int64_t version;
    UT_hash_handle hh;
};

/* A shard as a manifest states it. */
struct hl_recovery_shard {
    struct hl_id id;
    uint64_t size;
    uint32_t crc;
    const char *part;
};

/* A version that a manifest names. */
struct hl_recovery_candidate {
    struct hl_manifest manifest;
    struct hl_recovery_shard *shards; /* in `arena` */
    size_t shard_count;
    struct hl_arena arena;
    bool skipped;
    char reason[240];
};

struct hl_recovery {
    bool discard; /* nothing comes back */
    struct hl_recovery_object *objects;
    struct hl_recovery_candidate *list;
    size_t count, cap;
    unsigned known;   /* versions that the catalogue has */
    unsigned damaged; /* manifests that can't be read */
};

void hl_recovery_fini(struct hl_recovery *r);

/* ---- what there is --------------------------------------------------------------------------- */

enum hl_recovery_place { HL_RECOVERY_POOLED, HL_RECOVERY_ARCHIVED, HL_RECOVERY_TRASHED };

/* A list has it. An object may be in several; its size is that of the best place. Derived shards
 * are left out: no manifest names them, and what they were cut from makes them again. */
hl_status hl_recovery_note(struct hl_recovery *r, enum hl_recovery_place place, struct hl_id id,
                           uint64_t size, uint32_t crc) HL_CHECK;
/* The object of that id, made where there is none. NULL without memory. */
struct hl_recovery_object *hl_recovery_object(struct hl_recovery *r, struct hl_id id);
/* The text of the manifest `id`; one that can't be read is counted as damaged. */
hl_status hl_recovery_add_manifest(struct hl_recovery *r, struct hl_id id,
                                   const char *text) HL_CHECK;
/* What L3 has read of an object; HL_ENOMEM: it is not kept. */
hl_status hl_recovery_found(struct hl_recovery *r, const struct hl_api_found *found,
                            struct hl_recovery_object **out) HL_CHECK;
/* L3 has to read it: manifests; archived shards, whose CRC no list says; and the headers of shards
 * that no version claims. */
bool hl_recovery_reads(const struct hl_recovery_object *o, const struct hl_catalog *catalog);
/* A version that comes back has it, and only the trash does. */
bool hl_recovery_untrashes(const struct hl_recovery_object *o, const struct hl_catalog *catalog);
/* Those are in the archive from now on. */
void hl_recovery_untrashed(struct hl_recovery *r);

/* ---- what follows ---------------------------------------------------------------------------- */

/* Which versions come back; may be repeated when more was read. */
void hl_recovery_judge(struct hl_recovery *r, const struct hl_catalog *catalog);
/* Those that come back; NULL without memory. free() */
const struct hl_manifest **hl_recovery_list(const struct hl_recovery *r, size_t *count);

struct hl_recovery_decision {
    uint64_t left; /* shards that no version holds: a claim would free them */
    bool takes;    /* pool and archive are claimed */
    bool changes;  /* there is something to write down; not in a dry run */
};

struct hl_recovery_decision hl_recovery_decide(const struct hl_recovery *r, bool dry);

/* ---- the answer ------------------------------------------------------------------------------ */

/* Versions, and what is left over, in the arena; both borrow from `r`. */
struct hl_api_recovered_version_list hl_recovery_versions(const struct hl_recovery *r,
                                                          struct hl_arena *arena);
struct hl_api_left_shards_list hl_recovery_left(const struct hl_recovery *r,
                                                struct hl_arena *arena);

#endif
