/* Builds a trace from a run's records and its plan; trace_private.h has a picture of the result.
 *
 *     copy_plan       names, types, parents: the plan may be destroyed before the trace
 *     check_record    kinds and task numbers, which are indices from here on
 *     sort_records    by start, which write.c and overlap.c rely on
 *     find_runs       from a task to its record
 *
 * If a step fails, maco_trace_free frees the trace; it accepts any state. */
#include "maco/trace/trace.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "maco/graph/graph.h"
#include "maco/trace/trace_private.h"

void maco_trace_free(maco_trace *t)
{
    if (t == NULL)
        return;
    free(t->records);
    free(t->tasks);
    free(t->parents);
    free(t->ran);
    free(t->names);
    free(t);
}

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a trace");
}

static bool is_task_record(const struct hl_maco_record *r)
{
    return r->kind == HL_MACO_COMPUTE || r->kind == HL_MACO_COMM;
}

/* ---- copy of the plan ---- */

/* One array for all parents, and the position where each task's part begins: two allocations,
 * whatever the number of tasks. */
static hl_status copy_parents(maco_trace *t, const maco_plan *p)
{
    size_t total = 0, at = 0;
    uint32_t n;
    for (uint32_t i = 0; i < t->n_tasks; i++) {
        hl_maco_plan_parents(p, i, &n);
        total += n;
    }
    t->parents = malloc((total + 1) * sizeof(*t->parents));
    if (t->parents == NULL)
        return no_memory();
    for (uint32_t i = 0; i < t->n_tasks; i++) {
        const uint32_t *parents = hl_maco_plan_parents(p, i, &n);
        t->tasks[i].first_parent = (uint32_t)at;
        memcpy(t->parents + at, parents, n * sizeof(*parents));
        at += n;
    }
    t->tasks[t->n_tasks].first_parent = (uint32_t)at;
    return HL_OK;
}

/* The file shows the bytes of collectives and copies as in the plan; other tasks have none. */
static hl_status copy_plan(maco_trace *t, const maco_plan *p)
{
    const maco_plan_view v = *maco_plan_read(p);
    t->n_tasks = v.n_tasks;
    /* One more than the number of tasks: the end of the last task's parents. */
    t->tasks = calloc((size_t)v.n_tasks + 1, sizeof(*t->tasks));
    t->names = malloc(v.names_bytes);
    if (t->tasks == NULL || t->names == NULL)
        return no_memory();
    memcpy(t->names, v.names, v.names_bytes);
    for (uint32_t i = 0; i < v.n_tasks; i++) {
        const maco_task *task = &v.tasks[i];
        t->tasks[i] = (struct hl_maco_traced){.name = task->name,
                                              .type = task->type,
                                              .group = (uint16_t)task->group,
                                              .event = task->dependent_event};
        if (hl_maco_is_comm(task->type) || task->type == MACO_TASK_MEMCPY ||
            task->type == MACO_TASK_MEMSET)
            t->tasks[i].bytes = hl_maco_bytes_moved(task);
    }
    return copy_parents(t, p);
}

/* ---- records ---- */

/* Scheduling and waiting may belong to no task; whatever ran belongs to one. */
static hl_status check_record(const maco_trace *t, const struct hl_maco_record *r)
{
    if (r->kind > HL_MACO_SCHED || r->end_ns < r->start_ns)
        return hl_fail(HL_EINVAL,
                       "a record of kind %u ends before it starts, or its kind is unknown",
                       r->kind);
    if (r->task >= t->n_tasks && (is_task_record(r) || r->task != MACO_NONE))
        return hl_fail(HL_EINVAL, "a record is of task %u, the plan has %u", r->task, t->n_tasks);
    return HL_OK;
}

/* Sorts the keys together with the records' places, then moves each record once. */
static hl_status sort_records(const struct hl_maco_record *r, size_t n, maco_trace *t)
{
    uint64_t *key = malloc((n + 1) * sizeof(*key));
    uint32_t *place = malloc((n + 1) * sizeof(*place));
    hl_status st = key == NULL || place == NULL ? no_memory() : HL_OK;
    for (size_t i = 0; i < n && st == HL_OK; i++) {
        key[i] = r[i].start_ns;
        place[i] = (uint32_t)i;
    }
    if (st == HL_OK)
        st = hl_maco_sort(key, place, n);
    for (size_t i = 0; i < n && st == HL_OK; i++)
        t->records[i] = r[place[i]];
    free(key);
    free(place);
    return st;
}

/* Finds each task's record; waits and the scheduler's work are not looked up. */
static hl_status find_runs(maco_trace *t)
{
    memset(t->ran, 0xff, ((size_t)t->n_tasks + 1) * sizeof(*t->ran));
    for (size_t i = 0; i < t->n; i++) {
        const struct hl_maco_record *r = &t->records[i];
        if (!is_task_record(r))
            continue;
        if (t->ran[r->task] != MACO_NONE)
            return hl_fail(HL_EINVAL, "task \"%s\" ran twice in one run",
                           t->names + t->tasks[r->task].name);
        t->ran[r->task] = (uint32_t)i;
    }
    return HL_OK;
}

/* Places of records are 32-bit numbers; MACO_NONE means no record. */
static hl_status fill_trace(maco_trace *t, const maco_plan *p, const struct hl_maco_record *r,
                            size_t n)
{
    if (n >= MACO_NONE)
        return hl_fail(HL_EINVAL, "%zu records are more than a trace takes", n);
    HL_TRY(copy_plan(t, p));
    for (size_t i = 0; i < n; i++)
        HL_TRY(check_record(t, &r[i]));
    t->records = malloc((n + 1) * sizeof(*t->records));
    t->ran = malloc(((size_t)t->n_tasks + 1) * sizeof(*t->ran));
    t->n = n;
    if (t->records == NULL || t->ran == NULL)
        return no_memory();
    HL_TRY(sort_records(r, n, t));
    return find_runs(t);
}

hl_status hl_maco_trace_new(const maco_plan *p, const struct hl_maco_record *r, size_t n,
                            maco_trace **out)
{
    maco_trace *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return no_memory();
    hl_status st = fill_trace(t, p, r, n);
    if (st == HL_OK)
        *out = t;
    else
        maco_trace_free(t);
    return st;
}
