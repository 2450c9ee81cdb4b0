/* Work in threads beside the loop, and the expected contents of open versions, planned there once
 * for all their ranks. */
#include "unit/controller/catalog_rig.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "controller/background.h"
#include "controller/models/models_private.h"
#include "os/loop.h"

struct world {
    struct hl_controller c;
    struct models models;
    struct hl_version_rec *v; /* being saved with one stage; its model has two */
    int told, wanted;
    bool stopped;
};

static void world_start(struct world *w)
{
    *w = (struct world){.c.refs = 1, .wanted = 2};
    w->c.models = &w->models;
    hl_listening_init(&w->c.listening, 60 * HL_NS_PER_S, hl_now_ns(), hl_wall_ms());
    assert_int_equal(hl_loop_create(&w->c.opts.loop), HL_OK);
    import_model(&w->c.catalog, "tiny", 1, "{}");
    const struct hl_version_begin begin = {.model = "tiny",
                                           .job = "j-1",
                                           .attempt = 1,
                                           .step = 5,
                                           .world = 2,
                                           .now_ms = 2000,
                                           .split = {.tp = 1, .pp = 1, .virtual_stages = 1}};
    assert_int_equal(hl_catalog_begin(&w->c.catalog, &begin, keep_nothing, NULL, &w->v), HL_OK);
}

static void world_end(struct world *w)
{
    layouts_fini(&w->c);
    hl_catalog_fini(&w->c.catalog);
    hl_loop_destroy(w->c.opts.loop);
}

static void on_layout(void *arg)
{
    struct world *w = arg;
    w->stopped = controller_stopped(&w->c);
    if (++w->told == w->wanted)
        hl_loop_stop(w->c.opts.loop);
}

TEST(ranks_that_wait_for_one_layout_share_its_plan)
{
    struct world w;
    world_start(&w);
    assert_true(layout_is_missing(&w.c, w.v));
    assert_int_equal(layout_plan(&w.c, w.v, on_layout, &w), HL_OK);
    const struct layout *only = w.models.layouts;
    assert_int_equal(layout_plan(&w.c, w.v, on_layout, &w), HL_OK);
    assert_ptr_equal(w.models.layouts, only);
    assert_null(layout_find(&w.c, w.v));
    assert_int_equal(w.told, 0); /* never inside the call */
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    assert_int_equal(w.told, 2);
    assert_non_null(layout_find(&w.c, w.v));
    assert_false(layout_is_missing(&w.c, w.v));
    assert_int_equal(w.c.refs, 1);
    world_end(&w);
}

TEST(a_plan_goes_with_the_last_open_version_that_needs_it)
{
    struct world w;
    world_start(&w);
    w.wanted = 1;
    assert_int_equal(layout_plan(&w.c, w.v, on_layout, &w), HL_OK);
    w.v->state = HL_API_VERSION_STATE_FAILED;
    layouts_forget(&w.c); /* not while a thread works on it */
    assert_non_null(w.models.layouts);
    w.v->state = HL_API_VERSION_STATE_OPEN;
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    layouts_forget(&w.c);
    assert_non_null(w.models.layouts);
    w.v->state = HL_API_VERSION_STATE_FAILED;
    assert_null(layout_find(&w.c, w.v));
    layouts_forget(&w.c);
    assert_null(w.models.layouts);
    world_end(&w);
}

TEST(ranks_hear_of_a_controller_that_stops_while_it_plans)
{
    struct world w;
    world_start(&w);
    w.wanted = 1;
    assert_int_equal(layout_plan(&w.c, w.v, on_layout, &w), HL_OK);
    w.c.closing = true;
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    assert_true(w.stopped);
    assert_int_equal(w.c.refs, 1);
    world_end(&w);
}

struct errand {
    struct background task; /* first */
    pthread_t ran_in;
    hl_status st;
    char text[64];
};

static hl_status errand_run(struct background *task)
{
    ((struct errand *)task)->ran_in = pthread_self();
    return hl_fail(HL_EUNSUPPORTED, "the words of the thread");
}

static void errand_done(struct background *task, hl_status st)
{
    struct errand *e = (struct errand *)task;
    e->st = st;
    snprintf(e->text, sizeof(e->text), "%s", hl_error_text());
    (void)controller_stopped(task->c);
    hl_loop_stop(task->c->opts.loop);
}

TEST(what_fails_in_a_thread_is_told_on_the_loop_in_its_own_words)
{
    struct world w;
    world_start(&w);
    struct errand e = {.task = {.run = errand_run, .done = errand_done}};
    assert_int_equal(background_start(&w.c, &e.task), HL_OK);
    hl_error_clear();
    assert_int_equal(hl_loop_run(w.c.opts.loop), HL_OK);
    assert_false(pthread_equal(e.ran_in, pthread_self()));
    assert_int_equal(e.st, HL_EUNSUPPORTED);
    assert_string_equal(e.text, "the words of the thread");
    world_end(&w);
}
