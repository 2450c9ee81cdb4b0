/* maco/cpu/ring.h - the queues between workers: one to one, many to one, one to all.
 *
 *   spsc    scheduler -> worker: slots are written, then one release store of head makes a batch
 *           of them visible
 *   mpsc    all -> scheduler: Vyukov's cells. A ticket, the value, then the cell's own sequence: a
 *           reader never sees a slot that was only reserved
 *   share   a worker's ready events: its owner appends, every worker (the owner too) takes the
 *           oldest by compare-and-swap of head. A slot that is read late may have been overwritten,
 *           but then head has moved and the swap fails
 *
 *    spsc   |..taken..|== published ==|-- staged --|..free..|
 *                     ^ tail          ^ head       ^ staged (the producer's own)
 *           tail: the consumer's release; head: the producer's. Each reads the other's with acquire
 *           or stronger, and the producer remembers the last tail it saw.
 *
 *    mpsc   cell of position p:  sequence == p          free for ticket p
 *                                sequence == p + 1      holds a value for the consumer
 *                                sequence == p + slots  free for the next round's ticket
 *           A producer writes the value between its ticket and the sequence's store.
 *
 *    share  |..taken..|== events ==|..free..|
 *                     ^ head       ^ tail
 *           head: any worker's, by compare-and-swap; tail: its owner's store.
 *
 * Stores that make work visible are sequentially consistent, not just releases: the producer checks
 * for sleepers next, and the two accesses must not be reordered.
 *
 * Queues carry indices, and 0 is a valid one. So nothing is inferred from a slot's content, and
 * zeroed memory is just an empty queue.
 *
 * Owns:    its slots.
 * Threads: as above; init, reset and fini alone.
 * Errors:  a full queue takes nothing (0); an empty one gives nothing.
 * Units:   slots; positions only grow and are 64 bits wide.
 * Limits:  a power of two of slots, at least 2.
 */
#ifndef HL_MACO_CPU_RING_H
#define HL_MACO_CPU_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/line.h"
#include "base/status.h"

/* A planted fault: without the release, ThreadSanitizer must report a race. */
#ifdef HL_MACO_MUTATE_RELEASE
#define HL_MACO_ACQ_REL __ATOMIC_RELAXED
#else
#define HL_MACO_ACQ_REL __ATOMIC_ACQ_REL
#endif

struct hl_maco_spsc {
    _Alignas(HL_LINE) uint64_t head; /* published by the producer */
    uint64_t staged;                 /* the producer's own: written up to here */
    uint64_t tail_seen;
    _Alignas(HL_LINE) uint64_t tail; /* published by the consumer */
    _Alignas(HL_LINE) uint32_t *slots;
    uint64_t mask;
};

static inline bool hl_maco_spsc_room(struct hl_maco_spsc *q)
{
    if (q->staged - q->tail_seen <= q->mask)
        return true;
    q->tail_seen = __atomic_load_n(&q->tail, __ATOMIC_SEQ_CST);
    return q->staged - q->tail_seen <= q->mask;
}

/* Call only when there is room. The value becomes visible with publish. */
static inline void hl_maco_spsc_stage(struct hl_maco_spsc *q, uint32_t value)
{
    q->slots[q->staged++ & q->mask] = value;
}

/* true: there was something to publish. */
static inline bool hl_maco_spsc_publish(struct hl_maco_spsc *q)
{
    if (__atomic_load_n(&q->head, __ATOMIC_RELAXED) == q->staged)
        return false;
#ifdef HL_MACO_MUTATE_RELEASE
    __atomic_store_n(&q->head, q->staged, __ATOMIC_RELAXED);
#else
    __atomic_store_n(&q->head, q->staged, __ATOMIC_SEQ_CST);
#endif
    return true;
}

/* The consumer's batch: slots [tail, result). */
static inline uint64_t hl_maco_spsc_batch(const struct hl_maco_spsc *q)
{
    return __atomic_load_n(&q->head, __ATOMIC_SEQ_CST);
}

struct hl_maco_cell {
    uint64_t sequence;
    uint32_t value;
};

struct hl_maco_mpsc {
    _Alignas(HL_LINE) uint64_t ticket;
    _Alignas(HL_LINE) uint64_t taken; /* the consumer's own */
    _Alignas(HL_LINE) struct hl_maco_cell *cells;
    uint64_t mask;
};

static inline bool hl_maco_mpsc_push(struct hl_maco_mpsc *q, uint32_t value)
{
    uint64_t at = __atomic_load_n(&q->ticket, __ATOMIC_RELAXED);
    for (;;) {
        struct hl_maco_cell *c = &q->cells[at & q->mask];
        int64_t ahead = (int64_t)(__atomic_load_n(&c->sequence, __ATOMIC_ACQUIRE) - at);
        if (ahead < 0)
            return false;
        if (ahead > 0) {
            at = __atomic_load_n(&q->ticket, __ATOMIC_RELAXED);
            continue;
        }
        if (__atomic_compare_exchange_n(&q->ticket, &at, at + 1, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            c->value = value;
            __atomic_store_n(&c->sequence, at + 1, __ATOMIC_SEQ_CST);
            return true;
        }
    }
}

static inline bool hl_maco_mpsc_ready(const struct hl_maco_mpsc *q)
{
    const struct hl_maco_cell *c = &q->cells[q->taken & q->mask];
    return __atomic_load_n(&c->sequence, __ATOMIC_SEQ_CST) == q->taken + 1;
}

static inline bool hl_maco_mpsc_pop(struct hl_maco_mpsc *q, uint32_t *value)
{
    struct hl_maco_cell *c = &q->cells[q->taken & q->mask];
    if (__atomic_load_n(&c->sequence, __ATOMIC_ACQUIRE) != q->taken + 1)
        return false;
    *value = c->value;
    __atomic_store_n(&c->sequence, q->taken + q->mask + 1, __ATOMIC_RELEASE);
    q->taken++;
    return true;
}

struct hl_maco_share {
    _Alignas(HL_LINE) uint64_t head;
    _Alignas(HL_LINE) uint64_t tail; /* written by the owner */
    uint32_t *slots;
    uint64_t mask;
};

/* Called by the owner. The store is sequentially consistent, because a parking thread checks this
 * queue after it has announced that it parks. */
static inline bool hl_maco_share_push(struct hl_maco_share *q, uint32_t value)
{
    uint64_t tail = __atomic_load_n(&q->tail, __ATOMIC_RELAXED);
    if (tail - __atomic_load_n(&q->head, __ATOMIC_ACQUIRE) > q->mask)
        return false;
    __atomic_store_n(&q->slots[tail & q->mask], value, __ATOMIC_RELAXED);
#ifdef HL_MACO_MUTATE_RELEASE
    __atomic_store_n(&q->tail, tail + 1, __ATOMIC_RELAXED);
#else
    __atomic_store_n(&q->tail, tail + 1, __ATOMIC_SEQ_CST);
#endif
    return true;
}

static inline bool hl_maco_share_any(const struct hl_maco_share *q)
{
    return __atomic_load_n(&q->tail, __ATOMIC_SEQ_CST) !=
           __atomic_load_n(&q->head, __ATOMIC_RELAXED);
}

static inline bool hl_maco_share_take(struct hl_maco_share *q, uint32_t *value)
{
    uint64_t head = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);
    for (;;) {
        if (head >= __atomic_load_n(&q->tail, __ATOMIC_ACQUIRE))
            return false;
        uint32_t got = __atomic_load_n(&q->slots[head & q->mask], __ATOMIC_RELAXED);
        if (__atomic_compare_exchange_n(&q->head, &head, head + 1, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            *value = got;
            return true;
        }
    }
}

hl_status hl_maco_spsc_init(struct hl_maco_spsc *q, uint32_t slots) HL_CHECK;
hl_status hl_maco_mpsc_init(struct hl_maco_mpsc *q, uint32_t slots) HL_CHECK;
hl_status hl_maco_share_init(struct hl_maco_share *q, uint32_t slots) HL_CHECK;
/* Empty a queue of what a failed run left in it. */
void hl_maco_spsc_reset(struct hl_maco_spsc *q);
void hl_maco_mpsc_reset(struct hl_maco_mpsc *q);
void hl_maco_share_reset(struct hl_maco_share *q);
void hl_maco_spsc_fini(struct hl_maco_spsc *q);
void hl_maco_mpsc_fini(struct hl_maco_mpsc *q);
void hl_maco_share_fini(struct hl_maco_share *q);

#endif
