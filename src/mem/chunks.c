#include "mem/chunks.h"

#include <inttypes.h>

#include "base/copy.h"
#include "base/crc32.h"

hl_status hl_chunks_check(struct hl_id id, uint64_t size, uint32_t crc32, const uint32_t *crcs,
                          size_t count)
{
    if (size == 0 || count != hl_chunk_count(size))
        return hl_fail(HL_EINVAL,
                       "shard %s of %" PRIu64
                       " bytes has %zu chunk CRCs, which is not one for each MiB",
                       hl_id_format(id).s, size, count);
    uint32_t all = crcs[0];
    for (size_t i = 1; i < count; i++)
        all = hl_crc32_combine(all, crcs[i], hl_chunk_len(size, i));
    if (all != crc32)
        return hl_fail(HL_ECORRUPT, "the chunk CRCs of shard %s give %08x, its CRC is %08x",
                       hl_id_format(id).s, all, crc32);
    return HL_OK;
}

hl_status hl_chunks_range(struct hl_id id, uint64_t size, uint64_t offset, size_t len)
{
    uint64_t end;
    if (__builtin_add_overflow(offset, (uint64_t)len, &end) || end > size)
        return hl_fail(HL_EINVAL, "bytes %" PRIu64 "+%zu lie outside shard %s of %" PRIu64 " bytes",
                       offset, len, hl_id_format(id).s, size);
    return HL_OK;
}

/* Skips the call if there are no bytes: it would cost as much as one for 64 bytes. */
static inline uint32_t crc_more(uint32_t crc, const uint8_t *data, uint64_t len)
{
    return len > 0 ? hl_crc32(crc, data, len) : crc;
}

bool hl_chunks_copy(const struct hl_chunks *c, const void *data, uint64_t offset, void *dst,
                    size_t len, uint64_t *bad)
{
    const uint8_t *bytes = data;
    uint8_t *out = dst;
    uint64_t end = offset + len;
    while (offset < end) {
        uint64_t i = offset / HL_CHUNK, from = i * HL_CHUNK;
        uint64_t to = from + hl_chunk_len(c->size, i);
        uint64_t stop = end < to ? end : to;
        uint32_t crc = crc_more(0, bytes + from, offset - from);
        crc = hl_copy_crc32(crc, out, bytes + offset, stop - offset, len);
        crc = crc_more(crc, bytes + stop, to - stop);
        if (crc != hl_chunk_crc(c, i)) {
            *bad = i;
            return false;
        }
        out += stop - offset;
        offset = stop;
    }
    return true;
}
