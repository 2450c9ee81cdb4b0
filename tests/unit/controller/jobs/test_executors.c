/* The Controller starts, ticks, asks and stops executors through their table, whichever they
 * are. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "controller/jobs/jobs_private.h"

static char called[64];
static hl_status start_status;

static void note(const char *what)
{
    size_t at = strlen(called);
    snprintf(called + at, sizeof(called) - at, "%s ", what);
}

static hl_status first_start(struct hl_controller *c)
{
    (void)c;
    note("start-1");
    return start_status;
}

static hl_status second_start(struct hl_controller *c)
{
    (void)c;
    note("start-2");
    return HL_OK;
}

static void second_stop(struct hl_controller *c)
{
    (void)c;
    note("stop-2");
}

static void second_tick(struct hl_controller *c)
{
    (void)c;
    note("tick-2");
}

static void first_tell(const struct hl_controller *c, struct hl_arena *arena,
                       struct hl_api_cluster_info *io)
{
    (void)c;
    io->kubernetes_server = hl_arena_strdup(arena, "https://server");
}

static const struct job_executor first = {.start = first_start, .tell = first_tell},
                                 second = {.start = second_start,
                                           .stop = second_stop,
                                           .tick = second_tick},
                                 idle = {.kind = HL_JOB_EXECUTOR_PROCESS};
static const struct job_executor *const all[] = {&idle, &first, &second, NULL};

TEST(each_executor_does_what_its_table_has)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_controller c = {0};
    struct hl_api_cluster_info info = {0};
    called[0] = '\0';
    start_status = HL_OK;
    executors_stop(&c); /* the Controller failed before there were any */
    assert_int_equal(jobs_create(&c, all, &idle), HL_OK);
    assert_int_equal(executors_start(&c), HL_OK);
    jobs_tick(&c);
    executors_tell(&c, &arena, &info);
    executors_stop(&c);
    assert_string_equal(called, "start-1 start-2 tick-2 stop-2 ");
    assert_string_equal(info.kubernetes_server, "https://server");
    jobs_fini(&c);
}

TEST(an_executor_that_does_not_start_ends_the_start)
{
    struct hl_controller c = {0};
    called[0] = '\0';
    start_status = HL_ENOENT;
    assert_int_equal(jobs_create(&c, all, &second), HL_OK);
    assert_int_equal(executors_start(&c), HL_ENOENT);
    assert_string_equal(called, "start-1 ");
    jobs_fini(&c);
}
