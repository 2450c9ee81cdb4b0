/* cmd/cli/cluster/top.h - extracts the values of `helios top` from the nodes' telemetry.
 *
 * Owns:    nothing; results are borrowed.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   percent, bytes.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_CLUSTER_TOP_H
#define HL_CMD_CLI_CLUSTER_TOP_H

#include "api/types.h"

struct top_use {
    double cpu_percent; /* 100 is one processor */
    uint64_t memory_bytes;
};

/* NULL: not measured. */
const struct hl_api_slot_load *top_slot_load(const struct hl_api_telemetry *t, int numa_id);
const struct hl_api_container_load *top_container_load(const struct hl_api_telemetry *t,
                                                       const char *id);
/* Mean over the GPUs of the slot (NULL: of the node). 0 if none is measured. */
double top_gpu_percent(const struct hl_api_telemetry *t, const struct hl_api_slot *slot);
/* Sums all containers of the job, of any attempt. */
struct top_use top_job_use(const struct hl_api_node_state_list *nodes, const char *job);

#endif
