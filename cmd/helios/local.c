/* Order of start: L3, Controller, Agents; of stop: containers, Agents, Controller, L3. A daemon is
 * found again by pid and start time, so a reused pid is never signalled. A daemon that is started a
 * second time gets the address it had, because its peers remember it. */
#include "helios/local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "core/json.h"
#include "helios/local_private.h"
#include "hw/executor.h"
#include "os/file.h"
#include "os/process.h"
#include "rpc/rpc.h"

#define END_MS          10000
#define CALL_MS         5000
#define STOP_GRACE_MS   2000
#define NODES_MAX       256
#define SOCKET_PATH_MAX 107

struct local {
    const struct local_opts *opts;
    json_t *doc; /* cluster.json */
    json_t *started;
    char bin[PATH_MAX];
    char pool[PATH_MAX];
};

static void unlock(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static hl_status lock_state(const char *state, int *fd)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/lock", state);
    int lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock < 0)
        return hl_fail(hl_status_of_errno(errno), "open %s: %m", path);
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        close(lock);
        return hl_fail(HL_EBUSY, "another helios up or down is at work in %s", state);
    }
    *fd = lock;
    return HL_OK;
}

static hl_status read_json(const char *path, json_t **out)
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

static hl_status write_json(const char *path, const json_t *doc)
{
    char *text = json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "%s", path);
    hl_status st = hl_file_write_atomic(path, text, strlen(text));
    free(text);
    return st;
}

hl_status local_find(const char *state, json_t **out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    hl_status st = read_json(path, out);
    if (st == HL_ENOENT)
        return hl_fail(
            HL_ENOENT,
            "no local cluster in %s; start one with helios up, or name a Controller with "
            "--controller or HELIOS_CONTROLLER",
            state);
    return st;
}

/* ---- one daemon -------------------------------------------------------------------------------
 */

int local_daemon_open(const json_t *entry)
{
    struct hl_process p = {(pid_t)hl_json_int(entry, "pid", 0),
                           (uint64_t)hl_json_int(entry, "start", 0)};
    int pidfd = -1;
    if (p.pid <= 0 || hl_process_open(p, &pidfd) != HL_OK)
        return -1;
    return pidfd;
}

void local_last_line(const char *path, char *out, size_t cap)
{
    struct hl_buf text = HL_BUF(4 << 20);
    snprintf(out, cap, "no message");
    if (hl_file_read(path, &text) == HL_OK && text.len > 0) {
        while (text.len > 0 && text.data[text.len - 1] == '\n')
            text.data[--text.len] = '\0';
        const char *line = strrchr(text.data, '\n');
        snprintf(out, cap, "%s", line != NULL ? line + 1 : text.data);
    }
    hl_buf_fini(&text);
}

static hl_status wait_ready(const char *name, const char *ready, const char *log,
                            struct hl_process p, uint64_t ready_ms, json_t **out)
{
    uint64_t end = hl_now_ns() + ready_ms * HL_NS_PER_MS;
    char tail[512];
    int pidfd = -1;
    (void)!hl_process_open(p, &pidfd);
    for (;;) {
        if (access(ready, R_OK) == 0) {
            if (pidfd >= 0)
                close(pidfd);
            return read_json(ready, out);
        }
        if (pidfd < 0 || hl_process_wait(pidfd, 20)) {
            if (pidfd >= 0)
                close(pidfd);
            local_last_line(log, tail, sizeof(tail));
            return hl_fail(HL_EIO, "%s did not start: %s (log: %s)", name, tail, log);
        }
        if (hl_now_ns() > end) {
            (void)!hl_process_signal(pidfd, SIGTERM);
            close(pidfd);
            return hl_fail(HL_ETIMEDOUT, "%s is not ready after %d s; its log is %s", name,
                           (int)(ready_ms / 1000), log);
        }
    }
}

extern char **environ;

static hl_status launch(struct local *l, const char *name, const char *program, char *const *argv,
                        const char *log, struct hl_process *out)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof(path), "%s/%s", l->bin, program);
    int fd = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return hl_fail(hl_status_of_errno(errno), "open %s: %m", log);
    pid_t pid;
    hl_status st = hl_process_spawn(
        &(struct hl_spawn){
            .program = path, .argv = argv, .env = environ, .name = name, .std = {-1, fd, fd}},
        &pid);
    close(fd);
    if (st != HL_OK)
        return st;
    st = hl_process_identify(pid, out);
    if (st != HL_OK) {
        char tail[512];
        local_last_line(log, tail, sizeof(tail));
        return hl_fail(HL_EIO, "%s did not start: %s (log: %s)", name, tail, log);
    }
    return HL_OK;
}

static hl_status save(const struct local *l)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/cluster.json", l->opts->state);
    return write_json(path, l->doc);
}

/* What is known of a daemon goes to cluster.json at once: `down` must find it, whatever happens
 * next. */
static hl_status note(struct local *l, const char *name, const json_t *more)
{
    json_t *entry = json_object_get(l->doc, name);
    if (entry == NULL) {
        entry = json_object();
        json_object_set_new(l->doc, name, entry);
    }
    json_object_update(entry, (json_t *)more);
    return save(l);
}

/* Until the daemon of cluster.json serves. */
static hl_status await(struct local *l, const char *name, const char *ready, const char *log)
{
    const json_t *entry = json_object_get(l->doc, name);
    struct hl_process p = {(pid_t)hl_json_int(entry, "pid", 0),
                           (uint64_t)hl_json_int(entry, "start", 0)};
    json_t *serving = NULL;
    HL_TRY(wait_ready(name, ready, log, p, l->opts->ready_ms, &serving));
    json_object_set_new(serving, "pid", json_integer(p.pid));
    json_object_set_new(serving, "ready", json_true());
    hl_status st = note(l, name, serving);
    json_decref(serving);
    return st;
}

/* One address can't be that of all daemons: L3 has the port, the Controller the next, then come the
 * nodes. */
static const char *metrics_of(const struct local *l, const char *name, char *out, size_t cap)
{
    const char *colon = strrchr(l->opts->metrics, ':');
    int port = colon != NULL ? atoi(colon + 1) : 0;
    int index = strcmp(name, "l3d") == 0           ? 0
                : strcmp(name, "controllerd") == 0 ? 1
                                                   : 2 + atoi(name + strlen("node-"));
    snprintf(out, cap, "%.*s:%d", colon != NULL ? (int)(colon - l->opts->metrics) : 0,
             l->opts->metrics, port > 0 ? port + index : 0);
    return out;
}

/* Start a daemon unless it runs; args end with NULL, "--listen" and "--ready-file" are added. */
static hl_status ensure(struct local *l, const char *name, const char *program, const char **args)
{
    json_t *old = json_object_get(l->doc, name);
    int pidfd = local_daemon_open(old);
    if (pidfd >= 0) {
        close(pidfd);
        if (hl_json_bool(old, "ready", 0))
            return HL_OK;
    }
    char ready[PATH_MAX], log[PATH_MAX];
    snprintf(ready, sizeof(ready), "%s/%s.json", l->opts->state, name);
    snprintf(log, sizeof(log), "%s/log/%s.log", l->opts->state, name);
    if (pidfd >= 0) /* an `up` that was ended has started it */
        return await(l, name, ready, log);
    unlink(ready);
    const char *argv[48] = {program};
    char metrics[320], listen[320];
    size_t n = 1;
    while (*args != NULL && n < HL_ARRAY_LEN(argv) - 7)
        argv[n++] = *args++;
    if (l->opts->metrics[0] != '\0') {
        argv[n++] = "--metrics-listen";
        argv[n++] = metrics_of(l, name, metrics, sizeof(metrics));
    }
    int bare = l->opts->address[0] != '[' && strchr(l->opts->address, ':') != NULL; /* IPv6 */
    snprintf(listen, sizeof(listen), bare ? "[%s]:0" : "%s:0", l->opts->address);
    argv[n++] = "--listen";
    argv[n++] = hl_json_str(old, "address", listen);
    argv[n++] = "--ready-file";
    argv[n++] = ready;
    struct hl_process p;
    HL_TRY(launch(l, name, program, (char *const *)argv, log, &p));
    json_t *born =
        json_pack("{s:i s:I s:b}", "pid", (int)p.pid, "start", (json_int_t)p.start, "ready", 0);
    hl_status st = note(l, name, born);
    json_decref(born);
    HL_TRY(st);
    json_array_append_new(l->started, json_string(name));
    return await(l, name, ready, log);
}

/* ---- up ---------------------------------------------------------------------------------------
 */

/* "/dev/shm/x.pool" of the cluster to "/dev/shm/x-node-1.l2". */
static void name_l2(const char *pool, const char *node, char *out, size_t cap)
{
    size_t len = strlen(pool) - (strlen(pool) > 5 ? strlen(".pool") : 0);
    snprintf(out, cap, "%.*s-%s.l2", (int)len, pool, node);
}

/* Where it served before, or any port. */
static const char *port_of(const json_t *old, const char *key)
{
    const char *address = hl_json_str(old, key, "");
    return address[0] != '\0' ? address : ":0"; /* its network's, else the loopback */
}

static hl_status ensure_agent(struct local *l, int i)
{
    char name[64], state[PATH_MAX], share[64], size[32], l2[PATH_MAX];
    snprintf(name, sizeof(name), "node-%d", i);
    snprintf(state, sizeof(state), "%s/agents/%s", l->opts->state, name);
    if (l->opts->slots > 0)
        snprintf(share, sizeof(share), "%d/%dx%d", i, l->opts->nodes, l->opts->slots);
    else
        snprintf(share, sizeof(share), "%d/%d", i, l->opts->nodes);
    const json_t *old = json_object_get(l->doc, name);
    snprintf(size, sizeof(size), "%" PRIu64, l->opts->l2_size);
    name_l2(l->pool, name, l2, sizeof(l2));
    const char *args[32] = {
        "--name",         name,        "--state",      state,
        "--rank-address", "127.0.0.1", "--controller", hl_json_str(l->doc, "controller", "")};
    size_t n = 8;
    if (l->opts->topology[0] != '\0') {
        args[n++] = "--topology";
        args[n++] = l->opts->topology;
    } else {
        args[n++] = "--share";
        args[n++] = share;
    }
    const char *more[] = {"--l2-size",        size,
                          "--l2-pool",        l2,
                          "--devices",        l->opts->devices,
                          "--data-listen",    port_of(old, "dataAddress"),
                          "--migrate-listen", port_of(old, "migrateAddress")};
    for (size_t k = 0; k < HL_ARRAY_LEN(more); k++)
        args[n++] = more[k];
    return ensure(l, name, "helios-agent", args);
}

static hl_status ensure_controller(struct local *l)
{
    const struct local_kube *k = l->opts->kube;
    char state[PATH_MAX], devices[16];
    const char *args[24] = {"--state",    state,
                            "--l3",       hl_json_str(l->doc, "l3", ""),
                            "--executor", k != NULL ? "kubernetes" : "agents"};
    size_t n = 6;
    snprintf(state, sizeof(state), "%s/controller", l->opts->state);
    if (k != NULL) {
        snprintf(devices, sizeof(devices), "%d", k->slot_devices);
        const char *more[][2] = {{"--kubeconfig", k->config},
                                 {"--master", k->master},
                                 {"--kube-namespace", k->ns},
                                 {"--kube-device", k->device},
                                 {"--kube-slot-devices", k->slot_devices > 0 ? devices : ""}};
        for (size_t i = 0; i < HL_ARRAY_LEN(more); i++)
            if (more[i][1][0] != '\0') {
                args[n++] = more[i][0];
                args[n++] = more[i][1];
            }
    }
    json_object_set_new(l->doc, "executor", json_string(args[5]));
    return ensure(l, "controllerd", "helios-controller", args);
}

static hl_status start_all(struct local *l)
{
    char size[32], data[64], socket[PATH_MAX];
    snprintf(size, sizeof(size), "%" PRIu64, l->opts->l3_size);
    snprintf(socket, sizeof(socket), "%s/l3.sock", l->opts->state);
    snprintf(data, sizeof(data), "%s",
             hl_json_str(json_object_get(l->doc, "l3d"), "dataAddress", ":0"));
    const char *l3_args[] = {"--pool", l->pool,         "--size", size, "--socket",
                             socket,   "--data-listen", data,     NULL};
    json_object_set_new(l->doc, "socket", json_string(socket));
    json_object_set_new(l->doc, "pool", json_string(l->pool));
    HL_TRY(ensure(l, "l3d", "helios-l3d", l3_args));
    json_t *l3 = json_object_get(l->doc, "l3d");
    json_object_set_new(l->doc, "l3", json_string(hl_json_str(l3, "address", "")));

    HL_TRY(ensure_controller(l));
    json_object_set_new(
        l->doc, "controller",
        json_string(hl_json_str(json_object_get(l->doc, "controllerd"), "address", "")));
    for (int i = 0; i < l->opts->nodes; i++)
        HL_TRY(ensure_agent(l, i));
    return HL_OK;
}

static int ready_nodes(const json_t *nodes)
{
    int ready = 0;
    size_t i;
    const json_t *node;
    json_array_foreach (nodes, i, node) {
        ready += strcmp(hl_json_str(node, "state", ""), "ready") == 0;
    }
    return ready;
}

/* Until the Controller sees every node and the pool. */
static hl_status wait_cluster(struct local *l)
{
    struct hl_rpc_peer *peer;
    HL_TRY(hl_rpc_open(l->opts->rpc, hl_json_str(l->doc, "controller", ""), "Controller", &peer));
    uint64_t end = hl_now_ns() + l->opts->ready_ms * HL_NS_PER_MS;
    int ready = 0;
    hl_status st;
    for (;;) {
        json_t *nodes = NULL, *info = NULL;
        char kube[256] = "ready";
        int l3 = 0;
        st = hl_rpc_call(peer, "listNodes", NULL, CALL_MS, &nodes);
        if (st == HL_OK)
            st = hl_rpc_call(peer, "clusterInfo", NULL, CALL_MS, &info);
        if (st == HL_OK) {
            ready = ready_nodes(hl_json_list(nodes, "nodes"));
            l3 = strcmp(hl_json_str(json_object_get(info, "info"), "l3State", ""), "ready") == 0;
            snprintf(kube, sizeof(kube), "%s",
                     hl_json_str(json_object_get(info, "info"), "kubernetesState", ""));
        }
        json_decref(nodes);
        json_decref(info);
        int gangs = l->opts->kube == NULL || strcmp(kube, "ready") == 0;
        if (st == HL_OK && l3 && gangs && ready >= l->opts->nodes)
            break;
        if (hl_now_ns() > end) {
            st = hl_fail(HL_ETIMEDOUT,
                         "%d of %d nodes are ready and L3 is %s after %d s%s%s; logs are in %s/log",
                         ready, l->opts->nodes, l3 ? "ready" : "not ready",
                         (int)(l->opts->ready_ms / 1000),
                         gangs ? "" : ", and Kubernetes: ", gangs ? "" : kube, l->opts->state);
            break;
        }
        poll(NULL, 0, 50);
    }
    hl_rpc_peer_close(peer);
    return st;
}

/* The pool's file is named after the state directory, so two clusters never share one. */
static void name_pool(const char *state, char *out, size_t cap)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (const char *p = state; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(1099511628211);
    snprintf(out, cap, "/dev/shm/helios-%u-%016" PRIx64 ".pool", (unsigned)getuid(), h);
}

static hl_status prepare(struct local *l)
{
    char path[PATH_MAX];
    if (strlen(l->opts->state) + strlen("/l3.sock") > SOCKET_PATH_MAX)
        return hl_fail(HL_EINVAL, "--state '%s': a socket lies in it, whose path may have %d bytes",
                       l->opts->state, SOCKET_PATH_MAX);
    ssize_t n = readlink("/proc/self/exe", l->bin, sizeof(l->bin) - 1);
    if (n <= 0)
        return hl_fail(HL_EIO, "readlink /proc/self/exe: %m");
    l->bin[n] = '\0';
    *strrchr(l->bin, '/') = '\0';
    snprintf(path, sizeof(path), "%s/log", l->opts->state);
    HL_TRY(hl_dir_make(path, 0755));
    name_pool(l->opts->state, l->pool, sizeof(l->pool));
    return HL_OK;
}

static hl_status check_opts(const struct local_opts *o)
{
    int least = o->kube == NULL;
    if (o->nodes < least || o->nodes > NODES_MAX)
        return hl_fail(HL_EINVAL, "--nodes %d: %d to %d are possible on one machine", o->nodes,
                       least, NODES_MAX);
    if (o->slots < 0 || o->slots > 1024)
        return hl_fail(HL_EINVAL, "--slots %d: 1 to 1024 per node", o->slots);
    return HL_OK;
}

hl_status local_up(const struct local_opts *opts, json_t **out)
{
    struct local l = {.opts = opts};
    HL_AUTO(unlock) int lock = -1;
    HL_TRY(check_opts(opts));
    HL_TRY(prepare(&l));
    HL_TRY(lock_state(opts->state, &lock));
    if (local_find(opts->state, &l.doc) != HL_OK)
        l.doc = json_object();
    l.started = json_array();
    json_object_set_new(l.doc, "state", json_string(opts->state));
    int known = (int)hl_json_int(l.doc, "nodes", 0); /* `down` ends those, too */
    json_object_set_new(l.doc, "nodes", json_integer(opts->nodes > known ? opts->nodes : known));
    hl_status st = start_all(&l);
    if (st == HL_OK)
        st = wait_cluster(&l);
    if (st == HL_OK)
        st = save(&l);
    if (st != HL_OK) {
        json_decref(l.doc);
        json_decref(l.started);
        return st;
    }
    json_object_set_new(l.doc, "started", l.started);
    *out = l.doc;
    return HL_OK;
}

/* ---- down -------------------------------------------------------------------------------------
 */

static int is_running(const json_t *container)
{
    const char *state = hl_json_str(container, "state", "");
    return strcmp(state, "running") == 0 || strcmp(state, "starting") == 0;
}

/* Stop every container of an Agent and wait until they have ended. */
static hl_status stop_containers(struct hl_rpc *rpc, const char *address)
{
    struct hl_rpc_peer *peer;
    HL_TRY(hl_rpc_open(rpc, address, "Agent", &peer));
    uint64_t end = hl_now_ns() + END_MS * HL_NS_PER_MS;
    hl_status st = HL_OK;
    for (int round = 0; st == HL_OK; round++) {
        json_t *list = NULL;
        st = hl_rpc_call(peer, "listContainers", NULL, CALL_MS, &list);
        int running = 0;
        size_t i;
        json_t *container;
        json_array_foreach (st == HL_OK ? hl_json_list(list, "containers") : NULL, i, container) {
            if (!is_running(container))
                continue;
            running++;
            json_t *params = json_pack("{s:s s:i}", "id", hl_json_str(container, "id", ""),
                                       "graceMs", STOP_GRACE_MS);
            if (round == 0)
                st = hl_rpc_call(peer, "stopContainer", params, CALL_MS, NULL);
            json_decref(params);
        }
        json_decref(list);
        if (running == 0)
            break;
        if (hl_now_ns() > end)
            st = hl_fail(HL_ETIMEDOUT, "%d containers of %s still run after %d s", running, address,
                         END_MS / 1000);
        poll(NULL, 0, 50);
    }
    hl_rpc_peer_close(peer);
    return st;
}

static void end_daemon(const json_t *doc, const char *name, json_t *stopped)
{
    int pidfd = local_daemon_open(json_object_get(doc, name));
    if (pidfd < 0)
        return;
    if (hl_process_signal(pidfd, SIGTERM) == HL_OK && !hl_process_wait(pidfd, END_MS)) {
        (void)!hl_process_signal(pidfd, SIGKILL);
        hl_process_wait(pidfd, END_MS);
    }
    close(pidfd);
    json_array_append_new(stopped, json_string(name));
}

/* What an Agent that died, or did not answer, has left running. */
static hl_status stop_left(const char *state)
{
    if (access(state, F_OK) != 0)
        return HL_OK;
    struct hl_executor *ex;
    HL_TRY(
        hl_executor_open(&(struct hl_executor_opts){.name = "process", .state_dir = state}, &ex));
    uint64_t end = hl_now_ns() + END_MS * HL_NS_PER_MS;
    hl_status st = HL_OK;
    for (int round = 0; st == HL_OK; round++) {
        json_t *list = NULL;
        st = hl_executor_list(ex, &list);
        int running = 0;
        size_t i;
        json_t *container;
        json_array_foreach (list, i, container) {
            if (!is_running(container))
                continue;
            running++;
            if (round == 0)
                st = hl_executor_stop(ex, hl_json_str(container, "id", ""), STOP_GRACE_MS);
        }
        json_decref(list);
        if (running == 0)
            break;
        if (hl_now_ns() > end)
            st = hl_fail(HL_ETIMEDOUT, "%d containers of %s still run after %d s", running, state,
                         END_MS / 1000);
        poll(NULL, 0, 50);
    }
    hl_executor_close(ex);
    return st;
}

static void stop_all(struct hl_rpc *rpc, const char *state, const json_t *doc, json_t *stopped)
{
    char name[64];
    int nodes = (int)hl_json_int(doc, "nodes", 0);
    end_daemon(doc, "controllerd", stopped); /* first: it would start replacements */
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        const json_t *agent = json_object_get(doc, name);
        int pidfd = local_daemon_open(agent);
        if (pidfd < 0)
            continue;
        close(pidfd);
        if (stop_containers(rpc, hl_json_str(agent, "address", "")) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    for (int i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "node-%d", i);
        end_daemon(doc, name, stopped);
        char dir[PATH_MAX];
        snprintf(dir, sizeof(dir), "%s/agents/%s", state, name);
        if (stop_left(dir) != HL_OK)
            fprintf(stderr, "helios: %s\n", hl_error_text());
    }
    end_daemon(doc, "l3d", stopped);
}

/* Only what `up` made; a directory that holds something else stays. */
static hl_status remove_state(const char *state, const json_t *doc)
{
    static const char *const dirs[] = {"log", "controller", "agents"};
    static const char *const files[] = {"cluster.json", "l3d.json", "controllerd.json", "l3.sock",
                                        "lock"};
    char path[PATH_MAX], name[64];
    const char *pool = hl_json_str(doc, "pool", "");
    if (pool[0] != '\0')
        unlink(pool);
    for (size_t i = 0; i < HL_ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, dirs[i]);
        HL_TRY(hl_dir_remove(path));
    }
    for (int i = 0; i < (int)hl_json_int(doc, "nodes", 0); i++) {
        snprintf(path, sizeof(path), "%s/node-%d.json", state, i);
        unlink(path);
        snprintf(name, sizeof(name), "node-%d", i);
        name_l2(pool, name, path, sizeof(path));
        unlink(path);
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", state, files[i]);
        unlink(path);
    }
    rmdir(state); /* not empty: fine */
    return HL_OK;
}

hl_status local_down(struct hl_rpc *rpc, const char *state, int keep, json_t **out)
{
    json_t *doc = NULL;
    HL_AUTO(unlock) int lock = -1;
    json_t *stopped = json_array();
    hl_status st = local_find(state, &doc);
    if (st == HL_OK)
        st = lock_state(state, &lock);
    if (st == HL_OK && !keep)
        st = local_end_gangs(rpc, doc);
    if (st == HL_OK) {
        stop_all(rpc, state, doc, stopped);
        if (!keep)
            st = remove_state(state, doc);
    }
    json_decref(doc);
    if (st != HL_OK && st != HL_ENOENT) {
        json_decref(stopped);
        return st;
    }
    *out = json_pack("{s:o s:b}", "stopped", stopped, "removed", st == HL_OK && !keep);
    return HL_OK;
}
