/* Reports of many nodes over a bad network. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/placement/placement.h"

#define S      INT64_C(1000)
#define START  (5000 * S)
#define SHARDS 200

static struct hl_placement place;
static uint16_t node;
static const struct hl_place in_l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};

static struct hl_id id_of(unsigned i)
{
    return (struct hl_id){.hi = 7, .lo = i + 1};
}

static void place_init(struct hl_placement *p, unsigned nodes)
{
    struct hl_placement_opts opts = {.shards_max = 1000, .now_ms = START};
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(p, &opts), HL_OK);
    for (unsigned i = 0; i < nodes; i++)
        assert_int_equal(hl_placement_node_add(p, 1, START, &node), HL_OK);
    for (unsigned i = 0; i < SHARDS; i++)
        assert_int_equal(hl_placement_shard_add(p, id_of(i), 1 << 20, in_l3, START), HL_OK);
}

static int begin(void **state)
{
    (void)state;
    place_init(&place, 1);
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_placement_fini(&place);
    return 0;
}

static enum hl_report_fate report_one(uint16_t from, uint64_t incarnation, uint64_t sequence,
                                      unsigned shard, int64_t at_ms)
{
    struct hl_report_entry entry = {.shard = id_of(shard), .count = 1};
    struct hl_report report = {
        .incarnation = incarnation, .sequence = sequence, .entries = &entry, .count = 1};
    return hl_placement_report(&place, from, &report, at_ms);
}

static uint32_t count_of(const struct hl_placement *p, unsigned shard)
{
    return hl_attributes_count(&hl_placement_shard_find(p, id_of(shard))->use, &p->params,
                               p->now_ms);
}

TEST_IN(begin, end, unknown_shards_are_ignored_and_counted)
{
    assert_int_equal(report_one(node, 1, 1, SHARDS + 1, START), HL_REPORT_NEW);
    assert_int_equal(place.stats.unknown_shards, 1);
    assert_int_equal(place.stats.accesses, 0);
    assert_int_equal(hl_placement_shard_remove(&place, id_of(SHARDS + 1)), HL_ENOENT);
    assert_int_equal(hl_placement_shard_remove(&place, id_of(3)), HL_OK);
    assert_int_equal(report_one(node, 1, 2, 3, START), HL_REPORT_NEW);
    assert_int_equal(place.stats.unknown_shards, 2);
}

TEST_IN(begin, end, fenced_and_unknown_nodes_are_ignored_and_counted)
{
    assert_int_equal(hl_placement_node_fence(&place, node), HL_OK);
    assert_int_equal(report_one(node, 1, 1, 0, START), HL_REPORT_FENCED);
    assert_int_equal(report_one(9, 1, 1, 0, START), HL_REPORT_UNKNOWN);
    assert_int_equal(place.stats.reports[HL_REPORT_FENCED], 1);
    assert_int_equal(place.stats.reports[HL_REPORT_UNKNOWN], 1);
    assert_int_equal(count_of(&place, 0), 0);
    /* its next incarnation is not fenced; the fenced one is still ignored */
    assert_int_equal(hl_placement_node_start(&place, node, 2), HL_OK);
    assert_int_equal(report_one(node, 1, 1, 0, START), HL_REPORT_STALE);
    assert_int_equal(report_one(node, 2, 1, 0, START), HL_REPORT_NEW);
    assert_int_equal(count_of(&place, 0), 1);
    assert_int_equal(hl_placement_node_fence(&place, 9), HL_ENOENT);
    assert_int_equal(hl_placement_node_start(&place, 9, 1), HL_ENOENT);
}

TEST_IN(begin, end, an_index_is_not_used_again_while_its_accesses_count)
{
    uint16_t other;
    struct hl_reader_count readers[HL_READERS];
    const struct hl_attributes *use = &hl_placement_shard_find(&place, id_of(0))->use;
    assert_int_equal(report_one(node, 1, 1, 0, START), HL_REPORT_NEW);
    assert_int_equal(hl_placement_node_remove(&place, node, START), HL_OK);
    assert_int_equal(hl_placement_node_remove(&place, node, START), HL_ENOENT);
    assert_int_equal(report_one(node, 1, 2, 0, START), HL_REPORT_UNKNOWN);
    assert_int_equal(hl_placement_node_add(&place, 1, START + 599 * S, &other), HL_OK);
    assert_int_equal(other, node + 1);
    assert_int_equal(hl_placement_node_add(&place, 1, START + 600 * S, &other), HL_OK);
    assert_int_equal(other, node);
    assert_int_equal(hl_attributes_readers(use, &place.params, place.now_ms, readers), 0);
}

TEST_IN(begin, end, a_clock_that_goes_back_stands_still)
{
    assert_int_equal(report_one(node, 1, 1, 0, START + 100 * S), HL_REPORT_NEW);
    assert_int_equal(report_one(node, 1, 2, 0, START - 3600 * S), HL_REPORT_NEW);
    assert_int_equal(place.stats.clock_back, 1);
    assert_int_equal(place.now_ms, START + 100 * S);
    assert_int_equal(hl_placement_shard_find(&place, id_of(0))->use.last_ms, START + 100 * S);
    /* and one that jumps ahead makes everything old, nothing worse */
    assert_int_equal(report_one(node, 1, 3, 1, INT64_MAX / 4), HL_REPORT_NEW);
    assert_int_equal(count_of(&place, 0), 0);
    assert_int_equal(count_of(&place, 1), 1);
}

TEST_IN(begin, end, parameters_change_while_it_runs_or_not_at_all)
{
    struct hl_placement_params params = place.params;
    assert_int_equal(report_one(node, 1, 1, 0, START), HL_REPORT_NEW);
    params.low_pct = 90;
    assert_int_equal(hl_placement_configure(&place, &params, START), HL_EINVAL);
    assert_float_equal(place.params.low_pct, 70, 0);
    params = place.params;
    params.window_ms = 30 * S;
    assert_int_equal(hl_placement_configure(&place, &params, START + 10 * S), HL_OK);
    assert_int_equal(count_of(&place, 0), 1);
    assert_int_equal(report_one(node, 1, 2, 1, START + 50 * S), HL_REPORT_NEW);
    assert_int_equal(count_of(&place, 0), 0);
    assert_int_equal(count_of(&place, 1), 1);
}

TEST(parameters_that_are_refused_make_no_table)
{
    struct hl_placement p;
    struct hl_placement_opts opts = {.shards_max = 10};
    hl_placement_params_init(&opts.params);
    opts.params.alpha = NAN;
    assert_int_equal(hl_placement_init(&p, &opts), HL_EINVAL);
    hl_placement_params_init(&opts.params);
    opts.now_ms = -1;
    assert_int_equal(hl_placement_init(&p, &opts), HL_EINVAL);
}

TEST(histories_take_no_more_memory_than_a_million_changes)
{
    struct hl_placement p;
    struct hl_placement_opts opts = {.shards_max = 1 << 24, .now_ms = START};
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(&p, &opts), HL_OK);
    p.history.wrapped = true; /* all is in use */
    assert_true(hl_history_bytes(&p.history) <= 24 << 20);
    hl_placement_fini(&p);
}

TEST_IN(begin, end, a_life_is_kept_with_its_reasons_and_numbers)
{
    struct hl_change history[HL_CHANGES_MAX];
    const struct hl_placed_shard *s = hl_placement_shard_find(&place, id_of(5));
    struct hl_change step = {
        .at_ms = START, .event = HL_LIFE_ON_LOAD, .node = 3, .value = 1, .limit = 1};
    assert_int_equal(hl_placement_shard_history(&place, id_of(5), history), 0);
    assert_int_equal(hl_placement_shard_change(&place, id_of(5), &step), HL_OK);
    step.event = HL_LIFE_ON_COOL;
    assert_int_equal(hl_placement_shard_change(&place, id_of(5), &step), HL_ECONFLICT);
    assert_int_equal(s->use.moves, 0);
    step = (struct hl_change){.at_ms = START + 160, .event = HL_LIFE_ON_LOADED, .value = 0.5};
    assert_int_equal(hl_placement_shard_change(&place, id_of(5), &step), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_ACTIVE);
    assert_int_equal(s->use.moves, 0);
    assert_int_equal(s->use.placed_ms, START); /* loaded where it already was */
    assert_int_equal(hl_placement_shard_history(&place, id_of(5), history), 2);
    assert_int_equal(history[0].to, HL_LIFE_ACTIVE);
    assert_int_equal(history[0].at_ms, START + 160);
    assert_float_equal(history[0].value, 0.5, 0);
    assert_int_equal(history[1].event, HL_LIFE_ON_LOAD);
    assert_int_equal(history[1].node, 3);
    assert_int_equal(hl_placement_shard_change(&place, id_of(SHARDS), &step), HL_ENOENT);
    assert_int_equal(hl_placement_shard_history(&place, id_of(SHARDS), history), 0);
    step = (struct hl_change){.at_ms = START + 320, .event = HL_LIFE_ON_REMOTE};
    assert_int_equal(hl_placement_shard_change(&place, id_of(5), &step), HL_OK);
    step.event = HL_LIFE_ON_SWITCHED;
    assert_int_equal(hl_placement_shard_change(&place, id_of(5), &step), HL_OK);
    assert_int_equal(s->use.moves, 1);
    assert_int_equal(s->use.placed_ms, START + 320);
    /* its index is reused for another shard */
    assert_int_equal(hl_placement_shard_remove(&place, id_of(5)), HL_OK);
    assert_int_equal(hl_placement_shard_add(&place, id_of(SHARDS), 1, in_l3, START), HL_OK);
    assert_int_equal(hl_placement_shard_history(&place, id_of(SHARDS), history), 0);
}

/* Loaded for a read. */
static void load_at_node(struct hl_place goal)
{
    struct hl_change change = {
        .at_ms = START + S, .event = HL_LIFE_ON_LOAD, .node = node, .value = 7, .limit = 1};
    assert_int_equal(hl_placement_shard_move(&place, id_of(0), &change, goal), HL_OK);
    change = (struct hl_change){
        .at_ms = START + 2 * S, .event = HL_LIFE_ON_LOADED, .node = node, .value = 1, .limit = 3};
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
}

/* The newest change but `back`. */
static void assert_noted(unsigned back, enum hl_life_event event, uint8_t tier, uint8_t before)
{
    struct hl_change history[HL_CHANGES_MAX];
    assert_true(hl_placement_shard_history(&place, id_of(0), history) > back);
    assert_int_equal(history[back].event, event);
    assert_float_equal(history[back].value, tier, 0);
    assert_float_equal(history[back].limit, before, 0);
}

TEST_IN(begin, end, a_history_outlives_the_loss_of_the_last_copy_and_its_return)
{
    const struct hl_place in_l2 = {.node = node, .tier = HL_API_TIER_L2};
    struct hl_change history[HL_CHANGES_MAX];
    const struct hl_placed_shard *s = hl_placement_shard_find(&place, id_of(0));
    load_at_node(in_l2);
    assert_int_equal(hl_placement_shard_lost(&place, id_of(0), START + 3200), HL_OK);
    assert_int_equal(hl_placement_shard_lost(&place, id_of(0), START + 4000), HL_OK); /* once */
    assert_true(s->life.lost);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l2, START + 4800), HL_OK);
    assert_false(s->life.lost);
    assert_int_equal(s->life.state, HL_LIFE_ACTIVE); /* where it was, it goes on */
    assert_noted(0, HL_LIFE_ON_FOUND, HL_API_TIER_L2, 0);
    assert_noted(1, HL_LIFE_ON_LOST, 0, HL_API_TIER_L2);
    assert_int_equal(hl_placement_shard_lost(&place, id_of(0), START + 6400), HL_OK);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 8000), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_CREATED);
    assert_noted(0, HL_LIFE_ON_FOUND, HL_API_TIER_L3, 0);
    assert_int_equal(hl_placement_shard_history(&place, id_of(0), history), 6);
    assert_int_equal(history[0].at_ms, START + 8000);
    assert_int_equal(history[0].from, HL_LIFE_ACTIVE);
    assert_int_equal(history[4].event, HL_LIFE_ON_LOADED);
    assert_float_equal(history[4].value, 1, 0);
    assert_float_equal(history[4].limit, 3, 0);
    assert_int_equal(history[5].event, HL_LIFE_ON_LOAD);
    assert_float_equal(history[5].value, 7, 0);
    assert_int_equal(hl_placement_shard_lost(&place, id_of(SHARDS), START), HL_ENOENT);
}

TEST_IN(begin, end, a_move_whose_old_copy_stays_settles_and_says_why)
{
    const struct hl_place in_l1 = {.node = node, .tier = HL_API_TIER_L1};
    const struct hl_place in_l2 = {.node = node, .tier = HL_API_TIER_L2};
    const struct hl_placed_shard *s = hl_placement_shard_find(&place, id_of(0));
    struct hl_change change = {.at_ms = START + 3 * S, .event = HL_LIFE_ON_PRESSURE};
    load_at_node(in_l1);
    assert_int_equal(hl_placement_shard_move(&place, id_of(0), &change, in_l2), HL_OK);
    change.event = HL_LIFE_ON_SWITCHED;
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    assert_int_equal(place.nodes[node].l1_leaving, 1 << 20);
    change = (struct hl_change){
        .at_ms = START + 4 * S, .event = HL_LIFE_ON_KEPT, .node = node, .value = 1, .limit = 5};
    assert_int_equal(hl_placement_shard_kept(&place, id_of(0), &change), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_WARM_L2);
    assert_int_equal(place.nodes[node].l1_leaving, 0);
    assert_int_equal(s->goal.tier, HL_API_TIER_L2);
    assert_noted(0, HL_LIFE_ON_KEPT, 1, 5);
    change.event = HL_LIFE_ON_LEFT; /* of an ordered move */
    assert_int_equal(hl_placement_shard_kept(&place, id_of(0), &change), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_WARM_L2);
    assert_noted(0, HL_LIFE_ON_LEFT, 1, 5);
}

TEST_IN(begin, end, a_history_outlives_the_loss_of_the_nearest_copy)
{
    const struct hl_place in_l2 = {.node = node, .tier = HL_API_TIER_L2};
    load_at_node(in_l2);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 3 * S), HL_OK);
    assert_noted(0, HL_LIFE_ON_FOUND, HL_API_TIER_L3, HL_API_TIER_L2);
    assert_noted(1, HL_LIFE_ON_LOADED, 1, 3);
}

TEST_IN(begin, end, a_shard_that_was_never_read_tells_of_its_loss_too)
{
    assert_int_equal(hl_placement_shard_lost(&place, id_of(0), START + S), HL_OK);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 2 * S), HL_OK);
    assert_noted(0, HL_LIFE_ON_FOUND, HL_API_TIER_L3, 0);
    assert_noted(1, HL_LIFE_ON_LOST, 0, HL_API_TIER_L3);
}

/* ---- a bad network ---- */

#define NODES   5
#define ROUNDS  240
#define LATE    20 /* rounds */
#define ENTRIES 6

struct sent {
    struct hl_report report;
    struct hl_report_entry entries[ENTRIES];
    uint16_t node;
};

static struct sent sent[NODES * ROUNDS];
static uint64_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void make_reports(void)
{
    for (unsigned i = 0; i < NODES * ROUNDS; i++) {
        struct sent *s = &sent[i];
        s->node = (uint16_t)(i % NODES);
        for (unsigned k = 0; k < ENTRIES; k++)
            s->entries[k] = (struct hl_report_entry){
                .shard = id_of(draw(SHARDS)), .count = 1 + draw(3), .age_ms = draw(1000)};
        s->report = (struct hl_report){
            .incarnation = 1, .sequence = 1 + i / NODES, .entries = s->entries, .count = ENTRIES};
    }
}

/* One round per 100 ms: everything is within the window. */
static int64_t sent_at(unsigned i)
{
    return START + (int64_t)(i / NODES) * 100;
}

static void same_use(const struct hl_placement *a, const struct hl_placement *b, int64_t delay_ms)
{
    for (unsigned i = 0; i < SHARDS; i++) {
        const struct hl_attributes *x = &hl_placement_shard_find(a, id_of(i))->use;
        const struct hl_attributes *y = &hl_placement_shard_find(b, id_of(i))->use;
        struct hl_reader_count rx[HL_READERS], ry[HL_READERS];
        assert_int_equal(count_of(a, i), count_of(b, i));
        assert_in_range(y->last_ms, x->last_ms, x->last_ms + delay_ms);
        unsigned n = hl_attributes_readers(x, &a->params, a->now_ms, rx);
        assert_int_equal(hl_attributes_readers(y, &b->params, b->now_ms, ry), n);
        if (n == HL_READERS) /* a fifth one may have arrived in another order */
            continue;
        for (unsigned k = 0; k < n; k++) {
            assert_int_equal(rx[k].node, ry[k].node);
            assert_float_equal(rx[k].count, ry[k].count, 1e-9);
        }
    }
}

/* Each report arrives up to LATE rounds late, every second one twice: N and the readers are the
 * same, and no access is dated too young by more than the delay. */
static void deliver_badly(struct hl_placement *bad)
{
    static unsigned comes[NODES * ROUNDS], again[NODES * ROUNDS];
    for (unsigned i = 0; i < NODES * ROUNDS; i++) {
        comes[i] = i / NODES + draw(LATE);
        again[i] = draw(2) == 0 ? i / NODES + draw(LATE) : comes[i];
    }
    for (unsigned round = 0; round < ROUNDS + LATE; round++)
        for (unsigned i = 0; i < NODES * ROUNDS; i++)
            if (comes[i] == round || again[i] == round)
                hl_placement_report(bad, sent[i].node, &sent[i].report, sent_at(round * NODES));
}

TEST(doubled_late_and_reordered_reports_change_nothing)
{
    struct hl_placement clean, bad;
    for (seed = 1; seed < 20; seed++) {
        place_init(&clean, NODES);
        place_init(&bad, NODES);
        make_reports();
        for (unsigned i = 0; i < NODES * ROUNDS; i++)
            hl_placement_report(&clean, sent[i].node, &sent[i].report, sent_at(i));
        deliver_badly(&bad);
        assert_int_equal(bad.stats.reports[HL_REPORT_NEW], NODES * ROUNDS);
        assert_true(bad.stats.reports[HL_REPORT_DOUBLED] > NODES * ROUNDS / 3);
        assert_int_equal(bad.stats.accesses, clean.stats.accesses);
        same_use(&clean, &bad, LATE * 100);
        hl_placement_fini(&clean);
        hl_placement_fini(&bad);
    }
}

/* The stated error: N lacks what the lost reports contained, and their share is known. */
TEST(lost_reports_cost_their_own_accesses_and_are_known)
{
    struct hl_placement bad;
    uint64_t all = 0, lost = 0;
    seed = 4;
    place_init(&bad, NODES);
    make_reports();
    for (unsigned i = 0; i < NODES * ROUNDS; i++) {
        bool goes =
            sent[i].report.sequence > 1 && sent[i].report.sequence < ROUNDS && draw(10) == 0;
        for (unsigned k = 0; k < ENTRIES; k++)
            *(goes ? &lost : &all) += sent[i].entries[k].count;
        if (!goes)
            hl_placement_report(&bad, sent[i].node, &sent[i].report, sent_at(i));
    }
    uint64_t counted = 0, missing = 0;
    for (unsigned i = 0; i < SHARDS; i++)
        counted += count_of(&bad, i);
    for (uint16_t n = 0; n < NODES; n++)
        missing += hl_report_window_missing(&bad.nodes[n].reports);
    assert_int_equal(counted, all);
    assert_int_equal(bad.stats.accesses, all);
    assert_true(missing > 50);
    assert_int_equal(missing + bad.stats.reports[HL_REPORT_NEW], NODES * ROUNDS);
    assert_true(lost > 0);
    hl_placement_fini(&bad);
}

TEST_IN(begin, end, an_ordered_move_counts_as_one_of_late)
{
    const struct hl_placement_params *params = &place.params;
    const struct hl_attributes *use = &hl_placement_shard_find(&place, id_of(0))->use;
    assert_true(hl_attributes_fluidity(use, params, START) == 0);
    assert_int_equal(hl_placement_shard_moved(&place, id_of(0), START), HL_OK);
    assert_true(hl_attributes_fluidity(use, params, START) == 1);
    assert_int_equal(hl_placement_shard_moved(&place, id_of(0), START), HL_OK);
    assert_true(hl_attributes_fluidity(use, params, START) == 2);
    assert_int_equal(hl_placement_shard_moved(&place, id_of(SHARDS), START), HL_ENOENT);
}

TEST_IN(begin, end, a_shard_that_is_found_elsewhere_begins_its_life_there_and_keeps_its_use)
{
    const struct hl_place in_l2 = {.node = node, .tier = HL_API_TIER_L2};
    struct hl_change change = {.at_ms = START + S, .event = HL_LIFE_ON_LOAD, .node = node};
    report_one(node, 1, 1, 0, START);
    assert_int_equal(hl_placement_shard_move(&place, id_of(0), &change, in_l2), HL_OK);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l2, START + S), HL_ECONFLICT);
    change.event = HL_LIFE_ON_LOADED;
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 2 * S), HL_OK);
    const struct hl_placed_shard *s = hl_placement_shard_find(&place, id_of(0));
    assert_int_equal(s->life.state, HL_LIFE_CREATED);
    assert_int_equal(s->place.tier, HL_API_TIER_L3);
    assert_int_equal(s->goal.tier, HL_API_TIER_L3);
    assert_true(s->use.placed_ms == START + 2 * S);
    assert_int_equal(count_of(&place, 0), 1);
    assert_int_equal(place.nodes[node].l2_arriving, 0);
    assert_int_equal(hl_placement_shard_found(&place, id_of(SHARDS), in_l3, START), HL_ENOENT);
    for (int i = 0; i < 2; i++) { /* it has cooled, and so has the copy that was left of it */
        change.event = i == 0 ? HL_LIFE_ON_LOAD : HL_LIFE_ON_LOADED;
        assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    }
    change.event = HL_LIFE_ON_COOL;
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l2, START + 3 * S), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_COOLING);
    const struct hl_place in_l4 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 4 * S), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_ARCHIVED_L3);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l4, START + 5 * S), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_EXPIRED_L4);
    assert_int_equal(report_one(node, 1, 2, 0, START + 6 * S), HL_REPORT_NEW);
    assert_int_equal(hl_placement_shard_found(&place, id_of(0), in_l3, START + 7 * S), HL_OK);
    assert_int_equal(s->life.state, HL_LIFE_ARCHIVED_L3); /* L3 loads what is requested from it */
    assert_true(s->use.last_ms > s->changed_ms); /* the read counts for the next decision */
}
