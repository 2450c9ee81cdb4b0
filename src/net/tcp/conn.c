/* net/tcp/conn.c - one client that has said HELLO: sending, receiving, its end.
 *
 * Two threads send on a connection's socket, never at the same time:
 *
 *     its own thread                              the gate, every HL_TCP_TICK_NS
 *     SERVES, ANSWERS: answers, bytes             -
 *     WORKS: waits for its turn or the handler    WAIT
 *     RECEIVES: receives the put's bytes          WAIT, if `received` has grown since the last
 *
 * `doing` says whose turn it is. It changes under say_lock, which the gate holds while it sends, so
 * the connection's thread can't begin an answer in the middle of a WAIT.
 *
 * A connection ends by itself (serve.c), or a stop shuts its socket down. Its thread then moves it
 * from `conns` to `ended` and signals `moved`. The gate, or finally the stop, joins the thread and
 * frees the connection; no other thread does. */
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

/* Sends as many bytes as can be sent at once, waiting until the deadline; -1 if none, with
 * errno. */
static ssize_t send_some(int fd, const struct msghdr *mh, uint64_t deadline_ns)
{
    for (;;) {
        ssize_t n = sendmsg(fd, mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0 || (errno != EINTR && errno != EAGAIN))
            return n;
        int ready = errno == EINTR ? 1 : hl_poll_until(fd, POLLOUT, deadline_ns);
        if (ready == 0)
            errno = ETIMEDOUT;
        if (ready <= 0)
            return -1;
    }
}

/* One deadline for the whole message: if each send had its own, a peer that reads a little now and
 * then could block the thread for ever. */
bool hl_tcp_conn_say(struct hl_tcp_conn *c, const struct hl_tcp_msg *msg, const void *bytes)
{
    uint8_t head[HL_TCP_HEAD];
    struct iovec iov[2] = {{head, sizeof(head)}, {(void *)bytes, msg->payload}};
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = msg->payload > 0 ? 2 : 1};
    uint64_t deadline_ns = hl_now_ns() + hl_tcp_conn_stall_ns(c);
    hl_tcp_encode(msg, head);
    while (mh.msg_iovlen > 0) {
        ssize_t n = send_some(c->fd, &mh, deadline_ns);
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
    hl_net_count(&c->server->counts.refused, 1);
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
            sched_yield(); /* the client may be waiting for this CPU */
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

/* ---- life ---- */

void hl_tcp_conn_free(struct hl_tcp_conn *c)
{
    pthread_mutex_destroy(&c->say_lock);
    free(c);
}

/* Joins without holding the lock: an ended thread no longer needs it, but others do. */
void hl_tcp_conns_reap(struct hl_net_server *s)
{
    struct hl_tcp_conn *c, *tmp;
    pthread_mutex_lock(&s->lock);
    struct hl_tcp_conn *ended = s->ended;
    s->ended = NULL;
    pthread_mutex_unlock(&s->lock);
    DL_FOREACH_SAFE (ended, c, tmp) {
        pthread_join(c->thread, NULL);
        hl_tcp_conn_free(c);
    }
}

/* Nothing could follow part of a header on the wire, so the connection ends. */
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
        uint64_t received = atomic_load_explicit(&c->received, memory_order_relaxed);
        if (c->doing == HL_TCP_WORKS || (c->doing == HL_TCP_RECEIVES && received != c->reported))
            say_wait(c);
        c->reported = received;
        pthread_mutex_unlock(&c->say_lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* A put that the handler already has is answered: otherwise its sender would consider it lost and
 * put it again. SHUT_RD wakes a receiving thread and still lets it send. */
static void cut_off(struct hl_tcp_conn *c, bool at_once)
{
    pthread_mutex_lock(&c->say_lock);
    bool answers = c->doing == HL_TCP_WORKS || c->doing == HL_TCP_ANSWERS;
    shutdown(c->fd, answers && !at_once ? SHUT_RD : SHUT_RDWR);
    pthread_mutex_unlock(&c->say_lock);
}

/* Two rounds: answers can still go out for STOP_MAX_NS, then all sockets are shut down. The second
 * wait has no limit: a thread whose socket is shut down ends as soon as the put handler returns. */
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
