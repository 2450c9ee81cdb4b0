/* Connections to other stores. Control-plane peers are shared. A connection for bytes is leased to
 * one copy at a time and kept for the next.
 *
 *     connection          kept in   used by
 *     RPC peer            kept      all copy threads at once; it stays until the store is closed
 *     socket, this host   kept      one copy; it is out of the list while it is leased
 *     migration line      kept      one copy; it is out of the list while it is leased
 *     data port           conns     one copy (fetch/conn_pool.h)
 *     put queue           puts      all small copies to its address, counted by `users`
 *
 *     leased --released, of use, room--> idle --acquired, alive--> leased
 *        '--its call failed as of a dead peer--> closed     '--not alive--> closed
 *     put queue: open, users > 0 --> users 0, kept --more than PUTS_MAX--> closed
 *
 * `lock` guards the lists. No thread connects, waits or closes while holding it: opening a peer or
 * a queue only creates the object, and its first call or put connects.
 *
 * No other thread knows a leased connection: it is out of every list, so its user needs no lock and
 * closes it by releasing it with a bad status. A queue stays in the list, and `users`
 * keeps it: it is only closed with 0 users, and closing joins its thread, which may still be inside
 * the `done` of the last put. So no `done` may acquire or close a queue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "net/dispatch/put_queue.h"

#define IDLE_MAX 8 /* per kind; the one that is idle longest makes room */
#define PUTS_MAX 8
#define LOCAL_MS 3000 /* for a socket on this host */

enum kind { LOCAL, LINE, RPC };

static enum kind kind_of(const struct store_conn *conn)
{
    return conn->local != NULL ? LOCAL : conn->line != NULL ? LINE : RPC;
}

static struct store_conn *conn_new(const char *address)
{
    struct store_conn *conn = calloc(1, sizeof(*conn));
    if (conn != NULL)
        snprintf(conn->address, sizeof(conn->address), "%s", address);
    return conn;
}

/* NULL is fine. */
static void conn_free(struct store_conn *conn)
{
    if (conn == NULL)
        return;
    hl_l3_close(conn->local);
    hl_migrate_line_close(conn->line);
    hl_rpc_peer_close(conn->rpc);
    free(conn);
}

/* Call with the lock held. Takes a connection out of the list; NULL when there is none. Outside the
 * list it belongs to the caller alone, who uses and closes it without the lock. */
static struct store_conn *conn_take(struct store *s, enum kind kind, const char *address)
{
    for (struct store_conn **at = &s->kept; *at != NULL; at = &(*at)->next)
        if (kind_of(*at) == kind && strcmp((*at)->address, address) == 0) {
            struct store_conn *conn = *at;
            *at = conn->next;
            return conn;
        }
    return NULL;
}

static void conn_keep(struct store *s, struct store_conn *conn)
{
    conn->next = s->kept;
    s->kept = conn;
}

/* Call with the lock held. If there are too many of a kind, takes the one that is idle longest out
 * of the list; otherwise NULL. The most recently used is at the front. */
static struct store_conn *conn_surplus(struct store *s, enum kind kind)
{
    struct store_conn **last = NULL;
    unsigned idle = 0;
    for (struct store_conn **at = &s->kept; *at != NULL; at = &(*at)->next)
        if (kind_of(*at) == kind) {
            idle++;
            last = at;
        }
    if (idle <= IDLE_MAX)
        return NULL;
    struct store_conn *conn = *last;
    *last = conn->next;
    return conn;
}

static struct store_conn *conn_lease(struct store *s, enum kind kind, const char *address)
{
    pthread_mutex_lock(&s->lock);
    struct store_conn *conn = conn_take(s, kind, address);
    pthread_mutex_unlock(&s->lock);
    return conn;
}

/* Puts the connection into the list if it is still usable; a surplus one is closed after the lock
 * is released. The rest of `leased` is what conn_new sets. */
static void conn_release(struct store *s, const char *address, struct store_conn leased,
                         hl_status st)
{
    struct store_conn *conn = conn_new(address), *closes = conn;
    if (conn == NULL) {
        hl_l3_close(leased.local);
        hl_migrate_line_close(leased.line);
        return;
    }
    conn->local = leased.local;
    conn->line = leased.line;
    if (!hl_conn_is_broken(st)) {
        pthread_mutex_lock(&s->lock);
        conn_keep(s, conn);
        closes = conn_surplus(s, kind_of(conn));
        pthread_mutex_unlock(&s->lock);
    }
    conn_free(closes);
}

/* Created under the lock, so that two copies do not create two. A peer is never taken out of the
 * list for another copy: all use it at the same time, until store_conns_close. */
hl_status store_rpc(struct store *s, const char *address, const char *interface,
                    struct hl_rpc_peer **out)
{
    hl_status st = HL_OK;
    if (address[0] == '\0')
        return hl_fail(HL_EINVAL, "the source's RPC address is missing");
    pthread_mutex_lock(&s->lock);
    struct store_conn *conn = conn_take(s, RPC, address);
    if (conn == NULL) {
        conn = conn_new(address);
        st = conn == NULL
                 ? hl_fail(HL_ENOMEM, "out of memory allocating a connection to %s", address)
                 : hl_rpc_open(s->opts.rpc, address, interface, &conn->rpc);
    }
    if (st == HL_OK) {
        *out = conn->rpc;
        conn_keep(s, conn);
    }
    pthread_mutex_unlock(&s->lock);
    if (st != HL_OK)
        free(conn);
    return st;
}

/* A kept connection is first checked for signs of life: its daemon may have been restarted. */
hl_status store_local_acquire(struct store *s, const char *socket, int timeout_ms,
                              struct hl_l3_client **out)
{
    struct store_conn *conn = conn_lease(s, LOCAL, socket);
    if (conn != NULL && hl_l3_alive(conn->local) == HL_OK) {
        *out = conn->local;
        free(conn);
        return HL_OK;
    }
    conn_free(conn);
    return hl_l3_connect(socket, timeout_ms < LOCAL_MS ? timeout_ms : LOCAL_MS, out);
}

void store_local_release(struct store *s, const char *socket, struct hl_l3_client *c, hl_status st)
{
    conn_release(s, socket, (struct store_conn){.local = c}, st);
}

/* Connecting and disconnecting takes as long as transferring some MiB. A line whose receiver was
 * restarted reconnects by itself. */
hl_status store_line_acquire(struct store *s, const char *address, struct hl_migrate_line **out)
{
    struct store_conn *conn = conn_lease(s, LINE, address);
    if (conn == NULL)
        return hl_migrate_line_open(address, s->opts.migrate.io_threads, out);
    *out = conn->line;
    free(conn);
    return HL_OK;
}

void store_line_release(struct store *s, const char *address, struct hl_migrate_line *line,
                        hl_status st)
{
    conn_release(s, address, (struct store_conn){.line = line}, st);
}

/* A store that stops ends connects and transfers soon, whatever their peers do: hl_agent_stop waits
 * for the threads that run them. The connections are closed before the store is freed. */
static struct hl_net_connect_opts connect_opts(const struct store *s, const char *address,
                                               enum hl_net_mode mode)
{
    return (struct hl_net_connect_opts){.address = address,
                                        .conf = s->opts.data,
                                        .timeout_ms = s->opts.data->connect_ms,
                                        .mode = mode,
                                        .cancel = &s->stopping,
                                        .abandon = &s->stopping,
                                        .ops = s->opts.net};
}

/* Connections of two kinds to one address are kept apart. */
static const char *net_key(const char *address, enum hl_net_mode mode, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s", mode == HL_NET_ASK ? "ask " : "", address);
    return buf;
}

hl_status store_net_acquire(struct store *s, const char *address, enum hl_net_mode mode,
                            int timeout_ms, struct hl_conn_lease *out)
{
    char key[HL_CONN_POOL_KEY];
    pthread_mutex_lock(&s->lock);
    *out = hl_conn_pool_acquire(&s->conns, net_key(address, mode, key, sizeof(key)));
    pthread_mutex_unlock(&s->lock);
    if (out->client == NULL)
        return store_net_connect(s, address, mode, timeout_ms, out);
    hl_net_renew(&out->client);
    return HL_OK;
}

/* The epoch is read under the lock and before the connect: a connection that was made while the
 * pool was emptied is of the old epoch, and is not kept. */
hl_status store_net_connect(struct store *s, const char *address, enum hl_net_mode mode,
                            int timeout_ms, struct hl_conn_lease *out)
{
    pthread_mutex_lock(&s->lock);
    *out = (struct hl_conn_lease){.epoch = s->conns.epoch};
    pthread_mutex_unlock(&s->lock);
    struct hl_net_connect_opts opts = connect_opts(s, address, mode);
    if (timeout_ms < opts.timeout_ms)
        opts.timeout_ms = timeout_ms;
    return hl_net_connect_with(&opts, &out->client);
}

void store_net_release(struct store *s, const char *address, enum hl_net_mode mode,
                       struct hl_conn_lease *lease, hl_status st)
{
    char key[HL_CONN_POOL_KEY];
    pthread_mutex_lock(&s->lock);
    hl_conn_pool_release(&s->conns, net_key(address, mode, key, sizeof(key)), lease, st);
    pthread_mutex_unlock(&s->lock);
    hl_net_close(lease->client);
    lease->client = NULL;
}

/* Puts in the queue fail as soon as the store stops (`cancel`), without waiting for their
 * deadlines. */
static hl_status puts_open(struct store *s, const char *address, struct store_puts **out)
{
    struct store_puts *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a connection to %s", address);
    snprintf(p->address, sizeof(p->address), "%s", address);
    struct hl_put_queue_opts opts = {.connect = connect_opts(s, p->address, HL_NET_AUTO),
                                     .cancel = &s->stopping};
    opts.connect.endpoints = 1;
    hl_status st = hl_put_queue_open(&opts, &p->queue);
    if (st != HL_OK) {
        free(p);
        return st;
    }
    *out = p;
    return HL_OK;
}

static void puts_close(struct store_puts *p)
{
    if (p == NULL)
        return;
    hl_put_queue_close(p->queue);
    free(p);
}

/* Call with the lock held. If the list is too long, takes an unused queue out of it; NULL when
 * there is none. */
static struct store_puts *puts_spare(struct store *s)
{
    struct store_puts **spare = NULL;
    size_t count = 0;
    for (struct store_puts **at = &s->puts; *at != NULL; at = &(*at)->next) {
        count++;
        if ((*at)->users == 0)
            spare = at;
    }
    if (count <= PUTS_MAX || spare == NULL)
        return NULL;
    struct store_puts *p = *spare;
    *spare = p->next;
    return p;
}

/* An unused surplus queue is closed after the lock is released, by the thread that made the list
 * too long. */
hl_status store_puts_acquire(struct store *s, const char *address, struct store_puts **out)
{
    struct store_puts *spare = NULL;
    hl_status st = HL_OK;
    pthread_mutex_lock(&s->lock);
    struct store_puts *p = s->puts;
    while (p != NULL && strcmp(p->address, address) != 0)
        p = p->next;
    if (p == NULL && (st = puts_open(s, address, &p)) == HL_OK) {
        p->next = s->puts;
        s->puts = p;
    }
    if (st == HL_OK) {
        p->users++;
        *out = p;
        spare = puts_spare(s);
    }
    pthread_mutex_unlock(&s->lock);
    puts_close(spare);
    return st;
}

void store_puts_release(struct store *s, struct store_puts *p)
{
    pthread_mutex_lock(&s->lock);
    p->users--;
    pthread_mutex_unlock(&s->lock);
}

/* Call when no copy thread is left and no small put is in flight: then nothing is in use. */
void store_conns_close(struct store *s)
{
    struct hl_net_client *conns[HL_CONN_POOL_MAX];
    unsigned count = hl_conn_pool_clear(&s->conns, conns);
    for (unsigned i = 0; i < count; i++)
        hl_net_close(conns[i]);
    while (s->puts != NULL) {
        struct store_puts *p = s->puts;
        s->puts = p->next;
        puts_close(p);
    }
    while (s->kept != NULL) {
        struct store_conn *conn = s->kept;
        s->kept = conn->next;
        conn_free(conn);
    }
}
