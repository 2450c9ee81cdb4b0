/* The bytes of a shard, compared with hand-made ones. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "client/shard_image.h"

static const int64_t two_by_three[] = {2, 3};
static const int64_t three[] = {3};
static const unsigned char bytes_a[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
/* CRC-32 of "123456789" is the check value of the polynomial: cbf43926. */
static const char bytes_b[] = "123456789";

/* Bit by bit, from the definition. */
static uint32_t crc_by_hand(const unsigned char *p, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

TEST(a_shard_has_header_tensors_in_order_and_their_checksums)
{
    static const int64_t nine[] = {9};
    const helios_tensor t[] = {
        {.name = "z.weight", .dtype = "BF16", .shape = two_by_three, .rank = 2, .data = bytes_a},
        {.name = "a.bias", .dtype = "U8", .shape = nine, .rank = 1, .data = bytes_b},
    };
    struct hl_shard_image image;
    assert_int_equal(hl_shard_image_plan(&(struct hl_shard_spec){.model = "m",
                                                                 .version = 7,
                                                                 .pp = 1,
                                                                 .tp = 2,
                                                                 .part = "head",
                                                                 .tensors = t,
                                                                 .count = 2},
                                         &image),
                     HL_OK);
    unsigned char *file = malloc(image.size);
    uint32_t crc = 0;
    assert_int_equal(hl_shard_image_fill(&image, file, &crc), HL_OK);
    uint64_t header;
    memcpy(&header, file, 8);
    assert_int_equal((8 + header) % 64, 0);
    assert_int_equal(image.size, 8 + header + 12 + 9);
    assert_memory_equal(file + 8 + header, bytes_a, 12);
    assert_memory_equal(file + 8 + header + 12, bytes_b, 9);
    assert_int_equal(crc, crc_by_hand(file, image.size));

    char *text = strndup((char *)file + 8, header);
    assert_non_null(strstr(text, "\"crc32.a.bias\":\"cbf43926\""));
    assert_non_null(strstr(text, "\"helios.version\":\"7\""));
    assert_non_null(strstr(text, "\"helios.part\":\"head\""));
    free(text);
    free(file);
    hl_shard_image_fini(&image);
}

TEST(tensors_without_elements_and_scalars_are_fine)
{
    static const int64_t none[] = {0, 4};
    const helios_tensor t[] = {
        {.name = "empty", .dtype = "F32", .shape = none, .rank = 2, .data = NULL},
        {.name = "step", .dtype = "I64", .shape = NULL, .rank = 0, .data = bytes_a},
    };
    struct hl_shard_image image;
    assert_int_equal(
        hl_shard_image_plan(
            &(struct hl_shard_spec){.model = "m", .part = "optim-head", .tensors = t, .count = 2},
            &image),
        HL_OK);
    unsigned char *file = malloc(image.size);
    uint32_t crc = 0;
    assert_int_equal(hl_shard_image_fill(&image, file, &crc), HL_OK);
    assert_int_equal(crc, crc_by_hand(file, image.size));
    assert_memory_equal(file + image.size - 8, bytes_a, 8);
    free(file);
    hl_shard_image_fini(&image);
}

struct giver {
    size_t asked[2];
    int count, refuse;
};

static int give(void *arg, size_t tensor, void *data, size_t size)
{
    struct giver *g = arg;
    g->asked[g->count++] = tensor;
    memset(data, (int)tensor + 40, size);
    return g->refuse;
}

TEST(a_tensor_without_data_is_asked_for_in_its_turn)
{
    const helios_tensor t[] = {
        {.name = "a", .dtype = "U8", .shape = three, .rank = 1},
        {.name = "b", .dtype = "U8", .shape = three, .rank = 1, .data = bytes_a},
        {.name = "c", .dtype = "U8", .shape = three, .rank = 1},
    };
    struct giver g = {0};
    struct hl_shard_image image;
    struct hl_shard_spec spec = {.model = "m", .part = "head", .tensors = t, .count = 3};
    assert_int_equal(hl_shard_image_plan(&spec, &image), HL_EINVAL);
    spec.fill = give;
    spec.fill_arg = &g;
    assert_int_equal(hl_shard_image_plan(&spec, &image), HL_OK);
    unsigned char *file = malloc(image.size), *data = file + image.size - 9;
    uint32_t crc = 0;
    assert_int_equal(hl_shard_image_fill(&image, file, &crc), HL_OK);
    assert_int_equal(crc, crc_by_hand(file, image.size));
    assert_memory_equal(data, "\x28\x28\x28", 3);
    assert_memory_equal(data + 3, bytes_a, 3);
    assert_memory_equal(data + 6, "\x2a\x2a\x2a", 3);
    assert_int_equal(g.count, 2);
    assert_int_equal(g.asked[1], 2);
    g = (struct giver){.refuse = 1};
    assert_int_equal(hl_shard_image_fill(&image, file, &crc), HL_ECANCELED);
    assert_non_null(strstr(hl_error_text(), "'a'"));
    free(file);
    hl_shard_image_fini(&image);
}

TEST(what_no_reader_would_accept_is_refused)
{
    const helios_tensor twice[] = {
        {.name = "x", .dtype = "U8", .shape = three, .rank = 1, .data = bytes_a},
        {.name = "x", .dtype = "U8", .shape = three, .rank = 1, .data = bytes_a},
    };
    struct hl_shard_image image;
    struct hl_shard_spec spec = {.model = "m", .part = "head", .tensors = twice, .count = 2};
    assert_int_equal(hl_shard_image_plan(&spec, &image), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "part 'head'"));
    assert_non_null(strstr(hl_error_text(), "'x'"));
    spec.count = 0;
    assert_int_equal(hl_shard_image_plan(&spec, &image), HL_EINVAL);
}
