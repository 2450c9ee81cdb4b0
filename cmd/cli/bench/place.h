/* cmd/cli/bench/place.h - makes a large cluster and gangs, for the benchmarks that place gangs.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_ENOMEM, HL_EINVAL from the job's rules.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_BENCH_PLACE_H
#define HL_CMD_CLI_BENCH_PLACE_H

#include "core/planner/cluster.h"

struct hl_job;

#define BENCH_SERVER_SLOTS 2

/* Replaces the cluster by `count` servers of two slots, 20 per leaf and 10 leaves per spine. */
hl_status bench_servers(struct hl_cluster *c, int count) HL_CHECK;
/* Makes a gang of pp x tp ranks, one per slot. placement: a member of a job file and a comma, or
 * "". */
hl_status bench_gang(struct hl_job *job, int pp, int tp, const char *placement) HL_CHECK;

#endif
