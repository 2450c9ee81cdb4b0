/* What is fetched ahead of gangs follows their plans: moves are ordered, cancelled, ordered
 * elsewhere. None begins: the engine holds them all. */
#include "controller/placement/placement_private.h"
#include "unit/controller/nodes_rig.h"

#include <stdlib.h>
#include <string.h>

static struct planned_gang gangs[2];
static struct planned_rank ranks[2]; /* the only rank of each */
static size_t gang_count;
static char told[160];

static bool gang_starts(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static void each_gang(struct hl_controller *c,
                      void (*visit)(struct hl_controller *c, const struct planned_gang *g))
{
    for (size_t i = 0; i < gang_count; i++)
        visit(c, &gangs[i]);
}

static void tell(struct hl_controller *c, const char *job, const char *kind, const char *text)
{
    (void)c;
    snprintf(told, sizeof(told), "%s %s: %s", job, kind, text);
}

static const struct gang_source source = {.each = each_gang, .tell = tell};

/* One rank reads both shards of the model: pp 0 of 1. */
static void plan(size_t i, const char *job, int attempt, const char *node)
{
    ranks[i] = (struct planned_rank){.node = node};
    gangs[i] = (struct planned_gang){.job = job,
                                     .attempt = attempt,
                                     .model = "tiny",
                                     .version = 1,
                                     .split = {.tp = 1, .pp = 2, .virtual_stages = 1},
                                     .dp_size = 1,
                                     .ranks = &ranks[i],
                                     .rank_count = 1,
                                     .starts = true};
}

static struct hl_api_tier_info l2 = {
    .tier = HL_API_TIER_L2, .name = "host", .kind = "", .quota_bytes = 1 << 20};
static struct hl_api_pool_info pool = {.host_id = "pool"};

static int world_start(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    world_init(w);
    w->c.closing = true; /* no timers: there is no loop */
    w->c.claim.state = CLAIM_OK;
    w->c.copies->pool = &pool;
    for (struct node *n = w->nodes.table; n != NULL; n = n->hh.next) {
        n->info.host_id = "elsewhere";
        n->report.tiers = (struct hl_api_tier_info_list){&l2, 1};
    }
    assert_int_equal(placement_create(&w->c, gang_starts), HL_OK);
    free((char *)w->c.placement->conf.policy);
    w->c.placement->conf.policy = strdup("on");
    placement_node_registered(&w->c, &w->a);
    placement_node_registered(&w->c, &w->b);
    assert_true(follow_all(&w->c, pass_run));
    placement_gangs(&w->c, &source);
    hl_migration_hold(&w->c.placement->moves, UINT8_MAX, placement_now_ms());
    gang_count = 0;
    told[0] = '\0';
    *state = w;
    return 0;
}

static int world_end(void **state)
{
    struct world *w = *state;
    w->c.copies->pool = NULL;
    placement_fini(&w->c);
    world_fini(w);
    free(w);
    return 0;
}

/* Nodes to which the first shard is on its way: "b", "ab"; all moves keep their source. */
static const char *goals(struct world *w)
{
    static char text[64];
    const struct hl_migration *m = &w->c.placement->moves;
    text[0] = '\0';
    for (uint32_t i = 0; i < m->count; i++) {
        const struct hl_move_order *o = &hl_migration_at(m, i)->order;
        assert_true(o->keep_source);
        assert_int_equal(o->priority, PRIORITY_PREFETCH);
        assert_int_equal(o->goal.tier, HL_API_TIER_L2);
        assert_true(
            hl_id_equal(o->shard, w->shard->id)); /* the other shard belongs to the other stage */
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s",
                 placed_node_name(&w->c, o->goal.node));
    }
    return text;
}

TEST_IN(world_start, world_end, shards_travel_to_where_the_gang_is_planned_now)
{
    struct world *w = *state;
    plan(0, "j-1", 1, "b");
    gang_count = 1;
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "b");
    prefetch_run(&w->c); /* in flight */
    assert_string_equal(goals(w), "b");
    plan(0, "j-1", 1, "a");
    prefetch_run(&w->c);
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "a");
    plan(0, "j-1", 2, "b"); /* the next attempt */
    prefetch_run(&w->c);
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "b");
    gang_count = 0; /* it was cancelled */
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "");
}

/* The shard is in L2 of node b, too. */
static void learn_copy(struct world *w)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    copies_learn(&w->c, &w->b,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = HL_API_TIER_L2,
                                       .device = "",
                                       .transport = "",
                                       .size_bytes = w->shard->size_bytes,
                                       .crc32 = w->shard->crc32});
}

TEST_IN(world_start, world_end, what_is_near_or_does_not_fit_stays_where_it_is)
{
    struct world *w = *state;
    gang_count = 1;
    plan(0, "j-1", 1, "b");
    w->b.info.host_id = "pool"; /* where the pool is mapped */
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "");
    w->b.info.host_id = "elsewhere";
    learn_copy(w);
    plan(0, "j-1", 2, "b");
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "");
    plan(0, "j-1", 3, "a");
    l2.used_bytes = l2.quota_bytes - w->shard->size_bytes + 1;
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "");
    l2.used_bytes--;
    plan(0, "j-1", 4, "a");
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "a");
    l2.used_bytes = 0;
}

TEST_IN(world_start, world_end, containers_wait_for_it_as_long_as_they_are_to)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    bool (*may_start)(struct hl_controller *, const char *, int) = placement_gang_watch.may_start;
    plan(0, "j-1", 1, "b");
    gang_count = 1;
    placement_gang_watch.look(&w->c);
    assert_true(may_start(&w->c, "j-1", 1)); /* by default they do not */
    p->conf.prefetch_wait_ms = 60000;
    assert_false(may_start(&w->c, "j-1", 1));
    p->conf.prefetch_wait_ms = 1;
    while (!may_start(&w->c, "j-1", 1))
        ; /* a millisecond passes */
    p->conf.prefetch_wait_ms = 60000;
    assert_false(may_start(&w->c, "j-1", 1));
    assert_true(may_start(&w->c, "j-2", 1)); /* a job that reads no shards */
    learn_copy(w);
    assert_true(may_start(&w->c, "j-1", 1));
}

TEST_IN(world_start, world_end, containers_wait_for_a_controller_that_has_just_started)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    bool (*may_start)(struct hl_controller *, const char *, int) = placement_gang_watch.may_start;
    plan(0, "j-1", 1, "b");
    gang_count = 1;
    p->conf.prefetch_wait_ms = 60000;
    w->c.copies->pool = NULL; /* L3 has not answered yet */
    placement_gang_watch.look(&w->c);
    assert_false(may_start(&w->c, "j-1", 1));
    p->started_ms -= 60000;
    assert_true(may_start(&w->c, "j-1", 1)); /* no longer than they are to */
    p->started_ms += 60000;
    w->c.copies->pool = &pool;
    w->b.lost = true; /* it has not registered yet */
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "");
    assert_false(may_start(&w->c, "j-1", 1));
    w->b.lost = false;
    assert_false(may_start(&w->c, "j-1", 1));
    prefetch_run(&w->c);
    assert_string_equal(goals(w), "b");
    learn_copy(w);
    assert_true(may_start(&w->c, "j-1", 1));
}

TEST_IN(world_start, world_end, how_much_was_near_is_told_once_when_all_containers_run)
{
    struct world *w = *state;
    plan(0, "j-1", 1, "b");
    gang_count = 1;
    prefetch_run(&w->c);
    assert_string_equal(told, "");
    gangs[0].starts = false;
    gangs[0].runs = true;
    prefetch_run(&w->c);
    assert_non_null(strstr(told, "j-1 prefetched: 0 B of 1001 B (0.0%)"));
    told[0] = '\0';
    prefetch_run(&w->c);
    assert_string_equal(told, "");
}

TEST_IN(world_start, world_end, off_and_observe_order_nothing)
{
    struct world *w = *state;
    plan(0, "j-1", 1, "b");
    gang_count = 1;
    static const char *const policies[] = {"off", "observe"};
    for (size_t i = 0; i < HL_ARRAY_LEN(policies); i++) {
        free((char *)w->c.placement->conf.policy);
        w->c.placement->conf.policy = strdup(policies[i]);
        prefetch_run(&w->c);
        prefetch_run(&w->c);
        assert_string_equal(goals(w), "");
    }
}
