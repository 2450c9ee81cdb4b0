#include "hybridps/manager/table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/cond.h"
#include "os/file.h"
#include "os/map_guard.h"
#include "os/process.h"
#include "os/shm.h"

/* A row, and which process changes its state:
 *
 *   pid 0, free --register_self--> pid set, owned --clear_row--> pid 0, free
 *
 * register_self runs in the process itself. clear_row also runs there when the process closes the
 * table, and in any process that finds it dead (hl_manager_reap). Both hold `registry`. Each stores
 * the pid last, with release: a row with a pid has its start time, and a row without one has
 * nothing in use any more. Readers without a lock (hl_manager_usage) load it with acquire.
 *
 * A device's `used` and `reserved` are the sums of rows and tickets. They are changed under the
 * device's lock, and are inconsistent only between two stores of the lock's holder. The locks are
 * robust: if the holder dies there, the next one gets EOWNERDEAD and recomputes the sums
 * (hl_manager_lock).
 *
 * Order of locks: the file's flock, `registry`, one device. Whether a process is dead is checked
 * without a lock, since that reads /proc; then the row is compared again under the lock.
 *
 * make_table writes everything with the file locked, and `magic` last, with release. If a table's
 * magic is 0, the process that created it died before it was complete; the table is recreated. */
#define MAGIC    UINT64_C(0x31524750534c4548) /* "HELSPGR1" */
#define VERSION  2
#define ROW_NONE UINT32_MAX

/* ---- locks ----------------------------------------------------------------------------------- */

/* A lock shared by processes, and robust: when its holder dies, the next one gets EOWNERDEAD and
 * repairs the data.
 */
static hl_status make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t a;
    int rc = pthread_mutexattr_init(&a);
    if (rc == 0)
        rc = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (rc == 0)
        rc = pthread_mutex_init(lock, &a);
    if (rc != 0)
        return hl_fail(hl_status_of_errno(rc), "a lock between processes: %s", strerror(rc));
    pthread_mutexattr_destroy(&a);
    return HL_OK;
}

/* *died: the previous holder died while it held the lock. `holder` is only used in the message of
 * processes that time out, so it needs no memory order. */
static hl_status take_lock(struct hl_manager_table *t, pthread_mutex_t *lock, uint32_t *holder,
                           const char *what, int *died)
{
    int rc = hl_mutex_lock_until(lock, hl_now_ns() + (uint64_t)t->lock_ms * HL_NS_PER_MS);
    *died = rc == EOWNERDEAD;
    if (rc == 0 || *died) {
        __atomic_store_n(holder, t->row, __ATOMIC_RELAXED);
        return HL_OK;
    }
    uint32_t row = __atomic_load_n(holder, __ATOMIC_RELAXED);
    if (rc == ETIMEDOUT && row < HL_MANAGER_PROCESSES)
        return hl_fail(HL_ETIMEDOUT,
                       "manager %s: process %d has held the lock of %s for more than %d ms; is it "
                       "stopped?",
                       t->path, (int)t->s->processes[row].pid, what, t->lock_ms);
    return hl_fail(rc == ETIMEDOUT ? HL_ETIMEDOUT : hl_status_of_errno(rc),
                   "manager %s: lock of %s: %s", t->path, what, strerror(rc));
}

/* Call with the device's lock held. A row is changed by one store, and a ticket counts from the
 * store of its id on. So both are right at any moment, and the sums can be computed from them. */
static void sum_up(struct hl_manager_device *d)
{
    uint64_t used = 0, reserved = 0;
    for (size_t i = 0; i < HL_MANAGER_PROCESSES; i++)
        used += d->rows[i];
    for (size_t i = 0; i < HL_MANAGER_TICKETS; i++)
        reserved += d->tickets[i].id != 0 ? d->tickets[i].size : 0;
    d->used = used;
    d->reserved = reserved;
}

hl_status hl_manager_lock(struct hl_manager_table *t, uint32_t device)
{
    struct hl_manager_device *d = &t->s->device[device];
    char what[32];
    int died;
    if (t->pid != getpid())
        return hl_fail(HL_EPERM,
                       "manager %s: process %d opened it, and this is its child %d after fork(); "
                       "open the manager in the child too",
                       t->path, (int)t->pid, (int)getpid());
    snprintf(what, sizeof(what), device == 0 ? "the host" : "device %d", (int)device - 1);
    HL_TRY(take_lock(t, &d->lock, &d->holder, what, &died));
    if (died) {
        sum_up(d);
        pthread_mutex_consistent(&d->lock);
    }
    return HL_OK;
}

void hl_manager_unlock(struct hl_manager_table *t, uint32_t device)
{
    pthread_mutex_unlock(&t->s->device[device].lock);
}

static hl_status lock_registry(struct hl_manager_table *t)
{
    int died;
    HL_TRY(take_lock(t, &t->s->registry, &t->s->holder, "its processes", &died));
    if (died) /* nothing to repair: rows are taken and released by one store of the pid */
        pthread_mutex_consistent(&t->s->registry);
    return HL_OK;
}

/* ---- dead processes -------------------------------------------------------------------------- */

/* Call with `registry` held. If a device's lock can't be taken, what was freed before stays freed:
 * the row keeps its pid, and the next process that reaps continues. */
static hl_status clear_row(struct hl_manager_table *t, uint32_t row, uint64_t *freed)
{
    for (uint32_t i = 0, n = hl_manager_devices(t); i < n; i++) {
        HL_TRY(hl_manager_lock(t, i));
        struct hl_manager_device *d = &t->s->device[i];
        uint64_t before = d->used + d->reserved;
        d->rows[row] = 0;
        for (size_t k = 0; k < HL_MANAGER_TICKETS; k++)
            if (d->tickets[k].row == row)
                d->tickets[k].id = 0;
        sum_up(d);
        *freed += before - d->used - d->reserved;
        hl_manager_unlock(t, i);
    }
    __atomic_store_n(&t->s->processes[row].pid, 0, __ATOMIC_RELEASE); /* last: all is freed */
    return HL_OK;
}

/* Compares the row again under the lock: meanwhile another process may have cleared it, and a new
 * one taken it. */
hl_status hl_manager_reap(struct hl_manager_table *t, uint64_t *freed)
{
    struct hl_process all[HL_MANAGER_PROCESSES];
    hl_status st = HL_OK;
    *freed = 0;
    __atomic_store_n(&t->s->reaped_ns, hl_now_ns(), __ATOMIC_RELAXED);
    HL_TRY(lock_registry(t));
    memcpy(all, t->s->processes, sizeof(all));
    pthread_mutex_unlock(&t->s->registry);
    for (uint32_t i = 0; i < HL_MANAGER_PROCESSES && st == HL_OK; i++) {
        if (all[i].pid == 0 || !hl_process_ended(all[i])) /* checked without a lock */
            continue;
        HL_TRY(lock_registry(t));
        const struct hl_process *now = &t->s->processes[i];
        if (now->pid == all[i].pid && now->start == all[i].start)
            st = clear_row(t, i, freed);
        pthread_mutex_unlock(&t->s->registry);
    }
    return st;
}

hl_status hl_manager_check_whole(const struct hl_manager_table *t)
{
    if (!hl_map_guard_check(t->guard))
        return HL_OK;
    return hl_fail(HL_EUNAVAIL, "manager %s: its file was truncated by another program", t->path);
}

/* The compare-and-swap lets only one of several processes reap. */
hl_status hl_manager_reap_by_age(struct hl_manager_table *t)
{
    uint64_t now = hl_now_coarse_ns(), freed;
    uint64_t last = __atomic_load_n(&t->s->reaped_ns, __ATOMIC_RELAXED);
    if (now < last + (uint64_t)t->reap_ms * HL_NS_PER_MS ||
        !__atomic_compare_exchange_n(&t->s->reaped_ns, &last, now, 0, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return HL_OK;
    return hl_manager_reap(t, &freed);
}

/* ---- joining and leaving --------------------------------------------------------------------- */

/* Call with the file locked. */
static hl_status make_table(struct hl_manager_table *t, const struct hl_manager_options *o)
{
    struct hl_manager_shared *s = t->s;
    if (o->capacity == NULL)
        return hl_fail(HL_ENOENT, "manager %s: its capacities are not set yet", t->path);
    memset(s, 0, sizeof(*s));
    s->version = VERSION;
    s->size = sizeof(*s);
    s->devices = o->devices;
    s->pid_namespace = hl_pid_namespace();
    s->reaped_ns = hl_now_ns();
    s->holder = ROW_NONE;
    HL_TRY(make_lock(&s->registry));
    for (uint32_t i = 0; i < o->devices; i++) {
        s->device[i].capacity = o->capacity[i];
        s->device[i].holder = ROW_NONE;
        HL_TRY(make_lock(&s->device[i].lock));
    }
    __atomic_store_n(&s->magic, MAGIC, __ATOMIC_RELEASE);
    return HL_OK;
}

hl_status hl_manager_check_layout(const struct hl_manager_table *t)
{
    const struct hl_manager_shared *s = t->s;
    if (s->magic != MAGIC)
        return hl_fail(HL_EPROTO, "/dev/shm%s is not a table of a manager; choose another name",
                       t->path);
    if (s->version != VERSION || s->size != sizeof(*s) || s->devices == 0 ||
        s->devices > HL_MANAGER_DEVICES)
        return hl_fail(
            HL_EPROTO,
            "manager %s: its table has version %u and %" PRIu64
            " bytes, this library's has version %u and %zu; use the same library in all processes",
            t->path, s->version, s->size, VERSION, sizeof(*s));
    if (s->pid_namespace != hl_pid_namespace())
        return hl_fail(HL_EUNSUPPORTED,
                       "manager %s: its processes are in another PID namespace, so their deaths "
                       "can't be detected; share the namespace (docker: --pid=host)",
                       t->path);
    return HL_OK;
}

/* The first process sets the capacities; others must give the same ones, or none. */
static hl_status check_capacities(const struct hl_manager_table *t,
                                  const struct hl_manager_options *o)
{
    if (o->capacity == NULL)
        return HL_OK;
    if (o->devices != t->s->devices)
        return hl_fail(HL_ECONFLICT, "manager %s: %u devices, the others gave it %u", t->path,
                       o->devices - 1, t->s->devices - 1);
    for (uint32_t i = 0; i < o->devices; i++)
        if (o->capacity[i] != t->s->device[i].capacity)
            return hl_fail(HL_ECONFLICT,
                           "manager %s: capacity of device %d (-1 = host) is %" PRIu64
                           ", the others gave %" PRIu64,
                           t->path, (int)i - 1, o->capacity[i], t->s->device[i].capacity);
    return HL_OK;
}

static unsigned count_registered(const struct hl_manager_table *t)
{
    unsigned n = 0;
    for (size_t i = 0; i < HL_MANAGER_PROCESSES; i++)
        n += t->s->processes[i].pid != 0;
    return n;
}

/* Takes the first free row for this process. */
static hl_status register_self(struct hl_manager_table *t)
{
    struct hl_process self;
    HL_TRY(hl_process_identify(t->pid, &self));
    HL_TRY(lock_registry(t));
    for (uint32_t i = 0; i < HL_MANAGER_PROCESSES && t->row == ROW_NONE; i++) {
        struct hl_process *p = &t->s->processes[i];
        if (p->pid != 0)
            continue;
        p->start = self.start;
        __atomic_store_n(&p->pid, self.pid, __ATOMIC_RELEASE);
        t->row = i;
    }
    pthread_mutex_unlock(&t->s->registry);
    if (t->row == ROW_NONE)
        return hl_fail(HL_ENOSPC,
                       "manager %s: %d processes use it already, as many as its table can hold",
                       t->path, HL_MANAGER_PROCESSES);
    return HL_OK;
}

/* Call with the file locked. A process that died while it created the table left zeros. */
static hl_status join_table(struct hl_manager_table *t, const struct hl_manager_options *o)
{
    struct stat sb;
    uint64_t freed;
    if (fstat(t->fd, &sb) != 0)
        return hl_fail(HL_EIO, "manager %s: %s", t->path, strerror(errno));
    if (sb.st_size != 0 && (uint64_t)sb.st_size != sizeof(*t->s))
        return hl_fail(HL_EPROTO,
                       "/dev/shm%s has %lld bytes and a manager's table %zu; choose another name",
                       t->path, (long long)sb.st_size, sizeof(*t->s));
    if (sb.st_size == 0 && o->capacity == NULL)
        return hl_fail(HL_ENOENT, "manager %s: its capacities are not set yet", t->path);
    HL_TRY(hl_shm_reserve(t->fd, t->path, sizeof(*t->s)));
    void *p;
    HL_TRY(hl_shm_map(t->fd, sizeof(*t->s), 1, &p));
    t->s = p;
    t->guard = hl_map_guard_add(p, sizeof(*t->s), t->fd, true);
    if (t->s->magic == 0)
        HL_TRY(make_table(t, o));
    HL_TRY(hl_manager_check_layout(t));
    HL_TRY(hl_manager_reap(t, &freed));
    /* All processes of the table have died: it is recreated, with this process's capacities. */
    if (count_registered(t) == 0 && o->capacity != NULL) {
        __atomic_store_n(&t->s->magic, 0, __ATOMIC_RELEASE);
        HL_TRY(make_table(t, o));
    }
    HL_TRY(check_capacities(t, o));
    return register_self(t);
}

hl_status hl_manager_table_open(const struct hl_manager_options *o, struct hl_manager_table *out)
{
    struct hl_manager_table t = {.fd = -1,
                                 .guard = -1,
                                 .pid = getpid(),
                                 .row = ROW_NONE,
                                 .lock_ms = o->lock_ms > 0 ? o->lock_ms : 5000,
                                 .reap_ms = o->reap_ms > 0 ? o->reap_ms : 1000};
    size_t len = o->name != NULL ? strlen(o->name) : 0;
    if (len == 0 || len > sizeof(t.path) - 2 || strchr(o->name, '/') != NULL)
        return hl_fail(HL_EINVAL, "a manager's name has 1 to %zu characters and no '/'",
                       sizeof(t.path) - 2);
    if (o->capacity != NULL && (o->devices == 0 || o->devices > HL_MANAGER_DEVICES))
        return hl_fail(HL_EINVAL, "manager %s: at most %d devices besides the host", o->name,
                       HL_MANAGER_DEVICES - 1);
    snprintf(t.path, sizeof(t.path), "/%s", o->name);
    hl_status st = hl_shm_open_locked(t.path, o->capacity != NULL, t.lock_ms, &t.fd);
    if (st != HL_OK)
        return hl_fail_prefix(st, "manager %s: ", t.path);
    st = join_table(&t, o);
    flock(t.fd, LOCK_UN);
    if (st != HL_OK) {
        hl_map_guard_remove(t.guard);
        hl_shm_unmap(t.s, sizeof(*t.s));
        close(t.fd);
        return st;
    }
    *out = t;
    return HL_OK;
}

/* Removes a truncated table. Call with the file locked. No process can use the table again, or
 * create another under its name. */
static void remove_cut(const struct hl_manager_table *t)
{
    struct stat sb;
    if (fstat(t->fd, &sb) == 0 && sb.st_nlink > 0)
        shm_unlink(t->path);
}

/* `alone`: the file is locked, so no process joins between the check for others and the removal of
 * the name. */
void hl_manager_table_close(struct hl_manager_table *t)
{
    if (t->s == NULL)
        return;
    int ours = t->pid == getpid();
    if (ours && hl_map_guard_check(t->guard)) {
        if (hl_shm_lock(t->fd, t->path, t->lock_ms) == HL_OK)
            remove_cut(t);
        flock(t->fd, LOCK_UN);
    } else if (ours) {
        uint64_t freed = 0;
        int alone = hl_shm_lock(t->fd, t->path, t->lock_ms) == HL_OK;
        /* What can't be freed now is freed when this process has ended. */
        if (lock_registry(t) == HL_OK) {
            if (clear_row(t, t->row, &freed) == HL_OK && alone && count_registered(t) == 0)
                shm_unlink(t->path);
            pthread_mutex_unlock(&t->s->registry);
        }
        flock(t->fd, LOCK_UN);
    }
    hl_map_guard_remove(t->guard);
    hl_shm_unmap(t->s, sizeof(*t->s));
    close(t->fd);
    *t = (struct hl_manager_table){.fd = -1, .guard = -1};
}

/* Acquire pairs with the stores of the pid: a row that is seen as taken does not show its last
 * owner's values. */
size_t hl_manager_usage(const struct hl_manager_table *t, uint32_t device,
                        struct hl_manager_use *out, size_t max)
{
    size_t n = 0;
    for (uint32_t row = 0; row < HL_MANAGER_PROCESSES && n < max; row++) {
        pid_t pid = __atomic_load_n(&t->s->processes[row].pid, __ATOMIC_ACQUIRE);
        if (pid == 0 || row == t->row)
            continue;
        out[n++] = (struct hl_manager_use){
            .pid = pid,
            .bytes = __atomic_load_n(&t->s->device[device].rows[row], __ATOMIC_RELAXED)};
    }
    return n;
}

void hl_manager_ask(struct hl_manager_table *t, uint32_t device, uint64_t bytes)
{
    __atomic_store_n(&t->s->device[device].asked, bytes, __ATOMIC_RELAXED);
}

uint64_t hl_manager_excess(const struct hl_manager_table *t, uint32_t device)
{
    const struct hl_manager_device *d = &t->s->device[device];
    uint64_t asked = __atomic_load_n(&d->asked, __ATOMIC_RELAXED);
    uint64_t used = __atomic_load_n(&d->used, __ATOMIC_RELAXED);
    uint64_t own = __atomic_load_n(&d->rows[t->row], __ATOMIC_RELAXED);
    if (asked == 0 || used <= asked || own == 0)
        return 0;
    uint64_t part = (uint64_t)((double)own * ((double)(used - asked) / (double)used));
    return part < own ? part : own;
}

uint64_t hl_manager_part(const struct hl_manager_table *t, uint32_t device)
{
    const struct hl_manager_device *d = &t->s->device[device];
    uint64_t asked = __atomic_load_n(&d->asked, __ATOMIC_RELAXED), part;
    if (asked == 0)
        return UINT64_MAX;
    uint64_t used = __atomic_load_n(&d->used, __ATOMIC_RELAXED);
    uint64_t own = __atomic_load_n(&d->rows[t->row], __ATOMIC_RELAXED);
    uint64_t excess = hl_manager_excess(t, device);
    if (excess > 0)
        return excess < own ? own - excess : 0;
    return __builtin_add_overflow(own, used < asked ? asked - used : 0, &part) ? UINT64_MAX : part;
}
