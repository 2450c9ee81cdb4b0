/* net/ucx/client.h - internals of the UCX client: connection, waiting, the transfer in progress.
 *
 * Owns:    the client owns endpoint, worker and context; a transfer lives on the caller's stack.
 * Threads: one at a time, the caller's.
 * Errors:  hl_ucx_client_kill tears all of UCX down, so that nothing can write into a caller's
 *          buffer any more; every later call fails with the reason.
 * Units:   ns of hl_now_ns for deadlines.
 * Limits:  one transfer at a time, HL_UCX_WINDOW requests in flight.
 *
 * The client has no thread of its own: the caller's thread drives UCX in hl_ucx_client_wait, and
 * every callback runs inside that call. So a client needs no lock.
 *
 *     hl_net_client --fetch--> struct hl_ucx_fetch   HL_UCX_WINDOW slots, a piece each
 *          |        --store--> struct hl_ucx_store   HL_UCX_BATCHES batches, one large object
 *          |                   (on the stack of the call; NULL between calls)
 *          '--ep, more[]-----> endpoints, each with the server's key
 *
 *     usable --error, deadline, stall, cancel--> dead: all of UCX is torn down
 *
 * There is no way back, because UCX can't cancel a transfer that is in flight; a caller that wants
 * to continue connects again.
 */
#ifndef HL_NET_UCX_CLIENT_H
#define HL_NET_UCX_CLIENT_H

#include <stdbool.h>

#include "net/call.h"
#include "net/ucx/ucx_private.h"

struct hl_ucx_fetch; /* fetch.c */
struct hl_ucx_store; /* put.c */

/* A further endpoint to the same server; over TCP it is a separate connection. */
struct hl_ucx_endpoint {
    ucp_ep_h ep;
    ucp_rkey_h key;
};

struct hl_net_client {
    struct hl_net_head head;
    struct hl_ucx ucx;
    ucp_ep_h ep;
    ucp_rkey_h key;
    struct hl_ucx_endpoint more[HL_NET_ENDPOINTS_MAX - 1]; /* share the pieces of a large read */
    size_t more_count;
    uint64_t key_base; /* the pool's address in the server */
    uint64_t pool_len;
    struct hl_id server;
    const char *path;
    bool one_sided;            /* reads use get */
    bool offered;              /* the server gave a key for it */
    const atomic_bool *cancel; /* of the connect, afterwards of all other calls; may be NULL */
    int lanes;                 /* enum hl_ucx_lane */
    char address[HL_ADDR_TEXT_MAX];
    uint64_t stall_ns;
    struct hl_net_call call;
    uint64_t last_op;
    struct hl_id ticket; /* for HELLO */
    uint32_t session;    /* for tags */
    uint64_t batches;    /* sent so far */
    size_t batch_bytes;  /* size limit of a batch */
    uint8_t *batch[HL_UCX_BATCHES];
    bool moved;         /* a byte or an answer arrived since moved_ns */
    uint64_t moved_ns;  /* when the wait in progress last saw that */
    bool welcome;       /* the server has sent WELCOME */
    int paused;         /* 0: no answer yet, 1: it has paused, -1: not now */
    ucs_status_t broke; /* the status that the error handler got */
    struct hl_net_death death;
    struct hl_ucx_fetch *fetch;
    struct hl_ucx_store *store;
};

/* Progresses until done(arg). Kills the client on an error, at the deadline or on a stall. */
hl_status hl_ucx_client_wait(struct hl_net_client *c, bool (*done)(void *arg), void *arg,
                             uint64_t deadline_ns) HL_CHECK;
/* Tears the connection down; returns hl_fail(st, what is being done, with whom, by which path, for
 * how long, and the text). */
hl_status hl_ucx_client_kill(struct hl_net_client *c, hl_status st, const char *fmt, ...)
    HL_PRINTF(3, 4);
/* Fails when the client is dead. */
hl_status hl_ucx_client_usable(const struct hl_net_client *c) HL_CHECK;
/* Finds out whether reads really are one-sided, and sets `path`. */
hl_status hl_ucx_client_find_path(struct hl_net_client *c, enum hl_net_mode mode,
                                  uint64_t deadline_ns) HL_CHECK;
/* `lane`: 0, or the number of a further endpoint, counted from 1. */
hl_status hl_ucx_send_control(struct hl_net_client *c, size_t lane,
                              const struct hl_wire *wire) HL_CHECK;

/* Messages that belong to the transfer in progress. */
void hl_ucx_fetch_on_data(struct hl_net_client *c, const struct hl_wire *w, void *data, size_t len,
                          bool rndv);
void hl_ucx_fetch_on_refused(struct hl_net_client *c, const struct hl_wire *w, const char *text,
                             size_t len);
void hl_ucx_store_on_answer(struct hl_net_client *c, const struct hl_wire *w, const void *payload,
                            size_t len);

/* The entries of the table of functions; the caller that connects sets the table. */
struct hl_ucx_meeting;
hl_status hl_ucx_client_meet(const struct hl_net_connect_opts *opts,
                             const struct hl_ucx_meeting *meeting, struct hl_net_client **out);
hl_status hl_ucx_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out);
void hl_ucx_close(struct hl_net_client *c);
void hl_ucx_info(const struct hl_net_client *c, struct hl_net_client_info *out);
hl_status hl_ucx_fetch(struct hl_net_client *c, uint64_t offset, void *dst, size_t len,
                       const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad);
hl_status hl_ucx_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                     int timeout_ms);

#endif
