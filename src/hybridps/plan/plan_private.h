/* hybridps/plan/plan_private.h - what the parts of the planner share. */
#ifndef HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H
#define HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H

#include <stdbool.h>

#include "hybridps/plan/plan.h"

#define PLAN_NEVER ((int64_t)1 << 40)

enum plan_rule { PLAN_FREE_FIRST, PLAN_BELADY, PLAN_CLEAN_FIRST, PLAN_RULES };

/* A chunk's time on the device from one use to the next. */
struct plan_seg {
    int64_t start;  /* the use; -1 = was there before */
    int64_t far;    /* the next use on the device, whatever comes between */
    uint8_t useful; /* that use, or an end of the content, finds it here if it stays */
    uint8_t again;  /* of these: a use */
    uint8_t owed;   /* the host will have it anyway */
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
    uint64_t iterations, moments;  /* it is made of so many */
    uint64_t loop_first, loop_end; /* iterations that are replayed cyclically; 0, 0 = none */
    uint64_t total;                /* 0 = endless */
    struct plan_seg *segs;         /* chunk after chunk */
    uint32_t *first;               /* [chunk_count + 1]: its segments */
    uint32_t *current;             /* its segment now; == first[chunk + 1]: none yet */
    struct plan_cost *costs;       /* per iteration */
    uint64_t cost_count;
    uint8_t *places; /* as iterations 0 .. cost_count begin, chunk after chunk */
    uint64_t again,
        again_end; /* iterations that begin alike: where the course repeats; 0, 0 = none */
    int64_t position;
};

/* walk.c: segments of p. */
hl_status plan_walk(const struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* sim.c: what the plan moves under `rule` in each of `iterations`; `places` (NULL: don't) as
 * each begins, and as the last ends. */
hl_status plan_simulate(const struct plan_model *m, struct hl_chunk_plan *p, enum plan_rule rule,
                        uint64_t iterations, struct plan_cost *costs, uint8_t *places) HL_CHECK;
/* loop.c: rule, loop, costs and places of an endless plan. */
hl_status plan_choose_loop(const struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* The moment of the plan that a moment of the run is. */
int64_t plan_moment(const struct hl_chunk_plan *p, uint64_t position);
double plan_seg_rank(const struct hl_chunk_plan *p, enum plan_rule rule, const struct plan_seg *s,
                     bool dirty);

#endif
