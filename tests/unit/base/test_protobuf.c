/* Fields of messages, complete and truncated, and bytes that are not fields. */
#include "support/test.h"

#include "base/protobuf.h"
#include "support/protobuf.h"

TEST(fields_of_every_kind)
{
    static const char bytes[] = "\x08\x96\x01\x11\1\2\3\4\5\6\7\x88\x1a\3abc\x25\xff\0\0\x80";

    static const struct {
        uint32_t number;
        uint64_t value;
        const char *text;
    } wanted[] = {
        {1, 150, NULL},
        {2, UINT64_C(0x8807060504030201), NULL},
        {3, 0, "abc"},
        {4, 0x800000ff, NULL},
    };
    struct hl_protobuf p = hl_protobuf(bytes, sizeof(bytes) - 1);
    struct hl_protobuf_field f;
    for (size_t i = 0; i < HL_ARRAY_LEN(wanted); i++) {
        assert_true(hl_protobuf_next(&p, &f));
        assert_int_equal(f.number, wanted[i].number);
        assert_int_equal(f.is_bytes, wanted[i].text != NULL);
        assert_int_equal(f.value, wanted[i].value);
        if (f.is_bytes) {
            assert_int_equal(f.len, strlen(wanted[i].text));
            assert_memory_equal(f.bytes, wanted[i].text, f.len);
        }
    }
    assert_false(hl_protobuf_next(&p, &f));
    assert_false(p.bad);
}

TEST(what_is_none)
{
    static const struct {
        const char *bytes;
        size_t len;
    } bad[] = {
        {"\x08", 1},                                            /* no value */
        {"\x08\x80", 2},                                        /* truncated */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", 12}, /* of more than 64 bits */
        {"\x0a\5abc", 5},                                       /* longer than the message */
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", 11},
        {"\x09\1\2\3", 4},
        {"\x0d\1\2\3", 4},
        {"\x0b\x0c", 2}, /* a group */
        {"\x0e", 1},     /* an unknown wire type */
        {"\2\0", 2},     /* field 0 */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_protobuf p = hl_protobuf(bad[i].bytes, bad[i].len);
        struct hl_protobuf_field f;
        assert_false(hl_protobuf_next(&p, &f));
        assert_true(p.bad);
        assert_false(hl_protobuf_next(&p, &f));
    }
}

TEST(the_last_of_a_number_counts)
{
    struct hl_buf b = HL_BUF(1024);
    struct hl_protobuf_field f;
    pb_text(&b, 2, "one");
    pb_number(&b, 2, 7);
    pb_text(&b, 2, "two");
    pb_text(&b, 3, "");
    assert_true(hl_protobuf_find(b.data, b.len, 2, &f));
    assert_memory_equal(f.bytes, "two", 3);
    assert_true(hl_protobuf_find(b.data, b.len, 3, &f));
    assert_int_equal(f.len, 0);
    assert_false(hl_protobuf_find(b.data, b.len, 4, &f));
    assert_false(hl_protobuf_find(b.data, b.len - 1, 2, &f)); /* truncated */
    hl_buf_fini(&b);
}
