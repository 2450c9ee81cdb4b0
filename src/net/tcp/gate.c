/* net/tcp/gate.c - the thread that accepts connections and admits peers after their HELLO.
 *
 * It waits for no single peer: HELLO is read as it arrives, and a peer is closed if it has not sent
 * it in time, or if it is the oldest of too many. Nothing is logged per connection above debug
 * level.
 *
 *     half[]   | oldest | ... | newest |  half_count of HL_TCP_HALF_OPEN
 *
 *     accepted --bytes of HELLO--> part of it --all, and accepted--> let_in: a thread of its own
 *        |                            |  '------all, and refused--> REFUSED is sent, closed
 *        '------connect_ms, not our protocol, or pushed out by a newer one--> closed
 *
 * half[], half_count, refrain_ns and shortage belong to this thread and need no lock. It takes
 * server.lock only for the connections (conn.c). One ppoll waits for the listener, for all of
 * half[], and for wake_fd, which only a stop writes; it returns at the next tick at the latest. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/tcp/io.h"
#include "net/tcp/server.h"

#define ACCEPT_AT_ONCE 16
#define REFRAIN_NS     (HL_NS_PER_S / 10) /* so that failing accepts don't loop without a pause */

static void turn_away(struct hl_net_server *s, size_t i, const char *why)
{
    struct hl_tcp_half *h = &s->half[i];
    hl_debug("net server on %s: client %s is disconnected: %s", s->address, h->name, why);
    close(h->fd);
    s->half_count--;
    memmove(h, h + 1, (s->half_count - i) * sizeof(*h));
}

static void refuse_half(struct hl_net_server *s, size_t i, hl_status st, const char *why)
{
    uint8_t bytes[HL_TCP_HEAD + HL_TCP_TEXT_MAX];
    size_t len = strlen(why);
    hl_tcp_encode(
        &(struct hl_tcp_msg){.type = HL_TCP_TYPE_REFUSED, .status = st, .payload = (uint32_t)len},
        bytes);
    memcpy(bytes + HL_TCP_HEAD, why, len);
    (void)!send(s->half[i].fd, bytes, HL_TCP_HEAD + len, MSG_DONTWAIT | MSG_NOSIGNAL);
    hl_net_count(&s->counts.refused, 1);
    turn_away(s, i, why);
}

static bool has_key(const struct hl_net_server *s)
{
    static const uint8_t none[HL_NET_KEY];
    return !hl_tcp_key_equal(s->opts.key, none);
}

/* Moves entry i from half[] to `conns`. The limit can be checked here, since only this thread adds
 * connections. */
static void let_in(struct hl_net_server *s, size_t i)
{
    struct hl_tcp_half h = s->half[i];
    if (atomic_load(&s->counts.peers) >= HL_NET_PEERS_MAX) {
        refuse_half(s, i, HL_EBUSY, "the server has too many connections; try again later");
        return;
    }
    s->half_count--;
    memmove(&s->half[i], &s->half[i + 1], (s->half_count - i) * sizeof(h));
    if (hl_tcp_conn_start(s, h.fd, h.name) != HL_OK) {
        hl_net_count(&s->counts.refused, 1);
        hl_debug("net server on %s: %s", s->address, hl_error_text());
    }
}

/* Judges a complete HELLO. */
static void judge_hello(struct hl_net_server *s, size_t i)
{
    const struct hl_tcp_half *h = &s->half[i];
    struct hl_tcp_msg msg;
    if (hl_tcp_version(h->hello) != HL_TCP_VERSION)
        refuse_half(s, i, HL_EPROTO, "the server speaks another version of the data protocol");
    else if (!hl_tcp_decode(HL_TCP_TO_SERVER, h->hello, &msg) || msg.type != HL_TCP_TYPE_HELLO)
        refuse_half(s, i, HL_EPROTO, "the first message is not HELLO");
    else if (has_key(s) && !hl_tcp_key_equal(h->hello + HL_TCP_HEAD, s->opts.key))
        refuse_half(s, i, HL_EPERM, "the server does not accept this key");
    else
        let_in(s, i);
}

/* Returns false if entry i was removed: admitted or rejected. */
static bool hear_half(struct hl_net_server *s, size_t i)
{
    struct hl_tcp_half *h = &s->half[i];
    ssize_t n = hl_tcp_receive(h->fd, h->hello + h->len, sizeof(h->hello) - h->len);
    if (n < 0) {
        if (h->len > 0)
            hl_net_count(&s->counts.refused, 1);
        turn_away(s, i, errno != 0 ? strerror(errno) : "it disconnected before HELLO");
        return false;
    }
    h->len += (size_t)n;
    if (!hl_tcp_begins(h->hello, h->len)) {
        hl_net_count(&s->counts.refused, 1);
        turn_away(s, i, "it does not speak this protocol");
        return false;
    }
    if (h->len < sizeof(h->hello))
        return true;
    judge_hello(s, i);
    return false;
}

static void name_peer(const struct sockaddr_storage *sa, socklen_t len, char *name, size_t cap)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    bool v6 = sa->ss_family == AF_INET6;
    if (getnameinfo((const struct sockaddr *)sa, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(name, cap, "?");
    else
        snprintf(name, cap, v6 ? "[%.200s]:%s" : "%.200s:%s", host, port);
}

static void add_half(struct hl_net_server *s, int fd, const struct sockaddr_storage *sa,
                     socklen_t len)
{
    /* The oldest peer may have sent its HELLO meanwhile. */
    if (s->half_count == HL_TCP_HALF_OPEN && hear_half(s, 0))
        turn_away(s, 0, "it has not sent HELLO, and other clients wait for its slot");
    struct hl_tcp_half *h = &s->half[s->half_count++];
    *h = (struct hl_tcp_half){.fd = fd, .since_ns = hl_now_ns()};
    name_peer(sa, len, h->name, sizeof(h->name));
}

static void note_shortage(struct hl_net_server *s, int error)
{
    uint64_t now = hl_now_ns(), others;
    s->refrain_ns = now + REFRAIN_NS;
    if (!hl_log_limit_passes(&s->shortage, now, &others))
        return;
    hl_warn("net server on %s cannot accept connections: %s; raise the limit of open files "
            "(ulimit -n, LimitNOFILE=) or of memory",
            s->address, strerror(error));
}

/* Accepts a few at a time, so that peers in half[] are read in between. */
static void accept_some(struct hl_net_server *s)
{
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_storage sa;
        socklen_t len = sizeof(sa);
        int fd = accept4(s->listener, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC);
        if (fd >= 0) {
            add_half(s, fd, &sa, len);
            continue;
        }
        if (hl_tcp_is_shortage(errno))
            note_shortage(s, errno);
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static void expire_halves(struct hl_net_server *s)
{
    uint64_t limit_ns = (uint64_t)s->opts.connect_ms * HL_NS_PER_MS, now = hl_now_ns();
    while (s->half_count > 0 && now > s->half[0].since_ns + limit_ns)
        turn_away(s, 0, "no HELLO in time");
}

/* Polls the listener, wake_fd, and the peers that are in half[] now. */
static void poll_halves(struct hl_net_server *s, uint64_t wait_ns)
{
    struct pollfd p[2 + HL_TCP_HALF_OPEN];
    size_t count = s->half_count;
    p[0] = (struct pollfd){.fd = hl_now_ns() < s->refrain_ns ? -1 : s->listener, .events = POLLIN};
    p[1] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    for (size_t i = 0; i < count; i++)
        p[2 + i] = (struct pollfd){.fd = s->half[i].fd, .events = POLLIN};
    struct timespec t = {(time_t)(wait_ns / HL_NS_PER_S), (long)(wait_ns % HL_NS_PER_S)};
    if (ppoll(p, 2 + count, &t, NULL) <= 0)
        return;
    for (size_t i = count; i-- > 0;) /* backwards, since a removed entry moves the later ones */
        if (p[2 + i].revents != 0)
            (void)hear_half(s, i);
    if (p[0].revents != 0)
        accept_some(s);
}

void *hl_tcp_gate_run(void *server)
{
    struct hl_net_server *s = server;
    uint64_t next_tick = hl_now_ns() + HL_TCP_TICK_NS;
    while (!atomic_load(&s->stopping)) {
        uint64_t now = hl_now_ns();
        poll_halves(s, now < next_tick ? next_tick - now : 0);
        if (hl_now_ns() < next_tick)
            continue;
        next_tick = hl_now_ns() + HL_TCP_TICK_NS;
        expire_halves(s);
        hl_tcp_conns_tend(s);
        hl_tcp_conns_reap(s);
    }
    while (s->half_count > 0)
        turn_away(s, s->half_count - 1, "the server is shutting down");
    return NULL;
}
