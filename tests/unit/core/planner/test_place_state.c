/* Reasons, versions of the cluster, draining, "what if". */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/plan.h"

/* An AC922: NUMA nodes 0 and 8 with two GPUs of 16 GiB each, a ConnectX-5. */
static void add_server(struct hl_cluster *c, int number, const char *leaf)
{
    char name[16];
    snprintf(name, sizeof(name), "node-%d", number);
    struct hl_api_device gpus[2] = {{.id = "0004:04:00.0", .memory_bytes = (uint64_t)16 << 30},
                                    {.id = "0004:05:00.0", .memory_bytes = (uint64_t)16 << 30}};
    struct hl_api_device nic = {.id = "0003:01:00.0", .nic_class = "ConnectX-5"};
    struct hl_api_slot slots[2] = {
        {.numa_id = 0, .cpus = "0-87", .gpus = {gpus, 2}, .nics = {&nic, 1}},
        {.numa_id = 8, .cpus = "88-175", .gpus = {gpus, 2}, .nics = {&nic, 1}}};
    const struct hl_api_node_info info = {
        .name = name, .rank_address = name, .leaf = leaf, .spine = "s", .slots = {slots, 2}};
    assert_int_equal(hl_cluster_put(c, &info), HL_OK);
}

static void add_servers(struct hl_cluster *c, int count)
{
    for (int i = 0; i < count; i++)
        add_server(c, i, i % 2 ? "leaf-1" : "leaf-0");
}

/* Containers of two ranks. */
static struct hl_job job_of(int containers)
{
    static char name[] = "j";
    return (struct hl_job){.name = name,
                           .gpus_per_rank = -1,
                           .ep = 1,
                           .etp = 2,
                           .grid = {.pp = 1, .tp = 2, .dp = containers}};
}

static struct hl_plan *plan_of(const struct hl_job *job, const struct hl_cluster *c)
{
    struct hl_plan *plan = NULL;
    struct hl_plan_why why;
    assert_int_equal(hl_plan_make(job, c, &plan), HL_OK);
    assert_int_equal(hl_plan_check(job, c, &why), HL_OK);
    assert_memory_equal(&why, &plan->why, sizeof(why)); /* the quick check gives the same answer */
    assert_int_equal(plan->feasible, why.reason == HL_PLAN_FITS);
    return plan;
}

static struct hl_plan_why why_of(const struct hl_job *job, const struct hl_cluster *c, bool never)
{
    struct hl_plan *plan = plan_of(job, c);
    struct hl_plan_why why = plan->why;
    assert_int_equal(plan->never, never);
    hl_plan_free(plan);
    return why;
}

TEST(each_reason_has_its_numbers)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(6);
    add_servers(&c, 4);
    struct hl_plan_why why = why_of(&job, &c, false);
    assert_int_equal(why.reason, HL_PLAN_FITS);
    assert_int_equal(why.servers[HL_OFFER_FREE], 4);
    hl_cluster_set_busy(&c, "node-0", 0, true);
    hl_cluster_set_busy(&c, "node-0", 8, true);
    hl_cluster_set_busy(&c, "node-1", 8, true);
    why = why_of(&job, &c, false);
    assert_int_equal(why.reason, HL_PLAN_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(why.needed, 6);
    assert_int_equal(why.free, 5);
    assert_int_equal(why.fitting, 8);
    assert_int_equal(why.servers[HL_OFFER_HELD], 1);
    assert_int_equal(why.servers[HL_OFFER_FREE], 3);
    hl_cluster_set_draining(&c, "node-2", true);
    hl_cluster_set_ready(&c, "node-3", false);
    job = job_of(3);
    why = why_of(&job, &c, false);
    assert_int_equal(why.reason, HL_PLAN_SERVER_DRAINING); /* 1 free, 2 more on node-2 */
    assert_int_equal(why.free, 1);
    assert_int_equal(why.draining, 2);
    assert_int_equal(why.servers[HL_OFFER_DRAINING], 1);
    assert_int_equal(why.servers[HL_OFFER_LOST], 1);
    job = job_of(9);
    assert_int_equal(why_of(&job, &c, true).reason, HL_PLAN_NOT_ENOUGH_SLOTS_EVER);
    assert_string_equal(hl_plan_reason_name(HL_PLAN_SERVER_DRAINING), "ServerDraining");
    hl_cluster_fini(&c);
}

TEST(memory_of_gpus_is_not_found_where_there_are_none)
{
    struct hl_api_slot slot = {.numa_id = 0, .cpus = "0-7"};
    const struct hl_api_node_info info = {
        .name = "node-0", .rank_address = "node-0", .slots = {&slot, 1}};
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1);
    assert_int_equal(hl_cluster_put(&c, &info), HL_OK);
    job.grid.tp = 1;
    assert_int_equal(why_of(&job, &c, false).reason, HL_PLAN_FITS);
    job.gpu_memory_bytes = 1;
    assert_int_equal(why_of(&job, &c, true).reason, HL_PLAN_NOT_ENOUGH_SLOTS_EVER);
    hl_cluster_fini(&c);
}

TEST(gpus_and_nics_that_do_not_do_are_named)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2);
    add_servers(&c, 2);
    job.gpu_memory_bytes = (uint64_t)16 << 30;
    job.nic_class = HL_NIC_CX5;
    assert_int_equal(why_of(&job, &c, false).reason, HL_PLAN_FITS);
    job.gpu_memory_bytes++;
    struct hl_plan_why why = why_of(&job, &c, true);
    assert_int_equal(why.reason, HL_PLAN_GPU_MEMORY_TOO_SMALL);
    assert_int_equal(why.servers[HL_OFFER_GPU_MEMORY], 2);
    job.gpu_memory_bytes = 0;
    job.nic_class = HL_NIC_CX6;
    why = why_of(&job, &c, true);
    assert_int_equal(why.reason, HL_PLAN_NIC_CLASS_MISSING);
    assert_int_equal(why.servers[HL_OFFER_NIC], 2);
    hl_cluster_fini(&c);
}

TEST(a_level_that_can_not_be_kept_is_named)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(4);
    add_servers(&c, 4); /* two to a leaf */
    job.placement.gang = (struct hl_place_rule){HL_LEVEL_LEAF, true};
    struct hl_plan *plan = plan_of(&job, &c);
    assert_string_equal(plan->containers[0].node, "node-0");
    assert_string_equal(plan->containers[3].node, "node-2");
    hl_plan_free(plan);
    hl_cluster_set_busy(&c, "node-2", 8, true);
    hl_cluster_set_busy(&c, "node-1", 0, true);
    struct hl_plan_why why = why_of(&job, &c, false); /* 3 and 3 */
    assert_int_equal(why.reason, HL_PLAN_TOPOLOGY_UNSATISFIABLE);
    assert_int_equal(why.level, HL_LEVEL_LEAF);
    assert_int_equal(why.free, 6);
    job.placement.gang.level = HL_LEVEL_SERVER;
    why = why_of(&job, &c, true);
    assert_int_equal(why.level, HL_LEVEL_SERVER);
    job.placement.gang = (struct hl_place_rule){HL_LEVEL_LEAF, false}; /* the spine is enough */
    plan = plan_of(&job, &c);
    assert_true(plan->feasible);
    assert_string_equal(plan->warnings[0],
                        "1 of 1 gang is not within one leaf, as placement prefers");
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

TEST(a_plan_is_committed_only_on_the_cluster_it_was_made_for)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2);
    add_servers(&c, 2);
    struct hl_plan *a = plan_of(&job, &c), *b = plan_of(&job, &c);
    assert_int_equal(hl_plan_commit(a, &c), HL_OK);
    assert_true(hl_cluster_find(&c, "node-0")->slots[0].busy);
    assert_true(hl_cluster_find(&c, "node-0")->slots[1].busy);
    assert_int_equal(hl_plan_commit(b, &c), HL_EBUSY); /* it would hold the same slots */
    assert_false(hl_cluster_find(&c, "node-1")->slots[0].busy);
    hl_plan_free(b);
    b = plan_of(&job, &c);
    assert_string_equal(b->containers[0].node, "node-1");
    add_server(&c, 7, "leaf-7"); /* any change counts */
    assert_int_equal(hl_plan_commit(b, &c), HL_EBUSY);
    hl_plan_free(a);
    hl_plan_free(b);
    hl_cluster_fini(&c);
}

/* What would fit if that gang left: mark, plan, restore. */
TEST(what_if_leaves_no_trace)
{
    struct hl_cluster c = {0};
    struct hl_job four = job_of(4), one = job_of(1);
    add_servers(&c, 2);
    struct hl_plan *held = plan_of(&one, &c);
    assert_int_equal(hl_plan_commit(held, &c), HL_OK);
    assert_int_equal(why_of(&four, &c, false).reason, HL_PLAN_NOT_ENOUGH_FREE_SLOTS);
    hl_plan_mark(held, &c, false);
    assert_int_equal(why_of(&four, &c, false).reason, HL_PLAN_FITS);
    hl_plan_mark(held, &c, true);
    assert_int_equal(why_of(&four, &c, false).reason, HL_PLAN_NOT_ENOUGH_FREE_SLOTS);
    hl_plan_free(held);
    hl_cluster_fini(&c);
}

static uint64_t random_state = 11;

static int random_below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

/* A copy of the cluster without its history. */
static void build_anew(const struct hl_cluster *from, struct hl_cluster *to)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct hl_cluster_node *n = &from->nodes[i];
        add_server(to, (int)strtol(n->name + 5, NULL, 10), n->leaf);
        hl_cluster_set_ready(to, n->name, n->ready);
        hl_cluster_set_draining(to, n->name, n->draining);
        for (int s = 0; s < n->slot_count; s++)
            hl_cluster_set_busy(to, n->name, n->slots[s].numa_id, n->slots[s].busy);
    }
}

TEST(a_cluster_with_a_history_plans_as_one_without)
{
    struct hl_cluster c = {0};
    add_servers(&c, 6);
    for (int i = 0; i < 3000; i++) {
        char name[16], leaf[16];
        int n = random_below(70); /* more than a word of a bitmap */
        snprintf(name, sizeof(name), "node-%d", n);
        snprintf(leaf, sizeof(leaf), "leaf-%d", random_below(3));
        switch (random_below(16)) {
        case 0:
        case 1:
            add_server(&c, n, leaf);
            break;
        case 2:
            hl_cluster_remove(&c, name);
            break;
        case 3:
            hl_cluster_set_ready(&c, name, random_below(2));
            break;
        case 4:
            hl_cluster_set_draining(&c, name, random_below(2));
            break;
        default:
            hl_cluster_set_busy(&c, name, random_below(2) * 8, random_below(2));
        }
        struct hl_cluster other = {0};
        struct hl_job job = job_of(1 + random_below(8));
        build_anew(&c, &other);
        struct hl_plan *a = plan_of(&job, &c), *b = plan_of(&job, &other);
        json_t *x = hl_plan_to_json(a), *y = hl_plan_to_json(b);
        assert_true(json_equal(x, y));
        json_decref(x);
        json_decref(y);
        hl_plan_free(a);
        hl_plan_free(b);
        hl_cluster_fini(&other);
    }
    hl_cluster_fini(&c);
}
