/* core/catalog/claim.h - decides whether a cluster may claim a pool or an archive that it finds,
 * and what may be done in it.
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

/* A pool or an archive as it was found. */
struct hl_claimed {
    struct hl_id cluster; /* no id: unclaimed */
    uint64_t revision;    /* newest revision of that cluster's catalogue that it knows */
    uint64_t shards;      /* number of shards, of any cluster */
    bool damaged;         /* the information about its owner is unreadable */
};

struct hl_claimant {
    struct hl_id cluster;
    uint64_t seen; /* newest revision that it knows */
    enum hl_api_claim_mode mode;
};

/* empty_is_free: any cluster may claim it if it has no shards, as is the case for an archive. An
 * empty pool of another cluster still belongs to that cluster: it is in use, and shards may be on
 * their way to it. */
enum hl_api_claim_result hl_claim_judge(const struct hl_claimed *found,
                                        const struct hl_claimant *who, bool empty_is_free);
/* What was found already matches what that claim, with this revision, would write. */
bool hl_claim_stands(const struct hl_claimed *found, const struct hl_claimant *who,
                     uint64_t revision);
/* The revision that a pool stores after the claim: it never decreases, unless the pool is taken
 * over. */
uint64_t hl_claim_revision(const struct hl_claimed *found, const struct hl_claimant *who,
                           uint64_t revision);

/* ---- the Controller's side ---- */

/* It is unclaimed, and the catalogue knows none of its shards, so they belong to another cluster.
 * One known shard is enough to call it ours, because ids are random. */
bool hl_claim_is_strange(const struct hl_claimed *found, uint64_t known);
/* L3 may have learned the revision that was sent with a claim. True also if its answer was lost;
 * false if it does not know the call, was too busy to process it, or refused (is_ours, if st is
 * HL_OK). */
bool hl_claim_is_told(hl_status st, bool is_ours);

/* The cluster that a recovery continues: the owner named by the pool, else by the archive, so that
 * everything that names it stays valid; else `own`. */
struct hl_id hl_claim_heir(struct hl_id pool, struct hl_id archive, struct hl_id own);
/* The revision before the commit of a recovery, which adds one. If `takes`, it becomes newer than
 * any that pool and archive know; else it stays unchanged, so that L3 keeps refusing. */
uint64_t hl_claim_recovered(uint64_t own, uint64_t pool, uint64_t archive, bool takes);

/* ---- L3's ---- */

/* HL_EPERM unless `named` is the owner of `what`, or it has no owner; named "": no cluster. */
hl_status hl_claim_permit(const char *what, struct hl_id owner, const char *named) HL_CHECK;

/* It names that cluster as its owner. Shards of another cluster in it are left alone. */
bool hl_claim_is_of(const struct hl_claimed *found, struct hl_id cluster);

/* Checked before a shard of the pool goes into the archive. */
enum hl_claim_sign {
    HL_CLAIM_SIGNED,  /* the archive already names its owner */
    HL_CLAIM_SIGN,    /* the owner must be written first */
    HL_CLAIM_FOREIGN, /* it belongs to another cluster and is not empty */
};

enum hl_claim_sign hl_claim_sign(const struct hl_claimed *pool, const struct hl_claimed *archive);

#endif
