/* Memory that is freed all at once, and text made valid in it. */
#include "support/test.h"

#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"

TEST(pieces_are_zeroed_aligned_and_apart)
{
    struct hl_arena a = {0};
    unsigned char *before = NULL;
    for (size_t size = 0; size < 10000; size += 37) {
        unsigned char *p = hl_arena_alloc(&a, size);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xFF, size);
        if (before != NULL)
            assert_int_equal(before[0], 0xFF);
        before = size > 0 ? p : before;
    }
    hl_arena_fini(&a);
    assert_null(a.newest);
}

TEST(a_failure_is_remembered)
{
    struct hl_arena a = {0}, b = {0};
    assert_non_null(hl_arena_alloc(&a, 1));
    assert_false(hl_arena_failed(&a));
    assert_null(hl_arena_array(&a, SIZE_MAX / 2, 3));
    assert_true(hl_arena_failed(&a));
    assert_non_null(hl_arena_alloc(&a, 1)); /* allocation goes on, and the failure is remembered */
    assert_true(hl_arena_failed(&a));
    hl_arena_move(&b, &a);
    assert_true(hl_arena_failed(&b));
    assert_false(hl_arena_failed(&a));
    hl_arena_fini(&b);
    assert_null(hl_arena_alloc(&b, SIZE_MAX));
    assert_true(hl_arena_failed(&b));
}

TEST(a_move_keeps_what_both_held)
{
    struct hl_arena a = {0}, b = {0};
    char *first = hl_arena_strdup(&a, "first"), *second = hl_arena_printf(&b, "%s %d", "second", 2);
    assert_non_null(hl_arena_alloc(&b, 100000));
    hl_arena_move(&a, &b);
    assert_null(b.newest);
    assert_string_equal(first, "first");
    assert_string_equal(second, "second 2");
    assert_null(hl_arena_strdup(&a, NULL));
    hl_arena_fini(&a);
}

TEST(bad_bytes_become_replacement_characters)
{
    static const struct {
        const char *text, *clean;
    } rows[] = {{"", ""},
                {"plain", "plain"},
                {"\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x99\x82", "\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x99\x82"},
                {"a\xFFz", "a\xEF\xBF\xBDz"},
                {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* longer than needed */
                {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate */
                {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
                {"end\xE4\xB8", "end\xEF\xBF\xBD\xEF\xBF\xBD"}};
    struct hl_arena a = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_string_equal(hl_utf8_clean(&a, rows[i].text, strlen(rows[i].text)), rows[i].clean);
    assert_string_equal(hl_utf8_clean(&a, "a\0b", 3), "a\xEF\xBF\xBD"
                                                      "b");
    hl_arena_fini(&a);
}

TEST(control_characters_are_those_of_ascii_and_of_unicode)
{
    static const struct {
        const char *text;
        size_t left, len;
        bool ascii;
    } rows[] = {{"", 0, 0, false},         {"\0", 1, 1, true},        {"\t", 1, 1, true},
                {"\x1F", 1, 1, true},      {" ", 1, 0, false},        {"~", 1, 0, false},
                {"\x7F", 1, 1, true},      {"\xC2\x80", 2, 2, false}, {"\xC2\x9F", 2, 2, false},
                {"\xC2\xA0", 2, 0, false}, {"\xC2\x80", 1, 0, false}, {"\xC3\x80", 2, 0, false},
                {"\x80", 1, 0, false},     {"a\x1B", 2, 0, true},     {"a\x1B", 1, 0, false}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(hl_utf8_control(rows[i].text, rows[i].left), rows[i].len);
        assert_int_equal(hl_ascii_has_control(rows[i].text, rows[i].left), rows[i].ascii);
    }
}
