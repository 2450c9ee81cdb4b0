/* controller/claim.h - decides whether this Controller may change the pool and the archive that it
 * finds.
 *
 * The cluster has an id, created with the Controller's state, and the catalogue has a revision that
 * grows with every durable change. L3 stores both next to its shards. It refuses a Controller whose
 * state was lost, restored from an old copy, or belongs to another cluster. Such a Controller
 * serves reads but changes nothing, until `helios recover` has settled to whom the shards belong.
 *
 * Owns:    id, revision and epoch, in the store under HL_CLAIM_ID_KEY, HL_CLAIM_REVISION_KEY and
 *          HL_CLAIM_EPOCH_KEY.
 * Threads: the Controller's loop.
 * Errors:  HL_EPERM says why not and what to do.
 * Units:   none.
 * Limits:  L3 learns of a change only after it is durable: a state that was copied within the
 *          milliseconds in between can't be distinguished from a current one.
 */
#ifndef HL_CONTROLLER_CLAIM_H
#define HL_CONTROLLER_CLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"

#define HL_CLAIM_ID_KEY       "cluster/id"       /* {"id": 32 hex digits} */
#define HL_CLAIM_REVISION_KEY "cluster/revision" /* {"revision": number} */
#define HL_CLAIM_EPOCH_KEY    "cluster/epoch"    /* {"epoch": number} */

struct hl_controller;
struct hl_records;

enum claim_state {
    CLAIM_UNKNOWN = HL_API_CLAIM_STATE_UNKNOWN, /* L3 has not answered since we connected */
    CLAIM_OK = HL_API_CLAIM_STATE_OK,
    CLAIM_REFUSED = HL_API_CLAIM_STATE_REFUSED,
};

/* What L3 last said about its owners. */
struct claim_found {
    enum hl_api_claim_result state;
    struct hl_id cluster, archive_cluster;
    uint64_t revision, archive_revision;
    uint64_t shards, archived, trashed;
    bool archive_damaged; /* the information about its owner is unreadable */
};

struct claim {
    struct hl_id cluster;
    uint64_t epoch;    /* of this start (core/migration/epoch.h); durable */
    uint64_t revision; /* durable */
    uint64_t seen;     /* newest revision that L3 may have from us */
    enum claim_state state;
    char why[400]; /* REFUSED */
    bool asking;
    bool again;     /* something has changed since L3 was asked */
    bool comparing; /* unclaimed: the sweep counts how many of its shards the catalogue knows */
    uint64_t known_pooled, known_archived;
    struct claim_found found;
    /* Set by the sweep; called when L3 has answered or failed to; NULL: no call waits. */
    void (*answered)(struct hl_controller *c, hl_status st);
};

/* At start: reads id and revision from the store, or creates them. */
hl_status claim_load(struct hl_controller *c) HL_CHECK;
/* Used instead if these records are unreadable: takes an id that no pool has, and stores
 * nothing. */
void claim_load_none(struct hl_controller *c);
/* Call it after either: begins a new epoch, which is durable if the store can be written. */
hl_status claim_begin_epoch(struct hl_controller *c) HL_CHECK;
/* Id of the cluster. */
struct hl_id_text claim_cluster(const struct hl_controller *c);
/* True: this Controller may change pool and archive. False: `why` is a sentence; it may be NULL. */
bool claim_ok(const struct hl_controller *c, char *why, size_t cap);
/* HL_EPERM once L3 has refused. HL_OK while L3 is silent, because nothing can reach it then. */
hl_status claim_check(const struct hl_controller *c) HL_CHECK;
enum hl_api_claim_state claim_state(const struct hl_controller *c);
/* What L3 last said; all zero = nothing yet. */
const struct claim_found *claim_found(const struct hl_controller *c);

/* Add the records for a change of the cluster's id, and for every change of the catalogue. */
hl_status claim_add_id(struct hl_records *records, struct hl_id cluster) HL_CHECK;
hl_status claim_add_revision(struct hl_records *records, uint64_t revision) HL_CHECK;
/* Notes that the next revision is durable. */
void claim_changed(struct hl_controller *c);

/* Asks L3; claim.answered is called later. */
void claim_ask(struct hl_controller *c);
/* L3 is silent, or a different daemon: discards what it said. */
void claim_forget(struct hl_controller *c);
/* Notes that the whole inventory was compared with the catalogue. */
void claim_compared(struct hl_controller *c);

/* For `helios recover`. */
/* Takes on that id and revision, once the records of claim_add_id and claim_add_revision are
 * durable. The claim is unknown until L3 is asked again. */
void claim_become(struct hl_controller *c, struct hl_id cluster, uint64_t revision);
typedef void (*claim_done)(void *arg, hl_status st, const char *text);
/* Takes over pool and archive from any owner: HL_OK only when L3 has recorded it durably.
 * `done` is not called if the Controller ends. */
void claim_take(struct hl_controller *c, claim_done done, void *arg);

#endif
