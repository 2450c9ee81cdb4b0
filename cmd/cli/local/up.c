/* Starts in this order: L3, Controller, Agents. A start that fails is undone: what it has started
 * is stopped, what it has created is removed, and what existed before stays. In a cluster that ran
 * before, daemons that serve keep running: the Controller is not stopped because one Agent is
 * silent.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/hash.h"
#include "cli/local/local_private.h"
#include "os/file.h"
#include "os/process.h"

#define SOCKET_PATH_MAX 107

/* If there are ports, their clients need a secret. */
static hl_status prepare_secret(struct local *l)
{
    struct local_cluster *c = &l->cluster;
    const char *given = l->settings.controller.auth.secret_file;
    c->doc.secret_file = NULL;
    if (given[0] != '\0') { /* remembered for clients that run later without these options */
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

/* Checks what is requested, and whether it fits what exists. Changes nothing. */
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

/* Whether every daemon runs and serves, so that the supervisor has nothing to start. */
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

/* There is one supervisor at a time. It stays if there is nothing to start; otherwise this process
 * takes over, because it is the parent of what it starts. In a cluster that runs, cluster.json
 * names it before the other one ends: on a full disk, the cluster keeps the supervisor that it has.
 */
static hl_status take_over(struct local *l, struct hl_api_local_cluster *before)
{
    struct hl_process self;
    struct hl_api_local_cluster *doc = &l->cluster.doc;
    struct hl_api_local_supervisor new = {0};
    bool wanted = l->settings.supervise && l->opts->supervises != NULL;
    if (wanted && local_supervisor_runs(doc) && !local_supervisor_stopped(doc) && all_serve(l))
        return HL_OK;
    if (wanted && hl_process_identify(getpid(), &self) == HL_OK)
        new = (struct hl_api_local_supervisor){self.pid, self.start};
    if (l->warm) {
        before->supervisor = new;
        HL_TRY(local_save(l->opts->state, before));
    }
    local_end_supervisor(doc);
    doc->supervisor = new;
    if (new.pid > 0)
        *l->opts->supervises = true;
    return HL_OK;
}

/* Keeps the supervisor of a cluster that continues as it was before. */
static void keep_supervisor(struct local *l, struct hl_api_local_cluster *before)
{
    const struct hl_api_local_supervisor *now = &l->cluster.doc.supervisor;
    before->supervisor = (struct hl_api_local_supervisor){0};
    if (now->pid > 0 && local_runs(before))
        before->supervisor = *now;
    else if (l->opts->supervises != NULL)
        *l->opts->supervises = false;
}

/* Restarts are counted from the time when the cluster came up. */
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

/* A daemon serves where it did before, unless the addresses were changed meanwhile. */
static void forget_addresses(struct local *l)
{
    for (size_t i = 0; i < l->cluster.doc.daemons.count; i++) {
        struct hl_api_local_daemon *d = &l->cluster.doc.daemons.items[i];
        d->address = d->data_address = d->migrate_address = "";
    }
}

static bool is_kept(const struct local *l, const char *name)
{
    const struct hl_api_local_daemon *d = local_daemon_find(&l->cluster.doc, name);
    return l->warm && d != NULL && d->ready && local_daemon_runs(d);
}

static bool fills_for_kept(const struct local *l, const char *path)
{
    for (size_t i = 0; i < l->cluster.doc.daemons.count; i++) {
        const struct hl_api_local_daemon *d = &l->cluster.doc.daemons.items[i];
        if (d->fills != NULL && strcmp(d->fills, path) == 0 && is_kept(l, d->key))
            return true;
    }
    return false;
}

/* Stops what was started, in reverse order, and removes what was created. In a cluster that ran
 * before, daemons that serve keep running. */
static void stop_started(struct local *l, bool *ended, bool *kept)
{
    for (size_t i = l->started.count; i > 0; i--) {
        const char *name = l->started.items[i - 1];
        bool keeps = is_kept(l, name);
        *kept |= keeps;
        *ended |= !keeps && local_end_daemon(&l->cluster.doc, name);
    }
    for (size_t i = 0; i < l->made.count; i++)
        if (!fills_for_kept(l, l->made.items[i]))
            unlink(l->made.items[i]);
}

/* In a cluster that ran before, daemons that serve keep running. */
static void undo_start(struct local *l, struct hl_api_local_cluster *before)
{
    char text[HL_ERROR_TEXT_MAX];
    bool ended = false, kept = false;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    stop_started(l, &ended, &kept);
    if (before != NULL && !kept)
        keep_supervisor(l, before);
    else if (before == NULL && l->opts->supervises != NULL)
        *l->opts->supervises = false;
    hl_status st = before != NULL ? local_save(l->opts->state, kept ? &l->cluster.doc : before)
                                  : local_remove(l->opts->state, &l->cluster.doc, false);
    if (st != HL_OK)
        fprintf(stderr, "helios: %s\n", hl_error_text());
    if (kept)
        (void)!hl_fail(HL_EIO, "%s; the daemons that this `up` started and that serve keep running",
                       text);
    else if (ended)
        (void)!hl_fail(HL_EIO, "%s; %s", text,
                       before != NULL ? "what this `up` had started is stopped again"
                                      : "what it had started is stopped and removed again");
    else
        (void)!hl_fail(HL_EIO, "%s", text);
}

/* Prepares the new content of cluster.json. */
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
    if (!l->warm && before != NULL && local_settings_moved(&l->settings, before))
        forget_addresses(l);
    HL_TRY(take_over(l, before));
    hl_status st = start_all(l);
    if (st == HL_OK)
        st = local_await_whole(l);
    if (st == HL_ETIMEDOUT)
        st = local_name_stopped(l, st);
    if (st == HL_OK)
        st = local_save(l->opts->state, &l->cluster.doc);
    if (st != HL_OK)
        undo_start(l, before);
    return st;
}

/* Removes the directory if only this call has created it. */
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

/* The directory contains jobs' environments, logs and sockets, so no other user may enter it, even
 * if an earlier release has created it. */
static hl_status make_private(const char *state)
{
    static const char *const parts[] = {"", "/" LOCAL_RUN, "/log"};
    char path[PATH_MAX];
    for (size_t i = 0; i < HL_ARRAY_LEN(parts); i++) {
        snprintf(path, sizeof(path), "%s%s", state, parts[i]);
        HL_TRY(hl_dir_make_private(path));
    }
    return HL_OK;
}

hl_status local_up(const struct local_opts *opts, struct local_cluster *out,
                   struct hl_api_local_start *start)
{
    struct local *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory starting the cluster");
    l->opts = opts;
    hl_status st = local_find_programs(l);
    if (st == HL_OK)
        st = make_private(opts->state);
    if (st == HL_OK)
        st = locked_up(l, out, start);
    free(l);
    return st;
}
