/* hybridps/client/record.h - iterations by phase: the first is recorded, further ones follow its
 * plan.
 *
 * While an iteration goes as recorded, nothing is written down. Where it leaves the record, the
 * part that was the same is copied and the rest recorded, and the policy is on its own (lru) until
 * the next iteration of the phase. A record is planned again when an iteration begins with chunks
 * elsewhere than before, a few times.
 *
 * Owns:    records and plans; the pool is borrowed and told of the plan.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM: this iteration is not recorded, nothing else is lost.
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
    struct hl_trace trace; /* of the last whole iteration */
    bool whole;
    struct hl_chunk_plan *plan;
    uint64_t turn;    /* the plan's iteration that runs, or ran last */
    int plans, stale; /* made; device bytes of others changed since */
};

struct hl_record {
    struct hl_chunk_pool *pool;
    bool copy, opt;
    uint64_t ahead; /* iterations that are planned; 0 = HL_CHUNK_PLAN_AHEAD */
    struct hl_record_phase *phases;
    size_t phase_count;
    struct hl_record_phase *phase, *last; /* running; last that became whole */
    struct hl_record_phase *previous;     /* ended last */
    struct hl_trace trace;                /* being recorded */
    bool recording, following;
    size_t moment; /* the running one, when any has begun */
    bool begun;
    uint8_t *hits; /* while following: needs of the moment that came */
    size_t hit_count, hits_cap;
    uint8_t *content; /* of each chunk, when the iteration began */
    size_t content_count;
    uint64_t deviations;
};

void hl_record_fini(struct hl_record *r);
/* Ends the running iteration, begins one of `phase` (NULL: none). */
hl_status hl_record_iteration(struct hl_record *r, const char *phase) HL_CHECK;
/* Before the pool hears of a moment: tells it what will be needed in it. */
void hl_record_expect(struct hl_record *r);
/* After an access: when the moment has all it needs, begins copies for the next one, `most` in. */
void hl_record_ahead(struct hl_record *r, int most);
/* A moment began; chunks pinned across are needed in it too. */
void hl_record_moment(struct hl_record *r, const char *stage, const char *op, uint64_t avail);
/* A chunk was accessed in the running moment; its content ended. */
void hl_record_need(struct hl_record *r, uint32_t chunk, bool on_host, bool write);
void hl_record_free(struct hl_record *r, uint32_t chunk);
/* NULL: the last one. HL_ENOENT. Borrowed. */
hl_status hl_record_find(const struct hl_record *r, const char *phase,
                         const struct hl_trace **out) HL_CHECK;

#endif
