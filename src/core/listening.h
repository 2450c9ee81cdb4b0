/* core/listening.h - measures the time in which a process was able to hear others.
 *
 * A daemon that was paused (SIGSTOP, a suspended machine, a blocked loop) has received nothing in
 * that time, and what arrived meanwhile is still queued. How long a peer has been silent is
 * measured with listened_ns, which does not advance during such a pause. The same check detects
 * jumps of the wall clock, for deadlines and ages that are kept in wall time.
 *
 * Owns:    nothing.
 * Threads: one owner. Pure: the clocks' values are arguments.
 * Errors:  none.
 * Units:   ns of a monotonic clock; ms of the wall clock.
 * Limits:  call the check more often than every step_ns. A check that comes later counts as a pause
 *          and adds nothing. If the next one is late too, it adds step_ns, so that time still
 *          advances for a loop that is always late.
 */
#ifndef HL_CORE_LISTENING_H
#define HL_CORE_LISTENING_H

#include <stdbool.h>
#include <stdint.h>

/* Smaller differences between the clocks are drift. */
#define HL_WALL_STEP_MS 2000

struct hl_listening {
    uint64_t listened_ns; /* 1 at the start: 0 is free for "never" */
    uint64_t step_ns;
    uint64_t checked_ns;
    int64_t checked_wall_ms;
    uint64_t started_ns;
    int64_t started_wall_ms;
    bool late; /* the last check was late */
};

/* What a check found. */
struct hl_listening_gap {
    uint64_t paused_ns; /* pause since the previous check, not counted; 0 = none */
    int64_t stepped_ms; /* jump of the wall clock; 0 = none */
};

void hl_listening_init(struct hl_listening *l, uint64_t step_ns, uint64_t now_ns, int64_t wall_ms);
struct hl_listening_gap hl_listening_check(struct hl_listening *l, uint64_t now_ns,
                                           int64_t wall_ms);
/* Wall time as if the wall clock had not been set since the start; use it for ages. */
int64_t hl_listening_steady_ms(const struct hl_listening *l, uint64_t now_ns);

#endif
