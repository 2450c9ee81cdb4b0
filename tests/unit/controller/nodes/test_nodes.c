/* The table of nodes, and jobs with damaged records, without a network. */
#include "support/test.h"

#include <string.h>

#include "base/clock.h"
#include "controller/damaged.h"
#include "controller/nodes/nodes_private.h"
#include "core/job/jobstate.h"

#define SECOND HL_NS_PER_S

static struct node *put(struct hl_controller *c, struct node *n, const char *name)
{
    *n = (struct node){.controller = c, .seen_ns = c->listening.listened_ns};
    snprintf(n->name, sizeof(n->name), "%s", name);
    snprintf(n->incarnation, sizeof(n->incarnation), "boot-1");
    HASH_ADD_STR(c->nodes->table, name, n);
    return n;
}

TEST(a_node_is_ready_when_it_has_registered_and_is_not_lost)
{
    struct nodes nodes = {0};
    struct hl_controller c = {.nodes = &nodes, .listening.listened_ns = 100 * SECOND};
    struct node a, b;
    put(&c, &a, "a");
    put(&c, &b, "b");
    assert_ptr_equal(node_find(&c, "b"), &b);
    assert_null(node_find(&c, "c"));
    assert_true(node_ready(&a));
    a.lost = true;
    assert_false(node_ready(&a));
    b.incarnation[0] = '\0'; /* known from the store, not back yet */
    assert_false(node_ready(&b));
    HASH_CLEAR(hh, nodes.table);
}

TEST(a_job_may_yet_get_slots_while_a_remembered_node_is_awaited)
{
    struct nodes nodes = {0};
    struct hl_controller c = {.nodes = &nodes, .listening.listened_ns = 100 * SECOND};
    struct node a, b;
    put(&c, &a, "a");
    put(&c, &b, "b");
    assert_false(nodes_expected(&c));
    b.incarnation[0] = '\0';
    assert_true(nodes_expected(&c));
    b.lost = true; /* given up */
    assert_false(nodes_expected(&c));
    HASH_CLEAR(hh, nodes.table);
}

TEST(a_new_node_is_not_silent_while_its_record_is_written)
{
    struct nodes *nodes = calloc(1, sizeof(*nodes));
    struct hl_controller c = {.nodes = nodes, .listening.listened_ns = 100 * SECOND};
    struct node *n;
    assert_int_equal(hl_rpc_create(&c.opts.rpc), HL_OK);
    assert_int_equal(
        node_add(&c, &(struct hl_api_node_info){.name = "a", .agent_address = "127.0.0.1:1"}, &n),
        HL_OK);
    assert_false(node_ready(n));
    assert_int_equal(node_silent_ms(n), 0);
    hl_rpc_peer_close(n->agent);
    nodes_fini(&c);
    hl_rpc_destroy(c.opts.rpc);
}

TEST(silence_is_counted_only_while_the_controller_listens)
{
    struct nodes nodes = {0};
    struct hl_controller c = {.nodes = &nodes, .listening.listened_ns = 100 * SECOND};
    struct node a;
    put(&c, &a, "a");
    assert_int_equal(node_silent_ms(&a), 0);
    c.listening.listened_ns += 7 * SECOND; /* the time it slept does not count */
    assert_int_equal(node_silent_ms(&a), 7000);
    HASH_CLEAR(hh, nodes.table);
}

TEST(a_container_is_reported_once_with_its_last_state)
{
    struct nodes nodes = {0};
    struct hl_controller c = {.nodes = &nodes};
    struct node a;
    put(&c, &a, "a");
    const char *ids[] = {"j-1.1.0", "j-1.1.1", "j-1.1.0"};

    const enum hl_api_container_state states[] = {HL_API_CONTAINER_STATE_STARTING,
                                                  HL_API_CONTAINER_STATE_RUNNING,
                                                  HL_API_CONTAINER_STATE_FAILED};

    for (size_t i = 0; i < 3; i++)
        node_container(
            &a, &(struct hl_api_container_status){.id = ids[i], .state = states[i], .message = ""});
    assert_int_equal(a.report.containers.count, 2);
    assert_int_equal(node_reported(&a, "j-1.1.0")->state, HL_API_CONTAINER_STATE_FAILED);
    assert_int_equal(node_reported(&a, "j-1.1.1")->state, HL_API_CONTAINER_STATE_RUNNING);
    assert_null(node_reported(&a, "j-1.2.0"));
    hl_arena_fini(&a.report_arena);
    hl_arena_fini(&a.answered_arena);
    HASH_CLEAR(hh, nodes.table);
}

static void report(struct node *n, const struct hl_api_container_status_list *containers)
{
    const struct hl_api_controller_heartbeat_params p = {
        .name = n->name, .incarnation = n->incarnation, .containers = *containers};
    assert_int_equal(node_keep_report(n, &p), HL_OK);
}

static int32_t pid_of(const struct node *n, const char *id)
{
    const struct hl_api_container_status *s = node_reported(n, id);
    return s == NULL || s->ranks.count == 0 ? 0 : s->ranks.items[0].pid;
}

TEST(an_older_heartbeat_takes_no_pids_away)
{
    struct nodes nodes = {0};
    struct hl_controller c = {.nodes = &nodes, .listening.listened_ns = 100 * SECOND};
    struct node a;
    put(&c, &a, "a");
    struct hl_api_rank_status rank = {.pid = 42, .state = HL_API_CONTAINER_STATE_RUNNING};
    const struct hl_api_container_status_list none = {0};
    struct hl_api_container_status running = {
        .id = "j-1.1.0", .state = HL_API_CONTAINER_STATE_RUNNING, .ranks = {&rank, 1}};
    struct hl_api_container_status starting = {.id = "j-1.1.0",
                                               .state = HL_API_CONTAINER_STATE_STARTING};
    for (int confirmed = 0; confirmed < 2; confirmed++) {
        node_container(&a, &running);
        report(&a, &none);
        assert_int_equal(pid_of(&a, "j-1.1.0"), 42);
        report(&a, &(struct hl_api_container_status_list){&starting, 1});
        assert_int_equal(pid_of(&a, "j-1.1.0"), 42);
        if (confirmed)
            report(&a, &(struct hl_api_container_status_list){&running, 1});
        else
            c.listening.listened_ns += HL_JOB_ABSENT_GRACE_MS * HL_NS_PER_MS;
        report(&a, &none);
        assert_null(node_reported(&a, "j-1.1.0"));
    }
    hl_arena_fini(&a.report_arena);
    hl_arena_fini(&a.answered_arena);
    HASH_CLEAR(hh, nodes.table);
}

static bool holds(const struct hl_controller *c, const char *id, enum hl_api_container_state state)
{
    struct hl_api_container_status one = {.id = id, .state = state};
    const struct hl_api_container_status_list list = {&one, 1};
    const char *found = job_damaged_container(c, &list);
    if (found != NULL)
        assert_ptr_equal(found, id);
    return found != NULL;
}

TEST(a_node_that_runs_ranks_of_a_damaged_job_is_held_back)
{
    struct hl_controller c = {.damaged = json_pack("{s:s}", "job/j-7", "not valid JSON")};
    char id[HL_JOB_ID_MAX + 24], other[HL_JOB_ID_MAX + 24];
    hl_container_id("j-7", 2, 0, id, sizeof(id));
    hl_container_id("j-8", 1, 0, other, sizeof(other));
    assert_true(job_is_damaged(&c, "j-7"));
    assert_false(job_is_damaged(&c, "j-8"));
    assert_true(holds(&c, id, HL_API_CONTAINER_STATE_RUNNING));
    assert_true(holds(&c, id, HL_API_CONTAINER_STATE_STARTING));
    assert_false(holds(&c, id, HL_API_CONTAINER_STATE_SUCCEEDED)); /* its slots are free */
    assert_false(holds(&c, other, HL_API_CONTAINER_STATE_RUNNING));
    assert_false(holds(&c, "no container of ours", HL_API_CONTAINER_STATE_RUNNING));
    json_decref(c.damaged);
}

TEST(damage_is_forgotten_with_the_model_or_version_that_has_it)
{
    struct hl_controller c = {.damaged = json_pack("{s:s s:s s:s s:s s:s}", "model/tiny", "",
                                                   "version/tiny/0000000002", "",
                                                   "shard/tiny/0000000003/ab", "",
                                                   "version/other/0000000002", "", "job/tiny", "")};
    damaged_forget(&c, "tiny", 2);
    assert_int_equal(json_object_size(c.damaged), 4);
    assert_null(json_object_get(c.damaged, "version/tiny/0000000002"));
    damaged_forget(&c, "tiny", -1); /* everything of the model, and nothing else of that name */
    assert_int_equal(json_object_size(c.damaged), 2);
    assert_non_null(json_object_get(c.damaged, "version/other/0000000002"));
    assert_non_null(json_object_get(c.damaged, "job/tiny"));
    json_decref(c.damaged);
}
