/* Foreign clients, by UCX and by plain bytes: they are refused and dropped, others are served. */
#include "support/test.h"

#include "base/log.h"
#include "support/fault.h"
#include "unit/net/net_rig.h"

static void wait_for_refusals(struct hl_net_server *server, uint64_t count)
{
    struct hl_net_server_stats stats;
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    do {
        hl_net_server_stats(server, &stats);
        assert_true(hl_now_ns() < limit);
    } while (stats.refused < count);
}

/* A foreign UCX program, connected to the server. */
struct stranger {
    struct hl_ucx ucx;
    ucp_ep_h ep;
};

static void on_stranger_dropped(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static void stranger_open(struct stranger *s, const struct hl_net_server *server)
{
    struct hl_addr addr;
    assert_int_equal(hl_addr_resolve(hl_net_server_address(server), 1000, &addr), HL_OK);
    assert_int_equal(hl_ucx_init(&s->ucx, &(struct hl_ucx_opts){.device = "lo"}), HL_OK);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)&addr.sa, .addrlen = addr.len},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_stranger_dropped},
    };
    assert_int_equal(ucp_ep_create(s->ucx.worker, &params, &s->ep), UCS_OK);
}

static void stranger_close(struct stranger *s)
{
    void *request = hl_ucx_ep_close(s->ep);
    while (!hl_ucx_request_done(request))
        ucp_worker_progress(s->ucx.worker);
    hl_ucx_fini(&s->ucx);
}

static void stranger_says(struct hl_net_server *server, const void *header, size_t header_len,
                          size_t len, unsigned flags)
{
    struct stranger s;
    struct hl_net_server_stats stats;
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    hl_net_server_stats(server, &stats);
    uint64_t before = stats.refused;
    stranger_open(&s, server);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags};
    void *request = ucp_am_send_nbx(s.ep, HL_WIRE_AM_ID, header, header_len, pool, len, &param);
    assert_false(UCS_PTR_IS_ERR(request));
    do {
        ucp_worker_progress(s.ucx.worker);
        hl_net_server_stats(server, &stats);
        assert_true(hl_now_ns() < limit);
    } while (stats.refused == before);
    if (request != NULL)
        ucp_request_free(request);
    stranger_close(&s);
    wait_for_refusals(server, before + 1);
}

TEST(strangers_and_garbled_messages_are_refused_and_others_are_served)
{
    struct vault v = {0};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_wire good = {.magic = HL_WIRE_MAGIC, .version = HL_WIRE_VERSION};
    struct hl_wire w = good;
    uint8_t noise[sizeof(w)];
    memcpy(noise, pool, sizeof(noise));
    stranger_says(server, noise, sizeof(noise), 0, UCP_AM_SEND_FLAG_REPLY);
    stranger_says(server, noise, 9, 64, UCP_AM_SEND_FLAG_REPLY);
    stranger_says(server, noise, sizeof(noise), 2 * MIB,
                  UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV);
    stranger_says(server, NULL, 0, 64, 0);
    w.type = HL_WIRE_ASK; /* before HELLO */
    w.len = 64;
    stranger_says(server, &w, sizeof(w), 0, UCP_AM_SEND_FLAG_REPLY);
    w.type = HL_WIRE_READY;
    stranger_says(server, &w, sizeof(w), 64, UCP_AM_SEND_FLAG_REPLY);
    w = good;
    w.type = HL_WIRE_HELLO;
    w.version = HL_WIRE_VERSION + 1;
    stranger_says(server, &w, sizeof(w), 0, UCP_AM_SEND_FLAG_REPLY);
    w = good;
    w.type = HL_WIRE_WELCOME; /* only servers say that */
    stranger_says(server, &w, sizeof(w), 0, UCP_AM_SEND_FLAG_REPLY);
    check_fetch(client, 77, 3 * MIB);
    assert_int_equal(v.begun, 0);
    hl_net_close(client);
    hl_net_server_stop(server);
    fault_shown("tcp-read", "foreign", "refused-served-on");
}

/* UCX 1.18 sometimes freed memory twice, and each time reported what it had left. */
TEST(strangers_leave_in_a_rendezvous_and_ucx_has_nothing_left_over)
{
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_wire w = {.magic = HL_WIRE_MAGIC, .version = HL_WIRE_VERSION, .type = HL_WIRE_READY};
    unsigned said = hl_log_count(HL_LOG_INFO);
    for (int i = 0; i < 5; i++)
        stranger_says(server, &w, sizeof(w), 2 * MIB,
                      UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV);
    hl_net_server_stop(server);
    assert_int_equal(hl_log_count(HL_LOG_INFO), said);
}

TEST(who_connects_and_says_nothing_is_let_go)
{
    struct hl_net_server *server;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = POOL_LEN,
                                      .connect_ms = 50,
                                      .ops = back_end};
    struct hl_net_server_stats stats;
    struct stranger s;
    uint64_t limit = hl_now_ns() + 20 * HL_NS_PER_S;
    bool seen = false;
    assert_int_equal(hl_net_server_start(&opts, &server), HL_OK);
    stranger_open(&s, server);
    do {
        ucp_worker_progress(s.ucx.worker);
        hl_net_server_stats(server, &stats);
        seen |= stats.peers_now == 1;
        assert_true(hl_now_ns() < limit);
    } while (!seen || stats.peers_now > 0);
    stranger_close(&s);
    hl_net_server_stop(server);
}

TEST(bytes_of_no_protocol_on_the_port_do_not_hurt)
{
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_addr addr;
    assert_int_equal(hl_addr_resolve(hl_net_server_address(server), 1000, &addr), HL_OK);
    for (size_t i = 0; i < 20; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&addr.sa, addr.len), 0);
        (void)!send(fd, pool + i * 5000, i * 200, MSG_NOSIGNAL);
        close(fd);
    }
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    check_fetch(client, 5, 2 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

TESTS_IN(over_ucx, NULL)
