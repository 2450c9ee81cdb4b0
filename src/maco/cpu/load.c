/* Prepares a plan once for all its runs: checks it, copies its events, and sorts which worker runs
 * which tasks. Some loaded plans are kept, so a training step that alternates between a few does
 * not load any of them again. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "maco/cpu/runtime_private.h"
#include "maco/kernels/bodies.h"
#include "maco/plan/plan.h"

static hl_status fail_task(const struct hl_maco_state *s, uint32_t task, const char *what)
{
    return hl_fail(HL_EINVAL, "task %s: %s", hl_maco_task_name(s, task), what);
}

static bool is_join(const struct hl_maco_state *s, uint32_t i)
{
    return s->view.tasks[i].type == MACO_TASK_NOP && s->view.id != NULL &&
           s->view.id[i] == MACO_NONE;
}

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory preparing a plan");
}

void hl_maco_unload(struct hl_maco_state *s)
{
    free(s->events);
    free(s->hot);
    free(s->next_task);
    free(s->next_event);
    free(s->list);
    free(s->list_first);
    free(s->comm);
    free(s->comm_first);
    *s = (struct hl_maco_state){0};
}

void hl_maco_rewind(struct hl_maco_state *s)
{
    for (uint32_t e = 0; e <= s->view.n_events; e++) {
        maco_event *ev = &s->events[e];
        uint64_t width = ev->kind == MACO_EVENT_LAUNCH_TASK ? 1 : ev->last - ev->first;
        __atomic_store_n(&ev->count, ev->needed * s->iteration, __ATOMIC_RELAXED);
        __atomic_store_n(&ev->cursor, width * s->iteration, __ATOMIC_RELAXED);
    }
    s->dirty = false;
}

static bool event_launches(const maco_event *e)
{
    return e->kind == MACO_EVENT_LAUNCH_TASK || e->kind == MACO_EVENT_LAUNCH_MASSIVE ||
           e->kind == MACO_EVENT_BARRIER;
}

/* Removes joins from the range that an event launches, and the communication after them, because
 * the proxies wait for the event themselves. */
static void split_joins(struct hl_maco_state *s)
{
    for (uint32_t e = 0; e < s->view.n_events; e++) {
        maco_event *ev = &s->events[e];
        uint32_t first = ev->first;
        if (!event_launches(ev))
            continue;
        while (ev->first < ev->last && is_join(s, ev->first))
            ev->first++;
        if (ev->first > first) {
            ev->reserved |= HL_MACO_JOINS;
            ev->reserved2[0] = first;
            ev->reserved2[1] = ev->first;
        }
        while (ev->first < ev->last && hl_maco_is_comm(s->view.tasks[ev->first].type))
            ev->first++;
        ev->kind = ev->first == ev->last       ? MACO_EVENT_EMPTY
                   : ev->first + 1 == ev->last ? MACO_EVENT_LAUNCH_TASK
                                               : ev->kind;
    }
}

/* Each task is launched once, by the event that it depends on, and exactly one event is the end. */
static hl_status check_events(struct hl_maco_state *s, bool is_static)
{
    const maco_plan_view *v = &s->view;
    uint32_t ends = 0, launched = v->n_roots;
    for (uint32_t i = 0; i < v->n_roots; i++)
        if (v->tasks[i].dependent_event != MACO_NONE)
            return fail_task(s, i, "it starts at once and waits for an event");
    for (uint32_t e = 0; e < v->n_events; e++) {
        maco_event *ev = &s->events[e];
        if (ev->needed == 0)
            return hl_fail(HL_EINVAL, "event %u of the plan depends on no task", e);
        if (ev->kind == MACO_EVENT_LAUNCH_TASK)
            ev->last = ev->first + 1;
        ends += ev->kind == MACO_EVENT_END;
        if (!event_launches(ev))
            continue;
        if (ev->first >= ev->last || ev->last > v->n_tasks)
            return hl_fail(HL_EINVAL, "event %u launches tasks %u to %u of %u", e, ev->first,
                           ev->last, v->n_tasks);
        for (uint32_t i = ev->first; i < ev->last; i++)
            if (v->tasks[i].dependent_event != e)
                return fail_task(s, i, "it is launched by an event that it does not depend on");
        launched += ev->last - ev->first;
    }
    if (ends != 1)
        return hl_fail(HL_EINVAL, "the plan has %u ends, not one", ends);
    if (!is_static && launched != v->n_tasks)
        return hl_fail(HL_EINVAL,
                       "%u of the plan's %u tasks are never launched; compile it for the policy of "
                       "the runtime",
                       v->n_tasks - launched, v->n_tasks);
    return HL_OK;
}

static hl_status check_task(struct hl_maco_state *s, const maco_runtime *rt, uint32_t i)
{
    const maco_task *t = &s->view.tasks[i];
    uint32_t worker = s->view.worker != NULL ? s->view.worker[i] : MACO_NONE;
    s->has_priority |= s->view.priority != NULL && s->view.priority[i] != 0 && !is_join(s, i);
    if (hl_maco_type(t->type) == NULL)
        return hl_fail(HL_EINVAL, "task %s: unknown type %u", hl_maco_task_name(s, i), t->type);
    if (t->trigger_event >= s->view.n_events)
        return fail_task(s, i, "it triggers no event, so the runtime could not see its end");
    if (t->dependent_event != MACO_NONE && t->dependent_event >= s->view.n_events)
        return fail_task(s, i, "it depends on an event that does not exist");
    if (worker != MACO_NONE && worker >= rt->workers)
        return hl_fail(HL_EINVAL,
                       "task %s: it is bound to worker %u, and the runtime has %u workers",
                       hl_maco_task_name(s, i), worker, rt->workers);
    s->has_bodies |= !hl_maco_is_comm(t->type) && t->type != MACO_TASK_NOP &&
                     t->type != MACO_TASK_CUSTOM_COMPUTE;
    if (!hl_maco_is_comm(t->type)) {
        s->has_affinity |= worker != MACO_NONE;
        return HL_OK;
    }
    s->has_affinity = true;
    if (t->group >= HL_MACO_GROUPS || (t->type != MACO_TASK_CUSTOM_COMM &&
                                       (t->group >= rt->n_groups || rt->groups[t->group] == NULL)))
        return hl_fail(HL_EINVAL,
                       "task %s: the runtime has no group %u; give it to maco_runtime_open",
                       hl_maco_task_name(s, i), t->group);
    if (t->group >= s->n_proxies)
        s->n_proxies = t->group + 1;
    if (t->type == MACO_TASK_CUSTOM_COMM)
        return HL_OK; /* its group may be absent */
    return hl_maco_comm_fits(t, hl_maco_task_name(s, i),
                             hybridps_group_world(rt->groups[t->group]));
}

/* Sorts tasks by key() into n lists; a task with key n is in no list. Each list is in the order of
 * the plan, or of `order`. */
static hl_status sort_lists(const struct hl_maco_state *s, const uint32_t *order, uint32_t count,
                            uint32_t n,
                            uint32_t (*key)(const struct hl_maco_state *s, uint32_t i, uint32_t n),
                            uint32_t **list, uint32_t **first)
{
    uint32_t *f = calloc((size_t)n + 2, sizeof(*f)), total = 0;
    uint32_t *l = malloc(((size_t)s->view.n_tasks + 1) * sizeof(*l));
    *first = f;
    *list = l;
    if (f == NULL || l == NULL)
        return no_memory();
    for (uint32_t i = 0; i < count; i++)
        f[key(s, order != NULL ? order[i] : i, n) + 1]++; /* key n: in no list */
    for (uint32_t k = 0; k <= n; k++) {
        uint32_t here = f[k + 1];
        f[k + 1] = total;
        total += k < n ? here : 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t task = order != NULL ? order[i] : i, k = key(s, task, n);
        if (k < n)
            l[f[k + 1]++] = task;
    }
    f[0] = 0;
    return HL_OK;
}

static uint32_t group_of(const struct hl_maco_state *s, uint32_t i, uint32_t n)
{
    const maco_task *t = &s->view.tasks[i];
    return hl_maco_is_comm(t->type) ? t->group : n;
}

static uint32_t worker_of(const struct hl_maco_state *s, uint32_t i, uint32_t n)
{
    uint32_t w = s->view.worker != NULL ? s->view.worker[i] : MACO_NONE;
    if (hl_maco_is_comm(s->view.tasks[i].type) || is_join(s, i))
        return n;
    return w != MACO_NONE ? w : i % n;
}

/* A compiled plan already has lists, and they are known not to deadlock. */
static hl_status take_lists(struct hl_maco_state *s, uint32_t workers)
{
    const maco_plan_view *v = &s->view;
    if (v->list == NULL)
        return sort_lists(s, NULL, v->n_tasks, workers, worker_of, &s->list, &s->list_first);
    uint32_t n = v->first_of_list[v->n_lists];
    s->list = malloc(((size_t)n + 1) * sizeof(*s->list));
    s->list_first = malloc(((size_t)workers + 1) * sizeof(*s->list_first));
    if (s->list == NULL || s->list_first == NULL)
        return no_memory();
    memcpy(s->list, v->list, n * sizeof(*s->list));
    for (uint32_t w = 0; w <= workers; w++)
        s->list_first[w] = w < v->n_lists ? v->first_of_list[w] : n;
    return HL_OK;
}

static hl_status check_policy(const struct hl_maco_state *s, const maco_runtime *rt)
{
    static const char *const names[] = {"direct", "scheduler", "static"};
    const maco_plan_view *v = &s->view;
    if ((v->policy == MACO_STATIC) != (rt->policy == MACO_STATIC))
        return hl_fail(HL_EINVAL, "the plan was compiled for policy %s, the runtime has %s",
                       names[v->policy], names[rt->policy]);
    if (v->list != NULL && v->n_lists > rt->workers)
        return hl_fail(HL_EINVAL, "the plan has lists for %u workers, the runtime has %u",
                       v->n_lists, rt->workers);
    return HL_OK;
}

static hl_status find_function(const struct hl_maco_source *source, const maco_task *t,
                               struct hl_maco_hot *hot)
{
    if (source->plan != NULL)
        return source->function(source->plan, t->user, &hot->call, &hot->arg);
    if (t->user < source->n_functions) {
        hot->call = source->functions[t->user].call;
        hot->arg = source->functions[t->user].arg;
    }
    return HL_OK;
}

static hl_status make_hot(struct hl_maco_state *s, const struct hl_maco_source *source)
{
    s->hot = aligned_alloc(64, ((size_t)s->view.n_tasks / 2 + 1) * 2 * sizeof(*s->hot));
    if (s->hot == NULL)
        return no_memory();
    for (uint32_t i = 0; i < s->view.n_tasks; i++) {
        const maco_task *t = &s->view.tasks[i];
        struct hl_maco_hot *hot = &s->hot[i];
        *hot =
            (struct hl_maco_hot){.trigger = t->trigger_event, .type = t->type, .next = MACO_NONE};
        hot->affinity = s->view.worker != NULL ? s->view.worker[i] : MACO_NONE;
        if (t->type != MACO_TASK_CUSTOM_COMPUTE && t->type != MACO_TASK_CUSTOM_COMM)
            continue;
        HL_TRY(find_function(source, t, hot));
        if (hot->call == NULL)
            return fail_task(s, i, "it has no function");
    }
    return HL_OK;
}

/* If an event needs one task and launches one task, the worker that runs the first one continues
 * with the second. */
static void mark_links(struct hl_maco_state *s)
{
    for (uint32_t i = 0; i < s->view.n_tasks; i++) {
        maco_event *e = &s->events[s->hot[i].trigger];
        if (e->kind != MACO_EVENT_LAUNCH_TASK || e->needed != 1 ||
            (e->reserved & ~HL_MACO_LINK) != 0)
            continue;
        e->reserved |= HL_MACO_LINK;
        s->hot[i].next = e->first;
    }
}

/* Marks the events that a thread sleeps on, so that adding to their counts wakes it. */
static void mark_waited(struct hl_maco_state *s, bool is_static)
{
    for (uint32_t i = 0; i < s->view.n_tasks; i++) {
        const maco_task *t = &s->view.tasks[i];
        if (t->dependent_event != MACO_NONE && (is_static || hl_maco_is_comm(t->type)))
            s->events[t->dependent_event].reserved |= HL_MACO_WAITED;
    }
}

static hl_status copy_events(struct hl_maco_state *s)
{
    uint32_t n = s->view.n_events;
    s->events = aligned_alloc(64, ((size_t)n + 1) * sizeof(*s->events));
    s->next_event = malloc(((size_t)n + 1) * sizeof(*s->next_event));
    s->next_task = malloc(((size_t)s->view.n_tasks + 1) * sizeof(*s->next_task));
    if (s->events == NULL || s->next_event == NULL || s->next_task == NULL)
        return no_memory();
    memcpy(s->events, s->view.events, n * sizeof(*s->events));
    for (uint32_t e = 0; e < n; e++)
        s->events[e].reserved = 0, s->events[e].reserved2[2] = 0;
    s->events[n] = (maco_event){.needed = 1,
                                .last = s->view.n_roots,
                                .kind = MACO_EVENT_LAUNCH_MASSIVE,
                                .target_worker = -1};
    return HL_OK;
}

static hl_status fill_state(struct hl_maco_state *s, maco_runtime *rt,
                            const struct hl_maco_source *source)
{
    bool is_static = rt->policy == MACO_STATIC;
    HL_TRY(check_policy(s, rt));
    HL_TRY(copy_events(s));
    for (uint32_t i = 0; i < s->view.n_tasks; i++)
        HL_TRY(check_task(s, rt, i));
    if (s->view.n_roots == 0 || s->view.n_roots > s->view.n_tasks)
        return hl_fail(HL_EINVAL, "no task of the plan can start");
    HL_TRY(check_events(s, is_static));
    HL_TRY(make_hot(s, source));
    split_joins(s);
    mark_waited(s, is_static);
    if (rt->policy == MACO_DIRECT && !s->has_affinity)
        mark_links(s);
    if (s->n_proxies > 0)
        HL_TRY(sort_lists(s, s->view.comm, s->view.comm != NULL ? s->view.n_comm : s->view.n_tasks,
                          s->n_proxies, group_of, &s->comm, &s->comm_first));
    if (is_static)
        HL_TRY(take_lists(s, rt->workers));
    hl_maco_rewind(s);
    return HL_OK;
}

hl_status hl_maco_load(maco_runtime *rt, const struct hl_maco_source *source,
                       struct hl_maco_state **out)
{
    struct hl_maco_state *s = &rt->plans[0];
    for (uint32_t i = 0; i < HL_MACO_PLANS; i++) {
        struct hl_maco_state *p = &rt->plans[i];
        if (p->serial == source->serial) {
            p->used = rt->runs;
            *out = p;
            return HL_OK;
        }
        if (p->serial == 0 || (s->serial != 0 && p->used < s->used))
            s = p;
    }
    hl_maco_unload(s);
    s->view = source->view;
    hl_status st = fill_state(s, rt, source);
    if (st != HL_OK) {
        hl_maco_unload(s);
        return st;
    }
    s->serial = source->serial;
    s->used = rt->runs;
    *out = s;
    return HL_OK;
}

void hl_maco_forget(maco_runtime *rt, uint64_t serial)
{
    for (uint32_t i = 0; i < HL_MACO_PLANS; i++) {
        struct hl_maco_state *p = &rt->plans[i];
        if (p->serial != serial)
            continue;
        p->serial = UINT64_MAX; /* belongs to no plan; the rest is freed when its slot is reused */
        p->used = 0;
    }
}
