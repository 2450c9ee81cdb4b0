/* os/background.h - threads that give way: what moves, fetches and archives shares its processors
 * with those who read.
 *
 * SCHED_BATCH, so that such a thread takes no processor away when it wakes, and a nice value, so
 * that it gets less where all processors are busy. On free processors it costs nothing.
 * Not SCHED_IDLE: such a thread may hold a lock that a reader waits for, and must get on.
 *
 * The kernel compares nice values within one control group (and one session, where it groups by
 * those), so the threads of one unit don't give way to another's by them. Therefore such a thread
 * also rests between two pieces of its work while its host is crowded: what others leave of all
 * processors together is less than one.
 *
 *     looking --HL_BACKGROUND_LOOK_NS, crowded--> resting --HL_BACKGROUND_STAY_NS--> looking
 *
 * Owns:    a number and a state for the process, and of each thread when its last piece ended.
 * Threads: hl_background_nice before there are others; hl_background_enter, hl_background_rest:
 *          the calling one. The functions of a hl_background_state: pure, one at a time.
 * Errors:  none: where the system refuses it, the thread runs as before, with a line in the log;
 *          where the kernel does not say how long processors were idle, it never rests.
 * Units:   nice values, 0 to 19; ns; sums over all processors.
 * Limits:  there is no way back for a thread. What other daemons copy counts as others' work.
 */
#ifndef HL_OS_BACKGROUND_H
#define HL_OS_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define HL_BACKGROUND_NICE "10" /* unless it is set: about a tenth of another thread's share */

/* Of a daemon, at its start; 0: hl_background_enter does nothing. Without it no thread rests. */
void hl_background_nice(int nice);
/* The calling thread, and those that it starts from now on. */
void hl_background_enter(void);
/* Between two pieces of its work: sleeps where the host is crowded, HL_BACKGROUND_REST_NS at most.
 * Does nothing in other threads. */
void hl_background_rest(void);

#define HL_BACKGROUND_LOOK_NS (100 * HL_NS_PER_MS)
#define HL_BACKGROUND_STAY_NS (4000 * HL_NS_PER_MS)
#define HL_BACKGROUND_REST_NS (50 * HL_NS_PER_MS)
#define HL_BACKGROUND_RESTS   9 /* times what a piece took: it works a tenth of the time */

/* What the kernel has counted so far. */
struct hl_background_count {
    uint64_t now_ns;
    uint64_t idle_ns; /* of the host */
    uint64_t own_ns;  /* that this process ran */
};

/* Zero-initialise. */
struct hl_background_state {
    struct hl_background_count from; /* of the look; now_ns 0: none has begun */
    uint64_t until_ns;               /* rests until then; 0: it looks */
    uint64_t last_ns;                /* of the last piece */
};

/* Whether the next hl_background_step wants what the kernel has counted; else now_ns is enough. */
bool hl_background_looks(const struct hl_background_state *b, uint64_t now_ns);
/* After a piece of work. true: now is the time to rest. */
bool hl_background_step(struct hl_background_state *b, const struct hl_background_count *c);
/* How long, after a piece that took so long. */
uint64_t hl_background_rest_ns(uint64_t worked_ns);

#endif
