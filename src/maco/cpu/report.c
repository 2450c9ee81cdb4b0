/* The report of a run that did not end: which tasks wait, for what, and what each thread does.
 *
 * It is made while workers run. `task`, `waits` and `parked` are single words, read relaxed, so a
 * sample can be slightly outdated. `done` is read with acquire and stored by its thread with
 * release, so the log contains the tasks below it. A thread that shows the same sample twice is
 * reported to be in that state since the first one. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "maco/cpu/runtime_private.h"

#define TASKS_LISTED   4
#define THREADS_LISTED 8

const char *hl_maco_task_name(const struct hl_maco_state *s, uint32_t task)
{
    static _Thread_local char text[64];
    const maco_task *t = &s->view.tasks[task];
    if (s->view.names != NULL && t->name < s->view.names_bytes && s->view.names[t->name] != '\0')
        return s->view.names + t->name;
    snprintf(text, sizeof(text), "%s %" PRIu32, hl_maco_type_name(t->type), task);
    return text;
}

void hl_maco_sample(maco_runtime *rt, uint64_t now)
{
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++) {
        const struct hl_maco_thread *w = &rt->threads[i];
        struct hl_maco_sample *old = &rt->samples[i], s;
        s.task = __atomic_load_n(&w->task, __ATOMIC_RELAXED);
        s.waits = __atomic_load_n(&w->waits, __ATOMIC_RELAXED);
        s.done = __atomic_load_n(&w->done, __ATOMIC_RELAXED);
        s.parked = __atomic_load_n(&w->parked, __ATOMIC_RELAXED) == 1;
        bool same = old->since_ns != 0 && s.task == old->task && s.waits == old->waits &&
                    s.done == old->done && (s.parked == old->parked || s.task == MACO_NONE);
        s.since_ns = same ? old->since_ns : now;
        *old = s;
    }
}

static void append_text(char *out, size_t room, const char *fmt, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + used, room - used, fmt, args);
    va_end(args);
}

static void report_threads(const maco_runtime *rt, uint64_t now, char *out, size_t room)
{
    uint32_t listed = 0;
    for (uint32_t i = 0; i < hl_maco_threads(rt) && listed < THREADS_LISTED; i++) {
        const struct hl_maco_thread *w = &rt->threads[i];
        const struct hl_maco_sample *s = &rt->samples[i];
        if (!w->started || w->role == HL_MACO_SCHEDULER)
            continue;
        listed++;
        append_text(out, room, "; %s %u ", w->role == HL_MACO_PROXY ? "proxy" : "worker", w->index);
        if (s->task != MACO_NONE)
            append_text(out, room, "runs %s", hl_maco_task_name(rt->state, s->task));
        else
            append_text(out, room, s->parked ? "sleeps" : "looks for work");
        append_text(out, room, " since %" PRIu64 " ms", (now - s->since_ns) / HL_NS_PER_MS);
    }
}

/* Tasks in a log are done. Entries are written before the count that is read here. */
static uint8_t *mark_done(const maco_runtime *rt)
{
    uint8_t *done = calloc(1, (size_t)rt->state->view.n_tasks + 1);
    for (uint32_t i = 0; done != NULL && i < hl_maco_threads(rt); i++) {
        uint32_t n = __atomic_load_n(&rt->threads[i].done, __ATOMIC_ACQUIRE);
        for (uint32_t k = 0; k < n; k++)
            done[rt->threads[i].log[k]] = 1;
        if (rt->samples[i].task != MACO_NONE && done[rt->samples[i].task] == 0)
            done[rt->samples[i].task] = 2; /* it is running */
    }
    return done;
}

/* How often the event was triggered in this run. */
static uint32_t have_of(const struct hl_maco_state *s, uint32_t event, const uint8_t *done)
{
    const maco_event *e = &s->events[event];
    uint64_t before = e->needed * (s->iteration - 1);
    if ((e->reserved & HL_MACO_LINK) == 0)
        return (uint32_t)(__atomic_load_n(&e->count, __ATOMIC_RELAXED) - before);
    for (uint32_t i = 0; i < s->view.n_tasks; i++)
        if (s->hot[i].trigger == event)
            return done[i] == 1;
    return 0;
}

static void report_tasks(const maco_runtime *rt, const uint8_t *done, char *out, size_t room)
{
    const struct hl_maco_state *s = rt->state;
    uint32_t listed = 0, waiting = 0;
    for (uint32_t i = 0; i < s->view.n_tasks; i++) {
        const maco_task *t = &s->view.tasks[i];
        if (done[i] || (s->view.id != NULL && s->view.id[i] == MACO_NONE))
            continue;
        waiting++;
        if (listed == TASKS_LISTED)
            continue;
        append_text(out, room, listed++ == 0 ? ": " : ", ");
        append_text(out, room, "%s", hl_maco_task_name(s, i));
        if (t->dependent_event != MACO_NONE)
            append_text(out, room, " (event %u has %u of %u)", t->dependent_event,
                        have_of(s, t->dependent_event, done), s->events[t->dependent_event].needed);
    }
    if (waiting > listed)
        append_text(out, room, " and %u more", waiting - listed);
}

void hl_maco_report(maco_runtime *rt, char *out, size_t room)
{
    uint64_t now = hl_now_ns();
    uint32_t left = rt->state->view.n_tasks;
    uint8_t *done = mark_done(rt);
    out[0] = '\0';
    for (uint32_t i = 0; done != NULL && i < rt->state->view.n_tasks; i++)
        left -= done[i] == 1;
    append_text(out, room, "%u of %u tasks were not done", left, rt->state->view.n_tasks);
    char threads[512] = "";
    report_threads(rt, now, threads, sizeof(threads));
    size_t used = strlen(out), kept = strlen(threads);
    if (done != NULL && used + kept + 1 < room)
        report_tasks(rt, done, out, room - kept - 1);
    append_text(out, room, "%s", threads);
    free(done);
}
