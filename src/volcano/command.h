/* volcano/command.h - for job.c: what a container of a gang runs.
 *
 * Ranks with devices share a container, so that each process sees all of its pod's: only then GPUs
 * copy to each other directly (P2P, NVLink). A shell starts them, passes signals on, marks each
 * line of output with its rank, and ends as the first rank that failed. Ranks without devices, and
 * those whose command is the image's own, are containers of their own.
 *
 * Owns:    nothing. Documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  NULL: out of memory.
 * Units:   none.
 * Limits:  those of gang.h.
 */
#ifndef HL_VOLCANO_COMMAND_H
#define HL_VOLCANO_COMMAND_H

#include <jansson.h>

#include "volcano/gang.h"

#define HL_VOLCANO_POD "HELIOS_POD" /* variable: the pod's name */
#define HL_VOLCANO_SHM "/dev/shm"   /* memory that a pod's containers share */

/* The pods of a task. */
struct hl_volcano_pattern {
    const struct hl_volcano_gang *g;
    const struct hl_volcano_opts *opts;
    int first, pods; /* containers of the plan; where there is one, its ranks are written out */
};

/* The job has a command. */
json_t *hl_volcano_rank_command(const struct hl_volcano_pattern *p, int local_rank);
json_t *hl_volcano_shared_command(const struct hl_volcano_pattern *p);

#endif
