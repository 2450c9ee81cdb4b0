/* hybridps/chunks/policy.h - which chunk is evicted from the device when room is needed: a table of
 * ranking functions.
 *
 * fifo: the first loaded. lru: the least recently used. heat: the lowest HeatScore, alpha * N / T +
 * beta * exp(-dt / tau), N uses in the last T moments, dt moments since the last. random: for
 * tests. opt: follows a plan (hybridps/plan/plan.h), and is lru while there is none. The chunk with
 * the highest rank leaves first; among equals the one with the lowest number.
 *
 * Owns:    its state for each chunk; the plan is borrowed.
 * Threads: one at a time.
 * Errors:  HL_EINVAL for an unknown name, with the known ones; HL_ENOMEM.
 * Units:   time is counted in moments, which the caller passes and which never decrease.
 * Limits:  none.
 */
#ifndef HL_HYBRIDPS_CHUNKS_POLICY_H
#define HL_HYBRIDPS_CHUNKS_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hl_policy;
struct hl_chunk_plan;

struct hl_policy_options {
    /* For heat, used as given, with tau above 0; if window (T) is 0 all four are 0.7, 0.3, 300,
     * 60. */
    double alpha, beta, window, tau;
    uint64_t seed;              /* of random */
    struct hl_chunk_plan *plan; /* of opt; NULL = none yet */
};

hl_status hl_policy_create(const char *name, const struct hl_policy_options *options,
                           struct hl_policy **out) HL_CHECK;
void hl_policy_destroy(struct hl_policy *p);
const char *hl_policy_name(const struct hl_policy *p);
/* Makes chunks 0..count-1 known. */
hl_status hl_policy_grow(struct hl_policy *p, size_t count) HL_CHECK;
/* NULL: none. From now on uses are reported to the plan. */
void hl_policy_set_plan(struct hl_policy *p, struct hl_chunk_plan *plan);

void hl_policy_loaded(struct hl_policy *p, uint32_t chunk);
void hl_policy_used(struct hl_policy *p, uint32_t chunk, uint64_t now);
/* dirty: evicting it now would cost a copy. */
double hl_policy_rank(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty);

#endif
