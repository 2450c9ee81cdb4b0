/* os/background.h - low-priority threads: moving, fetching and archiving share the processors with
 * readers and give way to them.
 *
 * Such a thread uses SCHED_BATCH, so that it does not preempt others when it wakes, and a nice
 * value, so that it gets a smaller share when all processors are busy. On idle processors it costs
 * nothing. SCHED_IDLE is not used, because the thread may hold a lock for which a reader waits, so
 * it must make progress.
 *
 * Owns:    one number per process.
 * Threads: call hl_background_nice before there are other threads; hl_background_enter affects the
 *          calling one.
 * Errors:  none: if the system refuses, the thread runs as before, and a line is logged.
 * Units:   nice values, 0 to 19.
 * Limits:  the nice value only matters within a control group (and within a session, if the kernel
 *          groups by sessions); between groups the groups' weights count. A thread can't leave the
 *          background.
 */
#ifndef HL_OS_BACKGROUND_H
#define HL_OS_BACKGROUND_H

#define HL_BACKGROUND_NICE "10" /* default: about a tenth of another thread's share */

/* 0: hl_background_enter does nothing. */
void hl_background_nice(int nice);
/* Puts the calling thread, and those that it starts from now on, into the background. */
void hl_background_enter(void);

#endif
