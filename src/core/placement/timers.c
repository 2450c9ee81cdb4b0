#include "core/placement/timers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BITS    8
#define CHUNK        62 /* entries; a chunk has 512 bytes */
#define BLOCK_CHUNKS 64

struct hl_timer_chunk {
    struct hl_timer_chunk *next;
    uint32_t count;
    struct hl_shard_timer entries[CHUNK];
};

struct hl_timer_block {
    struct hl_timer_block *next;
    struct hl_timer_chunk chunks[BLOCK_CHUNKS];
};

static_assert(1 << SLOT_BITS == HL_TIMER_SLOTS, "a slot has SLOT_BITS bits of a tick");
static_assert(SLOT_BITS * HL_TIMER_LEVELS == 32, "the levels have all bits of a tick");

/* ---- chunks ---------------------------------------------------------------------------------- */

static void chunk_give(struct hl_timers *t, struct hl_timer_chunk *chunk)
{
    chunk->next = t->free;
    t->free = chunk;
    t->free_count++;
}

/* Makes sure that `count` chunks are free. */
static hl_status chunks_need(struct hl_timers *t, uint32_t count)
{
    while (t->free_count < count) {
        struct hl_timer_block *block = malloc(sizeof(*block));
        if (block == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating timers of %u shards",
                           t->count + CHUNK * BLOCK_CHUNKS);
        block->next = t->blocks;
        t->blocks = block;
        t->block_count++;
        for (unsigned i = 0; i < BLOCK_CHUNKS; i++)
            chunk_give(t, &block->chunks[i]);
    }
    return HL_OK;
}

void hl_timers_fini(struct hl_timers *t)
{
    while (t->blocks != NULL) {
        struct hl_timer_block *block = t->blocks;
        t->blocks = block->next;
        free(block);
    }
    *t = (struct hl_timers){0};
}

uint64_t hl_timers_bytes(const struct hl_timers *t)
{
    return (uint64_t)t->block_count * sizeof(struct hl_timer_block);
}

void hl_timers_clear(struct hl_timers *t, int64_t base_ms)
{
    for (unsigned level = 0; level < HL_TIMER_LEVELS; level++)
        for (unsigned slot = 0; slot < HL_TIMER_SLOTS; slot++)
            for (struct hl_timer_chunk *chunk; (chunk = t->slots[level][slot]) != NULL;) {
                t->slots[level][slot] = chunk->next;
                chunk_give(t, chunk);
            }
    memset(t->counts, 0, sizeof(t->counts));
    t->count = t->tick = 0;
    t->base_ms = base_ms;
}

/* ---- times ----------------------------------------------------------------------------------- */

uint32_t hl_timers_tick(const struct hl_timers *t, int64_t at_ms)
{
    int64_t ticks = (at_ms - t->base_ms) / HL_TIMER_TICK_MS;
    return ticks < 0 ? 0 : ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

bool hl_timers_are_old(const struct hl_timers *t, int64_t now_ms)
{
    return hl_timers_tick(t, now_ms) > UINT32_MAX / 2;
}

static unsigned slot_at(uint32_t tick, unsigned level)
{
    return tick >> (SLOT_BITS * level) & (HL_TIMER_SLOTS - 1);
}

/* The level of a timer: the highest one at which its slot differs from the current slot. */
static unsigned level_of(const struct hl_timers *t, uint32_t tick)
{
    uint32_t differs = tick ^ t->tick;
    return differs == 0 ? 0 : (unsigned)(31 - __builtin_clz(differs)) / SLOT_BITS;
}

/* Needs a free chunk. A timer in the past is due now. */
static void put_timer(struct hl_timers *t, struct hl_shard_timer timer)
{
    uint32_t tick = timer.tick > t->tick ? timer.tick : t->tick;
    unsigned level = level_of(t, tick);
    struct hl_timer_chunk **slot = &t->slots[level][slot_at(tick, level)], *chunk = *slot;
    if (chunk == NULL || chunk->count == CHUNK) {
        chunk = t->free;
        t->free = chunk->next;
        t->free_count--;
        chunk->next = *slot;
        chunk->count = 0;
        *slot = chunk;
    }
    chunk->entries[chunk->count++] = timer;
    t->counts[level]++;
}

hl_status hl_timers_add(struct hl_timers *t, int64_t at_ms, uint32_t shard)
{
    HL_TRY(chunks_need(t, 1));
    put_timer(t, (struct hl_shard_timer){.tick = hl_timers_tick(t, at_ms), .shard = shard});
    t->count++;
    return HL_OK;
}

/* Moves the entries of a slot whose time has come to lower levels. Each chunk is freed before its
 * entries need new ones. */
static void spread_slot(struct hl_timers *t, unsigned level)
{
    struct hl_timer_chunk **slot = &t->slots[level][slot_at(t->tick, level)], *chunk;
    while ((chunk = *slot) != NULL) {
        struct hl_timer_chunk full = *chunk;
        *slot = chunk->next;
        chunk_give(t, chunk);
        t->counts[level] -= full.count;
        for (uint32_t i = 0; i < full.count; i++)
            put_timer(t, full.entries[i]);
    }
}

/* Spreading a slot adds at most one chunk to each slot below. */
static hl_status chunks_need_spread(struct hl_timers *t)
{
    const uint32_t most = (HL_TIMER_LEVELS - 1) * HL_TIMER_SLOTS;
    uint32_t above = t->counts[1] + t->counts[2] + t->counts[3];
    return chunks_need(t, above < most ? above : most);
}

/* Advances to the next tick that can have entries, at most to `to`; the ticks skipped have none. */
static hl_status step_on(struct hl_timers *t, uint32_t to)
{
    unsigned level = 0;
    while (level < HL_TIMER_LEVELS - 1 && t->counts[level] == 0)
        level++;
    uint64_t next = (((uint64_t)t->tick >> (SLOT_BITS * level)) + 1) << (SLOT_BITS * level);
    if (next > to) {
        t->tick = to;
        return HL_OK;
    }
    HL_TRY(chunks_need_spread(t));
    t->tick = (uint32_t)next;
    for (level = HL_TIMER_LEVELS - 1; level > 0; level--)
        if ((t->tick & ((UINT32_C(1) << (SLOT_BITS * level)) - 1)) == 0)
            spread_slot(t, level);
    return HL_OK;
}

hl_status hl_timers_take(struct hl_timers *t, int64_t now_ms, struct hl_shard_timer *out,
                         uint32_t max, uint32_t *count)
{
    uint32_t to = hl_timers_tick(t, now_ms), n = 0;
    while (n < max) {
        struct hl_timer_chunk **slot = &t->slots[0][slot_at(t->tick, 0)], *chunk = *slot;
        if (t->tick > to || (chunk == NULL && t->tick == to))
            break;
        if (chunk == NULL) {
            hl_status st = step_on(t, to);
            if (st != HL_OK && n == 0)
                return st;
            if (st != HL_OK)
                break; /* return what was collected; the next call reports the error */
            continue;
        }
        uint32_t some = chunk->count < max - n ? chunk->count : max - n;
        chunk->count -= some;
        memcpy(out + n, chunk->entries + chunk->count, some * sizeof(*out));
        n += some;
        t->counts[0] -= some;
        if (chunk->count == 0) {
            *slot = chunk->next;
            chunk_give(t, chunk);
        }
    }
    t->count -= n;
    *count = n;
    return HL_OK;
}

static uint32_t first_tick(const struct hl_timer_chunk *chunk)
{
    uint32_t first = UINT32_MAX;
    for (; chunk != NULL; chunk = chunk->next)
        for (uint32_t i = 0; i < chunk->count; i++)
            first = chunk->entries[i].tick < first ? chunk->entries[i].tick : first;
    return first;
}

int64_t hl_timers_next_ms(const struct hl_timers *t)
{
    for (unsigned level = 0; level < HL_TIMER_LEVELS; level++)
        for (unsigned slot = slot_at(t->tick, level); slot < HL_TIMER_SLOTS; slot++)
            if (t->slots[level][slot] != NULL)
                return t->base_ms + (int64_t)first_tick(t->slots[level][slot]) * HL_TIMER_TICK_MS;
    return INT64_MAX;
}
