/* The state directory of a local cluster. A daemon is found again by pid and start time, so a
 * reused pid is never signalled. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/local/local_private.h"
#include "core/json.h"
#include "os/file.h"
#include "os/process.h"

#define LOCK_LOOK_MS 20

void local_unlock(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

hl_status local_lock(const char *state, int wait_ms, int *fd)
{
    uint64_t end = hl_now_ns() + (uint64_t)wait_ms * HL_NS_PER_MS;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/lock", state);
    int lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock < 0)
        return hl_fail(hl_status_of_errno(errno), "open %s: %m", path);
    while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        if (hl_now_ns() < end) {
            poll(NULL, 0, LOCK_LOOK_MS);
            continue;
        }
        close(lock);
        return hl_fail(HL_EBUSY, "another helios up or down is at work in %s", state);
    }
    *fd = lock;
    return HL_OK;
}

hl_status local_read_json(const char *path, json_t **out)
{
    struct hl_buf text = HL_BUF(1 << 20);
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK) {
        json_error_t error;
        json_t *doc = json_loadb(text.data, text.len, 0, &error);
        if (doc == NULL)
            st = hl_fail(HL_ECORRUPT, "%s:%d: %s", path, error.line, error.text);
        else
            *out = doc;
    }
    hl_buf_fini(&text);
    return st;
}

/* What `up` was given may hold one, and cluster.json remembers it. */
static bool holds_password(const json_t *texts)
{
    const char *name;
    json_t *text;
    json_object_foreach ((json_t *)texts, name, text)
        if (hl_conf_has_password(json_string_value(text)))
            return true;
    return false;
}

hl_status local_save(const char *state, const json_t *doc)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    char *text = json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory writing %s", path);
    bool secret = holds_password(json_object_get(doc, "environment")) ||
                  holds_password(json_object_get(doc, "flags"));
    hl_status st = secret ? hl_file_write_durable(path, text, strlen(text), 0600)
                          : hl_file_write_atomic(path, text, strlen(text));
    free(text);
    return st;
}

hl_status local_find(const char *state, json_t **out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    hl_status st = local_read_json(path, out);
    if (st == HL_ENOENT)
        return hl_fail(
            HL_ENOENT,
            "no local cluster in %s; start one with helios up, or name a Controller with "
            "--controller or HELIOS_CONTROLLER",
            state);
    return st;
}

/* ---- daemons --------------------------------------------------------------------------------- */

int local_daemon_open(const json_t *entry)
{
    struct hl_process p = {(pid_t)hl_json_int(entry, "pid", 0),
                           (uint64_t)hl_json_int(entry, "start", 0)};
    int pidfd = -1;
    if (p.pid <= 0 || hl_process_open(p, &pidfd) != HL_OK)
        return -1;
    return pidfd;
}

/* Not by opening it, which may fail for other reasons: a pool is removed by this answer. */
bool local_daemon_runs(const json_t *entry)
{
    struct hl_process p = {(pid_t)hl_json_int(entry, "pid", 0),
                           (uint64_t)hl_json_int(entry, "start", 0)};
    return p.pid > 0 && !hl_process_ended(p);
}

bool local_runs(const json_t *doc)
{
    const char *key;
    json_t *entry;
    json_object_foreach ((json_t *)doc, key, entry)
        if (json_is_object(entry) && local_daemon_runs(entry))
            return true;
    return false;
}

void local_end_daemon(const json_t *doc, const char *name, json_t *stopped)
{
    const json_t *entry = json_object_get(doc, name);
    int pidfd = local_daemon_open(entry);
    if (pidfd < 0) {
        if (local_daemon_runs(entry))
            fprintf(stderr, "helios: %s was not stopped: %s\n", name, hl_error_text());
        return;
    }
    if (hl_process_signal(pidfd, SIGTERM) == HL_OK && !hl_process_wait(pidfd, LOCAL_END_MS)) {
        fprintf(stderr, "helios: %s did not end within %d s of SIGTERM; it is killed\n", name,
                LOCAL_END_MS / 1000);
        (void)!hl_process_signal(pidfd, SIGKILL);
        hl_process_wait(pidfd, LOCAL_KILL_MS);
    }
    if (hl_process_wait(pidfd, 0))
        json_array_append_new(stopped, json_string(name));
    close(pidfd);
    waitpid((pid_t)hl_json_int(entry, "pid", 0), NULL, WNOHANG); /* where it is our child */
}

/* ---- logs ------------------------------------------------------------------------------------ */

bool local_last_line_from(const char *path, off_t from, char *out, size_t cap)
{
    char tail[4096];
    snprintf(out, cap, "no message");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    off_t size = lseek(fd, 0, SEEK_END);
    off_t at = size > (off_t)sizeof(tail) - 1 ? size - (off_t)sizeof(tail) + 1 : 0;
    ssize_t n = pread(fd, tail, sizeof(tail) - 1, at > from ? at : from);
    close(fd);
    while (n > 0 && tail[n - 1] == '\n')
        n--;
    if (n <= 0)
        return false;
    tail[n] = '\0';
    const char *line = strrchr(tail, '\n');
    snprintf(out, cap, "%s", line != NULL ? line + 1 : tail);
    return true;
}

void local_last_line(const char *path, char *out, size_t cap)
{
    (void)local_last_line_from(path, 0, out, cap);
}

/* ---- files ----------------------------------------------------------------------------------- */

void local_name_l2(const char *pool, const char *node, char *out, size_t cap)
{
    size_t len = strlen(pool) - (strlen(pool) > 5 ? strlen(".pool") : 0);
    snprintf(out, cap, "%.*s-%s.l2", (int)len, pool, node);
}

static hl_status remove_file(const char *path, hl_status st)
{
    if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
        return st;
    return hl_fail(hl_status_of_errno(errno), "remove %s: %m", path);
}

hl_status local_remove(const char *state, const json_t *doc, bool pools)
{
    static const char *const dirs[] = {"log", "controller", "agents", LOCAL_RUN};
    static const char *const files[] = {"l3d.json", "controllerd.json", "l3.sock", "cluster.json",
                                        "lock"};
    char path[PATH_MAX], name[64];
    const char *pool = hl_json_str(doc, "pool", "");
    hl_status st = pools && pool[0] != '\0' ? remove_file(pool, HL_OK) : HL_OK;
    for (size_t i = 0; i < HL_ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, dirs[i]);
        hl_status one = hl_dir_remove(path);
        st = one != HL_OK ? one : st;
    }
    json_int_t nodes = hl_json_int(doc, "nodes", 0), ever = hl_json_int(doc, "nodesEver", 0);
    for (int i = 0; i < (int)(ever > nodes ? ever : nodes); i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        snprintf(path, sizeof(path), "%s/%s.json", state, name);
        st = remove_file(path, st);
        if (!pools)
            continue;
        local_name_l2(pool, name, path, sizeof(path));
        st = remove_file(hl_json_str(json_object_get(doc, name), "fills", path), st);
    }
    if (st != HL_OK)
        return st; /* cluster.json stays, so that it can be tried again */
    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, files[i]);
        st = remove_file(path, st);
    }
    rmdir(state); /* not empty: fine */
    return st;
}
