/* What `helios top` reads out of the nodes' telemetry. */
#include "support/test.h"

#include <string.h>

#include "cli/cluster/top.h"

TEST(a_job_uses_what_its_containers_on_all_nodes_use_and_no_other_jobs)
{
    struct hl_api_container_load a[] = {
        {.id = "job-1.1.0", .cpu_percent = 50, .memory_bytes = 10},
        {.id = "job-10.1.0", .cpu_percent = 900, .memory_bytes = 90}};
    struct hl_api_container_load b[] = {{.id = "job-1.1.1", .cpu_percent = 25, .memory_bytes = 5}};
    struct hl_api_node_state nodes[] = {{.telemetry.containers = {a, 2}},
                                        {.telemetry.containers = {b, 1}}};
    const struct hl_api_node_state_list list = {nodes, 2};
    struct top_use use = top_job_use(&list, "job-1");
    assert_true(use.cpu_percent == 75);
    assert_int_equal(use.memory_bytes, 15);
    assert_true(top_job_use(&list, "job").cpu_percent == 0);
}

TEST(a_slot_has_the_mean_of_its_own_gpus)
{
    struct hl_api_gpu_load gpus[] = {
        {.id = "0:1", .busy_percent = 90}, {.id = "0:2", .busy_percent = 10}, {.id = "0:3"}};
    struct hl_api_device own[] = {{.id = "0:1"}, {.id = "0:2"}};
    const struct hl_api_telemetry t = {.gpus = {gpus, 3}};
    const struct hl_api_slot slot = {.gpus = {own, 2}}, none = {0};
    assert_true(top_gpu_percent(&t, &slot) == 50);
    assert_true(top_gpu_percent(&t, NULL) == 100.0 / 3);
    assert_true(top_gpu_percent(&t, &none) == 0);
}

TEST(what_is_not_measured_is_not_found)
{
    struct hl_api_slot_load slots[] = {{.numa_id = 8, .cpu_busy_percent = 7}};
    struct hl_api_container_load loads[] = {{.id = "j.1.0"}};
    const struct hl_api_telemetry t = {.slots = {slots, 1}, .containers = {loads, 1}};
    assert_ptr_equal(top_slot_load(&t, 8), &slots[0]);
    assert_null(top_slot_load(&t, 0));
    assert_ptr_equal(top_container_load(&t, "j.1.0"), &loads[0]);
    assert_null(top_container_load(&t, ""));
}
