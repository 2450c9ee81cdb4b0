/* Runs containers as processes: the calls. process_executor_watch.c has the other thread.
 *
 *     callers' threads
 *       start    adds an entry, spawns a shim, and has it watched
 *       stop     writes the file `stop`, sends SIGTERM, sets kill_at_ns
 *       forget   waits for `changed`, removes the directory
 *       each calls wake_watcher if there is something for the watcher to look at
 *
 *     the watcher's thread, in epoll: pidfds of shims, inotify of status.json
 *       a change        reads the status, calls on_change
 *       a shim's end    makes the status final, sets `gone`, broadcasts `changed`
 *       every TICK_MS   kills shims past kill_at_ns
 *
 *     entry: starting (busy) --> runs --> status final --shim has ended--> gone --forget--> freed
 *              '--it failed--> freed
 *
 * `lock` guards the entries. It is released while a shim is spawned or a directory is read; `busy`
 * keeps the entry meanwhile, so the pointer stays valid. A stop during a start is noted
 * (`stop_wanted`), and the start carries it out. on_change is never called with the lock held. */
#include "hw/process/process_executor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/process/process_executor_private.h"
#include "os/cond.h"
#include "os/file.h"

#define LOG_SLICE_MAX  (1u << 20)
#define STOP_SLACK_MS  10000
#define ASK_SLACK_MS   60000 /* for a shim that has to ask an engine, at least twice */
#define FORGET_WAIT_MS 5000

static const char *const own_shim[] = {"/proc/self/exe", "shim", NULL};

static struct hl_px *px_of(struct hl_executor *ex)
{
    return (struct hl_px *)ex;
}

static struct hl_px_entry *find_container(struct hl_px *px, const char *id)
{
    struct hl_px_entry *e;
    HASH_FIND_STR(px->entries, id, e);
    return e;
}

/* The watcher waits in epoll. The eventfd keeps a wake-up that comes before the wait begins. */
static void wake_watcher(struct hl_px *px)
{
    uint64_t one = 1;
    if (write(px->wake, &one, sizeof(one)) < 0)
        hl_debug("wake the watcher: %s", strerror(errno));
}

/* ---- start ---- */

static hl_status write_records(struct hl_px *px, const char *dir,
                               const struct hl_container_spec *spec)
{
    if (mkdir(dir, 0700) != 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "make directory %s: %s", dir, strerror(err));
    }
    HL_TRY(hl_shim_file_write(dir, &px->options));
    if (spec->rank_table[0] != '\0')
        HL_TRY(hl_rank_table_write(dir, spec->rank_table));
    return hl_spec_file_write(dir, spec);
}

static hl_status entry_new(struct hl_px *px, const struct hl_container_spec *spec,
                           struct hl_px_entry **out)
{
    struct hl_px_entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating container %s", spec->id);
    hl_status st = hl_container_status_init(spec, &e->status);
    if (st != HL_OK) {
        free(e);
        return st;
    }
    snprintf(e->id, sizeof(e->id), "%s", spec->id);
    e->dir = hl_path_in(px->containers.s, spec->id);
    e->stop_grace_ms = spec->stop_grace_ms > 0 ? spec->stop_grace_ms : HL_STOP_GRACE_MS;
    e->engine = px->options.engine;
    e->pidfd = -1;
    e->watch = -1;
    HASH_ADD_STR(px->entries, id, e);
    *out = e;
    return HL_OK;
}

static void entry_free(struct hl_px *px, struct hl_px_entry *e)
{
    HASH_DEL(px->entries, e);
    if (e->watch >= 0)
        inotify_rm_watch(px->inotify, e->watch);
    hl_closep(&e->pidfd);
    hl_container_status_fini(&e->status);
    free(e);
}

static void stop_entry(struct hl_px *px, struct hl_px_entry *e, int grace_ms);

/* Call with the lock held. */
static hl_status start_new(struct hl_px *px, const struct hl_container_spec *spec,
                           struct hl_container_status *out)
{
    struct hl_px_entry *e = NULL;
    HL_TRY(entry_new(px, spec, &e));
    struct hl_path dir = e->dir;
    struct hl_process shim;
    e->busy++;
    pthread_mutex_unlock(&px->lock);
    hl_status st = write_records(px, dir.s, spec);
    if (st == HL_OK)
        st = hl_px_launch_shim(px, dir.s, &shim);
    if (st != HL_OK && st != HL_EEXIST && st != HL_EBUSY && hl_dir_remove(dir.s) != HL_OK)
        hl_debug("%s stays", dir.s);
    pthread_mutex_lock(&px->lock);
    e->busy--;
    if (st != HL_OK) {
        entry_free(px, e);
        return hl_fail_prefix(st, "container %s: ", spec->id);
    }
    e->shim = shim;
    hl_px_refresh(e);
    hl_px_watch(px, e);
    if (e->stop_wanted)
        stop_entry(px, e, e->wanted_grace_ms);
    wake_watcher(px);
    return hl_container_status_copy(&e->status, out);
}

/* Refuses what this executor can't honour, instead of ignoring it. */
static hl_status check_keys(enum hl_engine_kind engine, const struct hl_container_spec *spec)
{
    bool plain = engine == HL_ENGINE_NONE;
    const char *key = NULL;
    if (plain && spec->image[0] != '\0')
        key = "dockerImage";
    else if (plain && spec->mount_count > 0)
        key = "mounts";
    else if (!plain && spec->venv[0] != '\0')
        key = "venv";
    else if (!plain && spec->conda[0] != '\0')
        key = "conda";
    else if (!plain && spec->python[0] != '\0')
        key = "python";
    if (key != NULL)
        return hl_fail(HL_EINVAL, "container %s: the executor %s of this node can't honour %s",
                       spec->id, hl_engine_name(engine), key);
    if (!plain && spec->image[0] == '\0')
        return hl_fail(HL_EINVAL, "container %s: the executor %s of this node needs dockerImage",
                       spec->id, hl_engine_name(engine));
    return HL_OK;
}

/* Whether this container has parked processes only, and the spec now brings its ranks. */
static bool wants_ranks(const struct hl_px_entry *e, const struct hl_container_spec *spec)
{
    return spec->rank_count > 0 && e->status.rank_count == 0 && e->shim.pid != 0 && !e->gone &&
           e->kill_at_ns == 0 && !hl_run_state_ended(e->status.state);
}

/* Call with the lock held. The shim reads the record again; if the signal is lost, the next start
 * call sends it again. */
static hl_status give_ranks(const struct hl_px_entry *e, const struct hl_container_spec *spec)
{
    if (spec->rank_table[0] != '\0')
        HL_TRY(hl_rank_table_write(e->dir.s, spec->rank_table));
    HL_TRY(hl_spec_file_write(e->dir.s, spec));
    hl_px_signal(e, SIGUSR1);
    return HL_OK;
}

static hl_status px_start(struct hl_executor *ex, const struct hl_container_spec *spec,
                          struct hl_container_status *out)
{
    struct hl_px *px = px_of(ex);
    struct hl_binding binding;
    pthread_mutex_lock(&px->lock);
    struct hl_px_entry *e = find_container(px, spec->id);
    hl_status st = HL_OK;
    if (e != NULL && wants_ranks(e, spec))
        st = give_ranks(e, spec);
    if (e != NULL && st == HL_OK)
        st = hl_container_status_copy(&e->status, out);
    else if (e == NULL && (st = check_keys(px->options.engine, spec)) == HL_OK &&
             (st = hl_binding_choose(spec, px->options.foreign, &binding)) == HL_OK)
        st = start_new(px, spec, out);
    pthread_mutex_unlock(&px->lock);
    return st;
}

/* ---- stop, list, forget ---- */

/* Call with the lock held. The grace is passed in a file, because a signal can't carry it. */
static void stop_entry(struct hl_px *px, struct hl_px_entry *e, int grace_ms)
{
    struct hl_path path = hl_path_in(e->dir.s, "stop");
    char text[16];
    if (grace_ms < 0 || grace_ms > e->stop_grace_ms)
        grace_ms = e->stop_grace_ms;
    snprintf(text, sizeof(text), "%d\n", grace_ms);
    if (hl_file_write_atomic(path.s, text, strlen(text)) != HL_OK) {
        hl_warn("%s: the container's own grace holds", hl_error_text());
        grace_ms = e->stop_grace_ms;
    }
    hl_px_signal(e, SIGTERM);
    int slack_ms = e->engine == HL_ENGINE_NONE ? STOP_SLACK_MS : ASK_SLACK_MS;
    uint64_t at = hl_now_ns() + ((uint64_t)grace_ms + (uint64_t)slack_ms) * HL_NS_PER_MS;
    if (e->kill_at_ns == 0 || at < e->kill_at_ns)
        e->kill_at_ns = at;
    wake_watcher(px);
}

static hl_status px_stop(struct hl_executor *ex, const char *id, int grace_ms)
{
    struct hl_px *px = px_of(ex);
    pthread_mutex_lock(&px->lock);
    struct hl_px_entry *e = find_container(px, id);
    if (e != NULL && !e->gone && !hl_run_state_ended(e->status.state)) {
        if (e->shim.pid == 0) {
            e->stop_wanted = true;
            e->wanted_grace_ms = grace_ms;
        } else {
            stop_entry(px, e, grace_ms);
        }
    }
    pthread_mutex_unlock(&px->lock);
    return HL_OK;
}

static hl_status px_list(struct hl_executor *ex, struct hl_arena *arena,
                         struct hl_api_container_status_list *out)
{
    struct hl_px *px = px_of(ex);
    struct hl_px_entry *e, *next;
    struct hl_api_container_status_list list = {0};
    pthread_mutex_lock(&px->lock);
    list.items = hl_arena_array(arena, HASH_COUNT(px->entries), sizeof(*list.items));
    HASH_ITER (hh, px->entries, e, next) {
        if (list.items != NULL)
            list.items[list.count++] = hl_container_status_to_api(&e->status, arena);
    }
    pthread_mutex_unlock(&px->lock);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing the containers");
    *out = list;
    return HL_OK;
}

/* Waits until the shim of an ended container has exited, which takes a moment. Call with the lock
 * held. */
static struct hl_px_entry *await_gone(struct hl_px *px, const char *id)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FORGET_WAIT_MS / 1000;
    for (;;) {
        struct hl_px_entry *e = find_container(px, id);
        if (e == NULL || (e->gone && e->busy == 0) || !hl_run_state_ended(e->status.state))
            return e;
        if (pthread_cond_timedwait(&px->changed, &px->lock, &until) == ETIMEDOUT)
            return find_container(px, id);
    }
}

static hl_status px_forget(struct hl_executor *ex, const char *id)
{
    struct hl_px *px = px_of(ex);
    hl_status st = HL_OK;
    pthread_mutex_lock(&px->lock);
    struct hl_px_entry *e = await_gone(px, id);
    if (e != NULL && (!e->gone || e->busy > 0)) {
        st = hl_fail(HL_EBUSY, "container %s is %s: stop it first", id,
                     hl_run_state_text(e->status.state));
    } else if (e != NULL) {
        st = hl_dir_remove(e->dir.s);
        if (st == HL_OK)
            entry_free(px, e);
    }
    pthread_mutex_unlock(&px->lock);
    return st;
}

static hl_status px_put_rank_table(struct hl_executor *ex, const char *id, const char *text)
{
    struct hl_px *px = px_of(ex);
    hl_status st = HL_OK;
    pthread_mutex_lock(&px->lock); /* so that its directory is not removed meanwhile */
    const struct hl_px_entry *e = find_container(px, id);
    if (e == NULL)
        st = hl_fail(HL_ENOENT, "there is no container %.128s on this node", id);
    else if (!hl_run_state_ended(e->status.state))
        st = hl_rank_table_write(e->dir.s, text);
    pthread_mutex_unlock(&px->lock);
    return st;
}

static hl_status px_put_meeting(struct hl_executor *ex, const char *id, const char *text)
{
    struct hl_px *px = px_of(ex);
    hl_status st = HL_OK;
    pthread_mutex_lock(&px->lock); /* as above */
    const struct hl_px_entry *e = find_container(px, id);
    if (e == NULL)
        st = hl_fail(HL_ENOENT, "there is no container %.128s on this node", id);
    else if (!hl_run_state_ended(e->status.state))
        st = hl_file_write_durable(hl_path_of_meeting(e->dir.s).s, text, strlen(text), 0644);
    pthread_mutex_unlock(&px->lock);
    return st;
}

/* ---- logs ---- */

static hl_status log_state(struct hl_px *px, const char *id, int rank, int *ended,
                           struct hl_path *path)
{
    hl_status st = HL_OK;
    pthread_mutex_lock(&px->lock);
    struct hl_px_entry *e = find_container(px, id);
    if (e == NULL) {
        st = hl_fail(HL_ENOENT, "there is no container %.128s on this node", id);
    } else {
        size_t i = 0;
        while (i < e->status.rank_count && e->status.ranks[i].rank != rank)
            i++;
        if (i == e->status.rank_count) {
            st = hl_fail(HL_ENOENT, "container %s has no rank %d", id, rank);
        } else {
            *ended =
                hl_run_state_ended(e->status.state) || hl_run_state_ended(e->status.ranks[i].state);
            *path = hl_path_of_log(e->dir.s, rank);
        }
    }
    pthread_mutex_unlock(&px->lock);
    return st;
}

/* Returns `offset`, or where data begins again if the log was trimmed there. */
static int64_t kept_from(int fd, int64_t offset, int64_t size)
{
    off_t data = lseek(fd, offset, SEEK_DATA);
    return data > offset && data < size ? data : offset;
}

static hl_status read_slice(int fd, size_t max, int64_t offset, struct hl_log_slice *out)
{
    struct stat sb;
    ssize_t n;
    if (fstat(fd, &sb) != 0)
        return hl_fail(HL_EIO, "size of a log: %s", strerror(errno));
    out->size = sb.st_size;
    if (offset < 0)
        offset = out->size + offset < 0 ? 0 : out->size + offset;
    if (offset > out->size)
        offset = out->size;
    char *to = hl_buf_room(&out->data, max);
    if (to == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading a log");
    do { /* again if it was trimmed meanwhile, which reads as zeros */
        offset = out->offset = kept_from(fd, offset, out->size);
        if ((int64_t)max > out->size - offset)
            max = (size_t)(out->size - offset);
        n = max > 0 ? pread(fd, to, max, offset) : 0;
        if (n < 0)
            return hl_fail(HL_EIO, "read a log: %s", strerror(errno));
    } while (kept_from(fd, offset, out->size) != offset);
    out->data.len += (size_t)n;
    out->data.data[out->data.len] = '\0';
    return HL_OK;
}

static hl_status px_read_log(struct hl_executor *ex, const char *id, int rank, int64_t offset,
                             size_t max_bytes, struct hl_log_slice *out)
{
    int ended = 0;
    struct hl_path path;
    HL_TRY(log_state(px_of(ex), id, rank, &ended, &path)); /* before the size: then that is final */
    struct hl_log_slice slice = {.data = HL_BUF(LOG_SLICE_MAX + 1)};
    HL_AUTO(hl_closep) int fd = -1;
    hl_status opened = hl_file_open_regular(path.s, &fd);
    if (opened != HL_OK && opened != HL_ENOENT) /* without a file there was no output yet */
        return opened;
    if (max_bytes == 0 || max_bytes > LOG_SLICE_MAX)
        max_bytes = LOG_SLICE_MAX;
    if (fd >= 0) {
        hl_status st = read_slice(fd, max_bytes, offset, &slice);
        if (st != HL_OK) {
            hl_buf_fini(&slice.data);
            return hl_fail_prefix(st, "%s: ", path.s);
        }
    }
    slice.finished = ended && slice.offset + (int64_t)slice.data.len >= slice.size;
    *out = slice;
    return HL_OK;
}

static hl_status px_strangers(struct hl_executor *ex, struct hl_arena *arena,
                              struct hl_stranger_list *out)
{
    struct hl_px *px = px_of(ex);
    return hl_strangers_find(px->options.engine, px->containers.s, arena, out);
}

static hl_status px_list_strays(struct hl_executor *ex, const char *state_directory,
                                struct hl_arena *arena, struct hl_api_text_list *out)
{
    struct hl_px *px = px_of(ex);
    return hl_strays_list(px->options.engine, state_directory, px->containers.s, arena, out);
}

static hl_status px_end_stray(struct hl_executor *ex, const char *state_directory, const char *id,
                              bool *ended)
{
    struct hl_px *px = px_of(ex);
    return hl_stray_end(px->options.engine, &(struct hl_stray){state_directory, id},
                        px->containers.s, ended);
}

/* The last part of the group's path: a group of ours, or one that an engine names by the
 * container's id. */
static hl_status px_memory_group(struct hl_executor *ex, const char *id, int rank, char *out,
                                 size_t size)
{
    struct hl_px *px = px_of(ex);
    struct hl_cgroup cg;
    char name[32] = "cgroup";
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(8192);
    struct hl_path dir = hl_path_in(px->containers.s, id);
    out[0] = '\0';
    if (strchr(id, '/') != NULL || access(dir.s, F_OK) != 0)
        return hl_fail(HL_ENOENT, "there is no container %.128s on this node", id);
    if (px->options.engine != HL_ENGINE_NONE)
        snprintf(name, sizeof(name), "rank-%d.cid", rank);
    hl_status st = hl_file_read(hl_path_in(dir.s, name).s, &text);
    if (st != HL_OK)
        return st == HL_ENOENT ? HL_OK : st;
    if (px->options.engine != HL_ENGINE_NONE) {
        const char *cid = text.len > 0 ? text.data : "";
        snprintf(out, size, "%.*s", (int)strcspn(cid, "\n"), cid);
        return HL_OK;
    }
    hl_cgroup_recall(text.len > 0 ? text.data : "", &cg);
    for (size_t i = 0; i < cg.count; i++)
        if ((cg.dirs[i].means & HL_CGROUP_MEMORY) != 0)
            snprintf(out, size, "%s", strrchr(cg.dirs[i].path, '/') + 1);
    return HL_OK;
}

/* ---- open, close ---- */

/* Call after the watcher has ended, or before it was started. */
static void px_free(struct hl_px *px)
{
    struct hl_px_entry *e, *next;
    HASH_ITER (hh, px->entries, e, next) {
        entry_free(px, e);
    }
    hl_closep(&px->epoll);
    hl_closep(&px->inotify);
    hl_closep(&px->wake);
    hl_closep(&px->lock_fd);
    pthread_cond_destroy(&px->changed);
    pthread_mutex_destroy(&px->lock);
    free(px);
}

static void px_close(struct hl_executor *ex)
{
    struct hl_px *px = px_of(ex);
    pthread_mutex_lock(&px->lock);
    px->closing = true;
    pthread_mutex_unlock(&px->lock);
    wake_watcher(px);
    pthread_join(px->thread, NULL);
    px_free(px);
}

#define EXECUTOR_OPS(title, has_image)                                                             \
    {                                                                                              \
        .name = title, .image = has_image, .start = px_start, .stop = px_stop, .list = px_list,    \
        .read_log = px_read_log, .forget = px_forget, .put_rank_table = px_put_rank_table,         \
        .put_meeting = px_put_meeting, .strangers = px_strangers, .list_strays = px_list_strays,   \
        .end_stray = px_end_stray, .memory_group = px_memory_group, .close = px_close              \
    }

static const struct hl_executor_ops executor_ops[] = {
    [HL_ENGINE_NONE] = EXECUTOR_OPS("process", false),
    [HL_ENGINE_DOCKER] = EXECUTOR_OPS("docker", true),
    [HL_ENGINE_PODMAN] = EXECUTOR_OPS("podman", true),
};

static hl_status take_state_dir(struct hl_px *px, const char *state_dir)
{
    struct hl_path path = hl_path_in(state_dir, "executor.lock");
    px->containers = hl_path_in(state_dir, "containers");
    HL_TRY(hl_dir_make(state_dir, 0700)); /* who can open the lock's file can hold the lock */
    HL_TRY(hl_dir_make(px->containers.s, 0755));
    px->lock_fd = open(path.s, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (px->lock_fd < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open %s: %s", path.s, strerror(err));
    }
    if (flock(px->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return hl_fail(HL_EBUSY,
                       "state directory %s is used by another agent: stop it or give --state",
                       state_dir);
    return HL_OK;
}

static hl_status open_watches(struct hl_px *px)
{
    px->epoll = epoll_create1(EPOLL_CLOEXEC);
    px->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    px->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN};
    if (px->epoll < 0 || px->inotify < 0 || px->wake < 0 ||
        epoll_ctl(px->epoll, EPOLL_CTL_ADD, px->inotify, &ev) != 0 ||
        epoll_ctl(px->epoll, EPOLL_CTL_ADD, px->wake, &ev) != 0)
        return hl_fail(HL_EIO, "watching containers: %s", strerror(errno));
    return HL_OK;
}

hl_status hl_executor_open(const struct hl_executor_opts *opts, struct hl_executor **out)
{
    enum hl_engine_kind engine;
    HL_TRY(hl_engine_kind_of(opts->name, &engine));
    struct hl_px *px = calloc(1, sizeof(*px));
    if (px == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the process executor");
    px->base.ops = &executor_ops[engine];
    px->shim = opts->shim != NULL ? opts->shim : own_shim;
    px->options = (struct hl_shim_options){
        .foreign = opts->foreign_topology, .log_max_bytes = opts->log_max_bytes, .engine = engine};
    px->on_change = opts->on_change;
    px->arg = opts->arg;
    px->epoll = px->inotify = px->wake = px->lock_fd = -1;
    pthread_mutex_init(&px->lock, NULL);
    hl_cond_init(&px->changed);
    hl_status st = take_state_dir(px, opts->state_dir);
    if (st == HL_OK)
        st = open_watches(px);
    if (st == HL_OK)
        st = hl_px_adopt(px);
    if (st == HL_OK)
        hl_px_sweep(px);
    if (st == HL_OK && pthread_create(&px->thread, NULL, hl_px_watcher, px) != 0)
        st = hl_fail(HL_EIO, "start the watcher thread: %s", strerror(errno));
    if (st != HL_OK) {
        px_free(px);
        return st;
    }
    *out = &px->base;
    return HL_OK;
}
