/* core/catalog/recovery.h - recovers versions that the catalogue has lost from pool, archive and
 * manifests: which can be restored, which can't and why, and which shards are left over.
 *
 *     hl_recovery_note          objects of the lists of pool, archive and trash
 *     hl_recovery_add_manifest  candidates
 *     hl_recovery_judge         which of them can be restored; repeat when more was read
 *     hl_recovery_decide        what to do about it
 *
 * Owns:    objects and candidates (hl_recovery_fini).
 * Threads: one owner. Pure: no I/O, no clock.
 * Errors:  HL_ECORRUPT for an invalid manifest, or one of another version; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of core/catalog/manifest.h; left-over shards are reported in at most 4096 groups.
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
    bool read;            /* size, crc and header come from L3's reading it */
    bool claimed;         /* a restored or known version has it */
    uint64_t size;        /* in the pool, else in the archive, else in the trash */
    uint32_t crc;         /* valid if pooled or read */
    char unreadable[160]; /* why it can't be read, else "" */
    char *model;          /* from its header; NULL = not read */
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
    bool discard; /* nothing is restored */
    struct hl_recovery_object *objects;
    struct hl_recovery_candidate *list;
    size_t count, cap;
    unsigned known;   /* versions that the catalogue has */
    unsigned damaged; /* unreadable manifests */
};

void hl_recovery_fini(struct hl_recovery *r);

/* ---- what there is --------------------------------------------------------------------------- */

enum hl_recovery_place { HL_RECOVERY_POOLED, HL_RECOVERY_ARCHIVED, HL_RECOVERY_TRASHED };

/* Notes an object of a list. An object may be in several lists; the size of the best place counts.
 * Derived shards are ignored: no manifest names them, and they can be cut again. */
hl_status hl_recovery_note(struct hl_recovery *r, enum hl_recovery_place place, struct hl_id id,
                           uint64_t size, uint32_t crc) HL_CHECK;
/* The object with that id, created if there is none. NULL when out of memory. */
struct hl_recovery_object *hl_recovery_object(struct hl_recovery *r, struct hl_id id);
/* Adds the manifest `id` with that text; an unreadable one is counted as damaged. */
hl_status hl_recovery_add_manifest(struct hl_recovery *r, struct hl_id id,
                                   const char *text) HL_CHECK;
/* Stores what L3 has read of an object; HL_ENOMEM: it is not stored. */
hl_status hl_recovery_found(struct hl_recovery *r, const struct hl_api_found *found,
                            struct hl_recovery_object **out) HL_CHECK;
/* L3 must read the object: manifests; archived shards, because no list has their CRC; and the
 * headers of shards that no version claims. */
bool hl_recovery_reads(const struct hl_recovery_object *o, const struct hl_catalog *catalog);
/* A restored version needs the object, and only the trash has it. */
bool hl_recovery_untrashes(const struct hl_recovery_object *o, const struct hl_catalog *catalog);
/* Marks those objects as archived, after they were moved out of the trash. */
void hl_recovery_untrashed(struct hl_recovery *r);

/* ---- what follows ---------------------------------------------------------------------------- */

/* Decides which versions can be restored; may be repeated when more was read. */
void hl_recovery_judge(struct hl_recovery *r, const struct hl_catalog *catalog);
/* The manifests of the versions to restore; free(). NULL when out of memory. */
const struct hl_manifest **hl_recovery_list(const struct hl_recovery *r, size_t *count);

struct hl_recovery_decision {
    uint64_t left; /* shards that no version has: a claim would free them */
    bool takes;    /* pool and archive are claimed */
    bool changes;  /* there is something to commit; false in a dry run */
};

struct hl_recovery_decision hl_recovery_decide(const struct hl_recovery *r, bool dry);

/* ---- the answer ------------------------------------------------------------------------------ */

/* The versions, and the left-over shards, for the API; in the arena, and borrowing from `r`. */
struct hl_api_recovered_version_list hl_recovery_versions(const struct hl_recovery *r,
                                                          struct hl_arena *arena);
struct hl_api_left_shards_list hl_recovery_left(const struct hl_recovery *r,
                                                struct hl_arena *arena);

#endif
