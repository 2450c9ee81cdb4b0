/* cmd/cli/bench/place.h - a big cluster and gangs for it, of the benchmarks that place them.
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

/* `count` servers of two slots, 20 to a leaf and 10 leaves to a spine, in place of what is there.
 */
hl_status bench_servers(struct hl_cluster *c, int count) HL_CHECK;
/* A gang of pp x tp ranks, one to a slot. placement: a member of a job file and a comma, or "". */
hl_status bench_gang(struct hl_job *job, int pp, int tp, const char *placement) HL_CHECK;

#endif
