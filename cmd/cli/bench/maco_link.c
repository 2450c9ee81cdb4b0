/* Overlap with a link that takes no processor: the communication of chunks ends at deadlines, one
 * after the other, and its task polls for the deadline. Computing is a fixed amount of work. The
 * result is compared with what n dependent chunks allow: c + (n - 1) max(c, x) + x. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench/maco.h"
#include "maco/cpu/futex.h"

#define CHUNKS_MAX 8
#define CHUNK_NS   1000000
#define SPREAD_MAX 0.10 /* of the middle half of the readings */
#define SLOWER_MAX 1.25 /* above this, the threads don't have a processor each */

struct link {
    uint64_t operations, chunk_ns; /* per chunk */
};

/* The group's proxy is the only thread here, so the link is free when it comes. */
static int send_chunk(void *arg, const maco_task *task)
{
    uint64_t end = hl_now_ns() + ((struct link *)arg)->chunk_ns;
    (void)task;
    while (hl_now_ns() < end)
        for (int i = 0; i < 16; i++) /* the computing thread may share the core */
            hl_pause();
    return 0;
}

static hl_status make_plan(struct link *l, int n, int comm, struct bench_maco_plan *out)
{
    int st = maco_graph_new(&out->graph);
    for (int i = 0; i < n && st == 0; i++) {
        uint32_t id, sent;
        maco_op op = {MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE,
                      .function = bench_maco_spin_task, .arg = &l->operations};
        maco_op send = {MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMM, .function = send_chunk,
                        .arg = l};
        st = maco_graph_add(out->graph, &op, &id);
        if (st == 0 && comm)
            st = maco_graph_add(out->graph, &send, &sent);
        if (st == 0 && comm)
            st = maco_graph_depend(out->graph, sent, id);
    }
    if (st == 0)
        st = maco_compile(out->graph, NULL, &out->plan);
    return (hl_status)st;
}

/* Takes readings of computing alone and of both, in turns. */
static hl_status measure_overlap(maco_runtime *rt, struct link *l, int n, int rounds, double *c,
                                 double *o, double *spread)
{
    struct bench_maco_plan alone = {0}, both = {0};
    struct bench_samples s[2] = {{0}, {0}};
    hl_status st = make_plan(l, n, 0, &alone);
    if (st == HL_OK)
        st = make_plan(l, n, 1, &both);
    for (int k = 0; k < 2 && st == HL_OK; k++)
        st = bench_samples_init(&s[k], (size_t)rounds);
    for (int k = 0; k < rounds && st == HL_OK; k++) {
        uint64_t ns[2];
        st = bench_maco_time(rt, alone.plan, &ns[0]);
        if (st == HL_OK)
            st = bench_maco_time(rt, both.plan, &ns[1]);
        for (int i = 0; i < 2 && st == HL_OK; i++)
            bench_add(&s[i], ns[i]);
    }
    if (st == HL_OK) {
        *c = bench_maco_median(&s[0]);
        *o = bench_maco_median(&s[1]);
        *spread = (double)(s[1].ns[s[1].count * 3 / 4] - s[1].ns[s[1].count / 4]) / *o;
    }
    for (int k = 0; k < 2; k++)
        bench_samples_fini(&s[k]);
    bench_maco_plan_free(&alone);
    bench_maco_plan_free(&both);
    return st;
}

/* Finds the number of operations that take about as long as a chunk on this machine. */
static uint64_t calibrate_operations(void)
{
    static volatile double sink;
    uint64_t best = UINT64_MAX, n = 100000;
    for (int k = 0; k < 20; k++) {
        uint64_t from = hl_now_ns();
        sink = bench_maco_spin(n);
        uint64_t took = hl_now_ns() - from;
        best = took < best ? took : best;
    }
    (void)sink;
    return n * CHUNK_NS / (best > 0 ? best : 1);
}

hl_status bench_maco_link(struct bench_report *r, int rounds)
{
    maco_runtime *rt = NULL;
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .workers = 1};
    struct link l = {.operations = calibrate_operations()};
    HL_TRY((hl_status)maco_runtime_open(&o, &rt));
    hl_status st = HL_OK;
    for (int k = 0; k < 4 && st == HL_OK; k++) {
        int n = k % 2 == 0 ? 4 : CHUNKS_MAX;
        double c_all = 0, took = 0, spread = 0;
        char name[96];
        l.chunk_ns = k < 2 ? CHUNK_NS : CHUNK_NS / 2;
        st = measure_overlap(rt, &l, n, rounds, &c_all, &took, &spread);
        double c = c_all / n, x = (double)l.chunk_ns, larger = c > x ? c : x;
        double x_all = x * n, smaller = c_all < x_all ? c_all : x_all;
        double best = c + (n - 1) * larger + x;
        snprintf(name, sizeof(name), "overlap of %d %s chunks over what they allow", n,
                 k < 2 ? "equal" : "half as long");
        if (st == HL_OK && (spread > SPREAD_MAX || c > SLOWER_MAX * CHUNK_NS))
            fprintf(stderr,
                    "helios: %s: cannot be measured here: a chunk takes %.2f times its best time, "
                    "and readings differ by %.0f %%\n",
                    name, c / CHUNK_NS, 100 * spread);
        else if (st == HL_OK)
            bench_ratio(r, name,
                        ((c_all + x_all - took) / smaller) / ((c_all + x_all - best) / smaller),
                        0.90, 0);
    }
    maco_runtime_close(rt);
    return st;
}
