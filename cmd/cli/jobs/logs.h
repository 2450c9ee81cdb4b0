/* cmd/cli/jobs/logs.h - shows the output of a job's ranks, and waits for a job's end.
 *
 * The output of an attempt is stored on the nodes where its ranks ran. It is fetched in pieces by
 * offset, so nothing is shown twice, even if a daemon is restarted meanwhile.
 *
 * Owns:    nothing beyond a call.
 * Threads: one.
 * Errors:  a failed or cancelled job is a failure, with its reason. A daemon that does not answer
 *          is asked again for `retry_ms`; stderr says so.
 * Units:   ms.
 * Limits:  with several ranks a line is broken after LOG_LINE_MAX bytes.
 */
#ifndef HL_CMD_CLI_JOBS_LOGS_H
#define HL_CMD_CLI_JOBS_LOGS_H

#include <stdbool.h>

#include "cli/cli/cli.h"

#define LOG_LINE_MAX ((size_t)1 << 20)
#define LOG_RETRY    "3m" /* default of --retry */
#define JOB_GOES_ON  "the job may still be running"

/* Shows what a rank writes until the job has ended: the first rank, or the one that failed first if
 * the job has failed already. HL_OK: the job succeeded. */
hl_status logs_follow(struct cli *cli, const char *job, uint64_t retry_ms) HL_CHECK;
/* Shows which rank of the attempt failed first, and its last lines; attempt 0: the last one that
 * failed. */
hl_status show_first_failure(struct cli *cli, const char *job, int64_t attempt) HL_CHECK;
/* The same in one line. */
void print_failure_line(const struct hl_api_job_failure *f);
/* Waits until the job has ended, successfully or not; *out is the job, in the arena. */
hl_status job_await(struct cli *cli, const char *job, uint64_t retry_ms, struct hl_arena *arena,
                    struct hl_api_job *out) HL_CHECK;
/* HL_OK if the job succeeded, otherwise a failure with its reason. */
hl_status job_verdict(const char *job, enum hl_api_job_state state, const char *reason) HL_CHECK;

#endif
