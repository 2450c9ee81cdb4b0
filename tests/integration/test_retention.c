/* Ended jobs and lost nodes are forgotten, unless something still refers to them. */
#include "support/test.h"

#include "integration/controller_world.h"

#include <sys/syscall.h>

static atomic_llong wall_step_s; /* added to the wall clock of this process */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    long rc = syscall(SYS_clock_gettime, clock, ts);
    if (clock == CLOCK_REALTIME)
        ts->tv_sec += wall_step_s;
    return (int)rc;
}

static size_t count_of(const char *method, const char *list)
{
    json_t *r = ask(method, NULL);
    size_t n = json_array_size(hl_json_list(r, list));
    json_decref(r);
    return n;
}

static void wait_listed(const char *method, const char *list, size_t n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (count_of(method, list) != n) {
        if (hl_now_ns() > end)
            fail_msg("%s says %zu, not %zu", method, count_of(method, list), n);
        poll(NULL, 0, 10);
    }
}

static json_t *ended(const char *job, json_int_t finished_ms)
{
    char container[96];
    snprintf(container, sizeof(container), "%s.1.0", job);
    return json_pack("{s:s s:s s:I}", "id", container, "state", "succeeded", "finishedMs",
                     finished_ms);
}

static void run_to_end(char *id, size_t cap)
{
    submit("", id, cap);
    wait_state(id, "running");
    heartbeat(json_pack("[o]", ended(id, hl_wall_ms())));
}

TEST_IN(setup, teardown, the_oldest_ended_jobs_are_forgotten_with_their_logs_and_no_id_comes_back)
{
    char ids[4][64];
    json_t *r;
    register_node(NULL);
    for (int i = 0; i < 3; i++)
        run_to_end(ids[i], sizeof(ids[i]));
    wait_state(ids[2], "succeeded");
    w.jobs_keep = 2;
    restart_controller();
    wait_listed("listJobs", "jobs", 2);
    assert_string_equal(job_state(ids[2]), "succeeded");
    assert_int_equal(call("getJob", json_pack("{s:s}", "id", ids[0]), &r), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "jobs.keep"));

    register_node(NULL);
    heartbeat(json_pack("[o]", ended(ids[1], 1)));
    run_to_end(ids[3], sizeof(ids[3]));
    heartbeat(json_pack("[oo]", ended(ids[1], 1), ended(ids[3], 1)));
    wait_count(&w.forgotten, 1); /* ids[1], which the node still listed */
    assert_int_equal(count_of("listJobs", "jobs"), 2);

    w.keep_age_ms = 1;
    restart_controller();
    wait_listed("listJobs", "jobs", 0);
    register_node(NULL);
    heartbeat(json_pack("[o]", ended(ids[3], 1)));
    wait_count(&w.forgotten, 2); /* the node was unreachable when its job was forgotten */
    restart_controller();
    submit("", ids[0], sizeof(ids[0])); /* the node has not come back yet: the job waits */
    assert_string_equal(ids[0], "one-5");
}

/* Slots that the only queue uses. */
static double used_slots(void)
{
    json_t *r = ask("listQueue", NULL);
    double used =
        json_number_value(json_object_get(json_array_get(hl_json_list(r, "queues"), 0), "used"));
    json_decref(r);
    return used;
}

TEST_IN(setup, teardown, what_forgotten_jobs_have_used_counts_on_and_fades)
{
    char id[64];
    w.half_life_ms = 3600 * 1000;
    restart_controller();
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    heartbeat(json_pack("[o]", ended(id, hl_wall_ms())));
    wait_state(id, "succeeded");
    double short_one = used_slots();
    assert_true(short_one > 0 && short_one < 0.1);
    w.keep_age_ms = 1;
    restart_controller();
    wait_listed("listJobs", "jobs", 0);
    double kept = used_slots();
    assert_true(kept <= short_one && kept > short_one * 0.9);
    restart_controller(); /* the number is stored */
    double again = used_slots();
    assert_true(again <= kept && again > kept * 0.9);
    wall_step_s = 3600;
    double later = used_slots();
    assert_true(later < again * 0.51 && later > again * 0.45);
    wall_step_s = 0;
}

TEST_IN(setup, teardown, a_job_that_something_still_names_is_not_forgotten)
{
    char saved[64], followed[64], other[64];
    w.keep_age_ms = 1;
    w.import_state = "done";
    restart_controller();
    register_node(NULL);
    import_until("m", "done");
    submit("", saved, sizeof(saved));
    wait_state(saved, "running");
    json_t *r = ask("beginVersion",
                    json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked",
                              "model", "m", "job", saved, "attempt", 1, "step", 1, "world", 1));
    int64_t version = hl_json_int(r, "version", -1);
    json_decref(r);
    assert_true(commit_part(version, 0, "000000000000000000000000000000b1"));
    heartbeat(json_pack("[o]", ended(saved, hl_wall_ms())));

    submit("", followed, sizeof(followed));
    wait_state(followed, "running");
    json_decref(ask("readLog", json_pack("{s:s s:i}", "id", followed, "rank", 0)));
    heartbeat(json_pack("[o]", ended(followed, hl_wall_ms())));

    run_to_end(other, sizeof(other));
    wait_listed("listJobs", "jobs", 2);
    assert_string_equal(job_state(saved), "succeeded");
    assert_string_equal(job_state(followed), "succeeded");
    restart_controller(); /* the log's reader asked another Controller */
    wait_listed("listJobs", "jobs", 1);
    json_decref(
        ask("removeModel", json_pack("{s:s s:I}", "name", "m", "version", (json_int_t)version)));
    wait_listed("listJobs", "jobs", 0);
}

TEST_IN(setup, teardown, a_lost_node_is_forgotten_with_time_and_may_come_back)
{
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    w.node_lost_ms = 200;
    w.keep_age_ms = 1;
    restart_controller();
    wait_state(id, "pending"); /* the node is lost, and the job waits for another one */
    wait_listed("listNodes", "nodes", 0);
    restart_controller();
    assert_int_equal(count_of("listNodes", "nodes"), 0);
    w.node_lost_ms = 60000;
    restart_controller();
    register_node(NULL);
    wait_state(id, "running");
    assert_int_equal(count_of("listNodes", "nodes"), 1);
}

TEST_IN(setup, teardown, a_step_of_the_wall_clock_forgets_nothing)
{
    char id[64];
    json_t *r;
    w.import_state = "done";
    w.keep_age_ms = INT64_C(3600) * 1000;
    w.grace_ms = 3600 * 1000; /* the version's writer is not known here */
    w.node_lost_ms = 1000;
    restart_controller();
    import_until("m", "done");
    register_node(NULL);
    run_to_end(id, sizeof(id));
    wait_state(id, "succeeded");
    json_decref(ask("beginVersion", json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1",
                                              "check", "unchecked", "model", "m", "job",
                                              "elsewhere", "attempt", 1, "step", 1, "world", 1)));
    wait_count(&w.inventories, w.inventories + 2); /* rounds */
    wall_step_s = 400 * 86400;
    wait_count(&w.inventories, w.inventories + 3);
    wall_step_s = -3 * 86400;
    wait_count(&w.inventories, w.inventories + 3);
    assert_string_equal(job_state(id), "succeeded");
    assert_int_equal(count_of("listNodes", "nodes"), 1); /* silent by now */
    r = ask("getModel", json_pack("{s:s}", "name", "m"));
    assert_int_equal(json_array_size(hl_json_list(json_object_get(r, "model"), "versions")), 2);
    json_decref(r);
    wall_step_s = 0;
}
