/* versions.durability: a version becomes visible only when each of its shards is held in the
 * required number of failure domains, whatever fails in between. */
#include "support/test.h"

#include "integration/controller_world.h"

#define ID_A "000000000000000000000000000000b0"
#define ID_B "000000000000000000000000000000b1"

/* The Controller knows what L3 holds. */
static void restart_with(const char *durability, int timeout_ms)
{
    int seen = w.inventories;
    w.durability = durability;
    w.durability_timeout_ms = timeout_ms;
    restart_controller();
    wait_count(&w.inventories, seen + 1);
}

/* Version 1 of "m" was imported while the pool alone was enough. */
static void want(const char *durability, int timeout_ms)
{
    w.grace_ms = 10 * WAIT_MS;
    restart_controller();
    w.import_state = "done";
    import_until("m", "done");
    restart_with(durability, timeout_ms);
}

/* n0 with an L2. */
static void register_store(const char *host)
{
    json_t *r = registration(hl_rpc_server_address(w.agent), host, "1:2", NULL);
    json_object_set_new(
        json_object_get(r, "node"), "tiers",
        json_pack("[{s:s s:s s:i}]", "tier", "L2", "name", "host", "quotaBytes", 100000));
    json_decref(ask("registerNode", r));
}

static hl_status begin(int64_t *version)
{
    json_t *r = NULL;
    hl_status st =
        call("beginVersion",
             json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked", "model",
                       "m", "job", "j-1", "attempt", 1, "step", 10, "world", 2),
             &r);
    *version = r != NULL ? hl_json_int(r, "version", -1) : -1;
    json_decref(r);
    return st;
}

/* All commits but the last rank's. */
static int64_t save_all_but_one(void)
{
    int64_t v;
    assert_int_equal(begin(&v), HL_OK);
    assert_false(commit_part(v, 0, ID_A));
    put(ID_B);
    return v;
}

static json_t *last_part(int64_t version, bool waits)
{
    json_t *p = part(version, 1, ID_B);
    json_object_set_new(p, "waits", json_boolean(waits));
    return p;
}

/* As libhelios does. */
static void commit_until_visible(int64_t version)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    bool visible = false;
    while (!visible) {
        json_t *r = ask("commitPart", last_part(version, true));
        visible = hl_json_bool(r, "visible", 0);
        assert_true(visible || hl_json_bool(r, "securing", 0));
        json_decref(r);
        assert_true(hl_now_ns() < end);
    }
}

static json_t *shown(int64_t number)
{
    json_t *r = ask("getModel", json_pack("{s:s}", "name", "m")), *v, *found = NULL;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(r, "model"), "versions"), i, v) {
        if (hl_json_int(v, "version", -1) == number)
            found = json_incref(v);
    }
    json_decref(r);
    assert_non_null(found);
    return found;
}

static void assert_hidden(int64_t version)
{
    json_t *v = shown(version);
    assert_string_equal(hl_json_str(v, "state", ""), "open");
    json_decref(v);
    json_t *r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    assert_int_equal(hl_json_int(r, "version", -1), 1);
    json_decref(r);
}

/* Lacking shards are counted from what the Controller has heard since: a check of L3 may still be
 * running. */
static void assert_safe(int64_t version, const char *durability)
{
    uint64_t until = hl_now_ns() + TEST_PATIENCE_NS;
    for (int64_t lacking = -1; lacking != 0;) {
        json_t *v = shown(version);
        assert_string_equal(hl_json_str(v, "state", ""), "visible");
        assert_string_equal(hl_json_str(v, "durability", ""), durability);
        lacking = hl_json_int(v, "lackingShards", -1);
        json_decref(v);
        assert_true(hl_now_ns() < until);
    }
}

static int times_stored(const char *id)
{
    size_t i;
    const json_t *have;
    int n = 0;
    pthread_mutex_lock(&inventory_lock);
    json_array_foreach (w.stored, i, have)
        n += strcmp(json_string_value(have), id) == 0;
    pthread_mutex_unlock(&inventory_lock);
    return n;
}

static void assert_said(const char *what)
{
    if (strstr(hl_error_text(), what) == NULL)
        fail_msg("'%s' is not in: %s", what, hl_error_text());
}

/* A waiting rank is told that it has to wait, and the version stays hidden. */
static int64_t refuse_for_now(void)
{
    w.refuses = true;
    int64_t v = save_all_but_one();
    json_t *r = ask("commitPart", last_part(v, true));
    assert_true(hl_json_bool(r, "securing", 0));
    assert_false(hl_json_bool(r, "visible", 1));
    assert_int_equal(hl_json_int(r, "doneBytes", -1), 0);
    assert_int_equal(hl_json_int(r, "totalBytes", -1), 100);
    json_decref(r);
    assert_hidden(v);
    return v;
}

TEST_IN(setup, teardown, with_two_a_version_is_hidden_until_another_host_has_all_of_it)
{
    want("two", WAIT_MS);
    register_store("there");
    int64_t v = refuse_for_now();
    assert_int_equal(times_stored(ID_A) + times_stored(ID_B), 0);
    w.refuses = false;
    commit_until_visible(v);
    assert_true(times_stored(ID_A) >= 1 && times_stored(ID_B) >= 1);
    assert_safe(v, "two");
}

TEST_IN(setup, teardown, with_archive_a_version_is_hidden_until_all_of_it_is_archived)
{
    w.has_archive = true;
    want("archive", WAIT_MS);
    register_store("there"); /* an L2, which does not help here */
    int64_t v = refuse_for_now();
    w.refuses = false;
    commit_until_visible(v);
    assert_true(times_stored(ID_A) >= 1 && times_stored(ID_B) >= 1);
    assert_safe(v, "archive");
}

TEST_IN(setup, teardown, a_copy_with_another_checksum_does_not_count)
{
    want("two", 1500);
    register_store("there");
    w.copy_crc = 2;
    int64_t v = save_all_but_one();
    assert_int_equal(call("commitPart", last_part(v, false), NULL), HL_ETIMEDOUT);
    assert_said("another checksum");
    assert_hidden(v);
}

TEST_IN(setup, teardown, a_save_that_finds_no_other_host_fails_in_time_and_may_be_repeated)
{
    want("two", 1500);
    register_store("there");
    w.refuses = true;
    int64_t v = save_all_but_one();
    assert_int_equal(call("commitPart", last_part(v, false), NULL), HL_ETIMEDOUT);
    assert_said("is in L3, and it has to be on another host or in the archive too");
    assert_said(ID_A);
    assert_said("n0: there is no room");
    assert_hidden(v);
    w.refuses = false;
    commit_until_visible(v);
    assert_safe(v, "two");
}

TEST_IN(setup, teardown, what_can_never_be_safe_enough_is_refused_before_it_is_put)
{
    int64_t v;
    want("two", WAIT_MS);
    register_store("here"); /* beside the pool */
    assert_int_equal(begin(&v), HL_EUNSUPPORTED);
    assert_said("there is one failure domain");
    assert_int_equal(call("importModel", import_now("other"), NULL), HL_EUNSUPPORTED);
    restart_with("archive", WAIT_MS);
    register_store("there");
    assert_int_equal(begin(&v), HL_EUNSUPPORTED);
    assert_said("L3 has no archive");
}

TEST_IN(setup, teardown, a_controller_that_dies_meanwhile_never_shows_the_version)
{
    want("two", WAIT_MS);
    register_store("there");
    int64_t v = refuse_for_now();
    restart_controller();
    assert_hidden(v);
    register_store("there");
    w.refuses = false;
    assert_hidden(v); /* nobody asks for it */
    commit_until_visible(v);
    assert_safe(v, "two");
}

TEST_IN(setup, teardown, a_version_that_is_given_up_meanwhile_is_never_shown)
{
    want("two", WAIT_MS);
    register_store("there");
    int64_t v = refuse_for_now();
    json_decref(ask("abandonVersion",
                    json_pack("{s:s s:I s:i s:s s:[s]}", "model", "m", "version", (json_int_t)v,
                              "rank", 1, "reason", "enough", "ids", ID_B)));
    w.refuses = false;
    assert_int_not_equal(call("commitPart", last_part(v, true), NULL), HL_OK);
    wait_count(&w.freed, 2);
    json_t *r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    assert_int_equal(hl_json_int(r, "version", -1), 1);
    json_decref(r);
}

TEST_IN(setup, teardown, an_import_is_there_once_it_is_archived)
{
    w.has_archive = true;
    w.refuses = true;
    w.import_state = "done";
    restart_with("archive", WAIT_MS);
    w.look_size = 100; /* as the import says */
    w.look_crc = 7;
    json_t *r = ask("importModel", import_now("other"));
    char id[64];
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    wait_count(&w.refused, w.refused + 2);
    assert_string_equal(state_of(id, NULL), "running");
    assert_int_equal(call("getModel", json_pack("{s:s}", "name", "other"), NULL), HL_ENOENT);
    w.refuses = false;
    wait_import(id, "done");
    json_decref(ask("getModel", json_pack("{s:s}", "name", "other")));
}
