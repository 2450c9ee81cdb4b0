/* cmd/cli/jobs/drill_faults.h - the faults that `helios drill` makes in a rank of this machine.
 *
 *     ready? --> make --> go_on, go_on, ... until the rank was named --> end
 *
 * Owns:    a target's fields below `page` belong to the fault while it lasts.
 * Threads: one.
 * Errors:  HL_ENOENT the process is gone, HL_EPERM it is another user's, HL_EUNSUPPORTED this
 *          machine can't do it, HL_EIO.
 * Units:   ns of hl_now_ns.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_JOBS_DRILL_FAULTS_H
#define HL_CMD_CLI_JOBS_DRILL_FAULTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "api/types.h"
#include "base/status.h"
#include "os/step_page.h"

#define DRILL_FAULTS   "kill,stop,oom,exit,link,slow,disk,bitflip"
#define DRILL_SAYS_MAX 2

/* The rank that a fault is made in. */
struct drill_target {
    int rank;
    pid_t pid;
    const struct hl_step_page *page;
    bool warned;         /* its log has a gap that nothing has closed: see take_ranks in drill.c */
    bool nudged;         /* disk: a line was written since, which closes it */
    pid_t shim;          /* disk: whose files may not grow */
    struct rlimit file;  /* as it was */
    char group[512];     /* oom: of control, that the process was put into; "" = none */
    uint64_t stopped_ns; /* slow: since when */
};

struct drill_fault {
    const char *name;
    /* What the Controller says of it first has one of these words; none: no rank is to be named. */
    const char *says[DRILL_SAYS_MAX];
    bool stays;  /* the gang goes on with it, and no process is lost */
    bool spoils; /* what the gang computes, until it has recovered */
    /* Why it can't be made in this job; NULL: it can. Static. */
    const char *(*refusal)(const struct hl_api_job *job);
    bool (*is_ready)(struct drill_target *t); /* NULL: at any time */
    hl_status (*make)(struct drill_target *t);
    hl_status (*go_on)(struct drill_target *t, uint64_t now_ns); /* NULL: it lasts by itself */
    void (*end)(struct drill_target *t);                         /* NULL: it has no end */
};

/* NULL: there is no such fault. */
const struct drill_fault *drill_fault_find(const char *name);

#endif
