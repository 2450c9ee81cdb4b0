#include "support/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/cpu.h"
#include "base/crc32.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define MARGIN 16
#define SHORT  ((size_t)4096)

/* The checksum by its definition, a byte at a time. */
static uint32_t table_crc(uint32_t crc, const uint8_t *data, size_t len)
{
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        table[i] = c;
    }
    crc = ~crc;
    for (size_t i = 0; i < len; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xff];
    return ~crc;
}

/* Checks every kernel of this processor for one length between two alignments: bytes, CRC, and that
 * nothing beside the destination is touched. */
static void check_kernels(const uint8_t *from, uint8_t *buf, size_t into, size_t len)
{
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    size_t count = hl_copy_kernels(kernels);
    uint32_t before = (uint32_t)(len * 0x9e3779b9u);
    uint32_t sum = table_crc(before, from, len);
    for (size_t k = 0; k < count; k++) {
        uint8_t *to = buf + MARGIN + into;
        memset(to - MARGIN, 0xee, len + 2 * MARGIN);
        uint32_t got = kernels[k]->copy(before, to, from, len);
        if (got != (kernels[k]->sums ? sum : before) || memcmp(to, from, len) != 0)
            fail_msg("%s: %zu bytes to +%zu", kernels[k]->name, len, into);
        for (int i = 0; i < MARGIN; i++)
            if (to[-1 - i] != 0xee || to[len + (size_t)i] != 0xee)
                fail_msg("%s: %zu bytes to +%zu: wrote beside them", kernels[k]->name, len, into);
    }
}

struct copies {
    uint8_t *from, *to;
    size_t size;
};

static struct copies copies_make(size_t size)
{
    struct copies c = {malloc(size + 64), malloc(size + 256), size};
    assert_true(c.from != NULL && c.to != NULL);
    for (size_t i = 0; i < size + 64; i++)
        c.from[i] = (uint8_t)(i * 37 + (i >> 5) + (i >> 13));
    return c;
}

static void copies_free(struct copies *c)
{
    free(c->from);
    free(c->to);
}

TEST(every_kernel_copies_every_short_length_from_and_to_any_alignment)
{
    struct copies c = copies_make(SHORT + 64);
    for (size_t len = 0; len <= SHORT; len++) {
        check_kernels(c.from, c.to, 0, len);
        check_kernels(c.from + len % 61, c.to, len % 67, len);
    }
    for (size_t into = 0; into < 64; into++) /* one length around each stripe, all alignments */
        for (size_t at = 0; at < 64; at += 1 + into % 3)
            check_kernels(c.from + at, c.to, into, 512 + (into * 64 + at) % 257);
    copies_free(&c);
}

TEST(every_kernel_copies_long_ranges)
{
    struct copies c = copies_make(300001);
    for (size_t len = 4096; len <= c.size; len = len * 2 + 77)
        for (size_t into = 0; into < 128; into += 43)
            check_kernels(c.from + into % 31, c.to, into, len);
    copies_free(&c);
}

TEST(a_checksum_alone_is_the_same_on_every_processor)
{
    struct copies c = copies_make(SHORT + 64);
    for (int limit = HL_CPU_PLAIN; limit <= HL_CPU_AVX512; limit++) {
        hl_cpu_limit((enum hl_cpu)limit);
        for (size_t len = 0; len <= SHORT; len++) {
            const uint8_t *from = c.from + len % 61;
            assert_int_equal(hl_crc32((uint32_t)len, from, len),
                             table_crc((uint32_t)len, from, len));
        }
    }
    hl_cpu_limit(0);
    copies_free(&c);
}

static bool has_kernel(const char *part)
{
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    size_t count = hl_copy_kernels(kernels);
    for (size_t k = 0; k < count; k++)
        if (strstr(kernels[k]->name, part) != NULL)
            return true;
    return false;
}

TEST(a_plain_processor_has_no_wide_kernel)
{
    hl_cpu_limit(HL_CPU_PLAIN);
    assert_false(has_kernel("avx"));
    assert_false(has_kernel("256"));
    assert_false(has_kernel("512"));
    hl_cpu_limit(HL_CPU_AVX2);
    assert_false(has_kernel("512"));
    hl_cpu_limit(0);
}

TEST(before_a_measurement_the_widest_fold_is_used)
{
    const char *widest = has_kernel("fold512")   ? "fold512"
                         : has_kernel("fold256") ? "fold256"
                         : has_kernel("fold")    ? "fold"
                                                 : "blocks";
    assert_string_equal(hl_copy_chosen().small[1]->name, widest);
    assert_string_equal(hl_copy_chosen().large[1]->name, widest);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define LEAF1_ECX_NEEDED (1u << 1 | 1u << 12 | 1u << 27 | 1u << 28) /* pclmul fma osxsave avx */

/* Asks the processor itself, and whether the system saves its wide registers (XCR0). */
static bool processor_folds_256(void)
{
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & LEAF1_ECX_NEEDED) != LEAF1_ECX_NEEDED)
        return false;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 5) != 0 &&
           (c & 1u << 10) != 0; /* avx2, vpclmulqdq */
}

TEST(a_fold_of_256_bits_is_there_exactly_where_the_processor_has_it)
{
    hl_cpu_limit(HL_CPU_AVX512);
    assert_int_equal(has_kernel("fold256"), processor_folds_256());
    assert_int_equal(has_kernel("fold256-stream"), processor_folds_256());
    hl_cpu_limit(0);
}
#endif

static uint32_t mark(uint32_t crc, void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    return crc + 1;
}

TEST(the_size_of_the_transfer_decides_not_that_of_its_part)
{
    const struct hl_copy_kernel marked = {"marked", true, mark};
    const struct hl_copy_choice before = hl_copy_chosen();
    struct hl_copy_choice c = before;
    char from[8] = "1234567", to[8] = "";
    c.large[1] = &marked;
    hl_copy_choose(&c);
    assert_int_equal(hl_copy_crc32(41, to, from, sizeof(to), HL_COPY_LARGE), 42);
    assert_int_equal(hl_copy_crc32(0, to, from, sizeof(to), HL_COPY_LARGE - 1),
                     table_crc(0, (const uint8_t *)from, sizeof(from)));
    assert_string_equal(to, from);
    hl_copy_choose(&before);
}
