/* Views: the pool itself, pinned, where it is mapped; a private copy elsewhere. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/client_private.h"

#define SOCKET_MS 5000 /* an answer on the local socket */

static int left_for_socket(const struct operation *op)
{
    int left = operation_left_ms(op);
    return left < SOCKET_MS ? left : SOCKET_MS;
}

/* Caller holds attach.lock. *out is NULL when the pool is not mapped. */
static hl_status pin_locked(struct operation *op, struct hl_id id, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    struct shm *shm = atomic_load_explicit(&a->shm, memory_order_relaxed);
    struct mapping *m = NULL;
    struct hl_pool_ref ref;
    *out = NULL;
    if (shm == NULL)
        return HL_OK;
    HL_TRY(shm_check(shm, hl_now_ns()));
    HL_TRY(hl_l3_pin(shm->socket, id, 0, left_for_socket(op), &ref));
    const void *data = hl_pool_view_data(shm->view, &ref);
    HASH_FIND_PTR(a->mappings, &data, m);
    if (m != NULL) {
        /* One pin is enough for all views of a shard. */
        (void)!hl_l3_unpin(shm->socket, &ref, left_for_socket(op));
    } else {
        m = calloc(1, sizeof(*m));
        if (m == NULL) {
            (void)!hl_l3_unpin(shm->socket, &ref, left_for_socket(op));
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
        if (m->pin != NULL && m->pin == atomic_load_explicit(&a->shm, memory_order_relaxed))
            (void)!hl_l3_unpin(m->pin->socket, &m->ref, left_for_socket(op));
        attach_unref(op->client, m->shm);
    }
    free(m);
}

static hl_status map_pool(struct operation *op, struct hl_id id, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    pthread_mutex_lock(&a->lock);
    hl_status st = pin_locked(op, id, out);
    pthread_mutex_unlock(&a->lock);
    if (st != HL_OK || *out == NULL)
        return st;
    /* The reference keeps the memory; only the clock of this thread is spent here. */
    st = shm_verify(op, (*out)->shm, &(*out)->ref);
    if (st != HL_OK) {
        pthread_mutex_lock(&a->lock);
        release(op, *out);
        pthread_mutex_unlock(&a->lock);
    }
    return st;
}

static hl_status map_copy(struct operation *op, struct hl_id id, struct mapping **out)
{
    struct attach *a = &op->client->attach;
    uint64_t size;
    uint32_t crc32;
    HL_TRY(net_find(op, a->net, id, &size, &crc32));
    struct mapping *m = calloc(1, sizeof(*m));
    void *copy = MAP_FAILED;
    if (m != NULL)
        copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        free(m);
        return hl_fail(HL_ENOMEM, "memory is short for a copy of %llu bytes",
                       (unsigned long long)size);
    }
    hl_status st = net_read(op, a->net, id, 0, copy, size, 1);
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

static hl_status map_once(struct operation *op, struct hl_id id, struct mapping **out)
{
    HL_TRY(map_pool(op, id, out));
    return *out != NULL ? HL_OK : map_copy(op, id, out);
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
    while (st != HL_OK && read_recover(&op, &st))
        st = map_once(&op, id_of(id), &m);
    read_account(&op, id_of(id), st == HL_OK ? m->size : 0, st == HL_OK && m->shm == NULL, st);
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
