/* Graphs for tests, and the meaning of a plan found without its compiler: by running it step by
 * step. */
#ifndef HL_TESTS_MACO_MAKER_H
#define HL_TESTS_MACO_MAKER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "helios/maco.h"
#include "maco/graph/types.h"
#include "maco/plan/plan.h"

#define OK(expr)                                                                                   \
    do {                                                                                           \
        int st_ = (expr);                                                                          \
        if (st_ != 0)                                                                              \
            fail_msg("%s: %s", #expr, hl_error_text());                                            \
    } while (0)

/* It fails with this code and these words. */
#define REFUSED(expr, code, words)                                                                 \
    do {                                                                                           \
        hl_error_clear();                                                                          \
        assert_int_equal((expr), (code));                                                          \
        if (strstr(hl_error_text(), (words)) == NULL)                                              \
            fail_msg("\"%s\" is not in: %s", (words), hl_error_text());                            \
    } while (0)

static inline uint64_t dice(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint32_t below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(dice(seed) % n);
}

static inline int do_nothing(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    return 0;
}

static inline uint32_t add_op(maco_graph *g, maco_op op)
{
    uint32_t id = MACO_NONE;
    OK(maco_graph_add(g, &op, &id));
    return id;
}

/* A task that only takes time. */
static inline uint32_t add_work(maco_graph *g, const char *name, uint32_t cost_ns)
{
    return add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .name = name,
                               .cost_ns = cost_ns, .function = do_nothing});
}

static inline uint32_t add_comm(maco_graph *g, const char *name, uint32_t group, uint32_t cost_ns)
{
    return add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMM, .name = name,
                               .group = group, .cost_ns = cost_ns, .function = do_nothing});
}

/* ---- which task must be done before which: bits ---- */

#define ORDER_MAX 128

struct order {
    uint64_t before[ORDER_MAX][2]; /* bit a of before[b]: a before b */
};

static inline int is_before(const struct order *o, uint32_t a, uint32_t b)
{
    return o->before[b][a / 64] >> (a % 64) & 1;
}

static inline void put_before(struct order *o, uint32_t a, uint32_t b)
{
    o->before[b][a / 64] |= 1ull << (a % 64);
}

/* Adds the transitive order. */
static inline void close_order(struct order *o, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t b = 0; b < n; b++)
            if (is_before(o, k, b)) {
                o->before[b][0] |= o->before[k][0];
                o->before[b][1] |= o->before[k][1];
            }
}

/* ---- a plan, run one task after the other ---- */

struct walker {
    maco_plan_view v;
    uint64_t *seed;        /* chooses the next one of those that can run */
    uint32_t last;         /* id of a task that runs only when no other can; MACO_NONE */
    const struct order *o; /* ids; NULL = not checked */
    uint32_t *count, *ready, n_ready, *ran, n_ran;
    int early, ended;
};

static inline void walk_trigger(struct walker *w, uint32_t event)
{
    const maco_event *e = &w->v.events[event];
    if (++w->count[event] != e->needed)
        return;
    w->ended += e->kind == MACO_EVENT_END;
    for (uint32_t i = e->first; i < e->last; i++) {
        if (w->v.id[i] == MACO_NONE)
            walk_trigger(w, w->v.tasks[i].trigger_event);
        else
            w->ready[w->n_ready++] = i;
    }
}

static inline uint32_t walk_pick(struct walker *w)
{
    uint32_t at = below(w->seed, w->n_ready);
    if (w->v.id[w->ready[at]] == w->last && w->n_ready > 1)
        at = at == 0 ? 1 : at - 1;
    uint32_t task = w->ready[at];
    w->ready[at] = w->ready[--w->n_ready];
    return task;
}

static inline void walk_task(struct walker *w, uint32_t task)
{
    uint32_t id = w->v.id[task];
    for (uint32_t a = 0; w->o != NULL && a < ORDER_MAX; a++)
        w->early |= is_before(w->o, a, id) && w->ran[a] == 0;
    w->ran[id]++;
    w->n_ran++;
    walk_trigger(w, w->v.tasks[task].trigger_event);
}

/* Returns 1 if each of the n tasks of the graph ran once, none before one that it waits for, and
 * the end came with the last. */
static inline int walk_plan(const maco_plan_view *v, uint32_t n, const struct order *o,
                            uint64_t *seed, uint32_t last)
{
    struct walker w = {.v = *v, .seed = seed, .last = last, .o = o};
    int good;
    w.count = calloc(v->n_events, sizeof(*w.count));
    w.ready = calloc(v->n_tasks, sizeof(*w.ready));
    w.ran = calloc(n + ORDER_MAX, sizeof(*w.ran));
    for (uint32_t i = 0; i < v->n_roots; i++)
        w.ready[w.n_ready++] = i;
    while (w.n_ready > 0 && w.n_ran <= n && !w.ended)
        walk_task(&w, walk_pick(&w));
    good = !w.early && w.ended == 1 && w.n_ran == n;
    for (uint32_t i = 0; i < n; i++)
        good &= w.ran[i] == 1;
    free(w.count);
    free(w.ready);
    free(w.ran);
    return good;
}

#endif
