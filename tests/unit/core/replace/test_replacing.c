/* Which ends of a rank lead to a replacement, how often, and how soon. */
#include "support/test.h"

#include "core/replace/replacing.h"

static const struct hl_replace_rule rule = {.max = 3, .stable_ms = 10000};

TEST(what_is_not_to_be_tried_again_is_not_replaced)
{
    struct hl_replace_count count = {0};
    int64_t wait = -1;
    assert_false(hl_replace_next(&count, &rule, HL_FAILURE_FAIL, true, 5, &wait));
    assert_int_equal(count.used, 0);
    assert_int_equal(wait, -1);
}

TEST(what_is_ignored_uses_nothing_up_and_is_waited_for_all_the_same)
{
    const struct hl_replace_rule one = {.max = 1, .stable_ms = 10000};
    const int64_t waits[] = {0, 1000, 2000};
    struct hl_replace_count count = {0};
    int64_t wait;
    for (size_t i = 0; i < 3; i++) {
        assert_true(hl_replace_next(&count, &one, HL_FAILURE_IGNORE, false, 0, &wait));
        assert_int_equal(wait, waits[i]);
        assert_int_equal(count.used, 0);
    }
    assert_true(hl_replace_next(&count, &one, HL_FAILURE_COUNT, true, 0, &wait));
    assert_false(hl_replace_next(&count, &one, HL_FAILURE_COUNT, true, 0, &wait));
    assert_true(hl_replace_next(&count, &one, HL_FAILURE_IGNORE, true, 0, &wait));
}

TEST(time_without_a_step_is_not_stable)
{
    struct hl_replace_count count = {0};
    int64_t wait;
    for (int i = 0; i < 3; i++)
        assert_true(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, true, 0, &wait));
    assert_false(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, false, 20000, &wait));
    assert_true(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, true, 20000, &wait));
}

TEST(a_job_says_how_long_is_waited)
{
    const struct hl_replace_rule own = {
        .max = 100, .stable_ms = 1000000, .backoff_ms = 300, .backoff_max_ms = 1000};
    const int64_t waits[] = {0, 300, 600, 1000, 1000};
    struct hl_replace_count count = {0};
    int64_t wait;
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        assert_true(hl_replace_next(&count, &own, HL_FAILURE_COUNT, false, 0, &wait));
        assert_int_equal(wait, waits[i]);
    }
}

TEST(replacements_end_with_the_budget_and_begin_again_after_a_stable_time)
{
    struct hl_replace_count count = {0};
    int64_t wait;
    for (int i = 0; i < 3; i++)
        assert_true(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, true, 100 + i, &wait));
    assert_false(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, true, 10101, &wait));
    assert_true(hl_replace_next(&count, &rule, HL_FAILURE_COUNT, true, 10102, &wait));
    assert_int_equal(count.used, 1);
    assert_int_equal(wait, 0);
}

TEST(a_process_that_makes_no_step_is_waited_for_longer_each_time)
{
    const struct hl_replace_rule many = {.max = 100, .stable_ms = 1000000};
    const int64_t waits[] = {0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000};
    struct hl_replace_count count = {0};
    int64_t wait;
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        assert_true(hl_replace_next(&count, &many, HL_FAILURE_COUNT, false, 0, &wait));
        assert_int_equal(wait, waits[i]);
    }
    assert_true(hl_replace_next(&count, &many, HL_FAILURE_COUNT, true, 0, &wait));
    assert_int_equal(wait, 0);
}

TEST(without_a_budget_nothing_is_replaced)
{
    const struct hl_replace_rule none = {.max = 0, .stable_ms = 1};
    struct hl_replace_count count = {0};
    int64_t wait;
    assert_false(hl_replace_next(&count, &none, HL_FAILURE_COUNT, true, 0, &wait));
}
