/* agent/store_private.h - the parts of a node's store.
 *
 *     loop thread                  copy threads (opts.copies)         other threads
 *     -----------                  --------------------------         -------------
 *     storeCopy, storeSend         store_copy_run, store_send_run     put queues: job_end of small
 *       job_submit -> jobs           source -> target tier              copies they have sent
 *            '----> queue ---next_job-->  |                           data port and migrations:
 *       on_done <--- hl_loop_post --- job_end                           put_begin .. put_commit
 *
 * Threads: as drawn. queue_lock guards the queues. lock guards notes, kept, conns, puts and health;
 *          it is never held while bytes are transferred or a connection is closed. keep.lock: see
 *          store_keep.c. No lock is needed for: `jobs` and each job's waiters, which only the loop
 *          touches; tiers, opts and the names, which are constant while the store runs; a job's
 *          request and result, which belong to one thread at a time: the loop until it is queued, a
 *          copy thread until job_end, and then the loop again.
 *
 * Locks:   keep.lock --> a tier's own --> the pool's. lock and queue_lock are taken alone; what is
 *          called under lock only takes locks for moments (hl_rpc_open, hl_put_queue_open).
 *
 * A job: submitted --same copy is in flight--> its call waits for that one
 *            '----> queued --> running --> ended, answered on the loop
 *            '----> a call that is stopped: the job ends when no other one waits for it
 * Stopping sets `stopping` and each job's `stop`: queued jobs are taken and fail at once, running
 * ones fail at their next look at the clock (store_left), and what goes over the network at its
 * own: `stopping` or `stop` is the cancel flag of every such connection. Calls to other daemons are
 * not cancelled (a locate, a pin or a put through a socket of this host): they end with the copy's
 * deadline at the latest. */
#ifndef HL_AGENT_STORE_PRIVATE_H
#define HL_AGENT_STORE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uthash.h>

#include "agent/store.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/pace.h"
#include "core/copies/route.h"
#include "core/placement/keep.h"
#include "fetch/conn_pool.h"
#include "fetch/remote.h"
#include "mem/pool/pool.h"
#include "mem/socket/socket.h"
#include "mem/tier/tier.h"
#include "net/net.h"
#include "rpc/agent_calls.h"

struct hl_device;
struct hl_l3_server;
struct hl_migrate_server;
struct hl_plank;
struct hl_put_queue;

#define STORE_NAME_MAX    128
#define STORE_ADDRESS_MAX 288

/* Copies kept from reads in a tier; guarded by store.keep.lock. */
struct tier_keep {
    struct store *store;
    struct kept *table;     /* by key: copies that the rule has, and those that it has given up */
    uint64_t bytes;         /* of the table */
    uint64_t lingering;     /* of these, given up but still pinned */
    uint64_t loading_bytes; /* reserved, not sealed */
    unsigned leaving;       /* copies that should move down to the L2 */
};

/* The L2, or one device. */
struct store_tier {
    enum hl_api_tier tier;
    char device[96]; /* "emu:0"; "" for the L2 */
    struct hl_tier_store *t;
    int numa; /* -1 = several or unknown */
    struct tier_keep keep;
    /* of an L1 */
    struct hl_tier_store *kept; /* kept copies, next to `t`; an L2 has its kept copies in `t` */
    struct hl_device *memory;
    struct hl_plank *plank;
    enum hl_nic_class nic;
    bool direct;  /* a NIC can write into its memory, and we can address it */
    bool bounded; /* --devices limits how much of it the store may use */
};

/* How a copy was made, for people; an adopted copy has no note. */
struct store_note {
    struct store_note_key {
        struct hl_id id;
        uint64_t tier; /* index in tiers */
    } key;

    enum hl_api_route_path path;
    enum hl_api_route_reason reason;
    char transport[16];
    double seconds;
    int64_t created_ms;
    UT_hash_handle hh;
};

struct hl_migrate_line;

/* A cached connection: for the next copy from or to the same place (local, line), or shared by all
 * (rpc). */
struct store_conn {
    char address[STORE_ADDRESS_MAX];
    struct hl_l3_client *local; /* one of the three */
    struct hl_migrate_line *line;
    struct hl_rpc_peer *rpc;
    struct store_conn *next;
};

/* The queue for small copies to one address. */
struct store_puts {
    char address[STORE_ADDRESS_MAX];
    struct hl_put_queue *queue;
    unsigned users;
    struct store_puts *next;
};

/* The direct path from one peer into one tier. */
struct store_health {
    struct store_health_key {
        char peer[STORE_ADDRESS_MAX];
        uint64_t tier; /* index in tiers */
    } key;

    struct hl_route_health direct;
    UT_hash_handle hh;
};

/* Waiting jobs of one kind, and the threads that do them. */
struct store_queue {
    struct store_job *jobs; /* under queue_lock */
    pthread_cond_t cond;
    pthread_t *threads;
    int thread_count;
};

enum store_work { STORE_COPIES, STORE_LOADS, STORE_WORKS };

struct store_keep_counts {
    uint64_t loads, evicted, down; /* copies */
    uint64_t hits;                 /* reads that were reported */
};

struct store_keep {
    pthread_mutex_t lock;
    pthread_cond_t load_over; /* loads_over has changed */
    uint64_t loads_over;
    struct hl_keep rule; /* a tier's number there is its index in `tiers` */
    struct store_keep_counts counts;
    /* Orders that need room now: loads give up theirs, and none begins. Raised without the lock and
     * before the order takes it, so a load that begins under the lock later sees it. */
    atomic_uint wanted;
};

struct store {
    struct store_opts opts; /* node, host_id and l2_pool are copies in the fields below */
    int zstd;               /* of opts.migrate */
    char node[STORE_NAME_MAX];
    char host_id[64];
    char *pool_path;
    char *socket_path;
    struct hl_pool *pool;
    uint8_t *base; /* of the pool */
    struct store_tier tiers[STORE_TIERS_MAX];
    size_t tier_count;
    struct hl_l3_server *local;
    struct hl_net_server *net;
    struct hl_migrate_server *migrate;
    _Atomic uint64_t epoch;
    atomic_bool stopping; /* read by every thread; store_stop sets it, on the loop */

    pthread_mutex_t lock; /* notes, kept, conns, puts, health */
    struct store_note *notes;
    struct store_conn *kept;
    struct hl_conn_pool conns; /* connections to data ports, by address */
    struct store_puts *puts;
    struct store_health *health; /* of the direct path to each peer */

    struct store_keep keep;

    pthread_mutex_t queue_lock;
    struct store_queue queues[STORE_WORKS];
    struct store_job *jobs; /* all unanswered jobs; only used on the loop */
};

/* A CopyRequest; strings are borrowed from the job's parameters. */
struct store_request {
    struct hl_id id;
    uint64_t size; /* 0 = as the source says */
    uint32_t crc32;
    enum hl_api_tier tier, source_tier;
    const char *device, *source_device;
    int numa;
    const char *source_node, *source_host, *source_rpc, *source_data, *source_socket;
    const char *target_host, *target_address, *target_socket, *target_data;
    struct hl_id migration; /* the same in every attempt of an order */
    enum hl_api_operation op;
    uint64_t deadline_ns;
    bool keeps;              /* for a reader, as long as the cache rule allows */
    bool goes_down;          /* a kept copy moves from a device to the L2 */
    const atomic_bool *stop; /* the job's; NULL: only the end of the store stops it */
    uint64_t bytes_per_s;    /* 0: no limit */
};

/* The result of a copy. */
struct store_result {
    enum hl_api_tier tier;
    char device[96];
    uint64_t size;
    uint32_t crc32;
    int numa;
    enum hl_api_route_path path; /* unsaid = it was already here */
    enum hl_api_route_reason reason;
    char transport[16];
    double seconds;
    int64_t created_ms;
};

/* store_tiers.c */
void store_changed(struct store *s);
/* NULL: no such tier. With tier L1 and device "": the first with room, preferring those near
 * `numa`. */
struct store_tier *store_tier_find(struct store *s, enum hl_api_tier tier, const char *device,
                                   int numa, uint64_t size);
hl_status store_tier_need(struct store *s, enum hl_api_tier tier, const char *device, int numa,
                          uint64_t size, struct store_tier **out) HL_CHECK;
void store_note(struct store *s, const struct store_tier *t, struct hl_id id,
                const struct store_result *how);
/* Fills in the result for a copy that is here. */
void store_describe(struct store *s, const struct store_tier *t, const struct hl_tier_ref *ref,
                    struct store_result *out);
/* Milliseconds left, at least 1; HL_ETIMEDOUT or HL_ECANCELED when there are none. */
hl_status store_left(const struct store *s, const struct store_request *r, int *ms) HL_CHECK;
/* Pauses before a retry when nothing signals that it may succeed now. False: there is no time
 * left. */
bool store_pause(const struct store *s, const struct store_request *r);
/* That many bytes of the copy were sent: waits until the rate limit allows the next ones. */
hl_status store_pace(const struct store *s, const struct store_request *r, struct hl_pace *pace,
                     uint64_t bytes) HL_CHECK;

/* store_devices.c: the L1s */
hl_status store_devices_open(struct store *s, const struct hl_api_slot_list *machine) HL_CHECK;
void store_devices_close(struct store *s);

/* store_serve.c: the servers of the L2 */
hl_status store_serve(struct store *s) HL_CHECK;
void store_unserve(struct store *s);

/* store_conns.c: connections */
/* Shared, borrowed until the store is closed. */
hl_status store_rpc(struct store *s, const char *address, const char *interface,
                    struct hl_rpc_peer **out) HL_CHECK;
/* Leased to one thread until it is released with the status of the last call on it. */
hl_status store_local_acquire(struct store *s, const char *socket, int timeout_ms,
                              struct hl_l3_client **out) HL_CHECK;
void store_local_release(struct store *s, const char *socket, struct hl_l3_client *c, hl_status st);
hl_status store_line_acquire(struct store *s, const char *address,
                             struct hl_migrate_line **out) HL_CHECK;
void store_line_release(struct store *s, const char *address, struct hl_migrate_line *line,
                        hl_status st);
hl_status store_net_acquire(struct store *s, const char *address, enum hl_net_mode mode,
                            int timeout_ms, struct hl_conn_lease *out) HL_CHECK;
/* The same, but never a kept connection: after one was lost, others to a restarted peer are lost,
 * too. */
hl_status store_net_connect(struct store *s, const char *address, enum hl_net_mode mode,
                            int timeout_ms, struct hl_conn_lease *out) HL_CHECK;
void store_net_release(struct store *s, const char *address, enum hl_net_mode mode,
                       struct hl_conn_lease *lease, hl_status st);
/* Shared until it is released. */
hl_status store_puts_acquire(struct store *s, const char *address,
                             struct store_puts **out) HL_CHECK;
void store_puts_release(struct store *s, struct store_puts *p);
void store_conns_close(struct store *s);

/* store_source.c: where a copy is read from */
struct source {
    const struct store_request *request;
    uint64_t size;
    uint32_t crc32;
    uint32_t *crcs; /* one per chunk; NULL if `extent` has them */
    enum hl_route_link link;
    char transport[16];
    struct store_tier *own; /* of this node */
    struct hl_tier_store *own_in;
    struct hl_tier_ref own_ref;
    struct hl_l3_client *local; /* mapped */
    struct hl_pool_ref local_ref;
    bool far; /* the network */
    enum hl_net_mode mode;
    struct hl_conn_lease net;
    struct hl_extent *extent; /* in the pool served there */
    bool reconnected;
    hl_status last; /* of the connection */
};

hl_status source_open(struct store *s, const struct store_request *r, struct source *out) HL_CHECK;

/* One per chunk. */
static inline const uint32_t *source_crcs(const struct source *src)
{
    return src->extent != NULL ? src->extent->crcs : src->crcs;
}

/* Reads whole chunks from `offset`; chunks with a wrong checksum are fetched again. */
hl_status source_read(struct store *s, struct source *src, uint64_t offset, void *dst,
                      size_t len) HL_CHECK;
/* Continues over a new connection that asks the owner instead of reading its memory. */
void source_ask(struct store *s, struct source *src);
/* Forgets that a connection broke, so that the next one may be tried. */
void source_revive(struct source *src);
void source_close(struct store *s, struct source *src);

/* store_copy.c, store_send.c: run in the copy threads */
hl_status store_copy_run(struct store *s, const struct store_request *r,
                         struct store_result *out) HL_CHECK;
hl_status store_keep_run(struct store *s, const struct store_request *r,
                         struct store_result *out) HL_CHECK;
hl_status store_send_run(struct store *s, const struct store_request *r,
                         struct store_result *out) HL_CHECK;
/* A small copy to another host shares messages with others, and no thread waits for it. True:
 * `done` is called once, from any thread, with hl_error_text() if st is not HL_OK. False: it isn't
 * of that kind, so use store_send_run. `r` and `out` are borrowed until then. */
bool store_send_start(struct store *s, const struct store_request *r, struct store_result *out,
                      void (*done)(void *arg, hl_status st), void *arg);

/* store_keep.c: copies kept from reads in the L2 and in L1 */
hl_status store_keep_open(struct store *s) HL_CHECK;
void store_keep_close(struct store *s);
/* Reserves room in the tier, evicting kept copies if necessary; HL_ENOSPC as in hl_tier_reserve. */
hl_status store_reserve(struct store *s, struct store_tier *t, struct hl_id id, uint64_t size,
                        int numa, struct hl_tier_slot *out) HL_CHECK;
/* The same for puts and leases: the server's alloc function; arg is the store. */
hl_status store_alloc(void *arg, struct hl_id id, uint64_t size,
                      struct hl_pool_extent *out) HL_CHECK;
bool store_keep_find(struct store *s, const struct store_tier *t, struct hl_id id,
                     struct hl_tier_ref *out);
/* Pins a copy in the L2, kept or placed; hl_tier_unpin releases it. */
hl_status store_keep_pin(struct store *s, struct hl_id id, struct hl_tier_ref *out) HL_CHECK;
/* Turns the L2's kept copy of the shard into a placed one. */
void store_keep_place(struct store *s, struct hl_id id);
/* Drops the tier's kept copy of the shard, because there is a placed one, or none is wanted. */
void store_keep_forget(struct store *s, struct store_tier *t, struct hl_id id);
/* Drops the kept copies in all tiers; none can be found any more. */
void store_keep_drop(struct store *s, struct hl_id id);
/* Reserves room for a copy to keep. After each success call store_keep_loaded once, when the slot
 * was sealed (HL_OK) or aborted. HL_ENOSPC: the share and placed copies leave no room, or the tier
 * is a device in which store_keep_yield must make room first. */
hl_status store_keep_reserve(struct store *s, struct store_tier *t, struct hl_id id, uint64_t size,
                             int numa, struct hl_tier_slot *out) HL_CHECK;
void store_keep_loaded(struct store *s, struct store_tier *t, const struct hl_tier_slot *slot,
                       bool came_down, hl_status st);
/* Chooses copies to leave a device; store_keep_leaving returns them. False: that would not make
 * room for a copy of that size, or none can leave. */
bool store_keep_yield(struct store *s, struct store_tier *t, uint64_t size);
/* Returns one of these; the caller may copy it to the L2, and then calls store_keep_left. */
bool store_keep_leaving(struct store *s, struct store_tier *t, struct hl_id *out);
void store_keep_left(struct store *s, struct store_tier *t, struct hl_id id);
/* Copies are kept from reads in some device. */
bool store_keeps_in_devices(const struct store *s);
/* Notes that the shard was read there; does nothing if it is not kept. */
void store_keep_touch(struct store *s, struct store_tier *t, struct hl_id id, uint32_t count);

/* store_jobs.c */
hl_status store_jobs_start(struct store *s) HL_CHECK;
void store_jobs_cancel(struct store *s);
void store_jobs_join(struct store *s);
/* Borrows its strings from both. */
struct hl_api_copy store_copy_info(const struct store *s, struct hl_id id,
                                   const struct store_result *r, struct hl_arena *arena);

#endif
