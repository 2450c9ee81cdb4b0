/* net/tcp/client.h - internals of the TCP client: connections, waiting, the transfer in progress.
 *
 * A client has one or several connections to one server (lanes). Requests on a lane are answered in
 * order, so an answer that is not the one expected ends the client.
 *
 * Owns:    the client owns its lanes; a transfer lives on the caller's stack.
 * Threads: one at a time, the caller's.
 * Errors:  hl_tcp_client_kill closes every socket, so that nothing is written into a caller's
 *          buffer any more; every later call fails with the reason.
 * Units:   ns of hl_now_ns for deadlines.
 * Limits:  one transfer at a time, HL_TCP_WINDOW pieces requested per lane, HL_TCP_BATCHES
 *          unanswered batches.
 */
#ifndef HL_NET_TCP_CLIENT_H
#define HL_NET_TCP_CLIENT_H

#include <sys/uio.h>

#include "net/addr.h"
#include "net/call.h"
#include "net/put_list.h"
#include "net/tcp/tcp.h"
#include "net/tcp/wire.h"

#define HL_TCP_WINDOW  4
#define HL_TCP_BATCHES 4

/* A requested piece of a read: one chunk of the range. */
struct hl_tcp_piece {
    uint64_t op;
    size_t chunk, len, got;
    uint32_t crc; /* of the `got` bytes */
};

struct hl_tcp_lane {
    int fd;
    struct hl_tcp_piece pieces[HL_TCP_WINDOW]; /* from `oldest` on, in the order of the requests */
    unsigned oldest, asked;
    bool body;      /* the header of the oldest piece has arrived, its bytes come next */
    size_t at, len; /* received but unused bytes are in[at..len) */
    uint8_t in[HL_TCP_HEAD + HL_WIRE_LIST_MAX];
};

/* The transfer in progress, as seen by the code that reads the sockets. It gets what the server
 * sends; anything that was not requested kills the client. `arg` is the transfer. */
struct hl_tcp_receiver {
    /* An answer with its payload. False: it does not belong to this transfer. */
    bool (*on_answer)(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m,
                      const uint8_t *payload);
    /* For pieces; NULL: this transfer requests none. First the header of a piece arrives, after
     * which lane->body is set; */
    void (*on_piece)(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m);
    /* then its bytes are taken from the lane's buffer, */
    void (*take)(void *arg, struct hl_tcp_lane *lane);
    /* and from the socket straight to their destination; as hl_tcp_receive. */
    ssize_t (*receive)(void *arg, struct hl_tcp_lane *lane);
};

struct hl_net_client {
    struct hl_net_head head;
    struct hl_tcp_lane *lanes[HL_NET_ENDPOINTS_MAX];
    size_t lane_count;
    struct hl_tcp_lane *greeted; /* waits for WELCOME; NULL: none does */
    struct iovec out[2];         /* what is being sent on lane 0 */
    size_t out_count;
    char address[HL_ADDR_TEXT_MAX];
    uint64_t pool_len;
    struct hl_id server;
    bool offered;              /* the server has RDMA */
    bool fell_back, lacks;     /* see net.h */
    const atomic_bool *cancel; /* of the connect, afterwards of all other calls; may be NULL */
    uint64_t stall_ns, spin_ns;
    size_t batch_bytes; /* size limit of a batch */
    uint8_t *batch[HL_TCP_BATCHES];
    uint64_t last_op;
    struct hl_net_call call;
    uint64_t moved_ns;
    bool moved;      /* a byte came or went since moved_ns */
    hl_status broke; /* why the transfer can't continue; HL_OK: it can */
    char why[256];   /* of `broke` */
    struct hl_net_death death;
    const struct hl_tcp_receiver *receiver; /* NULL: no transfer is in progress */
    void *transfer;                         /* its `arg` */
};

/* Sends and receives until done(arg). Kills the client on an error, at the deadline or on a
 * stall. */
hl_status hl_tcp_client_wait(struct hl_net_client *c, bool (*done)(void *arg), void *arg,
                             uint64_t deadline_ns) HL_CHECK;
/* Closes the connections; returns hl_fail(st, what is being done, with whom, for how long, why). */
hl_status hl_tcp_client_kill(struct hl_net_client *c, hl_status st, const char *fmt, ...)
    HL_PRINTF(3, 4);
/* Fails when the client is dead. */
hl_status hl_tcp_client_usable(const struct hl_net_client *c) HL_CHECK;
/* Makes the wait in progress fail; the first reason counts. */
void hl_tcp_client_break(struct hl_net_client *c, hl_status st, const char *fmt, ...)
    HL_PRINTF(3, 4);
/* The same for an answer that breaks the protocol: counted as a fault of this cause. */
void hl_tcp_client_fault(struct hl_net_client *c, const char *cause);
/* Sends a request without payload on any lane. */
hl_status hl_tcp_client_ask(struct hl_net_client *c, struct hl_tcp_lane *lane,
                            const struct hl_tcp_msg *msg) HL_CHECK;

/* Answers go to this receiver from now on; NULL: no transfer is in progress. */
void hl_tcp_client_receive(struct hl_net_client *c, const struct hl_tcp_receiver *receiver,
                           void *transfer);

/* The entries of the table of functions; the caller of hl_tcp_connect sets the table. */
hl_status hl_tcp_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out);
void hl_tcp_close(struct hl_net_client *c);
void hl_tcp_info(const struct hl_net_client *c, struct hl_net_client_info *out);
hl_status hl_tcp_fetch(struct hl_net_client *c, uint64_t offset, void *dst, size_t len,
                       const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad);
hl_status hl_tcp_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                     int timeout_ms);

#endif
