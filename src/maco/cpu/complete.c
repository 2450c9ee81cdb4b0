/* The order in which tasks were completed, merged from the workers' logs. Each worker's tasks keep
 * their order, and no task comes before those that it waited for. If neither of two tasks waited
 * for the other, no observer could have told which one was first. */
#include <stdlib.h>

#include "maco/cpu/runtime_private.h"

struct merge {
    const maco_runtime *rt;
    uint32_t *have; /* triggers so far, one per event */
    uint32_t *at;   /* position in each log */
};

static void count_trigger(const struct merge *m, uint32_t event)
{
    const struct hl_maco_state *s = m->rt->state;
    const maco_event *e = &s->events[event];
    if (++m->have[event] != e->needed || !(e->reserved & HL_MACO_JOINS))
        return;
    for (uint64_t i = e->reserved2[0]; i < e->reserved2[1]; i++)
        /* joins of joins are rare and not deep, so this recursion is short */
        count_trigger(m, s->view.tasks[i].trigger_event);
}

/* Takes tasks from one log as long as everything that they waited for is complete. */
static uint32_t drain_log(const struct merge *m, uint32_t thread, uint32_t *tasks, uint32_t n)
{
    const struct hl_maco_state *s = m->rt->state;
    const struct hl_maco_thread *w = &m->rt->threads[thread];
    for (; m->at[thread] < w->done; m->at[thread]++) {
        uint32_t i = w->log[m->at[thread]];
        const maco_task *t = &s->view.tasks[i];
        if (t->dependent_event != MACO_NONE &&
            m->have[t->dependent_event] < s->events[t->dependent_event].needed)
            break;
        count_trigger(m, t->trigger_event);
        tasks[n++] = i;
    }
    return n;
}

hl_status hl_maco_run_tasks(const maco_runtime *rt, uint32_t **tasks, uint32_t *n)
{
    const struct hl_maco_state *s = rt->state;
    if (s == NULL || s->serial >= HL_MACO_OWN_SERIALS)
        return hl_fail(HL_ENOENT, "nothing has been run yet");
    if (!hl_maco_quiet(rt))
        return hl_fail(HL_EBUSY, "a thread is still at work in the last run");
    struct merge m = {.rt = rt,
                      .have = calloc((size_t)s->view.n_events + 1, sizeof(*m.have)),
                      .at = calloc(hl_maco_threads(rt), sizeof(*m.at))};
    uint32_t *list = malloc(((size_t)s->view.n_tasks + 1) * sizeof(*list)), total = 0, before;
    hl_status st = m.have == NULL || m.at == NULL || list == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory allocating %u tasks", s->view.n_tasks)
                       : HL_OK;
    if (st == HL_OK) {
        do {
            before = total;
            for (uint32_t i = 0; i < hl_maco_threads(rt); i++)
                total = drain_log(&m, i, list, total);
        } while (total > before);
        *tasks = hl_steal(&list);
        *n = total;
    }
    free(m.have);
    free(m.at);
    free(list);
    return st;
}
