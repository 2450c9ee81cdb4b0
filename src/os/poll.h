/* os/poll.h - waiting for one descriptor until a moment; signals do not end it.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  -1, errno as of poll.
 * Units:   nanoseconds of hl_now_ns, looked at to the millisecond, never early.
 * Limits:  none.
 */
#ifndef HL_OS_POLL_H
#define HL_OS_POLL_H

#include <poll.h>
#include <stdint.h>

/* 1: there are events of these, or an error of the descriptor's; 0: deadline_ns has passed, and
 * there were none on a last look. */
int hl_poll_until(int fd, short events, uint64_t deadline_ns);

#endif
