/* Kernels that copy and compute the CRC-32 in one pass.
 *
 * Carry-less multiplication folds a stripe of registers into the next one (V. Gopal et al., "Fast
 * CRC Computation for Generic Polynomials Using PCLMULQDQ"); the bytes come from the registers that
 * the copy goes through anyway. The constants are x^(d+32) and x^(d-32) mod P, reflected, for a
 * distance of d bits. Where the processor can't, copy and CRC walk the same block one after the
 * other: the second reader finds it in L1 or L2. */
#include <string.h>

#include "base/copy_kernels.h"
#include "base/cpu.h"
#include "base/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

/* ThreadSanitizer checks a memcpy at once, and every access of a loop by itself: minutes. */
#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__)
size_t hl_copy_crc_kernels(const struct hl_copy_kernel *out[])
{
    out[0] = &kernel_blocks;
    return 1;
}
#else
#define FOR_FOLD    __attribute__((target("pclmul,sse4.1")))
#define FOR_FOLD512 __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1")))
#define INLINE      static inline __attribute__((always_inline))

#define BY_2048 0x1322d1430, 0x11542778a
#define BY_512  0x1c6e41596, 0x154442bd4
#define BY_128  0x0ccaa009e, 0x1751997d0

#define STRIPE      ((size_t)64)  /* of four 128-bit registers */
#define STRIPE512   ((size_t)256) /* of four 512-bit registers */
#define FOLD_MIN    ((size_t)512) /* less is not worth a fold */
#define READ_AHEAD  1024
#define WRITE_AHEAD 1024

enum store { CACHED, STREAMED };

FOR_FOLD INLINE __m128i fold(__m128i sum, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(sum, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

FOR_FOLD INLINE __m128i move(uint8_t *to, const uint8_t *from, enum store store)
{
    __m128i word = _mm_loadu_si128((const __m128i *)from);
    if (store == STREAMED)
        _mm_stream_si128((__m128i *)to, word);
    else
        _mm_storeu_si128((__m128i *)to, word);
    return word;
}

/* The CRC of what one register stands for: it is the remainder of all bytes so far. */
FOR_FOLD INLINE uint32_t fold_end(__m128i sum)
{
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, sum);
    return hl_crc32(~0u, rest, sizeof(rest)); /* from an empty register */
}

/* Whole stripes, at least one. */
FOR_FOLD INLINE uint32_t fold_stripes(uint32_t crc, uint8_t *to, const uint8_t *from, size_t len,
                                      enum store store)
{
    const __m128i by512 = _mm_set_epi64x(BY_512), by128 = _mm_set_epi64x(BY_128);
    __m128i a = _mm_xor_si128(move(to, from, store), _mm_cvtsi32_si128((int)~crc));
    __m128i b = move(to + 16, from + 16, store);
    __m128i c = move(to + 32, from + 32, store);
    __m128i d = move(to + 48, from + 48, store);
    for (size_t at = STRIPE; at < len; at += STRIPE) {
        _mm_prefetch((const char *)from + at + READ_AHEAD, _MM_HINT_T0);
        a = fold(a, by512, move(to + at, from + at, store));
        b = fold(b, by512, move(to + at + 16, from + at + 16, store));
        c = fold(c, by512, move(to + at + 32, from + at + 32, store));
        d = fold(d, by512, move(to + at + 48, from + at + 48, store));
    }
    b = fold(a, by128, b);
    c = fold(b, by128, c);
    return fold_end(fold(c, by128, d));
}

FOR_FOLD512 INLINE __m512i fold512(__m512i sum, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(sum, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* xor of three */
}

FOR_FOLD512 INLINE __m512i move512(uint8_t *to, const uint8_t *from, enum store store)
{
    __m512i word = _mm512_loadu_si512(from);
    if (store == STREAMED)
        _mm512_stream_si512((__m512i *)to, word);
    else
        _mm512_storeu_si512(to, word);
    return word;
}

FOR_FOLD512 INLINE uint32_t fold512_end(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(BY_512));
    const __m128i by128 = _mm_set_epi64x(BY_128);
    __m512i sum = fold512(fold512(fold512(a, by512, b), by512, c), by512, d);
    __m128i x = _mm512_extracti32x4_epi32(sum, 0);
    x = fold(x, by128, _mm512_extracti32x4_epi32(sum, 1));
    x = fold(x, by128, _mm512_extracti32x4_epi32(sum, 2));
    return fold_end(fold(x, by128, _mm512_extracti32x4_epi32(sum, 3)));
}

/* Whole stripes, at least one. */
FOR_FOLD512 INLINE uint32_t fold512_stripes(uint32_t crc, uint8_t *to, const uint8_t *from,
                                            size_t len, enum store store)
{
    const __m512i by = _mm512_broadcast_i32x4(_mm_set_epi64x(BY_2048));
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc));
    __m512i a = _mm512_xor_si512(move512(to, from, store), first);
    __m512i b = move512(to + 64, from + 64, store);
    __m512i c = move512(to + 128, from + 128, store);
    __m512i d = move512(to + 192, from + 192, store);
    size_t ahead = store == STREAMED ? 4 * READ_AHEAD : 2 * READ_AHEAD;
    for (size_t at = STRIPE512; at < len; at += STRIPE512) {
        for (size_t i = at; i < at + STRIPE512; i += 64) {
            _mm_prefetch((const char *)from + i + ahead, _MM_HINT_T0);
            if (store == CACHED)
                __builtin_prefetch(to + i + WRITE_AHEAD, 1);
        }
        a = fold512(a, by, move512(to + at, from + at, store));
        b = fold512(b, by, move512(to + at + 64, from + at + 64, store));
        c = fold512(c, by, move512(to + at + 128, from + at + 128, store));
        d = fold512(d, by, move512(to + at + 192, from + at + 192, store));
    }
    return fold512_end(a, b, c, d);
}

typedef uint32_t stripes_fn(uint32_t crc, uint8_t *to, const uint8_t *from, size_t len);

FOR_FOLD static uint32_t stripes_cached(uint32_t crc, uint8_t *to, const uint8_t *from, size_t len)
{
    return fold_stripes(crc, to, from, len, CACHED);
}

FOR_FOLD static uint32_t stripes_streamed(uint32_t crc, uint8_t *to, const uint8_t *from,
                                          size_t len)
{
    uint32_t sum = fold_stripes(crc, to, from, len, STREAMED);
    _mm_sfence(); /* streaming stores are not ordered by a release */
    return sum;
}

FOR_FOLD512 static uint32_t stripes512_cached(uint32_t crc, uint8_t *to, const uint8_t *from,
                                              size_t len)
{
    return fold512_stripes(crc, to, from, len, CACHED);
}

FOR_FOLD512 static uint32_t stripes512_streamed(uint32_t crc, uint8_t *to, const uint8_t *from,
                                                size_t len)
{
    uint32_t sum = fold512_stripes(crc, to, from, len, STREAMED);
    _mm_sfence();
    return sum;
}

/* Stripes up to the last whole one, blocks before and after. */
INLINE uint32_t copy_folding(uint32_t crc, void *dst, const void *src, size_t len, size_t stripe,
                             stripes_fn *stripes)
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

static uint32_t copy_fold(uint32_t crc, void *dst, const void *src, size_t len)
{
    return copy_folding(crc, dst, src, len, STRIPE, stripes_cached);
}

static uint32_t copy_fold_stream(uint32_t crc, void *dst, const void *src, size_t len)
{
    return copy_folding(crc, dst, src, len, STRIPE, stripes_streamed);
}

static uint32_t copy_fold512(uint32_t crc, void *dst, const void *src, size_t len)
{
    return copy_folding(crc, dst, src, len, STRIPE512, stripes512_cached);
}

static uint32_t copy_fold512_stream(uint32_t crc, void *dst, const void *src, size_t len)
{
    return copy_folding(crc, dst, src, len, STRIPE512, stripes512_streamed);
}

/* For processors whose library CRC is faster than a fold of 128 bits, but that have no VPCLMUL. */
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

size_t hl_copy_crc_kernels(const struct hl_copy_kernel *out[])
{
    static const struct hl_copy_kernel fold_cached = {"fold", true, copy_fold},
                                       fold_streamed = {"fold-stream", true, copy_fold_stream},
                                       blocks_streamed = {"blocks-stream", true,
                                                          copy_blocks_stream},
                                       wide = {"fold512", true, copy_fold512},
                                       wide_streamed = {"fold512-stream", true,
                                                        copy_fold512_stream};
    size_t n = 0;
    out[n++] = &kernel_blocks;
    if (__builtin_cpu_supports("pclmul")) {
        out[n++] = &fold_cached;
        out[n++] = &fold_streamed;
    }
    if (hl_cpu() >= HL_CPU_AVX2)
        out[n++] = &blocks_streamed;
    if (hl_cpu() >= HL_CPU_AVX512 && __builtin_cpu_supports("vpclmulqdq") &&
        __builtin_cpu_supports("avx512vl")) {
        out[n++] = &wide;
        out[n++] = &wide_streamed;
    }
    return n;
}
#endif
