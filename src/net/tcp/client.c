/* net/tcp/client.c - sending, receiving and waiting with a deadline, and ending cleanly.
 *
 * The caller's thread does all of it, without further threads or locks: it polls for spin_us,
 * because answers take only microseconds, and then sleeps in poll. */
#include "net/tcp/client.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plane.h"
#include "net/tcp/io.h"

#define NAP_NS   (HL_NS_PER_S / 10) /* `cancel` is checked this often */
#define HEAR_MAX 8                  /* reads from one lane before the next one's turn */
#define PUSH_MAX ((size_t)1 << 20)

#define PACED_PUSHES_PER_S 50
#define PACED_PUSH_MIN     ((size_t)4 << 10)
/* A piece of at most this size is received into the lane's buffer, with its header. */
#define SMALL_PIECE ((size_t)16 << 10)

void hl_tcp_client_break(struct hl_net_client *c, hl_status st, const char *fmt, ...)
{
    va_list ap;
    if (c->broke != HL_OK)
        return;
    c->broke = st;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof(c->why), fmt, ap);
    va_end(ap);
}

void hl_tcp_client_fault(struct hl_net_client *c, const char *cause)
{
    hl_fault_count(cause, "tcp");
    hl_tcp_client_break(c, HL_EPROTO, "the server's answer does not follow the protocol (%s)",
                        cause);
}

static void close_lanes(struct hl_net_client *c)
{
    for (size_t i = 0; i < c->lane_count; i++) {
        close(c->lanes[i]->fd);
        free(c->lanes[i]);
    }
    c->lane_count = 0;
    c->out_count = 0;
}

hl_status hl_tcp_client_kill(struct hl_net_client *c, hl_status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    hl_net_death_note(&c->death, &c->call, c->address, "tcp", st, fmt, ap);
    va_end(ap);
    close_lanes(c);
    return hl_fail(st, "%s", c->death.words);
}

hl_status hl_tcp_client_usable(const struct hl_net_client *c)
{
    return hl_net_death_check(&c->death, c->address);
}

/* ---- sending ---- */

static void broke_in_io(struct hl_net_client *c, int error)
{
    if (error == 0)
        hl_tcp_client_break(c, HL_EUNAVAIL,
                            "the connection to the server was lost (the server closed it)");
    else
        hl_tcp_client_break(c, HL_EUNAVAIL, "the connection to the server was lost (%s)",
                            strerror(error));
}

hl_status hl_tcp_client_ask(struct hl_net_client *c, struct hl_tcp_lane *lane,
                            const struct hl_tcp_msg *msg)
{
    uint8_t head[HL_TCP_HEAD];
    hl_tcp_encode(msg, head);
    ssize_t n;
    do
        n = send(lane->fd, head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof(head))
        return HL_OK;
    /* At most some hundred bytes are in flight, so a live server always has room for them. */
    return hl_tcp_client_kill(c, HL_EUNAVAIL, "the connection to the server was lost (%s)",
                              n < 0 ? strerror(errno) : "it does not receive the request");
}

/* Bounded, so that answers are read now and then, and paced bytes go out evenly. */
static size_t push_most(const struct hl_net_client *c)
{
    const struct hl_pace *p = c->head.pace;
    if (p == NULL || p->bytes_per_s == 0)
        return PUSH_MAX;
    size_t most = (size_t)(p->bytes_per_s / PACED_PUSHES_PER_S);
    return most < PACED_PUSH_MIN ? PACED_PUSH_MIN : most < PUSH_MAX ? most : PUSH_MAX;
}

/* Sends more of `out`; returns true if some bytes were sent. */
static bool push_out(struct hl_net_client *c)
{
    size_t most = push_most(c);
    struct iovec now[2] = {c->out[0], c->out[1]};
    struct msghdr mh = {.msg_iov = now, .msg_iovlen = c->out_count};
    if (c->out_count == 0 || c->broke != HL_OK ||
        (c->head.pace != NULL && hl_net_pace_wait_ns(&c->head, hl_now_ns()) > 0))
        return false;
    for (size_t i = 0; i < c->out_count; i++)
        if (now[i].iov_len > most)
            now[i].iov_len = most;
    ssize_t n = sendmsg(c->lanes[0]->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            broke_in_io(c, errno);
        return false;
    }
    size_t left = (size_t)n;
    if (c->head.pace != NULL)
        hl_pace_sent(c->head.pace, left, hl_now_ns());
    while (c->out_count > 0 && left >= c->out[0].iov_len) {
        left -= c->out[0].iov_len;
        c->out[0] = c->out[1];
        c->out_count--;
    }
    if (c->out_count > 0) {
        c->out[0].iov_base = (uint8_t *)c->out[0].iov_base + left;
        c->out[0].iov_len -= left;
    }
    c->moved = true;
    return n > 0;
}

/* ---- receiving ---- */

static void on_welcome(struct hl_net_client *c, const struct hl_tcp_lane *lane,
                       const struct hl_tcp_msg *m)
{
    if (c->greeted != lane) {
        hl_tcp_client_fault(c, "duplicate");
        return;
    }
    c->greeted = NULL;
    if (lane != c->lanes[0] && !hl_id_equal(c->server, m->id)) {
        hl_tcp_client_break(c, HL_EUNAVAIL, "the server was restarted");
        return;
    }
    c->pool_len = m->len;
    c->server = m->id;
    c->offered = (m->offset & HL_TCP_HAS_RDMA) != 0;
}

static void not_expected(struct hl_net_client *c, const struct hl_tcp_msg *m)
{
    hl_tcp_client_fault(c, m->op <= c->last_op ? "duplicate" : "foreign");
}

static void tcp_dispatch_message(struct hl_net_client *c, struct hl_tcp_lane *lane,
                                 const struct hl_tcp_msg *m, const uint8_t *payload)
{
    if (m->type == HL_TCP_TYPE_WELCOME)
        on_welcome(c, lane, m);
    else if (m->type == HL_TCP_TYPE_REFUSED && m->op == 0)
        hl_tcp_client_break(c, m->status, "the server refuses the request: %.*s", (int)m->payload,
                            payload);
    else if (m->type != HL_TCP_TYPE_WAIT &&
             (c->receiver == NULL || !c->receiver->on_answer(c->transfer, lane, m, payload)))
        not_expected(c, m);
}

/* Takes a piece's header, and those of its bytes that are in the buffer. */
static void begin_piece(struct hl_net_client *c, struct hl_tcp_lane *lane,
                        const struct hl_tcp_msg *m)
{
    if (c->receiver == NULL || c->receiver->on_piece == NULL) {
        not_expected(c, m);
        return;
    }
    c->receiver->on_piece(c->transfer, lane, m);
    if (c->broke == HL_OK)
        c->receiver->take(c->transfer, lane);
}

static void not_ours(struct hl_net_client *c, const uint8_t *head)
{
    unsigned version = hl_tcp_version(head);
    if (version != 0 && version != HL_TCP_VERSION)
        hl_tcp_client_break(c, HL_EPROTO,
                            "the server speaks version %u of the data protocol, this program "
                            "version %d; install the same release on both",
                            version, HL_TCP_VERSION);
    else
        hl_tcp_client_fault(c, "garbled");
}

/* Handles the whole messages in the buffer, and the beginning of a piece. */
static void parse_messages(struct hl_net_client *c, struct hl_tcp_lane *lane)
{
    struct hl_tcp_msg m;
    while (c->broke == HL_OK && !lane->body && lane->len - lane->at >= HL_TCP_HEAD) {
        const uint8_t *head = lane->in + lane->at;
        if (!hl_tcp_decode(HL_TCP_TO_CLIENT, head, &m)) {
            not_ours(c, head);
            return;
        }
        if (m.type == HL_TCP_TYPE_DATA) {
            lane->at += HL_TCP_HEAD;
            begin_piece(c, lane, &m);
            continue;
        }
        if (lane->len - lane->at < HL_TCP_HEAD + m.payload)
            return;
        lane->at += HL_TCP_HEAD + m.payload;
        tcp_dispatch_message(c, lane, &m, head + HL_TCP_HEAD);
    }
}

/* Reads more bytes into the buffer: of a large piece only the header, so that its bytes need no
 * copy. */
static ssize_t fill_buffer(struct hl_tcp_lane *lane)
{
    size_t have = lane->len - lane->at;
    if (lane->at > 0)
        memmove(lane->in, lane->in + lane->at, have);
    lane->at = 0;
    lane->len = have;
    size_t room = sizeof(lane->in) - have;
    bool bulk = lane->asked > 0 && lane->pieces[lane->oldest].len > SMALL_PIECE;
    if (bulk && have < HL_TCP_HEAD)
        room = HL_TCP_HEAD - have;
    ssize_t n = hl_tcp_receive(lane->fd, lane->in + have, room);
    lane->len += n > 0 ? (size_t)n : 0;
    return n;
}

static bool expects_data(const struct hl_net_client *c, const struct hl_tcp_lane *lane)
{
    bool talks = c->receiver != NULL && c->receiver->on_piece == NULL && lane == c->lanes[0];
    return lane->asked > 0 || c->greeted == lane || talks;
}

/* Handles what has arrived on a lane; returns true if something had. */
static bool hear_lane(struct hl_net_client *c, struct hl_tcp_lane *lane)
{
    bool heard = false;
    for (int i = 0; i < HEAR_MAX && c->broke == HL_OK && expects_data(c, lane); i++) {
        ssize_t n = lane->body ? c->receiver->receive(c->transfer, lane) : fill_buffer(lane);
        if (n < 0)
            broke_in_io(c, errno);
        if (n <= 0)
            return heard;
        heard = c->moved = true;
        parse_messages(c, lane);
    }
    return heard;
}

void hl_tcp_client_receive(struct hl_net_client *c, const struct hl_tcp_receiver *receiver,
                           void *transfer)
{
    c->receiver = receiver;
    c->transfer = transfer;
}

/* ---- waiting ---- */

static hl_status look_for_trouble(struct hl_net_client *c, uint64_t now, uint64_t deadline_ns)
{
    if (hl_net_is_cancelled(&c->head, c->cancel))
        return hl_tcp_client_kill(c, HL_ECANCELED, "it was cancelled");
    if (c->broke != HL_OK)
        return hl_tcp_client_kill(c, c->broke, "%s", c->why);
    if (now > deadline_ns)
        return hl_tcp_client_kill(c, HL_ETIMEDOUT, "no answer before the deadline");
    if (now > c->moved_ns + c->stall_ns)
        return hl_tcp_client_kill(c, HL_ETIMEDOUT, "nothing arrived for %llu ms",
                                  (unsigned long long)(c->stall_ns / HL_NS_PER_MS));
    return HL_OK;
}

static void nap_until(const struct hl_net_client *c, uint64_t now, uint64_t deadline_ns)
{
    struct pollfd p[HL_NET_ENDPOINTS_MAX];
    nfds_t count = 0;
    uint64_t stalled_ns = c->moved_ns + c->stall_ns;
    uint64_t until_ns = deadline_ns < stalled_ns ? deadline_ns : stalled_ns;
    uint64_t left = until_ns > now ? until_ns - now : 0;
    uint64_t paced = c->out_count > 0 ? hl_net_pace_wait_ns(&c->head, now) : 0;
    if (paced > 0 && paced < left)
        left = paced;
    struct timespec t = {0, (long)(left < NAP_NS ? left : NAP_NS)};
    for (size_t i = 0; i < c->lane_count; i++) {
        short events = (short)((expects_data(c, c->lanes[i]) ? POLLIN : 0) |
                               (i == 0 && c->out_count > 0 && paced == 0 ? POLLOUT : 0));
        if (events != 0)
            p[count++] = (struct pollfd){.fd = c->lanes[i]->fd, .events = events};
    }
    ppoll(p, count, &t, NULL);
}

hl_status hl_tcp_client_wait(struct hl_net_client *c, bool (*done)(void *arg), void *arg,
                             uint64_t deadline_ns)
{
    uint64_t idle_since = 0; /* set by the first idle look, so a quick answer costs no clock read */
    c->moved = true;
    while (!done(arg)) {
        bool events = push_out(c);
        for (size_t i = 0; i < c->lane_count; i++)
            events |= hear_lane(c, c->lanes[i]);
        if (c->broke == HL_OK && done(arg))
            break;
        uint64_t now = hl_now_ns();
        if (c->moved)
            c->moved_ns = now;
        c->moved = false;
        HL_TRY(look_for_trouble(c, now, deadline_ns));
        if (events || idle_since == 0)
            idle_since = now;
        else if (now - idle_since > c->spin_ns)
            nap_until(c, now, deadline_ns);
        else
            sched_yield(); /* the server may be waiting for this CPU */
    }
    return HL_OK;
}

void hl_tcp_close(struct hl_net_client *c)
{
    close_lanes(c);
    for (size_t i = 0; i < HL_TCP_BATCHES; i++)
        free(c->batch[i]);
    free(c);
}

void hl_tcp_info(const struct hl_net_client *c, struct hl_net_client_info *out)
{
    *out = (struct hl_net_client_info){.path = "tcp",
                                       .pool_len = c->pool_len,
                                       .server = c->server,
                                       .fell_back = c->fell_back,
                                       .lacks = c->lacks};
}
