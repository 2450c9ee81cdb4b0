/* The servers of the L2: a Unix socket for this host, the data port for other nodes, ZeroMQ for
 * migrations. What arrives through the latter two lands in a slot of the tier under the shard's own
 * id.
 *
 *     server's thread         slot of the L2                 owner of the token (struct incoming)
 *     put_begin               reserved, not to be found      the server, from here on
 *     (bytes come)            written                        the server
 *     put_migrated, _tagged   sealed: a copy like any other  freed
 *     put_drop                given back                     freed
 *
 * Threads: the sink is called from the migration server's thread and from those of the data port,
 * for several objects at once; each token is used by one thread at a time. The local socket is
 * served on the loop. They only use parts of the store that have a lock of their own: the tier, the
 * notes, the epoch. A sink may wait for room (store_reserve, CANCEL_MS at most), which holds up the
 * other puts of its server, but no reader.
 *
 * While the servers start, the first ones already get puts: so all that a sink uses is there before
 * store_serve, and stays until after store_unserve. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "mem/device/device.h"
#include "mem/socket/socket.h"
#include "net/zmq/migrate.h"

struct incoming {
    struct hl_tier_slot slot;
    uint64_t begun_ns;
};

/* Refuses a shard that is here already, or that another sender is delivering (HL_EEXIST). */
static hl_status put_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct store *s = arg;
    if (hl_id_is_none(id))
        return hl_fail(HL_EPERM, "an L2 keeps copies of shards under their ids; new ones go to L3");
    struct incoming *in = calloc(1, sizeof(*in));
    if (in == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a shard of %llu bytes",
                       (unsigned long long)size);
    store_keep_place(s, id); /* then it is here, like any other copy */
    hl_status st = store_reserve(s, &s->tiers[0], id, size, -1, &in->slot);
    if (st != HL_OK) {
        free(in);
        return st;
    }
    in->begun_ns = hl_now_ns();
    *token = in;
    *ptr = in->slot.host;
    return HL_OK;
}

static void put_drop(void *arg, void *token)
{
    struct store *s = arg;
    struct incoming *in = token;
    hl_tier_abort(s->tiers[0].t, &in->slot);
    free(in);
}

/* Frees the token in any case: after a commit, failed or not, the server does not call abort. */
static hl_status put_finish(struct store *s, struct incoming *in, uint32_t crc,
                            const uint32_t *chunk_crcs, size_t chunks, struct store_result *how)
{
    hl_status st = hl_tier_seal(s->tiers[0].t, &in->slot, crc, chunk_crcs, chunks, NULL);
    if (st != HL_OK) {
        put_drop(s, in);
        return st;
    }
    how->seconds = (double)(hl_now_ns() - in->begun_ns) / 1e9;
    how->created_ms = hl_wall_ms();
    store_note(s, &s->tiers[0], in->slot.id, how);
    hl_info("copy arrived id=%s tier=L2 bytes=%llu path=%s seconds=%.3f",
            hl_id_format(in->slot.id).s, (unsigned long long)in->slot.size,
            hl_api_route_path_name(how->path), how->seconds);
    free(in);
    store_changed(s);
    return HL_OK;
}

static hl_status put_migrated(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                              size_t chunks, struct hl_id *id)
{
    struct incoming *in = token;
    struct store_result how = {.path = HL_API_ROUTE_PATH_ZMQ,
                               .reason = HL_API_ROUTE_REASON_MIGRATION_NET,
                               .transport = "zmq"};
    struct hl_id name = in->slot.id;
    HL_TRY(put_finish(arg, in, crc, chunk_crcs, chunks, &how));
    *id = name;
    return HL_OK;
}

/* A sender uses the migration network if it can. So a copy that arrives through the data port shows
 * that there was none, or that it was down. */
static hl_status put_tagged(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                            size_t chunks, struct hl_id *id)
{
    struct incoming *in = token;
    struct store_result how = {.path = HL_API_ROUTE_PATH_UCX_TAGGED,
                               .reason = HL_API_ROUTE_REASON_MIGRATION_NET_DOWN,
                               .transport = "ucx"};
    struct hl_id name = in->slot.id;
    HL_TRY(put_finish(arg, in, crc, chunk_crcs, chunks, &how));
    *id = name;
    return HL_OK;
}

/* Ranks of this host map device memory; what they have mapped is not dropped. */
struct lent {
    struct hl_tier_store *tier;
    struct hl_tier_ref ref;
};

/* The pin belongs to the rank. The socket's server releases it through unmap_device, when the rank
 * asks or when its connection ends: a dead rank keeps nothing pinned. */
static hl_status device_lend(const struct store_tier *device, struct hl_tier_store *t,
                             struct hl_id id, struct hl_l3_mapping *out)
{
    struct hl_device_share share;
    struct hl_tier_ref ref;
    HL_TRY(hl_tier_pin(t, id, &ref));
    struct lent *l = calloc(1, sizeof(*l));
    hl_status st = l == NULL ? hl_fail(HL_ENOMEM, "out of memory allocating a mapping of shard %s",
                                       hl_id_format(id).s)
                             : hl_tier_share(t, &ref, &share);
    if (st != HL_OK) {
        free(l);
        hl_tier_unpin(t, &ref);
        return st;
    }
    *l = (struct lent){t, ref};
    *out = (struct hl_l3_mapping){.id = id,
                                  .fd = share.fd,
                                  .offset = share.offset,
                                  .length = share.size,
                                  .size = ref.size,
                                  .crc32 = ref.crc32,
                                  .gen = ref.gen,
                                  .handle = l};
    struct hl_device_info info;
    hl_device_info(device->memory, &info);
    snprintf(out->device, sizeof(out->device), "%s", device->device);
    snprintf(out->pci, sizeof(out->pci), "%s", info.pci);
    return HL_OK;
}

/* Runs on the loop. Any device that has the shard will do. */
static hl_status map_device(void *arg, struct hl_id id, struct hl_l3_mapping *out)
{
    struct store *s = arg;
    for (size_t i = 0; i < s->tier_count; i++) {
        struct store_tier *t = &s->tiers[i];
        if (t->tier != HL_API_TIER_L1)
            continue;
        hl_status st = device_lend(t, t->t, id, out);
        if (st == HL_ENOENT && (st = device_lend(t, t->kept, id, out)) == HL_OK)
            store_keep_touch(s, t, id, 1);
        if (st != HL_ENOENT)
            return st;
    }
    return hl_fail(HL_ENOENT, "shard %s is in no device of node %s", hl_id_format(id).s, s->node);
}

static void unmap_device(void *arg, struct hl_l3_mapping *mapping)
{
    struct lent *l = mapping->handle;
    (void)arg;
    hl_tier_unpin(l->tier, &l->ref);
    free(l);
}

/* A node without an L2 has no servers: there is nothing that others could read or send to. If one
 * fails to start, those before it are left to store_close. */
hl_status store_serve(struct store *s)
{
    size_t len;
    if (s->pool == NULL)
        return HL_OK;
    HL_TRY(hl_l3_server_start(
        &(struct hl_l3_server_opts){.loop = s->opts.loop,
                                    .pool = s->pool,
                                    .socket_path = s->socket_path,
                                    .map = s->tier_count > 1 ? map_device : NULL,
                                    .unmap = unmap_device,
                                    .alloc = store_alloc,
                                    .rpc_address = store_keeps(s) ? s->opts.rpc_address : NULL,
                                    .arg = s},
        &s->local));
    void *base = hl_pool_base(s->pool, &len);
    if (s->opts.data_listen[0] != '\0')
        HL_TRY(hl_net_server_start(
            &(struct hl_net_server_opts){
                .listen = s->opts.data_listen,
                .pool = base,
                .pool_len = len,
                .conf = s->opts.data,
                .put = {.begin = put_begin, .commit = put_tagged, .abort = put_drop, .arg = s},
            },
            &s->net));
    if (s->opts.migrate_listen[0] != '\0')
        HL_TRY(hl_migrate_server_start(
            &(struct hl_migrate_server_opts){
                .listen = s->opts.migrate_listen,
                .window_bytes = s->opts.migrate.window_bytes,
                .keep_ms = s->opts.migrate.keep_ms,
                .io_threads = s->opts.migrate.io_threads,
                .sink = {.begin = put_begin, .commit = put_migrated, .abort = put_drop, .arg = s},
            },
            &s->migrate));
    return HL_OK;
}

/* Each stop joins its server's threads and aborts unfinished objects: no sink is called after this.
 */
void store_unserve(struct store *s)
{
    hl_migrate_server_stop(s->migrate);
    hl_net_server_stop(s->net);
    hl_l3_server_stop(s->local);
    s->migrate = NULL;
    s->net = NULL;
    s->local = NULL;
}

const char *store_data_address(const struct store *s)
{
    return s->net != NULL ? hl_net_server_address(s->net) : "";
}

const char *store_migrate_address(const struct store *s)
{
    return s->migrate != NULL ? hl_migrate_server_address(s->migrate) : "";
}
