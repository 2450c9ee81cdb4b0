/* net/zmq/watch.c - the connections of a receiver's socket, as libzmq's monitor reports them.
 *
 * libzmq alone bounds neither the number of connections nor the bytes of a message: its queue limit
 * counts whole messages, ZMQ_MAXMSGSIZE one part. Both are bounded here:
 *
 *     accepted --room, or an older one is mute--> open --disconnected--> (gone)
 *        |                                         | is the mute one that must make room, or sends
 *        '--no room--> cut                         '- without end of a message: cut
 *
 * A connection is mute until its first message. A peer without the secret never gets further, so
 * however many such peers there are, they keep no member out. A connection that is cut is shut
 * down, and libzmq ends it as if the peer had left.
 *
 * A peer without the secret fails CURVE's handshake: it uses another mechanism, or made its HELLO
 * with another key. If it leaves in the middle of the handshake, libzmq gives no reason. */
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <uthash.h>

#include "auth/secret.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"
#include "os/file.h"

#define REFUSED   (ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define ENDS      (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED)
#define WARN_EACH (60 * HL_NS_PER_S)

/* libzmq owns the descriptor: any thread of the process may have its number by now. */
struct hl_mig_link {
    int number;
    /* its end was reported before its beginning: libzmq's threads report independently */
    bool ended;
    bool mute;
    bool heard;        /* since the last look */
    bool cut;          /* and no longer counted */
    uint64_t received; /* bytes, when the last message was taken */
    struct sockaddr_storage peer;
    UT_hash_handle hh;
};

hl_status hl_mig_watch_start(struct hl_mig_watch *w, void *ctx, void *sock)
{
    char endpoint[64];
    /* No limit: libzmq's own thread sends the events, and must never wait for us. The receiver's
     * thread takes them at each turn. */
    static const int no_limit = 0;
    snprintf(endpoint, sizeof(endpoint), "inproc://watch-%p", sock);
    w->told = zmq_socket(ctx, ZMQ_PAIR);
    if (w->told == NULL ||
        zmq_socket_monitor(sock, endpoint, REFUSED | ENDS | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) !=
            0 ||
        zmq_setsockopt(w->told, ZMQ_RCVHWM, &no_limit, sizeof(no_limit)) != 0 ||
        zmq_connect(w->told, endpoint) != 0) {
        hl_status st = hl_fail(HL_EINTERNAL, "migration receiver: watching its socket: %s",
                               zmq_strerror(errno));
        hl_mig_watch_stop(w);
        return st;
    }
    return HL_OK;
}

static void link_free(struct hl_mig_watch *w, struct hl_mig_link *l)
{
    HASH_DEL(w->links, l);
    free(l);
}

void hl_mig_watch_stop(struct hl_mig_watch *w)
{
    static const int at_once = 0;
    struct hl_mig_link *l, *next;
    HASH_ITER (hh, w->links, l, next) {
        link_free(w, l);
    }
    if (w->told == NULL)
        return;
    (void)zmq_setsockopt(w->told, ZMQ_LINGER, &at_once, sizeof(at_once));
    zmq_close(w->told);
    w->told = NULL;
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct hl_mig_link *link_find(struct hl_mig_watch *w, int number)
{
    struct hl_mig_link *l;
    HASH_FIND_INT(w->links, &number, l);
    return l;
}

static struct hl_mig_link *link_add(struct hl_mig_watch *w, int number)
{
    struct hl_mig_link *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    l->number = number;
    HASH_ADD_INT(w->links, number, l);
    return l;
}

/* False: the number is not that of a connection to this receiver any more. */
static bool peer_of(const struct hl_mig_watch *w, int fd, struct sockaddr_storage *peer)
{
    struct sockaddr_storage own = {0};
    socklen_t own_len = sizeof(own), len = sizeof(*peer);
    memset(peer, 0, sizeof(*peer));
    if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
        getpeername(fd, (struct sockaddr *)peer, &len) != 0)
        return false;
    in_port_t port = own.ss_family == AF_INET6  ? ((struct sockaddr_in6 *)&own)->sin6_port
                     : own.ss_family == AF_INET ? ((struct sockaddr_in *)&own)->sin_port
                                                : 0;
    return ntohs(port) == w->port;
}

/* libzmq may close the descriptor meanwhile, so a copy is shut down, and only if that is still the
 * connection to the same peer. */
static void link_cut(struct hl_mig_watch *w, struct hl_mig_link *l, const char *cause)
{
    struct sockaddr_storage peer;
    HL_AUTO(hl_closep) int fd = fcntl(l->number, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return; /* closed, or there is no descriptor left: it is counted on */
    if (peer_of(w, fd, &peer) && memcmp(&peer, &l->peer, sizeof(peer)) == 0)
        (void)shutdown(fd, SHUT_RDWR);
    l->cut = true;
    w->open--;
    w->refused++;
    hl_fault_count(cause, "zmq");
}

/* The oldest that has said nothing yet; NULL: there is none. The table keeps their order. */
static struct hl_mig_link *oldest_mute(const struct hl_mig_watch *w)
{
    struct hl_mig_link *l = w->links;
    while (l != NULL && (!l->mute || l->cut))
        l = l->hh.next;
    return l;
}

static void link_accepted(struct hl_mig_watch *w, int number)
{
    struct hl_mig_link *l = link_find(w, number);
    if (l != NULL && l->ended) {
        link_free(w, l);
        return;
    }
    struct hl_mig_link *mute = w->open >= w->most ? oldest_mute(w) : NULL;
    if (l != NULL || (l = link_add(w, number)) == NULL)
        return;
    l->mute = true;
    w->open++;
    (void)peer_of(w, number, &l->peer);
    if (w->open > w->most)
        link_cut(w, mute != NULL ? mute : l, "no-room");
}

static void link_ended(struct hl_mig_watch *w, int number)
{
    struct hl_mig_link *l = link_find(w, number);
    if (l != NULL) {
        w->open -= !l->cut;
        link_free(w, l);
    } else if ((l = link_add(w, number)) != NULL) {
        l->ended = l->cut = true;
    }
}

static void link_hear(struct hl_mig_link *l)
{
    l->mute = false;
    l->heard = true;
}

void hl_mig_watch_heard(struct hl_mig_watch *w, int number)
{
    struct hl_mig_link *l = link_find(w, number), *next;
    if (l != NULL)
        link_hear(l);
    if (number >= 0)
        return;
    HASH_ITER (hh, w->links, l, next) {
        link_hear(l);
    }
}

/* All bytes that have ever arrived; 0 if the kernel does not say. */
static uint64_t bytes_received(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0;
    return info.tcpi_bytes_received;
}

/* A peer that follows the protocol has no more than its credit in flight until we take a message of
 * its connection. So what has arrived beyond that since the last one is a message without end. */
void hl_mig_watch_tend(struct hl_mig_watch *w)
{
    struct hl_mig_link *l, *next, *largest = NULL;
    uint64_t all = 0, most = 0;
    HASH_ITER (hh, w->links, l, next) {
        if (l->cut)
            continue;
        uint64_t received = bytes_received(l->number);
        if (l->heard || received < l->received)
            l->received = received;
        l->heard = false;
        uint64_t unread = received - l->received;
        if (unread > w->unread_each) {
            link_cut(w, l, "foreign");
            continue;
        }
        all += unread;
        if (unread > most) {
            most = unread;
            largest = l;
        }
    }
    if (all > w->unread_all)
        link_cut(w, largest, "foreign");
}

/* ---- events ---------------------------------------------------------------------------------- */

/* An event is two messages: number and value, then the address. Returns 0 if there is none. */
static unsigned take_event(void *told, uint32_t *value)
{
    uint16_t event = 0;
    zmq_msg_t msg;
    for (int more = 1, part = 0; more; part++) {
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&msg, told, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return 0;
        }
        if (part == 0 && zmq_msg_size(&msg) >= sizeof(event) + sizeof(*value)) {
            memcpy(&event, zmq_msg_data(&msg), sizeof(event));
            memcpy(value, (const char *)zmq_msg_data(&msg) + sizeof(event), sizeof(*value));
        }
        more = zmq_msg_more(&msg);
        zmq_msg_close(&msg);
    }
    return event;
}

static void handshake_failed(struct hl_mig_watch *w, unsigned event)
{
    bool stranger = (event & REFUSED) != 0 && hl_auth_is_set();
    w->refused += (event & REFUSED) != 0;
    hl_fault_count(stranger ? "no-secret" : "no-handshake", "zmq");
    if (stranger && hl_now_ns() >= w->warn_ns) {
        hl_warn("migration receiver: a connection was refused: the peer does not know the "
                "cluster's secret; set auth.secret_file to the same file on both sides");
        w->warn_ns = hl_now_ns() + WARN_EACH;
    }
}

unsigned hl_mig_watch_take(struct hl_mig_watch *w)
{
    unsigned event, refused;
    uint32_t value = 0;
    while ((event = take_event(w->told, &value)) != 0) {
        if (event == ZMQ_EVENT_ACCEPTED)
            link_accepted(w, (int)value);
        else if (event == ZMQ_EVENT_DISCONNECTED)
            link_ended(w, (int)value);
        else
            handshake_failed(w, event);
    }
    refused = w->refused;
    w->refused = 0;
    return refused;
}
