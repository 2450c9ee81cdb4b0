/* The health test of a node, on this machine: a check that is made to fail is named, the others
 * pass. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/health/health.h"
#include "os/file.h"

static char dir[] = "/tmp/helios-health-XXXXXX";
static struct hl_api_slot slot = {.numa_id = 0, .cpus = "0"};
static const struct hl_api_slot_list slots = {&slot, 1};

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return hl_dir_remove(dir) == HL_OK ? 0 : -1;
}

TESTS_IN(setup, teardown)

static struct hl_health_opts healthy(void)
{
    return (struct hl_health_opts){.slots = &slots,
                                   .log_dir = dir,
                                   .sys = "/sys",
                                   .script = "",
                                   .memory_least = 1,
                                   .deadline_ms = 60000};
}

/* A script with this body. */
static const char *script(const char *body)
{
    static char path[300];
    snprintf(path, sizeof(path), "%s/script", dir);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", body);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static const struct hl_api_health_row *row(const struct hl_api_health *h, const char *name)
{
    for (size_t i = 0; i < h->rows.count; i++)
        if (strcmp(h->rows.items[i].name, name) == 0)
            return &h->rows.items[i];
    fail_msg("there is no row %s", name);
    return NULL;
}

static struct hl_api_health test_with(const struct hl_health_opts *opts, struct hl_arena *arena)
{
    struct hl_api_health h;
    assert_int_equal(hl_health_test(opts, arena, &h), HL_OK);
    return h;
}

TEST(a_sound_machine_passes_every_row)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.script = script("echo first; echo all is well");
    struct hl_api_health h = test_with(&opts, &arena);
    assert_string_equal(h.reason, "");
    assert_int_equal(h.state, HL_API_HEALTH_STATE_PASSED);
    assert_true(h.time_ms > 0);
    for (size_t i = 0; i < h.rows.count; i++)
        assert_int_not_equal(h.rows.items[i].state, HL_API_HEALTH_STATE_FAILED);
    assert_non_null(strstr(row(&h, "memory")->value, "/s copied"));
    assert_string_equal(row(&h, "checksum")->value, "1 slot, 32 MiB each");
    assert_string_equal(row(&h, "script")->value, "all is well");
    (void)row(&h, "network");
    assert_non_null(strstr(row(&h, "disk")->value, " free"));
}

TEST(slow_memory_fails_with_both_figures)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.memory_least = UINT64_C(1) << 60;
    struct hl_api_health h = test_with(&opts, &arena);
    assert_int_equal(h.state, HL_API_HEALTH_STATE_FAILED);
    assert_non_null(strstr(h.reason, "memory: slot 0 copies "));
    assert_non_null(strstr(h.reason, "are required (agent.health_memory)"));
    assert_int_equal(row(&h, "checksum")->state, HL_API_HEALTH_STATE_PASSED);
}

TEST(a_log_disk_that_cannot_be_written_fails)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.busy = true;
    opts.log_dir = "/proc";
    struct hl_api_health h = test_with(&opts, &arena);
    assert_non_null(strstr(h.reason, "disk: /proc can't be written"));
    opts.log_dir = "/nowhere";
    h = test_with(&opts, &arena);
    assert_non_null(strstr(h.reason, "disk: /nowhere: No such file"));
}

TEST(a_script_that_fails_is_named_with_its_last_line)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.busy = true;
    opts.script = script("echo begin; echo 'fan 3 stands still' >&2; exit 4");
    struct hl_api_health h = test_with(&opts, &arena);
    assert_string_equal(h.reason, "script: exit code 4: fan 3 stands still");
    opts.script = script("kill -9 $$");
    h = test_with(&opts, &arena);
    assert_string_equal(h.reason, "script: it was killed by signal 9");
    opts.script = "/nowhere/script";
    h = test_with(&opts, &arena);
    assert_int_equal(row(&h, "script")->state, HL_API_HEALTH_STATE_FAILED);
}

TEST(a_script_that_does_not_end_is_killed_at_the_deadline_with_its_children)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    char left[300];
    opts.busy = true;
    opts.deadline_ms = 300;
    snprintf(left, sizeof(left), "sh -c 'sleep 600; touch %s/left' & sleep 600", dir);
    opts.script = script(left);
    uint64_t began = hl_now_ns();
    struct hl_api_health h = test_with(&opts, &arena);
    assert_non_null(strstr(h.reason, "script: it was not done within the test's 300 ms"));
    assert_true(hl_now_ns() - began < TEST_PATIENCE_NS);
}

TEST(while_ranks_run_nothing_slows_them_down)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.busy = true;
    opts.memory_least = UINT64_C(1) << 60; /* it would fail */
    struct hl_api_health h = test_with(&opts, &arena);
    assert_int_equal(h.state, HL_API_HEALTH_STATE_PASSED);
    assert_int_equal(row(&h, "memory")->state, HL_API_HEALTH_STATE_SKIPPED);
    assert_int_equal(row(&h, "checksum")->state, HL_API_HEALTH_STATE_SKIPPED);
}

TEST(slots_for_which_there_was_no_time_fail)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_health_opts opts = healthy();
    opts.deadline_ms = 0;
    struct hl_api_health h = test_with(&opts, &arena);
    assert_non_null(strstr(h.reason, "memory: only 0 of 1 slots were tested in time"));
}
