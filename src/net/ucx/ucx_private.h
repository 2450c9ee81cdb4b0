/* net/ucx/ucx_private.h - what the UCX client and the UCX server share.
 *
 * Owns:    a hl_ucx owns context and worker; a hl_ucx_msg lives from send to completion.
 * Threads: one per hl_ucx at a time (the worker is UCS_THREAD_MODE_SERIALIZED).
 * Errors:  hl_ucx_status translates; no other file looks at ucs_status_t.
 * Units:   ns of hl_now_ns for deadlines.
 * Limits:  see the constants.
 */
#ifndef HL_NET_UCX_PRIVATE_H
#define HL_NET_UCX_PRIVATE_H

#include <stdbool.h>

#include "net/addr.h"
#include "net/net.h"
#include "net/ucx/library.h"
#include "net/ucx/ucx.h"
#include "net/ucx/wire.h"

/* Bytes of one request; divides HL_CHUNK. */
#define HL_UCX_PIECE (1u << 20)
/* Requests in flight per transfer. */
#define HL_UCX_WINDOW 4
/* Over TCP a piece is sent as fragments, one message each; divides HL_UCX_PIECE. */
#ifndef HL_UCX_FRAGMENT
#define HL_UCX_FRAGMENT (64u << 10)
#endif
/* Pieces of a put that may be in flight: the receives that the server has posted for it. */
#define HL_UCX_POSTED_MAX 64
/* Unanswered batches of small puts per client. */
#define HL_UCX_BATCHES 4
/* How long a ticket is valid, and how many are valid at a time. */
#define HL_UCX_TICKET_NS 60000000000ull
#define HL_UCX_TICKETS   256
/* Longest nap: keepalive rounds and deadlines are checked at least this often. */
#define HL_UCX_NAP_NS 100000000ull
/* Longest pause of a server for the self-test, and the shortest time between two pauses. */
#define HL_UCX_PAUSE_MS     20
#define HL_UCX_PAUSE_GAP_NS 200000000ull

struct hl_ucx {
    ucp_context_h context;
    ucp_worker_h worker;
    int efd;
    bool listens;     /* a server */
    uint64_t spin_ns; /* it spins this long before it sleeps */
};

struct hl_ucx_opts {
    const char *device;  /* restrict to this network device; "" = all */
    bool verbs;          /* use only RDMA; false: TCP, for tests */
    const char *devices; /* with verbs: what hl_ucx_verbs_usable wrote */
    bool rma;            /* allow remote gets */
    bool listens;        /* a server */
    int spin_us;         /* see net.h */
};

/* One sent message: the header must live until UCX is done with it. */
struct hl_ucx_msg {
    struct hl_wire wire;
    void (*done)(void *owner, bool failed);
    void *owner;
    char payload[];
};

const char *hl_ucx_verbs_transports(void);
/* The adapter ports that this network device belongs to, as "eth1,mlx5_0:1", read below `sys`
 * ("/sys"); false: there are none. Other ports are never used, so each network keeps to its own. */
bool hl_ucx_verbs_devices(const char *sys, const char *device, char *devices, size_t cap);
/* Whether one of this host's adapters is soft-RoCE, the only kind that names an underlying
 * device. */
bool hl_ucx_verbs_soft(const char *sys);
hl_status hl_ucx_init(struct hl_ucx *u, const struct hl_ucx_opts *opts) HL_CHECK;
void hl_ucx_fini(struct hl_ucx *u);
/* `on_message(arg, ...)` is called, by the thread that progresses the worker, for each message of
 * net. */
hl_status hl_ucx_listen_to(struct hl_ucx *u, ucp_am_recv_callback_t on_message, void *arg) HL_CHECK;
/* Sleeps until the worker or `fd` (-1: none) has an event, at most wait_ns. */
void hl_ucx_nap(struct hl_ucx *u, int fd, uint64_t wait_ns);
hl_status hl_ucx_status(ucs_status_t status);

/* Refuses IPv6. */
hl_status hl_ucx_check_family(const struct hl_addr *addr) HL_CHECK;
/* Longest message over an endpoint with these lanes: a fragment over TCP, a whole piece (by
 * rendezvous) over verbs. */
size_t hl_ucx_message_max(int lanes);

/* Sends a header and bytes. `copy`: the payload is small and copied into the message; otherwise
 * `data` must stay valid until done(owner). `done` may be NULL. On HL_OK it is called exactly once,
 * possibly before the call returns; on an error never. */
struct hl_ucx_send {
    struct hl_wire wire; /* magic and version are filled in */
    const void *data;
    size_t len;
    bool copy;
    void (*done)(void *owner, bool failed);
    void *owner;
};

hl_status hl_ucx_send(ucp_ep_h ep, const struct hl_ucx_send *s) HL_CHECK;
/* Starts a forced close; returns the request to progress (NULL: already closed). */
void *hl_ucx_ep_close(ucp_ep_h ep);
/* True when the request is complete; it is then freed. */
bool hl_ucx_request_done(void *request);

enum hl_ucx_lane {
    HL_UCX_LANE_VERBS = 1, /* messages may go over RDMA */
    HL_UCX_LANE_READ = 2,  /* one-sided reads may go over RDMA */
};

/* The lanes an endpoint has, and their text for the log. */
int hl_ucx_lanes(ucp_ep_h ep, char *text, size_t cap);

#endif
