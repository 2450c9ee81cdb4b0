#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/planner/plan.h"
#include "hw/topology.h"

static char path[4096];

static const char *data_file(const char *name)
{
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(path, sizeof(path), "%s/tests/data/topo/%s", source != NULL ? source : ".", name);
    return path;
}

/* "0 cpus 0-3 gpus 0004:04:00.0 0004:05:00.0 nics 0003:01:00.0;" for every slot. */
static char text[8192];

static void put(const char *word)
{
    strncat(text, word, sizeof(text) - strlen(text) - 1);
}

static const char *describe(const struct hl_topo *t)
{
    text[0] = '\0';
    for (size_t s = 0; s < t->slot_count; s++) {
        const struct hl_topo_slot *slot = &t->slots[s];
        char number[32];
        char *cpus = hl_cpus_format(&slot->cpus);
        snprintf(number, sizeof(number), "%d cpus ", slot->numa_id);
        put(number);
        put(cpus);
        free(cpus);
        for (size_t i = 0; i < slot->gpu_count; i++) {
            put(i == 0 ? " gpus " : " ");
            put(slot->gpus[i].pci);
        }
        for (size_t i = 0; i < slot->nic_count; i++) {
            put(i == 0 ? " nics " : " ");
            put(slot->nics[i].pci);
            put(" ");
            put(hl_nic_class_name(slot->nics[i].nic_class));
        }
        put(";\n");
    }
    return text;
}

TEST(slots_keep_the_systems_numbers_and_gpu_memory_is_none)
{
    struct hl_topo t;
    assert_int_equal(hl_topology_load_xml(data_file("power-2slots.xml"), &t), HL_OK);
    assert_string_equal(describe(&t),
                        "0 cpus 0-3 gpus 0004:04:00.0 0004:05:00.0 nics 0003:01:00.0 ConnectX-5 "
                        "0003:01:00.1 ConnectX-5;\n"
                        "8 cpus 88-91 gpus 0035:03:00.0 nics 0033:01:00.0 ConnectX-5;\n");
    assert_string_equal(t.machine, "Sample Power");
    assert_string_equal(t.slots[0].gpus[0].name, "cuda0");
    assert_int_equal(t.slots[0].gpus[0].memory_bytes, 16ull << 30);
    assert_string_equal(t.slots[0].nics[0].name, "mlx5_0");
    assert_int_equal(t.slots[1].memory_bytes, 32ull << 30);
    assert_int_equal(hl_topo_nic_boards(&t), 1); /* three functions, one SysImageGUID */
    hl_topo_fini(&t);
}

TEST(display_cards_and_virtual_functions_do_not_count)
{
    struct hl_topo t;
    assert_int_equal(hl_topology_load_xml(data_file("x86-2slots.xml"), &t), HL_OK);
    assert_string_equal(describe(&t), "0 cpus 0-1,4-5 nics 0000:04:00.0 ConnectX-4;\n"
                                      "1 cpus 2-3,6-7 gpus 0000:83:00.0 0000:85:00.0;\n");
    assert_string_equal(t.slots[1].gpus[1].name, "nvml0");
    hl_topo_fini(&t);
    assert_int_equal(hl_topology_load_xml(data_file("bare-2slots.xml"), &t), HL_OK);
    assert_string_equal(describe(&t), "0 cpus 0;\n1 cpus 1;\n");
    assert_int_equal(hl_topo_nic_boards(&t), 0);
    hl_topo_fini(&t);
}

TEST(files_that_are_no_topology_are_refused_with_a_sentence)
{
    struct hl_topo t = {0};
    assert_int_equal(hl_topology_load_xml(data_file("version-3.xml"), &t), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "is hwloc XML of version 3; export it with"));
    assert_int_equal(hl_topology_load_xml("/nowhere.xml", &t), HL_ENOENT);
    assert_int_equal(hl_topology_load_xml("/", &t), HL_EIO);
    char bad[] = "/tmp/helios-topo-XXXXXX";
    int fd = mkstemp(bad);
    assert_true(fd >= 0);
    assert_int_equal(hl_topology_load_xml(bad, &t), HL_EINVAL); /* empty */
    static const char broken[] = "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object ";
    assert_int_equal(write(fd, broken, sizeof(broken) - 1), sizeof(broken) - 1);
    close(fd);
    assert_int_equal(hl_topology_load_xml(bad, &t), HL_EINVAL);
    unlink(bad);
    assert_null(t.slots);
}

TEST(this_machine_has_the_cpus_we_may_use)
{
    struct hl_topo t;
    int cpus = 0;
    assert_int_equal(hl_topology_load_machine(&t), HL_OK);
    for (size_t s = 0; s < t.slot_count; s++)
        cpus += hl_cpus_count(&t.slots[s].cpus);
    assert_int_equal(cpus, sysconf(_SC_NPROCESSORS_ONLN) < cpus ? -1 : cpus);
    assert_true(cpus >= 1);
    assert_true(t.slots[0].memory_bytes > 0);
    hl_topo_fini(&t);
}

/* ---- real machines ----------------------------------------------------------------------------
 * Their files are not part of this repository; the expected slots are from the README beside them.
 */

static void load_real(const char *file, struct hl_topo *out)
{
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(path, sizeof(path), "%s/../shared/topologies/%s", source != NULL ? source : ".", file);
    if (access(path, R_OK) != 0) {
        TEST_SKIP("%s is not here", path);
    }
    assert_int_equal(hl_topology_load_xml(path, out), HL_OK);
}

static void check_real(const char *file, const char *want, size_t boards)
{
    struct hl_topo t;
    load_real(file, &t);
    assert_string_equal(describe(&t), want);
    assert_int_equal(hl_topo_nic_boards(&t), boards);
    hl_topo_fini(&t);
}

TEST(the_ac922_has_two_slots_and_one_board)
{
    check_real("ac922-8335gtw-4v100-cx5.xml",
               "0 cpus 0-87 gpus 0004:04:00.0 0004:05:00.0 nics 0003:01:00.0 ConnectX-5 "
               "0003:01:00.1 ConnectX-5;\n"
               "8 cpus 88-175 gpus 0035:03:00.0 0035:04:00.0 nics 0033:01:00.0 ConnectX-5 "
               "0033:01:00.1 ConnectX-5;\n",
               1);
}

TEST(the_dgx2h_has_eight_gpus_per_slot_and_no_nic)
{
    check_real("dgx2h-16v100-nonic.xml",
               "0 cpus 0-1 gpus 0000:34:00.0 0000:36:00.0 0000:39:00.0 0000:3b:00.0 0000:57:00.0 "
               "0000:59:00.0 0000:5c:00.0 0000:5e:00.0;\n"
               "1 cpus 24-25 gpus 0000:b7:00.0 0000:b9:00.0 0000:bc:00.0 0000:be:00.0 0000:e0:00.0 "
               "0000:e2:00.0 0000:e5:00.0 0000:e7:00.0;\n",
               0);
}

TEST(the_epyc_has_slots_without_gpu_and_one_nic)
{
    check_real("epyc-8numa-4gpu-cx6.xml",
               "0 cpus 0-5,48-53;\n"
               "1 cpus 6-11,54-59 gpus 0000:13:00.0;\n"
               "2 cpus 12-17,60-65 gpus 0000:23:00.0;\n"
               "3 cpus 18-23,66-71 nics 0000:33:00.0 ConnectX-6;\n"
               "4 cpus 24-29,72-77;\n"
               "5 cpus 30-35,78-83 gpus 0000:53:00.0;\n"
               "6 cpus 36-41,84-89;\n"
               "7 cpus 42-47,90-95 gpus 0000:73:00.0;\n",
               1);
}

/* Its only NIC is on NUMA node 3; nodes 0, 4 and 6 have no GPU either. */
TEST(on_the_epyc_a_rank_without_gpus_goes_to_the_slot_with_the_nic)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = NULL;
    struct hl_cluster cluster = {0};
    struct hl_api_node_info node = {.name = "epyc"};
    char empty[] = "";
    const struct hl_job job = {.name = empty,
                               .model = empty,
                               .model_size = empty,
                               .virtual_stages = 1,
                               .ep = 1,
                               .etp = 1,
                               .grid = {1, 1, 1, HL_ORDER_TP_DP_PP}};
    struct hl_topo t;
    load_real("epyc-8numa-4gpu-cx6.xml", &t);
    assert_int_equal(hl_topo_to_api(&t, &arena, &node.slots), HL_OK);
    assert_int_equal(hl_cluster_put(&cluster, &node), HL_OK);
    assert_int_equal(hl_plan_make(&job, &cluster, &plan), HL_OK);
    assert_int_equal(plan->containers[0].numa_id, 3);
    hl_cluster_fini(&cluster);
    hl_topo_fini(&t);
}

TEST(the_power8_has_two_gpus_per_slot)
{
    check_real("power8-8335gtb-4p100-nvlink.xml",
               "0 cpus 0-1,8-9,16-17,24-25 gpus 0002:01:00.0 0003:01:00.0;\n"
               "1 cpus 80-81,88-89,96-97,104-105 gpus 000a:01:00.0 000b:01:00.0;\n",
               0);
}

TEST(the_x86_machine_has_three_gpus_and_a_forced_plank)
{
    check_real("x86-2socket-3gpu-cx4.xml",
               "0 cpus 0-7,16-23 gpus 0000:03:00.0;\n"
               "1 cpus 8-15,24-31 gpus 0000:83:00.0 0000:84:00.0 nics 0000:04:00.0 ConnectX-4;\n",
               1);
}
