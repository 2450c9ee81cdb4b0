/* hybridps/client/replay.h - replays an access trace through the pool of chunks; bytes are really
 * moved and checked.
 *
 * Every chunk carries a pattern with its number and a version that each write increments; each need
 * compares it. Chunks have the trace's length divided by `scale`; counts and availability are in
 * the trace's own bytes.
 *
 * Owns:    the result belongs to the caller (hl_replay_fini).
 * Threads: one at a time.
 * Errors:  those of pool and plan, with iteration and moment; HL_ECORRUPT for wrong content.
 * Units:   bytes.
 * Limits:  those of the trace and of the available memory.
 */
#ifndef HL_HYBRIDPS_CLIENT_REPLAY_H
#define HL_HYBRIDPS_CLIENT_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/hybridps.h"
#include "hybridps/chunks/pool.h"
#include "hybridps/plan/plan.h"

/* State during a moment, when everything it needs is present. */
struct hl_replay_view {
    uint64_t avail;
    uint64_t device_by_kind[HYBRIDPS_KINDS], host_by_kind[HYBRIDPS_KINDS];
    uint64_t h2d, d2h; /* bytes moved for it */
};

struct hl_replay_options {
    const char *policy;
    bool copy;      /* mode copy; 0 = move */
    uint64_t scale; /* 0 = 1 */
    struct hl_policy_options policy_options;
    void (*watch)(void *arg, uint64_t iteration, size_t moment, const struct hl_replay_view *v);
    void *watch_arg;
    uint64_t plan_needs; /* longer traces are not planned in one piece; 0 = 400,000 */
    /* For opt: plan from this many iterations, as training does, which does not know its last
     * iteration; 0 = plan what moves least up to the last iteration. */
    uint64_t ahead;
};

struct hl_replay_iteration {
    uint64_t h2d, d2h;
};

struct hl_replay_result {
    struct hl_replay_iteration *iterations;
    uint64_t count;
    uint64_t peak_over_avail;
};

hl_status hl_replay(const struct hl_trace *t, const struct hl_replay_options *options,
                    struct hl_replay_result *out) HL_CHECK;
void hl_replay_fini(struct hl_replay_result *r);

#endif
