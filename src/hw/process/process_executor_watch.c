/* Watches shims: adopts them after a restart, follows changes of status.json, and notices their
 * end. process_executor.c shows how this thread and the callers' threads share the entries. A shim
 * holds a lock on its directory for as long as it lives, so even an Agent that did not start it
 * notices its end. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"
#include "os/poll.h"

#define TICK_MS        200
#define LOCK_WAIT_MS   2000
#define LOCK_LOOK_MS   10
#define REVIVE_MAX     3 /* shims of one container that may be killed */
#define SIGNED_WAIT_MS 2000

static bool shim_lives(const char *dir)
{
    HL_AUTO(hl_closep) int fd = -1;
    return hl_px_lock_shim(dir, &fd) != HL_OK; /* in doubt it is alive */
}

void hl_px_signal(const struct hl_px_entry *e, int signum)
{
    if (e->pidfd >= 0) {
        if (hl_process_signal(e->pidfd, signum) != HL_OK)
            hl_debug("container %s: %s", e->id, hl_error_text());
    } else if (e->shim.pid > 0 && shim_lives(e->dir.s)) {
        kill(e->shim.pid, signum); /* the lock shows that the pid still belongs to it */
    }
}

static bool status_equal(const struct hl_container_status *a, const struct hl_container_status *b)
{
    bool equal = a->state == b->state && a->exit_code == b->exit_code && a->signal == b->signal &&
                 a->started_ms == b->started_ms && a->finished_ms == b->finished_ms &&
                 a->lost == b->lost && a->rank_count == b->rank_count &&
                 strcmp(a->message, b->message) == 0 && strcmp(a->warning, b->warning) == 0 &&
                 strcmp(a->binding, b->binding) == 0;
    for (size_t i = 0; equal && i < a->rank_count; i++) {
        const struct hl_rank_status *x = &a->ranks[i], *y = &b->ranks[i];
        equal = x->rank == y->rank && x->pid == y->pid && x->state == y->state &&
                x->exit_code == y->exit_code && x->signal == y->signal &&
                x->finished_ms == y->finished_ms && x->replaced == y->replaced &&
                x->lost_ms == y->lost_ms;
    }
    return equal;
}

bool hl_px_refresh(struct hl_px_entry *e)
{
    struct hl_container_status now;
    if (hl_status_file_read(e->dir.s, &now) != HL_OK) {
        hl_debug("container %s: %s", e->id, hl_error_text());
        return false;
    }
    bool differs = !status_equal(&e->status, &now);
    hl_container_status_fini(&e->status);
    e->status = now;
    return differs;
}

void hl_px_watch(struct hl_px *px, struct hl_px_entry *e)
{
    int fd = -1;
    e->watch = inotify_add_watch(px->inotify, e->dir.s, IN_MOVED_TO);
    if (e->shim.pid > 0 && hl_process_open(e->shim, &fd) == HL_OK) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = e};
        e->pidfd = fd;
        if (epoll_ctl(px->epoll, EPOLL_CTL_ADD, fd, &ev) != 0)
            hl_closep(&e->pidfd); /* check_shims tests the lock then */
    }
    hl_px_refresh(e); /* changes from before the watch existed */
}

/* ---- the end of a shim ---- */

/* False: processes are left, as hl_error_text() says. */
static bool remove_group(const char *dir)
{
    struct hl_cgroup cg;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(8192);
    if (hl_file_read_regular(hl_path_in(dir, "cgroup").s, &text) != HL_OK || text.len == 0)
        return true; /* without a group its ranks end with their parent */
    hl_cgroup_recall(text.data, &cg);
    return hl_cgroup_remove(&cg, HL_SHIM_REMOVE_MS) == HL_OK;
}

/* Removes the engine's containers of a container whose shims have all died. */
static bool remove_labelled(const struct hl_px *px, enum hl_engine_kind engine, const char *dir)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_stranger_list list;
    bool all = true;
    if (engine == HL_ENGINE_NONE)
        return true;
    if (hl_labelled_find(engine, px->containers.s, strrchr(dir, '/') + 1, &arena, &list) != HL_OK)
        return false;
    for (size_t i = 0; i < list.count; i++)
        all &= hl_stranger_end(engine, &list.items[i]) == HL_OK;
    return all;
}

static bool has_ended_rank(const struct hl_container_status *s)
{
    for (size_t i = 0; i < s->rank_count; i++)
        if (hl_run_state_ended(s->ranks[i].state))
            return true;
    return false;
}

/* left: a text about processes that could not be ended; NULL: there are none. */
static void fail_without_result(struct hl_px_entry *e, const char *left)
{
    struct hl_container_status *s = &e->status;
    s->state = HL_RUN_FAILED;
    s->signal = SIGKILL;
    s->exit_code = 128 + SIGKILL;
    s->finished_ms = hl_wall_ms();
    s->lost = left == NULL && !has_ended_rank(s);
    for (size_t i = 0; i < s->rank_count; i++) {
        if (hl_run_state_ended(s->ranks[i].state))
            continue;
        s->ranks[i].state = HL_RUN_FAILED;
        s->ranks[i].signal = SIGKILL;
        s->ranks[i].exit_code = 128 + SIGKILL;
        s->ranks[i].finished_ms = s->finished_ms;
    }
    if (hl_text_set(
            &s->message,
            "the container's shim (process %d) ended without a result: it was killed or the "
            "machine restarted; %s",
            (int)e->shim.pid, left != NULL ? left : "its ranks were ended") != HL_OK ||
        hl_status_file_write(e->dir.s, s) != HL_OK)
        hl_error("container %s: %s", e->id, hl_error_text());
}

/* Starts another shim for a container of an engine, which runs on without its shim; the new one
 * finds the ranks by their labels. Call with the lock held; it is released in between. */
static bool revive_shim(struct hl_px *px, struct hl_px_entry *e)
{
    struct hl_path dir = e->dir;
    struct hl_process shim = {0};
    if (e->engine == HL_ENGINE_NONE || e->revived >= REVIVE_MAX)
        return false;
    e->revived++;
    e->busy++;
    pthread_mutex_unlock(&px->lock);
    uint64_t deadline = hl_now_ns() + LOCK_WAIT_MS * HL_NS_PER_MS;
    hl_status st = hl_px_launch_shim(px, dir.s, &shim);
    while (st == HL_EBUSY && hl_now_ns() < deadline) { /* a child of the dead one holds it too */
        poll(NULL, 0, LOCK_LOOK_MS);                   /* flock has no deadline */
        st = hl_px_launch_shim(px, dir.s, &shim);
    }
    pthread_mutex_lock(&px->lock);
    e->busy--;
    if (st != HL_OK) {
        hl_warn("container %s: %s", e->id, hl_error_text());
        return false;
    }
    hl_info("container %s has another shim pid=%d", e->id, (int)shim.pid);
    e->shim = shim;
    if (e->watch >= 0)
        inotify_rm_watch(px->inotify, e->watch);
    hl_px_watch(px, e);
    return true;
}

void hl_px_settle(struct hl_px *px, struct hl_px_entry *e)
{
    if (e->pidfd >= 0)
        epoll_ctl(px->epoll, EPOLL_CTL_DEL, e->pidfd, NULL);
    hl_closep(&e->pidfd);
    if (e->shim.pid > 0)
        waitpid(e->shim.pid, NULL, WNOHANG); /* our child, unless it was adopted */
    hl_px_refresh(e);
    if (!hl_run_state_ended(e->status.state) && revive_shim(px, e))
        return;
    if (!hl_run_state_ended(e->status.state)) {
        struct hl_path dir = e->dir;
        enum hl_engine_kind engine = e->engine;
        char left[HL_ERROR_TEXT_MAX];
        e->busy++;
        pthread_mutex_unlock(&px->lock);
        bool none = remove_group(dir.s);
        none &= remove_labelled(px, engine, dir.s);
        snprintf(left, sizeof(left), "%s", none ? "" : hl_error_text());
        pthread_mutex_lock(&px->lock);
        e->busy--;
        fail_without_result(e, none ? NULL : left);
    }
    if (e->watch >= 0)
        inotify_rm_watch(px->inotify, e->watch);
    e->watch = -1;
    e->kill_at_ns = 0;
    e->gone = true;
    pthread_cond_broadcast(&px->changed);
}

/* ---- adoption ---- */

static bool parse_signature(const char *path, struct hl_process *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    int pid;
    unsigned long long start;
    if (hl_file_read_regular(path, &text) != HL_OK || text.len == 0 ||
        sscanf(text.data, "%d %llu", &pid, &start) != 2)
        return false;
    *out = (struct hl_process){pid, start};
    return true;
}

/* Reads the shim's identity; waits for it if the shim has just been started. If the shim dies
 * before it writes that, nothing signals it, so the lock is checked every TICK_MS. */
static void read_signature(const char *dir, struct hl_process *out)
{
    uint64_t deadline = hl_now_ns() + SIGNED_WAIT_MS * HL_NS_PER_MS;
    struct hl_path path = hl_path_in(dir, "shim.pid");
    HL_AUTO(hl_closep) int changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    bool watched = changes >= 0 && inotify_add_watch(changes, path.s, IN_MODIFY) >= 0;
    *out = (struct hl_process){0};
    while (!parse_signature(path.s, out) && hl_now_ns() < deadline && shim_lives(dir)) {
        uint64_t look = hl_now_ns() + TICK_MS * HL_NS_PER_MS;
        char events[sizeof(struct inotify_event) * 16];
        if (hl_poll_until(watched ? changes : -1, POLLIN, look < deadline ? look : deadline) > 0)
            (void)!read(changes, events, sizeof(events));
    }
}

/* Ends what runs of a container whose record can't be read, because nothing could stop it later.
 * Its job learns that it is gone. Its directory stays, for people to examine. */
static void end_unreadable(struct hl_px *px, const char *name)
{
    struct hl_path dir = hl_path_in(px->containers.s, name);
    struct hl_process shim;
    char pid[16];
    if (shim_lives(dir.s)) {
        read_signature(dir.s, &shim);
        snprintf(pid, sizeof(pid), "%d", (int)shim.pid);
        const struct hl_stranger x = {
            .container = name, .owner = px->containers.s, .handle = pid, .own = true};
        if (shim.pid <= 0 || hl_stranger_end(HL_ENGINE_NONE, &x) != HL_OK)
            hl_warn("container %s runs on: %s", name,
                    shim.pid > 0 ? hl_error_text() : "its shim is unknown");
    }
    if (!remove_labelled(px, px->options.engine, dir.s))
        hl_warn("container %s: %s", name, hl_error_text());
}

static hl_status adopt_one(struct hl_px *px, const char *name)
{
    struct hl_path dir = hl_path_in(px->containers.s, name);
    struct hl_container_spec spec = {0};
    struct hl_shim_options options;
    HL_TRY(hl_shim_file_read(dir.s, &options));
    HL_TRY(hl_spec_file_read(dir.s, &spec));
    struct hl_px_entry *e = calloc(1, sizeof(*e));
    hl_status st;
    if (e == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating container %s", name);
    else if (strcmp(spec.id, name) != 0)
        st = hl_fail(HL_EINVAL, "%s holds the container %s", dir.s, spec.id);
    else
        st = hl_container_status_init(&spec, &e->status);
    int grace = spec.stop_grace_ms > 0 ? spec.stop_grace_ms : HL_STOP_GRACE_MS;
    hl_container_spec_fini(&spec);
    if (st != HL_OK) {
        free(e);
        return st;
    }
    snprintf(e->id, sizeof(e->id), "%.*s", HL_CONTAINER_ID_MAX, name);
    e->dir = dir;
    e->stop_grace_ms = grace;
    e->engine = options.engine; /* the Agent may be configured for another engine now */
    e->pidfd = e->watch = -1;
    HASH_ADD_STR(px->entries, id, e);
    bool lives = shim_lives(dir.s);
    read_signature(dir.s, &e->shim);
    if (lives)
        hl_px_watch(px, e);
    else
        hl_px_settle(px, e);
    hl_info("found container id=%s state=%s shim=%d", e->id, hl_run_state_text(e->status.state),
            (int)e->shim.pid);
    return HL_OK;
}

/* If a record temporarily can't be read, the Agent stops. Otherwise the Controller would consider
 * the container lost, and its slot would be used twice. */
static hl_status adopt_or_end(struct hl_px *px, const char *name)
{
    hl_status st = adopt_one(px, name);
    if (st == HL_OK)
        return HL_OK;
    if (st == HL_ENOMEM || st == HL_EIO)
        return hl_fail_prefix(st,
                              "container %s keeps running, but its record can't be read: ", name);
    if (st != HL_ENOENT) {
        hl_warn("container %s can't be taken over and is ended: %s", name, hl_error_text());
        end_unreadable(px, name);
    } else if (hl_dir_remove(hl_path_in(px->containers.s, name).s) != HL_OK)
        hl_warn("%s", hl_error_text()); /* its start only got as far as the directory */
    return HL_OK;
}

hl_status hl_px_adopt(struct hl_px *px)
{
    DIR *dir = opendir(px->containers.s);
    if (dir == NULL)
        return hl_fail(HL_EIO, "read %s: %s", px->containers.s, strerror(errno));
    pthread_mutex_lock(&px->lock);
    struct dirent *d;
    hl_status st = HL_OK;
    while (st == HL_OK && (d = readdir(dir)) != NULL)
        if (d->d_name[0] != '.')
            st = adopt_or_end(px, d->d_name);
    pthread_mutex_unlock(&px->lock);
    closedir(dir);
    return st;
}

/* ---- the thread ---- */

struct changes {
    char (*ids)[HL_CONTAINER_ID_MAX + 1];
    size_t count, cap;
};

static void note_change(struct changes *c, const struct hl_px_entry *e)
{
    if (hl_run_state_ended(e->status.state))
        hl_info("container ended id=%s state=%s message=\"%s\"", e->id,
                hl_run_state_text(e->status.state), e->status.message);
    if (c->count == c->cap) {
        size_t cap = c->cap * 2 + 16;
        void *ids = realloc(c->ids, cap * sizeof(*c->ids));
        if (ids == NULL)
            return; /* the next heartbeat reports it */
        c->ids = ids;
        c->cap = cap;
    }
    memcpy(c->ids[c->count++], e->id, sizeof(e->id));
}

static void take_inotify(struct hl_px *px, struct changes *c)
{
    char block[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n;
    while ((n = read(px->inotify, block, sizeof(block))) > 0) {
        const struct inotify_event *ev;
        for (char *p = block; p < block + n; p += sizeof(*ev) + ev->len) {
            struct hl_px_entry *e, *next;
            ev = (const struct inotify_event *)p;
            if (ev->len == 0 || strcmp(ev->name, "status.json") != 0)
                continue;
            HASH_ITER (hh, px->entries, e, next) {
                if (e->watch == ev->wd && hl_px_refresh(e))
                    note_change(c, e);
            }
        }
    }
}

static void settle_entry(struct hl_px *px, struct hl_px_entry *e, struct changes *c)
{
    enum hl_run_state before = e->status.state;
    hl_px_settle(px, e);
    if (e->status.state != before)
        note_change(c, e);
}

/* Kills shims that don't stop in time, and checks shims without a pidfd. Returns the time until the
 * next check. */
static int check_shims(struct hl_px *px, struct changes *c)
{
    struct hl_px_entry *e, *next;
    int wait = -1;
    HASH_ITER (hh, px->entries, e, next) {
        if (e->gone || e->busy > 0)
            continue;
        if (e->kill_at_ns != 0 && hl_now_ns() >= e->kill_at_ns) {
            hl_warn("container %s: its shim does not stop and is killed", e->id);
            hl_px_signal(e, SIGKILL);
            e->kill_at_ns = 0;
        }
        if (e->pidfd < 0 && !shim_lives(e->dir.s)) {
            settle_entry(px, e, c); /* releases the lock, so the list may have changed */
            return 0;
        }
        if (e->pidfd < 0 || e->kill_at_ns != 0)
            wait = TICK_MS;
    }
    return wait;
}

static void take_events(struct hl_px *px, const struct epoll_event *events, int n,
                        struct changes *c)
{
    uint64_t count;
    while (read(px->wake, &count, sizeof(count)) > 0)
        ;
    take_inotify(px, c);
    for (int i = 0; i < n; i++) {
        struct hl_px_entry *e = events[i].data.ptr;
        if (e != NULL && !e->gone)
            settle_entry(px, e, c);
    }
}

void *hl_px_watcher(void *arg)
{
    struct hl_px *px = arg;
    struct changes c = {0};
    int wait = 0;
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(px->epoll, events, (int)HL_ARRAY_LEN(events), wait);
        pthread_mutex_lock(&px->lock);
        bool closing = px->closing;
        take_events(px, events, closing ? 0 : n, &c);
        wait = check_shims(px, &c);
        pthread_mutex_unlock(&px->lock);
        for (size_t i = 0; i < c.count && px->on_change != NULL && !closing; i++)
            px->on_change(px->arg, c.ids[i]);
        c.count = 0;
        if (closing)
            break;
    }
    free(c.ids);
    return NULL;
}
