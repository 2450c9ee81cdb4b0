/* Runs a plan on a virtual clock: a simulation of workers and links, event by event. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

enum happening { READY, DONE, LINK };

struct worker {
    bool busy;
    struct hl_heap own;  /* MACO_DIRECT: ready tasks that only it may run */
    uint32_t head, tail; /* MACO_SCHEDULER: its queue */
    uint64_t load;       /* cost of its queued tasks and of the running one */
    uint32_t at;         /* MACO_STATIC: index of the next task in its list */
};

struct link {
    uint32_t at, end; /* tasks in `order` */
    uint64_t free_ns;
};

struct run {
    const maco_plan *p;
    const struct hl_maco_model *m;
    uint32_t n_workers, n_links, n_groups;
    uint32_t *count; /* triggers so far, one per event */
    uint32_t *next;  /* queues */
    uint32_t *ran_on;
    uint8_t *ready;
    struct worker *workers;
    struct link *links; /* by group */
    uint32_t *link;     /* the n_links groups that have communication */
    uint32_t *order;    /* communication by group */
    struct hl_heap clock, open, idle;
    uint32_t *touched; /* workers that may have something to do */
    size_t n_touched, touched_cap;
    uint64_t now, happened, launched;
    uint32_t turn; /* round-robin */
    struct hl_maco_record *records;
    size_t n;
};

/* ---- time ---- */

static hl_status schedule_event(struct run *r, uint64_t at, enum happening what, uint32_t who)
{
    if (at < r->now)
        return hl_fail(HL_EINVAL, "the virtual clock overflows. Hint: costs are nanoseconds");
    return hl_heap_push(&r->clock, at, r->happened++ << 34 | (uint64_t)what << 32 | who);
}

static uint64_t time_after(const struct run *r, uint64_t ns)
{
    return ns > UINT64_MAX - r->now ? UINT64_MAX : r->now + ns;
}

/* How long a task keeps the link busy; *latency is added to that. */
static uint64_t transfer_ns(const struct run *r, const maco_task *t, uint64_t *latency)
{
    __extension__ typedef unsigned __int128 wide;
    uint64_t rate = r->m->clock.link_bytes_per_s;
    *latency = 0;
    if (t->cost_ns != 0)
        return t->cost_ns;
    *latency = r->m->clock.link_latency_ns;
    wide ns = rate == 0 ? 0 : ((wide)hl_maco_bytes_moved(t) * 1000000000u + rate - 1) / rate;
    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static hl_status start_task(struct run *r, uint32_t task, uint32_t where, int comm, uint64_t busy,
                            uint64_t latency)
{
    uint64_t end = time_after(r, busy);
    end = latency > UINT64_MAX - end ? UINT64_MAX : end + latency;
    if (end == UINT64_MAX)
        return hl_fail(HL_EINVAL,
                       "task \"%s\" runs past the end of the clock. Hint: costs are "
                       "nanoseconds",
                       hl_maco_plan_name(r->p, task));
    r->records[r->n++] = (struct hl_maco_record){.start_ns = r->now,
                                                 .end_ns = end,
                                                 .task = task,
                                                 .worker = (uint16_t)where,
                                                 .kind = comm ? HL_MACO_COMM : HL_MACO_COMPUTE};
    r->ran_on[task] = where;
    return schedule_event(r, end, DONE, task);
}

/* ---- choosing a worker ---- */

static hl_status touch_worker(struct run *r, uint32_t worker)
{
    HL_TRY(hl_maco_grow(&r->touched, &r->touched_cap, r->n_touched, 1, sizeof(*r->touched)));
    r->touched[r->n_touched++] = worker;
    return HL_OK;
}

static uint32_t pick_worker(struct run *r)
{
    uint32_t best = 0;
    if (r->m->balance == MACO_ROUND_ROBIN)
        return r->turn++ % r->n_workers;
    for (uint32_t w = 1; w < r->n_workers; w++)
        if (r->workers[w].load < r->workers[best].load)
            best = w;
    return best;
}

static hl_status enqueue_task(struct run *r, uint32_t task, uint32_t affinity)
{
    uint32_t w = affinity != MACO_NONE ? affinity : pick_worker(r);
    struct worker *k = &r->workers[w];
    r->next[task] = MACO_NONE;
    if (k->head == MACO_NONE)
        k->head = task;
    else
        r->next[k->tail] = task;
    k->tail = task;
    k->load += hl_maco_cost(&r->p->tasks[task]);
    return touch_worker(r, w);
}

static hl_status set_ready(struct run *r, uint32_t task)
{
    uint32_t affinity = r->p->worker[task];
    r->ready[task] = 1;
    if (hl_maco_is_comm(r->p->tasks[task].type))
        return HL_OK; /* links are checked anyway */
    if (r->m->policy == MACO_STATIC)
        return touch_worker(r, affinity);
    if (r->m->policy == MACO_SCHEDULER)
        return enqueue_task(r, task, affinity);
    uint64_t key = r->m->rank != NULL ? r->m->rank[task]
                                      : (uint64_t)((int64_t)INT32_MAX - r->p->priority[task]);
    if (affinity == MACO_NONE)
        return hl_heap_push(&r->open, key, r->launched++ << 32 | task);
    HL_TRY(hl_heap_push(&r->workers[affinity].own, key, r->launched++ << 32 | task));
    return touch_worker(r, affinity);
}

static hl_status sim_add_trigger(struct run *r, uint32_t event);

static hl_status launch_task(struct run *r, uint32_t task, uint64_t handoff_ns)
{
    if (r->p->id[task] == MACO_NONE)
        return sim_add_trigger(r, r->p->tasks[task].trigger_event);
    return handoff_ns == 0 ? set_ready(r, task)
                           : schedule_event(r, time_after(r, handoff_ns), READY, task);
}

/* Joins do not launch joins, so the recursion is shallow. */
static hl_status sim_add_trigger(struct run *r, uint32_t event)
{
    const maco_event *e = &r->p->events[event];
    if (++r->count[event] < e->needed)
        return HL_OK;
    for (uint32_t i = e->first; i < e->last; i++)
        HL_TRY(launch_task(r, i, r->m->clock.hop_ns));
    return HL_OK;
}

/* ---- starting ready tasks ---- */

static hl_status begin_compute(struct run *r, uint32_t w, uint32_t task)
{
    r->workers[w].busy = true;
    return start_task(r, task, w, 0, hl_maco_cost(&r->p->tasks[task]), 0);
}

static bool is_sooner(const struct hl_heap *a, const struct hl_heap *b)
{
    return b->n == 0 || a->e[0].key < b->e[0].key ||
           (a->e[0].key == b->e[0].key && a->e[0].tie < b->e[0].tie);
}

/* The task that w runs next; MACO_NONE: none. */
static uint32_t next_of(struct run *r, uint32_t w)
{
    struct worker *k = &r->workers[w];
    uint32_t task = MACO_NONE;
    if (r->m->policy == MACO_STATIC) {
        if (k->at < r->p->first_of_list[w + 1] && r->ready[r->p->list[k->at]])
            task = r->p->list[k->at++];
    } else if (r->m->policy == MACO_SCHEDULER) {
        task = k->head;
        k->head = task != MACO_NONE ? r->next[task] : MACO_NONE;
    } else if (k->own.n > 0 && is_sooner(&k->own, &r->open)) {
        task = (uint32_t)hl_heap_pop(&k->own).tie;
    } else if (r->open.n > 0) {
        task = (uint32_t)hl_heap_pop(&r->open).tie;
    }
    return task;
}

static hl_status dispatch_workers(struct run *r)
{
    for (size_t i = 0; i < r->n_touched; i++) {
        uint32_t w = r->touched[i], task;
        if (!r->workers[w].busy && (task = next_of(r, w)) != MACO_NONE)
            HL_TRY(begin_compute(r, w, task));
    }
    r->n_touched = 0;
    while (r->open.n > 0 && r->idle.n > 0) {
        uint32_t w = (uint32_t)hl_heap_pop(&r->idle).key;
        if (!r->workers[w].busy) /* the worker can be in the heap twice */
            HL_TRY(begin_compute(r, w, next_of(r, w)));
    }
    return HL_OK;
}

static hl_status dispatch_links(struct run *r)
{
    for (uint32_t i = 0; i < r->n_links; i++) {
        uint32_t g = r->link[i];
        struct link *l = &r->links[g];
        while (l->at < l->end && r->ready[r->order[l->at]] && l->free_ns <= r->now) {
            uint32_t task = r->order[l->at++];
            uint64_t latency, busy = transfer_ns(r, &r->p->tasks[task], &latency);
            HL_TRY(start_task(r, task, g, 1, busy, latency));
            l->free_ns = time_after(r, busy);
            HL_TRY(schedule_event(r, l->free_ns, LINK, g));
        }
    }
    return HL_OK;
}

static hl_status task_done(struct run *r, uint32_t task)
{
    uint32_t w = r->ran_on[task];
    if (!hl_maco_is_comm(r->p->tasks[task].type)) {
        r->workers[w].busy = false;
        HL_TRY(touch_worker(r, w));
        if (r->m->policy == MACO_SCHEDULER)
            r->workers[w].load -= hl_maco_cost(&r->p->tasks[task]);
        if (r->m->policy == MACO_DIRECT)
            HL_TRY(hl_heap_push(&r->idle, w, 0));
    }
    return sim_add_trigger(r, r->p->tasks[task].trigger_event);
}

static hl_status run_clock(struct run *r)
{
    for (uint32_t i = 0; i < r->p->view.n_roots; i++)
        HL_TRY(launch_task(r, i, 0));
    for (;;) {
        HL_TRY(dispatch_links(r));
        HL_TRY(dispatch_workers(r));
        if (r->clock.n == 0)
            return HL_OK;
        r->now = r->clock.e[0].key;
        while (r->clock.n > 0 && r->clock.e[0].key == r->now) {
            uint64_t what = hl_heap_pop(&r->clock).tie;
            if ((what >> 32 & 3) == DONE)
                HL_TRY(task_done(r, (uint32_t)what));
            else if ((what >> 32 & 3) == READY)
                HL_TRY(set_ready(r, (uint32_t)what));
        }
    }
}

/* ---- setup and results ---- */

static hl_status sort_comm(struct run *r)
{
    const maco_plan_view *v = &r->p->view;
    for (uint32_t i = 0; i < v->n_comm; i++)
        if (v->tasks[v->comm[i]].group >= r->n_groups)
            r->n_groups = v->tasks[v->comm[i]].group + 1;
    r->links = calloc((size_t)r->n_groups + 1, sizeof(*r->links));
    r->link = malloc(((size_t)r->n_groups + 1) * sizeof(*r->link));
    r->order = malloc(((size_t)v->n_comm + 1) * sizeof(*r->order));
    if (r->links == NULL || r->link == NULL || r->order == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a virtual run");
    for (uint32_t i = 0; i < v->n_comm; i++)
        r->links[v->tasks[v->comm[i]].group].end++;
    for (uint32_t g = 0, at = 0; g < r->n_groups; g++) {
        uint32_t count = r->links[g].end;
        if (count > 0)
            r->link[r->n_links++] = g;
        r->links[g].at = r->links[g].end = at;
        at += count;
    }
    for (uint32_t i = 0; i < v->n_comm; i++)
        r->order[r->links[v->tasks[v->comm[i]].group].end++] = v->comm[i];
    return HL_OK;
}

static hl_status prepare_run(struct run *r)
{
    const maco_plan_view *v = &r->p->view;
    r->count = calloc(v->n_events, sizeof(*r->count));
    r->next = malloc((size_t)v->n_tasks * sizeof(*r->next));
    r->ran_on = malloc((size_t)v->n_tasks * sizeof(*r->ran_on));
    r->ready = calloc(v->n_tasks, 1);
    r->workers = calloc(r->n_workers, sizeof(*r->workers));
    if (r->count == NULL || r->next == NULL || r->ran_on == NULL || r->ready == NULL ||
        r->workers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a virtual run");
    for (uint32_t w = 0; w < r->n_workers; w++) {
        r->workers[w].head = MACO_NONE;
        r->workers[w].at = r->m->policy == MACO_STATIC ? v->first_of_list[w] : 0;
        if (r->m->policy == MACO_DIRECT)
            HL_TRY(hl_heap_push(&r->idle, w, 0));
    }
    for (uint32_t i = 0; i < v->n_tasks; i++)
        if (v->worker[i] != MACO_NONE && v->worker[i] >= r->n_workers)
            return hl_fail(HL_EINVAL, "task \"%s\" requests worker %u of %u. Hint: -1 is any",
                           hl_maco_plan_name(r->p, i), v->worker[i], r->n_workers);
    return sort_comm(r);
}

hl_status hl_maco_simulate(const maco_plan *p, const struct hl_maco_model *m,
                           struct hl_maco_record *records, size_t *n)
{
    struct run r = {.p = p, .m = m, .n_workers = (uint32_t)m->clock.workers, .records = records};
    hl_status st = prepare_run(&r);
    if (st == HL_OK)
        st = run_clock(&r);
    if (st == HL_OK && r.count[p->view.n_events - 1] != p->events[p->view.n_events - 1].needed)
        st = hl_fail(HL_EINTERNAL, "a plan stopped after %zu of its tasks", r.n);
    for (uint32_t w = 0; r.workers != NULL && w < r.n_workers; w++)
        hl_heap_fini(&r.workers[w].own);
    hl_heap_fini(&r.clock);
    hl_heap_fini(&r.open);
    hl_heap_fini(&r.idle);
    free(r.count);
    free(r.next);
    free(r.ran_on);
    free(r.ready);
    free(r.workers);
    free(r.links);
    free(r.link);
    free(r.order);
    free(r.touched);
    if (st == HL_OK)
        *n = r.n;
    return st;
}
