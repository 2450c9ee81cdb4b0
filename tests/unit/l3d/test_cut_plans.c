/* Plans of cuts: made once per key, kept while there is room, never removed while in use. */
#include "support/test.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

#include "l3d/cut_plans.h"

#define OPS   1000 /* of a plan */
#define LIMIT (3 * OPS * sizeof(struct hl_reshard_op))

static unsigned calls;

static hl_status make(void *arg, struct cut_plan *plan)
{
    struct hl_reshard_plan *p = &plan->whole.plan;
    calls++;
    p->ops = calloc(OPS, sizeof(*p->ops));
    if (p->ops == NULL)
        return hl_fail(HL_ENOMEM, "operations");
    p->op_count = OPS;
    p->copy_bytes = *(uint64_t *)arg;
    return HL_OK;
}

static hl_status make_badly(void *arg, struct cut_plan *plan)
{
    HL_TRY(make(arg, plan));
    return hl_fail(HL_EINVAL, "the tensors are not what the config says");
}

static const struct cut_plan *get(struct cut_plans *c, uint64_t number)
{
    const struct cut_plan *plan = NULL;
    assert_int_equal(cut_plans_get(c, (struct hl_digest){number, 7}, make, &number, &plan), HL_OK);
    assert_int_equal(plan->whole.plan.copy_bytes, number);
    return plan;
}

static struct cut_plans *create(uint64_t limit)
{
    struct cut_plans *c = NULL;
    calls = 0;
    assert_int_equal(cut_plans_create(limit, &c), HL_OK);
    return c;
}

static void counts(struct cut_plans *c, uint64_t made, uint64_t reused)
{
    struct cut_plans_info info;
    cut_plans_info(c, &info);
    assert_int_equal(info.made, made);
    assert_int_equal(info.reused, reused);
}

TEST(a_plan_is_made_once)
{
    struct cut_plans *c = create(LIMIT);
    const struct cut_plan *first = get(c, 1), *again = get(c, 1);
    assert_ptr_equal(first, again);
    cut_plans_put(c, first);
    cut_plans_put(c, again);
    again = get(c, 1);
    assert_ptr_equal(first, again);
    cut_plans_put(c, again);
    counts(c, 1, 2);
    cut_plans_destroy(c);
}

TEST(the_longest_unused_goes_first_and_the_limit_holds)
{
    struct cut_plans *c = create(LIMIT);
    struct cut_plans_info info;
    for (uint64_t n = 1; n <= 2; n++)
        cut_plans_put(c, get(c, n));
    cut_plans_put(c, get(c, 1)); /* 2 is the least recently used */
    cut_plans_put(c, get(c, 3));
    cut_plans_info(c, &info);
    assert_in_range(info.bytes, 1, LIMIT);
    assert_int_equal(calls, 3);
    cut_plans_put(c, get(c, 1));
    assert_int_equal(calls, 3);
    cut_plans_put(c, get(c, 2));
    assert_int_equal(calls, 4);
    cut_plans_destroy(c);
}

TEST(a_plan_in_use_stays)
{
    struct cut_plans *c = create(0);
    const struct cut_plan *used = get(c, 1);
    for (uint64_t n = 2; n < 9; n++)
        cut_plans_put(c, get(c, n));
    assert_int_equal(used->whole.plan.op_count, OPS);
    assert_ptr_equal(get(c, 1), used);
    cut_plans_put(c, used);
    cut_plans_put(c, used);
    struct cut_plans_info info;
    cut_plans_info(c, &info);
    assert_int_equal(info.bytes, 0);
    cut_plans_destroy(c);
}

TEST(what_can_not_be_planned_is_not_kept)
{
    struct cut_plans *c = create(LIMIT);
    const struct cut_plan *plan = NULL;
    uint64_t number = 1;
    const struct hl_digest key = {number, 7};
    assert_int_equal(cut_plans_get(c, key, make_badly, &number, &plan), HL_EINVAL);
    assert_null(plan);
    counts(c, 0, 0);
    cut_plans_put(c, get(c, 1));
    counts(c, 1, 0);
    cut_plans_destroy(c);
}

static void *get_often(void *arg)
{
    for (int i = 0; i < 200; i++)
        cut_plans_put(arg, get(arg, (uint64_t)i % 2));
    return NULL;
}

TEST(threads_that_want_one_plan_share_it)
{
    struct cut_plans *c = create(LIMIT);
    pthread_t threads[4];
    for (size_t i = 0; i < HL_ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_often, c), 0);
    for (size_t i = 0; i < HL_ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    counts(c, 2, 4 * 200 - 2);
    cut_plans_destroy(c);
}

/* While `make` runs, another thread uses the existing plans. */
struct meanwhile {
    struct cut_plans *plans;
    const struct cut_plan *used;
    sem_t done;
    struct cut_plans_info info;
};

static void *use_meanwhile(void *arg)
{
    struct meanwhile *m = arg;
    cut_plans_info(m->plans, &m->info);
    cut_plans_put(m->plans, get(m->plans, 1));
    cut_plans_put(m->plans, m->used);
    sem_post(&m->done);
    return NULL;
}

static bool was_done;

static hl_status make_slowly(void *arg, struct cut_plan *plan)
{
    struct meanwhile *m = arg;
    struct timespec until;
    uint64_t number = 2;
    pthread_t thread;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    assert_int_equal(pthread_create(&thread, NULL, use_meanwhile, m), 0);
    was_done = sem_timedwait(&m->done, &until) == 0;
    pthread_detach(thread);
    return make(&number, plan);
}

TEST(nobody_waits_for_a_plan_that_another_cut_needs)
{
    const struct cut_plan *plan = NULL;
    struct meanwhile m = {.plans = create(LIMIT)};
    sem_init(&m.done, 0, 0);
    m.used = get(m.plans, 1);
    assert_int_equal(cut_plans_get(m.plans, (struct hl_digest){2, 7}, make_slowly, &m, &plan),
                     HL_OK);
    assert_true(was_done);
    assert_int_equal(m.info.made, 1);
    assert_int_equal(m.info.reused, 0);
    cut_plans_put(m.plans, plan);
    counts(m.plans, 2, 1);
    cut_plans_destroy(m.plans);
    sem_destroy(&m.done);
}
