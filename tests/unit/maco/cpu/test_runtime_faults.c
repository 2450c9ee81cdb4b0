/* Runs that fail, are late or cancelled; deliberate faults; affinities. */
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "maco/cpu/runtime_private.h"
#include "support/maco_dag.h"

#define BOUND_NS (20 * HL_NS_PER_S)

static maco_runtime *open_runtime(int policy, int workers, uint64_t timeout_ms, int trace)
{
    maco_runtime *rt = NULL;
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .policy = policy, .workers = workers,
                              .trace = trace, .timeout_ns = timeout_ms * HL_NS_PER_MS};
    if (maco_runtime_open(&o, &rt) != 0)
        fail_msg("open: %s", hl_error_text());
    return rt;
}

/* A graph built by the public calls: task by task, or all at once. */
struct chain {
    maco_graph *graph;
    maco_plan *plan;
};

static void make_chain(struct chain *c, int policy, int workers, maco_function f, void *const *args,
                       const char *const *names, uint32_t n, int ordered)
{
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .workers = workers,
                              .infer = 1};
    assert_int_equal(maco_graph_new(&c->graph), 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;
        maco_op op = {MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE,
                      .name = names != NULL ? names[i] : NULL, .function = f, .arg = args[i]};
        if (maco_graph_add(c->graph, &op, &id) != 0)
            fail_msg("add: %s", hl_error_text());
        if (ordered && i > 0)
            assert_int_equal(maco_graph_depend(c->graph, id, id - 1), 0);
    }
    if (maco_compile(c->graph, &o, &c->plan) != 0)
        fail_msg("compile: %s", hl_error_text());
}

static void free_chain(struct chain *c)
{
    maco_plan_free(c->plan);
    maco_graph_free(c->graph);
}

enum what { PASS, FAIL, BLOCK };

struct step {
    int what; /* atomic */
    int calls, go, begun;
};

static int do_step(void *arg, const maco_task *task)
{
    struct step *s = arg;
    uint64_t until = hl_now_ns() + BOUND_NS;
    (void)task;
    __atomic_add_fetch(&s->calls, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&s->begun, 1, __ATOMIC_RELEASE);
    if (s->what == FAIL)
        return HL_EIO;
    while (s->what == BLOCK && !__atomic_load_n(&s->go, __ATOMIC_ACQUIRE) && hl_now_ns() < until)
        usleep(1000);
    return 0;
}

static void *const *args_of(struct step *s, void **args)
{
    for (int i = 0; i < 3; i++)
        args[i] = &s[i];
    return args;
}

static const char *const three[] = {"first", "second", "third"};

TEST(a_task_that_fails_is_named_and_the_runtime_runs_on)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        struct step s[3] = {{.what = PASS}, {.what = FAIL}, {.what = PASS}};
        void *args[3];
        struct chain c;
        make_chain(&c, policy, 2, do_step, args_of(s, args), three, 3, 1);
        maco_runtime *rt = open_runtime(policy, 2, 10000, 0);
        assert_int_equal(maco_run(rt, c.plan), HL_EIO);
        assert_non_null(strstr(hl_error_text(), "second"));
        assert_int_equal(s[2].calls, 0);
        s[1].what = PASS;
        assert_int_equal(maco_run(rt, c.plan), 0);
        assert_int_equal(s[2].calls, 1);
        maco_runtime_close(rt);
        free_chain(&c);
    }
}

/* Called by the runtime while it waits: a run becomes late once the step that causes it is running,
 * not before, however slow the host is. */
static int await_blocked_step(void *arg)
{
    const struct step *s = arg;
    uint64_t until = hl_now_ns() + BOUND_NS;
    while (s->what == BLOCK && !__atomic_load_n(&s->begun, __ATOMIC_ACQUIRE) && hl_now_ns() < until)
        usleep(1000);
    return 0;
}

static maco_runtime *open_for_late_run(int policy, struct step *blocked)
{
    maco_runtime *rt = open_runtime(policy, 2, BOUND_NS / HL_NS_PER_MS, 0);
    rt->poll = await_blocked_step;
    rt->poll_arg = blocked;
    return rt;
}

static hl_status run_late(maco_runtime *rt, const maco_plan *plan)
{
    rt->timeout_ns = 150 * HL_NS_PER_MS;
    hl_status st = maco_run(rt, plan);
    rt->timeout_ns = BOUND_NS;
    return st;
}

struct release {
    maco_runtime *rt;
    struct step *s;
};

/* Lets the step end once its run has been aborted. */
static void *release_after_abort(void *arg)
{
    struct release *r = arg;
    uint64_t until = hl_now_ns() + BOUND_NS;
    while (!__atomic_load_n(&r->s->begun, __ATOMIC_ACQUIRE) && hl_now_ns() < until)
        usleep(1000);
    while ((__atomic_load_n(&r->rt->run, __ATOMIC_SEQ_CST) & 1) != 0 && hl_now_ns() < until)
        usleep(1000);
    __atomic_store_n(&r->s->go, 1, __ATOMIC_RELEASE);
    return NULL;
}

TEST(a_late_run_tells_who_waits_and_what_runs)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        struct step s[3] = {{.what = PASS}, {.what = PASS}, {.what = PASS}};
        void *args[3];
        struct chain c;
        pthread_t other;
        make_chain(&c, policy, 2, do_step, args_of(s, args), three, 3, 1);
        maco_runtime *rt = open_for_late_run(policy, &s[1]);
        assert_int_equal(maco_run(rt, c.plan), 0); /* the report is about the run after it */
        s[1].what = BLOCK;
        s[1].begun = 0;
        pthread_create(&other, NULL, release_after_abort, &(struct release){rt, &s[1]});
        assert_int_equal(run_late(rt, c.plan), HL_ETIMEDOUT);
        assert_non_null(strstr(hl_error_text(), "third (event"));
        assert_non_null(strstr(hl_error_text(), "has 0 of 1"));
        assert_non_null(strstr(hl_error_text(), "runs second since"));
        pthread_join(other, NULL);
        s[1].what = PASS;
        assert_int_equal(maco_run(rt, c.plan), 0);
        maco_runtime_close(rt);
        free_chain(&c);
    }
}

TEST(a_body_that_does_not_end_keeps_nobody)
{
    struct step s[3] = {{.what = BLOCK}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_DIRECT, 2, do_step, args_of(s, args), three, 3, 1);
    maco_runtime *rt = open_for_late_run(MACO_DIRECT, &s[0]);
    uint32_t ids[3], n;
    assert_int_equal(run_late(rt, c.plan), HL_ETIMEDOUT);
    assert_non_null(strstr(hl_error_text(), "still at work"));
    assert_int_equal(run_late(rt, c.plan), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), "in first"));
    assert_int_equal(maco_run_order(rt, ids, 3, &n), HL_EBUSY);
    __atomic_store_n(&s[0].go, 1, __ATOMIC_RELEASE);
    for (uint64_t until = hl_now_ns() + BOUND_NS; !hl_maco_quiet(rt) && hl_now_ns() < until;)
        usleep(1000);
    assert_int_equal(maco_run(rt, c.plan), 0);
    assert_int_equal(s[2].calls, 1);
    maco_runtime_close(rt);
    free_chain(&c);
}

struct canceller {
    maco_runtime *rt;
    struct step *s;
    int asked;
};

static void *cancel_it(void *arg)
{
    struct canceller *c = arg;
    uint64_t until = hl_now_ns() + BOUND_NS;
    while (!__atomic_load_n(&c->s->begun, __ATOMIC_ACQUIRE) && hl_now_ns() < until)
        usleep(100);
    maco_cancel(c->rt);
    __atomic_store_n(&c->s->go, 1, __ATOMIC_RELEASE);
    return NULL;
}

TEST(a_run_is_cancelled_from_another_thread)
{
    struct step s[3] = {{.what = BLOCK}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_DIRECT, 2, do_step, args_of(s, args), three, 3, 1);
    maco_runtime *rt = open_runtime(MACO_DIRECT, 2, 15000, 0);
    struct canceller who = {.rt = rt, .s = &s[0]};
    pthread_t other;
    maco_cancel(rt); /* nothing runs: no effect */
    pthread_create(&other, NULL, cancel_it, &who);
    assert_int_equal(maco_run(rt, c.plan), HL_ECANCELED);
    pthread_join(other, NULL);
    assert_int_equal(s[1].calls, 0);
    assert_int_equal(maco_run(rt, c.plan), 0);
    maco_runtime_close(rt);
    free_chain(&c);
}

/* Cancels after the third time, when the task may end, too. */
static int had_enough(void *arg)
{
    struct canceller *c = arg;
    if (++c->asked < 3)
        return 0;
    __atomic_store_n(&c->s->go, 1, __ATOMIC_RELEASE);
    return 1;
}

TEST(who_waits_is_asked_and_may_end_the_run)
{
    struct step s[3] = {{.what = BLOCK}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_DIRECT, 2, do_step, args_of(s, args), three, 3, 1);
    struct canceller who = {.s = &s[0]};
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .workers = 2, .poll = had_enough,
                              .poll_arg = &who};
    maco_runtime *rt = NULL;
    assert_int_equal(maco_runtime_open(&o, &rt), 0);
    assert_int_equal(maco_run(rt, c.plan), HL_ECANCELED);
    assert_true(who.asked == 3 && s[1].calls == 0);
    who.asked = INT32_MIN;
    assert_int_equal(maco_run(rt, c.plan), 0);
    maco_runtime_close(rt);
    free_chain(&c);
}

/* ---- deliberate faults: the oracle or the deadline must detect them ---- */

static int noticed(struct dag *d)
{
    maco_runtime *rt = open_runtime(MACO_DIRECT, 1, 5000, 0);
    struct hl_maco_source source = dag_source(d);
    d->version++;
    int st = hl_maco_run_source(rt, &source);
    maco_runtime_close(rt);
    return st != HL_OK || d->wrong > 0 || d->calls != d->n;
}

static uint32_t find_join(const struct dag *d)
{
    for (uint32_t e = 0; e < d->n_events; e++)
        if (d->events[e].kind == MACO_EVENT_LAUNCH_TASK && d->events[e].needed > 1)
            return e;
    return MACO_NONE;
}

TEST(one_trigger_less_is_noticed)
{
    uint64_t seed = 42;
    int tried = 0, seen = 0;
    for (int g = 0; g < 20; g++) {
        struct dag d;
        dag_init(&d, 20, 3, 20, 0, 0, &seed);
        uint32_t join = find_join(&d);
        if (join != MACO_NONE) {
            d.events[join].needed--;
            seen += noticed(&d); /* not if its parents happen to be done earlier */
            tried++;
        }
        dag_fini(&d);
    }
    assert_true(tried > 10);
    assert_true(2 * seen > tried);
}

/* The second parent's trigger goes to the end instead: the child waits only for the others. */
TEST(a_second_parent_that_is_ignored_is_noticed)
{
    uint64_t seed = 43;
    int tried = 0, seen = 0;
    for (int g = 0; g < 40; g++) {
        struct dag d;
        uint32_t second = MACO_NONE, end = 0;
        dag_init(&d, 20, 3, 20, 0, 0, &seed);
        uint32_t join = find_join(&d);
        for (uint32_t i = 0; i < d.n_tasks && join != MACO_NONE; i++)
            if (d.tasks[i].trigger_event == join)
                second = i;
        while (d.events[end].kind != MACO_EVENT_END)
            end++;
        if (second != MACO_NONE) {
            d.tasks[second].trigger_event = end;
            d.events[join].needed--;
            d.events[end].needed++;
            seen += noticed(&d);
            tried++;
        }
        dag_fini(&d);
    }
    assert_true(tried > 20);
    assert_true(seen > 0);
}

TEST(plans_that_make_no_sense_are_refused)
{
    uint64_t seed = 44;
    maco_runtime *rt = open_runtime(MACO_DIRECT, 2, 1000, 0);
    for (int fault = 0; fault < 6; fault++) {
        struct dag d;
        dag_init(&d, 20, 3, 20, 0, 0, &seed);
        uint32_t join = find_join(&d), last = d.n_tasks - 1;
        if (fault == 0)
            d.events[join].needed = 0;
        if (fault == 1)
            d.tasks[last].trigger_event = MACO_NONE;
        if (fault == 2)
            d.tasks[last].type = MACO_TASK_TERMINATE;
        if (fault == 3)
            d.events[join].kind = MACO_EVENT_EMPTY;
        if (fault == 4)
            d.worker[last] = 2;
        if (fault == 5)
            d.tasks[0].type = MACO_TASK_ALLREDUCE; /* and there is no group */
        struct hl_maco_source source = dag_source(&d);
        assert_int_equal(hl_maco_run_source(rt, &source), HL_EINVAL);
        assert_int_equal(d.calls, 0);
        dag_fini(&d);
    }
    maco_runtime_close(rt);
}

TEST(idle_workers_wait_for_their_first_task)
{
    struct step s[3] = {{.what = PASS}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_SCHEDULER, 2, do_step, args_of(s, args), three, 3, 0);
    maco_runtime *rt = open_runtime(MACO_SCHEDULER, 2, 10000, 0);
    uint64_t until = hl_now_ns() + BOUND_NS;
    while (__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) < 3 && hl_now_ns() < until)
        usleep(100);
    assert_int_equal(__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST), 3);
    assert_int_equal(maco_run(rt, c.plan), 0);
    maco_runtime_close(rt);
    free_chain(&c);
}

/* ---- which worker runs what ---- */

struct who {
    pid_t tid;
    int *gate; /* NULL, or what to wait for */
};

static int note_thread(void *arg, const maco_task *task)
{
    struct who *w = arg;
    uint64_t until = hl_now_ns() + BOUND_NS;
    (void)task;
    w->tid = gettid();
    while (w->gate != NULL && !__atomic_load_n(w->gate, __ATOMIC_ACQUIRE) && hl_now_ns() < until)
        usleep(100);
    return 0;
}

TEST(wishes_for_a_worker_are_kept)
{

    enum { N = 60 };

    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        struct who who[N] = {0};
        maco_graph *g = NULL;
        maco_plan *p = NULL;
        maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .workers = 3,
                                  .infer = 1};
        assert_int_equal(maco_graph_new(&g), 0);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t id;
            maco_op op = {MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE,
                          .on_worker = 1 + (int)(i % 3), .function = note_thread, .arg = &who[i]};
            assert_int_equal(maco_graph_add(g, &op, &id), 0);
            if (i >= 7)
                assert_int_equal(maco_graph_depend(g, i, i - 7), 0);
        }
        assert_int_equal(maco_compile(g, &o, &p), 0);
        maco_runtime *rt = open_runtime(policy, 3, 10000, 0);
        if (maco_run(rt, p) != 0)
            fail_msg("%s", hl_error_text());
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(who[i].tid, who[i % 3].tid);
        assert_true(who[0].tid != who[1].tid && who[1].tid != who[2].tid);
        maco_runtime_close(rt);
        maco_plan_free(p);
        maco_graph_free(g);
    }
}

struct running {
    maco_runtime *rt;
    struct hl_maco_source source;
    hl_status status;
};

/* A task that launches only one other is followed by it without an event. */
TEST(a_chain_is_followed_by_links)
{
    struct step s[3] = {{.what = PASS}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_DIRECT, 2, do_step, args_of(s, args), three, 3, 1);
    maco_runtime *rt = open_runtime(MACO_DIRECT, 2, 10000, 0);
    for (int run = 1; run <= 3; run++) {
        assert_int_equal(maco_run(rt, c.plan), 0);
        for (int i = 0; i < 3; i++)
            assert_int_equal(s[i].calls, run);
    }
    const struct hl_maco_state *loaded = rt->state;
    assert_int_equal(loaded->hot[0].next, 1);
    assert_int_equal(loaded->hot[1].next, 2);
    assert_int_equal(loaded->hot[2].next, MACO_NONE);
    assert_int_equal(loaded->events[loaded->hot[1].trigger].count, 0);
    maco_runtime_close(rt);
    free_chain(&c);
}

static void *run_it(void *arg)
{
    struct running *r = arg;
    r->status = hl_maco_run_source(r->rt, &r->source);
    return NULL;
}

/* All tasks are in queues before one of them may end: how many are in each? */
static void queue_all(int balance, uint32_t n, uint32_t first_cost, uint32_t workers,
                      uint64_t *queued)
{
    int gate = 0;
    struct who *who = calloc(n, sizeof(*who));
    struct dag d;
    uint64_t seed = 7, total = 0, until = hl_now_ns() + BOUND_NS;
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .policy = MACO_SCHEDULER,
                              .balance = balance, .workers = (int)workers};
    dag_init(&d, n, 0, 1, 0, 0, &seed);
    d.policy = MACO_SCHEDULER;
    for (uint32_t i = 0; i < n; i++) {
        who[i].gate = &gate;
        d.functions[i] = (struct hl_maco_function){note_thread, &who[i]};
        d.tasks[i].cost_ns = i == 0 ? first_cost : 1;
    }
    struct running r = {.source = dag_source(&d)};
    pthread_t runner;
    assert_int_equal(maco_runtime_open(&o, &r.rt), 0);
    pthread_create(&runner, NULL, run_it, &r);
    while (total < n && hl_now_ns() < until) {
        total = 0;
        for (uint32_t w = 0; w < workers; w++) {
            queued[w] = __atomic_load_n(&r.rt->threads[w].queue.head, __ATOMIC_SEQ_CST);
            total += queued[w];
        }
        usleep(100);
    }
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    pthread_join(runner, NULL);
    assert_int_equal(total, n);
    assert_int_equal(r.status, HL_OK);
    maco_runtime_close(r.rt);
    dag_fini(&d);
    free(who);
}

TEST(round_robin_spreads_evenly)
{
    uint64_t queued[4], least = UINT64_MAX, most = 0;
    queue_all(MACO_ROUND_ROBIN, 403, 1, 4, queued);
    for (int w = 0; w < 4; w++) {
        least = queued[w] < least ? queued[w] : least;
        most = queued[w] > most ? queued[w] : most;
    }
    assert_true(most - least <= 1);
}

TEST(the_least_loaded_gets_the_next)
{
    uint64_t queued[3], least = UINT64_MAX, most = 0;
    queue_all(MACO_LEAST_LOADED, 61, 1000, 3, queued);
    for (int w = 0; w < 3; w++) {
        least = queued[w] < least ? queued[w] : least;
        most = queued[w] > most ? queued[w] : most;
    }
    assert_int_equal(least, 1); /* the worker with the long task */
    assert_int_equal(most, 30);
}

TEST(more_workers_than_processors_get_on)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        uint64_t seed = 99;
        maco_runtime *rt = open_runtime(policy, 8, 20000, 0);
        for (int g = 0; g < 20; g++) {
            struct dag d;
            dag_init(&d, 60, 3, 20, 8, 1, &seed);
            d.policy = policy;
            struct hl_maco_source source = dag_source(&d);
            d.version++;
            if (hl_maco_run_source(rt, &source) != HL_OK)
                fail_msg("%s", hl_error_text());
            assert_int_equal(d.calls, d.n);
            assert_int_equal(d.wrong, 0);
            dag_fini(&d);
        }
        maco_runtime_close(rt);
    }
}

/* ---- records ---- */

TEST(records_tell_each_task_once_and_one_at_a_time)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        uint64_t seed = 5, end[2] = {0};
        struct dag d;
        struct hl_maco_record *r = NULL;
        size_t n = 0, tasks = 0;
        maco_runtime *rt = open_runtime(policy, 2, 10000, 1);
        dag_init(&d, 50, 3, 20, 0, 0, &seed);
        d.policy = policy;
        struct hl_maco_source source = dag_source(&d);
        d.version++;
        uint64_t before = hl_now_ns();
        assert_int_equal(hl_maco_run_source(rt, &source), HL_OK);
        uint64_t after = hl_now_ns();
        assert_int_equal(hl_maco_run_records(rt, &r, &n), HL_OK);
        for (size_t i = 0; i < n; i++) {
            if (r[i].kind != HL_MACO_COMPUTE)
                continue;
            assert_in_range(r[i].worker, 0, 1);
            assert_true(r[i].start_ns >= end[r[i].worker] && r[i].end_ns >= r[i].start_ns);
            assert_true(r[i].start_ns + 1000000 > before && r[i].end_ns < after + 1000000);
            end[r[i].worker] = r[i].end_ns;
            tasks++;
        }
        assert_int_equal(tasks, d.n);
        free(r);
        dag_fini(&d);
        maco_runtime_close(rt);
    }
}

TEST(a_trace_and_the_order_come_with_the_graphs_ids)
{
    struct step s[3] = {{.what = PASS}, {.what = PASS}, {.what = PASS}};
    void *args[3];
    struct chain c;
    make_chain(&c, MACO_DIRECT, 2, do_step, args_of(s, args), three, 3, 1);
    maco_runtime *rt = open_runtime(MACO_DIRECT, 2, 10000, 1);
    uint32_t ids[3] = {9, 9, 9}, n = 0;
    maco_trace *trace = NULL;
    assert_int_equal(maco_run(rt, c.plan), 0);
    assert_int_equal(maco_run_order(rt, ids, 3, &n), 0);
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ids[i], i);
    assert_int_equal(maco_run_trace(rt, &trace), 0);
    assert_non_null(trace);
    maco_trace_free(trace);
    maco_runtime_close(rt);
    free_chain(&c);
}
