/* Watch answers in Protocol Buffers, cut at every position. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/protobuf.h"
#include "kube/stream.h"
#include "support/protobuf.h"

struct seen {
    char text[512];
    hl_status answer;
};

static hl_status on_event(void *arg, enum hl_kube_event type, json_t *object)
{
    (void)arg;
    (void)type;
    json_decref(object);
    fail_msg("an event of JSON");
    return HL_OK;
}

static hl_status on_encoded(void *arg, enum hl_kube_event type, const char *bytes, size_t len)
{
    struct seen *s = arg;
    struct hl_protobuf_field meta, name;
    size_t n = strlen(s->text);
    assert_true(hl_protobuf_find(bytes, len, 1, &meta));
    assert_true(hl_protobuf_find(meta.bytes, meta.len, 1, &name));
    snprintf(s->text + n, sizeof(s->text) - n, "%c%.*s ", "+~-"[type], (int)name.len, name.bytes);
    return s->answer;
}

static void start(struct hl_kube_stream *s, struct seen *seen, hl_status answer)
{
    *seen = (struct seen){.answer = answer};
    hl_kube_stream_init(s, "1", on_event, seen);
    s->encoded = on_encoded;
    s->is_encoded = true;
}

static void add_frame(struct hl_buf *b, const struct hl_buf *event)
{
    const size_t n = event->len;
    const char len[] = {(char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    (void)!hl_buf_append(b, len, sizeof(len));
    (void)!hl_buf_append(b, event->data, n);
}

static void add_event(struct hl_buf *b, const char *type, struct hl_buf *object)
{
    struct hl_buf extension = HL_BUF(1 << 26), event = HL_BUF(1 << 26);
    pb_wrapped(&extension, 1, object);
    pb_text(&event, 1, type);
    pb_message(&event, 2, &extension);
    add_frame(b, &event);
    hl_buf_fini(&event);
}

static void add_object(struct hl_buf *b, const char *type, const char *name, const char *version)
{
    struct hl_buf meta = HL_BUF(1024), object = HL_BUF(1024);
    pb_text(&meta, 1, name);
    pb_text(&meta, 6, version);
    pb_message(&object, 1, &meta);
    add_event(b, type, &object);
}

static void add_error(struct hl_buf *b, uint64_t code, uint64_t retry_after_s)
{
    struct hl_buf status = HL_BUF(1024), details = HL_BUF(1024);
    pb_text(&status, 3, "why");
    pb_number(&details, 5, retry_after_s);
    pb_message(&status, 5, &details);
    pb_number(&status, 6, code);
    add_event(b, "ERROR", &status);
}

TEST(cut_anywhere)
{
    struct hl_buf all = HL_BUF(65536);
    add_object(&all, "ADDED", "a", "7");
    add_object(&all, "MODIFIED", "b", "8");
    add_object(&all, "BOOKMARK", "", "9");
    add_object(&all, "NEW", "x", "10");
    add_object(&all, "DELETED", "a", "11");
    for (size_t i = 0; i <= all.len; i++)
        for (size_t step = 1; step <= 7; step += 3) {
            struct seen seen;
            struct hl_kube_stream s;
            start(&s, &seen, HL_OK);
            assert_int_equal(hl_kube_stream_feed(&s, all.data, i), HL_OK);
            for (size_t at = i; at < all.len; at += step)
                assert_int_equal(hl_kube_stream_feed(&s, all.data + at,
                                                     all.len - at < step ? all.len - at : step),
                                 HL_OK);
            assert_string_equal(seen.text, "+a ~b -a ");
            assert_string_equal(s.version, "11");
            hl_kube_stream_fini(&s);
        }
    hl_buf_fini(&all);
}

TEST(errors_by_code)
{
    static const struct {
        uint64_t code;
        hl_status st;
    } cases[] = {
        {410, HL_ESTALE}, {504, HL_EUNAVAIL}, {403, HL_EPERM}, {422, HL_EINVAL}, {0, HL_EUNAVAIL}};

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct hl_buf text = HL_BUF(4096);
        struct seen seen;
        struct hl_kube_stream s;
        start(&s, &seen, HL_OK);
        add_error(&text, cases[i].code, i == 1 ? 3 : 0);
        assert_int_equal(hl_kube_stream_feed(&s, text.data, text.len), cases[i].st);
        assert_int_equal(s.retry_after_s, i == 1 ? 3 : 0);
        assert_string_equal(s.version, "1");
        assert_non_null(strstr(hl_error_text(), "why"));
        hl_kube_stream_fini(&s);
        hl_buf_fini(&text);
    }
}

/* An event that was not accepted is requested again. */
TEST(the_version_is_that_of_what_was_taken)
{
    struct hl_buf text = HL_BUF(4096);
    struct seen seen;
    struct hl_kube_stream s;
    start(&s, &seen, HL_EPROTO);
    add_object(&text, "ADDED", "a", "7");
    assert_int_equal(hl_kube_stream_feed(&s, text.data, text.len), HL_EPROTO);
    assert_string_equal(s.version, "1");
    hl_kube_stream_fini(&s);
    hl_buf_fini(&text);
}

TEST(what_is_no_event)
{
    static const struct {
        const char *bytes;
        size_t len;
        hl_status st;
    } bad[] = {
        {"\0\0\0\0", 4, HL_EPROTO},                                /* nothing */
        {"\0\0\0\7\x0a\5ADDED", 11, HL_EPROTO},                    /* no object */
        {"\0\0\0\x0f\x0a\5ADDED\x12\6\x0a\4v1s\0", 19, HL_EPROTO}, /* another magic */
        {"\0\0\0\x0f\x0a\5ADDED\x12\6\x0a\4k8s\0", 19, HL_EPROTO}, /* and nothing after it */
        {"\0\0\0\3\x0a\5A", 7, HL_EPROTO},                         /* truncated */
        {"{\"type\":\"ADDED\"}\n", 17, HL_ENOMEM},                 /* a length of gigabytes */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct seen seen;
        struct hl_kube_stream s;
        start(&s, &seen, HL_OK);
        assert_int_equal(hl_kube_stream_feed(&s, bad[i].bytes, bad[i].len), bad[i].st);
        assert_string_equal(seen.text, "");
        hl_kube_stream_fini(&s);
    }
}
