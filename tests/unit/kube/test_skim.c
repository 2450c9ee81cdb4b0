/* Members that are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "kube/skim.h"

static const char *const names[] = {"drop", "env", NULL};

static void expect(const char *text, const char *want)
{
    struct hl_buf out = HL_BUF(1 << 20);
    assert_int_equal(hl_kube_skim(text, strlen(text), names, &out), HL_OK);
    assert_string_equal(out.data, want);
    hl_buf_fini(&out);
}

static void members_go_with_their_comma(void **state)
{
    (void)state;
    expect("{\"drop\":1}", "{}");
    expect("{\"drop\":1,\"a\":2}", "{\"a\":2}");
    expect("{\"a\":2,\"drop\":1}", "{\"a\":2}");
    expect("{\"a\":2,\"drop\":1,\"b\":3}", "{\"a\":2,\"b\":3}");
    expect("{\"drop\":1,\"env\":[],\"drop\":null}", "{}");
    expect("{\"a\":2,\"drop\":1,\"env\":[]}", "{\"a\":2}");
    expect("{\"a\":[{\"env\":true},{\"b\":{\"drop\":{}}}]}", "{\"a\":[{},{\"b\":{}}]}");
}

static void values_of_every_kind(void **state)
{
    (void)state;
    expect("{\"drop\":{\"a\":[1,{\"b\":\"}]\\\"\"}],\"c\":{}},\"x\":1}", "{\"x\":1}");
    expect("{\"drop\":\"a,b}\",\"x\":1}", "{\"x\":1}");
    expect("{\"drop\":-1.5e3 , \"x\":1}", "{ \"x\":1}");
    expect("{ \"drop\" : [ ] }", "{ }");
    expect("{\"a\": 2, \"drop\": 1}", "{\"a\": 2}");
    expect("{\"a\": 2 ,\n \"drop\": 1 ,\n \"env\": {}\n}", "{\"a\": 2 }");
}

/* Only keys count, and only whole ones. */
static void what_stays(void **state)
{
    (void)state;

    static const char *const all[] = {
        "{\"a\":\"drop\"}",
        "[\"drop\",\"env\"]",
        "{\"dropped\":1,\"dro\":2}",
        "{\"a\":\"\\\"drop\"}",
        "{\"a\":\"\\\"drop\\\":\"}",
        "",
        "7",
        "{\"\":1}",
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        expect(all[i], all[i]);
}

/* Cut anywhere it reads nothing beyond, and what was no JSON becomes none; as a parser of the whole
 * would have it. */
static void cut_anywhere(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":{\"drop\":[{\"x\":\"\\\\\"}],\"b\":[1,2]},\"env\":\"y\\\"z\",\"c\":3}";
    for (size_t n = 0; n < sizeof(text); n++) {
        struct hl_buf out = HL_BUF(1 << 20);
        char *exact = malloc(n > 0 ? n : 1); /* a sanitizer sees one byte more */
        memcpy(exact, text, n);
        assert_int_equal(hl_kube_skim(exact, n, names, &out), HL_OK);
        json_t *doc = json_loadb(out.len > 0 ? out.data : "", out.len, 0, NULL);
        assert_int_equal(doc != NULL, n == sizeof(text) - 1);
        json_decref(doc);
        hl_buf_fini(&out);
        free(exact);
    }
    expect(text, "{\"a\":{\"b\":[1,2]},\"c\":3}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_go_with_their_comma),
        cmocka_unit_test(values_of_every_kind),
        cmocka_unit_test(what_stays),
        cmocka_unit_test(cut_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
