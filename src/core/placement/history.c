#include "core/placement/history.h"

#include <assert.h>
#include <stdlib.h>

static_assert(HL_LIFE_STATES <= 16, "two states fit into a byte");
static_assert(HL_LIFE_EVENTS <= 256, "an event fits into a byte");

hl_status hl_history_init(struct hl_history *h, uint32_t room, int64_t start_ms)
{
    if (room == 0 || room > UINT32_MAX / 2)
        return hl_fail(HL_EINVAL, "a history of %u changes: it has 1 to %u", room, UINT32_MAX / 2);
    *h = (struct hl_history){.room = UINT32_C(1) << (31 - __builtin_clz(room)),
                             .start_ms = start_ms - HL_HISTORY_BACK_MS};
    h->ring = calloc(h->room, sizeof(*h->ring)); /* pages are mapped when written */
    return h->ring != NULL ? HL_OK
                           : hl_fail(HL_ENOMEM, "out of memory allocating %u changes", room);
}

void hl_history_fini(struct hl_history *h)
{
    free(h->ring);
    *h = (struct hl_history){0};
}

uint64_t hl_history_bytes(const struct hl_history *h)
{
    return (h->wrapped || h->written > h->room ? h->room : h->written) * sizeof(*h->ring);
}

static uint32_t add_entry(struct hl_history *h, const struct hl_history_entry *entry)
{
    if (++h->written == 0) {
        h->written = 1;
        h->wrapped = true;
    }
    h->ring[h->written & (h->room - 1)] = *entry;
    return h->written;
}

/* NULL: a later change has overwritten the entry. */
static const struct hl_history_entry *find_entry(const struct hl_history *h, uint32_t number,
                                                 uint32_t shard)
{
    if (number == 0 || (!h->wrapped && number > h->written) || h->written - number >= h->room)
        return NULL;
    const struct hl_history_entry *e = &h->ring[number & (h->room - 1)];
    return e->shard == shard ? e : NULL;
}

static uint32_t ticks_of(const struct hl_history *h, int64_t at_ms)
{
    int64_t ticks = (at_ms - h->start_ms) / HL_CHANGE_TICK_MS;
    return ticks < 0 ? 0 : ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

/* No change from created to created has the first event. */
static bool has_changed(const struct hl_life *life)
{
    static_assert(HL_LIFE_CREATED == 0 && HL_LIFE_ON_LOAD == 0, "a zeroed record is not one");
    return life->latest.states != 0 || life->latest.event != 0;
}

void hl_life_restore(struct hl_life *life, struct hl_history *h, uint32_t shard,
                     const struct hl_change *change)
{
    if (has_changed(life)) {
        struct hl_history_entry entry = {
            .change = life->latest, .shard = shard, .older = life->older};
        life->older = add_entry(h, &entry);
    }
    life->latest = (struct hl_change_rec){.at_ticks = ticks_of(h, change->at_ms),
                                          .value = (float)change->value,
                                          .limit = (float)change->limit,
                                          .node = change->node,
                                          .states = (uint8_t)(change->from * 16 + change->to),
                                          .event = (uint8_t)change->event};
    if (!hl_life_is_moving(change->from))
        life->before = (uint8_t)change->from;
    life->state = (uint8_t)change->to;
}

hl_status hl_life_change(struct hl_life *life, struct hl_history *h, uint32_t shard,
                         const struct hl_change *change)
{
    enum hl_life_state from = (enum hl_life_state)life->state;
    enum hl_life_state to = hl_life_next(from, change->event, (enum hl_life_state)life->before);
    if (to == HL_LIFE_NONE)
        return hl_fail(HL_ECONFLICT, "a shard that is %s can't change for the reason '%s'",
                       hl_life_state_text(from), hl_life_event_text(change->event));
    struct hl_change whole = *change;
    whole.from = from;
    whole.to = to;
    hl_life_restore(life, h, shard, &whole);
    return HL_OK;
}

static struct hl_change unpack_change(const struct hl_history *h, const struct hl_change_rec *rec)
{
    return (struct hl_change){.at_ms = h->start_ms + (int64_t)rec->at_ticks * HL_CHANGE_TICK_MS,
                              .event = (enum hl_life_event)rec->event,
                              .from = (enum hl_life_state)(rec->states / 16),
                              .to = (enum hl_life_state)(rec->states % 16),
                              .node = rec->node,
                              .value = (double)rec->value,
                              .limit = (double)rec->limit};
}

unsigned hl_life_history(const struct hl_life *life, const struct hl_history *h, uint32_t shard,
                         struct hl_change out[HL_CHANGES_MAX])
{
    if (!has_changed(life))
        return 0;
    unsigned n = 0;
    out[n++] = unpack_change(h, &life->latest);
    const struct hl_history_entry *e = find_entry(h, life->older, shard);
    while (e != NULL && n < HL_CHANGES_MAX && e->change.states % 16 == out[n - 1].from) {
        out[n++] = unpack_change(h, &e->change);
        e = find_entry(h, e->older, shard);
    }
    return n;
}
