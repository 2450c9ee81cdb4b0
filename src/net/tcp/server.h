/* net/tcp/server.h - internals of the TCP server: the gate, the connections and their puts.
 *
 * The gate is one thread: it accepts, reads HELLO without waiting for it, and starts a thread for
 * each peer that has sent it. So an unknown peer costs a descriptor and 96 bytes, but no thread. A
 * connection's thread reads requests and answers them in order; it may block on its own peer only.
 * These threads call the put handler, one at a time.
 *
 *     gate's thread                              a thread for each connection
 *     listener --accept--> half[] --HELLO--> conns --its thread ends--> ended --reap--> freed
 *        |                   '--late, wrong, too many--> closed           (the gate joins it)
 *        '--- every HL_TCP_TICK_NS: WAIT to those whose put works or lands
 *
 *     doing (under say_lock):
 *     SERVES --a put: place_take--> WORKS --begin--> SERVES: READY --> RECEIVES --all came--> WORKS
 *        ^                            '--refused, a batch is stored, commit--> ANSWERS --'
 *        '---------------------------------------------------------------------'
 *
 *     places of puts (under lock):   tickets | taken | serving ... next_ticket |
 *                                              open_puts <= put_queue, then in the order they came
 *
 * A stop sets `stopping`, wakes the threads that wait for a place and shuts the sockets down; puts
 * that are in the handler are answered first. Lock order: lock, then say_lock; the handler's lock
 * is taken while neither is held.
 *
 * Owns:    the server owns the gate's thread and descriptors and the list of connections; a
 *          connection owns its socket, its thread and the put it has begun.
 * Threads: the list of connections and the places of puts are under `lock`; what other threads send
 *          on a connection (WAIT) is under its `say_lock`.
 * Errors:  a peer that breaks the protocol is disconnected; the reason goes to the debug log.
 * Units:   bytes, ns.
 * Limits:  HL_TCP_HALF_OPEN connections that have not sent HELLO, HL_NET_PEERS_MAX that have; one
 *          put per connection, hl_net_server_opts.put_queue over all connections.
 */
#ifndef HL_NET_TCP_SERVER_H
#define HL_NET_TCP_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log_limit.h"
#include "net/addr.h"
#include "net/net.h"
#include "net/put_sink.h"
#include "net/tcp/tcp.h"
#include "net/tcp/wire.h"

#define HL_TCP_HALF_OPEN 64
/* The gate checks deadlines and sends WAIT at this interval; clients give up after 800 ms. */
#define HL_TCP_TICK_NS 200000000ull

/* What a connection's thread is doing, as far as other threads need to know. */
enum hl_tcp_doing {
    HL_TCP_SERVES,   /* reads or sends: no other thread may send */
    HL_TCP_WORKS,    /* its put waits for its turn or is in the handler: the gate sends WAIT */
    HL_TCP_RECEIVES, /* its put's bytes arrive: the gate sends WAIT if some have since the last time
                      */
    HL_TCP_ANSWERS,  /* sends the result of its put, which a stop does not interrupt */
};

struct hl_tcp_conn {
    struct hl_net_server *server;
    int fd;
    pthread_t thread;
    pthread_mutex_t say_lock;
    enum hl_tcp_doing doing;         /* under say_lock */
    _Atomic uint64_t received;       /* bytes of the put so far */
    uint64_t reported;               /* `received` as of the last WAIT; the gate's */
    struct hl_tcp_conn *prev, *next; /* in the list of open or of ended connections */
    char name[HL_ADDR_TEXT_MAX];
    size_t at, len; /* received but unused bytes are in[at..len) */
    uint8_t in[HL_TCP_HEAD + HL_WIRE_LIST_MAX];
    uint8_t results[HL_WIRE_LIST_MAX];
};

/* A connection that has not sent HELLO yet. */
struct hl_tcp_half {
    int fd;
    uint64_t since_ns;
    size_t len;
    uint8_t hello[HL_TCP_HELLO];
    char name[HL_ADDR_TEXT_MAX];
};

struct hl_net_server {
    const struct hl_net_ops *ops;
    struct hl_net_server_opts opts;
    struct hl_id id;
    struct hl_tcp_rdma rdma; /* meet == NULL: there is none */
    char address[HL_ADDR_TEXT_MAX];
    uint64_t spin_ns;
    int listener, wake_fd;
    pthread_t gate;
    bool running;
    atomic_bool stopping;
    struct hl_tcp_half half[HL_TCP_HALF_OPEN]; /* the gate's, oldest first */
    size_t half_count;
    uint64_t refrain_ns; /* no accepts before this time */
    struct hl_log_limit shortage;
    pthread_mutex_t lock;
    pthread_cond_t moved; /* signalled when a place for a put is free, or a connection has ended */
    struct hl_tcp_conn *conns, *ended;
    uint64_t next_ticket, serving; /* of queued puts */
    int open_puts;
    pthread_mutex_t handler; /* held around each call of the put handler, by the sink */
    struct hl_put_sink sink;
    struct hl_net_counts counts;
};

/* As hl_tcp_server_start, but leaves it to the caller to set the table of the back end. */
hl_status hl_tcp_server_new(const struct hl_net_server_opts *opts, const struct hl_tcp_rdma *rdma,
                            struct hl_id id, struct hl_net_server **out) HL_CHECK;
const char *hl_tcp_server_address(const struct hl_net_server *s);
void hl_tcp_server_stats(const struct hl_net_server *s, struct hl_net_server_stats *out);
void hl_tcp_server_stop(struct hl_net_server *s);

/* ---- the gate (gate.c) ---- */

void *hl_tcp_gate_run(void *server);

/* ---- requests (serve.c) ---- */

/* Creates a connection and its thread. Takes ownership of fd, even on failure. */
hl_status hl_tcp_conn_start(struct hl_net_server *s, int fd, const char *name) HL_CHECK;

/* ---- connections (conn.c) ---- */

/* Call only when its thread has ended or was never started. */
void hl_tcp_conn_free(struct hl_tcp_conn *c);
/* Joins the threads that have ended. */
void hl_tcp_conns_reap(struct hl_net_server *s);
/* Sends WAIT to clients that would give up otherwise. */
void hl_tcp_conns_tend(struct hl_net_server *s);
/* Ends all connections; puts that are in the put handler are answered first. */
void hl_tcp_conns_stop(struct hl_net_server *s);
/* Sends a message with `bytes` (msg->payload of them); false when the connection has ended, or the
 * peer has not taken all of it within hl_tcp_conn_stall_ns. */
bool hl_tcp_conn_say(struct hl_tcp_conn *c, const struct hl_tcp_msg *msg, const void *bytes);
/* Refuses request `op` with the text of hl_error_text. */
bool hl_tcp_conn_refuse(struct hl_tcp_conn *c, uint64_t op, hl_status st);
void hl_tcp_conn_enter(struct hl_tcp_conn *c, enum hl_tcp_doing doing);
/* Receives at least one byte; -1 when the connection has ended, or with ETIMEDOUT when none arrived
 * for limit_ns (0 = no limit). */
ssize_t hl_tcp_conn_receive(struct hl_tcp_conn *c, void *buf, size_t len, uint64_t limit_ns);
/* How long a peer may pause in the middle of a message or a put, and how long it may take to read
 * an answer. */
uint64_t hl_tcp_conn_stall_ns(const struct hl_tcp_conn *c);

static inline bool hl_tcp_is_over(const struct hl_tcp_conn *c)
{
    return atomic_load_explicit(&c->server->stopping, memory_order_relaxed);
}

/* ---- puts (intake.c) ---- */

/* Handle the messages PUT and BATCH; false: the connection must be closed. */
bool hl_tcp_on_put(struct hl_tcp_conn *c, const struct hl_tcp_msg *msg);
bool hl_tcp_on_batch(struct hl_tcp_conn *c, const struct hl_tcp_msg *msg, const uint8_t *list);

#endif
