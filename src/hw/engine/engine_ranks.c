/* Ranks in containers of an engine: starting, signalling and removing them. */
#include "hw/engine/engine_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "os/command.h"
#include "os/file.h"

#define NVIDIA_GPUS     "/proc/driver/nvidia/gpus"
#define INFINIBAND      "/sys/class/infiniband"
#define ENGINE_AGAIN_MS 2000

/* ---- existing containers ---- */

/* Finds containers of an earlier shim by their labels: one "ID RANK" per line. */
static hl_status find_earlier(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    const char *having[] = {hl_arena_printf(&arena, HL_LABEL_CONTAINER "=%s", s->spec.id),
                            hl_arena_printf(&arena, HL_LABEL_OWNER "=%s", e->owner), NULL};
    static const char *const shown[] = {HL_LABEL_RANK, NULL};
    hl_engine_list_args(e->kind, having, shown, &args);
    HL_TRY(hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r));
    char *at = r.out.data;
    for (char *line; at != NULL && (line = strsep(&at, "\n")) != NULL;) {
        char id[80];
        int rank;
        if (sscanf(line, "%79s %d", id, &rank) != 2)
            continue;
        for (size_t i = 0; i < s->spec.rank_count; i++)
            if (s->spec.ranks[i].rank == rank)
                memcpy(e->ranks[i].id, id, sizeof(id));
    }
    return HL_OK;
}

/* Whether all ranks have run before: a container that is missing now was removed, and must not run
 * again. */
static bool all_ran_before(const struct hl_shim *s)
{
    return access(hl_path_in(s->dir, "started").s, F_OK) == 0;
}

static hl_status note_all_run(const struct hl_shim *s)
{
    return hl_file_write_durable(hl_path_in(s->dir, "started").s, "", 0, 0644);
}

/* ---- the machine ---- */

static hl_status find_devices(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    if (s->spec.gpu_count > 0) {
        struct hl_args args = hl_engine_args(e, &arena);
        hl_args_add(&args, "info");
        hl_args_add(&args, "--format={{json .}}");
        HL_TRY(hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r));
        e->devices.way = hl_engine_gpus_of(e->kind, hl_command_text(&r.out));
    }
    HL_TRY(hl_engine_find_gpus(NVIDIA_GPUS, &s->spec, s->options.foreign, &e->devices));
    hl_engine_find_verbs(INFINIBAND, &s->spec, &e->devices);
    size_t n = strlen(s->binding.note);
    snprintf(s->binding.note + n, sizeof(s->binding.note) - n, "%s%s",
             n > 0 && e->devices.note[0] != '\0' ? "; " : "", e->devices.note);
    return HL_OK;
}

static hl_status engine_open(struct hl_shim *s)
{
    struct hl_engine_ranks *e = calloc(1, sizeof(*e));
    struct hl_path containers;
    if (e != NULL)
        e->ranks = calloc(s->spec.rank_count, sizeof(*e->ranks));
    s->engine = e;
    if (e == NULL || e->ranks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of container %s", s->spec.id);
    e->kind = s->options.engine;
    e->events_fd = -1;
    e->memlock = true;
    snprintf(containers.s, sizeof(containers.s), "%s", s->dir);
    *strrchr(containers.s, '/') = '\0';
    hl_engine_owner(containers.s, e->owner);
    hl_dir_identity(hl_path_in(containers.s, "..").s, e->state, sizeof(e->state));
    return hl_process_find(hl_engine_name(e->kind), getenv("PATH"), e->program, sizeof(e->program));
}

/* ---- one rank ---- */

static hl_status remove_containers(const struct hl_engine_ranks *e, const char *const *ids,
                                   size_t count)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    hl_engine_remove_args(e->kind, &args);
    for (size_t i = 0; i < count; i++)
        hl_args_add(&args, ids[i]);
    hl_status st = count > 0 ? hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r) : HL_OK;
    return st == HL_ENOENT ? HL_OK : st;
}

static hl_status create_rank(struct hl_shim *s, size_t i)
{
    struct hl_engine_ranks *e = s->engine;
    bool bind = hl_cpuset_count(&s->binding.cpus) > 0;
    char cid[64];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    HL_AUTO(hl_env_fini) struct hl_env env = {0};
    struct hl_args args = {.arena = &arena}, values = {.arena = &arena};
    HL_TRY(hl_shim_rank_env(s, &s->spec.ranks[i], &env));
    struct hl_engine_create create = {
        .kind = e->kind,
        .spec = &s->spec,
        .rank = i,
        .owner = e->owner,
        .state = e->state,
        .dir = s->dir,
        .image = e->image,
        .cpus = bind ? &s->binding.cpus : NULL,
        .mems = bind ? &s->binding.mems : NULL,
        .devices = &e->devices,
        .log_max_bytes = s->options.log_max_bytes,
        .memlock = e->memlock,
        .env = &env,
    };
    HL_TRY(hl_engine_create_args(&create, &args, &values));
    snprintf(cid, sizeof(cid), "rank-%d.cid", s->spec.ranks[i].rank);
    unlink(hl_path_in(s->dir, cid).s); /* of an earlier attempt */
    HL_TRY(hl_engine_call(e, &args, &values, HL_ENGINE_START_MS, &r));
    const char *out = hl_command_text(&r.out), *id = out + strlen(out);
    while (id > out && (id == out + strlen(out) || id[-1] != '\n'))
        id--;
    snprintf(e->ranks[i].id, sizeof(e->ranks[i].id), "%.*s", (int)strcspn(id, "\n"), id);
    return HL_OK;
}

static hl_status start_created(struct hl_shim *s, size_t i)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    hl_args_add(&args, "start");
    hl_args_add(&args, e->ranks[i].id);
    return hl_engine_call(e, &args, NULL, HL_ENGINE_START_MS, &r);
}

/* The kernel refuses memlock if the engine's daemon may not raise limits. */
static bool is_memlock_refused(const char *text)
{
    return strstr(text, "rlimit") != NULL || strstr(text, "ulimit") != NULL;
}

static hl_status start_anew(struct hl_shim *s, size_t i)
{
    struct hl_engine_ranks *e = s->engine;
    HL_TRY(create_rank(s, i));
    hl_status st = start_created(s, i);
    if (st != HL_EIO || !e->memlock || !is_memlock_refused(hl_error_text()))
        return st;
    const char *id = e->ranks[i].id;
    HL_TRY(remove_containers(e, &id, 1));
    e->memlock = false;
    HL_TRY(hl_engine_warn_of_limits(s));
    HL_TRY(create_rank(s, i));
    return start_created(s, i);
}

/* The rank's container has an id, and runs or has run. */
static void rank_runs(struct hl_shim *s, size_t i, const struct hl_engine_state *state)
{
    struct hl_engine_rank *r = &s->engine->ranks[i];
    if (state->pid > 0 && hl_process_identify(state->pid, &r->init) != HL_OK)
        r->init = (struct hl_process){0}; /* in another namespace, or gone already */
    s->status.ranks[i].pid = state->pid;
    s->status.ranks[i].state = HL_RUN_RUNNING;
    s->live++;
    hl_engine_follow(s, i);
    if (i == 0)
        (void)!hl_text_set(&s->status.binding, "%s",
                           hl_shim_is_bound(s, state->pid) ? "cpuset-cgroup" : "none");
}

/* ---- all ranks ---- */

/* A rank that has run must not run again, whatever has become of it. */
static hl_status start_one(struct hl_shim *s, size_t i, bool ran, const struct hl_engine_state *now)
{
    struct hl_engine_rank *r = &s->engine->ranks[i];
    if (r->id[0] == '\0' && ran)
        return hl_fail(
            HL_ENOENT,
            "its container was removed from %s while its shim was not running; its result is lost",
            hl_engine_name(s->engine->kind));
    if (r->id[0] == '\0')
        return start_anew(s, i);
    return now->created ? start_created(s, i) : HL_OK;
}

static hl_status start_each(struct hl_shim *s, bool ran, const struct hl_engine_state *states)
{
    for (size_t i = 0; i < s->spec.rank_count && !s->requested; i++) {
        hl_status st = start_one(s, i, ran, &states[i]);
        hl_shim_take_signals(s);
        if (st != HL_OK)
            return hl_fail_prefix(st, "rank %d: ", s->spec.ranks[i].rank);
    }
    return s->requested && !ran ? hl_fail(HL_ECANCELED, "stopped before it had started") : HL_OK;
}

static bool found_any(const struct hl_shim *s)
{
    for (size_t i = 0; i < s->spec.rank_count; i++)
        if (s->engine->ranks[i].id[0] != '\0')
            return true;
    return false;
}

static hl_status start_all(struct hl_shim *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_engine_state *states = hl_arena_array(&arena, s->spec.rank_count, sizeof(*states));
    bool ran = all_ran_before(s);
    if (states == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of container %s", s->spec.id);
    HL_TRY(find_earlier(s));
    if (found_any(s))
        HL_TRY(hl_engine_look(s, &arena, states));
    if (!ran) {
        HL_TRY(hl_engine_image_get(s));
        HL_TRY(find_devices(s));
    }
    HL_TRY(start_each(s, ran, states));
    HL_TRY(hl_engine_look(s, &arena, states));
    for (size_t i = 0; i < s->spec.rank_count; i++)
        rank_runs(s, i, &states[i]);
    hl_engine_listen(s);
    hl_engine_tell_up(s);
    return note_all_run(s);
}

/* Removes all containers that the engine still has, running or not. */
static void remove_all(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    const char *ids[HL_CONTAINER_RANKS_MAX];
    size_t n = 0;
    for (size_t i = 0; e->ranks != NULL && i < s->spec.rank_count; i++)
        if (e->ranks[i].id[0] != '\0')
            ids[n++] = e->ranks[i].id;
    if (remove_containers(e, ids, n) != HL_OK) {
        hl_warn("container %s: %s; the Agent looks for it when it starts again", s->spec.id,
                hl_error_text());
        return;
    }
    for (size_t i = 0; e->ranks != NULL && i < s->spec.rank_count; i++)
        e->ranks[i].id[0] = '\0';
}

static void fail_all(struct hl_shim *s)
{
    s->failed = !s->requested;
    for (size_t i = 0; i < s->spec.rank_count; i++) {
        struct hl_rank_status *r = &s->status.ranks[i];
        if (r->state == HL_RUN_RUNNING)
            continue;
        r->state = s->failed && i == 0 ? HL_RUN_FAILED : HL_RUN_STOPPED;
        r->exit_code = s->failed && i == 0 ? 127 : 0;
        r->finished_ms = hl_wall_ms();
    }
    if (s->failed)
        s->status.exit_code = 127;
    (void)!hl_text_set(&s->status.message, "%s", s->failed ? hl_error_text() : "");
}

/* ---- signals ---- */

/* Signals the ranks through the engine; if it does not respond, directly to each first process. */
static void engine_signal(struct hl_shim *s, int signum)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    if (e == NULL || s->live == 0)
        return;
    struct hl_args args = hl_engine_args(e, &arena);
    hl_args_add(&args, "kill");
    hl_args_printf(&args, "--signal=%d", signum);
    for (size_t i = 0; i < s->spec.rank_count; i++)
        if (s->status.ranks[i].state == HL_RUN_RUNNING)
            hl_args_add(&args, e->ranks[i].id);
    hl_status st = hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r);
    s->look_ns = hl_now_ns();
    if (st == HL_OK)
        return;
    hl_debug("container %s: %s", s->spec.id, hl_error_text());
    for (size_t i = 0; i < s->spec.rank_count; i++) {
        HL_AUTO(hl_closep) int fd = -1;
        if (s->status.ranks[i].state == HL_RUN_RUNNING && e->ranks[i].init.pid > 0 &&
            hl_process_open(e->ranks[i].init, &fd) == HL_OK &&
            hl_process_signal(fd, signum) != HL_OK)
            hl_debug("container %s: %s", s->spec.id, hl_error_text());
    }
}

static void engine_start(struct hl_shim *s)
{
    s->status.state = HL_RUN_STARTING;
    s->status.started_ms = hl_wall_ms();
    hl_shim_tell(s);
    hl_status st = engine_open(s);
    if (st == HL_OK && access(hl_path_in(s->dir, "stop").s, F_OK) == 0)
        hl_shim_stop_asked(s); /* requested from an earlier shim */
    if (st == HL_OK)
        st = start_all(s);
    /* The ranks may still run, unless the engine says that it has none of them. */
    while (st != HL_OK && st != HL_ENOENT && all_ran_before(s) && !s->requested) {
        hl_engine_tell_down(s);
        hl_shim_await_signals(s, ENGINE_AGAIN_MS);
        st = start_all(s);
    }
    if (st != HL_OK) {
        fail_all(s);
        if (s->engine != NULL)
            remove_all(s); /* before the slot counts as free */
        return;
    }
    s->status.state = HL_RUN_RUNNING;
    (void)!hl_text_set(&s->status.message, "%s", s->binding.note);
    s->look_ns = hl_now_ns();
    if (s->kill_at_ns != 0) /* the stop came before there was anything to signal */
        engine_signal(s, SIGTERM);
}

static void engine_kill(struct hl_shim *s)
{
    engine_signal(s, SIGKILL);
}

static uint64_t engine_oom(const struct hl_shim *s)
{
    return s->engine != NULL ? s->engine->oom : 0;
}

/* ---- the end ---- */

/* The result is on disk, so the engine's containers can be removed. */
static void engine_clear(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    if (e == NULL)
        return;
    for (size_t i = 0; e->ranks != NULL && i < s->spec.rank_count; i++)
        if (e->ranks[i].follower > 0)
            kill(e->ranks[i].follower, SIGKILL);
    if (e->events > 0)
        kill(e->events, SIGKILL);
    remove_all(s);
    hl_closep(&e->events_fd);
    free(e->ranks);
    free(e);
    s->engine = NULL;
}

static void engine_finish(struct hl_shim *s)
{
    (void)s; /* all ranks have ended, and with each the engine has ended everything it started */
}

const struct hl_shim_way hl_engine_way = {
    .start = engine_start,
    .signal = engine_signal,
    .kill = engine_kill,
    .reap = hl_engine_reap,
    .oom = engine_oom,
    .finish = engine_finish,
    .clear = engine_clear,
};
