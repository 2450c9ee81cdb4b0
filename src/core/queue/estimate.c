/* Estimates by counting slots when waiting gangs without a reservation can start.
 *
 * Gangs get slots in the order of the line, each as soon as enough gangs before it have ended by
 * their time limits. The estimate ignores where slots are and which gang can pass another: it
 * assumes that no other gang comes and that all fit everywhere. It ends at the first gang that
 * would have to wait for one without a time limit. */
#include <stdlib.h>

#include "core/queue/queue_private.h"

/* Slots that will be released; a heap, earliest first. */
struct release {
    int64_t at_ms;
    int slots;
};

struct releases {
    struct release *heap;
    int count;
};

static void releases_swap(struct releases *r, int a, int b)
{
    struct release kept = r->heap[a];
    r->heap[a] = r->heap[b];
    r->heap[b] = kept;
}

static void releases_push(struct releases *r, int64_t at_ms, int slots)
{
    int i = r->count++;
    r->heap[i] = (struct release){at_ms, slots};
    for (; i > 0 && r->heap[i].at_ms < r->heap[(i - 1) / 2].at_ms; i = (i - 1) / 2)
        releases_swap(r, i, (i - 1) / 2);
}

static struct release releases_pop(struct releases *r)
{
    struct release first = r->heap[0];
    r->heap[0] = r->heap[--r->count];
    for (int i = 0, least;; i = least) {
        least = i;
        for (int k = 2 * i + 1; k <= 2 * i + 2 && k < r->count; k++)
            if (r->heap[k].at_ms < r->heap[least].at_ms)
                least = k;
        if (least == i)
            return first;
        releases_swap(r, i, least);
    }
}

int64_t hl_queue_end_ms(const struct hl_queue_input *in, const struct hl_queue_verdict *verdicts,
                        int gang)
{
    const struct hl_queue_gang *g = &in->gangs[gang];
    int64_t from = g->phase == HL_QUEUE_PENDING ? in->now_ms : g->placed_ms;
    if (g->phase == HL_QUEUE_STOPS || verdicts[gang].stops)
        return in->now_ms + in->grace_ms;
    if (g->limit_ms <= 0)
        return INT64_MAX;
    int64_t end = from + g->limit_ms + in->grace_ms;
    return end > in->now_ms ? end : in->now_ms;
}

static bool waits_for_slots(const struct hl_queue_verdict *v)
{
    return v->reason == HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS ||
           v->reason == HL_API_WAIT_REASON_PRIORITY_BEHIND ||
           v->reason == HL_API_WAIT_REASON_RESERVED_FOR ||
           v->reason == HL_API_WAIT_REASON_WAITING_FOR_RECOVERY;
}

/* The gang starts at the time it was given, or as soon as its slots are free. */
static int64_t start_of(const struct hl_queue_input *in, struct hl_queue_verdict *v, int64_t now_ms)
{
    if (v->start_ms == 0 && now_ms > in->now_ms)
        v->start_ms = now_ms;
    return v->start_ms > now_ms ? v->start_ms : now_ms;
}

/* total: slots that are free or held; a gang that needs more waits in vain. */
static void estimate_all(const struct hl_queue_estimate *e, int total, struct releases *r)
{
    const struct hl_queue_input *in = e->in;
    int64_t now = in->now_ms;
    int slots = e->free_slots;
    for (int i = 0; i < e->line_count; i++) {
        int gang = e->line[i];
        const struct hl_queue_gang *g = &in->gangs[gang];
        struct hl_queue_verdict *v = &e->verdicts[gang];
        if (v->starts || !waits_for_slots(v) || e->never[g->shape] || g->slots > total)
            continue;
        while (slots < g->slots && r->count > 0 && r->heap[0].at_ms < INT64_MAX) {
            struct release next = releases_pop(r);
            slots += next.slots;
            now = next.at_ms > now ? next.at_ms : now;
        }
        if (slots < g->slots)
            return;
        int64_t start = start_of(in, v, now);
        slots -= g->slots;
        releases_push(r, g->limit_ms > 0 ? start + g->limit_ms + in->grace_ms : INT64_MAX,
                      g->slots);
    }
}

hl_status hl_queue_estimate(const struct hl_queue_estimate *e)
{
    const struct hl_queue_input *in = e->in;
    struct releases r = {.heap = calloc((size_t)in->count + 1, sizeof(*r.heap))};
    if (r.heap == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the starts of %d gangs", in->count);
    int total = e->free_slots;
    for (int i = 0; i < in->count; i++)
        if (in->gangs[i].phase != HL_QUEUE_PENDING || e->verdicts[i].starts) {
            releases_push(&r, hl_queue_end_ms(in, e->verdicts, i), in->gangs[i].slots);
            total += in->gangs[i].slots;
        }
    estimate_all(e, total, &r);
    free(r.heap);
    return HL_OK;
}
