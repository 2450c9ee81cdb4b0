/* Helpers for a container's spec and status: set, copy and free their texts and lists. */
#include "hw/executor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hl_run_state_text(enum hl_run_state s)
{
    return hl_api_container_state_name((enum hl_api_container_state)s);
}

hl_status hl_run_state_of(enum hl_api_container_state said, enum hl_run_state *out)
{
    if (said < HL_API_CONTAINER_STATE_STARTING || said > HL_API_CONTAINER_STATE_STOPPED)
        return hl_fail(HL_EINVAL, "a container here can't be in state '%s'",
                       hl_api_container_state_name(said));
    *out = (enum hl_run_state)said;
    return HL_OK;
}

hl_status hl_text_set(char **field, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return hl_fail(HL_ENOMEM, "out of memory allocating the text of a container's status");
    free(*field);
    *field = text;
    return HL_OK;
}

const char *hl_env_get(const struct hl_env *env, const char *key)
{
    for (size_t i = env->count; i-- > 0;)
        if (strcmp(env->vars[i].key, key) == 0)
            return env->vars[i].value;
    return NULL;
}

hl_status hl_env_set(struct hl_env *env, const char *key, const char *value)
{
    for (size_t i = 0; i < env->count; i++)
        if (strcmp(env->vars[i].key, key) == 0)
            return hl_text_set(&env->vars[i].value, "%s", value);
    struct hl_env_var *vars = realloc(env->vars, (env->count + 1) * sizeof(*vars));
    if (vars == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the environment of a container");
    env->vars = vars;
    struct hl_env_var v = {strdup(key), strdup(value)};
    if (v.key == NULL || v.value == NULL) {
        free(v.key);
        free(v.value);
        return hl_fail(HL_ENOMEM, "out of memory allocating the environment of a container");
    }
    env->vars[env->count++] = v;
    return HL_OK;
}

void hl_env_fini(struct hl_env *env)
{
    for (size_t i = 0; i < env->count; i++) {
        free(env->vars[i].key);
        free(env->vars[i].value);
    }
    free(env->vars);
    *env = (struct hl_env){0};
}

hl_status hl_texts_add(char ***texts, size_t *count, const char *text)
{
    char *copy = strdup(text), **longer = realloc(*texts, (*count + 2) * sizeof(*longer));
    if (longer != NULL)
        *texts = longer;
    if (copy == NULL || longer == NULL) {
        free(copy);
        return hl_fail(HL_ENOMEM, "out of memory adding to the spec of a container");
    }
    longer[(*count)++] = copy;
    longer[*count] = NULL;
    return HL_OK;
}

static void texts_fini(char **texts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(texts[i]);
    free(texts);
}

void hl_container_spec_fini(struct hl_container_spec *spec)
{
    free(spec->id);
    free(spec->job);
    free(spec->cpus);
    free(spec->image);
    free(spec->workdir);
    free(spec->venv);
    free(spec->conda);
    free(spec->python);
    free(spec->rank_table);
    free(spec->on_failure);
    texts_fini(spec->command, spec->command_count);
    texts_fini(spec->gpus, spec->gpu_count);
    texts_fini(spec->nics, spec->nic_count);
    texts_fini(spec->mounts, spec->mount_count);
    hl_env_fini(&spec->env);
    for (size_t i = 0; i < spec->rank_count; i++)
        hl_env_fini(&spec->ranks[i].env);
    free(spec->ranks);
    memset(spec, 0, sizeof(*spec));
}

void hl_container_status_fini(struct hl_container_status *status)
{
    free(status->id);
    free(status->message);
    free(status->warning);
    free(status->binding);
    free(status->ranks);
    memset(status, 0, sizeof(*status));
}

static hl_status status_alloc(const char *id, const char *message, const char *warning,
                              const char *binding, size_t ranks, struct hl_container_status *out)
{
    struct hl_container_status s = {
        .id = strdup(id),
        .message = strdup(message),
        .warning = strdup(warning),
        .binding = strdup(binding),
        .ranks = calloc(ranks + 1, sizeof(*s.ranks)),
        .rank_count = ranks,
    };
    if (s.id == NULL || s.message == NULL || s.warning == NULL || s.binding == NULL ||
        s.ranks == NULL) {
        hl_container_status_fini(&s);
        return hl_fail(HL_ENOMEM, "out of memory allocating the status of container %s", id);
    }
    *out = s;
    return HL_OK;
}

hl_status hl_container_status_init(const struct hl_container_spec *spec,
                                   struct hl_container_status *out)
{
    struct hl_container_status s;
    HL_TRY(status_alloc(spec->id, "", "", "none", spec->rank_count, &s));
    s.state = HL_RUN_STARTING;
    for (size_t i = 0; i < spec->rank_count; i++)
        s.ranks[i] = (struct hl_rank_status){.rank = spec->ranks[i].rank, .state = HL_RUN_STARTING};
    *out = s;
    return HL_OK;
}

hl_status hl_container_status_copy(const struct hl_container_status *from,
                                   struct hl_container_status *out)
{
    struct hl_container_status s;
    HL_TRY(
        status_alloc(from->id, from->message, from->warning, from->binding, from->rank_count, &s));
    s.state = from->state;
    s.exit_code = from->exit_code;
    s.signal = from->signal;
    s.lost = from->lost;
    s.started_ms = from->started_ms;
    s.finished_ms = from->finished_ms;
    memcpy(s.ranks, from->ranks, from->rank_count * sizeof(*s.ranks));
    *out = s;
    return HL_OK;
}
