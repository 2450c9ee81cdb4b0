/* Which ended things are forgotten. */
#include "support/test.h"

#include <stdio.h>

#include <string.h>

#include "core/catalog/retention.h"

/* Item 'a' ended 100 ms ago, 'b' 200 ms ago ...; given youngest first. Returns those that are
 * forgotten, oldest first. `needed`: the letters of those that stay. */
static bool is_needed(void *arg, const void *item)
{
    return strchr(arg, *(const char *)item) != NULL;
}

static const char *gone(size_t count, struct hl_retention rule, int64_t now_ms, const char *needed)
{
    static const char letters[] = "abcdefgh";
    static char text[9];
    struct hl_ended list[8];
    for (size_t i = 0; i < count; i++)
        list[count - 1 - i] =
            (struct hl_ended){.item = (void *)&letters[i], .since_ms = 100 * (int64_t)(i + 1)};
    size_t n = hl_retention_choose(list, count, &rule, now_ms, is_needed, (void *)needed);
    for (size_t i = 0; i < n; i++)
        text[i] = *(const char *)list[i].item;
    text[n] = '\0';
    return text;
}

TEST(by_number_and_by_age)
{
    assert_string_equal(gone(5, (struct hl_retention){.round = 9}, 9999, ""), ""); /* no rule */
    assert_string_equal(gone(5, (struct hl_retention){.keep = 3, .round = 9}, 9999, ""), "ab");
    assert_string_equal(gone(3, (struct hl_retention){.keep = 3, .round = 9}, 9999, ""), "");
    /* at 700, b ended 500 ms ago, which is not more than 500 */
    assert_string_equal(gone(5, (struct hl_retention){.age_ms = 500, .round = 9}, 700, ""), "a");
    assert_string_equal(gone(5, (struct hl_retention){.age_ms = 500, .round = 9}, 701, ""), "ab");
    assert_string_equal(
        gone(5, (struct hl_retention){.keep = 4, .age_ms = 500, .round = 9}, 801, ""), "abc");
    assert_string_equal(
        gone(5, (struct hl_retention){.keep = 2, .age_ms = 500, .round = 9}, 701, ""), "abc");
    assert_string_equal(gone(0, (struct hl_retention){.keep = 1, .round = 9}, 9999, ""), "");
}

TEST(what_is_needed_stays_and_counts)
{
    assert_string_equal(gone(5, (struct hl_retention){.keep = 3, .round = 9}, 9999, "a"), "b");
    assert_string_equal(gone(5, (struct hl_retention){.keep = 3, .round = 9}, 9999, "ab"), "");
    assert_string_equal(gone(5, (struct hl_retention){.age_ms = 1, .round = 9}, 9999, "bd"), "ace");
}

TEST(a_round_takes_so_many)
{
    assert_string_equal(gone(8, (struct hl_retention){.keep = 1, .round = 3}, 9999, ""), "abc");
    assert_string_equal(gone(8, (struct hl_retention){.keep = 1, .round = 3}, 9999, "b"), "acd");
}

TEST(equal_times_are_told_apart)
{
    static const char items[] = "xyz";
    struct hl_ended list[] = {
        {.item = (void *)&items[0], .since_ms = 5, .second_ms = 2},
        {.item = (void *)&items[1], .since_ms = 5, .second_ms = 1, .order = 9},
        {.item = (void *)&items[2], .since_ms = 5, .second_ms = 1, .order = 8}};
    const struct hl_retention rule = {.keep = 1, .round = 9};
    assert_int_equal(hl_retention_choose(list, 3, &rule, 9, is_needed, (void *)""), 2);
    assert_int_equal(*(const char *)list[0].item, 'z');
    assert_int_equal(*(const char *)list[1].item, 'y');
}

TEST(an_ended_job_is_in_use_for_any_of_five_reasons)
{
    const uint64_t minute_ns = UINT64_C(60000000000);

    const struct {
        struct hl_job_uses uses;
        bool in_use;
    } rows[] = {
        {{.unsaved = true}, true},
        {{.holds_slots = true}, true},
        {{.names_version = true}, true},
        {{.has_executor = true}, true},
        {{.was_read = true, .unread_ns = minute_ns - 1}, true},
        {{.was_read = true, .unread_ns = minute_ns}, false},
        {{.was_read = false, .unread_ns = 1}, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(hl_job_in_use(&rows[i].uses), rows[i].in_use);
}

TEST(the_trash_is_looked_through_four_times_while_something_is_kept)
{
    assert_int_equal(hl_trash_look_ms(0), 0); /* kept for ever */
    assert_int_equal(hl_trash_look_ms(1), 50);
    assert_int_equal(hl_trash_look_ms(40000), 10000);
    assert_int_equal(hl_trash_look_ms(UINT64_MAX), 60000);
}
