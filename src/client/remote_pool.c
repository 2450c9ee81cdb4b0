/* A pool on another host. A shard's location is requested once and remembered. The bytes are
 * checked against the CRCs of that answer, so an outdated location shows as a bad piece and is
 * requested again. A connection is used by one thread at a time; a few idle ones are kept.
 *
 *     struct net (of the L3 daemon, or of one node's store)
 *       locations   id -> shard_location -> extent (offset, size, CRCs)   shared, counted by `refs`
 *       conns       idle connections --acquire--> one thread's --release--> idle, or closed
 *       puts        one queue for the small puts of all threads           counted by `refs`
 *       address     of the data port, now
 *
 * Threads: any. net->lock guards all of these. It is held for moments, and never while bytes are
 * transferred, a daemon is asked, or a connection is made or closed. What a thread uses without the
 * lock is kept by its reference: a location that was forgotten meanwhile, a queue that was
 * replaced.
 *
 *     location   asked --> remembered --a piece is bad, or the cache is full--> forgotten
 *                                                         last reference: freed
 *     conns      net_retarget counts `epoch` up: what was lent before is closed when it comes back
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "client/client_private.h"
#include "fetch/conn_pool.h"
#include "fetch/remote.h"
#include "net/dispatch/put_queue.h"
#include "net/net.h"

#define IDLE_MAX      4
#define CACHE_MAX     65536
#define NAME_MAX_TEXT 256

/* The answer to a locate. The extent never changes, so it is read without the lock. */
struct shard_location {
    struct hl_id id;
    struct hl_extent *extent;
    unsigned refs; /* under net->lock; the cache holds one */
    UT_hash_handle hh;
};

struct net {
    struct hl_rpc_peer *owner; /* the daemon that locates shards; borrowed */
    enum hl_extent_owner kind;
    pthread_mutex_t lock;
    struct shard_location *locations; /* by id */
    struct shared_puts *puts;         /* for small puts; NULL until the first */
    struct hl_conn_pool conns;
    char address[300];
    _Atomic(const char *) path;
};

/* A queue that several threads put through. */
struct shared_puts {
    struct hl_put_queue *queue;
    unsigned refs; /* under net->lock; net holds one */
};

hl_status net_create(enum hl_extent_owner kind, struct net **out)
{
    struct net *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a client");
    pthread_mutex_init(&n->lock, NULL);
    atomic_store_explicit(&n->path, "", memory_order_relaxed);
    n->kind = kind;
    n->conns.max = IDLE_MAX;
    *out = n;
    return HL_OK;
}

void net_own(struct net *net, struct hl_rpc_peer *owner)
{
    net->owner = owner;
}

/* Call with the lock held, like every function that ends in _locked. */
static void location_put_locked(struct shard_location *p)
{
    if (--p->refs > 0)
        return;
    free(p->extent);
    free(p);
}

static void location_put(struct net *net, struct shard_location *p)
{
    pthread_mutex_lock(&net->lock);
    location_put_locked(p);
    pthread_mutex_unlock(&net->lock);
}

/* Call with the lock held, or when no other thread is left. Readers of a location keep theirs. */
static void locations_forget(struct net *net)
{
    struct shard_location *p, *next;
    HASH_ITER (hh, net->locations, p, next) {
        HASH_DEL(net->locations, p);
        location_put_locked(p);
    }
}

/* The last reference closes the queue, without the lock, because closing waits for the queue's
 * thread. */
static void puts_unref(struct net *net, struct shared_puts *puts)
{
    pthread_mutex_lock(&net->lock);
    bool last = puts != NULL && --puts->refs == 0;
    pthread_mutex_unlock(&net->lock);
    if (last) {
        hl_put_queue_close(puts->queue);
        free(puts);
    }
}

static void close_conns(struct hl_net_client **conns, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        hl_net_close(conns[i]);
}

void net_destroy(struct net *net)
{
    struct hl_net_client *conns[HL_CONN_POOL_MAX];
    if (net == NULL)
        return;
    close_conns(conns, hl_conn_pool_clear(&net->conns, conns));
    puts_unref(net, net->puts);
    locations_forget(net);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

/* Also for the same address: the daemon there may be another one. Locations are kept: they are
 * checked by their CRCs, so a wrong one only costs a call. The old queue is closed with its last
 * reference, which a put in progress may hold. Connections are closed without net->lock. */
void net_retarget(struct net *net, const char *address)
{
    struct hl_net_client *conns[HL_CONN_POOL_MAX];
    pthread_mutex_lock(&net->lock);
    snprintf(net->address, sizeof(net->address), "%s", address);
    unsigned count = hl_conn_pool_clear(&net->conns, conns);
    struct shared_puts *old = net->puts;
    net->puts = NULL;
    pthread_mutex_unlock(&net->lock);
    close_conns(conns, count);
    puts_unref(net, old);
}

void net_address(struct net *net, char *out, size_t cap)
{
    pthread_mutex_lock(&net->lock);
    snprintf(out, cap, "%s", net->address);
    pthread_mutex_unlock(&net->lock);
}

/* The names of a path that a connection returns end with it; these outlive every connection. */
static const char *literal_path(const char *name)
{
    static const char *const names[] = {"rdma", "tcp", "emulated"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    return "net";
}

const char *net_path(struct net *net)
{
    return atomic_load_explicit(&net->path, memory_order_relaxed);
}

static hl_status no_data_port(const struct net *net)
{
    return hl_fail(HL_EUNAVAIL, "the daemon at %s has no data port",
                   hl_rpc_peer_address(net->owner));
}

static void note_path(struct net *net, const struct hl_net_client *client)
{
    atomic_store_explicit(&net->path, literal_path(hl_net_path_name(client)), memory_order_relaxed);
}

/* Address and epoch are read together: if the address is replaced meanwhile, the connection has the
 * old epoch and is closed when it is released. */
static hl_status conn_lease_connect(struct operation *op, struct net *net,
                                    struct hl_conn_lease *lease)
{
    char address[300];
    int left = operation_left_ms(op), limit = op->client->data.connect_ms;
    struct hl_net_connect_opts opts = {
        .address = address, .conf = &op->client->data, .timeout_ms = left < limit ? left : limit};
    pthread_mutex_lock(&net->lock);
    snprintf(address, sizeof(address), "%s", net->address);
    lease->epoch = net->conns.epoch;
    pthread_mutex_unlock(&net->lock);
    if (address[0] == '\0')
        return no_data_port(net);
    HL_TRY(hl_net_connect_with(&opts, &lease->client));
    note_path(net, lease->client);
    return HL_OK;
}

/* What the lock gave, made ready: connected if there was none. A kept connection that fell back to
 * TCP may be replaced here by one over RDMA. */
static hl_status conn_lease_ready(struct operation *op, struct net *net,
                                  struct hl_conn_lease *lease)
{
    if (lease->client == NULL)
        return conn_lease_connect(op, net, lease);
    hl_net_renew(&lease->client);
    note_path(net, lease->client);
    return HL_OK;
}

/* The lock is held only to look into the pool: making a connection may take seconds. */
static hl_status conn_lease_acquire(struct operation *op, struct net *net,
                                    struct hl_conn_lease *out)
{
    pthread_mutex_lock(&net->lock);
    *out = hl_conn_pool_acquire(&net->conns, "");
    pthread_mutex_unlock(&net->lock);
    return conn_lease_ready(op, net, out);
}

/* The pool takes the connection back if it can be used again; otherwise it is closed here. */
static void conn_lease_release(struct net *net, struct hl_conn_lease *lease, hl_status st)
{
    pthread_mutex_lock(&net->lock);
    hl_conn_pool_release(&net->conns, "", lease, st);
    pthread_mutex_unlock(&net->lock);
    hl_net_close(lease->client);
    lease->client = NULL;
}

/* ---- locations ---- */

/* Takes over the extent, also on failure. */
static hl_status location_new(struct hl_extent *extent, struct shard_location **out)
{
    struct shard_location *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        free(extent);
        return hl_fail(HL_ENOMEM, "out of memory allocating the location of a shard");
    }
    *p = (struct shard_location){.id = extent->id, .extent = extent, .refs = 1};
    *out = p;
    return HL_OK;
}

/* Removes the location from the table, so that the next reader asks again; current readers keep it.
 */
static void location_forget_locked(struct net *net, struct hl_id id)
{
    struct shard_location *p;
    HASH_FIND(hh, net->locations, &id, sizeof(id), p);
    if (p != NULL) {
        HASH_DEL(net->locations, p);
        location_put_locked(p);
    }
}

/* A full cache is emptied and fills again: we can't know which shards a training reads next. */
static void location_remember(struct net *net, struct shard_location *p)
{
    pthread_mutex_lock(&net->lock);
    if (HASH_COUNT(net->locations) >= CACHE_MAX)
        locations_forget(net);
    location_forget_locked(net, p->id);
    p->refs++;
    HASH_ADD(hh, net->locations, id, sizeof(p->id), p);
    pthread_mutex_unlock(&net->lock);
}

/* NULL when it has not been requested yet. Release with location_put. */
static struct shard_location *location_known_locked(struct net *net, struct hl_id id)
{
    struct shard_location *p;
    HASH_FIND(hh, net->locations, &id, sizeof(id), p);
    if (p != NULL)
        p->refs++;
    return p;
}

/* fresh: request it again even if a location is remembered. Release with location_put. */
static hl_status location_find(struct operation *op, struct net *net, struct hl_id id, bool fresh,
                               struct shard_location **out)
{
    struct hl_extent *found = NULL;
    struct shard_location *p = NULL;
    hl_status st;
    pthread_mutex_lock(&net->lock);
    if (fresh)
        location_forget_locked(net, id);
    else
        p = location_known_locked(net, id);
    pthread_mutex_unlock(&net->lock);
    if (p != NULL) {
        *out = p;
        return HL_OK;
    }
    do /* busy: others' shards have driven it out of the pool again */
        st = hl_extent_locate(net->owner, net->kind, id, operation_left_ms(op), &found);
    while (st == HL_EBUSY && operation_pause_for_daemon(op));
    if (st == HL_ENOENT) {
        char name[NAME_MAX_TEXT];
        return hl_fail(st, "%s is not in the pool of %s; it was removed, or never written",
                       names_text(op->client, id, name, sizeof(name)),
                       hl_rpc_peer_address(net->owner));
    }
    HL_TRY(st);
    HL_TRY(location_new(found, &p));
    location_remember(net, p);
    *out = p;
    return HL_OK;
}

/* An unknown location is not a failure: net_read requests it by itself. */
void net_prefetch(struct operation *op, struct net *net, struct hl_api_text_list ids)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_extent_list found;
    if (hl_extent_ask(net->owner, net->kind, ids, operation_left_ms(op), &arena, &found) != HL_OK)
        return;
    for (size_t i = 0; i < found.count; i++) {
        struct hl_extent *extent = NULL;
        struct shard_location *p = NULL;
        if (hl_extent_parse(&found.items[i], &extent) != HL_OK || location_new(extent, &p) != HL_OK)
            return;
        location_remember(net, p);
        location_put(net, p);
    }
}

/* Never answers from memory: the caller wants to know whether the shard is there now. */
hl_status net_find(struct operation *op, struct net *net, struct hl_id id, uint64_t *size,
                   uint32_t *crc32)
{
    struct shard_location *p;
    HL_TRY(location_find(op, net, id, 1, &p));
    *size = p->extent->size;
    *crc32 = p->extent->crc32;
    location_put(net, p);
    return HL_OK;
}

/* ---- reads ---- */

/* A read in progress: what its callbacks need. */
struct reading {
    struct operation *op;
    struct net *net;
    struct shard_location *location;
};

static hl_status reading_left_ms(void *arg, int *ms)
{
    struct reading *r = arg;
    if (operation_expired(r->op))
        return hl_fail(HL_ETIMEDOUT, "the deadline passed");
    *ms = operation_left_ms(r->op);
    return HL_OK;
}

/* The location may be outdated: requests a new one, and releases the one that the read began with.
 */
static hl_status reading_locate(void *arg, const struct hl_extent **extent)
{
    struct reading *r = arg;
    struct shard_location *now;
    HL_TRY(location_find(r->op, r->net, r->location->id, 1, &now));
    location_put(r->net, r->location);
    r->location = now;
    *extent = now->extent;
    return HL_OK;
}

static void reading_failed(void *arg, size_t chunks)
{
    struct reading *r = arg;
    operation_failed_crc(r->op, (uint32_t)chunks);
}

static void reading_retried(void *arg)
{
    struct reading *r = arg;
    operation_retried(r->op);
}

static hl_status fetch_range(struct reading *r, struct hl_conn_lease *lease, uint64_t off,
                             uint64_t len, void *dst)
{
    static const struct hl_remote_ops ops = {.left_ms = reading_left_ms,
                                             .locate = reading_locate,
                                             .failed = reading_failed,
                                             .retried = reading_retried};
    char name[NAME_MAX_TEXT], why[256];
    struct hl_remote remote = {.net = lease->client,
                               .extent = r->location->extent,
                               .retry = r->op->client->read.retry,
                               .ops = &ops,
                               .arg = r};
    hl_status st = hl_remote_read(&remote, off, dst, len);
    if (st != HL_ECORRUPT)
        return st;
    snprintf(why, sizeof(why), "%s", hl_error_text());
    return hl_fail(st, "%s: %s; use another version or import the model again",
                   names_text(r->op->client, r->location->id, name, sizeof(name)), why);
}

/* Checks the range against the extent before anything is fetched. */
static hl_status check_range(struct operation *op, const struct shard_location *p, uint64_t off,
                             uint64_t len, bool whole)
{
    char name[NAME_MAX_TEXT];
    uint64_t size = p->extent->size;
    if (off <= size && len <= size - off && (!whole || len == size))
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s has %llu bytes; %llu bytes at %llu were requested",
                   names_text(op->client, p->id, name, sizeof(name)), (unsigned long long)size,
                   (unsigned long long)len, (unsigned long long)off);
}

/* A small read is a round trip of microseconds, so the lock is only taken once before and once
 * after. */
hl_status net_read(struct operation *op, struct net *net, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole)
{
    struct hl_conn_lease lease = {0};
    pthread_mutex_lock(&net->lock);
    struct shard_location *p = location_known_locked(net, id);
    if (p != NULL)
        lease = hl_conn_pool_acquire(&net->conns, "");
    pthread_mutex_unlock(&net->lock);
    if (p == NULL)
        HL_TRY(location_find(op, net, id, 0, &p));
    struct reading reading = {.op = op, .net = net, .location = p};
    hl_status st = names_check(op->client, id, p->extent->size, p->extent->crc32);
    if (st == HL_OK)
        st = check_range(op, p, off, len, whole);
    if (st == HL_OK && len > 0)
        st = lease.client != NULL ? conn_lease_ready(op, net, &lease)
                                  : conn_lease_acquire(op, net, &lease);
    if (st == HL_OK && len > 0)
        st = fetch_range(&reading, &lease, off, len, buf);
    pthread_mutex_lock(&net->lock);
    hl_conn_pool_release(&net->conns, "", &lease, st);
    location_put_locked(reading.location);
    pthread_mutex_unlock(&net->lock);
    hl_net_close(lease.client);
    if (st == HL_ETIMEDOUT && !operation_expired(op))
        st = HL_EUNAVAIL; /* the transfer stalled: try a new connection */
    return st;
}

/* Call with the lock held: a queue only connects with its first put, so this waits for no peer. */
static hl_status open_puts(helios_client *c, struct net *net, struct shared_puts **out)
{
    struct hl_put_queue_opts opts = {
        .connect = {.address = net->address,
                    .conf = &c->data,
                    .timeout_ms = c->data.connect_ms,
                    .endpoints = 1},
    };
    if (net->address[0] == '\0')
        return no_data_port(net);
    struct shared_puts *puts = calloc(1, sizeof(*puts));
    if (puts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a put");
    hl_status st = hl_put_queue_open(&opts, &puts->queue);
    if (st != HL_OK) {
        free(puts);
        return st;
    }
    puts->refs = 1;
    *out = puts;
    return HL_OK;
}

/* The thread waits for its own object only; what others put meanwhile travels in the same message.
 */
static hl_status put_small(struct operation *op, struct net *net, const void *data, uint64_t size,
                           uint32_t crc32, struct hl_id *id)
{
    hl_status st = HL_OK;
    struct hl_id got = {0, 0};
    pthread_mutex_lock(&net->lock);
    if (net->puts == NULL)
        st = open_puts(op->client, net, &net->puts);
    struct shared_puts *puts = net->puts;
    if (st == HL_OK)
        puts->refs++;
    pthread_mutex_unlock(&net->lock);
    if (st != HL_OK)
        return st;
    st = hl_put_queue_put(puts->queue, data, size, crc32, operation_left_ms(op), &got);
    puts_unref(net, puts);
    if (st == HL_OK)
        *id = got;
    return st;
}

/* Large objects fill a connection by themselves. */
static hl_status put_alone(struct operation *op, struct net *net, const void *data, uint64_t size,
                           uint32_t crc32, struct hl_id *id)
{
    struct hl_conn_lease lease;
    HL_TRY(conn_lease_acquire(op, net, &lease));
    hl_status st = hl_net_put(lease.client, data, size, crc32, operation_left_ms(op), id);
    conn_lease_release(net, &lease, st);
    return st;
}

hl_status net_put(struct operation *op, struct net *net, const void *data, uint64_t size,
                  uint32_t crc32, struct hl_id *id)
{
    bool small = size < op->client->data.batch_bytes;
    hl_status st;
    do /* busy: the pool is giving up archived shards to make room */
        st = (small ? put_small : put_alone)(op, net, data, size, crc32, id);
    while (st == HL_EBUSY && operation_pause_for_daemon(op));
    return st;
}
