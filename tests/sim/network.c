/* Messages between processes, and their timers, in the order of the virtual clock. */
#include <assert.h>

#include "sim/world.h"

static void world_enqueue(struct world *w, const struct message *m, int64_t at_ms)
{
    if (w->free_count == 0)
        return; /* a network has an end, too */
    uint16_t slot = w->free_slots[--w->free_count];
    w->messages[slot] = *m;
    hl_status st = hl_heap_push(&w->queue, (uint64_t)at_ms, w->sequence++ << 16 | slot);
    assert(st == HL_OK);
}

void world_timer(struct world *w, const struct message *m, int64_t at_ms)
{
    world_enqueue(w, m, at_ms);
}

static bool happens(struct world *w, uint32_t per_mille)
{
    return !w->calm && world_random(w, 1000) < per_mille;
}

/* A holder that is cut off hears no Controller, and none hears it. */
static bool is_cut(const struct world *w, const struct message *m)
{
    bool from_holder = m->from < HOLDERS, to_holder = m->to < HOLDERS;
    return (from_holder && !to_holder && w->holders[m->from].cut) ||
           (to_holder && !from_holder && w->holders[m->to].cut);
}

void world_send(struct world *w, const struct message *m)
{
    const struct weather *weather = &w->script->weather;
    struct message sent = *m;
    uint32_t delay = w->calm ? 5 : weather->delay_ms;
    bool store = m->kind == MSG_COMMIT || m->kind == MSG_COMMITTED;
    if (m->to < HOLDERS)
        sent.incarnation = w->holders[m->to].incarnation;
    if (!store && (is_cut(w, m) || happens(w, weather->loss)))
        return;
    if (m->kind == MSG_DATA && m->size > 0 && happens(w, weather->damaged)) {
        if (world_random(w, 4) == 0)
            sent.size--;
        else
            sent.bytes[world_random(w, m->size)] ^= (uint8_t)(1u << world_random(w, 8));
    }
    world_enqueue(w, &sent, w->now_ms + 1 + world_random(w, delay));
    if (m->kind != MSG_COMMIT && happens(w, weather->doubled))
        world_enqueue(w, &sent, w->now_ms + 1 + world_random(w, 4 * delay));
}

bool world_take(struct world *w, struct message *m)
{
    if (w->queue.n == 0)
        return false;
    struct hl_heap_entry e = hl_heap_pop(&w->queue);
    uint16_t slot = (uint16_t)(e.tie & 0xffff);
    *m = w->messages[slot];
    w->free_slots[w->free_count++] = slot;
    w->now_ms = (int64_t)e.key > w->now_ms ? (int64_t)e.key : w->now_ms;
    return true;
}
