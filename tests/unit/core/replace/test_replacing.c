/* Which ends of a rank are answered by another process, how often, and how soon. */
#include "support/test.h"

#include <signal.h>

#include "core/replace/replacing.h"

static const struct hl_replace_rule rule = {.max = 3, .stable_ms = 10000};

TEST(an_exit_is_told_from_a_mistake_a_signal_and_want_of_memory)
{
    assert_int_equal(hl_exit_kind_of(0, 0, false), HL_EXIT_DONE);
    assert_int_equal(hl_exit_kind_of(1, 0, false), HL_EXIT_PROGRAM);
    assert_int_equal(hl_exit_kind_of(2, 0, false), HL_EXIT_USER);
    assert_int_equal(hl_exit_kind_of(63, 0, false), HL_EXIT_PROGRAM);
    assert_int_equal(hl_exit_kind_of(64, 0, false), HL_EXIT_USER);
    assert_int_equal(hl_exit_kind_of(78, 0, false), HL_EXIT_USER);
    assert_int_equal(hl_exit_kind_of(79, 0, false), HL_EXIT_PROGRAM);
    assert_int_equal(hl_exit_kind_of(127, 0, false), HL_EXIT_USER);
    assert_int_equal(hl_exit_kind_of(137, SIGKILL, false), HL_EXIT_SIGNAL);
    assert_int_equal(hl_exit_kind_of(137, SIGKILL, true), HL_EXIT_MEMORY);
    assert_int_equal(hl_exit_kind_of(139, SIGSEGV, true), HL_EXIT_SIGNAL);
}

TEST(a_mistake_and_an_end_without_failure_are_not_replaced)
{
    struct hl_replace_count count = {0};
    int64_t wait = -1;
    assert_false(hl_replace_next(&count, &rule, HL_EXIT_USER, true, 5, &wait));
    assert_false(hl_replace_next(&count, &rule, HL_EXIT_DONE, true, 5, &wait));
    assert_int_equal(count.used, 0);
    assert_int_equal(wait, -1);
}

TEST(replacements_end_with_the_budget_and_begin_again_after_a_stable_time)
{
    struct hl_replace_count count = {0};
    int64_t wait;
    for (int i = 0; i < 3; i++)
        assert_true(hl_replace_next(&count, &rule, HL_EXIT_SIGNAL, true, 100 + i, &wait));
    assert_false(hl_replace_next(&count, &rule, HL_EXIT_SIGNAL, true, 10101, &wait));
    assert_true(hl_replace_next(&count, &rule, HL_EXIT_SIGNAL, true, 10102, &wait));
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
        assert_true(hl_replace_next(&count, &many, HL_EXIT_PROGRAM, false, 0, &wait));
        assert_int_equal(wait, waits[i]);
    }
    assert_true(hl_replace_next(&count, &many, HL_EXIT_PROGRAM, true, 0, &wait));
    assert_int_equal(wait, 0);
}

TEST(without_a_budget_nothing_is_replaced)
{
    const struct hl_replace_rule none = {.max = 0, .stable_ms = 1};
    struct hl_replace_count count = {0};
    int64_t wait;
    assert_false(hl_replace_next(&count, &none, HL_EXIT_SIGNAL, true, 0, &wait));
}
