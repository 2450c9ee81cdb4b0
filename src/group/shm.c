/* The built-in transport: pieces go through slots in shared memory, step by step. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/shm.h"
#include "os/shm.h"

#define SLICE_MS  20          /* a sleep, after which the others' lives are looked at */
#define LOOKS     2000        /* before the first sleep */
#define SUM_ALONE (16u << 10) /* up to here every rank sums all, which saves a step */
#define LEFT      1u
#define GAVE_UP   2u

enum { ALLGATHER = 1, BROADCAST, ALLREDUCE, REDUCE_SCATTER, ALLTOALL };

static const char *const kind_names[] = {"nothing",   "allgather",      "broadcast",
                                         "allreduce", "reduce_scatter", "alltoall"};

static uint8_t *slot_of(const struct hl_collective_shm *g, int index)
{
    uint64_t set = (g->pieces & 1) * (uint64_t)(g->world + 1);
    return (uint8_t *)(g->s + 1) + (set + (uint64_t)index) * HL_COLLECTIVE_PIECE;
}

/* ---- waiting ---- */

void hl_collective_wake(struct hl_collective_shm *g, uint32_t *word)
{
    if (__atomic_load_n(&g->s->sleepers, __ATOMIC_SEQ_CST) > 0)
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

hl_status hl_collective_give_up(struct hl_collective_shm *g, int rank, hl_status st)
{
    const struct hl_collective_row *other = &g->s->rows[rank];
    uint32_t because = (uint32_t)rank + 1;
    if (__atomic_load_n(&other->left, __ATOMIC_SEQ_CST) == GAVE_UP && other->because != 0)
        because = other->because;
    g->s->rows[g->rank].because = because;
    __atomic_store_n(&g->s->rows[g->rank].left, GAVE_UP, __ATOMIC_SEQ_CST);
    return st;
}

/* With whom it began, who may have told others before this rank looked. */
static hl_status given_up(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    uint32_t because = g->s->rows[w->rank].because;
    char why[64] = "";
    if (because > 0 && because <= (uint32_t)g->world && (int)because - 1 != w->rank) {
        const struct hl_process process = g->s->rows[because - 1].process;
        snprintf(why, sizeof(why), " for rank %u (process %d)%s", because - 1, (int)process.pid,
                 process.pid == 0 || hl_process_ended(process) ? ", which has died" : "");
    }
    return hl_fail(HL_EUNAVAIL, "%s: rank %d has given the group up%s; %s needs it in %s", g->path,
                   w->rank, why, g->who, w->what);
}

static hl_status check_alive(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    const struct hl_collective_row *row = &g->s->rows[w->rank];
    uint32_t left = __atomic_load_n(&row->left, __ATOMIC_SEQ_CST);
    int ended = left == 0 && (row->process.pid == 0 || hl_process_ended(row->process));
    hl_error_clear();
    if (left == GAVE_UP)
        return given_up(g, w);
    if (w->ready(g, w)) /* asked last: it may have left, or ended, after this step */
        return HL_OK;
    if (left == LEFT)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d has closed the group; %s waits for it in %s",
                       g->path, w->rank, g->who, w->what);
    if (ended)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d (process %d) has died; %s waits for it in %s",
                       g->path, w->rank, (int)row->process.pid, g->who, w->what);
    return HL_OK;
}

static void sleep_on(struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    struct timespec slice = {.tv_nsec = SLICE_MS * (long)HL_NS_PER_MS};
    __atomic_add_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(w->word, __ATOMIC_SEQ_CST);
    if (!w->ready(g, w))
        syscall(SYS_futex, w->word, FUTEX_WAIT, seen, &slice, NULL, 0);
    __atomic_sub_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
}

static hl_status wait_for(struct hl_collective_shm *g, const struct hl_collective_wait *w,
                          uint64_t until)
{
    const struct hl_collective_row *row = &g->s->rows[w->rank];
    for (int i = 0; i < LOOKS && !w->ready(g, w); i++)
        ;
    for (;;) {
        int here = w->ready(g, w);
        if (!here || (here == 1 && __atomic_load_n(&row->left, __ATOMIC_SEQ_CST) == GAVE_UP))
            HL_TRY(check_alive(g, w));
        if (here)
            return HL_OK;
        if (__atomic_load_n(&g->cancelled, __ATOMIC_RELAXED))
            return hl_fail(HL_ECANCELED, "%s: cancelled while %s waited for rank %d in %s", g->path,
                           g->who, w->rank, w->what);
        if (hl_now_ns() > until)
            return hl_fail(HL_ETIMEDOUT,
                           "%s: rank %d (process %d) did not come within %d ms; %s waits for it in "
                           "%s",
                           g->path, w->rank, (int)row->process.pid, g->timeout_ms, g->who, w->what);
        sleep_on(g, w);
    }
}

static uint64_t call_deadline(const struct hl_collective_shm *g)
{
    return hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
}

hl_status hl_collective_await(struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    hl_status st = wait_for(g, w, call_deadline(g));
    return st == HL_OK ? HL_OK : hl_collective_give_up(g, w->rank, st);
}

/* ---- steps ---- */

/* Who is further has seen all take this step, whatever it does since. */
static int step_reached(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    int32_t ahead = (int32_t)(__atomic_load_n(w->word, __ATOMIC_SEQ_CST) - w->goal);
    (void)g;
    return ahead > 0 ? 2 : ahead == 0;
}

/* All have come this far. */
static hl_status shm_step(struct hl_collective_shm *g, const char *what)
{
    struct hl_collective_row *rows = g->s->rows;
    uint64_t until = call_deadline(g);
    __atomic_store_n(&rows[g->rank].at, ++g->at, __ATOMIC_SEQ_CST);
    hl_collective_wake(g, &rows[g->rank].at);
    for (int r = 0; r < g->world; r++) {
        struct hl_collective_wait w = {r, &rows[r].at, g->at, step_reached, what};
        hl_status st = r != g->rank ? wait_for(g, &w, until) : HL_OK;
        if (st != HL_OK)
            return hl_collective_give_up(g, r, st);
    }
    return HL_OK;
}

/* ---- calls ---- */

static void shm_announce(struct hl_collective_shm *g, uint32_t kind, const char *what,
                         uint64_t bytes, int arg, int op)
{
    struct hl_collective_call *call = &g->s->rows[g->rank].calls[g->calls & 1];
    call->kind = kind;
    call->arg = arg;
    call->op = op;
    call->bytes = bytes;
    snprintf(call->what, sizeof(call->what), "%s", what);
}

static void shm_describe(const struct hl_collective_call *c, char *text, size_t size)
{
    uint32_t kind = c->kind < HL_ARRAY_LEN(kind_names) ? c->kind : 0;
    int n = snprintf(text, size, "%s of \"%.*s\", %" PRIu64 " bytes", kind_names[kind],
                     (int)sizeof(c->what) - 1, c->what, c->bytes);
    text += n;
    size -= (size_t)n; /* room for all of it: what has 96 bytes */
    if (kind == BROADCAST)
        snprintf(text, size, " from rank %d", c->arg);
    else if (kind == ALLREDUCE || kind == REDUCE_SCATTER)
        snprintf(text, size, " of type %d, operation %d", c->arg, c->op);
}

/* All ranks see the same rows, so all of them find out. */
static hl_status check_calls(const struct hl_collective_shm *g)
{
    const struct hl_collective_call *mine = &g->s->rows[g->rank].calls[g->calls & 1];
    for (int r = 0; r < g->world; r++) {
        const struct hl_collective_call *c = &g->s->rows[r].calls[g->calls & 1];
        if (c->kind == mine->kind && c->arg == mine->arg && c->op == mine->op &&
            c->bytes == mine->bytes)
            continue;
        char theirs[192], own[192];
        shm_describe(c, theirs, sizeof(theirs));
        shm_describe(mine, own, sizeof(own));
        return hl_fail(HL_ECONFLICT, "%s: rank %d calls %s; %s calls %s", g->path, r, theirs,
                       g->who, own);
    }
    return HL_OK;
}

/* The step after which all slots of the piece are full. */
static hl_status fill_step(struct hl_collective_shm *g, const char *what, uint64_t at)
{
    HL_TRY(shm_step(g, what));
    return at == 0 ? check_calls(g) : HL_OK;
}

static uint64_t piece_at(uint64_t at, uint64_t bytes)
{
    return bytes - at < HL_COLLECTIVE_PIECE ? bytes - at : HL_COLLECTIVE_PIECE;
}

static int shm_allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    struct hl_collective_shm *g = arg;
    hl_status st = HL_OK;
    shm_announce(g, ALLGATHER, what, bytes, 0, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        memcpy(slot_of(g, g->rank), (const uint8_t *)mine + at, here);
        st = fill_step(g, what, at);
        for (int r = 0; r < g->world && st == HL_OK; r++)
            memcpy((uint8_t *)all + (uint64_t)r * bytes + at, slot_of(g, r), here);
        g->pieces++;
    }
    g->calls++;
    return st;
}

static int shm_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    struct hl_collective_shm *g = arg;
    hl_status st = HL_OK;
    shm_announce(g, BROADCAST, what, bytes, src, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        if (g->rank == src)
            memcpy(slot_of(g, src), (uint8_t *)data + at, here);
        st = fill_step(g, what, at);
        if (st == HL_OK && g->rank != src)
            memcpy((uint8_t *)data + at, slot_of(g, src), here);
        g->pieces++;
    }
    g->calls++;
    return st;
}

/* Each rank reduces its share of the piece, and all take the result. */
static hl_status reduce_shares(struct hl_collective_shm *g, const char *what,
                               const void *const *parts, uint8_t *data, uint64_t here, int type,
                               int op)
{
    size_t n = here / hl_collective_size(type);
    size_t share = (n / (size_t)g->world / 64 + 1) * 64, first = share * (size_t)g->rank;
    if (first < n)
        hl_collective_reduce(slot_of(g, g->world), parts, g->world, type, op, first,
                             n - first < share ? n - first : share);
    HL_TRY(shm_step(g, what));
    memcpy(data, slot_of(g, g->world), here);
    return HL_OK;
}

static int shm_reduce(void *arg, const char *what, void *data, uint64_t n, int type, int op)
{
    struct hl_collective_shm *g = arg;
    const void *parts[HL_COLLECTIVE_RANKS];
    uint64_t bytes = n * hl_collective_size(type);
    hl_status st = HL_OK;
    shm_announce(g, ALLREDUCE, what, bytes, type, op);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        uint8_t *to = (uint8_t *)data + at;
        for (int r = 0; r < g->world; r++)
            parts[r] = slot_of(g, r);
        memcpy(slot_of(g, g->rank), to, here);
        st = fill_step(g, what, at);
        if (st == HL_OK && here <= SUM_ALONE)
            hl_collective_reduce(to, parts, g->world, type, op, 0, here / hl_collective_size(type));
        else if (st == HL_OK)
            st = reduce_shares(g, what, parts, to, here, type, op);
        g->pieces++;
    }
    g->calls++;
    return st;
}

/* ---- calls that have something for each rank ---- */

/* Bytes for each rank in a piece. */
static uint64_t part_at(const struct hl_collective_shm *g, uint64_t at, uint64_t bytes)
{
    uint64_t most = HL_COLLECTIVE_PIECE / (uint64_t)g->world / 64 * 64;
    return bytes - at < most ? bytes - at : most;
}

/* The same bytes of all parts, one part after the other in this rank's slot. */
static hl_status fill_parts(struct hl_collective_shm *g, const char *what, const void *in,
                            uint64_t bytes, uint64_t at, uint64_t here)
{
    for (int r = 0; r < g->world; r++)
        memcpy(slot_of(g, g->rank) + (uint64_t)r * here,
               (const uint8_t *)in + (uint64_t)r * bytes + at, here);
    return fill_step(g, what, at);
}

static int shm_reduce_scatter(void *arg, const char *what, const void *in, void *out, uint64_t n,
                              int type, int op)
{
    struct hl_collective_shm *g = arg;
    const void *parts[HL_COLLECTIVE_RANKS];
    uint64_t size = hl_collective_size(type), bytes = n * size, here;
    hl_status st = HL_OK;
    shm_announce(g, REDUCE_SCATTER, what, bytes, type, op);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += here, g->pieces++) {
        here = part_at(g, at, bytes);
        st = fill_parts(g, what, in, bytes, at, here);
        for (int r = 0; r < g->world; r++)
            parts[r] = slot_of(g, r) + (uint64_t)g->rank * here;
        if (st == HL_OK)
            hl_collective_reduce((uint8_t *)out + at, parts, g->world, type, op, 0, here / size);
    }
    g->calls++;
    return st;
}

static int shm_alltoall(void *arg, const char *what, const void *in, void *out, uint64_t bytes)
{
    struct hl_collective_shm *g = arg;
    hl_status st = HL_OK;
    uint64_t here;
    shm_announce(g, ALLTOALL, what, bytes, 0, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += here, g->pieces++) {
        here = part_at(g, at, bytes);
        st = fill_parts(g, what, in, bytes, at, here);
        for (int r = 0; r < g->world && st == HL_OK; r++)
            memcpy((uint8_t *)out + (uint64_t)r * bytes + at,
                   slot_of(g, r) + (uint64_t)g->rank * here, here);
    }
    g->calls++;
    return st;
}

/* ---- coming and going ---- */

static void shm_cancel(void *arg)
{
    struct hl_collective_shm *g = arg;
    __atomic_store_n(&g->cancelled, 1, __ATOMIC_RELAXED); /* a sleep is a slice long */
}

void hl_collective_leave(struct hl_collective_shm *g)
{
    uint32_t none = 0;
    __atomic_compare_exchange_n(&g->s->rows[g->rank].left, &none, LEFT, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    hl_collective_wake(g, &g->s->rows[g->rank].at);
    hl_collective_wake(g, &g->s->rows[g->rank].sent);
    hl_shm_unmap(g->s, g->size);
}

static void shm_close(void *arg)
{
    struct hl_collective_shm *g = arg;
    if (g->s->rows[g->rank].process.pid == getpid()) /* not in a fork */
        hl_collective_leave(g);
    else
        hl_shm_unmap(g->s, g->size);
    free(g);
}

hl_status hl_collective_shm_open(const hybridps_shm_options *options, hybridps_transport *out)
{
    struct hl_collective_shm *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    hl_status st = hl_collective_join(options, g);
    if (st != HL_OK) {
        free(g);
        return st;
    }
    *out = (hybridps_transport){.rank = g->rank,
                                .world = g->world,
                                .arg = g,
                                .allgather = shm_allgather,
                                .broadcast = shm_broadcast,
                                .close = shm_close,
                                .reduce = shm_reduce,
                                .reduce_scatter = shm_reduce_scatter,
                                .alltoall = shm_alltoall,
                                .send = hl_collective_send,
                                .recv = hl_collective_recv,
                                .cancel = shm_cancel};
    return HL_OK;
}
