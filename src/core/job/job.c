/* A job file is read through one table. Each row describes a key: its kind, its range and the field
 * it sets. A key's section ("parallelism") is the part before the dot. */
#include "core/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/catalog/catalog.h"
#include "core/job/job_private.h"
#include "core/queue/queue.h"

enum kind {
    KEY_TEXT,
    KEY_NAME,
    KEY_MODEL,
    KEY_IMAGE,
    KEY_INT,   /* int */
    KEY_INT64, /* int64_t */
    KEY_BYTES,
    KEY_TIME, /* int64_t ms */
    KEY_ORDER,
    KEY_COMMAND,
    KEY_ENV,
    KEY_MOUNTS,
    KEY_TABLE,
    KEY_PLACE,     /* a path on the nodes */
    KEY_CONDA,     /* or the name of an environment */
    KEY_LOST_TIME, /* int64_t ms */
    KEY_LOST_GOAL,
    KEY_RULE, /* struct hl_place_rule: "LEVEL required" */
    KEY_NIC,
    KEY_RECOVERY,
    KEY_KUBERNETES, /* json_t */
    KEY_RANK_GOAL,  /* what happens to a rank that hangs */
    KEY_FAILURES,   /* struct hl_failure_rules: KIND or CODE: WORD */
    KEY_RANGE,      /* data_parallel_size: N or {min, max} */
};

struct key {
    const char *name;
    enum kind kind;
    int64_t min, max;
    size_t offset;
};

#define AT(field)   offsetof(struct hl_job, field)
#define DAY_MS      86400000ll
#define TEXT_MAX    HL_JOB_VALUE_MAX
#define POINTER_MAX 512

/* clang-format off */
static const struct key job_keys[] = {
    {"jobName", KEY_NAME, 0, 0, AT(name)},
    {"model.name", KEY_MODEL, 0, 0, AT(model)},
    {"model.size", KEY_TEXT, 0, 0, AT(model_size)},
    {"model.version", KEY_INT64, 0, INT64_MAX, AT(model_version)},
    {"dataset.path", KEY_TEXT, 0, 0, AT(dataset)},
    {"parallelism.pipeline_parallel_size", KEY_INT, 1, HL_JOB_WORLD_MAX, AT(grid.pp)},
    {"parallelism.tensor_parallel_size", KEY_INT, 1, HL_JOB_WORLD_MAX, AT(grid.tp)},
    {"parallelism.data_parallel_size", KEY_RANGE, 0, 0, AT(grid.dp)},
    {"parallelism.context_parallel_size", KEY_INT, 1, HL_JOB_WORLD_MAX, AT(grid.cp)},
    {"parallelism.order", KEY_ORDER, 0, 0, AT(grid.order)},
    {"parallelism.virtual_pipeline_parallel_size", KEY_INT, 1, 1024, AT(virtual_stages)},
    {"parallelism.expert_model_parallel_size", KEY_INT, 1, 4096, AT(ep)},
    {"parallelism.expert_tensor_parallel_size", KEY_INT, 1, 4096, AT(etp)},
    {"dockerImage", KEY_IMAGE, 0, 0, AT(image)},
    {"command", KEY_COMMAND, 0, 0, AT(command)},
    {"workdir", KEY_TEXT, 0, 0, AT(workdir)},
    {"venv", KEY_PLACE, 0, 0, AT(venv)},
    {"conda", KEY_CONDA, 0, 0, AT(conda)},
    {"python", KEY_PLACE, 0, 0, AT(python)},
    {"env", KEY_ENV, 0, 0, AT(env)},
    {"mounts", KEY_MOUNTS, 0, 0, AT(mounts)},
    {"resources.ranks_per_slot", KEY_INT, 1, 1024, AT(ranks_per_slot)},
    {"resources.gpus_per_rank", KEY_INT, 0, 1, AT(gpus_per_rank)},
    {"resources.cpus_per_rank", KEY_INT, 1, 4096, AT(cpus_per_rank)},
    {"resources.memory", KEY_BYTES, 1 << 20, INT64_MAX, AT(memory_bytes)},
    {"resources.gpu_memory", KEY_BYTES, 1 << 20, INT64_MAX, AT(gpu_memory_bytes)},
    {"resources.nic_class", KEY_NIC, 0, 0, AT(nic_class)},
    {"placement.tensor", KEY_RULE, 0, 0, AT(placement.tensor)},
    {"placement.pipeline", KEY_RULE, 0, 0, AT(placement.pipeline)},
    {"placement.data", KEY_RULE, 0, 0, AT(placement.data)},
    {"placement.gang", KEY_RULE, 0, 0, AT(placement.gang)},
    {"restarts", KEY_INT, 0, 1000, AT(restarts)},
    {"onFailure", KEY_FAILURES, 0, 0, AT(on_failure)},
    {"nodeLostAfter", KEY_LOST_TIME, 200, 30 * DAY_MS, AT(node_lost_ms)},
    {"onNodeLost", KEY_LOST_GOAL, 0, 0, AT(on_node_lost)},
    {"timeouts.start", KEY_TIME, 100, 30 * DAY_MS, AT(start_timeout_ms)},
    {"timeouts.run", KEY_TIME, 100, 3650 * DAY_MS, AT(run_timeout_ms)},
    {"stopGrace", KEY_TIME, 0, DAY_MS, AT(stop_grace_ms)},
    {"checkpoint.every", KEY_INT64, 1, INT64_MAX, AT(checkpoint_every)},
    {"rankTable", KEY_TABLE, 0, 0, AT(rank_table)},
    {"recovery.mode", KEY_RECOVERY, 0, 0, AT(recovery)},
    {"recovery.replacements", KEY_INT, 1, 100000, AT(replacements)},
    {"recovery.stableAfter", KEY_TIME, 1000, 30 * DAY_MS, AT(stable_ms)},
    {"recovery.backoff", KEY_TIME, 100, DAY_MS, AT(backoff_ms)},
    {"recovery.backoffMax", KEY_TIME, 100, DAY_MS, AT(backoff_max_ms)},
    {"recovery.growAfter", KEY_TIME, 100, 30 * DAY_MS, AT(grow_after_ms)},
    {"recovery.onHang", KEY_RANK_GOAL, 0, 0, AT(on_hang)},
    {"recovery.onSlow", KEY_RANK_GOAL, 0, 0, AT(on_slow)},
    {"spares", KEY_INT, 0, 16, AT(spares)},
    {"spareSlots", KEY_INT, 0, 16, AT(spare_slots)},
    {"queue", KEY_NAME, 0, 0, AT(queue)},
    {"priority", KEY_INT, -HL_PRIORITY_MAX, HL_PRIORITY_MAX, AT(priority)},
    {"kubernetes", KEY_KUBERNETES, 0, 0, AT(kubernetes)},
};

/* clang-format on */

struct reader {
    const struct hl_job_source *src;
    struct hl_job *job;
    char field[256];           /* "parallelism.order", "env.HOME", "mounts[2]": shown to people */
    char pointer[POINTER_MAX]; /* "/parallelism/order": used to find the position */
};

/* Puts "job.yaml:7:25: parallelism.order: " in front of the sentence. */
static hl_status HL_PRINTF(3, 4) bad(const struct reader *r, bool of_key, const char *fmt, ...)
{
    char text[512];
    int line = 0, column = 0;
    const char *name = r->src != NULL && r->src->name != NULL ? r->src->name : "job";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (r->src != NULL && r->src->where != NULL)
        r->src->where(r->src->ctx, r->pointer, of_key, &line, &column);
    const char *colon = *r->field != '\0' ? ": " : "";
    if (line > 0)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s%s%s", name, line, column, r->field, colon, text);
    return hl_fail(HL_EINVAL, "%s: %s%s%s", name, r->field, colon, text);
}

static hl_status short_of_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating the job");
}

static void reader_enter(struct reader *r, const char *field, const char *pointer)
{
    snprintf(r->field, sizeof(r->field), "%s", field);
    snprintf(r->pointer, sizeof(r->pointer), "%s", pointer);
}

/* ---- values --------------------------------------------------------------------------------- */

static hl_status want_text(const struct reader *r, const json_t *v, const char **out)
{
    const char *s = json_string_value(v);
    if (s == NULL)
        return bad(r, 0, "must be a text%s",
                   json_is_number(v) || json_is_boolean(v) ? "; put it in quotes" : "");
    if (*s == '\0')
        return bad(r, 0, "must not be empty");
    if (json_string_length(v) > TEXT_MAX || strlen(s) != json_string_length(v))
        return bad(r, 0, "must be a text of at most %d bytes without \\0", TEXT_MAX);
    *out = s;
    return HL_OK;
}

static hl_status want_name(const struct reader *r, const char *s)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    if (strlen(s) > HL_JOB_NAME_MAX)
        return bad(r, 0, "has %zu characters, at most %d are allowed", strlen(s), HL_JOB_NAME_MAX);
    if (strchr(first, s[0]) == NULL ||
        strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-._") != strlen(s))
        return bad(
            r, 0, "'%s' must begin with a lower-case letter or digit and hold only these and - . _",
            s);
    return HL_OK;
}

static hl_status want_word(const struct reader *r, const char *s)
{
    for (const char *p = s; *p != '\0'; p++)
        if (*p <= ' ' || *p > '~')
            return bad(r, 0, "must not hold blanks or special characters");
    return *s != '-' ? HL_OK : bad(r, 0, "must not begin with -");
}

static hl_status want_place(const struct reader *r, const char *s)
{
    if (strpbrk(s, ":\n") != NULL)
        return bad(r, 0, "'%.128s' must not hold ':' or a line break, it becomes a part of PATH",
                   s);
    return *s != '~' ? HL_OK : bad(r, 0, "~ is not expanded; write the whole path");
}

static hl_status want_table(const struct reader *r, const char *s)
{
    if (strcmp(s, "v1") == 0 || strcmp(s, "v2") == 0 || strcmp(s, "1.2") == 0)
        return HL_OK;
    return bad(r, 0, "'%.64s' is not one of v1, v2, \"1.2\"", s);
}

static hl_status set_text(struct reader *r, const struct key *k, const json_t *v, char **to)
{
    const char *s = NULL;
    HL_TRY(want_text(r, v, &s));
    if (k->kind == KEY_NAME)
        HL_TRY(want_name(r, s));
    if (k->kind == KEY_TABLE)
        HL_TRY(want_table(r, s));
    if (k->kind == KEY_LOST_GOAL && strcmp(s, "restart") != 0 && strcmp(s, "fail") != 0)
        return bad(r, 0, "'%.64s' is neither restart nor fail", s);
    if (k->kind == KEY_RECOVERY && strcmp(s, "restart") != 0 && strcmp(s, "replace") != 0)
        return bad(r, 0, "'%.64s' is neither restart nor replace", s);
    if (k->kind == KEY_RANK_GOAL && strcmp(s, "end") != 0 && strcmp(s, "name") != 0)
        return bad(r, 0, "'%.64s' is neither end nor name", s);
    if (k->kind == KEY_IMAGE)
        HL_TRY(want_word(r, s));
    if (k->kind == KEY_PLACE || (k->kind == KEY_CONDA && strchr(s, '/') != NULL))
        HL_TRY(want_place(r, s));
    else if (k->kind == KEY_CONDA)
        HL_TRY(want_word(r, s));
    if (k->kind == KEY_MODEL && hl_model_name_check(s) != HL_OK) {
        char why[HL_ERROR_TEXT_MAX];
        snprintf(why, sizeof(why), "%s", hl_error_text());
        return bad(r, 0, "%s%s", why,
                   strchr(s, '@') != NULL ? "; the version is model.version" : "");
    }
    char *copy = strdup(s);
    if (copy == NULL)
        return short_of_memory();
    free(*to);
    *to = copy;
    return HL_OK;
}

static hl_status want_int(const struct reader *r, const struct key *k, const json_t *v,
                          int64_t *out)
{
    if (!json_is_integer(v))
        return bad(r, 0, "must be a whole number");
    int64_t n = json_integer_value(v);
    if (n >= k->min && n <= k->max)
        *out = n;
    else if (k->max == INT64_MAX)
        return bad(r, 0, "is %lld, must be at least %lld", (long long)n, (long long)k->min);
    else
        return bad(r, 0, "is %lld, must be from %lld to %lld", (long long)n, (long long)k->min,
                   (long long)k->max);
    return HL_OK;
}

static hl_status want_bytes(const struct reader *r, const struct key *k, const json_t *v,
                            uint64_t *out)
{
    uint64_t n = 0;
    if (json_is_integer(v) && json_integer_value(v) >= 0)
        n = (uint64_t)json_integer_value(v);
    else if (!json_is_string(v) || hl_parse_bytes(json_string_value(v), &n) != HL_OK)
        return bad(r, 0, "must be a size: a number of bytes, or 512MiB, 4GiB");
    if (n < (uint64_t)k->min)
        return bad(r, 0, "must be at least 1MiB");
    *out = n;
    return HL_OK;
}

static hl_status want_time(const struct reader *r, const struct key *k, const json_t *v,
                           int64_t *out)
{
    uint64_t n = 0;
    const char *s = json_string_value(v);
    if (s == NULL || strspn(s, "0123456789.") == strlen(s) || hl_parse_duration_ms(s, &n) != HL_OK)
        return bad(r, 0, "must be a duration with its unit: 500ms, 10s, 5m, 2h");
    if (n < (uint64_t)k->min || n > (uint64_t)k->max)
        return bad(r, 0, "must be from %lldms to %lldh", (long long)k->min,
                   (long long)(k->max / 3600000));
    *out = (int64_t)n;
    return HL_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

static hl_status check_count(const struct reader *r, size_t n)
{
    return n <= HL_JOB_LIST_MAX ? HL_OK
                                : bad(r, 0, "has %zu entries, at most %d", n, HL_JOB_LIST_MAX);
}

/* Arguments can be empty texts; numbers are taken as written. */
static hl_status plain_text(const struct reader *r, const json_t *v, char **out)
{
    char number[32];
    const char *s = json_string_value(v);
    if (json_is_integer(v)) {
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(v));
        s = number;
    } else if (json_is_boolean(v)) {
        s = json_is_true(v) ? "true" : "false";
    } else if (json_is_real(v)) {
        return bad(r, 0, "put the number in quotes, so that it stays as written");
    } else if (s == NULL) {
        return bad(r, 0, "must be a text");
    } else if (strlen(s) != json_string_length(v) || strlen(s) > TEXT_MAX) {
        return bad(r, 0, "must be a text of at most %d bytes without \\0", TEXT_MAX);
    }
    *out = strdup(s);
    return *out != NULL ? HL_OK : short_of_memory();
}

static hl_status want_mount(const struct reader *r, const char *s)
{
    const char *inside = strchr(s, ':');
    size_t n = inside != NULL ? strcspn(inside + 1, ":") : 0;
    const char *mode = n > 0 ? inside + 1 + n : "";
    if (*s != '/' || n == 0 || inside[1] != '/' ||
        (*mode != '\0' && strcmp(mode, ":ro") != 0 && strcmp(mode, ":rw") != 0))
        return bad(r, 0, "'%.128s' must be /HOST/PATH:/CONTAINER/PATH, with :ro if read-only", s);
    const struct hl_podspec_rules *pods = r->src != NULL ? r->src->pods : NULL;
    if (pods != NULL && !hl_podspec_may_mount(pods->host_paths, s, (size_t)(inside - s)))
        return bad(r, 0,
                   "'%.*s' is in no directory that pods may mount (%s%.100s); the option "
                   "kube.host_paths of helios-controller lists them",
                   (int)(inside - s > 128 ? 128 : inside - s), s,
                   *pods->host_paths != '\0' ? "these are: " : "there is none", pods->host_paths);
    return HL_OK;
}

static hl_status set_list(struct reader *r, const struct key *k, const json_t *v, char ***to,
                          size_t *count)
{
    char base[256], base_pointer[POINTER_MAX - 32];
    size_t n = json_array_size(v);
    HL_TRY(check_count(r, n));
    if (n == 0)
        return bad(r, 0, "must not be empty");
    char **list = calloc(n + 1, sizeof(*list));
    hl_status st = list != NULL ? HL_OK : short_of_memory();
    snprintf(base, sizeof(base), "%.255s", r->field);
    snprintf(base_pointer, sizeof(base_pointer), "%.479s", r->pointer);
    for (size_t i = 0; st == HL_OK && i < n; i++) {
        snprintf(r->field, sizeof(r->field), "%.200s[%zu]", base, i);
        snprintf(r->pointer, sizeof(r->pointer), "%s/%zu", base_pointer, i);
        st = plain_text(r, json_array_get(v, i), &list[i]);
        if (st == HL_OK && k->kind == KEY_MOUNTS)
            st = want_mount(r, list[i]);
    }
    if (st != HL_OK) {
        if (list != NULL)
            hl_job_list_free(list, n);
        return st;
    }
    *to = list;
    *count = n;
    return HL_OK;
}

static hl_status set_command(struct reader *r, const struct key *k, const json_t *v)
{
    if (json_is_array(v)) {
        HL_TRY(set_list(r, k, v, &r->job->command, &r->job->command_count));
        if (r->job->command[0][0] == '\0') {
            reader_enter(r, "command[0]", "/command/0");
            return bad(r, 0, "names no program");
        }
        return HL_OK;
    }
    if (!json_is_string(v))
        return bad(r, 0, "must be a list of arguments, or one text for the shell");
    const char *line = NULL;
    HL_TRY(want_text(r, v, &line));
    json_t *list = json_pack("[s, s, s]", "/bin/sh", "-c", line);
    hl_status st = list != NULL ? set_list(r, k, list, &r->job->command, &r->job->command_count)
                                : short_of_memory();
    json_decref(list);
    return st;
}

static hl_status want_var(const struct reader *r, const char *name)
{
    /* A stored job stays valid: without a source, variables that Helios sets are not refused. */
    const char *why = hl_job_var_problem(name, r->src != NULL ? HL_JOB_VAR_FILE : HL_JOB_VAR_ANY);
    return why == NULL ? HL_OK : bad(r, 1, "%s", why);
}

static hl_status set_env(struct reader *r, const json_t *v)
{
    const char *name;
    json_t *value;
    if (!json_is_object(v))
        return bad(r, 0, "must be NAME: VALUE lines");
    HL_TRY(check_count(r, json_object_size(v)));
    r->job->env = calloc(json_object_size(v) + 1, sizeof(*r->job->env));
    if (r->job->env == NULL)
        return short_of_memory();
    json_object_foreach ((json_t *)v, name, value) {
        struct hl_job_var *var = &r->job->env[r->job->env_count];
        snprintf(r->field, sizeof(r->field), "env.%.128s", name);
        snprintf(r->pointer, sizeof(r->pointer), "/env/%.400s", name);
        HL_TRY(want_var(r, name));
        HL_TRY(plain_text(r, value, &var->value));
        r->job->env_count++;
        if ((var->name = strdup(name)) == NULL)
            return short_of_memory();
    }
    return HL_OK;
}

static hl_status bad_at(struct reader *r, const struct hl_job_fault *fault, bool of_key)
{
    reader_enter(r, fault->field, fault->pointer);
    return bad(r, of_key, "%s", fault->text);
}

static hl_status set_failures(struct reader *r, const json_t *v, struct hl_failure_rules *out)
{
    struct hl_job_fault fault;
    return hl_job_failures_read(v, out, &fault) ? HL_OK : bad_at(r, &fault, 0);
}

/* ---- the document --------------------------------------------------------------------------- */

static enum hl_job_executor executor_of(const struct reader *r)
{
    return r->src != NULL ? r->src->executor : HL_JOB_EXECUTOR_ANY;
}

static hl_status set_range(struct reader *r, const json_t *v)
{
    struct hl_job_fault fault;
    return hl_job_range_read(v, executor_of(r), r->job, &fault) ? HL_OK : bad_at(r, &fault, 0);
}

static hl_status set_lost_time(const struct reader *r, const struct key *k, const json_t *v,
                               int64_t *out)
{
    int64_t ms = 0, least = r->src != NULL ? r->src->node_lost_min_ms : 0;
    HL_TRY(want_time(r, k, v, &ms));
    if (ms < least)
        return bad(r, 0,
                   "is %lld ms, but this cluster notices a silent node after %lld ms (option "
                   "node_lost); give at least that",
                   (long long)ms, (long long)least);
    *out = ms;
    return HL_OK;
}

static hl_status set_rule(const struct reader *r, const json_t *v, struct hl_place_rule *out)
{
    const char *text = NULL;
    HL_TRY(want_text(r, v, &text));
    return hl_place_rule_parse(text, out) == HL_OK ? HL_OK : bad(r, 0, "%s", hl_error_text());
}

static hl_status set_nic(const struct reader *r, const json_t *v, enum hl_nic_class *out)
{
    const char *text = NULL;
    HL_TRY(want_text(r, v, &text));
    *out = hl_nic_class_named(text);
    return *out != HL_NIC_OTHER
               ? HL_OK
               : bad(r, 0, "'%.64s' is not one of ConnectX-3 to ConnectX-8, BlueField", text);
}

/* A stored job stays valid: it is checked only when it is submitted. */
static hl_status set_kubernetes(struct reader *r, const json_t *v, json_t **out)
{
    struct hl_podspec_fault fault;
    const struct hl_podspec_rules *pods = r->src != NULL ? r->src->pods : NULL;
    if (pods != NULL && !hl_podspec_check(v, pods, &fault)) {
        reader_enter(r, fault.field, fault.pointer);
        return bad(r, fault.of_key, "%s", fault.text);
    }
    json_decref(*out);
    *out = json_deep_copy(v);
    return *out != NULL ? HL_OK : short_of_memory();
}

static hl_status check_supported(const struct reader *r, const struct key *k)
{
    const char *why = hl_job_unsupported(k->name, executor_of(r));
    return why == NULL ? HL_OK
                       : bad(r, 1, "the executor %s can't honour it: %s",
                             hl_job_executor_name(executor_of(r)), why);
}

static hl_status set_key(struct reader *r, const struct key *k, const json_t *v)
{
    void *to = (char *)r->job + k->offset;
    const char *text = NULL;
    int64_t n = 0;
    HL_TRY(check_supported(r, k));
    switch (k->kind) {
    case KEY_TEXT:
    case KEY_NAME:
    case KEY_MODEL:
    case KEY_IMAGE:
    case KEY_TABLE:
    case KEY_PLACE:
    case KEY_CONDA:
    case KEY_LOST_GOAL:
    case KEY_RECOVERY:
    case KEY_RANK_GOAL:
        return set_text(r, k, v, to);
    case KEY_FAILURES:
        return set_failures(r, v, to);
    case KEY_RANGE:
        return set_range(r, v);
    case KEY_INT:
        HL_TRY(want_int(r, k, v, &n));
        *(int *)to = (int)n;
        return HL_OK;
    case KEY_INT64:
        return want_int(r, k, v, to);
    case KEY_BYTES:
        return want_bytes(r, k, v, to);
    case KEY_TIME:
        return want_time(r, k, v, to);
    case KEY_LOST_TIME:
        return set_lost_time(r, k, v, to);
    case KEY_ORDER:
        HL_TRY(want_text(r, v, &text));
        if (hl_rank_order_parse(text, &r->job->grid.order) != HL_OK)
            return bad(r, 0, "'%.64s' is neither tp-dp-pp (Megatron's) nor tp-pp-dp", text);
        return HL_OK;
    case KEY_RULE:
        return set_rule(r, v, to);
    case KEY_NIC:
        return set_nic(r, v, to);
    case KEY_COMMAND:
        return set_command(r, k, v);
    case KEY_ENV:
        return set_env(r, v);
    case KEY_MOUNTS:
        if (!json_is_array(v))
            return bad(r, 0, "must be a list");
        return set_list(r, k, v, &r->job->mounts, &r->job->mount_count);
    case KEY_KUBERNETES:
        return set_kubernetes(r, v, to);
    }
    return HL_OK;
}

/* The keys that `section` ("" = top level) accepts, each once; subsections by name. */
static size_t keys_of(const char *section, char names[][64], size_t cap)
{
    size_t n = 0, len = strlen(section);
    for (size_t i = 0; i < HL_ARRAY_LEN(job_keys) && n < cap; i++) {
        const char *dot = strchr(job_keys[i].name, '.');
        const char *name = job_keys[i].name;
        size_t use = dot != NULL ? (size_t)(dot - name) : strlen(name);
        if (len > 0) {
            if (dot == NULL || use != len || strncmp(name, section, len) != 0)
                continue;
            name = dot + 1;
            use = strlen(name);
        }
        snprintf(names[n], 64, "%.*s", (int)use, name);
        if (n == 0 || strcmp(names[n], names[n - 1]) != 0)
            n++;
    }
    return n;
}

static hl_status unknown_key(struct reader *r, const char *section, const char *key)
{
    char names[HL_ARRAY_LEN(job_keys)][64];
    const char *list[HL_ARRAY_LEN(job_keys)];
    size_t n = keys_of(section, names, HL_ARRAY_LEN(job_keys));
    for (size_t i = 0; i < n; i++)
        list[i] = names[i];
    const char *near = hl_did_you_mean(key, list, n);
    const char *of = *section != '\0' ? section : "a job";
    r->field[0] = '\0';
    if (near != NULL)
        return bad(r, 1, "'%.64s' is not a key of %s; did you mean '%s'?", key, of, near);
    char all[512] = "";
    for (size_t i = 0, used = 0; i < n && used < sizeof(all); i++)
        used +=
            (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", i > 0 ? ", " : "", names[i]);
    return bad(r, 1, "'%.64s' is not a key of %s; these are: %.400s", key, of, all);
}

static hl_status read_section(struct reader *r, const char *section, const json_t *object);

/* Reads one member: a key of the table or a section. */
static hl_status read_member(struct reader *r, const char *section, const char *key,
                             const json_t *value)
{
    char name[256];
    size_t len;
    snprintf(name, sizeof(name), "%s%s%.128s", section, *section != '\0' ? "." : "", key);
    len = strlen(name);
    snprintf(r->field, sizeof(r->field), "%s", name);
    for (size_t i = 0; i < HL_ARRAY_LEN(job_keys); i++) {
        const char *row = job_keys[i].name;
        if (strcmp(row, name) == 0 && strchr(key, '.') == NULL)
            return json_is_null(value) ? bad(r, 0, "has no value")
                                       : set_key(r, &job_keys[i], value);
        if (*section == '\0' && strncmp(row, name, len) == 0 && row[len] == '.') {
            if (!json_is_object(value))
                return bad(r, 0, "must be KEY: VALUE lines, indented below it");
            return read_section(r, name, value);
        }
    }
    return unknown_key(r, section, key);
}

static hl_status read_section(struct reader *r, const char *section, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        char escaped[POINTER_MAX / 2] = "";
        size_t n = 0;
        for (const char *p = key; *p != '\0' && n + 3 < sizeof(escaped); p++) {
            if (*p == '~' || *p == '/')
                escaped[n++] = '~';
            escaped[n++] = *p == '~' ? '0' : *p == '/' ? '1' : *p;
        }
        escaped[n] = '\0';
        snprintf(r->pointer, sizeof(r->pointer), "%s%s/%s", *section != '\0' ? "/" : "", section,
                 escaped);
        HL_TRY(read_member(r, section, key, value));
    }
    return HL_OK;
}

/* The program and its location; which key gives them depends on the executor. */
static hl_status check_program(struct reader *r)
{
    const struct hl_job *job = r->job;
    enum hl_job_executor executor = executor_of(r);
    if (executor == HL_JOB_EXECUTOR_PROCESS && job->command_count == 0)
        return bad(r, 0, "command is missing; add command: [PROGRAM, ARGUMENT, ...]");
    bool image = hl_job_executor_has_image(executor);
    if (image && job->image == NULL)
        return bad(r, 0,
                   "dockerImage is missing, and the executor %s runs ranks in an image; add "
                   "dockerImage: REGISTRY/IMAGE:TAG",
                   hl_job_executor_name(executor));
    if (job->image == NULL && job->command_count == 0)
        return bad(r, 0, "nothing to run: give command or dockerImage");
    if (!image || job->workdir == NULL || job->workdir[0] == '/' ||
        (executor == HL_JOB_EXECUTOR_KUBERNETES && strcmp(job->workdir, ".") == 0))
        return HL_OK;
    reader_enter(r, "workdir", "/workdir");
    return bad(r, 0,
               "'%.200s' is relative; with the executor %s give an absolute path in the image, or "
               "leave it out for the image's own",
               job->workdir, hl_job_executor_name(executor));
}

/* Checks that involve more than one key. */
static hl_status check_whole(struct reader *r)
{
    const struct hl_job *job = r->job;
    struct hl_job_fault fault;
    reader_enter(r, "", "");
    if (job->name == NULL)
        return bad(r, 0, "jobName is missing");
    HL_TRY(check_program(r));
    bool stored = r->src == NULL; /* earlier releases accepted what the GPUs' check refuses */
    if (!hl_job_recovery_check(job, executor_of(r), &fault) ||
        (!stored && !hl_job_gpus_check(job, &fault)))
        return bad_at(r, &fault, 1);
    if ((job->venv != NULL) + (job->conda != NULL) + (job->python != NULL) > 1) {
        reader_enter(r, "", job->python != NULL ? "/python" : "/conda");
        return bad(r, 1, "venv, conda and python exclude each other; give one");
    }
    if (job->model == NULL && (job->model_size != NULL || job->model_version >= 0)) {
        reader_enter(r, "model", "/model");
        return bad(r, 0, "model.name is missing");
    }
    return hl_job_grid_check(r->job, &fault) ? HL_OK : bad_at(r, &fault, 0);
}

hl_status hl_job_parse(const json_t *doc, const struct hl_job_source *src, struct hl_job *out)
{
    struct hl_job job = {.model_version = -1,
                         .grid = {.pp = 1, .tp = 1, .dp = 1, .cp = 1},
                         .dp_min = 1,
                         .dp_max = 1,
                         .virtual_stages = 1,
                         .ep = 1,
                         .gpus_per_rank = -1,
                         .node_lost_ms = -1,
                         .start_timeout_ms = -1,
                         .stop_grace_ms = -1};
    struct reader r = {.src = src, .job = &job};
    hl_status st = json_is_object(doc) ? HL_OK : bad(&r, 0, "a job is written as KEY: VALUE lines");
    if (st == HL_OK)
        st = read_section(&r, "", doc);
    if (st == HL_OK)
        st = check_whole(&r);
    if (st == HL_OK)
        st = hl_job_fill(&job);
    if (st != HL_OK) {
        hl_job_fini(&job);
        return st;
    }
    *out = job;
    return HL_OK;
}
