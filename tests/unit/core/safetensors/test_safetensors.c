/* Headers from any source: what the format allows is read, everything else is refused by name; what
 * Helios writes is read back. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "core/safetensors/safetensors.h"

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* A file image of this header and `data` bytes; parsed from a heap copy of exact size, so that
 * AddressSanitizer sees a read beyond the end. */
static hl_status parse(const char *json, uint64_t data, struct hl_safetensors *out)
{
    uint64_t n = strlen(json);
    char *bytes = malloc(8 + n);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, json, n);
    hl_status st = hl_safetensors_parse(bytes, 8 + n, 8 + n + data, out);
    free(bytes);
    return st;
}

TEST(tensors_come_in_order_of_their_data)
{
    struct hl_safetensors st;
    assert_int_equal(parse("{" T("b", "F32", "[2, 3]",
                                 "[6, 30]") ",\n\t\"__metadata__\": "
                                            "{\"format\": \"pt\", \"x\": \"\\u00e9\\n\"}, " T(
                                                "a", "BF16", "[3]",
                                                "[0,6]") ", " T("s", "I64", "[]", "[30, 38]") "}  ",
                           38, &st),
                     HL_OK);
    assert_int_equal(st.count, 3);
    assert_string_equal(st.tensors[0].name, "a");
    assert_int_equal(st.tensors[1].rank, 2);
    assert_int_equal(st.tensors[1].shape[1], 3);
    assert_int_equal(st.tensors[1].offset, 6);
    assert_int_equal(st.tensors[1].size, 24);
    assert_int_equal(st.tensors[2].rank, 0);
    assert_ptr_equal(hl_safetensors_find(&st, "s"), &st.tensors[2]);
    assert_null(hl_safetensors_find(&st, "t"));
    assert_string_equal(hl_safetensors_meta(&st, "format"), "pt");
    assert_string_equal(hl_safetensors_meta(&st, "x"), "\xc3\xa9\n");
    hl_safetensors_fini(&st);
}

TEST(legal_oddities_are_read)
{

    static const struct {
        const char *json;
        uint64_t data;
        size_t count;
    } rows[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{" T("e", "F32", "[0]", "[0,0]") "}", 0, 1},
        {"{" T("e", "F32", "[4,0]", "[4,4]") "," T("a", "U8", "[4]", "[0,4]") "," T(
             "z", "F32", "[0,18446744073709551615,9]", "[0,0]") "}",
         4, 3},
        {"{" T("", "U8", "[1]", "[0,1]") "}", 1, 1},
        {"{" T("\\ud83d\\ude00\\\"", "U8", "[1]", "[0,1]") "}", 1, 1},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_safetensors st;
        if (parse(rows[i].json, rows[i].data, &st) != HL_OK)
            fail_msg("row %zu: %s", i, hl_error_text());
        assert_int_equal(st.count, rows[i].count);
        hl_safetensors_fini(&st);
    }
}

TEST(hostile_headers_are_refused_with_the_reason)
{

    static const struct {
        const char *json;
        uint64_t data;
        const char *want;
    } rows[] = {
        {"", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin"},
        {"{", 0, "ends too early"},
        {"{} x", 0, "there is text after"},
        {"{}{}", 0, "there is text after"},
        {"{\"a\"}", 0, "expected ':'"},
        {"{\"a\":{}}", 0, "field dtype is missing"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "field shape is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "data_offsets is missing"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "tensor 'a': dtype 'F33' is unknown"},
        {"{" T("a", "F32", "[1]", "[0]") "}", 4, "data_offsets needs two numbers"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "a list of more than 2"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "run back"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "needs 8 bytes, data_offsets span 4"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "non-negative integer"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "not a fraction"},
        {"{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, "not a fraction"},
        {"{" T("a", "F32", "[01]", "[0,4]") "}", 4, "leading zero"},
        {"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4, "beyond 64 bits"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "beyond 64 bits"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "a list of more than 8"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[2,6]") "}", 6, "they overlap"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[0,4]") "}", 4, "they overlap"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[5,9]") "}", 9, "a hole"},
        {"{" T("a", "U8", "[4]", "[1,5]") "}", 5, "a hole"},
        {"{" T("a", "U8", "[4]", "[0,4]") "}", 3, "it is truncated"},
        {"{" T("a", "U8", "[4]", "[0,4]") "}", 5, "1 bytes after the last tensor"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("a", "U8", "[4]", "[4,8]") "}", 8,
         "'a' appears twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "'dtype' appears twice"},
        {"{\"a\":{\"dtyp\":\"U8\"}}", 0, "unknown field 'dtyp'"},
        {"{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, "not allowed in strings"},
        {"{" T("a\\n", "U8", "[1]", "[0,1]") "}", 1, "control character"},
        {"{" T("\xff", "U8", "[1]", "[0,1]") "}", 1, "not UTF-8"},
        {"{" T("\xc0\x80", "U8", "[1]", "[0,1]") "}", 1, "not UTF-8"},
        {"{" T("\\ud800", "U8", "[1]", "[0,1]") "}", 1, "surrogate"},
        {"{" T("\\x41", "U8", "[1]", "[0,1]") "}", 1, "unknown escape"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'"},
        {"{\"__metadata__\":{\"a\":\"b\"},\"__metadata__\":{\"a\":\"b\"}}", 0, "appears twice"},
        {"{\"a", 0, "ends too early"},
        {"{\"a\\", 0, "ends in an escape"},
        {"{\"a\\u12", 0, "ends in an escape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1", 0, "ends too early"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_safetensors st;
        if (parse(rows[i].json, rows[i].data, &st) != HL_EINVAL)
            fail_msg("row %zu is accepted: %s", i, rows[i].json);
        if (strstr(hl_error_text(), rows[i].want) == NULL)
            fail_msg("row %zu: '%s' does not say '%s'", i, hl_error_text(), rows[i].want);
    }
}

TEST(lengths_that_lie_are_refused)
{
    struct hl_safetensors st;
    uint64_t n, len = 100000001;
    assert_int_equal(hl_safetensors_parse("abc", 3, 3, &st), HL_EINVAL);
    assert_int_equal(hl_safetensors_parse(&len, 8, UINT64_MAX, &st), HL_EINVAL);
    len = UINT64_MAX;
    assert_int_equal(hl_safetensors_header_len(&len, 8, UINT64_MAX, &n), HL_EINVAL);
    len = 3;
    assert_int_equal(hl_safetensors_header_len(&len, 8, 10, &n), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "truncated"));
    len = 2;
    assert_int_equal(hl_safetensors_header_len(&len, 8, 10, &n), HL_OK);
    assert_int_equal(hl_safetensors_parse(&len, 8, 10, &st), HL_EINVAL);
}

/* Every prefix of a good header, and every byte of it changed, ends in an answer. */
TEST(damaged_headers_never_crash)
{
    static const char good[] = "{\"__metadata__\":{\"a\":\"\\u00e9\"}," T(
        "x\\u0041", "F32", "[2,3]", "[0,24]") "," T("y", "BF16", "[1]", "[24,26]") "}";
    char text[sizeof(good)];
    struct hl_safetensors st;
    for (size_t i = 0; i < sizeof(good) - 1; i++) {
        memcpy(text, good, sizeof(good));
        text[i] = '\0';
        assert_int_equal(parse(text, 26, &st), HL_EINVAL);
        for (int v = 1; v < 256; v++) {
            memcpy(text, good, sizeof(good));
            text[i] = (char)v;
            if (parse(text, 26, &st) == HL_OK)
                hl_safetensors_fini(&st);
        }
    }
}

static struct hl_tensor tensor(const char *name, enum hl_dtype dtype, uint64_t d0, uint64_t d1)
{
    return (struct hl_tensor){.name = name, .dtype = dtype, .rank = 2, .shape = {d0, d1}};
}

TEST(written_headers_are_read_back_and_patched)
{
    struct hl_tensor list[] = {tensor("w \"1\"", HL_DTYPE_BF16, 3, 5),
                               tensor("b\xc3\xa9", HL_DTYPE_F8_E4M3, 7, 1)};
    const struct hl_safetensors_meta meta[] = {{"helios.part", "line\nbreak"}};
    struct hl_safetensors_image image;
    struct hl_safetensors st;
    uint32_t crc;
    assert_int_equal(
        hl_safetensors_write(
            &(struct hl_safetensors_layout){
                .tensors = list, .count = 2, .meta = meta, .meta_count = 1, .crc_fields = true},
            &image),
        HL_OK);
    assert_int_equal(image.size % 64, 0);
    assert_int_equal(image.data_size, 37);
    hl_safetensors_patch_crc(&image, image.bytes, 1, 0x0badf00d);
    assert_int_equal(hl_safetensors_parse(image.bytes, image.size, image.size + 37, &st), HL_OK);
    assert_int_equal(st.count, 2);
    assert_string_equal(st.tensors[0].name, "w \"1\"");
    assert_int_equal(st.tensors[1].offset, 30);
    assert_int_equal(hl_safetensors_crc(&st, "b\xc3\xa9", &crc), HL_OK);
    assert_int_equal(crc, 0x0badf00d);
    assert_int_equal(hl_safetensors_crc(&st, "w \"1\"", &crc), HL_OK);
    assert_int_equal(crc, 0);
    assert_int_equal(hl_safetensors_crc(&st, "none", &crc), HL_ENOENT);
    assert_string_equal(hl_safetensors_meta(&st, "helios.part"), "line\nbreak");
    hl_safetensors_fini(&st);
    hl_safetensors_image_fini(&image);
}

static struct hl_safetensors part(const char *name, const char *tensor_name, uint64_t bytes)
{
    struct hl_tensor t = {.name = tensor_name, .dtype = HL_DTYPE_U8, .rank = 1, .shape = {bytes}};
    const struct hl_safetensors_meta meta[] = {{"helios.model", "m"}, {"helios.part", name}};
    struct hl_safetensors_image image;
    struct hl_safetensors st;
    assert_int_equal(
        hl_safetensors_write(
            &(struct hl_safetensors_layout){
                .tensors = &t, .count = 1, .meta = meta, .meta_count = 2, .crc_fields = true},
            &image),
        HL_OK);
    hl_safetensors_patch_crc(&image, image.bytes, 0, (uint32_t)bytes);
    assert_int_equal(hl_safetensors_parse(image.bytes, image.size, image.size + bytes, &st), HL_OK);
    hl_safetensors_image_fini(&image);
    return st;
}

TEST(parts_merge_into_one_stream)
{
    struct hl_safetensors a = part("embedding", "e", 100), b = part("layer-0000", "l", 33);
    const struct hl_safetensors *both[] = {&a, &b};
    struct hl_safetensors_image image;
    struct hl_safetensors st;
    uint64_t at[2];
    uint32_t crc;
    assert_int_equal(hl_safetensors_merge(both, 2, &image, at), HL_OK);
    assert_int_equal(image.size % 64, 0);
    assert_int_equal(at[0], image.size);
    assert_int_equal(at[1], image.size + 100);
    assert_int_equal(hl_safetensors_parse(image.bytes, image.size, image.size + 133, &st), HL_OK);
    assert_int_equal(hl_safetensors_find(&st, "l")->offset, 100);
    assert_string_equal(hl_safetensors_meta(&st, "helios.part"), "embedding,layer-0000");
    assert_string_equal(hl_safetensors_meta(&st, "helios.model"), "m");
    assert_int_equal(hl_safetensors_crc(&st, "l", &crc), HL_OK);
    assert_int_equal(crc, 33);
    hl_safetensors_fini(&st);
    hl_safetensors_image_fini(&image);
    const struct hl_safetensors *twice[] = {&a, &a};
    assert_int_equal(hl_safetensors_merge(twice, 2, &image, at), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "'e' is in two parts"));
    hl_safetensors_fini(&a);
    hl_safetensors_fini(&b);
}

static hl_status check_origin(const struct hl_safetensors *st, const char *model, int64_t version,
                              int pp, int tp, const char *part, const char *what)
{
    hl_status found = hl_safetensors_check_origin(st, model, version, pp, tp, 0, part);
    if (found != HL_OK)
        assert_non_null(strstr(hl_error_text(), what));
    return found;
}

TEST(a_header_says_where_its_shard_belongs)
{
    struct hl_safetensors st;
    struct hl_safetensors_origin o;
    assert_int_equal(
        parse("{\"__metadata__\": {\"helios.model\": \"m\", \"helios.version\": \"3\", "
              "\"helios.pp\": \"1\", \"helios.tp\": \"2\", \"helios.ep\": \"4\", "
              "\"helios.part\": \"layer-0002\"}, " T("a", "U8", "[1]", "[0,1]") "}",
              1, &st),
        HL_OK);
    hl_safetensors_read_origin(&st, &o);
    assert_string_equal(o.model, "m");
    assert_string_equal(o.part, "layer-0002");
    assert_int_equal(o.version, 3);
    assert_int_equal(o.pp, 1);
    assert_int_equal(o.tp, 2);
    assert_int_equal(o.ep, 4);
    hl_safetensors_fini(&st);
    /* too large, not a number, negative, and without a model, a part and ep */
    assert_int_equal(
        parse("{\"__metadata__\": {\"helios.version\": \"9223372036854775808\", "
              "\"helios.pp\": \"x\", \"helios.tp\": \"-1\"}, " T("a", "U8", "[1]", "[0,1]") "}",
              1, &st),
        HL_OK);
    hl_safetensors_read_origin(&st, &o);
    assert_null(o.model);
    assert_null(o.part);
    assert_int_equal(o.version, -1);
    assert_int_equal(o.pp, -1);
    assert_int_equal(o.tp, -1);
    assert_int_equal(o.ep, 0);
    hl_safetensors_fini(&st);
}

TEST(a_header_of_another_place_is_refused_by_member_and_value)
{
    struct hl_safetensors st;
    assert_int_equal(
        parse("{\"__metadata__\": {\"helios.model\": \"m\", \"helios.version\": \"3\", "
              "\"helios.pp\": \"1\", \"helios.tp\": \"0\", "
              "\"helios.part\": \"layer-0002\"}, " T("a", "U8", "[1]", "[0,1]") "}",
              1, &st),
        HL_OK);
    assert_int_equal(check_origin(&st, "m", 3, 1, 0, "layer-0002", ""), HL_OK);
    assert_int_equal(check_origin(&st, "n", 3, 1, 0, "layer-0002", "helios.model = 'm', not 'n'"),
                     HL_ECORRUPT);
    assert_int_equal(check_origin(&st, "m", 4, 1, 0, "layer-0002", "helios.version = '3', not '4'"),
                     HL_ECORRUPT);
    assert_int_equal(check_origin(&st, "m", 3, 0, 0, "layer-0002", "helios.pp = '1', not '0'"),
                     HL_ECORRUPT);
    assert_int_equal(check_origin(&st, "m", 3, 1, 1, "layer-0002", "helios.tp = '0', not '1'"),
                     HL_ECORRUPT);
    assert_int_equal(
        check_origin(&st, "m", 3, 1, 0, "head", "helios.part = 'layer-0002', not 'head'"),
        HL_ECORRUPT);
    hl_safetensors_fini(&st);
    /* a file without an origin is not refused for that */
    assert_int_equal(parse("{" T("a", "U8", "[1]", "[0,1]") "}", 1, &st), HL_OK);
    assert_int_equal(check_origin(&st, "m", 3, 1, 0, "head", ""), HL_OK);
    hl_safetensors_fini(&st);
}
