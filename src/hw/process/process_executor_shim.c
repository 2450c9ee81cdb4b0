/* The shim: one small process per container that starts, watches and ends its ranks. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "hw/process/process_executor.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"
#include "os/map_guard.h"

#define TICK_MS        1000
#define KILLED_TICK_MS 50
#define KILL_AGAIN_MS  2000
#define RESULT_RETRY_S 60
#define STOP_RETRY_S   2

void hl_shim_tell(struct hl_shim *s)
{
    s->dirty = hl_status_file_write(s->dir, &s->status) != HL_OK;
    if (s->dirty)
        hl_error("%s", hl_error_text());
    if (!s->ready)
        close(HL_SHIM_READY_FD);
    s->ready = true;
}

/* ---- ranks as processes ---- */

static void signal_rank(const struct hl_rank_status *r, int signum)
{
    if (r->state != HL_RUN_RUNNING)
        return;
    kill(-r->pid, signum); /* the first process group of its session */
    kill(r->pid, signum);
}

static void process_signal(struct hl_shim *s, int signum)
{
    for (size_t i = 0; i < s->status.rank_count; i++)
        signal_rank(&s->status.ranks[i], signum);
}

static void process_kill(struct hl_shim *s)
{
    process_signal(s, SIGKILL);
    hl_cgroup_kill(&s->cgroup);
}

/* Waits until a child has ended or the deadline passes; SIGCHLD is blocked for the shim's
 * signalfd. */
static void await_child(uint64_t deadline)
{
    sigset_t child;
    uint64_t now = hl_now_ns(), left = deadline > now ? deadline - now : 0;
    struct timespec t = {(time_t)(left / HL_NS_PER_S), (long)(left % HL_NS_PER_S)};
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    (void)sigtimedwait(&child, NULL, &t);
}

/* Orphans of the ranks become our children (subreaper): kills them until there are none. A child's
 * descendants become ours before its end is reported, so no orphan is missed between list and
 * wait. */
static void process_finish(struct hl_shim *s)
{
    uint64_t deadline = hl_now_ns() + HL_SHIM_REMOVE_MS * HL_NS_PER_MS;
    hl_cgroup_kill(&s->cgroup);
    while (hl_now_ns() < deadline) {
        pid_t children[256];
        size_t n = hl_process_children(getpid(), children, HL_ARRAY_LEN(children));
        for (size_t i = 0; i < n && i < HL_ARRAY_LEN(children); i++)
            kill(children[i], SIGKILL);
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            break;
        await_child(deadline);
    }
    if (hl_cgroup_remove(&s->cgroup, HL_SHIM_REMOVE_MS) != HL_OK)
        hl_warn("%s", hl_error_text());
}

static uint64_t process_oom(const struct hl_shim *s)
{
    return hl_cgroup_oom_kills(&s->cgroup);
}

/* The child was a rank, a spare, or a descendant of one. */
static void child_ended(struct hl_shim *s, pid_t pid, int how)
{
    for (size_t i = 0; i < s->status.rank_count; i++)
        if (s->status.ranks[i].pid == pid && s->status.ranks[i].state == HL_RUN_RUNNING) {
            hl_shim_rank_ended(s, i, WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how),
                               WIFSIGNALED(how) ? WTERMSIG(how) : 0);
            return;
        }
    (void)hl_shim_spare_ended(s, pid);
}

static void process_reap(struct hl_shim *s)
{
    int how;
    pid_t pid;
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
        child_ended(s, pid, how);
}

const struct hl_shim_way hl_process_way = {
    .start = hl_process_start_ranks,
    .signal = process_signal,
    .kill = process_kill,
    .reap = process_reap,
    .oom = process_oom,
    .finish = process_finish,
};

/* ---- ranks that end ---- */

static void begin_stop(struct hl_shim *s, int grace_ms)
{
    uint64_t at = hl_now_ns() + (uint64_t)grace_ms * HL_NS_PER_MS + 1;
    if (s->kill_at_ns == 0 || at < s->kill_at_ns)
        s->kill_at_ns = at;
    hl_shim_replace_stop(s);
    s->way->signal(s, SIGTERM);
}

static void explain_failure(struct hl_shim *s, const struct hl_rank_status *r)
{
    uint64_t oom = s->way->oom(s);
    char memory[128] = "", replaced[64] = "";
    if (s->lost.used > 0)
        snprintf(replaced, sizeof(replaced), ", after %d replacements in this container",
                 s->lost.used);
    if (oom > 0)
        snprintf(memory, sizeof(memory), " (out of memory: the container's limit is %llu MiB)",
                 (unsigned long long)(s->spec.memory_bytes >> 20));
    else if (r->signal == SIGKILL)
        snprintf(memory, sizeof(memory), " (out of memory?)");
    else if (r->signal != 0)
        snprintf(memory, sizeof(memory), " (%s)", strsignal(r->signal));
    hl_status st = r->signal != 0
                       ? hl_text_set(&s->status.message, "rank %d killed by signal %d%s%s", r->rank,
                                     r->signal, memory, replaced)
                       : hl_text_set(&s->status.message, "rank %d exited with code %d%s%s", r->rank,
                                     r->exit_code, memory, replaced);
    if (st != HL_OK)
        hl_error("%s", hl_error_text());
}

void hl_shim_rank_ended(struct hl_shim *s, size_t i, int exit_code, int signal)
{
    struct hl_rank_status *r = &s->status.ranks[i];
    bool stopping = s->kill_at_ns != 0;
    hl_shim_output_drain(s, i);
    s->live--;
    s->dirty = true;
    r->finished_ms = hl_wall_ms();
    r->exit_code = exit_code;
    r->signal = signal;
    if (r->exit_code == 0) {
        r->state = HL_RUN_SUCCEEDED;
    } else if (stopping) {
        r->state = HL_RUN_STOPPED;
    } else if (!hl_shim_replace(s, i)) {
        r->state = HL_RUN_FAILED;
        s->status.exit_code = r->exit_code;
        s->status.signal = r->signal;
        explain_failure(s, r);
        s->failed = true;
        begin_stop(s, s->spec.stop_grace_ms);
    }
}

static void replace_due(struct hl_shim *s)
{
    size_t i = 0;
    if (hl_shim_replace_due(s, &i) == HL_OK)
        return;
    struct hl_rank_status *r = &s->status.ranks[i];
    s->failed = true;
    s->dirty = true;
    r->state = HL_RUN_FAILED;
    r->exit_code = s->status.exit_code = 127;
    r->finished_ms = hl_wall_ms();
    (void)!hl_text_set(&s->status.message, "rank %d: %s", r->rank, hl_error_text());
    begin_stop(s, s->spec.stop_grace_ms);
}

/* ---- life ---- */

/* If the file "stop" contains no number, the container's record has the grace. */
static int parse_grace(const char *text, int otherwise)
{
    uint64_t ms;
    const char *end = hl_scan_number(text, INT_MAX, &ms);
    return end != NULL && (*end == '\0' || *end == '\n') ? (int)ms : otherwise;
}

void hl_shim_stop_asked(struct hl_shim *s)
{
    int grace = s->spec.stop_grace_ms;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(64);
    if (hl_file_read(hl_path_in(s->dir, "stop").s, &text) == HL_OK && text.len > 0)
        grace = parse_grace(text.data, grace);
    if (!s->failed)
        s->requested = true;
    begin_stop(s, grace < 0 ? 0 : grace);
}

void hl_shim_take_signals(struct hl_shim *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            hl_shim_stop_asked(s);
        else if (info.ssi_signo == SIGUSR1)
            hl_shim_take_ranks(s);
}

void hl_shim_await_signals(struct hl_shim *s, int timeout_ms)
{
    struct pollfd p = {.fd = s->signals, .events = POLLIN};
    poll(&p, 1, timeout_ms);
    hl_shim_take_signals(s);
}

/* The time until `at`, at most `most`. */
static int wait_until(uint64_t at, uint64_t now, int most)
{
    if (at == 0)
        return most;
    uint64_t ms = now < at ? (at - now) / HL_NS_PER_MS + 1 : 0;
    return ms < (uint64_t)most ? (int)ms : most;
}

static int next_wait_ms(const struct hl_shim *s)
{
    uint64_t now = hl_now_ns();
    uint64_t at = s->kill_at_ns != 0 ? s->kill_at_ns : hl_shim_replace_next_ns(s);
    int most = s->killed && now >= s->kill_at_ns ? KILLED_TICK_MS : wait_until(at, now, TICK_MS);
    return wait_until(s->look_ns, now, most);
}

/* Not on every turn, because a kill through an engine takes a while. */
static void kill_late(struct hl_shim *s)
{
    uint64_t now = hl_now_ns();
    if (s->live == 0 || s->kill_at_ns == 0 || now < s->kill_at_ns)
        return;
    s->way->kill(s);
    s->killed = true;
    if (s->engine != NULL)
        s->kill_at_ns = hl_now_ns() + KILL_AGAIN_MS * HL_NS_PER_MS;
}

static void watch_ranks(struct hl_shim *s)
{
    while (s->live > 0 || hl_shim_is_parked(s)) {
        struct pollfd *fds = s->polls;
        size_t n = s->status.rank_count;
        for (size_t i = 0; i < n; i++)
            fds[i] = (struct pollfd){.fd = s->outputs[i].pipe, .events = POLLIN};
        fds[n] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        fds[n + 1] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
        poll(fds, n + 2, next_wait_ms(s));
        for (size_t i = 0; i < n; i++)
            if (fds[i].revents != 0)
                hl_shim_output_take(s, i);
        hl_shim_take_signals(s);
        s->way->reap(s);
        replace_due(s);
        kill_late(s);
        if (s->dirty && (s->live > 0 || hl_shim_is_parked(s)))
            hl_shim_tell(s);
    }
}

/* Retries for a while if the disk is full: the result is worth it. Less patient if a stop was
 * requested. */
static void retry_status(struct hl_shim *s)
{
    int seconds = s->requested ? STOP_RETRY_S : RESULT_RETRY_S;
    s->requested = s->failed = false; /* both are in the status; from now on it is another stop */
    for (int i = 0; s->dirty && i < seconds && !s->requested && access(s->dir, F_OK) == 0; i++) {
        hl_shim_await_signals(s, 1000);
        hl_shim_tell(s);
    }
}

static void finish_shim(struct hl_shim *s)
{
    uint64_t oom = s->way->oom(s);
    s->way->finish(s);
    hl_shim_outputs_fini(s);
    if (s->failed)
        s->status.state = HL_RUN_FAILED;
    else
        s->status.state = s->requested ? HL_RUN_STOPPED : HL_RUN_SUCCEEDED;
    if (oom > 0 && !s->failed)
        (void)!hl_text_set(&s->status.message, "%llu of its processes %s killed for want of memory",
                           (unsigned long long)oom, oom == 1 ? "was" : "were");
    s->status.finished_ms = hl_wall_ms();
    hl_shim_tell(s);
    retry_status(s);
    if (s->way->clear != NULL)
        s->way->clear(s);
}

static hl_status load_shim(struct hl_shim *s)
{
    HL_TRY(hl_spec_file_read(s->dir, &s->spec));
    HL_TRY(hl_container_status_init(&s->spec, &s->status));
    HL_TRY(hl_shim_file_read(s->dir, &s->options));
    s->way = s->options.engine == HL_ENGINE_NONE ? &hl_process_way : &hl_engine_way;
    if (s->spec.stop_grace_ms == 0)
        s->spec.stop_grace_ms = HL_STOP_GRACE_MS;
    return hl_binding_choose(&s->spec, s->options.foreign, &s->binding);
}

/* Writes the shim's identity into the file whose lock shows that it is alive. */
static void sign_lock(void)
{
    struct hl_process self;
    char text[64];
    prctl(PR_SET_NAME, "helios-shim");
    fcntl(HL_SHIM_LOCK_FD, F_SETFD, FD_CLOEXEC);
    fcntl(HL_SHIM_READY_FD, F_SETFD, FD_CLOEXEC);
    if (hl_process_identify(getpid(), &self) != HL_OK)
        self = (struct hl_process){getpid(), 0};
    int n =
        snprintf(text, sizeof(text), "%d %llu\n", (int)self.pid, (unsigned long long)self.start);
    if (pwrite(HL_SHIM_LOCK_FD, text, (size_t)n, 0) != n)
        hl_error("write shim.pid: %s", strerror(errno));
}

static int watch_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log at the limit of `ulimit -f` is like one on a full disk */
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void shim_fini(struct hl_shim *s)
{
    hl_shim_replace_fini(s);
    free(s->outputs);
    free(s->polls);
    hl_container_spec_fini(&s->spec);
    hl_container_status_fini(&s->status);
}

int hl_shim_main(const char *dir)
{
    struct hl_shim s = {.dir = dir, .wake_fd = -1};
    hl_log_init("helios-shim", HL_LOG_INFO);
    hl_map_guard_install(); /* a rank can truncate the file of its steps while we read it */
    s.signals = watch_signals();
    sign_lock();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (s.signals < 0 || load_shim(&s) != HL_OK || hl_shim_outputs_init(&s) != HL_OK ||
        hl_shim_replace_init(&s) != HL_OK) {
        hl_error("%s", s.signals < 0 ? "signalfd failed" : hl_error_text());
        shim_fini(&s);
        return 1;
    }
    hl_status_reserve(dir, s.status.rank_count);
    s.way->start(&s);
    if (s.failed && s.live > 0)
        begin_stop(&s, s.spec.stop_grace_ms);
    if (s.live > 0 || hl_shim_is_parked(&s))
        hl_shim_tell(&s);
    watch_ranks(&s);
    finish_shim(&s);
    close(s.signals);
    int rc = s.dirty;
    shim_fini(&s);
    return rc;
}
