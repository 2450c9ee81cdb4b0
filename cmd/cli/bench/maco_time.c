/* Shared parts of bench maco: graphs to run, work for a task, the time of a run. */
#include <string.h>

#include "base/clock.h"
#include "cli/bench/maco.h"

double bench_maco_spin(uint64_t operations)
{
    double x = 1.0;
    for (uint64_t i = 0; i < operations; i++) {
        x = x * 0.999999 + 0.5;
        __asm__ volatile("" : "+r"(i));
    }
    return x;
}

int bench_maco_spin_task(void *arg, const maco_task *task)
{
    static _Thread_local volatile double sink;
    (void)task;
    sink = bench_maco_spin(*(const uint64_t *)arg);
    (void)sink;
    return 0;
}

double bench_maco_median(struct bench_samples *s)
{
    static struct bench_report unused;
    unused.row_count = 0;
    return bench_row(&unused, "", "", 0, s)->p50_us * 1e3;
}

hl_status bench_maco_plan(const char *graph, int policy, int workers, uint32_t tasks,
                          maco_function f, void *arg, struct bench_maco_plan *out)
{
    uint32_t width = strcmp(graph, "indep") == 0   ? tasks
                     : strcmp(graph, "chain") == 0 ? 1
                                                   : BENCH_MACO_WIDTH;
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .workers = workers,
                              .infer = 1};
    maco_op op = {MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .cost_ns = 1000, .function = f,
                  .arg = arg};
    out->tasks = tasks;
    HL_TRY((hl_status)maco_graph_new(&out->graph));
    for (uint32_t i = 0; i < tasks; i++) {
        uint32_t id;
        HL_TRY((hl_status)maco_graph_add(out->graph, &op, &id));
        uint32_t before = i / width * width;
        for (uint32_t k = before >= width ? before - width : before; k < before; k++)
            HL_TRY((hl_status)maco_graph_depend(out->graph, id, k));
    }
    return (hl_status)maco_compile(out->graph, &o, &out->plan);
}

void bench_maco_plan_free(struct bench_maco_plan *p)
{
    maco_plan_free(p->plan);
    maco_graph_free(p->graph);
    *p = (struct bench_maco_plan){0};
}

hl_status bench_maco_time(maco_runtime *rt, const maco_plan *p, uint64_t *ns)
{
    uint64_t from = hl_now_ns();
    HL_TRY((hl_status)maco_run(rt, p));
    *ns = hl_now_ns() - from;
    return HL_OK;
}
