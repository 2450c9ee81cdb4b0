/* core/job/elastic.h - which data parallel sizes a job may have.
 *
 * A job file gives one size, or {min, max}: then the gang is placed with the largest size that has
 * slots, and may be another one later. While a job waits, the size of its grid is the least; while
 * its gang is placed, that of the gang.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   replicas: the ranks of one data parallel index, of all stages.
 * Limits:  as the grid's.
 */
#ifndef HL_CORE_JOB_ELASTIC_H
#define HL_CORE_JOB_ELASTIC_H

#include <stdbool.h>

#include "core/job/job.h"

/* It has a choice of sizes. */
static inline bool hl_job_is_elastic(const struct hl_job *job)
{
    return job->dp_min < job->dp_max;
}

/* Its gang gets other sizes while it runs; else with each attempt only. */
static inline bool hl_job_resizes(const struct hl_job *job)
{
    return hl_job_is_elastic(job) && hl_job_replaces(job);
}

/* The job file allows it, and its experts can be shared out among so many replicas. */
bool hl_job_size_is_allowed(const struct hl_job *job, int dp);
/* The largest allowed size up to dp, the least one from dp on; 0 = there is none. */
int hl_job_size_up_to(const struct hl_job *job, int dp);
int hl_job_size_from(const struct hl_job *job, int dp);
/* Ranks of one replica. */
int hl_job_replica_ranks(const struct hl_job *job);
/* The grid gets that size; a size that is not allowed is left as it is. */
void hl_job_set_size(struct hl_job *job, int dp);

#endif
