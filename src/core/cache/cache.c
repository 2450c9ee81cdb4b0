/* Caches with standard policies. lru, lfu, gdsf and static are in this file. Objects that leave by
 * score are in a heap whose entries are never updated, only added again: an entry whose object was
 * read since is skipped. */
#include "core/cache/cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/cache/cache_queues.h"
#include "core/cache/cache_slots.h"

#define SLOT_BITS    24
#define S3_COUNT_MAX 3

const char *hl_cache_name(enum hl_cache_kind kind)
{
    static const char *const names[] = {
#define X(name, text) [HL_CACHE_##name] = (text),
        HL_CACHE_MAP(X)
#undef X
    };
    return names[kind];
}

static void ignore_change(void *arg, uint32_t shard, bool entered)
{
    (void)arg;
    (void)shard;
    (void)entered;
}

static uint64_t share_of(uint64_t bytes, unsigned percent)
{
    return bytes / 100 * percent + bytes % 100 * percent / 100;
}

/* Divides the room among the queues. */
static void divide_rooms(struct hl_cache *c)
{
    if (c->kind == HL_CACHE_S3FIFO) {
        c->lists[HL_S3_SMALL].room = share_of(c->capacity, 10);
        c->lists[HL_S3_GHOST].room = share_of(c->capacity, 90);
    }
    if (c->kind == HL_CACHE_WTINYLFU) {
        uint64_t main_bytes = share_of(c->capacity, 99);
        c->lists[HL_TINY_WINDOW].room = c->capacity - main_bytes;
        c->lists[HL_TINY_PROTECTED].room = share_of(main_bytes, 80);
    }
}

hl_status hl_cache_init(struct hl_cache *c, enum hl_cache_kind kind, uint64_t capacity,
                        uint64_t typical_bytes)
{
    *c = (struct hl_cache){.kind = kind,
                           .capacity = capacity,
                           .free = HL_CACHE_NONE,
                           .hand = HL_CACHE_NONE,
                           .changed = ignore_change};
    for (unsigned i = 0; i < HL_CACHE_LISTS; i++)
        c->lists[i] = (struct hl_cache_list){.head = HL_CACHE_NONE, .tail = HL_CACHE_NONE};
    divide_rooms(c);
    if (kind != HL_CACHE_WTINYLFU)
        return HL_OK;
    return hl_sketch_init(&c->sketch, capacity / (typical_bytes > 0 ? typical_bytes : 1));
}

void hl_cache_fini(struct hl_cache *c)
{
    free(c->slots);
    free(c->index);
    free(c->sketch.table);
    hl_heap_fini(&c->heap);
    *c = (struct hl_cache){.free = HL_CACHE_NONE};
}

static bool is_ghost(const struct hl_cache *c, uint32_t slot)
{
    return c->kind == HL_CACHE_S3FIFO && c->slots[slot].list == HL_S3_GHOST;
}

bool hl_cache_has(const struct hl_cache *c, uint32_t shard)
{
    uint32_t slot = hl_cache_find(c, shard);
    return slot != HL_CACHE_NONE && !is_ghost(c, slot);
}

/* ---- by a score ------------------------------------------------------------------------------ */

/* Numbers >= 0 are ordered like their bits. */
static uint64_t bits_of(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static double number_of(uint64_t bits)
{
    double number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

static uint64_t tie_of(const struct hl_cache *c, uint32_t slot)
{
    return c->slots[slot].sequence << SLOT_BITS | slot;
}

static bool is_current(const struct hl_cache *c, const struct hl_heap_entry *e)
{
    uint32_t slot = (uint32_t)(e->tie & ((1u << SLOT_BITS) - 1));
    return c->slots[slot].shard != HL_CACHE_NONE && tie_of(c, slot) == e->tie;
}

static hl_status rank_slot(struct hl_cache *c, uint32_t slot)
{
    struct hl_cache_slot *s = &c->slots[slot];
    s->key = c->kind == HL_CACHE_LFU
                 ? s->frequency
                 : bits_of(c->inflation + (double)s->frequency / (double)s->size_bytes);
    if (c->heap.n > 1024 + 4 * (size_t)c->slot_count) { /* most entries are outdated */
        c->heap.n = 0;
        for (uint32_t i = c->lists[0].head; i != HL_CACHE_NONE; i = c->slots[i].next)
            if (i != slot)
                HL_TRY(hl_heap_push(&c->heap, c->slots[i].key, tie_of(c, i)));
    }
    return hl_heap_push(&c->heap, s->key, tie_of(c, slot));
}

static uint32_t take_least(struct hl_cache *c)
{
    struct hl_heap_entry e;
    do
        e = hl_heap_pop(&c->heap);
    while (!is_current(c, &e));
    c->inflation = c->kind == HL_CACHE_GDSF ? number_of(e.key) : 0;
    return (uint32_t)(e.tie & ((1u << SLOT_BITS) - 1));
}

/* ---- access ---------------------------------------------------------------------------------- */

static bool has_score(const struct hl_cache *c)
{
    return c->kind == HL_CACHE_LFU || c->kind == HL_CACHE_GDSF;
}

static hl_status hit_slot(struct hl_cache *c, uint32_t slot)
{
    struct hl_cache_slot *s = &c->slots[slot];
    s->sequence = c->sequence;
    s->frequency += s->frequency < UINT32_MAX;
    switch (c->kind) {
    case HL_CACHE_LRU:
        hl_cache_move(c, slot, 0);
        return HL_OK;
    case HL_CACHE_LFU:
    case HL_CACHE_GDSF:
        return rank_slot(c, slot);
    case HL_CACHE_S3FIFO:
        s->frequency = s->frequency > S3_COUNT_MAX ? S3_COUNT_MAX : s->frequency;
        return HL_OK;
    case HL_CACHE_WTINYLFU:
        hl_wtinylfu_hit(c, slot);
        return HL_OK;
    default:
        return HL_OK;
    }
}

static void evict_plainly(struct hl_cache *c)
{
    uint32_t leaving = has_score(c) ? take_least(c) : c->lists[0].tail;
    uint32_t left = c->slots[leaving].shard;
    c->used -= c->slots[leaving].size_bytes;
    hl_cache_drop(c, leaving);
    c->changed(c->arg, left, false);
}

static hl_status enter_plainly(struct hl_cache *c, uint32_t shard, uint64_t size_bytes)
{
    uint32_t slot;
    if (c->kind == HL_CACHE_STATIC && c->used + size_bytes > c->capacity)
        return HL_OK;
    while (c->used + size_bytes > c->capacity)
        evict_plainly(c);
    HL_TRY(hl_cache_add(c, shard, size_bytes, 0, &slot));
    c->used += size_bytes;
    c->changed(c->arg, shard, true);
    c->slots[slot].sequence = c->sequence;
    c->slots[slot].frequency = 1;
    return has_score(c) ? rank_slot(c, slot) : HL_OK;
}

hl_status hl_cache_access(struct hl_cache *c, uint32_t shard, uint64_t size_bytes, bool *hit)
{
    uint32_t slot = hl_cache_find(c, shard);
    bool found = slot != HL_CACHE_NONE && !is_ghost(c, slot);
    c->sequence++;
    if (c->kind == HL_CACHE_WTINYLFU)
        hl_sketch_add(&c->sketch, shard);
    *hit = found;
    if (found)
        return hit_slot(c, slot);
    if (size_bytes > c->capacity)
        return HL_OK;
    switch (c->kind) {
    case HL_CACHE_SIEVE:
        return hl_sieve_enter(c, shard, size_bytes);
    case HL_CACHE_S3FIFO:
        return hl_s3fifo_enter(c, shard, size_bytes);
    case HL_CACHE_WTINYLFU:
        return hl_wtinylfu_enter(c, shard, size_bytes);
    default:
        return enter_plainly(c, shard, size_bytes);
    }
}

bool hl_cache_evict(struct hl_cache *c)
{
    if (c->used == 0 || c->kind == HL_CACHE_STATIC)
        return false;
    if (c->kind == HL_CACHE_SIEVE)
        hl_sieve_evict(c);
    else if (c->kind == HL_CACHE_S3FIFO)
        hl_s3fifo_evict(c);
    else if (c->kind == HL_CACHE_WTINYLFU)
        hl_wtinylfu_evict(c);
    else
        evict_plainly(c);
    return true;
}

void hl_cache_resize(struct hl_cache *c, uint64_t capacity)
{
    struct hl_cache_list *ghost = &c->lists[HL_S3_GHOST];
    if (capacity == c->capacity)
        return;
    c->capacity = capacity;
    divide_rooms(c);
    while (c->used > capacity && hl_cache_evict(c))
        continue;
    while (c->kind == HL_CACHE_S3FIFO && ghost->bytes > ghost->room)
        hl_cache_drop(c, ghost->tail);
}

void hl_cache_remove(struct hl_cache *c, uint32_t shard)
{
    uint32_t slot = hl_cache_find(c, shard);
    if (slot == HL_CACHE_NONE)
        return;
    bool was_there = !is_ghost(c, slot);
    if (c->hand == slot)
        c->hand = c->slots[slot].before;
    if (was_there)
        c->used -= c->slots[slot].size_bytes;
    hl_cache_drop(c, slot);
    if (was_there)
        c->changed(c->arg, shard, false);
}
