/* Which shards the Controller names to L3 for a full pool, and when it sends no order. */
#include "unit/controller/catalog_rig.h"
#include "unit/controller/l3_stub.h"

#include "controller/copies/copies_private.h"
#include "controller/placement/placement_private.h"

#define MIB (UINT64_C(1) << 20)

static struct l3_stub stub;
static struct hl_api_tier_info tiers[] = {
    {.tier = HL_API_TIER_L3, .quota_bytes = 100 * MIB, .low_bytes = 70 * MIB},
    {.tier = HL_API_TIER_L4}};
static struct hl_api_pool_info pool = {.tiers = {tiers, 2}};
static struct hl_version_rec *old, *newest, *other;

static bool imports(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static bool gang_starts(const struct hl_controller *c)
{
    (void)c;
    return false;
}

/* m has versions with the shards 1, 2 and 3, 4; n has one with 5, 6. */
static int start(void **state)
{
    struct hl_controller *c = &stub.c;
    (void)state;
    l3_stub_start(&stub);
    assert_int_equal(copies_create(c, imports), HL_OK);
    old = import_model(&c->catalog, "m", 1, "{}");
    other = import_model(&c->catalog, "n", 5, "{}");
    newest = save_version(&c->catalog, "m", 3, 9, 2000);
    assert_int_equal(placement_create(c, gang_starts), HL_OK);
    c->copies->pool = &pool;
    c->claim.state = CLAIM_OK;
    tiers[0].used_bytes = 80 * MIB;
    pool.tiers.count = 2;
    return 0;
}

static int end(void **state)
{
    (void)state;
    stub.c.copies->pool = NULL;
    placement_fini(&stub.c);
    copies_fini(&stub.c);
    l3_stub_end(&stub);
    return 0;
}

static void expect(const char *said)
{
    stub.c.placement->pool_order_ms = 0;
    pool_order_run(&stub.c);
    l3_stub_said(&stub, said);
}

TEST_IN(start, end, older_versions_leave_first_and_whole)
{
    expect("order 01 02 05 06 03 04 by us\n");
    old->shards[1]->last_access_ms = 9000; /* the newest versions are still needed for a restart */
    other->shards[0]->last_access_ms = 8000;
    expect("order 01 02 03 04 05 06 by us\n");
}

TEST_IN(start, end, what_is_pinned_or_not_in_the_pool_is_not_named)
{
    other->shards[0]->dropping = true;
    expect("order 01 02 06 03 04 by us\n");
    const struct hl_api_pin_record pin = {.since_ms = 1};
    json_t *record = hl_api_to_json(&hl_api_pin_record_type, &pin);
    char key[80];
    snprintf(key, sizeof(key), "pin/version/m/%010d", (int)old->number);
    assert_int_equal(placement_load_pin(&stub.c, key, record), HL_OK);
    json_decref(record);
    expect("order 06 03 04 by us\n");
}

TEST_IN(start, end, no_more_is_named_than_may_leave_soon)
{
    tiers[0].quota_bytes = old->shards[0]->size_bytes; /* a quarter of it, plus 1 byte */
    tiers[0].low_bytes = tiers[0].used_bytes - 1;
    expect("order 01 by us\n");
    tiers[0].quota_bytes = 100 * MIB;
    tiers[0].low_bytes = 70 * MIB;
}

TEST_IN(start, end, nothing_is_said_where_nothing_may_leave)
{
    tiers[0].used_bytes = 70 * MIB; /* there is room */
    expect("");
    tiers[0].used_bytes = 80 * MIB;
    pool.tiers.count = 1; /* no archive */
    expect("");
    pool.tiers.count = 2;
    stub.c.claim.state = CLAIM_REFUSED; /* the pool is another cluster's */
    expect("");
    stub.c.claim.state = CLAIM_OK;
    stub.c.copies->pool = NULL; /* L3 is unreachable */
    expect("");
}
