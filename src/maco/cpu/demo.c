/* The demo of SM scheduling: rounds of tasks with a barrier after each, as a hand-made plan that
 * goes through the same queues as any other. A worker of the demo that has several threads is as
 * many workers of the runtime, each with one strip of its part; its task of a round is complete
 * when its last strip is. */
#include <math.h>
#include <stdlib.h>

#include "maco/cpu/runtime.h"
#include "os/cpus.h"

#define ROUNDS_MAX  999  /* so that worker * 1000 + round can be decoded */
#define THREADS_MAX 1024 /* of a worker, as in a CTA */
#define SERIAL      1    /* of the only plan of its runtime */

struct part {
    uint32_t left; /* strips of its round that are not done */
    int round;     /* its next one */
};

struct strip {
    float *data;
    uint64_t n;
    int32_t *order;
    uint32_t *completed; /* tasks of all workers */
    struct part *part;
    uint32_t worker, of; /* of: number of strips of that worker */
};

struct demo {
    maco_task *tasks;
    maco_event *events;
    uint32_t *worker;
    struct part *parts;
    struct strip *strips;
    struct hl_maco_function *functions;
    uint32_t completed;
};

static int demo_step(void *arg, const maco_task *task)
{
    struct strip *s = arg;
    (void)task;
    for (uint64_t i = 0; i < s->n; i++)
        s->data[i] = fmaf(s->data[i], 1.5f, 0.1f);
    if (__atomic_sub_fetch(&s->part->left, 1, __ATOMIC_ACQ_REL) > 0)
        return 0;
    s->part->left = s->of; /* the barrier after the round makes it visible */
    uint32_t at = __atomic_fetch_add(s->completed, 1, __ATOMIC_RELAXED);
    s->order[at] = (int32_t)s->worker * 1000 + s->part->round++;
    return 0;
}

static void free_demo(struct demo *d)
{
    free(d->tasks);
    free(d->events);
    free(d->worker);
    free(d->parts);
    free(d->strips);
    free(d->functions);
}

static void cut_demo(struct demo *d, float *data, uint64_t n, uint32_t workers, uint32_t threads,
                     int32_t *order)
{
    for (uint32_t w = 0; w < workers; w++) {
        uint64_t first = w * (n / workers), last = w + 1 < workers ? first + n / workers : n;
        d->parts[w] = (struct part){.left = threads};
        for (uint32_t t = 0; t < threads; t++) {
            uint64_t each = (last - first) / threads, from = first + t * each;
            d->strips[w * threads + t] = (struct strip){.data = data + from,
                                                        .n = t + 1 < threads ? each : last - from,
                                                        .order = order,
                                                        .completed = &d->completed,
                                                        .part = &d->parts[w],
                                                        .worker = w,
                                                        .of = threads};
        }
    }
    for (uint32_t i = 0; i < workers * threads; i++)
        d->functions[i] = (struct hl_maco_function){demo_step, &d->strips[i]};
}

/* lanes: workers of the runtime. */
static hl_status make_demo(struct demo *d, uint32_t rounds, uint32_t workers, uint32_t lanes)
{
    size_t total = (size_t)rounds * lanes;
    d->tasks = calloc(total, sizeof(*d->tasks));
    d->events = aligned_alloc(64, rounds * sizeof(*d->events));
    d->worker = calloc(total, sizeof(*d->worker));
    d->parts = calloc(workers, sizeof(*d->parts));
    d->strips = calloc(lanes, sizeof(*d->strips));
    d->functions = calloc(lanes, sizeof(*d->functions));
    if (d->tasks == NULL || d->events == NULL || d->worker == NULL || d->parts == NULL ||
        d->strips == NULL || d->functions == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tasks", total);
    for (uint32_t i = 0; i < total; i++) {
        uint32_t round = i / lanes;
        d->worker[i] = i % lanes;
        d->tasks[i] = (maco_task){.type = MACO_TASK_CUSTOM_COMPUTE,
                                  .dependent_event = round > 0 ? round - 1 : MACO_NONE,
                                  .trigger_event = round,
                                  .user = i % lanes};
    }
    for (uint32_t r = 0; r < rounds; r++)
        d->events[r] =
            (maco_event){.kind = (uint16_t)(r + 1 < rounds ? MACO_EVENT_BARRIER : MACO_EVENT_END),
                         .needed = lanes,
                         .first = (r + 1) * lanes,
                         .last = (r + 2) * lanes,
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

/* More threads than processors would only take turns, and each strip needs an element. */
static uint32_t strips_of(uint64_t n, uint32_t workers, uint32_t threads)
{
    uint64_t most = hl_cpus_usable() / workers;
    most = most < n / workers ? most : n / workers;
    most = most < threads ? most : threads;
    return most > 0 ? (uint32_t)most : 1;
}

HL_CHECK static hl_status check_demo(uint64_t n, int rounds, int workers, int threads)
{
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return hl_fail(
            HL_EINVAL,
            "%d rounds: 1 to %d are allowed, because the order's numbers are worker * 1000 + round",
            rounds, ROUNDS_MAX);
    if (workers < 1 || workers > HL_MACO_WORKERS || (uint64_t)workers > n)
        return hl_fail(
            HL_EINVAL,
            "%d workers for %llu elements: 1 to %d are allowed, and each needs an element", workers,
            (unsigned long long)n, HL_MACO_WORKERS);
    if (threads < 1 || threads > THREADS_MAX)
        return hl_fail(HL_EINVAL, "%d threads per worker: 1 to %d are allowed", threads,
                       THREADS_MAX);
    return HL_OK;
}

int maco_demo(float *data, uint64_t n, int rounds, int workers, int threads, int policy,
              int32_t *order)
{
    struct demo d = {0};
    if (data == NULL || order == NULL)
        return hl_fail(HL_EINVAL, "the demo needs data and an array for the order");
    HL_TRY(check_demo(n, rounds, workers, threads));
    uint32_t strips = strips_of(n, (uint32_t)workers, (uint32_t)threads);
    uint32_t lanes = strips * (uint32_t)workers;
    hl_status st = make_demo(&d, (uint32_t)rounds, (uint32_t)workers, lanes);
    if (st == HL_OK) {
        cut_demo(&d, data, n, (uint32_t)workers, strips, order);
        st = run_demo(&d, (uint32_t)rounds, lanes, policy);
    }
    free_demo(&d);
    return st;
}
