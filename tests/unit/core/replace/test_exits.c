/* Kinds of failure, and how a job reports them. */
#include "support/test.h"

#include <signal.h>
#include <string.h>

#include "core/replace/exits.h"

static enum hl_api_failure_kind kind(int code, int signal, bool oom, bool saving)
{
    return hl_exit_kind_of(&(struct hl_exit){code, signal, oom, saving});
}

TEST(an_exit_is_told_from_a_mistake_a_signal_want_of_memory_and_a_save)
{
    assert_int_equal(kind(0, 0, false, false), HL_API_FAILURE_KIND_UNSAID);
    assert_int_equal(kind(1, 0, false, false), HL_API_FAILURE_KIND_EXIT);
    assert_int_equal(kind(1, 0, false, true), HL_API_FAILURE_KIND_SAVE);
    assert_int_equal(kind(2, 0, false, false), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(kind(2, 0, false, true), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(kind(63, 0, false, false), HL_API_FAILURE_KIND_EXIT);
    assert_int_equal(kind(64, 0, false, false), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(kind(78, 0, false, false), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(kind(79, 0, false, false), HL_API_FAILURE_KIND_EXIT);
    assert_int_equal(kind(127, 0, false, false), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(kind(137, SIGKILL, false, true), HL_API_FAILURE_KIND_SIGNAL);
    assert_int_equal(kind(137, SIGKILL, true, false), HL_API_FAILURE_KIND_MEMORY);
    assert_int_equal(kind(139, SIGSEGV, true, false), HL_API_FAILURE_KIND_SIGNAL);
}

TEST(a_code_comes_before_its_kind_and_both_before_what_holds_else)
{
    struct hl_failure_rules rules = {0};
    assert_int_equal(hl_failure_rules_then(&rules, HL_API_FAILURE_KIND_MISTAKE, 2),
                     HL_FAILURE_FAIL);
    for (int k = HL_API_FAILURE_KIND_EXIT; k < HL_API_FAILURE_KIND_COUNT; k++)
        if (k != HL_API_FAILURE_KIND_MISTAKE)
            assert_int_equal(hl_failure_rules_then(&rules, (enum hl_api_failure_kind)k, 1),
                             HL_FAILURE_COUNT);
    assert_int_equal(hl_failure_rules_set(&rules, "exit", "fail"), HL_OK);
    assert_int_equal(hl_failure_rules_set(&rules, "42", "ignore"), HL_OK);
    assert_int_equal(hl_failure_rules_set(&rules, "mistake", "count"), HL_OK);
    assert_int_equal(hl_failure_rules_then(&rules, HL_API_FAILURE_KIND_EXIT, 42),
                     HL_FAILURE_IGNORE);
    assert_int_equal(hl_failure_rules_then(&rules, HL_API_FAILURE_KIND_EXIT, 41), HL_FAILURE_FAIL);
    assert_int_equal(hl_failure_rules_then(&rules, HL_API_FAILURE_KIND_MISTAKE, 2),
                     HL_FAILURE_COUNT);
    assert_int_equal(hl_failure_rules_then(&rules, HL_API_FAILURE_KIND_SIGNAL, 0),
                     HL_FAILURE_COUNT);
}

TEST(a_rule_that_says_nothing_is_refused_with_what_is_allowed)
{
    struct hl_failure_rules rules = {0};
    static const char *const bad[] = {"0", "256", "042", "1000", "", "-1", "crash", "4x", "1.5"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        assert_int_equal(hl_failure_rules_set(&rules, bad[i], "fail"), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "neither an exit code, 1 to 255, nor one of"));
    }
    assert_int_equal(hl_failure_rules_set(&rules, "lost", "fail"), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "onNodeLost"));
    assert_int_equal(hl_failure_rules_set(&rules, "memory", "retry"), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "not one of fail, count, ignore"));
    assert_int_equal(hl_failure_rules_set(&rules, "memory", ""), HL_EINVAL);
}

TEST(rules_come_back_from_their_text)
{
    struct hl_failure_rules rules = {0}, back = {0};
    char text[HL_FAILURE_RULES_TEXT_MAX];
    hl_failure_rules_print(&rules, text, sizeof(text));
    assert_string_equal(text, "");
    assert_int_equal(hl_failure_rules_set(&rules, "255", "ignore"), HL_OK);
    assert_int_equal(hl_failure_rules_set(&rules, "memory", "fail"), HL_OK);
    hl_failure_rules_print(&rules, text, sizeof(text));
    assert_string_equal(text, "memory=fail 255=ignore");
    assert_int_equal(hl_failure_rules_parse(text, &back), HL_OK);
    assert_memory_equal(&back, &rules, sizeof(rules));
    for (int i = 1; i < 256; i++)
        rules.code[i] = HL_FAILURE_IGNORE;
    hl_failure_rules_print(&rules, text, sizeof(text));
    assert_int_equal(hl_failure_rules_parse(text, &back), HL_OK);
    assert_memory_equal(&back, &rules, sizeof(rules));
    assert_int_equal(hl_failure_rules_parse("memory", &back), HL_EINVAL);
    assert_int_equal(hl_failure_rules_parse("memory=", &back), HL_EINVAL);
    assert_int_equal(hl_failure_rules_parse("memory=fail =count", &back), HL_EINVAL);
}
