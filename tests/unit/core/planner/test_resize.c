#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/resize.h"

/* ---- a gang that is placed: container i on node-i, with k ranks in their order -------------- */

static struct hl_plan *plan_of(const struct hl_grid *grid, int k)
{
    int world = hl_rank_world(grid);
    struct hl_plan *plan = calloc(1, sizeof(*plan));
    *plan = (struct hl_plan){.feasible = true,
                             .world_size = world,
                             .ranks_per_container = k,
                             .container_count = (world + k - 1) / k,
                             .reason = strdup(""),
                             .master_node = strdup("node-0"),
                             .master_address = strdup("10.0.0.1"),
                             .arithmetic = calloc(1, sizeof(char *)),
                             .warnings = calloc(1, sizeof(char *))};
    plan->next_index = plan->container_count;
    plan->containers = calloc((size_t)plan->container_count, sizeof(*plan->containers));
    for (int i = 0; i < plan->container_count; i++) {
        struct hl_plan_container *c = &plan->containers[i];
        c->index = i;
        snprintf(c->node, sizeof(c->node), "node-%d", i);
        c->cpus = strdup("0");
        c->ranks = calloc((size_t)k, sizeof(*c->ranks));
        for (int r = i * k; r < world && r < (i + 1) * k; r++)
            c->ranks[c->rank_count++] = (struct hl_plan_rank){.rank = r,
                                                              .known_as = r,
                                                              .at = hl_rank_of(grid, r),
                                                              .local_rank = r - i * k,
                                                              .gpu = strdup("")};
    }
    return plan;
}

static struct hl_job job_of(const struct hl_grid *grid, int min, int max, int ep)
{
    return (struct hl_job){.grid = *grid,
                           .dp_min = min,
                           .dp_max = max,
                           .ep = ep,
                           .etp = grid->tp,
                           .recovery = (char *)"replace"};
}

/* ---- what is expected ------------------------------------------------------------------------ */

/* Whether replicas may stay in the gang: none of their containers is lost or holds other ranks. */
static bool may_stay(const struct hl_plan *plan, const bool *lost, unsigned set)
{
    for (int i = 0; i < plan->container_count; i++) {
        const struct hl_plan_container *c = &plan->containers[i];
        unsigned of = 0;
        for (int k = 0; k < c->rank_count; k++)
            of |= 1u << c->ranks[k].at.dp;
        if ((of & set) != 0 && (lost[i] || (of & ~set) != 0))
            return false;
    }
    return true;
}

static unsigned most_that_stay(const struct hl_plan *plan, int dp, const bool *lost)
{
    unsigned best = 0;
    for (unsigned set = 1; set < 1u << dp; set++)
        if (may_stay(plan, lost, set) && __builtin_popcount(set) > __builtin_popcount(best))
            best = set;
    return best;
}

/* Every rank of a grid of that size appears once, at its place, and is known on its node as
 * before. */
static void check_numbers(const struct hl_plan *plan, const struct hl_job *job, int dp)
{
    struct hl_grid grid = job->grid;
    bool seen[64] = {0};
    grid.dp = dp;
    assert_int_equal(plan->world_size, hl_rank_world(&grid));
    int count = 0;
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++, count++) {
            const struct hl_plan_rank *r = &plan->containers[i].ranks[k];
            struct hl_rank at = hl_rank_of(&grid, r->rank);
            assert_in_range(r->rank, 0, plan->world_size - 1);
            assert_false(seen[r->rank]);
            seen[r->rank] = true;
            assert_memory_equal(&at, &r->at, sizeof(at));
            assert_int_equal(r->local_rank, k);
        }
    assert_int_equal(count, plan->world_size);
}

/* The remaining ranks keep their order and their other properties. */
static void check_survivors(const struct hl_plan *plan, const struct hl_plan *before, unsigned set)
{
    for (int i = 0; i < before->container_count; i++) {
        const struct hl_plan_container *was = &before->containers[i], *c = &plan->containers[i];
        bool stays = was->rank_count > 0 && (set >> was->ranks[0].at.dp & 1) != 0;
        assert_int_equal(c->index, i);
        assert_int_equal(c->leaves, !stays);
        assert_int_equal(c->rank_count, stays ? was->rank_count : 0);
        for (int k = 0; k < c->rank_count; k++) {
            const struct hl_rank *at = &c->ranks[k].at, *old = &was->ranks[k].at;
            assert_int_equal(at->dp, __builtin_popcount(set & ((1u << old->dp) - 1)));
            assert_true(at->pp == old->pp && at->tp == old->tp && at->cp == old->cp);
            assert_int_equal(c->ranks[k].known_as, was->ranks[k].rank);
        }
    }
}

/* The lost replicas return beside the remaining ones. */
static void check_growth(struct hl_plan *plan, struct hl_job *job, int left, int dp, int k)
{
    int had = plan->container_count, next = plan->next_index;
    job->grid.dp = dp - left;
    struct hl_plan *more = plan_of(&job->grid, k < hl_rank_world(&job->grid) ? k : 1);
    int added = more->container_count;
    job->grid.dp = left;
    assert_int_equal(hl_plan_grow(plan, job, more), HL_OK);
    hl_plan_free(more);
    check_numbers(plan, job, left); /* they are not part of the gang yet */
    assert_int_equal(plan->container_count, had + added);
    for (int i = had; i < plan->container_count; i++) {
        assert_int_equal(plan->containers[i].index, next + i - had);
        assert_true(hl_plan_is_guest(&plan->containers[i]));
    }
    struct hl_plan *copy = NULL; /* through its record */
    assert_int_equal(hl_plan_copy(plan, &copy), HL_OK);
    assert_int_equal(hl_plan_admit(copy, job), dp);
    check_numbers(copy, job, dp);
    hl_plan_free(copy);
    hl_plan_dismiss(plan);
    check_numbers(plan, job, left);
    assert_true(plan->containers[had].leaves);
}

static void check_loss(const struct hl_grid *grid, int k, unsigned mask, int min)
{
    struct hl_job job = job_of(grid, min, grid->dp, 1);
    struct hl_plan *before = plan_of(grid, k), *plan = NULL;
    bool lost[16] = {0};
    int dp = -1;
    for (int i = 0; i < before->container_count; i++)
        lost[i] = (mask >> i & 1) != 0;
    unsigned set = most_that_stay(before, grid->dp, lost);
    int stay = __builtin_popcount(set);
    assert_int_equal(hl_plan_copy(before, &plan), HL_OK);
    assert_int_equal(hl_plan_shrink(plan, &job, lost, &dp), HL_OK);
    assert_int_equal(dp, stay >= min ? stay : 0);
    if (dp == 0) {
        check_numbers(plan, &job, grid->dp); /* nothing changed */
    } else {
        check_numbers(plan, &job, dp);
        check_survivors(plan, before, set);
        job.grid.dp = dp;
        if (dp < grid->dp)
            check_growth(plan, &job, dp, grid->dp, k);
    }
    hl_plan_free(plan);
    hl_plan_free(before);
}

static void check_grid(const struct hl_grid *grid)
{
    for (int k = 1; k <= hl_rank_world(grid); k++) {
        int containers = (hl_rank_world(grid) + k - 1) / k;
        for (unsigned mask = 1; containers <= 6 && mask < 1u << containers; mask++)
            for (int min = 1; min <= 2; min++)
                check_loss(grid, k, mask, min);
    }
}

TEST(as_many_whole_replicas_go_on_as_any_choice_of_them_allows)
{
    for (int order = 0; order < 2; order++)
        for (int pp = 1; pp <= 2; pp++)
            for (int tp = 1; tp <= 2; tp++)
                for (int cp = 1; cp <= 2; cp++)
                    for (int dp = 2; dp <= 4; dp++)
                        check_grid(&(struct hl_grid){pp, tp, dp, (enum hl_rank_order)order, cp});
}

TEST(no_more_stay_than_the_experts_come_out_even_with)
{
    const struct hl_grid grid = {.pp = 1, .tp = 1, .dp = 6, .cp = 1};
    struct hl_job job = job_of(&grid, 1, 6, 2);
    for (unsigned mask = 1; mask < 64; mask++) {
        struct hl_plan *plan = plan_of(&grid, 1);
        bool lost[8] = {0};
        int dp = -1;
        for (int i = 0; i < 6; i++)
            lost[i] = (mask >> i & 1) != 0;
        int stay = 6 - __builtin_popcount(mask);
        assert_int_equal(hl_plan_shrink(plan, &job, lost, &dp), HL_OK);
        assert_int_equal(dp, stay - stay % 2);
        if (dp > 0)
            check_numbers(plan, &job, dp);
        hl_plan_free(plan);
    }
}

TEST(rank_0_is_met_where_its_container_is_now)
{
    const struct hl_grid grid = {.pp = 1, .tp = 1, .dp = 3, .cp = 1};
    struct hl_job job = job_of(&grid, 1, 3, 1);
    struct hl_plan *plan = plan_of(&grid, 1);
    struct hl_cluster_node nodes[] = {{.name = "node-1", .rank_address = (char *)"10.0.0.2"}};
    const struct hl_cluster cluster = {.nodes = nodes, .count = 1};
    bool lost[3] = {true, false, false};
    int dp = 0;
    assert_int_equal(hl_plan_find_master(plan, &cluster), HL_OK);
    assert_string_equal(plan->master_address, "10.0.0.1");
    assert_int_equal(hl_plan_shrink(plan, &job, lost, &dp), HL_OK);
    assert_int_equal(hl_plan_find_master(plan, &cluster), HL_OK);
    assert_string_equal(plan->master_node, "node-1");
    assert_string_equal(plan->master_address, "10.0.0.2");
    hl_plan_remove(plan, 0);
    assert_int_equal(plan->container_count, 2);
    assert_int_equal(hl_plan_position(plan, 0), -1);
    assert_int_equal(hl_plan_position(plan, 2), 1);
    check_numbers(plan, &job, 2);
    hl_plan_free(plan);
}
