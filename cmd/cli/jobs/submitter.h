/* cmd/cli/jobs/submitter.h - variables of this shell that a job is given (`--export`).
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_EINVAL with the part of the list that is wrong.
 * Units:   none.
 * Limits:  those of core/job/job.h; what ALL can't pass on is told on stderr.
 */
#ifndef HL_CMD_CLI_JOBS_SUBMITTER_H
#define HL_CMD_CLI_JOBS_SUBMITTER_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

/* "exported" and "inherited" of planJob and submitJob, in the arena. `list`: NAME, NAME=VALUE and
 * ALL with commas between; NONE or "" for nothing. A value in quotes may hold commas. */
hl_status submitter_export(const char *list, struct hl_arena *arena,
                           struct hl_api_key_value_list *exported,
                           struct hl_api_key_value_list *inherited) HL_CHECK;

#endif
