/* Converts specs and statuses from the schema's form and back. Input is checked here. */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "hw/executor.h"
#include "os/process.h"

#define TEXTS_MAX 65536 /* limit of entries in a list */

/* ---- from the schema ---- */

static hl_status take_number(const char *field, int32_t value, int *out)
{
    if (value < 0)
        return hl_fail(HL_EINVAL, "container: field %s must be an integer from 0 to %d", field,
                       INT_MAX);
    *out = value;
    return HL_OK;
}

static hl_status take_text(const char *field, const char *text, char **out)
{
    *out = strdup(text != NULL ? text : "");
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for container field %s", field);
}

static hl_status check_count(const char *field, size_t count, size_t max)
{
    if (count <= max)
        return HL_OK;
    return hl_fail(HL_EINVAL, "container: field %s has %zu entries, at most %zu", field, count,
                   max);
}

static hl_status take_texts(const char *field, struct hl_api_text_list list, char ***out,
                            size_t *count)
{
    HL_TRY(check_count(field, list.count, TEXTS_MAX));
    *out = calloc(list.count + 1, sizeof(**out));
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for container field %s", field);
    for (size_t i = 0; i < list.count; i++) {
        HL_TRY(take_text(field, list.items[i], &(*out)[i]));
        *count = i + 1;
    }
    return HL_OK;
}

static hl_status take_env(struct hl_api_key_value_list list, struct hl_env *out)
{
    HL_TRY(check_count("env", list.count, TEXTS_MAX));
    for (size_t i = 0; i < list.count; i++) {
        const char *key = list.items[i].key, *value = list.items[i].value;
        if (key == NULL || key[0] == '\0' || strchr(key, '=') != NULL)
            return hl_fail(HL_EINVAL,
                           "container: env[%zu] needs a key without '=' (it has '%.64s')", i,
                           key != NULL ? key : "");
        HL_TRY(hl_env_set(out, key, value != NULL ? value : ""));
    }
    return HL_OK;
}

static hl_status check_id(const char *id)
{
    size_t len = strlen(id);
    bool ok = len > 0 && len <= HL_CONTAINER_ID_MAX && id[0] != '.';
    for (size_t i = 0; ok && i < len; i++)
        ok = isalnum((unsigned char)id[i]) || strchr("._-", id[i]) != NULL;
    if (ok)
        return HL_OK;
    return hl_fail(
        HL_EINVAL,
        "container: id '%.150s' must be 1 to %d letters, digits, '.', '_' or '-' and not "
        "begin with '.'",
        id, HL_CONTAINER_ID_MAX);
}

static hl_status take_rank(const struct hl_api_rank_spec *from, struct hl_rank_spec *to)
{
    HL_TRY(take_number("rank", from->rank, &to->rank));
    HL_TRY(take_number("pp", from->pp, &to->pp));
    HL_TRY(take_number("tp", from->tp, &to->tp));
    HL_TRY(take_number("dp", from->dp, &to->dp));
    HL_TRY(take_number("cp", from->cp, &to->cp));
    HL_TRY(take_number("localRank", from->local_rank, &to->local_rank));
    return take_env(from->env, &to->env);
}

static hl_status take_ranks(struct hl_api_rank_spec_list list, struct hl_container_spec *out)
{
    HL_TRY(check_count("ranks", list.count, HL_CONTAINER_RANKS_MAX));
    if (list.count == 0 && (out->replace.max <= 0 || out->replace.spares <= 0))
        return hl_fail(HL_EINVAL, "container %s has no ranks, and parks no processes", out->id);
    if (list.count == 0)
        return HL_OK;
    out->ranks = calloc(list.count, sizeof(*out->ranks));
    if (out->ranks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of container %s", out->id);
    for (size_t i = 0; i < list.count; i++) {
        out->rank_count = i + 1;
        HL_TRY(take_rank(&list.items[i], &out->ranks[i]));
        for (size_t k = 0; k < i; k++)
            if (out->ranks[k].rank == out->ranks[i].rank)
                return hl_fail(HL_EINVAL, "container %s has rank %d twice", out->id,
                               out->ranks[i].rank);
    }
    return HL_OK;
}

static hl_status take_spec(const struct hl_api_container_spec *from, struct hl_container_spec *out)
{
    struct hl_cpuset set;
    HL_TRY(take_text("id", from->id, &out->id));
    HL_TRY(check_id(out->id));
    HL_TRY(take_text("job", from->job, &out->job));
    HL_TRY(take_number("attempt", from->attempt, &out->attempt));
    HL_TRY(take_number("index", from->index, &out->index));
    out->numa_id = from->numa_id;
    HL_TRY(take_text("cpus", from->cpus, &out->cpus));
    if (hl_cpuset_parse(out->cpus, &set) != HL_OK)
        return hl_fail_prefix(HL_EINVAL, "container %s: field cpus: ", out->id);
    out->memory_bytes = from->memory_bytes;
    HL_TRY(take_text("image", from->image, &out->image));
    HL_TRY(take_texts("command", from->command, &out->command, &out->command_count));
    bool own = out->command_count == 0 && out->image[0] != '\0'; /* the image's own command */
    if (!own && (out->command_count == 0 || out->command[0][0] == '\0'))
        return hl_fail(HL_EINVAL, "container %s has no command", out->id);
    HL_TRY(take_text("workdir", from->workdir, &out->workdir));
    if (out->workdir[0] != '\0' && out->workdir[0] != '/')
        return hl_fail(HL_EINVAL, "container %s: workdir '%s' must be an absolute path", out->id,
                       out->workdir);
    HL_TRY(take_env(from->env, &out->env));
    out->replace = from->replace;
    HL_TRY(take_ranks(from->ranks, out));
    HL_TRY(take_texts("gpus", from->gpus, &out->gpus, &out->gpu_count));
    HL_TRY(take_number("stopGraceMs", from->stop_grace_ms, &out->stop_grace_ms));
    HL_TRY(take_text("replace.onFailure", from->replace.on_failure, &out->on_failure));
    out->replace.on_failure = out->on_failure;
    out->epoch = from->epoch;
    HL_TRY(take_text("rankTable", from->rank_table, &out->rank_table));
    HL_TRY(take_text("venv", from->venv, &out->venv));
    HL_TRY(take_text("conda", from->conda, &out->conda));
    HL_TRY(take_text("python", from->python, &out->python));
    HL_TRY(take_texts("nics", from->nics, &out->nics, &out->nic_count));
    return take_texts("mounts", from->mounts, &out->mounts, &out->mount_count);
}

hl_status hl_container_spec_from_api(const struct hl_api_container_spec *from,
                                     struct hl_container_spec *out)
{
    struct hl_container_spec spec = {0};
    hl_status st = take_spec(from, &spec);
    if (st != HL_OK)
        hl_container_spec_fini(&spec);
    else
        *out = spec;
    return st;
}

static hl_status take_rank_status(const struct hl_api_rank_status *from, struct hl_rank_status *to)
{
    HL_TRY(take_number("rank", from->rank, &to->rank));
    HL_TRY(take_number("pid", from->pid, &to->pid));
    HL_TRY(hl_run_state_of(from->state, &to->state));
    to->exit_code = from->exit_code;
    HL_TRY(take_number("signal", from->signal, &to->signal));
    to->finished_ms = from->finished_ms;
    to->replaced = (int)from->replaced;
    to->lost_ms = from->lost_ms;
    to->lost_code = from->lost_code;
    to->lost_signal = from->lost_signal;
    return HL_OK;
}

static hl_status take_status(const struct hl_api_container_status *from,
                             struct hl_container_status *out)
{
    HL_TRY(take_text("id", from->id, &out->id));
    HL_TRY(hl_run_state_of(from->state, &out->state));
    out->exit_code = from->exit_code;
    HL_TRY(take_number("signal", from->signal, &out->signal));
    HL_TRY(take_text("message", from->message, &out->message));
    HL_TRY(take_text("warning", from->warning, &out->warning));
    HL_TRY(take_text("binding", from->binding, &out->binding));
    out->lost = from->lost;
    out->started_ms = from->started_ms;
    out->finished_ms = from->finished_ms;
    HL_TRY(check_count("ranks", from->ranks.count, HL_CONTAINER_RANKS_MAX));
    out->rank_count = from->ranks.count;
    out->ranks = calloc(out->rank_count + 1, sizeof(*out->ranks));
    if (out->ranks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the status of container %s", out->id);
    for (size_t i = 0; i < out->rank_count; i++)
        HL_TRY(take_rank_status(&from->ranks.items[i], &out->ranks[i]));
    return HL_OK;
}

hl_status hl_container_status_from_api(const struct hl_api_container_status *from,
                                       struct hl_container_status *out)
{
    struct hl_container_status status = {0};
    hl_status st = take_status(from, &status);
    if (st != HL_OK)
        hl_container_status_fini(&status);
    else
        *out = status;
    return st;
}

/* ---- to the schema ---- */

static struct hl_api_text_list give_texts(char *const *texts, size_t count)
{
    return (struct hl_api_text_list){.items = (const char **)texts, .count = count};
}

static struct hl_api_key_value_list give_env(const struct hl_env *env, struct hl_arena *arena)
{
    struct hl_api_key_value_list list = {
        .items = hl_arena_array(arena, env->count, sizeof(*list.items)), .count = env->count};
    for (size_t i = 0; list.items != NULL && i < env->count; i++)
        list.items[i] =
            (struct hl_api_key_value){.key = env->vars[i].key, .value = env->vars[i].value};
    return list;
}

static struct hl_api_rank_spec_list give_ranks(const struct hl_container_spec *spec,
                                               struct hl_arena *arena)
{
    struct hl_api_rank_spec_list list = {
        .items = hl_arena_array(arena, spec->rank_count, sizeof(*list.items)),
        .count = spec->rank_count};
    for (size_t i = 0; list.items != NULL && i < spec->rank_count; i++) {
        const struct hl_rank_spec *r = &spec->ranks[i];
        list.items[i] = (struct hl_api_rank_spec){.rank = r->rank,
                                                  .pp = r->pp,
                                                  .tp = r->tp,
                                                  .dp = r->dp,
                                                  .cp = r->cp,
                                                  .local_rank = r->local_rank,
                                                  .env = give_env(&r->env, arena)};
    }
    return list;
}

struct hl_api_container_spec hl_container_spec_to_api(const struct hl_container_spec *spec,
                                                      struct hl_arena *arena)
{
    return (struct hl_api_container_spec){
        .id = spec->id,
        .job = spec->job,
        .attempt = spec->attempt,
        .index = spec->index,
        .numa_id = spec->numa_id,
        .cpus = spec->cpus,
        .memory_bytes = spec->memory_bytes,
        .image = spec->image,
        .command = give_texts(spec->command, spec->command_count),
        .workdir = spec->workdir,
        .env = give_env(&spec->env, arena),
        .ranks = give_ranks(spec, arena),
        .gpus = give_texts(spec->gpus, spec->gpu_count),
        .stop_grace_ms = spec->stop_grace_ms,
        .nics = give_texts(spec->nics, spec->nic_count),
        .mounts = give_texts(spec->mounts, spec->mount_count),
        .rank_table = spec->rank_table,
        .venv = spec->venv,
        .conda = spec->conda,
        .python = spec->python,
        .replace = spec->replace,
        .epoch = spec->epoch,
    };
}

/* A message may end in the middle of a character, or have what a program said. Text that is not
 * UTF-8 would make the heartbeat invalid that tells of all containers. */
static char *clean_text(struct hl_arena *arena, const char *text)
{
    return text != NULL ? hl_utf8_clean(arena, text, strlen(text)) : NULL;
}

struct hl_api_container_status hl_container_status_to_api(const struct hl_container_status *s,
                                                          struct hl_arena *arena)
{
    struct hl_api_rank_status_list ranks = {
        .items = hl_arena_array(arena, s->rank_count, sizeof(*ranks.items)),
        .count = s->rank_count};
    for (size_t i = 0; ranks.items != NULL && i < s->rank_count; i++) {
        const struct hl_rank_status *r = &s->ranks[i];
        ranks.items[i] = (struct hl_api_rank_status){
            .rank = r->rank,
            .pid = r->pid,
            .state = (enum hl_api_container_state)r->state,
            .exit_code = r->exit_code,
            .signal = r->signal,
            .finished_ms = r->finished_ms,
            .progress = {.step = -1, .since_ms = -1}, /* set by the Agent */
            .replaced = (uint32_t)r->replaced,
            .lost_ms = r->lost_ms,
            .lost_code = r->lost_code,
            .lost_signal = r->lost_signal,
        };
    }
    return (struct hl_api_container_status){
        .id = hl_arena_strdup(arena, s->id),
        .state = (enum hl_api_container_state)s->state,
        .exit_code = s->exit_code,
        .signal = s->signal,
        .message = clean_text(arena, s->message),
        .binding = clean_text(arena, s->binding),
        .started_ms = s->started_ms,
        .finished_ms = s->finished_ms,
        .ranks = ranks,
        .warning = clean_text(arena, s->warning),
        .steps_file = "", /* set by the Agent */
        .lost = s->lost,
    };
}
