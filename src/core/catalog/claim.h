/* core/catalog/claim.h - may a cluster take a pool or an archive that it finds, and what may be
 * done in it?
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EPERM names the owner.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_CLAIM_H
#define HL_CORE_CATALOG_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"
#include "base/status.h"

/* A pool or an archive as it is found. */
struct hl_claimed {
    struct hl_id cluster; /* none: it is unclaimed */
    uint64_t revision;    /* the newest of that cluster's catalogue that it has heard of */
    uint64_t shards;      /* of any cluster */
    bool damaged;         /* what it says of its owner can't be read */
};

struct hl_claimant {
    struct hl_id cluster;
    uint64_t seen; /* the newest revision that it knows of */
    enum hl_api_claim_mode mode;
};

/* empty_is_free: without shards any cluster may claim it, as holds for an archive. An empty pool of
 * another cluster stays that one's: it is in use, and shards may be on their way to it. */
enum hl_api_claim_result hl_claim_judge(const struct hl_claimed *found,
                                        const struct hl_claimant *who, bool empty_is_free);
/* What was found says already what that claim, with this revision, would write. */
bool hl_claim_stands(const struct hl_claimed *found, const struct hl_claimant *who,
                     uint64_t revision);
/* The revision that a pool keeps after the claim: it never falls, unless it is taken. */
uint64_t hl_claim_revision(const struct hl_claimed *found, const struct hl_claimant *who,
                           uint64_t revision);

/* ---- the Controller's side ---- */

/* It is unclaimed, and the catalogue knows none of its shards: they belong to another cluster. One
 * known shard is enough to call it ours, as ids are random. */
bool hl_claim_is_strange(const struct hl_claimed *found, uint64_t known);
/* L3 may have heard of the revision that went with a claim: also when its answer was lost, but not
 * when it does not know the call, was too busy to look at it, or refused (`is_ours`, of HL_OK). */
bool hl_claim_is_told(hl_status st, bool is_ours);

/* The cluster that a recovery continues: the owner that the pool, else the archive, knows, so that
 * all that names it stays right; else `own`. */
struct hl_id hl_claim_heir(struct hl_id pool, struct hl_id archive, struct hl_id own);
/* The revision before the commit of a recovery, which adds one: takes, and it becomes newer than
 * all that pool and archive have heard of; else it stays what it was, so that L3 goes on refusing.
 */
uint64_t hl_claim_recovered(uint64_t own, uint64_t pool, uint64_t archive, bool takes);

/* ---- L3's ---- */

/* HL_EPERM unless the caller names the owner of `what`, or it has none; named "": no cluster. */
hl_status hl_claim_permit(const char *what, struct hl_id owner, const char *named) HL_CHECK;

/* It says so itself. What another cluster has put there is left to it. */
bool hl_claim_is_of(const struct hl_claimed *found, struct hl_id cluster);

/* Before a shard of the pool goes into the archive. */
enum hl_claim_sign {
    HL_CLAIM_SIGNED,  /* the archive says whose it is */
    HL_CLAIM_SIGN,    /* it has to be written first */
    HL_CLAIM_FOREIGN, /* it is another's, and not empty */
};

enum hl_claim_sign hl_claim_sign(const struct hl_claimed *pool, const struct hl_claimed *archive);

#endif
