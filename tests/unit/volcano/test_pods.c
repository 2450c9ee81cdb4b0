/* What pods and Jobs report, in the terms of core/v1. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "volcano/gang.h"

#define TWO "\"spec\":{\"containers\":[{},{}]},"

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

struct told {
    const char *pod;
    enum hl_api_container_state state;
    int exit_code, signal;
    const char *says;
};

static const struct told cases[] = {
    {"{}", HL_API_CONTAINER_STATE_WANTED, 0, 0, ""},
    {"{" TWO "\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\","
     "\"status\":\"False\","
     "\"reason\":\"Unschedulable\",\"message\":\"0/3 nodes\"}]}}",
     HL_API_CONTAINER_STATE_WANTED, 0, 0, "Unschedulable: 0/3 nodes"},
    {"{" TWO "\"status\":{\"phase\":\"Pending\",\"containerStatuses\":[{\"name\":\"local-2\","
     "\"state\":{\"waiting\":"
     "{\"reason\":\"ImagePullBackOff\",\"message\":\"no such image\"}}}]}}",
     HL_API_CONTAINER_STATE_WANTED, 0, 0, "rank 10 waits: ImagePullBackOff no such image"},
    /* One of two runs: the gang has not started. */
    {"{" TWO "\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"local-0\","
     "\"state\":{\"running\":{}}}]}}",
     HL_API_CONTAINER_STATE_WANTED, 0, 0, ""},
    {"{" TWO "\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"local-0\","
     "\"state\":{\"running\":{}}},"
     "{\"name\":\"local-1\",\"state\":{\"terminated\":{\"exitCode\":0}}}]}}",
     HL_API_CONTAINER_STATE_RUNNING, 0, 0, ""},
    {"{" TWO "\"status\":{\"phase\":\"Succeeded\"}}", HL_API_CONTAINER_STATE_SUCCEEDED, 0, 0, ""},
    /* A rank has failed while the other still runs: the failure counts before the pod's end. */
    {"{" TWO "\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"local-4\","
     "\"state\":{\"running\":{}}},"
     "{\"name\":\"local-5\",\"state\":{\"terminated\":{\"exitCode\":7,\"message\":\"boom\\nand "
     "more\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 7, 0, "rank 13 exited with code 7: boom"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"local-0\","
     "\"state\":{\"terminated\":"
     "{\"exitCode\":137,\"reason\":\"OOMKilled\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 137, 9, "rank 8 was killed, its memory was full (OOMKilled)"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"local-0\","
     "\"state\":{\"terminated\":"
     "{\"exitCode\":139}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 139, 11, "rank 8 was killed by signal 11"},
    /* Ranks that share a container: its last words say which one failed, and how. */
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":137,\"message\":\"rank 11 exited with code "
     "7\\n\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 7, 0, "rank 11 exited with code 7"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":137,\"message\":\"rank 9 exited with code "
     "139\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 139, 11, "rank 9 was killed by signal 11"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":137,\"reason\":\"OOMKilled\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 137, 9,
     "the container of ranks 8 to 11 was killed, its memory was full (OOMKilled)"},
    /* It noticed that the kernel had killed a process for memory, whatever the kubelet reports. */
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":137,\"reason\":\"Error\",\"message\":\"rank 11 "
     "exited "
     "with code 137 out of memory\\n\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 137, 9, "rank 11 was killed, its memory was full (OOMKilled)"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":1,\"message\":\"rank 11 exited with code 1 out of "
     "memory\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 1, 0,
     "rank 11 exited with code 1, its memory was full (OOMKilled)"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":1,\"message\":\"rank 11 exited with code 1 out of "
     "memory?\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 1, 0,
     "the container of ranks 8 to 11 exited with code 1: rank 11 exited with code 1 out of "
     "memory?"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"ranks\","
     "\"state\":{\"terminated\":{\"exitCode\":126,\"message\":\"rank x exited with code 7\"}}}]}}",
     HL_API_CONTAINER_STATE_FAILED, 126, 0,
     "the container of ranks 8 to 11 exited with code 126: rank x exited with code 7"},
    /* An eviction by the system is not a failure, whatever the ranks ended with. */
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"reason\":\"Evicted\",\"message\":\"low on "
     "memory\",\"containerStatuses\":["
     "{\"name\":\"local-0\",\"state\":{\"terminated\":{\"exitCode\":143}}}]}}",
     HL_API_CONTAINER_STATE_LOST, 0, 0, "Evicted low on memory"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"conditions\":[{\"type\":\"DisruptionTarget\","
     "\"status\":\"True\","
     "\"reason\":\"PreemptionByScheduler\"}]}}",
     HL_API_CONTAINER_STATE_LOST, 0, 0, "PreemptionByScheduler "},
    {"{\"metadata\":{\"deletionTimestamp\":\"2026-11-21T19:00:00Z\"}," TWO
     "\"status\":{\"phase\":\"Running\"}}",
     HL_API_CONTAINER_STATE_LOST, 0, 0, "the pod is being deleted"},
    {"{" TWO "\"status\":{\"phase\":\"Failed\",\"reason\":\"OutOfcpu\",\"message\":\"full\"}}",
     HL_API_CONTAINER_STATE_LOST, 0, 0, "the pod failed: OutOfcpu full"},
    /* An invalid object counts as a pod that has not begun. */
    {"{\"metadata\":7,\"spec\":[],\"status\":\"x\"}", HL_API_CONTAINER_STATE_WANTED, 0, 0, ""},
    {"{\"status\":{\"phase\":3,\"containerStatuses\":{\"a\":1},\"conditions\":[null,5]}}",
     HL_API_CONTAINER_STATE_WANTED, 0, 0, ""},
};

TEST(a_rank_of_a_shared_container_has_ended_with_it)
{
    json_t *pod = parse("{\"spec\":{\"containers\":[{\"name\":\"mesh\"},{\"name\":\"ranks\"}]},"
                        "\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":"
                        "\"ranks\",\"state\":{\"terminated\":{\"exitCode\":0}}}]}}");
    json_t *apart = parse("{\"spec\":{\"containers\":[{\"name\":\"local-0\"}]},\"status\":{"
                          "\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"ranks\","
                          "\"state\":{\"terminated\":{\"exitCode\":0}}}]}}");
    assert_true(hl_volcano_pod_is_shared(pod));
    assert_true(hl_volcano_rank_ended(pod, 3));
    assert_false(hl_volcano_pod_is_shared(apart));
    assert_false(hl_volcano_rank_ended(apart, 0));
    assert_false(hl_volcano_pod_is_shared(NULL));
    json_decref(pod);
    json_decref(apart);
}

TEST(every_state_of_a_pod_is_understood)
{
    const struct hl_volcano_ranks ranks = {.first = 8, .count = 4};
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct hl_volcano_pod p;
        json_t *pod = parse(cases[i].pod);
        hl_volcano_pod_read(pod, &ranks, &p);
        if (p.state != cases[i].state || p.exit_code != cases[i].exit_code ||
            p.signal != cases[i].signal || strcmp(p.message, cases[i].says) != 0)
            fail_msg("%s: %s, %d, %d, '%s'", cases[i].pod, hl_api_container_state_name(p.state),
                     p.exit_code, p.signal, p.message);
        json_decref(pod);
    }
    struct hl_volcano_pod p;
    hl_volcano_pod_read(NULL, &ranks, &p);
    assert_int_equal(p.state, HL_API_CONTAINER_STATE_WANTED);
}

TEST(a_rank_that_has_ended_has_a_whole_log)
{
    json_t *pod = parse("{\"status\":{\"phase\":\"Running\",\"containerStatuses\":["
                        "{\"name\":\"local-1\",\"state\":{\"running\":{}}},"
                        "{\"name\":\"local-11\",\"state\":{\"terminated\":{\"exitCode\":0}}}]}}");
    assert_false(hl_volcano_rank_ended(pod, 1));
    assert_true(hl_volcano_rank_ended(pod, 11));
    assert_false(hl_volcano_rank_ended(pod, 2));
    json_object_set_new(json_object_get(pod, "status"), "phase", json_string("Failed"));
    assert_true(hl_volcano_rank_ended(pod, 1));
    json_decref(pod);
}

TEST(a_job_that_ends_without_its_pods_is_trouble)
{
    static const char *const fine[] = {"Pending", "Running", "Completing", "Completed", ""};
    static const char *const bad[] = {"Failed", "Aborted", "Terminated", "Aborting", "Terminating"};
    json_t *job = parse("{\"metadata\":{},\"status\":{\"state\":{}}}");
    json_t *phase = json_object_get(json_object_get(job, "status"), "state");
    for (size_t i = 0; i < HL_ARRAY_LEN(fine); i++) {
        json_object_set_new(phase, "phase", json_string(fine[i]));
        assert_null(hl_volcano_job_trouble(job));
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        json_object_set_new(phase, "phase", json_string(bad[i]));
        assert_string_equal(hl_volcano_job_trouble(job), bad[i]);
    }
    json_object_set_new(phase, "phase", json_string("Running"));
    json_object_set_new(json_object_get(job, "metadata"), "deletionTimestamp", json_string("x"));
    assert_string_equal(hl_volcano_job_trouble(job), "Deleted");
    json_decref(job);
}

TEST(a_group_that_waits_says_why)
{
    static const struct {
        const char *group, *says;
    } rows[] = {
        {"{\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Unschedulable\","
         "\"status\":\"True\",\"reason\":\"NotEnoughResources\"}]}}",
         ""},
        {"{\"status\":{\"phase\":\"Inqueue\",\"conditions\":[{\"type\":\"Scheduled\","
         "\"status\":\"True\",\"reason\":\"r\"}]}}",
         ""},
        {"{\"status\":{\"phase\":\"Inqueue\",\"conditions\":[{\"type\":\"Unschedulable\","
         "\"status\":\"True\",\"reason\":\"NotEnoughResources\",\"message\":\"2/2 tasks\"}]}}",
         "NotEnoughResources: 2/2 tasks"},
        {"{\"spec\":{\"queue\":\"research\"},\"status\":{\"phase\":\"Pending\"}}",
         "Volcano has not admitted it to queue research yet"},
        {"{}", ""},
    };

    char says[HL_JOB_TEXT_MAX];
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        json_t *group = parse(rows[i].group);
        hl_volcano_group_waits(group, says, sizeof(says));
        assert_string_equal(says, rows[i].says);
        json_decref(group);
    }
    hl_volcano_group_waits(NULL, says, sizeof(says));
    assert_string_equal(says, "");
}
