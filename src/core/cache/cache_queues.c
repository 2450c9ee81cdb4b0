#include "core/cache/cache_queues.h"

#include <stdlib.h>

#include "core/cache/cache_slots.h"

#define SKETCH_ROWS   4
#define SKETCH_MAX    15
#define SKETCH_SAMPLE 10
#define S3_FREQUENT   1 /* more reads: to the main queue */

static void evict_slot(struct hl_cache *c, uint32_t slot)
{
    uint32_t shard = c->slots[slot].shard;
    c->used -= c->slots[slot].size_bytes;
    hl_cache_drop(c, slot);
    c->changed(c->arg, shard, false);
}

static hl_status enter_list(struct hl_cache *c, uint32_t shard, uint64_t size_bytes, unsigned list,
                            uint32_t *slot)
{
    HL_TRY(hl_cache_add(c, shard, size_bytes, list, slot));
    c->used += size_bytes;
    c->changed(c->arg, shard, true);
    return HL_OK;
}

/* ---- sieve ----------------------------------------------------------------------------------- */

void hl_sieve_evict(struct hl_cache *c)
{
    uint32_t at = c->hand != HL_CACHE_NONE ? c->hand : c->lists[0].tail;
    while (c->slots[at].frequency > 0) {
        c->slots[at].frequency = 0;
        at = c->slots[at].before != HL_CACHE_NONE ? c->slots[at].before : c->lists[0].tail;
    }
    c->hand = c->slots[at].before;
    evict_slot(c, at);
}

hl_status hl_sieve_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes)
{
    uint32_t slot;
    while (c->used + size_bytes > c->capacity)
        hl_sieve_evict(c);
    return enter_list(c, shard, size_bytes, 0, &slot);
}

/* ---- s3fifo ---------------------------------------------------------------------------------- */

static void evict_from_main(struct hl_cache *c)
{
    uint32_t at;
    while (c->slots[at = c->lists[HL_S3_MAIN].tail].frequency > 0) {
        c->slots[at].frequency--;
        hl_cache_move(c, at, HL_S3_MAIN);
    }
    evict_slot(c, at);
}

/* Evicts the first object that was not read; those before it move to the main queue. */
static void evict_from_small(struct hl_cache *c)
{
    struct hl_cache_list *ghost = &c->lists[HL_S3_GHOST];
    while (c->lists[HL_S3_SMALL].tail != HL_CACHE_NONE) {
        uint32_t at = c->lists[HL_S3_SMALL].tail;
        bool frequent = c->slots[at].frequency > S3_FREQUENT;
        c->slots[at].frequency = 0;
        hl_cache_move(c, at, frequent ? HL_S3_MAIN : HL_S3_GHOST);
        if (frequent)
            continue;
        c->used -= c->slots[at].size_bytes;
        c->changed(c->arg, c->slots[at].shard, false);
        while (ghost->bytes > ghost->room)
            hl_cache_drop(c, ghost->tail);
        return;
    }
}

void hl_s3fifo_evict(struct hl_cache *c)
{
    const struct hl_cache_list *small = &c->lists[HL_S3_SMALL];
    for (uint64_t used = c->used; c->used == used;) {
        bool from_small = small->bytes >= small->room && small->tail != HL_CACHE_NONE;
        if (from_small || c->lists[HL_S3_MAIN].tail == HL_CACHE_NONE)
            evict_from_small(c);
        else
            evict_from_main(c);
    }
}

hl_status hl_s3fifo_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes)
{
    uint32_t slot = hl_cache_find(c, shard);
    bool was_ghost = slot != HL_CACHE_NONE;
    if (was_ghost)
        hl_cache_drop(c, slot);
    while (c->used + size_bytes > c->capacity)
        hl_s3fifo_evict(c);
    return enter_list(c, shard, size_bytes, was_ghost ? HL_S3_MAIN : HL_S3_SMALL, &slot);
}

/* ---- the sketch ------------------------------------------------------------------------------ */

hl_status hl_sketch_init(struct hl_cache_sketch *k, uint64_t objects)
{
    uint32_t words = 8;
    while (words < objects && words < UINT32_C(1) << 22)
        words *= 2;
    k->table = calloc(words, sizeof(*k->table));
    if (k->table == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a sketch of %u objects", words);
    k->mask = words - 1;
    k->added = 0;
    k->sample = SKETCH_SAMPLE * (objects > 0 ? objects : 1);
    return HL_OK;
}

/* Row i uses 4 of the 16 counters of a word; returns the shift of the shard's counter. */
static unsigned counter_of(const struct hl_cache_sketch *k, uint32_t shard, unsigned row,
                           uint32_t *word)
{
    uint64_t h = (shard + UINT64_C(0x9e3779b97f4a7c15) * (row + 1)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 31) * UINT64_C(0x94d049bb133111eb);
    *word = (uint32_t)(h >> 32) & k->mask;
    return (row * 4 + (unsigned)(h >> 20 & 3)) * 4;
}

void hl_sketch_add(struct hl_cache_sketch *k, uint32_t shard)
{
    bool added = false;
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint32_t word;
        unsigned shift = counter_of(k, shard, row, &word);
        if ((k->table[word] >> shift & SKETCH_MAX) < SKETCH_MAX) {
            k->table[word] += UINT64_C(1) << shift;
            added = true;
        }
    }
    if (!added || ++k->added < k->sample)
        return;
    uint64_t odd = 0;
    for (uint32_t i = 0; i <= k->mask; i++) {
        odd += (unsigned)__builtin_popcountll(k->table[i] & UINT64_C(0x1111111111111111));
        k->table[i] = k->table[i] >> 1 & UINT64_C(0x7777777777777777);
    }
    k->added = (k->added - odd / SKETCH_ROWS) / 2;
}

unsigned hl_sketch_count(const struct hl_cache_sketch *k, uint32_t shard)
{
    unsigned least = SKETCH_MAX;
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint32_t word;
        unsigned shift = counter_of(k, shard, row, &word);
        unsigned count = (unsigned)(k->table[word] >> shift & SKETCH_MAX);
        least = count < least ? count : least;
    }
    return least;
}

/* ---- wtinylfu -------------------------------------------------------------------------------- */

void hl_wtinylfu_hit(struct hl_cache *c, uint32_t slot)
{
    struct hl_cache_list *protected = &c->lists[HL_TINY_PROTECTED];
    struct hl_cache_slot *s = &c->slots[slot];
    if (s->list != HL_TINY_PROBATION || s->size_bytes > protected->room) {
        hl_cache_move(c, slot, s->list);
        return;
    }
    hl_cache_move(c, slot, HL_TINY_PROTECTED);
    while (protected->bytes > protected->room)
        hl_cache_move(c, protected->tail, HL_TINY_PROBATION);
}

/* Evicts the object and returns the next one of its queue. */
static uint32_t evict_and_next(struct hl_cache *c, uint32_t slot)
{
    uint32_t next = c->slots[slot].before;
    evict_slot(c, slot);
    return next;
}

/* Evicts until at most `most` bytes are left. It compares candidates from the window with the
 * oldest of the main queues: the less frequently read one leaves; if they are equal, the
 * candidate. */
static void evict_by_frequency(struct hl_cache *c, uint32_t candidate, uint64_t most)
{
    static const unsigned after[HL_CACHE_LISTS] = {
        [HL_TINY_PROBATION] = HL_TINY_PROTECTED, [HL_TINY_PROTECTED] = HL_TINY_WINDOW};
    unsigned victims = HL_TINY_PROBATION;
    uint32_t victim = c->lists[victims].tail;
    bool from_window = false;
    while (c->used > most) {
        if (candidate == HL_CACHE_NONE && !from_window) {
            candidate = c->lists[HL_TINY_WINDOW].tail;
            from_window = true;
        }
        if (candidate == HL_CACHE_NONE && victim == HL_CACHE_NONE) {
            victims = after[victims];
            victim = c->lists[victims].tail;
        } else if (victim == HL_CACHE_NONE) {
            candidate = evict_and_next(c, candidate);
        } else if (candidate == HL_CACHE_NONE) {
            victim = evict_and_next(c, victim);
        } else if (candidate == victim) {
            victim = evict_and_next(c, candidate);
            candidate = HL_CACHE_NONE;
        } else if (hl_sketch_count(&c->sketch, c->slots[candidate].shard) >
                   hl_sketch_count(&c->sketch, c->slots[victim].shard)) {
            victim = evict_and_next(c, victim);
            candidate = c->slots[candidate].before;
        } else {
            candidate = evict_and_next(c, candidate);
        }
    }
}

hl_status hl_wtinylfu_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes)
{
    struct hl_cache_list *window = &c->lists[HL_TINY_WINDOW];
    uint32_t slot, candidate = HL_CACHE_NONE;
    HL_TRY(enter_list(c, shard, size_bytes, HL_TINY_WINDOW, &slot));
    if (size_bytes > window->room) /* too large for the window: a candidate at once */
        hl_cache_move_last(c, slot, HL_TINY_WINDOW);
    while (window->bytes > window->room) {
        uint32_t oldest = window->tail;
        hl_cache_move(c, oldest, HL_TINY_PROBATION);
        candidate = candidate == HL_CACHE_NONE ? oldest : candidate;
    }
    evict_by_frequency(c, candidate, c->capacity);
    return HL_OK;
}

void hl_wtinylfu_evict(struct hl_cache *c)
{
    evict_by_frequency(c, HL_CACHE_NONE, c->used - 1);
}
