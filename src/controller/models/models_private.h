/* What the files of this wing share: imports, and what is checked before a version is visible. */
#ifndef HL_CONTROLLER_MODELS_PRIVATE_H
#define HL_CONTROLLER_MODELS_PRIVATE_H

#include <uthash.h>

#include "base/arena.h"
#include "base/id.h"
#include "controller/commits.h"
#include "controller/copies/copies.h"
#include "controller/core.h"
#include "controller/models/models.h"

struct import;
struct cut_waiter;
struct version_change;
struct version_securing;

/* The end of an import, on its way to the store. */
struct import_change {
    struct change change; /* first */
    struct import *im;
    int64_t now_ms;
    struct hl_version_rec *version;
    struct hl_proof proof;  /* of an import */
    bool held;              /* as versions.durability wants, where that is not pool */
    struct hl_id *replaced; /* shards of a cut that this one replaces; free() */
    size_t replaced_count;
};

/* What differs between an import and a cut. */
struct import_kind {
    const char *what;
    void (*start)(struct import *im); /* L3 is asked */
    /* ch is a struct import_change; as of a change. */
    hl_status (*make)(struct change *ch);
    void (*made)(const struct import_change *ic);
    void (*failed)(struct import *im, hl_status st, const char *text); /* NULL = nothing to do */
    void (*tick)(struct import *im); /* while it runs; NULL = nothing to do */
    void (*fini)(struct import *im); /* it is forgotten; NULL = nothing to do */
};

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    const struct import_kind *kind;
    struct hl_api_import_request request; /* of an import */
    struct hl_api_cut_request cut;        /* of a cut */
    struct hl_arena request_arena;
    struct cut_waiter *waiters;             /* calls of requestShards that wait for the cut */
    struct hl_api_import_progress progress; /* as last heard; state is ours */
    struct hl_arena progress_arena;
    /* What L3 said at its end, while that is being written to the store. */
    struct hl_api_import_progress result;
    struct hl_arena result_arena;
    bool finishing;
    struct securing *securing;     /* its shards, before it is made; NULL: they are not now */
    struct import_change *secured; /* that is made then */
    bool polling;                  /* an answer of L3 is awaited */
    bool put_off;      /* L3 is asked with a later tick: it is busy, or its owner is not known */
    bool queued;       /* L3 was busy with others when it last answered */
    bool begun;        /* L3 has said that it has it; of an import */
    bool cancelled;    /* L3 may not know yet */
    uint64_t asked_ns; /* listened_ns when it was asked for */
    uint64_t heard_ns; /* listened_ns of the last answer */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct models {
    const struct version_users *users;
    struct import *imports; /* by id, the oldest first */
    struct hl_timer *import_tick;
    struct recovery *recovery;     /* under way, else NULL */
    struct layout *layouts;        /* of open versions */
    struct version_change *begins; /* that wait for the claim, the oldest first */
    struct hl_timer *begins_tick;
    struct version_securing *securings;
    struct hl_timer *secure_timer; /* while there are some */
};

/* imports.c */
bool import_running(const struct import *im);
/* It runs, and is one that people have asked for: no cut. */
bool import_is_listed(const struct import *im);
struct hl_api_import_summary import_summary(const struct import *im);
void imports_fini(struct hl_controller *c);
/* Kept by its id, running, and not asked for yet: import_start(). */
hl_status import_new(struct hl_controller *c, const struct import_kind *kind,
                     struct import **out) HL_CHECK;
/* Something of its request could not be kept. */
void import_free(struct hl_controller *c, struct import *im);
void import_start(struct hl_controller *c, struct import *im);
/* L3 has answered that it starts, or why not. */
void import_started(struct import *im, hl_status st, const char *text);
void forget_old_imports(struct hl_controller *c);

/* cuts.c */
/* `answer` is called as soon as the version is cut, with the deadline of the call: it may be lost
 * again. */
typedef void (*cut_answer)(struct hl_controller *c, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p,
                           uint64_t until_ns);
/* The call waits until the version is cut for its split, which starts now unless it runs; at its
 * deadline it is told how far the cut is. */
void cut_wait(struct hl_controller *c, struct hl_version_rec *v, struct hl_rpc_call *call,
              const struct hl_api_controller_request_shards_params *p, cut_answer answer,
              uint64_t until_ns);

/* Of a cut that runs; of one that is queued the bytes of what L3 has begun. */
void cut_progress(const struct import *im, struct hl_api_controller_request_shards_results *out);

/* layouts.c */
/* What an open version has to hold; NULL: it is not planned, or needs no plan. */
const struct hl_expected *layout_find(const struct hl_controller *c,
                                      const struct hl_version_rec *v);
/* It has to be planned before a rank commits. */
bool layout_is_missing(const struct hl_controller *c, const struct hl_version_rec *v);
/* Begins with controller_stopped. */
typedef void (*layout_planned)(void *arg);
/* Of a version whose layout is missing. HL_OK: `done` runs once, later. */
hl_status layout_plan(struct hl_controller *c, const struct hl_version_rec *v, layout_planned done,
                      void *arg) HL_CHECK;
/* Plans that no open version needs any more go. */
void layouts_forget(struct hl_controller *c);

/* Drop the versions that the job of `newest` has kept long enough. */
void drop_old_versions(struct hl_controller *c, const struct hl_version_rec *newest);
/* Drop what the gang of `v` left unfinished before it came together again. */
void drop_overtaken_versions(struct hl_controller *c, const struct hl_version_rec *v);
void layouts_fini(struct hl_controller *c);
/* versions.c: those that wait are not answered */
void begins_fini(struct hl_controller *c);

/* secure.c */
/* HL_OK: it is held as is wanted; HL_EBUSY: it is so far, ask again; HL_ESTALE: what was asked for
 * is not so any more, look again; HL_ECANCELED: the Controller is stopped; else why it can't be. */
typedef void (*version_secured)(void *arg, hl_status st, const char *text,
                                const struct securing_progress *progress);
/* Such shards of the last rank are being secured with its version, or were. */
bool secure_runs(const struct hl_controller *c, const struct hl_version_rec *v, int rank,
                 const struct hl_api_shard_list *named);
/* Wait until the version is held as is wanted, with the shards that its last rank names; `done`
 * comes once, at once or at until_ns at the latest. */
hl_status secure_wait(struct hl_controller *c, const struct hl_version_rec *v, int rank,
                      const struct hl_api_shard_list *named, uint64_t until_ns,
                      version_secured done, void *arg) HL_CHECK;
void secures_fini(struct hl_controller *c);

/* recover.c */
void recover_fini(struct hl_controller *c);

/* proof.c */
struct proved {
    bool settled; /* else the model's config asks for something else, and nothing was proved */
    struct hl_proof proof;
    char *config; /* as of hl_version_settle(); whoever keeps it steals it */
};

/* st: of hl_version_settle() or hl_proof_check(), with hl_error_text(); `proved` is borrowed for
 * the call. */
typedef void (*proof_done)(void *arg, hl_status st, struct proved *proved);
/* Prove the version with this commit of its last rank, beside the loop. HL_OK: `done` runs on the
 * loop, once, and begins with controller_stopped. */
hl_status proof_start(struct hl_controller *c, const struct hl_version_commit *commit,
                      proof_done done, void *arg) HL_CHECK;
/* The same of what an import has made, with its config. */
hl_status proof_start_import(struct hl_controller *c, const char *config,
                             const struct hl_api_shard_list *shards, proof_done done,
                             void *arg) HL_CHECK;

#endif
