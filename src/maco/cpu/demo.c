/* The demo of SM scheduling: rounds of tasks with a barrier after each, as a plan made by hand that
 * goes through the same queues as any other. */
#include <math.h>
#include <stdlib.h>

#include "maco/cpu/runtime.h"

#define ROUNDS_MAX 999 /* worker * 1000 + round is to be read back */
#define SERIAL     1   /* of the only plan of its runtime */

struct part {
    float *data;
    uint64_t n;
    int32_t *order;
    uint32_t *completed; /* by all parts */
    int worker, round;   /* its next one */
};

struct demo {
    maco_task *tasks;
    maco_event *events;
    uint32_t *worker;
    struct part *parts;
    struct hl_maco_function *functions;
    uint32_t completed;
};

static int demo_step(void *arg, const maco_task *task)
{
    struct part *p = arg;
    (void)task;
    for (uint64_t i = 0; i < p->n; i++)
        p->data[i] = fmaf(p->data[i], 1.5f, 0.1f);
    uint32_t at = __atomic_fetch_add(p->completed, 1, __ATOMIC_RELAXED);
    p->order[at] = p->worker * 1000 + p->round++;
    return 0;
}

static void free_demo(struct demo *d)
{
    free(d->tasks);
    free(d->events);
    free(d->worker);
    free(d->parts);
    free(d->functions);
}

static hl_status make_demo(struct demo *d, float *data, uint64_t n, uint32_t rounds,
                           uint32_t workers, int32_t *order)
{
    size_t total = (size_t)rounds * workers;
    d->tasks = calloc(total, sizeof(*d->tasks));
    d->events = aligned_alloc(64, rounds * sizeof(*d->events));
    d->worker = calloc(total, sizeof(*d->worker));
    d->parts = calloc(workers, sizeof(*d->parts));
    d->functions = calloc(workers, sizeof(*d->functions));
    if (d->tasks == NULL || d->events == NULL || d->worker == NULL || d->parts == NULL ||
        d->functions == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tasks", total);
    for (uint32_t w = 0; w < workers; w++) {
        uint64_t first = w * (n / workers);
        d->parts[w] = (struct part){.data = data + first,
                                    .n = w + 1 < workers ? n / workers : n - first,
                                    .order = order,
                                    .completed = &d->completed,
                                    .worker = (int)w};
        d->functions[w] = (struct hl_maco_function){demo_step, &d->parts[w]};
    }
    for (uint32_t i = 0; i < total; i++) {
        uint32_t round = i / workers;
        d->worker[i] = i % workers;
        d->tasks[i] = (maco_task){.type = MACO_TASK_CUSTOM_COMPUTE,
                                  .dependent_event = round > 0 ? round - 1 : MACO_NONE,
                                  .trigger_event = round,
                                  .user = i % workers};
    }
    for (uint32_t r = 0; r < rounds; r++)
        d->events[r] =
            (maco_event){.kind = (uint16_t)(r + 1 < rounds ? MACO_EVENT_BARRIER : MACO_EVENT_END),
                         .needed = workers,
                         .first = (r + 1) * workers,
                         .last = (r + 2) * workers,
                         .target_worker = -1};
    return HL_OK;
}

static hl_status run_demo(const struct demo *d, uint32_t rounds, uint32_t workers, int policy)
{
    maco_runtime *rt = NULL;
    struct hl_maco_source source = {.view = {.tasks = d->tasks,
                                             .events = d->events,
                                             .worker = d->worker,
                                             .n_tasks = rounds * workers,
                                             .n_events = rounds,
                                             .n_roots = workers,
                                             .policy = policy},
                                    .serial = SERIAL,
                                    .functions = d->functions,
                                    .n_functions = workers};
    maco_runtime_options options = {MACO_RUNTIME_OPTIONS_INIT, .policy = policy,
                                    .workers = (int)workers};
    HL_TRY(maco_runtime_open(&options, &rt));
    hl_status st = hl_maco_run_source(rt, &source);
    maco_runtime_close(rt);
    return st;
}

int maco_demo(float *data, uint64_t n, int rounds, int workers, int policy, int32_t *order)
{
    struct demo d = {0};
    if (data == NULL || order == NULL)
        return hl_fail(HL_EINVAL, "the demo wants data and a place for the order");
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return hl_fail(HL_EINVAL,
                       "%d rounds: 1 to %d, for the order's numbers are worker * 1000 + "
                       "round",
                       rounds, ROUNDS_MAX);
    if (workers < 1 || workers > HL_MACO_WORKERS || (uint64_t)workers > n)
        return hl_fail(HL_EINVAL,
                       "%d workers for %llu elements: 1 to %d, and each needs an element", workers,
                       (unsigned long long)n, HL_MACO_WORKERS);
    hl_status st = make_demo(&d, data, n, (uint32_t)rounds, (uint32_t)workers, order);
    if (st == HL_OK)
        st = run_demo(&d, (uint32_t)rounds, (uint32_t)workers, policy);
    free_demo(&d);
    return st;
}
