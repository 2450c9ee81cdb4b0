/* Prefetch by plan: what is local when a gang starts, computed by carrying the moves out. */
#include "support/test.h"

#include <math.h>
#include <string.h>

#include "core/placement/ahead.h"

#define S     INT64_C(1000)
#define NOW   (5000 * S)
#define MB    UINT64_C(1000000)
#define NODES 8
#define MANY  2000

static struct hl_ahead_shard shards[MANY];
static struct hl_ahead_gang gang;
static struct hl_ahead_world world;
static uint64_t l2_free[NODES];
static bool takes[NODES];
static struct hl_ahead plan;
static uint64_t seed;

static const struct hl_place l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
static const struct hl_place l4 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};

static int begin(void **state)
{
    (void)state;
    memset(shards, 0, sizeof(shards));
    gang = (struct hl_ahead_gang){.shards = shards};
    world = (struct hl_ahead_world){.l2_free = l2_free, .takes = takes, .node_count = NODES};
    static const double mb_per_s[HL_MOVE_PATHS] = {10000, 200, 100, 50};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++) {
        world.rates[i] = mb_per_s[i] * (double)MB;
        world.shared[i] = HUGE_VAL;
    }
    for (unsigned i = 0; i < NODES; i++) {
        l2_free[i] = UINT64_MAX;
        takes[i] = true;
    }
    memset(&plan, 0, sizeof(plan));
    seed = 1;
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_ahead_fini(&plan);
    return 0;
}

static uint32_t draw(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void add_shard(unsigned id, uint64_t mb, struct hl_place place, uint16_t node, uint32_t rank)
{
    shards[gang.count++] = (struct hl_ahead_shard){
        .id = {.lo = id}, .size_bytes = mb * MB, .place = place, .node = node, .rank = rank};
}

static void make_plan(int64_t start_ms)
{
    hl_ahead_fini(&plan);
    gang.start_ms = start_ms;
    assert_int_equal(hl_ahead_plan(&gang, &world, NOW, &plan), HL_OK);
}

/* Each node and path carries one move at a time, in order and not before it may begin. Returns the
 * bytes that have arrived by then. */
static uint64_t carry_out(int64_t until_ms, double slower)
{
    double busy_ms[NODES][HL_MOVE_PATHS] = {{0}};
    uint64_t come = 0;
    for (size_t i = 0; i < plan.count; i++) {
        const struct hl_ahead_move *m = &plan.moves[i];
        double *busy = &busy_ms[m->goal.node][m->path];
        double ms = (double)m->size_bytes / world.rates[m->path] * 1e3 * slower;
        if (m->path == HL_MOVE_ARCHIVE)
            ms += (double)m->size_bytes / world.rates[HL_MOVE_BACKBONE] * 1e3 * slower;
        *busy = fmax(*busy, (double)m->begin_ms) + ms;
        come += *busy <= (double)until_ms ? m->size_bytes : 0;
    }
    return come;
}

TEST_IN(begin, end, with_notice_of_bytes_over_link_nearly_all_is_local_at_the_start)
{
    for (seed = 1; seed <= 50; seed++) {
        double link_ms[NODES][HL_MOVE_PATHS] = {{0}}, notice = 0;
        gang.count = 0;
        for (unsigned i = 0; i < MANY; i++) {
            uint16_t node = (uint16_t)draw(NODES);
            struct hl_place other = {.node = (uint16_t)draw(NODES), .tier = HL_API_TIER_L2};
            add_shard(i, 1 + draw(300),
                      draw(3) == 0   ? other
                      : draw(9) == 0 ? l4
                                     : l3,
                      node, node * 4u + draw(4));
        }
        for (unsigned i = 0; i < MANY; i++) {
            const struct hl_ahead_shard *s = &shards[i];
            if (s->place.node == s->node)
                continue;
            unsigned path = s->place.tier == HL_API_TIER_L2   ? HL_MOVE_MIGRATION
                            : s->place.tier == HL_API_TIER_L3 ? HL_MOVE_BACKBONE
                                                              : HL_MOVE_ARCHIVE;
            double ms = (double)s->size_bytes / world.rates[path] * 1e3;
            if (path == HL_MOVE_ARCHIVE)
                ms += (double)s->size_bytes / world.rates[HL_MOVE_BACKBONE] * 1e3;
            notice = fmax(notice, link_ms[s->node][path] += ms);
        }
        make_plan(NOW + (int64_t)ceil(notice));
        uint64_t come = carry_out(gang.start_ms, 1);
        assert_true((double)(plan.local + come) >= 0.95 * (double)plan.bytes);
        assert_int_equal(come, plan.in_time);
        assert_true(hl_ahead_share(&plan) >= 0.95);
        /* with more notice it is in time even on a link slower by a tenth, and begins later */
        make_plan(NOW + (int64_t)(3 * notice));
        assert_true((double)(plan.local + carry_out(gang.start_ms, 1.09)) >=
                    0.999 * (double)plan.bytes);
        assert_true(plan.moves[0].begin_ms >= gang.start_ms - (int64_t)(1.1 * notice) - 1);
    }
}

TEST_IN(begin, end, when_notice_is_short_ranks_are_served_one_after_the_other)
{
    for (unsigned i = 0; i < 10; i++) /* two ranks of 500 and 600 MB over 100 MB/s */
        add_shard(i, i % 2 == 0 ? 120 : 100, l3, 0, 7 + i % 2);
    make_plan(NOW + 5 * S);
    assert_int_equal(plan.count, 10);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(plan.moves[i].shard.lo % 2, 1);
        assert_int_equal(plan.moves[i].begin_ms, NOW + i * S);
    }
    assert_int_equal(plan.in_time, 500 * MB);
    assert_int_equal(plan.moves[9].end_ms, NOW + 11 * S); /* the rest follows nevertheless */
    make_plan(NOW - S);                                   /* it should have started already */
    assert_int_equal(plan.moves[0].begin_ms, NOW);
    assert_int_equal(plan.in_time, 0);
}

TEST_IN(begin, end, a_shard_travels_once_to_a_node_and_not_where_it_is)
{
    struct hl_place in_l1 = {.node = 1, .tier = HL_API_TIER_L1};
    add_shard(1, 100, l3, 0, 0);
    add_shard(1, 100, l3, 0, 1); /* data-parallel ranks share it */
    add_shard(1, 100, l3, 2, 2);
    add_shard(2, 50, in_l1, 1, 3);
    add_shard(3, 70, in_l1, 0, 0);
    make_plan(NOW + 100 * S);
    assert_int_equal(plan.count, 3);
    assert_int_equal(plan.bytes, 320 * MB);
    assert_int_equal(plan.local, 50 * MB);
    assert_int_equal(plan.in_time, 270 * MB);
    /* as late as possible: a tenth more than 0.35 s and 1 s */
    assert_int_equal(plan.moves[2].path, HL_MOVE_MIGRATION);
    assert_int_equal(plan.moves[2].begin_ms, NOW + 100 * S - 385);
    assert_int_equal(plan.moves[0].begin_ms, NOW + 100 * S - 1100);
    assert_int_equal(plan.moves[0].goal.tier, HL_API_TIER_L2);
}

TEST_IN(begin, end, nodes_share_what_a_plane_carries_and_fill_no_more_than_their_room)
{
    for (unsigned i = 0; i < 4; i++)
        add_shard(i, 100, l3, (uint16_t)i, i);
    add_shard(9, 300, l3, 0, 0);
    world.shared[HL_MOVE_BACKBONE] = 200e6; /* of 400 that four nodes could take */
    l2_free[0] = 350 * MB;
    l2_free[1] = 0;
    takes[2] = false;
    make_plan(NOW + 100 * S);
    assert_int_equal(plan.count, 2);
    assert_int_equal(plan.no_room, 500 * MB);
    assert_int_equal(plan.moves[0].end_ms - plan.moves[0].begin_ms, 1000); /* two nodes: 100 each */
    assert_float_equal(hl_ahead_share(&plan), 2.0 / 7, 1e-9);
    for (unsigned i = 0; i < NODES; i++)
        takes[i] = true;
    l2_free[0] = l2_free[1] = 400 * MB;
    make_plan(NOW + 100 * S);
    assert_int_equal(plan.no_room, 0);
    for (size_t i = 0; i < plan.count; i++)
        if (plan.moves[i].shard.lo < 9)
            assert_in_range(plan.moves[i].end_ms - plan.moves[i].begin_ms, 2000, 2001);
}

TEST_IN(begin, end, worlds_and_gangs_that_make_no_sense_are_refused)
{
    make_plan(NOW);
    assert_int_equal(plan.count, 0);
    assert_float_equal(hl_ahead_share(&plan), 1, 0);
    add_shard(1, 100, l3, NODES, 5);
    assert_int_equal(hl_ahead_plan(&gang, &world, NOW, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "rank 5"));
    shards[0].node = 0;
    world.shared[HL_MOVE_ARCHIVE] = NAN;
    assert_int_equal(hl_ahead_plan(&gang, &world, NOW, &plan), HL_EINVAL);
    world.shared[HL_MOVE_ARCHIVE] = 1;
    world.rates[HL_MOVE_INSIDE] = 0;
    assert_int_equal(hl_ahead_plan(&gang, &world, NOW, &plan), HL_EINVAL);
}
