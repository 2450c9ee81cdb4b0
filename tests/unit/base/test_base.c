#include "support/test.h"

#include <stdbool.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/backoff.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/cpu.h"
#include "base/crc32.h"
#include "base/id.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/status.h"
#include "base/text.h"
#include "base/utf8.h"

static hl_status refuse(void)
{
    return hl_fail(HL_ENOENT, "shard %d is not here", 7);
}

TEST(a_failure_carries_its_sentence_up)
{
    assert_int_equal(refuse(), HL_ENOENT);
    assert_string_equal(hl_error_text(), "shard 7 is not here");
    assert_non_null(strstr(hl_error_where(), "test_base.c:"));
    assert_int_equal(hl_fail_prefix(HL_EIO, "pull: "), HL_EIO);
    assert_string_equal(hl_error_text(), "pull: shard 7 is not here");
    /* an error text can quote the previous one */
    (void)hl_fail(HL_EIO, "again: %s", hl_error_text());
    assert_string_equal(hl_error_text(), "again: pull: shard 7 is not here");
}

TEST(a_failure_text_is_truncated_between_characters)
{
    char umlauts[2 * HL_ERROR_TEXT_MAX + 1];
    for (size_t i = 0; i < HL_ERROR_TEXT_MAX; i++)
        memcpy(umlauts + 2 * i, "\u00fc", 3);
    for (int before = 0; before < 2; before++) {
        (void)hl_fail(HL_EIO, "%.*s%s", before, "a", umlauts);
        assert_true(hl_utf8_valid(hl_error_text()));
        assert_true(strlen(hl_error_text()) >= HL_ERROR_TEXT_MAX - 4);
        (void)hl_fail(HL_EIO, "%.*s", 2 * (HL_ERROR_TEXT_MAX / 2 - 8), umlauts);
        (void)hl_fail_prefix(HL_EIO, "%.*s1234567890123456: ", before, "a");
        assert_true(hl_utf8_valid(hl_error_text()));
        assert_true(strlen(hl_error_text()) >= HL_ERROR_TEXT_MAX - 4);
    }
    (void)hl_fail(HL_EIO, "%.*s", HL_ERROR_TEXT_MAX - 1, umlauts + 1); /* fits */
    assert_int_equal(strlen(hl_error_text()), HL_ERROR_TEXT_MAX - 1);
}

TEST(status_names_go_both_ways)
{
    for (int st = HL_EINTERNAL; st <= HL_OK; st++)
        assert_int_equal(hl_status_by_name(hl_status_name((hl_status)st)), st);
    assert_int_equal(hl_status_by_name("nonsense"), HL_EINTERNAL);
}

TEST(crc_is_zlibs_for_every_length_and_alignment)
{
    uint8_t data[4200];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 131 + (i >> 3));
    assert_int_equal(hl_crc32(0, "123456789", 9), 0xcbf43926u);    /* the published check value */
    assert_int_equal(hl_crc32(0xcbf43926u, NULL, 0), 0xcbf43926u); /* nothing follows */
    for (size_t len = 0; len < 4100; len += len < 70 ? 1 : 97)
        for (size_t at = 0; at < 9; at++)
            assert_int_equal(hl_crc32(0, data + at, len), (uint32_t)crc32(0, data + at, (uInt)len));
}

TEST(crc_combines_and_copies)
{
    size_t n = 100001;
    uint8_t *a = malloc(n), *b = calloc(n, 1);
    for (size_t i = 0; i < n; i++)
        a[i] = (uint8_t)(i % 251);
    uint32_t whole = hl_crc32(0, a, n);
    assert_int_equal(hl_copy_crc32(0, b, a, n, n), whole);
    assert_memory_equal(a, b, n);
    for (size_t cut = 0; cut <= n; cut += 33333)
        assert_int_equal(
            hl_crc32_combine(hl_crc32(0, a, cut), hl_crc32(0, a + cut, n - cut), n - cut), whole);
    free(a);
    free(b);
}

TEST(a_buffer_keeps_to_its_maximum)
{
    struct hl_buf b = HL_BUF(16);
    assert_int_equal(hl_buf_printf(&b, "%s-%d", "shard", 42), HL_OK);
    assert_string_equal(b.data, "shard-42");
    assert_int_equal(hl_buf_append(&b, "0123456789", 10), HL_ENOMEM);
    assert_string_equal(b.data, "shard-42"); /* unchanged */
    assert_true(b.failed);
    hl_buf_fini(&b);
}

TEST(a_text_is_quoted_as_json_wants_it)
{
    struct hl_buf b = HL_BUF(64), small = HL_BUF(12);
    assert_int_equal(hl_buf_printf(&b, "x"), HL_OK);
    assert_int_equal(hl_buf_quote(&b, "a\"\\/\n\x1f\x7f\xc3\xa9"), HL_OK);
    assert_string_equal(b.data, "x\"a\\\"\\\\/\\u000a\\u001f\x7f\xc3\xa9\"");
    assert_int_equal(b.len, strlen(b.data));
    assert_int_equal(hl_buf_quote(&small, "12345678"), HL_OK);
    hl_buf_clear(&small);
    assert_int_equal(hl_buf_quote(&small, "1234567890"), HL_ENOMEM);
    hl_buf_fini(&b);
    hl_buf_fini(&small);
}

TEST(a_text_is_quoted_as_a_shell_wants_it)
{
    struct hl_buf b = HL_BUF(64), small = HL_BUF(4);
    assert_int_equal(hl_buf_shell_word(&b, "a 'b' $c"), HL_OK);
    assert_string_equal(b.data, "'a '\\''b'\\'' $c'");
    hl_buf_clear(&b);
    assert_int_equal(hl_buf_shell_word(&b, ""), HL_OK);
    assert_string_equal(b.data, "''");
    assert_int_equal(hl_buf_shell_word(&small, "abcd"), HL_ENOMEM);
    hl_buf_fini(&b);
    hl_buf_fini(&small);
}

TEST(waits_double_up_to_the_longest)
{
    static const uint64_t want[] = {200, 400, 800, 1600, 3000, 3000};
    for (unsigned failed = 0; failed < HL_ARRAY_LEN(want); failed++)
        assert_int_equal(hl_backoff_ms(200, 3000, failed), want[failed]);
    assert_int_equal(hl_backoff_ms(200, 3000, UINT32_MAX), 3000);
}

TEST(ids_are_32_hex_digits)
{
    struct hl_id id = {0x0123456789abcdefull, 0xfedcba9876543210ull}, back;
    assert_string_equal(hl_id_format(id).s, "0123456789abcdeffedcba9876543210");
    assert_int_equal(hl_id_parse("0123456789abcdeffedcba9876543210", &back), HL_OK);
    assert_true(hl_id_equal(id, back));
    assert_int_equal(hl_id_parse("0123456789ABCDEFfedcba9876543210", &back), HL_EINVAL);
    assert_int_equal(hl_id_parse("0123", &back), HL_EINVAL);
    assert_false(hl_id_equal(hl_id_random(), hl_id_random()));
}

/* The test vectors of RFC 4648, section 10. */
TEST(base64_goes_both_ways)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < HL_ARRAY_LEN(pairs); i++) {
        struct hl_buf text = HL_BUF(64), back = HL_BUF(64);
        assert_int_equal(hl_base64_encode(pairs[i][0], strlen(pairs[i][0]), &text), HL_OK);
        assert_string_equal(text.data, pairs[i][1]);
        assert_int_equal(hl_base64_decode(text.data, &back), HL_OK);
        assert_string_equal(back.data, pairs[i][0]);
        hl_buf_fini(&text);
        hl_buf_fini(&back);
    }
    struct hl_buf b = HL_BUF(64);
    assert_int_equal(hl_base64_decode("Zg-=", &b), HL_EINVAL);
    assert_int_equal(hl_base64_decode("Z", &b), HL_EINVAL);
    hl_buf_fini(&b);
}

TEST(the_environment_limits_what_loops_use)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    setenv("HELIOS_CPU", "avx512", 1);
    enum hl_cpu all = hl_cpu_limit(0);
    for (int i = 0; i < 3; i++) {
        enum hl_cpu level = (enum hl_cpu)(i + 1), least = level < all ? level : all;
        setenv("HELIOS_CPU", names[i], 1);
        assert_int_equal(hl_cpu_limit(0), least);
        assert_int_equal(hl_cpu(), least);
        setenv("HELIOS_CPU", "plain", 1);
        assert_int_equal(hl_cpu_limit(level), least); /* a test's own setting takes precedence */
    }
    unsigned warnings = hl_log_count(HL_LOG_WARN);
    setenv("HELIOS_CPU", "fast", 1);
    assert_int_equal(hl_cpu_limit(0), all);
    assert_int_equal(hl_log_count(HL_LOG_WARN), warnings + 1);
    unsetenv("HELIOS_CPU");
    assert_int_equal(hl_cpu_limit(0), all);
}

TEST(a_line_of_the_log_is_one)
{
    char text[256] = "";
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    hl_warn("it says: %s", "<html>\n\t<b>no\x1b[2J</b>\r\nerror controller: all is lost \xc2\x9b"
                           "31m \xc2\x85 h\xc3\xa9 \xc2\xa0.");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof(text) - 1);
    close(ends[0]);
    assert_true(n > 0);
    assert_ptr_equal(strchr(text, '\n'), &text[n - 1]);
    assert_null(strpbrk(text, "\t\r\x1b"));
    assert_non_null(strstr(
        text, "<html>  <b>no [2J</b>  error controller: all is lost   31m    h\xc3\xa9 \xc2\xa0."));
}

TEST(one_message_cannot_flood_the_log)
{
    static char text[1 << 16];
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    unsigned before = hl_log_count(HL_LOG_WARN);
    uint64_t began = hl_now_ns();
    for (int i = 0; i < 300; i++)
        hl_warn("accept failed fd=%d", i);
    bool within_a_second = hl_now_ns() - began < HL_NS_PER_S;
    hl_warn("something else");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(ends[0], text + len, sizeof(text) - 1 - len)) > 0;)
        len += (size_t)n;
    close(ends[0]);
    int lines = 0;
    for (const char *at = text; (at = strstr(at, "accept failed")) != NULL; at++)
        lines++;
    if (within_a_second)
        assert_int_equal(lines, 50);
    assert_non_null(strstr(text, "something else"));
    assert_int_equal(hl_log_count(HL_LOG_WARN), before + 301);
}

TEST(of_many_events_one_a_second_gets_a_line_that_counts_the_others)
{
    struct hl_log_limit limit = {0};
    uint64_t others = 99;
    assert_true(hl_log_limit_passes(&limit, 5, &others));
    assert_int_equal(others, 0);
    for (uint64_t now = 5; now < 5 + HL_NS_PER_S; now += HL_NS_PER_S / 10)
        assert_false(hl_log_limit_passes(&limit, now, &others));
    assert_true(hl_log_limit_passes(&limit, 5 + HL_NS_PER_S, &others));
    assert_int_equal(others, 10);
    assert_true(hl_log_limit_passes(&limit, 9 * HL_NS_PER_S, &others));
    assert_int_equal(others, 0);
}

TEST(a_text_is_wrapped_between_words_with_a_hanging_indent)
{
    struct hl_buf out = HL_BUF(1024);
    hl_text_wrap(&out, "one two three four", 4, 13);
    assert_string_equal(out.data, "one two\n    three\n    four");
    hl_buf_clear(&out);
    hl_text_wrap(&out, "aaaa bbbbbbbbbbbb", 2, 8); /* a word is never cut */
    assert_string_equal(out.data, "aaaa\n  bbbbbbbbbbbb");
    hl_buf_clear(&out);
    hl_text_wrap(&out, "exactly ten", 0, 11);
    assert_string_equal(out.data, "exactly ten");
    hl_buf_fini(&out);
}

TEST(durations_are_written_for_people)
{

    static const struct {
        uint64_t ms;
        const char *text;
    } rows[] = {
        {0, "0 ms"},       {999, "999 ms"},       {5500, "5.5 s"},    {119999, "120 s"},
        {120000, "2 min"}, {121999, "2 min 1 s"}, {7200000, "2.0 h"}, {36ull * 3600000, "36.0 h"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[32];
        assert_string_equal(hl_format_duration_ms(rows[i].ms, text, sizeof(text)), rows[i].text);
    }
}

TEST(a_number_is_digits_and_nothing_else)
{
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "+1",
                                      "-1",
                                      "0x1",
                                      "1.0",
                                      "12a",
                                      "101",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
    uint64_t n = 7;
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_parse_number(bad[i], 100, &n), 0);
    assert_int_equal(n, 7);
    assert_true(hl_parse_number("0", 100, &n) && n == 0);
    assert_true(hl_parse_number("00100", 100, &n) && n == 100);
    assert_true(hl_parse_number("18446744073709551615", UINT64_MAX, &n) && n == UINT64_MAX);
    assert_false(hl_parse_number("18446744073709551616", UINT64_MAX, &n));
    assert_string_equal(hl_scan_number("12-ab", 12, &n), "-ab");
    assert_int_equal(n, 12);
    assert_null(hl_scan_number("123", 12, &n));
    assert_null(hl_scan_number("-", 12, &n));
    assert_int_equal(n, 12);
}

TEST(a_hexadecimal_number_has_no_prefix_and_few_enough_digits)
{
    static const char *const bad[] = {"", "0x1234", " 1", "+1", "-1", "12g", "123456789"};
    uint64_t n = 7;
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_parse_hex(bad[i], 8, &n), 0);
    assert_int_equal(n, 7);
    assert_true(hl_parse_hex("DEADbeef", 8, &n) && n == 0xdeadbeef);
    assert_true(hl_parse_hex("ffffffffffffffff", 16, &n) && n == UINT64_MAX);
    assert_false(hl_parse_hex("0ffffffffffffffff", 40, &n));
}
