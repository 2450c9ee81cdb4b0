/* cmd/cli/jobs/logs.h - the output of a job's ranks, and waiting for a job's end.
 *
 * Output of one attempt lies on the nodes where its ranks ran. It is fetched in pieces by offset,
 * so that what was shown is never shown again, also when a daemon was restarted meanwhile.
 *
 * Owns:    nothing beyond a call.
 * Threads: one.
 * Errors:  a job that failed or was cancelled is a failure, with its reason. A daemon that does not
 *          answer is asked again until `retry_ms` are over; stderr says so.
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

/* Show what a rank writes (the first; where the job has failed already, the one that failed first)
 * until the job has ended; HL_OK when it succeeded. */
hl_status logs_follow(struct cli *cli, const char *job, uint64_t retry_ms) HL_CHECK;
/* Which rank of the attempt failed first, and its last lines; 0: of the last one that failed. */
hl_status show_first_failure(struct cli *cli, const char *job, int64_t attempt) HL_CHECK;
/* The same in a line. */
void print_failure_line(const struct hl_api_job_failure *f);
/* Wait until the job has ended, however it did; *out is the job, in the arena. */
hl_status job_await(struct cli *cli, const char *job, uint64_t retry_ms, struct hl_arena *arena,
                    struct hl_api_job *out) HL_CHECK;
/* HL_OK when the job succeeded, else a failure with its reason. */
hl_status job_verdict(const char *job, enum hl_api_job_state state, const char *reason) HL_CHECK;

#endif
