/* base/crc32_fold.h - CRC-32 by carry-less multiplication; private to base.
 *
 * A stripe of four registers is folded into the next one (V. Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ"), and each register may also be stored after it was
 * read: a copy and its CRC in one pass. The constants are x^(d+32) and x^(d-32) mod P, reflected,
 * for a distance of d bits.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes; CRC-32 as in base/crc32.h.
 * Limits:  x86-64. Not built with ThreadSanitizer, which checks every single access and would take
 *          minutes.
 */
#ifndef HL_BASE_CRC32_FOLD_H
#define HL_BASE_CRC32_FOLD_H

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define HL_CRC32_FOLDS 1
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/crc32.h"

#define HL_FOR_FOLD128 __attribute__((target("pclmul,sse4.1")))
#define HL_FOR_FOLD256 __attribute__((target("avx2,vpclmulqdq,pclmul")))
#define HL_FOR_FOLD512 __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1")))
#define HL_FOLD_INLINE static inline __attribute__((always_inline))

#define HL_FOLD_BY_2048 0x1322d1430, 0x11542778a
#define HL_FOLD_BY_1024 0x14a7fe880, 0x1e88ef372
#define HL_FOLD_BY_512  0x1c6e41596, 0x154442bd4
#define HL_FOLD_BY_256  0x15a546366, 0x0f1da05aa
#define HL_FOLD_BY_128  0x0ccaa009e, 0x1751997d0

/* Four registers. */
#define HL_FOLD128_STRIPE ((size_t)64)
#define HL_FOLD256_STRIPE ((size_t)128)
#define HL_FOLD512_STRIPE ((size_t)256)

#define HL_FOLD_AHEAD 1024

/* What happens to the bytes besides the CRC. A streaming store needs an aligned address. */
enum hl_fold_store { HL_FOLD_CACHED, HL_FOLD_STREAMED, HL_FOLD_READ };

/* What this processor can run, within hl_cpu(). Both also check that the system saves the
 * registers. */
static inline bool hl_fold256_runs(void)
{
    return hl_cpu() >= HL_CPU_AVX2 && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("vpclmulqdq");
}

static inline bool hl_fold512_runs(void)
{
    return hl_cpu() >= HL_CPU_AVX512 && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("avx512vl");
}

/* A cached copy also prefetches its destination, because stores would otherwise wait for their
 * cache lines. */
HL_FOLD_INLINE void hl_fold_prefetch(const uint8_t *to, const uint8_t *from, size_t len,
                                     enum hl_fold_store store)
{
    size_t ahead = store == HL_FOLD_STREAMED ? 4 * HL_FOLD_AHEAD : 2 * HL_FOLD_AHEAD;
    for (size_t i = 0; i < len; i += 64) {
        _mm_prefetch((const char *)from + i + ahead, _MM_HINT_T0);
        if (store == HL_FOLD_CACHED)
            __builtin_prefetch(to + i + HL_FOLD_AHEAD, 1);
    }
}

/* ---- 128 bits ---- */

HL_FOR_FOLD128 HL_FOLD_INLINE __m128i hl_fold128(__m128i sum, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(sum, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

HL_FOR_FOLD128 HL_FOLD_INLINE __m128i hl_fold128_move(uint8_t *to, const uint8_t *from,
                                                      enum hl_fold_store store)
{
    __m128i word = _mm_loadu_si128((const __m128i *)from);
    if (store == HL_FOLD_STREAMED)
        _mm_stream_si128((__m128i *)to, word);
    else if (store == HL_FOLD_CACHED)
        _mm_storeu_si128((__m128i *)to, word);
    return word;
}

/* The CRC of one register, which is the remainder of all bytes so far. */
HL_FOR_FOLD128 HL_FOLD_INLINE uint32_t hl_fold128_end(__m128i sum)
{
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, sum);
    return hl_crc32(~0u, rest, sizeof(rest)); /* from an empty register */
}

/* Processes whole stripes, at least one; so do the wider versions. */
HL_FOR_FOLD128 HL_FOLD_INLINE uint32_t hl_fold128_stripes(uint32_t crc, uint8_t *to,
                                                          const uint8_t *from, size_t len,
                                                          enum hl_fold_store store)
{
    const __m128i by512 = _mm_set_epi64x(HL_FOLD_BY_512), by128 = _mm_set_epi64x(HL_FOLD_BY_128);
    __m128i first = _mm_cvtsi32_si128((int)~crc);
    __m128i a = _mm_xor_si128(hl_fold128_move(to, from, store), first);
    __m128i b = hl_fold128_move(to + 16, from + 16, store);
    __m128i c = hl_fold128_move(to + 32, from + 32, store);
    __m128i d = hl_fold128_move(to + 48, from + 48, store);
    for (size_t at = HL_FOLD128_STRIPE; at < len; at += HL_FOLD128_STRIPE) {
        _mm_prefetch((const char *)from + at + HL_FOLD_AHEAD, _MM_HINT_T0);
        a = hl_fold128(a, by512, hl_fold128_move(to + at, from + at, store));
        b = hl_fold128(b, by512, hl_fold128_move(to + at + 16, from + at + 16, store));
        c = hl_fold128(c, by512, hl_fold128_move(to + at + 32, from + at + 32, store));
        d = hl_fold128(d, by512, hl_fold128_move(to + at + 48, from + at + 48, store));
    }
    b = hl_fold128(a, by128, b);
    c = hl_fold128(b, by128, c);
    return hl_fold128_end(hl_fold128(c, by128, d));
}

/* ---- 256 bits ---- */

HL_FOR_FOLD256 HL_FOLD_INLINE __m256i hl_fold256(__m256i sum, __m256i by, __m256i next)
{
    __m256i low = _mm256_clmulepi64_epi128(sum, by, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(sum, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

HL_FOR_FOLD256 HL_FOLD_INLINE __m256i hl_fold256_move(uint8_t *to, const uint8_t *from,
                                                      enum hl_fold_store store)
{
    __m256i word = _mm256_loadu_si256((const __m256i *)from);
    if (store == HL_FOLD_STREAMED)
        _mm256_stream_si256((__m256i *)to, word);
    else if (store == HL_FOLD_CACHED)
        _mm256_storeu_si256((__m256i *)to, word);
    return word;
}

HL_FOR_FOLD256 HL_FOLD_INLINE uint32_t hl_fold256_end(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i by256 = _mm256_broadcastsi128_si256(_mm_set_epi64x(HL_FOLD_BY_256));
    __m256i sum = hl_fold256(hl_fold256(hl_fold256(a, by256, b), by256, c), by256, d);
    return hl_fold128_end(hl_fold128(_mm256_castsi256_si128(sum), _mm_set_epi64x(HL_FOLD_BY_128),
                                     _mm256_extracti128_si256(sum, 1)));
}

HL_FOR_FOLD256 HL_FOLD_INLINE uint32_t hl_fold256_stripes(uint32_t crc, uint8_t *to,
                                                          const uint8_t *from, size_t len,
                                                          enum hl_fold_store store)
{
    const __m256i by = _mm256_broadcastsi128_si256(_mm_set_epi64x(HL_FOLD_BY_1024));
    __m256i first = _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)~crc));
    __m256i a = _mm256_xor_si256(hl_fold256_move(to, from, store), first);
    __m256i b = hl_fold256_move(to + 32, from + 32, store);
    __m256i c = hl_fold256_move(to + 64, from + 64, store);
    __m256i d = hl_fold256_move(to + 96, from + 96, store);
    for (size_t at = HL_FOLD256_STRIPE; at < len; at += HL_FOLD256_STRIPE) {
        hl_fold_prefetch(to + at, from + at, HL_FOLD256_STRIPE, store);
        a = hl_fold256(a, by, hl_fold256_move(to + at, from + at, store));
        b = hl_fold256(b, by, hl_fold256_move(to + at + 32, from + at + 32, store));
        c = hl_fold256(c, by, hl_fold256_move(to + at + 64, from + at + 64, store));
        d = hl_fold256(d, by, hl_fold256_move(to + at + 96, from + at + 96, store));
    }
    return hl_fold256_end(a, b, c, d);
}

/* ---- 512 bits ---- */

HL_FOR_FOLD512 HL_FOLD_INLINE __m512i hl_fold512(__m512i sum, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(sum, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* xor of three */
}

HL_FOR_FOLD512 HL_FOLD_INLINE __m512i hl_fold512_move(uint8_t *to, const uint8_t *from,
                                                      enum hl_fold_store store)
{
    __m512i word = _mm512_loadu_si512(from);
    if (store == HL_FOLD_STREAMED)
        _mm512_stream_si512((__m512i *)to, word);
    else if (store == HL_FOLD_CACHED)
        _mm512_storeu_si512(to, word);
    return word;
}

HL_FOR_FOLD512 HL_FOLD_INLINE uint32_t hl_fold512_end(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(HL_FOLD_BY_512));
    const __m128i by128 = _mm_set_epi64x(HL_FOLD_BY_128);
    __m512i sum = hl_fold512(hl_fold512(hl_fold512(a, by512, b), by512, c), by512, d);
    __m128i x = _mm512_extracti32x4_epi32(sum, 0);
    x = hl_fold128(x, by128, _mm512_extracti32x4_epi32(sum, 1));
    x = hl_fold128(x, by128, _mm512_extracti32x4_epi32(sum, 2));
    return hl_fold128_end(hl_fold128(x, by128, _mm512_extracti32x4_epi32(sum, 3)));
}

HL_FOR_FOLD512 HL_FOLD_INLINE uint32_t hl_fold512_stripes(uint32_t crc, uint8_t *to,
                                                          const uint8_t *from, size_t len,
                                                          enum hl_fold_store store)
{
    const __m512i by = _mm512_broadcast_i32x4(_mm_set_epi64x(HL_FOLD_BY_2048));
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc));
    __m512i a = _mm512_xor_si512(hl_fold512_move(to, from, store), first);
    __m512i b = hl_fold512_move(to + 64, from + 64, store);
    __m512i c = hl_fold512_move(to + 128, from + 128, store);
    __m512i d = hl_fold512_move(to + 192, from + 192, store);
    for (size_t at = HL_FOLD512_STRIPE; at < len; at += HL_FOLD512_STRIPE) {
        hl_fold_prefetch(to + at, from + at, HL_FOLD512_STRIPE, store);
        a = hl_fold512(a, by, hl_fold512_move(to + at, from + at, store));
        b = hl_fold512(b, by, hl_fold512_move(to + at + 64, from + at + 64, store));
        c = hl_fold512(c, by, hl_fold512_move(to + at + 128, from + at + 128, store));
        d = hl_fold512(d, by, hl_fold512_move(to + at + 192, from + at + 192, store));
    }
    return hl_fold512_end(a, b, c, d);
}
#endif

#endif
