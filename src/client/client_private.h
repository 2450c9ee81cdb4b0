/* client/client_private.h - the parts of libhelios.
 *
 * Threads: any. Access tables and counters are atomics. While the mapped pool serves them,
 *          helios_get, helios_get_range and helios_find take no lock but names_lock, where a read
 * is checked against a list: attach.readers keeps the pool for them (attach.c). Lock order:
 *
 *     client->lock            lists, views, versions; held during calls to daemons
 *       attach.lock           ways to the pool, views, pins; held while a daemon is asked for a way
 *         names_lock          names and listed checksums      held for moments
 *         net->lock           locations, connections          held for moments
 *         hl_l3_client's      one exchange on the pool's socket
 *     copies->lock            stores of other nodes, suspects
 *       net->lock             of such a store: it learns its address, and closes idle connections
 *     maintenance_lock        `closing`; held while the thread sleeps, and for no work
 *
 * A lock is taken after those above it that are less indented, never before one of them. Only two
 * are held while bytes move: client->lock, for a view that is made, and that of the socket, for a
 * put through it, which a view's pin then waits for.
 */
#ifndef HL_CLIENT_PRIVATE_H
#define HL_CLIENT_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uthash.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/id.h"
#include "base/plane.h"
#include "base/status.h"
#include "fetch/conf.h"
#include "fetch/remote.h"
#include "helios/helios.h"
#include "mem/socket/socket.h"
#include "net/conf.h"
#include "rpc/agent_calls.h"
#include "rpc/controller_calls.h"
#include "rpc/l3_calls.h"

/* below this a lock or a clock read is noticeable */
#define SMALL_READ         ((uint64_t)16 << 10)
#define CLIENT_RETRIES_MAX 100

/* How long to wait for a silent daemon: until the deadline, for one call, or briefly, because there
 * may be another copy. */
enum renew { RENEW_WAIT, RENEW_ONCE, RENEW_QUICK };

enum client_way { WAY_AUTO, WAY_SHM, WAY_NET };

/* Where the Controller's address comes from: the caller or its environment, cluster.json, the
 * configuration, or nowhere. */
enum found { FOUND_GIVEN, FOUND_LOCAL, FOUND_CONFIGURED, FOUND_DEFAULT };

struct shm;
struct net;
struct copies;
struct device_mapping;
struct access_table;

/* A report to the Controller. It is repeated under the same number until it is answered; what is
 * counted meanwhile goes into the next report. So each access counts exactly once. */
struct access_report {
    uint64_t incarnation; /* of this client; 0 = none yet */
    uint64_t sequence;
    bool waits;       /* for the Controller's answer */
    uint64_t aged_ns; /* time at which its ages were computed */
    struct hl_arena arena;
    struct hl_api_controller_report_access_params p;
};

/* The deadline of one operation, and what happened during it. */
struct operation {
    helios_client *client;
    uint64_t started_ns;
    uint64_t deadline_ns;
    bool timed; /* started_ns is exact */
    uint32_t crc_failures;
    uint32_t retries;
    /* transport of another node's copy that served the read; NULL = none did */
    const char *elsewhere;
    bool from_store; /* the node's own store served the read */
    bool from_kept;  /* served by a copy there that earlier reads left behind; not by one that was
                        just loaded */
    uint64_t
        /* since when the Controller has named places that lack the shard; 0 = it has not */
        unsure_ns;
};

/* A view handed out by helios_map or helios_map_private. */
struct mapping {
    const void *data;
    uint64_t size;
    unsigned refs;
    struct hl_pool_ref ref;
    /* private memory of this view; base NULL = it shows the pool itself */
    struct hl_pool_private own;
    struct shm *shm; /* the pool whose pages it shows; NULL = it is a copy */
    struct shm *pin; /* the pool whose connection pins it; NULL = none */
    bool net;        /* the bytes came over the network */
    UT_hash_handle hh;
};

/* How this client reaches the pool. */
struct attach {
    pthread_mutex_t lock;
    _Atomic(struct shm *) shm;   /* NULL: read through net */
    _Atomic(struct shm *) store; /* the node's own store (L2); NULL = it has none */
    const char *store_socket;    /* NULL = the rank was given none */
    atomic_uint readers;         /* threads that may hold a struct shm without a reference */
    struct shm *retired;         /* replaced, not closed yet */
    struct net *net;             /* never NULL; connects on first need */
    struct mapping *mappings;    /* by data */
    struct device_mapping *devices;
    char incarnation[40];
};

/* One shard written by this client and not committed yet. */
struct pending {
    struct hl_api_shard shard; /* in the arena */
    struct hl_arena arena;
    struct pending *next;
};

struct derived_shard;

struct shard_name {
    struct hl_id id;
    char *text; /* "model@3/pp0/tp1/layer-0002" */
    bool listed;
    uint64_t size; /* from the catalogue, if listed */
    uint32_t crc32;
    UT_hash_handle hh;
};

/* Transfers of one kind; see planes.c. */
struct tally {
    atomic_uint_fast64_t ops, bytes;
    atomic_uint_fast64_t ns, latency[HL_PLANE_BUCKETS]; /* only of transfers that were timed */
};

enum tally_op { TALLY_READ, TALLY_WRITE, TALLY_OPS };

struct counters {
    atomic_uint_fast64_t read_ns, write_ns;
    struct tally tally[TALLY_OPS][2][2]; /* [op][over the network][failed] */
    atomic_uint_fast64_t crc_failures, retries;
    _Atomic(const char *) path; /* a literal */
};

struct helios_client {
    pthread_mutex_t lock; /* serialises everything except reads and puts; guards pending */
    char *controller_address;
    enum found controller_found;
    char *l3_address;
    enum client_way way;
    struct hl_net_conf data;
    struct hl_read_conf read;
    struct hl_rpc *rpc;
    struct hl_rpc_peer *controller; /* NULL without an address */
    struct hl_rpc_peer *l3;
    atomic_bool controller_seen; /* it has answered before, so it is worth waiting for */
    struct attach attach;
    struct copies *copies;
    struct counters counters;
    struct access_table *access;
    struct planes_told *told;
    struct pending *pending;
    pthread_mutex_t names_lock;
    struct shard_name *names;
    struct derived_shard *derived; /* from lists; under names_lock */
    atomic_bool any_listed;        /* some list has given a shard's size and checksum */
    pthread_t maintenance; /* thread that reports accesses and renews pins after a restart of the
                              daemon */
    bool maintenance_started;
    struct access_report report; /* used by the maintenance thread, later by the closing thread */
    pthread_mutex_t maintenance_lock;
    pthread_cond_t maintenance_wake;
    bool closing;
};

/* ---- operation.c ---- */
void operation_begin(struct operation *op, helios_client *client);
/* HL_EINVAL when no Controller is known. */
hl_status controller_named(const struct operation *op, const char *method) HL_CHECK;
/* Judges how a call to the Controller ended. True: the Controller is restarting; call it again,
 * which is safe because these calls may be repeated. */
bool controller_again(struct operation *op, hl_status st);

/* Milliseconds until the deadline, at least 1. */
int operation_left_ms(const struct operation *op);
/* The same, but at most what an answer on a local socket may take. */
int operation_socket_ms(const struct operation *op);
/* Sleeps for `ms`. False, at once, if the deadline would pass before that. */
bool operation_pause(const struct operation *op, int ms);
/* The same with read.daemon_pause. */
bool operation_pause_for_daemon(const struct operation *op);
bool operation_pause_for_controller(const struct operation *op);
/* Extends the deadline because what the operation waits for makes progress. */
void operation_extend(struct operation *op);
bool operation_expired(const struct operation *op);
/* Counts immediately, so that helios_get_stats shows a failing piece while it is being retried. */
void operation_failed_crc(struct operation *op, uint32_t pieces);
void operation_retried(struct operation *op);

static inline struct hl_id id_of(helios_id id)
{
    return (struct hl_id){.hi = id.hi, .lo = id.lo};
}

/* ---- read.c ---- */
/* Counts what happened during the operation; st is how the read ended. */
void read_account(struct operation *op, struct hl_id id, uint64_t bytes, int net, hl_status st);
/* True when the connection was lost and has been restored: try once more. Otherwise *st is
 * final. */
bool read_recover(struct operation *op, hl_status *st);
/* The same when other copies were tried too, with the result `elsewhere`: a copy that is
 * unreachable or unknown now may be readable later. */
bool read_retry(struct operation *op, struct hl_id id, hl_status elsewhere, hl_status *st);

/* ---- map.c ---- */
/* Drops every view that was handed out. */
void map_fini(helios_client *client);

/* ---- device.c ---- */
/* Drops every view of device memory. */
void device_fini(helios_client *client);

/* ---- names.c: names of shards, for error texts ---- */
void names_add(helios_client *client, struct hl_id id, const char *model, int64_t version, int pp,
               int tp, int ep, const char *part);
/* "shard model@3/pp0/tp1/head (id …)" or "shard <id>" into buf; returns buf. */
const char *names_text(helios_client *client, struct hl_id id, char *buf, size_t cap);
/* Stores the size and checksum that the catalogue has for a shard that has a name. */
void names_expect(helios_client *client, struct hl_id id, uint64_t size, uint32_t crc32);
/* Returns them; false: the shard was in no list, and the outputs are untouched. */
bool names_expected(helios_client *client, struct hl_id id, uint64_t *size, uint32_t *crc32);
/* HL_ECORRUPT when the shard that was found differs from them. */
hl_status names_check(helios_client *client, struct hl_id id, uint64_t size,
                      uint32_t crc32) HL_CHECK;
void names_fini(helios_client *client);

/* ---- list.c ---- */
/* Called when reading a shard failed and, for a damaged one, copies_heal did not help. A derived
 * shard from a list that is gone or damaged is listed again, which may cut its version again; *out
 * is the shard that now has its bytes. Otherwise returns `failed` with its text, or why listing
 * failed. */
hl_status list_again(struct operation *op, struct hl_id id, hl_status failed,
                     struct hl_id *out) HL_CHECK;
void list_fini(helios_client *client);

/* ---- find.c ---- */
/* The address that the `helios` command would call: from cluster.json in the state directory, else
 * from the configuration files. The text of HL_EUNAVAIL says what to do. The caller frees it. */
hl_status find_controller(char **address, enum found *how) HL_CHECK;
/* The Controller does not answer: returns st, with a text that says what to do. */
hl_status find_explain(enum found how, hl_status st);

/* ---- attach.c ---- */
hl_status attach_init(helios_client *client) HL_CHECK;
void attach_fini(helios_client *client);
/* At first contact, and after HL_ESTALE or HL_EUNAVAIL: asks the daemon for its identity and takes
 * the shortest way to its pool. */
hl_status attach_renew(struct operation *op, enum renew how) HL_CHECK;
/* Borrow the mapped pool between enter and leave; NULL when there is none. */
struct shm *attach_enter(helios_client *client);
void attach_leave(helios_client *client);
/* Borrow the node's own store between enter and leave; NULL when there is none, or it is silent. */
struct shm *attach_node_store(helios_client *client, uint64_t now_ns);
/* Drops the reference of a view that was handed out; the caller holds attach.lock. */
void attach_unref(helios_client *client, struct shm *shm);
/* Maps the node's store if this rank was given one; returns whether it is mapped now. */
bool attach_store(helios_client *client);
/* Detects that pins were lost with a dead daemon; reconnects and pins again. */
void attach_watch(helios_client *client);

/* ---- shm.c: the pool of this host ---- */
struct shm {
    struct hl_pool_view *view; /* borrowed from socket */
    struct hl_l3_client *socket;
    struct hl_id uuid; /* of the pool */
    unsigned refs;     /* mappings; under attach.lock */
    /* Until then its heartbeat need not be checked: it was fresh, or the daemon was too busy for it
     * but answered an RPC. Every read notices a new owner of the pool regardless. */
    atomic_uint_fast64_t trusted_ns;
    struct hl_rpc_peer *agent;           /* Agent of a store that keeps what is read; NULL = none */
    atomic_uint_fast64_t agent_rests_ns; /* not asked before this time because it failed */
    struct shm *next_retired;
};

/* HL_ENOENT when the socket or that pool (none = any) is not on this host. */
hl_status shm_attach(const char *socket_path, struct hl_id uuid, int timeout_ms,
                     struct shm **out) HL_CHECK;
void shm_detach(struct shm *shm);
/* Notes the Agent that keeps what is read from that store, if the store names one; makes no
 * call. */
void shm_know_agent(struct shm *shm, struct hl_rpc *rpc);
/* HL_ESTALE when the daemon has been restarted or shows no sign of life. */
hl_status shm_check(struct shm *shm, uint64_t now_ns) HL_CHECK;
/* Whether the connection is up and its daemon alive, so that it can pin and put. */
bool shm_connected(struct shm *shm);
hl_status shm_find(struct operation *op, struct shm *shm, struct hl_id id,
                   struct hl_pool_ref *ref) HL_CHECK;
/* The pool lacks the shard: asks the daemon to load it from its archive. HL_ENOENT: the archive
 * lacks it too. */
hl_status shm_load(struct operation *op, struct hl_id id) HL_CHECK;
/* Verified copy of [off, off+len); `whole`: off is 0 and len must be the shard's size. */
hl_status shm_read(struct operation *op, struct shm *shm, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole) HL_CHECK;
/* Verifies a pinned shard where it is mapped. */
hl_status shm_verify(struct operation *op, struct shm *shm, const struct hl_pool_ref *ref,
                     const void *data) HL_CHECK;

/* ---- remote_pool.c: a pool of another host ---- */
hl_status net_create(enum hl_extent_owner kind, struct net **out) HL_CHECK;
void net_own(struct net *net, struct hl_rpc_peer *owner);
void net_destroy(struct net *net);
/* Sets the current address of the data port, and drops the connections that are kept. */
void net_retarget(struct net *net, const char *address);
/* Asks where shards lie with one call instead of one per shard; failures don't matter. */
void net_prefetch(struct operation *op, struct net *net, struct hl_api_text_list ids);
hl_status net_find(struct operation *op, struct net *net, struct hl_id id, uint64_t *size,
                   uint32_t *crc32) HL_CHECK;
hl_status net_read(struct operation *op, struct net *net, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole) HL_CHECK;
/* Small puts of several threads share messages. */
hl_status net_put(struct operation *op, struct net *net, const void *data, uint64_t size,
                  uint32_t crc32, struct hl_id *id) HL_CHECK;
/* A literal: "rdma", "tcp", "emulated". */
const char *net_path(struct net *net);

/* The current address of the data port. */
void net_address(struct net *net, char *out, size_t cap);

/* ---- keep.c: copies that reads leave in the node's store ---- */
/* Has the shard loaded into that tier of the store, unless its Agent is unreachable, slow, or keeps
 * none; the caller then reads it itself. Call between enter and leave. True: look there again. */
bool keep_load(struct operation *op, struct shm *store, struct hl_id id, enum hl_api_tier tier);
/* The copy in the node's store failed its checksum. Tells its holder: the Agent for a kept copy,
 * the Controller for others. */
void keep_suspect(helios_client *client, const struct hl_pool_ref *ref);
/* On the maintenance thread: reports to the Agent what was read from kept copies. */
void keep_report(helios_client *client);

/* ---- copies.c: other copies of a shard, for when the pool can't provide it ---- */
hl_status client_copies_create(struct copies **out) HL_CHECK;
void copies_destroy(struct copies *copies);
/* The copy in `tier` of this node (L2) or of the pool (L3) was bad. The maintenance thread reports
 * it to the Controller, which has it replaced. */
void copies_suspect(struct copies *copies, struct hl_id id, enum hl_api_tier tier);
/* Runs on the maintenance thread. */
void copies_report(helios_client *client);
/* Has the pool's bad copy replaced now. HL_OK: read it again. */
hl_status copies_heal(struct operation *op, struct hl_id id) HL_CHECK;
/* Reads from the store of any other node that has the shard. *path is the transport used. */
hl_status copies_read(struct operation *op, struct hl_id id, uint64_t off, void *buf, uint64_t len,
                      bool whole, const char **path) HL_CHECK;
/* Size and checksum of a shard that exists only there. */
hl_status copies_find(struct operation *op, struct hl_id id, uint64_t *size,
                      uint32_t *crc32) HL_CHECK;

/* The failure by which a search of several holders is judged. */
struct copies_failure {
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* Keeps `st` with hl_error_text() unless *io says more: a holder that is away may come back, while
 * one that no longer has the shard says nothing of the others. */
void copies_note_failure(struct copies_failure *io, hl_status st);
/* After a failure of the pool (here, with its text) and of other copies (elsewhere; its text is the
 * last one): leaves the text that the caller of the read gets, and returns here. */
hl_status copies_failed(const struct operation *op, hl_status here, const char *text,
                        hl_status elsewhere);

/* ---- access.c: how often each shard was read ---- */
hl_status access_create(struct access_table **out) HL_CHECK;
void access_destroy(struct access_table *table);

/* Where a read found its bytes: the mapped pool, the network, the node's own store. */
enum access_from { ACCESS_POOL, ACCESS_NET, ACCESS_STORE, ACCESS_FROMS };

void access_count(struct access_table *table, struct hl_id id, uint64_t bytes,
                  enum access_from from);
/* The read used a copy that is kept in the store; bad: it failed its checksum. */
void access_kept(struct access_table *table, struct hl_id id, bool bad);
/* What was counted for kept copies since the last call. */
struct hl_api_shard_reads_list access_take_kept(struct access_table *table, struct hl_arena *arena);
void access_trouble(struct access_table *table, struct hl_id id, uint32_t crc_failures,
                    uint32_t retries, bool lost);
/* What was counted since the last call, with current ages. */
struct hl_api_access_report_list access_take(struct access_table *table, const char *net_path,
                                             struct hl_arena *arena);

/* ---- planes.c: counts transfers for the table of planes and the Controller ---- */
/* What was reported so far; used by the maintenance thread. */
struct planes_told;
hl_status planes_create(struct planes_told **out) HL_CHECK;
void planes_destroy(struct planes_told *told);
/* Counts a finished transfer. Returns how many of its kind there were before. */
uint64_t planes_count(helios_client *client, enum tally_op op, int net, uint64_t bytes,
                      hl_status st);
void planes_time(helios_client *client, enum tally_op op, int net, uint64_t ns);
/* Returns what was counted since the last call, and adds it to the table of planes. */
struct hl_api_transfer_report_list planes_take(helios_client *client, struct planes_told *told,
                                               struct hl_arena *arena);
/* The same for faults, of all clients of this process. */
struct hl_api_fault_report_list planes_take_faults(struct hl_arena *arena);

/* ---- maintenance.c: the one background thread ---- */
hl_status maintenance_start(helios_client *client) HL_CHECK;
/* Stops the thread, after the last report. */
void maintenance_stop(helios_client *client);

/* split.c */
/* NULL: nothing is set, which means the version's own split. */
hl_status split_read(const helios_split *given, struct hl_api_split *out) HL_CHECK;

#endif
