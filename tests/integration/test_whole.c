/* Versions that lack something: never visible, never the newest, never taken for garbage. They lack
 * a shard that L3 does not have, or a record that can't be read. */
#include "support/test.h"

#include "integration/controller_world.h"

#define ID_A "000000000000000000000000000000b0"
#define ID_B "000000000000000000000000000000b1"

static int64_t begin_version(void)
{
    json_t *r = ask("beginVersion",
                    json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked",
                              "model", "m", "job", "j-1", "attempt", 1, "step", 10, "world", 2));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    return v;
}

/* Version 1 of "m" with one shard; no open version is closed during the test. */
static int model_setup(void **state)
{
    setup(state);
    w.grace_ms = 10 * WAIT_MS;
    restart_controller();
    w.import_state = "done";
    import_until("m", "done");
    return 0;
}

static int64_t save(void)
{
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    assert_true(commit_part(v, 1, ID_B));
    return v;
}

static void take(const char *id)
{
    size_t i;
    const json_t *have;
    pthread_mutex_lock(&inventory_lock);
    json_array_foreach (w.inventory, i, have) {
        if (strcmp(json_string_value(have), id) == 0) {
            json_array_remove(w.inventory, i);
            break;
        }
    }
    pthread_mutex_unlock(&inventory_lock);
}

/* The version that a rank at tp 0 gets when it asks for -1; what was passed over goes into
 * `skipped`. */
static int64_t newest(char *skipped, size_t cap)
{
    json_t *r = ask("requestShards", json_pack("{s:s s:i}", "model", "m", "version", -1));
    int64_t v = hl_json_int(r, "version", -1);
    snprintf(skipped, cap, "%s", hl_json_str(r, "skipped", "?"));
    json_decref(r);
    return v;
}

static hl_status request(int64_t version, int tp)
{
    json_t *r = NULL;
    hl_status st = call(
        "requestShards",
        json_pack("{s:s s:I s:i}", "model", "m", "version", (json_int_t)version, "tp", tp), &r);
    json_decref(r);
    return st;
}

static json_t *version(int64_t number)
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

static void wait_newest(int64_t number)
{
    char skipped[512];
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (newest(skipped, sizeof(skipped)) != number) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
}

static void assert_said(const char *what)
{
    if (strstr(hl_error_text(), what) == NULL)
        fail_msg("'%s' is not in: %s", what, hl_error_text());
}

/* ---- commits --------------------------------------------------------------------------------- */

static void refuse_last_commit(hl_status st, const char *what)
{
    char skipped[512];
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    assert_int_equal(call("commitPart", part(v, 1, ID_B), NULL), st);
    assert_said(what);
    assert_said(ID_B);
    json_t *shown = version(v);
    assert_string_equal(hl_json_str(shown, "state", ""), "open");
    json_decref(shown);
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_string_equal(skipped, "");
}

TEST_IN(model_setup, teardown, a_shard_that_was_never_put_keeps_the_version_invisible)
{
    refuse_last_commit(HL_ENOENT, "neither in the pool nor in the archive");
    put(ID_B);
    assert_true(commit_part(2, 1, ID_B)); /* the rank may repeat its commit */
}

TEST_IN(model_setup, teardown, a_shard_that_an_earlier_rank_named_is_looked_for_too)
{
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    take(ID_A);
    put(ID_B);
    assert_int_equal(call("commitPart", part(v, 1, ID_B), NULL), HL_ENOENT);
    assert_said(ID_A);
    assert_said("m@2/pp0/tp0/embedding");
}

TEST_IN(model_setup, teardown, a_shard_of_another_size_keeps_the_version_invisible)
{
    put(ID_B);
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    w.look_size = 49;
    assert_int_equal(call("commitPart", part(v, 1, ID_B), NULL), HL_EINVAL);
    assert_said("49 bytes in the pool, but 50 were stated");
}

TEST_IN(model_setup, teardown, a_shard_of_another_checksum_keeps_the_version_invisible)
{
    put(ID_B);
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    w.look_crc = 2;
    assert_int_equal(call("commitPart", part(v, 1, ID_B), NULL), HL_EINVAL);
    assert_said("CRC-32 00000002 in the pool, but 00000001 was stated");
}

/* libhelios repeats the commit while the status is this one. */
TEST_IN(model_setup, teardown, a_commit_while_l3_is_away_may_be_repeated)
{
    put(ID_B);
    int64_t v = begin_version();
    assert_false(commit_part(v, 0, ID_A));
    w.look_fails = 1;
    assert_int_equal(call("commitPart", part(v, 1, ID_B), NULL), HL_EUNAVAIL);
    assert_said("the version's shards can't be looked up in the pool");
    assert_true(commit_part(v, 1, ID_B));
    assert_true(commit_part(v, 1, ID_B)); /* though it is visible */
}

TEST_IN(model_setup, teardown, a_part_whose_name_is_a_path_is_refused)
{
    int64_t v = begin_version();
    json_t *params = part(v, 0, ID_A);
    json_t *shard = json_array_get(json_object_get(params, "shards"), 0);
    json_object_set_new(shard, "part", json_string("../../../x"));
    assert_int_equal(call("commitPart", params, NULL), HL_EINVAL);
    assert_said("invalid part name '../../../x'");
}

/* ---- lost shards ----------------------------------------------------------------------------- */

TEST_IN(model_setup, teardown, the_newest_version_is_the_newest_whole_one)
{
    char skipped[512];
    int64_t v = save();
    assert_int_equal(newest(skipped, sizeof(skipped)), v);
    take(ID_B);
    wait_newest(1);
    newest(skipped, sizeof(skipped));
    assert_string_equal(skipped, "version 2: 1 of its 2 shards are lost");
    assert_int_equal(request(v, 1), HL_ENOENT);
    assert_said("m@2/pp0/tp1/embedding");
    assert_int_equal(request(v, 0), HL_OK); /* this position has lost nothing */
    json_t *shown = version(v);
    assert_int_equal(hl_json_int(shown, "lostShards", -1), 1);
    json_decref(shown);
    put(ID_B);
    wait_newest(v);
}

/* Sweeps have passed, and nothing was taken for garbage. */
static void assert_nothing_freed(void)
{
    wait_count(&w.inventories, w.inventories + 4);
    assert_int_equal(w.freed, 0);
}

static void wait_reason(const char *id, const char *what)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (;;) {
        json_t *r = ask("getJob", json_pack("{s:s}", "id", id));
        const json_t *job = json_object_get(r, "job");
        int there = strstr(hl_json_str(job, "reason", ""), what) != NULL;
        if (!there && hl_now_ns() > end)
            fail_msg("the job's reason is '%s'", hl_json_str(job, "reason", ""));
        json_decref(r);
        if (there)
            return;
        poll(NULL, 0, 10);
    }
}

static void assert_started_with(const char *model)
{
    pthread_mutex_lock(&port_lock);
    assert_string_equal(w.model, model);
    pthread_mutex_unlock(&port_lock);
}

/* Saves a version as the first attempt of the job. */
static void save_as(const char *job, int64_t step, const char *a, const char *b)
{
    json_t *r = ask("beginVersion", json_pack("{s:s s:s s:s s:s s:i s:I s:i}", "token", "5",
                                              "check", "unchecked", "model", "m", "job", job,
                                              "attempt", 1, "step", (json_int_t)step, "world", 2));
    int64_t v = hl_json_int(r, "version", -1);
    json_decref(r);
    assert_false(commit_part(v, 0, a));
    assert_true(commit_part(v, 1, b));
}

TEST_IN(model_setup, teardown, a_restarted_job_goes_on_from_its_newest_whole_version)
{
    char id[64];
    register_node(NULL);
    submit_with("restarts: 1\nmodel: {name: m}\n", "k", id, sizeof(id));
    wait_state(id, "running");
    assert_started_with("m@1");
    save_as(id, 10, "000000000000000000000000000000c0", "000000000000000000000000000000c1");
    save_as(id, 20, "000000000000000000000000000000d0", "000000000000000000000000000000d1");
    take("000000000000000000000000000000d1");
    wait_newest(2);
    heartbeat(json_pack("[{s:s s:s s:i}]", "id", "one-1.1.0", "state", "failed", "exitCode", 1));
    wait_count(&w.started, 2);
    assert_started_with("m@2");
}

TEST_IN(model_setup, teardown, a_job_waits_while_the_version_that_it_names_has_lost_shards)
{
    char id[64];
    save();
    take(ID_B);
    wait_newest(1);
    register_node(NULL);
    submit_with("model: {name: m, version: 2}\n", "k", id, sizeof(id));
    wait_reason(id, "version 2 of model 'm' can't be loaded: 1 of its 2 shards are lost");
    put(ID_B);
    wait_state(id, "running");
    assert_started_with("m@2");
}

TEST_IN(model_setup, teardown, lost_versions_do_not_push_whole_ones_out)
{
    char a[33], b[33], skipped[512];
    for (int i = 0; i < 3; i++) { /* two are kept; the second one loses a shard */
        snprintf(a, sizeof(a), "%032x", 0x100 + 2 * i);
        snprintf(b, sizeof(b), "%032x", 0x101 + 2 * i);
        save_as("j-1", 10 * i, a, b);
        if (i == 1) {
            take(b);
            wait_newest(2);
        }
    }
    assert_int_equal(newest(skipped, sizeof(skipped)), 4);
    assert_nothing_freed();
    json_decref(version(2));
    json_decref(version(3));
    save_as("j-1", 40, "000000000000000000000000000000e0", "000000000000000000000000000000e1");
    wait_count(&w.freed, 3); /* versions 2 and 3, one shard of which is gone already */
    json_decref(version(4));
}

/* ---- damaged records ------------------------------------------------------------------------- */

static void sql(const char *text)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(w.store + strlen("sqlite:"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    sqlite3_close(db);
}

static void restart_with(const char *change)
{
    on_loop(stop_controller);
    sql(change);
    on_loop(start_controller);
    open_peer();
}

static void assert_damaged(const char *key)
{
    json_t *r = ask("clusterInfo", NULL);
    const json_t *list = hl_json_list(json_object_get(r, "info"), "damagedRecords");
    assert_int_equal(json_array_size(list), 1);
    const char *text = json_string_value(json_array_get(list, 0));
    assert_int_equal(strncmp(text, key, strlen(key)), 0);
    json_decref(r);
}

#define FLIP "UPDATE kv SET value = CAST(replace(value, '\"pp\":0', '\"pp\":1') AS BLOB) WHERE key"

TEST_IN(model_setup, teardown, a_damaged_shard_record_costs_its_version)
{
    char skipped[512];
    int64_t v = save();
    restart_with(FLIP " = 'shard/m/0000000002/" ID_B "'");
    assert_damaged("shard/m/0000000002/" ID_B);
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_non_null(strstr(skipped, "the records of 1 of its 2 shards are damaged or missing"));
    assert_int_equal(request(v, 0), HL_ECORRUPT); /* whose part it was is unknown */
    assert_int_equal(request(v, 1), HL_ECORRUPT);
    assert_nothing_freed();
    assert_int_equal(call("removeModel", json_pack("{s:s s:i}", "name", "m", "version", 2), NULL),
                     HL_OK);
    wait_count(&w.freed, 2);
    json_t *r = ask("clusterInfo", NULL);
    assert_int_equal(json_array_size(hl_json_list(json_object_get(r, "info"), "damagedRecords")),
                     0);
    json_decref(r);
    restart_controller();
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_string_equal(skipped, "");
}

TEST_IN(model_setup, teardown, a_shard_record_that_is_gone_costs_its_version)
{
    char skipped[512];
    save();
    restart_with("DELETE FROM kv WHERE key = 'shard/m/0000000002/" ID_B "'");
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_non_null(strstr(skipped, "the records of 1 of its 2 shards are damaged or missing"));
}

TEST_IN(model_setup, teardown,
        a_damaged_version_record_costs_its_version_and_its_number_stays_taken)
{
    char skipped[512];
    save();
    restart_with("UPDATE kv SET value = CAST('{}' AS BLOB) WHERE key = 'version/m/0000000002'");
    assert_damaged("version/m/0000000002");
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_string_equal(skipped, "version 2: its record in the Controller's store is damaged");
    assert_nothing_freed();
    assert_int_equal(begin_version(), 3);
}

TEST_IN(model_setup, teardown, texts_that_are_no_numbers_are_refused)
{
    static const char *const cursors[] = {"x", "-1", "3x", "99999999999999999999999"};
    static const char *const tokens[] = {"12x", "-1", "0x12", "0123456789abcdef0"};
    for (size_t i = 0; i < HL_ARRAY_LEN(cursors); i++)
        assert_int_equal(call("listShards",
                              json_pack("{s:s s:s s:i s:i}", "model", "m", "cursor", cursors[i],
                                        "version", -1, "limit", 10),
                              NULL),
                         HL_EINVAL);
    for (size_t i = 0; i < HL_ARRAY_LEN(tokens); i++)
        assert_int_equal(call("beginVersion",
                              json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", tokens[i],
                                        "check", "unchecked", "model", "m", "job", "j-1", "attempt",
                                        1, "step", 11, "world", 2),
                              NULL),
                         HL_EINVAL);
}

TEST_IN(model_setup, teardown, a_damaged_model_record_costs_its_model)
{
    save();
    restart_with("UPDATE kv SET value = CAST('x' AS BLOB) WHERE key = 'model/m'");
    assert_damaged("model/m");
    assert_nothing_freed();
    assert_int_equal(request(-1, 0), HL_ECORRUPT);
    assert_said("the record of model 'm' in the Controller's store is damaged");
    assert_int_equal(
        call("beginVersion",
             json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "2", "check", "unchecked", "model",
                       "m", "job", "j-1", "attempt", 1, "step", 11, "world", 2),
             NULL),
        HL_ECORRUPT);
    assert_int_equal(call("importModel", import_now("m"), NULL), HL_EEXIST);
    assert_int_equal(call("removeModel",
                          json_pack("{s:s s:i s:b}", "name", "m", "version", -1, "force", 1), NULL),
                     HL_OK);
    wait_count(&w.freed, 3);
}

TEST_IN(model_setup, teardown, a_damaged_record_costs_no_other_model)
{
    restart_with("INSERT INTO kv VALUES('model/other', CAST('x' AS BLOB))");
    assert_int_equal(request(-1, 0), HL_OK);
    assert_damaged("model/other");
}

TEST_IN(model_setup, teardown,
        containers_of_a_job_with_a_damaged_record_run_on_until_it_is_cancelled)
{
    char id[64], next[64];
    register_node(NULL);
    submit("k", id, sizeof(id));
    wait_state(id, "running");
    restart_with("UPDATE kv SET value = CAST('x' AS BLOB) WHERE key = 'job/one-1'");
    assert_damaged("job/one-1");
    register_node("one-1.1.0");
    heartbeat(json_pack("[{s:s s:s}]", "id", "one-1.1.0", "state", "running"));
    assert_int_equal(w.stopped, 0);
    assert_int_equal(call("getJob", json_pack("{s:s}", "id", id), NULL), HL_ECORRUPT);
    assert_said("its containers keep running");
    submit("k2", next, sizeof(next));
    assert_string_equal(next, "one-2");         /* its number is not reused */
    wait_reason(next, "1 server is not ready"); /* nor are its slots */
    assert_int_equal(call("cancelJob", json_pack("{s:s}", "id", id), NULL), HL_OK);
    heartbeat(json_pack("[{s:s s:s}]", "id", "one-1.1.0", "state", "running"));
    wait_count(&w.stopped, 1);
    heartbeat(json_pack("[{s:s s:s}]", "id", "one-1.1.0", "state", "stopped"));
    wait_state(next, "running");
}

TEST_IN(model_setup, teardown, shard_records_of_another_place_cost_their_version)
{
    char skipped[512];
    save();
    /* as a text editor would do it: the record loses its checksum */
    restart_with("UPDATE kv SET value = CAST(replace(substr(CAST(value AS TEXT), 16), "
                 "'\"tp\":1', '\"tp\":0') AS BLOB) WHERE key = 'shard/m/0000000002/" ID_B "'");
    assert_damaged("version/m/0000000002");
    assert_int_equal(newest(skipped, sizeof(skipped)), 1);
    assert_string_equal(
        skipped, "version 2: the records of its shards differ from those that were stored with it");
    assert_int_equal(request(2, 0), HL_ECORRUPT); /* it would include another rank's part, too */
    assert_nothing_freed();
}

TEST_IN(model_setup, teardown, a_record_under_the_key_of_another_is_damage)
{
    save();
    restart_with("UPDATE kv SET value = (SELECT CAST(substr(CAST(value AS TEXT), 16) AS BLOB) FROM "
                 "kv WHERE key = 'shard/m/0000000002/" ID_A "') "
                 "WHERE key = 'shard/m/0000000002/" ID_B "'");
    assert_damaged("shard/m/0000000002/" ID_B);
    assert_int_equal(request(2, 0), HL_ECORRUPT);
}
