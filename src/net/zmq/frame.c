/* net/zmq/frame.c - a fixed layout with its own checksum.
 *
 * TCP does not need the header's CRC. It makes sure that a damaged geometry is never acted on, so a
 * wrong chunk number can't put good bytes in the wrong place. */
#include <string.h>

#include "base/crc32.h"
#include "net/zmq/frame.h"

#define MAGIC   0x474d4c48u /* "HLMG" */
#define VERSION 1

/* The layout on the wire. It is naturally aligned, so there is no padding. */
struct wire {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t flags;
    uint32_t epoch;
    uint64_t id_hi;
    uint64_t id_lo;
    uint64_t total;
    uint32_t chunk_size;
    uint32_t chunk_count;
    uint32_t chunk;
    uint32_t length;
    uint32_t crc;
    int32_t status;
    uint32_t credit;
    uint32_t zero;
    uint64_t result_hi;
    uint64_t result_lo;
    uint32_t zero2;
    uint32_t header_crc;
};

_Static_assert(sizeof(struct wire) == HL_MIG_HEADER, "the wire layout has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian");

void hl_mig_encode(const struct hl_mig_frame *f, uint8_t out[HL_MIG_HEADER])
{
    struct wire w = {
        .magic = MAGIC,
        .version = VERSION,
        .type = (uint16_t)f->type,
        .flags = f->flags,
        .epoch = f->epoch,
        .id_hi = f->id.hi,
        .id_lo = f->id.lo,
        .total = f->total,
        .chunk_size = f->chunk_size,
        .chunk_count = f->chunk_count,
        .chunk = f->chunk,
        .length = f->length,
        .crc = f->crc,
        .status = f->status,
        .credit = f->credit,
        .result_hi = f->result.hi,
        .result_lo = f->result.lo,
    };
    w.header_crc = hl_crc32(0, &w, offsetof(struct wire, header_crc));
    memcpy(out, &w, sizeof(w));
}

uint32_t hl_mig_chunk_len(uint64_t total, uint32_t chunk_size, uint32_t chunk)
{
    uint64_t left = total - (uint64_t)chunk * chunk_size;
    return left < chunk_size ? (uint32_t)left : chunk_size;
}

hl_status hl_mig_geometry(uint64_t total, uint32_t chunk_size, uint32_t chunk_count)
{
    if (chunk_size < HL_MIG_CHUNK_MIN || chunk_size > HL_MIG_CHUNK_MAX ||
        (chunk_size & (chunk_size - 1)) != 0)
        return hl_fail(HL_EPROTO,
                       "migration: a chunk size of %u bytes; use a power of two from %u to %u",
                       chunk_size, HL_MIG_CHUNK_MIN, HL_MIG_CHUNK_MAX);
    if (total == 0 || total > (uint64_t)chunk_size * HL_MIG_CHUNKS_MAX)
        return hl_fail(HL_EPROTO,
                       "migration: an object of %llu bytes in chunks of %u; it may have 1 to %u "
                       "chunks",
                       (unsigned long long)total, chunk_size, HL_MIG_CHUNKS_MAX);
    if (chunk_count != hl_mig_chunk_count(total, chunk_size))
        return hl_fail(HL_EPROTO, "migration: %u chunks announced for %llu bytes, %u expected",
                       chunk_count, (unsigned long long)total,
                       hl_mig_chunk_count(total, chunk_size));
    return HL_OK;
}

/* A compressed chunk is smaller than the chunk; otherwise the sender would not have compressed
 * it. */
static hl_status check_packed(const struct hl_mig_frame *f)
{
    if (f->type != HL_MIG_DATA)
        return hl_fail(HL_EPROTO, "migration frame of type %d: it can't be compressed",
                       (int)f->type);
    uint32_t chunk = hl_mig_chunk_len(f->total, f->chunk_size, f->chunk);
    if (f->length == 0 || f->length >= chunk)
        return hl_fail(HL_EPROTO, "migration frame: %u compressed bytes for a chunk of %u",
                       f->length, chunk);
    return HL_OK;
}

/* Checks those fields of a type that must fit the geometry. */
static hl_status check_frame(const struct hl_mig_frame *f)
{
    if (f->type == HL_MIG_PING || f->type == HL_MIG_PONG) {
        if (f->length != 0 || f->flags != 0)
            return hl_fail(HL_EPROTO, "migration frame: a ping has no payload and no flags");
        return HL_OK;
    }
    if (hl_id_is_none(f->id))
        return hl_fail(HL_EPROTO, "migration frame of type %d: the id is missing", (int)f->type);
    if (f->type == HL_MIG_CANCEL) { /* a canceller need not know more than the id */
        if (f->length != 0 || f->flags != 0)
            return hl_fail(HL_EPROTO, "migration frame: a cancel has no payload and no flags");
        return HL_OK;
    }
    if (f->type == HL_MIG_REFUSED) {
        if (f->status >= 0 || f->length >= HL_ERROR_TEXT_MAX || f->flags != 0)
            return hl_fail(HL_EPROTO,
                           "migration frame: refused with status %d and %u bytes of text",
                           f->status, f->length);
        return HL_OK;
    }
    HL_TRY(hl_mig_geometry(f->total, f->chunk_size, f->chunk_count));
    if ((f->type == HL_MIG_DATA || f->type == HL_MIG_NACK) && f->chunk >= f->chunk_count)
        return hl_fail(HL_EPROTO, "migration frame: chunk %u of %u", f->chunk, f->chunk_count);
    if (f->flags & HL_MIG_F_ZSTD)
        return check_packed(f);
    size_t expected = 0;
    if (f->type == HL_MIG_DATA)
        expected = hl_mig_chunk_len(f->total, f->chunk_size, f->chunk);
    else if (f->type == HL_MIG_STATE)
        expected = hl_mig_bitmap_len(f->chunk_count);
    if (f->length != expected)
        return hl_fail(HL_EPROTO, "migration frame of type %d: %u payload bytes, %zu expected",
                       (int)f->type, f->length, expected);
    return HL_OK;
}

hl_status hl_mig_decode(const void *buf, size_t len, struct hl_mig_frame *out)
{
    struct wire w;
    if (len != sizeof(w))
        return hl_fail(HL_EPROTO, "migration frame: a header of %zu bytes, %zu expected", len,
                       sizeof(w));
    memcpy(&w, buf, sizeof(w));
    if (w.magic != MAGIC)
        return hl_fail(HL_EPROTO, "migration frame: not a Helios frame (magic %08x)", w.magic);
    if (w.version != VERSION)
        return hl_fail(HL_EPROTO, "migration frame: version %u, this side speaks %d", w.version,
                       VERSION);
    if (w.header_crc != hl_crc32(0, &w, offsetof(struct wire, header_crc)))
        return hl_fail(HL_EPROTO, "migration frame: the header is damaged");
    if (w.type < HL_MIG_OPEN || w.type >= HL_MIG_TYPE_END)
        return hl_fail(HL_EPROTO, "migration frame: unknown type %u", w.type);
    if ((w.flags & ~HL_MIG_F_ZSTD) != 0 || w.zero != 0 || w.zero2 != 0)
        return hl_fail(HL_EPROTO, "migration frame: unknown flags %08x", w.flags);
    struct hl_mig_frame f = {
        .type = (enum hl_mig_type)w.type,
        .flags = w.flags,
        .epoch = w.epoch,
        .id = {w.id_hi, w.id_lo},
        .total = w.total,
        .chunk_size = w.chunk_size,
        .chunk_count = w.chunk_count,
        .chunk = w.chunk,
        .length = w.length,
        .crc = w.crc,
        .status = w.status,
        .credit = w.credit,
        .result = {w.result_hi, w.result_lo},
    };
    HL_TRY(check_frame(&f));
    *out = f;
    return HL_OK;
}
