/* A pass over the line with the planner on a real cluster: what it takes, lends and keeps. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/queue/slots.h"

#define GANGS 4

/* Servers of two slots; gangs of one slot per container. */
struct world {
    struct hl_cluster cluster;
    struct hl_job jobs[GANGS];
    struct hl_plan *held[GANGS];
    struct hl_queue_slots slots;
    struct hl_queue_planner planner;
};

static hl_status plan_gang(void *arg, int gang, struct hl_plan **out)
{
    struct world *w = arg;
    return hl_plan_make(&w->jobs[gang], &w->cluster, out);
}

static const struct hl_plan *held_plan(void *arg, int gang)
{
    struct world *w = arg;
    return w->held[gang];
}

static void add_server(struct world *w, const char *name)
{
    struct hl_api_slot slots[2] = {{.numa_id = 0, .cpus = "0-3"}, {.numa_id = 1, .cpus = "4-7"}};
    const struct hl_api_node_info info = {.name = name, .rank_address = name, .slots = {slots, 2}};
    assert_int_equal(hl_cluster_put(&w->cluster, &info), HL_OK);
}

static void start(struct world *w, int servers, const int *sizes)
{
    static char name[] = "j";
    *w = (struct world){0};
    for (int i = 0; i < servers; i++) {
        char server[32];
        snprintf(server, sizeof(server), "node-%d", i);
        add_server(w, server);
    }
    for (int i = 0; i < GANGS; i++)
        w->jobs[i] = (struct hl_job){.name = name,
                                     .gpus_per_rank = -1,
                                     .ranks_per_slot = 1,
                                     .ep = 1,
                                     .etp = sizes[i],
                                     .grid = {.pp = 1, .tp = sizes[i], .dp = 1}};
    const struct hl_queue_slots_opts opts = {
        .cluster = &w->cluster, .count = GANGS, .arg = w, .plan = plan_gang, .held = held_plan};
    assert_int_equal(hl_queue_slots_init(&w->slots, &opts, &w->planner), HL_OK);
}

static void finish(struct world *w)
{
    hl_queue_slots_fini(&w->slots);
    for (int i = 0; i < GANGS; i++)
        hl_plan_free(w->held[i]);
    hl_cluster_fini(&w->cluster);
}

static bool fits(struct world *w, int gang)
{
    bool yes = false;
    assert_int_equal(w->planner.fit(w->planner.ctx, gang, &yes), HL_OK);
    return yes;
}

static int busy(const struct world *w)
{
    int n = 0;
    for (size_t i = 0; i < w->cluster.count; i++)
        for (int k = 0; k < w->cluster.nodes[i].slot_count; k++)
            n += w->cluster.nodes[i].slots[k].busy;
    return n;
}

TEST(a_gang_gets_the_place_that_was_found_or_none)
{
    struct world w;
    start(&w, 2, (int[]){2, 2, 1, 1});
    assert_true(fits(&w, 0));
    hl_cluster_set_draining(&w.cluster, "node-1",
                            true); /* the answer is for another state of the cluster */
    assert_int_equal(w.planner.take(w.planner.ctx, 0), HL_EBUSY);
    assert_int_equal(busy(&w), 0);
    assert_true(fits(&w, 0));
    assert_int_equal(w.planner.take(w.planner.ctx, 0), HL_OK);
    assert_int_equal(busy(&w), 2);
    assert_false(fits(&w, 1));
    finish(&w);
}

TEST(what_nobody_takes_over_is_free_again)
{
    struct world w;
    start(&w, 2, (int[]){2, 2, 1, 1});
    for (int i = 0; i < 2; i++) {
        assert_true(fits(&w, i));
        assert_int_equal(w.planner.take(w.planner.ctx, i), HL_OK);
    }
    struct hl_plan *plan = hl_queue_slots_plan(&w.slots, 0);
    assert_string_equal(plan->containers[1].node, "node-0");
    assert_null(hl_queue_slots_plan(&w.slots, 2)); /* it does not start */
    hl_queue_slots_fini(&w.slots);
    assert_int_equal(busy(&w), 2);
    assert_true(hl_cluster_find(&w.cluster, "node-0")->slots[0].busy);
    hl_plan_free(plan);
    finish(&w);
}

/* Gang 1 holds node-0. With its slots lent, gang 0 gets node-0 and node-1, which are then kept for
 * it, also when they are lent again. */
TEST(kept_slots_are_no_others_while_reservations_are_on)
{
    struct world w;
    start(&w, 2, (int[]){4, 2, 1, 2});
    assert_int_equal(hl_plan_make(&w.jobs[1], &w.cluster, &w.held[1]), HL_OK);
    assert_int_equal(hl_plan_commit(w.held[1], &w.cluster), HL_OK);
    assert_false(fits(&w, 0));
    w.planner.lend(w.planner.ctx, 1, true);
    assert_true(fits(&w, 0));
    w.planner.lend(w.planner.ctx, 1, false);
    assert_int_equal(w.planner.reserve(w.planner.ctx, 0, false), HL_OK);
    assert_false(fits(&w, 2));
    w.planner.lend(w.planner.ctx, 1, true); /* a reserved slot is not lent */
    assert_false(fits(&w, 2));
    w.planner.lend(w.planner.ctx, 1, false);
    w.planner.reservations(w.planner.ctx, false);
    assert_true(fits(&w, 2)); /* node-1 is free till then */
    assert_int_equal(w.planner.take(w.planner.ctx, 2), HL_OK);
    w.planner.reservations(w.planner.ctx, true);
    assert_int_equal(busy(&w), 4);
    hl_queue_slots_end(&w.slots);
    assert_int_equal(busy(&w), 3); /* those of gang 1, and what gang 2 took */
    hl_queue_slots_fini(&w.slots);
    assert_int_equal(busy(&w), 2);
    finish(&w);
}

/* Indices in the cluster shift when a server comes that is earlier by name; plans refer to
 * names. */
TEST(held_slots_are_found_when_nodes_came_since)
{
    struct world w;
    start(&w, 1, (int[]){2, 1, 1, 1});
    hl_queue_slots_fini(&w.slots);
    assert_int_equal(hl_plan_make(&w.jobs[0], &w.cluster, &w.held[0]), HL_OK);
    assert_int_equal(hl_plan_commit(w.held[0], &w.cluster), HL_OK);
    add_server(&w, "a");
    const struct hl_queue_slots_opts opts = {
        .cluster = &w.cluster, .count = GANGS, .arg = &w, .plan = plan_gang, .held = held_plan};
    assert_int_equal(hl_queue_slots_init(&w.slots, &opts, &w.planner), HL_OK);
    w.planner.lend(w.planner.ctx, 0, true);
    assert_int_equal(busy(&w), 0);
    w.planner.lend(w.planner.ctx, 0, false);
    assert_true(hl_cluster_find(&w.cluster, "node-0")->slots[0].busy);
    assert_int_equal(busy(&w), 2);
    finish(&w);
}
