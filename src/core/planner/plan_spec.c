/* One container of a plan as the ContainerSpec for its Agent. The job's own variables come first,
 * so that Helios' variables override them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/elastic.h"
#include "core/planner/plan.h"

#define ENV_MAX 32 /* variables set by Helios */

struct env {
    struct hl_api_key_value_list list;
    struct hl_arena *arena;
};

static struct env env_new(struct hl_arena *arena, size_t max)
{
    return (struct env){.list.items = hl_arena_array(arena, max, sizeof(struct hl_api_key_value)),
                        .arena = arena};
}

static void env_add(struct env *env, const char *key, const char *value)
{
    if (env->list.items != NULL)
        env->list.items[env->list.count++] = (struct hl_api_key_value){key, value};
}

static void add_int(struct env *env, const char *key, int64_t value)
{
    env_add(env, key, hl_arena_printf(env->arena, "%lld", (long long)value));
}

static bool job_sets(const struct hl_job *job, const char *name)
{
    for (size_t i = 0; i < job->env_count; i++)
        if (strcmp(job->env[i].name, name) == 0)
            return true;
    return false;
}

static void add_model(struct env *env, const struct hl_job *job, int64_t version)
{
    if (*job->model == '\0')
        return;
    env_add(env, "HELIOS_MODEL",
            version >= 0 ? hl_arena_printf(env->arena, "%s@%lld", job->model, (long long)version)
                         : job->model);
}

/* Another scheduler can assign the CPUs; then only the job knows how many there are. */
static void add_threads(struct env *env, const struct hl_job *job,
                        const struct hl_plan_container *c, int ranks)
{
    struct hl_cpus cpus;
    if (job_sets(job, "OMP_NUM_THREADS") || hl_cpus_parse(c->cpus, &cpus) != HL_OK)
        return;
    int threads = *c->cpus == '\0' ? job->cpus_per_rank : hl_cpus_count(&cpus) / ranks;
    if (threads > 0 || *c->cpus != '\0')
        add_int(env, "OMP_NUM_THREADS", threads > 0 ? threads : 1);
}

static struct hl_api_key_value_list container_env(const struct hl_job *job,
                                                  const struct hl_plan *plan,
                                                  const struct hl_plan_container *c,
                                                  const struct hl_plan_spec_opts *opts,
                                                  struct hl_arena *arena)
{
    struct env all = env_new(arena, job->env_count + ENV_MAX), *env = &all;
    int whole = plan->ranks_per_container > 0 ? plan->ranks_per_container : 1;
    int ranks = c->rank_count > 0 ? c->rank_count : whole; /* as many processes in a spare */
    for (size_t i = 0; i < job->env_count; i++)
        env_add(env, job->env[i].name, job->env[i].value);
    add_threads(env, job, c, ranks);
    env_add(env, "CONTROLLER_L3_CACHE_ADDRESS", opts->l3_address);
    env_add(env, "HELIOS_CONTROLLER", opts->controller_address);
    env_add(env, "HELIOS_JOB", opts->job_id);
    add_int(env, "HELIOS_ATTEMPT", opts->attempt);
    if (hl_job_resizes(job))
        add_int(env, "HELIOS_RESIZES", 1);
    env_add(env, "HELIOS_NODE", c->node);
    if (hl_job_replaces(job)) /* tells two processes of one rank apart */
        add_int(env, "HELIOS_CONTAINER", c->index);
    add_model(env, job, opts->model_version);
    if (*job->dataset != '\0')
        env_add(env, "HELIOS_DATASET", job->dataset);
    if (job->checkpoint_every > 0)
        add_int(env, "HELIOS_CHECKPOINT_EVERY", job->checkpoint_every);
    add_int(env, "PIPELINE_PARALLEL_SIZE", job->grid.pp);
    add_int(env, "TENSOR_PARALLEL_SIZE", job->grid.tp);
    add_int(env, "DATA_PARALLEL_SIZE", job->grid.dp);
    add_int(env, "CONTEXT_PARALLEL_SIZE", hl_grid_cp(&job->grid));
    add_int(env, "VIRTUAL_PIPELINE_PARALLEL_SIZE", job->virtual_stages);
    add_int(env, "EXPERT_PARALLEL_SIZE", job->ep);
    add_int(env, "EXPERT_TENSOR_PARALLEL_SIZE", job->etp);
    env_add(env, "HELIOS_RANK_ORDER", hl_rank_order_name(job->grid.order));
    add_int(env, "WORLD_SIZE", plan->world_size);
    add_int(env, "LOCAL_WORLD_SIZE", ranks);
    add_int(env, "GROUP_RANK", c->rank_count > 0 ? c->ranks[0].rank / whole : c->index);
    add_int(env, "GROUP_WORLD_SIZE", (plan->world_size + whole - 1) / whole);
    add_int(env, "TORCHELASTIC_RESTART_COUNT", opts->attempt - 1);
    add_int(env, "TORCHELASTIC_MAX_RESTARTS", job->restarts);
    env_add(env, "HELIOS_RECOVERY", job->recovery);
    env_add(env, "MASTER_ADDR",
            opts->master_address != NULL ? opts->master_address : plan->master_address);
    add_int(env, "MASTER_PORT", opts->master_port);
    return env->list;
}

static struct hl_api_rank_spec rank_spec(const struct hl_job *job, const struct hl_plan_rank *r,
                                         struct hl_arena *arena)
{
    struct env env = env_new(arena, ENV_MAX);
    add_int(&env, "GLOBAL_RANK", r->rank);
    add_int(&env, "RANK", r->rank);
    add_int(&env, "LOCAL_RANK", r->local_rank);
    add_int(&env, "PIPELINE_PARALLEL_RANK", r->at.pp);
    add_int(&env, "TENSOR_PARALLEL_RANK", r->at.tp);
    add_int(&env, "DATA_PARALLEL_RANK", r->at.dp);
    const struct hl_expert_rank e = hl_rank_experts(&job->grid, r->at, job->ep, job->etp);
    add_int(&env, "CONTEXT_PARALLEL_RANK", r->at.cp);
    add_int(&env, "EXPERT_PARALLEL_RANK", e.ep);
    add_int(&env, "EXPERT_TENSOR_PARALLEL_RANK", e.etp);
    add_int(&env, "EXPERT_DATA_PARALLEL_RANK", e.dp);
    return (struct hl_api_rank_spec){.rank = r->rank,
                                     .pp = r->at.pp,
                                     .tp = r->at.tp,
                                     .dp = r->at.dp,
                                     .cp = r->at.cp,
                                     .local_rank = r->local_rank,
                                     .env = env.list};
}

static const char *rules_text(const struct hl_job *job, struct hl_arena *arena)
{
    char text[HL_FAILURE_RULES_TEXT_MAX];
    hl_failure_rules_print(&job->on_failure, text, sizeof(text));
    return hl_arena_strdup(arena, text);
}

struct hl_api_container_spec hl_plan_container_spec(const struct hl_job *job,
                                                    const struct hl_plan *plan, int index,
                                                    const struct hl_plan_spec_opts *opts,
                                                    struct hl_arena *arena)
{
    const struct hl_plan_container *c = &plan->containers[index];
    size_t n = (size_t)c->rank_count;
    char id[192];
    struct hl_api_container_spec spec = {
        .id = hl_arena_strdup(
            arena, hl_container_id(opts->job_id, opts->attempt, c->index, id, sizeof(id))),
        .job = opts->job_id,
        .attempt = opts->attempt,
        .index = c->index,
        .numa_id = c->numa_id,
        .cpus = c->cpus,
        .memory_bytes = job->memory_bytes,
        .image = job->image,
        .command = {(const char **)job->command, job->command_count},
        .workdir = job->workdir,
        .env = container_env(job, plan, c, opts, arena),
        .ranks.items = hl_arena_array(arena, n, sizeof(*spec.ranks.items)),
        .gpus.items = hl_arena_array(arena, n, sizeof(*spec.gpus.items)),
        .stop_grace_ms = (int32_t)opts->stop_grace_ms,
        .mounts = {(const char **)job->mounts, job->mount_count},
        .rank_table = opts->rank_table,
        .venv = job->venv,
        .conda = job->conda,
        .python = job->python,
    };
    if (hl_job_replaces(job))
        spec.replace =
            (struct hl_api_replace_rule){.max = job->replacements,
                                         .stable_ms = job->stable_ms,
                                         .spares = n > 0 ? job->spares : plan->ranks_per_container,
                                         .backoff_ms = job->backoff_ms,
                                         .backoff_max_ms = job->backoff_max_ms,
                                         .on_failure = rules_text(job, arena)};
    for (size_t i = 0; i < n && spec.ranks.items != NULL && spec.gpus.items != NULL; i++) {
        spec.ranks.items[spec.ranks.count++] = rank_spec(job, &c->ranks[i], arena);
        if (*c->ranks[i].gpu != '\0')
            spec.gpus.items[spec.gpus.count++] = c->ranks[i].gpu;
    }
    return spec;
}

const char *hl_container_id(const char *job_id, int attempt, int index, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s.%d.%d", job_id, attempt, index);
    return buf;
}

/* Reads ".NUMBER" at the end of text[0..*len) and cuts it off. */
static bool cut_number(const char *text, size_t *len, int *out)
{
    size_t at = *len;
    long value = 0;
    while (at > 0 && text[at - 1] >= '0' && text[at - 1] <= '9')
        at--;
    if (at == *len || *len - at > 9 || at < 2 || text[at - 1] != '.')
        return false;
    for (size_t i = at; i < *len; i++)
        value = value * 10 + (text[i] - '0');
    *out = (int)value;
    *len = at - 1;
    return true;
}

hl_status hl_container_id_parse(const char *id, char *job_id, size_t cap, int *attempt, int *index)
{
    size_t len = strlen(id);
    int a = 0, i = 0;
    if (!cut_number(id, &len, &i) || !cut_number(id, &len, &a) || len >= cap)
        return hl_fail(HL_EINVAL, "'%.128s' is not a container id JOB.ATTEMPT.INDEX", id);
    memcpy(job_id, id, len);
    job_id[len] = '\0';
    *attempt = a;
    *index = i;
    return HL_OK;
}
