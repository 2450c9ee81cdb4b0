/* The stays of a chunk on the device as segments, from one use there to the next: one walk along
 * its uses, iteration by iteration. */
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan_private.h"

enum { DEVICE = 1, HOST = 2, WRITE_DEVICE = 4, WRITE_HOST = 8, END = 16 };

struct event {
    uint32_t moment;
    uint32_t what;
};

struct walk {
    const struct plan_model *m;
    struct hl_chunk_plan *p;
    struct event *events; /* chunk by chunk, sorted by moment */
    uint32_t *first;
    uint32_t seg_count, seg_cap;
    /* state of the chunk that is walked */
    uint32_t chunk;
    bool device, host;
    bool dirty;   /* evicting it would cost an extra copy */
    uint32_t seg; /* its current segment, if `device` */
};

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

/* ---- events by chunk ---- */

static void note_event(struct walk *w, uint32_t *next, uint32_t chunk, size_t moment, uint32_t what)
{
    uint32_t i = next[chunk];
    if (i > w->first[chunk] && w->events[i - 1].moment == moment)
        w->events[i - 1].what |= what;
    else
        w->events[next[chunk]++] = (struct event){(uint32_t)moment, what};
}

static void note_moment(struct walk *w, uint32_t *next, size_t i)
{
    const struct hl_trace_moment *m = &w->m->t->moments[i];
    for (size_t k = 0; k < m->need_count; k++) {
        const struct hl_trace_use *u = &m->need[k];
        uint32_t what = u->on_host ? HOST | (u->write ? WRITE_HOST : 0)
                                   : DEVICE | (u->write ? WRITE_DEVICE : 0);
        note_event(w, next, u->chunk, i, what);
    }
    for (size_t k = 0; k < m->free_count; k++)
        note_event(w, next, m->free[k], i, END);
}

/* The events of chunk c are w->events[w->first[c] .. next[c] - 1]; the caller owns next. */
static hl_status collect_events(struct walk *w, uint32_t *next)
{
    const struct hl_trace *t = w->m->t;
    size_t total = 0;
    for (size_t i = 0; i < t->moment_count; i++) {
        const struct hl_trace_moment *m = &t->moments[i];
        for (size_t k = 0; k < m->need_count; k++)
            w->first[m->need[k].chunk + 1]++;
        for (size_t k = 0; k < m->free_count; k++)
            w->first[m->free[k] + 1]++;
        total += m->need_count + m->free_count;
    }
    for (size_t c = 0; c < t->chunk_count; c++)
        w->first[c + 1] += w->first[c];
    w->events = calloc(total + 1, sizeof(*w->events));
    if (w->events == NULL)
        return fail_memory();
    memcpy(next, w->first, t->chunk_count * sizeof(*next));
    for (size_t i = 0; i < t->moment_count; i++)
        note_moment(w, next, i);
    return HL_OK;
}

/* ---- segments ---- */

static hl_status add_seg(struct walk *w, int64_t start)
{
    if (w->seg_count == w->seg_cap) {
        uint32_t cap = w->seg_cap == 0 ? 256 : w->seg_cap * 2;
        struct plan_seg *segs = realloc(w->p->segs, cap * sizeof(*segs));
        if (segs == NULL)
            return fail_memory();
        w->p->segs = segs;
        w->seg_cap = cap;
    }
    if (w->seg_count > w->p->first[w->chunk])
        w->p->segs[w->seg_count - 1].far = start;
    w->seg = w->seg_count++;
    w->p->segs[w->seg] = (struct plan_seg){.start = start, .far = PLAN_NEVER};
    return HL_OK;
}

/* The current segment ends because the chunk is used `again` on the device, or because its content
 * ends. Keeping the chunk until then saves a copy: in mode copy the load, or the write-back if it
 * is dirty. */
static void close_segment(struct walk *w, int again)
{
    struct plan_seg *s = &w->p->segs[w->seg];
    s->again = again != 0;
    s->useful = again || !w->m->o.copy || w->dirty;
}

static hl_status on_device(struct walk *w, int64_t at, uint32_t what)
{
    bool copy = w->m->o.copy;
    if (w->device)
        close_segment(w, 1);
    bool fresh = !w->device && !w->host;
    HL_TRY(add_seg(w, at));
    w->device = true;
    if (!copy) {
        w->host = false;
    } else if (fresh || (what & WRITE_DEVICE)) {
        w->host = false;
        w->dirty = true;
    }
    return HL_OK;
}

static void on_host(struct walk *w, uint32_t what)
{
    if (w->device) {
        struct plan_seg *s = &w->p->segs[w->seg];
        s->owed = 1;
        w->dirty = false;
        if (!w->m->o.copy || (what & WRITE_HOST))
            w->device = false;
    }
    w->host = true;
}

/* The content ends, or the planned time does. */
static void on_end(struct walk *w)
{
    if (w->device)
        close_segment(w, 0);
    w->device = w->host = w->dirty = false;
}

static hl_status walk_chunk(struct walk *w, const struct event *e, const struct event *end)
{
    const struct plan_model *m = w->m;
    size_t moments = m->t->moment_count;
    int64_t first_device = PLAN_NEVER;
    w->dirty = false;
    w->host = m->o.on_host != NULL ? m->o.on_host[w->chunk] : m->t->chunks[w->chunk].has_content;
    w->device = m->o.on_device != NULL ? m->o.on_device[w->chunk] : false;
    w->p->first[w->chunk] = w->seg_count;
    if (w->device) {
        HL_TRY(add_seg(w, -1));
        w->dirty = m->o.copy && !w->host;
    }
    for (uint64_t k = 0; k < m->o.iterations; k++)
        for (const struct event *v = e; v < end; v++) {
            int64_t at = (int64_t)(k * moments + v->moment);
            if (v->what & DEVICE)
                HL_TRY(on_device(w, at, v->what));
            if (v->what & HOST)
                on_host(w, v->what);
            if (v->what & END)
                on_end(w);
        }
    on_end(w);
    for (const struct event *v = end; v > e; v--)
        if (v[-1].what & DEVICE)
            first_device = m->end + v[-1].moment;
    if (w->seg_count > w->p->first[w->chunk])
        w->p->segs[w->seg_count - 1].far = first_device;
    return HL_OK;
}

/* The chunks pinned in each moment must fit. */
static hl_status check_pinned(const struct plan_model *m)
{
    const struct hl_trace *t = m->t;
    for (size_t i = 0; i < t->moment_count; i++) {
        const struct hl_trace_moment *mo = &t->moments[i];
        uint64_t pinned = 0;
        char name[160];
        for (size_t k = 0; k < mo->need_count; k++) {
            const struct hl_trace_use *u = &mo->need[k];
            pinned += u->on_host ? 0 : t->chunks[u->chunk].bytes;
            for (size_t j = 0; j < k && !m->o.copy; j++)
                if (mo->need[j].chunk == u->chunk)
                    return hl_fail(HL_EINVAL,
                                   "%s: chunk \"%s\" is needed on the device and on the host, "
                                   "which mode move can't do",
                                   hl_trace_moment_name(t, i, name, sizeof(name)),
                                   t->chunks[u->chunk].id);
        }
        if (pinned > mo->avail)
            return hl_fail(HL_ENOSPC,
                           "%s: needs %llu bytes on the device at once, and only %llu are "
                           "available there: %llu are missing",
                           hl_trace_moment_name(t, i, name, sizeof(name)),
                           (unsigned long long)pinned, (unsigned long long)mo->avail,
                           (unsigned long long)(pinned - mo->avail));
    }
    return HL_OK;
}

hl_status plan_walk(const struct plan_model *m, struct hl_chunk_plan *p)
{
    size_t chunks = m->t->chunk_count;
    struct walk w = {.m = m, .p = p};
    HL_TRY(check_pinned(m));
    uint32_t *next = calloc(chunks + 1, sizeof(*next));
    w.first = calloc(chunks + 1, sizeof(*w.first));
    hl_status st = next != NULL && w.first != NULL ? collect_events(&w, next) : fail_memory();
    for (w.chunk = 0; w.chunk < chunks && st == HL_OK; w.chunk++)
        st = walk_chunk(&w, w.events + w.first[w.chunk], w.events + next[w.chunk]);
    p->first[chunks] = w.seg_count;
    free(w.events);
    free(w.first);
    free(next);
    return st;
}
