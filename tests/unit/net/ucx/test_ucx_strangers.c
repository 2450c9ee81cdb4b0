/* Foreign clients, by UCX and by plain bytes: they are refused and dropped, others are served. */
#include "support/test.h"

#include "base/log.h"
#include "os/process.h"
#include "support/fault.h"
#include "unit/net/net_rig.h"

#define CROWD_AT_ONCE 64

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
    size_t heard;   /* messages of the server */
    size_t dropped; /* endpoints that it has closed or refused */
};

static ucs_status_t on_stranger_heard(void *arg, const void *header, size_t header_len, void *data,
                                      size_t len, const ucp_am_recv_param_t *param)
{
    struct stranger *s = arg;
    (void)header, (void)header_len, (void)data, (void)len, (void)param;
    s->heard++;
    return UCS_OK;
}

static void on_stranger_dropped(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct stranger *s = arg;
    (void)ep;
    (void)status;
    s->dropped++;
}

static ucp_ep_h stranger_connect(struct stranger *s, const struct hl_net_server *server)
{
    struct hl_addr addr;
    ucp_ep_h ep;
    assert_int_equal(hl_addr_resolve(hl_net_server_address(server), 1000, &addr), HL_OK);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)&addr.sa, .addrlen = addr.len},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_stranger_dropped, .arg = s},
    };
    assert_int_equal(ucp_ep_create(s->ucx.worker, &params, &ep), UCS_OK);
    return ep;
}

static void stranger_init(struct stranger *s)
{
    *s = (struct stranger){.heard = 0};
    assert_int_equal(hl_ucx_init(&s->ucx, &(struct hl_ucx_opts){.device = "lo"}), HL_OK);
    assert_int_equal(hl_ucx_listen_to(&s->ucx, on_stranger_heard, s), HL_OK);
}

static void stranger_open(struct stranger *s, const struct hl_net_server *server)
{
    stranger_init(s);
    s->ep = stranger_connect(s, server);
}

static void stranger_hang_up(struct stranger *s, ucp_ep_h ep)
{
    void *request = hl_ucx_ep_close(ep);
    while (!hl_ucx_request_done(request))
        ucp_worker_progress(s->ucx.worker);
}

static void stranger_close(struct stranger *s)
{
    stranger_hang_up(s, s->ep);
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

/* Connects further endpoints, which send HELLO if it `greets`, and waits until the server has kept
 * or dropped each of them. Of those that greet few are on their way at a time, so none of them is
 * the oldest of too many. */
static void crowd_open(struct stranger *s, const struct hl_net_server *server, ucp_ep_h *eps,
                       size_t count, bool greets)
{
    static const struct hl_wire hello = {
        .magic = HL_WIRE_MAGIC, .version = HL_WIRE_VERSION, .type = HL_WIRE_HELLO};
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    uint64_t before = stats_of(server).peers_now;
    for (size_t i = 0; i < count; i++) {
        eps[i] = stranger_connect(s, server);
        if (greets)
            assert_int_equal(hl_ucx_send(eps[i], &(struct hl_ucx_send){.wire = hello}), HL_OK);
        while (greets && s->heard + s->dropped + CROWD_AT_ONCE <= i) {
            ucp_worker_progress(s->ucx.worker);
            assert_true(hl_now_ns() < limit);
        }
    }
    while (s->dropped + stats_of(server).peers_now < before + count ||
           (greets && s->heard + s->dropped < count)) {
        ucp_worker_progress(s->ucx.worker);
        assert_true(hl_now_ns() < limit);
    }
}

static void crowd_close(struct stranger *s, ucp_ep_h *eps, size_t count)
{
    for (size_t i = 0; i < count; i++)
        stranger_hang_up(s, eps[i]);
    hl_ucx_fini(&s->ucx);
}

static struct hl_net_server *serve_patiently(void)
{
    struct hl_net_server *server;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = POOL_LEN,
                                      .connect_ms = 600000,
                                      .ops = back_end};
    hl_process_raise_files();
    assert_int_equal(hl_net_server_start(&opts, &server), HL_OK);
    return server;
}

TEST(peers_that_connect_and_say_nothing_keep_no_member_out)
{
    static ucp_ep_h silent[HL_NET_PEERS_MAX];
    struct hl_net_server *server = serve_patiently();
    struct hl_net_client *member = join(server, HL_NET_AUTO);
    struct stranger s;
    stranger_init(&s);
    crowd_open(&s, server, silent, HL_ARRAY_LEN(silent), false);
    struct hl_net_client *late = join(server, HL_NET_AUTO);
    check_fetch(late, 5, 2 * MIB);
    check_fetch(member, 5, 2 * MIB);
    hl_net_close(late);
    hl_net_close(member);
    crowd_close(&s, silent, HL_ARRAY_LEN(silent));
    hl_net_server_stop(server);
}

TEST(members_beyond_the_limit_are_refused)
{
    static ucp_ep_h members[HL_NET_PEERS_MAX + 1];
    struct hl_net_server *server = serve_patiently();
    struct stranger s;
    stranger_init(&s);
    crowd_open(&s, server, members, HL_ARRAY_LEN(members), true);
    wait_for_refusals(server, 1);
    assert_int_equal(s.heard, HL_NET_PEERS_MAX);
    assert_int_equal(s.dropped, 1);
    crowd_close(&s, members, HL_ARRAY_LEN(members));
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
