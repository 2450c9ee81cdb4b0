/* core/job/elastic.h - which data parallel sizes a job may have.
 *
 * A job file gives one size, or {min, max}. With a range, the gang is placed at the largest size
 * for which there are slots, and its size may change later. While a job waits, its grid has the
 * minimum size; while its gang is placed, the grid has the gang's size.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   replicas: the ranks of one data parallel index, of all stages.
 * Limits:  those of the grid.
 */
#ifndef HL_CORE_JOB_ELASTIC_H
#define HL_CORE_JOB_ELASTIC_H

#include <stdbool.h>

#include "core/job/job.h"

/* The job allows more than one size. */
static inline bool hl_job_is_elastic(const struct hl_job *job)
{
    return job->dp_min < job->dp_max;
}

/* The gang may change its size while it runs; if false, only a new attempt may have another
 * size. */
static inline bool hl_job_resizes(const struct hl_job *job)
{
    return hl_job_is_elastic(job) && hl_job_replaces(job);
}

/* The job file allows this size, and the experts can be divided evenly among that many replicas. */
bool hl_job_size_is_allowed(const struct hl_job *job, int dp);
/* The largest allowed size <= dp, and the smallest allowed size >= dp; 0 = there is none. */
int hl_job_size_up_to(const struct hl_job *job, int dp);
int hl_job_size_from(const struct hl_job *job, int dp);
/* Ranks of one replica. */
int hl_job_replica_ranks(const struct hl_job *job);
/* Sets the size of the grid; does nothing if the size is not allowed. */
void hl_job_set_size(struct hl_job *job, int dp);

#endif
