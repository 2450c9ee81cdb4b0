/* Tensors that the ranks of a host share as one copy: see chunks/pool_share.c. */
#include <inttypes.h>

#include "hybridps/client/client_private.h"

int hybridps_share_host(hybridps *h, int file, unsigned kinds)
{
    HL_TRY(client_enter(h));
    return client_leave(h, hl_chunk_pool_share(h->pool, file, kinds));
}

typedef hl_status (*part_fn)(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                             uint64_t bytes);

/* Neighbours in a chunk form one part, including the bytes between them. */
HL_CHECK static hl_status each_part(hybridps *h, const uint32_t *tensors, size_t n, part_fn go)
{
    for (size_t i = 0; i < n; i++) {
        if (tensors[i] >= h->tensors.count || h->tensors.list[tensors[i]].chunk == HL_TENSOR_NONE)
            return hl_fail(HL_ENOENT, "there is no tensor %" PRIu32 " in a chunk", tensors[i]);
    }
    for (size_t i = 0, end; i < n; i = end) {
        const struct hl_tensor *x = &h->tensors.list[tensors[i]], *last = x;
        for (end = i + 1; end < n; end++) {
            const struct hl_tensor *next = &h->tensors.list[tensors[end]];
            if (next->chunk != x->chunk || next->offset < last->offset ||
                next->offset - last->offset - last->bytes >= HL_TENSOR_ALIGN)
                break;
            last = next;
        }
        HL_TRY(go(h->pool, x->chunk, x->offset, last->offset + last->bytes - x->offset));
    }
    return HL_OK;
}

int hybridps_publish(hybridps *h, const uint32_t *tensors, size_t n)
{
    HL_TRY(client_enter(h));
    return client_leave(h, each_part(h, tensors, n, hl_chunk_pool_publish));
}

int hybridps_withdraw(hybridps *h, uint32_t tensor)
{
    HL_TRY(client_enter(h));
    if (tensor >= h->tensors.count || h->tensors.list[tensor].chunk == HL_TENSOR_NONE)
        return client_leave(
            h, hl_fail(HL_ENOENT, "there is no tensor %" PRIu32 " in a chunk", tensor));
    return client_leave(h, hl_chunk_pool_withdraw(h->pool, h->tensors.list[tensor].chunk));
}

int hybridps_renew(hybridps *h, const uint32_t *tensors, size_t n)
{
    HL_TRY(client_enter(h));
    return client_leave(h, each_part(h, tensors, n, hl_chunk_pool_renew));
}
