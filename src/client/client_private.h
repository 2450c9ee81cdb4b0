/* The parts of libhelios. Everything here is private to src/client.
 *
 * Lock order: client->lock, then client->attach.lock, then net->lock; access tables and counters
 * are atomics. helios_get, helios_get_range and helios_find take none of them while the mapped pool
 * serves them: they hold it by client->attach.readers (see attach.c). */
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

#define SMALL_READ         ((uint64_t)16 << 10) /* a lock or a look at the clock counts */
#define CLIENT_RETRIES_MAX 100

/* How long a daemon that is silent is waited for: to the deadline, for one call, or briefly because
 * there may be another copy. */
enum renew { RENEW_WAIT, RENEW_ONCE, RENEW_QUICK };

enum client_way { WAY_AUTO, WAY_SHM, WAY_NET };

/* Who said where the Controller is: the caller or its environment, cluster.json, the configuration,
 * or nobody. */
enum found { FOUND_GIVEN, FOUND_LOCAL, FOUND_CONFIGURED, FOUND_DEFAULT };

struct shm;
struct net;
struct copies;
struct device_mapping;
struct access_table;

/* A report to the Controller. It is told until it is answered, under the same number, and what is
 * counted meanwhile goes into the next one: so each access counts once. */
struct access_report {
    uint64_t incarnation; /* of this client; 0 = none yet */
    uint64_t sequence;
    bool waits;       /* for its answer */
    uint64_t aged_ns; /* its ages are those of then */
    struct hl_arena arena;
    struct hl_api_controller_report_access_params p;
};

/* The deadline of one operation, and what it met on its way. */
struct operation {
    helios_client *client;
    uint64_t started_ns;
    uint64_t deadline_ns;
    bool timed; /* started_ns is exact */
    uint32_t crc_failures;
    uint32_t retries;
    const char *elsewhere; /* transport of another node's copy that served; NULL = none did */
    bool from_store;       /* the node's own store served */
    bool from_kept; /* a copy there that earlier reads have left; one that was just loaded is not */
    uint64_t
        unsure_ns; /* since when the Controller names places without the shard; 0 = it doesn't */
};

/* A view handed out by helios_map or helios_map_private. */
struct mapping {
    const void *data;
    uint64_t size;
    unsigned refs;
    struct hl_pool_ref ref;
    struct hl_pool_private own; /* memory of this view alone; base NULL = the pool itself */
    struct shm *shm;            /* whose pages it shows; NULL = it is a copy */
    struct shm *pin;            /* whose connection pins it; NULL = none */
    bool net;                   /* its bytes came over the network */
    UT_hash_handle hh;
};

/* How this client reaches the pool. */
struct attach {
    pthread_mutex_t lock;
    _Atomic(struct shm *) shm;   /* NULL: read through net */
    _Atomic(struct shm *) store; /* the node's own store (L2); NULL = it has none */
    const char *store_socket;    /* NULL = the rank was told of none */
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
    uint64_t size; /* of the catalogue, where listed */
    uint32_t crc32;
    UT_hash_handle hh;
};

/* Transfers of one kind; see planes.c. */
struct tally {
    atomic_uint_fast64_t ops, bytes;
    atomic_uint_fast64_t ns, latency[HL_PLANE_BUCKETS]; /* of those that were timed */
};

enum tally_op { TALLY_READ, TALLY_WRITE, TALLY_OPS };

struct counters {
    atomic_uint_fast64_t read_ns, write_ns;
    struct tally tally[TALLY_OPS][2][2]; /* [op][over the network][failed] */
    atomic_uint_fast64_t crc_failures, retries;
    _Atomic(const char *) path; /* a literal */
};

struct helios_client {
    pthread_mutex_t lock; /* serialises everything but reads and puts; guards pending */
    char *controller_address;
    enum found controller_found;
    char *l3_address;
    enum client_way way;
    struct hl_net_conf data;
    struct hl_read_conf read;
    struct hl_rpc *rpc;
    struct hl_rpc_peer *controller; /* NULL without an address */
    struct hl_rpc_peer *l3;
    atomic_bool controller_seen; /* it has answered before: worth waiting for */
    struct attach attach;
    struct copies *copies;
    struct counters counters;
    struct access_table *access;
    struct planes_told *told;
    struct pending *pending;
    pthread_mutex_t names_lock;
    struct shard_name *names;
    struct derived_shard *derived; /* of lists; under names_lock */
    atomic_bool any_listed;        /* a list has said size and checksum of a shard */
    pthread_t maintenance;         /* reports accesses, renews pins after a restart of the daemon */
    bool maintenance_started;
    struct access_report report; /* the maintenance thread's, later the closing one's */
    pthread_mutex_t maintenance_lock;
    pthread_cond_t maintenance_wake;
    bool closing;
};

/* ---- operation.c ---- */
void operation_begin(struct operation *op, helios_client *client);
/* HL_EINVAL unless there is a Controller to call. */
hl_status controller_named(const struct operation *op, const char *method) HL_CHECK;
/* How a call to the Controller ended. True: it is being restarted, call it again, for what is asked
 * here may be asked twice. */
bool controller_again(struct operation *op, hl_status st);

/* Milliseconds that are left, at least 1. */
int operation_left_ms(const struct operation *op);
/* The same, at most what an answer on a local socket may take. */
int operation_socket_ms(const struct operation *op);
/* False, at once, when the deadline would pass before `ms` have. Sleeps otherwise. */
bool operation_pause(const struct operation *op, int ms);
/* The same for read.daemon_pause. */
bool operation_pause_for_daemon(const struct operation *op);
bool operation_pause_for_controller(const struct operation *op);
/* What it waits for makes progress. */
void operation_extend(struct operation *op);
bool operation_expired(const struct operation *op);
/* Counted at once, so that helios_get_stats shows that a piece fails while it is retried. */
void operation_failed_crc(struct operation *op, uint32_t pieces);
void operation_retried(struct operation *op);

static inline struct hl_id id_of(helios_id id)
{
    return (struct hl_id){.hi = id.hi, .lo = id.lo};
}

/* ---- read.c ---- */
/* Count what the operation met; st is how the read ended. */
void read_account(struct operation *op, struct hl_id id, uint64_t bytes, int net, hl_status st);
/* True when the connection was lost and is there again: try once more. Else *st is final. */
bool read_recover(struct operation *op, hl_status *st);
/* The same where other copies were asked for, too, which ended so: what is away now, or is not
 * known yet, may be read later. */
bool read_retry(struct operation *op, struct hl_id id, hl_status elsewhere, hl_status *st);

/* ---- map.c ---- */
/* Drop every view that was handed out. */
void map_fini(helios_client *client);

/* ---- device.c ---- */
/* Drop every view of device memory. */
void device_fini(helios_client *client);

/* ---- names.c: what a shard is called, for failures ---- */
void names_add(helios_client *client, struct hl_id id, const char *model, int64_t version, int pp,
               int tp, int ep, const char *part);
/* "shard model@3/pp0/tp1/head (id …)" or "shard <id>" into buf; returns buf. */
const char *names_text(helios_client *client, struct hl_id id, char *buf, size_t cap);
/* What the catalogue says of the shard, which has a name. */
void names_expect(helios_client *client, struct hl_id id, uint64_t size, uint32_t crc32);
/* The same, to be asked; false: it was in no list, and nothing is changed. */
bool names_expected(helios_client *client, struct hl_id id, uint64_t *size, uint32_t *crc32);
/* HL_ECORRUPT when what was found is not that. */
hl_status names_check(helios_client *client, struct hl_id id, uint64_t size,
                      uint32_t crc32) HL_CHECK;
void names_fini(helios_client *client);

/* ---- list.c ---- */
/* Reading a shard failed, and copies_heal was asked about a damaged one. A derived shard of a list
 * that is gone or damaged is listed again, for which its version may be cut again: *out has its
 * bytes now. Otherwise `failed`, with the text that it had, or why listing failed. */
hl_status list_again(struct operation *op, struct hl_id id, hl_status failed,
                     struct hl_id *out) HL_CHECK;
void list_fini(helios_client *client);

/* ---- find.c ---- */
/* The address that the `helios` command would call: of cluster.json in the state directory, else of
 * the configuration files. HL_EUNAVAIL says what to do. The caller frees it. */
hl_status find_controller(char **address, enum found *how) HL_CHECK;
/* There is no answer: st, with a text that says what to do. */
hl_status find_explain(enum found how, hl_status st);

/* ---- attach.c ---- */
hl_status attach_init(helios_client *client) HL_CHECK;
void attach_fini(helios_client *client);
/* First contact, or again after HL_ESTALE / HL_EUNAVAIL: asks the daemon who it is and takes the
 * shortest way to its pool. */
hl_status attach_renew(struct operation *op, enum renew how) HL_CHECK;
/* Borrow the mapped pool between enter and leave; NULL when there is none. */
struct shm *attach_enter(helios_client *client);
void attach_leave(helios_client *client);
/* The node's own store, between enter and leave; NULL when there is none, or it is silent. */
struct shm *attach_node_store(helios_client *client, uint64_t now_ns);
/* A reference for a view that is handed out; the caller holds attach.lock. */
void attach_unref(helios_client *client, struct shm *shm);
/* Map the node's store, if this rank was told of one; whether there is one now. */
bool attach_store(helios_client *client);
/* Pins were lost with a daemon that died: notice, reconnect and pin again. */
void attach_watch(helios_client *client);

/* ---- shm.c: the pool of this host ---- */
struct shm {
    struct hl_pool_view *view; /* borrowed from socket */
    struct hl_l3_client *socket;
    struct hl_id uuid; /* of the pool */
    unsigned refs;     /* mappings; under attach.lock */
    /* Until then its heartbeat need not be looked at: it was fresh, or a daemon that is too busy
     * for it has answered by RPC. A new owner of the pool is seen by every read all the same. */
    atomic_uint_fast64_t trusted_ns;
    struct hl_rpc_peer *agent;           /* of a store that keeps what is read; NULL = none */
    atomic_uint_fast64_t agent_rests_ns; /* until then it is not asked: it failed */
    struct shm *next_retired;
};

/* HL_ENOENT when the socket or that pool (none = any) is not on this host. */
hl_status shm_attach(const char *socket_path, struct hl_id uuid, int timeout_ms,
                     struct shm **out) HL_CHECK;
void shm_detach(struct shm *shm);
/* Who keeps what is read from that store, if it says so; no call is made. */
void shm_know_agent(struct shm *shm, struct hl_rpc *rpc);
/* HL_ESTALE when the daemon has been restarted or shows no sign of life. */
hl_status shm_check(struct shm *shm, uint64_t now_ns) HL_CHECK;
/* The connection stands and its daemon is alive: it can pin and put. */
bool shm_connected(struct shm *shm);
hl_status shm_find(struct operation *op, struct shm *shm, struct hl_id id,
                   struct hl_pool_ref *ref) HL_CHECK;
/* The pool misses it: have the daemon bring it from its archive. HL_ENOENT: it is there neither. */
hl_status shm_load(struct operation *op, struct hl_id id) HL_CHECK;
/* Verified copy of [off, off+len); `whole`: off is 0 and len must be the shard's size. */
hl_status shm_read(struct operation *op, struct shm *shm, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole) HL_CHECK;
/* Check a pinned shard where it is mapped. */
hl_status shm_verify(struct operation *op, struct shm *shm, const struct hl_pool_ref *ref,
                     const void *data) HL_CHECK;

/* ---- remote_pool.c: a pool of another host ---- */
hl_status net_create(enum hl_extent_owner kind, struct net **out) HL_CHECK;
void net_own(struct net *net, struct hl_rpc_peer *owner);
void net_destroy(struct net *net);
/* Where the data port is now; connections to another one are dropped. */
void net_retarget(struct net *net, const char *address);
/* Learn where shards lie in one question instead of one per shard; failures don't matter. */
void net_prefetch(struct operation *op, struct net *net, struct hl_api_text_list ids);
hl_status net_find(struct operation *op, struct net *net, struct hl_id id, uint64_t *size,
                   uint32_t *crc32) HL_CHECK;
hl_status net_read(struct operation *op, struct net *net, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole) HL_CHECK;
/* Small ones of several threads share messages. */
hl_status net_put(struct operation *op, struct net *net, const void *data, uint64_t size,
                  uint32_t crc32, struct hl_id *id) HL_CHECK;
/* A literal: "rdma", "tcp", "emulated". */
const char *net_path(struct net *net);

/* Of the data port, as it is now. */
void net_address(struct net *net, char *out, size_t cap);

/* ---- keep.c: what reads leave in the node's store ---- */
/* Have the shard loaded into that tier of the store, unless its Agent is away, slow, or keeps none:
 * then the caller reads it by itself. Between enter and leave. True: look there again. */
bool keep_load(struct operation *op, struct shm *store, struct hl_id id, enum hl_api_tier tier);
/* The copy in the node's store failed its checksum: its holder is told, which is the Agent of a
 * kept one and the Controller of others. */
void keep_suspect(helios_client *client, const struct hl_pool_ref *ref);
/* From the maintenance thread: tell the Agent what was read of kept copies. */
void keep_report(helios_client *client);

/* ---- copies.c: when the pool can't give a shard, other copies of it can ---- */
hl_status client_copies_create(struct copies **out) HL_CHECK;
void copies_destroy(struct copies *copies);
/* The copy in `tier` of this node (L2) or of the pool (L3) was bad: the maintenance thread tells
 * the Controller, which has it replaced. */
void copies_suspect(struct copies *copies, struct hl_id id, enum hl_api_tier tier);
/* From the maintenance thread. */
void copies_report(helios_client *client);
/* Have the pool's bad copy replaced now. HL_OK: read it again. */
hl_status copies_heal(struct operation *op, struct hl_id id) HL_CHECK;
/* From any other node's store that has it. *path is how it came. */
hl_status copies_read(struct operation *op, struct hl_id id, uint64_t off, void *buf, uint64_t len,
                      bool whole, const char **path) HL_CHECK;
/* Size and checksum of a shard that is only there. */
hl_status copies_find(struct operation *op, struct hl_id id, uint64_t *size,
                      uint32_t *crc32) HL_CHECK;

/* ---- access.c: how often which shard was read ---- */
hl_status access_create(struct access_table **out) HL_CHECK;
void access_destroy(struct access_table *table);

/* Where a read found its bytes: the mapped pool, the network, the node's own store. */
enum access_from { ACCESS_POOL, ACCESS_NET, ACCESS_STORE, ACCESS_FROMS };

void access_count(struct access_table *table, struct hl_id id, uint64_t bytes,
                  enum access_from from);
/* The read was of a copy that is kept there; bad: it failed its checksum. */
void access_kept(struct access_table *table, struct hl_id id, bool bad);
/* Of kept copies, what was counted since the last time. */
struct hl_api_shard_reads_list access_take_kept(struct access_table *table, struct hl_arena *arena);
void access_trouble(struct access_table *table, struct hl_id id, uint32_t crc_failures,
                    uint32_t retries, bool lost);
/* What was counted since the last time; ages are those of now. */
struct hl_api_access_report_list access_take(struct access_table *table, const char *net_path,
                                             struct hl_arena *arena);

/* ---- planes.c: what was transferred, for the table of planes and the Controller ---- */
/* What was told so far; the maintenance thread's. */
struct planes_told;
hl_status planes_create(struct planes_told **out) HL_CHECK;
void planes_destroy(struct planes_told *told);
/* One that has ended. Returns how many of its kind there were before. */
uint64_t planes_count(helios_client *client, enum tally_op op, int net, uint64_t bytes,
                      hl_status st);
void planes_time(helios_client *client, enum tally_op op, int net, uint64_t ns);
/* What came since the last time, which goes into the table of planes. */
struct hl_api_transfer_report_list planes_take(helios_client *client, struct planes_told *told,
                                               struct hl_arena *arena);
/* The same of faults, of all clients of this process. */
struct hl_api_fault_report_list planes_take_faults(struct hl_arena *arena);

/* ---- maintenance.c: the one background thread ---- */
hl_status maintenance_start(helios_client *client) HL_CHECK;
/* Last report included. */
void maintenance_stop(helios_client *client);

/* split.c */
/* NULL: nothing is said, which means the version's own. */
hl_status split_read(const helios_split *given, struct hl_api_split *out) HL_CHECK;

#endif
