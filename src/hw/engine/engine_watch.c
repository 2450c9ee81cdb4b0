/* Watches ranks in containers of an engine. Their state comes only from `inspect`; the followers of
 * logs and events only tell when to call it. A rank counts as ended once its log is complete.
 *
 *     runs --inspect: ended--> its follower ends --> another follower, from the log's end --> over
 *
 * The second follower is needed because Docker 20.10 sometimes ends the first one before it has
 * delivered the last lines of a container that ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/engine/engine_ranks.h"
#include "hw/load/oom_log.h"
#include "os/command.h"
#include "os/file.h"

#define SOON_MS      200   /* until the next look, if something is about to happen */
#define AGAIN_MS     1000  /* between two followers of one log */
#define LOG_TAIL_MS  30000 /* wait for the log of an ended rank, as for any call */
#define DOWN_DEAD_MS 15000 /* without an answer for this long, a process that is gone has ended */

/* ---- followers ---- */

static hl_status spawn_follower(const struct hl_engine_ranks *e, struct hl_args *args, int fd,
                                pid_t *out)
{
    HL_TRY(hl_args_end(args));
    struct hl_spawn spawn = {.program = e->program,
                             .argv = args->v,
                             .env = environ,
                             .name = args->v[0],
                             .std = {-1, fd, fd},
                             .die_with_parent = true};
    return hl_process_spawn(&spawn, out);
}

void hl_engine_follow(struct hl_shim *s, size_t i)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_closep) int fd = -1;
    struct hl_args args = hl_engine_args(e, &arena);
    e->ranks[i].followed_ns = hl_now_ns();
    hl_shim_output_drain(s, i); /* of the previous follower */
    hl_args_add(&args, "logs");
    hl_args_add(&args, "--follow");
    hl_args_add(&args, e->ranks[i].id);
    hl_status st = hl_shim_output_open(s, i, &fd);
    if (st == HL_OK)
        st = spawn_follower(e, &args, fd, &e->ranks[i].follower);
    e->ranks[i].broken = st != HL_OK;
    if (st == HL_OK)
        return;
    e->ranks[i].follower = 0;
    hl_warn("the log of rank %d: %s", s->spec.ranks[i].rank, hl_error_text());
}

void hl_engine_listen(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return; /* a look comes in any case */
    hl_args_add(&args, "events");
    hl_args_add(&args, "--filter=type=container");
    hl_args_add(&args, e->kind == HL_ENGINE_PODMAN ? "--filter=event=died" : "--filter=event=die");
    if (e->kind == HL_ENGINE_DOCKER)
        hl_args_add(&args, "--filter=event=oom");
    hl_args_printf(&args, "--filter=label=" HL_LABEL_CONTAINER "=%s", s->spec.id);
    hl_args_add(&args, "--format={{.Status}}");
    if (spawn_follower(e, &args, ends[1], &e->events) != HL_OK) {
        e->events = 0;
        hl_debug("%s", hl_error_text());
        close(ends[0]);
    } else {
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        hl_closep(&e->events_fd);
        s->wake_fd = e->events_fd = ends[0];
    }
    close(ends[1]);
}

/* ---- warnings ---- */

hl_status hl_engine_warn_of_limits(struct hl_shim *s)
{
    if (s->engine->memlock)
        return hl_text_set(&s->status.warning, "%s", "");
    return hl_text_set(&s->status.warning,
                       "the host does not grant %s unlimited locked memory (memlock): pinned "
                       "memory and RDMA are limited to the engine's own limit",
                       hl_engine_name(s->engine->kind));
}

void hl_engine_tell_down(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    if (e->down)
        return;
    e->down = true;
    e->down_ns = hl_now_ns();
    hl_warn("container %s: %s", s->spec.id, hl_error_text());
    if (hl_text_set(&s->status.warning, "%s; its ranks may run on", hl_error_text()) == HL_OK)
        hl_shim_tell(s);
}

void hl_engine_tell_up(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    if (!e->down)
        return;
    e->down = false;
    if (hl_engine_warn_of_limits(s) == HL_OK)
        hl_shim_tell(s);
}

/* ---- states ---- */

static void take_states(struct hl_shim *s, char *text, struct hl_arena *arena,
                        struct hl_engine_state *out)
{
    for (char *line; text != NULL && (line = strsep(&text, "\n")) != NULL;) {
        struct hl_engine_state one;
        if (*line == '\0' || hl_engine_state_parse(line, &one) != HL_OK)
            continue;
        one.error = hl_arena_strdup(arena, one.error);
        for (size_t i = 0; i < s->spec.rank_count; i++)
            if (strcmp(s->engine->ranks[i].id, one.id) == 0)
                out[i] = one;
    }
}

hl_status hl_engine_look(struct hl_shim *s, struct hl_arena *arena, struct hl_engine_state *out)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, arena);
    memset(out, 0, s->spec.rank_count * sizeof(*out));
    hl_args_add(&args, "inspect");
    hl_args_add(&args, "--type=container");
    hl_args_add(&args, "--format=" HL_ENGINE_STATE_FORMAT);
    for (size_t i = 0; i < s->spec.rank_count; i++)
        if (e->ranks[i].id[0] != '\0')
            hl_args_add(&args, e->ranks[i].id);
    hl_status st = hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r);
    if (st != HL_OK && st != HL_ENOENT) /* one of several is unknown */
        return st == HL_ETIMEDOUT ? HL_EUNAVAIL : st;
    take_states(s, r.out.data, arena, out);
    return HL_OK;
}

/* ---- ends ---- */

/* The engines don't report every kill: Podman 4.3 with cgroup v2 does not report that a child of
 * the rank was killed, and Docker can learn of a kill after the end of the rank. The kernel's log
 * names the cgroup, which has the container's id. */
static bool log_tells_kill(const struct hl_engine_ranks *e, size_t i)
{
    char line[512];
    const struct hl_oom_query query = {.group = e->ranks[i].id};
    if (hl_oom_log_find(HL_OOM_LOG, &query, line, sizeof(line)) == HL_OK)
        return line[0] != '\0';
    hl_debug("whether rank %zu was killed for want of memory: %s", i, hl_error_text());
    return false;
}

static void rank_over(struct hl_shim *s, size_t i, const struct hl_engine_state *end)
{
    struct hl_engine_rank *r = &s->engine->ranks[i];
    if (r->follower > 0) { /* what it has brought is in the pipe */
        kill(r->follower, SIGKILL);
        hl_warn("the log of rank %d may lack its end, which %s has not delivered",
                s->spec.ranks[i].rank, hl_engine_name(s->engine->kind));
    }
    s->engine->oom += end->oom || log_tells_kill(s->engine, i);
    hl_shim_rank_ended(s, i, end->exit_code, end->signal);
}

/* False: the log is not complete yet. A log with a gap can't be followed anew: its size does not
 * say how much of the output was delivered. */
static bool log_is_whole(const struct hl_shim *s, size_t i)
{
    struct hl_engine_rank *r = &s->engine->ranks[i];
    bool gap = s->outputs[i].lost + s->outputs[i].lost_before > 0;
    if (r->ended_ns == 0)
        r->ended_ns = hl_now_ns();
    return (r->follower == 0 && !r->broken && (gap || r->followed_ns >= r->ended_ns)) ||
           hl_now_ns() >= r->ended_ns + LOG_TAIL_MS * HL_NS_PER_MS;
}

/* A follower is missing: the daemon was restarted, or the rank has ended since this one began. */
static bool needs_follower(const struct hl_engine_rank *r)
{
    return r->follower == 0 && (hl_now_ns() >= r->followed_ns + AGAIN_MS * HL_NS_PER_MS ||
                                (r->ended_ns > r->followed_ns && !r->broken));
}

static void take_state(struct hl_shim *s, size_t i, const struct hl_engine_state *now)
{
    struct hl_engine_rank *r = &s->engine->ranks[i];
    static const struct hl_engine_state killed = {.exit_code = 128 + SIGKILL, .signal = SIGKILL};
    uint64_t soon = hl_now_ns() + SOON_MS * HL_NS_PER_MS;
    if (now->id[0] == '\0') {
        hl_warn("rank %d: its container was removed by another program", s->spec.ranks[i].rank);
        rank_over(s, i, &killed);
    } else if (now->ended && log_is_whole(s, i)) {
        rank_over(s, i, now);
    } else if (needs_follower(r)) {
        hl_engine_follow(s, i);
    } else if (r->follower == 0 && soon < s->look_ns) {
        s->look_ns = soon; /* an ended rank's next look is at the end of its follower */
    }
}

/* The engine does not respond, or fails: a rank whose first process has verifiably ended counts as
 * ended. */
static void take_silence(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    static const struct hl_engine_state unknown = {.exit_code = 128 + SIGKILL, .signal = SIGKILL};
    uint64_t now = hl_now_ns();
    hl_engine_tell_down(s);
    s->look_ns = now + 1000 * HL_NS_PER_MS;
    if (now < e->down_ns + DOWN_DEAD_MS * HL_NS_PER_MS)
        return;
    for (size_t i = 0; i < s->spec.rank_count; i++)
        if (s->status.ranks[i].state == HL_RUN_RUNNING && e->ranks[i].init.pid > 0 &&
            hl_process_ended(e->ranks[i].init))
            rank_over(s, i, &unknown);
}

static void look_now(struct hl_shim *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_engine_state *states = hl_arena_array(&arena, s->spec.rank_count, sizeof(*states));
    s->look_ns = hl_now_ns() + HL_ENGINE_LOOK_MS * HL_NS_PER_MS;
    hl_status st = states != NULL ? hl_engine_look(s, &arena, states)
                                  : hl_fail(HL_ENOMEM, "out of memory looking at the ranks");
    if (st != HL_OK) {
        take_silence(s);
        return;
    }
    hl_engine_tell_up(s);
    for (size_t i = 0; i < s->spec.rank_count; i++)
        if (s->status.ranks[i].state == HL_RUN_RUNNING)
            take_state(s, i, &states[i]);
    if (s->engine->events == 0)
        hl_engine_listen(s);
}

/* A follower that fails appends a message to the output that it has delivered, in the same pipe.
 * This cuts off that last line, so the log ends inside or at the end of the output; the next
 * follower delivers the rest. */
static void cut_last_line(struct hl_shim *s, size_t i)
{
    char tail[4096];
    struct stat sb;
    HL_AUTO(hl_closep)
    int fd = open(hl_path_of_log(s->dir, s->spec.ranks[i].rank).s, O_RDWR | O_CLOEXEC);
    hl_shim_output_drain(s, i);
    if (fd < 0 || fstat(fd, &sb) != 0 || sb.st_size == 0)
        return;
    off_t from = sb.st_size > (off_t)sizeof(tail) ? sb.st_size - (off_t)sizeof(tail) : 0;
    ssize_t n = pread(fd, tail, (size_t)(sb.st_size - from), from);
    if (n <= 0 || tail[n - 1] != '\n')
        return;
    const char *before = memrchr(tail, '\n', (size_t)n - 1);
    off_t keep = before != NULL ? from + (before + 1 - tail) : from;
    if (ftruncate(fd, keep) != 0)
        hl_warn("the log of rank %d: %s", s->spec.ranks[i].rank, strerror(errno));
}

static void reap_followers(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    pid_t pid;
    int how;
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0) {
        if (pid == e->events) {
            e->events = 0;
            hl_closep(&e->events_fd);
            s->wake_fd = -1;
            continue; /* the next look starts another one; not at once, since it may fail again */
        }
        for (size_t i = 0; i < s->spec.rank_count; i++)
            if (e->ranks[i].follower == pid) {
                e->ranks[i].follower = 0;
                e->ranks[i].broken = how != 0;
                if (WIFEXITED(how) && how != 0)
                    cut_last_line(s, i);
                s->look_ns = hl_now_ns();
            }
    }
}

void hl_engine_reap(struct hl_shim *s)
{
    char words[512];
    reap_followers(s);
    while (s->wake_fd >= 0 && read(s->wake_fd, words, sizeof(words)) > 0)
        s->look_ns = hl_now_ns();
    if (hl_now_ns() >= s->look_ns)
        look_now(s);
}
