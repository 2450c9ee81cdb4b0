/* The table of copies: what the Agents' inventories report, and where a shard can be read. */
#include "base/clock.h"
#include "os/loop.h"
#include "unit/controller/nodes_rig.h"

#include <string.h>
#include <utlist.h>

static void learn_bytes(struct world *w, struct node *n, uint64_t size, uint32_t crc32)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    copies_learn(&w->c, n,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = HL_API_TIER_L2,
                                       .device = "",
                                       .transport = "",
                                       .size_bytes = size,
                                       .crc32 = crc32});
}

/* A node reports a copy of shard 1. */
static void learn(struct world *w, struct node *n, enum hl_api_tier tier, const char *device)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    copies_learn(&w->c, n,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = tier,
                                       .device = device,
                                       .transport = "",
                                       .size_bytes = w->shard->size_bytes,
                                       .crc32 = w->shard->crc32,
                                       .numa_id = 3});
}

/* Where it can be read, "L3 L2/a L1/a:emu:0". */
static void places(struct world *w, enum hl_api_tier at_least, const char *expected)
{
    struct place list[8];
    char text[200] = "";
    size_t n = copies_places(&w->c, w->shard->id, at_least, list, HL_ARRAY_LEN(list)), at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct place *p = &list[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s%s%s%s%s", i > 0 ? " " : "",
                               hl_api_tier_name(p->tier), p->node != NULL ? "/" : "",
                               p->node != NULL ? p->node->name : "",
                               p->device[0] != '\0' ? ":" : "", p->device);
    }
    assert_string_equal(text, expected);
}

TEST(each_tier_and_device_of_a_node_has_its_own_copy)
{
    struct world w;
    world_init(&w);
    learn(&w, &w.a, HL_API_TIER_L2, "");
    learn(&w, &w.a, HL_API_TIER_L1, "emu:0");
    learn(&w, &w.a, HL_API_TIER_L1, "emu:1");
    learn(&w, &w.b, HL_API_TIER_L2, "");
    learn(&w, &w.a, HL_API_TIER_L2, ""); /* repeated */
    places(&w, HL_API_TIER_L1, "L3 L2/a L1/a:emu:0 L1/a:emu:1 L2/b");
    places(&w, HL_API_TIER_L2, "L3 L2/a L2/b"); /* a device drops it */
    copies_forget(&w.c, &w.a, w.shard->id, HL_API_TIER_L1, "emu:0");
    places(&w, HL_API_TIER_L1, "L3 L2/a L1/a:emu:1 L2/b");
    copies_forget(&w.c, &w.a, w.shard->id, HL_API_TIER_L1, ""); /* any device */
    copies_forget_node(&w.c, &w.b);
    places(&w, HL_API_TIER_L1, "L3 L2/a");
    world_fini(&w);
}

TEST(what_a_node_can_not_have_or_a_forgotten_one_tells_is_not_learned)
{
    struct world w;
    world_init(&w);
    learn(&w, &w.a, HL_API_TIER_L3, "");
    learn(&w, &w.a, HL_API_TIER_UNSAID, "");
    w.b.gone = true;
    learn(&w, &w.b, HL_API_TIER_L2, "");
    places(&w, HL_API_TIER_L1, "L3");
    assert_null(w.c.copies->holdings);
    world_fini(&w);
}

TEST(a_copy_that_goes_or_whose_node_is_away_is_not_read)
{
    struct world w;
    world_init(&w);
    learn(&w, &w.a, HL_API_TIER_L2, "");
    learn(&w, &w.b, HL_API_TIER_L2, "");
    const struct place at_a = {.tier = HL_API_TIER_L2, .node = &w.a};
    copies_dropping(&w.c, &at_a, w.shard->id, true);
    places(&w, HL_API_TIER_L1, "L3 L2/b");
    learn(&w, &w.a, HL_API_TIER_L2, ""); /* from an inventory that was begun before the drop */
    places(&w, HL_API_TIER_L1, "L3 L2/b");
    copies_dropping(&w.c, &at_a, w.shard->id, false);
    w.b.lost = true;
    places(&w, HL_API_TIER_L1, "L3 L2/a");
    world_fini(&w);
}

TEST(of_two_holders_of_other_bytes_under_one_id_only_the_catalogues_is_used)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct world w;
    world_init(&w);
    const struct hl_shard_rec *s = w.shard;
    learn(&w, &w.a, HL_API_TIER_L2, "");
    learn_bytes(&w, &w.b, s->size_bytes, s->crc32 ^ 1);
    places(&w, HL_API_TIER_L1, "L3 L2/a");
    assert_int_equal(copies_shard(&w.c, s, &arena).copies.count, 2);
    learn_bytes(&w, &w.b, s->size_bytes + 1, s->crc32);
    places(&w, HL_API_TIER_L1, "L3 L2/a");
    learn_bytes(&w, &w.b, s->size_bytes, s->crc32); /* it has the right ones now */
    places(&w, HL_API_TIER_L1, "L3 L2/a L2/b");
    assert_int_equal(copies_shard(&w.c, s, &arena).copies.count, 3);
    learn_bytes(&w, &w.a, 0, 0); /* and the other has not */
    places(&w, HL_API_TIER_L1, "L3 L2/b");
    world_fini(&w);
}

static void on_confirmed(void *arg, hl_status st, const char *text,
                         const struct confirmed_copy *copies, size_t count)
{
    (void)arg;
    (void)text;
    (void)copies;
    fail_msg("answered with %s and %zu copies", hl_status_text(st), count);
}

TEST(where_nobody_can_be_asked_for_a_copy_the_question_fails)
{
    struct world w;
    world_init(&w);
    hl_sweep_dropped(w.shard, HL_API_TIER_L3);
    places(&w, HL_API_TIER_L1, "");
    assert_int_equal(copies_confirm(&w.c, w.shard->id, NULL, 0, on_confirmed, NULL), HL_EUNAVAIL);
    world_fini(&w);
}

/* How many holdings each tick still checks, because the catalogue does not know them. */
static int unsettled(struct world *w)
{
    const struct holding *h;
    int n = 0;
    copies_tick(&w->c);
    DL_COUNT(w->c.copies->unsettled, h, n);
    return n;
}

TEST(only_copies_that_the_catalogue_does_not_know_are_looked_at_again)
{
    struct world w;
    struct hl_model_rec *m;
    world_init(&w);
    w.a.lost = w.b.lost = true; /* no drop is ordered, no inventory requested */
    struct hl_shard_rec later = {.id = {0, 9}}, *known = w.shard;
    learn(&w, &w.a, HL_API_TIER_L2, "");
    assert_int_equal(unsettled(&w), 0);
    w.shard = &later; /* belongs to a version that is being written */
    learn(&w, &w.a, HL_API_TIER_L2, "");
    assert_int_equal(unsettled(&w), 1);
    learn(&w, &w.b, HL_API_TIER_L2, "");
    assert_int_equal(unsettled(&w), 1);
    import_model(&w.c.catalog, "other", 9, "{}");
    assert_int_equal(unsettled(&w), 0);
    struct hl_id known_id = known->id;
    HL_AUTO(hl_freep) struct hl_id *ids = NULL;
    size_t count = 0;
    uint64_t bytes = 0;
    assert_int_equal(hl_catalog_model(&w.c.catalog, "tiny", &m), HL_OK);
    assert_int_equal(
        hl_catalog_remove(&w.c.catalog, m, -1, keep_nothing, NULL, &ids, &count, &bytes), HL_OK);
    assert_int_equal(unsettled(&w), 1);
    copies_remove(&w.c, known_id);
    copies_forget(&w.c, &w.a, known_id, HL_API_TIER_L2, "");
    assert_int_equal(unsettled(&w), 0);
    copies_remove(&w.c, later.id); /* before the catalogue drops it */
    assert_int_equal(unsettled(&w), 0);
    world_fini(&w);
}

enum { MANY = 10000, TURN_MAX = 4096 };

/* Node n reports it in an inventory. */
static void learn_id(struct world *w, struct node *n, uint64_t number)
{
    const struct hl_id_text id = hl_id_format((struct hl_id){7, number});
    copies_learn(&w->c, n,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = HL_API_TIER_L2,
                                       .device = "",
                                       .transport = "",
                                       .size_bytes = 1,
                                       .crc32 = 1});
}

static unsigned holdings(const struct world *w)
{
    return HASH_COUNT(w->c.copies->holdings);
}

static void stop_when_listed(void *arg)
{
    struct world *w = arg;
    if (w->a.store.listed && w->b.store.listed)
        hl_loop_stop(w->c.opts.loop);
}

/* Its inventory begins; an earlier one has reported MANY copies. */
static void begin_list(struct node *n)
{
    n->store.listing = true;
    n->store.list_round++;
}

TEST(what_an_inventory_lacks_is_looked_for_in_turns)
{
    struct world w;
    struct hl_timer *look;
    world_init(&w);
    assert_int_equal(hl_loop_create(&w.c.opts.loop), HL_OK);
    hl_listening_init(&w.c.listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    for (unsigned i = 0; i < MANY; i++) {
        learn_id(&w, &w.a, i);
        learn_id(&w, &w.b, i + MANY / 2);
    }
    assert_int_equal(holdings(&w), MANY + MANY / 2);
    begin_list(&w.a);
    learn_id(&w, &w.a, MANY - 1); /* all it has now */
    copies_listed(&w.c, &w.a);
    assert_in_range(holdings(&w), MANY + MANY / 2 - TURN_MAX, MANY + MANY / 2 - 1);
    assert_true(w.a.store.listing); /* no other inventory begins before */
    begin_list(&w.b);               /* b's own inventory ends in the middle of that, and is empty */
    copies_listed(&w.c, &w.b);
    copies_forget(&w.c, &w.a, w.c.copies->prune->id, HL_API_TIER_L2,
                  ""); /* the next one is dropped */
    copies_forget(&w.c, &w.b, w.c.copies->prune->id, HL_API_TIER_L2, "");
    learn_id(&w, &w.b, 3 * MANY); /* just created */
    assert_int_equal(hl_timer_create(w.c.opts.loop, 1, 1, stop_when_listed, &w, &look), HL_OK);
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    hl_timer_destroy(look);
    assert_int_equal(holdings(&w), 2);
    assert_false(w.a.store.listing || w.b.store.listing);
    copies_end_walks(&w.c);
    hl_loop_destroy(w.c.opts.loop);
    world_fini(&w);
}

static unsigned lost_of(const struct hl_version_rec *v)
{
    unsigned n = 0;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->lost;
    return n;
}

static void stop_when_swept(void *arg)
{
    struct world *w = arg;
    if (!w->c.copies->sweeping)
        hl_loop_stop(w->c.opts.loop);
}

TEST(what_a_sweep_has_not_found_is_settled_in_turns)
{
    struct world w;
    struct hl_timer *look;
    world_init(&w);
    assert_int_equal(hl_loop_create(&w.c.opts.loop), HL_OK);
    hl_listening_init(&w.c.listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    w.a.store.listed = w.b.store.listed = true;
    const struct hl_version_rec *v = import_parts(&w.c.catalog, 100, MANY);
    for (size_t i = 0; i < v->shard_count; i++)
        v->shards[i]->missed = 1; /* missed in the previous round */
    v->shards[MANY - 1]->seen_round = w.c.copies->sweep_round = 2;
    w.c.copies->sweeping = true;
    sweep_settle(&w.c);
    assert_in_range(lost_of(v), TURN_MAX - 2, TURN_MAX); /* the rig has two others */
    assert_true(w.c.copies->sweeping);
    const struct hl_shard_rec *next = w.c.copies->settle;
    copies_shard_leaves(&w.c, next); /* it is skipped */
    assert_int_equal(hl_timer_create(w.c.opts.loop, 1, 1, stop_when_swept, &w, &look), HL_OK);
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    hl_timer_destroy(look);
    assert_int_equal(lost_of(v), MANY - 2);
    assert_false(next->lost || v->shards[MANY - 1]->lost);
    copies_end_walks(&w.c);
    hl_loop_destroy(w.c.opts.loop);
    world_fini(&w);
}

TEST(a_shard_is_lost_when_nothing_that_can_be_read_has_it)
{
    static const struct {
        unsigned missed;
        bool archived, at_node, lost;
        enum hl_api_shard_state state;
        enum hl_api_tier location;
        size_t copies;
    } rows[] = {
        {0, false, false, false, HL_API_SHARD_STATE_SEALED, HL_API_TIER_L3, 1},
        {1, true, false, false, HL_API_SHARD_STATE_SEALED, HL_API_TIER_L3, 2},
        {2, true, false, true, HL_API_SHARD_STATE_SEALED, HL_API_TIER_L4, 1},
        {2, false, true, true, HL_API_SHARD_STATE_SEALED, HL_API_TIER_L2, 1},
        {2, false, false, true, HL_API_SHARD_STATE_LOST, HL_API_TIER_L3, 0},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct world w;
        world_init(&w);
        w.shard->missed = rows[i].missed;
        w.shard->archived = rows[i].archived;
        w.shard->lost = rows[i].lost; /* as of the last sweep; a node may have reported it since */
        if (rows[i].at_node)
            learn(&w, &w.a, HL_API_TIER_L2, "");
        const struct hl_api_shard shard = copies_shard(&w.c, w.shard, &arena);
        assert_int_equal(shard.state, rows[i].state);
        assert_int_equal(shard.copies.count, rows[i].copies);
        if (rows[i].copies > 0)
            assert_int_equal(shard.location, rows[i].location);
        world_fini(&w);
    }
}

TEST(a_lost_shard_is_gone_only_where_nobody_who_is_away_could_have_it)
{
    struct hl_api_pool_info pool = {.host_id = "pool"};
    struct world w;
    world_init(&w);
    w.a.info.host_id = "a";
    w.shard->missed = 2;
    w.a.store.listed = w.b.store.listed = true;
    w.c.copies->pool = &pool;
    assert_false(copies_shard_is_gone(&w.c, w.shard)); /* no sweep has found that */
    w.shard->lost = true;
    assert_true(copies_shard_is_gone(&w.c, w.shard));
    w.c.copies->pool = NULL; /* L3 restarts */
    assert_false(copies_shard_is_gone(&w.c, w.shard));
    w.c.copies->pool = &pool;
    w.a.store.listed = false; /* the Agent of a has restarted */
    assert_false(copies_shard_is_gone(&w.c, w.shard));
    w.a.store.listed = true;
    snprintf(w.a.incarnation, sizeof(w.a.incarnation), "%s", ""); /* the Controller has restarted */
    assert_false(copies_shard_is_gone(&w.c, w.shard));
    w.a.lost = true; /* and no longer waits for a, which had reported its copies before */
    assert_true(copies_shard_is_gone(&w.c, w.shard));
    w.a.store.listed = false; /* and this one had not: it was killed while the Controller started */
    assert_false(copies_shard_is_gone(&w.c, w.shard));
    w.a.lost = false;
    w.a.store.listed = true;
    snprintf(w.a.incarnation, sizeof(w.a.incarnation), "boot-1");
    learn(&w, &w.a, HL_API_TIER_L2, "");
    assert_false(w.shard->lost); /* whatever the last sweep found */
    assert_true(w.c.slots_changed);
    w.shard->lost = w.a.lost = true; /* by the next one */
    places(&w, HL_API_TIER_L1, "");
    assert_false(copies_shard_is_gone(&w.c, w.shard)); /* a is silent, and may come back */
    copies_forget(&w.c, &w.a, w.shard->id, HL_API_TIER_L2, "");
    assert_true(copies_shard_is_gone(&w.c, w.shard));
    w.c.copies->pool = NULL;
    world_fini(&w);
}
