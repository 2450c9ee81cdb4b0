/* The Controller's models, versions and jobs. */
#include "support/test.h"

#include "integration/controller_world.h"

static int64_t begin(int64_t step)
{
    json_t *r = ask("beginVersion", json_pack("{s:s s:s s:s s:s s:i s:I s:i}", "token", "1",
                                              "check", "unchecked", "model", "m", "job", "j-1",
                                              "attempt", 1, "step", (json_int_t)step, "world", 2));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    return v;
}

/* No version whose writer the Controller does not know is closed during the test. */
static void keep_open_versions(void)
{
    w.grace_ms = 10 * WAIT_MS;
    restart_controller();
}

static void report(const char *container, const char *state)
{
    heartbeat(
        json_pack("[{s:s s:s s:s}]", "id", container, "state", state, "message", "from a test"));
}

static void last_port(char out[16])
{
    pthread_mutex_lock(&port_lock);
    memcpy(out, w.master_port, sizeof(w.master_port));
    pthread_mutex_unlock(&port_lock);
}

static size_t pool_count(void)
{
    pthread_mutex_lock(&inventory_lock);
    size_t n = json_array_size(w.inventory);
    pthread_mutex_unlock(&inventory_lock);
    return n;
}

/* What a job left open is dropped once the end of the job was reported. */
static void wait_no_model(void)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    size_t n = 1;
    while (n > 0) {
        json_t *r = ask("listModels", NULL);
        n = json_array_size(json_object_get(r, "models"));
        json_decref(r);
        assert_true(n == 0 || hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
}

/* ---- tests ---- */

TEST_IN(setup, teardown, an_import_is_visible_only_when_l3_is_done_and_survives_a_restart)
{
    json_t *r = ask("importModel", import_now("m"));
    char id[64];
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    r = ask("listModels", NULL);
    assert_int_equal(json_array_size(json_object_get(r, "models")), 0);
    json_decref(r);
    assert_int_equal(call("importModel", import_now("m"), NULL), HL_EBUSY);
    w.import_state = "done";
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(state_of(id, NULL), "done") != 0)
        assert_true(hl_now_ns() < end);
    restart_controller();
    r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    assert_int_equal(hl_json_int(r, "version", 0), 1);
    assert_int_equal(json_array_size(json_object_get(r, "shards")), 1);
    json_decref(r);
    assert_int_equal(call("importModel", import_now("m"), NULL), HL_EEXIST);
}

TEST_IN(setup, teardown, a_failed_import_leaves_nothing)
{
    w.import_state = "failed";
    import_until("m", "failed");
    json_t *r = ask("listModels", NULL);
    assert_int_equal(json_array_size(json_object_get(r, "models")), 0);
    json_decref(r);
    w.import_state = "done";
    import_until("m", "done"); /* the name is free */
}

/* ---- the order of imports ---- */

static void import_waiting(const char *name)
{
    json_t *p = import_now(name);
    json_object_set_new(json_object_get(p, "request"), "waitMs", json_integer(WAIT_MS));
    json_decref(ask("importModel", p));
}

static void asked_text(char out[64])
{
    pthread_mutex_lock(&inventory_lock);
    memcpy(out, w.asked, 64);
    pthread_mutex_unlock(&inventory_lock);
}

static void asked_in_order(const char *wanted)
{
    char text[64];
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (asked_text(text); strcmp(text, wanted) != 0; asked_text(text)) {
        if (hl_now_ns() > end)
            fail_msg("L3 was asked for '%s', expected '%s'", text, wanted);
        poll(NULL, 0, 10);
    }
}

/* L3 would have room for each of them except the first. */
TEST_IN(setup, teardown, an_import_that_waits_for_a_place_is_not_overtaken)
{
    w.full_for = "a";
    import_waiting("a");
    wait_count(&w.imports, 1);
    import_waiting("b");
    import_waiting("c");
    assert_int_equal(call("importModel", import_now("d"), NULL), HL_OK); /* it may not wait */
    wait_count(&w.imports, 4); /* several ticks, in which b and c could have been requested */
    char text[64];
    asked_text(text);
    assert_null(strpbrk(text, "bcd"));
    pthread_mutex_lock(&inventory_lock);
    w.full_for = NULL;
    w.asked[0] = '\0';
    pthread_mutex_unlock(&inventory_lock);
    asked_in_order("a b c ");
}

static void refuse_mute(void)
{
    hl_rpc_reject(w.mute, HL_EBUSY, "4 imports are running already");
    w.mute_for = NULL;
}

/* L3 may have room between two answers. */
TEST_IN(setup, teardown, an_import_is_not_asked_for_before_l3_has_answered_the_one_before)
{
    import_waiting("z"); /* it runs, so the Controller asks once per tick */
    asked_in_order("z ");
    w.mute_for = "a";
    import_waiting("a");
    asked_in_order("z a ");
    import_waiting("b");
    int polls = w.polls;
    wait_count(&w.polls, polls + 4);
    asked_in_order("z a ");
    on_loop(refuse_mute);
    asked_in_order("z a a b ");
}

/* Cancels by name; the id is the import's. */
static void cancel(const char *name, char *id, size_t cap)
{
    json_t *r = ask("cancelImport", json_pack("{s:s}", "id", name));
    snprintf(id, cap, "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
}

TEST_IN(setup, teardown, a_cancelled_import_is_never_visible_even_when_l3_was_faster)
{
    char id[64];
    json_t *r, *p = NULL;
    json_decref(ask("importModel", import_now("m")));
    wait_count(&w.imports, 1); /* one that waits for the claim is cancelled without L3 */
    cancel("m", id, sizeof(id));
    wait_count(&w.cancels, 1);
    w.import_state = "done";
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(state_of(id, NULL), "failed") != 0) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
    state_of(id, &p);
    assert_string_equal(hl_json_str(p, "errorStatus", ""), "ECANCELED");
    json_decref(p);
    wait_count(&w.freed, 1);
    assert_int_equal(call("getModel", json_pack("{s:s}", "name", "m"), &r), HL_ENOENT);
    assert_int_equal(call("cancelImport", json_pack("{s:s}", "id", "m"), &r), HL_ENOENT);
    import_until("m", "done"); /* its name is free again */
}

TEST_IN(setup, teardown, an_incomplete_version_is_never_served)
{
    keep_open_versions();
    w.import_state = "done";
    import_until("m", "done");
    put("000000000000000000000000000000b0");
    put("000000000000000000000000000000b1");
    int64_t v = begin(10);
    assert_int_equal(begin(10), v); /* every rank gets the same number */
    assert_false(commit_part(v, 0, "000000000000000000000000000000b0"));
    assert_int_equal(
        call("requestShards", json_pack("{s:s s:I}", "model", "m", "version", (json_int_t)v), NULL),
        HL_EBUSY);
    on_loop(stop_controller); /* a restart between two commits loses neither */
    on_loop(start_controller);
    open_peer();
    assert_false(commit_part(v, 0, "000000000000000000000000000000b0")); /* repeated */
    assert_true(commit_part(v, 1, "000000000000000000000000000000b1"));
    json_t *r =
        ask("requestShards", json_pack("{s:s s:i s:i}", "model", "m", "version", -1, "tp", 1));
    assert_int_equal(hl_json_int(r, "version", 0), v);
    json_decref(r);
}

TEST_IN(setup, teardown, only_the_newest_versions_of_a_job_stay)
{
    char id[33];
    keep_open_versions();
    w.import_state = "done";
    import_until("m", "done");
    for (int i = 0; i < 4; i++) {
        int64_t v = begin(10 * i);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(id, sizeof(id), "%032x", 0x100 + 2 * i + rank);
            put(id);
            commit_part(v, rank, id);
        }
    }
    wait_count(&w.freed, 4); /* the answer to a commit does not wait for it */
    json_t *r = ask("getModel", json_pack("{s:s}", "name", "m"));
    json_t *versions = json_object_get(json_object_get(r, "model"), "versions");
    assert_int_equal(json_array_size(versions), 3); /* two of the job and the import */
    assert_int_equal(hl_json_int(json_array_get(versions, 0), "version", 0), 5);
    assert_int_equal(hl_json_int(json_array_get(versions, 2), "version", 0), 1);
    json_decref(r);
}

TEST_IN(setup, teardown, orphans_are_freed_after_their_grace_and_known_shards_are_not)
{
    w.import_state = "done";
    import_until("m", "done");
    put("000000000000000000000000000000ff");
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (pool_count() > 1) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
    assert_string_equal(json_string_value(json_array_get(w.inventory, 0)),
                        "000000000000000000000000000000a1");
}

TEST_IN(setup, teardown, what_a_dead_import_left_is_freed_at_once_where_nobody_writes)
{
    on_loop(stop_controller);
    w.grace_ms = 600000;
    on_loop(start_controller);
    open_peer();
    put("000000000000000000000000000000fe");
    wait_count(&w.freed, 1);
}

TEST_IN(setup, teardown, a_shard_that_the_pool_lost_is_shown_as_lost)
{
    w.import_state = "done";
    import_until("m", "done");
    pthread_mutex_lock(&inventory_lock);
    json_array_clear(w.inventory);
    pthread_mutex_unlock(&inventory_lock);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    char shown[16] = "";
    while (strcmp(shown, "lost") != 0) {
        json_t *r = ask("listShards", json_pack("{s:i}", "version", -1));
        snprintf(shown, sizeof(shown), "%s",
                 hl_json_str(json_array_get(json_object_get(r, "shards"), 0), "state", ""));
        json_decref(r);
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
}

TEST_IN(setup, teardown, a_job_waits_for_a_node_runs_and_is_readopted_after_a_restart)
{
    char id[64], again[64];
    submit("k", id, sizeof(id));
    submit("k", again, sizeof(again));
    assert_string_equal(id, again);
    assert_string_equal(job_state(id), "pending");
    register_node(NULL);
    wait_state(id, "running");
    restart_controller();
    assert_string_equal(job_state(id), "running");
    register_node("one-1.1.0");
    report("one-1.1.0", "running");
    assert_string_equal(job_state(id), "running");
    report("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    assert_int_equal(w.started, 1);
}

static int count_events(const char *id, const char *kind)
{
    json_t *r = ask("getJob", json_pack("{s:s}", "id", id)), *e;
    size_t i;
    int n = 0;
    json_array_foreach (hl_json_list(json_object_get(r, "job"), "events"), i, e)
        n += strcmp(hl_json_str(e, "kind", ""), kind) == 0;
    json_decref(r);
    return n;
}

static void wait_events(const char *id, const char *kind, int n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (count_events(id, kind) < n) {
        if (hl_now_ns() > end)
            fail_msg("%s has %d events '%s', not %d", id, count_events(id, kind), kind, n);
        poll(NULL, 0, 10);
    }
}

/* When a node registers, all but the first get another reason at once. A pass writes a hundred
 * reasons; the other jobs follow soon. */
TEST_IN(setup, teardown, each_of_many_jobs_is_told_why_it_waits_and_keeps_its_key)
{
    char id[64], again[64], key[16];
    for (int i = 0; i < 350; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        submit(key, id, sizeof(id));
    }
    wait_events(id, "waiting", 1);
    register_node(NULL);
    wait_events(id, "waiting", 2);
    restart_controller();
    submit(key, again, sizeof(again));
    assert_string_equal(again, id);
    submit("k0", again, sizeof(again));
    assert_string_equal(again, "one-1");
}

TEST_IN(setup, teardown, all_starts_of_an_attempt_are_told_the_port_that_was_found_for_it)
{
    char id[64], first[16], second[16];
    w.ports_busy = 1;
    w.container_state = NULL; /* the node refuses, so it is asked again and again */
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_count(&w.started, 1);
    assert_int_equal(w.port_questions, 2); /* nothing starts without a port */
    last_port(first);
    int port = atoi(first);
    assert_true(port >= 20000 && port < 30000);
    restart_controller(); /* at another address, for which it would choose another port */
    register_node(NULL);
    int started = w.started;
    w.container_state = "running";
    wait_count(&w.started, started + 1);
    wait_state(id, "running");
    last_port(second);
    assert_string_equal(second, first);
    assert_int_equal(w.port_questions, 2);
}

/* Submits a gang whose lost ranks are replaced. Its container is lost and another one takes over
 * its rank. */
static void submit_and_replace(char *id, size_t cap)
{
    submit_with("recovery: {mode: replace}\n", "", id, cap);
    wait_state(id, "running");
    heartbeat(json_pack("[{s:s s:s s:s s:b}]", "id", "one-1.1.0", "state", "failed", "message",
                        "its shim was killed", "lost", 1));
    wait_count(&w.started, 2);
}

TEST_IN(setup, teardown, rank_0_in_another_container_gets_a_port_of_its_own)
{
    char id[64], first[16], second[16];
    w.counts_ports = true;
    register_node(NULL);
    submit_and_replace(id, sizeof(id));
    assert_int_equal(w.port_questions, 2);
    last_port(second);
    wait_events(id, "container-replaced", 1);
    assert_string_equal(job_state(id), "running");
    restart_controller();
    register_node("one-1.1.1");
    heartbeat(json_pack("[{s:s s:s s:s s:b}]", "id", "one-1.1.1", "state", "failed", "message",
                        "its shim was killed", "lost", 1));
    wait_count(&w.started, 3);
    assert_int_equal(w.port_questions, 3); /* the restart asked for none */
    last_port(first);
    assert_string_not_equal(second, first);
}

TEST_IN(setup, teardown, an_agent_restarted_at_another_address_keeps_its_containers)
{
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    static const char *const strangers[][2] = {{"there", "1:2"}, {"here", "1:3"}, {"here", ""}};
    for (size_t i = 0; i < HL_ARRAY_LEN(strangers); i++)
        assert_int_equal(call("registerNode",
                              registration("127.0.0.1:1", strangers[i][0], strangers[i][1], NULL),
                              NULL),
                         HL_EEXIST);
    assert_non_null(strstr(hl_error_text(), "node 'n0' is in use by the Agent at"));
    /* Containers that a job counts on are left alone, wherever they are; all others are to be
     * stopped. */
    assert_int_equal(
        call("registerNode", registration("127.0.0.1:1", "there", "1:2", "one-1.1.0"), NULL),
        HL_EEXIST);
    json_t *r = ask("registerNode", registration("127.0.0.1:1", "there", "1:2", "one-1.0.0"));
    assert_non_null(strstr(hl_json_str(r, "refused", ""), "node 'n0' is in use by the Agent at"));
    assert_string_equal(json_string_value(json_array_get(hl_json_list(r, "strays"), 0)),
                        "one-1.0.0");
    json_decref(r);
    /* An Agent of an older release would take that answer for a registration. */
    json_t *older = registration("127.0.0.1:1", "there", "1:2", "one-1.0.0");
    json_object_del(older, "endsStrays");
    assert_int_equal(call("registerNode", older, NULL), HL_EEXIST);
    json_decref(ask("registerNode", registration("127.0.0.1:1", "here", "1:2", "one-1.1.0")));
    report("one-1.1.0", "running");
    assert_string_equal(job_state(id), "running");
    report("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    assert_int_equal(w.started, 1);
}

TEST_IN(setup, teardown, another_agent_gets_no_name_whose_containers_may_run_on_elsewhere)
{
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    restart_controller(); /* the node has not reported since */
    assert_int_equal(call("registerNode", registration("127.0.0.1:1", "there", "1:3", NULL), NULL),
                     HL_EEXIST);
    assert_non_null(strstr(hl_error_text(), "node 'n0' is silent, and containers of jobs may run"));
    assert_string_equal(job_state(id), "running");
    /* Its machine was restarted, but it has the containers that the job expects. */
    json_decref(ask("registerNode", registration("127.0.0.1:1", "anew", "1:3", "one-1.1.0")));
    report("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    restart_controller();
    json_decref(ask("registerNode", registration("127.0.0.1:2", "there", "1:4", NULL)));
}

TEST_IN(setup, teardown, a_node_whose_name_would_change_a_terminal_is_refused)
{
    static const char *const names[] = {"a/b", "a\nb", "\x1b[31m", "\x7f", "\xc2\x9b"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        json_t *p = registration(hl_rpc_server_address(w.agent), "here", "1:2", NULL);
        json_object_set_new(json_object_get(p, "node"), "name", json_string(names[i]));
        assert_int_equal(call("registerNode", p, NULL), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "no control character"));
    }
}

TEST_IN(setup, teardown, a_container_nobody_wants_is_stopped)
{
    register_node(NULL);
    report("ghost-7.1.0", "running");
    wait_count(&w.stopped, 1);
}

TEST_IN(setup, teardown, a_failed_container_fails_the_job_with_its_message_and_frees_the_slot)
{
    char id[64];
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    report("one-1.1.0", "failed");
    wait_state(id, "failed");
    json_t *r = ask("getJob", json_pack("{s:s}", "id", "one")); /* by name */
    assert_non_null(strstr(hl_json_str(json_object_get(r, "job"), "reason", ""), "from a test"));
    json_decref(r);
    submit("", id, sizeof(id));
    wait_state(id, "running");
}

TEST_IN(setup, teardown, a_cancelled_job_whose_start_failed_ends)
{
    char id[64];
    w.container_state = NULL;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "starting");
    while (w.started < 2) /* the first call is answered */
        poll(NULL, 0, 10);
    json_decref(ask("cancelJob", json_pack("{s:s}", "id", id)));
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(job_state(id), "cancelled") != 0) {
        assert_true(hl_now_ns() < end);
        heartbeat(json_array());
        poll(NULL, 0, 10);
    }
    w.container_state = "running";
    submit("", id, sizeof(id)); /* the slot is free */
    wait_state(id, "running");
}

TEST_IN(setup, teardown, a_slot_is_freed_though_the_store_refused_the_end_of_its_job)
{
    char id[64];
    sqlite3 *db;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    assert_int_equal(sqlite3_open(w.store + strlen("sqlite:"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    report("one-1.1.0", "failed"); /* the store waits for the lock and gives up */
    sqlite3_close(db);
    submit("", id, sizeof(id));
    wait_state(id, "running");
}

TEST_IN(setup, teardown, an_open_version_that_outlives_the_others_goes_with_its_model)
{
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    json_decref(ask("beginVersion",
                    json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked",
                              "model", "m", "job", id, "attempt", 1, "step", 5, "world", 2)));
    json_decref(
        ask("removeModel", json_pack("{s:s s:i s:b}", "name", "m", "version", 1, "force", 1)));
    report("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    wait_no_model();
}

TEST_IN(setup, teardown, an_attempt_that_is_over_begins_no_version)
{
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    report("one-1.1.0", "failed");
    wait_state(id, "failed");
    assert_int_equal(
        call("beginVersion",
             json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked", "model",
                       "m", "job", id, "attempt", 1, "step", 5, "world", 2),
             NULL),
        HL_ECONFLICT);
}

static json_t *part_of(const char *job, int container)
{
    return json_pack("{s:s s:s s:s s:s s:i s:i s:i s:i}", "token", "1", "check", "unchecked",
                     "model", "m", "job", job, "attempt", 1, "step", 5, "world", 1, "container",
                     container);
}

/* Its process lives on unseen on a server that was taken for lost, and may finish its save late. */
TEST_IN(setup, teardown, a_container_that_was_given_up_saves_nothing)
{
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit_and_replace(id, sizeof(id));
    assert_int_equal(call("beginVersion", part_of(id, 0), NULL), HL_ECONFLICT);
    assert_string_equal(hl_error_text(),
                        "container 0 of attempt 1 of job 'one-1' was given up and can't begin a "
                        "version; the gang continues without this process");
    json_t *r = ask("beginVersion", part_of(id, 1));
    int version = (int)hl_json_int(r, "version", -1);
    json_decref(r);
    assert_int_equal(call("commitPart",
                          json_pack("{s:s s:i s:i s:i s:[]}", "model", "m", "version", version,
                                    "rank", 0, "container", 0, "shards"),
                          NULL),
                     HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "was given up and can't commit to a version"));
    r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    assert_int_equal(hl_json_int(r, "version", 0), 1); /* none of it is visible */
    json_decref(r);
}

static void wait_sweeps(int n)
{
    wait_count(&w.inventories, w.inventories + n);
}

TEST_IN(setup, teardown, a_shard_of_a_version_being_written_outlives_the_grace)
{
    char id[64];
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_state(id, "running");
    put("000000000000000000000000000000e0"); /* older than the version: an orphan */
    wait_sweeps(2);
    json_t *r = ask("beginVersion",
                    json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked",
                              "model", "m", "job", id, "attempt", 1, "step", 5, "world", 1));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    put("000000000000000000000000000000e1");
    wait_count(&w.freed, 1);
    wait_sweeps(4); /* they are further apart than the grace */
    assert_int_equal(w.freed, 1);
    assert_true(commit_part(v, 0, "000000000000000000000000000000e1"));
}

static hl_status remove_model(int64_t version, int force)
{
    return call(
        "removeModel",
        json_pack("{s:s s:I s:b}", "name", "m", "version", (json_int_t)version, "force", force),
        NULL);
}

static size_t version_count(void)
{
    json_t *r = ask("getModel", json_pack("{s:s}", "name", "m"));
    size_t n = json_array_size(json_object_get(json_object_get(r, "model"), "versions"));
    json_decref(r);
    return n;
}

TEST_IN(setup, teardown, a_model_in_use_is_removed_only_by_force_or_when_its_job_is_over)
{
    char id[64];
    keep_open_versions();
    w.import_state = "done";
    import_until("m", "done");
    register_node(NULL);
    json_t *r = ask("submitJob", json_pack("{s:s s:s s:s}", "yaml", JOB_YAML "model: {name: m}\n",
                                           "source", "job.yaml", "cwd", "/tmp"));
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "id", ""));
    json_decref(r);
    wait_state(id, "running");
    assert_int_equal(remove_model(-1, 0), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), id));
    assert_int_equal(remove_model(1, 0), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), "--force"));
    report("one-1.1.0", "succeeded");
    wait_state(id, "succeeded");
    int64_t open = begin(10);
    assert_int_equal(remove_model(open, 0), HL_EBUSY); /* still being written */
    assert_int_equal(remove_model(-1, 0), HL_EBUSY);
    assert_int_equal(remove_model(open, 1), HL_OK);
    assert_int_equal(remove_model(-1, 0), HL_OK);
}

TEST_IN(setup, teardown, a_version_whose_writer_is_gone_is_closed_after_the_grace)
{
    w.import_state = "done";
    import_until("m", "done");
    int64_t v = begin(10); /* of a job that the Controller does not know */
    assert_int_equal(version_count(), 2);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (version_count() > 1) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
    assert_int_equal(call("commitPart",
                          json_pack("{s:s s:I s:i s:[]}", "model", "m", "version", (json_int_t)v,
                                    "rank", 0, "shards"),
                          NULL),
                     HL_ENOENT);
}

TEST_IN(setup, teardown, a_client_that_sends_no_token_is_told_its_age)
{
    w.import_state = "done";
    import_until("m", "done");
    assert_int_equal(call("beginVersion",
                          json_pack("{s:s s:s s:i s:i s:i}", "model", "m", "job", "j-1", "attempt",
                                    1, "step", 5, "world", 2),
                          NULL),
                     HL_EUNSUPPORTED);
    assert_int_equal(version_count(), 1);
}

TEST_IN(setup, teardown, a_save_that_one_rank_gave_up_frees_what_the_others_committed)
{
    keep_open_versions();
    w.import_state = "done";
    import_until("m", "done");
    put("000000000000000000000000000000b0");
    int64_t v = begin(10);
    assert_false(commit_part(v, 0, "000000000000000000000000000000b0"));
    json_decref(ask("abandonVersion", json_pack("{s:s s:I s:i s:s}", "model", "m", "version",
                                                (json_int_t)v, "rank", 1, "reason", "disk full")));
    wait_count(&w.freed, 1);
    assert_int_equal(version_count(), 1); /* both ranks know */
}
