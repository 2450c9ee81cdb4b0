/* Orders about containers, on an executor that only records its calls. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/orders.h"
#include "api/lists.h"
#include "os/file.h"

#define SEEN_MAX 8

struct noting {
    struct hl_executor base;
    const char *running[SEEN_MAX]; /* containers it has */
    size_t running_count;
    char started[SEEN_MAX][64], stopped[SEEN_MAX][64], forgotten[SEEN_MAX][64];
    size_t start_count, stop_count, forget_count;
    const char *stray;             /* one that runs under another Agent */
    struct orders *stop_meanwhile; /* a start is overtaken by a stop of the same container */
};

static hl_status noting_start(struct hl_executor *ex, const struct hl_container_spec *spec,
                              struct hl_container_status *out)
{
    struct noting *n = (struct noting *)ex;
    snprintf(n->started[n->start_count++], 64, "%s", spec->id);
    if (n->stop_meanwhile != NULL)
        assert_int_equal(orders_stop(n->stop_meanwhile, 7, spec->id, 0), HL_OK);
    return hl_container_status_init(spec, out);
}

static hl_status noting_stop(struct hl_executor *ex, const char *id, int grace_ms)
{
    struct noting *n = (struct noting *)ex;
    (void)grace_ms;
    snprintf(n->stopped[n->stop_count++], 64, "%s", id);
    return HL_OK;
}

static hl_status noting_forget(struct hl_executor *ex, const char *id)
{
    struct noting *n = (struct noting *)ex;
    snprintf(n->forgotten[n->forget_count++], 64, "%s", id);
    return HL_OK;
}

static hl_status noting_end_stray(struct hl_executor *ex, const char *state_directory,
                                  const char *id, bool *ended)
{
    struct noting *n = (struct noting *)ex;
    assert_string_equal(state_directory, "1:2");
    *ended = n->stray != NULL && strcmp(n->stray, id) == 0;
    if (*ended)
        n->stray = NULL;
    return HL_OK;
}

static hl_status noting_list_strays(struct hl_executor *ex, const char *state_directory,
                                    struct hl_arena *arena, struct hl_api_text_list *out)
{
    struct noting *n = (struct noting *)ex;
    assert_string_equal(state_directory, "1:2");
    hl_api_text_add(arena, out, n->stray);
    return HL_OK;
}

static hl_status noting_list(struct hl_executor *ex, struct hl_arena *arena,
                             struct hl_api_container_status_list *out)
{
    struct noting *n = (struct noting *)ex;
    struct hl_api_container_status_list list = {
        .items = hl_arena_array(arena, SEEN_MAX, sizeof(*list.items)), .count = n->running_count};
    for (size_t i = 0; i < n->running_count; i++)
        list.items[i] = (struct hl_api_container_status){.id = n->running[i],
                                                         .state = HL_API_CONTAINER_STATE_RUNNING};
    *out = list;
    return HL_OK;
}

static const struct hl_executor_ops noting_ops = {
    .name = "noting",
    .start = noting_start,
    .stop = noting_stop,
    .forget = noting_forget,
    .list = noting_list,
    .list_strays = noting_list_strays,
    .end_stray = noting_end_stray,
};

struct world {
    char dir[64];
    struct obeyed obeyed;
    struct orders orders;
    struct noting executor;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-orders-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    obeyed_init(&w->obeyed, w->dir);
    pthread_mutex_init(&w->orders.lock, NULL);
    w->executor.base.ops = &noting_ops;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    orders_fini(&w->orders);
    obeyed_fini(&w->obeyed);
    assert_int_equal(hl_dir_remove(w->dir), HL_OK);
    free(w);
    return 0;
}

static hl_status start(struct world *w, uint64_t epoch, const char *id)
{
    struct hl_container_spec spec = {.id = (char *)id, .epoch = epoch};
    struct hl_container_status status;
    hl_status st = orders_start(&w->orders, &spec, &status);
    if (st == HL_OK)
        hl_container_status_fini(&status);
    return st;
}

static void open_with(struct world *w, size_t count, const char *const *running)
{
    w->executor.running_count = count;
    for (size_t i = 0; i < count; i++)
        w->executor.running[i] = running[i];
    assert_int_equal(orders_open(&w->orders, &w->obeyed, &w->executor.base), HL_OK);
}

TEST_IN(setup, teardown, an_older_controller_starts_stops_and_forgets_nothing)
{
    struct world *w = *state;
    open_with(w, 0, NULL);
    assert_int_equal(start(w, 7, "j.1.0"), HL_OK);
    assert_int_equal(start(w, 6, "k.1.0"), HL_EPERM);
    assert_int_equal(orders_stop(&w->orders, 6, "j.1.0", 0), HL_EPERM);
    assert_int_equal(orders_forget(&w->orders, 6, "j.1.0"), HL_EPERM);
    assert_int_equal(w->executor.start_count, 1);
    assert_int_equal(w->executor.stop_count + w->executor.forget_count, 0);
    assert_int_equal(start(w, 7, "j.1.0"), HL_OK); /* that stop did not arrive either */
}

TEST_IN(setup, teardown, what_was_stopped_or_forgotten_does_not_start_any_more)
{
    struct world *w = *state;
    open_with(w, 0, NULL);
    assert_int_equal(orders_stop(&w->orders, 7, "j.1.0", 0), HL_OK);
    assert_int_equal(orders_forget(&w->orders, 7, "k.1.0"), HL_OK);
    assert_int_equal(start(w, 7, "j.1.0"), HL_EPERM);
    assert_int_equal(start(w, 7, "k.1.0"), HL_EPERM);
    assert_int_equal(w->executor.start_count, 0);
}

TEST_IN(setup, teardown, a_stop_that_overtakes_a_start_ends_its_container)
{
    struct world *w = *state;
    open_with(w, 0, NULL);
    w->executor.stop_meanwhile = &w->orders;
    assert_int_equal(start(w, 7, "j.1.0"), HL_EPERM);
    assert_int_equal(w->executor.stop_count,
                     2); /* the order's stop, which may find nothing, and the Agent's own */
    assert_string_equal(w->executor.stopped[1], "j.1.0");
}

TEST_IN(setup, teardown, of_one_job_only_one_attempt_runs_here)
{
    struct world *w = *state;
    open_with(w, 2, (const char *[]){"j.1.0", "k.2.0"});
    assert_int_equal(start(w, 7, "j.2.0"), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), "while j.1.0 runs here, of another attempt"));
    assert_int_equal(w->executor.stop_count, 1);
    assert_string_equal(w->executor.stopped[0], "j.1.0");
    assert_int_equal(start(w, 7, "k.1.0"), HL_EBUSY); /* there was no order to stop k.2.0 */
    assert_int_equal(w->executor.stop_count, 1);
    assert_int_equal(w->executor.start_count, 0);
    w->executor.running_count = 0;
    assert_int_equal(start(w, 7, "j.2.0"), HL_OK);
}

TEST_IN(setup, teardown, an_agent_that_comes_back_ends_what_a_later_attempt_has_replaced)
{
    struct world *w = *state;
    open_with(w, 4, (const char *[]){"j.1.0", "j.2.0", "k.1.0", "live"});
    assert_int_equal(w->executor.stop_count, 1);
    assert_string_equal(w->executor.stopped[0], "j.1.0");
}

TEST_IN(setup, teardown, containers_of_a_silent_agent_end_by_order_of_the_newest_controller_only)
{
    struct world *w = *state;
    const char *ids[] = {"j.1.0", "j.1.1"};
    struct hl_api_agent_end_strays_params p = {
        .ids = {ids, 2}, .state_directory = "1:2", .epoch = 6};
    uint32_t ended = 9;
    open_with(w, 0, NULL);
    w->executor.stray = "j.1.1";
    assert_int_equal(start(w, 7, "k.1.0"), HL_OK);
    assert_int_equal(orders_end_strays(&w->orders, &p, &ended), HL_EPERM);
    assert_non_null(w->executor.stray);
    p.epoch = 7;
    assert_int_equal(orders_end_strays(&w->orders, &p, &ended), HL_OK);
    assert_int_equal(ended, 1);
    assert_null(w->executor.stray);
}

TEST_IN(setup, teardown, what_a_silent_agent_runs_is_told_to_the_newest_controller_only)
{
    struct world *w = *state;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    struct hl_api_agent_list_strays_params p = {.state_directory = "1:2", .epoch = 6};
    open_with(w, 0, NULL);
    w->executor.stray = "j.1.1";
    assert_int_equal(start(w, 7, "k.1.0"), HL_OK);
    assert_int_equal(orders_list_strays(&w->orders, &p, &arena, &ids), HL_EPERM);
    assert_int_equal(ids.count, 0);
    p.epoch = 8;
    assert_int_equal(orders_list_strays(&w->orders, &p, &arena, &ids), HL_OK);
    assert_int_equal(ids.count, 1);
    assert_string_equal(ids.items[0], "j.1.1");
    assert_int_equal(start(w, 7, "k.1.1"), HL_EPERM); /* it has heard of the newer attempt */
}
