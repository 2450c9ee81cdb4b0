/* core/claim.h - may a cluster take a pool or an archive that it finds?
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_CLAIM_H
#define HL_CORE_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"

/* A pool or an archive as it is found. */
struct hl_claimed {
    struct hl_id cluster; /* none: nobody has claimed it */
    uint64_t revision;    /* the newest of that cluster's catalogue that it has heard of */
    uint64_t shards;      /* that somebody may want */
    bool damaged;         /* what it says of its owner can't be read */
};

struct hl_claimant {
    struct hl_id cluster;
    uint64_t seen; /* the newest revision that it knows of */
    enum hl_api_claim_mode mode;
};

/* empty_is_free: without shards it is whoever's comes, as an archive; an empty pool of another
 * cluster is that one's: it serves it now, and its shards are on their way. */
enum hl_api_claim_result hl_claim_judge(const struct hl_claimed *found,
                                        const struct hl_claimant *who, bool empty_is_free);

#endif
