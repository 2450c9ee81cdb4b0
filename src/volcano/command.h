/* volcano/command.h - for job.c: the command of a gang's container.
 *
 * Ranks with devices share a container, so that each process sees all devices of its pod; only then
 * can GPUs copy to each other directly (P2P, NVLink). A shell starts the ranks, forwards signals,
 * marks each line of output with its rank, and ends like the first rank that failed. A rank without
 * devices, or with the image's own command, has a separate container.
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

#define HL_VOLCANO_POD "HELIOS_POD" /* environment variable: the pod's name */
#define HL_VOLCANO_SHM "/dev/shm"   /* memory that a pod's containers share */

/* The pods of a task. */
struct hl_volcano_pattern {
    const struct hl_volcano_gang *g;
    const struct hl_volcano_opts *opts;
    int first, pods; /* containers of the plan; if there is only one, its ranks are written out */
};

/* The job must have a command. */
json_t *hl_volcano_rank_command(const struct hl_volcano_pattern *p, int local_rank);
json_t *hl_volcano_shared_command(const struct hl_volcano_pattern *p);

#endif
