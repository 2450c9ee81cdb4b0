/* controller/jobs/agent_logs.h - the output of ranks that Agents ran: which node has it.
 *
 * Owns:    nothing.
 * Threads: the Controller's loop.
 * Errors:  the call is rejected: HL_EUNAVAIL the node that has the log may come back, HL_ENOENT no
 *          node has it.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_JOBS_AGENT_LOGS_H
#define HL_CONTROLLER_JOBS_AGENT_LOGS_H

#include "controller/jobs/executor.h"

/* An op of struct job_executor. */
void agents_read_log(struct job *j, struct hl_rpc_call *call, const struct log_ask *ask);

#endif
