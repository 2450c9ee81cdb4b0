/* controller/claim.h - may this Controller change the pool and the archive that it finds?
 *
 * The cluster has an id, made with the Controller's state, and the catalogue a revision that grows
 * with every durable change of it. L3 keeps both beside its shards. A Controller whose state was
 * lost, restored from an old copy, or is another cluster's, is refused there; it then serves reads
 * and changes nothing, until `helios recover` has settled whose shards they are.
 *
 * Owns:    id, revision and epoch, in the store under HL_CLAIM_ID_KEY, HL_CLAIM_REVISION_KEY and
 *          HL_CLAIM_EPOCH_KEY.
 * Threads: the Controller's loop.
 * Errors:  HL_EPERM with why not and what to do.
 * Units:   none.
 * Limits:  L3 hears of a change after it is durable: a state that was copied within the
 *          milliseconds in between can't be told from a current one.
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
    CLAIM_UNKNOWN = HL_API_CLAIM_STATE_UNKNOWN, /* L3 has not answered since it was reached */
    CLAIM_OK = HL_API_CLAIM_STATE_OK,
    CLAIM_REFUSED = HL_API_CLAIM_STATE_REFUSED,
};

/* What L3 said of its owners, last. */
struct claim_found {
    enum hl_api_claim_result state;
    struct hl_id cluster, archive_cluster;
    uint64_t revision, archive_revision;
    uint64_t shards, archived, trashed;
    bool archive_damaged; /* what it says of its owner can't be read */
};

struct claim {
    struct hl_id cluster;
    uint64_t epoch;    /* of this start (core/migration/epoch.h); durable */
    uint64_t revision; /* durable */
    uint64_t seen;     /* newest that L3 may have from us */
    enum claim_state state;
    char why[400]; /* REFUSED */
    bool asking;
    bool again;     /* something changed since it was asked */
    bool comparing; /* unclaimed: the sweep counts what the catalogue knows of it */
    uint64_t known_pooled, known_archived;
    struct claim_found found;
    /* L3 has answered, or not; NULL: no call waits. The sweep's. */
    void (*answered)(struct hl_controller *c, hl_status st);
};

/* At the start: read from the store, or made there. */
hl_status claim_load(struct hl_controller *c) HL_CHECK;
/* Instead, where these records can't be read: an id that no pool has, and nothing is stored. */
void claim_load_none(struct hl_controller *c);
/* After either: a new epoch begins, and is durable if the store takes anything. */
hl_status claim_begin_epoch(struct hl_controller *c) HL_CHECK;
/* Id of the cluster. */
struct hl_id_text claim_cluster(const struct hl_controller *c);
/* True: this Controller may change pool and archive. False: `why` is a sentence; it may be NULL. */
bool claim_ok(const struct hl_controller *c, char *why, size_t cap);
/* HL_EPERM once L3 has refused. While L3 is silent: HL_OK, for nothing can reach it. */
hl_status claim_check(const struct hl_controller *c) HL_CHECK;
enum hl_api_claim_state claim_state(const struct hl_controller *c);
/* What L3 said last; all zero = nothing yet. */
const struct claim_found *claim_found(const struct hl_controller *c);

/* Records of a change of who the cluster is, and of every change of the catalogue. */
hl_status claim_add_id(struct hl_records *records, struct hl_id cluster) HL_CHECK;
hl_status claim_add_revision(struct hl_records *records, uint64_t revision) HL_CHECK;
/* The next revision is durable. */
void claim_changed(struct hl_controller *c);

/* Ask L3; claim.answered follows. */
void claim_ask(struct hl_controller *c);
/* L3 is silent, or another one: what it said is void. */
void claim_forget(struct hl_controller *c);
/* The whole inventory was compared with the catalogue. */
void claim_compared(struct hl_controller *c);

/* For `helios recover`. */
/* The records of claim_add_id and claim_add_revision are durable: from now on this is us. The
 * claim is unknown until it is asked again. */
void claim_become(struct hl_controller *c, struct hl_id cluster, uint64_t revision);
typedef void (*claim_done)(void *arg, hl_status st, const char *text);
/* Whatever pool and archive were, they are ours now: HL_OK only when L3 has it durably. `done` is
 * not called when the Controller ends. */
void claim_take(struct hl_controller *c, claim_done done, void *arg);

#endif
