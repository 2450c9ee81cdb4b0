/* Computes what a plan would move: the pool's rules, applied to a few flags per chunk. */
#include <stdbool.h>
#include <stdlib.h>

#include "hybridps/plan/plan_private.h"

struct entry {
    double rank;
    uint32_t chunk, version;
};

struct sim {
    const struct plan_model *m;
    struct hl_chunk_plan *p;
    enum plan_rule rule;
    uint8_t *device, *host;
    uint32_t *version; /* version of a chunk's only valid entry in the heap */
    int64_t *needed;   /* last moment in which it was needed on the device */
    uint64_t resident;
    struct entry *heap;
    size_t count, cap;
    struct plan_cost *cost; /* of this iteration */
};

static bool entry_before(const struct entry *a, const struct entry *b)
{
    if (a->rank < b->rank || b->rank < a->rank)
        return a->rank > b->rank;
    return a->chunk < b->chunk;
}

static hl_status heap_push(struct sim *s, uint32_t chunk)
{
    if (s->count == s->cap) {
        size_t cap = s->cap == 0 ? 256 : s->cap * 2;
        struct entry *heap = realloc(s->heap, cap * sizeof(*heap));
        if (heap == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
        s->heap = heap;
        s->cap = cap;
    }
    const struct plan_seg *seg = &s->p->segs[s->p->current[chunk]];
    struct entry e = {plan_seg_rank(s->p, s->rule, seg, !s->host[chunk]), chunk,
                      ++s->version[chunk]};
    size_t at = s->count++;
    for (; at > 0 && entry_before(&e, &s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = e;
    return HL_OK;
}

static struct entry heap_pop(struct sim *s)
{
    struct entry top = s->heap[0], last = s->heap[--s->count];
    size_t at = 0;
    while (2 * at + 1 < s->count) {
        size_t child = 2 * at + 1;
        if (child + 1 < s->count && entry_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!entry_before(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    if (s->count > 0)
        s->heap[at] = last;
    return top;
}

static uint64_t bytes_of(const struct sim *s, uint32_t chunk)
{
    return s->m->t->chunks[chunk].bytes;
}

static void leave_device(struct sim *s, uint32_t chunk)
{
    s->device[chunk] = 0;
    s->version[chunk]++;
    s->resident -= bytes_of(s, chunk);
}

static void write_back(struct sim *s, uint32_t chunk)
{
    if (!s->host[chunk])
        s->cost->d2h += bytes_of(s, chunk);
    s->host[chunk] = 1;
}

static hl_status use_on_host(struct sim *s, const struct hl_trace_use *u)
{
    uint32_t c = u->chunk;
    if (s->device[c]) {
        write_back(s, c);
        if (!s->m->o.copy || u->write)
            leave_device(s, c);
        else if (s->needed[c] != s->p->position)
            HL_TRY(heap_push(s, c)); /* its rank has changed: it is clean now */
    }
    s->host[c] = 1;
    return HL_OK;
}

static hl_status make_room(struct sim *s, uint64_t more, uint64_t avail)
{
    while (s->resident + more > avail) {
        if (s->count == 0)
            return hl_fail(HL_EINTERNAL, "no eviction candidate at step %lld of the plan",
                           (long long)s->p->position);
        struct entry e = heap_pop(s);
        /* A chunk that is needed now gets a new entry later. */
        if (s->version[e.chunk] != e.version || s->needed[e.chunk] == s->p->position)
            continue;
        write_back(s, e.chunk);
        leave_device(s, e.chunk);
    }
    return HL_OK;
}

static hl_status use_on_device(struct sim *s, const struct hl_trace_use *u)
{
    uint32_t c = u->chunk;
    if (!s->device[c]) {
        s->cost->h2d += s->host[c] ? bytes_of(s, c) : 0;
        s->resident += bytes_of(s, c);
        s->device[c] = 1;
        if (!s->m->o.copy)
            s->host[c] = 0;
    }
    if (u->write)
        s->host[c] = 0;
    hl_chunk_plan_used(s->p, c);
    return heap_push(s, c);
}

/* A chunk needed in both places in one moment is written back after the load. */
static hl_status sim_moment(struct sim *s, const struct hl_trace_moment *m)
{
    uint64_t more = 0;
    for (size_t i = 0; i < m->need_count; i++)
        if (!m->need[i].on_host) {
            s->needed[m->need[i].chunk] = s->p->position;
            more += s->device[m->need[i].chunk] ? 0 : bytes_of(s, m->need[i].chunk);
        }
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].on_host && s->needed[m->need[i].chunk] != s->p->position)
            HL_TRY(use_on_host(s, &m->need[i]));
    HL_TRY(make_room(s, more, m->avail));
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].on_host && !s->device[m->need[i].chunk])
            s->host[m->need[i].chunk] = 1; /* new content begins there */
    for (size_t i = 0; i < m->need_count; i++)
        if (!m->need[i].on_host)
            HL_TRY(use_on_device(s, &m->need[i]));
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].on_host && s->needed[m->need[i].chunk] == s->p->position) {
            HL_TRY(use_on_host(s, &m->need[i]));
            HL_TRY(heap_push(s, m->need[i].chunk));
        }
    for (size_t i = 0; i < m->free_count; i++) {
        if (s->device[m->free[i]])
            leave_device(s, m->free[i]);
        s->host[m->free[i]] = 0;
    }
    return HL_OK;
}

/* Ranks all chunks again: at the start, and where a plan jumps back. */
static hl_status rank_all(struct sim *s)
{
    s->count = 0;
    for (uint32_t c = 0; c < s->m->t->chunk_count; c++)
        if (s->device[c])
            HL_TRY(heap_push(s, c));
    return HL_OK;
}

static hl_status sim_start(struct sim *s)
{
    const struct plan_model *m = s->m;
    for (uint32_t c = 0; c < m->t->chunk_count; c++) {
        s->needed[c] = -1;
        s->host[c] = m->o.on_host != NULL ? m->o.on_host[c] : m->t->chunks[c].has_content;
        s->device[c] = m->o.on_device != NULL ? m->o.on_device[c] : 0;
        s->resident += s->device[c] ? bytes_of(s, c) : 0;
    }
    hl_chunk_plan_seek(s->p, 0);
    return rank_all(s);
}

static void note_places(const struct sim *s, uint8_t *places, uint64_t iteration)
{
    size_t n = s->m->t->chunk_count;
    for (size_t c = 0; c < n && places != NULL; c++)
        places[iteration * n + c] =
            (s->device[c] ? HL_CHUNK_ON_DEVICE : 0) | (s->host[c] ? HL_CHUNK_ON_HOST : 0);
}

hl_status plan_simulate(const struct plan_model *m, struct hl_chunk_plan *p, enum plan_rule rule,
                        uint64_t iterations, struct plan_cost *costs, uint8_t *places)
{
    size_t n = m->t->chunk_count + 1;
    struct sim s = {.m = m, .p = p, .rule = rule};
    s.device = calloc(n, 1);
    s.host = calloc(n, 1);
    s.version = calloc(n, sizeof(*s.version));
    s.needed = calloc(n, sizeof(*s.needed));
    hl_status st = HL_OK;
    if (s.device == NULL || s.host == NULL || s.version == NULL || s.needed == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    else
        st = sim_start(&s);
    for (uint64_t k = 0; k < iterations && st == HL_OK; k++) {
        note_places(&s, places, k);
        costs[k] = (struct plan_cost){0};
        s.cost = &costs[k];
        for (size_t i = 0; i < m->t->moment_count && st == HL_OK; i++) {
            int64_t before = p->position;
            hl_chunk_plan_seek(p, k * m->t->moment_count + i);
            if (k + i > 0 && p->position != before + 1)
                st = rank_all(&s);
            if (st == HL_OK)
                st = sim_moment(&s, &m->t->moments[i]);
        }
    }
    if (st == HL_OK)
        note_places(&s, places, iterations);
    free(s.device);
    free(s.host);
    free(s.version);
    free(s.needed);
    free(s.heap);
    return st;
}
