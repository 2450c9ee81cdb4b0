/* The rules about one shard, each from the specification; and that no verdict changes before its
 * recheck time. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/placement/rules.h"

#define S     INT64_C(1000)
#define START (100000 * S)
#define MIB   (UINT64_C(1) << 20)
#define NODES 6
#define NONE  HL_LIFE_EVENTS

static struct hl_placement_params params;
static bool takes[NODES];
/* a copy over the backbone takes 1 s per GiB, over the migration network half of it */
static const double rates[HL_MOVE_PATHS] = {
    [HL_MOVE_INSIDE] = 10240.0 * MIB,
    [HL_MOVE_MIGRATION] = 2048.0 * MIB,
    [HL_MOVE_BACKBONE] = 1024.0 * MIB,
    [HL_MOVE_ARCHIVE] = 256.0 * MIB,
};
static struct hl_rule_world world;
static struct hl_placed_shard shard;

static int begin(void **state)
{
    (void)state;
    hl_placement_params_init(&params);
    for (unsigned i = 0; i < NODES; i++)
        takes[i] = true;
    world = (struct hl_rule_world){
        .params = &params, .rates = rates, .takes = takes, .node_count = NODES};
    return 0;
}

static void is_at(enum hl_life_state state, enum hl_api_tier tier, uint16_t node)
{
    memset(&shard, 0, sizeof(shard));
    hl_attributes_init(&shard.use, START);
    shard.life.state = (uint8_t)state;
    shard.place = (struct hl_place){.node = node, .tier = (uint8_t)tier};
    shard.size_bytes = 1024 * MIB;
    shard.changed_ms = START;
}

static void reads(uint16_t node, uint32_t count, int64_t at_ms)
{
    hl_attributes_access(&shard.use, &params, &(struct hl_access){.node = node, .count = count},
                         at_ms);
}

static struct hl_verdict verdict_at(int64_t now_ms)
{
    return hl_rules_judge(&shard, &world, now_ms);
}

static void goes(struct hl_verdict v, enum hl_life_event event, enum hl_api_tier tier,
                 uint16_t node)
{
    assert_int_equal(v.event, event);
    assert_int_equal(v.goal.tier, tier);
    assert_int_equal(v.goal.node, node);
}

/* ---- demotion ---- */

TEST_IN(begin, NULL, a_shard_that_another_server_reads_goes_there)
{
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    reads(1, 3, START + 50 * S);
    reads(2, 20, START + 60 * S);
    assert_int_equal(verdict_at(START + 60 * S).event, NONE); /* not above 20 */
    reads(2, 1, START + 60 * S);
    struct hl_verdict v = verdict_at(START + 60 * S);
    goes(v, HL_LIFE_ON_REMOTE, HL_API_TIER_L2, 2);
    assert_float_equal(v.value, 21, 1e-9);
    assert_float_equal(v.limit, 20, 1e-9);
    /* 21 reads take 0.1 s instead of 1 s, 3 reads 1 s instead of 0.1 s; the copy takes 0.5 s */
    assert_float_equal(v.gain_s, (21 - 3) * 0.9, 1e-9);
    assert_float_equal(v.cost_s, 0.5, 1e-9);
}

TEST_IN(begin, NULL, the_threshold_rises_with_the_use_of_the_backbone)
{
    world.backbone_busy_pct = 50;
    assert_float_equal(hl_rules_migrate_threshold(&world), 30, 1e-9);
    world.backbone_busy_pct = 100;
    assert_float_equal(hl_rules_migrate_threshold(&world), 40, 1e-9);
    world.backbone_busy_pct = 1e9;
    assert_float_equal(hl_rules_migrate_threshold(&world), 40, 1e-9);
    world.backbone_busy_pct = -1; /* not known */
    assert_float_equal(hl_rules_migrate_threshold(&world), 20, 1e-9);
    world.backbone_busy_pct = NAN;
    assert_float_equal(hl_rules_migrate_threshold(&world), 20, 1e-9);
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    reads(2, 30, START + 60 * S);
    world.backbone_busy_pct = 50;
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
    world.backbone_busy_pct = 49;
    assert_int_equal(verdict_at(START + 60 * S).event, HL_LIFE_ON_REMOTE);
}

TEST_IN(begin, NULL, a_shard_rests_where_it_came_to)
{
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    reads(2, 50, START + 59 * S);
    assert_int_equal(verdict_at(START + 60 * S - 1).event, NONE);
    assert_int_equal(verdict_at(START + 60 * S).event, HL_LIFE_ON_REMOTE);
}

TEST_IN(begin, NULL, a_load_that_swings_about_the_threshold_moves_nothing_twice)
{
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    unsigned moves = 0;
    for (int round = 0; round < 12;
         round++) { /* ten minutes of one server, then ten of the other */
        int64_t now = START + (60 + 600 * round) * S;
        reads((uint16_t)(1 + round % 2), 21, now);
        struct hl_verdict v = verdict_at(now);
        if (v.event != HL_LIFE_ON_REMOTE)
            continue;
        moves++;
        shard.place = v.goal;
        hl_attributes_moved(&shard.use, &params, now);
    }
    assert_int_equal(moves, 1);
}

TEST_IN(begin, NULL, no_shard_goes_where_it_is_not_taken)
{
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    reads(2, 50, START + 60 * S);
    takes[2] = false;
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    reads(NODES, 50, START + 60 * S); /* nor to an unknown node */
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
}

TEST_IN(begin, NULL, three_servers_that_read_frequently_send_it_to_l3_at_once)
{
    static const enum hl_life_state states[] = {HL_LIFE_ACTIVE, HL_LIFE_COOLING, HL_LIFE_MIGRATING,
                                                HL_LIFE_WARM_L2};

    for (unsigned i = 0; i < 4; i++) {
        is_at(states[i], HL_API_TIER_L2, 1);
        reads(2, 5, START + S);
        reads(3, 30, START + S);
        reads(4, 4, START + S);
        assert_int_not_equal(verdict_at(START + S).event, HL_LIFE_ON_SPREAD);
        reads(4, 1, START + S);
        struct hl_verdict v = verdict_at(START + S);
        goes(v, HL_LIFE_ON_SPREAD, HL_API_TIER_L3, HL_READER_NONE);
        assert_float_equal(v.value, 3, 0);
        assert_float_equal(v.limit, 3, 0);
    }
}

TEST_IN(begin, NULL, scattered_readers_recall_it_to_l3)
{
    is_at(HL_LIFE_WARM_L2, HL_API_TIER_L2, 1);
    params.spread_accesses = 20;
    reads(1, 15, START + 60 * S);
    reads(2, 12, START + 60 * S);
    reads(3, 12, START + 60 * S);
    struct hl_verdict v = verdict_at(START + 60 * S);
    goes(v, HL_LIFE_ON_RECALL, HL_API_TIER_L3, HL_READER_NONE);
    assert_float_equal(v.value, 15.0 / 39, 1e-9);
    reads(1, 10, START + 60 * S); /* half of the reads are its holder's: it stays */
    assert_int_not_equal(verdict_at(START + 60 * S).event, HL_LIFE_ON_RECALL);
}

TEST_IN(begin, NULL, demotion_outranks_cooling)
{
    /* heat is low enough to cool: the accesses were 250 s ago */
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L1, 1);
    params.cool_heat = 0.14;
    reads(2, 30, START);
    struct hl_verdict v = verdict_at(START + 250 * S);
    goes(v, HL_LIFE_ON_REMOTE, HL_API_TIER_L2, 2);
    /* from L1 the copy goes through host memory: 0.1 + 0.5 s */
    assert_float_equal(v.cost_s, 0.6, 1e-9);
    takes[2] = false;
    assert_int_equal(verdict_at(START + 250 * S).event, HL_LIFE_ON_COOL);
}

/* ---- heat ---- */

TEST_IN(begin, NULL, heat_makes_a_shard_active_and_lets_it_cool)
{
    is_at(HL_LIFE_WARM_L2, HL_API_TIER_L2, 1);
    reads(1, 1, START);
    struct hl_verdict v = verdict_at(START); /* 0.7 / 300 + 0.3 */
    goes(v, HL_LIFE_ON_WARM, HL_API_TIER_L2, 1);
    assert_float_equal(v.value, 0.7 / 300 + 0.3, 1e-9);
    assert_float_equal(v.limit, 0.15, 0);
    shard.life.state = HL_LIFE_ACTIVE;
    v = verdict_at(START);
    assert_int_equal(v.event, NONE);
    /* 0.3 * exp(-t / 120) = 0.05 - 0.7 / 300 */
    int64_t cool_ms = START + (int64_t)ceil(120e3 * log(0.3 / (0.05 - 0.7 / 300)));
    assert_in_range(v.recheck_ms, cool_ms - 1, cool_ms);
    assert_int_equal(verdict_at(cool_ms - 1).event, NONE);
    goes(verdict_at(cool_ms), HL_LIFE_ON_COOL, HL_API_TIER_L2, 1);
}

TEST_IN(begin, NULL, what_stays_cool_goes_to_l3)
{
    is_at(HL_LIFE_COOLING, HL_API_TIER_L2, 1);
    shard.changed_ms = START + 500 * S;
    struct hl_verdict v = verdict_at(START + 501 * S);
    assert_int_equal(v.event, NONE);
    assert_int_equal(v.recheck_ms, START + 560 * S);
    v = verdict_at(START + 560 * S);
    goes(v, HL_LIFE_ON_LEAVE, HL_API_TIER_L3, HL_READER_NONE);
    assert_float_equal(v.value, 60, 0);
    reads(1, 1, START + 560 * S);
    assert_int_equal(verdict_at(START + 560 * S).event, HL_LIFE_ON_WARM);
}

TEST_IN(begin, NULL, a_read_while_it_is_copied_to_l3_keeps_it)
{
    is_at(HL_LIFE_MIGRATING, HL_API_TIER_L2, 1);
    assert_int_equal(verdict_at(START).event, NONE);
    reads(1, 1, START);
    assert_int_equal(verdict_at(START).event, HL_LIFE_ON_WARM);
}

TEST_IN(begin, NULL, a_pinned_shard_is_judged_and_stays)
{
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 1);
    shard.pinned = true;
    for (uint16_t n = 2; n < 5; n++)
        reads(n, 50, START);
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
    assert_int_equal(verdict_at(START + 900 * S).event, HL_LIFE_ON_COOL);
    shard.life.state = HL_LIFE_COOLING;
    assert_int_equal(verdict_at(START + 9000 * S).event, NONE);
}

/* ---- in L3 and L4 ---- */

TEST_IN(begin, NULL, an_hour_without_accesses_sends_it_from_l3_to_l4)
{
    is_at(HL_LIFE_ARCHIVED_L3, HL_API_TIER_L3, HL_READER_NONE);
    reads(1, 1, START + 10 * S);
    shard.changed_ms = START + 20 * S;
    struct hl_verdict v = verdict_at(START + 20 * S);
    assert_int_equal(v.event, NONE);
    assert_int_equal(v.recheck_ms, START + 3610 * S);
    assert_int_equal(verdict_at(START + 3610 * S - 1).event, NONE);
    v = verdict_at(START + 3610 * S);
    goes(v, HL_LIFE_ON_IDLE, HL_API_TIER_L4, HL_READER_NONE);
    assert_float_equal(v.value, 3600, 0);
}

TEST_IN(begin, NULL, what_is_read_again_goes_to_its_latest_reader_when_that_is_worth_it)
{
    is_at(HL_LIFE_ARCHIVED_L3, HL_API_TIER_L3, HL_READER_NONE);
    reads(2, 1, START + S);
    assert_int_equal(verdict_at(START + S).event, NONE); /* saves 0.9 s, takes 1 s */
    reads(2, 1, START + 2 * S);
    struct hl_verdict v = verdict_at(START + 2 * S);
    goes(v, HL_LIFE_ON_ACCESS, HL_API_TIER_L2, 2);
    assert_float_equal(v.gain_s, 1.8, 1e-9);
    assert_float_equal(v.cost_s, 1, 1e-9);
    /* each read from L4 takes 5 s: the second time one is enough to lose */
    is_at(HL_LIFE_EXPIRED_L4, HL_API_TIER_L4, HL_READER_NONE);
    reads(3, 2, START + S);
    goes(verdict_at(START + S), HL_LIFE_ON_ACCESS, HL_API_TIER_L2, 3);
    /* for many readers, to L3 */
    reads(1, 6, START + S);
    reads(2, 6, START + S);
    reads(3, 6, START + S);
    goes(verdict_at(START + S), HL_LIFE_ON_ACCESS, HL_API_TIER_L3, HL_READER_NONE);
}

TEST_IN(begin, NULL, accesses_before_it_was_archived_do_not_bring_it_back)
{
    is_at(HL_LIFE_ARCHIVED_L3, HL_API_TIER_L3, HL_READER_NONE);
    reads(2, 90, START + S);
    shard.changed_ms = START + 2 * S;
    assert_int_equal(verdict_at(START + 3 * S).event, NONE);
}

TEST_IN(begin, NULL, a_move_costs_more_after_many)
{
    is_at(HL_LIFE_ARCHIVED_L3, HL_API_TIER_L3, HL_READER_NONE);
    for (int i = 0; i < 4; i++)
        hl_attributes_moved(&shard.use, &params, START);
    reads(2, 5, START + S); /* saves 4.5 s; 1 s counts five times */
    struct hl_verdict v = verdict_at(START + S);
    assert_int_equal(v.event, NONE);
    struct hl_place goal = {.node = 2, .tier = HL_API_TIER_L2};
    assert_float_equal(hl_rules_cost(&shard, &world, goal, START), 5, 1e-6);
    reads(2, 1, START + S);
    assert_int_equal(verdict_at(START + S).event, HL_LIFE_ON_ACCESS);
}

TEST_IN(begin, NULL, a_new_shard_is_loaded_for_its_first_readers)
{
    is_at(HL_LIFE_CREATED, HL_API_TIER_L3, HL_READER_NONE);
    assert_int_equal(verdict_at(START).event, NONE);
    reads(4, 2, START);
    goes(verdict_at(START), HL_LIFE_ON_LOAD, HL_API_TIER_L2, 4);
    is_at(HL_LIFE_CREATED, HL_API_TIER_L2, 1); /* written there */
    assert_int_equal(verdict_at(START).event, NONE);
    reads(1, 1, START);
    goes(verdict_at(START), HL_LIFE_ON_LOAD, HL_API_TIER_L2, 1);
}

TEST_IN(begin, NULL, what_was_moved_to_l3_by_order_rests_there_although_it_is_read)
{
    is_at(HL_LIFE_CREATED, HL_API_TIER_L3, HL_READER_NONE); /* an order is no transition */
    reads(2, 30, START);
    hl_attributes_moved(&shard.use, &params, START + S);
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
    goes(verdict_at(START + 61 * S), HL_LIFE_ON_LOAD, HL_API_TIER_L2, 2);
}

TEST_IN(begin, NULL, what_is_found_on_a_node_and_never_read_leaves_in_the_end)
{
    const int64_t idle = START + params.archive_ms;
    is_at(HL_LIFE_CREATED, HL_API_TIER_L1, 1);
    struct hl_verdict v = verdict_at(idle - 1);
    assert_int_equal(v.event, NONE);
    assert_true(v.recheck_ms == idle);
    goes(verdict_at(idle), HL_LIFE_ON_LOAD, HL_API_TIER_L1, 1); /* where it is */
    shard.life.state = HL_LIFE_ACTIVE;
    goes(verdict_at(idle), HL_LIFE_ON_COOL, HL_API_TIER_L1, 1);
    shard.life.state = HL_LIFE_COOLING;
    shard.changed_ms = idle;
    assert_int_equal(verdict_at(idle + params.residence_ms - 1).event, NONE);
    goes(verdict_at(idle + params.residence_ms), HL_LIFE_ON_LEAVE, HL_API_TIER_L3, HL_READER_NONE);
    shard.pinned = true;
    assert_int_equal(verdict_at(idle + params.residence_ms).event, NONE);
}

TEST_IN(begin, NULL, many_readers_keep_it_in_l3)
{
    is_at(HL_LIFE_WARM_L3, HL_API_TIER_L3, HL_READER_NONE);
    for (uint16_t n = 0; n < 4; n++)
        reads(n, 20, START + 60 * S);
    assert_int_equal(verdict_at(START + 60 * S).event, NONE);
    is_at(HL_LIFE_WARM_L3, HL_API_TIER_L3, HL_READER_NONE);
    reads(2, 20, START + 59 * S);
    assert_int_equal(verdict_at(START + 59 * S).event, NONE); /* it came only now */
    goes(verdict_at(START + 60 * S), HL_LIFE_ON_ACCESS, HL_API_TIER_L2, 2);
    goes(verdict_at(START + 900 * S), HL_LIFE_ON_COOL, HL_API_TIER_L3, HL_READER_NONE);
}

/* ---- every verdict ---- */

TEST_IN(begin, NULL, a_prepared_world_lets_a_shard_cool_at_the_millisecond)
{
    params.alpha = 0; /* 0.3 exp(-age / 120 s) is 0.05 after 120 s ln 6 = 215011.1 ms */
    hl_rules_prepare(&world);
    is_at(HL_LIFE_ACTIVE, HL_API_TIER_L2, 0);
    reads(0, 1, START);
    assert_int_equal(verdict_at(START + 1).recheck_ms, START + 215011);
    assert_int_equal(verdict_at(START + 215011).event, NONE);
    assert_int_equal(verdict_at(START + 215012).event, HL_LIFE_ON_COOL);
    params.cool_heat = 0; /* nothing ever cools */
    hl_rules_prepare(&world);
    assert_int_equal(verdict_at(START + 999999).event, NONE);
    params.beta = 0.04; /* and with less than this, an access alone is not enough */
    params.cool_heat = 0.05;
    hl_rules_prepare(&world);
    assert_int_equal(verdict_at(START).event, HL_LIFE_ON_COOL);
}

static uint64_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void draw_shard(void)
{
    static const struct {
        enum hl_life_state state;
        enum hl_api_tier tier;
    } kinds[] = {{HL_LIFE_CREATED, HL_API_TIER_L3},     {HL_LIFE_CREATED, HL_API_TIER_L2},
                 {HL_LIFE_PREHEAT, HL_API_TIER_L3},     {HL_LIFE_ACTIVE, HL_API_TIER_L1},
                 {HL_LIFE_ACTIVE, HL_API_TIER_L2},      {HL_LIFE_ACTIVE, HL_API_TIER_L3},
                 {HL_LIFE_COOLING, HL_API_TIER_L2},     {HL_LIFE_COOLING, HL_API_TIER_L3},
                 {HL_LIFE_MIGRATING, HL_API_TIER_L2},   {HL_LIFE_MIGRATING, HL_API_TIER_L3},
                 {HL_LIFE_DEMOTED_L2, HL_API_TIER_L1},  {HL_LIFE_DEMOTED_L3, HL_API_TIER_L2},
                 {HL_LIFE_MIGRATED, HL_API_TIER_L2},    {HL_LIFE_WARM_L2, HL_API_TIER_L2},
                 {HL_LIFE_ARCHIVED_L3, HL_API_TIER_L3}, {HL_LIFE_WARM_L3, HL_API_TIER_L3},
                 {HL_LIFE_EXPIRED_L4, HL_API_TIER_L4}};

    unsigned kind = draw(sizeof(kinds) / sizeof(kinds[0]));
    bool on_node = kinds[kind].tier == HL_API_TIER_L1 || kinds[kind].tier == HL_API_TIER_L2;
    is_at(kinds[kind].state, kinds[kind].tier, on_node ? (uint16_t)draw(NODES) : HL_READER_NONE);
    shard.pinned = draw(10) == 0;
    shard.size_bytes = (1 + draw(2048)) * MIB;
    int64_t now = START;
    for (unsigned i = draw(4); i > 0; i--)
        hl_attributes_moved(&shard.use, &params, now += draw(2000) * S);
    unsigned nodes = 1 + draw(NODES), most = 1 + draw(20);
    for (unsigned i = draw(12); i > 0; i--)
        reads((uint16_t)draw(nodes), 1 + draw(most),
              now += draw(2) == 0 ? draw(60000) : draw(2000));
    shard.changed_ms = now - (int64_t)draw(100000);
    for (unsigned i = 0; i < NODES; i++)
        takes[i] = draw(8) != 0;
    world.backbone_busy_pct = draw(100);
}

/* A prepared world changes no verdict, and its rechecks come no later. */
static void same_when_prepared(const struct hl_verdict *plain, int64_t now)
{
    struct hl_rule_world prepared = world;
    hl_rules_prepare(&prepared);
    assert_true(prepared.warm_ms > 0 && prepared.cool_ms > prepared.warm_ms);
    struct hl_verdict v = hl_rules_judge(&shard, &prepared, now);
    assert_int_equal(v.event, plain->event);
    assert_float_equal(v.value, plain->value, 0);
    struct hl_wish wish = hl_rules_wish(&shard, &world, now);
    assert_int_equal(hl_rules_wish(&shard, &prepared, now).for_l1, wish.for_l1);
    if (v.event != NONE || v.recheck_ms == INT64_MAX || v.recheck_ms <= now)
        return;
    struct hl_verdict before = hl_rules_judge(&shard, &world, v.recheck_ms - 1);
    assert_int_equal(before.event, NONE);
}

/* Every verdict is a transition of the life cycle; and no verdict comes before its recheck. */
TEST_IN(begin, NULL, a_verdict_is_in_the_life_cycle_and_holds_until_it_is_to_be_rechecked)
{
    unsigned seen[HL_LIFE_EVENTS + 1] = {0};
    for (unsigned start = 1; start <= 60; start++) {
        seed = start;
        for (unsigned n = 0; n < 300; n++) {
            draw_shard();
            int64_t now = shard.use.last_ms < START ? START : shard.use.last_ms, recheck = 0;
            for (unsigned i = 0; i < 60; i++, now += draw(i < 30 ? 3000 : 400000)) {
                struct hl_verdict v = verdict_at(now);
                same_when_prepared(&v, now);
                if (v.event == NONE) {
                    recheck = v.recheck_ms > now ? v.recheck_ms : now + 1;
                    continue;
                }
                assert_true(hl_life_section((enum hl_life_state)shard.life.state, v.event)[0]);
                if (i > 0 && now < recheck)
                    fail_msg("seed %u shard %u: '%s' came %lld ms before its recheck", start, n,
                             hl_life_event_text(v.event), (long long)(recheck - now));
                seen[v.event]++;
                break;
            }
        }
    }

    static const enum hl_life_event all[] = {
        HL_LIFE_ON_LOAD,   HL_LIFE_ON_WARM,   HL_LIFE_ON_COOL, HL_LIFE_ON_LEAVE, HL_LIFE_ON_REMOTE,
        HL_LIFE_ON_SPREAD, HL_LIFE_ON_RECALL, HL_LIFE_ON_IDLE, HL_LIFE_ON_ACCESS};

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (seen[all[i]] == 0)
            fail_msg("no verdict '%s' was drawn", hl_life_event_text(all[i]));
}
