/* cmd/cli/cluster/up_process.h - the process in which `helios up` works and which then supervises.
 *
 * The process that the user waits for starts another one. That starts the daemons and then becomes
 * their supervisor, because only a parent learns how a process ended.
 *
 * Owns:    the pipe between the two, until up_process_supervise or the end of the process.
 * Threads: one; call it before there are others, because it forks.
 * Errors:  HL_EIO (no process, no pipe).
 * Units:   none.
 * Limits:  none.
 */
#ifndef HELIOS_UP_PROCESS_H
#define HELIOS_UP_PROCESS_H

#include "cli/cli/cli.h"

struct up_process {
    bool works; /* this process starts the daemons */
    int pipe;   /* to the waiting process */
};

/* It returns in two processes. In one of them `works` is set. In the other it returns when the
 * first one is done, with its outcome. Until the first one supervises, it dies together with the
 * other. */
hl_status up_process_begin(struct cli *cli, struct up_process *out) HL_CHECK;
/* Reports this process's outcome and continues as `helios supervise`. Returns only if that
 * fails. */
hl_status up_process_supervise(struct cli *cli, struct up_process *p, const char *state,
                               hl_status outcome) HL_CHECK;
#endif
