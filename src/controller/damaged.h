/* controller/damaged.h - records of the store that were unreadable at start: jobs of which only the
 * id is known, and models and versions that are left out.
 *
 * Owns:    hl_controller.damaged.
 * Threads: the Controller's loop.
 * Errors:  a call is rejected with the store's error.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_DAMAGED_H
#define HL_CONTROLLER_DAMAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"

struct hl_controller;
struct hl_rpc_call;

/* The record of this job is damaged: what it runs is unknown and must be left alone. */
bool job_is_damaged(const struct hl_controller *c, const char *id);
/* The id of a running container of such a job; NULL: there is none. */
const char *job_damaged_container(const struct hl_controller *c,
                                  const struct hl_api_container_status_list *containers);
/* Discards such a job: deletes its record, and has the Agents stop its containers. */
void job_drop_damaged(struct hl_controller *c, const char *id, struct hl_rpc_call *call);
/* A version, or with -1 the whole model, was removed along with its records. */
void damaged_forget(struct hl_controller *c, const char *model, int64_t version);

#endif
