/* Short programs: how much of their output is kept. */
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "os/command.h"

static struct hl_command_result run(const char *script, bool join, size_t newest)
{
    struct hl_command_result r = {0};
    char text[512];
    snprintf(text, sizeof(text), "%s", script);
    char *argv[] = {(char *)"sh", (char *)"-c", text, NULL};
    const struct hl_command c = {.program = "/bin/sh",
                                 .argv = argv,
                                 .env = environ,
                                 .timeout_ms = 60000,
                                 .join = join,
                                 .newest = newest};
    assert_int_equal(hl_command_run(&c, &r), HL_OK);
    return r;
}

TEST(outputs_are_apart_unless_they_are_joined)
{
    struct hl_command_result r = run("echo a; echo b >&2; echo c", false, 0);
    assert_string_equal(hl_command_text(&r.out), "a\nc\n");
    assert_string_equal(hl_command_text(&r.err), "b\n");
    hl_command_fini(&r);
    r = run("echo a; echo b >&2; echo c", true, 0);
    assert_string_equal(hl_command_text(&r.out), "a\nb\nc\n");
    assert_string_equal(hl_command_text(&r.err), "");
    hl_command_fini(&r);
}

TEST(the_newest_bytes_are_kept_where_those_are_wanted)
{
    struct hl_command_result r = run("printf 0123; sleep 0.1; printf 45678", true, 6);
    assert_string_equal(hl_command_text(&r.out), "345678");
    hl_command_fini(&r);
    r = run("printf 0123456789abc", true, 4); /* more than that at once */
    assert_string_equal(hl_command_text(&r.out), "9abc");
    hl_command_fini(&r);
    r = run("i=0; while [ $i -lt 400 ]; do printf %0100d $i; i=$((i + 1)); done", false, 7);
    assert_string_equal(hl_command_text(&r.out), "0000399");
    hl_command_fini(&r);
}

TEST(the_result_is_known_also_where_ends_of_children_were_ignored)
{
    signal(SIGCHLD, SIG_IGN); /* as a parent's exec may leave it */
    struct hl_command_result r = {0};
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)"exit 3", NULL};
    const struct hl_command c = {
        .program = "/bin/sh", .argv = argv, .env = environ, .timeout_ms = 5000};
    hl_status st = hl_command_run(&c, &r);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(st, HL_OK);
    assert_int_equal(r.exit_code, 3);
    hl_command_fini(&r);
}

TEST(a_terminal_is_one_to_the_program_and_ends_with_it)
{
    struct hl_command_result r = {0};
    char *argv[] = {(char *)"sh", (char *)"-c",
                    (char *)"test -t 1 && echo yes; test -t 2 || echo no >&2; exit 3", NULL};
    const struct hl_command c = {
        .program = "/bin/sh", .argv = argv, .env = environ, .timeout_ms = 60000, .terminal = true};
    assert_int_equal(hl_command_run(&c, &r), HL_OK);
    assert_string_equal(hl_command_text(&r.out), "yes\r\n");
    assert_string_equal(hl_command_text(&r.err), "no\n");
    assert_int_equal(r.exit_code, 3);
    hl_command_fini(&r);
}
