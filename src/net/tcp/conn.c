/* net/tcp/conn.c - one client that has said HELLO: its thread reads requests and answers them. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "api/types.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/tcp/io.h"
#include "net/tcp/server.h"
#include "os/poll.h"

#define STOP_MAX_NS (2 * HL_NS_PER_S)

void hl_tcp_conn_enter(struct hl_tcp_conn *c, enum hl_tcp_doing doing)
{
    pthread_mutex_lock(&c->say_lock);
    c->doing = doing;
    pthread_mutex_unlock(&c->say_lock);
}

/* ---- sending ---- */

/* The socket has a limit for how long it takes no byte (put_timeout_ms). */
bool hl_tcp_conn_say(struct hl_tcp_conn *c, const struct hl_tcp_msg *msg, const void *bytes)
{
    uint8_t head[HL_TCP_HEAD];
    struct iovec iov[2] = {{head, sizeof(head)}, {(void *)bytes, msg->payload}};
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = msg->payload > 0 ? 2 : 1};
    hl_tcp_encode(msg, head);
    while (mh.msg_iovlen > 0) {
        ssize_t n = sendmsg(c->fd, &mh, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            hl_debug("net server: sending to client %s: %s", c->name, strerror(errno));
            return false;
        }
        for (; mh.msg_iovlen > 0 && (size_t)n >= mh.msg_iov->iov_len; mh.msg_iovlen--)
            n -= (ssize_t)mh.msg_iov++->iov_len;
        if (mh.msg_iovlen > 0) {
            mh.msg_iov->iov_base = (uint8_t *)mh.msg_iov->iov_base + n;
            mh.msg_iov->iov_len -= (size_t)n;
        }
    }
    return true;
}

bool hl_tcp_conn_refuse(struct hl_tcp_conn *c, uint64_t op, hl_status st)
{
    const char *text = hl_error_text();
    struct hl_tcp_msg msg = {.type = HL_TCP_TYPE_REFUSED,
                             .op = op,
                             .status = st,
                             .payload = (uint32_t)strnlen(text, HL_TCP_TEXT_MAX)};
    hl_tcp_count(&c->server->stat_refused, 1);
    return hl_tcp_conn_say(c, &msg, text);
}

/* ---- receiving ---- */

ssize_t hl_tcp_conn_receive(struct hl_tcp_conn *c, void *buf, size_t len, uint64_t limit_ns)
{
    uint64_t begin = 0, now;
    for (;;) {
        ssize_t n = hl_tcp_receive(c->fd, buf, len);
        if (n != 0)
            return n;
        now = hl_now_ns();
        if (begin == 0)
            begin = now;
        if (now - begin < c->server->spin_ns) {
            sched_yield(); /* the client may be waiting for this very core */
            continue;
        }
        int ready = limit_ns > 0 ? hl_poll_until(c->fd, POLLIN, begin + limit_ns)
                                 : poll(&(struct pollfd){.fd = c->fd, .events = POLLIN}, 1, -1);
        if (ready == 0)
            errno = ETIMEDOUT;
        if (ready == 0 || (ready < 0 && errno != EINTR))
            return -1;
    }
}

uint64_t hl_tcp_conn_stall_ns(const struct hl_tcp_conn *c)
{
    return (uint64_t)c->server->opts.put_timeout_ms * HL_NS_PER_MS;
}

/* Until in[] holds `len` bytes from `at` on. A message that has begun must go on. */
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

/* ---- requests ---- */

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
    hl_tcp_count(&s->stat_gets, 1);
    hl_tcp_count(&s->stat_get_bytes, bytes);
    hl_plane_count(
        &(struct hl_transfer){.plane = HL_PLANE_BACKBONE,
                              .op = hl_api_operation_name(HL_API_OPERATION_READ),
                              .path = hl_api_route_path_name(HL_API_ROUTE_PATH_TCP),
                              .reason = hl_api_route_reason_name(HL_API_ROUTE_REASON_NO_RDMA),
                              .sent = 1,
                              .bytes = bytes});
}

/* A stale location of a shard is an honest mistake: it is refused with words. */
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
    bool sent = hl_tcp_conn_say(c, &data, (const uint8_t *)s->opts.pool + m->offset);
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

/* False: the connection is to be closed. */
static bool serve_one(struct hl_tcp_conn *c)
{
    struct hl_tcp_msg m;
    if (!gather_bytes(c, HL_TCP_HEAD))
        return false;
    bool ours = hl_tcp_decode(HL_TCP_TO_SERVER, c->in + c->at, &m) && m.type != HL_TCP_TYPE_HELLO;
    if (!ours) {
        hl_tcp_count(&c->server->stat_refused, 1);
        hl_debug("net server: client %s sent what is not a request", c->name);
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
    default: /* the decoder knows the direction */
        return on_meet(c, &m);
    }
}

/* ---- life ---- */

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
    atomic_fetch_sub(&s->stat_peers, 1);
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    close(c->fd); /* out of the list, so that nobody else uses it */
    return NULL;
}

static void conn_free(struct hl_tcp_conn *c)
{
    pthread_mutex_destroy(&c->say_lock);
    free(c);
}

hl_status hl_tcp_conn_start(struct hl_net_server *s, int fd, const char *name)
{
    struct hl_tcp_conn *c = malloc(sizeof(*c));
    struct timeval limit = {s->opts.put_timeout_ms / 1000, s->opts.put_timeout_ms % 1000 * 1000};
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
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&s->stat_peers, 1);
    int error = pthread_create(&c->thread, NULL, conn_main, c);
    if (error == 0)
        DL_APPEND(s->conns, c);
    else
        atomic_fetch_sub(&s->stat_peers, 1);
    pthread_mutex_unlock(&s->lock);
    if (error == 0)
        return HL_OK;
    close(fd);
    conn_free(c);
    return hl_fail(HL_ENOMEM, "client %s: starting its thread: %s", name, strerror(error));
}

void hl_tcp_conns_reap(struct hl_net_server *s)
{
    struct hl_tcp_conn *c, *tmp;
    pthread_mutex_lock(&s->lock);
    struct hl_tcp_conn *ended = s->ended;
    s->ended = NULL;
    pthread_mutex_unlock(&s->lock);
    DL_FOREACH_SAFE (ended, c, tmp) {
        pthread_join(c->thread, NULL);
        conn_free(c);
    }
}

/* A part of a header on the wire could not be followed by anything else: the connection ends. */
static void say_wait(struct hl_tcp_conn *c)
{
    uint8_t head[HL_TCP_HEAD];
    hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_WAIT}, head);
    ssize_t n = send(c->fd, head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0 && n < (ssize_t)sizeof(head))
        shutdown(c->fd, SHUT_RDWR);
}

void hl_tcp_conns_tend(struct hl_net_server *s)
{
    struct hl_tcp_conn *c;
    pthread_mutex_lock(&s->lock);
    DL_FOREACH (s->conns, c) {
        pthread_mutex_lock(&c->say_lock);
        uint64_t landed = atomic_load_explicit(&c->landed, memory_order_relaxed);
        if (c->doing == HL_TCP_WORKS || (c->doing == HL_TCP_LANDS && landed != c->told))
            say_wait(c);
        c->told = landed;
        pthread_mutex_unlock(&c->say_lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static void cut_off(struct hl_tcp_conn *c, bool at_once)
{
    pthread_mutex_lock(&c->say_lock);
    bool answers = c->doing == HL_TCP_WORKS || c->doing == HL_TCP_ANSWERS;
    shutdown(c->fd, answers && !at_once ? SHUT_RD : SHUT_RDWR);
    pthread_mutex_unlock(&c->say_lock);
}

void hl_tcp_conns_stop(struct hl_net_server *s)
{
    struct hl_tcp_conn *c;
    uint64_t until = hl_now_ns() + STOP_MAX_NS;
    struct timespec limit = {(time_t)(until / HL_NS_PER_S), (long)(until % HL_NS_PER_S)};
    pthread_mutex_lock(&s->lock);
    DL_FOREACH (s->conns, c)
        cut_off(c, false);
    while (s->conns != NULL && hl_now_ns() < until)
        pthread_cond_timedwait(&s->moved, &s->lock, &limit);
    DL_FOREACH (s->conns, c)
        cut_off(c, true);
    while (s->conns != NULL)
        pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
    hl_tcp_conns_reap(s);
}
