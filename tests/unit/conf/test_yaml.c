#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "conf/yaml.h"

static struct hl_yaml *parse(const char *text)
{
    struct hl_yaml *doc = NULL;
    hl_status st = hl_yaml_parse("a.yaml", text, strlen(text), &doc);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return doc;
}

static void fails(const char *text, const char *with)
{
    struct hl_yaml *doc = NULL;
    assert_int_equal(hl_yaml_parse("a.yaml", text, strlen(text), &doc), HL_EINVAL);
    assert_null(doc);
    if (strstr(hl_error_text(), with) == NULL)
        fail_msg("'%s' should hold '%s'", hl_error_text(), with);
}

TEST(plain_scalars_have_the_types_of_the_core_schema)
{

    static const struct {
        const char *text;
        json_type type;
    } rows[] = {
        {"1", JSON_INTEGER},       {"-7", JSON_INTEGER},
        {"0x1F", JSON_INTEGER},    {"0o17", JSON_INTEGER},
        {"1.5", JSON_REAL},        {"1e3", JSON_REAL},
        {".5", JSON_REAL},         {"-2.", JSON_REAL},
        {"true", JSON_TRUE},       {"False", JSON_FALSE},
        {"~", JSON_NULL},          {"null", JSON_NULL},
        {"", JSON_NULL},           {"175B", JSON_STRING},
        {"on", JSON_STRING},       {"1_000", JSON_STRING},
        {"'1'", JSON_STRING},      {"\"true\"", JSON_STRING},
        {"!!str 12", JSON_STRING}, {"1.2.3", JSON_STRING},
        {".inf", JSON_STRING},     {"1e999", JSON_STRING},
        {"0x", JSON_STRING},       {"-", JSON_ARRAY},
        {"+", JSON_STRING},        {"99999999999999999999", JSON_REAL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_yaml *doc = parse(rows[i].text);
        if (json_typeof(hl_yaml_root(doc)) != rows[i].type)
            fail_msg("'%s' is of type %d", rows[i].text, json_typeof(hl_yaml_root(doc)));
        hl_yaml_free(doc);
    }
    struct hl_yaml *doc = parse("[0x1F, 0o17, -7, 007]");
    json_t *list = hl_yaml_root(doc);
    assert_int_equal(json_integer_value(json_array_get(list, 0)), 31);
    assert_int_equal(json_integer_value(json_array_get(list, 1)), 15);
    assert_int_equal(json_integer_value(json_array_get(list, 2)), -7);
    assert_int_equal(json_integer_value(json_array_get(list, 3)), 7);
    hl_yaml_free(doc);
}

TEST(every_key_and_value_has_its_place)
{
    struct hl_yaml *doc = parse("jobName: x\n"
                                "parallelism:\n"
                                "  tensor: 2   # comment\n"
                                "list:\n"
                                "  - a\n"
                                "  - {b/c: 1}\n");
    struct hl_yaml_pos p = hl_yaml_where(doc, "/parallelism/tensor");
    assert_int_equal(p.line, 3);
    assert_int_equal(p.column, 11);
    p = hl_yaml_where_key(doc, "/parallelism/tensor");
    assert_int_equal(p.line, 3);
    assert_int_equal(p.column, 3);
    p = hl_yaml_where(doc, "/list/1/b~1c");
    assert_int_equal(p.line, 6);
    assert_int_equal(p.column, 11);
    p = hl_yaml_where(doc, "/parallelism/absent/deeper"); /* nearest ancestor */
    assert_int_equal(p.line, 3);
    assert_int_equal(p.column, 3);
    p = hl_yaml_where(doc, "/nothing");
    assert_int_equal(p.line, 1);
    hl_yaml_free(doc);
}

TEST(json_is_yaml_too)
{
    struct hl_yaml *doc = parse("{\"a\": [1, 2.5, null, true, \"x\\u00e9\"]}");
    json_t *want = json_loads("{\"a\": [1, 2.5, null, true, \"x\\u00e9\"]}", 0, NULL);
    assert_true(json_equal(hl_yaml_root(doc), want));
    json_decref(want);
    hl_yaml_free(doc);
}

/* Files as editors of other systems leave them. */
TEST(a_mark_of_utf8_and_other_line_ends)
{
    struct hl_yaml *doc = parse("\xef\xbb\xbf"
                                "a: 1\r\nb: x\r\n");
    assert_int_equal(json_integer_value(json_object_get(hl_yaml_root(doc), "a")), 1);
    assert_string_equal(json_string_value(json_object_get(hl_yaml_root(doc), "b")), "x");
    assert_int_equal(hl_yaml_where(doc, "/b").line, 2);
    hl_yaml_free(doc);
}

TEST(wrong_syntax_is_told_with_its_place)
{
    fails("a: 1\nb: [1, 2\nc: 3\n", "a.yaml:3:");
    fails("a: 1\na: 2\n", "a.yaml:2:1: the key 'a' appears twice, first in line 1");
    fails("x:\n  a: 1\n  b: 2\n  a: 3\n", "a.yaml:4:3: the key 'a' appears twice, first in line 2");
    fails("a: \"x\\0y\"\n", "a.yaml:1:4: a text must not contain");
    fails("? [a, b]\n: 1\n", "a.yaml:1:3: a key must be a text");
    fails("a: *b\n", "the alias *b has no anchor");
    fails("a: 1\n---\nb: 2\n", "a.yaml:2:1: a second document");
    fails("a: !!int 3\n", "the tag tag:yaml.org,2002:int is not supported");
    fails("a: !x {b: 1}\n", "is not supported");
    fails("\ta: 1\n", "a.yaml:1:1");
    fails("a: \xff\xfe\n", "a.yaml");
}

TEST(an_alias_is_a_copy_at_its_own_place)
{
    struct hl_yaml *doc = parse("a: &x {k: 1}\nb: *x\n");
    const json_t *b = json_object_get(hl_yaml_root(doc), "b");
    assert_int_equal(json_integer_value(json_object_get(b, "k")), 1);
    assert_int_equal(hl_yaml_where(doc, "/b/k").line, 2);
    hl_yaml_free(doc);
}

TEST(aliases_that_grow_without_end_are_refused)
{
    char text[4096] = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 12; i++) {
        size_t n = strlen(text);
        n += (size_t)snprintf(text + n, sizeof(text) - n, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s*a%d", k ? ", " : "", i - 1);
        snprintf(text + n, sizeof(text) - n, "]\n");
    }
    fails(text, "aliases count in full");
    fails("a: &a [*a]\n", "no anchor before it"); /* an anchor inside itself */
}

TEST(depth_and_size_have_limits)
{
    char deep[256];
    memset(deep, '[', 200);
    deep[200] = '\0';
    fails(deep, "nested deeper than 32");
    size_t len = HL_YAML_BYTES_MAX + 1;
    char *big = malloc(len + 1);
    memset(big, ' ', len);
    big[len] = '\0';
    fails(big, "at most 1048576 are read");
    memset(big, 'k', 200000); /* one long key above very many values */
    size_t n = 200000;
    n += (size_t)snprintf(big + n, len - n, ": [");
    for (int i = 0; i < 90000; i++)
        n += (size_t)snprintf(big + n, len - n, "1,");
    big[n] = '\0';
    struct hl_yaml *doc = NULL;
    assert_int_equal(hl_yaml_parse("a.yaml", big, n, &doc), HL_EINVAL);
    free(big);
}

TEST(a_missing_file_is_not_found)
{
    struct hl_yaml *doc = NULL;
    assert_int_equal(hl_yaml_load("/nowhere/job.yaml", &doc), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "/nowhere/job.yaml can't be read"));
    assert_int_equal(hl_yaml_load("/", &doc), HL_EIO);
}
