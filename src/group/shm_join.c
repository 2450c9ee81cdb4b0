/* How the ranks of a host find each other in shared memory, and begin.
 *
 *    no file                        make_shared: the first rank; `magic` last
 *    magic, some rank alive         take_row: the pid is its last store, with release
 *    magic 0, or all ranks dead     the name is removed, and another file is made (*again)
 *    the last row was taken         the name is removed: no other process can join
 *
 * All of this happens with the file locked (flock); the kernel releases the lock when a process
 * dies. Then each rank waits, without the lock, until all rows have a pid (acquire); it sleeps on
 * the futex `joined`, which every take_row increments.
 *
 * A row:   free, pid 0 --take_row, its process--> taken --it died, or stopped joining--> free
 *
 * Ranks that join later or stop joining free the rows of dead ranks, but only until all have
 * joined: from then on the ranks that wait for a dead rank notice its death (shm_wait.c). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/shm.h"
#include "os/shm.h"

#define MAGIC   UINT64_C(0x31524750534c4843) /* "CHLSPGR1" */
#define VERSION 3

/* The size of what shm.h shows: the rows, two sets of slots, the messages. */
static uint64_t size_for(int world)
{
    return sizeof(struct hl_collective_shared) + UINT64_C(2) * (world + 1) * HL_COLLECTIVE_PIECE +
           UINT64_C(2) * world * HL_COLLECTIVE_MESSAGE;
}

static hl_status check_shm_options(const hybridps_shm_options *o)
{
    size_t len = o->name != NULL ? strlen(o->name) : 0;
    if (len == 0 || len > 200 || strchr(o->name, '/') != NULL)
        return hl_fail(HL_EINVAL, "a group's name has 1 to 200 characters and no '/'");
    if (o->world < 1 || o->world > HL_COLLECTIVE_RANKS || o->rank < 0 || o->rank >= o->world)
        return hl_fail(
            HL_EINVAL,
            "group %s: rank %d of %d: ranks are 0 to world - 1, and at most %d are allowed",
            o->name, o->rank, o->world, HL_COLLECTIVE_RANKS);
    if (o->timeout_ms < 0)
        return hl_fail(HL_EINVAL, "group %s: invalid timeout of %d ms", o->name, o->timeout_ms);
    return HL_OK;
}

/* With the file locked. Frees the rows of dead ranks and returns how many live ones are left. */
static int count_living(struct hl_collective_shared *s)
{
    int n = 0;
    for (uint32_t r = 0; r < s->world && r < HL_COLLECTIVE_RANKS; r++) {
        struct hl_collective_row *row = &s->rows[r];
        if (row->process.pid != 0 && hl_process_ended(row->process))
            row->process.pid = 0;
        n += row->process.pid != 0;
    }
    return n;
}

static hl_status check_layout(const struct hl_collective_shm *g, uint64_t size)
{
    const struct hl_collective_shared *s = g->s;
    if (s->magic != MAGIC)
        return hl_fail(HL_EPROTO, "/dev/shm%s is not a group's memory; choose another name",
                       g->path);
    if (s->version != VERSION)
        return hl_fail(
            HL_EPROTO,
            "group %s: its version is %u, this library's is %d; use the same library on all ranks",
            g->path, s->version, VERSION);
    if (s->pid_namespace != hl_pid_namespace())
        return hl_fail(HL_EUNSUPPORTED,
                       "group %s: its ranks are in another PID namespace, so their deaths can't be "
                       "detected; share the namespace (docker: --pid=host)",
                       g->path);
    if ((int)s->world != g->world || size != g->size)
        return hl_fail(HL_ECONFLICT, "group %s: a world size of %d, but the others gave %u",
                       g->path, g->world, s->world);
    return HL_OK;
}

/* With the file locked. New memory is all zeros: no row is taken, and nothing was counted. If a
 * rank dies in here, `magic` stays 0, so the next one knows that the file is unfinished. */
static hl_status make_shared(struct hl_collective_shm *g, int fd)
{
    void *p;
    HL_TRY(hl_shm_reserve(fd, g->path, g->size));
    HL_TRY(hl_shm_map(fd, g->size, 1, &p));
    g->s = p;
    g->s->version = VERSION;
    g->s->world = (uint32_t)g->world;
    g->s->size = g->size;
    g->s->pid_namespace = hl_pid_namespace();
    g->s->magic = MAGIC;
    return HL_OK;
}

/* With the file locked. *again: all ranks of the file are dead, so its name was removed. */
static hl_status map_shared(struct hl_collective_shm *g, int fd, int *again)
{
    struct stat sb;
    void *p;
    if (fstat(fd, &sb) != 0)
        return hl_fail(HL_EIO, "group %s: %m", g->path);
    uint64_t size = (uint64_t)sb.st_size;
    g->inode = sb.st_ino;
    if (size == 0)
        return make_shared(g, fd);
    if (size < sizeof(*g->s))
        return hl_fail(HL_EPROTO, "/dev/shm%s is not a group's memory; choose another name",
                       g->path);
    HL_TRY(hl_shm_map(fd, size, 1, &p));
    g->s = p;
    hl_status st = HL_OK;
    *again = g->s->magic == 0 || (g->s->magic == MAGIC && count_living(g->s) == 0);
    if (*again)
        shm_unlink(g->path);
    else
        st = check_layout(g, size);
    if (st != HL_OK || *again) {
        hl_shm_unmap(p, size);
        g->s = NULL;
    }
    return st;
}

/* With the file locked. The kernel may reuse a pid; together with the start time it identifies the
 * process. */
static hl_status take_row(struct hl_collective_shm *g)
{
    struct hl_collective_row *row = &g->s->rows[g->rank];
    if (row->process.pid != 0)
        return hl_fail(HL_ECONFLICT, "group %s: rank %d is process %d already", g->path, g->rank,
                       (int)row->process.pid);
    struct hl_process self;
    HL_TRY(hl_process_identify(getpid(), &self));
    row->process.start = self.start;
    __atomic_store_n(&row->process.pid, self.pid, __ATOMIC_RELEASE);
    __atomic_add_fetch(&g->s->joined, 1, __ATOMIC_SEQ_CST);
    hl_collective_wake(g, &g->s->joined);
    if (count_living(g->s) == g->world)
        shm_unlink(g->path);
    return HL_OK;
}

/* Other ranks may have joined at the last moment, or made another group of this name. */
static void give_up(struct hl_collective_shm *g)
{
    struct stat sb;
    int fd;
    __atomic_store_n(&g->s->rows[g->rank].left, 1, __ATOMIC_SEQ_CST);
    if (hl_shm_open_locked(g->path, 0, g->timeout_ms, &fd) != HL_OK)
        return;
    if (fstat(fd, &sb) == 0 && sb.st_ino == g->inode) {
        memset(&g->s->rows[g->rank], 0, sizeof(g->s->rows[0]));
        if (count_living(g->s) == 0)
            shm_unlink(g->path);
    }
    close(fd);
}

/* One deadline covers all ranks. `joined` is read before the rows: a rank that takes a row
 * afterwards changes it, so the sleep does not begin, or ends. */
static hl_status wait_for_all(struct hl_collective_shm *g)
{
    uint64_t until = hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
    char missing[128] = "";
    for (;;) {
        uint32_t seen = __atomic_load_n(&g->s->joined, __ATOMIC_SEQ_CST);
        size_t len = 0;
        int here = 0;
        for (int r = 0; r < g->world; r++) {
            if (__atomic_load_n(&g->s->rows[r].process.pid, __ATOMIC_ACQUIRE) != 0)
                here++;
            else if (len < sizeof(missing) - 16)
                len += (size_t)snprintf(missing + len, sizeof(missing) - len, " %d", r);
        }
        if (here == g->world)
            return HL_OK;
        if (hl_now_ns() > until) {
            give_up(g);
            return hl_fail(HL_ETIMEDOUT, "group %s: %d of %d ranks joined within %d ms, not%s",
                           g->path, here, g->world, g->timeout_ms, missing);
        }
        hl_collective_sleep(g, &g->s->joined, seen);
    }
}

hl_status hl_collective_join(const hybridps_shm_options *o, struct hl_collective_shm *g)
{
    int again = 1, fd = -1;
    HL_TRY(check_shm_options(o));
    *g = (struct hl_collective_shm){.rank = o->rank,
                                    .world = o->world,
                                    .size = size_for(o->world),
                                    .timeout_ms = o->timeout_ms > 0 ? o->timeout_ms
                                                                    : HL_COLLECTIVE_TIMEOUT_MS};
    snprintf(g->path, sizeof(g->path), "/%s", o->name);
    snprintf(g->who, sizeof(g->who), "rank %d of %d", g->rank, g->world);
    hl_status st = HL_OK;
    while (again && st == HL_OK) {
        HL_TRY(hl_shm_open_locked(g->path, 1, g->timeout_ms, &fd));
        again = 0;
        st = map_shared(g, fd, &again);
        if (again)
            close(fd);
    }
    if (st == HL_OK)
        st = take_row(g);
    flock(fd, LOCK_UN); /* the mapping keeps the file open */
    close(fd);
    if (st == HL_OK) {
        st = wait_for_all(g);
    }
    if (st != HL_OK) {
        hl_shm_unmap(g->s, g->size);
        g->s = NULL;
    }
    return st;
}
