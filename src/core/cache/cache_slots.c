#include "core/cache/cache_slots.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_MIN 64
#define SLOTS_MAX (UINT32_C(1) << 24)

static uint32_t bucket_of(const struct hl_cache *c, uint32_t shard)
{
    return (uint32_t)((shard * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - c->index_bits));
}

static uint32_t *index_of(const struct hl_cache *c, uint32_t shard)
{
    uint32_t mask = (UINT32_C(1) << c->index_bits) - 1;
    uint32_t at = bucket_of(c, shard);
    while (c->index[at] != 0 && c->slots[c->index[at] - 1].shard != shard)
        at = (at + 1) & mask;
    return &c->index[at];
}

uint32_t hl_cache_find(const struct hl_cache *c, uint32_t shard)
{
    if (c->slot_room == 0)
        return HL_CACHE_NONE;
    uint32_t found = *index_of(c, shard);
    return found == 0 ? HL_CACHE_NONE : found - 1;
}

static hl_status grow_slots(struct hl_cache *c)
{
    uint32_t room = c->slot_room == 0 ? SLOTS_MIN : c->slot_room * 2;
    if (room > SLOTS_MAX)
        return hl_fail(HL_ENOSPC, "a cache can hold at most %u objects", SLOTS_MAX);
    struct hl_cache_slot *slots = realloc(c->slots, room * sizeof(*slots));
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a cache of %u objects", room);
    c->slots = slots;
    uint32_t *index = calloc((size_t)room * 2, sizeof(*index));
    if (index == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a cache of %u objects", room);
    free(c->index);
    c->index = index;
    c->slot_room = room;
    for (c->index_bits = 1; UINT32_C(1) << c->index_bits < room * 2;)
        c->index_bits++;
    for (uint32_t i = 0; i < c->slot_count; i++) /* when it grows, all slots are in use */
        *index_of(c, c->slots[i].shard) = i + 1;
    return HL_OK;
}

static void unindex_shard(struct hl_cache *c, uint32_t shard)
{
    uint32_t mask = (UINT32_C(1) << c->index_bits) - 1;
    uint32_t hole = (uint32_t)(index_of(c, shard) - c->index);
    for (uint32_t at = (hole + 1) & mask; c->index[at] != 0; at = (at + 1) & mask) {
        uint32_t home = bucket_of(c, c->slots[c->index[at] - 1].shard);
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* its home is not behind the hole */
            c->index[hole] = c->index[at];
            hole = at;
        }
    }
    c->index[hole] = 0;
}

static void link_slot(struct hl_cache *c, uint32_t slot, unsigned list, bool first)
{
    struct hl_cache_list *l = &c->lists[list];
    struct hl_cache_slot *s = &c->slots[slot];
    s->list = (uint8_t)list;
    s->before = first ? HL_CACHE_NONE : l->tail;
    s->next = first ? l->head : HL_CACHE_NONE;
    if (s->next != HL_CACHE_NONE)
        c->slots[s->next].before = slot;
    else
        l->tail = slot;
    if (s->before != HL_CACHE_NONE)
        c->slots[s->before].next = slot;
    else
        l->head = slot;
    l->bytes += s->size_bytes;
}

static void unlink_slot(struct hl_cache *c, uint32_t slot)
{
    struct hl_cache_slot *s = &c->slots[slot];
    struct hl_cache_list *l = &c->lists[s->list];
    if (s->before != HL_CACHE_NONE)
        c->slots[s->before].next = s->next;
    else
        l->head = s->next;
    if (s->next != HL_CACHE_NONE)
        c->slots[s->next].before = s->before;
    else
        l->tail = s->before;
    l->bytes -= s->size_bytes;
}

hl_status hl_cache_add(struct hl_cache *c, uint32_t shard, uint64_t size_bytes, unsigned list,
                       uint32_t *slot)
{
    if (c->free == HL_CACHE_NONE && c->slot_count == c->slot_room)
        HL_TRY(grow_slots(c));
    uint32_t at = c->free;
    if (at != HL_CACHE_NONE)
        c->free = c->slots[at].next;
    else
        at = c->slot_count++;
    c->slots[at] = (struct hl_cache_slot){.shard = shard, .size_bytes = size_bytes};
    *index_of(c, shard) = at + 1;
    link_slot(c, at, list, true);
    *slot = at;
    return HL_OK;
}

void hl_cache_drop(struct hl_cache *c, uint32_t slot)
{
    unindex_shard(c, c->slots[slot].shard);
    unlink_slot(c, slot);
    c->slots[slot].shard = HL_CACHE_NONE;
    c->slots[slot].next = c->free;
    c->free = slot;
}

void hl_cache_move(struct hl_cache *c, uint32_t slot, unsigned list)
{
    unlink_slot(c, slot);
    link_slot(c, slot, list, true);
}

void hl_cache_move_last(struct hl_cache *c, uint32_t slot, unsigned list)
{
    unlink_slot(c, slot);
    link_slot(c, slot, list, false);
}
