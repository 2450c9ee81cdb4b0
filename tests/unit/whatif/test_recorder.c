/* A trace made from reports of accesses that come late and in any order. */
#include <stdio.h>
#include <string.h>

#include "support/test.h"
#include "whatif/recorder.h"

static struct hl_recorder recorder(void)
{
    return (struct hl_recorder){.begin_ms = 1000, .end_ms = INT64_MAX};
}

static void tell(struct hl_recorder *r, const char *node, const char *shard, int64_t at_ms,
                 uint32_t span_ms, uint32_t count)
{
    const struct hl_told_access told = {.node = node,
                                        .shard = shard,
                                        .size_bytes = 64,
                                        .at_ms = at_ms,
                                        .span_ms = span_ms,
                                        .count = count};
    assert_int_equal(hl_recorder_add(r, &told), HL_OK);
}

static void tell_write(struct hl_recorder *r, const char *node, const char *shard, int64_t at_ms)
{
    const struct hl_told_access told = {.node = node,
                                        .shard = shard,
                                        .size_bytes = 64,
                                        .at_ms = at_ms,
                                        .count = 1,
                                        .is_write = true};
    assert_int_equal(hl_recorder_add(r, &told), HL_OK);
}

/* Ends it; its rows are this, and a reader takes them. */
static void assert_rows(struct hl_recorder *r, const char *rows)
{
    struct hl_buf text = HL_BUF(65536);
    struct hl_access_trace again = {0};
    struct hl_access_reader reader;
    hl_recorder_finish(r);
    assert_int_equal(hl_buf_printf(&text, "%s\n", HL_ACCESS_HEADER), HL_OK);
    size_t head = text.len;
    for (uint32_t i = 0; i < r->trace.count; i++)
        assert_int_equal(hl_access_row_print(&r->trace, i, &text), HL_OK);
    assert_string_equal(text.data + head, rows);
    hl_access_reader_init(&reader, &again);
    assert_int_equal(hl_access_reader_feed(&reader, text.data, text.len), HL_OK);
    assert_int_equal(hl_access_reader_end(&reader), HL_OK);
    assert_int_equal(again.count, r->trace.count);
    hl_access_trace_fini(&again);
    hl_buf_fini(&text);
    hl_recorder_fini(r);
}

TEST(rows_are_in_the_order_of_time_whenever_they_were_told)
{
    struct hl_recorder r = recorder();
    tell(&r, "b", "s", 1500, 0, 1);
    tell(&r, "a", "u", 1250, 0, 1);
    tell(&r, "a", "s", 1500, 0, 1);
    tell(&r, "a", "s", 1000, 0, 1);
    assert_rows(&r, "0.000000000,a,s,64,read\n"
                    "0.250000000,a,u,64,read\n"
                    "0.500000000,b,s,64,read\n" /* that node was told of first */
                    "0.500000000,a,s,64,read\n");
}

TEST(accesses_that_are_told_together_are_spread_over_their_time)
{
    struct hl_recorder r = recorder();
    tell(&r, "a", "s", 2000, 400, 4);
    tell(&r, "a", "u", 1010, 5000, 2); /* none is before the beginning */
    assert_rows(&r, "0.005000000,a,u,64,read\n"
                    "0.010000000,a,u,64,read\n"
                    "0.700000000,a,s,64,read\n"
                    "0.800000000,a,s,64,read\n"
                    "0.900000000,a,s,64,read\n"
                    "1.000000000,a,s,64,read\n");
}

TEST(a_write_comes_first_and_once)
{
    struct hl_recorder r = recorder();
    tell(&r, "b", "s", 1100, 0, 1); /* by a clock that is off */
    tell_write(&r, "a", "s", 1200);
    tell_write(&r, "a", "s", 1300); /* its commit was repeated */
    tell(&r, "b", "s", 1400, 0, 1);
    tell_write(&r, "a", "u", 1200);
    assert_rows(&r, "0.100000000,a,s,64,write\n"
                    "0.100000000,b,s,64,read\n"
                    "0.200000000,a,u,64,write\n"
                    "0.400000000,b,s,64,read\n");
}

TEST(what_is_outside_of_the_time_or_of_no_known_shard_is_left_out_and_counted)
{
    struct hl_recorder r = recorder();
    tell(&r, "a", "s", 999, 0, 3);
    tell(&r, "a", "s", 1200, 0, 1);
    const struct hl_told_access unknown = {.node = "a", .shard = "x", .at_ms = 1300, .count = 5};
    assert_int_equal(hl_recorder_add(&r, &unknown), HL_OK);
    r.end_ms = 1400;
    tell(&r, "a", "s", 1500, 200, 2); /* at 1400 and at 1500 */
    assert_int_equal(r.before, 3);
    assert_int_equal(r.unknown, 5);
    assert_rows(&r, "0.200000000,a,s,64,read\n"
                    "0.400000000,a,s,64,read\n");
}

TEST(names_have_what_a_column_can_hold)
{
    struct hl_recorder r = recorder();
    tell(&r, "a,\"b c\x7f", "s", 1000, 0, 1);
    tell(&r, "", "s", 1001, 0, 1);
    assert_rows(&r, "0.000000000,a__b_c_,s,64,read\n"
                    "0.001000000,-,s,64,read\n");
}
