/* Large graphs: an algorithm that looks at all pairs of tasks, or of readers, does not end in
 * time. */
#include "support/test.h"

#include "unit/maco/maker.h"

#define N      100000u
#define MEMORY 0x100000000ull

static maco_plan *compiled(maco_graph *g, int infer, maco_plan_view *v)
{
    maco_plan *p = NULL;
    OK(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = infer}, &p));
    *v = *maco_plan_read(p);
    maco_graph_free(g);
    return p;
}

static void *at(uint64_t offset)
{
    return (void *)(uintptr_t)(MEMORY + offset);
}

static maco_graph *empty(void)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    return g;
}

TEST(layers_of_row_chunks_become_chains)
{
    maco_graph *g = empty();
    maco_plan_view v;
    for (uint32_t i = 0; i < N; i++) { /* 100 chunks, back and forth between two matrices */
        uint64_t from = (i / 100 % 2) << 20, to = (1 - i / 100 % 2) << 20, chunk = i % 100 * 4096;
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_GELU, .inputs = {at(from + chunk)},
                            .outputs = {at(to + chunk)}, .dims = {8, 128, 128, 128}});
    }
    maco_plan *p = compiled(g, 1, &v);
    assert_int_equal(v.n_tasks, N);
    assert_int_equal(v.n_roots, 100);
    assert_int_equal(v.n_events, N - 100 + 1);
    maco_plan_free(p);
}

TEST(slices_of_columns_and_their_reader_become_barriers)
{
    maco_graph *g = empty();
    maco_plan_view v;
    uint32_t rounds = N / 65;
    for (uint32_t i = 0; i < rounds * 65; i++)
        if (i % 65 < 64)
            add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_MEMSET,
                                .outputs = {at(i % 65 * 64)}, .dims = {32, 64, 0, 4096}});
        else
            add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_MEMCPY, .inputs = {at(0)},
                                .outputs = {at(1 << 20)},
                                .dims = {1, 4096 * 32, 4096 * 32, 4096 * 32}});
    maco_plan *p = compiled(g, 1, &v);
    assert_int_equal(v.n_tasks, rounds * 65); /* no joins */
    assert_int_equal(v.n_events, rounds * 2);
    assert_int_equal(v.n_roots, 64);
    maco_plan_free(p);
}

/* All tasks read the same memory, again and again, then one writes it. */
TEST(many_readers_and_a_writer)
{
    maco_graph *g = empty();
    maco_plan_view v;
    maco_range shared[8];
    for (uint32_t i = 0; i < 8; i++)
        shared[i] = (maco_range){MEMORY + i * 64, 64};
    for (uint32_t i = 0; i < N; i++) {
        int last = i == N - 1;
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .function = do_nothing,
                            .reads = shared, .n_reads = last ? 0 : 8, .writes = shared,
                            .n_writes = last ? 8 : 0});
    }
    maco_plan *p = compiled(g, 1, &v);
    assert_int_equal(v.n_roots, N - 1);
    assert_int_equal(v.events[0].needed, N - 1);
    maco_plan_free(p);
}

/* Without inference: a task's memory is used by the second task after it. */
TEST(order_that_is_there_is_found)
{
    maco_graph *g = empty();
    maco_plan_view v;
    for (uint32_t i = 0; i < N; i++) {
        maco_range r = {MEMORY + i % 2 * 64, 64};
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .function = do_nothing,
                            .writes = &r, .n_writes = 1});
        if (i > 0)
            OK(maco_graph_depend(g, i, i - 1));
    }
    maco_plan *p = compiled(g, 0, &v);
    assert_int_equal(v.n_events, N);
    maco_plan_free(p);
}

TEST(a_virtual_run_of_many_workers_and_pinned_tasks)
{
    maco_graph *g = empty();
    maco_trace *t = NULL;
    maco_overlap o = {MACO_OVERLAP_INIT};
    maco_plan_view v;
    for (uint32_t i = 0; i < N; i++)
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE,
                            .on_worker = i % 3 == 0 ? 1 + (int)(i / 3 % 1000) : 0, .cost_ns = 10,
                            .function = do_nothing});
    maco_plan *p = compiled(g, 1, &v);
    OK(maco_run_virtual(p, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 1000}, &t));
    OK(maco_trace_overlap(t, &o));
    assert_true(o.total_ns >= N / 1000 * 10 && o.total_ns <= N / 1000 * 10 + 10);
    assert_int_equal(o.busy_ns, N * 10);
    maco_trace_free(t);
    maco_plan_free(p);
}
