/* The CPU runtime on a machine of late loads (support/weak_memory.h); this file and the runtime are
 * compiled for it. Runs small graphs under each policy, so that threads sleep and are woken all the
 * time.
 *
 *     maco_weak_orders                     every order as the sources ask for it
 *     maco_weak_orders '*'                 none sequentially consistent: must be detected
 *     maco_weak_orders hl_maco_enter 50    only that function's are not; 50 times as many turns
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "support/maco_dag.h"

#define ORDERS 300 /* number of orders, for each policy and number of proxies */
#define RUNS   6

static const char *weaken;
static int times = 1;

static void run(maco_runtime *rt, struct dag *d)
{
    struct hl_maco_source source = dag_source(d);
    for (int k = 0; k < RUNS; k++) {
        d->version++;
        d->calls = 0;
        if (hl_maco_run_source(rt, &source) != HL_OK)
            fail_msg("run %d: %s", k, hl_error_text());
        if (d->calls != d->n || d->wrong != 0)
            fail_msg("run %d: %u of %u tasks ran, %u saw a parent undone", k, d->calls, d->n,
                     d->wrong);
    }
}

static void *cancel(void *rt)
{
    for (uint64_t n = wm_clock() / 100 % 64; n > 0; n--)
        wm_yield();
    maco_cancel(rt);
    return NULL;
}

/* Whatever the result, no task runs after the call has returned. */
static void run_cancelled(maco_runtime *rt, struct dag *d)
{
    struct hl_maco_source source = dag_source(d);
    for (int k = 0; k < RUNS; k++) {
        pthread_t t;
        d->version++;
        d->calls = 0;
        pthread_create(&t, NULL, cancel, rt);
        hl_status st = hl_maco_run_source(rt, &source);
        uint32_t calls = d->calls;
        if (st != HL_OK && st != HL_ECANCELED)
            fail_msg("run %d: %s", k, hl_error_text());
        pthread_join(t, NULL);
        for (int i = 0; i < 100; i++)
            wm_yield();
        if (d->calls != calls || d->wrong != 0 || (st == HL_OK && calls != d->n))
            fail_msg("run %d: %u of %u tasks ran, %u after it, %u saw a parent undone", k, calls,
                     d->n, d->calls - calls, d->wrong);
    }
}

static void orders(int policy, int groups, uint64_t seed,
                   void (*run_it)(maco_runtime *rt, struct dag *d))
{
    for (int i = 0; i < ORDERS; i++) {
        const maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .policy = policy, .workers = 2,
                                        .ring = 2};
        maco_runtime *rt = NULL;
        struct dag d;
        wm_begin(dag_random(&seed), weaken);
        dag_init(&d, 1 + (uint32_t)(dag_random(&seed) % 10), i % 4, 4, i % 3 == 0 ? 2 : 0, groups,
                 &seed);
        d.policy = policy;
        assert_int_equal(maco_runtime_open(&o, &rt), 0);
        run_it(rt, &d);
        maco_runtime_close(rt);
        dag_fini(&d);
    }
}

static void every_wake_up_comes_and_nobody_stays_in_a_run(void **state)
{
    uint64_t seed = 88172645463325252u;
    (void)state;
    for (int k = 0; k < times; k++)
        for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
            orders(policy, 0, dag_random(&seed), run);
            orders(policy, 1, dag_random(&seed), run);
            orders(policy, 1, dag_random(&seed), run_cancelled);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wake_up_comes_and_nobody_stays_in_a_run),
    };
    weaken = argc > 1 ? argv[1] : NULL;
    times = argc > 2 ? atoi(argv[2]) : 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
