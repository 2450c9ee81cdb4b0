/* The copy of a put. It reads with pread instead of a mapping: holes of the memfd then take no
 * memory, and no page table is built and torn down for bytes that are read once. The CRC is
 * computed over the bytes in the pool, while they are in the cache: whatever the client does to its
 * memfd meanwhile, the shard matches its checksums. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "core/copies/route.h"
#include "mem/socket/l3_server_private.h"
#include "os/shm.h"

#define COPY_BLOCK ((uint64_t)128 << 10)

static hl_status read_block(int fd, uint8_t *to, uint64_t offset, uint64_t len)
{
    while (len > 0) {
        ssize_t n = pread(fd, to, (size_t)len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hl_fail(HL_EIO, "read the client's memfd at %" PRIu64 ": %m", offset);
        if (n == 0)
            return hl_fail(HL_EINVAL, "the client's memfd ends at %" PRIu64, offset);
        to += n;
        offset += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return HL_OK;
}

static hl_status copy_in(struct l3_put *put, const struct hl_pool_extent *x, uint32_t *chunk_crcs,
                         uint32_t *crc32)
{
    uint32_t all = 0;
    for (uint64_t from = 0; from < x->size; from += HL_CHUNK) {
        uint64_t to = x->size - from < HL_CHUNK ? x->size : from + HL_CHUNK;
        uint32_t crc = 0;
        if (atomic_load_explicit(&put->cancel, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "the client has disconnected");
        for (uint64_t at = from; at < to; at += COPY_BLOCK) {
            uint64_t n = to - at < COPY_BLOCK ? to - at : COPY_BLOCK;
            uint8_t *dst = (uint8_t *)x->ptr + at;
            HL_TRY(read_block(put->memfd, dst, at, n));
            crc = hl_crc32(crc, dst, (size_t)n);
        }
        chunk_crcs[from / HL_CHUNK] = crc;
        all = from == 0 ? crc : hl_crc32_combine(all, crc, to - from);
    }
    *crc32 = all;
    return HL_OK;
}

static hl_status alloc_extent(struct l3_put *put, struct hl_pool_extent *out)
{
    struct hl_id id = {put->req.id_hi, put->req.id_lo};
    if (put->opts->alloc != NULL)
        return put->opts->alloc(put->opts->arg, id, put->req.size, out);
    return hl_id_is_none(id) ? hl_pool_alloc(put->opts->pool, put->req.size, out)
                             : hl_pool_alloc_at(put->opts->pool, id, put->req.size, -1, out);
}

static hl_status run_put(struct l3_put *put)
{
    struct hl_pool_extent x;
    uint32_t crc32 = 0;
    HL_TRY(hl_memfd_check(put->memfd, put->req.size));
    struct hl_pool *pool = put->opts->pool;
    HL_TRY(alloc_extent(put, &x));
    uint64_t chunks = hl_chunk_count(x.size);
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(chunks * sizeof(*crcs));
    hl_status st = crcs == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory allocating the chunk CRCs of a put")
                       : HL_OK;
    if (st == HL_OK)
        st = copy_in(put, &x, crcs, &crc32);
    if (st == HL_OK)
        st = put->req.type == HL_L3_LEASE
                 ? hl_pool_seal_leased(pool, &x, crc32, crcs, (size_t)chunks, &put->ref)
                 : hl_pool_seal(pool, &x, crc32, crcs, (size_t)chunks, &put->ref);
    if (st != HL_OK)
        hl_pool_abort(pool, &x);
    return st;
}

void l3_put_run(struct l3_put *put)
{
    uint64_t started_ns = hl_now_ns();
    put->st = run_put(put);
    struct hl_transfer t = hl_route_transfer(&(struct hl_route_query){.op = HL_API_OPERATION_WRITE,
                                                                      .source = HL_API_TIER_L2,
                                                                      .target = HL_API_TIER_L3,
                                                                      .link = HL_LINK_HERE});
    t.bytes = put->st == HL_OK ? put->req.size : 0;
    t.ns = hl_now_ns() - started_ns;
    t.status = put->st;
    hl_plane_count(&t);
    if (put->st != HL_OK)
        snprintf(put->text, sizeof(put->text), "%s", hl_error_text());
}
