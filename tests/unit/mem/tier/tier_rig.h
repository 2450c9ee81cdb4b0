/* unit/mem/tier/tier_rig.h - one tier over a medium of its own, shards to put into it, and the back
 * ends that the conformance suite runs over.
 *
 * Owns:    tier, medium and directory; the teardown removes them.
 * Threads: the test's.
 * Errors:  cmocka assertions.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_TESTS_TIER_RIG_H
#define HL_TESTS_TIER_RIG_H

#include <stdbool.h>

#include "unit/mem/archive/archive_rig.h"

#include "mem/chunks.h"
#include "mem/tier/tier.h"

#define MIB        ((uint64_t)1 << 20)
#define TIER_QUOTA (8 * MIB)
#define CUDA_QUOTA (64 * MIB) /* its unit is 2 MiB */

struct tier_rig;

struct tier_backend {
    const char *name;
    uint64_t quota, high, low;             /* what usage must report; by hand */
    bool quarantines;                      /* a pinned copy can be dropped; its bytes stay */
    bool persists;                         /* sealed copies survive hl_tier_close */
    hl_status (*open)(struct tier_rig *r); /* opens medium and tier, or the tier again */
    void (*close)(struct tier_rig *r);     /* the medium, and what is left of it */
    /* NULL: the medium can't be changed except through the tier */
    void (*damage)(struct tier_rig *r, const struct hl_tier_ref *ref, uint64_t offset);
    const char *(*missing)(void); /* why it can't be tested here; NULL: it can */
};

struct tier_rig {
    const struct tier_backend *backend;
    struct hl_tier_store *tier;
    struct hl_tier_limits limits;
    struct hl_pool *pool;
    struct hl_device *device;
    struct hl_archive *archive;
    char path[64];
};

/* CRCs of every started MiB; free() it. */
static inline uint32_t *chunk_crcs_of(const struct shard *s)
{
    uint64_t n = hl_chunk_count(s->size);
    uint32_t *crcs = calloc(n, sizeof(*crcs));
    assert_non_null(crcs);
    for (uint64_t i = 0; i < n; i++)
        crcs[i] = hl_crc32(0, s->bytes + i * MIB, hl_chunk_len(s->size, i));
    return crcs;
}

#endif
