/* net/tcp/serve.c - the thread of a client that has said HELLO: it reads requests and answers them.
 *
 *     conn_main:  WELCOME, then serve_one until the end
 *
 *     in[]   | used | at .. len: received, not used | free |      gather_bytes fills it
 *
 *     ASK   -> DATA from the pool, or REFUSED      here
 *     MEET  -> MET: port and ticket of UCX         here
 *     PUT, BATCH                                   intake.c
 *
 * `in`, `at`, `len` and the socket belong to this thread. It shares two things with the gate: the
 * lists of connections, under server.lock, and `doing`, under say_lock (server.h lists the states;
 * in SERVES no other thread sends). At its end the thread moves its connection from `conns` to
 * `ended` and signals `moved`, which wakes a stop that waits for all of them; the gate joins and
 * frees it. A stop wakes this thread by shutting its socket down. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "api/types.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/tcp/io.h"
#include "net/tcp/server.h"

/* Receives until in[] holds `len` bytes from `at` on. Once a message has begun, the rest has a
 * deadline. */
static bool gather_bytes(struct hl_tcp_conn *c, size_t len)
{
    if (c->at == c->len)
        c->at = c->len = 0;
    if (c->at + len > sizeof(c->in)) {
        memmove(c->in, c->in + c->at, c->len - c->at);
        c->len -= c->at;
        c->at = 0;
    }
    while (c->len - c->at < len) {
        bool begun = c->len > c->at;
        ssize_t n = hl_tcp_conn_receive(c, c->in + c->len, sizeof(c->in) - c->len,
                                        begun ? hl_tcp_conn_stall_ns(c) : 0);
        if (n < 0 || hl_tcp_is_over(c))
            return false;
        c->len += (size_t)n;
    }
    return true;
}

/* Tells the client the pool's size and the server's id: the bounds of its requests, and whether
 * this is the server it was connected to before. */
static bool say_welcome(struct hl_tcp_conn *c)
{
    const struct hl_net_server *s = c->server;
    return hl_tcp_conn_say(
        c,
        &(struct hl_tcp_msg){.type = HL_TCP_TYPE_WELCOME,
                             .offset = s->rdma.meet != NULL ? HL_TCP_HAS_RDMA : 0,
                             .len = s->opts.pool_len,
                             .id = s->id},
        NULL);
}

static void count_served(struct hl_net_server *s, uint64_t bytes)
{
    hl_net_count(&s->counts.gets, 1);
    hl_net_count(&s->counts.get_bytes, bytes);
    hl_net_plane_served(bytes);
}

/* A client may use a stale location, whose extent is being filled with another shard. Like an RDMA
 * read, this read takes no lock against that. The client compares every MiB with the checksum that
 * it got with the location (hl_net_fetch_verified), and locates the shard again if one differs
 * (fetch/remote.c).
 *
 * ThreadSanitizer sees neither that nor that a client in another process got the location after the
 * shard was sealed. Analysing the races of one piece takes it longer than a read may take, even if
 * they are suppressed, so these reads are hidden from it. */
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#else
#define AnnotateIgnoreReadsBegin(file, line) ((void)0)
#define AnnotateIgnoreReadsEnd(file, line)   ((void)0)
#endif

static bool say_from_pool(struct hl_tcp_conn *c, const struct hl_tcp_msg *data)
{
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    bool sent = hl_tcp_conn_say(c, data, (const uint8_t *)c->server->opts.pool + data->offset);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return sent;
}

/* A stale location of a shard is an honest mistake, so the refusal says why. */
static bool on_ask(struct hl_tcp_conn *c, const struct hl_tcp_msg *m)
{
    struct hl_net_server *s = c->server;
    if (m->offset > s->opts.pool_len || m->len > s->opts.pool_len - m->offset)
        return hl_tcp_conn_refuse(
            c, m->op,
            hl_fail(HL_EINVAL,
                    "%s: range %llu+%llu is outside the pool of %zu bytes; the shard's location "
                    "is stale or wrong",
                    s->address, (unsigned long long)m->offset, (unsigned long long)m->len,
                    s->opts.pool_len));
    struct hl_tcp_msg data = {.type = HL_TCP_TYPE_DATA,
                              .op = m->op,
                              .offset = m->offset,
                              .len = m->len,
                              .payload = (uint32_t)m->len};
    bool sent = say_from_pool(c, &data);
    if (sent)
        count_served(s, m->len);
    return sent;
}

static bool on_meet(struct hl_tcp_conn *c, const struct hl_tcp_msg *m)
{
    const struct hl_tcp_rdma *rdma = &c->server->rdma;
    unsigned port;
    struct hl_tcp_msg met = {.type = HL_TCP_TYPE_MET, .op = m->op};
    if (rdma->meet == NULL)
        return hl_tcp_conn_refuse(c, m->op,
                                  hl_fail(HL_EUNSUPPORTED, "%s has no RDMA", c->server->address));
    rdma->meet(rdma->arg, &port, &met.id);
    met.offset = port;
    return hl_tcp_conn_say(c, &met, NULL);
}

/* Returns false if the connection is to be closed. */
static bool serve_one(struct hl_tcp_conn *c)
{
    struct hl_tcp_msg m;
    if (!gather_bytes(c, HL_TCP_HEAD))
        return false;
    bool ours = hl_tcp_decode(HL_TCP_TO_SERVER, c->in + c->at, &m) && m.type != HL_TCP_TYPE_HELLO;
    if (!ours) {
        hl_net_count(&c->server->counts.refused, 1);
        hl_debug("net server: client %s sent something that is not a request", c->name);
        return false;
    }
    if (m.payload > 0 && !gather_bytes(c, HL_TCP_HEAD + m.payload))
        return false;
    const uint8_t *payload = c->in + c->at + HL_TCP_HEAD;
    c->at += HL_TCP_HEAD + m.payload;
    switch (m.type) {
    case HL_TCP_TYPE_ASK:
        return on_ask(c, &m);
    case HL_TCP_TYPE_PUT:
        return hl_tcp_on_put(c, &m);
    case HL_TCP_TYPE_BATCH:
        return hl_tcp_on_batch(c, &m, payload);
    default: /* the decoder has checked the direction */
        return on_meet(c, &m);
    }
}

static void *conn_main(void *arg)
{
    struct hl_tcp_conn *c = arg;
    struct hl_net_server *s = c->server;
    bool goes_on = say_welcome(c);
    while (goes_on && !hl_tcp_is_over(c))
        goes_on = serve_one(c);
    pthread_mutex_lock(&s->lock);
    DL_DELETE(s->conns, c);
    DL_APPEND(s->ended, c);
    atomic_fetch_sub(&s->counts.peers, 1);
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    close(c->fd); /* no longer in the list, so no other thread uses it */
    return NULL;
}

/* Called on the gate's thread. The lock is held during pthread_create, because a thread that ends
 * at once must find its connection in `conns`. */
hl_status hl_tcp_conn_start(struct hl_net_server *s, int fd, const char *name)
{
    struct hl_tcp_conn *c = malloc(sizeof(*c));
    if (c == NULL) {
        close(fd);
        return hl_fail(HL_ENOMEM, "client %s: out of memory", name);
    }
    memset(c, 0, offsetof(struct hl_tcp_conn, in));
    c->server = s;
    c->fd = fd;
    snprintf(c->name, sizeof(c->name), "%s", name);
    pthread_mutex_init(&c->say_lock, NULL);
    hl_tcp_tune(fd);
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&s->counts.peers, 1);
    int error = pthread_create(&c->thread, NULL, conn_main, c);
    if (error == 0)
        DL_APPEND(s->conns, c);
    else
        atomic_fetch_sub(&s->counts.peers, 1);
    pthread_mutex_unlock(&s->lock);
    if (error == 0)
        return HL_OK;
    close(fd);
    hl_tcp_conn_free(c);
    return hl_fail(HL_ENOMEM, "client %s: starting its thread: %s", name, strerror(error));
}
