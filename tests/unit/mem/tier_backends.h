/* unit/mem/tier_backends.h - the media under the conformance suite.
 *
 * Owns:    nothing. Included by test_tier_conformance.c only.
 * Threads: the test's.
 * Errors:  a status, or cmocka assertions.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_TESTS_TIER_BACKENDS_H
#define HL_TESTS_TIER_BACKENDS_H

#include <unistd.h>

#include "mem/pool.h"
#include "tier_rig.h"

/* ---- pool ---- */

static hl_status pool_open_as(struct tier_rig *r, enum hl_tier tier)
{
    if (r->pool == NULL) {
        snprintf(r->path, sizeof(r->path), "/dev/shm/helios-test-tier-%d", (int)getpid());
        HL_TRY(hl_pool_open(
            &(struct hl_pool_options){
                .path = r->path, .capacity = TIER_QUOTA, .quarantine_ms = 1, .beat_ms = 2},
            NULL, &r->pool));
    }
    return hl_tier_over_pool(r->pool, tier, "pool", &r->limits, &r->tier);
}

static hl_status pool_l2_open(struct tier_rig *r)
{
    return pool_open_as(r, HL_TIER_L2);
}

static void pool_rig_close(struct tier_rig *r)
{
    hl_pool_remove(r->pool);
    r->pool = NULL;
}

static void pool_damage(struct tier_rig *r, const struct hl_tier_ref *ref, uint64_t offset)
{
    size_t len;
    ((uint8_t *)hl_pool_base(r->pool, &len))[ref->offset + offset] ^= 0x10;
}

/* ---- all of them ---- */

static const struct tier_backend backends[] = {
    {.name = "pool as L2",
     .quarantines = 1,
     .persists = 1,
     .open = pool_l2_open,
     .close = pool_rig_close,
     .damage = pool_damage},
};

#endif
