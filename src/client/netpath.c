/* A pool of another host. Where a shard lies is asked once and remembered: the bytes are checked
 * against the CRCs of that answer, so a place that is no longer true shows as a bad piece and is
 * asked again. Connections are used by one thread at a time; a few idle ones are kept. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "client/client_private.h"
#include "net/dispatch/put_queue.h"
#include "net/net.h"
#include "rpc/agent_calls.h"

#define IDLE_MAX      4
#define CACHE_MAX     65536
#define NAME_MAX_TEXT 256
#define BUSY_PAUSE_MS 20

struct place {
    struct hl_id id;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t gen;
    unsigned refs; /* under net->lock; the cache holds one */
    UT_hash_handle hh;
    uint32_t crcs[]; /* one per started MiB */
};

struct net {
    struct hl_rpc_peer *owner; /* who says where a shard lies; borrowed */
    enum net_owner kind;
    pthread_mutex_t lock;
    struct place *places;
    struct shared_puts *puts; /* of small ones; NULL until the first */
    struct hl_net_client *idle[IDLE_MAX];
    unsigned idle_count;
    unsigned epoch; /* connections of an older one are not kept */
    char address[300];
    _Atomic(const char *) path;
};

/* A queue that several threads put through. */
struct shared_puts {
    struct hl_put_queue *queue;
    unsigned refs; /* under net->lock; net holds one */
};

/* A connection on loan. */
struct loan {
    struct hl_net_client *client;
    unsigned epoch;
};

hl_status net_create(enum net_owner kind, struct net **out)
{
    struct net *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a client");
    pthread_mutex_init(&n->lock, NULL);
    atomic_store_explicit(&n->path, "", memory_order_relaxed);
    n->kind = kind;
    *out = n;
    return HL_OK;
}

void net_own(struct net *net, struct hl_rpc_peer *owner)
{
    net->owner = owner;
}

static hl_status ask_owner(struct operation *op, struct net *net, struct hl_api_text_list ids,
                           struct hl_arena *arena, struct hl_api_extent_list *out)
{
    struct hl_api_l3_locate_results l3;
    struct hl_api_agent_store_locate_results agent;
    int ms = operation_left_ms(op);
    if (net->kind == NET_OF_L3)
        HL_TRY(hl_call_l3_locate(net->owner, &(struct hl_api_l3_locate_params){.ids = ids}, ms,
                                 arena, &l3));
    else
        HL_TRY(hl_call_agent_store_locate(
            net->owner, &(struct hl_api_agent_store_locate_params){.ids = ids}, ms, arena, &agent));
    *out = net->kind == NET_OF_L3 ? l3.extents : agent.extents;
    return HL_OK;
}

static void place_put_locked(struct place *p)
{
    if (--p->refs == 0)
        free(p);
}

static void place_put(struct net *net, struct place *p)
{
    pthread_mutex_lock(&net->lock);
    place_put_locked(p);
    pthread_mutex_unlock(&net->lock);
}

static void forget_places(struct net *net)
{
    struct place *p, *next;
    HASH_ITER (hh, net->places, p, next) {
        HASH_DEL(net->places, p);
        place_put_locked(p);
    }
}

static void puts_unref(struct net *net, struct shared_puts *puts)
{
    pthread_mutex_lock(&net->lock);
    int last = puts != NULL && --puts->refs == 0;
    pthread_mutex_unlock(&net->lock);
    if (last) {
        hl_put_queue_close(puts->queue);
        free(puts);
    }
}

static void close_idle(struct net *net)
{
    while (net->idle_count > 0)
        hl_net_close(net->idle[--net->idle_count]);
}

void net_destroy(struct net *net)
{
    if (net == NULL)
        return;
    close_idle(net);
    puts_unref(net, net->puts);
    forget_places(net);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

void net_retarget(struct net *net, const char *address)
{
    pthread_mutex_lock(&net->lock);
    snprintf(net->address, sizeof(net->address), "%s", address);
    net->epoch++;
    struct shared_puts *old = net->puts;
    net->puts = NULL;
    close_idle(net);
    pthread_mutex_unlock(&net->lock);
    puts_unref(net, old);
}

/* The names hl_net gives are its own; these outlive every connection. */
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

static struct loan borrow_locked(struct net *net)
{
    struct loan loan = {.epoch = net->epoch};
    if (net->idle_count > 0)
        loan.client = net->idle[--net->idle_count];
    return loan;
}

static hl_status connect_loan(struct operation *op, struct net *net, struct loan *loan)
{
    char address[300];
    int left = operation_left_ms(op), limit = op->client->connect_ms;
    struct hl_net_connect_opts opts = {.address = address,
                                       .timeout_ms = left < limit ? left : limit,
                                       .stall_ms = op->client->stall_ms,
                                       .endpoints = op->client->endpoints,
                                       .rdma_retry_ms = op->client->rdma_retry_ms};
    pthread_mutex_lock(&net->lock);
    snprintf(address, sizeof(address), "%s", net->address);
    loan->epoch = net->epoch;
    pthread_mutex_unlock(&net->lock);
    if (address[0] == '\0')
        return no_data_port(net);
    HL_TRY(hl_net_connect_with(&opts, &loan->client));
    note_path(net, loan->client);
    return HL_OK;
}

/* What the lock gave, made ready: connected when it was none, over RDMA again when that works. */
static hl_status take_up(struct operation *op, struct net *net, struct loan *loan)
{
    if (loan->client == NULL)
        return connect_loan(op, net, loan);
    hl_net_renew(&loan->client);
    note_path(net, loan->client);
    return HL_OK;
}

static hl_status borrow(struct operation *op, struct net *net, struct loan *out)
{
    pthread_mutex_lock(&net->lock);
    *out = borrow_locked(net);
    pthread_mutex_unlock(&net->lock);
    return take_up(op, net, out);
}

/* st: how the last call on it ended; a broken connection is not kept. What is left in *loan is to
 * be closed. */
static void give_back_locked(struct net *net, struct loan *loan, hl_status st)
{
    int broken = st == HL_EUNAVAIL || st == HL_ETIMEDOUT || st == HL_EPROTO;
    if (!broken && loan->client != NULL && loan->epoch == net->epoch &&
        net->idle_count < IDLE_MAX) {
        net->idle[net->idle_count++] = loan->client;
        loan->client = NULL;
    }
}

static void give_back(struct net *net, struct loan *loan, hl_status st)
{
    pthread_mutex_lock(&net->lock);
    give_back_locked(net, loan, st);
    pthread_mutex_unlock(&net->lock);
    hl_net_close(loan->client);
    loan->client = NULL;
}

/* ---- places ---- */

static hl_status parse_place(const struct hl_api_extent *extent, struct place **out)
{
    size_t count = extent->chunk_crcs.count;
    struct place *p = calloc(1, sizeof(*p) + count * sizeof(p->crcs[0]));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu checksums", count);
    p->offset = extent->offset;
    p->size = extent->size_bytes;
    p->crc32 = extent->crc32;
    p->gen = extent->generation;
    p->refs = 1;
    if (count > 0)
        memcpy(p->crcs, extent->chunk_crcs.items, count * sizeof(p->crcs[0]));
    hl_status st = hl_id_parse(extent->id, &p->id);
    if (st == HL_OK && (p->size == 0 || hl_chunk_count(p->size) != count))
        st = hl_fail(HL_EPROTO, "locate of shard %s: %llu bytes with %zu chunk checksums",
                     hl_id_format(p->id).s, (unsigned long long)p->size, count);
    if (st != HL_OK) {
        free(p);
        return st;
    }
    *out = p;
    return HL_OK;
}

static void forget_locked(struct net *net, struct hl_id id)
{
    struct place *p;
    HASH_FIND(hh, net->places, &id, sizeof(id), p);
    if (p != NULL) {
        HASH_DEL(net->places, p);
        place_put_locked(p);
    }
}

static void remember(struct net *net, struct place *p)
{
    pthread_mutex_lock(&net->lock);
    if (HASH_COUNT(net->places) >= CACHE_MAX)
        forget_places(net);
    forget_locked(net, p->id);
    p->refs++;
    HASH_ADD(hh, net->places, id, sizeof(p->id), p);
    pthread_mutex_unlock(&net->lock);
}

/* NULL when it was not asked for yet. Release with place_put. */
static struct place *known_locked(struct net *net, struct hl_id id)
{
    struct place *p;
    HASH_FIND(hh, net->places, &id, sizeof(id), p);
    if (p != NULL)
        p->refs++;
    return p;
}

/* fresh: ask again even if a place is remembered. Release with place_put. */
static hl_status locate(struct operation *op, struct net *net, struct hl_id id, int fresh,
                        struct place **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_id_text text = hl_id_format(id);
    const char *ids[] = {text.s};
    struct hl_api_extent_list found;
    struct place *p = NULL;
    hl_status st;
    pthread_mutex_lock(&net->lock);
    if (fresh)
        forget_locked(net, id);
    else
        p = known_locked(net, id);
    pthread_mutex_unlock(&net->lock);
    if (p != NULL) {
        *out = p;
        return HL_OK;
    }
    do /* busy: others' shards have driven it out of the pool again */
        st = ask_owner(op, net, (struct hl_api_text_list){ids, 1}, &arena, &found);
    while (st == HL_EBUSY && operation_pause(op, BUSY_PAUSE_MS));
    if (st == HL_ENOENT) {
        char name[NAME_MAX_TEXT];
        return hl_fail(st, "%s is not in the pool of %s; it was removed, or never written",
                       names_text(op->client, id, name, sizeof(name)),
                       hl_rpc_peer_address(net->owner));
    }
    HL_TRY(st);
    if (found.count != 1)
        return hl_fail(HL_EPROTO, "locate of shard %s: %zu extents", text.s, found.count);
    HL_TRY(parse_place(found.items, &p));
    remember(net, p);
    *out = p;
    return HL_OK;
}

void net_prefetch(struct operation *op, struct net *net, struct hl_api_text_list ids)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_extent_list found;
    struct place *p;
    if (ask_owner(op, net, ids, &arena, &found) != HL_OK)
        return;
    for (size_t i = 0; i < found.count && parse_place(&found.items[i], &p) == HL_OK; i++) {
        remember(net, p);
        place_put(net, p);
    }
}

hl_status net_find(struct operation *op, struct net *net, struct hl_id id, uint64_t *size,
                   uint32_t *crc32)
{
    struct place *p;
    HL_TRY(locate(op, net, id, 1, &p));
    *size = p->size;
    *crc32 = p->crc32;
    place_put(net, p);
    return HL_OK;
}

/* ---- reads ---- */

static uint64_t chunk_len(const struct place *p, uint64_t chunk)
{
    uint64_t at = chunk * HL_CHUNK;
    return p->size - at < HL_CHUNK ? p->size - at : HL_CHUNK;
}

static hl_status same_place(struct operation *op, struct net *net, const struct place *p)
{
    struct place *now;
    HL_TRY(locate(op, net, p->id, 1, &now));
    int same = now->offset == p->offset && now->gen == p->gen && now->crc32 == p->crc32;
    place_put(net, now);
    return same ? HL_OK : hl_fail(HL_ESTALE, "shard %s lies elsewhere now", hl_id_format(p->id).s);
}

/* One bad chunk, until it is good, its shard has moved, or the retries are used up. */
static hl_status refetch(struct operation *op, struct net *net, struct loan *loan,
                         const struct place *p, uint64_t chunk, unsigned char *dst)
{
    char name[NAME_MAX_TEXT];
    uint32_t limit = (uint32_t)op->client->retries;
    for (uint32_t tried = 0; tried < limit; tried++) {
        HL_TRY(same_place(op, net, p));
        read_retried(op);
        hl_status st = hl_net_fetch_verified(loan->client, p->offset + chunk * HL_CHUNK, dst,
                                             chunk_len(p, chunk), p->crcs + chunk,
                                             operation_left_ms(op), NULL);
        if (st != HL_ECORRUPT)
            return st;
        read_failed_crc(op, 1);
        if (!operation_pause(op, tried == 0 ? 1 : tried == 1 ? 10 : 100))
            break;
    }
    return hl_fail(HL_ECORRUPT,
                   "%s: chunk %llu of %llu fails its checksum, also after %u retries; use another "
                   "version or import the model again",
                   names_text(op->client, p->id, name, sizeof(name)), (unsigned long long)chunk,
                   (unsigned long long)hl_chunk_count(p->size), op->retries);
}

/* Whole chunks [first, first + count) to dst. */
static hl_status fetch_chunks(struct operation *op, struct net *net, struct loan *loan,
                              const struct place *p, uint64_t first, uint64_t count,
                              unsigned char *dst)
{
    struct hl_net_bad bad = {0};
    uint64_t len = (count - 1) * HL_CHUNK + chunk_len(p, first + count - 1);
    hl_status st = hl_net_fetch_verified(loan->client, p->offset + first * HL_CHUNK, dst, len,
                                         p->crcs + first, operation_left_ms(op), &bad);
    if (st != HL_ECORRUPT)
        return st;
    read_failed_crc(op, (uint32_t)bad.count);
    size_t listed = bad.count < HL_NET_BAD_MAX ? bad.count : HL_NET_BAD_MAX;
    for (size_t i = 0; i < listed; i++)
        HL_TRY(refetch(op, net, loan, p, first + bad.chunk[i],
                       dst + (uint64_t)bad.chunk[i] * HL_CHUNK));
    /* What stands after the last listed one is not known to be good. */
    uint64_t rest = bad.count > listed ? (uint64_t)bad.chunk[listed - 1] + 1 : count;
    for (uint64_t i = rest; i < count; i++)
        HL_TRY(refetch(op, net, loan, p, first + i, dst + i * HL_CHUNK));
    return HL_OK;
}

/* A part of one chunk: the whole chunk is fetched, for only that can be checked. */
static hl_status fetch_part(struct operation *op, struct net *net, struct loan *loan,
                            const struct place *p, uint64_t off, uint64_t len, unsigned char *dst)
{
    uint64_t chunk = off / HL_CHUNK;
    HL_AUTO(hl_freep) unsigned char *whole = malloc(chunk_len(p, chunk));
    if (whole == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating one chunk");
    HL_TRY(fetch_chunks(op, net, loan, p, chunk, 1, whole));
    memcpy(dst, whole + off % HL_CHUNK, len);
    return HL_OK;
}

static hl_status fetch_range(struct operation *op, struct net *net, struct loan *loan,
                             const struct place *p, uint64_t off, uint64_t len, unsigned char *dst)
{
    while (len > 0) {
        uint64_t chunk = off / HL_CHUNK, in = off % HL_CHUNK;
        uint64_t here = chunk_len(p, chunk) - in;
        uint64_t n = len < here ? len : here;
        if (in > 0 || n < chunk_len(p, chunk)) {
            HL_TRY(fetch_part(op, net, loan, p, off, n, dst));
        } else {
            uint64_t end = off + len;
            uint64_t count =
                end == p->size ? hl_chunk_count(p->size) - chunk : end / HL_CHUNK - chunk;
            n = (count - 1) * HL_CHUNK + chunk_len(p, chunk + count - 1);
            HL_TRY(fetch_chunks(op, net, loan, p, chunk, count, dst));
        }
        off += n;
        len -= n;
        dst += n;
    }
    return HL_OK;
}

static hl_status check_range(struct operation *op, const struct place *p, uint64_t off,
                             uint64_t len, int whole)
{
    char name[NAME_MAX_TEXT];
    if (off <= p->size && len <= p->size - off && (!whole || len == p->size))
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s has %llu bytes; %llu bytes at %llu were asked for",
                   names_text(op->client, p->id, name, sizeof(name)), (unsigned long long)p->size,
                   (unsigned long long)len, (unsigned long long)off);
}

/* A small read is a round trip of microseconds: the lock is taken once before it, once after. */
hl_status net_read(struct operation *op, struct net *net, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, int whole)
{
    struct loan loan = {0};
    pthread_mutex_lock(&net->lock);
    struct place *p = known_locked(net, id);
    if (p != NULL)
        loan = borrow_locked(net);
    pthread_mutex_unlock(&net->lock);
    if (p == NULL)
        HL_TRY(locate(op, net, id, 0, &p));
    hl_status st = names_check(op->client, id, p->size, p->crc32);
    if (st == HL_OK)
        st = check_range(op, p, off, len, whole);
    if (st == HL_OK && len > 0)
        st = loan.client != NULL ? take_up(op, net, &loan) : borrow(op, net, &loan);
    if (st == HL_OK && len > 0)
        st = fetch_range(op, net, &loan, p, off, len, buf);
    pthread_mutex_lock(&net->lock);
    give_back_locked(net, &loan, st);
    place_put_locked(p);
    pthread_mutex_unlock(&net->lock);
    hl_net_close(loan.client);
    if (st == HL_ETIMEDOUT && !operation_expired(op))
        st = HL_EUNAVAIL; /* the transfer stalled: a new connection may do */
    return st;
}

static hl_status open_puts(helios_client *c, struct net *net, struct shared_puts **out)
{
    struct hl_put_queue_opts opts = {.connect = {.address = net->address,
                                                 .timeout_ms = c->connect_ms,
                                                 .stall_ms = c->stall_ms,
                                                 .endpoints = 1,
                                                 .rdma_retry_ms = c->rdma_retry_ms,
                                                 .batch_bytes = c->batch_bytes},
                                     .batch_ms = c->batch_ms};
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

static hl_status put_alone(struct operation *op, struct net *net, const void *data, uint64_t size,
                           uint32_t crc32, struct hl_id *id)
{
    struct loan loan;
    HL_TRY(borrow(op, net, &loan));
    hl_status st = hl_net_put(loan.client, data, size, crc32, operation_left_ms(op), id);
    give_back(net, &loan, st);
    return st;
}

hl_status net_put(struct operation *op, struct net *net, const void *data, uint64_t size,
                  uint32_t crc32, struct hl_id *id)
{
    int small = size < op->client->batch_bytes;
    hl_status st;
    do /* busy: the pool is giving up archived shards to make room */
        st = (small ? put_small : put_alone)(op, net, data, size, crc32, id);
    while (st == HL_EBUSY && operation_pause(op, BUSY_PAUSE_MS));
    return st;
}
