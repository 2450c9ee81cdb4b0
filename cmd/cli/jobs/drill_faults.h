/* cmd/cli/jobs/drill_faults.h - the faults that `helios drill` causes in a rank on this machine.
 *
 *     ready? --> make --> go_on, go_on, ... until the rank was named --> end
 *
 * Owns:    a target's fields below `page` belong to the fault while it lasts.
 * Threads: one.
 * Errors:  HL_ENOENT the process has ended, HL_EPERM it belongs to another user, HL_EUNSUPPORTED
 *          this machine can't do it, HL_EIO.
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

/* The rank in which a fault is caused. */
struct drill_target {
    int rank;
    pid_t pid;
    const struct hl_step_page *page;
    bool warned;         /* its log has an open gap: see take_ranks in drill.c */
    bool nudged;         /* disk: a later line has closed the gap */
    pid_t shim;          /* disk: the process whose files must not grow */
    struct rlimit file;  /* the previous limit */
    char group[512];     /* oom: the control group of the process; "" = none */
    uint64_t stopped_ns; /* slow: when it was stopped */
};

struct drill_fault {
    const char *name;
    /* The Controller's first message about it has one of these words; none: no rank will be
     * named. */
    const char *says[DRILL_SAYS_MAX];
    bool stays;  /* the gang continues with it, and no process is lost */
    bool spoils; /* the gang computes wrong results until it has recovered */
    /* Says why the fault can't be caused in this job; NULL: it can. Static. */
    const char *(*refusal)(const struct hl_api_job *job);
    bool (*is_ready)(struct drill_target *t); /* NULL: at any time */
    hl_status (*make)(struct drill_target *t);
    hl_status (*go_on)(struct drill_target *t, uint64_t now_ns); /* NULL: it lasts without help */
    void (*end)(struct drill_target *t);                         /* NULL: nothing to undo */
};

/* NULL: there is no such fault. */
const struct drill_fault *drill_fault_find(const char *name);

#endif
