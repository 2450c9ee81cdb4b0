/* What the command line prints: tables, foreign texts, documents without some of their fields. */
#include "support/test.h"

#include <locale.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli/cli.h"

/* Standard output, redirected to a file until it is read. */
struct captured {
    int stdout_fd;
    FILE *file;
};

static struct captured capture_begin(void)
{
    struct captured c = {dup(STDOUT_FILENO), tmpfile()};
    assert_non_null(c.file);
    fflush(stdout);
    assert_true(dup2(fileno(c.file), STDOUT_FILENO) >= 0);
    return c;
}

static void assert_printed(struct captured *c, const char *wanted)
{
    char text[4096];
    fflush(stdout);
    dup2(c->stdout_fd, STDOUT_FILENO);
    close(c->stdout_fd);
    rewind(c->file);
    text[fread(text, 1, sizeof(text) - 1, c->file)] = '\0';
    fclose(c->file);
    assert_string_equal(text, wanted);
}

static void set_columns(const char *columns)
{
    assert_int_equal(setenv("COLUMNS", columns, 1), 0);
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    cli_output_setup(false);
}

TEST(a_duration_is_cut_to_its_unit)
{
    static const int64_t ms[] = {-1, 0, 999, 59960, 60000, 3599999, 3600000, 86399999, 86400000};
    struct cli_table t;
    set_columns("80");
    cli_table_init(&t, ">T");
    for (size_t i = 0; i < HL_ARRAY_LEN(ms); i++)
        cli_cell_duration(&t, ms[i]);
    struct captured c = capture_begin();
    assert_int_equal(cli_table_print(&t), HL_OK);
    assert_printed(&c, "     T\n     -\n  0.0s\n  0.9s\n 59.9s\n 1m00s\n59m59s\n 1h00m\n23h59m\n"
                       " 1d00h\n");
}

TEST(columns_are_aligned_by_what_a_terminal_shows)
{
    struct cli_table t;
    set_columns("80");
    cli_table_init(&t, "NAME|>SIZE|STATE");
    cli_cell(&t, "\xE8\x8A\x82\xE7\x82\xB9"); /* two characters, each two columns wide */
    cli_cell_bytes(&t, 1536);
    cli_cell(&t, "a\tb");
    cli_cell(&t, "x");
    cli_cell(&t, "1");
    cli_cell(&t, "%s", "");
    struct captured c = capture_begin();
    assert_int_equal(cli_table_print(&t), HL_OK);
    assert_printed(&c, "NAME     SIZE  STATE\n"
                       "\xE8\x8A\x82\xE7\x82\xB9  1.5 KiB  a b\n"
                       "x           1\n");
}

TEST(a_narrow_terminal_loses_optional_columns_then_ends_of_texts)
{
    struct cli_table t;
    set_columns("24");
    cli_table_init(&t, "ID|?NOTE|TEXT");
    cli_cell(&t, "an-id-stays");
    cli_cell(&t, "0123456789");
    cli_cell(&t, "abcdefghijklmnopqrstuvwxyz");
    struct captured c = capture_begin();
    assert_int_equal(cli_table_print(&t), HL_OK);
    assert_printed(&c, "ID           TEXT      \xE2\x80\xA6\n"
                       "an-id-stays  abcdefg\xE2\x80\xA6\n");
}

TEST(texts_of_others_cannot_change_a_terminal)
{
    static const struct {
        const char *text, *shown;
        char keep;
    } rows[] = {
        {"a\x1B[31mb", "a?[31mb", 0}, {"a\xFF\xC3", "a??", 0},    {"a\nb\tc", "a b c", 0},
        {"a\nb\tc", "a\nb c", '\n'},  {"\xE2\x80\xAEx", "?x", 0}, /* turns the direction of what
                                                                     follows */
        {"\xC3\xA9", "\xC3\xA9", 0},
    };

    set_columns("80");
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", rows[i].text);
        cli_make_printable(text, rows[i].keep);
        assert_string_equal(text, rows[i].shown);
    }
}

TEST(a_list_is_an_object_of_items)
{
    struct hl_api_key_value pairs[] = {{"a", "1"}, {"b", NULL}};
    struct captured c = capture_begin();
    assert_int_equal(cli_print_items(&hl_api_key_value_type, pairs, 2), HL_OK);
    assert_int_equal(cli_print_items(&hl_api_key_value_type, NULL, 0), HL_OK);
    assert_printed(
        &c, "{\n  \"items\": [\n    {\n      \"key\": \"a\",\n      \"value\": \"1\"\n    },\n"
            "    {\n      \"key\": \"b\",\n      \"value\": \"\"\n    }\n  ]\n}\n"
            "{\n  \"items\": []\n}\n");
}

TEST(a_type_without_fields_shows_the_others)
{
    static const size_t gone[] = {offsetof(struct hl_api_job_outcome, state)};
    const struct hl_api_job_outcome outcome = {"job-1", HL_API_JOB_STATE_FAILED, "why"};
    struct cli_type shown;
    struct captured c = capture_begin();
    cli_type_without(&hl_api_job_outcome_type, gone, 1, &shown);
    assert_int_equal(cli_print_value(&shown.type, &outcome), HL_OK);
    cli_type_without(&hl_api_job_outcome_type, gone, 0, &shown);
    assert_int_equal(cli_print_value(&shown.type, &outcome), HL_OK);
    assert_printed(&c,
                   "{\n  \"id\": \"job-1\",\n  \"reason\": \"why\"\n}\n"
                   "{\n  \"id\": \"job-1\",\n  \"state\": \"failed\",\n  \"reason\": \"why\"\n}\n");
}

/* In a child whose standard error is a terminal: the line is drawn, removed because a call failed,
 * drawn again and interrupted. */
static void draw_and_be_interrupted(int terminal)
{
    struct cli_progress p;
    if (dup2(terminal, STDERR_FILENO) < 0)
        _exit(1);
    cli_progress_start(&p, "cutting");
    cli_progress_update(&p, 1, 4);
    cli_progress_end(&p);
    cli_progress_update(&p, 2, 4);
    raise(SIGINT);
    _exit(2);
}

TEST(an_interrupted_progress_line_is_ended_also_when_it_was_drawn_again)
{
    int master, slave, status;
    char text[1024];
    assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
    pid_t pid = fork();
    if (pid == 0)
        draw_and_be_interrupted(slave);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    ssize_t n = read(master, text, sizeof(text) - 1);
    assert_true(n > 1);
    text[n] = '\0';
    assert_non_null(strstr(text, "2 B of 4 B"));
    assert_string_equal(text + n - 2, "\r\n");
    close(slave);
    close(master);
}
