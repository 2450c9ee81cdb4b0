/* Calls about jobs whose other side is not as it should be. */
#include "support/test.h"

#include "integration/controller_world.h"

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
