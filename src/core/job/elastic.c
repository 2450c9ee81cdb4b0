/* Sizes of an elastic job. */
#include "core/job/elastic.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/job/job_private.h"

#define FIELD   "parallelism.data_parallel_size"
#define POINTER "/parallelism/data_parallel_size"

int hl_job_replica_ranks(const struct hl_job *job)
{
    return job->grid.pp * job->grid.tp * hl_grid_cp(&job->grid);
}

bool hl_job_size_is_allowed(const struct hl_job *job, int dp)
{
    return dp >= job->dp_min && dp <= job->dp_max && hl_job_experts_fit(job, dp);
}

int hl_job_size_up_to(const struct hl_job *job, int dp)
{
    dp = dp < job->dp_max ? dp : job->dp_max;
    while (dp >= job->dp_min && !hl_job_size_is_allowed(job, dp))
        dp--;
    return dp >= job->dp_min ? dp : 0;
}

int hl_job_size_from(const struct hl_job *job, int dp)
{
    dp = dp > job->dp_min ? dp : job->dp_min;
    while (dp <= job->dp_max && !hl_job_size_is_allowed(job, dp))
        dp++;
    return dp <= job->dp_max ? dp : 0;
}

void hl_job_set_size(struct hl_job *job, int dp)
{
    if (hl_job_size_is_allowed(job, dp))
        job->grid.dp = dp;
}

/* ---- the job file ---------------------------------------------------------------------------- */

static bool HL_PRINTF(4, 5) range_fault(struct hl_job_fault *f, const char *field,
                                        const char *pointer, const char *fmt, ...)
{
    va_list ap;
    f->field = field;
    f->pointer = pointer;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof(f->text), fmt, ap);
    va_end(ap);
    return false;
}

static bool read_size(const json_t *v, const char *field, const char *pointer, int *out,
                      struct hl_job_fault *f)
{
    if (v == NULL)
        return range_fault(f, FIELD, POINTER, "has no %s; give {min: N, max: N}",
                           strrchr(field, '.') + 1);
    if (!json_is_integer(v))
        return range_fault(f, field, pointer, "must be a whole number");
    int64_t n = json_integer_value(v);
    if (n < 1 || n > HL_JOB_WORLD_MAX)
        return range_fault(f, field, pointer, "is %lld, must be from 1 to %d", (long long)n,
                           HL_JOB_WORLD_MAX);
    *out = (int)n;
    return true;
}

static bool read_range(const json_t *v, struct hl_job *job, struct hl_job_fault *f)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)v, key, value) {
        if (strcmp(key, "min") != 0 && strcmp(key, "max") != 0)
            return range_fault(f, FIELD, POINTER, "'%.64s' is not a key of it; these are: min, max",
                               key);
    }
    if (!read_size(json_object_get(v, "min"), FIELD ".min", POINTER "/min", &job->dp_min, f) ||
        !read_size(json_object_get(v, "max"), FIELD ".max", POINTER "/max", &job->dp_max, f))
        return false;
    job->grid.dp = job->dp_min;
    if (job->dp_min > job->dp_max)
        return range_fault(f, FIELD, POINTER, "min %d is more than max %d", job->dp_min,
                           job->dp_max);
    return true;
}

bool hl_job_range_read(const json_t *v, enum hl_job_executor executor, struct hl_job *job,
                       struct hl_job_fault *f)
{
    const char *why = json_is_object(v) ? hl_job_unsupported(FIELD ".min", executor) : NULL;
    if (why != NULL)
        return range_fault(f, FIELD, POINTER, "the executor %s can't honour {min, max}: %s",
                           hl_job_executor_name(executor), why);
    if (json_is_object(v))
        return read_range(v, job, f);
    if (!read_size(v, FIELD, POINTER, &job->grid.dp, f))
        return false;
    job->dp_min = job->dp_max = job->grid.dp;
    return true;
}

bool hl_job_range_check(struct hl_job *job, struct hl_job_fault *f)
{
    const struct hl_place_rules *rules = &job->placement;
    int64_t most = (int64_t)hl_job_replica_ranks(job) * job->dp_max;
    if (!hl_job_is_elastic(job))
        return true;
    if (most > HL_JOB_WORLD_MAX)
        return range_fault(f, FIELD ".max", POINTER "/max",
                           "%d replicas of %d ranks are more than %d ranks", job->dp_max,
                           hl_job_replica_ranks(job), HL_JOB_WORLD_MAX);
    job->grid.dp = hl_job_size_from(job, 1);
    if (job->grid.dp == 0)
        return range_fault(
            f, FIELD, POINTER,
            "none of the sizes %d to %d divides the experts evenly: expert_model_parallel_size %d "
            "times expert_tensor_parallel_size has to divide the ranks of a stage",
            job->dp_min, job->dp_max, job->ep);
    if (hl_job_resizes(job) && job->spare_slots > 0)
        return range_fault(f, "spareSlots", "/spareSlots",
                           "a gang with data_parallel_size: {min, max} continues without a lost "
                           "server, and uses a free slot when there is one; remove the key");
    if (hl_job_resizes(job) && (rules->data.required || rules->gang.required))
        return range_fault(f, "placement", "/placement",
                           "replicas that join later are placed separately, so data and gang can't "
                           "be required with data_parallel_size: {min, max}; use preferred");
    return true;
}
