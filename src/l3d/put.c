/* Shards that ranks of other hosts write: the network lands the bytes in an extent of the pool. */
#include <stdlib.h>

#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "net/net.h"

static hl_status put_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct hl_l3d *d = arg;
    struct hl_pool_extent *extent = malloc(sizeof(*extent));
    if (extent == NULL)
        return hl_fail(HL_ENOMEM, "put of %llu bytes", (unsigned long long)size);
    hl_status st = l4_try_alloc(d, &(struct l4_want){.id = id, .size = size}, extent);
    if (st != HL_OK) {
        free(extent);
        return st;
    }
    *token = extent;
    *ptr = extent->ptr;
    return HL_OK;
}

static void put_abort(void *arg, void *token)
{
    struct hl_l3d *d = arg;
    hl_pool_abort(d->pool, token);
    free(token);
}

static hl_status put_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                            size_t chunk_count, struct hl_id *id)
{
    struct hl_l3d *d = arg;
    struct hl_pool_extent *extent = token;
    hl_status st = hl_pool_seal(d->pool, extent, crc, chunk_crcs, chunk_count, NULL);
    if (st != HL_OK) {
        put_abort(arg, token);
        return st;
    }
    *id = extent->id;
    free(extent);
    return HL_OK;
}

hl_status net_start(struct hl_l3d *d, const char *listen)
{
    size_t len;
    void *base = hl_pool_base(d->pool, &len);
    return hl_net_server_start(
        &(struct hl_net_server_opts){
            .listen = listen,
            .pool = base,
            .pool_len = len,
            .put = {.begin = put_begin, .commit = put_commit, .abort = put_abort, .arg = d},
        },
        &d->net);
}
