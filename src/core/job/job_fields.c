/* The fields of a job: their defaults, what they need of each other, and their release. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/job_private.h"
#include "core/replace/replacing.h"

void hl_job_list_free(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

bool hl_job_gpus_check(const struct hl_job *job, struct hl_job_fault *fault)
{
    if (job->gpu_memory_bytes == 0 || job->gpus_per_rank != 0)
        return true;
    *fault =
        (struct hl_job_fault){.field = "resources.gpu_memory", .pointer = "/resources/gpu_memory"};
    snprintf(fault->text, sizeof(fault->text),
             "only has an effect where ranks have GPUs; remove it, or gpus_per_rank: 0");
    return false;
}

hl_status hl_job_fill(struct hl_job *job)
{
    char **texts[] = {&job->model,   &job->model_size,   &job->dataset, &job->image,
                      &job->workdir, &job->venv,         &job->conda,   &job->python,
                      &job->queue,   &job->on_node_lost, &job->on_hang, &job->on_slow};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++)
        if (*texts[i] == NULL && (*texts[i] = strdup("")) == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating the job");
    if (job->rank_table == NULL && (job->rank_table = strdup("v2")) == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the job");
    if (job->recovery == NULL && (job->recovery = strdup("restart")) == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the job");
    job->replacements = job->replacements > 0 ? job->replacements : HL_JOB_REPLACEMENTS;
    job->stable_ms = job->stable_ms > 0 ? job->stable_ms : HL_JOB_STABLE_MS;
    job->backoff_ms = job->backoff_ms > 0 ? job->backoff_ms : HL_REPLACE_WAIT_MS;
    job->backoff_max_ms = job->backoff_max_ms > 0 ? job->backoff_max_ms : HL_REPLACE_WAIT_MAX_MS;
    job->grow_after_ms = job->grow_after_ms > 0 ? job->grow_after_ms : HL_JOB_GROW_MS;
    if (job->node_lost_ms < 0 && hl_job_replaces(job) &&
        (hl_job_restarts_lost(job) || job->spare_slots > 0))
        job->node_lost_ms = HL_JOB_REPLACE_LOST_MS;
    return HL_OK;
}

bool hl_job_restarts_lost(const struct hl_job *job)
{
    return job->on_node_lost[0] != '\0' ? strcmp(job->on_node_lost, "restart") == 0
                                        : job->restarts > 0 || job->dp_min < job->dp_max;
}

bool hl_job_replaces(const struct hl_job *job)
{
    return job->recovery != NULL && strcmp(job->recovery, "replace") == 0;
}

bool hl_job_ends_hung(const struct hl_job *job)
{
    return job->on_hang[0] != '\0' ? strcmp(job->on_hang, "end") == 0 : hl_job_replaces(job);
}

bool hl_job_ends_slow(const struct hl_job *job)
{
    return strcmp(job->on_slow, "end") == 0;
}

void hl_job_fini(struct hl_job *job)
{
    char *texts[] = {job->name,   job->model,      job->model_size,   job->dataset,
                     job->image,  job->workdir,    job->venv,         job->conda,
                     job->python, job->rank_table, job->on_node_lost, job->recovery,
                     job->queue,  job->on_hang,    job->on_slow};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++)
        free(texts[i]);
    hl_job_list_free(job->command, job->command_count);
    hl_job_list_free(job->mounts, job->mount_count);
    for (size_t i = 0; i < job->env_count; i++) {
        free(job->env[i].name);
        free(job->env[i].value);
    }
    free(job->env);
    json_decref(job->kubernetes);
    *job = (struct hl_job){0};
}
