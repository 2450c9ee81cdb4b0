/* Views: the pinned pool itself where it is mapped; a private copy elsewhere. A writable view has a
 * copy-on-write mapping of its own, or is a copy if the kernel refuses that.
 *
 *     attach.mappings (hash, by address; under attach.lock)
 *       mapping: a view of the pool      data -> pages of shm->view, pin = the connection
 *       mapping: a written view          data -> own (copy-on-write of the same pages), pin
 *       mapping: a copy                  data -> own (anonymous memory), no shm, no pin
 *
 * A pin keeps the bytes in place; a reference (shm->refs) keeps the pages mapped. When the daemon
 * ends, the pins are gone and the pages stay: attach_watch pins again by id and offset, at the new
 * daemon. All readers of a shard share one view and one pin; each writable view has its own.
 *
 * Locks: helios_client.lock is held around a whole call, and attach.lock within it for the table
 * and the connection. Bytes are verified without attach.lock: the view's reference keeps them
 * mapped. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/client_private.h"
#include "core/copies/copyplan.h"

/* What the caller of helios_map or helios_map_private asked for. */
struct view_request {
    struct hl_id id;
    bool writable;
};

/* Anonymous memory, into which the caller reads the content. */
static hl_status copy_create(uint64_t size, struct mapping **out)
{
    struct mapping *m = calloc(1, sizeof(*m));
    void *copy = MAP_FAILED;
    if (m != NULL)
        copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        free(m);
        return hl_fail(HL_ENOMEM, "out of memory for a copy of %llu bytes",
                       (unsigned long long)size);
    }
    *m = (struct mapping){.data = copy, .size = size, .refs = 1};
    m->own = (struct hl_pool_private){.data = copy, .base = copy, .len = size};
    *out = m;
    return HL_OK;
}

/* Takes the pin on `ref`. Caller holds attach.lock. */
static hl_status view_create(struct shm *shm, const struct hl_pool_ref *ref, bool writable,
                             struct mapping **out)
{
    struct hl_pool_private own = {0};
    if (writable)
        HL_TRY(hl_pool_view_map_private(shm->view, ref, &own));
    struct mapping *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        hl_pool_view_unmap_private(&own);
        return hl_fail(HL_ENOMEM, "out of memory for a mapping");
    }
    *m = (struct mapping){.data = writable ? own.data : hl_pool_view_data(shm->view, ref),
                          .size = ref->size,
                          .ref = *ref,
                          .own = own,
                          .shm = shm,
                          .pin = shm};
    shm->refs++;
    *out = m;
    return HL_OK;
}

/* Caller holds attach.lock. Pin, look-up and insert are a single step under it: attach_watch, which
 * pins again after a restart, sees the mapping together with its pin, or neither. */
static hl_status pin_locked(struct operation *op, struct shm *shm,
                            const struct view_request *request, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct mapping *m = NULL;
    struct hl_pool_ref ref;
    HL_TRY(shm_check(shm, hl_now_ns()));
    HL_TRY(hl_l3_pin(shm->socket, request->id, 0, operation_socket_ms(op), &ref));
    hl_status listed = names_check(op->client, request->id, ref.size, ref.crc32);
    if (listed != HL_OK) {
        (void)!hl_l3_unpin(shm->socket, &ref, operation_socket_ms(op));
        return listed;
    }
    const void *data = hl_pool_view_data(shm->view, &ref);
    if (!request->writable)
        HASH_FIND_PTR(a->mappings, &data, m);
    if (m != NULL) {
        /* One pin is enough for all read-only views of a shard. */
        (void)!hl_l3_unpin(shm->socket, &ref, operation_socket_ms(op));
    } else {
        hl_status st = view_create(shm, &ref, request->writable, &m);
        if (st != HL_OK) {
            (void)!hl_l3_unpin(shm->socket, &ref, operation_socket_ms(op));
            return st;
        }
        HASH_ADD_PTR(a->mappings, data, m);
    }
    m->refs++;
    *out = m;
    return HL_OK;
}

/* Caller holds attach.lock. A writable view is unmapped before its pin is released: without the pin
 * the extent may be filled with another shard. */
static void mapping_release(struct operation *op, struct mapping *m)
{
    struct attach *a = &op->client->attach;
    if (--m->refs > 0)
        return;
    HASH_DEL(a->mappings, m);
    hl_pool_view_unmap_private(&m->own);
    if (m->shm != NULL) {
        /* A connection that was replaced has dropped its pins already. */
        if (m->pin != NULL && (m->pin == atomic_load_explicit(&a->shm, memory_order_relaxed) ||
                               m->pin == atomic_load_explicit(&a->store, memory_order_relaxed)))
            (void)!hl_l3_unpin(m->pin->socket, &m->ref, operation_socket_ms(op));
        attach_unref(op->client, m->shm);
    }
    free(m);
}

/* place: attach.shm or attach.store. HL_ENOENT when nothing is mapped there. */
static hl_status map_pool(struct operation *op, _Atomic(struct shm *) *place,
                          const struct view_request *request, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct hl_pool_ref ref;
    pthread_mutex_lock(&a->lock);
    struct shm *shm = atomic_load_explicit(place, memory_order_relaxed);
    hl_status st = shm != NULL ? pin_locked(op, shm, request, out) : HL_ENOENT;
    if (st == HL_OK)
        ref = (*out)->ref; /* attach_watch writes it when it pins again */
    pthread_mutex_unlock(&a->lock);
    HL_TRY(st);
    /* The reference keeps the memory mapped, so this only takes time of this thread. */
    st = shm_verify(op, (*out)->shm, &ref, (*out)->data);
    if (st != HL_OK) {
        pthread_mutex_lock(&a->lock);
        mapping_release(op, *out);
        pthread_mutex_unlock(&a->lock);
    }
    return st;
}

/* Fails without a text of its own when the store does not have the shard; may_load: the store may
 * load it. */
static hl_status map_store(struct operation *op, const struct view_request *request, bool may_load,
                           struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct hl_pool_ref ref = {0};
    (void)attach_enter(op->client);
    struct shm *store = attach_node_store(op->client, op->started_ns);
    hl_status st = store != NULL ? hl_pool_view_find(store->view, request->id, &ref) : HL_ENOENT;
    bool had = st == HL_OK;
    if (st == HL_ENOENT && store != NULL && may_load &&
        keep_load(op, store, request->id, HL_API_TIER_L2))
        st = hl_pool_view_find(store->view, request->id, &ref);
    attach_leave(op->client);
    if (st == HL_OK)
        st = map_pool(op, &a->store, request, out);
    if (st == HL_ECORRUPT)
        keep_suspect(op->client, &ref);
    op->from_store = st == HL_OK;
    op->from_kept = st == HL_OK && had && ref.kept;
    return st;
}

/* The source of a copy. */
enum source { FROM_POOL, FROM_NET, FROM_ELSEWHERE };

/* If a pool was unmapped between two checks it is stale, not empty: map_hard connects again. */
static hl_status source_find(struct operation *op, enum source source, struct hl_id id,
                             uint64_t *size, uint32_t *crc32)
{
    struct hl_pool_ref ref = {0};
    if (source == FROM_NET)
        return net_find(op, op->client->attach.net, id, size, crc32);
    if (source == FROM_ELSEWHERE)
        return copies_find(op, id, size, crc32);
    struct shm *shm = attach_enter(op->client);
    hl_status st = shm != NULL ? shm_find(op, shm, id, &ref) : HL_ESTALE;
    attach_leave(op->client);
    *size = ref.size;
    *crc32 = ref.crc32;
    return st;
}

/* Reads into memory that belongs to the copy alone, verified on the way like every read. */
static hl_status source_read(struct operation *op, enum source source, struct hl_id id, void *copy,
                             uint64_t size)
{
    const char *path;
    if (source == FROM_NET)
        return net_read(op, op->client->attach.net, id, 0, copy, size, true);
    if (source == FROM_ELSEWHERE)
        return copies_read(op, id, 0, copy, size, true, &path);
    struct shm *shm = attach_enter(op->client);
    hl_status st = shm != NULL ? shm_read(op, shm, id, 0, copy, size, true) : HL_ESTALE;
    attach_leave(op->client);
    return st;
}

/* No other thread knows the copy before it is complete and protected: only then is it put into the
 * table, where helios_unmap finds it. */
static hl_status map_copy(struct operation *op, const struct view_request *request,
                          enum source source, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct mapping *m = NULL;
    uint64_t size = 0;
    uint32_t crc32 = 0;
    HL_TRY(source_find(op, source, request->id, &size, &crc32));
    HL_TRY(names_check(op->client, request->id, size, crc32));
    HL_TRY(copy_create(size, &m));
    m->net = source != FROM_POOL;
    hl_status st = source_read(op, source, request->id, m->own.data, size);
    if (st == HL_OK && !request->writable && mprotect(m->own.data, size, PROT_READ) != 0)
        st = hl_fail(HL_ENOMEM, "protecting a copy: %s", strerror(errno));
    if (st != HL_OK) {
        hl_pool_view_unmap_private(&m->own);
        free(m);
        return st;
    }
    pthread_mutex_lock(&a->lock);
    HASH_ADD_PTR(a->mappings, data, m);
    pthread_mutex_unlock(&a->lock);
    *out = m;
    return HL_OK;
}

/* True if the pool is mapped and does not have the shard. */
static bool pool_misses(struct operation *op, struct hl_id id)
{
    struct hl_pool_ref ref;
    struct shm *shm = attach_enter(op->client);
    bool misses = shm != NULL && shm_check(shm, hl_now_ns()) == HL_OK &&
                  hl_pool_view_find(shm->view, id, &ref) == HL_ENOENT;
    attach_leave(op->client);
    return misses;
}

/* The sources are tried in the same order as for a read (read.c). The difference: we know that a
 * pool misses the shard before we ask for a pin, because loading has a longer deadline than the
 * socket. */
static hl_status map_once(struct operation *op, const struct view_request *request,
                          struct mapping **out)
{
    struct attach *a = &op->client->attach;
    int mapped = atomic_load_explicit(&a->shm, memory_order_relaxed) != NULL;
    if (pool_misses(op, request->id)) {
        if (map_store(op, request, false, out) == HL_OK)
            return HL_OK;
        HL_TRY(shm_load(op, request->id)); /* may take longer than the socket's deadline */
    }
    hl_status st = map_pool(op, &a->shm, request, out);
    if (st != HL_OK && map_store(op, request, !mapped, out) == HL_OK)
        return HL_OK;
    if (st == HL_ENOMEM && request->writable)
        return map_copy(op, request, FROM_POOL, out);
    return mapped || st == HL_OK ? st : map_copy(op, request, FROM_NET, out);
}

/* The pool failed: have its copy healed, or take one from another node; repeated as long as that
 * may help (read_retry). */
static hl_status map_hard(struct operation *op, const struct view_request *request, hl_status st,
                          struct mapping **out)
{
    char text[HL_ERROR_TEXT_MAX];
    if ((st == HL_ESTALE || st == HL_EUNAVAIL) && attach_renew(op, RENEW_QUICK) == HL_OK)
        st = map_once(op, request, out);
    while (st != HL_OK) {
        hl_status elsewhere = HL_ENOENT;
        snprintf(text, sizeof(text), "%s", hl_error_text());
        if (st == HL_ECORRUPT && copies_heal(op, request->id) == HL_OK &&
            map_once(op, request, out) == HL_OK)
            return HL_OK;
        if (hl_copy_may_help(st)) {
            elsewhere = map_copy(op, request, FROM_ELSEWHERE, out);
            if (elsewhere == HL_OK || (elsewhere == HL_ENOENT && st == HL_ENOENT))
                return elsewhere; /* the Controller knows better */
        }
        st = copies_failed(op, st, text, elsewhere);
        if (!read_retry(op, request->id, elsewhere, &st))
            return st;
        st = map_once(op, request, out);
    }
    return HL_OK;
}

/* One call at a time (client->lock): views are rare, and the table and the pins change together. */
static hl_status map_shard(helios_client *client, const struct view_request *request,
                           struct mapping **out)
{
    struct view_request again = *request;
    struct operation op;
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    hl_status st = map_once(&op, request, out);
    if (st != HL_OK)
        st = map_hard(&op, request, st, out);
    if (st != HL_OK && (st = list_again(&op, request->id, st, &again.id)) == HL_OK) {
        st = map_once(&op, &again, out);
        if (st != HL_OK)
            st = map_hard(&op, &again, st, out);
    }
    int net = st == HL_OK ? (*out)->net : atomic_load(&client->attach.shm) == NULL;
    read_account(&op, request->id, st == HL_OK ? (*out)->size : 0, net, st);
    if (st == HL_OK)
        hl_error_clear();
    pthread_mutex_unlock(&client->lock);
    return st;
}

int helios_map(helios_client *client, helios_id id, const void **data, size_t *size)
{
    struct mapping *m = NULL;
    if (client == NULL || data == NULL)
        return hl_fail(HL_EINVAL, "helios_map: client and data must not be NULL");
    HL_TRY(map_shard(client, &(struct view_request){.id = id_of(id)}, &m));
    *data = m->data;
    if (size != NULL)
        *size = m->size;
    return HL_OK;
}

int helios_map_private(helios_client *client, helios_id id, void **data, size_t *size)
{
    struct mapping *m = NULL;
    if (client == NULL || data == NULL)
        return hl_fail(HL_EINVAL, "helios_map_private: client and data must not be NULL");
    HL_TRY(map_shard(client, &(struct view_request){.id = id_of(id), .writable = true}, &m));
    *data = m->own.data;
    if (size != NULL)
        *size = m->size;
    return HL_OK;
}

/* Finds the view by the address that was handed out; a view that several callers asked for is
 * removed with the last. */
int helios_unmap(helios_client *client, const void *data)
{
    struct operation op;
    struct mapping *m = NULL;
    if (client == NULL || data == NULL)
        return hl_fail(HL_EINVAL, "helios_unmap: client and data must not be NULL");
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    pthread_mutex_lock(&client->attach.lock);
    HASH_FIND_PTR(client->attach.mappings, &data, m);
    if (m != NULL)
        mapping_release(&op, m);
    pthread_mutex_unlock(&client->attach.lock);
    pthread_mutex_unlock(&client->lock);
    return m != NULL ? HL_OK
                     : hl_fail(HL_EINVAL, "helios_unmap: %p is not a view of this client", data);
}

/* At the end of the client, when no other call is in progress: removes whatever is still mapped. */
void map_fini(helios_client *client)
{
    struct operation op;
    struct mapping *m, *next;
    operation_begin(&op, client);
    HASH_ITER (hh, client->attach.mappings, m, next) {
        m->refs = 1;
        mapping_release(&op, m);
    }
}
