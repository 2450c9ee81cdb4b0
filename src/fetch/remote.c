#include "fetch/remote.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/chunk.h"
#include "net/net.h"

int hl_retry_pause_ms(const struct hl_retry *retry, int tried)
{
    return retry->pause_ms * (tried <= 0 ? 1 : tried == 1 ? 10 : 100);
}

void hl_retry_pause(const struct hl_retry *retry, int tried, int left_ms)
{
    int ms = hl_retry_pause_ms(retry, tried);
    if (ms > left_ms)
        ms = left_ms;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Pauses as the policy says, but not beyond the deadline. */
static hl_status remote_pause(struct hl_remote *r, int tried)
{
    int left;
    HL_TRY(r->ops->left_ms(r->arg, &left));
    hl_retry_pause(&r->retry, tried, left);
    return HL_OK;
}

static void chunks_failed(struct hl_remote *r, size_t count)
{
    if (r->ops->failed != NULL)
        r->ops->failed(r->arg, count);
}

/* Asks again where the shard is. It may have moved meanwhile; its bytes must be the same. */
static hl_status remote_relocate(struct hl_remote *r)
{
    uint32_t crc32 = r->extent->crc32;
    uint64_t size = r->extent->size;
    HL_TRY(r->ops->locate(r->arg, &r->extent));
    if (r->extent->crc32 == crc32 && r->extent->size == size)
        return HL_OK;
    return hl_fail(HL_ESTALE, "the bytes of shard %s have changed", hl_id_format(r->extent->id).s);
}

static hl_status remote_fetch(struct hl_remote *r, uint64_t first, void *dst, uint64_t len,
                              struct hl_net_bad *bad)
{
    int ms;
    HL_TRY(r->ops->left_ms(r->arg, &ms));
    return hl_net_fetch_verified(r->net, r->extent->offset + first * HL_CHUNK, dst, len,
                                 r->extent->crcs + first, ms, bad);
}

/* Fetches one bad chunk again, until it is good or the retries are used up. */
static hl_status remote_refetch(struct hl_remote *r, uint64_t chunk, void *dst)
{
    for (int tried = 0; tried < r->retry.count; tried++) {
        HL_TRY(remote_pause(r, tried));
        HL_TRY(remote_relocate(r));
        if (r->ops->retried != NULL)
            r->ops->retried(r->arg);
        hl_status st = remote_fetch(r, chunk, dst, hl_chunk_len(r->extent->size, chunk), NULL);
        if (st != HL_ECORRUPT)
            return st;
        chunks_failed(r, 1);
    }
    return hl_fail(HL_ECORRUPT,
                   "chunk %" PRIu64 " of %" PRIu64 " fails its checksum, also after %d retries",
                   chunk, hl_chunk_count(r->extent->size), r->retry.count);
}

/* Fetches whole chunks [first, first + count). */
static hl_status fetch_chunks(struct hl_remote *r, uint64_t first, uint64_t count, uint8_t *dst)
{
    struct hl_net_bad bad = {0};
    uint64_t last = hl_chunk_len(r->extent->size, first + count - 1);
    hl_status st = remote_fetch(r, first, dst, (count - 1) * HL_CHUNK + last, &bad);
    if (st != HL_ECORRUPT)
        return st;
    chunks_failed(r, bad.count);
    size_t listed = bad.count < HL_NET_BAD_MAX ? bad.count : HL_NET_BAD_MAX;
    for (size_t i = 0; i < listed; i++)
        HL_TRY(remote_refetch(r, first + bad.chunk[i], dst + bad.chunk[i] * HL_CHUNK));
    /* Chunks after the last listed one are not known to be good. */
    for (uint64_t i = bad.count > listed ? (uint64_t)bad.chunk[listed - 1] + 1 : count; i < count;
         i++)
        HL_TRY(remote_refetch(r, first + i, dst + i * HL_CHUNK));
    return HL_OK;
}

static hl_status fetch_part(struct hl_remote *r, uint64_t offset, uint8_t *dst, uint64_t len)
{
    uint64_t chunk = offset / HL_CHUNK;
    HL_AUTO(hl_freep) uint8_t *whole = malloc(hl_chunk_len(r->extent->size, chunk));
    if (whole == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating one chunk");
    HL_TRY(fetch_chunks(r, chunk, 1, whole));
    memcpy(dst, whole + offset % HL_CHUNK, len);
    return HL_OK;
}

hl_status hl_remote_read(struct hl_remote *r, uint64_t offset, void *to, uint64_t len)
{
    const uint64_t size = r->extent->size, end = offset + len;
    uint8_t *dst = to;
    if (end < offset || end > size)
        return hl_fail(HL_EINVAL, "bytes %" PRIu64 "+%" PRIu64 " lie outside shard %s of %" PRIu64,
                       offset, len, hl_id_format(r->extent->id).s, size);
    while (offset < end) {
        uint64_t chunk = offset / HL_CHUNK, in = offset % HL_CHUNK;
        uint64_t here = hl_chunk_len(size, chunk) - in, left = end - offset;
        uint64_t n = left < here ? left : here;
        if (in > 0 || n < here) {
            HL_TRY(fetch_part(r, offset, dst, n));
        } else {
            uint64_t count = (end == size ? hl_chunk_count(size) : end / HL_CHUNK) - chunk;
            n = (count - 1) * HL_CHUNK + hl_chunk_len(size, chunk + count - 1);
            HL_TRY(fetch_chunks(r, chunk, count, dst));
        }
        offset += n;
        dst += n;
    }
    return HL_OK;
}
