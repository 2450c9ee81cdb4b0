#include "support/test.h"

#include "maco/trace/trace.h"
#include "maco/trace/trace_private.h"
#include "unit/maco/maker.h"

static maco_overlap ran(const maco_graph *g, maco_compile_options o, maco_virtual model,
                        maco_trace **trace)
{
    maco_plan *p = NULL;
    maco_trace *t = NULL;
    maco_overlap out = {MACO_OVERLAP_INIT};
    OK(maco_compile(g, &o, &p));
    OK(maco_run_virtual(p, &model, &t));
    maco_plan_free(p); /* a trace has copies of its own */
    OK(maco_trace_overlap(t, &out));
    if (trace != NULL)
        *trace = t;
    else
        maco_trace_free(t);
    return out;
}

static const maco_compile_options usual = {MACO_COMPILE_OPTIONS_INIT, .infer = 1};

/* ---- closed forms ---- */

struct pipeline {
    int n, compute, comm;   /* chunks; with compute, with communication */
    uint32_t c_ns, x_bytes; /* of a chunk */
    uint64_t latency_ns, bytes_per_s;
};

/* Each chunk is computed, then reduced over a link. */
static maco_overlap run_pipeline(struct pipeline k)
{
    static uint8_t memory[1 << 16];
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    for (int i = 0; i < k.n; i++) {
        maco_range r = {(uintptr_t)(memory + i * (int)k.x_bytes), k.x_bytes};
        if (k.compute)
            add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .cost_ns = k.c_ns,
                                .function = do_nothing, .writes = &r, .n_writes = 1});
        if (k.comm)
            add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALLREDUCE, .dtype = MACO_U8,
                                .inputs = {(void *)(uintptr_t)r.first},
                                .outputs = {(void *)(uintptr_t)r.first},
                                .dims = {(int32_t)k.x_bytes}});
    }
    maco_overlap o =
        ran(g, usual,
            (maco_virtual){MACO_VIRTUAL_INIT, .workers = 1, .link_bytes_per_s = k.bytes_per_s,
                           .link_latency_ns = k.latency_ns},
            NULL);
    maco_graph_free(g);
    return o;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* E = (C + X - O) / min(C, X) compared with the bound of n dependent chunks, in whole numbers. */
static void check_pipeline(struct pipeline k)
{
    struct pipeline alone = k;
    alone.comm = 0;
    uint64_t c = run_pipeline(alone).total_ns;
    alone.comm = 1;
    alone.compute = 0;
    uint64_t x = run_pipeline(alone).total_ns;
    maco_overlap o = run_pipeline(k);
    uint64_t n = (uint64_t)k.n, cc = k.c_ns, xx = k.x_bytes * (1000000000u / k.bytes_per_s);
    uint64_t best = cc + (n - 1) * larger(cc, xx) + xx + k.latency_ns;
    assert_int_equal(c, n * cc);
    assert_int_equal(x, n * xx + k.latency_ns);
    assert_int_equal(o.total_ns, best);
    assert_int_equal(o.compute_ns, c);
    assert_int_equal(o.busy_ns, c);
    assert_int_equal(o.comm_before_producer, 0);
    assert_int_equal(o.launch_ns, 0);
    if (k.latency_ns > 0)
        return;
    uint64_t hidden = c + x - o.total_ns, least = c < x ? c : x;
    assert_int_equal(hidden * n, least * (n - 1)); /* E = 1 - 1/n, exactly */
    assert_int_equal(o.both_ns, hidden);
    assert_int_equal(o.comm_ns, x);
}

TEST(overlap_of_dependent_chunks_is_the_closed_form)
{
    static const uint32_t ratio[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 7}, {10, 1}};
    static const int chunks[] = {1, 2, 4, 8, 16};
    for (size_t r = 0; r < HL_ARRAY_LEN(ratio); r++)
        for (size_t i = 0; i < HL_ARRAY_LEN(chunks); i++)
            for (uint64_t latency = 0; latency <= 200000; latency += 100000)
                check_pipeline((struct pipeline){.n = chunks[i],
                                                 .compute = 1,
                                                 .comm = 1,
                                                 .c_ns = ratio[r][0] * 50000,
                                                 .x_bytes = ratio[r][1] * 500,
                                                 .latency_ns = latency,
                                                 .bytes_per_s = 10000000});
}

/* Unequal chunks: compute one after the other, then the link, which sends one at a time without
 * waiting for the far end. */
TEST(unequal_chunks_follow_the_recurrence)
{
    uint64_t seed = 5;
    for (int k = 0; k < 500; k++) {
        maco_graph *g = NULL;
        uint64_t made = 0, link = 0, end = 0, latency = below(&seed, 300);
        int n = 1 + (int)below(&seed, 12), costed = (int)below(&seed, 2);
        OK(maco_graph_new(&g));
        for (int i = 0; i < n; i++) {
            uint32_t c = 1 + below(&seed, 1000), x = 1 + below(&seed, 1000);
            uint32_t a = add_work(g, NULL, c);
            uint32_t b = add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_SEND, .dtype = MACO_U8,
                                             .inputs = {&seed}, .dims = {(int32_t)x},
                                             .cost_ns = costed ? x : 0});
            OK(maco_graph_depend(g, b, a));
            made += c;
            uint64_t begin = larger(made, link);
            link = begin + x;
            end = larger(end, link + (costed ? 0 : latency));
        }
        maco_overlap o =
            ran(g, usual,
                (maco_virtual){MACO_VIRTUAL_INIT, .workers = 1, .link_bytes_per_s = 1000000000,
                               .link_latency_ns = latency},
                NULL);
        assert_int_equal(o.total_ns, larger(end, made));
        assert_int_equal(o.launch_ns, 0);
        maco_graph_free(g);
    }
}

TEST(links_of_two_groups_do_not_wait_for_each_other)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < 4; i++)
        add_comm(g, NULL, i % 2, 100);
    assert_int_equal(ran(g, usual, (maco_virtual){MACO_VIRTUAL_INIT, .workers = 1}, NULL).total_ns,
                     200);
    maco_graph_free(g);
}

TEST(communication_goes_in_order_though_a_later_one_is_ready)
{
    maco_graph *g = NULL;
    maco_trace *t = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "long", 1000), b = add_comm(g, "first", 0, 10);
    add_comm(g, "second", 0, 10);
    OK(maco_graph_depend(g, b, a));
    maco_overlap o = ran(g, usual, (maco_virtual){MACO_VIRTUAL_INIT, .workers = 1}, &t);
    assert_int_equal(o.total_ns, 1020);
    assert_int_equal(t->records[1].start_ns, 1000);
    assert_int_equal(t->records[2].start_ns, 1010);
    maco_trace_free(t);
    maco_graph_free(g);
}

/* ---- any graph, any policy: what must hold ---- */

#define N 40

struct made {
    maco_graph *g;
    struct order o;
    uint32_t n, cost[N];
    int comm[N], wish[N];
    uint64_t work;
};

static struct made make(uint64_t *seed, int workers)
{
    struct made m = {.n = 1 + below(seed, N)};
    int with_comm = (int)below(seed, 2), with_wish = (int)below(seed, 2);
    OK(maco_graph_new(&m.g));
    for (uint32_t i = 0; i < m.n; i++) {
        m.cost[i] = 1 + below(seed, 20);
        m.comm[i] = with_comm && below(seed, 4) == 0;
        m.wish[i] = with_wish && !m.comm[i] && below(seed, 3) == 0
                        ? (int)below(seed, (uint32_t)workers)
                        : -1;
        m.work += m.comm[i] ? 0 : m.cost[i];
        add_op(m.g, (maco_op){MACO_OP_INIT,
                              .type = m.comm[i] ? MACO_TASK_CUSTOM_COMM : MACO_TASK_CUSTOM_COMPUTE,
                              .on_worker = m.wish[i] + 1, .priority = (int)below(seed, 3),
                              .group = m.comm[i] ? below(seed, 2) : 0, .cost_ns = m.cost[i],
                              .function = do_nothing});
        for (uint32_t k = below(seed, 4); i > 0 && k-- > 0;) {
            uint32_t on = below(seed, i);
            OK(maco_graph_depend(m.g, i, on));
            put_before(&m.o, on, i);
        }
    }
    close_order(&m.o, m.n);
    return m;
}

static void check_records(const struct made *m, const maco_plan_view *v, const maco_trace *t,
                          uint64_t hop)
{
    uint64_t start[N], end[N], line_free[2][64] = {{0}};
    uint32_t seen = 0;
    for (size_t i = 0; i < t->n; i++) { /* by start */
        const struct hl_maco_record *r = &t->records[i];
        uint32_t id = v->id[r->task];
        uint64_t *busy = &line_free[r->kind == HL_MACO_COMM][r->worker];
        assert_true(id < m->n);
        assert_int_equal(r->kind == HL_MACO_COMM, m->comm[id]);
        assert_int_equal(r->end_ns - r->start_ns, m->cost[id]);
        assert_true(m->wish[id] < 0 || m->wish[id] == r->worker);
        assert_true(r->start_ns >= *busy); /* one at a time on each line */
        *busy = r->end_ns;
        start[id] = r->start_ns;
        end[id] = r->end_ns;
        seen++;
    }
    assert_int_equal(seen, m->n);
    for (uint32_t b = 0; b < m->n; b++)
        for (uint32_t a = 0; a < m->n; a++)
            if (is_before(&m->o, a, b))
                assert_true(start[b] >= end[a] + hop);
}

static uint64_t longest_chain(const struct made *m)
{
    uint64_t end[N] = {0}, most = 0;
    for (uint32_t b = 0; b < m->n; b++) { /* ids are in order here */
        for (uint32_t a = 0; a < b; a++)
            if (is_before(&m->o, a, b))
                end[b] = larger(end[b], end[a]);
        end[b] += m->cost[b];
        most = larger(most, end[b]);
    }
    return most;
}

TEST(any_graph_runs_as_it_must_under_any_policy)
{
    uint64_t seed = 6;
    for (int k = 0; k < 10000; k++) {
        int workers = 1 + (int)below(&seed, 6);
        struct made m = make(&seed, workers);
        maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = k % 3,
                                  .balance = (int)below(&seed, 2), .workers = workers, .infer = 1};
        maco_virtual model = {MACO_VIRTUAL_INIT, .workers = workers, .hop_ns = below(&seed, 2) * 3};
        maco_plan *p = NULL;
        maco_plan_view v;
        maco_trace *t = NULL, *again = NULL;
        maco_overlap s = {MACO_OVERLAP_INIT};
        OK(maco_compile(m.g, &o, &p));
        v = *maco_plan_read(p);
        OK(maco_run_virtual(p, &model, &t));
        OK(maco_run_virtual(p, &model, &again));
        assert_int_equal(t->n, again->n);
        assert_memory_equal(t->records, again->records, t->n * sizeof(*t->records));
        check_records(&m, &v, t, model.hop_ns);
        OK(maco_trace_overlap(t, &s));
        assert_true(s.total_ns >= longest_chain(&m));
        assert_true(s.total_ns * (uint64_t)workers >= m.work);
        int plain = 1; /* Graham: no worker is idle while a task is ready */
        for (uint32_t i = 0; i < m.n; i++)
            plain &= !m.comm[i] && m.wish[i] < 0;
        if (o.policy == MACO_DIRECT && plain && model.hop_ns == 0)
            assert_true((s.total_ns - longest_chain(&m)) * (uint64_t)workers <= m.work);
        maco_trace_free(t);
        maco_trace_free(again);
        maco_plan_free(p);
        maco_graph_free(m.g);
    }
}

/* ---- policies ---- */

TEST(round_robin_differs_by_one_at_most_and_least_loaded_balances)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < 10; i++)
        add_work(g, NULL, i == 0 ? 90 : 10);
    for (int balance = 0; balance < 2; balance++) {
        maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = MACO_SCHEDULER,
                                  .balance = balance, .infer = 1};
        maco_trace *t = NULL;
        uint32_t count[3] = {0};
        maco_overlap s = ran(g, o, (maco_virtual){MACO_VIRTUAL_INIT, .workers = 3}, &t);
        for (size_t i = 0; i < t->n; i++)
            count[t->records[i].worker]++;
        assert_int_equal(count[0], balance == MACO_ROUND_ROBIN ? 4 : 1);
        assert_int_equal(s.total_ns, balance == MACO_ROUND_ROBIN ? 120 : 90);
        maco_trace_free(t);
    }
    maco_graph_free(g);
}

TEST(the_higher_priority_goes_first)
{
    maco_graph *g = NULL;
    maco_trace *t = NULL;
    OK(maco_graph_new(&g));
    for (int i = 0; i < 6; i++)
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .priority = i % 3,
                            .cost_ns = 5, .function = do_nothing});
    ran(g, usual, (maco_virtual){MACO_VIRTUAL_INIT, .workers = 1}, &t);
    static const char *const want[] = {"2", "5", "1", "4", "0", "3"};
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(t->names + t->tasks[t->records[i].task].name + 15, want[i]);
    maco_trace_free(t);
    maco_graph_free(g);
}

static uint32_t add_pinned(maco_graph *g, const char *name, int worker, int priority, uint32_t ns)
{
    return add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE,
                               .on_worker = worker + 1, .priority = priority, .name = name,
                               .cost_ns = ns, .function = do_nothing});
}

static const char *started(const maco_trace *t, uint16_t worker, uint64_t ns)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->records[i].kind == HL_MACO_COMPUTE && t->records[i].worker == worker &&
            t->records[i].start_ns == ns)
            return t->names + t->tasks[t->records[i].task].name;
    return "nothing";
}

/* A task with an affinity for this worker goes before one for any worker only by its priority; and
 * everything that ends at one time has ended before anything starts: `a`, then the transfer after
 * `b`. */
TEST(priority_decides_among_all_that_is_ready_at_one_time)
{
    maco_graph *g = NULL;
    maco_trace *t = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_pinned(g, "a", 0, 0, 10), b = add_pinned(g, "b", 1, 0, 5);
    uint32_t c = add_comm(g, "c", 0, 5);
    OK(maco_graph_depend(g, add_pinned(g, "busy", 1, 0, 100), b));
    OK(maco_graph_depend(g, c, b));
    OK(maco_graph_depend(g, add_pinned(g, "low", 0, 0, 1), a));
    OK(maco_graph_depend(g, add_pinned(g, "high", -1, 1, 1), c));
    ran(g, usual, (maco_virtual){MACO_VIRTUAL_INIT, .workers = 2}, &t);
    assert_string_equal(started(t, 0, 10), "high");
    assert_string_equal(started(t, 0, 11), "low");
    maco_trace_free(t);
    maco_graph_free(g);
}

TEST(a_model_that_does_not_fit_is_refused)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_trace *t = NULL;
    OK(maco_graph_new(&g));
    add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .on_worker = 3,
                        .name = "far", .cost_ns = UINT32_MAX, .function = do_nothing});
    OK(maco_compile(g, NULL, &p));
    REFUSED(maco_run_virtual(p, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 0}, &t), HL_EINVAL,
            "0 workers");
    REFUSED(maco_run_virtual(p, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 2}, &t), HL_EINVAL,
            "\"far\" requests worker 2 of 2");
    REFUSED(maco_run_virtual(NULL, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 2}, &t), HL_EINVAL,
            "NULL");
    maco_plan_free(p);
    p = NULL;
    REFUSED(maco_compile(g,
                         &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC,
                                                 .workers = 2},
                         &p),
            HL_EINVAL, "\"far\" requests worker 2 of 2");
    OK(maco_compile(
        g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC, .workers = 3},
        &p));
    REFUSED(maco_run_virtual(p, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 4}, &t), HL_EINVAL,
            "lists for 3 workers, the model 4");
    assert_null(t);
    maco_plan_free(p);
    maco_graph_free(g);
}

TEST(structs_are_as_long_as_their_caller_says)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_trace *t = NULL;
    maco_runtime *rt = NULL;
    maco_op op = {.type = MACO_TASK_NOP, .n_writes = 7}; /* which a NOP cannot have */
    maco_compile_options o = {.infer = 1};
    maco_virtual model = {.workers = 1, .link_latency_ns = 7};
    maco_runtime_options r = {.workers = 1};
    maco_overlap overlap = {0};
    OK(maco_graph_new(&g));
    REFUSED(maco_graph_add(g, &op, NULL), HL_EINVAL, "sizeof(maco_op)");
    op.size = offsetof(maco_op, reads);
    OK(maco_graph_add(g, &op, NULL));
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "sizeof(maco_compile_options)");
    o.size = offsetof(maco_compile_options, lists);
    OK(maco_compile(g, &o, &p));
    REFUSED(maco_run_virtual(p, &model, &t), HL_EINVAL, "sizeof(maco_virtual)");
    model.size = offsetof(maco_virtual, hop_ns);
    OK(maco_run_virtual(p, &model, &t));
    REFUSED(maco_trace_overlap(t, &overlap), HL_EINVAL, "sizeof(maco_overlap)");
    REFUSED(maco_runtime_open(&r, &rt), HL_EINVAL, "sizeof(maco_runtime_options)");
    maco_trace_free(t);
    maco_plan_free(p);
    maco_graph_free(g);
}
