/* Where a gang's slots for lost servers are. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/planner/spares.h"

static struct hl_cluster cluster;

static void add_server(const char *name, int slots, int gpus)
{
    static const char *const cpus[] = {"0-3", "4-7", "8-11", "12-15"};
    struct hl_arena arena = {0};
    struct hl_api_slot list[4] = {0};
    for (int i = 0; i < slots; i++) {
        struct hl_api_device *devices = hl_arena_array(&arena, 4, sizeof(*devices));
        for (int g = 0; g < gpus; g++)
            devices[g].id = hl_arena_printf(&arena, "%s-%d-%d", name, i, g);
        list[i] =
            (struct hl_api_slot){.numa_id = i, .cpus = cpus[i], .gpus = {devices, (size_t)gpus}};
    }
    const struct hl_api_node_info info = {.name = name,
                                          .host_id = name,
                                          .rank_address = hl_arena_printf(&arena, "%s.lan", name),
                                          .slots = {list, (size_t)slots}};
    assert_int_equal(hl_cluster_put(&cluster, &info), HL_OK);
    hl_arena_fini(&arena);
}

static struct hl_plan *make(int pp, int spares)
{
    static char name[] = "j", empty[] = "", replace[] = "replace";
    const struct hl_job job = {.name = name,
                               .model = empty,
                               .image = empty,
                               .on_node_lost = empty,
                               .recovery = replace,
                               .virtual_stages = 1,
                               .ep = 1,
                               .etp = 1,
                               .gpus_per_rank = -1,
                               .spare_slots = spares,
                               .grid = {pp, 1, 1, HL_ORDER_TP_DP_PP}};
    struct hl_plan *plan = NULL;
    assert_int_equal(hl_plan_make(&job, &cluster, &plan), HL_OK);
    return plan;
}

static int teardown(void **state)
{
    (void)state;
    hl_cluster_fini(&cluster);
    cluster = (struct hl_cluster){0};
    return 0;
}

TEST_IN(NULL, teardown, a_spare_is_on_a_server_without_the_gang_where_there_is_one)
{
    for (int i = 0; i < 3; i++)
        add_server((const char *const[]){"a", "b", "c"}[i], 2, 0);
    struct hl_plan *plan = make(2, 1);
    assert_true(plan->feasible);
    assert_int_equal(plan->container_count, 3);
    assert_int_equal(hl_plan_gang_count(plan), 2);
    assert_string_equal(plan->containers[2].node, "c");
    assert_true(hl_plan_is_spare(&plan->containers[2]));
    assert_false(hl_plan_is_spare(&plan->containers[1]));
    assert_null(plan->warnings);
    assert_int_equal(hl_plan_commit(plan, &cluster), HL_OK);
    assert_true(hl_cluster_find(&cluster, "c")->slots[0].busy); /* it is held like any other slot */
    hl_plan_free(plan);
}

TEST_IN(NULL, teardown, with_two_servers_it_is_beside_a_part_of_the_gang)
{
    add_server("a", 2, 0);
    add_server("b", 2, 0);
    struct hl_plan *plan = make(2, 2);
    assert_int_equal(plan->container_count, 4);
    assert_string_equal(plan->containers[2].node, "a");
    assert_string_equal(plan->containers[3].node, "b"); /* where fewer of its containers are */
    hl_plan_free(plan);
}

TEST_IN(NULL, teardown, what_is_lost_with_the_whole_gang_is_none_and_said_to_be_missing)
{
    add_server("a", 4, 0);
    struct hl_plan *plan = make(2, 1);
    assert_true(plan->feasible); /* it starts nevertheless */
    assert_int_equal(plan->container_count, 2);
    size_t last = 0;
    while (plan->warnings[last + 1] != NULL)
        last++;
    assert_string_equal(plan->warnings[last], "only 0 of 1 spare slots: no other server has a free "
                                              "slot that fits");
    hl_plan_free(plan);
    add_server("b", 1, 0);
    hl_cluster_set_draining(&cluster, "b", true);
    plan = make(2, 1);
    assert_int_equal(plan->container_count, 2);
    hl_plan_free(plan);
}

TEST_IN(NULL, teardown, the_ranks_of_a_lost_container_get_the_gpus_of_the_spares_slot)
{
    for (int i = 0; i < 3; i++)
        add_server((const char *const[]){"a", "b", "c"}[i], 1, 1);
    struct hl_plan *plan = make(2, 1), *back = NULL;
    assert_int_equal(hl_plan_move_ranks(plan, 1, 2), HL_OK);
    assert_string_equal(plan->master_node, "a");
    assert_string_equal(plan->containers[2].ranks[0].gpu, "c-0-0");
    json_t *doc = hl_plan_to_json(plan);
    assert_int_equal(hl_plan_from_json(doc, &back), HL_OK);
    json_decref(doc);
    assert_int_equal(back->containers[2].ranks[0].rank, 1);
    assert_string_equal(back->containers[2].gpus[0], "b-0-0");
    assert_true(hl_plan_is_spare(&back->containers[2]));
    hl_plan_free(back);
    hl_plan_free(plan);
}

/* The result as "NODE:SLOT#INDEX ". */
static char *refill(struct hl_plan *plan, int count, char *out, size_t size)
{
    static char name[] = "j", empty[] = "", replace[] = "replace";
    const struct hl_job job = {.name = name,
                               .model = empty,
                               .image = empty,
                               .on_node_lost = empty,
                               .recovery = replace,
                               .virtual_stages = 1,
                               .ep = 1,
                               .etp = 1,
                               .gpus_per_rank = -1,
                               .spare_slots = count,
                               .grid = {2, 1, 1, HL_ORDER_TP_DP_PP}};
    int had = plan->container_count, found = -1;
    assert_int_equal(hl_plan_refill_spares(plan, &job, &cluster, count, &found), HL_OK);
    assert_int_equal(plan->container_count, had + found);
    out[0] = '\0';
    for (int i = had; i < plan->container_count; i++) {
        const struct hl_plan_container *c = &plan->containers[i];
        assert_true(hl_plan_is_spare(c));
        assert_int_equal(c->rank_count, 0);
        snprintf(out + strlen(out), size - strlen(out), "%s:%d#%d ", c->node, c->numa_id, c->index);
    }
    return out;
}

TEST_IN(NULL, teardown, a_spare_that_was_used_is_found_another_slot_with_a_number_of_its_own)
{
    char text[128];
    for (int i = 0; i < 4; i++)
        add_server((const char *const[]){"a", "b", "c", "d"}[i], 1 + (i != 3), 0);
    hl_cluster_set_ready(&cluster, "d", false);
    struct hl_plan *plan = make(2, 1), *copy = NULL;
    assert_int_equal(hl_plan_commit(plan, &cluster), HL_OK);
    const char *lost = plan->containers[0].node;
    hl_cluster_set_ready(&cluster, lost, false);
    assert_int_equal(hl_plan_move_ranks(plan, 0, 2), HL_OK);
    json_t *doc =
        hl_plan_to_json(plan); /* as after a restart: it does not know the positions of nodes */
    assert_int_equal(hl_plan_from_json(doc, &copy), HL_OK);
    json_decref(doc);
    assert_string_equal(plan->containers[1].node, "b");
    assert_string_equal(plan->containers[2].node, "c");
    hl_cluster_set_ready(&cluster, "d", true);
    assert_string_equal(refill(copy, 1, text, sizeof(text)), "d:0#3 "); /* without the gang's */
    assert_int_equal(copy->next_index, 4);
    hl_plan_mark(copy, &cluster, true);
    assert_string_equal(refill(copy, 3, text, sizeof(text)), "b:1#4 c:1#5 "); /* and no more */
    assert_string_equal(refill(copy, 0, text, sizeof(text)), "");
    assert_true(copy->warnings == NULL || copy->warnings[0] == NULL);
    hl_plan_free(copy);
    hl_plan_free(plan);
}
