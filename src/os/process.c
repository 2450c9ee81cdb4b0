#include "os/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "os/file.h"
#include "os/poll.h"

#define MPOL_BIND_MODE 2
#define DYING_MS       5000

/* `state` (may be NULL): state letter of the first thread. */
static hl_status identify_process(pid_t pid, struct hl_process *out, char *state)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    if (hl_file_read(path, &text) != HL_OK || text.len == 0)
        return hl_fail(HL_ENOENT, "there is no process %d", (int)pid);
    /* The name in parentheses may contain anything; only numbers follow the last ')'. */
    char *p = strrchr(text.data, ')');
    char letter = p != NULL && p[1] == ' ' ? p[2] : '\0';
    for (int field = 2; p != NULL && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p == NULL)
        return hl_fail(HL_EIO, "%s can't be parsed", path);
    out->pid = pid;
    out->start = strtoull(p + 1, NULL, 10);
    if (state != NULL)
        *state = letter;
    return HL_OK;
}

hl_status hl_process_identify(pid_t pid, struct hl_process *out)
{
    return identify_process(pid, out, NULL);
}

hl_status hl_process_open(struct hl_process p, int *pidfd)
{
    int fd = (int)syscall(SYS_pidfd_open, p.pid, 0);
    if (fd < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open process %d: %s", (int)p.pid, strerror(err));
    }
    struct hl_process now;
    char state = '\0';
    hl_status st = identify_process(p.pid, &now, &state);
    bool dying = state == 'Z' || state == 'X'; /* other threads may still be ending */
    /* A zombie that is not reaped yet still has its pid and start time. A process whose threads are
     * still ending holds its locks and ports a moment longer. */
    if (st != HL_OK || now.start != p.start || hl_process_wait(fd, dying ? DYING_MS : 0)) {
        close(fd);
        return hl_fail(HL_ENOENT, "process %d of start time %llu has ended", (int)p.pid,
                       (unsigned long long)p.start);
    }
    *pidfd = fd;
    return HL_OK;
}

bool hl_process_ended(struct hl_process p)
{
    struct hl_process now;
    int fd;
    if (kill(p.pid, 0) != 0 && errno == ESRCH)
        return true;
    if (hl_process_identify(p.pid, &now) != HL_OK)
        return false;
    if (now.start != p.start)
        return true;
    hl_status st = hl_process_open(p, &fd);
    if (st == HL_OK)
        close(fd);
    return st == HL_ENOENT;
}

bool hl_process_stopped(struct hl_process p)
{
    struct hl_process now;
    char state = '\0';
    return identify_process(p.pid, &now, &state) == HL_OK && now.start == p.start && state == 'T';
}

uint64_t hl_pid_namespace(void)
{
    struct stat sb;
    return stat("/proc/self/ns/pid", &sb) == 0 ? (uint64_t)sb.st_ino : 0;
}

hl_status hl_process_signal(int pidfd, int signum)
{
    if (syscall(SYS_pidfd_send_signal, pidfd, signum, NULL, 0) == 0)
        return HL_OK;
    int err = errno;
    return hl_fail(hl_status_of_errno(err), "signal %d: %s", signum, strerror(err));
}

bool hl_process_wait(int pidfd, int timeout_ms)
{
    return hl_poll_until(pidfd, POLLIN, hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS) == 1;
}

size_t hl_process_children(pid_t pid, pid_t *out, size_t max)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return 0;
    size_t count = 0;
    struct dirent *e;
    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int)pid, e->d_name);
        HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 20);
        if (hl_file_read(path, &text) != HL_OK || text.len == 0)
            continue;
        char *end;
        for (char *p = text.data; *p != '\0'; p = end) {
            long child = strtol(p, &end, 10);
            if (end == p)
                break;
            if (count < max)
                out[count] = (pid_t)child;
            count++;
        }
    }
    closedir(dir);
    return count;
}

void hl_host_id(char *out, size_t size)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    if (hl_file_read("/proc/sys/kernel/random/boot_id", &text) == HL_OK && text.len > 1) {
        snprintf(out, size, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    } else if (gethostname(out, size) != 0) {
        snprintf(out, size, "unknown");
    }
    out[size - 1] = '\0';
}

hl_status hl_process_find(const char *name, const char *path, char *out, size_t size)
{
    if (strchr(name, '/') != NULL) {
        int n = snprintf(out, size, "%s", name);
        if (n < 0 || (size_t)n >= size)
            return hl_fail(HL_EINVAL, "exec %s: the path is too long", name);
        return HL_OK;
    }
    if (path == NULL)
        path = "/usr/local/bin:/usr/bin:/bin";
    for (const char *p = path; *name != '\0';) {
        size_t len = strcspn(p, ":");
        int n = snprintf(out, size, "%.*s/%s", len > 0 ? (int)len : 1, len > 0 ? p : ".", name);
        struct stat sb;
        if (n > 0 && (size_t)n < size && access(out, X_OK) == 0 && stat(out, &sb) == 0 &&
            S_ISREG(sb.st_mode))
            return HL_OK;
        if (p[len] == '\0')
            break;
        p += len + 1;
    }
    return hl_fail(HL_ENOENT, "exec %s: there is no such program in PATH (%s)", name, path);
}

/* ---- spawn: between fork and exec only async-signal-safe calls ---- */

enum step { STEP_EXEC, STEP_JOIN, STEP_CPUS, STEP_WORKDIR, STEP_STD };

struct report {
    int step;
    int err;
};

static void report_and_exit(int fd, enum step step)
{
    struct report r = {step, errno};
    while (write(fd, &r, sizeof(r)) < 0 && errno == EINTR)
        ;
    _exit(127);
}

static void default_signals(void)
{
    struct sigaction sa = {.sa_handler = SIG_DFL};
    for (int s = 1; s < NSIG; s++)
        sigaction(s, &sa, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Moves the descriptors to their numbers and marks all others close-on-exec. Returns where the
 * report goes now. */
static int place_descriptors(const struct hl_spawn *spec, int fd)
{
    int base = 3 + (int)spec->pass_count;
    int safe = fcntl(fd, F_DUPFD_CLOEXEC, base);
    if (safe < 0)
        report_and_exit(fd, STEP_STD);
    int from[3 + 8];
    for (int i = 0; i < base; i++) {
        int source = i < 3 ? spec->std[i] : spec->pass[i - 3];
        if (source < 0)
            source = open("/dev/null", O_RDWR | O_CLOEXEC);
        from[i] = fcntl(source, F_DUPFD_CLOEXEC, base);
        if (from[i] < 0)
            report_and_exit(safe, STEP_STD);
    }
    for (int i = 0; i < base; i++)
        if (dup2(from[i], i) < 0)
            report_and_exit(safe, STEP_STD);
    close_range((unsigned)base, ~0u, CLOSE_RANGE_CLOEXEC);
    return safe;
}

static void bind_child(const struct hl_spawn *spec, int fd)
{
    for (size_t i = 0; i < spec->join_count; i++)
        if (write(spec->join[i], "0", 1) < 0)
            report_and_exit(fd, STEP_JOIN);
    if (spec->cpus != NULL &&
        syscall(SYS_sched_setaffinity, 0, sizeof(spec->cpus->bits), spec->cpus->bits) < 0)
        report_and_exit(fd, STEP_CPUS);
    /* Best effort: container engines forbid it, and the first touch by a bound CPU is local
     * anyway. */
    if (spec->mems != NULL)
        (void)syscall(SYS_set_mempolicy, MPOL_BIND_MODE, spec->mems->bits, HL_CPUSET_MAX + 1);
    if (spec->oom_score_adj != 0) {
        char text[16];
        int n = 0, v = spec->oom_score_adj;
        for (int d = 1000; d > 0; d /= 10)
            if (v >= d || d == 1)
                text[n++] = (char)('0' + v / d % 10);
        int adj = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (adj >= 0 && write(adj, text, (size_t)n) < 0)
            errno = 0;
        hl_closep(&adj);
    }
}

static struct rlimit files_before; /* saved by hl_process_raise_files; rlim_max 0 = not raised */

void hl_process_raise_files(void)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur == now.rlim_max)
        return;
    struct rlimit raised = {now.rlim_max, now.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
        files_before = now;
}

static void spawn_child(const struct hl_spawn *spec, pid_t parent, int fd)
{
    default_signals();
    setsid();
    if (spec->die_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
    }
    bind_child(spec, fd);
    if (spec->workdir != NULL && chdir(spec->workdir) < 0)
        report_and_exit(fd, STEP_WORKDIR);
    fd = place_descriptors(spec, fd);
    if (files_before.rlim_max > 0)
        (void)setrlimit(RLIMIT_NOFILE, &files_before);
    execve(spec->program, spec->argv, spec->env);
    report_and_exit(fd, STEP_EXEC);
}

static hl_status explain_report(const struct hl_spawn *spec, struct report r)
{
    const char *name = spec->name != NULL ? spec->name : spec->program;
    hl_status st = hl_status_of_errno(r.err);
    const char *why = strerror(r.err);
    switch (r.step) {
    case STEP_EXEC:
        return hl_fail(st, "exec %s: %s", name, why);
    case STEP_JOIN:
        return hl_fail(st, "exec %s: entering the control group: %s", name, why);
    case STEP_CPUS:
        return hl_fail(st, "exec %s: setting the CPU affinity: %s", name, why);
    case STEP_WORKDIR:
        return hl_fail(st, "exec %s: working directory %s: %s", name, spec->workdir, why);
    default:
        return hl_fail(st, "exec %s: placing its descriptors: %s", name, why);
    }
}

/* A successful exec closes the pipe; after a failure it carries the reason. */
static hl_status await_exec(const struct hl_spawn *spec, int fd)
{
    struct report r;
    ssize_t n;
    do
        n = read(fd, &r, sizeof(r));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(r) ? explain_report(spec, r) : HL_OK;
}

/* exec keeps an ignored SIGCHLD of the program that started this one. Children could then not be
 * waited for: the kernel reaps them, and their exit codes are lost. */
static void keep_children(void)
{
    struct sigaction now;
    if (sigaction(SIGCHLD, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
        signal(SIGCHLD, SIG_DFL);
}

hl_status hl_process_spawn(const struct hl_spawn *spec, pid_t *out)
{
    int ends[2];
    keep_children();
    if (spec->pass_count > 8)
        return hl_fail(HL_EINVAL, "exec %s: too many descriptors to pass", spec->program);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return hl_fail(HL_EIO, "exec %s: pipe: %s", spec->program, strerror(errno));
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* our handlers must not run in the child */
    pid_t self = getpid();
    pid_t pid = fork();
    if (pid == 0)
        spawn_child(spec, self, ends[1]);
    int err = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return hl_fail(HL_EIO, "exec %s: fork: %s", spec->program, strerror(err));
    }
    hl_status st = await_exec(spec, ends[0]);
    close(ends[0]);
    if (st != HL_OK) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return st;
    }
    *out = pid;
    return HL_OK;
}
