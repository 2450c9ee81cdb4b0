/* Checks that the sizes of a job's grid fit together. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/job/job_private.h"

/* The last part of the pointer is the field's name in its section. */
static bool HL_PRINTF(3, 4)
    fault_say(struct hl_job_fault *f, const char *pointer, const char *fmt, ...)
{
    static const struct {
        const char *pointer, *field;
    } names[] = {
        {"/parallelism", "parallelism"},
        {"/parallelism/virtual_pipeline_parallel_size",
         "parallelism.virtual_pipeline_parallel_size"},
        {"/parallelism/expert_model_parallel_size", "parallelism.expert_model_parallel_size"},
        {"/parallelism/expert_tensor_parallel_size", "parallelism.expert_tensor_parallel_size"},
    };

    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof(f->text), fmt, ap);
    va_end(ap);
    f->field = "";
    f->pointer = pointer;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(names[i].pointer, pointer) == 0)
            f->field = names[i].field;
    return false;
}

static bool check_experts(struct hl_job *job, struct hl_job_fault *f)
{
    const struct hl_grid *g = &job->grid;
    job->etp = job->etp > 0 ? job->etp : g->tp;
    if (g->tp % job->etp != 0)
        return fault_say(f, "/parallelism/expert_tensor_parallel_size",
                         "%d is not a divisor of tensor_parallel_size %d", job->etp, g->tp);
    int64_t ranks = (int64_t)g->tp * hl_grid_replicas(g), share = (int64_t)job->ep * job->etp;
    if (!hl_job_experts_fit(job, g->dp))
        return fault_say(f, "/parallelism/expert_model_parallel_size",
                         "%d times expert_tensor_parallel_size %d does not divide the %d ranks of "
                         "a stage, tensor_parallel_size %d times data_parallel_size %d%s",
                         job->ep, job->etp, (int)ranks, g->tp, g->dp,
                         hl_grid_cp(g) > 1 ? " times context_parallel_size" : "");
    if (g->order == HL_ORDER_TP_PP_DP && g->pp > 1 && share != (int64_t)g->tp * hl_grid_cp(g) &&
        job->ep > 1)
        return fault_say(f, "/parallelism/expert_model_parallel_size",
                         "under the order tp-pp-dp the ranks that share experts are those of a "
                         "tensor parallel group: %d times expert_tensor_parallel_size %d must be "
                         "tensor_parallel_size %d%s; or use the order tp-dp-pp",
                         job->ep, job->etp, g->tp,
                         hl_grid_cp(g) > 1 ? " times context_parallel_size" : "");
    return true;
}

bool hl_job_grid_check(struct hl_job *job, struct hl_job_fault *f)
{
    const struct hl_grid *g = &job->grid;
    int64_t stage = (int64_t)g->pp * g->tp,
            world = stage <= HL_JOB_WORLD_MAX ? stage * g->dp : stage;
    if (hl_grid_cp(g) > 1 && (world > HL_JOB_WORLD_MAX || world * hl_grid_cp(g) > HL_JOB_WORLD_MAX))
        return fault_say(f, "/parallelism", "%d × %d × %d × %d ranks are more than %d", g->pp,
                         g->tp, g->cp, g->dp, HL_JOB_WORLD_MAX);
    if (world > HL_JOB_WORLD_MAX)
        return fault_say(f, "/parallelism", "%d × %d × %d ranks are more than %d", g->pp, g->tp,
                         g->dp, HL_JOB_WORLD_MAX);
    if (job->virtual_stages > 1 && g->pp < 2)
        return fault_say(f, "/parallelism/virtual_pipeline_parallel_size",
                         "needs pipeline_parallel_size of at least 2");
    return hl_job_range_check(job, f) && check_experts(job, f);
}
