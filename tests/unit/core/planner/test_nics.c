/* Among servers that suit a gang equally well, those whose free slots have a NIC of their own are
 * preferred. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/planner/plan.h"

#define SLOTS 2

static struct hl_cluster cluster;

/* The first `nics` of its slots have one. */
static void add_server(const char *name, int nics)
{
    struct hl_api_slot slots[SLOTS] = {{.cpus = "0-3"}, {.numa_id = 1, .cpus = "4-7"}};
    struct hl_api_device nic = {.nic_class = "ConnectX-6"};
    for (int i = 0; i < nics; i++)
        slots[i].nics = (struct hl_api_device_list){&nic, 1};
    const struct hl_api_node_info info = {
        .name = name, .host_id = name, .rank_address = name, .slots = {slots, SLOTS}};
    assert_int_equal(hl_cluster_put(&cluster, &info), HL_OK);
}

static int teardown(void **state)
{
    (void)state;
    hl_cluster_fini(&cluster);
    cluster = (struct hl_cluster){0};
    return 0;
}

/* Nodes of the containers, in order, separated by spaces. */
static const char *places(int pp, int tp, struct hl_place_rules rules)
{
    static char name[] = "j", empty[] = "", restart[] = "restart", out[256];
    const struct hl_job job = {.name = name,
                               .model = empty,
                               .image = empty,
                               .on_node_lost = empty,
                               .recovery = restart,
                               .virtual_stages = 1,
                               .ep = 1,
                               .etp = tp,
                               .gpus_per_rank = -1,
                               .placement = rules,
                               .grid = {pp, tp, 1, HL_ORDER_TP_DP_PP}};
    struct hl_plan *plan = NULL;
    assert_int_equal(hl_plan_make(&job, &cluster, &plan), HL_OK);
    assert_true(plan->feasible);
    out[0] = '\0';
    for (int i = 0; i < plan->container_count; i++)
        snprintf(out + strlen(out), sizeof(out) - strlen(out), "%s%s", i > 0 ? " " : "",
                 plan->containers[i].node);
    hl_plan_free(plan);
    return out;
}

static const struct hl_place_rules none;

TEST_IN(NULL, teardown, a_gang_goes_where_nics_are_and_not_to_the_lowest_names)
{
    add_server("a", 0);
    add_server("b", 0);
    assert_string_equal(places(2, 1, none), "a b"); /* all are equal */
    add_server("c", 2);
    add_server("d", 2);
    assert_string_equal(places(2, 1, none), "c d");
    assert_string_equal(places(2, 2, none), "c c d d");
}

TEST_IN(NULL, teardown, a_group_is_not_cut_for_nics)
{
    add_server("a", 0);
    add_server("c", 1);
    add_server("d", 1);
    assert_string_equal(places(1, 2, none), "a a");
}

TEST_IN(NULL, teardown, a_half_used_server_is_filled_first)
{
    add_server("a", 0);
    add_server("c", 2);
    hl_cluster_set_busy(&cluster, "a", 0, true);
    assert_string_equal(places(1, 1, none), "a");
    hl_cluster_set_busy(&cluster, "c", 0, true);
    assert_string_equal(places(1, 1, none), "c");
}

TEST_IN(NULL, teardown, a_preferred_rule_is_not_given_up_for_nics)
{
    add_server("a", 0);
    add_server("c", 1);
    add_server("d", 1);
    const struct hl_place_rules rules = {.gang = {HL_LEVEL_SERVER, false}};
    assert_string_equal(places(2, 1, rules), "a a");
}

TEST_IN(NULL, teardown, with_too_few_nics_all_is_as_without)
{
    add_server("a", 0);
    add_server("b", 0);
    add_server("c", 2);
    assert_string_equal(places(2, 1, none), "a b");
}
