/* The supervisor of a local cluster: restarts daemons that have ended, with increasing delays. It
 * holds the lock of the state directory only while it writes cluster.json; what it can't write or
 * start now it retries later. Daemons do not depend on it: if it is killed, they lose nothing. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/local/local_private.h"
#include "os/process.h"

#define FIRST_MS  200
#define TOP_MS    30000
#define STEADY_MS 60000 /* after a life this long the back-off starts again */
#define LOOK_MS   100   /* while something has to be done */
#define IDLE_MS   2000  /* between checks whether the cluster is still ours */

/* A daemon that is watched. Its life, and the fields that show its state:
 *
 *     starting ──ready file──▶ serving          due_ns 0; `ready` tells which of the two
 *        ▲  └───────┬────────────┘
 *        │       it ends
 *        │          ▼
 *        │        ended                         due_ns: when the next life may begin
 *        │          │ lock held: write_end
 *        │          ▼
 *        └─due──  noted                         cluster.json says how it ended
 *
 * If a start fails, the daemon stays ended, with a later due_ns. Ends are noticed without the lock,
 * because `helios up` may hold it for minutes; everything else is done with it. */
struct ward {
    char name[32];
    int index;
    struct hl_process process;
    int pidfd; /* -1: it has ended */
    bool ready;
    bool noted; /* cluster.json says how it ended */
    char how[LOCAL_HOW_MAX];
    int64_t ended_ms; /* wall clock */
    uint64_t born_ns, due_ns;
    unsigned failed; /* consecutive short lives */
};

struct supervisor {
    struct local local; /* cluster: as read last */
    struct local_opts opts;
    struct hl_api_key_value_list given; /* empty */
    struct ward *wards;
    int count;
    uint64_t write_ns;      /* next attempt to write cluster.json after a failure */
    unsigned writes_failed; /* consecutive failures */
};

static volatile sig_atomic_t stopped;

static void note_stop(int number)
{
    (void)number;
    stopped = 1;
}

/* HL_ENOENT: the cluster is gone, or another supervisor has taken it over. */
static hl_status read_doc(struct supervisor *s)
{
    struct local_cluster c;
    HL_TRY(local_find(s->opts.state, &c));
    local_cluster_fini(&s->local.cluster);
    s->local.cluster = c;
    if (c.doc.supervisor.pid != getpid())
        return hl_fail(HL_ENOENT, "%s belongs to another supervisor", s->opts.state);
    return HL_OK;
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void watch_daemon(struct supervisor *s, struct ward *w)
{
    static const struct hl_api_local_daemon none;
    const struct hl_api_local_daemon *daemon = local_daemon_find(&s->local.cluster.doc, w->name);
    if (daemon == NULL)
        daemon = &none;
    w->process = (struct hl_process){daemon->pid, daemon->start};
    w->ready = daemon->ready;
    w->pidfd = local_daemon_open(daemon);
    w->born_ns = hl_now_ns();
    w->noted = false;
}

static void last_line(const struct supervisor *s, const struct ward *w, char *out, size_t cap)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/log/%s.log", s->opts.state, w->name);
    local_last_line(path, out, cap);
}

/* Sets when the next life begins. */
static void set_due(struct ward *w)
{
    uint64_t now = hl_now_ns();
    if (now - w->born_ns >= STEADY_MS * HL_NS_PER_MS)
        w->failed = 0;
    w->due_ns = now + hl_backoff_ms(FIRST_MS, TOP_MS, w->failed++) * HL_NS_PER_MS;
}

static void note_end(struct supervisor *s, struct ward *w)
{
    char line[512];
    bool known = local_reap(w->process.pid, w->how, sizeof(w->how));
    if (!known)
        snprintf(w->how, sizeof(w->how), "ended, status unknown: an earlier `up` started it");
    if (w->pidfd >= 0)
        close(w->pidfd);
    w->pidfd = -1;
    w->ended_ms = hl_wall_ms();
    set_due(w);
    last_line(s, w, line, sizeof(line));
    hl_warn("daemon ended daemon=%s pid=%d how=\"%s\" restart_ms=%llu log=\"%s\"", w->name,
            (int)w->process.pid, w->how,
            (unsigned long long)((w->due_ns - hl_now_ns()) / HL_NS_PER_MS), line);
}

static void look_for_ends(struct supervisor *s)
{
    for (int i = 0; i < s->count; i++) {
        struct ward *w = &s->wards[i];
        if (w->due_ns == 0 && (w->pidfd < 0 || hl_process_wait(w->pidfd, 0)))
            note_end(s, w);
    }
}

/* ---- with the lock --------------------------------------------------------------------------- */

/* True: cluster.json has to be written. */
static bool write_end(struct supervisor *s, struct ward *w)
{
    struct hl_api_local_daemon *daemon = local_daemon_find(&s->local.cluster.doc, w->name);
    const char *how = hl_arena_strdup(&s->local.cluster.arena, w->how);
    if (daemon == NULL || how == NULL)
        return false;
    daemon->end = (struct hl_api_daemon_end){how, w->ended_ms};
    return true;
}

/* Marks everything that was changed as written. */
static void note_written(struct supervisor *s)
{
    for (int i = 0; i < s->count; i++) {
        struct ward *w = &s->wards[i];
        const struct hl_api_local_daemon *daemon =
            local_daemon_find(&s->local.cluster.doc, w->name);
        if (daemon == NULL)
            continue;
        if (w->due_ns != 0)
            w->noted = daemon->end.at == w->ended_ms;
        else
            w->ready = daemon->ready;
    }
}

/* Loads the settings that `up` was given; like `up`, refuses a configuration file that has changed
 * since. */
static hl_status load_settings(struct supervisor *s)
{
    local_settings_fini(&s->local.settings);
    memset(&s->local.settings, 0, sizeof(s->local.settings));
    HL_TRY(local_settings_load(&s->given, &s->local.cluster.doc, &s->local.settings));
    return local_settings_compare(&s->local.settings, &s->local.cluster.doc);
}

static hl_status restart_daemon(struct supervisor *s, struct ward *w)
{
    HL_TRY(load_settings(s));
    struct hl_api_local_daemon *daemon = local_daemon_add(&s->local.cluster, w->name);
    if (daemon == NULL)
        return hl_fail(HL_ENOMEM, "out of memory starting %s", w->name);
    int restarts = ++daemon->restarts;
    hl_status st = local_daemon_launch(&s->local, w->index); /* writes cluster.json */
    hl_arena_fini(&s->local.arena);
    s->local.started = s->local.made = (struct hl_api_text_list){0};
    HL_TRY(st);
    w->due_ns = 0;
    watch_daemon(s, w);
    hl_info("daemon started again daemon=%s pid=%d restarts=%d", w->name, (int)w->process.pid,
            restarts);
    return HL_OK;
}

static void try_restart(struct supervisor *s, struct ward *w)
{
    if (restart_daemon(s, w) == HL_OK)
        return;
    w->born_ns = hl_now_ns();
    set_due(w);
    hl_warn("daemon does not start daemon=%s error=\"%s\"", w->name, hl_error_text());
    (void)!read_doc(s); /* drops what the attempt has changed */
}

/* Reads cluster.json again first, because the last holder of the lock may have changed it. Ends are
 * written before anything is started, so that none is lost if the supervisor dies during a
 * start. */
static hl_status write_locked(struct supervisor *s)
{
    HL_TRY(read_doc(s));
    bool changed = false;
    for (int i = 0; i < s->count; i++) {
        struct ward *w = &s->wards[i];
        bool ended = w->due_ns != 0;
        if (ended && !w->noted)
            changed |= write_end(s, w);
        else if (!ended && !w->ready)
            changed |= local_daemon_settle(&s->local, w->name);
    }
    if (changed) {
        HL_TRY(local_save(s->opts.state, &s->local.cluster.doc));
        note_written(s);
    }
    for (int i = 0; i < s->count; i++) {
        struct ward *w = &s->wards[i];
        if (w->due_ns != 0 && w->due_ns <= hl_now_ns())
            try_restart(s, w);
    }
    return HL_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Whether something has to be written or started. */
static bool is_busy(const struct supervisor *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->wards[i].due_ns != 0 || !s->wards[i].ready)
            return true;
    return false;
}

static hl_status supervisor_turn(struct supervisor *s)
{
    hl_status st;
    look_for_ends(s);
    if (!is_busy(s)) { /* only checks that the cluster is still ours, now or later */
        st = read_doc(s);
        return st == HL_ENOENT ? st : HL_OK;
    }
    if (hl_now_ns() < s->write_ns)
        return HL_OK;
    HL_AUTO(local_unlock) int lock = -1;
    st = local_lock(s->opts.state, 0, &lock);
    if (st == HL_EBUSY) /* the next turn tries again */
        return HL_OK;
    HL_TRY(st);
    st = write_locked(s);
    if (st == HL_OK)
        s->writes_failed = 0;
    if (st == HL_OK || st == HL_ENOENT)
        return st;
    s->write_ns = hl_now_ns() + hl_backoff_ms(FIRST_MS, TOP_MS, s->writes_failed++) * HL_NS_PER_MS;
    hl_warn("cluster.json is not written error=\"%s\"", hl_error_text());
    return HL_OK;
}

/* Signals are blocked everywhere else, so one that comes between two waits stays pending: none is
 * lost between the check of `stopped` and the wait. */
static void wait_next(const struct supervisor *s, const sigset_t *mask)
{
    struct pollfd fds[LOCAL_NODES_MAX + 2];
    int ms = is_busy(s) ? LOOK_MS : IDLE_MS;
    nfds_t n = 0;
    for (int i = 0; i < s->count; i++)
        if (s->wards[i].pidfd >= 0)
            fds[n++] = (struct pollfd){.fd = s->wards[i].pidfd, .events = POLLIN};
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    (void)ppoll(fds, n, &t, mask);
}

static hl_status supervisor_init(struct supervisor *s, const char *state)
{
    s->opts = (struct local_opts){.state = state, .given = &s->given};
    s->local.opts = &s->opts;
    s->local.warm = true;
    HL_TRY(local_find_programs(&s->local));
    HL_TRY(read_doc(s));
    const struct hl_api_local_cluster *doc = &s->local.cluster.doc;
    snprintf(s->local.pool, sizeof(s->local.pool), "%s", doc->pool);
    if (doc->nodes < 0 || doc->nodes > LOCAL_NODES_MAX)
        return hl_fail(HL_ECORRUPT, "%s/cluster.json: field nodes: %d is outside 0..%d", state,
                       doc->nodes, LOCAL_NODES_MAX);
    s->count = doc->nodes + 2;
    s->wards = calloc((size_t)s->count, sizeof(*s->wards));
    if (s->wards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the supervisor");
    for (int i = 0; i < s->count; i++) {
        s->wards[i].index = i;
        local_daemon_name(i, s->wards[i].name, sizeof(s->wards[i].name));
        watch_daemon(s, &s->wards[i]);
    }
    return HL_OK;
}

static void supervisor_fini(struct supervisor *s)
{
    for (int i = 0; s->wards != NULL && i < s->count; i++)
        if (s->wards[i].pidfd >= 0)
            close(s->wards[i].pidfd);
    free(s->wards);
    local_settings_fini(&s->local.settings);
    local_cluster_fini(&s->local.cluster);
    hl_arena_fini(&s->local.arena);
}

hl_status local_supervise(const char *state)
{
    struct supervisor *s = calloc(1, sizeof(*s));
    struct sigaction stop = {.sa_handler = note_stop};
    sigset_t block, before;
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the supervisor");
    sigemptyset(&block);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &before);
    sigdelset(&before, SIGTERM);
    sigdelset(&before, SIGINT);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    hl_status st = supervisor_init(s, state);
    if (st == HL_OK)
        hl_info("supervising state=%s daemons=%d", state, s->count);
    while (st == HL_OK && !stopped) {
        st = supervisor_turn(s);
        if (st == HL_OK)
            wait_next(s, &before);
    }
    supervisor_fini(s);
    free(s);
    return st == HL_ENOENT ? HL_OK : st;
}

struct hl_api_local_ends local_ends(const struct hl_api_local_cluster *doc, struct hl_arena *arena)
{
    struct hl_api_local_ends all = {0};
    all.ends.items = hl_arena_array(arena, doc->daemons.count, sizeof(*all.ends.items));
    for (size_t i = 0; all.ends.items != NULL && i < doc->daemons.count; i++) {
        const struct hl_api_local_daemon *d = &doc->daemons.items[i];
        if (d->end.at != 0)
            all.ends.items[all.ends.count++] =
                (struct hl_api_local_end){d->key, local_daemon_runs(d), d->restarts, d->end};
    }
    return all;
}
