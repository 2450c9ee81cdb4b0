/* hybridps/plan/plan.h - which chunks leave the device, planned from a recorded iteration.
 *
 * Three rules are simulated on the record, and the one that moves least becomes the plan, the first
 * among equals: Belady's (the chunk whose next use is furthest away leaves); Belady's, but chunks
 * that leave at no cost go first; and the same with clean chunks before dirty ones. In mode move,
 * leaving costs the way out and back. In mode copy it costs the way back, plus the way out if the
 * chunk was written and the host does not need that copy anyway. So a plan never moves more than
 * Belady.
 *
 * An endless plan is for an iteration that repeats without end: some iterations are planned, and
 * the last but one is replayed cyclically. It uses the rule that moves least over
 * HL_CHUNK_PLAN_TRIAL times as many iterations.
 *
 * A plan says which chunks to keep; chunks leave only when room is needed. Unforeseen accesses cost
 * additional bytes, but nothing else.
 *
 * Owns:    its tables; nothing of the trace is kept.
 * Threads: one at a time.
 * Errors:  HL_ENOSPC: the needs of a moment do not fit; the text has the moment, its bytes and
 *          avail. HL_EINVAL: mode move, and a chunk is needed in both places. HL_ENOMEM.
 * Units:   bytes; positions are moments from the start, iteration after iteration.
 * Limits:  iterations * moments and iterations * needs below HL_CHUNK_PLAN_MAX.
 */
#ifndef HL_HYBRIDPS_PLAN_PLAN_H
#define HL_HYBRIDPS_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "hybridps/plan/trace.h"

#define HL_CHUNK_PLAN_MAX   (1u << 24)
#define HL_CHUNK_PLAN_AHEAD 6 /* iterations that an endless plan is made of */
#define HL_CHUNK_PLAN_TRIAL 3

struct hl_chunk_plan;

struct hl_chunk_plan_options {
    bool copy; /* mode copy; 0 = move */
    uint64_t
        iterations; /* planned for, with nothing after them; endless: 0 = as above, at least 3 */
    bool endless;
    /* Where each chunk's content is at the start; NULL = from the trace. */
    const uint8_t *on_device, *on_host;
};

struct hl_chunk_plan_facts {
    const char *rule; /* "belady, free first", "belady", "belady, clean first" */
    uint64_t moved;   /* h2d + d2h of all iterations; endless: of the tried ones */
};

hl_status hl_chunk_plan_make(const struct hl_trace *t, const struct hl_chunk_plan_options *options,
                             struct hl_chunk_plan **out) HL_CHECK;
void hl_chunk_plan_free(struct hl_chunk_plan *p);
void hl_chunk_plan_facts(const struct hl_chunk_plan *p, struct hl_chunk_plan_facts *out);
/* The bytes that iteration i will move. */
void hl_chunk_plan_cost(const struct hl_chunk_plan *p, uint64_t i, uint64_t *h2d, uint64_t *d2h);

/* Makes an endless plan end after `total` iterations, at least as many as it was made of. If that
 * moves less, its last iterations are replaced by ones that nothing comes after. `o`: the options
 * it was made with. */
hl_status hl_chunk_plan_end(struct hl_chunk_plan *p, const struct hl_trace *t,
                            const struct hl_chunk_plan_options *o, uint64_t total) HL_CHECK;
/* Endless plans: where the content of each chunk is when iteration i begins; NULL: not known. */
#define HL_CHUNK_ON_DEVICE 1
#define HL_CHUNK_ON_HOST   2
const uint8_t *hl_chunk_plan_places(const struct hl_chunk_plan *p, uint64_t i);

/* Follows the plan: sets the moment that begins; 0 starts over. */
void hl_chunk_plan_seek(struct hl_chunk_plan *p, uint64_t position);
/* A chunk is used on the device in this moment. */
void hl_chunk_plan_used(struct hl_chunk_plan *p, uint32_t chunk);
/* The chunk with the highest rank leaves first; among equals the one with the lowest number. */
double hl_chunk_plan_rank(const struct hl_chunk_plan *p, uint32_t chunk, bool dirty);

#endif
