/* What a user types: models with versions, lists of sizes, variables for the ranks. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "cli/bench/bench.h"
#include "cli/cli/cli.h"
#include "cli/cli/help.h"
#include "cli/jobs/submitter.h"

static const struct cli_command command = {"test", "FILE [options]", "A test.", NULL};

TEST(a_model_may_have_a_version)
{
    static const struct {
        const char *text, *name;
        int64_t version;
    } rows[] = {
        {"gpt", "gpt", -1},
        {"gpt@3", "gpt", 3},
        {"a@b@12", "a@b", 12},
        {"gpt@9223372036854775807", "gpt", INT64_MAX},
    };
    struct cli cli = {.command = &command};
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char name[16] = "";
        int64_t version = 0;
        assert_int_equal(cli_split_model(&cli, rows[i].text, name, sizeof(name), &version), HL_OK);
        assert_string_equal(name, rows[i].name);
        assert_int_equal(version, rows[i].version);
    }
    assert_false(cli.usage_failed);
}

TEST(what_is_no_model_is_a_usage_error)
{
    static const char *const texts[] = {"",
                                        "@3",
                                        "gpt@",
                                        "gpt@0",
                                        "gpt@-1",
                                        "gpt@+1",
                                        "gpt@ 1",
                                        "gpt@1x",
                                        "\xFF",
                                        "gpt@9223372036854775808",
                                        "0123456789abcdef"};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        struct cli cli = {.command = &command};
        char name[16];
        int64_t version;
        assert_int_equal(cli_split_model(&cli, texts[i], name, sizeof(name), &version), HL_EINVAL);
        assert_true(cli.usage_failed);
    }
}

TEST(sizes_are_separated_by_commas)
{
    struct cli cli = {.command = &command};
    uint64_t sizes[3];
    size_t count;
    assert_int_equal(bench_sizes(&cli, "--size", "4KiB,1,2MiB", 2 << 20, sizes, 3, &count), HL_OK);
    assert_int_equal(count, 3);
    assert_int_equal(sizes[0], 4096);
    assert_int_equal(sizes[1], 1);
    assert_int_equal(sizes[2], 2 << 20);
    static const char *const bad[] = {"", "0", "1,,2", "1,2,3,4", "2097153", "x"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(bench_sizes(&cli, "--size", bad[i], 2 << 20, sizes, 3, &count), HL_EINVAL);
}

TEST(a_variable_has_a_value_of_its_own_or_the_shell_s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list exported, inherited;
    assert_int_equal(setenv("CMD_TEST_HERE", "here", 1), 0);
    assert_int_equal(
        submitter_export("CMD_TEST_HERE,A=1,LIST='a,b',A=2,E=,NONE", &arena, &exported, &inherited),
        HL_OK);
    assert_int_equal(exported.count, 4);
    assert_string_equal(hl_api_pair_find(&exported, "CMD_TEST_HERE", NULL), "here");
    assert_string_equal(hl_api_pair_find(&exported, "A", NULL), "2"); /* the last one */
    assert_string_equal(hl_api_pair_find(&exported, "LIST", NULL), "a,b");
    assert_string_equal(hl_api_pair_find(&exported, "E", NULL), "");
    assert_int_equal(inherited.count, 0);
    assert_int_equal(submitter_export("ALL,A=1", &arena, &exported, &inherited), HL_OK);
    assert_int_equal(exported.count, 1);
    assert_string_equal(hl_api_pair_find(&inherited, "CMD_TEST_HERE", NULL), "here");
}

TEST(a_variable_that_is_none_is_refused)
{
    static const char *const lists[] = {"CMD_TEST_ABSENT", "1A=1", "A='x",    "A='x'y,B=1",
                                        "A=\xFF",          "=1",   "A=1,,B=2"};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    for (size_t i = 0; i < HL_ARRAY_LEN(lists); i++) {
        struct hl_api_key_value_list exported, inherited;
        assert_int_equal(unsetenv("CMD_TEST_ABSENT"), 0);
        assert_int_equal(submitter_export(lists[i], &arena, &exported, &inherited), HL_EINVAL);
    }
}

TEST(arguments_are_read_from_the_usage_line)
{
    const struct cli_command c = {"x", "SOURCE [TARGET] ID... [--flag] LATER", "", NULL};
    struct help_argument a;
    assert_true(help_argument(&c, 0, &a));
    assert_string_equal(a.name, "SOURCE");
    assert_true(a.required && !a.repeated);
    assert_true(help_argument(&c, 1, &a));
    assert_string_equal(a.name, "TARGET");
    assert_true(!a.required && !a.repeated);
    assert_true(help_argument(&c, 2, &a));
    assert_string_equal(a.name, "ID");
    assert_true(a.required && a.repeated);
    assert_false(help_argument(&c, 3, &a)); /* options begin */
}

TEST(an_empty_argument_is_refused_by_its_name)
{
    static const struct cli_command c = {"x", "[NODE] ID... [options]", "", NULL};
    static char node[] = "n", id[] = "ab", none[] = "";
    char *good[] = {node, id, id, NULL}, *first[] = {none, NULL}, *last[] = {node, id, none, NULL};
    struct cli cli = {.command = &c};
    assert_int_equal(cli_no_args(&cli, 3, good, 0, 9), HL_OK);
    assert_false(cli.usage_failed);
    assert_int_equal(cli_no_args(&cli, 1, first, 0, 9), HL_EINVAL);
    assert_true(cli.usage_failed);
    assert_non_null(strstr(hl_error_text(), "NODE is empty"));
    assert_int_equal(cli_no_args(&cli, 3, last, 0, 9), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "ID is empty"));
}
