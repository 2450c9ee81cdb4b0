/* os/background.h - threads that give way: what moves, fetches and archives shares its processors
 * with those who read.
 *
 * SCHED_BATCH, so that such a thread takes no processor away when it wakes, and a nice value, so
 * that it gets less where all processors are busy. On free processors it costs nothing.
 * Not SCHED_IDLE: such a thread may hold a lock that a reader waits for, and must get on.
 *
 * Owns:    one number for the process.
 * Threads: hl_background_nice before there are others; hl_background_enter: the calling one.
 * Errors:  none: where the system refuses it, the thread runs as before, with a line in the log.
 * Units:   nice values, 0 to 19.
 * Limits:  the kernel compares threads of one control group (and of one session, where it groups
 *          by those); between groups their own weights count. There is no way back for a thread.
 */
#ifndef HL_OS_BACKGROUND_H
#define HL_OS_BACKGROUND_H

#define HL_BACKGROUND_NICE "10" /* unless it is set: about a tenth of another thread's share */

/* 0: hl_background_enter does nothing. */
void hl_background_nice(int nice);
/* The calling thread, and those that it starts from now on. */
void hl_background_enter(void);

#endif
