/* One task: runs its body, completes it, and wakes the threads that wait for it. */
#include <stdio.h>

#include "maco/cpu/runtime_private.h"
#include "maco/kernels/bodies.h"

void hl_maco_failed(struct hl_maco_thread *w, uint32_t task, int st)
{
    char why[HL_ERROR_TEXT_MAX];
    const char *name = hl_maco_task_name(w->rt->state, task), *said = hl_error_text();
    hl_status status = st < 0 && st >= HL_EINTERNAL ? (hl_status)st : HL_EINTERNAL;
    if (said[0] != '\0')
        snprintf(why, sizeof(why), "task %s: %s", name, said);
    else
        snprintf(why, sizeof(why), "task %s: its function returned %d (%s)", name, st,
                 hl_status_text(status));
    hl_error_clear();
    hl_maco_abort_run(w->rt, w->run, status, why);
}

int hl_maco_body_of(struct hl_maco_thread *w, uint32_t task)
{
    maco_runtime *rt = w->rt;
    const maco_task *t = &rt->state->view.tasks[task];
    if (!hl_maco_is_comm(t->type))
        return hl_maco_body(t, &w->scratch);
    return hl_maco_comm(t, hl_maco_task_name(rt->state, task), rt->groups[t->group]);
}

void hl_maco_record_task(struct hl_maco_thread *w, uint32_t task)
{
    uint16_t kind = w->role == HL_MACO_PROXY ? HL_MACO_COMM : HL_MACO_COMPUTE;
    hl_maco_record(w, task, kind, w->tick, hl_tick());
}

static void wake_waiters(maco_runtime *rt, uint32_t event)
{
    if (__atomic_load_n(&rt->n_parked, __ATOMIC_SEQ_CST) == 0)
        return;
    uint32_t last = hl_maco_threads(rt);
    for (uint32_t i = 0; i < last; i++)
        if (__atomic_load_n(&rt->threads[i].waits, __ATOMIC_SEQ_CST) == event)
            hl_maco_unpark(&rt->threads[i]);
}

uint32_t hl_maco_launch(struct hl_maco_thread *w, uint32_t *fired)
{
    struct hl_maco_state *s = w->rt->state;
    while (*fired != MACO_NONE) {
        uint32_t event = *fired;
        const maco_event *e = &s->events[event];
        *fired = s->next_event[event];
        if (e->reserved & HL_MACO_WAITED)
            wake_waiters(w->rt, event);
        if (e->reserved & HL_MACO_JOINS)
            for (uint64_t i = e->reserved2[0]; i < e->reserved2[1]; i++) {
                uint32_t next = s->hot[i].trigger;
                if (!hl_maco_event_add(s, next, 1))
                    continue;
                s->next_event[next] = *fired;
                *fired = next;
            }
        if (e->kind == MACO_EVENT_END)
            hl_maco_finish(w);
        else if (e->kind != MACO_EVENT_EMPTY)
            return event;
    }
    return MACO_NONE;
}
