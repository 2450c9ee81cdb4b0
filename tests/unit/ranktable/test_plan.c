/* Rank tables of gangs that Helios placed itself. Expected documents are worked out by hand. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/lint.h"
#include "ranktable/plan.h"

/* A node of two slots, NUMA 0 and 8 as on Power9. `gpus`: PCI addresses of both, three each. */
static void add_node_of(struct hl_cluster *c, const char *name, const char *address,
                        const char *const *gpus, const char *own)
{
    struct hl_api_device devices[6] = {0};
    for (int g = 0; gpus != NULL && g < 6; g++)
        devices[g].id = gpus[g];
    size_t each = gpus != NULL ? 3 : 0;
    struct hl_api_slot slots[] = {{.numa_id = 0, .cpus = "0-3", .gpus = {&devices[0], each}},
                                  {.numa_id = 8, .cpus = "4-7", .gpus = {&devices[3], each}}};
    const struct hl_api_node_info info = {.name = name,
                                          .host_id = name,
                                          .rank_address = name,
                                          .host_address = address,
                                          .device_addresses = own,
                                          .slots = {slots, 2}};
    assert_int_equal(hl_cluster_put(c, &info), HL_OK);
}

static void add_node(struct hl_cluster *c, const char *name, const char *address,
                     const char *const *gpus)
{
    add_node_of(c, name, address, gpus, "");
}

static struct hl_plan *plan_of(const char *job, const struct hl_cluster *c)
{
    struct hl_job spec;
    struct hl_plan *plan = NULL;
    json_t *doc = json_loads(job, 0, NULL);
    assert_non_null(doc);
    assert_int_equal(hl_job_parse(doc, NULL, &spec), HL_OK);
    assert_int_equal(hl_plan_make(&spec, c, &plan), HL_OK);
    assert_true(plan->feasible);
    hl_job_fini(&spec);
    json_decref(doc);
    return plan;
}

static void assert_table(const struct hl_plan *plan, const struct hl_cluster *c,
                         enum hl_ranktable_format format, const char *want)
{
    char *text = NULL;
    hl_status st = hl_ranktable_plan_text(plan, c, "gpt-1", format, &text);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    json_t *got = json_loads(text, 0, NULL), *expected = json_loads(want, 0, NULL);
    assert_non_null(expected);
    if (!json_equal(got, expected))
        fail_msg("got %s", text);
    json_decref(got);
    json_decref(expected);
    free(text);
}

/* Six GPUs on two buses; the second slot's come first on the bus. */
static const char *const gpus[] = {"0035:03:00.0", "0035:04:00.0", "0035:05:00.0",
                                   "0004:04:00.0", "0004:05:00.0", "0004:06:00.0"};

TEST(devices_are_numbered_as_the_driver_does)
{
    struct hl_cluster c = {0};
    add_node(&c, "power", "10.0.0.1", gpus);
    struct hl_plan *plan = plan_of("{\"jobName\":\"gpt\",\"command\":\"x\",\"parallelism\":"
                                   "{\"tensor_parallel_size\":2,\"data_parallel_size\":2},"
                                   "\"resources\":{\"ranks_per_slot\":2}}",
                                   &c);
    assert_table(
        plan, &c, HL_RANKTABLE_V2,
        "{\"status\":\"completed\",\"server_count\":\"1\",\"version\":\"1.0\","
        "\"server_list\":["
        "{\"server_id\":\"power\",\"device\":["
        "{\"device_id\":\"3\",\"rank_id\":\"0\"},{\"device_id\":\"4\",\"rank_id\":\"1\"},"
        "{\"device_id\":\"0\",\"rank_id\":\"2\"},{\"device_id\":\"1\",\"rank_id\":\"3\"}]}]}");
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

static const char *const cpu_job = "{\"jobName\":\"gpt\",\"command\":\"x\",\"parallelism\":"
                                   "{\"tensor_parallel_size\":2,\"pipeline_parallel_size\":2},"
                                   "\"resources\":{\"gpus_per_rank\":0,\"ranks_per_slot\":1}}";

TEST(without_accelerators_devices_are_the_slots)
{
    struct hl_cluster c = {0};
    add_node(&c, "node-0", "10.0.0.1", NULL);
    add_node(&c, "node-1", "fe80::2", NULL);
    struct hl_plan *plan = plan_of(cpu_job, &c);
    assert_table(
        plan, &c, HL_RANKTABLE_V1,
        "{\"status\":\"completed\",\"group_count\":\"1\",\"group_list\":[{\"group_name\":\"\","
        "\"instance_count\":\"4\",\"instance_list\":["
        "{\"pod_name\":\"gpt-1.0\",\"server_id\":\"node-0\",\"devices\":["
        "{\"device_id\":\"0\",\"device_ip\":\"10.0.0.1\"}]},"
        "{\"pod_name\":\"gpt-1.1\",\"server_id\":\"node-0\",\"devices\":["
        "{\"device_id\":\"1\",\"device_ip\":\"10.0.0.1\"}]},"
        "{\"pod_name\":\"gpt-1.2\",\"server_id\":\"node-1\",\"devices\":["
        "{\"device_id\":\"0\",\"device_ip\":\"fe80::2\"}]},"
        "{\"pod_name\":\"gpt-1.3\",\"server_id\":\"node-1\",\"devices\":["
        "{\"device_id\":\"1\",\"device_ip\":\"fe80::2\"}]}]}]}");
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

TEST(the_whole_job_is_one_super_pod)
{
    struct hl_cluster c = {0};
    add_node(&c, "node-0", "10.0.0.1", NULL);
    struct hl_plan *plan =
        plan_of("{\"jobName\":\"gpt\",\"command\":\"x\",\"parallelism\":"
                "{\"data_parallel_size\":3},\"resources\":{\"ranks_per_slot\":2}}",
                &c);
    assert_table(plan, &c, HL_RANKTABLE_1_2,
                 "{\"status\":\"completed\",\"server_count\":\"1\",\"version\":\"1.2\","
                 "\"server_list\":["
                 "{\"server_id\":\"node-0\",\"host_ip\":\"10.0.0.1\",\"device\":["
                 "{\"device_id\":\"0\",\"super_device_id\":\"0\",\"rank_id\":\"0\"},"
                 "{\"device_id\":\"1\",\"super_device_id\":\"1\",\"rank_id\":\"1\"},"
                 "{\"device_id\":\"2\",\"super_device_id\":\"2\",\"rank_id\":\"2\"}]}],"
                 "\"super_pod_list\":[{\"super_pod_id\":\"0\",\"server_list\":["
                 "{\"server_id\":\"node-0\"}]}]}");
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

/* The number of faults that lint finds in such a job's table. */
static size_t faults_of(const char *job, int nodes, enum hl_ranktable_format format,
                        enum hl_ranktable_chip chip)
{
    struct hl_cluster c = {0};
    struct hl_ranktable_report report;
    char *text = NULL;
    for (int i = 0; i < nodes; i++) {
        char name[32], address[32];
        snprintf(name, sizeof(name), "node-%d", i);
        snprintf(address, sizeof(address), "10.0.0.%d", i + 1);
        add_node(&c, name, address, NULL);
    }
    struct hl_plan *plan = plan_of(job, &c);
    assert_int_equal(hl_ranktable_plan_text(plan, &c, "gpt-1", format, &text), HL_OK);
    assert_int_equal(hl_ranktable_lint(chip, text, strlen(text), &report), HL_OK);
    assert_int_equal(report.devices, plan->world_size);
    size_t faults = report.faults;
    hl_ranktable_report_fini(&report);
    hl_plan_free(plan);
    hl_cluster_fini(&c);
    free(text);
    return faults;
}

/* For devices only the address of their node is known. Between servers HCCL wants one for each. */
TEST(tables_of_containers_that_share_nodes_pass_our_lint)
{
    static const char wide[] = "{\"jobName\":\"g\",\"command\":\"x\",\"parallelism\":"
                               "{\"data_parallel_size\":2},\"resources\":{\"ranks_per_slot\":1,"
                               "\"gpus_per_rank\":0}}";
    assert_int_equal(faults_of(wide, 1, HL_RANKTABLE_V2, HL_RANKTABLE_A2), 0);
    assert_int_equal(faults_of(wide, 1, HL_RANKTABLE_1_2, HL_RANKTABLE_A3), 0);
    assert_int_equal(faults_of(cpu_job, 2, HL_RANKTABLE_1_2, HL_RANKTABLE_A3), 0);
    assert_int_equal(faults_of(cpu_job, 2, HL_RANKTABLE_V2, HL_RANKTABLE_A2), 2);
}

/* Rank r is the r-th in the table, whichever nodes the gang got. */
TEST(a_gang_that_is_placed_elsewhere_keeps_its_ranks)
{
    struct hl_cluster c = {0};
    for (int i = 0; i < 4; i++) {
        char name[32], address[32];
        snprintf(name, sizeof(name), "node-%d", i);
        snprintf(address, sizeof(address), "10.0.0.%d", i);
        add_node(&c, name, address, NULL);
    }
    for (int lost = 0; lost < 3; lost++) {
        struct hl_ranktable t = {0};
        struct hl_plan *plan = plan_of(cpu_job, &c);
        assert_int_equal(hl_ranktable_of_plan(plan, &c, "gpt-1", &t), HL_OK);
        assert_int_equal(t.count, 4);
        for (int r = 0; r < 4; r++) {
            char name[32];
            snprintf(name, sizeof(name), "gpt-1.%d", r);
            assert_string_equal(t.instances[r].name, name);
            assert_int_equal(t.instances[r].first_rank, r);
            assert_string_equal(t.instances[r].server_id, plan->containers[r].node);
        }
        hl_ranktable_fini(&t);
        hl_cluster_set_ready(&c, plan->master_node, 0);
        hl_plan_free(plan);
    }
    hl_cluster_fini(&c);
}

TEST(two_nodes_without_addresses_have_no_table)
{
    struct hl_cluster c = {0};
    char *text = NULL;
    add_node(&c, "node-0", "10.0.0.1", NULL);
    add_node(&c, "node-1", "not-an-address", NULL);
    struct hl_plan *plan = plan_of(cpu_job, &c);
    assert_int_equal(hl_ranktable_plan_text(plan, &c, "gpt-1", HL_RANKTABLE_V2, &text), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "gpt-1.2: device 0 has no address"));
    hl_cluster_remove(&c, "node-1");
    assert_int_equal(hl_ranktable_plan_text(plan, &c, "gpt-1", HL_RANKTABLE_V2, &text), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "node-1"));
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

/* ---- devices with addresses of their own ------------------------------------------------------
 */

#define TWO_NODES                                                                                  \
    "{\"jobName\":\"gpt\",\"command\":\"x\",\"parallelism\":{\"tensor_parallel_size\":2,"          \
    "\"data_parallel_size\":4},\"resources\":{\"ranks_per_slot\":2}}"
#define SIX "192.168.1.0,192.168.1.1,192.168.1.2,192.168.1.3,192.168.1.4,192.168.1.5"

static struct hl_plan *two_nodes(struct hl_cluster *c, const char *second)
{
    add_node_of(c, "power-1", "10.0.0.1", gpus, SIX);
    add_node_of(c, "power-2", "10.0.0.2", gpus, second);
    return plan_of(TWO_NODES, c);
}

TEST(ranks_on_several_nodes_have_the_addresses_of_their_devices_and_a_sound_table)
{
    static const char *const want[] = {"192.168.1.3", "192.168.1.4", "192.168.1.0", "192.168.1.1",
                                       "fd00::3",     "fd00::4",     "fd00::0",     "fd00::1"};
    struct hl_cluster c = {0};
    struct hl_plan *plan = two_nodes(&c, "fd00::0,fd00::1,fd00::2,fd00::3,fd00::4");

    enum hl_ranktable_format formats[] = {HL_RANKTABLE_V1, HL_RANKTABLE_V2};

    for (size_t f = 0; f < HL_ARRAY_LEN(formats); f++) {
        char *text = NULL, device[64];
        assert_int_equal(hl_ranktable_plan_text(plan, &c, "gpt-1", formats[f], &text), HL_OK);
        for (size_t rank = 0; rank < HL_ARRAY_LEN(want); rank++) {
            snprintf(device, sizeof(device), "\"device_ip\":\"%s\"", want[rank]);
            const char *at = strstr(text, device);
            if (at == NULL || strstr(at + 1, device) != NULL)
                fail_msg("%s is not there once: %s", device, text);
        }
        struct hl_ranktable_report report;
        assert_int_equal(hl_ranktable_lint(HL_RANKTABLE_A2, text, strlen(text), &report), HL_OK);
        assert_int_equal(report.faults, formats[f] == HL_RANKTABLE_V2 ? 0 : 1); /* v1 is older */
        hl_ranktable_report_fini(&report);
        free(text);
    }
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

static void expect_refused(const char *second, const char *why)
{
    struct hl_cluster c = {0};
    struct hl_plan *plan = two_nodes(&c, second);
    char *text = NULL;
    assert_int_equal(hl_ranktable_plan_text(plan, &c, "gpt-1", HL_RANKTABLE_V2, &text), HL_EINVAL);
    assert_null(text);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("%s", hl_error_text());
    hl_plan_free(plan);
    hl_cluster_fini(&c);
}

TEST(addresses_that_are_missing_or_stand_twice_are_refused_by_name)
{
    expect_refused("10.1.1.0,10.1.1.1", "node power-2 has no address for its device 3");
    expect_refused(SIX, "nodes power-1 and power-2 have the address 192.168.1.3");
}
