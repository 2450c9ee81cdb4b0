/* Which daemon serves the pool, and by which way it is reached.
 *
 * Readers use the mapped pool without a lock: they raise `readers`, load the pointer, and lower
 * `readers` when done. The thread that replaces the pointer puts the old pool on the retired list.
 * That list is only emptied once `readers` was seen at 0 after the exchange: any later reader sees
 * the new pointer. All four accesses are sequentially consistent; the argument needs that.
 *
 *     attach.shm       the pool of L3, where this host has it mapped; else reads go over `net`
 *     attach.store     the node's own L2, where the rank was told of its socket
 *
 *     NULL --take_way, watch_store--> current --install_shm--> retired --reap_retired--> closed
 *                                                                 readers 0, refs 0
 *
 * `readers` counts the threads between enter and leave, for both pools; `refs` (under attach.lock)
 * counts the views that show pages of this one. If readers come and go all the time, retired pools
 * wait for a moment without any: maintenance checks at each tick.
 *
 *     reader        readers + 1 --> load pointer --> read --> readers - 1
 *     replacer                 exchange pointer, retire --> readers == 0? close : later
 *
 * Either the reader's load comes after the exchange, and gets the new pool, or its count was raised
 * before the exchange, and is seen. A reader may stay inside for long (a put, a load by the
 * daemon), which only keeps a retired pool mapped: no thread waits for readers.
 *
 * attach.lock is held while the daemon is asked. If several threads fail to read a mapped pool at
 * the same time, they wait there; the first makes the connection and the others find it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host_port.h"
#include "base/log.h"
#include "client/client_private.h"

#define ATTEMPT_MS 3000
#define QUICK_MS   1000
#define STORE_MS   500 /* an Agent's socket on this host */

hl_status attach_init(helios_client *client)
{
    const char *store = getenv("HELIOS_STORE_SOCKET");
    pthread_mutex_init(&client->attach.lock, NULL);
    client->attach.store_socket = store != NULL && store[0] != '\0' ? store : NULL;
    return net_create(HL_EXTENT_OF_L3, &client->attach.net);
}

/* Caller holds attach.lock. */
static void reap_retired(struct attach *a)
{
    if (atomic_load_explicit(&a->readers, memory_order_seq_cst) != 0)
        return;
    for (struct shm **at = &a->retired; *at != NULL;) {
        struct shm *s = *at;
        if (s->refs > 0) {
            at = &s->next_retired;
            continue;
        }
        *at = s->next_retired;
        shm_detach(s);
    }
}

/* Caller holds attach.lock. `next` NULL: nothing is mapped any more. Views and pins of the old pool
 * stay as they are; pin_again moves the pins of those that are handed out. */
static void install_shm(struct attach *a, _Atomic(struct shm *) *place, struct shm *next)
{
    struct shm *old = atomic_exchange_explicit(place, next, memory_order_seq_cst);
    if (old != NULL) {
        old->next_retired = a->retired;
        a->retired = old;
    }
    reap_retired(a);
}

void attach_unref(helios_client *client, struct shm *shm)
{
    shm->refs--;
    reap_retired(&client->attach);
}

void attach_fini(helios_client *client)
{
    struct attach *a = &client->attach;
    install_shm(a, &a->shm, NULL);
    install_shm(a, &a->store, NULL);
    net_destroy(a->net);
    pthread_mutex_destroy(&a->lock);
}

struct shm *attach_enter(helios_client *client)
{
    atomic_fetch_add_explicit(&client->attach.readers, 1, memory_order_seq_cst);
    return atomic_load_explicit(&client->attach.shm, memory_order_seq_cst);
}

void attach_leave(helios_client *client)
{
    atomic_fetch_sub_explicit(&client->attach.readers, 1, memory_order_seq_cst);
}

/* Call between enter and leave, which protect this pointer like the other one. */
struct shm *attach_node_store(helios_client *client, uint64_t now_ns)
{
    struct shm *store = atomic_load_explicit(&client->attach.store, memory_order_seq_cst);
    return store != NULL && shm_check(store, now_ns) == HL_OK ? store : NULL;
}

/* If a daemon listens on all addresses, its data port is at the address of its RPC. */
static void find_data_port(const char *l3_address, const char *data, char out[HL_HOST_PORT_MAX])
{
    struct hl_host_port rpc;
    snprintf(out, HL_HOST_PORT_MAX, "%s", data);
    if (strncmp(l3_address, "unix:", 5) != 0 && hl_host_port_split(l3_address, &rpc) == HL_OK)
        hl_host_port_reach(data, rpc.host, out);
}

/* Pins the views that are handed out again: the daemon that knew their pins is gone. A pin is
 * requested by id and offset, so that it is only given if the bytes are still those that the view
 * shows. If it is refused, `pin` is NULL: the pages stay mapped, but the daemon may give their room
 * to others.
 *
 *     m->shm    the pool whose pages it shows: never changes, one of its `refs`
 *     m->pin    the pool whose connection pins it: moves to the new one, or NULL
 *     m->ref    what that connection calls it; read it under attach.lock
 *
 * attach.lock is held for all pins. If the daemon is silent only the first one waits: then the
 * connection is broken and the others fail at once. */
static void pin_again(struct attach *a, struct shm *next)
{
    struct mapping *m, *after;
    HASH_ITER (hh, a->mappings, m, after) {
        struct hl_pool_ref ref;
        if (m->shm == NULL || m->pin == next || !hl_id_equal(m->shm->uuid, next->uuid))
            continue;
        m->pin = NULL;
        if (hl_l3_pin(next->socket, m->ref.id, m->ref.offset, ATTEMPT_MS, &ref) == HL_OK) {
            m->ref = ref;
            m->pin = next;
        }
        if (m->pin == NULL)
            hl_debug("a mapped shard could not be pinned again: %s", hl_error_text());
    }
}

/* Takes the shortest way to the pool that the daemon describes: its memory if the socket is on this
 * host and has that pool, else its data port. Caller holds attach.lock. */
static hl_status take_way(struct operation *op, const struct hl_api_pool_info *pool)
{
    helios_client *c = op->client;
    struct attach *a = &c->attach;
    const char *socket_path = pool->socket_path;
    char data[HL_HOST_PORT_MAX];
    struct hl_id uuid;
    struct shm *next = NULL;
    HL_TRY(hl_id_parse(pool->uuid, &uuid));
    int had = atomic_load_explicit(&a->shm, memory_order_relaxed) != NULL;
    find_data_port(c->l3_address, pool->data_address, data);
    hl_status st = HL_ENOENT;
    if (c->way != WAY_NET) {
        if (socket_path[0] == '\0')
            st = hl_fail(HL_EUNAVAIL, "the L3 daemon at %s has no local socket", c->l3_address);
        else
            st = shm_attach(socket_path, uuid, ATTEMPT_MS, &next);
        /* A client that had the pool mapped waits for it, because it would stay on a slower way for
         * ever. */
        if (st != HL_OK && (c->way == WAY_SHM || had || data[0] == '\0'))
            return st == HL_ENOENT ? HL_EUNAVAIL : st;
        if (st != HL_OK)
            hl_debug("the pool is not mapped: %s", hl_error_text());
    } else if (data[0] == '\0') {
        return hl_fail(HL_EUNAVAIL,
                       "the L3 daemon at %s has no data port: set l3.data_listen, or begin with "
                       "`helios up --address 127.0.0.1`",
                       c->l3_address);
    }
    net_retarget(a->net, data);
    install_shm(a, &a->shm, next);
    if (next != NULL)
        pin_again(a, next);
    snprintf(a->incarnation, sizeof(a->incarnation), "%s", pool->incarnation);
    return HL_OK;
}

/* Caller holds attach.lock. */
static hl_status renew_once(struct operation *op, int limit_ms)
{
    struct attach *a = &op->client->attach;
    struct shm *now = atomic_load_explicit(&a->shm, memory_order_relaxed);
    int left = operation_left_ms(op);
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_l3_pool_info_results r;
    if (now != NULL && shm_connected(now))
        return HL_OK;
    HL_TRY(
        hl_call_l3_pool_info(op->client->l3, NULL, left < limit_ms ? left : limit_ms, &arena, &r));
    bool same = strcmp(a->incarnation, r.pool.incarnation) == 0;
    hl_status st = HL_OK;
    if (now == NULL || !same || !shm_connected(now)) {
        st = take_way(op, &r.pool);
        now = atomic_load_explicit(&a->shm, memory_order_relaxed);
    }
    /* The daemon has answered, so a late heartbeat does not mean that it is dead. */
    if (st == HL_OK && now != NULL)
        atomic_store_explicit(&now->trusted_ns, hl_now_ns() + HL_POOL_SILENT_MS * HL_NS_PER_MS,
                              memory_order_relaxed);
    return st;
}

/* The lock is released between two attempts: a sleep must not keep others from trying. */
hl_status attach_renew(struct operation *op, enum renew how)
{
    hl_status before = HL_OK;
    for (;;) {
        pthread_mutex_lock(&op->client->attach.lock);
        hl_status st = renew_once(op, how == RENEW_QUICK ? QUICK_MS : ATTEMPT_MS);
        pthread_mutex_unlock(&op->client->attach.lock);
        if (st == HL_OK || how != RENEW_WAIT || !hl_status_retryable(st))
            return st;
        /* The last attempt may have had too little time: then the previous one's result counts. */
        if (st == HL_ETIMEDOUT && before == HL_EUNAVAIL)
            st = HL_EUNAVAIL;
        before = st;
        if (!operation_pause_for_daemon(op))
            return hl_fail_prefix(st, "the L3 daemon was not reachable again within %d ms: ",
                                  op->client->read.timeout_ms);
    }
}

/* The node's store comes and goes with its Agent. Caller holds attach.lock. */
static void watch_store(helios_client *client)
{
    struct attach *a = &client->attach;
    struct shm *now = atomic_load_explicit(&a->store, memory_order_relaxed), *next = NULL;
    if (a->store_socket == NULL || client->way == WAY_NET || (now != NULL && shm_connected(now)))
        return;
    if (shm_attach(a->store_socket, (struct hl_id){0}, STORE_MS, &next) != HL_OK) {
        hl_debug("the node's store is not mapped: %s", hl_error_text());
        next = NULL;
    }
    if (next != NULL)
        shm_know_agent(next, client->rpc);
    if (next != NULL || now != NULL)
        install_shm(a, &a->store, next);
    if (next != NULL)
        pin_again(a, next);
}

bool attach_store(helios_client *client)
{
    struct attach *a = &client->attach;
    pthread_mutex_lock(&a->lock);
    watch_store(client);
    bool has = atomic_load_explicit(&a->store, memory_order_relaxed) != NULL;
    pthread_mutex_unlock(&a->lock);
    return has;
}

/* Runs on the maintenance thread. Without views nothing has to be pinned again: the next read
 * notices that the daemon is gone and renews by itself. */
void attach_watch(helios_client *client)
{
    struct attach *a = &client->attach;
    struct operation op;
    pthread_mutex_lock(&a->lock);
    reap_retired(a);
    watch_store(client);
    struct shm *now = atomic_load_explicit(&a->shm, memory_order_relaxed);
    bool lost = now != NULL && a->mappings != NULL && !shm_connected(now);
    pthread_mutex_unlock(&a->lock);
    if (!lost)
        return;
    operation_begin(&op, client);
    if (attach_renew(&op, RENEW_ONCE) != HL_OK)
        hl_debug("waiting for the L3 daemon: %s", hl_error_text());
}
