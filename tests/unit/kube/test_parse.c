/* Helios' parser agrees with jansson; and members that are left out. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kube/parse.h"

static const char *const names[] = {"drop", "env", NULL};
static const struct hl_kube_members skipped = {.names = names};

/* Parses memory that ends with the text, so that a sanitizer sees one byte more. NULL: it is not
 * JSON. */
static json_t *parse(const char *text, size_t len, const struct hl_kube_members *members)
{
    json_t *out = NULL;
    char *exact = malloc(len > 0 ? len : 1);
    memcpy(exact, text, len);
    hl_status st = hl_kube_parse(exact, len, members, &out);
    assert_true(st == HL_OK || st == HL_EPROTO);
    assert_int_equal(st == HL_OK, out != NULL);
    free(exact);
    return out;
}

/* True: it is JSON. */
static bool expect_as_jansson(const char *text, size_t len)
{
    json_t *mine = parse(text, len, NULL), *theirs = json_loadb(text, len, 0, NULL);
    if ((mine == NULL) != (theirs == NULL) || (mine != NULL && !json_equal(mine, theirs)))
        fail_msg("%.*s: %s here", (int)len, text, mine == NULL ? "nothing" : "something else");
    bool is_json = mine != NULL;
    json_decref(mine);
    json_decref(theirs);
    return is_json;
}

static void expect_of(const struct hl_kube_members *members, const char *text, const char *want)
{
    json_t *mine = parse(text, strlen(text), members), *theirs = json_loads(want, 0, NULL);
    assert_non_null(theirs);
    if (mine == NULL || !json_equal(mine, theirs))
        fail_msg("%s", text);
    json_decref(mine);
    json_decref(theirs);
}

static void expect(const char *text, const char *want)
{
    expect_of(&skipped, text, want);
}

TEST(members_that_go)
{
    expect("{\"drop\":1}", "{}");
    expect("{\"drop\":1,\"a\":2}", "{\"a\":2}");
    expect("{\"a\":2,\"drop\":1,\"b\":3}", "{\"a\":2,\"b\":3}");
    expect("{\"drop\":1,\"env\":[],\"drop\":null}", "{}");
    expect("{\"a\":[{\"env\":true},{\"b\":{\"drop\":{}}}]}", "{\"a\":[{},{\"b\":{}}]}");
    expect("{\"drop\":{\"a\":[1,{\"b\":\"}]\\\"\"}],\"c\":{}},\"x\":1}", "{\"x\":1}");
    expect("{\"drop\":\"a,b}\",\"x\":1}", "{\"x\":1}");
    expect("{\"drop\":-1.5e3 , \"x\":1}", "{\"x\":1}");
    expect("{ \"a\" : 2 ,\n \"drop\" : 1 ,\n \"env\": {}\n}", "{\"a\":2}");
    expect("{\"dr\\u006fp\":7}", "{}");
}

TEST(members_that_are_all)
{

    static const char *const wanted[] = {"a", "labels*", "spec", NULL};
    static const struct hl_kube_members only = {.names = wanted, .only = true};

    expect_of(&only, "{\"a\":1,\"b\":{\"a\":2},\"spec\":{\"c\":3,\"a\":[{\"a\":4,\"d\":5}]}}",
              "{\"a\":1,\"spec\":{\"a\":[{\"a\":4}]}}");
    expect_of(&only, "{\"labels\":{\"x\":{\"y\":1}},\"z\":2,\"spec\":{\"z\":3}}",
              "{\"labels\":{\"x\":{\"y\":1}},\"spec\":{}}");
    expect_of(&only, "{\"label\":1,\"aa\":3,\"\":4,\"spe\\u0063\":{\"q\":5}}", "{\"spec\":{}}");
    /* What every answer has. */
    expect_of(
        &only,
        "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\","
        "\"details\":{\"retryAfterSeconds\":1}}}",
        "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"reason\":\"Expired\","
        "\"details\":{\"retryAfterSeconds\":1}}}");
    expect_of(&only,
              "{\"metadata\":{\"resourceVersion\":\"7\",\"continue\":\"x\"},\"items\":[{\"b\":1}]}",
              "{\"metadata\":{\"resourceVersion\":\"7\",\"continue\":\"x\"},\"items\":[{}]}");
}

/* Only keys count, and only complete ones. */
TEST(what_stays)
{

    static const char *const all[] = {
        "{\"a\":\"drop\"}", "[\"drop\",\"env\"]", "{\"dropped\":1,\"dro\":2}",
        "{\"\\\"drop\":1}", "{\"\":1}",
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        expect(all[i], all[i]);
}

TEST(values_of_every_kind)
{

    static const char *const good[] = {
        "{}",
        " [ ] ",
        "[0,-0,7,-7,123456789012345678,9223372036854775807,-9223372036854775808]",
        "[0.5,1e3,1E+3,-1.5e-3,1234567890123456789.5,0e0]",
        "[true,false,null,\"\"]",
        "{\"a\":1,\"a\":2}",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u00e9\\ud83d\\ude00\",\"\xc3\xa9\",\"\x7f\"]",
        "{\"\\u0061\xc3\xa9\":{\"b\":[[],{}]}}\r\n",
    };
    static const char *const bad[] = {
        "",
        "7",
        "\"a\"",
        "{}{}",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[01]",
        "[1.]",
        "[.5]",
        "[-]",
        "[1e400]",
        "[9223372036854775808]",
        "[9999999999999999999]",
        "[12a]",
        "[truer]",
        "[nul]",
        "{a:1}",
        "{\"a\"1}",
        "{1:2}",
        "[\"\x01\"]",
        "[\"\\x\"]",
        "[\"\\u0000\"]",
        "[\"\\ud83d\"]",
        "[\"\xff\"]",
        "[\"a\\\"]",
        "[\"a",
        "{\"a\\\":1}",
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        assert_true(expect_as_jansson(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_false(expect_as_jansson(bad[i], strlen(bad[i])));
    expect_as_jansson("[\"a\0b\"]", 7);
    assert_null(parse("[1\0]", 4, NULL)); /* jansson ignores it */
}

TEST(as_deep_as_jansson)
{
    char text[2 * 2050 + 1];
    for (size_t depth = 2047; depth <= 2050; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(expect_as_jansson(text, 2 * depth), depth <= 2048);
        text[depth] = '1'; /* content of the innermost list counts, too */
        memset(text + depth + 1, ']', depth);
        assert_int_equal(expect_as_jansson(text, 2 * depth + 1), depth <= 2047);
    }
}

static const char sample[] =
    "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"j\\u002d1\",\"n\":[1,-20,3.5e2],"
    "\"drop\":[{\"x\":\"\\\\\"}]},\"data\":{\"t\":\"{\\\"a\\\":\\\"b\\\",\\n \\\"c\\\":[]}\"},"
    "\"env\":\"y\\\"z\",\"u\":\"\xc3\xa9\",\"ok\":[true,false,null,{}]}}";

TEST(cut_anywhere)
{
    for (size_t n = 0; n < sizeof(sample); n++) {
        assert_int_equal(expect_as_jansson(sample, n), n == sizeof(sample) - 1);
        json_t *less = parse(sample, n, &skipped);
        assert_int_equal(less != NULL, n == sizeof(sample) - 1);
        json_decref(less);
    }
}

/* Every byte is replaced by each of the significant ones. */
TEST(one_byte_is_another)
{
    static const char bytes[] = "{}[]\",:\\ 0-.eutn/\x01\xc3\x80";
    char text[sizeof(sample)];
    unsigned json = 0;
    for (size_t at = 0; at + 1 < sizeof(sample); at++)
        for (size_t b = 0; b + 1 < sizeof(bytes); b++) {
            memcpy(text, sample, sizeof(sample));
            text[at] = bytes[b];
            json += expect_as_jansson(text, sizeof(sample) - 1) != 0;
            json_decref(parse(text, sizeof(sample) - 1, &skipped));
        }
    assert_true(json > sizeof(sample));
}

/* Many bytes are compared at once. */
TEST(what_is_left_out_ends_anywhere)
{
    static const char *const odd[] = {"",       "\\n",      "\\\\", "\\\"", "\\\\\\\"",
                                      "][}{,:", "\xc3\xa9", "\x1f", "\x7f"};
    static const char *const ends[] = {"\"", "\",{}", "\",{\"a\":[\"]\"]}", "\",[[[]]],7"};
    static const char a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    char text[256];
    for (size_t o = 0; o < HL_ARRAY_LEN(odd); o++)
        for (size_t e = 0; e < HL_ARRAY_LEN(ends); e++)
            for (int before = 0; before < 34; before++)
                for (int after = 0; after < 18; after += 17) {
                    int n = snprintf(text, sizeof(text), "{\"drop\":[\"%.*s%s%.*s%s],\"left\":[]}",
                                     before, a, odd[o], after, a, ends[e]);
                    json_t *left = parse(text, (size_t)n, &skipped);
                    assert_non_null(json_object_get(left, "left"));
                    assert_int_equal(json_object_size(left), 1);
                    json_decref(left);
                    assert_null(parse(text, (size_t)n - 12, &skipped)); /* without its end */
                }
}
