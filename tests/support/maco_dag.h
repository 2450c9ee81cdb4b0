/* Random graphs whose tasks check their parents, and their plans, made by hand.
 *
 * A node's function compares the version that each parent has written with the run's, then writes
 * its own. This is plain memory, so a missing edge shows as a wrong version here and as a race
 * under ThreadSanitizer.
 */
#ifndef TESTS_SUPPORT_MACO_DAG_H
#define TESTS_SUPPORT_MACO_DAG_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "maco/cpu/runtime.h"

struct dag_node {
    struct dag *dag;
    uint32_t first_parent, n_parents;
    uint64_t stamp;
};

struct dag {
    uint32_t n, n_edges;
    struct dag_node *nodes;
    uint32_t *parents;
    uint64_t version;
    uint32_t wrong, calls; /* atomic */
    /* the plan */
    maco_task *tasks;
    maco_event *events;
    uint32_t *id, *worker, n_tasks, n_events, n_roots;
    struct hl_maco_function *functions;
    uint64_t serial;
    int policy;
};

static inline uint64_t dag_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static inline int dag_visit(void *arg, const maco_task *task)
{
    struct dag_node *v = arg;
    struct dag *d = v->dag;
    (void)task;
    uint32_t wrong = v->stamp == d->version;
    for (uint32_t k = 0; k < v->n_parents; k++)
        wrong += d->nodes[d->parents[v->first_parent + k]].stamp != d->version;
    if (wrong > 0)
        __atomic_add_fetch(&d->wrong, wrong, __ATOMIC_RELAXED);
    v->stamp = d->version;
    __atomic_add_fetch(&d->calls, 1, __ATOMIC_RELAXED);
    return 0;
}

static inline uint32_t dag_event(struct dag *d, int kind, uint32_t needed)
{
    d->events[d->n_events] =
        (maco_event){.kind = (uint16_t)kind, .needed = needed, .target_worker = -1};
    return d->n_events++;
}

static inline uint32_t dag_task(struct dag *d, int type, uint32_t on, uint32_t id)
{
    uint32_t i = d->n_tasks++;
    d->tasks[i] = (maco_task){.type = (uint16_t)type, .dependent_event = on, .user = id};
    d->tasks[i].trigger_event = MACO_NONE;
    d->id[i] = type == MACO_TASK_NOP ? MACO_NONE : id;
    d->worker[i] = MACO_NONE;
    return i;
}

/* One event for each node's parents; a node with several children launches a range of joins. */
static inline void dag_compile(struct dag *d, int wishes, int groups, uint64_t *seed)
{
    uint32_t *at = malloc(d->n * sizeof(*at)), *join = malloc(d->n * sizeof(*join));
    uint32_t *kids = calloc(d->n, sizeof(*kids)), sinks = 0;
    for (uint32_t e = 0; e < d->n_edges; e++)
        kids[d->parents[e]]++;
    for (uint32_t v = 0; v < d->n; v++) {
        const struct dag_node *node = &d->nodes[v];
        sinks += kids[v] == 0;
        join[v] = node->n_parents == 0 ? MACO_NONE
                                       : dag_event(d, MACO_EVENT_LAUNCH_TASK, node->n_parents);
        if (node->n_parents == 0)
            at[v] = dag_task(d, MACO_TASK_CUSTOM_COMPUTE, MACO_NONE, v);
    }
    d->n_roots = d->n_tasks;
    uint32_t end = dag_event(d, MACO_EVENT_END, sinks);
    for (uint32_t v = 0; v < d->n; v++) {
        if (join[v] != MACO_NONE) {
            at[v] = dag_task(d, MACO_TASK_CUSTOM_COMPUTE, join[v], v);
            d->events[join[v]].first = at[v];
            d->events[join[v]].last = at[v] + 1;
        }
        if (groups > 0 && dag_random(seed) % 5 == 0) {
            d->tasks[at[v]].type = MACO_TASK_CUSTOM_COMM;
            d->tasks[at[v]].group = (uint32_t)(dag_random(seed) % (uint64_t)groups);
        } else if (wishes > 0 && dag_random(seed) % 4 == 0)
            d->worker[at[v]] = (uint32_t)(dag_random(seed) % (uint64_t)wishes);
        uint32_t fan = kids[v] > 1 ? dag_event(d, MACO_EVENT_LAUNCH_MASSIVE, 1) : MACO_NONE;
        if (fan != MACO_NONE)
            d->events[fan].first = d->n_tasks;
        d->tasks[at[v]].trigger_event = kids[v] == 0 ? end : fan;
        for (uint32_t w = v + 1; w < d->n && kids[v] > 0; w++)
            for (uint32_t k = 0; k < d->nodes[w].n_parents; k++) {
                if (d->parents[d->nodes[w].first_parent + k] != v)
                    continue;
                uint32_t from = at[v];
                if (fan != MACO_NONE)
                    from = dag_task(d, MACO_TASK_NOP, fan, 0);
                d->tasks[from].trigger_event = join[w];
            }
        if (fan != MACO_NONE)
            d->events[fan].last = d->n_tasks;
    }
    free(at);
    free(join);
    free(kids);
}

/* n nodes, each with up to `most` parents among the `reach` nodes before it; some ask for one of so
 * many workers, some belong to the proxy of one of so many groups. */
static inline void dag_init(struct dag *d, uint32_t n, uint32_t most, uint32_t reach, int wishes,
                            int groups, uint64_t *seed)
{
    static uint64_t serial;
    size_t rows = n + (size_t)n * most + 2;
    *d = (struct dag){.n = n, .serial = ++serial};
    d->nodes = calloc(n, sizeof(*d->nodes));
    d->parents = calloc((size_t)n * most + 1, sizeof(*d->parents));
    d->functions = calloc(n, sizeof(*d->functions));
    d->tasks = calloc(rows, sizeof(*d->tasks));
    d->events = aligned_alloc(64, 2 * rows * sizeof(*d->events));
    d->id = calloc(rows, sizeof(*d->id));
    d->worker = calloc(rows, sizeof(*d->worker));
    for (uint32_t v = 0; v < n; v++) {
        struct dag_node *node = &d->nodes[v];
        node->dag = d;
        node->first_parent = d->n_edges;
        d->functions[v] = (struct hl_maco_function){dag_visit, node};
        uint32_t far = v < reach ? v : reach, want = (uint32_t)(dag_random(seed) % (most + 1));
        for (uint32_t k = 0; k < want && far > 0; k++) {
            uint32_t p = v - 1 - (uint32_t)(dag_random(seed) % far), twice = 0;
            for (uint32_t q = node->first_parent; q < d->n_edges; q++)
                twice |= d->parents[q] == p;
            if (!twice)
                d->parents[d->n_edges++] = p;
        }
        node->n_parents = d->n_edges - node->first_parent;
    }
    dag_compile(d, wishes, groups, seed);
}

static inline struct hl_maco_source dag_source(const struct dag *d)
{
    return (struct hl_maco_source){.view = {.tasks = d->tasks,
                                            .events = d->events,
                                            .id = d->id,
                                            .worker = d->worker,
                                            .n_tasks = d->n_tasks,
                                            .n_events = d->n_events,
                                            .n_roots = d->n_roots,
                                            .policy = d->policy},
                                   .serial = d->serial,
                                   .functions = d->functions,
                                   .n_functions = d->n};
}

static inline void dag_fini(struct dag *d)
{
    free(d->nodes);
    free(d->parents);
    free(d->functions);
    free(d->tasks);
    free(d->events);
    free(d->id);
    free(d->worker);
}

#endif
