/* Shards that ranks on other hosts write: the network writes the bytes directly into an extent of
 * the pool. */
#include <stdlib.h>

#include "base/clock.h"
#include "core/copies/route.h"
#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "net/net.h"

/* A put in progress. */
struct put {
    struct hl_pool_extent extent;
    uint64_t started_ns;
};

static void count_put(const struct put *put, hl_status st)
{
    struct hl_transfer t = hl_route_transfer(&(struct hl_route_query){.op = HL_API_OPERATION_WRITE,
                                                                      .source = HL_API_TIER_L2,
                                                                      .target = HL_API_TIER_L3,
                                                                      .link = HL_LINK_TCP});
    t.bytes = st == HL_OK ? put->extent.size : 0;
    t.ns = hl_now_ns() - put->started_ns;
    t.status = st;
    hl_plane_count(&t);
}

static hl_status put_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct hl_l3d *d = arg;
    struct put *put = malloc(sizeof(*put));
    if (put == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a put of %llu bytes",
                       (unsigned long long)size);
    hl_status st =
        l4_try_alloc(d, &(struct l4_want){.near = -1, .id = id, .size = size}, &put->extent);
    if (st != HL_OK) {
        free(put);
        return st;
    }
    put->started_ns = hl_now_ns();
    *token = put;
    *ptr = put->extent.ptr;
    return HL_OK;
}

static void put_abort(void *arg, void *token)
{
    struct hl_l3d *d = arg;
    struct put *put = token;
    count_put(put, HL_ECANCELED);
    hl_pool_abort(d->pool, &put->extent);
    free(put);
}

static hl_status put_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                            size_t chunk_count, struct hl_id *id)
{
    struct hl_l3d *d = arg;
    struct put *put = token;
    hl_status st = hl_pool_seal(d->pool, &put->extent, crc, chunk_crcs, chunk_count, NULL);
    count_put(put, st);
    if (st == HL_OK)
        *id = put->extent.id;
    else
        hl_pool_abort(d->pool, &put->extent);
    free(put);
    return st;
}

hl_status net_start(struct hl_l3d *d, const struct hl_l3d_opts *opts)
{
    size_t len;
    void *base = hl_pool_base(d->pool, &len);
    return hl_net_server_start(
        &(struct hl_net_server_opts){
            .listen = opts->data_listen,
            .pool = base,
            .pool_len = len,
            .conf = opts->net,
            .put = {.begin = put_begin, .commit = put_commit, .abort = put_abort, .arg = d},
        },
        &d->net);
}
