/* Kernels that copy and compute the CRC-32 in one pass.
 *
 * The fold takes the bytes from the registers that the copy uses anyway. If the processor can't
 * fold, copy and CRC process the same block one after the other: the second one finds it in L1 or
 * L2. */
#include <string.h>

#include "base/copy_kernels.h"
#include "base/cpu.h"
#include "base/crc32.h"
#include "base/crc32_fold.h"

#define BLOCK ((size_t)32 * 1024)

static uint32_t copy_crc_blocks(uint32_t crc, void *dst, const void *src, size_t len)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    while (len > 0) {
        size_t n = len < BLOCK ? len : BLOCK;
        memcpy(to, from, n);
        crc = hl_crc32(crc, to, n);
        to += n;
        from += n;
        len -= n;
    }
    return crc;
}

static const struct hl_copy_kernel kernel_blocks = {"blocks", true, copy_crc_blocks};

#ifndef HL_CRC32_FOLDS
size_t hl_copy_crc_kernels(const struct hl_copy_kernel *out[])
{
    out[0] = &kernel_blocks;
    return 1;
}
#else
#define FOLD_MIN ((size_t)512) /* a fold of fewer bytes doesn't pay */

typedef uint32_t stripes_fn(uint32_t crc, uint8_t *to, const uint8_t *from, size_t len);

/* Processes stripes up to the last whole one, with block copies before and after. */
HL_FOLD_INLINE uint32_t copy_folding(uint32_t crc, void *dst, const void *src, size_t len,
                                     size_t stripe, stripes_fn *stripes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    if (len >= FOLD_MIN) {
        size_t head = hl_copy_head(dst, len), body = (len - head) / stripe * stripe;
        crc = copy_crc_blocks(crc, to, from, head);
        crc = stripes(crc, to + head, from + head, body);
        to += head + body;
        from += head + body;
        len -= head + body;
    }
    return copy_crc_blocks(crc, to, from, len);
}

/* The two kernels of one width. A release doesn't order streaming stores, so they need a fence. */
#define FOLDING(bits)                                                                              \
    HL_FOR_FOLD##bits static uint32_t stripes##bits##_cached(uint32_t crc, uint8_t *to,            \
                                                             const uint8_t *from, size_t len)      \
    {                                                                                              \
        return hl_fold##bits##_stripes(crc, to, from, len, HL_FOLD_CACHED);                        \
    }                                                                                              \
    HL_FOR_FOLD##bits static uint32_t stripes##bits##_streamed(uint32_t crc, uint8_t *to,          \
                                                               const uint8_t *from, size_t len)    \
    {                                                                                              \
        uint32_t sum = hl_fold##bits##_stripes(crc, to, from, len, HL_FOLD_STREAMED);              \
        _mm_sfence();                                                                              \
        return sum;                                                                                \
    }                                                                                              \
    static uint32_t copy_fold##bits(uint32_t crc, void *dst, const void *src, size_t len)          \
    {                                                                                              \
        return copy_folding(crc, dst, src, len, HL_FOLD##bits##_STRIPE, stripes##bits##_cached);   \
    }                                                                                              \
    static uint32_t copy_fold##bits##_stream(uint32_t crc, void *dst, const void *src, size_t len) \
    {                                                                                              \
        return copy_folding(crc, dst, src, len, HL_FOLD##bits##_STRIPE, stripes##bits##_streamed); \
    }

FOLDING(128)
FOLDING(256)
FOLDING(512)

/* For processors without VPCLMUL whose library CRC is faster than a fold of 128 bits. */
static uint32_t copy_blocks_stream(uint32_t crc, void *dst, const void *src, size_t len)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = hl_copy_head(dst, len);
    crc = copy_crc_blocks(crc, to, from, head);
    for (size_t at = head, n; at < len; at += n) {
        n = len - at < BLOCK ? len - at : BLOCK;
        size_t whole = n / HL_COPY_STREAM_BLOCK * HL_COPY_STREAM_BLOCK;
        crc = hl_crc32(crc, from + at, n);
        hl_copy_stream_avx2(to + at, from + at, whole);
        memcpy(to + at + whole, from + at + whole, n - whole);
    }
    return crc;
}

/* The wide ones come first: without a measurement the second of all is used. */
size_t hl_copy_crc_kernels(const struct hl_copy_kernel *out[])
{
    static const struct hl_copy_kernel fold = {"fold", true, copy_fold128},
                                       fold_stream = {"fold-stream", true, copy_fold128_stream},
                                       fold256 = {"fold256", true, copy_fold256},
                                       fold256_stream = {"fold256-stream", true,
                                                         copy_fold256_stream},
                                       fold512 = {"fold512", true, copy_fold512},
                                       fold512_stream = {"fold512-stream", true,
                                                         copy_fold512_stream},
                                       blocks_stream = {"blocks-stream", true, copy_blocks_stream};
    size_t n = 0;
    out[n++] = &kernel_blocks;
    if (hl_fold512_runs()) {
        out[n++] = &fold512;
        out[n++] = &fold512_stream;
    }
    if (hl_fold256_runs()) {
        out[n++] = &fold256;
        out[n++] = &fold256_stream;
    }
    if (__builtin_cpu_supports("pclmul")) {
        out[n++] = &fold;
        out[n++] = &fold_stream;
    }
    if (hl_cpu() >= HL_CPU_AVX2)
        out[n++] = &blocks_stream;
    return n;
}
#endif
