/* The mailbox of a loop: order, and what an owner that ends takes back. */
#include "support/test.h"

#include <string.h>

#include "os/loop.h"

struct owner {
    char name;
    struct hl_loop *loop;
    struct owner *other; /* ends within this owner's call */
};

static char ran[16];

static void note(void *arg)
{
    const struct owner *o = arg;
    size_t n = strlen(ran);
    ran[n] = o->name;
    ran[n + 1] = '\0';
    if (o->other != NULL)
        hl_loop_cancel(o->loop, o->other);
}

static void run_loop_inside(void *arg)
{
    struct owner *o = arg;
    note(o);
    uv_run(hl_loop_uv(o->loop), UV_RUN_NOWAIT);
}

static struct hl_loop *loop_new(void)
{
    struct hl_loop *loop;
    ran[0] = '\0';
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    return loop;
}

TEST(what_is_posted_runs_in_order)
{
    struct hl_loop *loop = loop_new();
    struct owner a = {'a', loop, NULL}, b = {'b', loop, NULL};
    hl_loop_post(loop, note, &a);
    hl_loop_post(loop, note, &b);
    hl_loop_post(loop, note, &a);
    hl_loop_stop(loop);
    assert_int_equal(hl_loop_run(loop), HL_OK);
    assert_string_equal(ran, "aba");
    hl_loop_destroy(loop);
}

TEST(what_is_cancelled_does_not_run_and_the_rest_does)
{
    struct hl_loop *loop = loop_new();
    struct owner a = {'a', loop, NULL}, b = {'b', loop, NULL};
    hl_loop_post(loop, note, &a);
    hl_loop_post(loop, note, &b);
    hl_loop_post(loop, note, &a);
    hl_loop_cancel(loop, &a);
    hl_loop_post(loop, note, &b); /* the list still has a valid end */
    hl_loop_cancel(loop, &a);
    hl_loop_destroy(loop); /* runs what is waiting */
    assert_string_equal(ran, "bb");
}

TEST(a_task_cancels_what_would_run_after_it_in_the_same_turn)
{
    struct hl_loop *loop = loop_new();
    struct owner b = {'b', loop, NULL}, a = {'a', loop, &b};
    hl_loop_post(loop, note, &a);
    hl_loop_post(loop, note, &b);
    hl_loop_destroy(loop);
    assert_string_equal(ran, "a");
}

TEST(a_task_that_runs_the_loop_loses_none)
{
    struct hl_loop *loop = loop_new();
    struct owner a = {'a', loop, NULL}, b = {'b', loop, NULL};
    hl_loop_post(loop, run_loop_inside, &a);
    hl_loop_post(loop, run_loop_inside, &a);
    hl_loop_post(loop, note, &b);
    hl_loop_stop(loop);
    assert_int_equal(hl_loop_run(loop), HL_OK);
    assert_string_equal(ran, "aab");
    hl_loop_destroy(loop);
}
