/* Overlap statistics, computed only from the intervals of a trace, so that a reader of the file can
 * compute them again.
 *
 *     compute   [=====]   [==========]         joined: times in which any worker computed
 *     comm          [======]    [==]           joined: times in which any link was busy
 *     both          [=]   []    [==]           both_ns: hidden communication
 *
 *     launch    the last parent's end, or the link's last transfer's end if that was later
 *                   --> the transfer's start; the longest of these is launch_ns
 *
 * busy_ns sums up what each worker computed, without joining, so it can be more than the elapsed
 * time. */
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "maco/trace/trace_private.h"

struct interval {
    uint64_t start, end;
};

/* Sorted; no two overlap or touch. */
struct intervals {
    struct interval *list;
    size_t n;
};

/* Records are sorted by start: one that begins before the last interval ends extends it. */
static void add_interval(struct intervals *u, const struct hl_maco_record *r)
{
    struct interval *last = u->n > 0 ? &u->list[u->n - 1] : NULL;
    if (r->start_ns == r->end_ns)
        return;
    if (last == NULL || r->start_ns > last->end)
        u->list[u->n++] = (struct interval){r->start_ns, r->end_ns};
    else if (r->end_ns > last->end)
        last->end = r->end_ns;
}

static uint64_t total_length(const struct intervals *u)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < u->n; i++)
        sum += u->list[i].end - u->list[i].start;
    return sum;
}

/* Both lists are sorted and free of overlaps, so the interval that ends first can't overlap
 * anything that follows.
 */
static uint64_t common_length(const struct intervals *a, const struct intervals *b)
{
    uint64_t sum = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        const struct interval *x = &a->list[i], *y = &b->list[k];
        uint64_t start = x->start > y->start ? x->start : y->start;
        uint64_t end = x->end < y->end ? x->end : y->end;
        sum += start < end ? end - start : 0;
        if (x->end < y->end)
            i++;
        else
            k++;
    }
    return sum;
}

/* The latest end of a task's parents; 0 if none of them ran. */
static uint64_t inputs_ready_ns(const maco_trace *t, uint32_t task)
{
    uint64_t last = 0;
    for (uint32_t k = t->tasks[task].first_parent; k < t->tasks[task + 1].first_parent; k++) {
        uint32_t r = t->ran[t->parents[k]];
        if (r != MACO_NONE && t->records[r].end_ns > last)
            last = t->records[r].end_ns;
    }
    return last;
}

/* `busy`: the end of the last transfer of each group so far. A transfer that begins while another
 * one is in flight did not find the link free. */
static void add_launch(const maco_trace *t, const struct hl_maco_record *r, uint64_t *busy,
                       maco_overlap *o)
{
    uint64_t ready = inputs_ready_ns(t, r->task), until = busy[r->worker];
    if (r->end_ns > until)
        busy[r->worker] = r->end_ns;
    if (ready == 0)
        return;
    o->comm_before_producer += r->start_ns < ready;
    ready = until > ready ? until : ready;
    if (r->start_ns > ready && r->start_ns - ready > o->launch_ns)
        o->launch_ns = r->start_ns - ready;
}

/* One pass over the records, which are sorted by start; joins intervals on the way. */
static void measure_busy(const maco_trace *t, struct intervals *compute, struct intervals *comm,
                         uint64_t *busy, maco_overlap *o)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct hl_maco_record *r = &t->records[i];
        if (r->kind != HL_MACO_COMPUTE && r->kind != HL_MACO_COMM)
            continue;
        o->tasks++;
        first = r->start_ns < first ? r->start_ns : first;
        last = r->end_ns > last ? r->end_ns : last;
        add_interval(r->kind == HL_MACO_COMPUTE ? compute : comm, r);
        if (r->kind == HL_MACO_COMPUTE)
            o->busy_ns += r->end_ns - r->start_ns;
        else
            add_launch(t, r, busy, o);
    }
    o->total_ns = last > first ? last - first : 0;
    o->compute_ns = total_length(compute);
    o->comm_ns = total_length(comm);
    o->both_ns = common_length(compute, comm);
}

int maco_trace_overlap(const maco_trace *t, maco_overlap *out)
{
    if (t == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "maco_trace_overlap: the trace or out is NULL");
    struct intervals compute = {.list = malloc((t->n + 1) * sizeof(*compute.list))};
    struct intervals comm = {.list = malloc((t->n + 1) * sizeof(*comm.list))};
    uint64_t *busy = calloc(UINT16_MAX + 1, sizeof(*busy));
    maco_overlap o = {0};
    hl_status st = HL_OK;
    if (compute.list == NULL || comm.list == NULL || busy == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory measuring a trace");
    else
        measure_busy(t, &compute, &comm, busy, &o);
    free(compute.list);
    free(comm.list);
    free(busy);
    if (st == HL_OK)
        st = HL_ABI_WRITE(maco_overlap, &o, out);
    return st;
}
