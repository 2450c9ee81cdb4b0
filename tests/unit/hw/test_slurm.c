/* The part of a machine that an allocation has. Expected values are worked out by hand. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "hw/slurm.h"
#include "os/file.h"

static char root[64];

static void set_step(const char *cpus)
{
    static const char *const all[] = {"SLURM_STEP_GPUS",      "SLURM_JOB_GPUS",
                                      "CUDA_VISIBLE_DEVICES", "SLURM_LOCALID",
                                      "SLURM_MEM_PER_NODE",   "SLURM_MEM_PER_CPU"};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        unsetenv(all[i]);
    setenv("SLURM_JOB_ID", "71", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURMD_NODENAME", "hn1", 1);
    setenv("SLURM_CPUS_ON_NODE", cpus, 1);
}

static int make_world(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/helios-test-slurm-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < 4; i++) {
        char path[160], text[128];
        snprintf(path, sizeof(path), "%s/0000:0%d:00.0", root, 4 - i); /* not in bus order */
        assert_int_equal(hl_dir_make(path, 0755), HL_OK);
        snprintf(path, sizeof(path), "%s/0000:0%d:00.0/information", root, 4 - i);
        snprintf(text, sizeof(text), "GPU UUID: \t GPU-%d%d\nDevice Minor: \t %d\n", i, i, i);
        assert_int_equal(hl_file_write_atomic(path, text, strlen(text)), HL_OK);
    }
    set_step("4");
    return 0;
}

static int remove_world(void **state)
{
    (void)state;
    set_step("");
    unsetenv("SLURM_JOB_ID");
    return hl_dir_remove(root) == HL_OK ? 0 : -1;
}

/* Slots 0 and 1 with CPUs 0-2 and 8, GPUs 1, 2 and 3, 4 in bus order, 1 GiB each. */
static struct hl_topo bound_machine(void)
{
    static const char *const cpus[] = {"0-2", "8"};
    struct hl_topo t = {0};
    for (int i = 0; i < 2; i++) {
        struct hl_topo_slot *slot;
        assert_int_equal(hl_topo_add_slot(&t, i, &slot), HL_OK);
        assert_int_equal(hl_cpus_parse(cpus[i], &slot->cpus), HL_OK);
        slot->memory_bytes = 1 << 30;
        for (int g = 1; g <= 2; g++) {
            struct hl_topo_device gpu = {.vendor = 0x10de};
            snprintf(gpu.pci, sizeof(gpu.pci), "0000:0%d:00.0", 2 * i + g);
            assert_int_equal(hl_topo_add_device(slot, HL_PCI_GPU, &gpu), HL_OK);
        }
    }
    return t;
}

/* Last digits of the GPUs' addresses, "12|34" is all. */
static void assert_gpus(const char *want)
{
    struct hl_topo t = bound_machine();
    char text[16] = "";
    assert_int_equal(hl_slurm_keep(root, &t), HL_OK);
    for (size_t s = 0; s < t.slot_count; s++) {
        if (s > 0)
            strncat(text, "|", sizeof(text) - strlen(text) - 1);
        for (size_t i = 0; i < t.slots[s].gpu_count; i++)
            strncat(text, t.slots[s].gpus[i].pci + 6, 1);
    }
    assert_string_equal(text, want);
    hl_topo_fini(&t);
}

TEST_IN(make_world, remove_world, gpus_are_those_of_the_step_by_their_device_files)
{
    assert_gpus("|"); /* a job without GRES */
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    assert_gpus("|"); /* numbers there are the cgroup's, not the machine's */
    setenv("SLURM_JOB_GPUS", "0-2", 1);
    assert_gpus("2|34"); /* minors 0, 1, 2 are 4, 3, 2 in bus order */
    setenv("SLURM_STEP_GPUS", "3,1", 1);
    assert_gpus("1|3");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-22", 1);
    assert_gpus("2|");
}

TEST_IN(make_world, remove_world, memory_is_the_jobs_by_the_slots_cpus)
{
    struct hl_topo t = bound_machine();
    setenv("SLURM_MEM_PER_NODE", "800", 1);
    assert_int_equal(hl_slurm_keep(root, &t), HL_OK);
    assert_int_equal(t.slots[0].memory_bytes, 600 << 20);
    assert_int_equal(t.slots[1].memory_bytes, 200 << 20);
    hl_topo_fini(&t);
    unsetenv("SLURM_MEM_PER_NODE");
    setenv("SLURM_MEM_PER_CPU", "500", 1);
    t = bound_machine();
    assert_int_equal(hl_slurm_keep(root, &t), HL_OK);
    assert_int_equal(t.slots[0].memory_bytes, 1 << 30); /* not more than the machine has */
    assert_int_equal(t.slots[1].memory_bytes, 500 << 20);
    hl_topo_fini(&t);
}

TEST_IN(make_world, remove_world, cpus_that_the_job_was_not_given_are_a_refusal)
{
    struct hl_topo t = bound_machine();
    setenv("SLURM_CPUS_ON_NODE", "3", 1);
    assert_int_equal(hl_slurm_keep(root, &t), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "job 71 3 CPUs"));
    assert_non_null(strstr(hl_error_text(), "TaskPlugin="));
    unsetenv("SLURM_CPUS_ON_NODE");
    assert_int_equal(hl_slurm_keep(root, &t), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "SLURM_CPUS_ON_NODE"));
    hl_topo_fini(&t);
}

TEST_IN(make_world, remove_world, an_agent_is_named_after_its_node_and_task)
{
    char name[64];
    assert_true(hl_slurm_inside());
    hl_slurm_node_name(name, sizeof(name));
    assert_string_equal(name, "hn1");
    setenv("SLURM_LOCALID", "0", 1);
    hl_slurm_node_name(name, sizeof(name));
    assert_string_equal(name, "hn1");
    setenv("SLURM_LOCALID", "2", 1);
    hl_slurm_node_name(name, sizeof(name));
    assert_string_equal(name, "hn1.2");
    unsetenv("SLURM_STEP_ID"); /* in a batch script or a shell of the submit host */
    assert_false(hl_slurm_inside());
}
