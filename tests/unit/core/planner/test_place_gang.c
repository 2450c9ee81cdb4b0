/* Gangs on small clusters, compared with every possible placement. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/plan.h"

#define SERVERS 8
#define UNITS   8

static uint64_t random_state;

static int random_below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

/* A cluster of two-slot servers: the free slots of each, and its leaf and spine. */
struct world {
    int servers;
    int free[SERVERS], leaf[SERVERS], spine[SERVERS]; /* leaf -1: not known */
    struct hl_cluster cluster;
};

static void world_make(struct world *w, int leaves, bool unknown)
{
    *w = (struct world){.servers = 1 + random_below(SERVERS)};
    for (int s = 0; s < w->servers; s++) {
        char name[24], leaf[24] = "", spine[24] = "";
        w->free[s] = random_below(3);
        w->leaf[s] = random_below(leaves) - (unknown && random_below(4) == 0 ? leaves : 0);
        w->spine[s] = w->leaf[s] / 2;
        snprintf(name, sizeof(name), "node-%d", s);
        if (w->leaf[s] < 0) {
            w->leaf[s] = -1;
            w->spine[s] = -1;
        } else {
            snprintf(leaf, sizeof(leaf), "leaf-%d", w->leaf[s]);
            snprintf(spine, sizeof(spine), "spine-%d", w->spine[s]);
        }
        struct hl_api_slot slots[2] = {{.numa_id = 0, .cpus = "0-3"},
                                       {.numa_id = 8, .cpus = "4-7"}};
        assert_int_equal(
            hl_cluster_put(&w->cluster, &(struct hl_api_node_info){.name = name,
                                                                   .rank_address = name,
                                                                   .leaf = leaf,
                                                                   .spine = spine,
                                                                   .slots = {slots, 2}}),
            HL_OK);
        for (int k = w->free[s]; k < 2; k++)
            hl_cluster_set_busy(&w->cluster, name, k * 8, true);
    }
}

static struct hl_job job_of(int pp, int tp, int dp, struct hl_place_rules rules)
{
    static char name[] = "j", empty[] = "";
    return (struct hl_job){.name = name,
                           .model = empty,
                           .virtual_stages = 1,
                           .ep = 1,
                           .etp = tp,
                           .gpus_per_rank = -1,
                           .placement = rules,
                           .grid = {.pp = pp, .tp = tp, .dp = dp, .order = HL_ORDER_TP_DP_PP}};
}

/* ---- every placement ------------------------------------------------------------------------- */

/* on[u][s]: containers of unit u on server s; units stage by stage. */
struct brute {
    const struct world *w;
    int pp, tp, dp;
    struct hl_place_rules rules;
    int left[SERVERS];
    int on[UNITS][SERVERS];
    long best; /* -1 = there is none */
};

static bool in_one(const struct world *w, const bool *used, enum hl_level level)
{
    int first = -1, servers = 0;
    for (int s = 0; s < w->servers; s++) {
        if (!used[s])
            continue;
        servers++;
        if (first < 0)
            first = s;
        if (level == HL_LEVEL_LEAF && w->leaf[s] != w->leaf[first])
            return false;
        if (level == HL_LEVEL_SPINE && w->spine[s] != w->spine[first])
            return false;
    }
    return servers <= 1 || (level >= HL_LEVEL_LEAF && w->leaf[first] >= 0);
}

/* Whether the units of one group obey the rule. */
static bool keeps(const struct brute *b, struct hl_place_rule rule, int first, int step, int count)
{
    bool used[SERVERS] = {false};
    if (!rule.required)
        return true;
    for (int i = 0; i < count; i++)
        for (int s = 0; s < b->w->servers; s++)
            used[s] |= b->on[first + i * step][s] > 0;
    return in_one(b->w, used, rule.level);
}

static bool keeps_all(const struct brute *b)
{
    bool ok = keeps(b, b->rules.gang, 0, 1, b->pp * b->dp);
    for (int r = 0; r < b->dp; r++)
        ok &= keeps(b, b->rules.pipeline, r, b->dp, b->pp);
    for (int p = 0; p < b->pp && b->dp > 1; p++)
        ok &= keeps(b, b->rules.data, p * b->dp, 1, b->dp);
    return ok;
}

/* Number of servers and leaves of a unit; of servers that hold an earlier stage of its replica. */
static long unit_cost(const struct brute *b, int u)
{
    bool leaves[SERVERS + 1] = {false};
    long cost = 0;
    for (int s = 0; s < b->w->servers; s++) {
        bool shared = false;
        if (b->on[u][s] == 0)
            continue;
        cost += 1000000;
        cost += leaves[b->w->leaf[s] + 1] ? 0 : 1000;
        leaves[b->w->leaf[s] + 1] = true;
        for (int before = u % b->dp; before < u; before += b->dp)
            shared |= b->on[before][s] > 0;
        cost += shared;
    }
    return cost;
}

static void try_all(struct brute *b, int u, int s, int need, long cost)
{
    long least = (b->tp + 1) / 2 * 1000000 + 1000; /* for each further unit */
    if (b->best >= 0 && cost + least * (b->pp * b->dp - u) >= b->best)
        return;
    if (u == b->pp * b->dp) {
        if (keeps_all(b))
            b->best = cost;
        return;
    }
    if (need == 0) {
        if (keeps(b, b->rules.tensor, u, 1, 1))
            try_all(b, u + 1, 0, b->tp, cost + unit_cost(b, u));
        return;
    }
    if (s == b->w->servers)
        return;
    for (int n = need < b->left[s] ? need : b->left[s]; n >= 0; n--) {
        b->on[u][s] = n;
        b->left[s] -= n;
        try_all(b, u, s + 1, need - n, cost);
        b->left[s] += n;
        b->on[u][s] = 0;
    }
}

static long best_cost(const struct world *w, const struct hl_job *job)
{
    struct brute b = {.w = w,
                      .pp = job->grid.pp,
                      .tp = job->grid.tp,
                      .dp = job->grid.dp,
                      .rules = job->placement,
                      .best = -1};
    memcpy(b.left, w->free, sizeof(b.left));
    try_all(&b, 0, 0, b.tp, 0);
    return b.best;
}

/* The plan's cost, or -1 if it breaks a rule. */
static long plan_cost(const struct world *w, const struct hl_job *job, const struct hl_plan *plan)
{
    struct brute b = {.w = w,
                      .pp = job->grid.pp,
                      .tp = job->grid.tp,
                      .dp = job->grid.dp,
                      .rules = job->placement};
    long cost = 0;
    for (int i = 0; i < plan->container_count; i++)
        b.on[i / b.tp][atoi(plan->containers[i].node + 5)]++;
    for (int u = 0; u < b.pp * b.dp; u++) {
        cost += unit_cost(&b, u);
        if (!keeps(&b, b.rules.tensor, u, 1, 1))
            return -1;
    }
    return keeps_all(&b) ? cost : -1;
}

static const int grids[][3] = {{1, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 4, 1}, {2, 1, 1},
                               {4, 1, 1}, {2, 1, 2}, {2, 2, 2}, {1, 2, 3}, {2, 4, 1},
                               {1, 4, 2}, {1, 8, 1}, {1, 8, 2}, {3, 2, 1}, {1, 1, 4},
                               {2, 4, 2}, {1, 6, 1}, {3, 4, 1}, {4, 2, 2}, {3, 1, 2}};

static void describe(const struct world *w, const struct hl_job *job, long got, long best)
{
    char text[256] = "";
    for (int s = 0; s < w->servers; s++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), " %d@%d", w->free[s],
                 w->leaf[s]);
    const struct hl_place_rule *r = &job->placement.tensor; /* and the three after it */
    for (int i = 0; i < 4; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %s", i == 0 ? "; rules" : "",
                 hl_level_name(r[i].level));
    fail_msg("free@leaf%s, PP %d TP %d DP %d: %ld, %ld is best", text, job->grid.pp, job->grid.tp,
             job->grid.dp, got, best);
}

static void compare(const struct world *w, const struct hl_job *job, bool optimum)
{
    struct hl_plan *plan = NULL;
    assert_int_equal(hl_plan_make(job, &w->cluster, &plan), HL_OK);
    long best = best_cost(w, job), got = plan->feasible ? plan_cost(w, job, plan) : -1;
    if (plan->feasible != (best >= 0) || (plan->feasible && got < 0) || (optimum && got != best))
        describe(w, job, got, best);
    hl_plan_free(plan);
}

TEST(no_placement_of_a_gang_on_two_slot_servers_is_better)
{
    random_state = 77;
    for (int i = 0; i < 8000; i++) {
        struct world w;
        const int *g = grids[random_below((int)HL_ARRAY_LEN(grids))];
        world_make(&w, 1 + random_below(4), random_below(8) == 0);
        struct hl_job job = job_of(g[0], g[1], g[2], (struct hl_place_rules){0});
        if (random_below(4) == 0)
            job.placement.tensor = (struct hl_place_rule){HL_LEVEL_SERVER + random_below(3), true};
        compare(&w, &job, true);
        hl_cluster_fini(&w.cluster);
    }
}

static struct hl_place_rule random_rule(void)
{
    if (random_below(3) > 0)
        return (struct hl_place_rule){0};
    return (struct hl_place_rule){HL_LEVEL_SERVER + random_below(3), true};
}

TEST(what_is_required_is_kept_and_refused_only_where_nothing_keeps_it)
{
    random_state = 21;
    for (int i = 0; i < 4000; i++) {
        struct world w;
        const int *g = grids[random_below((int)HL_ARRAY_LEN(grids))];
        world_make(&w, 1 + random_below(4), random_below(4) == 0);
        const struct hl_place_rules rules = {random_rule(), random_rule(), random_rule(),
                                             random_rule()};
        struct hl_job job = job_of(g[0], g[1], g[2], rules);
        compare(&w, &job, false);
        hl_cluster_fini(&w.cluster);
    }
}
