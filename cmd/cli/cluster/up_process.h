/* cmd/cli/cluster/up_process.h - the process in which `helios up` works, and what becomes of it.
 *
 * The one that the user waits for starts another, which starts the daemons and then goes on as
 * their supervisor: only a parent is told how a process ended.
 *
 * Owns:    the pipe between the two, until up_process_end.
 * Threads: one; before there are others, for it forks.
 * Errors:  HL_EIO (no process, no pipe).
 * Units:   none.
 * Limits:  none.
 */
#ifndef HELIOS_UP_PROCESS_H
#define HELIOS_UP_PROCESS_H

#include "cli/cli/cli.h"

struct up_process {
    bool works; /* this is the one that starts daemons */
    int pipe;   /* to the one that waits */
};

/* Two return from it: in one `works` is set. In the other it returns when that one is done, with
 * its outcome. It dies with the one that waits, until it supervises. */
hl_status up_process_begin(struct cli *cli, struct up_process *out) HL_CHECK;
/* This process says its outcome and goes on as `helios supervise`. Returns only when it can't. */
hl_status up_process_supervise(struct cli *cli, struct up_process *p, const char *state,
                               hl_status outcome) HL_CHECK;
#endif
