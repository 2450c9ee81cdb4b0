#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "conf/options.h"

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        "helios-test", ##__VA_ARGS__, NULL                                                         \
    }

static int copy_words(const char *const *words, char **argv)
{
    int n = 0;
    for (; words[n] != NULL; n++)
        argv[n] =
            (char *)(uintptr_t)words[n]; /* argv of main() isn't const, and is not written to */
    argv[n] = NULL;
    return n;
}

static void fails(hl_status st, const char *with)
{
    assert_int_equal(st, HL_EINVAL);
    if (strstr(hl_error_text(), with) == NULL)
        fail_msg("'%s' should hold '%s'", hl_error_text(), with);
}

struct args {
    char *output;
    int64_t follow;
    int64_t color;
    int64_t nodes;
    double high;
};

static const struct hl_option arg_rows[] = {
    {"output", "-o,--output", "table", "Form.", HL_OPT_ENUM, 0, 0, "table|json",
     HL_OPTION_FIELD(struct args, output)},
    {"follow", "-f,--follow", "false", "Follow.", HL_OPT_BOOL, 0, 0, NULL,
     HL_OPTION_FIELD(struct args, follow)},
    {"color", "--color", "true", "Colour.", HL_OPT_BOOL, 0, 0, NULL,
     HL_OPTION_FIELD(struct args, color)},
    {"nodes", "--nodes", "1", "Nodes.", HL_OPT_INT, 1, 64, NULL,
     HL_OPTION_FIELD(struct args, nodes)},
    {"high", "--high", "85", "Mark.", HL_OPT_PERCENT, 0, 100, NULL,
     HL_OPTION_FIELD(struct args, high)},
};

static hl_status args(const char *const *words, struct args *a)
{
    char *argv[16];
    int rest;
    int argc = copy_words(words + 1, argv);
    return hl_args_parse(arg_rows, 5, "helios x", argc, argv, a, &rest);
}

TEST(a_subcommand_takes_flags_and_arguments_in_any_order)
{
    struct args a = {0};
    int rest = -1;
    char *argv[16];
    const char *const words[] = {"--nodes", "3",       "job.yaml",   "-o",     "json",
                                 "second",  "-f",      "--no-color", "--high", "70.5%",
                                 "--",      "--third", NULL};
    int argc = copy_words(words, argv);
    assert_int_equal(hl_args_parse(arg_rows, 5, "helios x", argc, argv, &a, &rest), HL_OK);
    assert_int_equal(rest, 3);
    assert_string_equal(argv[0], "job.yaml");
    assert_string_equal(argv[1], "second");
    assert_string_equal(argv[2], "--third");
    assert_null(argv[3]);
    assert_string_equal(a.output, "json");
    assert_int_equal(a.follow, 1);
    assert_int_equal(a.color, 0);
    assert_int_equal(a.nodes, 3);
    assert_true(a.high == 70.5);
    hl_args_fini(arg_rows, 5, &a);
    fails(args(WORDS("--nodes", "65"), &a), "--nodes: '65' is too large: 1 to 64");
    fails(args(WORDS("--nodes", "99999999999999999999"), &a), "99999' is too large: 1 to 64");
    fails(args(WORDS("--nodes", "-99999999999999999999"), &a), "99999' is too small: 1 to 64");
    fails(args(WORDS("--folow"), &a), "did you mean --follow?");
    fails(args(WORDS("--no-color=1"), &a), "takes no value");
    fails(args(WORDS("--follow=maybe"), &a), "neither true nor false");
    assert_null(a.output);
}

TEST(a_text_that_must_not_be_empty_may_be_left_out_but_not_given_empty)
{
    struct texts {
        char *name, *note;
    } t = {0};
    static const struct hl_option rows[] = {
        {"name", "--name", "", "Name.", HL_OPT_STRING, 1, 0, NULL,
         HL_OPTION_FIELD(struct texts, name)},
        {"note", "--note", "", "Note.", HL_OPT_STRING, 0, 0, NULL,
         HL_OPTION_FIELD(struct texts, note)},
    };
    char *argv[16];
    int rest, argc = copy_words(WORDS("--note", "") + 1, argv);
    assert_int_equal(hl_args_parse(rows, 2, "x", argc, argv, &t, &rest), HL_OK);
    assert_string_equal(t.name, "");
    hl_args_fini(rows, 2, &t);
    argc = copy_words(WORDS("--name", "") + 1, argv);
    fails(hl_args_parse(rows, 2, "x", argc, argv, &t, &rest), "--name: ");
    argc = copy_words(WORDS("--name=") + 1, argv);
    fails(hl_args_parse(rows, 2, "x", argc, argv, &t, &rest), "--name: ");
}

TEST(sizes_and_durations_are_read_as_people_write_them)
{

    static const struct {
        const char *text;
        uint64_t value;
    } sizes[] = {
        {"0", 0},
        {"4096", 4096},
        {"1k", 1024},
        {"512MiB", 512u << 20},
        {"2GB", 2000000000u},
        {"1.5GiB", 1610612736u},
        {"256g", 256ull << 30},
        {"3 MiB", 3u << 20},
        {"0.1KB", 100},
    };

    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(hl_parse_bytes(sizes[i].text, &v), HL_OK);
        assert_int_equal(v, sizes[i].value);
    }
    static const char *const bad[] = {"",
                                      "x",
                                      "-1",
                                      "1.",
                                      "1.5.5",
                                      "1XB",
                                      "9e3",
                                      "1GiBs",
                                      " 1",
                                      "99999999999999999999",
                                      "9999999999TiB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(hl_parse_bytes(bad[i], &v), HL_EINVAL);
    assert_int_equal(hl_parse_duration_ms("1.5s", &v), HL_OK);
    assert_int_equal(v, 1500);
    assert_int_equal(hl_parse_duration_ms("2h", &v), HL_OK);
    assert_int_equal(v, 7200000);
    assert_int_equal(hl_parse_duration_ms("250", &v), HL_OK);
    assert_int_equal(v, 250);
    assert_int_equal(hl_parse_duration_ms("5 weeks", &v), HL_EINVAL);
}

TEST(numbers_are_decimal)
{
    static const char *const bad[] = {"0x10", "inf", "nan", "", " 1", "1x", "1e"};
    const struct hl_option rows[] = {
        {"n", "--n", "", "", HL_OPT_INT, 0, 0, NULL, 0, 8, 0},
        {"n", "--n", "", "", HL_OPT_PERCENT, 0, 0, NULL, 0, 8, 0},
        {"n", "--n", "", "", HL_OPT_NUMBER, 0, 0, NULL, 0, 8, 0},
        {"n", "--n", "", "", HL_OPT_BYTES, 0, 0, NULL, 0, 8, 0},
        {"n", "--n", "", "", HL_OPT_DURATION, 0, 0, NULL, 0, 8, 0},
    };
    double value;
    for (size_t row = 0; row < HL_ARRAY_LEN(rows); row++)
        for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
            assert_int_equal(hl_option_set(&rows[row], &value, bad[i]), HL_EINVAL);
    assert_int_equal(hl_option_set(&rows[1], &value, "12.5%"), HL_OK);
    assert_true(value == 12.5);
    assert_int_equal(hl_option_set(&rows[2], &value, "-1.5e-3"), HL_OK);
    assert_true(value == -0.0015);
}

TEST(a_slip_of_the_hand_is_guessed_and_nonsense_is_not)
{
    static const char *const names[] = {"jobName", "model", "tensor_parallel_size", "env"};
    assert_string_equal(hl_did_you_mean("jobname", names, 4), "jobName");
    assert_string_equal(hl_did_you_mean("job_name", names, 4), "jobName");
    assert_string_equal(hl_did_you_mean("modle", names, 4), "model");
    assert_string_equal(hl_did_you_mean("tensorParallelSize", names, 4), "tensor_parallel_size");
    assert_string_equal(hl_did_you_mean("tensor_paralel_sizes", names, 4), "tensor_parallel_size");
    assert_null(hl_did_you_mean("kubernetes", names, 4));
    assert_null(hl_did_you_mean("xyz", names, 4));
    assert_null(hl_did_you_mean("model", names, 0));
}

/* Two directories with a configuration file each, like /etc and ~/.config. */
TEST(only_what_was_typed_counts_as_given)
{
    static const struct hl_option rows[] = {
        {"size", "--size", "1MiB", "", HL_OPT_BYTES, 0, 0, NULL, 0, 0, 0},
        {"count", "--count", "2", "", HL_OPT_INT, 0, 9, NULL, 8, 0, 0},
        {"keep", "--keep", "false", "", HL_OPT_BOOL, 0, 0, NULL, 16, 0, 0},
    };
    uint64_t target[3] = {0};
    char *argv[8];
    int rest = 0, argc = copy_words((const char *const[]){"--size", "1MiB", "--keep", NULL}, argv);
    struct hl_arena arena = {0};
    struct hl_api_key_value_list given = {0};
    assert_int_equal(hl_args_parse_given(rows, 3, "x", argc, argv, target, &rest, &arena, &given),
                     HL_OK);
    assert_int_equal(given.count, 2); /* the default counts as given if it was typed */
    assert_string_equal(hl_api_pair_find(&given, "size", NULL), "1048576");
    assert_string_equal(hl_api_pair_find(&given, "keep", NULL), "true");
    assert_int_equal(target[1], 2);
    hl_arena_fini(&arena);
}

struct narrow {
    int count;
    int wait_ms;
    bool keep;
    bool neighbour;
    uint64_t size;
};

#define AT(field) HL_OPTION_FIELD(struct narrow, field)
static const struct hl_option narrow_rows[] = {
    {"narrow.count", "--count", "-2", "", HL_OPT_INT, 0, 0, NULL, AT(count)},
    {"narrow.wait", "--wait", "5s", "", HL_OPT_DURATION, 0, 0, NULL, AT(wait_ms)},
    {"narrow.keep", "--keep", "true", "", HL_OPT_BOOL, 0, 0, NULL, AT(keep)},
    {"narrow.size", "--size", "1GiB", "", HL_OPT_BYTES, 0, 0, NULL, AT(size)},
};
#undef AT

static void shows(const struct narrow *n, size_t row, const char *want)
{
    char *text = hl_option_show(&narrow_rows[row], n);
    assert_string_equal(text, want);
    free(text);
}

TEST(a_value_lands_in_a_field_of_its_width)
{
    struct narrow n = {.neighbour = true};
    assert_int_equal(hl_options_defaults(narrow_rows, HL_ARRAY_LEN(narrow_rows), &n), HL_OK);
    assert_int_equal(n.count, -2);
    assert_int_equal(n.wait_ms, 5000);
    assert_true(n.keep && n.neighbour);
    assert_int_equal(n.size, 1ull << 30);
    shows(&n, 0, "-2");
    shows(&n, 1, "5000ms");
    shows(&n, 2, "true");
    shows(&n, 3, "1073741824");
}

TEST(a_value_that_its_field_cannot_hold_is_refused)
{
    struct narrow n = {.count = 7, .wait_ms = 8};
    fails(hl_option_set(&narrow_rows[0], &n, "2147483648"), "'2147483648' is too large");
    fails(hl_option_set(&narrow_rows[0], &n, "-2147483649"), "'-2147483649' is too small");
    fails(hl_option_set(&narrow_rows[1], &n, "25d"), "'25d' is too large");
    assert_int_equal(n.count, 7);
    assert_int_equal(n.wait_ms, 8);
    assert_int_equal(hl_option_set(&narrow_rows[0], &n, "2147483647"), HL_OK);
    assert_int_equal(n.count, INT32_MAX);
}

TEST(the_environment_comes_after_the_defaults)
{
    struct narrow n = {0};
    assert_int_equal(hl_options_defaults(narrow_rows, HL_ARRAY_LEN(narrow_rows), &n), HL_OK);
    setenv("HELIOS_NARROW_WAIT", "70ms", 1);
    setenv("HELIOS_NARROW_SIZE", "", 1); /* an empty number counts as not given */
    assert_int_equal(hl_options_environment(narrow_rows, HL_ARRAY_LEN(narrow_rows), &n), HL_OK);
    assert_int_equal(n.wait_ms, 70);
    assert_int_equal(n.size, 1ull << 30);
    setenv("HELIOS_NARROW_KEEP", "perhaps", 1);
    fails(hl_options_environment(narrow_rows, HL_ARRAY_LEN(narrow_rows), &n),
          "HELIOS_NARROW_KEEP: ");
    unsetenv("HELIOS_NARROW_WAIT");
    unsetenv("HELIOS_NARROW_SIZE");
    unsetenv("HELIOS_NARROW_KEEP");
}
