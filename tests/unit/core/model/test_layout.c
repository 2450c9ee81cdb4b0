#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/layout.h"

#define TWO "a.weight\tBF16\t4,8\nb\tF32\t\n"

TEST(the_text_of_a_layout_is_sorted_by_name)
{
    const struct hl_tensor tensors[] = {
        {.name = "b", .dtype = HL_DTYPE_F32, .rank = 0},
        {.name = "a.weight", .dtype = HL_DTYPE_BF16, .rank = 2, .shape = {4, 8}},
    };
    char *text;
    assert_int_equal(hl_layout_text(tensors, 2, &text), HL_OK);
    assert_string_equal(text, TWO);
    free(text);
    assert_int_equal(hl_layout_text(NULL, 0, &text), HL_OK);
    assert_string_equal(text, "");
    free(text);
}

TEST(a_name_with_a_control_character_is_refused)
{
    const struct hl_tensor bad = {.name = "a\nb", .dtype = HL_DTYPE_F32};
    char *text;
    assert_int_equal(hl_layout_text(&bad, 1, &text), HL_EINVAL);
}

TEST(a_text_that_is_no_layout_is_refused)
{
    static const char *const bad[] = {
        "a",
        "a\tF32\t4",
        "a\tF32\n",
        "a\tF33\t4\n",
        "\tF32\t4\n",
        "a\tF32\t4,\n",
        "a\tF32\t-1\n",
        "a\tF32\t,4\n",
        "b\tF32\t\na\tF32\t\n",
        "a\tF32\t4\n\n",
        "a\tF32\t4 \n",
        "a\1\tF32\t4\n",
        "a\tF32\t\na\tF32\t\n",
        "a\tF32\t1,1,1,1,1,1,1,1,1\n",
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_layout_verify(bad[i]), HL_EINVAL);
    assert_int_equal(hl_layout_verify(TWO), HL_OK);
    assert_int_equal(hl_layout_verify(""), HL_OK);
}

TEST(a_difference_is_refused_by_the_name_of_its_tensor)
{

    static const struct {
        const char *got, *said[3];
    } cases[] = {
        {"a.weight\tBF16\t8,4\nb\tF32\t\n", {"'a.weight'", "[8,4]", "[4,8]"}},
        {"a.weight\tBF16\t4\nb\tF32\t\n", {"'a.weight'", "[4]", "[4,8]"}},
        {"a.weight\tF32\t4,8\nb\tF32\t\n", {"'a.weight'", "F32", "BF16"}},
        {"b\tF32\t\n", {"'a.weight'", "missing", "[4,8]"}},
        {"", {"'a.weight'", "missing", "[4,8]"}},
        {TWO "c\tF32\t3\n", {"'c'", "not in the model", "[3]"}},
        {"a\tF32\t3\n", {"'a'", "not in the model", "[3]"}},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        assert_int_equal(hl_layout_compare(TWO, cases[i].got, HL_API_LAYOUT_CHECK_EXACT),
                         HL_EINVAL);
        for (size_t k = 0; k < 3; k++)
            if (strstr(hl_error_text(), cases[i].said[k]) == NULL)
                fail_msg("'%s' is not in: %s", cases[i].said[k], hl_error_text());
        assert_int_equal(hl_layout_compare(TWO, cases[i].got, HL_API_LAYOUT_CHECK_UNCHECKED),
                         HL_OK);
    }
    assert_int_equal(hl_layout_compare(TWO, TWO, HL_API_LAYOUT_CHECK_EXACT), HL_OK);
}

TEST(another_dtype_may_be_allowed_and_another_shape_not)
{
    assert_int_equal(
        hl_layout_compare(TWO, "a.weight\tF32\t4,8\nb\tBF16\t\n", HL_API_LAYOUT_CHECK_ANY_DTYPE),
        HL_OK);
    assert_int_equal(
        hl_layout_compare(TWO, "a.weight\tF32\t4,7\nb\tBF16\t\n", HL_API_LAYOUT_CHECK_ANY_DTYPE),
        HL_EINVAL);
}

TEST(optimizer_state_ends_with_the_name_of_its_parameter)
{
    assert_int_equal(hl_layout_names_parameters(
                         TWO, "b\tF32\t\nexp_avg.a.weight\tF32\t4,8\nstep.more.b\tF32\t\n"),
                     HL_OK);
    static const char *const bad[] = {"xb\tF32\t\n", "exp_avg.weight\tF32\t4\n",
                                      "a.weight.exp_avg\tF32\t4\n", "exp_avg\tF32\t4\n"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_layout_names_parameters(TWO, bad[i]), HL_EINVAL);
}
