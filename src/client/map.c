/* Views: the pool itself, pinned, where it is mapped; a private copy elsewhere. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/client_private.h"

/* Caller holds attach.lock. */
static hl_status pin_locked(struct operation *op, struct shm *shm, struct hl_id id,
                            struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct mapping *m = NULL;
    struct hl_pool_ref ref;
    HL_TRY(shm_check(shm, hl_now_ns()));
    HL_TRY(hl_l3_pin(shm->socket, id, 0, operation_socket_ms(op), &ref));
    const void *data = hl_pool_view_data(shm->view, &ref);
    HASH_FIND_PTR(a->mappings, &data, m);
    if (m != NULL) {
        /* One pin is enough for all views of a shard. */
        (void)!hl_l3_unpin(shm->socket, &ref, operation_socket_ms(op));
    } else {
        m = calloc(1, sizeof(*m));
        if (m == NULL) {
            (void)!hl_l3_unpin(shm->socket, &ref, operation_socket_ms(op));
            return hl_fail(HL_ENOMEM, "memory is short for a mapping");
        }
        *m = (struct mapping){.data = data, .size = ref.size, .ref = ref, .shm = shm, .pin = shm};
        shm->refs++;
        HASH_ADD_PTR(a->mappings, data, m);
    }
    m->refs++;
    *out = m;
    return HL_OK;
}

/* Caller holds attach.lock. */
static void release(struct operation *op, struct mapping *m)
{
    struct attach *a = &op->client->attach;
    if (--m->refs > 0)
        return;
    HASH_DEL(a->mappings, m);
    if (m->shm == NULL) {
        munmap((void *)m->data, m->size);
    } else {
        /* A connection that was replaced has dropped its pins by itself. */
        if (m->pin != NULL && (m->pin == atomic_load_explicit(&a->shm, memory_order_relaxed) ||
                               m->pin == atomic_load_explicit(&a->near, memory_order_relaxed)))
            (void)!hl_l3_unpin(m->pin->socket, &m->ref, operation_socket_ms(op));
        attach_unref(op->client, m->shm);
    }
    free(m);
}

/* place: attach.shm or attach.near. HL_ENOENT when nothing is mapped there. */
static hl_status map_pool(struct operation *op, _Atomic(struct shm *) *place, struct hl_id id,
                          struct mapping **out)
{
    struct attach *a = &op->client->attach;
    pthread_mutex_lock(&a->lock);
    struct shm *shm = atomic_load_explicit(place, memory_order_relaxed);
    hl_status st = shm != NULL ? pin_locked(op, shm, id, out) : HL_ENOENT;
    pthread_mutex_unlock(&a->lock);
    HL_TRY(st);
    /* The reference keeps the memory; only the clock of this thread is spent here. */
    st = shm_verify(op, (*out)->shm, &(*out)->ref);
    if (st != HL_OK) {
        pthread_mutex_lock(&a->lock);
        release(op, *out);
        pthread_mutex_unlock(&a->lock);
    }
    return st;
}

/* Without a text of its own when the store has not got it. */
static hl_status map_near(struct operation *op, struct hl_id id, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct hl_pool_ref ref;
    (void)attach_enter(op->client);
    struct shm *near = attach_near(op->client, op->started_ns);
    hl_status st = near != NULL ? hl_pool_view_find(near->view, id, &ref) : HL_ENOENT;
    attach_leave(op->client);
    if (st == HL_OK)
        st = map_pool(op, &a->near, id, out);
    if (st == HL_ECORRUPT)
        copies_suspect(op->client->copies, id, "L2");
    return st;
}

/* A private copy: from the pool, or from another node's store. */
static hl_status map_copy(struct operation *op, struct hl_id id, int elsewhere,
                          struct mapping **out)
{
    struct attach *a = &op->client->attach;
    uint64_t size;
    uint32_t crc32;
    const char *path;
    HL_TRY(elsewhere ? copies_find(op, id, &size, &crc32)
                     : net_find(op, a->net, id, &size, &crc32));
    struct mapping *m = calloc(1, sizeof(*m));
    void *copy = MAP_FAILED;
    if (m != NULL)
        copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        free(m);
        return hl_fail(HL_ENOMEM, "memory is short for a copy of %llu bytes",
                       (unsigned long long)size);
    }
    hl_status st = elsewhere ? copies_read(op, id, 0, copy, size, 1, &path)
                             : net_read(op, a->net, id, 0, copy, size, 1);
    if (st == HL_OK && mprotect(copy, size, PROT_READ) != 0)
        st = hl_fail(HL_ENOMEM, "protecting a copy: %s", strerror(errno));
    if (st != HL_OK) {
        munmap(copy, size);
        free(m);
        return st;
    }
    *m = (struct mapping){.data = copy, .size = size, .refs = 1};
    pthread_mutex_lock(&a->lock);
    HASH_ADD_PTR(a->mappings, data, m);
    pthread_mutex_unlock(&a->lock);
    *out = m;
    return HL_OK;
}

/* It is mapped and has not got the shard. */
static int pool_misses(struct operation *op, struct hl_id id)
{
    struct hl_pool_ref ref;
    struct shm *shm = attach_enter(op->client);
    int misses = shm != NULL && shm_check(shm, hl_now_ns()) == HL_OK &&
                 hl_pool_view_find(shm->view, id, &ref) == HL_ENOENT;
    attach_leave(op->client);
    return misses;
}

static hl_status map_once(struct operation *op, struct hl_id id, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    int mapped = atomic_load_explicit(&a->shm, memory_order_relaxed) != NULL;
    if (pool_misses(op, id)) {
        if (map_near(op, id, out) == HL_OK)
            return HL_OK;
        HL_TRY(shm_load(op, id)); /* it may take longer than an answer on the socket should */
    }
    hl_status st = map_pool(op, &a->shm, id, out);
    if (st != HL_OK && map_near(op, id, out) == HL_OK)
        return HL_OK;
    return mapped || st == HL_OK ? st : map_copy(op, id, 0, out);
}

/* The pool failed: have its copy healed, or take one from another node. */
static hl_status map_hard(struct operation *op, struct hl_id id, hl_status st, struct mapping **out)
{
    char text[HL_ERROR_TEXT_MAX];
    if ((st == HL_ESTALE || st == HL_EUNAVAIL) && attach_renew(op, RENEW_QUICK) == HL_OK)
        st = map_once(op, id, out);
    snprintf(text, sizeof(text), "%s", hl_error_text());
    if (st == HL_ECORRUPT && copies_heal(op, id) == HL_OK && map_once(op, id, out) == HL_OK)
        st = HL_OK;
    if (st != HL_OK && read_worth_looking(st) && map_copy(op, id, 1, out) == HL_OK)
        st = HL_OK;
    if (st != HL_OK)
        st = hl_fail(st, "%s", text);
    while (st != HL_OK && read_recover(op, &st))
        st = map_once(op, id, out);
    return st;
}

int helios_map(helios_client *client, helios_id id, const void **data, size_t *size)
{
    struct operation op;
    struct mapping *m = NULL;
    if (client == NULL || data == NULL)
        return hl_fail(HL_EINVAL, "helios_map: client and data must not be NULL");
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    hl_status st = map_once(&op, id_of(id), &m);
    if (st != HL_OK)
        st = map_hard(&op, id_of(id), st, &m);
    int net = st == HL_OK ? m->shm == NULL : atomic_load(&client->attach.shm) == NULL;
    read_account(&op, id_of(id), st == HL_OK ? m->size : 0, net, st);
    if (st == HL_OK) {
        hl_error_clear();
        *data = m->data;
        if (size != NULL)
            *size = m->size;
    }
    pthread_mutex_unlock(&client->lock);
    return st;
}

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
        release(&op, m);
    pthread_mutex_unlock(&client->attach.lock);
    pthread_mutex_unlock(&client->lock);
    return m != NULL ? HL_OK
                     : hl_fail(HL_EINVAL, "helios_unmap: %p is no view of this client", data);
}

void map_fini(helios_client *client)
{
    struct operation op;
    struct mapping *m, *next;
    operation_begin(&op, client);
    HASH_ITER (hh, client->attach.mappings, m, next) {
        m->refs = 1;
        release(&op, m);
    }
}
