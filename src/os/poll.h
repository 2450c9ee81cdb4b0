/* os/poll.h - waits for one descriptor until a deadline; signals do not interrupt it.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  -1, errno as of poll.
 * Units:   nanoseconds of hl_now_ns, with a resolution of a millisecond; never early.
 * Limits:  none.
 */
#ifndef HL_OS_POLL_H
#define HL_OS_POLL_H

#include <poll.h>
#include <stdint.h>

/* 1: one of the events, or an error of the descriptor; 0: deadline_ns has passed, and a last check
 * found none. */
int hl_poll_until(int fd, short events, uint64_t deadline_ns);

#endif
