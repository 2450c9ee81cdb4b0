/* core/replace/drill.h - checks the loss curve of a drill: steps must follow each other without
 * gaps, and a step that is repeated after a fault must have bit for bit the same loss as before.
 *
 * Owns:    hl_drill_curve owns its table; end it with hl_drill_curve_fini.
 * Threads: one owner. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   times in seconds; steps count from 0.
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
    uint64_t missed;  /* not seen, so nothing is known about them */
    uint64_t doubted; /* made under a fault that changes the computation, so they prove nothing */
};

/* The loss curve of one rank; zero-initialise. */
struct hl_drill_curve {
    uint64_t *losses; /* indexed by step; the bits of a double */
    bool *seen;
    size_t cap;
    uint64_t generation;
    int64_t last, highest; /* steps plus 1; 0 = none yet */
    uint64_t doubted;      /* losses of this generation no longer count; 0 = all count */
};

void hl_drill_curve_fini(struct hl_drill_curve *c);
/* Adds one point of the curve. The points of a rank must come in the order in which they were
 * reported. */
hl_status hl_drill_point(struct hl_drill_curve *c, uint64_t generation, int64_t step, double loss,
                         struct hl_drill_sums *io) HL_CHECK;
/* The rank computes wrong results from now on, until the gang re-forms: its losses are not
 * compared. */
void hl_drill_doubt(struct hl_drill_curve *c);
/* Points were missed, so the next one need not follow the last one seen. */
void hl_drill_gap(struct hl_drill_curve *c, uint64_t points, struct hl_drill_sums *io);

/* True if a job event of this kind, or a container warning with this text, says what is wrong with
 * one rank now. kind "" means a warning; it stays after the trouble is over. */
bool hl_drill_names(const char *kind, const char *text, int *rank);

/* True if a job event of this kind reports trouble with a rank, a node or the gang. */
bool hl_drill_alarms(const char *kind);

/* The q-quantile (q from 0 to 1) of the values, which it sorts in place; 0 if there are none. */
double hl_drill_quantile(double *values, size_t count, double q);

#endif
