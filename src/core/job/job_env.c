/* The environment of a job's ranks: variables from the job file and from the submitter, with paths
 * made absolute. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/job.h"

#define NAME_MAX_BYTES 128

/* Variables that tell a rank its identity: a job that set them would mislead its own ranks. */
static const char *const identity[] = {"GLOBAL_RANK",
                                       "PIPELINE_PARALLEL_RANK",
                                       "TENSOR_PARALLEL_RANK",
                                       "DATA_PARALLEL_RANK",
                                       "PIPELINE_PARALLEL_SIZE",
                                       "TENSOR_PARALLEL_SIZE",
                                       "DATA_PARALLEL_SIZE",
                                       "VIRTUAL_PIPELINE_PARALLEL_SIZE",
                                       "EXPERT_PARALLEL_SIZE",
                                       "EXPERT_PARALLEL_RANK",
                                       "EXPERT_TENSOR_PARALLEL_RANK",
                                       "EXPERT_DATA_PARALLEL_RANK",
                                       "CONTEXT_PARALLEL_SIZE",
                                       "CONTEXT_PARALLEL_RANK",
                                       "EXPERT_TENSOR_PARALLEL_SIZE",
                                       "CONTROLLER_L3_CACHE_ADDRESS",
                                       "HELIOS_CONTROLLER",
                                       "HELIOS_JOB",
                                       "HELIOS_ATTEMPT",
                                       "HELIOS_RESIZES",
                                       "HELIOS_MODEL",
                                       "HELIOS_NODE",
                                       "HELIOS_CONTAINER",
                                       "HELIOS_MEETING",
                                       "HELIOS_RANK_ORDER",
                                       "HELIOS_RECOVERY",
                                       "HELIOS_STEPS",
                                       "HELIOS_SPARE",
                                       "RANK",
                                       "WORLD_SIZE",
                                       "LOCAL_RANK",
                                       "LOCAL_WORLD_SIZE",
                                       "GROUP_RANK",
                                       "GROUP_WORLD_SIZE",
                                       "TORCHELASTIC_RESTART_COUNT",
                                       "TORCHELASTIC_MAX_RESTARTS",
                                       "MASTER_ADDR",
                                       "MASTER_PORT"};

/* Variables that a shell inside a job or beside a daemon would pass on. */
static const char *const helios_own[] = {"RANK_TABLE_FILE", "HYBRIDPS_MANAGER", "HYBRIDPS_DEVICES"};

/* Variables that describe the submitter's shell, terminal and machine, not the ranks. */
static const char *const of_the_shell[] = {"PWD",
                                           "OLDPWD",
                                           "SHLVL",
                                           "_",
                                           "TERM",
                                           "DISPLAY",
                                           "TMUX",
                                           "STY",
                                           "SSH_CLIENT",
                                           "SSH_CONNECTION",
                                           "SSH_TTY",
                                           "SSH_AUTH_SOCK",
                                           "XDG_RUNTIME_DIR",
                                           "DBUS_SESSION_BUS_ADDRESS",
                                           "CUDA_VISIBLE_DEVICES",
                                           "CUDA_DEVICE_ORDER"};

static bool is_one_of(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

const char *hl_job_var_problem(const char *name, enum hl_job_var_origin origin)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    if (origin >= HL_JOB_VAR_FILE && is_one_of(name, identity, HL_ARRAY_LEN(identity)))
        return "is set by Helios for every rank; remove it";
    if (*name == '\0' || strlen(name) > NAME_MAX_BYTES || name[strspn(name, all)] != '\0' ||
        strchr(letters, name[0]) == NULL)
        return "is not a name of a variable: letters, digits and _";
    if (origin >= HL_JOB_VAR_EXPORT &&
        (strncmp(name, "HELIOS_", 7) == 0 || is_one_of(name, helios_own, HL_ARRAY_LEN(helios_own))))
        return "is Helios's own and never exported; set it by env in the job file";
    if (origin >= HL_JOB_VAR_ALL && is_one_of(name, of_the_shell, HL_ARRAY_LEN(of_the_shell)))
        return "belongs to the submitter's shell; name it in --export to have it";
    return NULL;
}

static hl_status add_exported(struct hl_job *job, const char *name, const char *value)
{
    struct hl_job_var *env = realloc(job->env, (job->env_count + 1) * sizeof(*env));
    if (env == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the variables of a job");
    job->env = env;
    struct hl_job_var var = {strdup(name), strdup(value), true};
    if (var.name == NULL || var.value == NULL) {
        free(var.name);
        free(var.value);
        return hl_fail(HL_ENOMEM, "out of memory for the variables of a job");
    }
    env[job->env_count++] = var;
    return HL_OK;
}

hl_status hl_job_export(struct hl_job *job, const char *name, const char *value,
                        enum hl_job_var_origin origin)
{
    const char *why = hl_job_var_problem(name, origin);
    if (why == NULL && strlen(value) > HL_JOB_VALUE_MAX)
        why = "has a value of more than 65536 bytes";
    if (why != NULL)
        return hl_fail(HL_EINVAL, "--export: '%.64s' %s", name, why);
    for (size_t i = 0; i < job->env_count; i++) {
        struct hl_job_var *var = &job->env[i];
        if (strcmp(var->name, name) != 0)
            continue;
        if (origin == HL_JOB_VAR_ALL)
            return HL_OK;
        char *copy = strdup(value);
        if (copy == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the variables of a job");
        free(var->value);
        var->value = copy;
        var->exported = true;
        return HL_OK;
    }
    if (job->env_count >= HL_JOB_LIST_MAX)
        return hl_fail(HL_EINVAL, "--export: a job has at most %d variables", HL_JOB_LIST_MAX);
    return add_exported(job, name, value);
}

/* ---- paths ---------------------------------------------------------------------------------- */

static hl_status make_absolute(const char *what, const char *cwd, char **path)
{
    char *full = NULL;
    const char *tail = strcmp(*path, ".") == 0 ? "" : *path;
    if (asprintf(&full, "%s%s%s", cwd, *tail != '\0' ? "/" : "", tail) < 0)
        return hl_fail(HL_ENOMEM, "out of memory for the path of %s", what);
    free(*path);
    *path = full;
    if (strlen(full) >= PATH_MAX) /* a stored job may not have longer paths either */
        return hl_fail(HL_EINVAL, "%s has %zu bytes, a path has less than %d", what, strlen(full),
                       PATH_MAX);
    return HL_OK;
}

hl_status hl_job_resolve(struct hl_job *job, const char *cwd)
{
    struct {
        const char *what;
        char **path;
        bool is_path; /* otherwise the text stays as it is */
        bool in_path; /* becomes a part of PATH, so a stored job may not contain ':' either */
    } rows[] = {{"workdir", &job->workdir, true, false},
                {"venv", &job->venv, job->venv[0] != '\0', true},
                {"conda", &job->conda, strchr(job->conda, '/') != NULL, true},
                {"python", &job->python, job->python[0] != '\0', true}};

    for (size_t i = 0; cwd[0] == '/' && i < HL_ARRAY_LEN(rows); i++) {
        if (!rows[i].is_path || (*rows[i].path)[0] == '/')
            continue;
        HL_TRY(make_absolute(rows[i].what, cwd, rows[i].path));
        if (rows[i].in_path && strpbrk(*rows[i].path, ":\n") != NULL)
            return hl_fail(HL_EINVAL,
                           "%s: '%.128s' must not hold ':' or a line break, it becomes a part of "
                           "PATH",
                           rows[i].what, *rows[i].path);
    }
    return HL_OK;
}
