/* cmd/cli/jobs/drill_faults.h - the faults that `helios drill` makes in a process of this machine.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_ENOENT the process is gone, HL_EPERM it is another user's, HL_EIO.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_JOBS_DRILL_FAULTS_H
#define HL_CMD_CLI_JOBS_DRILL_FAULTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

#define DRILL_FAULTS "kill,stop,exit,link,oom,slow,disk,bitflip"

struct drill_fault {
    const char *name;
    hl_status (*make)(pid_t pid); /* NULL: it can't be made here */
    bool replaces; /* the rank's process is lost: a rank is to be named, and another one starts */
    bool stops;    /* it is named while it stands still, and ended then */
    const char *refusal; /* why it can't */
};

/* NULL: there is no such fault. */
const struct drill_fault *drill_fault_find(const char *name);
/* End a process that a fault has stopped. */
hl_status drill_fault_end(pid_t pid);

#endif
