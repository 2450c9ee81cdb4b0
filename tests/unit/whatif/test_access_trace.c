/* The reader of access traces: what it accepts, and what it refuses with line and column. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/test.h"
#include "whatif/access_trace.h"

#define HEADER HL_ACCESS_HEADER "\n"

/* Fed in pieces of that many bytes. */
static hl_status read_text(const char *text, size_t length, size_t piece, struct hl_access_trace *t)
{
    struct hl_access_reader reader;
    hl_access_reader_init(&reader, t);
    for (size_t at = 0; at < length; at += piece) {
        hl_status st =
            hl_access_reader_feed(&reader, text + at, length - at < piece ? length - at : piece);
        if (st != HL_OK)
            return st;
    }
    return hl_access_reader_end(&reader);
}

TEST(rows_are_read_however_the_file_is_cut)
{
    static const char text[] = HEADER "0,a,w/0,100,read\r\n"
                                      "0.5,b,w/1,7,write\n"
                                      "12.000000001,a,w/0,100,read";
    for (size_t piece = 1; piece < sizeof(text); piece++) {
        struct hl_access_trace t = {0};
        assert_int_equal(read_text(text, sizeof(text) - 1, piece, &t), HL_OK);
        assert_int_equal(t.count, 3);
        assert_int_equal(t.shards.count, 2);
        assert_int_equal(t.nodes.count, 2);
        assert_int_equal(t.rows[1].at_ns, 500000000);
        assert_int_equal(t.rows[2].at_ns, 12000000001);
        assert_true(t.rows[1].is_write && !t.rows[0].is_write);
        assert_int_equal(t.rows[2].shard, 0);
        assert_int_equal(t.sizes[1], 7);
        assert_string_equal(hl_access_shard_name(&t, 1), "w/1");
        assert_string_equal(hl_access_node_name(&t, t.rows[1].node), "b");
        hl_access_trace_fini(&t);
    }
}

TEST(plans_are_no_accesses)
{
    static const char text[] = HEADER "1,a,w,100,plan\n2,b,w,100,unplan\n3,a,w,100,read\n";
    struct hl_access_trace t = {0};
    assert_int_equal(read_text(text, sizeof(text) - 1, 5, &t), HL_OK);
    assert_int_equal(t.count, 1);
    assert_int_equal(t.plan_count, 2);
    assert_true(!t.plans[0].is_off && t.plans[1].is_off);
    assert_int_equal(t.plans[1].at_ns, 2000000000);
    assert_int_equal(t.plans[1].node, 1);
    assert_int_equal(t.plans[0].shard, 0);
    hl_access_trace_fini(&t);
}

TEST(what_is_printed_is_read_again)
{
    static const char text[] =
        HEADER "0.000000000,a,w,100,read\n0.500000000,c,w,100,plan\n0.500000000,a,w,100,unplan\n"
               "1000000000.000000000,b,v,1,write\n";
    struct hl_access_trace t = {0};
    struct hl_buf out = HL_BUF(1000);
    assert_int_equal(read_text(text, sizeof(text) - 1, 1, &t), HL_OK);
    assert_int_equal(hl_buf_printf(&out, HEADER), HL_OK);
    for (uint32_t i = 0; i < t.count; i++)
        assert_int_equal(hl_access_row_print(&t, i, &out), HL_OK);
    assert_string_equal(out.data, text);
    hl_buf_fini(&out);
    hl_access_trace_fini(&t);
}

TEST(bad_lines_are_refused_with_line_and_column)
{
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "line 1, column 1: the first line is not"},
        {"time,node\n", "line 1, column 1: the first line is not"},
        {HEADER, "no accesses after its header"},
        {HEADER "0,a,w,1\n", "line 2, column 8: a row has 5 columns"},
        {HEADER "0,a,w,1,read,\n", "line 2, column 13: a row has 5 columns"},
        {HEADER "\n", "line 2, column 1: a row has 5 columns"},
        {HEADER "nan,a,w,1,read\n", "line 2, column 1: t_seconds is a number"},
        {HEADER "-1,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "+1,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "1e3,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "1.,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER ",a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "1.0000000001,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "1000000001,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "1000000000.5,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "99999999999999999999999,a,w,1,read\n", "line 2, column 1: t_seconds"},
        {HEADER "0,,w,1,read\n", "line 2, column 3: node is a name"},
        {HEADER "0,a b,w,1,read\n", "line 2, column 3: node is a name"},
        {HEADER "0,a,\"w\",1,read\n", "line 2, column 5: shard is a name"},
        {HEADER "0,a,w,0,read\n", "line 2, column 7: size_bytes is a whole number"},
        {HEADER "0,a,w,1.5,read\n", "line 2, column 7: size_bytes"},
        {HEADER "0,a,w,17592186044417,read\n", "line 2, column 7: size_bytes"},
        {HEADER "0,a,w,99999999999999999999999999,read\n", "line 2, column 7: size_bytes"},
        {HEADER "0,a,w,1,get\n", "line 2, column 9: op is read or write, or plan or unplan"},
        {HEADER "5,a,w,1,plan\n4,a,w,1,read\n", "line 3, column 1: the time goes back"},
        {HEADER "5,a,w,1,read\n4,a,w,1,plan\n", "line 3, column 1: the time goes back"},
        {HEADER "5,a,w,1,read\n5,a,w,2,plan\n", "line 3, column 5: shard 'w' has 2 bytes"},
        {HEADER "5,a,w,1,plan\n", "the trace has no access"},
        {HEADER "0,a,w,1,\n", "line 2, column 9: op is read or write"},
        {HEADER "5,a,w,1,read\n4,a,w,1,read\n", "line 3, column 1: the time goes back"},
        {HEADER "5,a,w,1,read\n5,a,w,2,read\n",
         "line 3, column 5: shard 'w' has 2 bytes but had 1 before"},
        {HEADER "5,a,w,1,read\n5,a,w,1,write\n", "written after it was read"},
        {HEADER "5,a,w,1,write\n5,a,w,1,write\n", "written after it was written"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_access_trace t = {0};
        assert_int_equal(read_text(bad[i].text, strlen(bad[i].text), 3, &t), HL_EINVAL);
        if (strstr(hl_error_text(), bad[i].error) == NULL)
            fail_msg("'%s' is refused with '%s', not '%s'", bad[i].text, hl_error_text(),
                     bad[i].error);
        hl_access_trace_fini(&t);
    }
}

TEST(a_nul_and_an_endless_line_are_refused)
{
    static const char nul[] = HEADER "0,a,w\0,1,read\n";
    char endless[HL_ACCESS_LINE_MAX + 2];
    struct hl_access_trace t = {0};
    assert_int_equal(read_text(nul, sizeof(nul) - 1, 100, &t), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "line 2, column 6: a NUL byte"));
    hl_access_trace_fini(&t);
    memset(endless, 'x', sizeof(endless));
    assert_int_equal(read_text(endless, sizeof(endless), 100, &t), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "line 1, column 513: a line has at most 512 bytes"));
    hl_access_trace_fini(&t);
}

TEST(more_nodes_than_the_limit_are_refused)
{
    struct hl_access_trace t = {0};
    char name[16];
    struct hl_trace_access a = {.node = name, .shard = "w", .size_bytes = 1};
    for (int i = 0; i < HL_ACCESS_NODES_MAX; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        assert_int_equal(hl_access_trace_add(&t, &a), HL_OK);
    }
    snprintf(name, sizeof(name), "one-more");
    assert_int_equal(hl_access_trace_add(&t, &a), HL_ENOSPC);
    assert_int_equal(t.count, HL_ACCESS_NODES_MAX);
    assert_string_equal(hl_access_node_name(&t, t.rows[4000].node), "n4000");
    hl_access_trace_fini(&t);
}
