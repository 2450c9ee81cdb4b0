/* The policy: watermarks, room, budgets; and that a pass over what has changed decides the same as
 * one over everything. */
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/placement/policy.h"

#define S      INT64_C(1000)
#define START  (100000 * S)
#define MIB    (UINT64_C(1) << 20)
#define NODES  5
#define SHARDS 60
#define SETS   8

struct cluster {
    struct hl_placement place;
    struct hl_policy policy;
    uint64_t sequence[NODES];
};

static struct cluster one, other;
static struct hl_node_limits nodes[NODES];
static struct hl_policy_limits limits;

static struct hl_id id_of(unsigned i)
{
    return (struct hl_id){.hi = 3, .lo = i + 1};
}

static void open_cluster_of(struct cluster *c, uint32_t shards_max)
{
    struct hl_placement_opts opts = {.shards_max = shards_max, .now_ms = START};
    memset(c, 0, sizeof(*c));
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(&c->place, &opts), HL_OK);
    for (unsigned i = 0; i < NODES; i++) {
        uint16_t node;
        assert_int_equal(hl_placement_node_add(&c->place, 1, START, &node), HL_OK);
    }
}

static void open_cluster(struct cluster *c)
{
    open_cluster_of(c, SHARDS);
}

static void close_cluster(struct cluster *c)
{
    hl_policy_fini(&c->policy);
    hl_placement_fini(&c->place);
}

static void plenty(void)
{
    for (unsigned i = 0; i < NODES; i++)
        nodes[i] = (struct hl_node_limits){
            .l1_bytes = 1000 * MIB, .l1_used = 750 * MIB, .l2_bytes = 100000 * MIB, .takes = true};
    limits = (struct hl_policy_limits){.nodes = nodes, .node_count = NODES};
    static const double mib_per_s[HL_MOVE_PATHS] = {10240, 2048, 1024, 256};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++) {
        limits.rates[i] = mib_per_s[i] * (double)MIB;
        limits.budget[i] = INT64_MAX;
    }
}

static int begin(void **state)
{
    (void)state;
    plenty();
    open_cluster(&one);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close_cluster(&one);
    return 0;
}

static void step(struct cluster *c, unsigned shard, enum hl_life_event event, int64_t at_ms)
{
    struct hl_change change = {.at_ms = at_ms, .event = event};
    assert_int_equal(hl_placement_shard_change(&c->place, id_of(shard), &change), HL_OK);
}

/* An active shard of 100 MiB. */
static void add_active(unsigned shard, enum hl_api_tier tier, uint16_t node)
{
    struct hl_place place = {.node = node, .tier = (uint8_t)tier};
    assert_int_equal(hl_placement_shard_add(&one.place, id_of(shard), 100 * MIB, place, START),
                     HL_OK);
    step(&one, shard, HL_LIFE_ON_LOAD, START);
    step(&one, shard, HL_LIFE_ON_LOADED, START);
}

static void reads(struct cluster *c, uint16_t node, unsigned shard, uint32_t count, int64_t at_ms)
{
    struct hl_report_entry entry = {.shard = id_of(shard), .count = count};
    struct hl_report report = {
        .incarnation = 1, .sequence = ++c->sequence[node], .entries = &entry, .count = 1};
    assert_int_equal(hl_placement_report(&c->place, node, &report, at_ms), HL_REPORT_NEW);
}

/* "PRESSURE 3, ...": events and shards. */
static const char *pass(bool full, int64_t now_ms)
{
    static char text[2000];
    static const char *const names[] = {
#define X(name, reason, numbers) [HL_LIFE_ON_##name] = #name,
        HL_LIFE_EVENT_MAP(X)
#undef X
    };
    assert_int_equal(hl_policy_pass(&one.policy, &one.place, &limits, full, now_ms), HL_OK);
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < one.policy.count; i++) {
        const struct hl_decision *d = &one.policy.decisions[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s %u", i == 0 ? "" : ", ",
                               names[d->event], (unsigned)d->shard.lo - 1);
    }
    return text;
}

static void begin_all(int64_t now_ms)
{
    for (size_t i = 0; i < one.policy.count; i++)
        assert_int_equal(hl_policy_begin(&one.place, &one.policy.decisions[i], now_ms), HL_OK);
}

/* ---- watermarks ---- */

TEST_IN(begin, end, above_the_high_watermark_the_least_stable_leave_l1)
{
    int64_t now = START + 100 * S;
    for (unsigned i = 0; i < 10; i++)
        add_active(i, HL_API_TIER_L1, 0);
    for (unsigned i = 0; i < 10; i++)
        reads(&one, 0, i, 10 + (i * 3) % 10, now); /* 10 13 16 19 12 15 18 11 14 17 */

    nodes[0].l1_used = 850 * MIB;
    assert_string_equal(pass(false, now), ""); /* not above it */
    nodes[0].l1_used = 1000 * MIB;             /* 150 too many: two shards */
    assert_string_equal(pass(false, now), "PRESSURE 0, PRESSURE 7");
    const struct hl_decision *d = one.policy.decisions;
    assert_int_equal(d->goal.tier, HL_API_TIER_L2);
    assert_int_equal(d->goal.node, 0);
    assert_float_equal(d->value, 100, 1e-9);
    assert_float_equal(d->limit, 85, 0);
    /* a shard that is leaving counts as gone, until it is, and counts again if it did not leave */
    begin_all(now);
    assert_string_equal(pass(false, now), "");
    step(&one, 0, HL_LIFE_ON_UNDONE, now);
    assert_string_equal(pass(false, now), "PRESSURE 0");
    step(&one, 7, HL_LIFE_ON_SWITCHED, now);
    begin_all(now);
    assert_string_equal(pass(false, now), "");
    step(&one, 7, HL_LIFE_ON_CLEANED_L2, now);
    nodes[0].l1_used = 900 * MIB;
    assert_string_equal(pass(false, now), "WARM 7");
    assert_int_equal(hl_placement_shard_find(&one.place, id_of(7))->place.tier, HL_API_TIER_L2);
    assert_int_equal(one.place.nodes[0].l1_leaving, 100 * MIB);
}

TEST_IN(begin, end, those_that_came_only_now_leave_last_and_pinned_ones_never)
{
    int64_t now = START + 100 * S;
    for (unsigned i = 0; i < 3; i++)
        add_active(i, HL_API_TIER_L1, 0);
    for (unsigned i = 0; i < 3; i++)
        reads(&one, 0, i, 30 - i, now);

    assert_int_equal(hl_placement_shard_pin(&one.place, id_of(2), true), HL_OK);
    /* shard 1 arrived 10 s ago: it is less stable than 0, and stays for now */
    struct hl_change change = {.at_ms = now - 10 * S, .event = HL_LIFE_ON_PRESSURE};
    one.place.now_ms = now - 10 * S; /* the expected values are from later */
    struct hl_place l1 = {.node = 0, .tier = HL_API_TIER_L1};
    assert_int_equal(hl_placement_shard_move(&one.place, id_of(1), &change, l1), HL_OK);
    step(&one, 1, HL_LIFE_ON_SWITCHED, now - 10 * S);
    step(&one, 1, HL_LIFE_ON_CLEANED_L2, now - 10 * S);
    step(&one, 1, HL_LIFE_ON_WARM, now - 10 * S);
    nodes[0].l1_used = 900 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 0");
    nodes[0].l1_used = 1000 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 0, PRESSURE 1");
}

TEST_IN(begin, end, where_newcomers_are_too_much_the_next_pass_says_who_leaves)
{
    int64_t now = START + 10 * S; /* neither has settled */
    struct hl_place l1 = {.node = 0, .tier = HL_API_TIER_L1};
    add_active(0, HL_API_TIER_L1, 0);
    assert_int_equal(hl_placement_shard_add(&one.place, id_of(1), 100 * MIB, l1, now), HL_OK);
    reads(&one, 0, 0, 30, now);
    reads(&one, 0, 1, 1, now);
    nodes[0].l1_used = 900 * MIB;
    assert_string_equal(pass(false, now), "LOAD 1");
    begin_all(now);
    step(&one, 1, HL_LIFE_ON_LOADED, now);
    assert_string_equal(pass(false, now), "PRESSURE 1");

    assert_int_equal(hl_placement_shard_add(&one.place, id_of(2), 100 * MIB, l1, now), HL_OK);
    reads(&one, 0, 2, 1, now);
    nodes[0].l1_used = 1000 * MIB; /* too much even without it */
    assert_string_equal(pass(false, now), "PRESSURE 1, PRESSURE 0, LOAD 2");
}

TEST_IN(begin, end, above_the_high_watermark_a_copy_that_was_found_and_is_not_read_leaves_first)
{
    int64_t now = START + 100 * S;
    struct hl_place l1 = {.node = 0, .tier = HL_API_TIER_L1};
    for (unsigned i = 0; i < 3; i++)
        add_active(i, HL_API_TIER_L1, 0);
    assert_int_equal(hl_placement_shard_add(&one.place, id_of(3), 100 * MIB, l1, START), HL_OK);
    assert_int_equal(hl_placement_shard_add(&one.place, id_of(4), 100 * MIB, l1, START), HL_OK);
    for (unsigned i = 0; i < 3; i++)
        reads(&one, 0, i, 30 - i, now);
    assert_int_equal(hl_placement_shard_pin(&one.place, id_of(4), true), HL_OK);
    nodes[0].l1_used = 850 * MIB;
    assert_string_equal(pass(false, now), ""); /* it can stay while there is room */
    nodes[0].l1_used = 900 * MIB;
    assert_string_equal(pass(false, now), "LOAD 3");
    begin_all(now);
    step(&one, 3, HL_LIFE_ON_LOADED, now);
    assert_string_equal(pass(false, now), "PRESSURE 3");
    nodes[0].l1_used = 1000 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 3, PRESSURE 2");
}

static uint32_t add_set(struct cluster *c, uint32_t above)
{
    uint32_t set = HL_SET_NONE;
    assert_int_equal(hl_placement_set_add(&c->place, above, &set), HL_OK);
    return set;
}

static void join(struct cluster *c, unsigned shard, uint32_t set)
{
    assert_int_equal(hl_placement_set_join(&c->place, id_of(shard), set), HL_OK);
}

TEST_IN(begin, end, above_the_high_watermark_whole_versions_leave_l1)
{
    int64_t now = START + 100 * S;
    uint32_t first = add_set(&one, HL_SET_NONE), second = add_set(&one, HL_SET_NONE);
    uint32_t ranks[] = {add_set(&one, first), add_set(&one, second)};
    static const uint32_t counts[] = {10, 14, 18, 12, 13, 20}; /* of shards 0 2 4, and 1 3 5 */
    for (unsigned i = 0; i < 6; i++) {
        add_active(i, HL_API_TIER_L1, 0);
        join(&one, i, ranks[i % 2]);
    }
    for (unsigned i = 0; i < 6; i++)
        reads(&one, 0, i, counts[i % 2 * 3 + i / 2], now);

    nodes[0].l1_used = 1100 * MIB; /* 250 too many */
    assert_string_equal(pass(false, now), "PRESSURE 0, PRESSURE 2, PRESSURE 4");
    begin_all(now);
    nodes[0].l1_used = 1200 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 1");
    /* a version that is no longer whole continues to leave, although another one is less stable */
    begin_all(now);
    add_active(6, HL_API_TIER_L1, 0);
    reads(&one, 0, 6, 1, now);
    nodes[0].l1_used = 1300 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 3");
    begin_all(now);
    assert_int_equal(hl_placement_set_pin(&one.place, second, true), HL_OK);
    nodes[0].l1_used = 1400 * MIB;
    assert_string_equal(pass(false, now), "PRESSURE 6");
}

TEST_IN(begin, end, below_the_low_watermark_a_set_comes_as_a_whole_or_not_at_all)
{
    int64_t now = START + 100 * S;
    uint32_t big = add_set(&one, HL_SET_NONE), small = add_set(&one, HL_SET_NONE);
    for (unsigned i = 0; i < 7; i++) {
        add_active(i, HL_API_TIER_L2, 0);
        join(&one, i, i < 4 ? big : small);
    }
    for (unsigned i = 0; i < 7; i++)
        reads(&one, 0, i, i < 4 ? 30 : 20, now);
    nodes[0].l1_used = 500 * MIB; /* 350 up to the high watermark: not room for four */
    assert_string_equal(pass(false, now), "PREFETCH 4, PREFETCH 5, PREFETCH 6");
    nodes[0].l1_used = 400 * MIB;
    assert_string_equal(pass(false, now), "PREFETCH 0, PREFETCH 1, PREFETCH 2, PREFETCH 3");
}

TEST_IN(begin, end, below_the_low_watermark_the_hottest_come_to_l1)
{
    int64_t now = START + 100 * S;
    for (unsigned i = 0; i < 6; i++)
        add_active(i, HL_API_TIER_L2, 0);
    for (unsigned i = 0; i < 6; i++)
        reads(&one, 0, i, 10 + (i * 5) % 6, now); /* 10 15 14 13 12 11 */

    nodes[0].l1_used = 700 * MIB;
    assert_string_equal(pass(false, now), ""); /* not below it */
    nodes[0].l1_used = 510 * MIB;
    assert_string_equal(pass(false, now), "PREFETCH 1, PREFETCH 2");
    assert_int_equal(one.policy.decisions[0].goal.tier, HL_API_TIER_L1);
    assert_true(one.policy.decisions[0].gain_s > one.policy.decisions[0].cost_s);
    begin_all(now);
    assert_string_equal(pass(false, now), ""); /* 710 once they have arrived */
    nodes[0].l1_bytes = 0;                     /* no L1, no watermarks */
    assert_string_equal(pass(false, now), "");
}

TEST_IN(begin, end, what_is_often_moved_stays_in_l2)
{
    int64_t now = START;
    add_active(0, HL_API_TIER_L2, 0);
    for (unsigned i = 0; i < 3; i++) { /* two moves each */
        struct hl_place away = {.node = 1, .tier = HL_API_TIER_L2};
        struct hl_place back = {.node = 0, .tier = HL_API_TIER_L2};
        struct hl_change change = {.at_ms = now, .event = HL_LIFE_ON_REMOTE};
        for (unsigned k = 0; k < 2; k++) {
            assert_int_equal(
                hl_placement_shard_move(&one.place, id_of(0), &change, k == 0 ? away : back),
                HL_OK);
            step(&one, 0, HL_LIFE_ON_SWITCHED, now);
            step(&one, 0, HL_LIFE_ON_CLEANED_L2, now);
        }
    }
    nodes[0].l1_used = 0;
    reads(&one, 0, 0, 200, now += 100 * S);
    assert_string_equal(pass(false, now), "WARM 0");
    begin_all(now);
    assert_string_equal(pass(false, now), "");
    /* six moves count 3 after ln 2 hours; it is read all the time */
    for (int minute = 0; minute < 38; minute++)
        reads(&one, 0, 0, 200, now += 60 * S);
    assert_string_equal(pass(false, now), "");
    assert_string_equal(pass(false, START + 2495 * S), "");
    assert_string_equal(pass(false, START + 2496 * S), "PREFETCH 0"); /* time alone */
}

TEST_IN(begin, end, a_shard_that_cools_down_from_moves_is_judged_again_when_l1_is_worth_it)
{
    int64_t now = START;
    add_active(0, HL_API_TIER_L2, 0);
    for (unsigned i = 0; i < 2; i++) {
        struct hl_change change = {.at_ms = now, .event = HL_LIFE_ON_REMOTE};
        struct hl_place goal = {.node = i == 0 ? 1 : 0, .tier = HL_API_TIER_L2};
        assert_int_equal(hl_placement_shard_move(&one.place, id_of(0), &change, goal), HL_OK);
        step(&one, 0, HL_LIFE_ON_SWITCHED, now);
        step(&one, 0, HL_LIFE_ON_CLEANED_L2, now);
    }
    nodes[0].l1_used = 0;
    reads(&one, 0, 0, 2, now += 2480 * S);
    assert_string_equal(pass(false, now), "WARM 0");
    begin_all(now);
    /* two reads gain twice the copy: two moves must count as less than 1, after ln 2 hours */
    assert_string_equal(pass(false, now), "");
    assert_string_equal(pass(false, START + 2495 * S), "");
    assert_int_equal(one.policy.judged, 0);
    assert_string_equal(pass(false, START + 2496 * S), "PREFETCH 0"); /* time alone */
    assert_int_equal(one.policy.judged, 1);
}

/* ---- room and budgets ---- */

TEST_IN(begin, end, a_move_needs_room_where_it_goes_and_budget_on_its_way)
{
    int64_t now = START + 100 * S;
    for (unsigned i = 0; i < 3; i++)
        add_active(i, HL_API_TIER_L2, 0);
    for (unsigned i = 0; i < 3; i++)
        reads(&one, 1, i, 30 + i, now); /* the higher the index, the more it gains */

    assert_string_equal(pass(false, now), "REMOTE 2, REMOTE 1, REMOTE 0");
    nodes[1].l2_bytes = 250 * MIB;
    assert_string_equal(pass(false, now), "REMOTE 2, REMOTE 1");
    assert_int_equal(one.policy.deferred, 1);
    limits.budget[HL_MOVE_MIGRATION] = 1; /* one begins, and exceeds it */
    assert_string_equal(pass(false, now), "REMOTE 2");
    limits.budget[HL_MOVE_MIGRATION] = 0;
    assert_string_equal(pass(false, now), "");
    assert_int_equal(one.policy.deferred, 3);
    /* bytes in flight are not there yet, and take space */
    limits.budget[HL_MOVE_MIGRATION] = INT64_MAX;
    assert_string_equal(pass(false, now), "REMOTE 2, REMOTE 1");
    begin_all(now);
    assert_string_equal(pass(false, now), "");
    assert_int_equal(one.policy.deferred, 1);
    step(&one, 1, HL_LIFE_ON_UNDONE, now);
    assert_string_equal(pass(false, now), "REMOTE 1");
    assert_int_equal(hl_placement_shard_remove(&one.place, id_of(2)), HL_OK);
    assert_string_equal(pass(false, now), "REMOTE 1, REMOTE 0");
}

TEST_IN(begin, end, limits_that_are_no_numbers_are_refused)
{
    limits.rates[HL_MOVE_BACKBONE] = 0;
    assert_int_equal(hl_policy_pass(&one.policy, &one.place, &limits, false, START), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "backbone"));
    limits.rates[HL_MOVE_BACKBONE] = NAN;
    assert_int_equal(hl_policy_pass(&one.policy, &one.place, &limits, false, START), HL_EINVAL);
}

TEST_IN(begin, end, each_move_says_how_long_its_copy_is_expected_to_take)
{
    const double bytes = 100.0 * MIB;
    add_active(0, HL_API_TIER_L2, 0);
    reads(&one, 0, 0, 1, START);
    assert_string_equal(pass(false, START + 221 * S), "COOL 0");
    assert_float_equal(one.policy.decisions[0].copy_s, 0, 0); /* it moves nothing */
    begin_all(START + 221 * S);
    assert_string_equal(pass(false, START + 281 * S), "LEAVE 0");
    assert_float_equal(one.policy.decisions[0].copy_s, bytes / limits.rates[HL_MOVE_BACKBONE],
                       1e-9);
    begin_all(START + 281 * S);
    step(&one, 0, HL_LIFE_ON_SWITCHED, START + 281 * S);
    assert_string_equal(pass(false, START + 3881 * S), "IDLE 0");
    assert_float_equal(one.policy.decisions[0].copy_s, bytes / limits.rates[HL_MOVE_ARCHIVE], 1e-9);
}

TEST_IN(begin, end, time_alone_carries_a_shard_through_its_life)
{
    static const struct {
        int64_t at_s;
        const char *decisions;
    } life[] = {{220, ""},        {221, "COOL 0"},        {280, ""},  {281, "LEAVE 0"},
                {3599 + 281, ""}, {3600 + 281, "IDLE 0"}, {99999, ""}};

    add_active(0, HL_API_TIER_L2, 0);
    reads(&one, 0, 0, 1, START);
    for (unsigned i = 0; i < sizeof(life) / sizeof(life[0]); i++) {
        int64_t now = START + life[i].at_s * S;
        assert_string_equal(pass(false, now), life[i].decisions);
        begin_all(now);
        if (one.policy.count > 0 && one.policy.decisions[0].event == HL_LIFE_ON_LEAVE)
            step(&one, 0, HL_LIFE_ON_SWITCHED, now);
    }
    const struct hl_placed_shard *s = hl_placement_shard_find(&one.place, id_of(0));
    assert_int_equal(s->life.state, HL_LIFE_EXPIRED_L4);
    assert_int_equal(s->place.tier, HL_API_TIER_L4);
    struct hl_change history[HL_CHANGES_MAX];
    assert_int_equal(hl_placement_shard_history(&one.place, id_of(0), history), 6);
    assert_int_equal(history[0].event, HL_LIFE_ON_IDLE);
}

/* ---- the two passes ---- */

TEST(a_pass_looks_at_few_again_after_most_were_touched)
{
    enum { MANY = 6000 };
    const struct hl_place l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    plenty();
    open_cluster_of(&one, MANY);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(hl_placement_shard_add(&one.place, id_of(i), MIB, l3, START), HL_OK);
    assert_true(one.place.touched_all);
    assert_string_equal(pass(false, START), "");
    assert_int_equal(one.policy.judged, MANY);
    assert_string_equal(pass(false, START), "");
    assert_int_equal(one.policy.judged, 0);
    reads(&one, 2, 0, 1, START);
    reads(&one, 2, MANY - 1, 2, START);
    assert_string_equal(pass(false, START), "LOAD 5999");
    assert_int_equal(one.policy.judged, 2);
    close_cluster(&one);
}

static uint64_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void draw_limits(void)
{
    for (unsigned i = 0; i < NODES; i++) {
        nodes[i].l1_bytes = draw(4) == 0 ? 0 : 1000 * MIB;
        nodes[i].l1_used = draw(1100) * MIB;
        nodes[i].l2_bytes = draw(3) == 0 ? 500 * MIB : 100000 * MIB;
        nodes[i].takes = draw(12) != 0;
    }
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        limits.budget[i] = draw(3) == 0 ? (int64_t)(draw(400) * MIB) : INT64_MAX;
    limits.backbone_busy_pct = draw(110) - 5.0;
}

static void draw_shard(struct cluster *a, struct cluster *b, unsigned shard)
{
    struct hl_place place = {.node = (uint16_t)draw(NODES), .tier = HL_API_TIER_L2};
    if (draw(2) == 0)
        place = (struct hl_place){.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    uint64_t size = (1 + draw(300)) * MIB;
    struct cluster *both[] = {a, b};
    for (unsigned i = 0; i < 2; i++)
        if (hl_placement_shard_add(&both[i]->place, id_of(shard), size, place,
                                   both[i]->place.now_ms) == HL_OK)
            join(both[i], shard, shard % 9 < SETS ? shard % 9 : HL_SET_NONE);
        else
            assert_int_equal(hl_placement_shard_remove(&both[i]->place, id_of(shard)), HL_OK);
}

/* A move of the shard ends, with or without success. */
static void draw_end_of_move(struct cluster *a, struct cluster *b, unsigned shard)
{
    const struct hl_placed_shard *s = hl_placement_shard_find(&a->place, id_of(shard));

    static const enum hl_life_event ends[] = {HL_LIFE_ON_LOADED, HL_LIFE_ON_SWITCHED,
                                              HL_LIFE_ON_UNDONE, HL_LIFE_ON_CLEANED_L2,
                                              HL_LIFE_ON_CLEANED_L3};

    if (s == NULL || !hl_life_is_moving((enum hl_life_state)s->life.state))
        return;
    for (unsigned tries = 0; tries < 20; tries++) {
        enum hl_life_event event = ends[draw(5)];
        bool in_l3 = s->place.tier == HL_API_TIER_L3;
        if (hl_life_section((enum hl_life_state)s->life.state, event)[0] == '\0' ||
            (event == HL_LIFE_ON_CLEANED_L2 && in_l3) || (event == HL_LIFE_ON_CLEANED_L3 && !in_l3))
            continue;
        step(a, shard, event, a->place.now_ms);
        step(b, shard, event, b->place.now_ms);
        return;
    }
}

static void draw_events(struct cluster *a, struct cluster *b, int64_t now)
{
    for (unsigned i = draw(8); i > 0; i--)
        draw_shard(a, b, draw(SHARDS));
    for (unsigned i = draw(30); i > 0; i--) {
        uint16_t node = (uint16_t)draw(NODES);
        unsigned shard = draw(draw(2) == 0 ? SHARDS : 8);
        uint32_t count = 1 + draw(12);
        reads(a, node, shard, count, now);
        reads(b, node, shard, count, now);
    }
    for (unsigned i = draw(40); i > 0; i--)
        draw_end_of_move(a, b, draw(SHARDS));
    if (draw(20) == 0) {
        uint32_t set = draw(SETS);
        bool pinned = draw(3) == 0;
        assert_int_equal(hl_placement_set_pin(&a->place, set, pinned), HL_OK);
        assert_int_equal(hl_placement_set_pin(&b->place, set, pinned), HL_OK);
    }
    if (draw(10) == 0) {
        unsigned shard = draw(SHARDS);
        bool pinned = draw(2) == 0;
        if (hl_placement_shard_find(&a->place, id_of(shard)) != NULL) {
            assert_int_equal(hl_placement_shard_pin(&a->place, id_of(shard), pinned), HL_OK);
            assert_int_equal(hl_placement_shard_pin(&b->place, id_of(shard), pinned), HL_OK);
        }
    }
}

static void same_decisions(const struct hl_policy *a, const struct hl_policy *b, unsigned start)
{
    if (a->count != b->count || a->deferred != b->deferred) {
        fail_msg("seed %u: %zu decisions and %zu deferred, of all %zu and %zu", start, a->count,
                 a->deferred, b->count, b->deferred);
    }
    for (size_t i = 0; i < a->count; i++) {
        const struct hl_decision *x = &a->decisions[i], *y = &b->decisions[i];
        assert_int_equal(x->shard.lo, y->shard.lo);
        assert_int_equal(x->event, y->event);
        assert_int_equal(x->goal.tier, y->goal.tier);
        assert_int_equal(x->goal.node, y->goal.node);
        assert_float_equal(x->value, y->value, 0);
        assert_float_equal(x->gain_s, y->gain_s, 0);
    }
}

static void begin_some(struct cluster *a, struct cluster *b, int64_t now)
{
    for (size_t i = 0; i < a->policy.count; i++) {
        if (draw(4) == 0)
            continue;
        assert_int_equal(hl_policy_begin(&a->place, &a->policy.decisions[i], now), HL_OK);
        assert_int_equal(hl_policy_begin(&b->place, &b->policy.decisions[i], now), HL_OK);
    }
}

/* Both passes skip the rules where the result is known: it must be right. Returns for how many
 * shards. */
static size_t spared_work(const struct cluster *c, int64_t now)
{
    struct hl_rule_world world = {.params = &c->place.params,
                                  .rates = limits.rates,
                                  .backbone_busy_pct = limits.backbone_busy_pct,
                                  .takes = c->policy.takes,
                                  .node_count = NODES};
    size_t spared = 0;
    hl_rules_prepare(&world);
    for (uint32_t i = 0; i < c->place.shards.end; i++) {
        const struct hl_placed_shard *s = hl_shard_at(&c->place.shards, i);
        int64_t until_ms = s->used ? hl_rules_rests_until(s, &world, now) : now;
        if (s->used)
            assert_int_equal(s->crowded, hl_rules_are_crowded(s, &c->place.params));
        if (until_ms <= now)
            continue;
        struct hl_verdict v = hl_rules_judge(s, &world, now);
        assert_int_equal(v.event, HL_LIFE_EVENTS);
        assert_true(v.recheck_ms == until_ms);
        spared++;
    }
    return spared;
}

TEST(a_pass_over_what_changed_decides_the_same_as_one_over_all)
{
    unsigned seen[HL_LIFE_EVENTS] = {0};
    size_t judged = 0, all = 0, spared = 0;
    for (unsigned start = 1; start <= 1000; start++) {
        seed = start;
        plenty();
        open_cluster(&one);
        open_cluster(&other);
        for (unsigned i = 0; i < SETS; i++) { /* two versions, of two sets each, and two sets */
            uint32_t above = i >= 2 && i < 6 ? i % 2 : HL_SET_NONE;
            assert_int_equal(add_set(&one, above), i);
            assert_int_equal(add_set(&other, above), i);
        }
        int64_t now = START;
        for (unsigned round = 0; round < 25; round++) {
            now += draw(3) == 0 ? draw(1500000) : draw(30000);
            if (draw(3) == 0)
                draw_limits();
            draw_events(&one, &other, now);
            assert_int_equal(hl_policy_pass(&one.policy, &one.place, &limits, false, now), HL_OK);
            assert_int_equal(hl_policy_pass(&other.policy, &other.place, &limits, true, now),
                             HL_OK);
            same_decisions(&one.policy, &other.policy, start);
            for (size_t i = 0; i < one.policy.count; i++)
                seen[one.policy.decisions[i].event]++;
            judged += one.policy.judged;
            all += other.policy.judged;
            spared += spared_work(&one, now) + spared_work(&other, now);
            begin_some(&one, &other, now);
        }
        close_cluster(&one);
        close_cluster(&other);
    }
    assert_true(judged < all * 9 / 10);
    assert_true(spared > all / 10);
    for (enum hl_life_event e = 0; e < HL_LIFE_ON_SWITCHED; e++)
        if (e != HL_LIFE_ON_LOADED && seen[e] == 0)
            fail_msg("nothing was decided because '%s'", hl_life_event_text(e));
}
