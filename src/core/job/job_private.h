/* What job.c asks of the other files of a job file. */
#ifndef HL_CORE_JOB_JOB_PRIVATE_H
#define HL_CORE_JOB_JOB_PRIVATE_H

#include "core/job/job.h"

/* It runs ranks in an image. */
bool hl_job_executor_has_image(enum hl_job_executor executor);
/* Why that executor cannot honour the key, and what to do instead; NULL = it can. */
const char *hl_job_unsupported(const char *key, enum hl_job_executor executor);

struct hl_job_fault {
    const char *field, *pointer; /* static */
    char text[256];
};

/* Whether the grid holds together; sets what was not said: etp. */
bool hl_job_grid_check(struct hl_job *job, struct hl_job_fault *fault);

/* As Megatron has it: the ranks of a stage, with that many replicas, are shared out to etp, then to
 * ep, and it comes out even. */
static inline bool hl_job_experts_fit(const struct hl_job *job, int dp)
{
    int64_t stage = (int64_t)job->grid.tp * hl_grid_cp(&job->grid) * dp;
    int etp = job->etp > 0 ? job->etp : job->grid.tp;
    return stage % ((int64_t)job->ep * etp) == 0;
}

/* The value of data_parallel_size, a number or {min, max}. */
bool hl_job_range_read(const json_t *v, enum hl_job_executor executor, struct hl_job *job,
                       struct hl_job_fault *fault);
/* Whether every size is one of the grid; sets the size of a job that waits. */
bool hl_job_range_check(struct hl_job *job, struct hl_job_fault *fault);
/* The value of onFailure. */
bool hl_job_failures_read(const json_t *v, struct hl_failure_rules *out,
                          struct hl_job_fault *fault);
/* Whether what it says of failures has an effect. */
bool hl_job_recovery_check(const struct hl_job *job, enum hl_job_executor executor,
                           struct hl_job_fault *fault);
void hl_job_list_free(char **list, size_t count);
/* What the file does not say: texts are "" then, numbers their default. */
hl_status hl_job_fill(struct hl_job *job) HL_CHECK;

#endif
