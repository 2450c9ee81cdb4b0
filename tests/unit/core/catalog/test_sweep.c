/* What happens to stored shards that the catalogue does not know, and to known ones that are not
 * stored. */
#include "support/test.h"

#include <string.h>

#include "core/catalog/catalog.h"
#include "core/catalog/sweep.h"

#define GRACE 1000
#define ROUND 7

/* A catalogue with one model with one version. */
struct world {
    struct hl_catalog catalog;
    struct hl_model_rec model;
    struct hl_version_rec version;
};

static struct hl_catalog *with_version(struct world *w, enum hl_api_version_state state,
                                       int64_t created_ms)
{
    memset(w, 0, sizeof(*w));
    w->version.state = state;
    w->version.created_ms = created_ms;
    w->model.versions = &w->version;
    w->catalog.models = &w->model;
    return &w->catalog;
}

/* First seen in an earlier round, last in this one, 500 ns and 50 ms ago. */
static const struct hl_orphan orphan = {
    .since_ns = 500, .since_ms = 5000, .first_round = ROUND - 1, .round = ROUND};
static const struct hl_sweep sweep = {
    .round = ROUND, .now_ns = 1000, .now_ms = 5050, .grace_ns = GRACE};

TEST(nobodys_shard_goes_after_two_rounds)
{
    struct world w;
    struct hl_orphan o = orphan;
    struct hl_catalog *none = with_version(&w, HL_API_VERSION_STATE_VISIBLE, 1);
    assert_int_equal(hl_sweep_orphan(&o, false, &sweep, none), HL_ORPHAN_FREED);
    o.first_round = ROUND; /* its import may have ended while the pages were read */
    assert_int_equal(hl_sweep_orphan(&o, false, &sweep, none), HL_ORPHAN_WAITS);
}

TEST(what_is_known_or_gone_is_no_orphan)
{
    struct world w;
    struct hl_orphan o = orphan;
    struct hl_catalog *none = with_version(&w, HL_API_VERSION_STATE_VISIBLE, 1);
    assert_int_equal(hl_sweep_orphan(&o, true, &sweep, none), HL_ORPHAN_FORGOTTEN);
    o.round = ROUND - 1;
    assert_int_equal(hl_sweep_orphan(&o, false, &sweep, none), HL_ORPHAN_FORGOTTEN);
}

TEST(while_an_import_runs_everything_waits)
{
    struct world w;
    struct hl_sweep s = sweep;
    s.importing = true;
    s.now_ns = UINT64_MAX;
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_VISIBLE, 1)),
        HL_ORPHAN_WAITS);
}

TEST(an_open_version_keeps_what_came_after_it_began)
{
    struct world w;
    struct hl_sweep s = sweep;
    s.now_ns = 500 + GRACE; /* just past the grace */
    /* begun after the orphan was seen: it can't belong to it */
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5001)),
        HL_ORPHAN_FREED);
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5000)),
        HL_ORPHAN_WAITS);
    /* begun in the future: the wall clock was set back, so the order is unknown */
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5051)),
        HL_ORPHAN_WAITS);
    /* within the grace it waits for any open version */
    s.now_ns = 500 + GRACE - 1;
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5001)),
        HL_ORPHAN_WAITS);
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_FAILED, 1)),
        HL_ORPHAN_FREED);
}

TEST(an_orphan_is_as_old_as_its_first_sight_and_archived_as_its_last)
{
    struct hl_orphan o = {0};
    struct hl_sweep s = {.round = 3, .now_ns = 70, .now_ms = 700};
    hl_orphan_see(&o, &s, true);
    hl_orphan_see(&o, &s, false); /* the pool has it, too */
    assert_true(o.archived);
    s = (struct hl_sweep){.round = 4, .now_ns = 90, .now_ms = 900};
    hl_orphan_see(&o, &s, false);
    assert_false(o.archived); /* it has left the archive */
    assert_int_equal(o.round, 4);
    assert_int_equal(o.first_round, 3);
    assert_int_equal(o.since_ns, 70);
    assert_int_equal(o.since_ms, 700);
}

TEST(a_nodes_copy_that_nobody_knows_waits_for_a_save_that_may_be_its)
{
    static const struct {
        bool removed, has_open;
        uint64_t age_ns;
        bool goes;
    } rows[] = {
        {true, true, 0, true}, /* no save can need it */
        {false, false, 1999999999, false},
        {false, false, 2000000000, true},
        {false, true, 9999999999, false},
        {false, true, 10000000000, true},
    };
    const struct hl_sweep s = {.now_ns = 20000000000, .grace_ns = 10000000000};
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(
            hl_sweep_copy_goes(rows[i].removed, s.now_ns - rows[i].age_ns, rows[i].has_open, &s),
            rows[i].goes);
}

/* Successive sweeps: where a shard was seen, whether another tier has a copy, and the result. */
TEST(a_shard_is_lost_by_two_misses_and_found_by_one_sight)
{
    static const struct {
        bool pool, archive, copies;
        enum hl_sweep_turn turn;
        bool lost, pooled;
    } rounds[] = {
        {true, false, true, HL_SWEEP_SAME, false, true},
        {false, false, false, HL_SWEEP_SAME, false, true}, /* committed while it was read? */
        {false, false, true, HL_SWEEP_SAME, false, false}, /* a node has it */
        {false, false, false, HL_SWEEP_LOST, true, false},
        {false, false, false, HL_SWEEP_SAME, true, false}, /* already reported */
        {false, true, true, HL_SWEEP_FOUND, false, false},
        {false, false, false, HL_SWEEP_LOST, true, false},
        {true, false, true, HL_SWEEP_FOUND, false, true},
    };
    struct hl_shard_rec s = {0};
    for (unsigned i = 0; i < HL_ARRAY_LEN(rounds); i++) {
        unsigned round = i + 1;
        s.seen_round = rounds[i].pool ? round : s.seen_round;
        s.archive_round = rounds[i].archive ? round : s.archive_round;
        (void)hl_sweep_count(&s, round);
        assert_int_equal(s.archived, rounds[i].archive);
        assert_int_equal(hl_sweep_settle(&s, rounds[i].copies), rounds[i].turn);
        assert_int_equal(s.lost, rounds[i].lost);
        assert_int_equal(hl_shard_is_pooled(&s), rounds[i].pooled);
    }
}

/* The inventory of a running sweep can be older than what was done meanwhile. */
TEST(a_copy_made_while_a_sweep_runs_is_not_missed_by_it)
{
    static const enum hl_api_tier tiers[] = {HL_API_TIER_L3, HL_API_TIER_L4};

    for (size_t i = 0; i < HL_ARRAY_LEN(tiers); i++) {
        struct hl_shard_rec s = {.missed = 2, .lost = true};
        bool pool = tiers[i] == HL_API_TIER_L3;
        hl_sweep_made(&s, tiers[i], 7);
        assert_false(s.lost);
        (void)hl_sweep_count(&s, 7);
        assert_int_equal(hl_sweep_settle(&s, false), pool ? HL_SWEEP_SAME : HL_SWEEP_LOST);
        assert_int_equal(hl_shard_is_pooled(&s), pool);
        assert_int_equal(s.archived, !pool);
        (void)hl_sweep_count(&s, 8); /* its inventory is younger */
        (void)hl_sweep_count(&s, 9);
        assert_false(hl_shard_is_pooled(&s) || s.archived);
    }
}

TEST(a_copy_dropped_while_a_sweep_runs_is_not_seen_by_it)
{
    struct hl_shard_rec s = {.seen_round = 7, .archive_round = 7, .archived = true};
    hl_sweep_dropped(&s, HL_API_TIER_L4);
    (void)hl_sweep_count(&s, 7);
    assert_true(hl_shard_is_pooled(&s));
    assert_false(s.archived);
    hl_sweep_dropped(&s, HL_API_TIER_L3);
    (void)hl_sweep_count(&s, 7);
    assert_false(hl_shard_is_pooled(&s));
}

TEST(a_sweep_says_where_a_shard_is_found_elsewhere_than_before)
{
    static const struct {
        bool pool, archive, says;
    } rounds[] = {
        {true, true, false},  /* it is still read from the pool */
        {false, true, false}, /* one miss does not change that */
        {false, true, true},  /* from the archive now */
        {false, false, true}, /* from nowhere */
        {false, false, false}, {true, false, true},
    };
    struct hl_shard_rec s = {0};
    for (unsigned i = 0; i < HL_ARRAY_LEN(rounds); i++) {
        unsigned round = i + 1;
        s.seen_round = rounds[i].pool ? round : s.seen_round;
        s.archive_round = rounds[i].archive ? round : s.archive_round;
        assert_int_equal(hl_sweep_count(&s, round), rounds[i].says);
    }
}

TEST(a_cuts_shard_is_lost_in_silence_and_found_aloud)
{
    struct hl_cut_rec cut = {0};
    struct hl_shard_rec s = {.cut = &cut, .missed = 2};
    assert_int_equal(hl_sweep_settle(&s, false), HL_SWEEP_SAME);
    assert_true(s.lost);
    assert_int_equal(hl_sweep_settle(&s, true), HL_SWEEP_FOUND);
}

/* A sweep between the report of a damaged shard and the drop of its cut does not restore the
 * shard. */
TEST(a_cuts_unusable_shard_stays_lost_though_the_pool_has_it)
{
    struct hl_cut_rec cut = {0};
    struct hl_shard_rec s = {.cut = &cut, .lost = true, .unusable = true};
    s.seen_round = 1;
    hl_sweep_count(&s, 1);
    assert_int_equal(hl_sweep_settle(&s, true), HL_SWEEP_SAME);
    assert_true(s.lost);
}

TEST(what_leaves_the_pool_on_order_is_not_read_there)
{
    struct hl_shard_rec s = {.dropping = true};
    assert_false(hl_shard_is_pooled(&s));
    s = (struct hl_shard_rec){.missed = 1};
    assert_true(hl_shard_is_pooled(&s));
}

TEST(write_behind_takes_what_is_visible_pooled_and_not_archived)
{
    struct hl_cut_rec cut = {0};
    struct hl_version_rec visible = {.state = HL_API_VERSION_STATE_VISIBLE},
                          open = {.state = HL_API_VERSION_STATE_OPEN},
                          failed = {.state = HL_API_VERSION_STATE_FAILED};

    const struct {
        struct hl_shard_rec s;
        bool taken;
    } rows[] = {
        {{.version = &visible}, true},
        {{.version = &open}, false}, /* it may still be abandoned */
        {{.version = &failed}, false},
        {{.version = &visible, .archived = true}, false},
        {{.version = &visible, .dropping = true}, false},
        {{.version = &visible, .missed = 1}, false}, /* there may be nothing to take */
        {{.version = &visible, .cut = &cut}, false}, /* it can be cut again */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_sweep_archives(&rows[i].s), rows[i].taken);
}

TEST(every_place_of_a_manifest)
{
    /* by wanted, pool, archive: each in this round or not */
    static const enum hl_manifest_fate fates[2][2][2] = {
        {{HL_MANIFEST_GONE, HL_MANIFEST_ORPHAN}, {HL_MANIFEST_ORPHAN, HL_MANIFEST_ORPHAN}},
        {{HL_MANIFEST_MISSING, HL_MANIFEST_KEPT}, {HL_MANIFEST_POOLED, HL_MANIFEST_KEPT}},
    };

    for (unsigned n = 0; n < 8; n++) {
        unsigned wanted = n >> 2, pool = n >> 1 & 1, archive = n & 1;
        struct hl_manifest_seen seen = {
            .pool = ROUND - 1 + pool, .archive = ROUND - 1 + archive, .wanted = ROUND - 1 + wanted};
        assert_int_equal(hl_sweep_manifest(&seen, ROUND), fates[wanted][pool][archive]);
    }
}

TEST(open_versions_are_found)
{
    struct world w;
    assert_false(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_VISIBLE, 1)));
    assert_false(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_FAILED, 1)));
    assert_true(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_OPEN, 1)));
}
