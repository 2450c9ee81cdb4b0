/* Command lines of the engines. docker's is the reference; differences of podman are handled where
 * they matter. podman accepts --gpus but ignores it, so it gets GPUs only through CDI. Its log
 * driver has another name, its `ps` does not know .Label, and its `rm --force` waits for the
 * container's end. */
#include "hw/engine/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"

#define LOG_FILES 2 /* of the engine's own log, which is only needed until the shim has read it */

hl_status hl_engine_kind_of(const char *name, enum hl_engine_kind *out)
{
    static const char *const names[] = {"process", "docker", "podman"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum hl_engine_kind)i;
            return HL_OK;
        }
    return hl_fail(HL_EUNSUPPORTED, "executor '%s' is unknown: use process, docker or podman",
                   name);
}

const char *hl_engine_name(enum hl_engine_kind kind)
{
    return kind == HL_ENGINE_DOCKER ? "docker" : kind == HL_ENGINE_PODMAN ? "podman" : "process";
}

void hl_engine_owner(const char *containers_dir, char out[16])
{
    snprintf(out, 16, "%08x", hl_crc32(0, containers_dir, strlen(containers_dir)));
}

void hl_engine_container_name(const struct hl_container_spec *spec, const char *owner, int rank,
                              char *out, size_t size)
{
    snprintf(out, size, "helios-%s-%s-%d", owner, spec->id, rank);
}

/* ---- arguments ---- */

void hl_args_add(struct hl_args *args, const char *text)
{
    if (args->count + 1 >= HL_ENGINE_ARGS_MAX)
        args->arena->failed = true;
    char *copy = hl_arena_strdup(args->arena, text);
    char **v = hl_arena_grow(args->arena, args->v, args->count, sizeof(*args->v));
    if (copy == NULL || v == NULL || args->arena->failed)
        return;
    args->v = v;
    args->v[args->count++] = copy;
}

void hl_args_printf(struct hl_args *args, const char *format, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, format);
    int n = vasprintf(&text, format, ap);
    va_end(ap);
    if (n < 0) {
        args->arena->failed = true;
        return;
    }
    hl_args_add(args, text);
    free(text);
}

hl_status hl_args_end(struct hl_args *args)
{
    char **v = hl_arena_grow(args->arena, args->v, args->count, sizeof(*args->v));
    if (v == NULL || hl_arena_failed(args->arena))
        return hl_fail(HL_ENOMEM,
                       "out of memory making a command line, or it has more than %d arguments",
                       HL_ENGINE_ARGS_MAX);
    v[args->count] = NULL;
    args->v = v;
    return HL_OK;
}

/* A field of a list that is parsed as CSV; quoted if necessary. */
static const char *csv_field(struct hl_arena *arena, const char *key, const char *value)
{
    char *text = hl_arena_printf(arena, "%s=%s", key, value);
    if (text == NULL || strpbrk(text, ",\"\n") == NULL)
        return text;
    char *quoted = hl_arena_alloc(arena, 2 * strlen(text) + 3), *to = quoted;
    if (quoted == NULL)
        return NULL;
    *to++ = '"';
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"')
            *to++ = '"';
        *to++ = *p;
    }
    *to++ = '"';
    return quoted;
}

/* Uses --mount, because -v creates a missing directory on the host. */
static void add_mount(struct hl_args *args, const char *host, const char *inside, bool read_only)
{
    const char *from = csv_field(args->arena, "source", host);
    const char *to = csv_field(args->arena, "target", inside);
    if (from != NULL && to != NULL)
        hl_args_printf(args, "--mount=type=bind,%s,%s%s", from, to, read_only ? ",readonly" : "");
}

/* ---- parts of the create command ---- */

static void add_labels(struct hl_args *args, const struct hl_engine_create *c)
{
    const struct hl_container_spec *s = c->spec;
    hl_args_printf(args, "--label=" HL_LABEL_CONTAINER "=%s", s->id);
    hl_args_printf(args, "--label=" HL_LABEL_JOB "=%s", s->job);
    hl_args_printf(args, "--label=" HL_LABEL_ATTEMPT "=%d", s->attempt);
    hl_args_printf(args, "--label=" HL_LABEL_RANK "=%d", s->ranks[c->rank].rank);
    hl_args_printf(args, "--label=" HL_LABEL_OWNER "=%s", c->owner);
    hl_args_printf(args, "--label=" HL_LABEL_STATE "=%s", c->state);
    hl_args_printf(args, "--label=" HL_LABEL_EPOCH "=%llu", (unsigned long long)s->epoch);
}

/* The engine never restarts or removes a container: the shim collects its exit code and log
 * first. */
static void add_life(struct hl_args *args, const struct hl_engine_create *c)
{
    int grace_s = (c->spec->stop_grace_ms + 999) / 1000;
    hl_args_add(args, "--restart=no");
    hl_args_add(args, "--pull=never");
    hl_args_add(args, "--init");
    hl_args_printf(args, "--stop-timeout=%d", grace_s);
    hl_args_add(args, "--network=host");
    hl_args_add(args, "--ipc=host");
    hl_args_add(args, "--tmpfs=" HL_ENGINE_TMPFS ":size=0");
    if (c->kind == HL_ENGINE_PODMAN)
        hl_args_add(args, "--log-driver=k8s-file");
    else
        hl_args_add(args, "--log-driver=json-file");
    if (c->log_max_bytes > 0)
        hl_args_printf(args, "--log-opt=max-size=%llu", (unsigned long long)c->log_max_bytes);
    if (c->log_max_bytes > 0 && c->kind == HL_ENGINE_DOCKER)
        hl_args_printf(args, "--log-opt=max-file=%d", LOG_FILES);
}

/* Each rank gets an equal share of the container's memory, and no swap. */
static void add_limits(struct hl_args *args, const struct hl_engine_create *c)
{
    char text[HL_CPUSET_TEXT_MAX];
    uint64_t memory = c->spec->memory_bytes / c->spec->rank_count;
    if (c->cpus != NULL) {
        hl_cpuset_format(c->cpus, text, sizeof(text));
        hl_args_printf(args, "--cpuset-cpus=%s", text);
    }
    if (c->mems != NULL && hl_cpuset_count(c->mems) > 0) {
        hl_cpuset_format(c->mems, text, sizeof(text));
        hl_args_printf(args, "--cpuset-mems=%s", text);
    }
    if (memory > 0) {
        hl_args_printf(args, "--memory=%llu", (unsigned long long)memory);
        hl_args_printf(args, "--memory-swap=%llu", (unsigned long long)memory);
    }
    hl_args_add(args, "--cap-add=IPC_LOCK");
    if (c->memlock)
        hl_args_add(args, "--ulimit=memlock=-1:-1");
}

/* docker parses the value of --gpus as CSV, so the list in it has to be quoted. */
static void add_gpus(struct hl_args *args, const struct hl_engine_create *c)
{
    const struct hl_engine_devices *d = c->devices;
    char list[HL_ENGINE_DEVICES_MAX * 64] = "";
    size_t at = 0;
    if (d->gpu_count > 0 && d->way == HL_ENGINE_GPUS_PLAIN) {
        hl_args_add(args, "--device=/dev/nvidiactl");
        hl_args_add(args, "--device=/dev/nvidia-uvm");
    }
    for (size_t i = 0; i < d->gpu_count; i++) {
        if (d->way == HL_ENGINE_GPUS_PLAIN)
            hl_args_printf(args, "--device=/dev/nvidia%d", d->gpus[i].minor);
        else if (d->way == HL_ENGINE_GPUS_CDI)
            hl_args_printf(args, "--device=nvidia.com/gpu=%s", d->gpus[i].uuid);
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%.60s", i > 0 ? "," : "",
                               d->gpus[i].uuid);
    }
    if (d->gpu_count > 0 && d->way == HL_ENGINE_GPUS_RUNTIME)
        hl_args_printf(args, "--gpus=\"device=%s\"", list);
}

static void add_verbs(struct hl_args *args, const struct hl_engine_devices *d)
{
    for (size_t i = 0; i < d->verbs_count; i++)
        hl_args_printf(args, "--device=/dev/infiniband/%s", d->verbs[i]);
    if (d->verbs_count > 0)
        hl_args_add(args, "--device=/dev/infiniband/rdma_cm");
}

/* Mounts what our variables refer to. Sockets are mounted by their directory, so that they still
 * work after a daemon recreates its socket. /dev/shm is the host's because of --ipc=host. */
static void add_own_mounts(struct hl_args *args, const struct hl_engine_create *c)
{
    static const char *const sockets[] = {"HELIOS_STORE_SOCKET", "HELIOS_L3_SOCKET",
                                          "HELIOS_CONTROLLER", "CONTROLLER_L3_CACHE_ADDRESS"};
    const char *secret = hl_env_get(c->env, "HELIOS_AUTH_SECRET_FILE");
    char dirs[HL_ARRAY_LEN(sockets)][256] = {{0}};
    for (size_t i = 0; i < HL_ARRAY_LEN(sockets); i++) {
        const char *path = hl_env_get(c->env, sockets[i]);
        bool seen = false;
        if (path != NULL && strncmp(path, "unix:", 5) == 0)
            path += 5;
        if (path == NULL || path[0] != '/' || strncmp(path, "/dev/shm/", 9) == 0)
            continue;
        int len = (int)(strrchr(path, '/') - path);
        snprintf(dirs[i], sizeof(dirs[i]), "%.*s", len > 0 ? len : 1, path);
        for (size_t k = 0; k < i; k++)
            seen |= strcmp(dirs[i], dirs[k]) == 0;
        if (!seen)
            add_mount(args, dirs[i], dirs[i], true);
    }
    if (secret != NULL && secret[0] == '/')
        add_mount(args, secret, secret, true);
    if (c->spec->rank_table[0] != '\0') {
        char dir[4096];
        snprintf(dir, sizeof(dir), "%s/ranktable", c->dir);
        add_mount(args, dir, dir, true);
    }
}

static hl_status add_job_mounts(struct hl_args *args, const struct hl_container_spec *s)
{
    for (size_t i = 0; i < s->mount_count; i++) {
        char *host = hl_arena_strdup(args->arena, s->mounts[i]);
        char *inside = host != NULL ? strchr(host, ':') : NULL;
        if (host == NULL)
            return HL_OK; /* the arena has failed */
        if (inside == NULL || inside[1] == '\0')
            return hl_fail(HL_EINVAL, "mounts[%zu]: '%.200s' must be HOST:CONTAINER[:ro]", i,
                           s->mounts[i]);
        *inside++ = '\0';
        char *flags = strchr(inside, ':');
        if (flags != NULL)
            *flags++ = '\0';
        if (access(host, F_OK) != 0)
            return hl_fail(HL_ENOENT,
                           "mounts[%zu]: %.200s is not on this node; make it there, or correct "
                           "mounts in the job file",
                           i, host);
        add_mount(args, host, inside, flags != NULL && strcmp(flags, "ro") == 0);
    }
    return HL_OK;
}

/* These variables would affect the command itself, so their values are passed as arguments, which
 * every user of the machine can read. So no more than needed: GOOGLE_API_KEY is none of Go's. */
static bool is_for_command(const char *name)
{
    static const char *const prefixes[] = {
        "DOCKER_", "CONTAINER", "LD_",     "XDG_", "HTTP_P", "HTTPS_P", "http_p",  "https_p",
        "NO_P",    "no_proxy",  "GODEBUG", "GOGC", "GOMAX",  "GOMEM",   "GOTRACE", "GOCOVER"};
    static const char *const names[] = {"PATH", "HOME", "TMPDIR"};
    for (size_t i = 0; i < HL_ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static void add_env(struct hl_args *args, struct hl_args *env, const struct hl_env *vars)
{
    for (size_t i = 0; i < vars->count; i++) {
        const struct hl_env_var *v = &vars->vars[i];
        if (is_for_command(v->key)) {
            hl_args_printf(args, "--env=%s=%s", v->key, v->value);
            continue;
        }
        hl_args_printf(args, "--env=%s", v->key);
        hl_args_printf(env, "%s=%s", v->key, v->value);
    }
}

hl_status hl_engine_create_args(const struct hl_engine_create *c, struct hl_args *args,
                                struct hl_args *env)
{
    const struct hl_container_spec *s = c->spec;
    char name[HL_CONTAINER_ID_MAX + 64];
    hl_engine_container_name(s, c->owner, s->ranks[c->rank].rank, name, sizeof(name));
    hl_args_add(args, hl_engine_name(c->kind));
    hl_args_add(args, "create");
    hl_args_printf(args, "--name=%s", name);
    add_labels(args, c);
    hl_args_printf(args, "--cidfile=%s/rank-%d.cid", c->dir, s->ranks[c->rank].rank);
    add_life(args, c);
    add_limits(args, c);
    add_gpus(args, c);
    add_verbs(args, c->devices);
    add_own_mounts(args, c);
    HL_TRY(add_job_mounts(args, s));
    if (s->workdir[0] != '\0')
        hl_args_printf(args, "--workdir=%s", s->workdir);
    hl_args_add(args, "--env=HELIOS_TMPFS=" HL_ENGINE_TMPFS);
    add_env(args, env, c->env);
    if (s->command_count > 0)
        hl_args_printf(args, "--entrypoint=%s", s->command[0]);
    hl_args_add(args, c->image);
    for (size_t i = 1; i < s->command_count; i++)
        hl_args_add(args, s->command[i]);
    return HL_OK;
}

void hl_engine_list_args(enum hl_engine_kind kind, const char *const *having,
                         const char *const *shown, struct hl_args *args)
{
    const char *field = kind == HL_ENGINE_PODMAN ? "index .Labels" : ".Label";
    const char *format = "--format={{.ID}}";
    hl_args_add(args, "ps");
    hl_args_add(args, "--all");
    hl_args_add(args, "--no-trunc");
    for (; *having != NULL; having++)
        hl_args_printf(args, "--filter=label=%s", *having);
    for (; *shown != NULL && format != NULL; shown++)
        format = hl_arena_printf(args->arena, "%s {{%s \"%s\"}}", format, field, *shown);
    if (format != NULL)
        hl_args_add(args, format);
}

void hl_engine_remove_args(enum hl_engine_kind kind, struct hl_args *args)
{
    hl_args_add(args, "rm");
    hl_args_add(args, "--force");
    if (kind == HL_ENGINE_PODMAN)
        hl_args_add(args, "--time=0");
}
