/* Watch answers, cut at every position. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kube/stream.h"

struct seen {
    char text[512];
    hl_status answer;
};

static hl_status on_event(void *arg, enum hl_kube_event type, json_t *object)
{
    struct seen *s = arg;
    const json_t *meta = json_object_get(object, "metadata");
    size_t n = strlen(s->text);
    snprintf(s->text + n, sizeof(s->text) - n, "%c%s ", "+~-"[type],
             json_string_value(json_object_get(meta, "name")));
    assert_int_equal(object->refcount, 1); /* the only reference, whatever thread gets it */
    json_decref(object);
    return s->answer;
}

#define EVENT(type, name, rv)                                                                      \
    "{\"type\":\"" type "\",\"object\":{\"metadata\":{\"name\":\"" name                            \
    "\",\"resourceVersion\":\"" rv "\"}}}\n"

static const char all[] =
    EVENT("ADDED", "a", "7") "\n" EVENT("MODIFIED", "b", "8") "\r\n" EVENT("BOOKMARK", "", "9")
        EVENT("NEW", "x", "10") EVENT("DELETED", "a", "11");

TEST(cut_anywhere)
{
    size_t len = strlen(all);
    for (size_t i = 0; i <= len; i++)
        for (size_t step = 1; step <= 3; step += 2) {
            struct seen seen = {.answer = HL_OK};
            struct hl_kube_stream s;
            hl_kube_stream_init(&s, "1", on_event, &seen);
            assert_int_equal(hl_kube_stream_feed(&s, all, i), HL_OK);
            for (size_t at = i; at < len; at += step)
                assert_int_equal(
                    hl_kube_stream_feed(&s, all + at, len - at < step ? len - at : step), HL_OK);
            assert_string_equal(seen.text, "+a ~b -a ");
            assert_string_equal(s.version, "11");
            hl_kube_stream_fini(&s);
        }
}

static hl_status feed(const char *text, struct hl_kube_stream *s, struct seen *seen)
{
    hl_kube_stream_init(s, "1", on_event, seen);
    hl_status st = hl_kube_stream_feed(s, text, strlen(text));
    hl_kube_stream_fini(s);
    return st;
}

TEST(errors_by_code)
{

    static const struct {
        const char *status;
        hl_status st;
    } cases[] = {
        {"{\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}", HL_ESTALE},
        {"{\"code\":504,\"reason\":\"Timeout\",\"details\":{\"retryAfterSeconds\":3}}",
         HL_EUNAVAIL},
        {"{\"code\":403,\"reason\":\"Forbidden\"}", HL_EPERM},
        {"{\"code\":403,\"message\":\"pods x is forbidden: failed quota: q: must specify cpu\"}",
         HL_EPERM},
        {"{\"code\":403,\"message\":\"pods x is forbidden: exceeded quota: q, used: pods=3\"}",
         HL_ENOSPC},
        {"{\"code\":429}", HL_EUNAVAIL},
        {"{\"code\":422}", HL_EINVAL},
        {"{}", HL_EUNAVAIL},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        char text[256];
        struct seen seen = {.answer = HL_OK};
        struct hl_kube_stream s;
        snprintf(text, sizeof(text), "{\"type\":\"ERROR\",\"object\":%s}\n", cases[i].status);
        assert_int_equal(feed(text, &s, &seen), cases[i].st);
        assert_int_equal(s.retry_after_s, i == 1 ? 3 : 0);
        assert_string_equal(s.version, "1");
    }
}

TEST(what_is_no_event)
{
    static const char *const bad[] = {"nonsense\n", "[]\n", "{\"type\":\"ADDED\"}\n",
                                      "{\"type\":\"ADDED\",\"object\":7}\n"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct seen seen = {.answer = HL_OK};
        struct hl_kube_stream s;
        assert_int_equal(feed(bad[i], &s, &seen), HL_EPROTO);
    }
}

/* An event that was not accepted is requested again. */
TEST(the_version_is_that_of_what_was_taken)
{
    struct seen seen = {.answer = HL_ENOMEM};
    struct hl_kube_stream s;
    assert_int_equal(feed(EVENT("ADDED", "a", "7"), &s, &seen), HL_ENOMEM);
    assert_string_equal(s.version, "1");
}

TEST(lines_of_megabytes_and_their_limit)
{
    static const char head[] =
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"big\",\"resourceVersion\":\"2\"},"
        "\"x\":\"";
    struct seen seen = {.answer = HL_OK};
    struct hl_kube_stream s;
    char *megabyte = malloc(1 << 20);
    memset(megabyte, 'y', 1 << 20);
    hl_kube_stream_init(&s, "1", on_event, &seen);
    assert_int_equal(hl_kube_stream_feed(&s, head, strlen(head)), HL_OK);
    assert_int_equal(hl_kube_stream_feed(&s, megabyte, 1 << 20), HL_OK);
    assert_int_equal(hl_kube_stream_feed(&s, megabyte, 1 << 20), HL_OK);
    assert_int_equal(hl_kube_stream_feed(&s, "\"}}\n", 4), HL_OK);
    assert_string_equal(seen.text, "+big ");
    hl_status st = HL_OK;
    for (int i = 0; i < 17 && st == HL_OK; i++)
        st = hl_kube_stream_feed(&s, megabyte, 1 << 20);
    assert_int_not_equal(st, HL_OK);
    hl_kube_stream_fini(&s);
    free(megabyte);
}
