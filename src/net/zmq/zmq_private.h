/* net/zmq/zmq_private.h - shared by the two ends of the migration channel. */
#ifndef HL_NET_ZMQ_PRIVATE_H
#define HL_NET_ZMQ_PRIVATE_H

#include <stdatomic.h>

#include "net/zmq/frame.h"
#include "net/zmq/migrate.h"

#define HL_MIG_ENDPOINT_MAX 80

/* "tcp://1.2.3.4:5" of "host:port", the name resolved; *v6 tells whether it is IPv6. */
hl_status hl_mig_endpoint(const char *address, int timeout_ms, char out[HL_MIG_ENDPOINT_MAX],
                          int *v6) HL_CHECK;
/* A context with io_threads threads (0 = 1). */
hl_status hl_mig_context(int io_threads, void **out) HL_CHECK;
/* A socket with what both ends need: no linger, dead connections noticed, frames of bounded size.
 */
hl_status hl_mig_socket(void *ctx, int type, int v6, void **out) HL_CHECK;
/* Header and payload without blocking. With `busy`, the payload is not copied: it is lent until
 * *busy, raised here, has gone down again. HL_EBUSY: the queue is full. */
hl_status hl_mig_post(void *sock, const struct hl_mig_frame *frame, const void *payload,
                      atomic_uint *busy) HL_CHECK;

/* Counts the connections to a receiver's socket whose handshake fails. */
struct hl_mig_watch {
    void *told; /* where libzmq tells of them; NULL: nothing is watched */
    uint64_t warn_ns;
};

/* Before the socket is bound. `sock` must be closed before the watch is stopped. */
hl_status hl_mig_watch_start(struct hl_mig_watch *w, void *ctx, void *sock) HL_CHECK;
void hl_mig_watch_stop(struct hl_mig_watch *w);
/* Count what has come since the last call (helios_fault_total); how many were refused. */
unsigned hl_mig_watch_take(struct hl_mig_watch *w);

/* The connections of a sender: `bulk` carries the chunks and their answers, `pulse` only pings, so
 * that a slow link with megabytes queued in front of a ping is not mistaken for a dead receiver. */
struct hl_migrate_line {
    char *address;
    int io_threads;
    void *ctx; /* NULL: not connected */
    void *bulk, *pulse;
    atomic_uint busy; /* payloads in libzmq's hands */
    double Bps;       /* what it has carried lately, 0 = not known; survives a reset */
};

/* Connect when there is no connection. */
hl_status hl_mig_line_ready(struct hl_migrate_line *line, int timeout_ms) HL_CHECK;
/* Lose the connections; every lent payload is back afterwards. */
void hl_mig_line_reset(struct hl_migrate_line *line);
/* Keep the connections, but have every lent payload back. */
void hl_mig_line_settle(struct hl_migrate_line *line);
/* Ends when all sockets are closed and every lent payload is back. */
void hl_mig_context_term(void *ctx);

#endif
