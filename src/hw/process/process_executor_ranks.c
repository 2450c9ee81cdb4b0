/* Starting the ranks of a container: control group, binding, environment, exec. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/process/process_executor_private.h"
#include "hw/process/systemd_scope.h"
#include "hw/slurm.h"
#include "os/file.h"
#include "os/systemd.h"

#define RANK_OOM_SCORE_ADJ 500
#define SCOPE_MS           5000

static const char *const inherited[] = {"PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH"};

static hl_status env_merge(struct hl_env *into, const struct hl_env *from)
{
    for (size_t i = 0; i < from->count; i++)
        HL_TRY(hl_env_set(into, from->vars[i].key, from->vars[i].value));
    return HL_OK;
}

/* The environment that the rank will see, in the order inherited < container < rank. A job that
 * brings a rank table of its own keeps it. */
hl_status hl_shim_rank_env(const struct hl_shim *s, const struct hl_rank_spec *rank,
                           struct hl_env *out)
{
    const struct hl_container_spec *spec = &s->spec;
    for (size_t i = 0; s->engine == NULL && i < HL_ARRAY_LEN(inherited); i++) {
        const char *value = getenv(inherited[i]);
        if (value != NULL)
            HL_TRY(hl_env_set(out, inherited[i], value));
    }
    if (spec->rank_table[0] != '\0')
        HL_TRY(hl_env_set(out, "RANK_TABLE_FILE", hl_path_of_rank_table(s->dir).s));
    if (spec->replace.max > 0)
        HL_TRY(hl_env_set(out, "HELIOS_MEETING", hl_path_of_meeting(s->dir).s));
    HL_TRY(env_merge(out, &spec->env));
    HL_TRY(env_merge(out, &rank->env));
    return hl_shim_set_python(s, out);
}

static void texts_freep(char ***texts)
{
    for (char **p = *texts; p != NULL && *p != NULL; p++)
        free(*p);
    free(*texts);
}

static hl_status env_texts(const struct hl_env *env, char ***out)
{
    HL_AUTO(texts_freep) char **texts = calloc(env->count + 1, sizeof(*texts));
    if (texts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the environment of a rank");
    for (size_t i = 0; i < env->count; i++) {
        texts[i] = NULL;
        HL_TRY(hl_text_set(&texts[i], "%s=%s", env->vars[i].key, env->vars[i].value));
    }
    *out = hl_steal(&texts);
    return HL_OK;
}

/* Moves the shim into a scope of its own, where systemd leaves its groups alone. True if it is
 * there. */
static bool enter_scope(const struct hl_shim *s, const char *name)
{
    if (!hl_systemd_booted() || geteuid() != 0 || hl_slurm_inside())
        return false; /* Slurm ends whatever is in its own groups */
    if (hl_systemd_scope(name, SCOPE_MS) == HL_OK)
        return true;
    hl_warn("container %s is bound only by affinity: %s", s->spec.id, hl_error_text());
    return false;
}

static void make_group(struct hl_shim *s)
{
    char name[HL_GROUP_NAME_MAX];
    hl_group_name(s->dir, s->spec.id, name);
    bool bind = hl_cpuset_count(&s->binding.cpus) > 0;
    struct hl_cgroup_spec spec = {
        .name = name,
        .cpus = bind ? &s->binding.cpus : NULL,
        .mems = bind ? &s->binding.mems : NULL,
        .memory_bytes = s->spec.memory_bytes,
        .delegated = enter_scope(s, name),
        .inside = hl_slurm_inside(),
    };
    hl_cgroup_create(&spec, &s->cgroup);
    HL_AUTO(hl_buf_fini) struct hl_buf record = HL_BUF(8192);
    if (hl_cgroup_record(&s->cgroup, &record) != HL_OK ||
        hl_file_write_atomic(hl_path_in(s->dir, "cgroup").s, record.len > 0 ? record.data : "",
                             record.len) != HL_OK)
        hl_warn("%s", hl_error_text());
    size_t n = strlen(s->binding.note);
    if (s->spec.memory_bytes > 0 && (hl_cgroup_means(&s->cgroup) & HL_CGROUP_MEMORY) == 0)
        snprintf(s->binding.note + n, sizeof(s->binding.note) - n,
                 "%sthe memory limit can't be set on this machine", n > 0 ? "; " : "");
}

static hl_status rank_workdir(struct hl_shim *s, struct hl_path *out)
{
    if (s->spec.workdir[0] != '\0') {
        int n = snprintf(out->s, sizeof(out->s), "%s", s->spec.workdir);
        if (n < 0 || (size_t)n >= sizeof(out->s))
            return hl_fail(HL_EINVAL, "the path of workdir is too long");
        return HL_OK;
    }
    *out = hl_path_in(s->dir, "work");
    return hl_dir_make(out->s, 0755);
}

hl_status hl_shim_spawn(struct hl_shim *s, const struct hl_env *env, int output, const int *pass,
                        pid_t *out)
{
    HL_AUTO(texts_freep) char **texts = NULL;
    struct hl_path program, workdir;
    HL_TRY(env_texts(env, &texts));
    HL_TRY(rank_workdir(s, &workdir));
    HL_TRY(
        hl_process_find(s->spec.command[0], hl_env_get(env, "PATH"), program.s, sizeof(program.s)));
    int join[HL_CGROUP_DIRS];
    size_t join_count = hl_cgroup_join_open(&s->cgroup, join);
    bool affinity = hl_cpuset_count(&s->binding.cpus) > 0 &&
                    (hl_cgroup_means(&s->cgroup) & HL_CGROUP_CPUSET) == 0;
    struct hl_spawn spawn = {
        .program = program.s,
        .argv = s->spec.command,
        .env = texts,
        .workdir = workdir.s,
        .name = s->spec.command[0],
        .std = {-1, output, output},
        .pass = pass,
        .pass_count = pass != NULL,
        .join = join,
        .join_count = join_count,
        .cpus = affinity ? &s->binding.cpus : NULL,
        .mems = affinity ? &s->binding.mems : NULL,
        .oom_score_adj = RANK_OOM_SCORE_ADJ,
        .die_with_parent = true,
    };
    hl_status st = hl_process_spawn(&spawn, out);
    for (size_t k = 0; k < join_count; k++)
        close(join[k]);
    return st;
}

bool hl_shim_is_bound(const struct hl_shim *s, pid_t pid)
{
    struct hl_cpuset cpus;
    return hl_cpuset_count(&s->binding.cpus) > 0 && hl_process_allowed(pid, &cpus, NULL) == HL_OK &&
           hl_cpuset_equal(&cpus, &s->binding.cpus);
}

static const char *read_back(struct hl_shim *s, pid_t pid)
{
    if (!hl_shim_is_bound(s, pid))
        return "none";
    return (hl_cgroup_means(&s->cgroup) & HL_CGROUP_CPUSET) != 0 ? "cpuset-cgroup" : "affinity";
}

hl_status hl_shim_start_rank(struct hl_shim *s, size_t i)
{
    HL_AUTO(hl_env_fini) struct hl_env env = {0};
    HL_AUTO(hl_closep) int output = -1;
    pid_t pid;
    HL_TRY(hl_shim_rank_env(s, &s->spec.ranks[i], &env));
    HL_TRY(hl_shim_output_open(s, i, &output));
    HL_TRY(hl_shim_spawn(s, &env, output, NULL, &pid));
    s->status.ranks[i].pid = pid;
    s->status.ranks[i].state = HL_RUN_RUNNING;
    s->live++;
    return i == 0 ? hl_text_set(&s->status.binding, "%s", read_back(s, pid)) : HL_OK;
}

void hl_process_start_ranks(struct hl_shim *s)
{
    make_group(s);
    s->status.started_ms = hl_wall_ms();
    s->status.state = HL_RUN_RUNNING;
    for (size_t i = 0; i < s->spec.rank_count; i++) {
        struct hl_rank_status *r = &s->status.ranks[i];
        if (s->failed) {
            r->state = HL_RUN_STOPPED;
        } else if (hl_shim_start_rank(s, i) != HL_OK) {
            s->failed = true;
            r->state = HL_RUN_FAILED;
            r->exit_code = s->status.exit_code = 127;
            r->finished_ms = hl_wall_ms();
            (void)!hl_text_set(&s->status.message, "rank %d: %s", r->rank, hl_error_text());
        }
    }
    if (!s->failed)
        (void)!hl_text_set(&s->status.message, "%s%s%s", s->spec.rank_count == 0 ? "parked" : "",
                           s->spec.rank_count == 0 && s->binding.note[0] != '\0' ? "; " : "",
                           s->binding.note);
}
