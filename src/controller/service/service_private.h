/* controller/service/service_private.h - what the files share that assemble the Controller from the
 * other wings.
 *
 * Threads: the Controller's loop.
 */
#ifndef HL_CONTROLLER_SERVICE_PRIVATE_H
#define HL_CONTROLLER_SERVICE_PRIVATE_H

#include "base/plane.h"
#include "controller/core.h"

struct path_count {
    char path[16];
    uint64_t ops;
    uint64_t bytes;
};

struct service {
    struct hl_timer *tick;
    uint64_t retention_ns; /* of the last round of retention */
    /* Counters that ranks reported. Ranks are short-lived, so the Controller keeps and exports
     * them. */
    uint64_t crc_failures, crc_retries, lost_reads;
    struct path_count paths[8];
    uint64_t tier_reads[HL_API_TIER_COUNT];
    struct hl_plane_stats ranks[HL_PLANE_COUNT];
};

/* state_load.c */
/* Loads everything from the store. An unreadable record only affects its own object, which is named
 * in the log and in c->damaged; the record stays in the store unchanged. */
hl_status state_load(struct hl_controller *c) HL_CHECK;

/* cluster_info.c */
void method_cluster_info(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_cluster_info_params *p);
void method_list_nodes(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_nodes_params *p);

/* metrics.c */
/* Adds what a process has reported of its reads, transfers and faults. The words of a report are
 * looked up in our own lists. */
void service_count(struct hl_controller *c, const struct hl_api_controller_report_access_params *p);
void method_report_access(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_report_access_params *p);
void method_metrics(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_metrics_params *p);
void method_options(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_options_params *p);

#endif
