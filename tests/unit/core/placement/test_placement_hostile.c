/* Wrong inputs: clocks that jump, quotas below use, nodes that come and go, reports about unknown
 * shards, values that are not numbers. They cause no moves. */
#include "support/test.h"

#include <math.h>
#include <string.h>

#include "core/placement/policy.h"

#define S      INT64_C(1000)
#define START  (100000 * S)
#define MIB    (UINT64_C(1) << 20)
#define NODES  3
#define SHARDS 20

static struct hl_placement place;
static struct hl_policy policy;
static struct hl_node_limits nodes[NODES];
static struct hl_policy_limits limits;
static uint64_t sequence[NODES];

static struct hl_id id_of(unsigned i)
{
    return (struct hl_id){.hi = 9, .lo = i + 1};
}

static int begin(void **state)
{
    (void)state;
    struct hl_placement_opts opts = {.shards_max = 100, .now_ms = START};
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(&place, &opts), HL_OK);
    memset(&policy, 0, sizeof(policy));
    memset(sequence, 0, sizeof(sequence));
    limits = (struct hl_policy_limits){.nodes = nodes, .node_count = NODES};
    for (unsigned i = 0; i < NODES; i++) {
        uint16_t node;
        assert_int_equal(hl_placement_node_add(&place, 1, START, &node), HL_OK);
        nodes[i] = (struct hl_node_limits){
            .l1_bytes = 1000 * MIB, .l1_used = 800 * MIB, .l2_bytes = 10000 * MIB, .takes = true};
    }
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++) {
        limits.rates[i] = (i == HL_MOVE_INSIDE ? 10240.0 : 1024.0) * MIB;
        limits.budget[i] = INT64_MAX;
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_policy_fini(&policy);
    hl_placement_fini(&place);
    return 0;
}

/* Active, on node 0. */
static void add_shards(enum hl_api_tier tier)
{
    struct hl_place at = {.node = 0, .tier = (uint8_t)tier};
    for (unsigned i = 0; i < SHARDS; i++) {
        assert_int_equal(hl_placement_shard_add(&place, id_of(i), 40 * MIB, at, START), HL_OK);
        struct hl_change change = {.at_ms = START, .event = HL_LIFE_ON_LOAD};
        assert_int_equal(hl_placement_shard_change(&place, id_of(i), &change), HL_OK);
        change.event = HL_LIFE_ON_LOADED;
        assert_int_equal(hl_placement_shard_change(&place, id_of(i), &change), HL_OK);
    }
}

static void read_all(uint16_t node, uint32_t count, uint32_t age_ms, int64_t now)
{
    struct hl_report_entry entries[SHARDS];
    for (unsigned i = 0; i < SHARDS; i++)
        entries[i] = (struct hl_report_entry){.shard = id_of(i), .count = count, .age_ms = age_ms};
    struct hl_report report = {
        .incarnation = 1, .sequence = ++sequence[node], .entries = entries, .count = SHARDS};
    assert_int_equal(hl_placement_report(&place, node, &report, now), HL_REPORT_NEW);
}

static size_t decided(enum hl_life_event event, int64_t now)
{
    size_t n = 0;
    assert_int_equal(hl_policy_pass(&policy, &place, &limits, false, now), HL_OK);
    for (size_t i = 0; i < policy.count; i++)
        n += policy.decisions[i].event == event;
    return n;
}

TEST_IN(begin, end, a_clock_that_jumps_ahead_and_back_moves_nothing_twice)
{
    add_shards(HL_API_TIER_L2);
    read_all(0, 5, 0, START + 10 * S);
    assert_int_equal(decided(HL_LIFE_ON_COOL, START + 10 * S), 0);
    /* a year ahead: everything has cooled, which takes no place away */
    const int64_t far = START + 365 * 24 * 3600 * S;
    assert_int_equal(decided(HL_LIFE_ON_COOL, far), SHARDS);
    assert_int_equal(policy.count, SHARDS);
    assert_int_equal(policy.decisions[0].goal.tier, HL_API_TIER_L2);
    /* and back: time stops at the latest time, at which a read warms what has cooled */
    for (size_t i = 0; i < policy.count; i++)
        assert_int_equal(hl_policy_begin(&place, &policy.decisions[i], far), HL_OK);
    read_all(0, 5, 0, START + 20 * S);
    assert_int_equal(place.now_ms, far);
    assert_int_equal(place.stats.clock_back, 1);
    assert_int_equal(decided(HL_LIFE_ON_WARM, START + 30 * S), SHARDS);
    assert_int_equal(policy.count, SHARDS);
    /* the largest time is valid */
    assert_int_equal(decided(HL_LIFE_ON_COOL, INT64_MAX), 0);
    assert_int_equal(place.now_ms, HL_TIME_MAX - 1);
    assert_int_equal(decided(HL_LIFE_ON_COOL, INT64_MIN), 0);
}

TEST_IN(begin, end, a_shard_without_a_copy_goes_nowhere_until_one_is_found)
{
    const struct hl_place at = {.node = 0, .tier = HL_API_TIER_L1};
    const int64_t late = START + 24 * 3600 * S;
    add_shards(HL_API_TIER_L1);
    read_all(0, 5, 0, START + 10 * S);
    nodes[0].l1_used = 1000 * MIB;
    for (unsigned i = 0; i < SHARDS; i++)
        assert_int_equal(hl_placement_shard_lost(&place, id_of(i), START + 11 * S), HL_OK);
    assert_int_equal(decided(HL_LIFE_ON_PRESSURE, START + 12 * S), 0);
    assert_int_equal(decided(HL_LIFE_ON_COOL, late), 0);
    assert_int_equal(policy.count, 0);
    for (unsigned i = 0; i < SHARDS; i++)
        assert_int_equal(hl_placement_shard_found(&place, id_of(i), at, late), HL_OK);
    assert_int_equal(hl_policy_pass(&policy, &place, &limits, false, late + S), HL_OK);
    assert_true(policy.count > 0);
}

TEST_IN(begin, end, a_node_whose_clock_is_an_hour_off_reports_ages_that_count_as_the_window)
{
    add_shards(HL_API_TIER_L2);
    read_all(0, 5, 0, START + 10 * S);
    read_all(1, 50, 3600 * 1000, START + 10 * S);
    const struct hl_placed_shard *s = hl_placement_shard_find(&place, id_of(0));
    assert_int_equal(s->use.last_ms, START + 10 * S);
    assert_int_equal(s->use.last_reader, 0);
    read_all(1, 50, UINT32_MAX, START + 11 * S);
    assert_int_equal(hl_placement_shard_find(&place, id_of(0))->use.last_ms, START + 10 * S);
}

TEST_IN(begin, end, a_quota_below_use_empties_l1_to_it_and_lets_nothing_in)
{
    add_shards(HL_API_TIER_L1); /* 800 MiB on node 0 */
    read_all(0, 5, 0, START + 100 * S);
    assert_int_equal(decided(HL_LIFE_ON_PRESSURE, START + 100 * S), 0);
    nodes[0].l1_bytes = 400 * MIB; /* 340 stay: 12 leave, of 40 MiB */
    assert_int_equal(decided(HL_LIFE_ON_PRESSURE, START + 100 * S), 12);
    nodes[0].l1_bytes = 1;
    assert_int_equal(decided(HL_LIFE_ON_PRESSURE, START + 100 * S), SHARDS);
    /* they don't fit in an L2 that is over its quota either, and nothing wraps around */
    nodes[0].l2_used = 20000 * MIB;
    assert_int_equal(decided(HL_LIFE_ON_PRESSURE, START + 100 * S), 0);
    assert_int_equal(policy.deferred, SHARDS);
    /* nor do others move there */
    read_all(1, 100, 0, START + 101 * S);
    nodes[1].l2_bytes = 100 * MIB;
    nodes[1].l2_used = 10000 * MIB;
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, START + 101 * S), 0);
    nodes[1].l2_used = 0;
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, START + 101 * S), 2);
}

TEST_IN(begin, end, a_node_that_comes_and_goes_takes_nothing_until_it_stayed_five_minutes)
{
    int64_t now = START + 100 * S;
    add_shards(HL_API_TIER_L2);
    read_all(1, 40, 0, now);
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, now), SHARDS);
    /* one fence is a restart, and repeating it changes nothing */
    assert_int_equal(hl_placement_node_fence(&place, 1), HL_OK);
    assert_int_equal(hl_placement_node_fence(&place, 1), HL_OK);
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, now), 0); /* it is unreachable */
    assert_int_equal(hl_placement_node_start(&place, 1, 1), HL_OK);
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, now += 3 * S), SHARDS);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(hl_placement_node_fence(&place, 1), HL_OK);
        assert_int_equal(hl_placement_node_start(&place, 1, 1), HL_OK);
        assert_int_equal(decided(HL_LIFE_ON_REMOTE, now += 3 * S), 0);
    }
    sequence[1] = 0;
    for (; now < START + 100 * S + 3 * 4 * S + 299 * S; now += 10 * S) {
        read_all(1, 40, 0, now);
        assert_int_equal(decided(HL_LIFE_ON_REMOTE, now), 0);
    }
    now = START + 100 * S + 3 * 4 * S + 300 * S; /* time alone */
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, now), SHARDS);
    assert_int_equal(policy.decisions[0].goal.node, 1);
    /* a node that left long ago does not flap when it leaves again */
    assert_int_equal(hl_placement_node_fence(&place, 1), HL_OK);
    assert_int_equal(hl_placement_node_start(&place, 1, 1), HL_OK);
    assert_true(hl_placement_node_is_steady(&place, 1));
    assert_false(hl_placement_node_is_steady(&place, 77));
}

TEST_IN(begin, end, reports_about_nothing_and_numbers_that_are_none_decide_nothing)
{
    read_all(0, UINT32_MAX, 0, START + S); /* the shard is unknown */
    assert_int_equal(place.stats.unknown_shards, SHARDS);
    assert_int_equal(decided(HL_LIFE_ON_LOAD, START + S), 0);
    assert_int_equal(policy.count, 0);
    add_shards(HL_API_TIER_L2);
    struct hl_placement_params params = place.params;
    params.alpha = NAN;
    assert_int_equal(hl_placement_configure(&place, &params, START + S), HL_EINVAL);
    params = place.params;
    params.low_pct = 90; /* above the high one */
    assert_int_equal(hl_placement_configure(&place, &params, START + S), HL_EINVAL);
    assert_float_equal(place.params.low_pct, 70, 0);
    limits.backbone_busy_pct = NAN; /* unknown counts as idle */
    read_all(1, 21, 0, START + 100 * S);
    assert_int_equal(decided(HL_LIFE_ON_REMOTE, START + 100 * S), SHARDS);
    assert_float_equal(policy.decisions[0].limit, 20, 0);
}
