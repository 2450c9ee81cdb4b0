/* Which gangs would have to move. Two leaves of two servers with two slots each. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/planner/defrag.h"

#define GANGS 4

struct world {
    struct hl_cluster cluster;
    struct hl_job jobs[GANGS];
    struct hl_defrag_gang gangs[GANGS];
    size_t count;
};

static struct hl_job job_of(int slots, enum hl_level within)
{
    static char name[] = "j";
    return (struct hl_job){.name = name,
                           .gpus_per_rank = -1,
                           .ep = 1,
                           .etp = 1,
                           .placement.gang = {within, within != HL_LEVEL_ANY},
                           .grid = {.pp = 1, .tp = 1, .dp = slots}};
}

static void world_make(struct world *w)
{
    *w = (struct world){0};
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof(name), "node-%d", i);
        struct hl_api_slot slots[2] = {{.numa_id = 0, .cpus = "0-3"},
                                       {.numa_id = 8, .cpus = "4-7"}};
        const struct hl_api_node_info info = {.name = name,
                                              .rank_address = name,
                                              .leaf = i < 2 ? "leaf-0" : "leaf-1",
                                              .slots = {slots, 2}};
        assert_int_equal(hl_cluster_put(&w->cluster, &info), HL_OK);
    }
}

/* A gang runs on `n`: all other servers are drained while it is placed. */
static void run_on(struct world *w, int slots, const char *node)
{
    struct hl_plan *plan = NULL;
    w->jobs[w->count] = job_of(slots, HL_LEVEL_ANY);
    for (size_t i = 0; i < w->cluster.count; i++)
        hl_cluster_set_draining(&w->cluster, w->cluster.nodes[i].name,
                                strcmp(w->cluster.nodes[i].name, node) != 0);
    assert_int_equal(hl_plan_make(&w->jobs[w->count], &w->cluster, &plan), HL_OK);
    assert_true(plan->feasible);
    assert_int_equal(hl_plan_commit(plan, &w->cluster), HL_OK);
    for (size_t i = 0; i < w->cluster.count; i++)
        hl_cluster_set_draining(&w->cluster, w->cluster.nodes[i].name, false);
    w->gangs[w->count] = (struct hl_defrag_gang){"gang", &w->jobs[w->count], plan};
    w->count++;
}

static void world_free(struct world *w)
{
    for (size_t i = 0; i < w->count; i++)
        hl_plan_free((struct hl_plan *)w->gangs[i].plan);
    hl_cluster_fini(&w->cluster);
}

static unsigned busy_slots(const struct world *w)
{
    unsigned bits = 0;
    for (size_t i = 0; i < w->cluster.count; i++)
        for (int s = 0; s < 2; s++)
            bits |= (unsigned)w->cluster.nodes[i].slots[s].busy << (2 * i + (size_t)s);
    return bits;
}

/* The cluster is unchanged; after the moves all gangs fit and the job, too. */
static void check_found(struct world *w, const struct hl_job *job, struct hl_defrag *d)
{
    unsigned before = busy_slots(w);
    assert_int_equal(hl_defrag_find(job, &w->cluster, w->gangs, w->count, d), HL_OK);
    assert_int_equal(busy_slots(w), before);
    if (!d->found) {
        assert_int_equal(d->count, 0);
        assert_null(d->plan);
        return;
    }
    int slots = d->plan->container_count;
    for (size_t i = 0; i < w->count; i++)
        slots += w->gangs[i].plan->container_count;
    for (size_t i = 0; i < d->count; i++)
        hl_plan_mark(w->gangs[d->moves[i].gang].plan, &w->cluster, false);
    hl_plan_mark(d->plan, &w->cluster, true);
    for (size_t i = 0; i < d->count; i++)
        hl_plan_mark(d->moves[i].to, &w->cluster, true);
    assert_int_equal(__builtin_popcount(busy_slots(w)), slots); /* none is held twice */
    for (size_t i = 0; i < d->count; i++)
        hl_plan_mark(d->moves[i].to, &w->cluster, false);
    hl_plan_mark(d->plan, &w->cluster, false);
    for (size_t i = 0; i < d->count; i++)
        hl_plan_mark(w->gangs[d->moves[i].gang].plan, &w->cluster, true);
}

TEST(one_large_gang_moves_rather_than_two_small_ones)
{
    struct world w;
    struct hl_defrag d = {0};
    struct hl_job job = job_of(4, HL_LEVEL_LEAF);
    world_make(&w);
    run_on(&w, 1, "node-0");
    run_on(&w, 1, "node-1");
    run_on(&w, 2, "node-2");
    check_found(&w, &job, &d);
    assert_true(d.found);
    assert_int_equal(d.count, 1);
    assert_int_equal(d.moves[0].gang, 2);
    hl_defrag_fini(&d);
    world_free(&w);
}

TEST(of_equally_many_gangs_the_small_ones_move)
{
    struct world w;
    struct hl_defrag d = {0};
    struct hl_job job = job_of(3, HL_LEVEL_LEAF);
    world_make(&w);
    run_on(&w, 2, "node-2");
    run_on(&w, 1, "node-0");
    run_on(&w, 1, "node-1");
    check_found(&w, &job, &d);
    assert_true(d.found);
    assert_int_equal(d.count, 1);
    assert_int_equal(d.moves[0].gang, 1);
    assert_string_equal(d.moves[0].to->containers[0].node, "node-3");
    hl_defrag_fini(&d);
    world_free(&w);
}

TEST(two_gangs_move_where_one_does_not_do)
{
    struct world w;
    struct hl_defrag d = {0};
    struct hl_job job = job_of(4, HL_LEVEL_LEAF);
    world_make(&w);
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof(name), "node-%d", i);
        run_on(&w, 1, name);
    }
    check_found(&w, &job, &d);
    assert_true(d.found);
    assert_int_equal(d.count, 2);
    hl_defrag_fini(&d);
    world_free(&w);
}

TEST(where_slots_are_too_few_no_move_helps)
{
    struct world w;
    struct hl_defrag d = {0};
    struct hl_job job = job_of(5, HL_LEVEL_ANY);
    world_make(&w);
    run_on(&w, 2, "node-0");
    run_on(&w, 2, "node-1");
    check_found(&w, &job, &d);
    assert_false(d.found);
    assert_true(d.all_tried);
    hl_defrag_fini(&d);
    world_free(&w);
}
