/* The built-in transport: pieces go through slots in shared memory, step by step.
 *
 * A piece of a collective takes one step, or two if the reduction is shared:
 *
 *    write own slot | step: all slots are full | read the slots     | next piece, other set
 *                                              | reduce a share, step, read the result
 *
 * No step follows the reading. A rank writes set s again two pieces later; by then it has taken the
 * step of the piece between, which all other ranks take after they have read set s.
 *
 *     pieces & 1    which set of slots a piece uses       counted alike by all ranks
 *     calls & 1     which description of a row it uses    likewise
 *
 * A call describes itself in its row before its first step, and all ranks compare the rows after
 * it. The next call uses the other description, so a rank that is a step ahead overwrites none that
 * is still being compared. After a failed call the rank has left, and the counts no longer matter.
 *
 * One thread of each process uses a group at a time; shm.h says which word of the shared memory is
 * written by which rank, and in which order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group/shm.h"
#include "os/shm.h"

#define SUM_ALONE (16u << 10) /* up to here every rank sums everything, which saves a step */

enum { ALLGATHER = 1, BROADCAST, ALLREDUCE, REDUCE_SCATTER, ALLTOALL };

static const char *const kind_names[] = {"nothing",   "allgather",      "broadcast",
                                         "allreduce", "reduce_scatter", "alltoall"};

/* In this piece's set of slots: index is a rank, or the world size for the common result. */
static uint8_t *slot_of(const struct hl_collective_shm *g, int index)
{
    uint64_t set = (g->pieces & 1) * (uint64_t)(g->world + 1);
    return (uint8_t *)(g->s + 1) + (set + (uint64_t)index) * HL_COLLECTIVE_PIECE;
}

/* ---- steps ---- */

/* A rank that is further has seen all ranks take this step. */
static int step_reached(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    int32_t ahead = (int32_t)(__atomic_load_n(w->word, __ATOMIC_SEQ_CST) - w->goal);
    (void)g;
    return ahead > 0 ? 2 : ahead == 0;
}

/* Waits until all ranks have come this far. There is one deadline for all: while a rank waited for
 * the first, it waited for the others too. */
static hl_status shm_step(struct hl_collective_shm *g, const char *what)
{
    struct hl_collective_row *rows = g->s->rows;
    uint64_t until = hl_collective_deadline(g);
    __atomic_store_n(&rows[g->rank].at, ++g->at, __ATOMIC_SEQ_CST);
    hl_collective_wake(g, &rows[g->rank].at);
    for (int r = 0; r < g->world; r++) {
        struct hl_collective_wait w = {r, &rows[r].at, g->at, step_reached, what};
        hl_status st = r != g->rank ? hl_collective_wait_until(g, &w, until) : HL_OK;
        if (st != HL_OK)
            return hl_collective_give_up(g, r, st);
    }
    return HL_OK;
}

/* ---- calls ---- */

/* Written before the step that publishes it to the other ranks. */
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
    size -= (size_t)n; /* never negative: `text` has 96 bytes */
    if (kind == BROADCAST)
        snprintf(text, size, " from rank %d", c->arg);
    else if (kind == ALLREDUCE || kind == REDUCE_SCATTER)
        snprintf(text, size, " of type %d, operation %d", c->arg, c->op);
}

/* All ranks see the same rows, so all of them find a mismatch. */
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

/* Takes the step after which all slots of the piece are full. */
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

/* Each rank reduces its share of the piece; all ranks take the result. */
static hl_status reduce_shares(struct hl_collective_shm *g, const char *what,
                               const void *const *parts, uint8_t *data, uint64_t here, int type,
                               int op)
{
    size_t n = here / hl_collective_size(type);
    /* Each rank gets whole cache lines, whatever the type, so no rank writes into another's
     * line. */
    size_t share = (n / (size_t)g->world / 64 + 1) * 64, first = share * (size_t)g->rank;
    if (first < n)
        hl_collective_reduce(slot_of(g, g->world), parts, g->world, type, op, first,
                             n - first < share ? n - first : share);
    HL_TRY(shm_step(g, what));
    memcpy(data, slot_of(g, g->world), here);
    return HL_OK;
}

/* Every rank adds in the order of ranks, so all get the same bits, in every run. */
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

/* The number of bytes that a piece has for each rank. */
static uint64_t part_at(const struct hl_collective_shm *g, uint64_t at, uint64_t bytes)
{
    uint64_t most = HL_COLLECTIVE_PIECE / (uint64_t)g->world / 64 * 64;
    return bytes - at < most ? bytes - at : most;
}

/* Copies the same range of all parts, one part after the other, into this rank's slot. */
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

/* Called by any thread. The flag is never cleared: the group can't be used afterwards. */
static void shm_cancel(void *arg)
{
    struct hl_collective_shm *g = arg;
    __atomic_store_n(&g->cancelled, 1, __ATOMIC_RELAXED); /* sleeps last only a slice */
}

/* Stores LEFT only if the rank has not given up: the others need the first reason. Ranks may sleep
 * on both words, so both are woken. */
void hl_collective_leave(struct hl_collective_shm *g)
{
    uint32_t none = 0;
    __atomic_compare_exchange_n(&g->s->rows[g->rank].left, &none, HL_COLLECTIVE_LEFT, 0,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    hl_collective_wake(g, &g->s->rows[g->rank].at);
    hl_collective_wake(g, &g->s->rows[g->rank].sent);
    hl_shm_unmap(g->s, g->size);
}

static void shm_close(void *arg)
{
    struct hl_collective_shm *g = arg;
    if (g->s->rows[g->rank].process.pid == getpid()) /* not in a forked child */
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
    *out = (hybridps_transport){HYBRIDPS_TRANSPORT_INIT,
                                .rank = g->rank,
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
