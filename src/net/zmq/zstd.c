/* net/zmq/zstd.c - deciding when compressing a chunk pays, and both ends of it. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/clock.h"
#include "net/zmq/migrate.h"
#include "net/zmq/zstd.h"

#define AUTO_LEVEL 1           /* higher levels are slower than any fast network */
#define PIECES     4           /* a sample has so many pieces, spread over the chunk */
#define PIECE      (16u << 10) /* bytes of a piece */
#define SKIP_MAX   64          /* chunks skipped after samples that did not pay */
#define LEFT_MAX   0.9         /* a smaller gain is not worth a copy */
#define MARGIN     1.1         /* required speed-up, because samples are rough */

struct hl_mig_pack {
    ZSTD_CCtx *ctx;
    int level, automatic;
    unsigned skip, skip_next; /* chunks until the next sample; doubles while it doesn't pay */
    size_t cap;
    unsigned char buf[];
};

struct hl_mig_unpack {
    ZSTD_DCtx *ctx;
};

hl_status hl_mig_pack_create(int mode, uint32_t chunk_size, struct hl_mig_pack **out)
{
    size_t cap = ZSTD_compressBound(chunk_size);
    struct hl_mig_pack *p = malloc(sizeof(*p) + cap);
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    if (p == NULL || ctx == NULL) {
        free(p);
        ZSTD_freeCCtx(ctx);
        return hl_fail(HL_ENOMEM, "migration: out of memory compressing chunks of %u bytes",
                       chunk_size);
    }
    bool automatic = mode == HL_MIGRATE_ZSTD_AUTO;
    *p = (struct hl_mig_pack){.ctx = ctx,
                              .level = automatic ? AUTO_LEVEL : mode,
                              .automatic = automatic,
                              .skip_next = 1,
                              .cap = cap};
    *out = p;
    return HL_OK;
}

void hl_mig_pack_destroy(struct hl_mig_pack *p)
{
    if (p == NULL)
        return;
    ZSTD_freeCCtx(p->ctx);
    free(p);
}

/* Compressing and sending overlap, so the slower of the two sets the pace. */
bool hl_mig_pack_pays(double left, double pack_Bps, double line_Bps)
{
    if (line_Bps <= 0 || left > LEFT_MAX)
        return false;
    double packed_Bps = line_Bps / left;
    return (pack_Bps < packed_Bps ? pack_Bps : packed_Bps) > MARGIN * line_Bps;
}

static size_t pack_compress(struct hl_mig_pack *p, const void *src, size_t len)
{
    size_t n = ZSTD_compressCCtx(p->ctx, p->buf, p->cap, src, len, p->level);
    return ZSTD_isError(n) ? len : n;
}

/* Compresses a part of the chunk to measure ratio and time. */
static bool sample_pays(struct hl_mig_pack *p, const unsigned char *chunk, uint32_t len,
                        double line_Bps)
{
    uint32_t stride = len / PIECES, piece = stride < PIECE ? stride : PIECE;
    size_t packed = 0;
    if (piece == 0)
        return false;
    uint64_t start = hl_now_ns();
    for (uint32_t i = 0; i < PIECES; i++)
        packed += pack_compress(p, chunk + (size_t)i * stride, piece);
    double seconds = (double)(hl_now_ns() - start + 1) / (double)HL_NS_PER_S;
    double bytes = (double)piece * PIECES;
    return hl_mig_pack_pays((double)packed / bytes, bytes / seconds, line_Bps);
}

const void *hl_mig_pack(struct hl_mig_pack *p, const void *chunk, uint32_t len, double line_Bps,
                        uint32_t *packed)
{
    if (p->automatic) {
        if (p->skip > 0) {
            p->skip--;
            return NULL;
        }
        if (line_Bps <= 0)
            return NULL;
        if (!sample_pays(p, chunk, len, line_Bps)) {
            p->skip = p->skip_next;
            p->skip_next = p->skip_next * 2 < SKIP_MAX ? p->skip_next * 2 : SKIP_MAX;
            return NULL;
        }
        p->skip_next = 1;
    }
    size_t n = pack_compress(p, chunk, len);
    if (n >= len)
        return NULL;
    *packed = (uint32_t)n;
    return p->buf;
}

hl_status hl_mig_unpack_create(struct hl_mig_unpack **out)
{
    struct hl_mig_unpack *u = malloc(sizeof(*u));
    ZSTD_DCtx *ctx = ZSTD_createDCtx();
    if (u == NULL || ctx == NULL) {
        free(u);
        ZSTD_freeDCtx(ctx);
        return hl_fail(HL_ENOMEM, "migration receiver: out of memory allocating a decompressor");
    }
    u->ctx = ctx;
    *out = u;
    return HL_OK;
}

void hl_mig_unpack_destroy(struct hl_mig_unpack *u)
{
    if (u == NULL)
        return;
    ZSTD_freeDCtx(u->ctx);
    free(u);
}

hl_status hl_mig_unpack(struct hl_mig_unpack *u, void *dst, uint32_t len, const void *packed,
                        size_t packed_len)
{
    /* Our sender always writes the size; a frame with a missing or wrong size is refused without
     * unpacking. */
    if (ZSTD_getFrameContentSize(packed, packed_len) != len)
        return hl_fail(HL_ECORRUPT, "a compressed chunk that does not hold %u bytes", len);
    size_t n = ZSTD_decompressDCtx(u->ctx, dst, len, packed, packed_len);
    if (ZSTD_isError(n))
        return hl_fail(HL_ECORRUPT, "a compressed chunk: %s", ZSTD_getErrorName(n));
    if (n != len)
        return hl_fail(HL_ECORRUPT, "a compressed chunk of %zu bytes instead of %u", n, len);
    return HL_OK;
}

hl_status hl_migrate_zstd_parse(const char *text, int *out)
{
    char *end;
    long level = strtol(text, &end, 10);
    if (strcmp(text, "off") == 0)
        level = HL_MIGRATE_ZSTD_OFF;
    else if (strcmp(text, "auto") == 0)
        level = HL_MIGRATE_ZSTD_AUTO;
    else if (end == text || *end != '\0' || level < 1 || level > HL_MIGRATE_ZSTD_MAX)
        return hl_fail(HL_EINVAL, "unknown zstd '%s' (expected off, auto, or 1 to %d)", text,
                       HL_MIGRATE_ZSTD_MAX);
    *out = (int)level;
    return HL_OK;
}
