/* Addresses of data servers: which are valid, which are not, and that errors say why. */
#include "support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/addr.h"

TEST(numeric_addresses_resolve_without_a_name_service)
{
    struct hl_addr a;
    char text[HL_ADDR_TEXT_MAX];
    assert_int_equal(hl_addr_resolve("127.0.0.1:7402", 1000, &a), HL_OK);
    assert_int_equal(a.sa.ss_family, AF_INET);
    assert_int_equal(((struct sockaddr_in *)&a.sa)->sin_addr.s_addr, htonl(0x7f000001));
    assert_int_equal(hl_addr_port(&a), 7402);
    hl_addr_format(&a, 9, text);
    assert_string_equal(text, "127.0.0.1:9");
    assert_int_equal(hl_addr_resolve("[::1]:65535", 1000, &a), HL_OK);
    assert_int_equal(a.sa.ss_family, AF_INET6);
    assert_int_equal(hl_addr_port(&a), 65535);
    hl_addr_format(&a, 80, text);
    assert_string_equal(text, "[::1]:80");
}

TEST(text_that_is_no_address_is_refused_with_the_reason)
{

    static const struct {
        const char *text;
        const char *reason;
    } cases[] = {
        {"", "no port"},
        {"host", "no port"},
        {"host:", "no port"},
        {":80", "no host"},
        {"host:http", "not a number"},
        {"host:-1", "not a number"},
        {"host:65536", "not a number"},
        {"host:99999999999999999999999", "not a number"},
        {"::1:80", "write an IPv6 address"},
        {"[::1:80", "without"},
        {"[]:80", "no host"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct hl_addr a;
        assert_int_equal(hl_addr_resolve(cases[i].text, 1000, &a), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), cases[i].reason));
    }
    char endless[2000];
    struct hl_addr a;
    memset(endless, 'x', sizeof(endless));
    memcpy(endless + sizeof(endless) - 4, ":80", 4);
    assert_int_equal(hl_addr_resolve(endless, 1000, &a), HL_EINVAL);
}

TEST(names_resolve_to_ipv4_and_unknown_ones_fail_in_time)
{
    struct hl_addr a;
    assert_int_equal(hl_addr_resolve("localhost:5", 5000, &a), HL_OK);
    assert_int_equal(a.sa.ss_family, AF_INET);
    assert_string_equal(a.host, "localhost");
    uint64_t begin = hl_now_ns();
    hl_status st = hl_addr_resolve("no-such-host.invalid:5", 300, &a);
    assert_true(st == HL_EUNAVAIL || st == HL_ETIMEDOUT);
    assert_true(hl_now_ns() - begin < 4 * HL_NS_PER_S); /* a resolver waits for 5 s */
    assert_non_null(strstr(hl_error_text(), "no-such-host.invalid"));
}

TEST(the_device_of_the_loopback_address_is_found)
{
    struct hl_addr a;
    char owner[IF_NAMESIZE], route[IF_NAMESIZE];
    assert_int_equal(hl_addr_resolve("127.0.0.1:1", 1000, &a), HL_OK);
    hl_addr_device((struct sockaddr *)&a.sa, owner);
    hl_addr_route_device(&a, route);
    assert_string_equal(owner, "lo");
    assert_string_equal(route, "lo");
    assert_int_equal(hl_addr_resolve("0.0.0.0:1", 1000, &a), HL_OK);
    hl_addr_device((struct sockaddr *)&a.sa, owner);
    assert_string_equal(owner, "");
}

TEST(probing_a_closed_port_says_refused)
{
    struct hl_addr a;
    assert_int_equal(hl_addr_resolve("127.0.0.1:1", 1000, &a), HL_OK);
    assert_int_equal(hl_addr_probe(&a, 1000), ECONNREFUSED);
}

static void ignore(int signum)
{
    (void)signum;
}

TEST(probing_a_silent_port_is_not_cut_short_by_signals)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int listener = socket(AF_INET, SOCK_STREAM, 0), first = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&sa, len), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&sa, &len), 0);
    assert_int_equal(connect(first, (struct sockaddr *)&sa, len), 0); /* its queue is full now */
    struct sigaction act = {.sa_handler = ignore}, old;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    struct hl_addr a = {.len = len};
    memcpy(&a.sa, &sa, len);
    sigaction(SIGALRM, &act, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    uint64_t began = hl_now_ns();
    int err = hl_addr_probe(&a, 200);
    uint64_t took = hl_now_ns() - began;
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(err, ETIMEDOUT);
    assert_true(took >= 200 * HL_NS_PER_MS);
    close(first);
    close(listener);
}
