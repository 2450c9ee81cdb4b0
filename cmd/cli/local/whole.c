/* The wait of `helios up` until the cluster is complete: the Controller reaches L3, every node is
 * ready, and no daemon is stopped by a signal. Each look asks the Controller; a daemon that can't
 * respond is found in /proc. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/local/local_private.h"
#include "rpc/controller_calls.h"
#include "rpc/rpc.h"

#define STOPPED_MAX 4 /* of those that are named */

struct sight {
    int ready;
    bool l3, kube, refused;
    char l3_state[512], kube_state[512];
    char missing[32];     /* a daemon whose node is not ready */
    char unanswered[512]; /* the error of the last look; "" = the Controller responded */
};

static bool is_ready(const struct hl_api_node_state *n)
{
    return n->state == HL_API_NODE_LIFE_READY &&
           n->node.health.state != HL_API_HEALTH_STATE_TESTING;
}

/* Whether the Controller's information is about the Agent that runs now, and not about one that was
 * killed before. */
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

static bool node_is_ready(const struct local *l, const struct hl_api_node_state_list *nodes,
                          const char *name)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (strcmp(nodes->items[i].node.name, name) == 0)
            return is_ready(&nodes->items[i]) && is_of_now(l, &nodes->items[i].node);
    return false;
}

static void note_missing(const struct local *l, const struct hl_api_node_state_list *nodes,
                         struct sight *out)
{
    out->missing[0] = '\0';
    for (int i = 0; i < l->settings.nodes && out->missing[0] == '\0'; i++) {
        char key[32];
        local_daemon_name(2 + i, key, sizeof(key));
        const struct hl_api_local_daemon *d = local_daemon_find(&l->cluster.doc, key);
        if (d != NULL && d->name != NULL && !node_is_ready(l, nodes, d->name))
            snprintf(out->missing, sizeof(out->missing), "%s", key);
    }
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
        out->ready += is_ready(&r.nodes.items[i]) && is_of_now(l, &r.nodes.items[i].node);
    note_missing(l, &r.nodes, out);
    snprintf(out->l3_state, sizeof(out->l3_state), "%s", info->l3_state);
    snprintf(out->kube_state, sizeof(out->kube_state), "%s", info->kubernetes_state);
    out->refused = info->claim == HL_API_CLAIM_STATE_REFUSED;
    out->l3 = out->refused || strcmp(out->l3_state, "ready") == 0;
    out->kube = strcmp(out->kube_state, "ready") == 0;
    return HL_OK;
}

/* Usually the cause is a daemon that has ended meanwhile. */
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

/* Daemons that a signal has stopped: "node-0 (process 12), node-1 (process 13)" and "12 13". */
struct stopped {
    char names[256], pids[64];
    size_t count;
};

static void find_stopped(const struct local *l, struct stopped *out)
{
    *out = (struct stopped){0};
    const char *comma = "";
    for (int i = 0; i < l->settings.nodes + 2; i++) {
        char name[32];
        local_daemon_name(i, name, sizeof(name));
        const struct hl_api_local_daemon *d = local_daemon_find(&l->cluster.doc, name);
        if (!local_daemon_stopped(d) || ++out->count > STOPPED_MAX)
            continue;
        size_t n = strlen(out->names), p = strlen(out->pids);
        snprintf(out->names + n, sizeof(out->names) - n, "%s%s (process %d)", comma, name, d->pid);
        snprintf(out->pids + p, sizeof(out->pids) - p, "%s%d", comma[0] != '\0' ? " " : "", d->pid);
        comma = ", ";
    }
}

hl_status local_name_stopped(const struct local *l, hl_status st)
{
    struct stopped s;
    char text[HL_ERROR_TEXT_MAX / 2], more[32] = "";
    find_stopped(l, &s);
    if (s.count == 0)
        return st;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    if (s.count > STOPPED_MAX)
        snprintf(more, sizeof(more), " and %zu more", s.count - STOPPED_MAX);
    return hl_fail(st,
                   "%s; stopped by a signal: %s%s; continue with `kill -CONT %s`, or end with "
                   "`kill -KILL %s`; then repeat `helios up`",
                   text, s.names, more, s.pids, s.pids);
}

static hl_status fail_late(const struct local *l, const struct sight *s)
{
    unsigned seconds = (unsigned)(l->opts->ready_ms / 1000);
    if (s->unanswered[0] != '\0')
        return hl_fail(HL_ETIMEDOUT, "the Controller does not answer after %u s: %s", seconds,
                       s->unanswered);
    if (!s->l3)
        return hl_fail(HL_ETIMEDOUT, "the Controller does not reach L3 after %u s: %s", seconds,
                       s->l3_state[0] != '\0' ? s->l3_state : "it has not answered");
    if (s->ready < l->settings.nodes && s->missing[0] != '\0')
        return hl_fail(
            HL_ETIMEDOUT, "%d of %d nodes are ready after %u s, %s is not (log: %s/log/%s.log)",
            s->ready, l->settings.nodes, seconds, s->missing, l->opts->state, s->missing);
    if (s->ready < l->settings.nodes)
        return hl_fail(HL_ETIMEDOUT, "%d of %d nodes are ready after %u s", s->ready,
                       l->settings.nodes, seconds);
    if (l->settings.kubernetes && !s->kube)
        return hl_fail(HL_ETIMEDOUT, "Kubernetes is not ready after %u s: %s", seconds,
                       s->kube_state);
    return hl_fail(HL_ETIMEDOUT, "not every daemon answers after %u s", seconds);
}

/* A node counts as ready until its silence is noticed, so an Agent that was just stopped is checked
 * directly. */
static bool is_whole(const struct local *l, const struct sight *s)
{
    struct stopped stopped;
    if (s->unanswered[0] != '\0' || !s->l3 || s->ready < l->settings.nodes ||
        (l->settings.kubernetes && !s->kube))
        return false;
    find_stopped(l, &stopped);
    return stopped.count == 0;
}

static void show_sight(struct local_progress *p, const struct local *l, const struct sight *s)
{
    if (l->settings.kubernetes && s->l3 && s->ready >= l->settings.nodes) /* all in one line */
        local_progress_show(p, "Kubernetes: %.*s", p->terminal ? 60 : (int)sizeof(s->kube_state),
                            s->kube_state);
    else
        local_progress_show(p, "%d of %d nodes are ready, L3 is %s", s->ready, l->settings.nodes,
                            s->l3 ? "ready" : "not ready");
}

static hl_status await_whole(struct local *l, struct hl_rpc_peer *peer, struct sight *s)
{
    uint64_t last = hl_now_ns();
    struct local_progress progress;
    hl_status st = HL_OK;
    local_progress_start(&progress);
    while (st == HL_OK) {
        int before = s->ready + s->l3;
        bool answers = look_at_cluster(l, peer, s) == HL_OK;
        snprintf(s->unanswered, sizeof(s->unanswered), "%s", answers ? "" : hl_error_text());
        if (is_whole(l, s))
            break;
        st = check_alive(l);
        if (st == HL_OK && local_interrupted())
            st = hl_fail(HL_ECANCELED, "interrupted while the nodes registered");
        if (s->ready + s->l3 > before)
            last = hl_now_ns();
        if (st == HL_OK && hl_now_ns() - last > l->opts->ready_ms * HL_NS_PER_MS)
            st = fail_late(l, s);
        if (st != HL_OK)
            break;
        show_sight(&progress, l, s);
        poll(NULL, 0, LOCAL_LOOK_MS);
    }
    local_progress_end(&progress);
    return st;
}

hl_status local_await_whole(struct local *l)
{
    struct hl_rpc_peer *peer;
    struct sight s = {0};
    HL_TRY(hl_rpc_open(l->opts->rpc, l->cluster.doc.controller, "Controller", &peer));
    hl_status st = await_whole(l, peer, &s);
    hl_rpc_peer_close(peer);
    if (st == HL_OK && s.refused)
        fprintf(stderr,
                "helios: the cluster is up, but its Controller frees nothing in the pool: %s\n",
                s.l3_state);
    return st;
}
