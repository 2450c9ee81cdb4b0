#include "core/placement/sets.h"

#include <stdlib.h>

#define ROOM_MIN 64
#define ROOM_MAX (UINT32_C(1) << 31)

void hl_set_table_fini(struct hl_set_table *t)
{
    free(t->sets);
    *t = (struct hl_set_table){0};
}

uint64_t hl_set_table_bytes(const struct hl_set_table *t)
{
    return (uint64_t)t->room * sizeof(*t->sets);
}

struct hl_shard_set *hl_set_table_find(const struct hl_set_table *t, uint32_t set)
{
    return set < t->end && t->sets[set].used ? &t->sets[set] : NULL;
}

static hl_status unknown_set(uint32_t set)
{
    return hl_fail(HL_ENOENT, "no set of shards has the index %u: add it first", set);
}

static hl_status grow_sets(struct hl_set_table *t)
{
    if (t->end < t->room)
        return HL_OK;
    uint32_t room = t->room == 0 ? ROOM_MIN : t->room * 2;
    struct hl_shard_set *sets =
        t->room == ROOM_MAX ? NULL : realloc(t->sets, (size_t)room * sizeof(*sets));
    if (sets == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %u sets of shards", room);
    t->sets = sets;
    t->room = room;
    return HL_OK;
}

hl_status hl_set_table_add(struct hl_set_table *t, uint32_t above, uint32_t *set)
{
    const struct hl_shard_set *version = hl_set_table_find(t, above);
    if (above != HL_SET_NONE && version == NULL)
        return unknown_set(above);
    if (version != NULL && version->above != HL_SET_NONE)
        return hl_fail(HL_EINVAL, "set %u is in set %u: it can't hold sets of its own", above,
                       version->above);
    uint32_t at = t->free - 1;
    if (t->free == 0) {
        HL_TRY(grow_sets(t));
        at = t->end++;
    } else {
        t->free = t->sets[at].above;
    }
    t->sets[at] = (struct hl_shard_set){.above = above, .used = true};
    if (above != HL_SET_NONE) {
        uint32_t other = t->sets[above].below;
        t->sets[at].next = other;
        if (other != 0)
            t->sets[other - 1].prev = at + 1;
        t->sets[above].below = at + 1;
        t->sets[above].sets++;
    }
    *set = at;
    return HL_OK;
}

static void leave_above(struct hl_set_table *t, const struct hl_shard_set *s)
{
    struct hl_shard_set *above = &t->sets[s->above];
    if (s->next != 0)
        t->sets[s->next - 1].prev = s->prev;
    if (s->prev != 0)
        t->sets[s->prev - 1].next = s->next;
    else
        above->below = s->next;
    above->sets--;
}

hl_status hl_set_table_remove(struct hl_set_table *t, uint32_t set)
{
    struct hl_shard_set *s = hl_set_table_find(t, set);
    if (s == NULL)
        return unknown_set(set);
    if (s->shards > 0 || s->sets > 0)
        return hl_fail(HL_ECONFLICT, "set %u holds %u shards and %u sets: take them out first", set,
                       s->shards, s->sets);
    if (s->above != HL_SET_NONE)
        leave_above(t, s);
    *s = (struct hl_shard_set){.above = t->free};
    t->free = set + 1;
    return HL_OK;
}

uint32_t hl_set_table_top(const struct hl_set_table *t, uint32_t set)
{
    const struct hl_shard_set *s = hl_set_table_find(t, set);
    if (s == NULL)
        return HL_SET_NONE;
    return s->above != HL_SET_NONE ? s->above : set;
}

bool hl_set_table_is_pinned(const struct hl_set_table *t, uint32_t set)
{
    const struct hl_shard_set *s = hl_set_table_find(t, set);
    return s != NULL && (s->pinned || (s->above != HL_SET_NONE && t->sets[s->above].pinned));
}
