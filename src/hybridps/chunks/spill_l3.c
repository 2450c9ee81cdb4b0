/* Stores chunks in a pool that is mapped through its Unix socket. A chunk is cut into pieces; each
 * passes through a small staging memory, which stays in the cache, and becomes a lease
 * (mem/pool/pool.h) of our connection. So if this process dies, the daemon learns of it from the
 * kernel and frees everything.
 *
 * A broken connection is replaced by one that has taken over all pins; only then the old one is
 * closed. A restarted daemon keeps leases for a while, and a thread checks often enough to
 * reconnect within that time.
 *
 *    kept[]   | chunk: piece, piece, piece | free | chunk: piece |    handle = index + 1
 *                       |  id, offset, generation: valid on the connection that pinned it
 *    client   connected --daemon gone--> broken --reconnect: pin all of kept--> connected
 *                                           '--- a piece is not found: its chunk is lost for good
 *
 * There are two threads and one lock. The caller's thread (put, get, drop) holds the lock for a
 * whole chunk, including pauses, so the pieces of a chunk move to another connection only between
 * two attempts. The keeper checks `client` every TICK_MS, under the lock; between checks it waits
 * for `wake`, which only the close signals. While the caller computes, the keeper reconnects before
 * the daemon's leases expire.
 *
 *    caller                                      keeper, from the first put to the close
 *    lock                                        lock
 *    connection broken? reconnect, or pause      wait for `wake`, TICK_MS at most (unlocks)
 *    copy, lease or read; next piece             connection broken? reconnect once
 *    unlock                                      (holds the lock until the next wait)
 *
 * A chunk: free --put: all pieces leased--> kept --drop: unpinned--> free
 *                                            '--a reconnect misses a piece--> lost --drop--> free
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "hybridps/chunks/spill.h"
#include "mem/socket/socket.h"
#include "os/cond.h"

#define PIECE      ((uint64_t)8 << 20)
#define TIMEOUT_MS 30000
#define CALL_MS    10000 /* for one message */
#define PAUSE_MS   20
#define TICK_MS    100
#define TRIES      3 /* for a piece with a wrong checksum */

/* A chunk; its pieces are in order. */
struct spilled_chunk {
    struct hl_pool_ref *pieces; /* NULL = free */
    size_t count;
    bool lost;
};

struct l3_spill {
    char *path;
    int timeout_ms, pause_ms;
    struct hl_l3_staging staging;

    pthread_mutex_t lock; /* guards all members below */
    struct hl_l3_client *client;
    struct spilled_chunk *kept;
    size_t kept_cap;

    pthread_t keeper;
    bool keeper_runs, closing;
    pthread_cond_t wake;
};

/* ---- the connection ---- */

/* HL_OK even if some chunks are lost: they are reported as lost when they are read. */
static hl_status pin_all(struct l3_spill *l, struct hl_l3_client *next)
{
    for (size_t i = 0; i < l->kept_cap; i++) {
        struct spilled_chunk *k = &l->kept[i];
        for (size_t n = 0; n < k->count && !k->lost; n++) {
            struct hl_pool_ref ref;
            hl_status st = hl_l3_pin(next, k->pieces[n].id, k->pieces[n].offset, CALL_MS, &ref);
            if (st == HL_OK) {
                k->pieces[n] = ref;
                continue;
            }
            if (st != HL_ENOENT)
                return st;
            hl_error_clear();
            k->lost = true;
            while (n-- > 0)
                if (hl_l3_unpin(next, &k->pieces[n], CALL_MS) != HL_OK)
                    hl_error_clear(); /* the pin ends with the connection */
            break;
        }
    }
    return HL_OK;
}

/* Call with the lock held. The old connection is closed last: until then its pins hold the
 * pieces. */
static hl_status spill_reconnect(struct l3_spill *l, int timeout_ms)
{
    struct hl_l3_client *next = NULL;
    HL_TRY(hl_l3_connect(l->path, timeout_ms, &next));
    hl_status st = pin_all(l, next);
    if (st != HL_OK) {
        hl_l3_close(next);
        return st;
    }
    hl_l3_close(l->client);
    l->client = next;
    return HL_OK;
}

/* Nothing signals that a daemon is back, so the caller tries again after a pause. */
static void spill_pause(const struct l3_spill *l, uint64_t deadline_ns)
{
    uint64_t now = hl_now_ns();
    uint64_t left_ms = now < deadline_ns ? (deadline_ns - now) / HL_NS_PER_MS + 1 : 0;
    poll(NULL, 0, left_ms < (uint64_t)l->pause_ms ? (int)left_ms : l->pause_ms);
}

/* Waits for a working connection until the deadline. */
static hl_status spill_await_connection(struct l3_spill *l, uint64_t deadline_ns)
{
    for (;;) {
        if (l->client != NULL && hl_l3_connected(l->client))
            return HL_OK;
        uint64_t now = hl_now_ns();
        int left = now < deadline_ns ? (int)((deadline_ns - now) / HL_NS_PER_MS) + 1 : 1;
        hl_status st = spill_reconnect(l, left < CALL_MS ? left : CALL_MS);
        if (st == HL_OK)
            return HL_OK;
        /* Without an earlier spill there is nothing to wait for. */
        if (l->client == NULL || hl_now_ns() >= deadline_ns)
            return hl_fail_prefix(HL_EUNAVAIL, "no connection to the pool at %s: ", l->path);
        spill_pause(l, deadline_ns);
    }
}

/* Errors that a restarting or slow daemon can cause: a later attempt can succeed. */
static bool may_pass(hl_status st)
{
    return st == HL_EUNAVAIL || st == HL_ESTALE || st == HL_ETIMEDOUT || st == HL_EPROTO;
}

/* ---- the thread that notices a restart while the caller computes ---- */

static void *spill_keep_connected(void *arg)
{
    struct l3_spill *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&l->wake, &l->lock, &until);
        if (!l->closing && !hl_l3_connected(l->client) && spill_reconnect(l, TICK_MS) != HL_OK)
            hl_debug("spill: %s", hl_error_text());
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Blocks all signals in the keeper: they belong to the program. */
static hl_status start_keeper(struct l3_spill *l)
{
    sigset_t all, before;
    if (l->keeper_runs)
        return HL_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&l->keeper, NULL, spill_keep_connected, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0)
        return hl_fail(HL_ENOMEM, "a thread for the pool at %s: %s", l->path, strerror(err));
    l->keeper_runs = true;
    return HL_OK;
}

/* ---- chunks ---- */

static void unpin_chunk(struct l3_spill *l, struct spilled_chunk *k)
{
    for (size_t n = 0; n < k->count && !k->lost; n++)
        if (l->client == NULL || hl_l3_unpin(l->client, &k->pieces[n], CALL_MS) != HL_OK)
            hl_error_clear(); /* the pin ends with the connection */
    free(k->pieces);
    *k = (struct spilled_chunk){0};
}

static hl_status find_free(struct l3_spill *l, size_t *out)
{
    for (*out = 0; *out < l->kept_cap; (*out)++)
        if (l->kept[*out].pieces == NULL)
            return HL_OK;
    size_t cap = l->kept_cap == 0 ? 64 : l->kept_cap * 2;
    struct spilled_chunk *k = realloc(l->kept, cap * sizeof(*k));
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the list of chunks in the pool");
    memset(k + l->kept_cap, 0, (cap - l->kept_cap) * sizeof(*k));
    l->kept = k;
    l->kept_cap = cap;
    return HL_OK;
}

static hl_status put_piece(struct l3_spill *l, const void *data, uint64_t bytes,
                           uint64_t deadline_ns, struct hl_pool_ref *ref)
{
    hl_status st = HL_OK;
    uint32_t crc = hl_copy_crc32(0, l->staging.ptr, data, bytes, 0); /* through the cache */
    for (int tries = 0; tries < TRIES;) {
        HL_TRY(spill_await_connection(l, deadline_ns));
        st = hl_l3_lease(l->client, &l->staging, bytes, CALL_MS, ref);
        if (st == HL_OK && ref->crc32 == crc)
            return HL_OK;
        if (st == HL_OK) {
            tries++;
            st = hl_l3_unpin(l->client, ref, CALL_MS);
            (void)st; /* if it failed, the pin ends with the connection */
            st = hl_fail(HL_ECORRUPT, "the pool at %s copied %" PRIu64 " bytes wrong", l->path,
                         bytes);
        } else if (!may_pass(st) || hl_now_ns() >= deadline_ns) {
            return st;
        } else {
            spill_pause(l, deadline_ns);
        }
    }
    return st;
}

/* Appends each piece as soon as it is leased, so that a new connection also takes over its pin. */
static hl_status put_pieces(struct l3_spill *l, struct spilled_chunk *k, const uint8_t *data,
                            uint64_t bytes, uint64_t deadline_ns)
{
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        struct hl_pool_ref ref;
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        HL_TRY(put_piece(l, data + at, n, deadline_ns, &ref));
        k->pieces[k->count++] = ref;
    }
    return k->lost ? hl_fail(HL_EUNAVAIL, "the pool at %s was recreated meanwhile", l->path)
                   : HL_OK;
}

static hl_status put_locked(struct l3_spill *l, const void *data, uint64_t bytes, uint64_t *handle)
{
    size_t at;
    uint64_t deadline_ns = hl_now_ns() + (uint64_t)l->timeout_ms * HL_NS_PER_MS;
    if (l->staging.ptr == NULL)
        HL_TRY(hl_l3_staging_open(PIECE, &l->staging));
    HL_TRY(spill_await_connection(l, deadline_ns));
    HL_TRY(start_keeper(l));
    HL_TRY(find_free(l, &at));
    struct spilled_chunk *k = &l->kept[at];
    k->pieces = calloc((bytes + PIECE - 1) / PIECE, sizeof(*k->pieces));
    if (k->pieces == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the pieces of a chunk");
    hl_status st = put_pieces(l, k, data, bytes, deadline_ns);
    if (st == HL_OK) {
        *handle = at + 1;
        return HL_OK;
    }
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    unpin_chunk(l, k);
    return hl_fail(st, "%s", text);
}

static hl_status spill_put(void *arg, const void *data, uint64_t bytes, uint64_t *handle)
{
    struct l3_spill *l = arg;
    pthread_mutex_lock(&l->lock);
    hl_status st = put_locked(l, data, bytes, handle);
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* A reconnect between two attempts can move the references to another connection. */
static hl_status get_piece(struct l3_spill *l, struct spilled_chunk *k, size_t n, void *data,
                           uint64_t bytes, uint64_t deadline_ns)
{
    for (int tries = 0;;) {
        HL_TRY(spill_await_connection(l, deadline_ns));
        if (k->lost)
            return hl_fail(
                HL_ESTALE,
                "its content is lost: the pool at %s was recreated, or its daemon was restarted "
                "while this process was stopped for longer than l3.lease, or for more than %d s "
                "while others needed the room; continue from the last checkpoint",
                l->path, HL_POOL_LEASE_SURE_MS / 1000);
        hl_status st = hl_pool_view_read(hl_l3_view(l->client), &k->pieces[n], 0, data, bytes);
        if (st == HL_OK)
            return HL_OK;
        tries += st == HL_ECORRUPT;
        if (hl_now_ns() >= deadline_ns || tries == TRIES || (st != HL_ECORRUPT && !may_pass(st)))
            return st;
        /* The pool has a new owner, but the socket has not reported it yet. */
        if (st == HL_ESTALE && spill_reconnect(l, CALL_MS) != HL_OK)
            spill_pause(l, deadline_ns);
    }
}

static hl_status spill_get(void *arg, uint64_t handle, void *data, uint64_t bytes)
{
    struct l3_spill *l = arg;
    uint64_t deadline_ns = hl_now_ns() + (uint64_t)l->timeout_ms * HL_NS_PER_MS;
    hl_status st = HL_OK;
    pthread_mutex_lock(&l->lock);
    struct spilled_chunk *k = &l->kept[handle - 1];
    for (size_t n = 0; n < k->count && st == HL_OK; n++) {
        uint64_t at = n * PIECE, len = bytes - at < PIECE ? bytes - at : PIECE;
        st = get_piece(l, k, n, (uint8_t *)data + at, len, deadline_ns);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

static void spill_drop(void *arg, uint64_t handle)
{
    struct l3_spill *l = arg;
    pthread_mutex_lock(&l->lock);
    unpin_chunk(l, &l->kept[handle - 1]);
    pthread_mutex_unlock(&l->lock);
}

/* ---- opening and closing ---- */

static void spill_close(void *arg)
{
    struct l3_spill *l = arg;
    if (l->keeper_runs) {
        pthread_mutex_lock(&l->lock);
        l->closing = true;
        pthread_cond_signal(&l->wake);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->keeper, NULL);
    }
    hl_l3_close(l->client); /* and with it all leases */
    hl_l3_staging_close(&l->staging);
    for (size_t i = 0; i < l->kept_cap; i++)
        free(l->kept[i].pieces);
    free(l->kept);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l->path);
    free(l);
}

hl_status hl_spill_l3_open(const char *socket_path, int timeout_ms, int pause_ms,
                           const struct hl_spill_ops **ops, void **arg)
{
    static const struct hl_spill_ops l3 = {
        .name = "L3", .put = spill_put, .get = spill_get, .drop = spill_drop, .close = spill_close};
    struct l3_spill *l = calloc(1, sizeof(*l));
    if (l == NULL || (l->path = strdup(socket_path)) == NULL) {
        free(l);
        return hl_fail(HL_ENOMEM, "out of memory allocating the pool at %s", socket_path);
    }
    l->timeout_ms = timeout_ms > 0 ? timeout_ms : TIMEOUT_MS;
    l->pause_ms = pause_ms > 0 ? pause_ms : PAUSE_MS;
    l->staging.fd = -1;
    pthread_mutex_init(&l->lock, NULL);
    hl_cond_init(&l->wake);
    *ops = &l3;
    *arg = l;
    return HL_OK;
}
