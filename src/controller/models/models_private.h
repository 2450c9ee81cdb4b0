/* What the files of this wing share: imports, and what is checked before a version is visible. */
#ifndef HL_CONTROLLER_MODELS_PRIVATE_H
#define HL_CONTROLLER_MODELS_PRIVATE_H

#include <uthash.h>

#include "base/arena.h"
#include "base/id.h"
#include "controller/commits.h"
#include "controller/core.h"
#include "controller/models/models.h"

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    struct hl_api_import_request request;
    struct hl_arena request_arena;
    struct hl_api_import_progress progress; /* as last heard; state is ours */
    struct hl_arena progress_arena;
    /* What L3 said at its end, while that is being written to the store. */
    struct hl_api_import_progress result;
    struct hl_arena result_arena;
    bool finishing;
    bool polling;      /* an answer of L3 is awaited */
    bool cancelled;    /* L3 may not know yet */
    uint64_t heard_ns; /* listened_ns of the last answer */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct models {
    const struct version_users *users;
    struct import *imports; /* by id, the oldest first */
    struct hl_timer *import_tick;
    struct recovery *recovery; /* under way, else NULL */
};

/* imports.c */
bool import_running(const struct import *im);
struct hl_api_import_summary import_summary(const struct import *im);
void imports_fini(struct hl_controller *c);

/* recover.c */
void recover_fini(struct hl_controller *c);

/* commit_check.c */
/* Ids of the version's shards and of those that a rank names. */
struct hl_api_text_list commit_check_ids(const struct hl_version_rec *v,
                                         const struct hl_api_shard_list *named,
                                         struct hl_arena *arena);
/* found: what L3.look has answered about them. HL_ENOENT, HL_EINVAL name the shard. */
hl_status commit_check(const struct hl_version_rec *v, const struct hl_api_shard_list *named,
                       const struct hl_api_found_shard_list *found) HL_CHECK;

/* proof.c */
/* st: of hl_proof_check, with hl_error_text(); the proof is borrowed for the call. */
typedef void (*proof_done)(void *arg, hl_status st, const struct hl_proof *proof);
/* Prove the version with these shards of its last rank, beside the loop. HL_OK: `done` runs on the
 * loop, once, and begins with controller_stopped. */
hl_status proof_start(struct hl_controller *c, struct hl_version_rec *v, int rank,
                      const struct hl_api_shard_list *named, proof_done done, void *arg) HL_CHECK;

#endif
