#include "core/placement/shards.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#define SLOT_BITS_MIN 10
#define PAGE_ROOM_MIN 16
#define CACHE_LINE    64
#define HUGE_PAGE     (2 << 20)

static_assert(sizeof(struct hl_placed_shard) == 3 * CACHE_LINE, "a record takes three cache lines");
static_assert(HL_SHARDS_PAGE * sizeof(struct hl_placed_shard) % HUGE_PAGE == 0, "no page is left");
static_assert(offsetof(struct hl_placed_shard, life.state) == CACHE_LINE, "state: the second");
static_assert(offsetof(struct hl_placed_shard, use.slices) == 2 * CACHE_LINE + 6,
              "slices and readers: the last");

static uint32_t home_of(const struct hl_shard_table *t, struct hl_id id)
{
    return (uint32_t)(hl_id_mix(id) >> (64 - t->slot_bits));
}

static uint32_t slot_mask(const struct hl_shard_table *t)
{
    return (UINT32_C(1) << t->slot_bits) - 1;
}

hl_status hl_shard_table_init(struct hl_shard_table *t, uint32_t limit)
{
    if (limit == 0 || limit > HL_SHARDS_MAX)
        return hl_fail(HL_EINVAL, "a table of %u shards: it has 1 to %u", limit, HL_SHARDS_MAX);
    *t = (struct hl_shard_table){.slot_bits = SLOT_BITS_MIN, .limit = limit, .free = HL_SHARD_NONE};
    t->slots = calloc((size_t)1 << t->slot_bits, sizeof(*t->slots));
    return t->slots != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a shard table");
}

void hl_shard_table_fini(struct hl_shard_table *t)
{
    for (uint32_t i = 0; i < t->page_count; i++)
        free(t->pages[i]);
    free(t->pages);
    free(t->slots);
    *t = (struct hl_shard_table){0};
}

uint64_t hl_shard_table_bytes(const struct hl_shard_table *t)
{
    uint64_t records = (uint64_t)t->end * sizeof(struct hl_placed_shard);
    return (records + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE +
           (uint64_t)t->page_room * sizeof(*t->pages) +
           ((uint64_t)sizeof(*t->slots) << t->slot_bits);
}

/* ---- by id ----------------------------------------------------------------------------------- */

static void place_slot(struct hl_shard_table *t, struct hl_id id, uint32_t index)
{
    uint32_t slot = home_of(t, id);
    while (t->slots[slot] != 0)
        slot = (slot + 1) & slot_mask(t);
    t->slots[slot] = index + 1;
}

/* Keeps at most half of the slots in use, so that a lookup seldom reads more than two records. */
static hl_status grow_slots(struct hl_shard_table *t)
{
    if ((uint64_t)t->count + 1 <= (UINT64_C(1) << t->slot_bits) / 2)
        return HL_OK;
    uint32_t *slots = calloc((size_t)2 << t->slot_bits, sizeof(*slots));
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating slots of %u shards", t->count);
    free(t->slots);
    t->slots = slots;
    t->slot_bits++;
    for (uint32_t i = 0; i < t->end; i++)
        if (hl_shard_is_used(t, i))
            place_slot(t, hl_shard_at(t, i)->id, i);
    return HL_OK;
}

static uint32_t find_slot(const struct hl_shard_table *t, struct hl_id id)
{
    uint32_t slot = home_of(t, id);
    while (t->slots[slot] != 0 && !hl_id_equal(hl_shard_at(t, t->slots[slot] - 1)->id, id))
        slot = (slot + 1) & slot_mask(t);
    return slot;
}

uint32_t hl_shard_table_find(const struct hl_shard_table *t, struct hl_id id)
{
    return t->slots[find_slot(t, id)] - 1; /* a slot holds index + 1; 0 gives HL_SHARD_NONE */
}

void hl_shard_table_fetch_slot(const struct hl_shard_table *t, struct hl_id id)
{
    __builtin_prefetch(&t->slots[home_of(t, id)]);
}

void hl_shard_table_fetch_record(const struct hl_shard_table *t, struct hl_id id)
{
    uint32_t index = t->slots[home_of(t, id)];
    if (index != 0)
        hl_shard_fetch(t, index - 1);
}

/* Moves the entries after the hole up where their home slot allows it, so that no lookup ends too
 * early. */
static void clear_slot(struct hl_shard_table *t, uint32_t hole)
{
    for (uint32_t slot = (hole + 1) & slot_mask(t); t->slots[slot] != 0;
         slot = (slot + 1) & slot_mask(t)) {
        uint32_t home = home_of(t, hl_shard_at(t, t->slots[slot] - 1)->id);
        if (((slot - home) & slot_mask(t)) >= ((slot - hole) & slot_mask(t))) {
            t->slots[hole] = t->slots[slot];
            hole = slot;
        }
    }
    t->slots[hole] = 0;
}

/* ---- records --------------------------------------------------------------------------------- */

static hl_status add_page(struct hl_shard_table *t)
{
    if (t->page_count == t->page_room) {
        uint32_t room = t->page_room == 0 ? PAGE_ROOM_MIN : t->page_room * 2;
        struct hl_placed_shard **pages = realloc(t->pages, room * sizeof(struct hl_placed_shard *));
        if (pages == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating pages of %u shards", t->count);
        t->pages = pages;
        t->page_room = room;
    }
    struct hl_placed_shard *page = aligned_alloc(HUGE_PAGE, HL_SHARDS_PAGE * sizeof(*page));
    if (page == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a page of %u shards", HL_SHARDS_PAGE);
    if (t->advise != NULL)
        t->advise(page, HL_SHARDS_PAGE * sizeof(*page));
    t->pages[t->page_count++] = page;
    return HL_OK;
}

hl_status hl_shard_table_add(struct hl_shard_table *t, struct hl_id id, uint32_t *index)
{
    if (hl_id_is_none(id))
        return hl_fail(HL_EINVAL, "a shard without an id");
    if (hl_shard_table_find(t, id) != HL_SHARD_NONE)
        return hl_fail(HL_EEXIST, "shard %s is in the table already", hl_id_format(id).s);
    if (t->count == t->limit)
        return hl_fail(HL_ENOSPC, "the table of %u shards is full", t->limit);
    HL_TRY(grow_slots(t));
    uint32_t at = t->free;
    bool touched = false;
    if (at == HL_SHARD_NONE) {
        if (t->end == t->page_count * HL_SHARDS_PAGE)
            HL_TRY(add_page(t));
        at = t->end++;
    } else {
        t->free = hl_shard_at(t, at)->list_at;
        touched = hl_shard_at(t, at)->touched; /* the list of touched shards already has the
                                                * index */
    }
    *hl_shard_at(t, at) = (struct hl_placed_shard){
        .id = id, .timer_ms = HL_TIME_MAX, .used = true, .touched = touched};
    place_slot(t, id, at);
    t->count++;
    *index = at;
    return HL_OK;
}

void hl_shard_table_remove(struct hl_shard_table *t, uint32_t index)
{
    struct hl_placed_shard *s = hl_shard_at(t, index);
    uint32_t slot = find_slot(t, s->id);
    assert(t->slots[slot] == index + 1);
    clear_slot(t, slot);
    *s = (struct hl_placed_shard){.list_at = t->free, .touched = s->touched};
    t->free = index;
    t->count--;
}
