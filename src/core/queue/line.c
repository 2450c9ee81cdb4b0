/* The one order of all pending gangs.
 *
 * Gangs are sorted by what ranks above fair share, and by submission. Then each gets a key: what
 * its queue uses and has used, plus what gangs of the queue before it in the line will use, divided
 * by the queue's weight. Gangs of one priority are sorted again by this key. So queues alternate by
 * weight, and within a queue and priority the order is that of submission. */
#include <stdlib.h>

#include "core/queue/queue_private.h"

struct standing {
    int gang;
    int class;        /* 0: damaged, 1: others were stopped for it, 2: the rest */
    int64_t priority; /* including what it gained by waiting */
    double share;
    int64_t seq;
};

static int by_submission(const void *x, const void *y)
{
    const struct standing *a = x, *b = y;
    if (a->class != b->class)
        return a->class - b->class;
    if (a->priority != b->priority)
        return a->priority < b->priority ? 1 : -1;
    return (a->seq > b->seq) - (a->seq < b->seq);
}

static int by_share(const void *x, const void *y)
{
    const struct standing *a = x, *b = y;
    if (a->share != b->share)
        return a->share < b->share ? -1 : 1;
    return (a->seq > b->seq) - (a->seq < b->seq);
}

static int64_t effective_priority(const struct hl_queue_input *in, const struct hl_queue_gang *g)
{
    int64_t waited = in->now_ms > g->since_ms ? in->now_ms - g->since_ms : 0;
    return g->priority + (in->age_ms > 0 ? waited / in->age_ms : 0);
}

static int list_pending(const struct hl_queue_input *in, struct standing *list)
{
    int n = 0;
    for (int i = 0; i < in->count; i++) {
        const struct hl_queue_gang *g = &in->gangs[i];
        if (g->phase == HL_QUEUE_PENDING)
            list[n++] = (struct standing){.gang = i,
                                          .class = g->damaged ? 0 : 2,
                                          .priority = effective_priority(in, g),
                                          .seq = g->seq};
    }
    return n;
}

/* Gangs for which others were stopped come before all that could take the freed slots. */
static void mark_preemptors(const struct hl_queue_input *in, struct standing *list, int n,
                            int *position)
{
    for (int i = 0; i < n; i++)
        position[list[i].gang] = i;
    for (int i = 0; i < in->count; i++) {
        int p = in->gangs[i].preemptor;
        if (p >= 0 && in->gangs[p].phase == HL_QUEUE_PENDING && list[position[p]].class > 1)
            list[position[p]].class = 1;
    }
}

static void give_shares(const struct hl_queue_input *in, struct standing *list, int n)
{
    double use[HL_QUEUES_MAX];
    for (int q = 0; q < in->queues->count; q++)
        use[q] = in->used[q];
    for (int i = 0; i < in->count; i++)
        if (in->gangs[i].phase != HL_QUEUE_PENDING)
            use[in->gangs[i].queue] += in->gangs[i].slots;
    for (int i = 0; i < n; i++) {
        const struct hl_queue_gang *g = &in->gangs[list[i].gang];
        list[i].share = use[g->queue] / in->queues->list[g->queue].weight;
        use[g->queue] += g->blocked == HL_API_WAIT_REASON_NONE ? g->slots : 0;
    }
}

hl_status hl_queue_line(const struct hl_queue_input *in, int *line, int *count)
{
    HL_AUTO(hl_freep) struct standing *list = calloc((size_t)in->count + 1, sizeof(*list));
    HL_AUTO(hl_freep) int *position = calloc((size_t)in->count + 1, sizeof(*position));
    if (list == NULL || position == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the line of %d gangs", in->count);
    int n = list_pending(in, list);
    mark_preemptors(in, list, n, position);
    qsort(list, (size_t)n, sizeof(*list), by_submission);
    give_shares(in, list, n);
    for (int from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && list[to].class == list[from].class &&
                            list[to].priority == list[from].priority;)
            to++;
        qsort(list + from, (size_t)(to - from), sizeof(*list), by_share);
    }
    for (int i = 0; i < n; i++)
        line[i] = list[i].gang;
    *count = n;
    return HL_OK;
}
