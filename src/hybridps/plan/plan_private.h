/* hybridps/plan/plan_private.h - what the parts of the planner share.
 *
 * Threads: one at a time per planner.
 */
#ifndef HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H
#define HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H

#include <stdbool.h>

#include "hybridps/plan/plan.h"

#define PLAN_NEVER ((int64_t)1 << 40)

enum plan_rule { PLAN_FREE_FIRST, PLAN_BELADY, PLAN_CLEAN_FIRST, PLAN_RULES };

/* A chunk's stay on the device from one use to the next. */
struct plan_seg {
    int64_t start;  /* moment of the use; -1 = it was there from the start */
    int64_t far;    /* the next use on the device, regardless of what happens in between */
    uint8_t useful; /* if it stays, that use, or the end of the content, finds it here */
    uint8_t again;  /* of these two: a use */
    uint8_t owed;   /* the host gets the content anyway */
};

struct plan_model {
    const struct hl_trace *t;
    struct hl_chunk_plan_options o;
    int64_t end; /* iterations * moments */
};

struct plan_cost {
    uint64_t h2d, d2h;
};

struct hl_chunk_plan {
    enum plan_rule rule;
    bool copy;
    size_t chunk_count;
    uint64_t iterations, moments;  /* that it is made of */
    uint64_t loop_first, loop_end; /* iterations that are replayed cyclically; 0, 0 = none */
    uint64_t total;                /* 0 = endless */
    struct plan_seg *segs;         /* chunk after chunk */
    uint32_t *first;               /* [chunk_count + 1]: its segments */
    uint32_t *current;             /* its current segment; == first[chunk + 1]: none yet */
    struct plan_cost *costs;       /* per iteration */
    uint64_t cost_count;
    uint8_t *places; /* where chunks are when iterations 0 .. cost_count begin, chunk after chunk */
    uint64_t again,
        again_end; /* iterations that begin in the same state, so the course repeats; 0, 0 = none */
    int64_t position;
};

/* walk.c: segments of p. */
hl_status plan_walk(const struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* sim.c: what the plan moves under `rule` in each of `iterations`; also records `places` (unless
 * NULL) at the start of each and at the end of the last. */
hl_status plan_simulate(const struct plan_model *m, struct hl_chunk_plan *p, enum plan_rule rule,
                        uint64_t iterations, struct plan_cost *costs, uint8_t *places) HL_CHECK;
/* loop.c: rule, loop, costs and places of an endless plan. */
hl_status plan_choose_loop(const struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* Maps a moment of the run to a moment of the plan. */
int64_t plan_moment(const struct hl_chunk_plan *p, uint64_t position);
double plan_seg_rank(const struct hl_chunk_plan *p, enum plan_rule rule, const struct plan_seg *s,
                     bool dirty);

#endif
