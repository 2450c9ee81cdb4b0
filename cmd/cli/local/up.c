/* Order of start: L3, Controller, Agents. A start that fails is undone: what it has started is
 * stopped, what it has made is removed, and what was there before stays. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cli/local/local_private.h"
#include "os/file.h"
#include "os/process.h"
#include "rpc/controller_calls.h"
#include "rpc/rpc.h"

#define SOCKET_PATH_MAX 107

void local_daemon_name(int index, char *out, size_t cap)
{
    if (index < 2)
        snprintf(out, cap, "%s", index == 0 ? "l3d" : "controllerd");
    else
        snprintf(out, cap, "node-%d", index - 2);
}

/* Where there are ports, their clients have to know a secret. */
static hl_status prepare_secret(struct local *l)
{
    struct local_cluster *c = &l->cluster;
    const char *given = l->settings.controller.auth.secret_file;
    c->doc.secret_file = NULL;
    if (given[0] != '\0') { /* remembered for clients that come without the options of now */
        c->doc.secret_file = hl_arena_strdup(&c->arena, given);
        return hl_auth_use_file(given);
    }
    if (!local_wants_secret(l))
        return HL_OK;
    const char *path = hl_arena_printf(&c->arena, "%s/" LOCAL_RUN "/secret", l->opts->state);
    if (path == NULL)
        return hl_fail(HL_ENOMEM, "out of memory naming the secret");
    HL_TRY(hl_auth_make_file(path));
    c->doc.secret_file = path;
    return hl_auth_use_file(path);
}

static hl_status start_all(struct local *l)
{
    HL_TRY(prepare_secret(l));
    HL_TRY(local_daemon_start(l, 0));
    struct hl_api_local_cluster *doc = &l->cluster.doc;
    const struct hl_api_local_daemon *l3 = local_daemon_find(doc, "l3d");
    doc->l3 = local_daemon_address(l3);
    doc->socket = l3->socket != NULL ? l3->socket : "";
    HL_TRY(local_daemon_start(l, 1));
    doc->controller = local_daemon_address(local_daemon_find(doc, "controllerd"));
    for (int i = 0; i < l->settings.nodes; i++)
        HL_TRY(local_daemon_start(l, 2 + i));
    return HL_OK;
}

/* ---- until the Controller sees everything ---------------------------------------------------- */

struct sight {
    int ready;
    bool l3, kube, refused;
    char l3_state[512], kube_state[512];
};

/* What the Controller knows is of the Agent that runs now, not of one that was killed before it. */
static bool is_of_now(const struct local *l, const struct hl_api_node_info *n)
{
    const struct hl_api_local_cluster *doc = &l->cluster.doc;
    for (size_t i = 0; i < doc->daemons.count; i++) {
        const struct hl_api_local_daemon *d = &doc->daemons.items[i];
        if (d->name != NULL && d->incarnation != NULL && strcmp(d->name, n->name) == 0)
            return strcmp(d->incarnation, n->incarnation) == 0;
    }
    return true;
}

static hl_status look_at_cluster(const struct local *l, struct hl_rpc_peer *peer, struct sight *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    struct hl_api_controller_cluster_info_results cluster;
    const struct hl_api_cluster_info *info = &cluster.info;
    HL_TRY(hl_call_controller_list_nodes(peer, &(struct hl_api_controller_list_nodes_params){0},
                                         LOCAL_CALL_MS, &arena, &r));
    HL_TRY(hl_call_controller_cluster_info(peer, &(struct hl_api_controller_cluster_info_params){0},
                                           LOCAL_CALL_MS, &arena, &cluster));
    out->ready = 0;
    for (size_t i = 0; i < r.nodes.count; i++)
        out->ready += r.nodes.items[i].state == HL_API_NODE_LIFE_READY &&
                      r.nodes.items[i].node.health.state != HL_API_HEALTH_STATE_TESTING &&
                      is_of_now(l, &r.nodes.items[i].node);
    snprintf(out->l3_state, sizeof(out->l3_state), "%s", info->l3_state);
    snprintf(out->kube_state, sizeof(out->kube_state), "%s", info->kubernetes_state);
    out->refused = info->claim == HL_API_CLAIM_STATE_REFUSED;
    out->l3 = out->refused || strcmp(out->l3_state, "ready") == 0;
    out->kube = strcmp(out->kube_state, "ready") == 0;
    return HL_OK;
}

/* A daemon that ended meanwhile is the cause more often than not. */
static hl_status fail_dead(const struct local *l, const char *name)
{
    char log[PATH_MAX], line[512], how[LOCAL_HOW_MAX];
    snprintf(log, sizeof(log), "%s/log/%s.log", l->opts->state, name);
    local_last_line(log, line, sizeof(line));
    const struct hl_api_local_daemon *daemon = local_daemon_find(&l->cluster.doc, name);
    local_reap(daemon != NULL ? daemon->pid : 0, how, sizeof(how));
    return hl_fail(HL_EIO, "%s ended just after its start: %s; the last line of its log: %s", name,
                   how, line);
}

static hl_status check_alive(const struct local *l)
{
    char name[32];
    for (int i = 0; i < l->settings.nodes + 2; i++) {
        local_daemon_name(i, name, sizeof(name));
        if (!local_daemon_runs(local_daemon_find(&l->cluster.doc, name)))
            return fail_dead(l, name);
    }
    return HL_OK;
}

static hl_status fail_late(const struct local *l, const struct sight *s)
{
    unsigned seconds = (unsigned)(l->opts->ready_ms / 1000);
    if (!s->l3)
        return hl_fail(HL_ETIMEDOUT, "the Controller does not reach L3 after %u s: %s", seconds,
                       s->l3_state);
    if (s->ready < l->settings.nodes)
        return hl_fail(HL_ETIMEDOUT, "%d of %d nodes have registered after %u s", s->ready,
                       l->settings.nodes, seconds);
    return hl_fail(HL_ETIMEDOUT, "Kubernetes is not ready after %u s: %s", seconds, s->kube_state);
}

static hl_status wait_cluster(struct local *l)
{
    struct hl_rpc_peer *peer;
    HL_TRY(hl_rpc_open(l->opts->rpc, l->cluster.doc.controller, "Controller", &peer));
    uint64_t last = hl_now_ns();
    struct sight s = {0};
    struct local_progress progress;
    hl_status st;
    local_progress_start(&progress);
    for (;;) {
        int before = s.ready + s.l3;
        st = look_at_cluster(l, peer, &s);
        if (st == HL_OK && s.l3 && s.ready >= l->settings.nodes &&
            (!l->settings.kubernetes || s.kube))
            break;
        st = check_alive(l);
        if (st == HL_OK && local_interrupted())
            st = hl_fail(HL_ECANCELED, "interrupted while the nodes registered");
        if (s.ready + s.l3 > before)
            last = hl_now_ns();
        if (st == HL_OK && hl_now_ns() - last > l->opts->ready_ms * HL_NS_PER_MS)
            st = fail_late(l, &s);
        if (st != HL_OK)
            break;
        if (s.l3 && s.ready >= l->settings.nodes) /* in one line of a terminal */
            local_progress_show(&progress, "Kubernetes: %.*s",
                                progress.terminal ? 60 : (int)sizeof(s.kube_state), s.kube_state);
        else
            local_progress_show(&progress, "%d of %d nodes are ready, L3 is %s", s.ready,
                                l->settings.nodes, s.l3 ? "ready" : "not ready");
        poll(NULL, 0, LOCAL_LOOK_MS);
    }
    local_progress_end(&progress);
    hl_rpc_peer_close(peer);
    if (st == HL_OK && s.refused)
        fprintf(stderr,
                "helios: the cluster is up, but its Controller frees nothing in the pool: %s\n",
                s.l3_state);
    return st;
}

/* ---- from the beginning ---------------------------------------------------------------------- */

/* The pool's file is named after the state directory, so two clusters never share one. */
static void name_pool(const char *state, char *out, size_t cap)
{
    snprintf(out, cap, "/dev/shm/helios-%u-%016llx.pool", (unsigned)getuid(),
             (unsigned long long)hl_hash_text(state));
}

hl_status local_find_programs(struct local *l)
{
    if (strlen(l->opts->state) + strlen("/" LOCAL_RUN "/controllerd.sock") > SOCKET_PATH_MAX)
        return hl_fail(HL_EINVAL,
                       "--state '%s' is too long: the path of a socket in it may have %d bytes",
                       l->opts->state, SOCKET_PATH_MAX);
    ssize_t n = readlink("/proc/self/exe", l->bin, sizeof(l->bin) - 1);
    if (n <= 0)
        return hl_fail(HL_EIO, "readlink /proc/self/exe: %m");
    l->bin[n] = '\0';
    *strrchr(l->bin, '/') = '\0';
    return HL_OK;
}

/* What is asked for, and whether it fits what there is. Nothing is changed. */
static hl_status prepare_start(struct local *l, const struct hl_api_local_cluster *before)
{
    HL_TRY(local_settings_load(l->opts->given, before, &l->settings));
    if (l->settings.l3.l3d.pool_path[0] != '\0')
        snprintf(l->pool, sizeof(l->pool), "%s", l->settings.l3.l3d.pool_path);
    else
        name_pool(l->opts->state, l->pool, sizeof(l->pool));
    if (l->warm)
        return local_settings_compare(&l->settings, before);
    return before != NULL ? local_settings_fit_pool(&l->settings, before, l->pool) : HL_OK;
}

/* Every daemon runs and serves, or the supervisor sees to that. */
static bool all_serve(const struct local *l)
{
    char name[32];
    for (int i = 0; i < l->settings.nodes + 2; i++) {
        local_daemon_name(i, name, sizeof(name));
        const struct hl_api_local_daemon *daemon = local_daemon_find(&l->cluster.doc, name);
        if (!local_daemon_runs(daemon) || !daemon->ready)
            return false;
    }
    return true;
}

/* One supervisor at a time: it stays where there is nothing to start, else this process takes over,
 * which is the parent of what it starts. */
static void take_over(struct local *l)
{
    struct hl_process self;
    struct hl_api_local_cluster *doc = &l->cluster.doc;
    bool wanted = l->settings.supervise && l->opts->supervises != NULL;
    if (wanted && local_supervisor_runs(doc) && all_serve(l))
        return;
    local_end_supervisor(doc);
    doc->supervisor = (struct hl_api_local_supervisor){0};
    if (!wanted || hl_process_identify(getpid(), &self) != HL_OK)
        return;
    doc->supervisor = (struct hl_api_local_supervisor){self.pid, self.start};
    *l->opts->supervises = true;
}

/* Of a cluster that goes on as it was before. */
static void keep_supervisor(struct local *l, struct hl_api_local_cluster *before)
{
    const struct hl_api_local_supervisor *now = &l->cluster.doc.supervisor;
    before->supervisor = (struct hl_api_local_supervisor){0};
    if (now->pid > 0 && local_runs(before))
        before->supervisor = *now;
    else if (l->opts->supervises != NULL)
        *l->opts->supervises = false;
}

/* Restarts are counted since the cluster came up. */
static void forget_ends(struct local *l)
{
    char name[32];
    for (int i = 0; i < l->settings.nodes + 2; i++) {
        local_daemon_name(i, name, sizeof(name));
        struct hl_api_local_daemon *daemon = local_daemon_find(&l->cluster.doc, name);
        if (daemon == NULL)
            continue;
        daemon->restarts = 0;
        daemon->end = (struct hl_api_daemon_end){0};
    }
}

/* Stop what was started, last first, and remove what was made. */
static void undo_start(struct local *l, struct hl_api_local_cluster *before)
{
    char text[HL_ERROR_TEXT_MAX];
    bool ended = false;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    for (size_t i = l->started.count; i > 0; i--)
        ended |= local_end_daemon(&l->cluster.doc, l->started.items[i - 1]);
    for (size_t i = 0; i < l->made.count; i++)
        unlink(l->made.items[i]);
    if (before != NULL)
        keep_supervisor(l, before);
    else if (l->opts->supervises != NULL)
        *l->opts->supervises = false;
    hl_status st = before != NULL ? local_save(l->opts->state, before)
                                  : local_remove(l->opts->state, &l->cluster.doc, false);
    if (st != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
    if (ended)
        (void)!hl_fail(HL_EIO, "%s; %s", text,
                       before != NULL ? "what this `up` had started is stopped again"
                                      : "what it had started is stopped and removed again");
    else
        (void)!hl_fail(HL_EIO, "%s", text);
}

/* cluster.json as it is going to be. */
static hl_status prepare_cluster(struct local *l, const struct hl_api_local_cluster *before)
{
    struct local_cluster *c = &l->cluster;
    if (before != NULL)
        HL_TRY(hl_api_copy(&hl_api_local_cluster_type, before, &c->arena, &c->doc));
    c->doc.state = hl_arena_strdup(&c->arena, l->opts->state);
    c->doc.pool = hl_arena_strdup(&c->arena, l->pool);
    c->doc.kept = (struct hl_api_local_content){-1, -1, -1};
    HL_TRY(local_settings_store(&l->settings, c));
    return hl_arena_failed(&c->arena) ? hl_fail(HL_ENOMEM, "out of memory for cluster.json")
                                      : HL_OK;
}

static hl_status bring_up(struct local *l, struct hl_api_local_cluster *before)
{
    HL_TRY(prepare_start(l, before));
    HL_TRY(prepare_cluster(l, before));
    if (!l->warm)
        forget_ends(l);
    take_over(l);
    hl_status st = start_all(l);
    if (st == HL_OK)
        st = wait_cluster(l);
    if (st == HL_OK)
        st = local_save(l->opts->state, &l->cluster.doc);
    if (st != HL_OK)
        undo_start(l, before);
    return st;
}

/* A directory that only this call has made. */
static void remove_empty(const char *state)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/log", state);
    rmdir(path);
    snprintf(path, sizeof(path), "%s/" LOCAL_RUN, state);
    rmdir(path);
    snprintf(path, sizeof(path), "%s/lock", state);
    unlink(path);
    rmdir(state);
}

static hl_status locked_up(struct local *l, struct local_cluster *out,
                           struct hl_api_local_start *start)
{
    HL_AUTO(local_unlock) int lock = -1;
    HL_AUTO(local_cluster_fini) struct local_cluster before = {0};
    HL_TRY(local_lock(l->opts->state, LOCAL_LOCK_MS, &lock));
    hl_status st = local_find(l->opts->state, &before);
    l->fresh = st == HL_ENOENT;
    if (st != HL_OK && st != HL_ENOENT)
        return st;
    l->warm = !l->fresh && local_runs(&before.doc);
    local_signals_begin();
    st = bring_up(l, l->fresh ? NULL : &before.doc);
    local_signals_end();
    if (st != HL_OK && l->fresh)
        remove_empty(l->opts->state);
    if (st == HL_OK) {
        hl_arena_move(&l->cluster.arena, &l->arena);
        *start = (struct hl_api_local_start){l->started, l->warm};
        *out = l->cluster;
        l->cluster = (struct local_cluster){0};
    }
    local_cluster_fini(&l->cluster);
    hl_arena_fini(&l->arena);
    local_settings_fini(&l->settings);
    return st;
}

/* Jobs' environments, logs and sockets are in it: no other user may enter, also where an earlier
 * release has made it. */
static hl_status make_private(const char *state)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" LOCAL_RUN, state);
    HL_TRY(hl_dir_make(path, 0700));
    if (chmod(state, 0700) != 0)
        return hl_fail(hl_status_of_errno(errno), "chmod 0700 %s: %m; is it your own?", state);
    return HL_OK;
}

hl_status local_up(const struct local_opts *opts, struct local_cluster *out,
                   struct hl_api_local_start *start)
{
    struct local *l = calloc(1, sizeof(*l));
    char path[PATH_MAX];
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory starting the cluster");
    l->opts = opts;
    hl_status st = local_find_programs(l);
    snprintf(path, sizeof(path), "%s/log", opts->state);
    if (st == HL_OK)
        st = make_private(opts->state);
    if (st == HL_OK)
        st = hl_dir_make(path, 0700);
    if (st == HL_OK)
        st = locked_up(l, out, start);
    free(l);
    return st;
}
