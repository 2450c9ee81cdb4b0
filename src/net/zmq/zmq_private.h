/* net/zmq/zmq_private.h - shared by the two ends of the migration channel.
 *
 * Threads: a socket belongs to one at a time; contexts to any.
 */
#ifndef HL_NET_ZMQ_PRIVATE_H
#define HL_NET_ZMQ_PRIVATE_H

#include <stdatomic.h>

#include "net/zmq/frame.h"
#include "net/zmq/migrate.h"

#define HL_MIG_ENDPOINT_MAX 80

/* Resolves "host:port" to "tcp://1.2.3.4:5"; *v6 tells whether it is IPv6. */
hl_status hl_mig_endpoint(const char *address, int timeout_ms, char out[HL_MIG_ENDPOINT_MAX],
                          int *v6) HL_CHECK;
/* A context with io_threads threads (0 = 1). */
hl_status hl_mig_context(int io_threads, void **out) HL_CHECK;
/* A socket with the options that both ends need: no linger, detection of dead connections, frames
 * of bounded size. */
hl_status hl_mig_socket(void *ctx, int type, int v6, void **out) HL_CHECK;
/* Sends header and payload without blocking. With `busy`, the payload is not copied: it is lent
 * until *busy, which is raised here, has dropped again. HL_EBUSY: the queue is full. */
hl_status hl_mig_post(void *sock, const struct hl_mig_frame *frame, const void *payload,
                      atomic_uint *busy) HL_CHECK;

struct hl_mig_link;

/* The connections to a receiver's socket: bounds them and counts those that are refused. One
 * thread. */
struct hl_mig_watch {
    void *told; /* socket on which libzmq reports them; NULL: nothing is watched */
    /* set by the caller */
    unsigned port;
    unsigned most;        /* connections */
    uint64_t unread_each; /* bytes that a connection may receive without a whole message */
    uint64_t unread_all;  /* all connections together */
    /* the watch's own */
    struct hl_mig_link *links; /* by descriptor, oldest first */
    unsigned open;             /* of them, without those that were cut */
    unsigned refused;
    uint64_t warn_ns;
};

/* Call before the socket is bound. Close `sock` before stopping the watch. */
hl_status hl_mig_watch_start(struct hl_mig_watch *w, void *ctx, void *sock) HL_CHECK;
void hl_mig_watch_stop(struct hl_mig_watch *w);
/* Handles the events since the last call (helios_fault_total); returns how many connections were
 * refused or cut. */
unsigned hl_mig_watch_take(struct hl_mig_watch *w);
/* A message came over the connection with this descriptor; -1: over one of them. */
void hl_mig_watch_heard(struct hl_mig_watch *w, int number);
/* Cuts connections that send a message without end. */
void hl_mig_watch_tend(struct hl_mig_watch *w);

/* The connections of a sender: `bulk` carries the chunks and their answers, `pulse` only pings, so
 * that a slow link with megabytes queued in front of a ping is not mistaken for a dead receiver. */
struct hl_migrate_line {
    char *address;
    int io_threads;
    void *ctx; /* NULL: not connected */
    void *bulk, *pulse;
    atomic_uint busy; /* payloads that libzmq still holds */
    double Bps;       /* recent throughput, 0 = unknown; survives a reset */
};

/* Connects unless connected. */
hl_status hl_mig_line_ready(struct hl_migrate_line *line, int timeout_ms) HL_CHECK;
/* Closes the connections; afterwards every lent payload has been returned. */
void hl_mig_line_reset(struct hl_migrate_line *line);
/* Keeps the connections, but waits until every lent payload has been returned. */
void hl_mig_line_settle(struct hl_migrate_line *line);
/* Returns when all sockets are closed and every lent payload has been returned. */
void hl_mig_context_term(void *ctx);

#endif
