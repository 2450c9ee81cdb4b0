/* What recover.c (the call and its steps) and recover_judge.c (what is restored, what is left)
 * share. */
#ifndef HL_CONTROLLER_RECOVER_PRIVATE_H
#define HL_CONTROLLER_RECOVER_PRIVATE_H

#include <uthash.h>

#include "controller/models/models_private.h"
#include "core/manifest.h"

/* One shard or manifest, wherever it is. */
struct object {
    struct hl_id id;
    bool pooled, archived, trashed;
    bool read;            /* `found` is what L3 read of it */
    bool claimed;         /* a version that is restored or known has it */
    uint64_t size;        /* in the pool, else in the archive, else in the trash */
    uint32_t crc;         /* pooled, or read */
    char unreadable[160]; /* why not, else "" */
    char *model;          /* by its header, NULL = not read */
    int64_t version;
    UT_hash_handle hh;
};

/* A shard as a manifest states it. */
struct stated_shard {
    struct hl_id id;
    uint64_t size;
    uint32_t crc;
    const char *part;
};

/* A version that a manifest names. */
struct candidate {
    struct hl_manifest manifest;
    struct stated_shard *shards; /* in `arena` */
    size_t shard_count;
    struct hl_arena arena;
    bool skipped;
    char reason[240];
};

struct recovery {
    struct change change; /* first */
    struct hl_controller *c;
    struct hl_rpc_call *call;
    bool dry, discard;
    bool take; /* the last step: pool and archive are claimed */
    struct object *objects;
    struct object *cursor; /* next to be read */
    struct candidate *list;
    size_t count, cap;
    unsigned known;
    uint64_t untrashed;
    uint64_t left; /* shards */
    struct hl_id cluster;
    uint64_t own_revision; /* before `revised` */
    bool revised;
    unsigned damaged; /* manifests that can't be read */
};

void candidate_fini(struct candidate *x);
struct object *recover_object(struct recovery *r, struct hl_id id);
/* Takes the text of a manifest; one that is damaged is counted and logged. */
void recover_add_manifest(struct recovery *r, struct hl_id id, const char *text);
/* Which versions come back, by where their shards are; may be repeated when more was read. */
void recover_judge(struct recovery *r);
/* Those that come back; NULL without memory. free() */
const struct hl_manifest **recover_list(const struct recovery *r, size_t *count);
/* Shards that no version holds. */
uint64_t recover_left(struct recovery *r);
/* It borrows from `r`. */
struct hl_api_recovery recover_info(struct recovery *r, struct hl_arena *arena);

#endif
