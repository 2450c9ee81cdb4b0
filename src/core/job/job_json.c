/* A job as the document that hl_job_parse reads. Only values that differ from the default are
 * written. */
#include <string.h>

#include "api/types.h"
#include "core/job/elastic.h"
#include "core/replace/replacing.h"

const char *hl_job_executor_name(enum hl_job_executor executor)
{
    static const char *const names[] = {"any", "process", "docker", "podman", "kubernetes"};
    return names[executor];
}

/* NULL: the text is not written. */
static const char *text_said(const char *text)
{
    return *text != '\0' ? text : NULL;
}

static const char *time_text(struct hl_arena *arena, bool is_said, int64_t ms)
{
    return is_said ? hl_arena_printf(arena, "%lldms", (long long)ms) : NULL;
}

static struct hl_api_text_list texts_of(char *const *list, size_t count)
{
    return (struct hl_api_text_list){.items = (const char **)list, .count = count};
}

static struct hl_api_key_value_list env_of(const struct hl_job *job, struct hl_arena *arena)
{
    struct hl_api_key_value_list list = {
        .items = hl_arena_array(arena, job->env_count, sizeof(*list.items))};
    for (size_t i = 0; i < job->env_count && list.items != NULL; i++)
        list.items[list.count++] =
            (struct hl_api_key_value){.key = job->env[i].name, .value = job->env[i].value};
    return list;
}

struct hl_api_key_value_list hl_job_failure_rules(const struct hl_job *job, struct hl_arena *arena)
{
    const struct hl_failure_rules *rules = &job->on_failure;
    const size_t most = HL_ARRAY_LEN(rules->kind) + HL_ARRAY_LEN(rules->code);
    struct hl_api_key_value_list list = {.items = hl_arena_array(arena, most, sizeof(*list.items))};
    char key[HL_FAILURE_RULE_MAX];
    const char *then;
    size_t at = 0;
    while (list.items != NULL && hl_failure_rules_next(rules, &at, key, &then))
        list.items[list.count++] =
            (struct hl_api_key_value){.key = hl_arena_strdup(arena, key), .value = then};
    return list;
}

static const char *rule_text(struct hl_arena *arena, struct hl_place_rule r)
{
    if (r.level == HL_LEVEL_ANY)
        return NULL;
    return hl_arena_printf(arena, "%s %s", hl_level_name(r.level),
                           r.required ? "required" : "preferred");
}

static struct hl_api_job_spec_placement placement_of(const struct hl_place_rules *r,
                                                     struct hl_arena *arena)
{
    return (struct hl_api_job_spec_placement){.tensor = rule_text(arena, r->tensor),
                                              .pipeline = rule_text(arena, r->pipeline),
                                              .data = rule_text(arena, r->data),
                                              .gang = rule_text(arena, r->gang)};
}

/* Only the fields that the planner uses; all others are unset. */
static struct hl_api_job_spec shape_of(const struct hl_job *job, struct hl_arena *arena)
{
    return (struct hl_api_job_spec){
        .parallelism = {.pp = job->grid.pp,
                        .tp = job->grid.tp,
                        .dp = job->grid.dp,
                        .cp = hl_grid_cp(&job->grid),
                        .order = hl_rank_order_name(job->grid.order),
                        .virtual_stages = job->virtual_stages,
                        .ep = job->ep,
                        .etp = job->etp != job->grid.tp ? job->etp : 0},
        .resources = {.ranks_per_slot = job->ranks_per_slot,
                      .gpus_per_rank = job->gpus_per_rank,
                      .cpus_per_rank = job->cpus_per_rank,
                      .memory = job->memory_bytes,
                      .gpu_memory = job->gpu_memory_bytes,
                      .nic_class = job->nic_class != HL_NIC_OTHER
                                       ? hl_nic_class_name(job->nic_class)
                                       : NULL},
        .placement = placement_of(&job->placement, arena),
        .spare_slots = job->spare_slots,
    };
}

static struct hl_api_job_spec spec_of(const struct hl_job *job, struct hl_arena *arena)
{
    const struct hl_api_job_spec shape = shape_of(job, arena);
    return (struct hl_api_job_spec){
        .job_name = job->name,
        .model = {.name = text_said(job->model),
                  .size = text_said(job->model_size),
                  .version = job->model_version},
        .dataset = {.path = text_said(job->dataset)},
        .parallelism = shape.parallelism,
        .docker_image = text_said(job->image),
        .command = texts_of(job->command, job->command_count),
        .workdir = text_said(job->workdir),
        .venv = text_said(job->venv),
        .conda = text_said(job->conda),
        .python = text_said(job->python),
        .env = env_of(job, arena),
        .mounts = texts_of(job->mounts, job->mount_count),
        .resources = shape.resources,
        .placement = shape.placement,
        .restarts = job->restarts,
        .on_failure = hl_job_failure_rules(job, arena),
        .node_lost_after = time_text(arena, job->node_lost_ms >= 0, job->node_lost_ms),
        .on_node_lost = text_said(job->on_node_lost),
        .timeouts = {.start = time_text(arena, job->start_timeout_ms >= 0, job->start_timeout_ms),
                     .run = time_text(arena, job->run_timeout_ms > 0, job->run_timeout_ms)},
        .stop_grace = time_text(arena, job->stop_grace_ms >= 0, job->stop_grace_ms),
        .checkpoint = {.every = job->checkpoint_every},
        .rank_table = strcmp(job->rank_table, "v2") != 0 ? text_said(job->rank_table) : NULL,
        .recovery = {.mode = hl_job_replaces(job) ? job->recovery : NULL,
                     .replacements = job->replacements,
                     .stable_after =
                         time_text(arena, job->stable_ms != HL_JOB_STABLE_MS, job->stable_ms),
                     .backoff =
                         time_text(arena, job->backoff_ms != HL_REPLACE_WAIT_MS, job->backoff_ms),
                     .backoff_max = time_text(arena, job->backoff_max_ms != HL_REPLACE_WAIT_MAX_MS,
                                              job->backoff_max_ms),
                     .grow_after =
                         time_text(arena, job->grow_after_ms != HL_JOB_GROW_MS, job->grow_after_ms),
                     .on_hang = text_said(job->on_hang),
                     .on_slow = text_said(job->on_slow)},
        .spares = job->spares,
        .spare_slots = shape.spare_slots,
        .queue = text_said(job->queue),
        .priority = job->priority,
    };
}

static bool set_elastic(const struct hl_job *job, json_t *doc)
{
    return !hl_job_is_elastic(job) ||
           json_object_set_new(json_object_get(doc, "parallelism"), "data_parallel_size",
                               json_pack("{s:i, s:i}", "min", job->dp_min, "max", job->dp_max)) ==
               0;
}

json_t *hl_job_to_json(const struct hl_job *job)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_job_spec spec = spec_of(job, &arena);
    json_t *doc = !hl_arena_failed(&arena) ? hl_api_to_json(&hl_api_job_spec_type, &spec) : NULL;
    bool kept = doc != NULL && (job->kubernetes == NULL ||
                                json_object_set(doc, "kubernetes", job->kubernetes) == 0);
    if (!kept || !set_elastic(job, doc)) {
        json_decref(doc);
        return NULL;
    }
    return doc;
}

char *hl_job_shape_key(const struct hl_job *job)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_job_spec shape = shape_of(job, &arena);
    json_t *doc = !hl_arena_failed(&arena) ? hl_api_to_json(&hl_api_job_spec_type, &shape) : NULL;
    char *key = doc != NULL && set_elastic(job, doc) ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    return key;
}
