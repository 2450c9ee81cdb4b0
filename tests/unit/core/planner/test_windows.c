/* Servers that are reserved for a period: which jobs start there before, and after. */
#include "support/test.h"

#include <stdio.h>

#include "core/planner/plan.h"

#define NOW   INT64_C(1000000)
#define GRACE 10

static void add_server(struct hl_cluster *c, int number)
{
    char name[16];
    snprintf(name, sizeof(name), "node-%d", number);
    struct hl_api_slot slots[2] = {{.numa_id = 0, .cpus = "0-3"}, {.numa_id = 1, .cpus = "4-7"}};
    const struct hl_api_node_info info = {.name = name, .rank_address = name, .slots = {slots, 2}};
    assert_int_equal(hl_cluster_put(c, &info), HL_OK);
}

static struct hl_cluster cluster_of(int servers)
{
    struct hl_cluster c = {0};
    for (int i = 0; i < servers; i++)
        add_server(&c, i);
    hl_cluster_set_time(&c, NOW, GRACE);
    return c;
}

/* One rank to a slot. limit 0 = none. */
static struct hl_job job_of(int slots, int64_t limit_ms)
{
    static char name[] = "j";
    return (struct hl_job){.name = name,
                           .gpus_per_rank = -1,
                           .ranks_per_slot = 1,
                           .ep = 1,
                           .etp = slots,
                           .run_timeout_ms = limit_ms,
                           .stop_grace_ms = -1,
                           .grid = {.pp = 1, .tp = slots, .dp = 1}};
}

static struct hl_plan *plan_of(const struct hl_job *job, const struct hl_cluster *c)
{
    struct hl_plan *plan = NULL;
    struct hl_plan_why why;
    assert_int_equal(hl_plan_make(job, c, &plan), HL_OK);
    assert_int_equal(hl_plan_check(job, c, &why), HL_OK);
    assert_memory_equal(&why, &plan->why, sizeof(why)); /* the quick check gives the same answer */
    return plan;
}

static bool starts(const struct hl_job *job, const struct hl_cluster *c)
{
    struct hl_plan *plan = plan_of(job, c);
    bool yes = plan->feasible;
    assert_false(plan->never);
    assert_int_equal(plan->why.reason, yes ? HL_PLAN_FITS : HL_PLAN_SERVER_RESERVED);
    hl_plan_free(plan);
    return yes;
}

TEST(who_would_still_run_when_a_reservation_begins_does_not_start)
{
    struct hl_cluster c = cluster_of(1);
    struct hl_job endless = job_of(2, 0), in_time = job_of(2, 5000 - GRACE),
                  late = job_of(2, 5001 - GRACE), own_grace = job_of(2, 5000 - GRACE);
    own_grace.stop_grace_ms = GRACE + 1;
    hl_cluster_set_window(&c, "node-0", (struct hl_node_window){NOW + 5000, NOW + 9000});
    assert_false(starts(&endless, &c));
    assert_true(starts(&in_time, &c));
    assert_false(starts(&late, &c));
    assert_false(starts(&own_grace, &c));
    hl_cluster_set_time(&c, NOW + 6000, GRACE); /* it has begun: not even a short one */
    assert_false(starts(&in_time, &c));
    hl_cluster_set_time(&c, NOW + 9000, GRACE); /* it is over */
    assert_true(starts(&endless, &c));
    hl_cluster_set_time(&c, NOW, GRACE);
    hl_cluster_set_window(&c, "node-0", (struct hl_node_window){0});
    assert_true(starts(&endless, &c));
    hl_cluster_fini(&c);
}

TEST(a_gang_goes_beside_reserved_servers_and_waits_only_for_those_that_it_needs)
{
    struct hl_cluster c = cluster_of(4);
    struct hl_job two = job_of(2, 0), six = job_of(6, 0), eight = job_of(8, 0);
    hl_cluster_set_window(&c, "node-0", (struct hl_node_window){NOW + 1, NOW + 3000});
    hl_cluster_set_window(&c, "node-1", (struct hl_node_window){NOW + 1, NOW + 9000});
    hl_cluster_set_window(&c, "node-2", (struct hl_node_window){NOW + 2, NOW + 6000});
    struct hl_plan *plan = plan_of(&two, &c);
    assert_true(plan->feasible);
    assert_string_equal(plan->containers[0].node, "node-3");
    hl_plan_free(plan);
    plan = plan_of(&six, &c);
    assert_int_equal(plan->why.reason, HL_PLAN_SERVER_RESERVED);
    assert_int_equal(plan->why.free, 2);
    assert_int_equal(plan->why.reserved, 6);
    assert_int_equal(plan->why.servers[HL_OFFER_RESERVED], 3);
    assert_int_equal(plan->reserved_until_ms,
                     NOW + 6000); /* node-0 and node-2 are free again then */
    assert_string_equal(plan->reason, "needs 6 slots, 2 are free of 2 on 1 ready server; 3 servers "
                                      "are reserved");
    hl_plan_free(plan);
    plan = plan_of(&eight, &c);
    assert_int_equal(plan->reserved_until_ms, NOW + 9000);
    hl_plan_free(plan);
    hl_cluster_set_busy(&c, "node-0", 0, true); /* slots held there do not become free at its end */
    plan = plan_of(&six, &c);
    assert_int_equal(plan->reserved_until_ms, NOW + 9000);
    hl_plan_free(plan);
    plan = plan_of(&eight, &c);
    assert_int_equal(plan->why.reason, HL_PLAN_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(plan->reserved_until_ms, 0);
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

TEST(a_reservation_stays_when_its_node_registers_again_and_outdates_plans)
{
    struct hl_cluster c = cluster_of(1);
    struct hl_job endless = job_of(2, 0);
    struct hl_plan *plan = plan_of(&endless, &c);
    assert_true(plan->feasible);
    hl_cluster_set_window(&c, "node-0", (struct hl_node_window){NOW + 5000, NOW + 9000});
    assert_int_equal(hl_plan_commit(plan, &c), HL_EBUSY);
    hl_plan_free(plan);
    add_server(&c, 0);
    assert_false(starts(&endless, &c));
    hl_cluster_fini(&c);
}
