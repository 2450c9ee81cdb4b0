/* Groups: arguments are checked, operations that a transport lacks are built from those it has, and
 * a lost group stays lost. */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/log.h"
#include "group/group.h"
#include "os/cond.h"

#define PIECE    (1u << 20) /* bytes of each rank, when sums use an allgather */
#define CLOSE_NS ((uint64_t)3 * HL_NS_PER_S)

/* States of a group:
 *
 *    good --a call fails by what others did, or is cancelled--> lost --hybridps_group_close--> gone
 *     |                                                                                     ^
 *     +--------------------------------hybridps_group_close---------------------------------+
 *
 * `lost` holds the reason, under the lock, and is written once: a lost group admits no call that
 * could write it again. Every call holds the lock for its whole duration, so a group runs one call
 * at a time, in the order in which its threads get the lock. Only `cancelled` is set without the
 * lock, by any thread: a cancel must not wait for the call that it cancels. */
struct hybridps_group {
    hybridps_transport t;
    pthread_mutex_t lock;
    pid_t pid;
    char lost[HL_ERROR_TEXT_MAX]; /* the reason; "" = not lost */
    bool cancelled;               /* set by any thread, without the lock */
};

static hl_status make_group(const hybridps_transport *t, hybridps_group **out)
{
    struct hybridps_group *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    g->t = *t;
    g->pid = getpid();
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return HL_OK;
}

int hybridps_group_over(const hybridps_transport *transport, hybridps_group **out)
{
    hybridps_transport t;
    if (transport == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "hybridps_group_over: transport and out must not be NULL");
    HL_TRY(HL_ABI_READ(hybridps_transport, transport, &t));
    if (t.allgather == NULL || t.broadcast == NULL)
        return hl_fail(HL_EINVAL, "a group's transport must have at least allgather and broadcast");
    if (t.world < 1 || t.world > HL_COLLECTIVE_RANKS || t.rank < 0 || t.rank >= t.world)
        return hl_fail(HL_EINVAL,
                       "rank %d of %d: ranks are 0 to world - 1, and at most %d are allowed",
                       t.rank, t.world, HL_COLLECTIVE_RANKS);
    return make_group(&t, out);
}

int hybridps_group_shm(const hybridps_shm_options *options, hybridps_group **out)
{
    hybridps_shm_options o;
    hybridps_transport t;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "hybridps_group_shm: options and out must not be NULL");
    HL_TRY(HL_ABI_READ(hybridps_shm_options, options, &o));
    HL_TRY(hl_collective_shm_open(&o, &t));
    hl_status st = make_group(&t, out);
    if (st != HL_OK)
        t.close(t.arg);
    return st;
}

/* Waits until no call holds the lock; a running call is cancelled. Returns false if it did not
 * return within CLOSE_NS: the group is then leaked instead of freed under it. A forked child has no
 * threads that could run a call, and its copy of the lock may be held for ever. */
static bool is_left(hybridps_group *g)
{
    if (g->pid != getpid())
        return true;
    if (pthread_mutex_trylock(&g->lock) != 0) {
        hybridps_group_cancel(g);
        if (hl_mutex_lock_until(&g->lock, hl_now_ns() + CLOSE_NS) != 0)
            return false;
    }
    pthread_mutex_unlock(&g->lock);
    return true;
}

void hybridps_group_close(hybridps_group *g)
{
    if (g == NULL)
        return;
    if (!is_left(g)) {
        hl_warn("rank %d closes its group during a call of another thread; the group stays open",
                g->t.rank);
        return;
    }
    if (g->t.close != NULL)
        g->t.close(g->t.arg);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int hybridps_group_rank(const hybridps_group *g)
{
    return g != NULL ? g->t.rank : 0;
}

int hybridps_group_world(const hybridps_group *g)
{
    return g != NULL ? g->t.world : 1;
}

/* ---- calls ---- */

/* Holds the lock on success; group_leave releases it. */
static hl_status group_enter(hybridps_group *g)
{
    if (g == NULL)
        return hl_fail(HL_EINVAL, "the group is NULL");
    if (g->pid != getpid())
        return hl_fail(HL_EPERM,
                       "process %d is a fork of %d, and only the latter is rank %d of its group: "
                       "join another group",
                       (int)getpid(), (int)g->pid, g->t.rank);
    pthread_mutex_lock(&g->lock);
    if (g->lost[0] == '\0' && __atomic_load_n(&g->cancelled, __ATOMIC_RELAXED))
        snprintf(g->lost, sizeof(g->lost), "it was cancelled");
    if (g->lost[0] == '\0')
        return HL_OK;
    pthread_mutex_unlock(&g->lock);
    return hl_fail(HL_EUNAVAIL, "the group is lost, join another one: %s", g->lost);
}

/* Arguments were checked before group_enter, so another rank or the network caused this failure:
 * ranks may disagree about what was done, and no further call could make them agree. */
static int group_leave(hybridps_group *g, int code)
{
    if (code != 0) {
        const char *own = g->t.why != NULL ? g->t.why(g->t.arg) : NULL;
        if (own != NULL && own[0] != '\0')
            (void)hl_fail((hl_status)code, "%s", own);
        snprintf(g->lost, sizeof(g->lost), "%s", hl_error_text());
    }
    pthread_mutex_unlock(&g->lock);
    return code;
}

void hybridps_group_cancel(hybridps_group *g)
{
    if (g == NULL)
        return;
    /* Relaxed: the flag only ends calls; the transport's own cancel wakes the one that waits. */
    __atomic_store_n(&g->cancelled, true, __ATOMIC_RELAXED);
    if (g->t.cancel != NULL)
        g->t.cancel(g->t.arg);
}

/* ---- what a transport may not have ---- */

static int reduce_pieces(hybridps_group *g, const char *what, uint8_t *data, uint64_t bytes,
                         int type, int op)
{
    const hybridps_transport *t = &g->t;
    const void *parts[HL_COLLECTIVE_RANKS];
    uint64_t most = bytes < PIECE ? bytes : PIECE;
    HL_AUTO(hl_freep) uint8_t *all = malloc((size_t)t->world * most);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %d pieces of %" PRIu64 " bytes",
                       t->world, most);
    for (uint64_t at = 0; at < bytes; at += most) {
        uint64_t here = bytes - at < most ? bytes - at : most;
        int code = t->allgather(t->arg, what, data + at, all, here);
        if (code != 0)
            return code;
        for (int r = 0; r < t->world; r++)
            parts[r] = all + (uint64_t)r * here;
        hl_collective_reduce(data + at, parts, t->world, type, op, 0,
                             here / hl_collective_size(type));
    }
    return 0;
}

static int reduce_by_transport(hybridps_group *g, const char *what, void *data, uint64_t n,
                               int type, int op)
{
    const hybridps_transport *t = &g->t;
    if (t->reduce != NULL)
        return t->reduce(t->arg, what, data, n, type, op);
    if (t->allreduce != NULL && op == HYBRIDPS_SUM && type <= HYBRIDPS_BF16)
        return t->allreduce(t->arg, what, data, n, type);
    return reduce_pieces(g, what, data, n * hl_collective_size(type), type, op);
}

/* Each rank receives, and drops, as many bytes of the others as all of them send. */
static int exchange_pieces(hybridps_group *g, const char *what, const uint8_t *in, uint8_t *out,
                           uint64_t bytes)
{
    const hybridps_transport *t = &g->t;
    uint64_t world = (uint64_t)t->world, most = PIECE / world / 64 * 64;
    most = bytes < most ? bytes : most;
    HL_AUTO(hl_freep) uint8_t *mine = malloc((world + 1) * world * most);
    if (mine == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %d pieces of %" PRIu64 " bytes",
                       t->world * t->world, most);
    uint8_t *all = mine + world * most;
    for (uint64_t at = 0; at < bytes; at += most) {
        uint64_t here = bytes - at < most ? bytes - at : most;
        for (uint64_t r = 0; r < world; r++)
            memcpy(mine + r * here, in + r * bytes + at, here);
        int code = t->allgather(t->arg, what, mine, all, world * here);
        if (code != 0)
            return code;
        for (uint64_t r = 0; r < world; r++)
            memcpy(out + r * bytes + at, all + (r * world + (uint64_t)t->rank) * here, here);
    }
    return 0;
}

static int alltoall_by_transport(hybridps_group *g, const char *what, const void *in, void *out,
                                 uint64_t bytes)
{
    const hybridps_transport *t = &g->t;
    if (t->alltoall != NULL)
        return t->alltoall(t->arg, what, in, out, bytes);
    return exchange_pieces(g, what, in, out, bytes);
}

/* The pieces of each rank's part go to that rank, in the order of ranks, and are reduced there. */
static int scatter_pieces(hybridps_group *g, const char *what, const uint8_t *in, uint8_t *out,
                          uint64_t bytes, int type, int op)
{
    uint64_t world = (uint64_t)g->t.world, most = PIECE / world / 64 * 64;
    const void *parts[HL_COLLECTIVE_RANKS];
    most = bytes < most ? bytes : most;
    HL_AUTO(hl_freep) uint8_t *mine = malloc(2 * world * most);
    if (mine == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %d pieces of %" PRIu64 " bytes",
                       g->t.world, most);
    uint8_t *theirs = mine + world * most;
    for (uint64_t at = 0; at < bytes; at += most) {
        uint64_t here = bytes - at < most ? bytes - at : most;
        for (uint64_t r = 0; r < world; r++)
            memcpy(mine + r * here, in + r * bytes + at, here);
        int code = alltoall_by_transport(g, what, mine, theirs, here);
        if (code != 0)
            return code;
        for (uint64_t r = 0; r < world; r++)
            parts[r] = theirs + r * here;
        hl_collective_reduce(out + at, parts, (int)world, type, op, 0,
                             here / hl_collective_size(type));
    }
    return 0;
}

/* ---- the calls ---- */

hl_status hl_collective_check(const char *call, const char *what, const void *data, uint64_t n,
                              int type, int op, int world)
{
    uint64_t size = hl_collective_size(type), bytes;
    if (size == 0 || !hl_collective_op_fits(op, type))
        return hl_fail(HL_EINVAL, "%s of \"%s\": type %d is unknown, or has no operation %d", call,
                       hl_collective_name(what), type, op);
    if (data == NULL && n > 0)
        return hl_fail(HL_EINVAL, "%s of \"%s\": no data", call, hl_collective_name(what));
    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)world, &bytes))
        return hl_fail(HL_EINVAL, "%s of \"%s\": %" PRIu64 " elements are too many", call,
                       hl_collective_name(what), n);
    return HL_OK;
}

int hybridps_group_allreduce(hybridps_group *g, const char *what, void *data, uint64_t n, int type,
                             int op)
{
    HL_TRY(hl_collective_check("allreduce", what, data, n, type, op, 1));
    HL_TRY(group_enter(g));
    int code = 0, step = op == HYBRIDPS_MEAN ? HYBRIDPS_SUM : op;
    if (n > 0 && g->t.world > 1)
        code = reduce_by_transport(g, hl_collective_name(what), data, n, type, step);
    if (code == 0 && op == HYBRIDPS_MEAN && g->t.world > 1)
        hl_collective_divide(data, n, type, g->t.world);
    return group_leave(g, code);
}

int hybridps_group_reduce_scatter(hybridps_group *g, const char *what, const void *in, void *out,
                                  uint64_t n, int type, int op)
{
    HL_TRY(hl_collective_check("reduce_scatter", what, out != NULL ? in : NULL, n, type, op,
                               hybridps_group_world(g)));
    HL_TRY(group_enter(g));
    const hybridps_transport *t = &g->t;
    uint64_t bytes = n * hl_collective_size(type);
    int code = 0, step = op == HYBRIDPS_MEAN ? HYBRIDPS_SUM : op;
    if (t->world == 1 && in != out && n > 0)
        memcpy(out, in, bytes);
    else if (n > 0 && t->world > 1)
        code = t->reduce_scatter != NULL
                   ? t->reduce_scatter(t->arg, hl_collective_name(what), in, out, n, type, step)
                   : scatter_pieces(g, hl_collective_name(what), in, out, bytes, type, step);
    if (code == 0 && op == HYBRIDPS_MEAN && t->world > 1)
        hl_collective_divide(out, n, type, t->world);
    return group_leave(g, code);
}

int hybridps_group_alltoall(hybridps_group *g, const char *what, const void *in, void *out,
                            uint64_t bytes)
{
    if ((in == NULL || out == NULL) && bytes > 0)
        return hl_fail(HL_EINVAL, "alltoall of \"%s\": no data", hl_collective_name(what));
    HL_TRY(group_enter(g));
    int code = 0;
    if (g->t.world == 1 && in != out && bytes > 0)
        memcpy(out, in, bytes);
    else if (bytes > 0 && g->t.world > 1)
        code = alltoall_by_transport(g, hl_collective_name(what), in, out, bytes);
    return group_leave(g, code);
}

static hl_status check_pair(hybridps_group *g, const char *call, const char *what, const void *data,
                            uint64_t bytes, int peer)
{
    if (data == NULL && bytes > 0)
        return hl_fail(HL_EINVAL, "%s of \"%s\": no data", call, hl_collective_name(what));
    if (g != NULL && (peer < 0 || peer >= g->t.world || peer == g->t.rank))
        return hl_fail(HL_EINVAL,
                       "%s of \"%s\": with rank %d; this is rank %d, there are ranks 0 to %d", call,
                       hl_collective_name(what), peer, g->t.rank, g->t.world - 1);
    if (g != NULL && (g->t.send == NULL || g->t.recv == NULL))
        return hl_fail(HL_EUNSUPPORTED,
                       "%s of \"%s\": this group's transport can't send between two ranks; use "
                       "broadcast or alltoall among all of them",
                       call, hl_collective_name(what));
    return HL_OK;
}

int hybridps_group_send(hybridps_group *g, const char *what, const void *data, uint64_t bytes,
                        int dst, int tag)
{
    HL_TRY(check_pair(g, "send", what, data, bytes, dst));
    HL_TRY(group_enter(g));
    int code = bytes > 0 ? g->t.send(g->t.arg, hl_collective_name(what), data, bytes, dst, tag) : 0;
    return group_leave(g, code);
}

int hybridps_group_recv(hybridps_group *g, const char *what, void *data, uint64_t bytes, int src,
                        int tag)
{
    HL_TRY(check_pair(g, "recv", what, data, bytes, src));
    HL_TRY(group_enter(g));
    int code = bytes > 0 ? g->t.recv(g->t.arg, hl_collective_name(what), data, bytes, src, tag) : 0;
    return group_leave(g, code);
}

int hybridps_group_broadcast(hybridps_group *g, const char *what, void *data, uint64_t bytes,
                             int src)
{
    if (g != NULL && (src < 0 || src >= g->t.world))
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": src is %d, there are ranks 0 to %d",
                       hl_collective_name(what), src, g->t.world - 1);
    if (data == NULL && bytes > 0)
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": no data", hl_collective_name(what));
    HL_TRY(group_enter(g));
    int code = 0;
    if (bytes > 0 && g->t.world > 1)
        code = g->t.broadcast(g->t.arg, hl_collective_name(what), data, bytes, src);
    return group_leave(g, code);
}

int hybridps_group_allgather(hybridps_group *g, const char *what, const void *mine, void *all,
                             uint64_t bytes)
{
    if ((mine == NULL || all == NULL) && bytes > 0)
        return hl_fail(HL_EINVAL, "allgather of \"%s\": no data", hl_collective_name(what));
    HL_TRY(group_enter(g));
    int code = 0;
    if (bytes > 0 && g->t.world > 1)
        code = g->t.allgather(g->t.arg, hl_collective_name(what), mine, all, bytes);
    else if (bytes > 0)
        memcpy(all, mine, bytes);
    return group_leave(g, code);
}
