/* net/tcp/connect.c - a client's connections, opened one after the other, each with a HELLO. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/tcp/client.h"
#include "net/tcp/io.h"
#include "os/poll.h"

#define NAP_NS (HL_NS_PER_S / 20) /* `cancel` is checked this often */

/* Waits until the socket is connected and returns 0, or an errno, including ECANCELED. */
static int wait_connected(const struct hl_net_client *c, int fd, uint64_t deadline_ns)
{
    int error = 0;
    socklen_t len = sizeof(error);
    for (;;) {
        uint64_t now = hl_now_ns();
        if (c->cancel != NULL && atomic_load(c->cancel))
            return ECANCELED;
        if (now >= deadline_ns)
            return ETIMEDOUT;
        int ready =
            hl_poll_until(fd, POLLOUT, now + NAP_NS < deadline_ns ? now + NAP_NS : deadline_ns);
        if (ready < 0)
            return errno;
        if (ready > 0)
            break;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 ? error : errno;
}

static hl_status no_connection(struct hl_net_client *c, int error)
{
    if (error == ECANCELED)
        return hl_fail(HL_ECANCELED, "connect to %s: it was cancelled", c->address);
    if (hl_tcp_is_shortage(error))
        return hl_fail(HL_ENOMEM, "connect to %s: %s; raise the limit of open files (ulimit -n)",
                       c->address, strerror(error));
    return hl_fail(error == ETIMEDOUT ? HL_ETIMEDOUT : HL_EUNAVAIL,
                   "connect to %s: %s; check that helios-l3d runs there and listens on this "
                   "address",
                   c->address, strerror(error));
}

static hl_status open_socket(struct hl_net_client *c, const struct hl_addr *addr,
                             uint64_t deadline_ns, int *out)
{
    int error = 0;
    int fd = socket(addr->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return no_connection(c, errno);
    if (connect(fd, (const struct sockaddr *)&addr->sa, addr->len) != 0)
        error = errno == EINPROGRESS || errno == EINTR ? wait_connected(c, fd, deadline_ns) : errno;
    if (error != 0) {
        close(fd);
        return no_connection(c, error);
    }
    hl_tcp_tune(fd);
    *out = fd;
    return HL_OK;
}

static bool is_welcome(void *arg)
{
    return ((const struct hl_net_client *)arg)->greeted == NULL;
}

static hl_status say_hello(struct hl_net_client *c, struct hl_tcp_lane *lane,
                           const struct hl_net_connect_opts *opts, uint64_t deadline_ns)
{
    uint8_t hello[HL_TCP_HELLO];
    hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY}, hello);
    memcpy(hello + HL_TCP_HEAD, opts->key, HL_NET_KEY);
    c->greeted = lane;
    ssize_t n = send(lane->fd, hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n != (ssize_t)sizeof(hello))
        return hl_tcp_client_kill(c, HL_EUNAVAIL, "the connection to the server was lost (%s)",
                                  n < 0 ? strerror(errno)
                                        : "it does not receive the first message");
    return hl_tcp_client_wait(c, is_welcome, c, deadline_ns);
}

static hl_status open_lane(struct hl_net_client *c, const struct hl_addr *addr,
                           const struct hl_net_connect_opts *opts, uint64_t deadline_ns)
{
    int fd = -1;
    HL_TRY(open_socket(c, addr, deadline_ns, &fd));
    struct hl_tcp_lane *lane = malloc(sizeof(*lane));
    if (lane == NULL) {
        close(fd);
        return hl_fail(HL_ENOMEM, "connect to %s: out of memory", c->address);
    }
    memset(lane, 0, offsetof(struct hl_tcp_lane, in));
    lane->fd = fd;
    c->lanes[c->lane_count++] = lane;
    hl_status st = say_hello(c, lane, opts, deadline_ns);
    if (st == HL_ETIMEDOUT)
        return hl_fail(HL_ETIMEDOUT,
                       "connect to %s: something listens there but did not answer as a Helios data "
                       "server within %d ms",
                       c->address, opts->timeout_ms);
    return st;
}

static hl_status open_lanes(struct hl_net_client *c, const struct hl_addr *addr,
                            const struct hl_net_connect_opts *opts)
{
    uint64_t deadline_ns = hl_net_deadline(c->call.since_ns, opts->timeout_ms);
    for (int i = 0; i < opts->endpoints; i++)
        HL_TRY(open_lane(c, addr, opts, deadline_ns));
    return HL_OK;
}

hl_status hl_tcp_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    struct hl_addr addr;
    if (opts->rdma_only || opts->mode == HL_NET_GET)
        return hl_fail(HL_EUNSUPPORTED, "connect to %s: there are no one-sided reads over TCP",
                       opts->address);
    HL_TRY(hl_addr_resolve(opts->address, opts->timeout_ms, &addr));
    struct hl_net_client *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "connect to %s: out of memory", opts->address);
    c->cancel = opts->cancel;
    c->batch_bytes = opts->batch_bytes;
    c->stall_ns = (uint64_t)opts->timeout_ms * HL_NS_PER_MS;
    c->spin_ns = (uint64_t)(opts->spin_us > 0 ? opts->spin_us : 0) * 1000;
    c->call = (struct hl_net_call){.what = "connect to", .since_ns = hl_now_ns()};
    hl_addr_format(&addr, hl_addr_port(&addr), c->address);
    hl_status st = open_lanes(c, &addr, opts);
    if (st != HL_OK) {
        hl_tcp_close(c);
        return st;
    }
    c->stall_ns = (uint64_t)opts->stall_ms * HL_NS_PER_MS;
    c->cancel = opts->abandon;
    *out = c;
    return HL_OK;
}

/* ---- on the way to RDMA ---- */

struct hl_tcp_meeting {
    uint64_t op;
    bool answered;
    unsigned port;
    struct hl_id ticket;
    hl_status refused;
    char words[HL_ERROR_TEXT_MAX];
};

static bool meeting_on_answer(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m,
                              const uint8_t *payload)
{
    struct hl_tcp_meeting *w = arg;
    bool ours = m->type == HL_TCP_TYPE_MET || m->type == HL_TCP_TYPE_REFUSED;
    (void)lane;
    if (!ours || m->op != w->op || w->answered)
        return false;
    w->answered = true;
    w->port = (unsigned)m->offset;
    w->ticket = m->id;
    w->refused = m->status;
    snprintf(w->words, sizeof(w->words), "%.*s", (int)m->payload, (const char *)payload);
    return true;
}

static const struct hl_tcp_receiver meeting_receiver = {.on_answer = meeting_on_answer};

static bool is_answered(void *arg)
{
    return ((const struct hl_tcp_meeting *)arg)->answered;
}

hl_status hl_tcp_client_meet(struct hl_net_client *c, uint64_t deadline_ns, unsigned *port,
                             struct hl_id *ticket)
{
    HL_TRY(hl_tcp_client_usable(c));
    struct hl_tcp_meeting w = {.op = ++c->last_op};
    c->call = (struct hl_net_call){.what = "connect to", .since_ns = hl_now_ns()};
    HL_TRY(hl_tcp_client_ask(c, c->lanes[0],
                             &(struct hl_tcp_msg){.type = HL_TCP_TYPE_MEET, .op = w.op}));
    hl_tcp_client_receive(c, &meeting_receiver, &w);
    hl_status st = hl_tcp_client_wait(c, is_answered, &w, deadline_ns);
    hl_tcp_client_receive(c, NULL, NULL);
    HL_TRY(st);
    if (w.refused != HL_OK)
        return hl_fail(w.refused, "%s", w.words);
    *port = w.port;
    *ticket = w.ticket;
    return HL_OK;
}

bool hl_tcp_client_offered_rdma(const struct hl_net_client *c)
{
    return c->offered;
}

void hl_tcp_client_set_lack(struct hl_net_client *c, bool fell_back, bool lacks)
{
    c->fell_back = fell_back;
    c->lacks = lacks;
}
