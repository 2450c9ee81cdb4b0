/* The table of copies: what the Agents' inventories tell, and where a shard can be read. */
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

/* A node tells of a copy of shard 1. */
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
    learn(&w, &w.a, HL_API_TIER_L2, ""); /* the same again */
    places(&w, HL_API_TIER_L1, "L3 L2/a L1/a:emu:0 L1/a:emu:1 L2/b");
    places(&w, HL_API_TIER_L2, "L3 L2/a L2/b"); /* a device forgets */
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
    learn(&w, &w.a, HL_API_TIER_L2, ""); /* an inventory that was begun before the drop */
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

/* How many holdings each tick still looks at, because the catalogue does not know them. */
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
    w.a.lost = w.b.lost = true; /* no drop is ordered, no inventory asked for */
    struct hl_shard_rec later = {.id = {0, 9}}, *known = w.shard;
    learn(&w, &w.a, HL_API_TIER_L2, "");
    assert_int_equal(unsettled(&w), 0);
    w.shard = &later; /* of a version that is being written */
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
        w.shard->lost = rows[i].lost; /* as the last sweep said; a node may have told since */
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
