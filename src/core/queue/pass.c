/* One pass over the line.
 *
 * During a pass the number of free slots only falls, by starts and reservations. So what did not
 * fit once does not fit later, and each shape is asked for only once: a pass over thousands of
 * gangs asks the planner a few questions. */
#include <limits.h>
#include <stdlib.h>

#include "core/queue/queue_private.h"

#define VICTIM_QUESTIONS 1024 /* per pass; this takes some ten milliseconds */

struct shape_memory {
    bool full;        /* no place is free for it beside the reservations */
    bool full_open;   /* nor on reserved slots */
    bool never;       /* nor after all running gangs have ended */
    bool has_victims; /* a search for victims failed for a gang of this priority */
    int victims_priority;
};

struct pass {
    const struct hl_queue_input *in;
    const struct hl_queue_planner *planner;
    struct hl_queue_verdict *verdicts;
    struct shape_memory *shapes;
    bool *claims; /* others were stopped for it */
    int *ends;    /* running gangs that hold slots, sorted by their end */
    int ends_count;
    int used[HL_QUEUES_MAX];   /* slots in use */
    int closed[HL_QUEUES_MAX]; /* the gang that waits for quota, -1 = none */
    int free_slots;            /* including reserved ones */
    int head;                  /* the first gang with a reservation, -1 = none */
    bool waits;                /* a gang without claims has a reservation */
    int questions;             /* questions left to find the best victims */
    int64_t open_until_ms;     /* a gang that ends earlier can use reserved slots; 0 = none can */
};

static const struct hl_queue_gang *gang_at(const struct pass *p, int gang)
{
    return &p->in->gangs[gang];
}

static bool gang_holds(const struct pass *p, int gang)
{
    return gang_at(p, gang)->phase != HL_QUEUE_PENDING || p->verdicts[gang].starts;
}

static bool gang_stops(const struct pass *p, int gang)
{
    return gang_at(p, gang)->phase == HL_QUEUE_STOPS || p->verdicts[gang].stops;
}

static struct shape_memory *shape_of(const struct pass *p, int gang)
{
    return &p->shapes[gang_at(p, gang)->shape];
}

static hl_status pass_fit(struct pass *p, int gang, bool *fits)
{
    return p->planner->fit(p->planner->ctx, gang, fits);
}

/* ---- when slots become free ------------------------------------------------------------------ */

static int64_t end_of(const struct pass *p, int gang)
{
    return hl_queue_end_ms(p->in, p->verdicts, gang);
}

struct ending {
    int gang;
    int64_t end_ms, placed_ms, seq;
};

static int by_end(const void *x, const void *y)
{
    const struct ending *a = x, *b = y;
    if (a->end_ms != b->end_ms)
        return a->end_ms < b->end_ms ? -1 : 1;
    if (a->placed_ms != b->placed_ms)
        return a->placed_ms < b->placed_ms ? -1 : 1;
    return (a->seq > b->seq) - (a->seq < b->seq);
}

static hl_status find_ends(struct pass *p)
{
    HL_AUTO(hl_freep) struct ending *list = calloc((size_t)p->in->count + 1, sizeof(*list));
    int n = 0;
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ends of %d gangs", p->in->count);
    for (int i = 0; i < p->in->count; i++)
        if (gang_holds(p, i))
            list[n++] =
                (struct ending){i, end_of(p, i), gang_at(p, i)->placed_ms, gang_at(p, i)->seq};
    qsort(list, (size_t)n, sizeof(*list), by_end);
    for (int i = 0; i < n; i++)
        p->ends[i] = list[i].gang;
    p->ends_count = n;
    return HL_OK;
}

/* Lends the slots of the first `wanted` of the ends; returns how many are lent. */
static int lend_ends(struct pass *p, int lent, int wanted)
{
    for (; lent < wanted; lent++)
        p->planner->lend(p->planner->ctx, p->ends[lent], true);
    for (; lent > wanted; lent--)
        p->planner->lend(p->planner->ctx, p->ends[lent - 1], false);
    return lent;
}

/* Finds the gang's place after the first `*count` gangs have ended, the fewest with which it fits;
 * -1: it does not even fit after all have ended. No slots stay lent, and the place is the planner's
 * last answer. */
static hl_status find_shadow(struct pass *p, int gang, int *count)
{
    bool fits = false;
    int slots = p->free_slots, low = 0, high, lent = 0;
    HL_TRY(find_ends(p));
    while (low < p->ends_count && slots < gang_at(p, gang)->slots)
        slots += gang_at(p, p->ends[low++])->slots;
    high = lent = lend_ends(p, 0, p->ends_count);
    hl_status st = pass_fit(p, gang, &fits);
    bool ever = fits;
    while (st == HL_OK && ever && low < high) {
        int middle = low + (high - low) / 2;
        lent = lend_ends(p, lent, middle);
        st = pass_fit(p, gang, &fits);
        if (fits)
            high = middle;
        else
            low = middle + 1;
    }
    lent = lend_ends(p, lent, low);
    if (st == HL_OK && ever)
        st = pass_fit(p, gang, &fits);
    (void)lend_ends(p, lent, 0);
    *count = ever && fits ? low : -1;
    return st;
}

/* ---- reservations ---------------------------------------------------------------------------- */

static hl_status pass_reserve(struct pass *p, int gang, bool of_old, int64_t start_ms)
{
    int64_t until = of_old || start_ms == INT64_MAX ? 0 : start_ms;
    if (p->head < 0)
        p->open_until_ms = until;
    else if (until < p->open_until_ms)
        p->open_until_ms = until;
    if (p->head < 0)
        p->head = gang;
    return p->planner->reserve(p->planner->ctx, gang, of_old);
}

/* Reserves the slots that the gang can have soonest; *reserved: there are such slots. */
static hl_status reserve_ahead(struct pass *p, int gang, bool *reserved)
{
    struct hl_queue_verdict *v = &p->verdicts[gang];
    int count;
    *reserved = false;
    if (shape_of(p, gang)->never)
        return HL_OK;
    HL_TRY(find_shadow(p, gang, &count));
    if (count < 0) {
        shape_of(p, gang)->never = true;
        return HL_OK;
    }
    int64_t start = count > 0 ? end_of(p, p->ends[count - 1]) : p->in->now_ms;
    v->start_ms = start < INT64_MAX ? start : 0;
    *reserved = true;
    return pass_reserve(p, gang, false, start);
}

/* A gang that waits for slots: gangs earlier in the line reserve what they need. */
static hl_status hold_back(struct pass *p, int gang)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    struct hl_queue_verdict *v = &p->verdicts[gang];
    bool reserved;
    if (g->damaged) {
        v->reason = HL_API_WAIT_REASON_WAITING_FOR_RECOVERY;
        bool first = p->head < 0;
        HL_TRY(pass_reserve(p, gang, true, 0));
        return first ? reserve_ahead(p, gang, &reserved) : HL_OK;
    }
    bool fits_open = !shape_of(p, gang)->full_open;
    v->other = p->head;
    v->start_ms = fits_open ? p->open_until_ms : 0;
    v->reason = fits_open ? HL_API_WAIT_REASON_RESERVED_FOR : HL_API_WAIT_REASON_PRIORITY_BEHIND;
    if (p->waits && !p->claims[gang])
        return HL_OK;
    if (!fits_open) {
        v->reason = HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS;
        v->other = -1;
    }
    HL_TRY(reserve_ahead(p, gang, &reserved));
    p->waits |= reserved && !p->claims[gang];
    return HL_OK;
}

/* ---- starts ---------------------------------------------------------------------------------- */

static hl_status start_gang(struct pass *p, int gang)
{
    HL_TRY(p->planner->take(p->planner->ctx, gang));
    p->verdicts[gang].starts = true;
    p->verdicts[gang].start_ms = p->in->now_ms;
    p->used[gang_at(p, gang)->queue] += gang_at(p, gang)->slots;
    p->free_slots -= gang_at(p, gang)->slots;
    return HL_OK;
}

static bool ends_in_time(const struct pass *p, int gang)
{
    int64_t limit = gang_at(p, gang)->limit_ms;
    return limit > 0 && p->in->now_ms + limit + p->in->grace_ms <= p->open_until_ms;
}

/* Tries to place the gang on reserved slots until they are needed. */
static hl_status try_within(struct pass *p, int gang)
{
    struct shape_memory *s = shape_of(p, gang);
    bool fits = false;
    if (p->head < 0 || s->full_open) {
        s->full_open = true;
        return HL_OK;
    }
    p->planner->reservations(p->planner->ctx, false);
    hl_status st = pass_fit(p, gang, &fits);
    if (st == HL_OK && fits && ends_in_time(p, gang))
        st = start_gang(p, gang);
    p->planner->reservations(p->planner->ctx, true);
    s->full_open = !fits;
    return st;
}

static hl_status try_start(struct pass *p, int gang)
{
    struct shape_memory *s = shape_of(p, gang);
    bool fits = false;
    if (p->free_slots < gang_at(p, gang)->slots) {
        s->full = s->full_open = true;
        return HL_OK;
    }
    if (!s->full)
        HL_TRY(pass_fit(p, gang, &fits));
    if (fits)
        return start_gang(p, gang);
    s->full = true;
    return try_within(p, gang);
}

/* ---- those who have to go -------------------------------------------------------------------- */

static void lend_stopping(struct pass *p, bool lent)
{
    for (int i = 0; i < p->in->count; i++)
        if (gang_stops(p, i))
            p->planner->lend(p->planner->ctx, i, lent);
}

/* own: the gang's queue is at its quota, so only victims of the same queue help. */
static int list_candidates(const struct pass *p, int gang, bool own, int *list)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    int n = 0;
    for (int i = 0; i < p->in->count; i++) {
        const struct hl_queue_gang *k = gang_at(p, i);
        if (k->phase == HL_QUEUE_RUNS && !gang_stops(p, i) && !k->stays &&
            k->priority < g->priority && p->in->queues->list[k->queue].preempts &&
            (!own || k->queue == g->queue))
            list[n++] = i;
    }
    return n;
}

static int stopping_slots(const struct pass *p, int queue)
{
    int n = 0;
    for (int i = 0; i < p->in->count; i++)
        if (gang_stops(p, i) && (queue < 0 || gang_at(p, i)->queue == queue))
            n += gang_at(p, i)->slots;
    return n;
}

/* Stops the chosen gangs and reserves their slots for this one. */
static hl_status stop_for(struct pass *p, int gang, const struct hl_queue_victims *victims)
{
    bool fits = false;
    for (int i = 0; i < victims->chosen_count; i++) {
        p->verdicts[victims->chosen[i]].stops = true;
        p->verdicts[victims->chosen[i]].other = gang;
    }
    p->claims[gang] = true;
    lend_stopping(p, true);
    hl_status st = pass_fit(p, gang, &fits);
    lend_stopping(p, false);
    HL_TRY(st);
    p->verdicts[gang].other = victims->chosen[0];
    p->verdicts[gang].start_ms = p->in->now_ms + p->in->grace_ms;
    return pass_reserve(p, gang, false, p->verdicts[gang].start_ms);
}

/* over: slots above the quota of its queue. *done: the gang has what it needs once others have
 * stopped. */
static hl_status find_victims(struct pass *p, int gang, int over, bool *done)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    HL_AUTO(hl_freep) int *room = calloc(2 * (size_t)p->in->count + 1, sizeof(*room));
    bool fits = false;
    if (room == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the victims of a gang");
    int short_of = g->slots - p->free_slots - stopping_slots(p, -1);
    int above = over - stopping_slots(p, g->queue);
    struct hl_queue_victims v = {.in = p->in,
                                 .planner = p->planner,
                                 .gang = gang,
                                 .slots = short_of > above ? short_of : above,
                                 .candidates = room,
                                 .count = list_candidates(p, gang, over > 0, room),
                                 .chosen = room + p->in->count,
                                 .questions = &p->questions};
    if (v.count == 0)
        return HL_OK;
    lend_stopping(p, true);
    hl_status st = pass_fit(p, gang, &fits);
    if (st == HL_OK && (!fits || above > 0))
        st = hl_queue_choose(&v);
    lend_stopping(p, false);
    HL_TRY(st);
    *done = v.chosen_count > 0;
    return *done ? stop_for(p, gang, &v) : HL_OK;
}

static hl_status try_preempt(struct pass *p, int gang, int over, bool *done)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    struct shape_memory *s = shape_of(p, gang);
    *done = false;
    if (!p->in->preempt || !p->in->queues->list[g->queue].preempts)
        return HL_OK;
    if (over <= 0 && s->has_victims && g->priority <= s->victims_priority)
        return HL_OK;
    HL_TRY(find_victims(p, gang, over, done));
    if (!*done && over <= 0) {
        s->has_victims = true;
        s->victims_priority = g->priority;
    }
    return HL_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status pass_quota(struct pass *p, int gang, int over)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    struct hl_queue_verdict *v = &p->verdicts[gang];
    bool done;
    v->reason = HL_API_WAIT_REASON_QUOTA_EXCEEDED;
    if (g->slots > p->in->queues->list[g->queue].quota)
        return HL_OK; /* it can never start, so it must not hold back others */
    p->closed[g->queue] = gang;
    HL_TRY(try_preempt(p, gang, over, &done));
    return !done && p->claims[gang] ? reserve_ahead(p, gang, &done) : HL_OK;
}

static hl_status pass_gang(struct pass *p, int gang)
{
    const struct hl_queue_gang *g = gang_at(p, gang);
    const struct hl_queue *queue = &p->in->queues->list[g->queue];
    struct hl_queue_verdict *v = &p->verdicts[gang];
    bool done;
    if (g->blocked != HL_API_WAIT_REASON_NONE) {
        v->reason = g->blocked;
        bool soon = g->damaged && g->blocked == HL_API_WAIT_REASON_BACK_OFF;
        return soon ? pass_reserve(p, gang, true, 0) : HL_OK; /* it keeps its own slots */
    }
    if (p->closed[g->queue] >= 0) {
        v->reason = HL_API_WAIT_REASON_PRIORITY_BEHIND;
        v->other = p->closed[g->queue];
        return HL_OK;
    }
    if (queue->quota > 0 && p->used[g->queue] + g->slots > queue->quota)
        return pass_quota(p, gang, p->used[g->queue] + g->slots - queue->quota);
    HL_TRY(try_start(p, gang));
    if (v->starts)
        return HL_OK;
    HL_TRY(try_preempt(p, gang, 0, &done));
    if (!done)
        return hold_back(p, gang);
    v->reason = HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS;
    return HL_OK;
}

static void pass_init(struct pass *p, const struct hl_queue_input *in)
{
    p->head = -1;
    p->questions = VICTIM_QUESTIONS;
    p->free_slots = in->free_slots;
    for (int q = 0; q < HL_QUEUES_MAX; q++)
        p->closed[q] = -1;
    for (int i = 0; i < in->count; i++) {
        const struct hl_queue_gang *g = &in->gangs[i];
        p->verdicts[i] = (struct hl_queue_verdict){.other = -1};
        if (g->phase != HL_QUEUE_PENDING)
            p->used[g->queue] += g->slots;
        if (g->preemptor >= 0)
            p->claims[g->preemptor] = true;
    }
}

static hl_status estimate_starts(const struct pass *p, const struct hl_queue_pass *out)
{
    HL_AUTO(hl_freep) bool *never = calloc((size_t)p->in->shapes + 1, sizeof(*never));
    if (never == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a pass over %d gangs", p->in->count);
    for (int i = 0; i < p->in->shapes; i++)
        never[i] = p->shapes[i].never;
    return hl_queue_estimate(&(struct hl_queue_estimate){.in = p->in,
                                                         .line = out->line,
                                                         .line_count = out->line_count,
                                                         .verdicts = p->verdicts,
                                                         .never = never,
                                                         .free_slots = p->free_slots});
}

static hl_status pass_run(struct pass *p, const struct hl_queue_pass *out)
{
    for (int i = 0; i < out->line_count; i++) {
        p->verdicts[out->line[i]].place = i + 1;
        HL_TRY(pass_gang(p, out->line[i]));
    }
    return estimate_starts(p, out);
}

hl_status hl_queue_pass(const struct hl_queue_input *in, const struct hl_queue_planner *planner,
                        struct hl_queue_pass *out)
{
    size_t n = (size_t)in->count + 1;
    HL_AUTO(hl_freep) struct shape_memory *shapes = calloc((size_t)in->shapes + 1, sizeof(*shapes));
    HL_AUTO(hl_freep) bool *claims = calloc(n, sizeof(*claims));
    HL_AUTO(hl_freep) int *ends = calloc(n, sizeof(*ends));
    struct hl_queue_pass made = {.verdicts = calloc(n, sizeof(*made.verdicts)),
                                 .line = calloc(n, sizeof(*made.line))};
    struct pass p = {.in = in,
                     .planner = planner,
                     .verdicts = made.verdicts,
                     .shapes = shapes,
                     .claims = claims,
                     .ends = ends};
    hl_status st = HL_OK;
    if (shapes == NULL || claims == NULL || ends == NULL || made.verdicts == NULL ||
        made.line == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a pass over %d gangs", in->count);
    if (st == HL_OK)
        st = hl_queue_line(in, made.line, &made.line_count);
    if (st == HL_OK) {
        pass_init(&p, in);
        st = pass_run(&p, &made);
    }
    if (st != HL_OK)
        hl_queue_pass_fini(&made);
    else
        *out = made;
    return st;
}

void hl_queue_pass_fini(struct hl_queue_pass *pass)
{
    free(pass->verdicts);
    free(pass->line);
    *pass = (struct hl_queue_pass){0};
}
