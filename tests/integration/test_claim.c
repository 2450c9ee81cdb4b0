/* What the Controller does, and refuses to do, for each answer of L3 to its claim. */
#include "support/test.h"

#include "integration/controller_world.h"

#define SWEEPS 3

/* A number or text of clusterInfo; borrowed from a static buffer. */
static const char *info(const char *field)
{
    static char text[600];
    json_t *r = ask("clusterInfo", NULL);
    const json_t *value = json_object_get(json_object_get(r, "info"), field);
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    else
        snprintf(text, sizeof(text), "%s", json_string_value(value));
    json_decref(r);
    return text;
}

static void wait_info(const char *field, const char *wanted)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (strcmp(info(field), wanted) != 0) {
        if (hl_now_ns() > end)
            fail_msg("%s is %s, not %s", field, info(field), wanted);
        poll(NULL, 0, 10);
    }
}

static void put_orphan(const char *id)
{
    pthread_mutex_lock(&inventory_lock);
    json_array_append_new(w.inventory, json_string(id));
    pthread_mutex_unlock(&inventory_lock);
}

static void wait_sweeps(void)
{
    wait_count(&w.inventories, w.inventories + SWEEPS);
}

/* Every call that would change pool or catalogue is refused with the reason. */
static void assert_all_refused(const char *words)
{
    static const char *const methods[] = {"importModel", "removeModel", "beginVersion",
                                          "commitPart", "abandonVersion"};
    json_t *const params[] = {import_now("other"),
                              json_pack("{s:s s:i}", "name", "m", "version", -1),
                              json_pack("{s:s s:s s:i s:i s:i s:s}", "model", "m", "job", "j",
                                        "attempt", 1, "world", 1, "rank", 0, "token", "1"),
                              json_pack("{s:s s:i s:i}", "model", "m", "version", 2, "rank", 0),
                              json_pack("{s:s s:i s:i}", "model", "m", "version", 2, "rank", 0)};
    for (size_t i = 0; i < HL_ARRAY_LEN(methods); i++) {
        json_t *none = NULL;
        if (call(methods[i], params[i], &none) != HL_EPERM)
            fail_msg("%s was not refused: %s", methods[i], hl_error_text());
        if (strstr(hl_error_text(), words) == NULL ||
            strstr(hl_error_text(), "helios recover") == NULL)
            fail_msg("%s: %s", methods[i], hl_error_text());
    }
}

static void import_m(void)
{
    w.import_state = "done";
    import_until("m", "done");
}

TEST_IN(setup, teardown, what_is_refused_is_left_alone_until_it_is_not)
{
    static const char *const states[][2] = {{"other", "belongs to cluster 0123456789abcdef"},
                                            {"newer", "knows revision 1000"}};
    import_m();
    for (size_t i = 0; i < HL_ARRAY_LEN(states); i++) {
        w.claim_state = states[i][0];
        wait_info("claim", "refused");
        put_orphan("000000000000000000000000000000b1");
        int freed = w.freed;
        wait_sweeps();
        assert_int_equal(w.freed, freed);
        assert_all_refused(states[i][1]);
        assert_non_null(strstr(info("l3State"), states[i][1]));
        json_t *r = ask("metrics", NULL);
        assert_non_null(strstr(hl_json_str(r, "text", ""), "\nhelios_pool_refused 1\n"));
        json_decref(r);
        json_decref(ask("getModel", json_pack("{s:s}", "name", "m"))); /* is served */
        w.claim_state = "claimed";
        wait_info("claim", "ok");
        assert_string_equal(info("l3State"), "ready");
        wait_count(&w.freed, freed + 1);
    }
    json_decref(ask("removeModel", json_pack("{s:s s:i}", "name", "m", "version", -1)));
}

TEST_IN(setup, teardown, an_empty_catalogue_adopts_nothing)
{
    w.claim_state = "unclaimed";
    put_orphan("000000000000000000000000000000b1");
    wait_info("claim", "refused");
    assert_non_null(strstr(info("l3State"), "the catalogue is empty"));
    wait_sweeps();
    assert_int_equal(w.freed, 0);
    assert_int_equal(w.adoptions, 0);
}

TEST_IN(setup, teardown, a_catalogue_that_knows_the_shards_adopts_them)
{
    import_m();
    put_orphan("000000000000000000000000000000b1");
    on_loop(stop_controller);
    w.claim_state = "unclaimed";
    int freed = w.freed;
    on_loop(start_controller);
    open_peer();
    wait_count(&w.adoptions, 1);
    wait_info("claim", "ok");
    wait_count(&w.freed, freed + 1); /* the orphan, once it is ours */
    assert_int_equal(w.adoptions, 1);
}

/* Otherwise its shards would be in an unclaimed pool, and the next claim would find them there. */
TEST_IN(setup, teardown, an_import_waits_until_the_pool_is_claimed)
{
    char id[2][64];
    w.import_state = "done";
    on_loop(stop_controller);
    w.claim_state = "away";
    on_loop(start_controller);
    open_peer();
    for (int i = 0; i < 2; i++) {
        json_t *r = ask("importModel", import_now(i == 0 ? "m" : "given-up"));
        snprintf(id[i], sizeof(id[i]), "%s", hl_json_str(r, "importId", ""));
        json_decref(r);
    }
    json_decref(ask("cancelImport", json_pack("{s:s}", "id", id[1])));
    wait_import(id[1], "failed");
    wait_count(&w.claims, w.claims + 2);
    assert_string_equal(state_of(id[0], NULL), "running");
    assert_int_equal(w.imports, 0);
    w.claim_state = "claimed";
    wait_import(id[0], "done");
    assert_int_equal(w.imports, 1);
}

struct begun {
    atomic_int answered;
    hl_status st;
    json_t *result;
};

static void *begin_first(void *arg)
{
    struct begun *b = arg;
    b->st =
        call("beginVersion",
             json_pack("{s:s s:s s:i s:i s:i s:s s:{s:i s:i}}", "model", "m", "job", "j", "attempt",
                       1, "world", 1, "rank", 0, "token", "1", "create", "tp", 1, "pp", 1),
             &b->result);
    b->answered = 1;
    return NULL;
}

static void begin_unclaimed(struct begun *b, pthread_t *thread)
{
    on_loop(stop_controller);
    w.claim_state = "away";
    on_loop(start_controller);
    open_peer();
    *b = (struct begun){.st = HL_OK};
    assert_int_equal(pthread_create(thread, NULL, begin_first, b), 0);
    wait_count(&w.claims, w.claims + 2);
    assert_int_equal(b->answered, 0);
}

/* As with an import: its first shard would be in an unclaimed pool. */
TEST_IN(setup, teardown, the_first_save_waits_until_the_pool_is_claimed)
{
    struct begun b;
    pthread_t thread;
    begin_unclaimed(&b, &thread);
    w.claim_state = "claimed";
    pthread_join(thread, NULL);
    assert_int_equal(b.st, HL_OK);
    assert_int_equal(hl_json_int(b.result, "version", 0), 1);
    json_decref(b.result);
}

TEST_IN(setup, teardown, the_first_save_beside_shards_of_others_is_refused_when_that_is_known)
{
    struct begun b;
    pthread_t thread;
    begin_unclaimed(&b, &thread);
    w.claim_state = "other";
    pthread_join(thread, NULL);
    assert_int_equal(b.st, HL_EPERM);
}

TEST_IN(setup, teardown, a_controller_stops_while_a_save_waits)
{
    struct begun b;
    pthread_t thread;
    begin_unclaimed(&b, &thread);
    on_loop(stop_controller);
    pthread_join(thread, NULL);
    assert_int_not_equal(b.st, HL_OK);
    on_loop(start_controller);
    open_peer();
}

TEST_IN(setup, teardown, an_import_into_a_pool_of_others_is_refused_when_that_is_known)
{
    char id[64];
    json_t *progress;
    on_loop(stop_controller);
    w.claim_state = "away";
    on_loop(start_controller);
    open_peer();
    json_t *r = ask("importModel", import_now("m"));
    snprintf(id, sizeof(id), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    w.claim_state = "other";
    wait_import(id, "failed");
    (void)state_of(id, &progress);
    assert_non_null(strstr(hl_json_str(progress, "error", ""), "belongs to cluster"));
    json_decref(progress);
    assert_int_equal(w.imports, 0);
}

TEST_IN(setup, teardown, a_catalogue_that_knows_none_of_the_shards_adopts_nothing)
{
    import_m();
    on_loop(stop_controller);
    pthread_mutex_lock(&inventory_lock);
    json_array_clear(w.inventory);
    json_array_append_new(w.inventory, json_string("000000000000000000000000000000b1"));
    pthread_mutex_unlock(&inventory_lock);
    w.claim_state = "unclaimed";
    on_loop(start_controller);
    open_peer();
    wait_info("claim", "refused");
    assert_non_null(strstr(info("l3State"), "knows none of them"));
    wait_sweeps();
    assert_int_equal(w.freed, 0);
    assert_int_equal(w.adoptions, 0);
}

TEST_IN(setup, teardown, an_older_daemon_is_not_swept)
{
    w.claim_state = NULL;
    put_orphan("000000000000000000000000000000b1");
    wait_info("claim", "refused");
    assert_non_null(strstr(info("l3State"), "upgrade"));
    assert_int_equal(w.freed, 0);
    w.claim_state = "claimed";
    wait_info("claim", "ok");
    wait_count(&w.freed, 1);
}

/* L3 is told of each durable change; reads are not changes. */
TEST_IN(setup, teardown, the_revision_grows_with_changes_and_outlives_the_controller)
{
    char id[64];
    wait_info("claim", "ok");
    snprintf(id, sizeof(id), "%s", info("cluster"));
    assert_int_equal(strlen(id), 32);
    long long first = atoll(info("revision"));
    import_m();
    assert_int_equal(atoll(info("revision")), first + 1);
    json_decref(ask("getModel", json_pack("{s:s}", "name", "m")));
    json_decref(
        ask("listShards", json_pack("{s:s s:i s:i}", "model", "m", "version", -1, "limit", 10)));
    assert_int_equal(atoll(info("revision")), first + 1);
    json_decref(ask("removeModel", json_pack("{s:s s:i}", "name", "m", "version", -1)));
    assert_int_equal(atoll(info("revision")), first + 2);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (w.told_revision != first + 2) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
    restart_controller();
    assert_string_equal(info("cluster"), id);
    assert_int_equal(atoll(info("revision")), first + 2);
}
