#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "hw/executor.h"
#include "os/process.h"

/* ---- decoding ---- */

static hl_status get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int absent,
                         int *out)
{
    const json_t *v = json_object_get(obj, key);
    if (v == NULL || json_is_null(v)) {
        *out = absent;
        return HL_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return hl_fail(HL_EINVAL, "container: field %s must be an integer from %lld to %lld", key,
                       (long long)min, (long long)max);
    *out = (int)json_integer_value(v);
    return HL_OK;
}

static hl_status get_text(const json_t *obj, const char *key, char **out)
{
    const json_t *v = json_object_get(obj, key);
    if (v != NULL && !json_is_null(v) && !json_is_string(v))
        return hl_fail(HL_EINVAL, "container: field %s must be text", key);
    const char *text = v != NULL && json_is_string(v) ? json_string_value(v) : "";
    *out = strdup(text);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "container: field %s", key);
}

static hl_status get_list(const json_t *obj, const char *key, size_t max, const json_t **out)
{
    const json_t *v = json_object_get(obj, key);
    if (v != NULL && !json_is_null(v) && !json_is_array(v))
        return hl_fail(HL_EINVAL, "container: field %s must be a list", key);
    if (json_array_size(v) > max)
        return hl_fail(HL_EINVAL, "container: field %s has %zu entries, at most %zu", key,
                       json_array_size(v), max);
    *out = v;
    return HL_OK;
}

static hl_status get_texts(const json_t *obj, const char *key, char ***out, size_t *count)
{
    const json_t *list;
    HL_TRY(get_list(obj, key, 65536, &list));
    size_t n = json_array_size(list);
    *out = calloc(n + 1, sizeof(**out));
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "container: field %s", key);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL)
            return hl_fail(HL_EINVAL, "container: field %s[%zu] must be text", key, i);
        (*out)[i] = strdup(text);
        if ((*out)[i] == NULL)
            return hl_fail(HL_ENOMEM, "container: field %s", key);
        *count = i + 1;
    }
    return HL_OK;
}

static hl_status get_env(const json_t *obj, struct hl_env *out)
{
    const json_t *list;
    HL_TRY(get_list(obj, "env", 65536, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const char *key = hl_json_str(pair, "key", NULL);
        const char *value = hl_json_str(pair, "value", "");
        if (key == NULL || key[0] == '\0' || strchr(key, '=') != NULL)
            return hl_fail(HL_EINVAL,
                           "container: env[%zu] needs a key without '=' (it has '%.64s')", i,
                           key != NULL ? key : "");
        HL_TRY(hl_env_set(out, key, value));
    }
    return HL_OK;
}

static hl_status check_id(const char *id)
{
    size_t len = strlen(id);
    int ok = len > 0 && len <= HL_CONTAINER_ID_MAX && id[0] != '.';
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

static hl_status get_ranks(const json_t *obj, struct hl_container_spec *out)
{
    const json_t *list;
    HL_TRY(get_list(obj, "ranks", HL_CONTAINER_RANKS_MAX, &list));
    size_t n = json_array_size(list);
    if (n == 0)
        return hl_fail(HL_EINVAL, "container %s has no ranks", out->id);
    out->ranks = calloc(n, sizeof(*out->ranks));
    if (out->ranks == NULL)
        return hl_fail(HL_ENOMEM, "ranks of container %s", out->id);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(list, i);
        struct hl_rank_spec *to = &out->ranks[i];
        out->rank_count = i + 1;
        HL_TRY(get_int(r, "rank", 0, INT_MAX, 0, &to->rank));
        HL_TRY(get_int(r, "pp", 0, INT_MAX, 0, &to->pp));
        HL_TRY(get_int(r, "tp", 0, INT_MAX, 0, &to->tp));
        HL_TRY(get_int(r, "dp", 0, INT_MAX, 0, &to->dp));
        HL_TRY(get_int(r, "localRank", 0, INT_MAX, 0, &to->local_rank));
        HL_TRY(get_env(r, &to->env));
        for (size_t k = 0; k < i; k++)
            if (out->ranks[k].rank == to->rank)
                return hl_fail(HL_EINVAL, "container %s has rank %d twice", out->id, to->rank);
    }
    return HL_OK;
}

static hl_status spec_decode(const json_t *json, struct hl_container_spec *out)
{
    struct hl_cpuset set;
    HL_TRY(get_text(json, "id", &out->id));
    HL_TRY(check_id(out->id));
    HL_TRY(get_text(json, "job", &out->job));
    HL_TRY(get_int(json, "attempt", 0, INT_MAX, 0, &out->attempt));
    HL_TRY(get_int(json, "index", 0, INT_MAX, 0, &out->index));
    HL_TRY(get_int(json, "numaId", INT_MIN, INT_MAX, 0, &out->numa_id));
    HL_TRY(get_text(json, "cpus", &out->cpus));
    if (hl_cpuset_parse(out->cpus, &set) != HL_OK)
        return hl_fail_prefix(HL_EINVAL, "container %s: field cpus: ", out->id);
    int64_t memory = hl_json_int(json, "memoryBytes", 0);
    if (memory < 0)
        return hl_fail(HL_EINVAL, "container %s: field memoryBytes is negative", out->id);
    out->memory_bytes = (uint64_t)memory;
    HL_TRY(get_text(json, "image", &out->image));
    HL_TRY(get_texts(json, "command", &out->command, &out->command_count));
    if (out->command_count == 0 || out->command[0][0] == '\0')
        return hl_fail(HL_EINVAL, "container %s has no command", out->id);
    HL_TRY(get_text(json, "workdir", &out->workdir));
    if (out->workdir[0] != '\0' && out->workdir[0] != '/')
        return hl_fail(HL_EINVAL, "container %s: workdir '%s' must be an absolute path", out->id,
                       out->workdir);
    HL_TRY(get_env(json, &out->env));
    HL_TRY(get_ranks(json, out));
    HL_TRY(get_texts(json, "gpus", &out->gpus, &out->gpu_count));
    HL_TRY(get_int(json, "stopGraceMs", 0, INT_MAX, 0, &out->stop_grace_ms));
    HL_TRY(get_text(json, "rankTable", &out->rank_table));
    HL_TRY(get_text(json, "venv", &out->venv));
    HL_TRY(get_text(json, "conda", &out->conda));
    HL_TRY(get_text(json, "python", &out->python));
    return get_texts(json, "mounts", &out->mounts, &out->mount_count);
}

hl_status hl_container_spec_decode(const json_t *json, struct hl_container_spec *out)
{
    struct hl_container_spec spec = {0};
    if (!json_is_object(json))
        return hl_fail(HL_EINVAL, "container: the spec is not an object");
    hl_status st = spec_decode(json, &spec);
    if (st != HL_OK)
        hl_container_spec_fini(&spec);
    else
        *out = spec;
    return st;
}

static hl_status get_state(const json_t *obj, enum hl_run_state *out)
{
    return hl_run_state_parse(hl_json_str(obj, "state", ""), out);
}

static hl_status status_decode(const json_t *json, struct hl_container_status *out)
{
    const json_t *list;
    HL_TRY(get_text(json, "id", &out->id));
    HL_TRY(get_state(json, &out->state));
    HL_TRY(get_int(json, "exitCode", INT_MIN, INT_MAX, 0, &out->exit_code));
    HL_TRY(get_int(json, "signal", 0, INT_MAX, 0, &out->signal));
    HL_TRY(get_text(json, "message", &out->message));
    HL_TRY(get_text(json, "warning", &out->warning));
    HL_TRY(get_text(json, "binding", &out->binding));
    out->started_ms = hl_json_int(json, "startedMs", 0);
    out->finished_ms = hl_json_int(json, "finishedMs", 0);
    HL_TRY(get_list(json, "ranks", HL_CONTAINER_RANKS_MAX, &list));
    out->rank_count = json_array_size(list);
    out->ranks = calloc(out->rank_count + 1, sizeof(*out->ranks));
    if (out->ranks == NULL)
        return hl_fail(HL_ENOMEM, "status of container %s", out->id);
    for (size_t i = 0; i < out->rank_count; i++) {
        const json_t *r = json_array_get(list, i);
        HL_TRY(get_int(r, "rank", 0, INT_MAX, 0, &out->ranks[i].rank));
        HL_TRY(get_int(r, "pid", 0, INT_MAX, 0, &out->ranks[i].pid));
        HL_TRY(get_state(r, &out->ranks[i].state));
        HL_TRY(get_int(r, "exitCode", INT_MIN, INT_MAX, 0, &out->ranks[i].exit_code));
        HL_TRY(get_int(r, "signal", 0, INT_MAX, 0, &out->ranks[i].signal));
        out->ranks[i].finished_ms = hl_json_int(r, "finishedMs", 0);
    }
    return HL_OK;
}

hl_status hl_container_status_decode(const json_t *json, struct hl_container_status *out)
{
    struct hl_container_status status = {0};
    hl_status st = status_decode(json, &status);
    if (st != HL_OK)
        hl_container_status_fini(&status);
    else
        *out = status;
    return st;
}

/* ---- encoding ---- */

/* Bytes that are not UTF-8 (a name in an error text) must not make a status unreadable. */
static json_t *text_json(const char *text)
{
    json_t *v = json_string(text);
    if (v != NULL)
        return v;
    char *copy = strdup(text);
    if (copy == NULL)
        return NULL;
    for (char *p = copy; *p != '\0'; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    v = json_string(copy);
    free(copy);
    return v;
}

static json_t *texts_json(char *const *texts, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, text_json(texts[i]));
    return list;
}

static json_t *env_json(const struct hl_env *env)
{
    json_t *list = json_array();
    for (size_t i = 0; i < env->count; i++)
        json_array_append_new(list, json_pack("{so so}", "key", text_json(env->vars[i].key),
                                              "value", text_json(env->vars[i].value)));
    return list;
}

json_t *hl_container_spec_encode(const struct hl_container_spec *spec)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < spec->rank_count; i++) {
        const struct hl_rank_spec *r = &spec->ranks[i];
        json_array_append_new(ranks, json_pack("{si si si si si so}", "rank", r->rank, "pp", r->pp,
                                               "tp", r->tp, "dp", r->dp, "localRank", r->local_rank,
                                               "env", env_json(&r->env)));
    }
    return json_pack("{so so si si si so sI so so so so so so si so so so so so}", "id",
                     text_json(spec->id), "job", text_json(spec->job), "attempt", spec->attempt,
                     "index", spec->index, "numaId", spec->numa_id, "cpus", text_json(spec->cpus),
                     "memoryBytes", (json_int_t)spec->memory_bytes, "image", text_json(spec->image),
                     "command", texts_json(spec->command, spec->command_count), "workdir",
                     text_json(spec->workdir), "env", env_json(&spec->env), "ranks", ranks, "gpus",
                     texts_json(spec->gpus, spec->gpu_count), "stopGraceMs", spec->stop_grace_ms,
                     "mounts", texts_json(spec->mounts, spec->mount_count), "rankTable",
                     text_json(spec->rank_table), "venv", text_json(spec->venv), "conda",
                     text_json(spec->conda), "python", text_json(spec->python));
}

json_t *hl_container_status_encode(const struct hl_container_status *s)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < s->rank_count; i++) {
        const struct hl_rank_status *r = &s->ranks[i];
        json_array_append_new(ranks, json_pack("{si si ss si si sI}", "rank", r->rank, "pid",
                                               r->pid, "state", hl_run_state_text(r->state),
                                               "exitCode", r->exit_code, "signal", r->signal,
                                               "finishedMs", (json_int_t)r->finished_ms));
    }
    return json_pack("{so ss si si so so so sI sI so}", "id", text_json(s->id), "state",
                     hl_run_state_text(s->state), "exitCode", s->exit_code, "signal", s->signal,
                     "message", text_json(s->message), "warning", text_json(s->warning), "binding",
                     text_json(s->binding), "startedMs", (json_int_t)s->started_ms, "finishedMs",
                     (json_int_t)s->finished_ms, "ranks", ranks);
}
