/* The report of a run that the kernel ended early: why, which tasks wait for what, and what each
 * CTA did last, as it wrote before it left. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "maco/cuda/host/context.h"

#define TASKS_LISTED 4
#define CTAS_LISTED  4

struct text {
    char at[HL_ERROR_TEXT_MAX - 160];
    size_t used;
};

static void report_add(struct text *t, const char *fmt, ...) HL_PRINTF(2, 3);

static void report_add(struct text *t, const char *fmt, ...)
{
    va_list args;
    if (t->used >= sizeof(t->at))
        return;
    va_start(args, fmt);
    t->used += (size_t)vsnprintf(t->at + t->used, sizeof(t->at) - t->used, fmt, args);
    va_end(args);
}

static bool task_waits(const maco_cuda *c, const maco_event *events, uint32_t task)
{
    uint32_t event = c->view.tasks[task].dependent_event;
    return c->view.id[task] != MACO_NONE && event != MACO_NONE &&
           events[event].count < c->view.events[event].needed * c->iteration;
}

/* Lists tasks first whose event has some triggers already. */
static void tell_tasks(const maco_cuda *c, const maco_event *events, struct text *out)
{
    uint32_t waiting = 0, listed = 0;
    for (uint32_t i = 0; i < c->view.n_tasks; i++)
        waiting += task_waits(c, events, i);
    for (int begun = 1; begun >= 0; begun--) {
        for (uint32_t i = 0; i < c->view.n_tasks && listed < TASKS_LISTED; i++) {
            uint32_t event = c->view.tasks[i].dependent_event;
            if (!task_waits(c, events, i))
                continue;
            uint32_t needed = c->view.events[event].needed;
            uint64_t have = events[event].count - needed * (c->iteration - 1);
            if ((have > 0) != begun)
                continue;
            report_add(out, "%s %s (event %u has %" PRIu64 " of %u)",
                       listed++ > 0 ? "," : ": waiting:", hl_maco_plan_name(c->plan, i), event,
                       have, needed);
        }
    }
    if (waiting > listed)
        report_add(out, " and %u more", waiting - listed);
}

static void tell_cta(const maco_cuda *c, uint32_t i, struct text *out)
{
    const struct hl_gpu_state *s = &c->host->state[i];
    const char *name = s->task < c->view.n_tasks ? hl_maco_plan_name(c->plan, s->task) : "?";
    if (s->phase == HL_GPU_EVENT)
        report_add(out, "; %s %u waits with %s for event %u: %" PRIu64 " of %" PRIu64,
                   i < (uint32_t)c->info.workers ? "worker" : "communication's CTA", i, name,
                   s->event, s->have, s->need);
    else if (s->phase == HL_GPU_COMM)
        report_add(out,
                   "; communication %s is not done: %" PRIu64 " of %" PRIu64 " of its group are",
                   name, s->have, s->need);
    else if (s->phase == HL_GPU_PEER)
        report_add(out, "; communication %s waits for rank %" PRIu64, name, s->have);
    else if (s->phase == HL_GPU_FULL)
        report_add(out, "; the scheduler has %s for worker %" PRIu64 ", whose ring is full", name,
                   s->have);
}

static void tell_ctas(const maco_cuda *c, struct text *out)
{
    uint32_t idle = 0, listed = 0;
    for (uint32_t i = c->ctas; i-- > 0;) { /* scheduler and proxy first */
        const struct hl_gpu_state *s = &c->host->state[i];
        if (s->phase == HL_GPU_IDLE)
            idle += i < (uint32_t)c->info.workers;
        else if (s->phase != HL_GPU_OUT && listed++ < CTAS_LISTED)
            tell_cta(c, i, out);
    }
    report_add(out, "; %u of %d workers looked for work", idle, c->info.workers);
}

static void tell_all(maco_cuda *c, struct text *out)
{
    size_t bytes = c->view.n_events * sizeof(maco_event);
    maco_event *events = aligned_alloc(64, bytes);
    if (events != NULL && hl_cuda_download(c, events, c->memory + c->tables.events, bytes) == HL_OK)
        tell_tasks(c, events, out);
    free(events);
    tell_ctas(c, out);
}

hl_status hl_cuda_report(maco_cuda *c)
{
    struct text text = {.used = 0};
    uint64_t outcome = c->host->outcome;
    uint32_t task = (uint32_t)c->host->task;
    int st = __atomic_load_n(&c->call_status, __ATOMIC_ACQUIRE);
    if (st != HL_OK)
        return hl_fail((hl_status)st, "%s", c->call_why);
    tell_all(c, &text);
    if (outcome == HL_GPU_UNKNOWN)
        return hl_fail(HL_EUNSUPPORTED, "task %s: a GPU has no body for its type and dtype",
                       task < c->view.n_tasks ? hl_maco_plan_name(c->plan, task) : "?");
    if (outcome == HL_GPU_OVERRUN)
        return hl_fail(HL_ECORRUPT, "event %u of the plan was triggered more than %u times", task,
                       task < c->view.n_events ? c->view.events[task].needed : 0);
    if (outcome == HL_GPU_LOST)
        return hl_fail(HL_EUNAVAIL, "task %s: another rank of its group ended its run%s",
                       task < c->view.n_tasks ? hl_maco_plan_name(c->plan, task) : "?", text.at);
    if (outcome == HL_GPU_CANCELED)
        return hl_fail(HL_ECANCELED, "the run was cancelled%s", text.at);
    return hl_fail(HL_ETIMEDOUT, "the run did not end in %" PRIu64 " ms%s",
                   c->options.timeout_ns / HL_NS_PER_MS, text.at);
}
