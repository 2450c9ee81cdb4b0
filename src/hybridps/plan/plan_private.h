/* hybridps/plan/plan_private.h - what the parts of the planner share. */
#ifndef HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H
#define HL_HYBRIDPS_PLAN_PLAN_PRIVATE_H

#include "hybridps/plan/plan.h"

#define PLAN_NEVER ((int64_t)1 << 40)
#define PLAN_SCALE 240 /* of weights, so that a bonus can be shared evenly */

enum plan_rule { PLAN_FREE_FIRST, PLAN_BELADY, PLAN_CLEAN_FIRST, PLAN_FLOW, PLAN_RULES };

/* A chunk's time on the device from one use to the next. */
struct plan_seg {
    int64_t start;  /* the use; -1 = was there before */
    int64_t far;    /* the next use on the device, whatever comes between */
    uint8_t useful; /* that use, or an end of the content, finds it here if it stays */
    uint8_t again;  /* of these: a use */
    uint8_t owed;   /* the host will have it anyway */
    uint8_t keep;
};

/* A span whose keeping saves something. */
struct plan_item {
    uint32_t chunk, seg;
    int64_t first, end; /* moments between: first .. end - 1 */
    int64_t weight;     /* PLAN_SCALE per byte copied */
    int32_t epoch;      /* the write-back it shares; -1 = none */
    uint8_t keep;
};

/* Saved once if all its items are kept. */
struct plan_epoch {
    uint32_t items;
    uint8_t owed;
};

struct plan_model {
    const struct hl_trace *t;
    struct hl_chunk_plan_options o;
    int64_t end;    /* iterations * moments */
    uint64_t *room; /* per moment of an iteration: avail less what is pinned */
    struct plan_item *items;
    size_t item_count, item_cap;
    struct plan_epoch *epochs;
    size_t epoch_count, epoch_cap;
    int exact;
};

struct plan_cost {
    uint64_t h2d, d2h;
};

struct hl_chunk_plan {
    enum plan_rule rule;
    int copy, exact;
    size_t chunk_count;
    uint64_t iterations, moments;  /* it is made of so many */
    uint64_t loop_first, loop_end; /* iterations gone through again and again; 0, 0 = none */
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

/* walk.c: segments of p, items and epochs of m. */
hl_status plan_walk(struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* pack.c: sets keep of the items. */
hl_status plan_pack(struct plan_model *m) HL_CHECK;
/* sim.c: what the plan moves under `rule` in each of `iterations`; `places` (NULL: don't) as
 * each begins, and as the last ends. */
hl_status plan_simulate(const struct plan_model *m, struct hl_chunk_plan *p, enum plan_rule rule,
                        uint64_t iterations, struct plan_cost *costs, uint8_t *places) HL_CHECK;
/* loop.c: rule, loop, costs and places of an endless plan. */
hl_status plan_choose_loop(const struct plan_model *m, struct hl_chunk_plan *p) HL_CHECK;
/* The moment of the plan that a moment of the run is. */
int64_t plan_moment(const struct hl_chunk_plan *p, uint64_t position);
double plan_seg_rank(const struct hl_chunk_plan *p, enum plan_rule rule, const struct plan_seg *s,
                     int dirty);

/* flow.c: spans over slots, some of each in proportion to what it is worth. */
struct flow_item {
    uint32_t a, b; /* slots a .. b - 1 */
    int64_t size;
    int64_t weight; /* per unit of size */
    int64_t got;    /* 0 .. size */
};

/* At most cap[slot] units in each slot, and the most weight; `work` is counted down, and
 * HL_ETIMEDOUT when it is used up. */
hl_status flow_solve(const int64_t *cap, uint32_t slots, struct flow_item *items, size_t count,
                     int64_t *value, int64_t *work) HL_CHECK;

#endif
