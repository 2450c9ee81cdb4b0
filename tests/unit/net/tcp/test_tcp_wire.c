/* The messages of the data protocol over TCP: hand-made bytes, and what the decoder must refuse. */
#include "support/test.h"

#include <string.h>
#include <zlib.h>

#include "net/put_list.h"
#include "net/tcp/wire.h"

/* The checksum of the first 60 bytes, by zlib. */
static void seal(uint8_t head[HL_TCP_HEAD])
{
    uint32_t crc = (uint32_t)crc32(0, head, 60);
    for (int i = 0; i < 4; i++)
        head[60 + i] = (uint8_t)(crc >> 8 * i);
}

TEST(a_request_has_the_documented_bytes)
{
    uint8_t head[HL_TCP_HEAD], want[HL_TCP_HEAD] = {
                                   'H',  'L', 'T', '1', 1, 3, 0, 0,    /* version 1, ASK */
                                   0x05, 0,   0,   0,   0, 0, 0, 0,    /* op 5 */
                                   0x02, 0x1, 0,   0,   0, 0, 0, 0x80, /* offset 2^63 + 258 */
                                   0x00, 0,   0x1, 0,   0, 0, 0, 0,    /* len 65536 */
                               };
    seal(want);
    hl_tcp_encode(
        &(struct hl_tcp_msg){
            .type = HL_TCP_TYPE_ASK, .op = 5, .offset = 0x8000000000000102u, .len = 65536},
        head);
    assert_memory_equal(head, want, sizeof(head));
}

static const struct hl_tcp_msg good[] = {
    {.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY},
    {.type = HL_TCP_TYPE_WELCOME, .offset = HL_TCP_HAS_RDMA, .len = 1, .id = {1, 2}},
    {.type = HL_TCP_TYPE_ASK, .op = 1, .offset = UINT64_MAX, .len = HL_CHUNK},
    {.type = HL_TCP_TYPE_DATA, .op = 1, .offset = 7, .len = 9, .payload = 9},
    {.type = HL_TCP_TYPE_REFUSED, .op = 1, .status = HL_EINVAL, .payload = HL_TCP_TEXT_MAX},
    {.type = HL_TCP_TYPE_REFUSED, .status = HL_EINTERNAL},
    {.type = HL_TCP_TYPE_PUT, .op = 2, .len = UINT64_MAX, .crc = UINT32_MAX, .id = {3, 4}},
    {.type = HL_TCP_TYPE_READY, .op = 2},
    {.type = HL_TCP_TYPE_WAIT},
    {.type = HL_TCP_TYPE_STORED, .op = 2, .id = {3, 4}},
    {.type = HL_TCP_TYPE_BATCH, .op = 3, .payload = HL_WIRE_LIST_MAX},
    {.type = HL_TCP_TYPE_RESULTS, .op = 3, .payload = 24},
    {.type = HL_TCP_TYPE_MEET, .op = 4},
    {.type = HL_TCP_TYPE_MET, .op = 4, .offset = 65535, .id = {5, 6}},
};

static bool goes_to_server(enum hl_tcp_type type)
{
    return type == HL_TCP_TYPE_HELLO || type == HL_TCP_TYPE_ASK || type == HL_TCP_TYPE_PUT ||
           type == HL_TCP_TYPE_BATCH || type == HL_TCP_TYPE_MEET;
}

TEST(every_message_comes_back_in_its_direction_only)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(good); i++) {
        uint8_t head[HL_TCP_HEAD];
        struct hl_tcp_msg m;
        bool up = goes_to_server(good[i].type);
        hl_tcp_encode(&good[i], head);
        assert_false(hl_tcp_decode(up ? HL_TCP_TO_CLIENT : HL_TCP_TO_SERVER, head, &m));
        assert_true(hl_tcp_decode(up ? HL_TCP_TO_SERVER : HL_TCP_TO_CLIENT, head, &m));
        assert_int_equal(m.type, good[i].type);
        assert_true(m.op == good[i].op && m.offset == good[i].offset && m.len == good[i].len &&
                    m.crc == good[i].crc && m.status == good[i].status &&
                    m.payload == good[i].payload && hl_id_equal(m.id, good[i].id));
    }
}

TEST(a_flipped_bit_anywhere_is_refused)
{
    struct hl_tcp_msg m;
    for (size_t i = 0; i < HL_ARRAY_LEN(good); i++)
        for (size_t bit = 0; bit < 8 * HL_TCP_HEAD; bit++) {
            uint8_t head[HL_TCP_HEAD];
            hl_tcp_encode(&good[i], head);
            head[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_false(hl_tcp_decode(HL_TCP_TO_SERVER, head, &m));
            assert_false(hl_tcp_decode(HL_TCP_TO_CLIENT, head, &m));
        }
}

/* The checksum is right: the fields themselves are wrong. */
TEST(lengths_and_fields_out_of_bounds_are_refused)
{
    static const struct hl_tcp_msg wrong[] = {
        {.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY - 1},
        {.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY, .op = 1},
        {.type = HL_TCP_TYPE_WELCOME, .len = 0, .id = {1, 2}},
        {.type = HL_TCP_TYPE_WELCOME, .len = 1},
        {.type = HL_TCP_TYPE_WELCOME, .offset = 2, .len = 1, .id = {1, 2}},
        {.type = HL_TCP_TYPE_ASK, .op = 1, .len = 0},
        {.type = HL_TCP_TYPE_ASK, .op = 0, .len = 1},
        {.type = HL_TCP_TYPE_ASK, .op = 1, .len = HL_CHUNK + 1},
        {.type = HL_TCP_TYPE_ASK, .op = 1, .len = 1, .payload = 1},
        {.type = HL_TCP_TYPE_DATA, .op = 1, .len = 9, .payload = 8},
        {.type = HL_TCP_TYPE_DATA, .op = 1, .len = HL_CHUNK + 1, .payload = HL_CHUNK + 1},
        {.type = HL_TCP_TYPE_REFUSED, .op = 1, .status = 0},
        {.type = HL_TCP_TYPE_REFUSED, .op = 1, .status = HL_EINTERNAL - 1},
        {.type = HL_TCP_TYPE_REFUSED, .op = 1, .status = -1, .payload = HL_TCP_TEXT_MAX + 1},
        {.type = HL_TCP_TYPE_PUT, .op = 1, .len = 0},
        {.type = HL_TCP_TYPE_PUT, .op = 1, .len = 1, .payload = 1},
        {.type = HL_TCP_TYPE_READY, .op = 0},
        {.type = HL_TCP_TYPE_WAIT, .op = 1},
        {.type = HL_TCP_TYPE_STORED, .op = 1, .status = -1},
        {.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = 0},
        {.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = HL_WIRE_LIST_MAX + 1},
        {.type = HL_TCP_TYPE_RESULTS, .op = 1, .payload = UINT32_MAX},
        {.type = HL_TCP_TYPE_MEET, .op = 1, .payload = 1},
        {.type = HL_TCP_TYPE_MET, .op = 1, .offset = 65536, .id = {5, 6}},
        {.type = HL_TCP_TYPE_MET, .op = 1, .offset = 7},
        {.type = (enum hl_tcp_type)0},
        {.type = HL_TCP_TYPE_END},
        {.type = (enum hl_tcp_type)255},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(wrong); i++) {
        uint8_t head[HL_TCP_HEAD];
        struct hl_tcp_msg m;
        hl_tcp_encode(&wrong[i], head);
        if (hl_tcp_decode(HL_TCP_TO_SERVER, head, &m) || hl_tcp_decode(HL_TCP_TO_CLIENT, head, &m))
            fail_msg("message %zu of type %d was taken", i, wrong[i].type);
    }
}

TEST(other_versions_and_other_protocols_are_told_apart)
{
    uint8_t head[HL_TCP_HEAD];
    struct hl_tcp_msg m;
    hl_tcp_encode(&good[0], head);
    assert_int_equal(hl_tcp_version(head), 1);
    head[4] = 2;
    seal(head);
    assert_int_equal(hl_tcp_version(head), 2);
    assert_false(hl_tcp_decode(HL_TCP_TO_SERVER, head, &m));
    head[6] = 1;
    head[4] = 1;
    seal(head);
    assert_false(hl_tcp_decode(HL_TCP_TO_SERVER, head, &m));
    assert_true(hl_tcp_begins((const uint8_t *)"HLT1xyz", 7));
    assert_true(hl_tcp_begins((const uint8_t *)"HL", 2));
    assert_true(hl_tcp_begins((const uint8_t *)"", 0));
    assert_false(hl_tcp_begins((const uint8_t *)"HLX", 3));
    assert_false(hl_tcp_begins((const uint8_t *)"GET / HTTP/1.1", 14));
}

TEST(keys_differ_by_any_bit)
{
    uint8_t a[HL_NET_KEY], b[HL_NET_KEY];
    memset(a, 0x5a, sizeof(a));
    memcpy(b, a, sizeof(b));
    assert_true(hl_tcp_key_equal(a, b));
    for (size_t bit = 0; bit < 8 * sizeof(b); bit++) {
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(hl_tcp_key_equal(a, b));
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
