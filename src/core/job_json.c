/* A job as the document that hl_job_parse reads back. Only what differs from the default is
 * written. */
#include <stdio.h>
#include <string.h>

#include "core/job.h"

static void member_put(json_t *to, const char *key, json_t *value)
{
    json_object_set_new(to, key, value);
}

static void put_text(json_t *to, const char *key, const char *text)
{
    if (*text != '\0')
        member_put(to, key, json_string(text));
}

static void put_time(json_t *to, const char *key, int64_t ms)
{
    char text[32];
    snprintf(text, sizeof(text), "%lldms", (long long)ms);
    member_put(to, key, json_string(text));
}

static void put_list(json_t *to, const char *key, char *const *list, size_t count)
{
    if (count == 0)
        return;
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_string(list[i]));
    member_put(to, key, array);
}

static void put_section(json_t *to, const char *key, json_t *section)
{
    if (json_object_size(section) > 0)
        member_put(to, key, section);
    else
        json_decref(section);
}

static json_t *resources_json(const struct hl_job *job)
{
    json_t *o = json_object();
    if (job->ranks_per_slot > 0)
        member_put(o, "ranks_per_slot", json_integer(job->ranks_per_slot));
    if (job->gpus_per_rank >= 0)
        member_put(o, "gpus_per_rank", json_integer(job->gpus_per_rank));
    if (job->cpus_per_rank > 0)
        member_put(o, "cpus_per_rank", json_integer(job->cpus_per_rank));
    if (job->memory_bytes > 0)
        member_put(o, "memory", json_integer((json_int_t)job->memory_bytes));
    return o;
}

static json_t *timeouts_json(const struct hl_job *job)
{
    json_t *o = json_object();
    if (job->start_timeout_ms >= 0)
        put_time(o, "start", job->start_timeout_ms);
    if (job->run_timeout_ms > 0)
        put_time(o, "run", job->run_timeout_ms);
    return o;
}

json_t *hl_job_to_json(const struct hl_job *job)
{
    json_t *doc = json_object(), *model = json_object(), *dataset = json_object();
    json_t *checkpoint = json_object();
    member_put(doc, "jobName", json_string(job->name));
    put_text(model, "name", job->model);
    put_text(model, "size", job->model_size);
    if (job->model_version >= 0)
        member_put(model, "version", json_integer(job->model_version));
    put_section(doc, "model", model);
    put_text(dataset, "path", job->dataset);
    put_section(doc, "dataset", dataset);
    json_t *grid = json_pack("{s:i, s:i, s:i, s:s}", "pipeline_parallel_size", job->grid.pp,
                             "tensor_parallel_size", job->grid.tp, "data_parallel_size",
                             job->grid.dp, "order", hl_rank_order_name(job->grid.order));
    if (job->virtual_stages > 1)
        member_put(grid, "virtual_pipeline_parallel_size", json_integer(job->virtual_stages));
    if (job->ep > 1)
        member_put(grid, "expert_model_parallel_size", json_integer(job->ep));
    if (job->etp != job->grid.tp)
        member_put(grid, "expert_tensor_parallel_size", json_integer(job->etp));
    member_put(doc, "parallelism", grid);
    put_text(doc, "dockerImage", job->image);
    put_list(doc, "command", job->command, job->command_count);
    put_text(doc, "workdir", job->workdir);
    put_text(doc, "venv", job->venv);
    put_text(doc, "conda", job->conda);
    put_text(doc, "python", job->python);
    json_t *env = json_object();
    for (size_t i = 0; i < job->env_count; i++)
        member_put(env, job->env[i].name, json_string(job->env[i].value));
    put_section(doc, "env", env);
    put_list(doc, "mounts", job->mounts, job->mount_count);
    put_section(doc, "resources", resources_json(job));
    if (job->restarts > 0)
        member_put(doc, "restarts", json_integer(job->restarts));
    if (job->node_lost_ms >= 0)
        put_time(doc, "nodeLostAfter", job->node_lost_ms);
    put_text(doc, "onNodeLost", job->on_node_lost);
    put_section(doc, "timeouts", timeouts_json(job));
    if (job->stop_grace_ms >= 0)
        put_time(doc, "stopGrace", job->stop_grace_ms);
    if (job->checkpoint_every > 0)
        member_put(checkpoint, "every", json_integer(job->checkpoint_every));
    put_section(doc, "checkpoint", checkpoint);
    if (strcmp(job->rank_table, "v2") != 0)
        put_text(doc, "rankTable", job->rank_table);
    return doc;
}
