/* Creates, resets and frees the queues of ring.h, which has the pictures and the memory orders.
 *
 * A reset runs alone, between two runs: all threads are parked, and parking and waking order these
 * stores before those of the next run. So they are relaxed. Positions only grow (ring.h): a queue
 * is emptied by making its two ends equal, not by resetting them to 0. */
#include "maco/cpu/ring.h"

static hl_status short_of(uint32_t slots)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a queue of %u slots", slots);
}

hl_status hl_maco_spsc_init(struct hl_maco_spsc *q, uint32_t slots)
{
    *q = (struct hl_maco_spsc){.mask = slots - 1, .slots = calloc(slots, sizeof(*q->slots))};
    return q->slots != NULL ? HL_OK : short_of(slots);
}

hl_status hl_maco_mpsc_init(struct hl_maco_mpsc *q, uint32_t slots)
{
    *q = (struct hl_maco_mpsc){.mask = slots - 1, .cells = calloc(slots, sizeof(*q->cells))};
    if (q->cells == NULL)
        return short_of(slots);
    hl_maco_mpsc_reset(q);
    return HL_OK;
}

hl_status hl_maco_share_init(struct hl_maco_share *q, uint32_t slots)
{
    *q = (struct hl_maco_share){.mask = slots - 1, .slots = calloc(slots, sizeof(*q->slots))};
    return q->slots != NULL ? HL_OK : short_of(slots);
}

void hl_maco_spsc_reset(struct hl_maco_spsc *q)
{
    q->staged = q->tail_seen = __atomic_load_n(&q->head, __ATOMIC_RELAXED);
    __atomic_store_n(&q->tail, q->staged, __ATOMIC_RELAXED);
}

/* Cells that a failed run has reserved or filled become free for the next tickets. */
void hl_maco_mpsc_reset(struct hl_maco_mpsc *q)
{
    uint64_t at = __atomic_load_n(&q->ticket, __ATOMIC_RELAXED);
    q->taken = at;
    for (uint64_t i = at; i <= at + q->mask; i++)
        __atomic_store_n(&q->cells[i & q->mask].sequence, i, __ATOMIC_RELAXED);
}

void hl_maco_share_reset(struct hl_maco_share *q)
{
    __atomic_store_n(&q->head, __atomic_load_n(&q->tail, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

void hl_maco_spsc_fini(struct hl_maco_spsc *q)
{
    free(q->slots);
    q->slots = NULL;
}

void hl_maco_mpsc_fini(struct hl_maco_mpsc *q)
{
    free(q->cells);
    q->cells = NULL;
}

void hl_maco_share_fini(struct hl_maco_share *q)
{
    free(q->slots);
    q->slots = NULL;
}
