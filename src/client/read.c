/* Reading: the mapped pool first, without lock or allocation; the network, restarts of the daemon
 * and bad checksums after it. */
#include "client/client_private.h"

#define RECOVER_PAUSE_MS 20
/* A small read takes little longer than a look at the clock: one of so many is timed for all. */
#define TIMED_ONE_OF 16u
#define SMALL_READ   ((uint64_t)16 << 10)

void read_account(struct operation *op, struct hl_id id, uint64_t bytes, int net, hl_status st)
{
    helios_client *c = op->client;
    struct counters *n = &c->counters;
    if (st == HL_OK) {
        uint64_t seen = atomic_fetch_add_explicit(&n->reads, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&n->read_bytes, bytes, memory_order_relaxed);
        unsigned weight = bytes > SMALL_READ ? 1 : TIMED_ONE_OF;
        if (seen % weight == 0)
            atomic_fetch_add_explicit(&n->read_ns, weight * (hl_now_ns() - op->started_ns),
                                      memory_order_relaxed);
        const char *path = net ? net_path(c->attach.net) : "shm";
        if (atomic_load_explicit(&n->path, memory_order_relaxed) != path)
            atomic_store_explicit(&n->path, path, memory_order_relaxed);
        access_count(c->access, id, bytes, net);
    }
    if (op->crc_failures > 0)
        access_trouble(c->access, id, op->crc_failures, op->retries, st == HL_ECORRUPT);
}

void read_failed_crc(struct operation *op, uint32_t pieces)
{
    op->crc_failures += pieces;
    atomic_fetch_add_explicit(&op->client->counters.crc_failures, pieces, memory_order_relaxed);
}

void read_retried(struct operation *op)
{
    op->retries++;
    atomic_fetch_add_explicit(&op->client->counters.retries, 1, memory_order_relaxed);
}

int read_recover(struct operation *op, hl_status *st)
{
    if (*st != HL_ESTALE && *st != HL_EUNAVAIL)
        return 0;
    if (!operation_pause(op, *st == HL_ESTALE ? 0 : RECOVER_PAUSE_MS))
        return 0;
    hl_status again = attach_renew(op, 0);
    if (again != HL_OK) {
        *st = again;
        return 0;
    }
    return 1;
}

static hl_status read_once(struct operation *op, struct hl_id id, uint64_t off, void *buf,
                           uint64_t len, int whole, int *net)
{
    helios_client *c = op->client;
    struct shm *shm = attach_enter(c);
    hl_status st = HL_OK;
    if (shm != NULL) {
        st = shm_check(shm, op->started_ns);
        if (st == HL_OK)
            st = shm_read(op, shm, id, off, buf, len, whole);
    }
    attach_leave(c);
    *net = shm == NULL;
    return shm != NULL ? st : net_read(op, c->attach.net, id, off, buf, len, whole);
}

static hl_status read_verified(helios_client *client, struct hl_id id, uint64_t off, void *buf,
                               uint64_t len, int whole)
{
    struct operation op;
    int net;
    operation_begin(&op, client);
    hl_status st = read_once(&op, id, off, buf, len, whole, &net);
    if (st != HL_OK) {
        while (read_recover(&op, &st))
            st = read_once(&op, id, off, buf, len, whole, &net);
        if (st == HL_OK)
            hl_error_clear();
    }
    read_account(&op, id, len, net, st);
    return st;
}

int helios_get(helios_client *client, helios_id id, void *buf, size_t size)
{
    if (client == NULL || buf == NULL)
        return hl_fail(HL_EINVAL, "helios_get: client and buf must not be NULL");
    return read_verified(client, id_of(id), 0, buf, size, 1);
}

int helios_get_range(helios_client *client, helios_id id, uint64_t offset, void *buf, size_t size)
{
    if (client == NULL || (buf == NULL && size > 0))
        return hl_fail(HL_EINVAL, "helios_get_range: client and buf must not be NULL");
    return read_verified(client, id_of(id), offset, buf, size, 0);
}

static hl_status find_once(struct operation *op, struct hl_id id, uint64_t *size, uint32_t *crc32)
{
    helios_client *c = op->client;
    struct shm *shm = attach_enter(c);
    hl_status st = HL_OK;
    if (shm != NULL) {
        st = shm_check(shm, op->started_ns);
        struct hl_pool_ref ref;
        if (st == HL_OK)
            st = shm_find(op, shm, id, &ref);
        if (st == HL_OK) {
            *size = ref.size;
            *crc32 = ref.crc32;
        }
    }
    attach_leave(c);
    return shm != NULL ? st : net_find(op, c->attach.net, id, size, crc32);
}

int helios_find(helios_client *client, helios_id id, uint64_t *size, uint32_t *crc32)
{
    struct operation op;
    uint64_t found_size;
    uint32_t found_crc;
    if (client == NULL)
        return hl_fail(HL_EINVAL, "helios_find: client must not be NULL");
    operation_begin(&op, client);
    hl_status st = find_once(&op, id_of(id), &found_size, &found_crc);
    if (st != HL_OK)
        while (read_recover(&op, &st))
            st = find_once(&op, id_of(id), &found_size, &found_crc);
    if (st != HL_OK)
        return st;
    if (size != NULL)
        *size = found_size;
    if (crc32 != NULL)
        *crc32 = found_crc;
    return HL_OK;
}
