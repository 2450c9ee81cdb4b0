/* As many connections as a server takes, and more. */
#include "support/test.h"

#include <sys/resource.h>

#include "unit/net/net_rig.h"

#define CLIENTS     (HL_NET_PEERS_MAX / HL_NET_ENDPOINTS_MAX)
#define DESCRIPTORS 8192

static hl_status join_with_all_endpoints(const struct hl_net_server *server,
                                         struct hl_net_client **out)
{
    struct hl_net_connect_opts opts = {.address = hl_net_server_address(server),
                                       .timeout_ms = 20000,
                                       .mode = HL_NET_ASK,
                                       .endpoints = HL_NET_ENDPOINTS_MAX,
                                       .ops = back_end};
    return hl_net_connect_with(&opts, out);
}

TEST(a_server_takes_as_many_connections_as_it_promises_and_refuses_more)
{
    static struct hl_net_client *clients[CLIENTS];
    struct hl_net_client *more = NULL;
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < DESCRIPTORS)
        TEST_SKIP("this process may not have %d descriptors", DESCRIPTORS);
    struct hl_net_server *server = serve(NULL, HL_NET_ASK);
    for (size_t i = 0; i < CLIENTS; i++)
        if (join_with_all_endpoints(server, &clients[i]) != HL_OK)
            fail_msg("client %zu: %s", i, hl_error_text());
    assert_int_equal(stats_of(server).peers_now, HL_NET_PEERS_MAX);
    assert_int_equal(join_with_all_endpoints(server, &more), HL_EUNAVAIL);
    check_fetch(clients[CLIENTS - 1], 5, 1000);
    for (size_t i = 0; i < CLIENTS; i++)
        hl_net_close(clients[i]);
    hl_net_server_stop(server);
}

TESTS_IN(over_ucx, NULL)
