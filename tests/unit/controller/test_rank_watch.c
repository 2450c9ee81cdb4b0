/* What the reports of nodes say about replaced ranks becomes events, however late the first look
 * is. */
#include "support/test.h"

#include <string.h>

#include "controller/jobs/jobs_private.h"
#include "controller/nodes/nodes_private.h"

struct world {
    struct hl_controller c;
    struct nodes nodes;
    struct jobs jobs;
    struct node n;
    struct job j;
    struct hl_plan plan;
    struct hl_plan_container container;
    struct hl_plan_rank rank;
    struct hl_jobrun_container run;
    char recovery[8];
};

static void save_nothing(struct job *j)
{
    (void)j;
}

/* A job of one rank that runs on node a; its record is never written, events are only added. */
static void world_init(struct world *w, int placed_here)
{
    *w = (struct world){.c.refs = 1, .n.name = "a", .recovery = "replace"};
    w->jobs.save = save_nothing;
    w->c.nodes = &w->nodes;
    w->c.jobs = &w->jobs;
    w->n.controller = &w->c;
    HASH_ADD_STR(w->nodes.table, name, (&w->n));
    w->container = (struct hl_plan_container){.node = "a", .ranks = &w->rank, .rank_count = 1};
    w->plan = (struct hl_plan){.containers = &w->container, .container_count = 1};
    w->run = (struct hl_jobrun_container){.node = "a", .state = HL_API_CONTAINER_STATE_RUNNING};
    w->j = (struct job){.id = "j-1",
                        .controller = &w->c,
                        .placed_here = placed_here,
                        .spec = {.grid = {.pp = 1, .tp = 1, .dp = 1}, .recovery = w->recovery},
                        .run = {.state = HL_API_JOB_STATE_RUNNING,
                                .attempt = 1,
                                .plan = &w->plan,
                                .containers = &w->run,
                                .container_count = 1},
                        .events = json_array()};
    HASH_ADD_STR(w->jobs.table, id, (&w->j));
}

static void world_fini(struct world *w)
{
    rank_watch_free(w->j.watch);
    json_decref(w->j.events);
    hl_arena_fini(&w->n.report_arena);
    hl_arena_fini(&w->n.answered_arena);
    HASH_CLEAR(hh, w->jobs.table);
    HASH_CLEAR(hh, w->nodes.table);
}

/* The node reports how often the rank was replaced, and whether it has made a step since. */
static void look(struct world *w, uint32_t replaced, bool stepped)
{
    char id[HL_JOB_ID_MAX + 24];
    struct hl_api_rank_status rank = {.replaced = replaced,
                                      .pid = 100 + (int)replaced,
                                      .lost_code = 1,
                                      .progress.trouble = "",
                                      .progress.recovery.total_seconds = stepped};
    hl_container_id("j-1", 1, 0, id, sizeof(id));
    node_container(&w->n, &(struct hl_api_container_status){.id = id,
                                                            .state = HL_API_CONTAINER_STATE_RUNNING,
                                                            .ranks = {&rank, 1}});
    rank_watch_round(&w->j);
}

static int count_events(const struct world *w, const char *kind)
{
    size_t i;
    const json_t *event;
    int n = 0;
    json_array_foreach (w->j.events, i, event)
        n += strcmp(json_string_value(json_object_get(event, "kind")), kind) == 0;
    return n;
}

TEST(losses_before_the_first_look_at_an_attempt_that_was_placed_here_are_told)
{
    struct world w;
    world_init(&w, 1);
    look(&w, 4, false);
    assert_int_equal(count_events(&w, "rank-replaced"), 1);
    assert_int_equal(count_events(&w, "recovery-merged"), 1);
    assert_int_equal(w.jobs.recovery_merged, 3);
    look(&w, 4, true);
    assert_int_equal(count_events(&w, "recovered"), 1);
    w.j.run.resizes++; /* another watch, which tells nothing twice */
    look(&w, 4, true);
    assert_int_equal(json_array_size(w.j.events), 3);
    world_fini(&w);
}

TEST(losses_before_the_first_look_at_an_attempt_of_an_earlier_controller_are_no_news)
{
    struct world w;
    world_init(&w, 0);
    look(&w, 4, false);
    assert_int_equal(json_array_size(w.j.events), 0);
    look(&w, 5, true);
    assert_int_equal(count_events(&w, "rank-replaced"), 1);
    assert_int_equal(count_events(&w, "recovered"), 1);
    world_fini(&w);
}
