/* Sets of shards: what a rank reads, and a version. */
#include "support/test.h"

#include <string.h>

#include "core/placement/leaving.h"
#include "core/placement/placement.h"

#define S     INT64_C(1000)
#define START (100000 * S)
#define MIB   (UINT64_C(1) << 20)

static struct hl_placement place;

static struct hl_id id_of(unsigned i)
{
    return (struct hl_id){.hi = 5, .lo = i + 1};
}

static int begin(void **state)
{
    (void)state;
    struct hl_placement_opts opts = {.shards_max = 100, .now_ms = START};
    hl_placement_params_init(&opts.params);
    assert_int_equal(hl_placement_init(&place, &opts), HL_OK);
    uint16_t node;
    assert_int_equal(hl_placement_node_add(&place, 1, START, &node), HL_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_placement_fini(&place);
    return 0;
}

static void add_shard(unsigned i, enum hl_api_tier tier, uint32_t set)
{
    bool on_node = tier == HL_API_TIER_L1 || tier == HL_API_TIER_L2;
    struct hl_place at = {.node = on_node ? 0 : HL_READER_NONE, .tier = (uint8_t)tier};
    assert_int_equal(hl_placement_shard_add(&place, id_of(i), (i + 1) * MIB, at, START), HL_OK);
    assert_int_equal(hl_placement_set_join(&place, id_of(i), set), HL_OK);
}

static uint32_t add_set(uint32_t above)
{
    uint32_t set = HL_SET_NONE;
    assert_int_equal(hl_placement_set_add(&place, above, &set), HL_OK);
    return set;
}

static struct hl_set_view look(uint32_t set)
{
    struct hl_set_view view;
    assert_int_equal(hl_placement_set_look(&place, set, &view), HL_OK);
    return view;
}

static bool is_pinned(unsigned i)
{
    return hl_placement_shard_find(&place, id_of(i))->pinned;
}

TEST_IN(begin, end, a_version_sums_up_the_sets_of_its_ranks)
{
    uint32_t version = add_set(HL_SET_NONE), r0 = add_set(version), r1 = add_set(version);
    uint32_t other = add_set(HL_SET_NONE);
    add_shard(0, HL_API_TIER_L1, r0);
    add_shard(1, HL_API_TIER_L2, r0);
    add_shard(2, HL_API_TIER_L3, r1);
    add_shard(3, HL_API_TIER_L4, other);
    struct hl_report_entry entry = {.shard = id_of(1), .count = 30};
    struct hl_report report = {.incarnation = 1, .sequence = 1, .entries = &entry, .count = 1};
    assert_int_equal(hl_placement_report(&place, 0, &report, START + 60 * S), HL_REPORT_NEW);

    struct hl_set_view v = look(version);
    assert_int_equal(v.shards, 3);
    assert_int_equal(v.bytes[HL_API_TIER_L1], MIB);
    assert_int_equal(v.bytes[HL_API_TIER_L2], 2 * MIB);
    assert_int_equal(v.bytes[HL_API_TIER_L3], 3 * MIB);
    assert_float_equal(v.heat, 0.7 * 30 / 300 + 0.3, 1e-9); /* that of its hottest shard */
    assert_int_equal(v.last_ms, START + 60 * S);
    assert_true(v.stability > 0);
    assert_int_equal(look(r0).shards, 2);
    assert_float_equal(look(r1).heat, 0, 0);
    assert_int_equal(look(r1).last_ms, -1);
    assert_int_equal(look(other).bytes[HL_API_TIER_L4], 4 * MIB);
    assert_int_equal(look(add_set(HL_SET_NONE)).shards, 0);
}

TEST_IN(begin, end, bytes_of_a_set_follow_its_shards_when_they_move_or_go)
{
    uint32_t version = add_set(HL_SET_NONE), rank = add_set(version);
    add_shard(0, HL_API_TIER_L2, rank);
    add_shard(1, HL_API_TIER_L2, rank);
    struct hl_change change = {.at_ms = START, .event = HL_LIFE_ON_LOAD};
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    change.event = HL_LIFE_ON_LOADED;
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    struct hl_place l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    change.event = HL_LIFE_ON_SPREAD;
    assert_int_equal(hl_placement_shard_move(&place, id_of(0), &change, l3), HL_OK);
    assert_int_equal(hl_set_table_find(&place.sets, rank)->bytes[HL_API_TIER_L2], 3 * MIB);
    assert_int_equal(look(version).moving, 1);
    change.event = HL_LIFE_ON_SWITCHED;
    assert_int_equal(hl_placement_shard_change(&place, id_of(0), &change), HL_OK);
    const struct hl_shard_set *s = hl_set_table_find(&place.sets, rank);
    assert_int_equal(hl_placement_shard_found(&place, id_of(1), l3, START), HL_OK);
    assert_int_equal(s->bytes[HL_API_TIER_L2], 0);
    struct hl_place l2 = {.node = 0, .tier = HL_API_TIER_L2};
    assert_int_equal(hl_placement_shard_found(&place, id_of(1), l2, START), HL_OK);
    assert_int_equal(s->bytes[HL_API_TIER_L2], 2 * MIB);
    assert_int_equal(s->bytes[HL_API_TIER_L3], MIB);
    assert_int_equal(look(rank).bytes[HL_API_TIER_L3], MIB); /* as counted shard by shard */

    assert_int_equal(hl_placement_set_remove(&place, rank), HL_ECONFLICT);
    assert_int_equal(hl_placement_set_remove(&place, version), HL_ECONFLICT);
    assert_int_equal(hl_placement_shard_remove(&place, id_of(0)), HL_OK);
    assert_int_equal(hl_placement_set_join(&place, id_of(1), HL_SET_NONE), HL_OK);
    assert_int_equal(s->bytes[HL_API_TIER_L2] + s->bytes[HL_API_TIER_L3], 0);
    assert_int_equal(hl_placement_set_remove(&place, rank), HL_OK);
    assert_int_equal(hl_placement_set_remove(&place, version), HL_OK);
    assert_int_equal(add_set(HL_SET_NONE), version); /* the index that was freed last */
}

TEST_IN(begin, end, a_pinned_version_holds_all_its_shards_and_those_that_join_it)
{
    uint32_t version = add_set(HL_SET_NONE), rank = add_set(version), other = add_set(HL_SET_NONE);
    add_shard(0, HL_API_TIER_L2, rank);
    add_shard(1, HL_API_TIER_L2, other);
    assert_int_equal(hl_placement_shard_pin(&place, id_of(0), true), HL_OK);
    uint32_t touched = place.touched.count;
    assert_int_equal(hl_placement_set_pin(&place, version, true), HL_OK);
    assert_int_equal(place.touched.count, touched); /* it was pinned already */
    add_shard(2, HL_API_TIER_L2, rank);
    assert_true(is_pinned(0) && is_pinned(2));
    assert_false(is_pinned(1));
    assert_int_equal(look(version).pinned, 2);
    /* its own pin outlives the version's, and the other way round */
    assert_int_equal(hl_placement_set_pin(&place, version, false), HL_OK);
    assert_true(is_pinned(0));
    assert_false(is_pinned(2));
    assert_int_equal(hl_placement_set_pin(&place, rank, true), HL_OK);
    assert_int_equal(hl_placement_shard_pin(&place, id_of(0), false), HL_OK);
    assert_true(is_pinned(0));
    assert_int_equal(hl_placement_set_join(&place, id_of(0), other), HL_OK);
    assert_false(is_pinned(0));
}

static void assert_pinned(uint64_t l1_mib)
{
    assert_int_equal(place.nodes[0].l1_pinned, l1_mib * MIB);
}

TEST_IN(begin, end, pinned_bytes_of_a_node_follow_pins_and_places)
{
    const struct hl_place l2 = {.node = 0, .tier = HL_API_TIER_L2};
    const struct hl_place l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    uint32_t version = add_set(HL_SET_NONE);
    add_shard(0, HL_API_TIER_L1, version);
    add_shard(1, HL_API_TIER_L1, HL_SET_NONE);
    add_shard(2, HL_API_TIER_L2, version);
    add_shard(3, HL_API_TIER_L3, version);
    assert_pinned(0);
    assert_int_equal(hl_placement_set_pin(&place, version, true), HL_OK);
    assert_int_equal(hl_placement_shard_pin(&place, id_of(1), true), HL_OK);
    assert_pinned(1 + 2);
    assert_int_equal(hl_placement_shard_found(&place, id_of(1), l2, START), HL_OK);
    assert_pinned(1);
    assert_int_equal(hl_placement_shard_found(&place, id_of(2), l3, START), HL_OK);
    assert_pinned(1);
    assert_int_equal(hl_placement_shard_remove(&place, id_of(0)), HL_OK);
    assert_pinned(0);
    assert_int_equal(hl_placement_shard_pin(&place, id_of(1), false), HL_OK);
    assert_int_equal(hl_placement_set_pin(&place, version, false), HL_OK);
    assert_pinned(0);
}

TEST_IN(begin, end, sets_that_are_not_there_are_refused_by_their_index)
{
    uint32_t version = add_set(HL_SET_NONE), rank = add_set(version), set = 77;
    struct hl_set_view view;
    add_shard(0, HL_API_TIER_L2, HL_SET_NONE);
    assert_int_equal(hl_placement_set_add(&place, 9, &set), HL_ENOENT);
    assert_int_equal(hl_placement_set_add(&place, rank, &set), HL_EINVAL);
    assert_int_equal(set, 77);
    assert_int_equal(hl_placement_set_join(&place, id_of(0), 9), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "9"));
    assert_int_equal(hl_placement_set_join(&place, id_of(5), rank), HL_ENOENT);
    assert_int_equal(hl_placement_set_pin(&place, 9, true), HL_ENOENT);
    assert_int_equal(hl_placement_set_look(&place, 9, &view), HL_ENOENT);
    assert_int_equal(hl_placement_set_remove(&place, rank), HL_OK);
    assert_int_equal(hl_placement_set_remove(&place, rank), HL_ENOENT);
}

/* ---- the order of leaving ---- */

enum { SETS_MAX = 24 };

/* Versions 0 and 1 have the sets 10, 11 and 20; each has three shards. */
static struct hl_shard_set three_each[SETS_MAX];
static const struct hl_set_table three = {.sets = three_each, .end = SETS_MAX};

static struct hl_leaving leaves(unsigned shard, uint32_t set, uint32_t version, double order)
{
    return (struct hl_leaving){
        .id = id_of(shard), .shard = shard, .set = set, .version = version, .order = order};
}

static void leave_in_order(const struct hl_leaving *items, size_t count, const unsigned *shards)
{
    struct hl_leaving_list list = {0};
    for (unsigned i = 0; i < SETS_MAX; i++)
        three_each[i].shards = 3;
    for (unsigned round = 0; round < 2; round++) { /* nothing remains of the first round */
        hl_leaving_clear(&list);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(hl_leaving_add(&list, &items[i]), HL_OK);
        assert_int_equal(hl_leaving_order(&list, &three, true), HL_OK);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(hl_leaving_at(&list, i)->shard, shards[i]);
        assert_int_equal(hl_leaving_at(&list, 0)->shard, shards[0]); /* they stay in order */
    }
    hl_leaving_fini(&list);
}

TEST(a_version_leaves_as_a_whole_and_counts_as_the_shard_it_would_keep_longest)
{
    /* by shards alone it would be 0 6 3 4 1 5 2 7 8 */
    struct hl_leaving items[] = {
        leaves(0, 10, 0, 0.2),  leaves(1, 10, 0, 0.4),  leaves(2, 10, 0, 0.6),
        leaves(3, 20, 1, 0.3),  leaves(4, 20, 1, 0.35), leaves(5, 20, 1, 0.5),
        leaves(6, 11, 0, 0.25), leaves(7, 11, 0, 0.7),  leaves(8, 11, 0, 0.8)};
    static const unsigned shards[] = {3, 4, 5, 0, 1, 2, 6, 7, 8};
    leave_in_order(items, 9, shards);
}

TEST(what_is_left_of_a_set_leaves_first_and_what_stays_counts_as_there)
{
    struct hl_leaving items[] = {leaves(0, 10, 0, 0.1),
                                 leaves(1, 10, 0, 0.1),
                                 leaves(2, 10, 0, 0.1),
                                 leaves(3, 20, 1, 0.9),
                                 leaves(4, 20, 1, 0.8), /* the third one does not exist */
                                 leaves(5, HL_SET_NONE, HL_SET_NONE, 0.05),
                                 leaves(6, HL_SET_NONE, HL_SET_NONE, 0.2)};
    items[1].stays = true;
    static const unsigned shards[] = {4, 3, 5, 0, 1, 2, 6};
    leave_in_order(items, 7, shards);
}

/* The same by sorting all of them, with sets and versions computed for each. */
static double longest(const struct hl_leaving *items, size_t count, const struct hl_leaving *of,
                      bool by_version, unsigned *members)
{
    double order = of->order;
    *members = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hl_leaving *x = &items[i];
        bool same = by_version ? x->version == of->version && of->version != HL_SET_NONE
                               : x->set == of->set && of->set != HL_SET_NONE;
        *members += same;
        order = same && x->order > order ? x->order : order;
    }
    return order;
}

static bool is_before(const struct hl_leaving *items, size_t count, const struct hl_leaving *a,
                      const struct hl_leaving *b)
{
    unsigned of_a, of_b, ignored;
    double set_a = longest(items, count, a, false, &of_a);
    double set_b = longest(items, count, b, false, &of_b);
    double version_a = longest(items, count, a, true, &ignored);
    double version_b = longest(items, count, b, true, &ignored);
    bool part_a = a->set != HL_SET_NONE && of_a < 3, part_b = b->set != HL_SET_NONE && of_b < 3;
    if (part_a != part_b)
        return part_a;
    if (version_a != version_b)
        return version_a < version_b;
    if (a->version != b->version)
        return a->version < b->version;
    if (set_a != set_b)
        return set_a < set_b;
    if (a->set != b->set)
        return a->set < b->set;
    return a->order != b->order ? a->order < b->order : a->shard < b->shard;
}

TEST(the_order_is_that_of_a_sort_of_all_however_many_are_asked_for)
{
    enum { COUNT = 40 };

    uint64_t seed = 1;
    for (unsigned round = 0; round < 200; round++) {
        struct hl_leaving items[COUNT];
        unsigned shards[COUNT] = {0}, in_set[SETS_MAX] = {0};
        for (unsigned i = 0; i < COUNT; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            uint32_t set = (uint32_t)(seed >> 40) % (SETS_MAX + 6);
            bool none = set >= SETS_MAX || in_set[set]++ == 3;
            items[i] = leaves(i, none ? HL_SET_NONE : set, none ? HL_SET_NONE : set % 5,
                              (double)(seed >> 33 & 7));
        }
        for (unsigned i = 0; i < COUNT; i++) {
            unsigned at = 0;
            for (unsigned k = 0; k < COUNT; k++)
                at += k != i && is_before(items, COUNT, &items[k], &items[i]);
            shards[at] = i;
        }
        leave_in_order(items, COUNT, shards);
    }
}
