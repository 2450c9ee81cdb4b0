/* What becomes of stored shards that nobody knows, and of known ones that are not stored. */
#include "support/test.h"

#include <string.h>

#include "core/catalog.h"
#include "core/sweep.h"

#define GRACE 1000
#define ROUND 7

/* A catalogue of one model with one version. */
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

/* Seen first in an earlier round, last in this one, 500 ns and 50 ms ago. */
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
    /* begun after the orphan was seen: it can't be its */
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5001)),
        HL_ORPHAN_FREED);
    assert_int_equal(
        hl_sweep_orphan(&orphan, false, &s, with_version(&w, HL_API_VERSION_STATE_OPEN, 5000)),
        HL_ORPHAN_WAITS);
    /* begun in the future: the wall clock was set back, and nobody knows */
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

TEST(two_misses_are_a_loss_unless_there_is_a_copy)
{
    assert_int_equal(hl_sweep_missed(1, ROUND, ROUND), 0);
    assert_int_equal(hl_sweep_missed(1, ROUND - 1, ROUND), 2);
    assert_false(hl_sweep_is_lost(1, false));
    assert_true(hl_sweep_is_lost(2, false));
    assert_false(hl_sweep_is_lost(2, true));
}

TEST(open_versions_are_found)
{
    struct world w;
    assert_false(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_VISIBLE, 1)));
    assert_false(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_FAILED, 1)));
    assert_true(hl_sweep_has_open_version(with_version(&w, HL_API_VERSION_STATE_OPEN, 1)));
}
