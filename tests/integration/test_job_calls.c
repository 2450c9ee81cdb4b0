/* Calls whose parameters are, or whose other side is, not as they should be. */
#include "support/test.h"

#include "integration/controller_world.h"
#include "store/store.h"

static void answer_held(void)
{
    hl_rpc_reject(w.held, HL_EUNAVAIL, "too late");
}

TEST_IN(setup, teardown, a_start_that_is_cut_off_by_a_new_address_of_the_agent_is_sent_again)
{
    char id[64];
    w.holds_start = true;
    register_node(NULL);
    submit("", id, sizeof(id));
    wait_count(&w.started, 1);
    json_decref(ask("registerNode", registration("127.0.0.1:1", "here", "1:2", NULL)));
    register_node(NULL);
    wait_count(&w.started, 2);
    wait_state(id, "running");
    on_loop(answer_held);
}

/* What the store has of the job becomes something that is no record. */
static void damage_record(const char *id)
{
    struct hl_store *store;
    json_t *value = json_string("damaged");
    char key[80];
    snprintf(key, sizeof(key), "job/%s", id);
    assert_int_equal(hl_store_open(w.store, &store), HL_OK);
    assert_int_equal(hl_store_commit(store, &(struct hl_store_op){HL_STORE_PUT, key, value}, 1),
                     HL_OK);
    hl_store_close(store);
    json_decref(value);
}

TEST_IN(setup, teardown, the_cancel_of_a_job_whose_record_is_damaged_names_the_job)
{
    char id[64];
    json_t *r = NULL;
    submit("", id, sizeof(id));
    on_loop(stop_controller);
    damage_record(id);
    on_loop(start_controller);
    open_peer();
    assert_int_equal(call("getJob", json_pack("{s:s}", "id", id), &r), HL_ECORRUPT);
    r = ask("cancelJob", json_pack("{s:s}", "id", id));
    assert_string_equal(hl_json_str(r, "id", ""), id);
    assert_string_equal(hl_json_str(r, "state", ""), "cancelled");
    json_decref(r);
    assert_int_equal(call("getJob", json_pack("{s:s}", "id", id), &r), HL_ENOENT);
}

TEST_IN(setup, teardown, a_pin_of_neither_a_shard_nor_a_version_says_what_is_missing)
{
    json_t *r = NULL;
    assert_int_equal(call("pin", json_object(), &r), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "id"));
    assert_non_null(strstr(hl_error_text(), "model"));
}
