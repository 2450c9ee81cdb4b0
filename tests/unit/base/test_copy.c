#include "support/test.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/copy.h"
#include "base/cpu.h"

#define MARGIN 16

/* Every kernel of this processor, for one length between two alignments: bytes, CRC, and nothing
 * beside the destination is touched. */
static void check_kernels(const uint8_t *from, uint8_t *buf, size_t into, size_t len)
{
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    size_t count = hl_copy_kernels(kernels);
    uint32_t before = (uint32_t)(len * 0x9e3779b9u);
    uint32_t sum = (uint32_t)crc32(before, from, (uInt)len);
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
    struct copies c = copies_make(2048);
    for (size_t len = 0; len < 1700; len++)
        check_kernels(c.from + len % 17, c.to, len % 67, len);
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

TEST(a_plain_processor_has_no_wide_kernel)
{
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    hl_cpu_limit(HL_CPU_PLAIN);
    size_t count = hl_copy_kernels(kernels);
    for (size_t k = 0; k < count; k++)
        assert_true(strstr(kernels[k]->name, "avx") == NULL &&
                    strstr(kernels[k]->name, "512") == NULL);
    hl_cpu_limit(0);
}

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
                     (uint32_t)crc32(0, (const void *)from, sizeof(from)));
    assert_string_equal(to, from);
    hl_copy_choose(&before);
}
