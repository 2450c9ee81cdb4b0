/* Addresses as users write them. */
#include "support/test.h"

#include <string.h>

#include "base/host_port.h"

TEST(hosts_and_ports_are_cut_and_joined)
{
    static const struct {
        const char *text, *host;
        unsigned port;
    } rows[] = {{"127.0.0.1:7400", "127.0.0.1", 7400},
                {"a.b-c:0", "a.b-c", 0},
                {"[::1]:65535", "::1", 65535},
                {"[fe80::1%eth0]:1", "fe80::1%eth0", 1}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_host_port x;
        char text[HL_HOST_PORT_MAX];
        assert_int_equal(hl_host_port_split(rows[i].text, &x), HL_OK);
        assert_string_equal(x.host, rows[i].host);
        assert_int_equal(x.port, rows[i].port);
        hl_host_port_format(x.host, x.port, text);
        assert_string_equal(text, rows[i].text);
    }
}

TEST(what_is_wrong_is_said)
{
    static const char *const rows[][2] = {{"", "has no port"},
                                          {"host", "has no port"},
                                          {"host:", "has no port"},
                                          {":1", "has no host"},
                                          {"[]:1", "has no host"},
                                          {"[::1:1", "without \"]:\""},
                                          {"::1:1", "as \"[::1]:port\""},
                                          {"h:65536", "not a number 0..65535"},
                                          {"h:1x", "not a number"},
                                          {"h:-1", "not a number"},
                                          {"h: 1", "not a number"},
                                          {"h:99999999999999999999", "not a number"}};
    char longest[300];
    struct hl_host_port x, untouched;
    memset(&x, 0x5A, sizeof(x));
    untouched = x;
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_host_port_split(rows[i][0], &x), HL_EINVAL);
        if (strstr(hl_error_text(), rows[i][1]) == NULL)
            fail_msg("'%s': '%s' is not in '%s'", rows[i][0], rows[i][1], hl_error_text());
        assert_memory_equal(&x, &untouched, sizeof(x));
    }
    memset(longest, 'h', 256);
    memcpy(longest + 256, ":1", 3); /* one byte too long */
    assert_int_equal(hl_host_port_split(longest, &x), HL_EINVAL);
    assert_int_equal(hl_host_port_split(longest + 1, &x), HL_OK);
}

static void reaches(const char *served, const char *host, const char *want)
{
    char out[HL_HOST_PORT_MAX];
    hl_host_port_reach(served, host, out);
    assert_string_equal(out, want);
}

TEST(a_server_on_all_addresses_is_reached_at_its_host)
{
    reaches("0.0.0.0:7400", "10.0.0.7", "10.0.0.7:7400");
    reaches("[::]:7400", "10.0.0.7", "10.0.0.7:7400");
    reaches("*:7400", "node-1", "node-1:7400");
    reaches("0.0.0.0:7400", "fe80::1", "[fe80::1]:7400");
}

TEST(any_other_server_is_reached_where_it_listens)
{
    reaches("127.0.0.1:7400", "10.0.0.7", "127.0.0.1:7400");
    reaches("[::1]:7400", "10.0.0.7", "[::1]:7400");
    reaches("10.0.0.0:7400", "10.0.0.7", "10.0.0.0:7400");
    reaches("unix:/tmp/a.sock", "10.0.0.7", "unix:/tmp/a.sock");
    reaches("", "10.0.0.7", "");
    reaches("0.0.0.0:port", "10.0.0.7", "0.0.0.0:port"); /* it has no port to reach */
    reaches("*:", "10.0.0.7", "*:");
}
