/* cmd/cli/jobs/drill_report.h - the results of a drill, as a table and as a verdict.
 *
 * Owns:    nothing.
 * Threads: the program's one.
 * Errors:  a verdict's HL_ECONFLICT says what was wrong.
 * Units:   seconds.
 * Limits:  none.
 */
#ifndef HL_CLI_JOBS_DRILL_REPORT_H
#define HL_CLI_JOBS_DRILL_REPORT_H

#include "api/types.h"
#include "base/status.h"

hl_status drill_report_print(const struct hl_api_drill_report *r) HL_CHECK;
hl_status drill_report_verdict(const struct hl_api_drill_report *r) HL_CHECK;

#endif
