/* net/ucx/server.h - internals of the UCX server: its peers and their puts.
 *
 * Owns:    the server owns its peers, its puts and its put worker; a peer owns its endpoint.
 * Threads: everything here runs on the server's progress thread, except for the atomic counters and
 *          the work of the put worker. Only the put worker's thread calls the put handler.
 * Errors:  a peer that breaks the protocol is dropped; the reason goes to the debug log.
 * Units:   bytes, ns.
 * Limits:  HL_UCX_HALF_OPEN peers that have not sent HELLO, HL_NET_PEERS_MAX that have;
 *          HL_UCX_PEER_SENDS answers in flight per peer; one large put and HL_UCX_BATCHES batches
 *          open per peer, hl_net_server_opts.put_queue over all peers; further ones are queued.
 *
 * There are two threads. The progress thread owns the UCX worker, the peers and the puts, and takes
 * no lock for them. The put worker's thread sees one put at a time, the one whose job it executes:
 *
 *      progress thread                                  put worker's thread
 *      UCX callbacks -> peers, puts                     put handler of the application
 *           |            todo: jobs, in order                 |
 *           |----give---> [BEGIN][SUM][SUM][COMMIT] --next--> |
 *           |<---take---- [BEGIN][COMMIT]           <-done--- |  (a SUM ends silently)
 *           '--- wake_fd, when the progress thread sleeps ----'
 *
 * The queues and `asleep` are under hl_ucx_put_worker.lock; `waiting` and `finished` are atomic, so
 * that either thread can look for work without the lock while it spins. Other threads only stop the
 * server, issue tickets (under `door`) and read the counters.
 *
 * Locks: hl_ucx_put_worker.lock and `door`, each alone and for moments. Neither is held while UCX
 * or the put handler is called.
 */
#ifndef HL_NET_UCX_SERVER_H
#define HL_NET_UCX_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uthash.h>

#include "net/put_sink.h"
#include "net/ucx/ucx_private.h"

#define HL_UCX_HALF_OPEN  256
#define HL_UCX_PEER_SENDS (64 * (HL_UCX_PIECE / HL_UCX_FRAGMENT))

/*     NEW --HELLO--> READY
 *      |               |     a broken protocol, an error of UCX, a silent put;
 *      |               |     NEW: too late, or the oldest of too many
 *      '---> FAILED <--'
 *              | housekeeping: its receives are taken back, its endpoint is being closed
 *              v
 *           CLOSING --all operations came back--> freed
 *              '------CLOSE_MAX_NS later--------> STUCK
 *
 * Callbacks only set FAILED. The housekeeping closes, so that no endpoint is closed from within its
 * own callback. */
enum hl_ucx_peer_state {
    HL_UCX_PEER_NEW,     /* connected, has not sent HELLO */
    HL_UCX_PEER_READY,   /* may ask and put */
    HL_UCX_PEER_FAILED,  /* the housekeeping will close it */
    HL_UCX_PEER_CLOSING, /* waits for its endpoint and its outstanding operations */
    HL_UCX_PEER_STUCK,   /* operations did not complete: kept until the worker is gone */
    HL_UCX_PEER_STATES
};

/* ---- the put worker: a thread with a queue, for the parts of a put that may take a while ---- */

enum hl_ucx_task { HL_UCX_BEGIN, HL_UCX_SUM, HL_UCX_COMMIT, HL_UCX_ABORT, HL_UCX_UNPACK };

struct hl_ucx_put;

/* A part of a put; it is in one queue at a time. It is a member of its put (job) or belongs to it
 * (sums), so a put is not freed before its last job has come back: SUMs are before that one in the
 * queue. */
struct hl_ucx_job {
    enum hl_ucx_task task;
    struct hl_ucx_put *put;
    uint32_t piece; /* of SUM */
    struct hl_ucx_job *next;
};

struct hl_ucx_jobs {
    struct hl_ucx_job *first, **end;
};

struct hl_ucx_put_worker {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct hl_ucx_jobs todo, done;
    atomic_uint waiting;  /* jobs in todo */
    atomic_uint finished; /* jobs in done */
    bool asleep, stopping, started;
    uint64_t spin_ns;
    pthread_t thread;
    atomic_bool *server_sleeps;
    int wake_fd; /* of the server */
};

void hl_ucx_put_worker_init(struct hl_ucx_put_worker *d);
void hl_ucx_put_worker_fini(struct hl_ucx_put_worker *d);
hl_status hl_ucx_put_worker_start(struct hl_ucx_put_worker *d) HL_CHECK;
/* Finishes the queue first. Jobs that are given later stay in the queue: UCX's last callbacks may
 * give one, and hl_ucx_puts_free ends its put. A put worker that was not started is fine. */
void hl_ucx_put_worker_stop(struct hl_ucx_put_worker *d);
void hl_ucx_put_worker_give(struct hl_ucx_put_worker *d, struct hl_ucx_job *job);
/* The next finished job, except SUMs, which end silently; NULL when there is none. */
struct hl_ucx_job *hl_ucx_put_worker_take(struct hl_ucx_put_worker *d);

/* ---- puts ---- */

/* A batch:   ARRIVING --> (QUEUED) --> EXECUTING: UNPACK --> answered
 * An object: (QUEUED) --> EXECUTING: BEGIN --> RECEIVING --> EXECUTING: COMMIT --> answered
 *
 * When its peer goes:
 *     QUEUED                 ends at once
 *     EXECUTING              goes on; a BEGIN is followed by ABORT, anything else just ends
 *     ARRIVING, RECEIVING  --> DROPPED until its receives have come back, then an object goes on to
 *                            EXECUTING: ABORT (over TCP at once: late bytes are thrown away)
 *     an end with receives outstanding --> ORPHANED: the record stays for UCX's callbacks
 *
 * Only the progress thread changes the state. In EXECUTING the status, the results and the memory
 * belong to the put worker until the job is taken back; SUMs only read what has been received. */
enum hl_ucx_put_state {
    HL_UCX_PUT_ARRIVING,  /* a batch whose message is being received */
    HL_UCX_PUT_QUEUED,    /* waits because too many are open */
    HL_UCX_PUT_EXECUTING, /* begin, commit, abort or a whole batch */
    HL_UCX_PUT_RECEIVING, /* its pieces are arriving */
    HL_UCX_PUT_DROPPED,   /* its receives are being cancelled */
    HL_UCX_PUT_ORPHANED,  /* aborted, a receive is still outstanding */
};

/* A tagged receive for one piece of a put. */
struct hl_ucx_piece {
    struct hl_ucx_put *put;
    uint32_t number;
    uint32_t crc;    /* of the bytes so far, if they are summed as they arrive */
    size_t received; /* likewise */
    void *request;   /* NULL: not posted */
};

/* A large object, or a batch of small ones. */
struct hl_ucx_put {
    struct hl_net_server *server;
    struct hl_ucx_peer *peer; /* NULL: it is gone; the put worker does not use it */
    enum hl_ucx_put_state state;
    bool batch;
    bool open; /* counted in open_puts */
    uint64_t op;
    uint64_t moved_ns; /* when the last piece arrived; after put_timeout_ms of silence its peer is
                          dropped */
    struct hl_ucx_job job;
    unsigned recvs;   /* receives that UCX has not completed; they keep the put, see ORPHANED */
    hl_status status; /* the put worker's result */
    char text[HL_ERROR_TEXT_MAX];
    /* a large object */
    struct hl_id id; /* id it wants, then its id */
    uint64_t size, received;
    uint32_t crc;
    void *token;
    uint8_t *base;
    size_t piece_len;
    uint32_t pieces, posted, announced; /* announced <= posted <= pieces */
    uint32_t *piece_crcs;
    struct hl_ucx_job *sums; /* one per piece, if they are summed afterwards */
    struct hl_ucx_piece window[HL_UCX_POSTED_MAX];
    /* a batch */
    uint8_t *items, *results;
    size_t items_len, results_len;
    struct hl_ucx_put *prev, *next;           /* all puts */
    struct hl_ucx_put *line_prev, *line_next; /* queued ones */
};

/* Executes a job on the put worker's thread. */
void hl_ucx_put_work(struct hl_ucx_job *job);

/* Creates what puts need, before the first one; destroyed with the server. */
hl_status hl_ucx_puts_prepare(struct hl_net_server *s) HL_CHECK;
/* Handles the message PUT. */
void hl_ucx_put_asked(struct hl_ucx_peer *p, const struct hl_wire *w);
/* Handles tagged messages without a posted receive: batches; anything else is refused. */
void hl_ucx_puts_collect(struct hl_net_server *s);
/* Answers puts whose jobs the put worker has finished. */
void hl_ucx_puts_answer(struct hl_net_server *s);
bool hl_ucx_puts_executing(const struct hl_net_server *s);
/* Drops peers whose put is silent, and sends WAIT to the others. */
void hl_ucx_puts_tend(struct hl_net_server *s, uint64_t now_ns);
/* Call before the peer's endpoint is closed: cancels the receives and leaves the rest to the put
 * worker. */
void hl_ucx_puts_of_peer_drop(struct hl_ucx_peer *p);
/* Call after the UCX worker and the put worker are gone: aborts what is left. */
void hl_ucx_puts_free(struct hl_net_server *s);

struct hl_ucx_peer {
    struct hl_net_server *server;
    ucp_ep_h ep;
    enum hl_ucx_peer_state state;
    uint64_t since_ns; /* when it entered the state */
    int lanes;         /* enum hl_ucx_lane */
    void *closing;
    unsigned sends;
    unsigned refusing; /* its messages that are being discarded as they arrive */
    uint32_t session;
    uint64_t batches;       /* arrived so far */
    unsigned open_batches;  /* not answered yet */
    struct hl_ucx_put *put; /* the large one */
    char name[64];
    struct hl_ucx_peer *prev, *next; /* all peers */
    UT_hash_handle hh;               /* by endpoint, until closing starts */
    UT_hash_handle hs;               /* by session, until closing starts */
};

struct hl_ucx_pending_conn {
    ucp_conn_request_h request;
    struct hl_ucx_pending_conn *prev, *next;
};

/* What a client's HELLO must carry if the server is for RDMA. */
struct hl_ucx_ticket {
    struct hl_id id;
    uint64_t since_ns;
};

struct hl_net_server {
    const struct hl_net_ops *ops;
    struct hl_net_server_opts opts;
    struct hl_ucx ucx;
    ucp_listener_h listener;
    bool asks_ticket;
    unsigned port;
    pthread_mutex_t door; /* guards the tickets, which other threads issue */
    struct hl_ucx_ticket tickets[HL_UCX_TICKETS];
    size_t next_ticket;
    ucp_mem_h memory;
    void *key; /* packed key, for clients with one-sided reads */
    size_t key_len;
    struct hl_id id;
    char address[HL_ADDR_TEXT_MAX];
    pthread_t thread;
    bool running;
    int wake_fd;
    atomic_bool stopping;
    struct hl_ucx_pending_conn *pending_conns; /* connection requests, oldest first */
    uint64_t last_conn_ns;                     /* time of the last one */
    struct hl_ucx_peer *peers;
    struct hl_ucx_peer *by_ep;
    struct hl_ucx_peer *by_session;
    struct hl_ucx_put_worker put_worker;
    struct hl_put_sink sink; /* the put worker's */
    struct hl_ucx_put *puts, *line;
    ucp_datatype_t summing; /* a datatype that sums fragments, see intake.c */
    unsigned open_puts;
    atomic_bool sleeps;                    /* about to wait for wake_fd */
    unsigned in_state[HL_UCX_PEER_STATES]; /* how many peers */
    bool attention;                        /* a peer needs the housekeeping */
    unsigned pause_ms;
    uint64_t paused_ns;
    struct hl_net_counts counts;
};

/* As hl_net_server_start, but leaves it to the caller to set the table of the back end. */
hl_status hl_ucx_server_new(const struct hl_net_server_opts *opts,
                            struct hl_net_server **out) HL_CHECK;
hl_status hl_ucx_server_new_rdma(const struct hl_net_server_opts *opts, const char *device,
                                 const char *devices, struct hl_id id,
                                 struct hl_net_server **out) HL_CHECK;
const char *hl_ucx_server_address(const struct hl_net_server *s);
void hl_ucx_server_stats(const struct hl_net_server *s, struct hl_net_server_stats *out);
void hl_ucx_server_stop(struct hl_net_server *s);

/* ---- tickets.c ---- */

/* Whether a HELLO with this ticket is accepted. */
bool hl_ucx_server_knows(struct hl_net_server *s, struct hl_id ticket);

/* ---- one client (peer.c) ---- */

/* Creates an endpoint for a connection request, or rejects it. The oldest of too many peers that
 * have not sent HELLO is dropped for it: connecting costs a peer nothing, and must not keep others
 * out. */
void hl_ucx_peer_accept(struct hl_net_server *s, ucp_conn_request_h request);
void hl_ucx_peer_enter(struct hl_ucx_peer *p, enum hl_ucx_peer_state state);
/* Marks the connection for closing; the housekeeping closes it. */
void hl_ucx_peer_fail(struct hl_ucx_peer *p, const char *why);
/* Sends to the peer and handles a failure. `s->done` NULL: hl_ucx_peer_sent. */
void hl_ucx_peer_answer(struct hl_ucx_peer *p, struct hl_ucx_send *s);
/* Completes a send to the peer; a `done` of the caller's has to call it too. */
void hl_ucx_peer_sent(void *peer, bool failed);
void hl_ucx_peer_refuse(struct hl_ucx_peer *p, uint64_t op, hl_status st, const char *text);

/* ---- requests and the housekeeping (serve.c) ---- */

/* Active-message handler of the worker; arg is the server. */
ucs_status_t hl_ucx_on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param);
/* Closes failed peers, frees closed ones, drops those that never sent HELLO; returns how many are
 * closing. */
unsigned hl_ucx_peers_tend(struct hl_net_server *s, uint64_t now_ns);
/* Call after the worker is gone, when no callback can run any more. */
void hl_ucx_peers_free(struct hl_net_server *s);

#endif
