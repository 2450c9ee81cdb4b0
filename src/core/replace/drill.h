/* core/replace/drill.h - what a drill proves: that steps follow each other, and that a step which
 * is made again after a fault has the loss that it had before, to the last bit.
 *
 * Owns:    hl_drill_curve owns its table; end it with hl_drill_curve_fini.
 * Threads: one owner. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   seconds of times, steps from 0.
 * Limits:  steps up to HL_DRILL_STEPS_MAX are compared; later ones are counted as missed.
 */
#ifndef HL_CORE_REPLACE_DRILL_H
#define HL_CORE_REPLACE_DRILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_DRILL_STEPS_MAX 10000000

struct hl_drill_sums {
    uint64_t steps, repeated, differing;
    uint64_t jumps;   /* a step that does not follow the one before */
    uint64_t missed;  /* not seen: nothing is known of them */
    uint64_t doubted; /* made with a fault that changes what is computed: proof of nothing */
};

/* Of one rank; zero-initialise. */
struct hl_drill_curve {
    uint64_t *losses; /* by step, a double's bits */
    bool *seen;
    size_t cap;
    uint64_t generation;
    int64_t last, highest; /* steps plus 1; 0 = none yet */
    uint64_t doubted;      /* losses of this generation count no more; 0 = they do */
};

void hl_drill_curve_fini(struct hl_drill_curve *c);
/* Points of a rank come in the order in which they were reported. */
hl_status hl_drill_point(struct hl_drill_curve *c, uint64_t generation, int64_t step, double loss,
                         struct hl_drill_sums *io) HL_CHECK;
/* What is computed from now on is wrong, until the gang comes together again. */
void hl_drill_doubt(struct hl_drill_curve *c);
/* Points were missed: the next one follows nothing. */
void hl_drill_gap(struct hl_drill_curve *c, uint64_t points, struct hl_drill_sums *io);

/* True: such an event of a job, or such a warning of a container, says of one rank what is wrong
 * with it now. kind "": a warning, which stays when that is over. */
bool hl_drill_names(const char *kind, const char *text, int *rank);

/* True: such an event of a job says that something is wrong with a rank, a node or the gang. */
bool hl_drill_alarms(const char *kind);

/* The value below which a share q (0 to 1) of the values lies; they are sorted for it. 0 of none.
 */
double hl_drill_quantile(double *values, size_t count, double q);

#endif
