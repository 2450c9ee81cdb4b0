/* Copy and CRC are one pass where the CPU can multiply without carries: it is as fast as memcpy.
 * Elsewhere they walk the same 32 KiB block one after the other, so the second reader finds it in
 * L1/L2; a second pass over a large buffer would halve the throughput. */
#include "base/crc32.h"

#include <string.h>
#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <isa-l.h>
#endif

#define COPY_BLOCK ((size_t)32 * 1024)

uint32_t hl_crc32(uint32_t crc, const void *data, size_t len)
{
#if defined(__x86_64__)
    return crc32_gzip_refl(crc, data, len);
#else
    return len > 0 ? (uint32_t)crc32_z(crc, data, len) : crc; /* of no pointer it is 0 to zlib */
#endif
}

uint32_t hl_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    return (uint32_t)crc32_combine64(crc_a, crc_b, (z_off64_t)len_b);
}

/* ThreadSanitizer looks at every 16 bytes of it: minutes; a memcpy it checks at once. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/* Carry-less multiplication folds 64 bytes a turn into four remainders, from the registers the copy
 * goes through anyway (V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ"). The constants are x^(d+32) and x^(d-32) mod P, reflected, for d = 512 and 128. */
#define FOLD_BYTES 64
#define FOLD_MIN   256

__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i sum, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(sum, k, 0x00);
    __m128i high = _mm_clmulepi64_si128(sum, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static __m128i move(uint8_t *to, const uint8_t *from)
{
    __m128i word = _mm_loadu_si128((const __m128i *)from);
    _mm_storeu_si128((__m128i *)to, word);
    return word;
}

/* Whole FOLD_BYTES only, at least one. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
copy_folding(uint32_t crc, uint8_t *to, const uint8_t *from, size_t len)
{
    const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i a = _mm_xor_si128(move(to, from), _mm_cvtsi32_si128((int)~crc));
    __m128i b = move(to + 16, from + 16);
    __m128i c = move(to + 32, from + 32);
    __m128i d = move(to + 48, from + 48);
    for (size_t at = FOLD_BYTES; at < len; at += FOLD_BYTES) {
        _mm_prefetch((const char *)from + at + 1024, _MM_HINT_T0);
        a = fold(a, by512, move(to + at, from + at));
        b = fold(b, by512, move(to + at + 16, from + at + 16));
        c = fold(c, by512, move(to + at + 32, from + at + 32));
        d = fold(d, by512, move(to + at + 48, from + at + 48));
    }
    uint8_t rest[16];
    b = fold(a, by128, b);
    c = fold(b, by128, c);
    _mm_storeu_si128((__m128i *)rest, fold(c, by128, d));
    return hl_crc32(~0u, rest, sizeof(rest)); /* the remainder's CRC, from an empty register */
}

static size_t copy_fast(uint32_t *crc, void *dst, const void *src, size_t len)
{
    if (len < FOLD_MIN || !__builtin_cpu_supports("pclmul"))
        return 0;
    len -= len % FOLD_BYTES;
    *crc = copy_folding(*crc, dst, src, len);
    return len;
}
#else
static size_t copy_fast(uint32_t *crc, void *dst, const void *src, size_t len)
{
    (void)crc, (void)dst, (void)src, (void)len;
    return 0;
}
#endif

uint32_t hl_crc32_copy(uint32_t crc, void *dst, const void *src, size_t len)
{
    size_t done = copy_fast(&crc, dst, src, len);
    uint8_t *to = (uint8_t *)dst + done;
    const uint8_t *from = (const uint8_t *)src + done;
    len -= done;
    while (len > 0) {
        size_t n = len < COPY_BLOCK ? len : COPY_BLOCK;
        memcpy(to, from, n);
        crc = hl_crc32(crc, to, n);
        to += n;
        from += n;
        len -= n;
    }
    return crc;
}
