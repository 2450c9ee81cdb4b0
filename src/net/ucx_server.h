/* net/ucx_server.h - inside of the UCX server: its peers and their open puts.
 *
 * Owns:    the server owns its peers; a peer owns its endpoint and its open put.
 * Threads: everything here runs on the server's progress thread, but for the atomic counters.
 * Errors:  a peer that breaks the protocol is dropped; the reason goes to the debug log.
 * Units:   bytes, ns.
 * Limits:  HL_UCX_PEER_SENDS answers in flight per peer, one put open per peer.
 */
#ifndef HL_NET_UCX_SERVER_H
#define HL_NET_UCX_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include "net/ucx_private.h"

#define HL_UCX_PEER_SENDS (64 * (HL_UCX_PIECE / HL_UCX_FRAGMENT))

enum hl_ucx_peer_state {
    HL_UCX_PEER_NEW,     /* connected, has not said HELLO */
    HL_UCX_PEER_READY,   /* may ask and put */
    HL_UCX_PEER_FAILED,  /* to be closed by the housekeeping */
    HL_UCX_PEER_CLOSING, /* waits for its endpoint and its outstanding operations */
    HL_UCX_PEER_STUCK,   /* operations did not come back: kept until the worker is gone */
};

struct hl_ucx_put {
    uint64_t op;
    uint64_t size;
    uint32_t crc;
    void *token;
    uint8_t *base;
    uint64_t next;   /* first byte that was not announced yet: pieces come in order */
    uint64_t landed; /* bytes */
    size_t chunk_count;
    uint32_t *chunk_crcs;
};

struct hl_ucx_peer {
    struct hl_net_server *server;
    ucp_ep_h ep;
    enum hl_ucx_peer_state state;
    uint64_t since_ns; /* entered the state */
    void *closing;
    unsigned sends;
    unsigned recvs;
    struct hl_ucx_put *put;
    char name[64];
    struct hl_ucx_peer *prev, *next; /* all peers */
    UT_hash_handle hh;               /* by endpoint, until closing starts */
};

struct hl_ucx_knock {
    ucp_conn_request_h request;
    struct hl_ucx_knock *next;
};

struct hl_net_server {
    const struct hl_net_ops *ops;
    struct hl_net_server_opts opts;
    struct hl_ucx ucx;
    ucp_listener_h listener;
    ucp_mem_h memory;
    void *key; /* packed, for clients that read one-sidedly */
    size_t key_len;
    struct hl_id id;
    char address[HL_ADDR_TEXT_MAX];
    pthread_t thread;
    int running;
    int wake_fd;
    atomic_int stopping;
    struct hl_ucx_knock *knocks; /* connection requests, newest first */
    struct hl_ucx_peer *peers;
    struct hl_ucx_peer *by_ep;
    unsigned peer_count;
    int attention; /* a peer needs the housekeeping */
    unsigned pause_ms;
    uint64_t paused_ns;
    _Atomic uint64_t stat_peers, stat_gets, stat_get_bytes, stat_puts, stat_put_bytes, stat_aborted,
        stat_refused;
};

/* Active-message handler of the worker; arg is the server. */
ucs_status_t hl_ucx_on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param);
/* An endpoint for a connection request, or its rejection. */
void hl_ucx_peer_accept(struct hl_net_server *s, ucp_conn_request_h request);
void hl_ucx_peer_fail(struct hl_ucx_peer *p, const char *why);
/* Close what failed, free what is closed, drop who never said HELLO; returns how many are closing.
 */
unsigned hl_ucx_peers_tend(struct hl_net_server *s, uint64_t now_ns);
/* After the worker is gone: nothing can call back any more. */
void hl_ucx_peers_free(struct hl_net_server *s);

static inline void hl_ucx_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
