/* What the table of jobs answers about all of them. */
#include "support/test.h"

#include <string.h>

#include "controller/jobs/jobs_private.h"

static const struct job_executor *const none[] = {NULL};

TEST(a_gang_starts_while_some_of_its_containers_do_and_not_all_run)
{
    struct hl_controller c = {0};
    struct hl_jobrun_container containers[2] = {{.state = HL_API_CONTAINER_STATE_WANTED},
                                                {.state = HL_API_CONTAINER_STATE_WANTED}};
    struct job other = {.id = "j-1", .run = {.state = HL_API_JOB_STATE_RUNNING}};
    struct job j = {.id = "j-2", .run = {.containers = containers, .container_count = 2}};
    assert_int_equal(jobs_create(&c, none, NULL), HL_OK);
    assert_false(jobs_gang_starts(&c));
    HASH_ADD_STR(c.jobs->table, id, (&other));
    HASH_ADD_STR(c.jobs->table, id, (&j));
    j.run.state = HL_API_JOB_STATE_PENDING;
    assert_false(jobs_gang_starts(&c));
    j.run.state = HL_API_JOB_STATE_STARTING;
    assert_false(jobs_gang_starts(&c)); /* it is placed, and waits in a queue of Kubernetes */
    containers[1].state = HL_API_CONTAINER_STATE_STARTING;
    assert_true(jobs_gang_starts(&c));
    containers[1].state = HL_API_CONTAINER_STATE_RUNNING;
    assert_true(jobs_gang_starts(&c));
    containers[0].state = HL_API_CONTAINER_STATE_RUNNING;
    j.run.state = HL_API_JOB_STATE_RUNNING;
    assert_false(jobs_gang_starts(&c));
    HASH_CLEAR(hh, c.jobs->table);
    jobs_fini(&c);
}
