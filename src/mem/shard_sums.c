#include "mem/shard_sums.h"

#include "base/chunk.h"
#include "base/crc32.h"

static void flush_piece(struct hl_shard_sums *s)
{
    if (s->piece_len == 0)
        return;
    uint32_t *chunk = &s->chunks[(s->at - 1) / HL_CHUNK];
    s->tensor_crc = hl_crc32_combine(s->tensor_crc, s->piece_crc, s->piece_len);
    *chunk = hl_crc32_combine(*chunk, s->piece_crc, s->piece_len);
    s->piece_crc = 0;
    s->piece_len = 0;
}

void hl_shard_sums_add(struct hl_shard_sums *s, uint64_t len)
{
    while (len > 0) {
        uint64_t room = HL_CHUNK - s->at % HL_CHUNK;
        uint64_t n = len < room ? len : room;
        s->piece_crc = hl_crc32(s->piece_crc, s->dst + s->at, n);
        s->piece_len += n;
        s->at += n;
        len -= n;
        if (n == room)
            flush_piece(s);
    }
}

uint32_t hl_shard_sums_tensor(struct hl_shard_sums *s)
{
    flush_piece(s);
    uint32_t crc = s->tensor_crc;
    s->tensor_crc = 0;
    return crc;
}

uint32_t hl_shard_sums_finish(struct hl_shard_sums *s, uint64_t header_size)
{
    uint64_t count = hl_chunk_count(s->at);
    uint32_t whole = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begin = i * HL_CHUNK, len = hl_chunk_len(s->at, i);
        if (begin < header_size) {
            uint64_t head = header_size - begin < len ? header_size - begin : len;
            uint32_t head_crc = hl_crc32(0, s->dst + begin, head);
            s->chunks[i] = hl_crc32_combine(head_crc, s->chunks[i], len - head);
        }
        whole = hl_crc32_combine(whole, s->chunks[i], len);
    }
    return whole;
}
