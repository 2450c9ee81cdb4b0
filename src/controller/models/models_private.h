/* controller/models/models_private.h - imports, and the checks before a version becomes visible.
 *
 * Threads: the Controller's loop.
 */
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

/* The end of an import, being written to the store. */
struct import_change {
    struct change change; /* first */
    struct import *im;
    int64_t now_ms;
    struct hl_version_rec *version;
    struct hl_proof proof;  /* of an import */
    bool held;              /* it is held as versions.durability requires, if that is not pool */
    struct hl_id *replaced; /* shards of a cut that this one replaces; free() */
    size_t replaced_count;
};

/* What differs between an import and a cut. */
struct import_kind {
    const char *what;
    void (*start)(struct import *im); /* asks L3 to start it */
    /* As in struct change; ch is a struct import_change. */
    hl_status (*make)(struct change *ch);
    void (*made)(const struct import_change *ic);
    void (*failed)(struct import *im, hl_status st, const char *text); /* NULL = nothing to do */
    void (*tick)(struct import *im); /* while it runs; NULL = nothing to do */
    void (*fini)(struct import *im); /* when it is forgotten; NULL = nothing to do */
};

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    const struct import_kind *kind;
    struct hl_api_import_request request; /* of an import */
    struct hl_api_cut_request cut;        /* of a cut */
    struct hl_arena request_arena;
    struct cut_waiter *waiters;             /* requestShards calls that wait for the cut */
    struct hl_api_import_progress progress; /* as last reported, except that `state` is ours */
    struct hl_arena progress_arena;
    /* L3's final answer, while it is being written to the store. */
    struct hl_api_import_progress result;
    struct hl_arena result_arena;
    bool finishing;
    /* securing of its shards, before it is made; NULL: not in progress */
    struct securing *securing;
    struct import_change *secured; /* the change to make after that */
    bool polling;                  /* L3's answer is pending */
    bool put_off;      /* L3 is asked at a later tick, because it is busy or its owner is unknown */
    bool queued;       /* L3 was busy with others when it last answered */
    bool begun;        /* L3 has confirmed it; only of an import */
    bool cancelled;    /* cancelled; L3 may not know yet */
    uint64_t asked_ns; /* listened_ns when it was requested */
    uint64_t heard_ns; /* listened_ns of the last answer */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct models {
    const struct version_users *users;
    struct import *imports; /* by id, oldest first */
    struct hl_timer *import_tick;
    struct recovery *recovery;     /* in progress, else NULL */
    struct layout *layouts;        /* of open versions */
    struct version_change *begins; /* begins that wait for the claim, oldest first */
    struct hl_timer *begins_tick;
    struct version_securing *securings;
    struct hl_timer *secure_timer; /* runs while there are any */
};

/* imports.c */
bool import_running(const struct import *im);
/* It is running and was requested by a user, so it is not a cut. */
bool import_is_listed(const struct import *im);
struct hl_api_import_summary import_summary(const struct import *im);
void imports_fini(struct hl_controller *c);
/* Creates a running import under a new id; import_start() sends the request. */
hl_status import_new(struct hl_controller *c, const struct import_kind *kind,
                     struct import **out) HL_CHECK;
/* Frees an import whose request could not be stored. */
void import_free(struct hl_controller *c, struct import *im);
void import_start(struct hl_controller *c, struct import *im);
/* L3 has answered whether it starts it. */
void import_started(struct import *im, hl_status st, const char *text);
void forget_old_imports(struct hl_controller *c);

/* cuts.c */
/* Called as soon as the version is cut, with the deadline of the call, because the cut may get lost
 * again. */
typedef void (*cut_answer)(struct hl_controller *c, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p,
                           uint64_t until_ns);
/* Lets the call wait until the version is cut for its split. Starts the cut unless it is running;
 * at its deadline the call gets the cut's progress. */
void cut_wait(struct hl_controller *c, struct hl_version_rec *v, struct hl_rpc_call *call,
              const struct hl_api_controller_request_shards_params *p, cut_answer answer,
              uint64_t until_ns);

/* Progress of a running cut; if it is queued, the bytes of what L3 is working on. */
void cut_progress(const struct import *im, struct hl_api_controller_request_shards_results *out);

/* layouts.c */
/* What an open version must hold; NULL: not planned yet, or no plan is needed. */
const struct hl_expected *layout_find(const struct hl_controller *c,
                                      const struct hl_version_rec *v);
/* The version must be planned before a rank can commit. */
bool layout_is_missing(const struct hl_controller *c, const struct hl_version_rec *v);
/* Begins with controller_stopped. */
typedef void (*layout_planned)(void *arg);
/* Plans a version whose layout is missing. HL_OK: `done` runs once, later. */
hl_status layout_plan(struct hl_controller *c, const struct hl_version_rec *v, layout_planned done,
                      void *arg) HL_CHECK;
/* Drops plans that no open version needs any more. */
void layouts_forget(struct hl_controller *c);

/* Drops old versions of the job of `newest` that need not be kept any more. */
void drop_old_versions(struct hl_controller *c, const struct hl_version_rec *newest);
/* Drops versions that the gang of `v` left unfinished before it re-formed. */
void drop_overtaken_versions(struct hl_controller *c, const struct hl_version_rec *v);
void layouts_fini(struct hl_controller *c);
/* versions.c: waiting begins are not answered */
void begins_fini(struct hl_controller *c);

/* secure.c */
/* HL_OK: it is held as required; HL_EBUSY: not yet, see the progress and ask again; HL_ESTALE: the
 * situation has changed, look again; HL_ECANCELED: the Controller is stopped; else why it can't
 * be. */
typedef void (*version_secured)(void *arg, hl_status st, const char *text,
                                const struct securing_progress *progress);
/* These shards of the last rank are being secured with the version, or have been. */
bool secure_runs(const struct hl_controller *c, const struct hl_version_rec *v, int rank,
                 const struct hl_api_shard_list *named);
/* Waits until the version is held as required, including the shards that its last rank names;
 * `done` is called once, at once or by until_ns at the latest. */
hl_status secure_wait(struct hl_controller *c, const struct hl_version_rec *v, int rank,
                      const struct hl_api_shard_list *named, uint64_t until_ns,
                      version_secured done, void *arg) HL_CHECK;
void secures_fini(struct hl_controller *c);

/* recover.c */
void recover_fini(struct hl_controller *c);

/* proof.c */
struct proved {
    bool settled; /* if false, the config does not match the shards, and nothing was proved */
    struct hl_proof proof;
    char *config; /* from hl_version_settle(); a caller that keeps it must steal it */
};

/* st: result of hl_version_settle() or hl_proof_check(), with hl_error_text(); `proved` is borrowed
 * during the call. */
typedef void (*proof_done)(void *arg, hl_status st, struct proved *proved);
/* Proves the version with this commit of its last rank, in another thread. HL_OK: `done` runs once,
 * on the loop, and must begin with controller_stopped. */
hl_status proof_start(struct hl_controller *c, const struct hl_version_commit *commit,
                      proof_done done, void *arg) HL_CHECK;
/* The same for the shards and the config of an import. */
hl_status proof_start_import(struct hl_controller *c, const char *config,
                             const struct hl_api_shard_list *shards, proof_done done,
                             void *arg) HL_CHECK;

#endif
