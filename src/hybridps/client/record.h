/* hybridps/client/record.h - iterations by phase: the first is recorded, later ones follow its
 * plan.
 *
 * While an iteration follows the record, nothing is recorded. When it deviates, the part that
 * agreed is copied and the rest is recorded, and the policy falls back to lru until the next
 * iteration of the phase. When an iteration begins with chunks in other places than before, the
 * record is planned again, a few times at most; while memory is asked for, the plan is kept.
 *
 * Owns:    records and plans; the pool is borrowed and gets the plan.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM: this iteration is not recorded; nothing else is lost.
 * Units:   bytes, moments.
 * Limits:  HL_RECORD_PHASES phases.
 */
#ifndef HL_HYBRIDPS_CLIENT_RECORD_H
#define HL_HYBRIDPS_CLIENT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "hybridps/chunks/pool.h"
#include "hybridps/plan/plan.h"

#define HL_RECORD_PHASES 64

struct hl_record_phase {
    char name[64];
    struct hl_trace trace; /* of the last complete iteration */
    bool whole;
    struct hl_chunk_plan *plan;
    uint64_t turn;    /* the plan's iteration that is running, or ran last */
    int plans, stale; /* plans made; 1: device bytes used by others have changed since */
};

struct hl_record {
    struct hl_chunk_pool *pool;
    bool copy, opt;
    uint64_t ahead; /* iterations to plan; 0 = HL_CHUNK_PLAN_AHEAD */
    struct hl_record_phase *phases;
    size_t phase_count;
    struct hl_record_phase *phase, *last; /* the running phase; the last one that became complete */
    struct hl_record_phase *previous;     /* the phase that ended last */
    struct hl_trace trace;                /* being recorded */
    bool recording, following;
    size_t moment; /* the running moment, if one has begun */
    bool begun;
    uint8_t *hits; /* while following: which needs of the moment have been accessed */
    size_t hit_count, hits_cap;
    uint8_t *content; /* where each chunk's content was when the iteration began */
    size_t content_count;
    uint64_t deviations;
};

void hl_record_fini(struct hl_record *r);
/* Ends the running iteration and begins one of `phase` (NULL: none). */
hl_status hl_record_iteration(struct hl_record *r, const char *phase) HL_CHECK;
/* Call before the pool begins a moment: tells it what that moment will need. */
void hl_record_expect(struct hl_record *r);
/* Call after an access: once the moment has everything it needs, begins copies for the next one, at
 * most `most` to the device. */
void hl_record_ahead(struct hl_record *r, int most);
/* A moment began; chunks that stay pinned are needed in it, too. */
void hl_record_moment(struct hl_record *r, const char *stage, const char *op, uint64_t avail);
/* A chunk was accessed in the running moment, or its content was discarded. */
void hl_record_need(struct hl_record *r, uint32_t chunk, bool on_host, bool write);
void hl_record_free(struct hl_record *r, uint32_t chunk);
/* NULL: the last one. HL_ENOENT. Borrowed. */
hl_status hl_record_find(const struct hl_record *r, const char *phase,
                         const struct hl_trace **out) HL_CHECK;

#endif
