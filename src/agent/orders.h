/* agent/orders.h - orders about containers: refuses those of a replaced Controller and starts that
 * come too late, and ends containers of old attempts.
 *
 * Owns:    the orders heard so far (core/job/fence.h), in memory only: a connection ends with its
 *          Agent, so orders sent on it can't arrive later.
 * Threads: any; may block as the executor does.
 * Errors:  HL_EPERM: from an older Controller, or too late. HL_EBUSY: a container of another
 *          attempt still runs here; one of an earlier attempt is being stopped. Errors of the
 *          executor.
 * Units:   ms.
 * Limits:  those of the fence.
 */
#ifndef HL_AGENT_ORDERS_H
#define HL_AGENT_ORDERS_H

#include <pthread.h>

#include "agent/obeyed.h"
#include "core/job/fence.h"
#include "hw/executor.h"
#include "rpc/agent_calls.h"

struct orders {
    struct obeyed *obeyed;
    struct hl_executor *executor;
    pthread_mutex_t lock; /* guards the fence; not held while the executor works */
    struct hl_fence fence;
};

/* Stops containers that run here next to one of a later attempt of their job. */
hl_status orders_open(struct orders *o, struct obeyed *obeyed,
                      struct hl_executor *executor) HL_CHECK;
void orders_fini(struct orders *o);

/* Call hl_executor_start, _stop and _forget if the order is valid. */
hl_status orders_start(struct orders *o, const struct hl_container_spec *spec,
                       struct hl_container_status *out) HL_CHECK;
hl_status orders_stop(struct orders *o, uint64_t epoch, const char *id, int grace_ms) HL_CHECK;
hl_status orders_forget(struct orders *o, uint64_t epoch, const char *id) HL_CHECK;
/* For a silent Agent on this machine, identified by its state directory: list its running
 * containers, and end some of them; *ended: how many of those were running. */
hl_status orders_list_strays(struct orders *o, const struct hl_api_agent_list_strays_params *p,
                             struct hl_arena *arena, struct hl_api_text_list *out) HL_CHECK;
hl_status orders_end_strays(struct orders *o, const struct hl_api_agent_end_strays_params *p,
                            uint32_t *ended) HL_CHECK;

#endif
