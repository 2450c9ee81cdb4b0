/* The CPU runtime on 10^4 random graphs: every policy, number of workers and kind of queue. */
#include "support/test.h"

#include <stdio.h>

#include "base/clock.h"
#include "support/maco_dag.h"

static const char *const policies[] = {"direct", "scheduler", "static"};

static maco_runtime *open_runtime(int policy, int workers, uint32_t ring)
{
    maco_runtime *rt = NULL;
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT,
                              .policy = policy,
                              .workers = workers,
                              .ring = ring,
                              .balance = ring == 2 ? MACO_LEAST_LOADED : MACO_ROUND_ROBIN,
                              .timeout_ns = 20 * HL_NS_PER_S};
    if (maco_runtime_open(&o, &rt) != 0)
        fail_msg("open: %s", hl_error_text());
    return rt;
}

/* Each task ran once, and none before those it waited for. */
static void check_order(maco_runtime *rt, const struct dag *d)
{
    uint32_t *tasks = NULL, n = 0;
    uint8_t *seen = calloc(d->n, 1);
    assert_int_equal(hl_maco_run_tasks(rt, &tasks, &n), HL_OK);
    assert_int_equal(n, d->n); /* without joins */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = d->id[tasks[i]];
        for (uint32_t k = 0; k < d->nodes[v].n_parents; k++)
            assert_int_equal(seen[d->parents[d->nodes[v].first_parent + k]], 1);
        assert_int_equal(seen[v]++, 0);
    }
    free(tasks);
    free(seen);
}

static void run_dag(maco_runtime *rt, struct dag *d, const char *what)
{
    struct hl_maco_source source = dag_source(d);
    for (int k = 0; k < 2; k++) {
        d->version++;
        d->calls = 0;
        if (hl_maco_run_source(rt, &source) != HL_OK)
            fail_msg("%s: %s", what, hl_error_text());
        if (d->calls != d->n || d->wrong != 0)
            fail_msg("%s, run %d: %u of %u tasks ran, %u saw a parent undone", what, k, d->calls,
                     d->n, d->wrong);
    }
    check_order(rt, d);
}

static void random_graphs(int policy, int workers, uint32_t ring, int graphs)
{
    uint64_t seed = 88172645463325252u + (uint64_t)(policy * 100 + workers);
    maco_runtime *rt = open_runtime(policy, workers, ring);
    for (int g = 0; g < graphs; g++) {
        struct dag d;
        char what[96];
        uint64_t began = seed;
        uint32_t n = 1 + (uint32_t)(dag_random(&seed) % 60);
        uint32_t reach = 1 + (uint32_t)(dag_random(&seed) % n);
        dag_init(&d, n, 1 + g % 5, reach, g % 3 == 0 ? workers : 0, g % 4 == 0 ? 2 : 0, &seed);
        snprintf(what, sizeof(what), "%s, %d workers, ring %u, graph %d (seed %llu)",
                 policies[policy], workers, ring, g, (unsigned long long)began);
        d.policy = policy;
        run_dag(rt, &d, what);
        dag_fini(&d);
    }
    maco_runtime_close(rt);
}

TEST(random_graphs_direct)
{
    random_graphs(MACO_DIRECT, 1, 0, 3000);
    random_graphs(MACO_DIRECT, 2, 0, 500);
    random_graphs(MACO_DIRECT, 4, 0, 250);
    random_graphs(MACO_DIRECT, 2, 2, 250);
}

TEST(random_graphs_scheduler)
{
    random_graphs(MACO_SCHEDULER, 1, 0, 750);
    random_graphs(MACO_SCHEDULER, 2, 0, 500);
    random_graphs(MACO_SCHEDULER, 4, 0, 250);
    random_graphs(MACO_SCHEDULER, 2, 2, 250);
}

TEST(random_graphs_static)
{
    random_graphs(MACO_STATIC, 1, 0, 3500);
    random_graphs(MACO_STATIC, 2, 0, 500);
    random_graphs(MACO_STATIC, 4, 0, 250);
}
