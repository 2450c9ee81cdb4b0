/* cmd/cli/jobs/submitter.h - passes this shell's environment variables to a job (`--export`).
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_EINVAL with the part of the list that is wrong.
 * Units:   none.
 * Limits:  those of core/job/job.h; stderr lists what ALL can't pass on.
 */
#ifndef HL_CMD_CLI_JOBS_SUBMITTER_H
#define HL_CMD_CLI_JOBS_SUBMITTER_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

/* Makes "exported" and "inherited" of planJob and submitJob, in the arena. list: NAME, NAME=VALUE
 * and ALL, separated by commas; NONE or "" for nothing. A quoted value can contain commas. */
hl_status submitter_export(const char *list, struct hl_arena *arena,
                           struct hl_api_key_value_list *exported,
                           struct hl_api_key_value_list *inherited) HL_CHECK;

#endif
