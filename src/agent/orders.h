/* agent/orders.h - orders about containers: those of a Controller that was replaced, and starts
 * that come too late, are refused; containers of attempts that are over are ended.
 *
 * Owns:    what was heard (core/job/fence.h), in memory: a connection ends with its Agent, and what
 *          was sent on it does not come any more.
 * Threads: any; may block as the executor does.
 * Errors:  HL_EPERM: an older Controller's, or too late. HL_EBUSY: a container of another attempt
 *          still runs here, an earlier one is being stopped. The executor's.
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

/* Containers that run here beside one of a later attempt of their job are stopped. */
hl_status orders_open(struct orders *o, struct obeyed *obeyed,
                      struct hl_executor *executor) HL_CHECK;
void orders_fini(struct orders *o);

/* hl_executor_start, _stop and _forget, if they are obeyed. */
hl_status orders_start(struct orders *o, const struct hl_container_spec *spec,
                       struct hl_container_status *out) HL_CHECK;
hl_status orders_stop(struct orders *o, uint64_t epoch, const char *id, int grace_ms) HL_CHECK;
hl_status orders_forget(struct orders *o, uint64_t epoch, const char *id) HL_CHECK;
/* Containers of the Agent of this machine that has that state directory and is silent: those that
 * run, and an end to some of them; *ended: how many of those ran. */
hl_status orders_list_strays(struct orders *o, const struct hl_api_agent_list_strays_params *p,
                             struct hl_arena *arena, struct hl_api_text_list *out) HL_CHECK;
hl_status orders_end_strays(struct orders *o, const struct hl_api_agent_end_strays_params *p,
                            uint32_t *ended) HL_CHECK;

#endif
