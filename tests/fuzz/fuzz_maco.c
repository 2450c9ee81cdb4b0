/* A graph of any bytes. What is accepted must compile to a plan that runs each task once, after
 * those it waits for, under every policy; the rest must be refused. Nothing is executed: memory
 * that tasks name is anywhere. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "helios/maco.h"
#include "maco/graph/types.h"
#include "maco/plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TASKS 64

struct bytes {
    const uint8_t *at, *end;
};

static uint32_t take(struct bytes *b, size_t n)
{
    uint32_t v = 0;
    for (; n > 0 && b->at < b->end; n--)
        v = v << 8 | *b->at++;
    return v;
}

static int function(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    return 0;
}

static int some_type(struct bytes *b)
{
    static const int types[] = {1,   100, 101, 102, 103, 104, 105, 106, 107, 120, 150,
                                200, 201, 202, 203, 204, 205, 206, 250, 300, 301};
    uint32_t v = take(b, 1);
    return v < 224 ? types[v % HL_ARRAY_LEN(types)] : (int)take(b, 2);
}

/* Mostly near each other, so that they overlap. */
static uint64_t some_address(struct bytes *b)
{
    uint32_t v = take(b, 1);
    if (v < 32)
        return 0;
    return v < 248 ? 0x10000 + v * 4 : (uint64_t)take(b, 4) << 32 | take(b, 4);
}

static void some_dims(struct bytes *b, maco_op *op)
{
    for (int i = 0; i < 8; i++) {
        uint32_t v = take(b, 1);
        op->dims[i] = v < 240 ? (int32_t)(v % 24) : (int32_t)take(b, 4);
    }
}

static void add_task(maco_graph *g, struct bytes *b)
{
    char name[8] = {0};
    maco_range r[3];
    uint32_t bits = take(b, 2);
    maco_op op = {MACO_OP_INIT, .type = some_type(b), .cost_ns = bits & 1 ? take(b, 4) : 0};
    op.dtype = bits & 2 ? (int)take(b, 1) : 0;
    op.on_worker = bits & 4 ? (int)(take(b, 1) % 8) - 1 : 0;
    op.priority = bits & 8 ? (int)take(b, 4) : 0;
    op.group = bits & 16 ? take(b, 3) : 0;
    for (int i = 0; i < 4; i++)
        op.inputs[i] = (void *)(uintptr_t)some_address(b);
    for (int i = 0; i < 2; i++)
        op.outputs[i] = (void *)(uintptr_t)some_address(b);
    some_dims(b, &op);
    uint32_t aux = bits & 32 ? take(b, 4) : 0;
    memcpy(op.aux, &aux, sizeof(aux));
    if (bits & 64) {
        for (int i = 0; i < 7; i++)
            name[i] = (char)take(b, 1);
        op.name = name;
    }
    if (op.type == 150 || op.type == 250 || bits & 128)
        op.function = bits & 256 ? NULL : function;
    if (op.function != NULL) {
        op.n_reads = take(b, 1) % 3;
        op.n_writes = take(b, 1) % 2;
        for (uint32_t i = 0; i < 3; i++)
            r[i] = (maco_range){some_address(b), take(b, 1)};
        op.reads = r;
        op.writes = r + 2;
    }
    if (maco_graph_add(g, &op, NULL) != HL_OK && strstr(hl_error_text(), "Hint") == NULL)
        abort();
}

/* ---- a plan that is there must run ---- */

struct walk {
    maco_plan_view v;
    uint32_t *count;
    uint8_t *ready, *done;
    uint32_t ran;
    int ended;
};

static void trigger(struct walk *w, uint32_t event)
{
    const maco_event *e = &w->v.events[event];
    if (event >= w->v.n_events || ++w->count[event] > e->needed)
        abort();
    if (w->count[event] < e->needed)
        return;
    w->ended += e->kind == MACO_EVENT_END;
    for (uint32_t i = e->first; i < e->last; i++)
        if (w->v.id[i] == MACO_NONE)
            trigger(w, w->v.tasks[i].trigger_event);
        else
            w->ready[i] = 1;
}

static void check_task(const maco_plan *p, struct walk *w, uint32_t task)
{
    uint32_t n;
    const uint32_t *parents = hl_maco_plan_parents(p, task, &n);
    for (uint32_t i = 0; i < n; i++)
        if (!w->done[parents[i]])
            abort();
    w->done[task] = 1;
    w->ran++;
    trigger(w, w->v.tasks[task].trigger_event);
}

/* From the last to the first, again and again: the order least like that of the numbers. */
static void walk(const maco_plan *p, uint32_t tasks)
{
    struct walk w = {0};
    uint32_t before = UINT32_MAX;
    w.v = *maco_plan_read(p);
    w.count = calloc(w.v.n_events, sizeof(*w.count));
    w.ready = calloc(w.v.n_tasks, 1);
    w.done = calloc(w.v.n_tasks, 1);
    memset(w.ready, 1, w.v.n_roots);
    while (w.ran != before) {
        before = w.ran;
        for (uint32_t i = w.v.n_tasks; i-- > 0;)
            if (w.ready[i] && !w.done[i])
                check_task(p, &w, i);
    }
    if (w.ran != tasks || w.ended != 1)
        abort();
    free(w.count);
    free(w.ready);
    free(w.done);
}

static void compile(const maco_graph *g, uint32_t tasks, int policy, int infer)
{
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .balance = infer,
                              .workers = 4, .infer = infer};
    maco_virtual model = {MACO_VIRTUAL_INIT, .workers = 4, .hop_ns = 5, .link_bytes_per_s = 1000};
    maco_plan *p = NULL;
    maco_trace *t = NULL;
    maco_overlap s = {MACO_OVERLAP_INIT};
    char *json = NULL;
    if (maco_compile(g, &o, &p) != HL_OK) {
        if (strstr(hl_error_text(), "Hint") == NULL)
            abort();
        return;
    }
    walk(p, tasks);
    if (maco_plan_describe(p, &json) != HL_OK)
        abort();
    free(json);
    if (maco_run_virtual(p, &model, &t) == HL_OK) {
        if (maco_trace_overlap(t, &s) != HL_OK || s.tasks != tasks || s.comm_before_producer != 0 ||
            s.both_ns > s.compute_ns || s.both_ns > s.comm_ns || s.busy_ns < s.compute_ns)
            abort();
        maco_trace_free(t);
    } else if (strstr(hl_error_text(), "Hint") == NULL) {
        abort();
    }
    maco_plan_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, data + size};
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_plan_view v;
    if (maco_graph_new(&g) != HL_OK)
        return 0;
    for (int i = 0; i < TASKS && b.at < b.end; i++) {
        add_task(g, &b);
        for (uint32_t k = take(&b, 1) % 4; k-- > 0;)
            (void)!maco_graph_depend(g, take(&b, 1) % TASKS, take(&b, 1) % TASKS);
    }
    if (maco_compile(g, NULL, &p) == HL_OK) {
        uint32_t tasks = 0;
        v = *maco_plan_read(p);
        for (uint32_t i = 0; i < v.n_tasks; i++)
            tasks += v.id[i] != MACO_NONE;
        maco_plan_free(p);
        for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++)
            for (int infer = 0; infer < 2; infer++)
                compile(g, tasks, policy, infer);
    }
    maco_graph_free(g);
    return 0;
}
