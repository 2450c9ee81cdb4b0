/* The record of a job's run, as stored today: it is read, and written back as the same JSON; a
 * fault is an error that names the member. */
#include "support/test.h"

#include <string.h>

#include "core/job/jobstate.h"

static const char stored[] =
    "{\"id\": \"gpt-7\", \"state\": \"running\", \"goal\": \"none\", \"reason\": \"\","
    " \"attempt\": 2, \"maxRestarts\": 3, \"restarts\": 1, \"nodeLosses\": 1,"
    " \"startTimeoutMs\": 600000, \"runTimeoutMs\": 0, \"stopResendMs\": 2000,"
    " \"submittedMs\": 1700000000000, \"startedMs\": 1700000000100, \"finishedMs\": 0,"
    " \"deadlineMs\": 0, \"containersAttempt\": 2, \"slotsHeld\": true, \"containers\": ["
    "   {\"state\": \"running\", \"exitCode\": 0, \"signal\": 0, \"message\": \"\","
    "    \"startedMs\": 1700000000050, \"finishedMs\": 0, \"node\": \"n-1\", \"numaId\": 1}],"
    " \"plan\": {\"containers\": [{\"index\": 0, \"node\": \"n-1\", \"numaId\": 1,"
    "     \"cpus\": \"4-7\", \"ranks\": [{\"rank\": 0, \"pp\": 0, \"tp\": 0, \"dp\": 0,"
    "     \"localRank\": 0, \"gpu\": \"0000:01:00.0\"}]}],"
    "   \"worldSize\": 1, \"ranksPerContainer\": 1, \"arithmetic\": [\"1 rank\"],"
    "   \"warnings\": [], \"feasible\": true, \"reason\": \"\", \"masterNode\": \"n-1\","
    "   \"never\": false, \"masterAddress\": \"10.0.0.1\"},"
    " \"restartLost\": false, \"cause\": \"rank 3 exited with code 7\","
    " \"preemptor\": \"urgent-9\", \"preemptorAttempt\": 2, \"placedMs\": 1700000000040,"
    " \"releasedMs\": 0, \"usedSlotMs\": 12000,"
    " \"fruitless\": 1, \"losses\": 2, \"steadyMs\": 7000, \"reached\": 41,"
    " \"lastFailure\": \"memory\", \"retryMs\": 9000}";

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    return value;
}

TEST(a_run_is_written_as_it_was_stored)
{
    struct hl_jobrun run;
    json_t *record = parse(stored);
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_OK);
    assert_string_equal(run.plan->containers[0].ranks[0].gpu, "0000:01:00.0");
    assert_false(run.restart_lost);
    json_t *back = hl_jobrun_to_json(&run);
    assert_true(json_equal(record, back));
    json_decref(back);
    json_decref(record);
    hl_jobrun_fini(&run);
}

TEST(what_a_record_of_an_older_release_lacks_has_the_value_of_then)
{
    struct hl_jobrun run;
    json_t *record = parse("{\"id\": \"a-1\", \"state\": \"pending\", \"goal\": \"none\"}");
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_OK);
    assert_int_equal(run.attempt, 1);
    assert_true(run.restart_lost);
    assert_null(run.plan);
    assert_int_equal(run.container_count, 0);
    json_decref(record);
    hl_jobrun_fini(&run);
}

TEST(a_failed_container_of_an_older_release_has_no_kind_and_keeps_what_it_had)
{
    struct hl_jobrun run;
    json_t *record = parse(stored);
    json_t *container = json_array_get(json_object_get(record, "containers"), 0);
    json_object_set_new(container, "state", json_string("failed"));
    json_object_set_new(container, "message", json_string("rank 0 exited with code 7"));
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_OK);
    assert_int_equal(run.containers[0].failure, HL_API_FAILURE_KIND_UNSAID);
    assert_string_equal(run.containers[0].message, "rank 0 exited with code 7");
    hl_jobrun_fini(&run);
    json_object_set_new(container, "failure", json_string("lost"));
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_OK);
    assert_int_equal(run.containers[0].failure, HL_API_FAILURE_KIND_LOST);
    json_t *back = hl_jobrun_to_json(&run);
    assert_true(json_equal(record, back));
    json_decref(back);
    json_decref(record);
    hl_jobrun_fini(&run);
}

TEST(members_of_a_newer_release_are_left_out)
{
    struct hl_jobrun run;
    json_t *record = parse(stored);
    json_object_set_new(record, "priority", json_integer(3));
    json_object_set_new(json_array_get(json_object_get(record, "containers"), 0), "zone",
                        json_string("a"));
    json_object_set_new(json_object_get(record, "plan"), "cost", json_integer(1));
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_OK);
    json_decref(record);
    hl_jobrun_fini(&run);
}

/* Is refused if this member of the object at `at` is replaced, or with NULL removed. */
static void is_refused(const char *at, const char *member, json_t *value, const char *name)
{
    struct hl_jobrun run;
    json_t *record = parse(stored), *object = at[0] != '\0' ? json_object_get(record, at) : record;
    if (json_is_array(object))
        object = json_array_get(object, 0);
    if (value != NULL)
        json_object_set_new(object, member, value);
    else
        json_object_del(object, member);
    assert_int_equal(hl_jobrun_from_json(record, &run), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "record of"));
    assert_non_null(strstr(hl_error_text(), name));
    json_decref(record);
}

TEST(what_is_wrong_with_a_run_is_named)
{
    is_refused("", "id", NULL, "field id");
    is_refused("", "id", json_string(""), "field id");
    is_refused("", "state", json_string("asleep"), "field state");
    is_refused("", "goal", NULL, "field goal");
    is_refused("", "attempt", json_string("2"), "field attempt");
    is_refused("", "restartLost", json_integer(1), "field restartLost");
    is_refused("", "deadlineMs", json_real(1.5), "field deadlineMs");
    is_refused("containers", "state", NULL, "field containers[0].state");
    is_refused("containers", "numaId", json_true(), "field containers[0].numaId");
    is_refused("containers", "failure", json_string("bad luck"), "field containers[0].failure");
    is_refused("", "plan", json_string("none"), "plan");
    is_refused("plan", "worldSize", json_string("1"), "plan: field worldSize");
    is_refused("plan", "arithmetic", json_object(), "plan: field arithmetic");
}
