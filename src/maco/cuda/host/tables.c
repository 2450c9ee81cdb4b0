#include "maco/cuda/host/tables.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "maco/graph/graph.h"
#include "maco/plan/plan.h"

#define ATTENTION_D 256 /* limited by the body's shared memory */

static bool is_join(const maco_plan_view *v, uint32_t task)
{
    return v->id[task] == MACO_NONE && v->tasks[task].type == MACO_TASK_NOP;
}

bool hl_gpu_has_peers(const struct hl_gpu_peers *peers, uint32_t n, uint32_t group)
{
    for (uint32_t i = 0; i < n; i++)
        if (peers[i].group == group)
            return true;
    return false;
}

static bool inside_kernel(const struct hl_cuda_shape *shape, const maco_task *t)
{
    return hl_maco_is_comm(t->type) && hl_gpu_has_peers(shape->peers, shape->n_peers, t->group);
}

/* ---- limits of a GPU ---- */

static hl_status check_task(const maco_plan *p, const maco_plan_view *v, uint32_t i,
                            const struct hl_cuda_shape *shape)
{
    const maco_task *t = &v->tasks[i];
    const char *name = hl_maco_plan_name(p, i);
    if (t->type == MACO_TASK_CUSTOM_COMPUTE)
        return hl_fail(HL_EUNSUPPORTED,
                       "task %s is a function of the host: a GPU can't call it; run this plan on "
                       "the CPU, or make it CUSTOM_COMM",
                       name);
    if (t->type == MACO_TASK_ATTENTION && t->dims[5] > ATTENTION_D)
        return hl_fail(HL_EUNSUPPORTED, "task %s: heads of %d elements; a GPU supports at most %d",
                       name, t->dims[5], ATTENTION_D);
    if (hl_maco_is_comm(t->type) && t->group >= shape->groups)
        return hl_fail(HL_EINVAL,
                       "task %s is of group %u, and the runtime was opened with %u communicators",
                       name, t->group, shape->groups);
    if (inside_kernel(shape, t) && (t->type == MACO_TASK_SEND || t->type == MACO_TASK_RECV ||
                                    t->type == MACO_TASK_CUSTOM_COMM))
        return hl_fail(HL_EUNSUPPORTED,
                       "task %s: group %u communicates inside the kernel, which has only "
                       "collectives; give it another group",
                       name, t->group);
    if (t->type == MACO_TASK_ALL_TO_ALL && t->inputs[0] == t->outputs[0] &&
        !inside_kernel(shape, t))
        return hl_fail(HL_EUNSUPPORTED,
                       "task %s: NCCL has no ALL_TO_ALL in place; give it another "
                       "output",
                       name);
    return HL_OK;
}

/* Levels of joins below the event; HL_GPU_JOINS + 1 if there are more than HL_GPU_JOINS. */
static uint32_t join_depth(const maco_plan_view *v, const maco_event *events, uint32_t event,
                           uint32_t level)
{
    const maco_event *e = &events[event];
    uint32_t deepest = 0;
    if (e->kind == MACO_EVENT_END || HL_EVENT_JOINS(e) == e->first)
        return 0;
    if (level > HL_GPU_JOINS)
        return 1;
    for (uint32_t j = e->first; j < HL_EVENT_JOINS(e) && deepest <= HL_GPU_JOINS; j++) {
        uint32_t below = join_depth(v, events, v->tasks[j].trigger_event, level + 1);
        if (below > deepest)
            deepest = below;
    }
    return deepest + 1;
}

static hl_status check_plan(const maco_plan *p, const maco_plan_view *v,
                            const struct hl_cuda_shape *shape)
{
    for (uint32_t i = 0; i < v->n_tasks; i++)
        HL_TRY(check_task(p, v, i, shape));
    if (v->policy == MACO_STATIC && v->n_lists != shape->workers)
        return hl_fail(
            HL_EINVAL,
            "the plan's lists are for %u workers, and the runtime has %u: compile it for "
            "as many",
            v->n_lists, shape->workers);
    return HL_OK;
}

/* ---- the image ---- */

static size_t put_table(size_t *size, size_t bytes)
{
    size_t at = (*size + 127) / 128 * 128;
    *size = at + bytes;
    return at;
}

static void lay_out(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                    struct hl_cuda_tables *t)
{
    size_t size = 0, workers = shape->workers;
    size_t lists = v->policy == MACO_STATIC ? v->first_of_list[v->n_lists] : 0;
    size_t rings = v->policy == MACO_SCHEDULER ? (size_t)shape->workers * shape->ring : 0;
    t->tasks = put_table(&size, v->n_tasks * sizeof(maco_task));
    t->events = put_table(&size, v->n_events * sizeof(maco_event));
    t->ready = put_table(&size, ((size_t)v->n_events + 2) * sizeof(uint64_t));
    t->lines = put_table(&size, HL_GPU_LINES * sizeof(struct hl_gpu_line));
    t->list = put_table(&size, lists * sizeof(uint32_t));
    t->first_of_list = put_table(&size, ((size_t)v->n_lists + 1) * sizeof(uint32_t));
    t->rings = put_table(&size, rings * sizeof(uint64_t));
    t->taken = put_table(&size, workers * sizeof(struct hl_gpu_line));
    t->affine = put_table(&size, t->n_affine * sizeof(uint64_t));
    t->first_of_affine = put_table(&size, t->n_affine > 0 ? (workers + 1) * sizeof(uint32_t) : 0);
    t->affine_queued = put_table(&size, t->n_affine > 0 ? workers * sizeof(struct hl_gpu_line) : 0);
    t->spans = put_table(&size, shape->trace ? v->n_tasks * sizeof(struct hl_gpu_span) : 0);
    t->order = put_table(&size, shape->trace ? v->n_tasks * sizeof(uint32_t) : 0);
    t->comm = put_table(&size, v->n_comm * sizeof(uint32_t));
    t->first_of_comm = put_table(&size, ((size_t)shape->groups + 1) * sizeof(uint32_t));
    t->comm_done = put_table(&size, shape->groups * sizeof(struct hl_gpu_line));
    t->peers = put_table(&size, shape->n_peers * sizeof(struct hl_gpu_peers));
    t->peer_comm = put_table(&size, v->n_comm * sizeof(uint32_t));
    t->first_of_peer_comm = put_table(&size, ((size_t)shape->n_peers + 1) * sizeof(uint32_t));
    t->arrived = put_table(&size, v->n_comm * sizeof(uint64_t));
    t->size = size;
}

/* first <= joins < *joins_end <= communication < *work <= the rest < last */
static hl_status split_range(const maco_plan_view *v, uint32_t first, uint32_t last,
                             uint32_t *joins_end, uint32_t *work)
{
    uint32_t i = first;
    while (i < last && is_join(v, i))
        i++;
    *joins_end = i;
    while (i < last && hl_maco_is_comm(v->tasks[i].type))
        i++;
    *work = i;
    for (; i < last; i++)
        if (hl_maco_is_comm(v->tasks[i].type))
            return hl_fail(HL_EINTERNAL, "task %u of the plan is communication after compute work",
                           i);
    return HL_OK;
}

/* The worker that the task has an affinity to; MACO_NONE if there is no such worker. */
static uint32_t task_affinity(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                              uint32_t task)
{
    if (v->policy != MACO_DIRECT || v->id[task] == MACO_NONE ||
        hl_maco_is_comm(v->tasks[task].type) || v->worker[task] >= shape->workers)
        return MACO_NONE;
    return v->worker[task];
}

static uint64_t flags_of(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                         const maco_event *e, uint32_t joins_end, uint32_t work)
{
    uint64_t flags = 0;
    if (e->kind == MACO_EVENT_END)
        return 0;
    for (uint32_t i = joins_end; i < work; i++)
        if (!inside_kernel(shape, &v->tasks[i]))
            flags |= HL_EVENT_WATCHED;
    for (uint32_t i = work; i < e->last; i++)
        if (task_affinity(v, shape, i) != MACO_NONE)
            flags |= HL_EVENT_AFFINE;
    return flags;
}

static hl_status make_events(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                             maco_event *events)
{
    memcpy(events, v->events, v->n_events * sizeof(*events));
    for (uint32_t i = 0; i < v->n_events; i++) {
        maco_event *e = &events[i];
        uint32_t joins_end = e->first, work = e->last;
        if (e->needed == 0)
            return hl_fail(HL_EINVAL, "event %u of the plan depends on no task", i);
        if (e->kind != MACO_EVENT_END && e->kind != MACO_EVENT_EMPTY) {
            if (e->first > e->last || e->last > v->n_tasks)
                return hl_fail(HL_EINVAL, "event %u launches tasks %u to %u of %u", i, e->first,
                               e->last, v->n_tasks);
            HL_TRY(split_range(v, e->first, e->last, &joins_end, &work));
        }
        e->count = e->cursor = 0;
        e->reserved = flags_of(v, shape, e, joins_end, work);
        e->reserved2[0] = joins_end | (uint64_t)work << 32;
    }
    for (uint32_t i = 0; i < v->n_events; i++)
        if (join_depth(v, events, i, 1) > HL_GPU_JOINS)
            return hl_fail(HL_EUNSUPPORTED,
                           "joins of the plan nest deeper than the %d levels that a GPU supports",
                           HL_GPU_JOINS);
    return HL_OK;
}

/* The single task that this one launches, which the same worker runs next (see done_direct);
 * MACO_NONE. */
static uint32_t next_of(const maco_plan_view *v, const maco_event *events, const maco_task *t)
{
    const maco_event *e = &events[t->trigger_event];
    if (v->policy != MACO_DIRECT || e->needed != 1 || e->kind == MACO_EVENT_END ||
        e->kind == MACO_EVENT_EMPTY || HL_EVENT_WORK(e) != e->first || e->last - e->first != 1 ||
        e->reserved & HL_EVENT_AFFINE)
        return MACO_NONE;
    return e->first;
}

static void make_tasks(const maco_plan_view *v, const maco_event *events, maco_task *tasks)
{
    memcpy(tasks, v->tasks, v->n_tasks * sizeof(*tasks));
    for (uint32_t i = 0; i < v->n_tasks; i++)
        tasks[i].user = next_of(v, events, &tasks[i]) | (uint64_t)v->worker[i] << 32;
}

/* Appends the communication of a group to `comm`, which has n entries; returns the new count. */
static uint32_t tasks_of(const maco_plan_view *v, uint32_t group, uint32_t *comm, uint32_t n)
{
    for (uint32_t i = 0; i < v->n_comm; i++)
        if (v->tasks[v->comm[i]].group == group)
            comm[n++] = v->comm[i];
    return n;
}

/* Lists the communication in streams, which the proxy completes; returns how much it is. */
static uint32_t make_comm(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                          uint32_t *comm, uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < shape->groups; g++) {
        first[g] = n;
        if (!hl_gpu_has_peers(shape->peers, shape->n_peers, g))
            n = tasks_of(v, g, comm, n);
    }
    first[shape->groups] = n;
    return n;
}

/* Lists the communication inside the kernel. */
static void make_peers(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                       struct hl_cuda_tables *t)
{
    unsigned char *image = t->image;
    uint32_t *first = (uint32_t *)(void *)(image + t->first_of_peer_comm), n = 0;
    if (shape->n_peers > 0)
        memcpy(image + t->peers, shape->peers, shape->n_peers * sizeof(struct hl_gpu_peers));
    for (uint32_t i = 0; i < shape->n_peers; i++) {
        first[i] = n;
        n = tasks_of(v, shape->peers[i].group, (uint32_t *)(void *)(image + t->peer_comm), n);
    }
    first[shape->n_peers] = n;
}

static void make_affine(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                        struct hl_cuda_tables *t)
{
    uint32_t *first = (uint32_t *)(void *)((unsigned char *)t->image + t->first_of_affine);
    if (t->n_affine == 0)
        return;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        uint32_t w = task_affinity(v, shape, i);
        if (w != MACO_NONE)
            first[w + 1]++;
    }
    for (uint32_t w = 0; w < shape->workers; w++)
        first[w + 1] += first[w];
}

static hl_status fill_image(const maco_plan_view *v, const struct hl_cuda_shape *shape,
                            struct hl_cuda_tables *t)
{
    unsigned char *image = t->image;
    maco_event *events = (maco_event *)(void *)(image + t->events);
    uint32_t joins_end;
    HL_TRY(make_events(v, shape, events));
    make_tasks(v, events, (maco_task *)(void *)(image + t->tasks));
    if (v->policy == MACO_STATIC) {
        memcpy(image + t->list, v->list, v->first_of_list[v->n_lists] * sizeof(uint32_t));
        memcpy(image + t->first_of_list, v->first_of_list,
               ((size_t)v->n_lists + 1) * sizeof(uint32_t));
    }
    make_affine(v, shape, t);
    make_peers(v, shape, t);
    uint32_t in_streams = make_comm(v, shape, (uint32_t *)(void *)(image + t->comm),
                                    (uint32_t *)(void *)(image + t->first_of_comm));
    for (uint32_t i = 0; i < v->n_tasks; i++)
        t->noted += v->id[i] != MACO_NONE;
    t->run = (struct hl_gpu_run){.n_tasks = v->n_tasks,
                                 .n_events = v->n_events,
                                 .n_roots = v->n_roots,
                                 .workers = shape->workers,
                                 .groups = in_streams > 0 ? shape->groups : 0,
                                 .ring_slots = shape->ring,
                                 .n_peers = shape->n_peers,
                                 .peer_ctas = shape->peer_ctas,
                                 .policy = (uint16_t)v->policy,
                                 .balance = (uint16_t)v->balance};
    return split_range(v, 0, v->n_roots, &joins_end, &t->run.roots_work);
}

hl_status hl_cuda_tables_make(const maco_plan *p, const struct hl_cuda_shape *shape,
                              struct hl_cuda_tables *out)
{
    struct hl_cuda_tables t = {0};
    const maco_plan_view v = *maco_plan_read(p);
    HL_TRY(check_plan(p, &v, shape));
    for (uint32_t i = 0; i < v.n_tasks; i++)
        t.n_affine += task_affinity(&v, shape, i) != MACO_NONE;
    lay_out(&v, shape, &t);
    t.image = calloc(1, t.size);
    if (t.image == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the tables of %u tasks", v.n_tasks);
    hl_status st = fill_image(&v, shape, &t);
    if (st == HL_OK)
        *out = t;
    else
        free(t.image);
    return st;
}

void hl_cuda_tables_free(struct hl_cuda_tables *t)
{
    free(t->image);
    *t = (struct hl_cuda_tables){0};
}

static void *address_at(uint64_t base, size_t offset)
{
    return (void *)(uintptr_t)(base + offset);
}

struct hl_gpu_run hl_cuda_tables_at(const struct hl_cuda_tables *t, uint64_t base)
{
    struct hl_gpu_run r = t->run;
    r.tasks = address_at(base, t->tasks);
    r.events = address_at(base, t->events);
    r.ready = address_at(base, t->ready);
    r.lines = address_at(base, t->lines);
    r.list = address_at(base, t->list);
    r.first_of_list = address_at(base, t->first_of_list);
    r.rings = address_at(base, t->rings);
    r.taken = address_at(base, t->taken);
    if (t->n_affine > 0) {
        r.affine = address_at(base, t->affine);
        r.first_of_affine = address_at(base, t->first_of_affine);
        r.affine_queued = address_at(base, t->affine_queued);
    }
    if (t->order > t->spans) { /* if traced */
        r.spans = address_at(base, t->spans);
        r.order = address_at(base, t->order);
    }
    r.comm = address_at(base, t->comm);
    r.first_of_comm = address_at(base, t->first_of_comm);
    r.comm_done = address_at(base, t->comm_done);
    r.peers = address_at(base, t->peers);
    r.peer_comm = address_at(base, t->peer_comm);
    r.first_of_peer_comm = address_at(base, t->first_of_peer_comm);
    r.arrived = address_at(base, t->arrived);
    return r;
}
