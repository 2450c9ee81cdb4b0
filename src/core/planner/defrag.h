/* core/planner/defrag.h - finds running gangs which, if restarted elsewhere, make room for a job
 * for which there are enough free slots, but not within the level that it requires.
 *
 * Owns:    hl_defrag owns the plans of its moves; end with hl_defrag_fini.
 * Threads: one at a time. Pure; on return the cluster is unchanged.
 * Errors:  HL_ENOMEM. Finding no solution is not an error: `found` is false then.
 * Units:   none.
 * Limits:  at most HL_DEFRAG_MOVES_MAX moves; at most HL_DEFRAG_TRIES_MAX sets of gangs are tried.
 */
#ifndef HL_CORE_PLANNER_DEFRAG_H
#define HL_CORE_PLANNER_DEFRAG_H

#include "core/planner/plan.h"

#define HL_DEFRAG_MOVES_MAX 3
#define HL_DEFRAG_TRIES_MAX 20000

/* A gang that holds its slots. Borrowed. */
struct hl_defrag_gang {
    const char *id;
    const struct hl_job *job;
    const struct hl_plan *plan;
};

struct hl_defrag_move {
    size_t gang;        /* index */
    struct hl_plan *to; /* feasible */
};

struct hl_defrag {
    bool found;
    bool all_tried;       /* false: there were too many sets of gangs to try */
    struct hl_plan *plan; /* of the job, after the moves */
    /* the fewest gangs, and among those the smallest ones */
    struct hl_defrag_move moves[HL_DEFRAG_MOVES_MAX];
    size_t count;
};

hl_status hl_defrag_find(const struct hl_job *job, struct hl_cluster *cluster,
                         const struct hl_defrag_gang *gangs, size_t count,
                         struct hl_defrag *out) HL_CHECK;
void hl_defrag_fini(struct hl_defrag *d);

#endif
