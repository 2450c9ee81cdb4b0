/* net/zmq/watch.c - connections that libzmq ends before a message can arrive: only the socket's
 * monitor reports them.
 *
 * A peer without the secret fails CURVE's handshake: it uses another mechanism, or made its HELLO
 * with another key. If it leaves in the middle of the handshake, libzmq gives no reason. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "auth/secret.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"

#define REFUSED   (ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define WARN_EACH (60 * HL_NS_PER_S)

hl_status hl_mig_watch_start(struct hl_mig_watch *w, void *ctx, void *sock)
{
    char endpoint[64];
    /* No limit: libzmq's own thread sends the events, and must never wait for us. The receiver's
     * thread takes them at each turn. */
    static const int no_limit = 0;
    snprintf(endpoint, sizeof(endpoint), "inproc://watch-%p", sock);
    *w = (struct hl_mig_watch){.told = zmq_socket(ctx, ZMQ_PAIR)};
    if (w->told == NULL ||
        zmq_socket_monitor(sock, endpoint, REFUSED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) != 0 ||
        zmq_setsockopt(w->told, ZMQ_RCVHWM, &no_limit, sizeof(no_limit)) != 0 ||
        zmq_connect(w->told, endpoint) != 0) {
        hl_status st = hl_fail(HL_EINTERNAL, "migration receiver: watching its socket: %s",
                               zmq_strerror(errno));
        hl_mig_watch_stop(w);
        return st;
    }
    return HL_OK;
}

void hl_mig_watch_stop(struct hl_mig_watch *w)
{
    static const int at_once = 0;
    if (w->told == NULL)
        return;
    (void)zmq_setsockopt(w->told, ZMQ_LINGER, &at_once, sizeof(at_once));
    zmq_close(w->told);
    w->told = NULL;
}

/* An event is two messages: number and value, then the address. Returns 0 if there is none. */
static unsigned take_event(void *told)
{
    uint16_t event = 0;
    zmq_msg_t msg;
    for (int more = 1, part = 0; more; part++) {
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&msg, told, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return 0;
        }
        if (part == 0 && zmq_msg_size(&msg) >= sizeof(event))
            memcpy(&event, zmq_msg_data(&msg), sizeof(event));
        more = zmq_msg_more(&msg);
        zmq_msg_close(&msg);
    }
    return event;
}

unsigned hl_mig_watch_take(struct hl_mig_watch *w)
{
    unsigned refused = 0, event;
    while ((event = take_event(w->told)) != 0) {
        bool stranger = (event & REFUSED) != 0 && hl_auth_is_set();
        refused += (event & REFUSED) != 0;
        hl_fault_count(stranger ? "no-secret" : "no-handshake", "zmq");
        if (stranger && hl_now_ns() >= w->warn_ns) {
            hl_warn("migration receiver: a connection was refused: the peer does not know the "
                    "cluster's secret; set auth.secret_file to the same file on both sides");
            w->warn_ns = hl_now_ns() + WARN_EACH;
        }
    }
    return refused;
}
