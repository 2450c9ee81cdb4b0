/* Starts one daemon of a local cluster, and waits until it serves.
 *
 * A daemon writes its ready file, STATE/NAME.json, atomically as soon as it serves. So the file's
 * existence shows that, and the file of an earlier life is removed before the next one begins. `up`
 * may be killed at any point in between; the next `up` finds in cluster.json a daemon that runs and
 * is not ready, and continues to wait for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/lists.h"
#include "base/clock.h"
#include "base/text.h"
#include "cli/local/local_private.h"
#include "os/file.h"
#include "os/process.h"

extern char **environ;

/* A daemon that is waited for. */
struct wait {
    const struct local *l;
    const struct local_daemon *daemon;
    struct hl_process process;
    char ready[2 * PATH_MAX], log[2 * PATH_MAX];
    off_t log_from; /* where this start's log begins */
    struct local_watch watch;
};

/* " (log: F)"; empty for a new cluster, whose log is removed if the start fails. */
static const char *log_hint(const struct wait *w, char *buf, size_t cap)
{
    snprintf(buf, cap, w->l->fresh ? "" : " (log: %s)", w->log);
    return buf;
}

/* The line without "helios-l3d: ", because the daemon's name is printed before it already. */
static const char *without_program(const struct wait *w, const char *line)
{
    size_t len = strlen(w->daemon->program);
    return strncmp(line, w->daemon->program, len) == 0 && strncmp(line + len, ": ", 2) == 0
               ? line + len + 2
               : line;
}

static bool disk_is_full(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 && fs.f_blocks > 0 && fs.f_bavail == 0;
}

void local_how(int status, char *out, size_t cap)
{
    if (WIFSIGNALED(status))
        snprintf(out, cap, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, cap, "ended with status %d", WEXITSTATUS(status));
}

bool local_reap(pid_t pid, char *out, size_t cap)
{
    int status = 0;
    snprintf(out, cap, "ended");
    if (waitpid(pid, &status, WNOHANG) != pid)
        return false;
    local_how(status, out, cap);
    return true;
}

static hl_status fail_ended(const struct wait *w)
{
    char line[512], how[LOCAL_HOW_MAX], hint[PATH_MAX];
    bool silent = !local_last_line_from(w->log, w->log_from, line, sizeof(line));
    local_reap(w->process.pid, how, sizeof(how));
    log_hint(w, hint, sizeof(hint));
    if (silent && disk_is_full(w->l->opts->state))
        return hl_fail(HL_ENOSPC, "%s did not start: the filesystem of %s is full", w->daemon->name,
                       w->l->opts->state);
    if (silent)
        return hl_fail(HL_EIO, "%s did not start: it %s%s and wrote nothing to its log%s",
                       w->daemon->name, strncmp(how, "killed", 6) == 0 ? "was " : "", how, hint);
    return hl_fail(HL_EIO, "%s did not start: it %s%s; the last line of its log: %s%s",
                   w->daemon->name, strncmp(how, "killed", 6) == 0 ? "was " : "", how,
                   without_program(w, line), hint);
}

static hl_status fail_late(const struct wait *w)
{
    char line[512], filled[32], size[32], hint[PATH_MAX];
    unsigned seconds = (unsigned)(w->l->opts->ready_ms / 1000);
    if (w->watch.size > 0 && w->watch.filled < w->watch.size)
        return hl_fail(HL_ETIMEDOUT,
                       "%s is still filling its pool: %s of %s, and nothing was added for %u s; "
                       "free memory, choose a smaller pool, or wait longer with --timeout%s",
                       w->daemon->name, hl_format_bytes(w->watch.filled, filled, sizeof(filled)),
                       hl_format_bytes(w->watch.size, size, sizeof(size)), seconds,
                       log_hint(w, hint, sizeof(hint)));
    local_last_line_from(w->log, w->log_from, line, sizeof(line));
    return hl_fail(HL_ETIMEDOUT,
                   "%s is not ready and made no progress for %u s: %s; --timeout sets how long to "
                   "wait%s",
                   w->daemon->name, seconds, line, log_hint(w, hint, sizeof(hint)));
}

static void show_progress(struct local_progress *p, const struct wait *w)
{
    char filled[32], size[32];
    if (w->watch.size == 0)
        local_progress_show(p, "starting %s", w->daemon->name);
    else
        local_progress_show(p, "%s: %s of %s of the pool are filled", w->daemon->name,
                            hl_format_bytes(w->watch.filled, filled, sizeof(filled)),
                            hl_format_bytes(w->watch.size, size, sizeof(size)));
}

/* The wait ends after ready_ms without progress, not after ready_ms: filling a large pool takes
 * minutes. */
static hl_status wait_ready(struct wait *w, int pidfd, struct hl_arena *arena,
                            struct hl_api_daemon_ready *out)
{
    struct local_progress progress;
    uint64_t last = hl_now_ns();
    hl_status st;
    local_progress_start(&progress);
    for (;;) {
        if (access(w->ready, R_OK) == 0) {
            st = local_read_file(w->ready, &hl_api_daemon_ready_type, arena, out);
            break;
        }
        bool ended = pidfd < 0 || hl_process_wait(pidfd, LOCAL_LOOK_MS);
        if (local_interrupted()) { /* which may have ended a daemon without its own session too */
            st = hl_fail(HL_ECANCELED, "interrupted while %s started", w->daemon->name);
            break;
        }
        if (ended) {
            st = fail_ended(w);
            break;
        }
        uint64_t now = hl_now_ns();
        if (local_watch_look(&w->watch))
            last = now;
        if (now - last > w->l->opts->ready_ms * HL_NS_PER_MS) {
            st = fail_late(w);
            break;
        }
        show_progress(&progress, w);
    }
    local_progress_end(&progress);
    return st;
}

/* Copies the content of its ready file into cluster.json. */
static void note_serving(struct hl_api_local_daemon *daemon,
                         const struct hl_api_daemon_ready *ready)
{
    daemon->ready = true;
    daemon->address = ready->address;
    daemon->metrics = ready->metrics;
    daemon->name = ready->name;
    daemon->data_address = ready->data_address;
    daemon->migrate_address = ready->migrate_address;
    daemon->store_socket = ready->store_socket;
    daemon->incarnation = ready->incarnation;
    daemon->socket = ready->socket;
    daemon->pool = ready->pool;
}

/* Waits until the daemon of cluster.json serves. */
static hl_status await_daemon(struct local *l, struct wait *w)
{
    struct hl_api_daemon_ready ready;
    int pidfd = -1;
    w->watch = (struct local_watch){.path = w->daemon->fills, .pid = w->process.pid};
    (void)!hl_process_open(w->process, &pidfd);
    hl_status st = wait_ready(w, pidfd, &l->cluster.arena, &ready);
    if (pidfd >= 0)
        close(pidfd);
    HL_TRY(st);
    note_serving(local_daemon_find(&l->cluster.doc, w->daemon->name), &ready);
    return local_save(l->opts->state, &l->cluster.doc);
}

static hl_status spawn_daemon(struct local *l, struct wait *w)
{
    char path[PATH_MAX + 32];
    const struct local_daemon *d = w->daemon;
    snprintf(path, sizeof(path), "%s/%s", l->bin, d->program);
    int fd = open(w->log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return hl_fail(hl_status_of_errno(errno), "open %s: %m", w->log);
    w->log_from = lseek(fd, 0, SEEK_END);
    pid_t pid;
    hl_status st = hl_process_spawn(
        &(struct hl_spawn){
            .program = path, .argv = d->argv, .env = environ, .name = d->name, .std = {-1, fd, fd}},
        &pid);
    close(fd);
    HL_TRY(st);
    w->process.pid = pid;
    return hl_process_identify(pid, &w->process) == HL_OK ? HL_OK : fail_ended(w);
}

/* Records the daemon in cluster.json, where `down` finds it. A daemon that can't be recorded is
 * ended. */
static hl_status record_daemon(struct local *l, const char *name)
{
    char text[HL_ERROR_TEXT_MAX];
    hl_status st = local_save(l->opts->state, &l->cluster.doc);
    if (st == HL_OK)
        return HL_OK;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    return local_end_daemon(&l->cluster.doc, name)
               ? hl_fail(st, "%s; %s is stopped again", text, name)
               : hl_fail(st, "%s; %s was started and is not recorded", text, name);
}

/* Everything known about a daemon is recorded at once, whatever happens next. */
static hl_status launch_daemon(struct local *l, struct wait *w)
{
    const struct local_daemon *d = w->daemon;
    unlink(w->ready);
    struct hl_api_local_daemon *entry = local_daemon_add(&l->cluster, d->name);
    const char *fills = hl_arena_strdup(&l->cluster.arena, d->fills);
    if (d->fills[0] != '\0' && access(d->fills, F_OK) != 0)
        hl_api_text_add(&l->arena, &l->made, d->fills);
    hl_api_text_add(&l->arena, &l->started, d->name);
    if (entry == NULL || fills == NULL || hl_arena_failed(&l->arena))
        return hl_fail(HL_ENOMEM, "out of memory starting %s", d->name);
    HL_TRY(spawn_daemon(l, w));
    entry->pid = w->process.pid;
    entry->start = w->process.start;
    entry->ready = false;
    entry->fills = fills;
    return record_daemon(l, d->name);
}

static void name_files(struct wait *w)
{
    const char *state = w->l->opts->state, *name = w->daemon->name;
    snprintf(w->ready, sizeof(w->ready), "%s/%s.json", state, name);
    snprintf(w->log, sizeof(w->log), "%s/log/%s.log", state, name);
}

static hl_status start_daemon(struct local *l, const struct local_daemon *d)
{
    const struct hl_api_local_daemon *old = local_daemon_find(&l->cluster.doc, d->name);
    bool runs = local_daemon_runs(old);
    struct wait w = {.l = l, .daemon = d};
    if (runs && old->ready)
        return HL_OK;
    if (runs)
        w.process = (struct hl_process){old->pid, old->start};
    name_files(&w);
    if (!runs) /* otherwise an `up` that was killed has started it */
        HL_TRY(launch_daemon(l, &w));
    return await_daemon(l, &w);
}

hl_status local_daemon_start(struct local *l, int index)
{
    struct local_daemon d = {0};
    HL_TRY(local_daemon_describe(l, index, &d));
    hl_status st = start_daemon(l, &d);
    local_daemon_fini(&d);
    return st;
}

hl_status local_daemon_launch(struct local *l, int index)
{
    struct local_daemon d = {0};
    HL_TRY(local_daemon_describe(l, index, &d));
    struct wait w = {.l = l, .daemon = &d};
    name_files(&w);
    hl_status st = launch_daemon(l, &w);
    local_daemon_fini(&d);
    return st;
}

bool local_daemon_settle(struct local *l, const char *name)
{
    char path[PATH_MAX];
    struct hl_api_daemon_ready ready;
    struct hl_api_local_daemon *daemon = local_daemon_find(&l->cluster.doc, name);
    snprintf(path, sizeof(path), "%s/%s.json", l->opts->state, name);
    if (daemon == NULL || access(path, R_OK) != 0 ||
        local_read_file(path, &hl_api_daemon_ready_type, &l->cluster.arena, &ready) != HL_OK)
        return false;
    note_serving(daemon, &ready);
    return true;
}
