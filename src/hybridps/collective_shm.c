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
#include "hybridps/collective_shm.h"
#include "os/shm.h"

#define SLICE_MS  20          /* a sleep, after which the others' lives are looked at */
#define LOOKS     2000        /* before the first sleep */
#define SUM_ALONE (16u << 10) /* up to here every rank sums all, which saves a step */
#define LEFT      1u
#define GAVE_UP   2u

enum { ALLGATHER = 1, BROADCAST, ALLREDUCE };

static const char *const kind_names[] = {"nothing", "allgather", "broadcast", "allreduce"};

static uint8_t *slot(const struct hl_collective_shm *g, int index)
{
    uint64_t set = (g->pieces & 1) * (uint64_t)(g->world + 1);
    return (uint8_t *)(g->s + 1) + (set + (uint64_t)index) * HL_COLLECTIVE_PIECE;
}

/* ---- steps ---- */

static void wake_all(struct hl_collective_shm *g)
{
    if (__atomic_load_n(&g->s->sleepers, __ATOMIC_SEQ_CST) > 0)
        syscall(SYS_futex, &g->s->rows[g->rank].at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int reached(const struct hl_collective_shm *g, int rank)
{
    return (int32_t)(__atomic_load_n(&g->s->rows[rank].at, __ATOMIC_SEQ_CST) - g->at) >= 0;
}

static hl_status check_alive(const struct hl_collective_shm *g, int rank, const char *what)
{
    const struct hl_collective_row *row = &g->s->rows[rank];
    uint32_t left = __atomic_load_n(&row->left, __ATOMIC_SEQ_CST);
    if (left == GAVE_UP)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d has given the group up; %s needs it in %s",
                       g->path, rank, g->who, what);
    if (reached(g, rank)) /* it may have left after this step */
        return HL_OK;
    if (left == LEFT)
        return hl_fail(HL_EUNAVAIL, "%s: rank %d has closed the group; %s waits for it in %s",
                       g->path, rank, g->who, what);
    if (row->process.pid == 0 || hl_process_ended(row->process))
        return hl_fail(HL_EUNAVAIL, "%s: rank %d (process %d) has died; %s waits for it in %s",
                       g->path, rank, (int)row->process.pid, g->who, what);
    hl_error_clear();
    return HL_OK;
}

static void sleep_on(struct hl_collective_shm *g, int rank)
{
    uint32_t *at = &g->s->rows[rank].at;
    struct timespec slice = {.tv_nsec = SLICE_MS * (long)HL_NS_PER_MS};
    __atomic_add_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    if ((int32_t)(seen - g->at) < 0)
        syscall(SYS_futex, at, FUTEX_WAIT, seen, &slice, NULL, 0);
    __atomic_sub_fetch(&g->s->sleepers, 1, __ATOMIC_SEQ_CST);
}

static hl_status wait_for(struct hl_collective_shm *g, int rank, const char *what, uint64_t until)
{
    for (int i = 0; i < LOOKS && !reached(g, rank); i++)
        ;
    for (;;) {
        int here = reached(g, rank);
        if (!here || __atomic_load_n(&g->s->rows[rank].left, __ATOMIC_SEQ_CST) == GAVE_UP)
            HL_TRY(check_alive(g, rank, what));
        if (here)
            return HL_OK;
        if (hl_now_ns() > until)
            return hl_fail(HL_ETIMEDOUT,
                           "%s: rank %d (process %d) did not come within %d ms; %s waits for it in "
                           "%s",
                           g->path, rank, (int)g->s->rows[rank].process.pid, g->timeout_ms, g->who,
                           what);
        sleep_on(g, rank);
    }
}

/* All have come this far. */
static hl_status step(struct hl_collective_shm *g, const char *what)
{
    uint64_t until = hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
    __atomic_store_n(&g->s->rows[g->rank].at, ++g->at, __ATOMIC_SEQ_CST);
    wake_all(g);
    for (int r = 0; r < g->world; r++) {
        hl_status st = r != g->rank ? wait_for(g, r, what, until) : HL_OK;
        if (st != HL_OK) {
            __atomic_store_n(&g->s->rows[g->rank].left, GAVE_UP, __ATOMIC_SEQ_CST);
            return st;
        }
    }
    return HL_OK;
}

/* ---- calls ---- */

static void say(struct hl_collective_shm *g, uint32_t kind, const char *what, uint64_t bytes,
                int arg)
{
    struct hl_collective_call *call = &g->s->rows[g->rank].calls[g->calls & 1];
    call->kind = kind;
    call->arg = arg;
    call->bytes = bytes;
    snprintf(call->what, sizeof(call->what), "%s", what);
}

static void describe(const struct hl_collective_call *c, char *text, size_t size)
{
    uint32_t kind = c->kind < HL_ARRAY_LEN(kind_names) ? c->kind : 0;
    snprintf(text, size, "%s of \"%.*s\", %" PRIu64 " bytes%s%d", kind_names[kind],
             (int)sizeof(c->what) - 1, c->what, c->bytes,
             kind == BROADCAST ? " from rank " : " of type ", c->arg);
}

/* All ranks see the same rows, so all of them find out. */
static hl_status check_calls(const struct hl_collective_shm *g)
{
    const struct hl_collective_call *mine = &g->s->rows[g->rank].calls[g->calls & 1];
    for (int r = 0; r < g->world; r++) {
        const struct hl_collective_call *c = &g->s->rows[r].calls[g->calls & 1];
        if (c->kind == mine->kind && c->arg == mine->arg && c->bytes == mine->bytes)
            continue;
        char theirs[192], own[192];
        describe(c, theirs, sizeof(theirs));
        describe(mine, own, sizeof(own));
        return hl_fail(HL_ECONFLICT, "%s: rank %d calls %s; %s calls %s", g->path, r, theirs,
                       g->who, own);
    }
    return HL_OK;
}

/* The step after which all slots of the piece are full. */
static hl_status filled(struct hl_collective_shm *g, const char *what, uint64_t at)
{
    HL_TRY(step(g, what));
    return at == 0 ? check_calls(g) : HL_OK;
}

static uint64_t piece_at(uint64_t at, uint64_t bytes)
{
    return bytes - at < HL_COLLECTIVE_PIECE ? bytes - at : HL_COLLECTIVE_PIECE;
}

static int allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    struct hl_collective_shm *g = arg;
    hl_status st = HL_OK;
    say(g, ALLGATHER, what, bytes, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        memcpy(slot(g, g->rank), (const uint8_t *)mine + at, here);
        st = filled(g, what, at);
        for (int r = 0; r < g->world && st == HL_OK; r++)
            memcpy((uint8_t *)all + (uint64_t)r * bytes + at, slot(g, r), here);
        g->pieces++;
    }
    g->calls++;
    return st;
}

static int broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    struct hl_collective_shm *g = arg;
    hl_status st = HL_OK;
    say(g, BROADCAST, what, bytes, src);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        if (g->rank == src)
            memcpy(slot(g, src), (uint8_t *)data + at, here);
        st = filled(g, what, at);
        if (st == HL_OK && g->rank != src)
            memcpy((uint8_t *)data + at, slot(g, src), here);
        g->pieces++;
    }
    g->calls++;
    return st;
}

/* Each rank sums its share of the piece, and all take the result. */
static hl_status sum_shares(struct hl_collective_shm *g, const char *what, const void *const *parts,
                            uint8_t *data, uint64_t here, int type)
{
    size_t n = here / hl_collective_size(type);
    size_t share = (n / (size_t)g->world / 64 + 1) * 64, first = share * (size_t)g->rank;
    if (first < n)
        hl_collective_sum(slot(g, g->world), parts, g->world, type, first,
                          n - first < share ? n - first : share);
    HL_TRY(step(g, what));
    memcpy(data, slot(g, g->world), here);
    return HL_OK;
}

static int allreduce(void *arg, const char *what, void *data, uint64_t n, int type)
{
    struct hl_collective_shm *g = arg;
    const void *parts[HL_COLLECTIVE_RANKS];
    uint64_t bytes = n * hl_collective_size(type);
    hl_status st = HL_OK;
    say(g, ALLREDUCE, what, bytes, type);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += HL_COLLECTIVE_PIECE) {
        uint64_t here = piece_at(at, bytes);
        uint8_t *to = (uint8_t *)data + at;
        for (int r = 0; r < g->world; r++)
            parts[r] = slot(g, r);
        memcpy(slot(g, g->rank), to, here);
        st = filled(g, what, at);
        if (st == HL_OK && here <= SUM_ALONE)
            hl_collective_sum(to, parts, g->world, type, 0, here / hl_collective_size(type));
        else if (st == HL_OK)
            st = sum_shares(g, what, parts, to, here, type);
        g->pieces++;
    }
    g->calls++;
    return st;
}

/* ---- coming and going ---- */

void hl_collective_leave(struct hl_collective_shm *g)
{
    uint32_t none = 0;
    __atomic_compare_exchange_n(&g->s->rows[g->rank].left, &none, LEFT, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    wake_all(g);
    hl_shm_unmap(g->s, g->size);
}

static void close_shm(void *arg)
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
        return hl_fail(HL_ENOMEM, "memory is short for a group");
    hl_status st = hl_collective_join(options, g);
    if (st != HL_OK) {
        free(g);
        return st;
    }
    *out = (hybridps_transport){.rank = g->rank,
                                .world = g->world,
                                .arg = g,
                                .allgather = allgather,
                                .broadcast = broadcast,
                                .allreduce = allreduce,
                                .close = close_shm};
    return HL_OK;
}
