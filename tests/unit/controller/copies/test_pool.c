/* What the Controller asks of the pool's daemon: what is freed, trashed and archived, and when. */
#include "controller/copies/copies_private.h"
#include "unit/controller/catalog_rig.h"
#include "unit/controller/l3_stub.h"

static bool is_importing;

static bool importing(const struct hl_controller *c)
{
    (void)c;
    return is_importing;
}

struct world {
    struct l3_stub s;
    struct hl_api_tier_info tiers[2];
    struct hl_api_pool_info pool;
};

/* A pool and an archive that belong to this cluster, and a model with the shards 1 and 2. */
static void world_start(struct world *w)
{
    l3_stub_start(&w->s);
    struct hl_controller *c = &w->s.c;
    is_importing = false;
    assert_int_equal(copies_create(c, importing), HL_OK);
    w->tiers[0] = (struct hl_api_tier_info){.tier = HL_API_TIER_L3};
    w->tiers[1] = (struct hl_api_tier_info){.tier = HL_API_TIER_L4};
    w->pool = (struct hl_api_pool_info){.tiers = {w->tiers, 2},
                                        .archive_mode = HL_API_ARCHIVE_MODE_WRITE_BEHIND};
    c->copies->pool = &w->pool;
    c->copies->sweep_round = 1;
    c->claim.state = CLAIM_OK;
    import_model(&c->catalog, "tiny", 1, "{}");
}

static void world_end(struct world *w)
{
    copies_fini(&w->s.c);
    l3_stub_end(&w->s);
}

static struct hl_id shard_id(int n)
{
    char text[33];
    struct hl_id id;
    snprintf(text, sizeof(text), "%032x", (unsigned)n);
    assert_int_equal(hl_id_parse(text, &id), HL_OK);
    return id;
}

/* ---- free ------------------------------------------------------------------------------------ */

TEST(a_freed_shard_leaves_pool_and_archive)
{
    struct world w;
    world_start(&w);
    const struct hl_id ids[] = {shard_id(7), shard_id(8)};
    pool_free(&w.s.c, ids, 2);
    l3_stub_said(&w.s, "free 07 08 by us\ndrop 07 08 by us\n");
    w.pool.tiers.count = 1; /* there is no archive */
    pool_free(&w.s.c, ids, 1);
    l3_stub_said(&w.s, "free 07 by us\n");
    world_end(&w);
}

TEST(nothing_is_freed_in_a_pool_that_may_be_anothers)
{
    static const enum claim_state states[] = {CLAIM_UNKNOWN, CLAIM_REFUSED};
    struct world w;
    const struct hl_id id = shard_id(7);
    world_start(&w);
    for (size_t i = 0; i < HL_ARRAY_LEN(states); i++) {
        w.s.c.claim.state = states[i];
        pool_free(&w.s.c, &id, 1);
        l3_stub_said(&w.s, "");
    }
    world_end(&w);
}

TEST(what_a_rank_names_is_freed_unless_a_version_has_it)
{
    struct world w;
    world_start(&w);
    const char *ids[] = {"00000000000000000000000000000001", "no id",
                         "00000000000000000000000000000009"};
    pool_free_uncommitted(&w.s.c, &(struct hl_api_text_list){ids, 3});
    l3_stub_said(&w.s, "free 09 by us\ndrop 09 by us\n");
    struct hl_api_shard shards[] = {{.id = ids[2]}, {.id = ids[0]}};
    pool_free_shards(&w.s.c, &(struct hl_api_shard_list){shards, 2});
    l3_stub_said(&w.s, "free 09 by us\ndrop 09 by us\n");
    pool_free_shards(&w.s.c, &(struct hl_api_shard_list){shards + 1, 1});
    l3_stub_said(&w.s, "");
    world_end(&w);
}

/* ---- checksums of archived shards --------------------------------------------------------------
 */

TEST(checksums_that_l3_does_not_know_are_stated)
{
    struct world w;
    world_start(&w);
    struct hl_shard_rec *one = hl_catalog_shard(&w.s.c.catalog, shard_id(1)),
                        *two = hl_catalog_shard(&w.s.c.catalog, shard_id(2));
    one->crc32 = 0x11111111;
    two->crc32 = 0x22222222;
    struct hl_api_extent archived[] = {{.id = "00000000000000000000000000000001"},
                                       {.id = "00000000000000000000000000000002", .crc32 = 5},
                                       {.id = "00000000000000000000000000000009"}};
    const struct hl_api_extent_list page = {archived, 3};
    sweep_state_archived(&w.s.c, &page);
    l3_stub_said(&w.s, "state 01 11111111 by us\nstate 02 22222222 by us\n");
    archived[0].crc32 = one->crc32;
    two->damaged = true; /* nothing is known of it */
    sweep_state_archived(&w.s.c, &page);
    l3_stub_said(&w.s, "");
    two->damaged = false;
    w.s.c.claim.state = CLAIM_REFUSED;
    sweep_state_archived(&w.s.c, &page);
    l3_stub_said(&w.s, "");
    world_end(&w);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* A sweep that finds orphan 9. */
static void sweep(struct world *w, bool pool, bool archive)
{
    struct hl_controller *c = &w->s.c;
    c->copies->sweep_round++;
    if (pool)
        orphan_note(c, shard_id(9), false);
    if (archive)
        orphan_note(c, shard_id(9), true);
    if (c->copies->orphans != NULL)
        c->copies->orphans->seen.since_ns = 1; /* regardless of the clock's resolution */
    orphans_settle(c);
}

TEST(an_orphan_is_freed_by_the_second_sweep_that_sees_it)
{
    struct world w;
    world_start(&w);
    sweep(&w, true, false);
    l3_stub_said(&w.s, "");
    sweep(&w, true, false);
    l3_stub_said(&w.s, "free 09 by us\n");
    assert_null(w.s.c.copies->orphans);
    world_end(&w);
}

TEST(an_archived_orphan_is_trashed_before_it_is_freed)
{
    struct world w;
    world_start(&w);
    sweep(&w, true, true);
    sweep(&w, true, true);
    l3_stub_said(&w.s, "trash 09 by us\nfree 09 by us\n");
    world_end(&w);
}

TEST(an_orphan_that_is_gone_or_committed_meanwhile_is_forgotten)
{
    struct world w;
    world_start(&w);
    sweep(&w, true, false);
    sweep(&w, false, false);
    assert_null(w.s.c.copies->orphans);
    sweep(&w, true, false);
    save_version(&w.s.c.catalog, "tiny", 8, 1, 5000); /* 8 and 9 */
    sweep(&w, true, false);
    assert_null(w.s.c.copies->orphans);
    l3_stub_said(&w.s, "");
    world_end(&w);
}

TEST(no_orphan_is_freed_while_an_import_runs)
{
    struct world w;
    world_start(&w);
    is_importing = true;
    for (int i = 0; i < 3; i++)
        sweep(&w, true, false);
    l3_stub_said(&w.s, "");
    is_importing = false;
    sweep(&w, true, false);
    l3_stub_said(&w.s, "free 09 by us\n");
    world_end(&w);
}

/* ---- write-behind ---------------------------------------------------------------------------- */

TEST(only_write_behind_archives_and_one_batch_at_a_time)
{
    struct world w;
    world_start(&w);
    struct hl_controller *c = &w.s.c;
    w.pool.archive_mode = HL_API_ARCHIVE_MODE_MANUAL;
    archive_write_behind(c);
    l3_stub_said(&w.s, "");
    w.pool.archive_mode = HL_API_ARCHIVE_MODE_WRITE_BEHIND;
    archive_write_behind(c);
    archive_write_behind(c); /* the first is in flight */
    l3_stub_said(&w.s, "archive 01 02\n");
    c->catalog.shards->archived = true; /* as the next sweep finds it */
    archive_write_behind(c);
    l3_stub_said(&w.s, "archive 02\n");
    world_end(&w);
}

TEST(an_archived_batch_asks_for_a_sweep_and_a_failed_one_waits_for_it)
{
    struct world w;
    world_start(&w);
    struct hl_controller *c = &w.s.c;
    c->copies->sweep_ns = 5;
    w.s.refuses = HL_ENOSPC;
    archive_write_behind(c);
    l3_stub_said(&w.s, "archive 01 02\n");
    assert_int_equal(c->copies->sweep_ns, 5);
    assert_true(c->copies->archive_trouble);
    w.s.refuses = HL_OK;
    archive_write_behind(c);
    l3_stub_said(&w.s, "archive 01 02\n");
    assert_int_equal(c->copies->sweep_ns, 0); /* is there anything left? */
    assert_false(c->copies->archive_trouble);
    world_end(&w);
}

static size_t count_of(const char *text, char c)
{
    size_t n = 0;
    for (; *text != '\0'; text++)
        n += *text == c;
    return n;
}

/* Runs a write-behind that fails; returns how many shards it was for. */
static size_t fail_batch(struct world *w, const char *first)
{
    archive_write_behind(&w->s.c);
    l3_stub_run(&w->s);
    assert_memory_equal(w->s.said, first, strlen(first));
    size_t n = count_of(w->s.said, ' ');
    assert_int_equal(count_of(w->s.said, '\n'), 1);
    w->s.said[0] = '\0';
    return n;
}

TEST(shards_that_fail_do_not_keep_others_from_the_archive)
{
    struct world w;
    world_start(&w);
    w.s.refuses = HL_EIO;
    (void)import_parts(&w.s.c.catalog, 3, 298);
    assert_int_equal(fail_batch(&w, "archive 01 02 03 "), 256);
    assert_int_equal(fail_batch(&w, "archive 01 02 03 "), 44); /* from 0x101 on */
    assert_int_equal(fail_batch(&w, "archive 01 02 03 "), 256);
    /* Nothing follows the last batch: the search begins again. */
    for (struct hl_shard_rec *s = w.s.c.catalog.shards; s != NULL; s = s->hh.next)
        s->archived = !hl_id_equal(s->id, shard_id(1));
    assert_int_equal(fail_batch(&w, "archive 01\n"), 1);
    world_end(&w);
}
