/* maco/plan/agree.h - ranks compare the order of their collectives: a rank that would call another
 * one than the rest is an error that names both, not a hang.
 *
 * Owns:    nothing.
 * Threads: the caller's; all ranks call it at one time.
 * Errors:  HL_ECONFLICT on all ranks: the first collective that differs, as rank 0 and another one
 *          have it; HL_ENOMEM; what `ask` returns.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MACO_PLAN_AGREE_H
#define HL_MACO_PLAN_AGREE_H

#include "maco/plan/plan.h"

/* `all` gets what each rank says, by rank. */
typedef hl_status (*hl_maco_ask)(void *arg, const void *mine, size_t bytes, void *all);

hl_status hl_maco_agree_on_order(const maco_plan *p, uint32_t group, int world, hl_maco_ask ask,
                                 void *arg) HL_CHECK;

#endif
