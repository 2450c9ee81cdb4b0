/* The mapped pool of this host: finding and reading need no call.
 *
 * `trusted_ns` is shared by all readers and orders nothing. It may only go back by a race of two
 * checks, which costs another check: what a read relies on is the generation and the incarnation
 * that it compares after it has copied the bytes (pool/view.c). */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "client/client_private.h"
#include "core/catalog/derived_id.h"

#define NAME_MAX_TEXT 256
#define FIND_TRIES    100
#define STALE_TRIES   8
#define TRUST_NS      (50 * HL_NS_PER_MS) /* minimum time between two checks of the heartbeat */

hl_status shm_attach(const char *socket_path, struct hl_id uuid, int timeout_ms, struct shm **out)
{
    struct hl_pool_view_info info;
    if (access(socket_path, F_OK) != 0)
        return hl_fail(HL_ENOENT, "there is no socket %s on this host", socket_path);
    struct shm *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a connection to %s", socket_path);
    hl_status st = hl_l3_connect(socket_path, timeout_ms, &s->socket);
    if (st != HL_OK) {
        free(s);
        return st;
    }
    s->view = hl_l3_view(s->socket);
    hl_pool_view_info(s->view, &info);
    s->uuid = info.uuid;
    if (!hl_id_is_none(uuid) && !hl_id_equal(info.uuid, uuid)) {
        shm_detach(s);
        return hl_fail(HL_ENOENT, "the pool at %s is not the L3 daemon's", socket_path);
    }
    *out = s;
    return HL_OK;
}

void shm_detach(struct shm *shm)
{
    hl_rpc_peer_close(shm->agent);
    hl_l3_close(shm->socket);
    free(shm);
}

void shm_know_agent(struct shm *shm, struct hl_rpc *rpc)
{
    const char *address = hl_l3_rpc_address(shm->socket);
    if (address[0] != '\0' && hl_rpc_open(rpc, address, "Agent", &shm->agent) != HL_OK)
        hl_debug("the node's store does not keep copies for this process: %s", hl_error_text());
}

bool shm_connected(struct shm *shm)
{
    return hl_l3_alive(shm->socket) == HL_OK;
}

hl_status shm_check(struct shm *shm, uint64_t now_ns)
{
    if (__builtin_expect(now_ns < atomic_load_explicit(&shm->trusted_ns, memory_order_relaxed), 1))
        return HL_OK;
    hl_status st = hl_pool_view_alive(shm->view);
    if (st == HL_OK)
        atomic_store_explicit(&shm->trusted_ns, now_ns + TRUST_NS, memory_order_relaxed);
    return st == HL_EUNAVAIL ? HL_ESTALE : st;
}

static hl_status fail_missing(struct operation *op, struct hl_id id)
{
    char name[NAME_MAX_TEXT];
    return hl_fail(HL_ENOENT, "%s is not in the pool; it was removed, or never written",
                   names_text(op->client, id, name, sizeof(name)));
}

hl_status shm_load(struct operation *op, struct hl_id id)
{
    const struct hl_id_text text = hl_id_format(id);
    const char *ids[] = {text.s};
    const struct hl_api_l3_locate_params p = {.ids = {ids, 1}};
    hl_status st;
    do /* busy: others' shards have driven it out again */
        st = hl_call_l3_locate(op->client->l3, &p, operation_left_ms(op), NULL, NULL);
    while (st == HL_EBUSY && operation_pause_for_daemon(op));
    return st == HL_ENOENT ? fail_missing(op, id) : st;
}

hl_status shm_find(struct operation *op, struct shm *shm, struct hl_id id, struct hl_pool_ref *ref)
{
    hl_status st = hl_pool_view_find(shm->view, id, ref);
    if (__builtin_expect(st == HL_OK, 1))
        return HL_OK;
    /* An entry is mid-change only for nanoseconds, unless its owner died during the change. */
    for (int i = 0; st == HL_EBUSY && i < FIND_TRIES && operation_pause(op, 1); i++)
        st = hl_pool_view_find(shm->view, id, ref);
    return st == HL_ENOENT ? fail_missing(op, id) : st;
}

/* Counts one more bad piece: HL_OK = read it again, else the failure that names it. */
static hl_status retry_piece(struct operation *op, struct hl_id id, uint64_t chunk, uint64_t chunks,
                             uint32_t tried)
{
    char name[NAME_MAX_TEXT];
    operation_failed_crc(op, 1);
    const struct hl_retry *retry = &op->client->read.retry;
    if (tried < (uint32_t)retry->count &&
        operation_pause(op, hl_retry_pause_ms(retry, (int)tried))) {
        operation_retried(op);
        return HL_OK;
    }
    return hl_fail(HL_ECORRUPT,
                   "%s: chunk %llu of %llu fails its checksum, also after %u retries; %s",
                   names_text(op->client, id, name, sizeof(name)), (unsigned long long)chunk,
                   (unsigned long long)chunks, tried,
                   hl_id_is_derived(id) ? "read the version again, which cuts it again"
                                        : "use another version or import the model again");
}

/* Something in the range is bad: reads piece by piece, so that only bad pieces are read again. */
static hl_status read_pieces(struct operation *op, struct shm *shm, const struct hl_pool_ref *ref,
                             uint64_t off, unsigned char *buf, uint64_t len)
{
    uint64_t end = off + len;
    while (off < end) {
        uint64_t chunk = off / HL_CHUNK;
        uint64_t stop = (chunk + 1) * HL_CHUNK;
        uint64_t n = (stop < end ? stop : end) - off;
        uint32_t tried = 0;
        hl_status st;
        while ((st = hl_pool_view_read(shm->view, ref, off, buf, n)) == HL_ECORRUPT) {
            HL_TRY(retry_piece(op, ref->id, chunk, hl_chunk_count(ref->size), tried));
            tried++;
        }
        HL_TRY(st);
        off += n;
        buf += n;
    }
    return HL_OK;
}

static hl_status bad_range(struct operation *op, const struct hl_pool_ref *ref, uint64_t off,
                           uint64_t len, bool whole)
{
    char name[NAME_MAX_TEXT];
    names_text(op->client, ref->id, name, sizeof(name));
    if (whole)
        return hl_fail(HL_EINVAL, "%s has %llu bytes, and the buffer %llu", name,
                       (unsigned long long)ref->size, (unsigned long long)len);
    return hl_fail(HL_EINVAL, "%s has %llu bytes; %llu bytes at %llu reach beyond its end", name,
                   (unsigned long long)ref->size, (unsigned long long)len, (unsigned long long)off);
}

hl_status shm_read(struct operation *op, struct shm *shm, struct hl_id id, uint64_t off, void *buf,
                   uint64_t len, bool whole)
{
    hl_status st = HL_OK;
    for (int i = 0; i < STALE_TRIES; i++) {
        struct hl_pool_ref ref;
        HL_TRY(shm_find(op, shm, id, &ref));
        if (whole || len > SMALL_READ) /* a lock; a short piece takes little more than that */
            HL_TRY(names_check(op->client, id, ref.size, ref.crc32));
        if (off > ref.size || len > ref.size - off || (whole && len != ref.size))
            return bad_range(op, &ref, off, len, whole);
        st = hl_pool_view_read(shm->view, &ref, off, buf, len);
        if (__builtin_expect(st == HL_OK, 1))
            return HL_OK;
        if (st == HL_ECORRUPT)
            st = read_pieces(op, shm, &ref, off, buf, len);
        if (st != HL_ESTALE)
            return st;
        /* It was freed while it was being read, or the pool has a new owner: the next check tells.
         */
        HL_TRY(shm_check(shm, hl_now_ns()));
    }
    return st;
}

hl_status shm_verify(struct operation *op, struct shm *shm, const struct hl_pool_ref *ref,
                     const void *data)
{
    uint32_t bad = 0, tried = 0;
    hl_status st;
    while ((st = hl_pool_view_verify_at(shm->view, ref, data, &bad)) == HL_ECORRUPT) {
        HL_TRY(retry_piece(op, ref->id, bad, hl_chunk_count(ref->size), tried));
        tried++;
    }
    return st;
}
