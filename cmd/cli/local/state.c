/* The state directory of a local cluster. A daemon is identified by pid and start time, so a reused
 * pid is never signalled.
 *
 *     lock           flock'ed by the process that changes cluster.json: up, down, the supervisor
 *     cluster.json   the settings, and what is known of each daemon; replaced as a whole
 *     NAME.json      the ready file of a daemon, written by the daemon itself
 *     log/NAME.log   appended to by each life of a daemon
 *
 * Readers take no lock: cluster.json is replaced by a rename, so they always read a whole file. The
 * lock is released when its process ends, however that happens. */
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
        return hl_fail(HL_EBUSY, "another `helios up` or `helios down` is running in %s", state);
    }
    *fd = lock;
    return HL_OK;
}

/* ---- cluster.json ---------------------------------------------------------------------------- */

static hl_status decode_file(const char *path, const struct hl_buf *text,
                             const struct hl_api_type *type, struct hl_arena *arena, void *out)
{
    json_error_t error;
    json_t *json = json_loadb(text->data, text->len, 0, &error);
    if (json == NULL)
        return hl_fail(HL_ECORRUPT, "%s:%d: %s", path, error.line, error.text);
    hl_status st = hl_api_from_json(type, json, arena, out);
    json_decref(json);
    if (st == HL_EINVAL)
        return hl_fail_prefix(HL_ECORRUPT, "%s: ", path);
    return st;
}

hl_status local_read_file(const char *path, const struct hl_api_type *type, struct hl_arena *arena,
                          void *out)
{
    struct hl_buf text = HL_BUF(1 << 20);
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK)
        st = decode_file(path, &text, type, arena, out);
    hl_buf_fini(&text);
    return st;
}

void local_cluster_fini(struct local_cluster *c)
{
    hl_arena_fini(&c->arena);
    *c = (struct local_cluster){0};
}

hl_status local_read(const char *state, struct local_cluster *out)
{
    char path[PATH_MAX];
    struct local_cluster c = {0};
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    hl_status st = local_read_file(path, &hl_api_local_cluster_type, &c.arena, &c.doc);
    if (st == HL_ECORRUPT) {
        const char *what = hl_arena_strdup(&c.arena, hl_error_text());
        st = hl_fail(HL_ECORRUPT,
                     "%s; correct it, or end the processes whose pids it lists and remove it",
                     what != NULL ? what : path);
    }
    if (st != HL_OK) {
        local_cluster_fini(&c);
        return st;
    }
    *out = c;
    return HL_OK;
}

/* Options of `up` may contain a password, and cluster.json remembers them. */
static bool holds_password(const struct hl_api_key_value_list *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        if (hl_conf_has_password(texts->items[i].value))
            return true;
    return false;
}

hl_status local_save(const char *state, const struct hl_api_local_cluster *doc)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    json_t *json = hl_api_to_json(&hl_api_local_cluster_type, doc);
    HL_AUTO(hl_freep)
    char *text = json != NULL ? json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(json);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory writing %s", path);
    return holds_password(&doc->environment) || holds_password(&doc->flags)
               ? hl_file_write_durable(path, text, strlen(text), 0600)
               : hl_file_write_atomic(path, text, strlen(text));
}

hl_status local_find(const char *state, struct local_cluster *out)
{
    hl_status st = local_read(state, out);
    if (st == HL_ENOENT)
        return hl_fail(
            HL_ENOENT,
            "no local cluster in %s; start one with helios up, or name a Controller with "
            "--controller or HELIOS_CONTROLLER",
            state);
    return st;
}

/* ---- daemons --------------------------------------------------------------------------------- */

struct hl_api_local_daemon *local_daemon_find(const struct hl_api_local_cluster *doc,
                                              const char *key)
{
    for (size_t i = 0; i < doc->daemons.count; i++)
        if (strcmp(doc->daemons.items[i].key, key) == 0)
            return &doc->daemons.items[i];
    return NULL;
}

struct hl_api_local_daemon *local_daemon_add(struct local_cluster *c, const char *key)
{
    struct hl_api_local_daemon_list *list = &c->doc.daemons;
    struct hl_api_local_daemon *daemon = local_daemon_find(&c->doc, key), *items;
    if (daemon != NULL)
        return daemon;
    const char *name = hl_arena_strdup(&c->arena, key);
    items = hl_arena_array(&c->arena, list->count + 1, sizeof(*items));
    if (name == NULL || items == NULL)
        return NULL;
    if (list->count > 0)
        memcpy(items, list->items, list->count * sizeof(*items));
    items[list->count] = (struct hl_api_local_daemon){.key = name};
    list->items = items;
    return &list->items[list->count++];
}

const char *local_daemon_address(const struct hl_api_local_daemon *daemon)
{
    return daemon != NULL && daemon->address != NULL ? daemon->address : "";
}

/* -1 if it has ended. */
static int open_process(struct hl_process p)
{
    int pidfd = -1;
    if (p.pid <= 0 || hl_process_open(p, &pidfd) != HL_OK)
        return -1;
    return pidfd;
}

/* Does not open the process, which can fail for other reasons: a pool is removed because of this
 * answer. */
static bool process_runs(struct hl_process p)
{
    return p.pid > 0 && !hl_process_ended(p);
}

int local_daemon_open(const struct hl_api_local_daemon *daemon)
{
    return daemon != NULL ? open_process((struct hl_process){daemon->pid, daemon->start}) : -1;
}

bool local_daemon_runs(const struct hl_api_local_daemon *daemon)
{
    return daemon != NULL && process_runs((struct hl_process){daemon->pid, daemon->start});
}

bool local_supervisor_runs(const struct hl_api_local_cluster *doc)
{
    return process_runs((struct hl_process){doc->supervisor.pid, doc->supervisor.start});
}

bool local_daemon_stopped(const struct hl_api_local_daemon *daemon)
{
    return daemon != NULL && daemon->pid > 0 &&
           hl_process_stopped((struct hl_process){daemon->pid, daemon->start});
}

bool local_supervisor_stopped(const struct hl_api_local_cluster *doc)
{
    return doc->supervisor.pid > 0 &&
           hl_process_stopped((struct hl_process){doc->supervisor.pid, doc->supervisor.start});
}

bool local_runs(const struct hl_api_local_cluster *doc)
{
    for (size_t i = 0; i < doc->daemons.count; i++)
        if (local_daemon_runs(&doc->daemons.items[i]))
            return true;
    return local_supervisor_runs(doc);
}

static void kill_process(int pidfd)
{
    (void)!hl_process_signal(pidfd, SIGKILL);
    hl_process_wait(pidfd, LOCAL_KILL_MS);
}

static bool end_process(const char *name, struct hl_process p)
{
    int pidfd = open_process(p);
    if (pidfd < 0) {
        if (process_runs(p))
            fprintf(stderr, "helios: %s was not stopped: %s\n", name, hl_error_text());
        return false;
    }
    if (hl_process_stopped(p)) {
        fprintf(stderr, "helios: a signal has stopped %s (process %d); it is killed\n", name,
                (int)p.pid);
        kill_process(pidfd);
    } else if (hl_process_signal(pidfd, SIGTERM) == HL_OK &&
               !hl_process_wait(pidfd, LOCAL_END_MS)) {
        fprintf(stderr, "helios: %s did not end within %d s of SIGTERM; it is killed\n", name,
                LOCAL_END_MS / 1000);
        kill_process(pidfd);
    }
    bool ended = hl_process_wait(pidfd, 0);
    close(pidfd);
    waitpid(p.pid, NULL, WNOHANG); /* if it is our child */
    return ended;
}

bool local_end_daemon(const struct hl_api_local_cluster *doc, const char *name)
{
    const struct hl_api_local_daemon *daemon = local_daemon_find(doc, name);
    return daemon != NULL && end_process(name, (struct hl_process){daemon->pid, daemon->start});
}

bool local_end_supervisor(const struct hl_api_local_cluster *doc)
{
    return end_process("supervisor",
                       (struct hl_process){doc->supervisor.pid, doc->supervisor.start});
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

int local_nodes_ever(const struct hl_api_local_cluster *doc)
{
    return doc->nodes_ever > doc->nodes ? doc->nodes_ever : doc->nodes;
}

static hl_status remove_file(const char *path, hl_status st)
{
    if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
        return st;
    return hl_fail(hl_status_of_errno(errno), "remove %s: %m", path);
}

hl_status local_remove(const char *state, const struct hl_api_local_cluster *doc, bool pools)
{
    static const char *const dirs[] = {"log", "controller", "agents", LOCAL_RUN};
    static const char *const files[] = {"l3d.json", "controllerd.json", "l3.sock", "cluster.json",
                                        "lock"};
    char path[PATH_MAX], name[64];
    hl_status st = pools && doc->pool[0] != '\0' ? remove_file(doc->pool, HL_OK) : HL_OK;
    for (size_t i = 0; i < HL_ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, dirs[i]);
        hl_status one = hl_dir_remove(path);
        st = one != HL_OK ? one : st;
    }
    for (int i = 0; i < local_nodes_ever(doc); i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        snprintf(path, sizeof(path), "%s/%s.json", state, name);
        st = remove_file(path, st);
        if (!pools)
            continue;
        const struct hl_api_local_daemon *agent = local_daemon_find(doc, name);
        local_name_l2(doc->pool, name, path, sizeof(path));
        if (agent != NULL && agent->fills[0] != '\0')
            snprintf(path, sizeof(path), "%s", agent->fills);
        st = remove_file(path, st);
        snprintf(path + strlen(path), sizeof(path) - strlen(path), ".sock");
        st = remove_file(path, st); /* left by an Agent that was killed */
    }
    if (st != HL_OK)
        return st; /* cluster.json stays, so that it can be tried again */
    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, files[i]);
        st = remove_file(path, st);
    }
    rmdir(state); /* it may be not empty, which is fine */
    return st;
}
