/* core/job/job_private.h - what job.c uses from the other files that parse a job file.
 *
 * Threads: any; each job file has its own parser.
 */
#ifndef HL_CORE_JOB_JOB_PRIVATE_H
#define HL_CORE_JOB_JOB_PRIVATE_H

#include "core/job/job.h"

/* The executor runs ranks in a container image. */
bool hl_job_executor_has_image(enum hl_job_executor executor);
/* Why the executor cannot honour the key, and what to do instead; NULL = it can. */
const char *hl_job_unsupported(const char *key, enum hl_job_executor executor);

struct hl_job_fault {
    const char *field, *pointer; /* static */
    char text[256];
};

/* Checks that the grid is consistent; sets etp if the file leaves it out. */
bool hl_job_grid_check(struct hl_job *job, struct hl_job_fault *fault);

/* Megatron's condition: with that many replicas, the number of ranks of a stage must be a multiple
 * of ep * etp, so that they divide evenly. */
static inline bool hl_job_experts_fit(const struct hl_job *job, int dp)
{
    int64_t stage = (int64_t)job->grid.tp * hl_grid_cp(&job->grid) * dp;
    int etp = job->etp > 0 ? job->etp : job->grid.tp;
    return stage % ((int64_t)job->ep * etp) == 0;
}

/* The value of data_parallel_size, a number or {min, max}. */
bool hl_job_range_read(const json_t *v, enum hl_job_executor executor, struct hl_job *job,
                       struct hl_job_fault *fault);
/* Checks that every size of the range gives a valid grid; sets the size that a waiting job has. */
bool hl_job_range_check(struct hl_job *job, struct hl_job_fault *fault);
/* The value of onFailure. */
bool hl_job_failures_read(const json_t *v, struct hl_failure_rules *out,
                          struct hl_job_fault *fault);
/* Checks that the job's settings about failures have an effect. */
bool hl_job_recovery_check(const struct hl_job *job, enum hl_job_executor executor,
                           struct hl_job_fault *fault);
/* Checks that what is asked of GPUs has an effect. */
bool hl_job_gpus_check(const struct hl_job *job, struct hl_job_fault *fault);
void hl_job_list_free(char **list, size_t count);
/* Fills in what the file leaves out: strings become "", numbers their default. */
hl_status hl_job_fill(struct hl_job *job) HL_CHECK;

#endif
