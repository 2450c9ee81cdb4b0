/* Foreign clients at the TCP port: they are refused and disconnected, and others are served.
 *
 * An argument is the number of mutated first messages (100000 by default). */
#include "support/test.h"

#include <sys/resource.h>

#include "base/log.h"
#include "support/fault.h"
#include "unit/net/tcp/tcp_rig.h"

/* At once means well before the 3 s that a HELLO may take; a busy machine needs a while for it. */
#define BEFORE_HELLO_NS (5 * HL_NS_PER_S / 2)

static long mutations = 100000;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * HL_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* A valid HELLO, except for what the test changes in it. */
static void make_hello(uint8_t hello[HL_TCP_HELLO])
{
    memset(hello, 0, HL_TCP_HELLO);
    hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY}, hello);
}

static void sum_up(uint8_t head[HL_TCP_HEAD])
{
    uint32_t crc = hl_crc32(0, head, HL_TCP_HEAD - 4);
    for (int i = 0; i < 4; i++)
        head[HL_TCP_HEAD - 4 + i] = (uint8_t)(crc >> 8 * i);
}

/* Flips, truncates, doubles; every second one gets a right checksum again. Returns the length. */
static size_t mutate(uint32_t *seed, uint8_t *bytes, size_t cap)
{
    make_hello(bytes);
    for (uint32_t flips = next_random(seed) % 4; flips > 0; flips--)
        bytes[next_random(seed) % HL_TCP_HEAD] ^= (uint8_t)(1u << next_random(seed) % 8);
    if (next_random(seed) % 4 == 0)
        bytes[5] = (uint8_t)(next_random(seed) % 16);
    if (next_random(seed) % 4 == 0)
        bytes[56 + next_random(seed) % 4] = (uint8_t)next_random(seed);
    if (next_random(seed) % 2 == 0)
        sum_up(bytes);
    size_t len = HL_TCP_HELLO;
    if (next_random(seed) % 8 == 0)
        len = next_random(seed) % HL_TCP_HELLO;
    else if (next_random(seed) % 8 == 0) {
        len = cap;
        for (size_t i = HL_TCP_HELLO; i < cap; i++)
            bytes[i] = (uint8_t)next_random(seed);
    }
    return len;
}

/* Resets the connection, so that a hundred thousand of them leave none in TIME_WAIT. */
static void hang_up(int fd)
{
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* A server that spins is busy in every interval; one that works off what came is idle soon. */
static void wait_until_idle(void)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    for (;;) {
        uint64_t before = cpu_ns();
        poll(NULL, 0, 300); /* this is the measured interval, not a wait */
        if (cpu_ns() - before < 60 * HL_NS_PER_MS)
            return;
        assert_true(hl_now_ns() < limit);
    }
}

TEST(mutated_first_messages_leave_the_server_alive_and_still)
{
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    uint32_t seed = 0x2545f491;
    uint8_t bytes[600];
    unsigned said = hl_log_count(HL_LOG_WARN);
    for (long i = 0; i < mutations; i++) {
        int fd = plain_connect(hl_net_server_address(server));
        assert_true(fd >= 0);
        (void)plain_send(fd, bytes, mutate(&seed, bytes, sizeof(bytes)));
        hang_up(fd);
        if (i % 1000 == 0)
            check_fetch(client, (uint64_t)i, 4096);
    }
    wait_for_peers(server, 2);
    assert_true(stats_of(server).refused > (uint64_t)mutations / 10);
    assert_int_equal(hl_log_count(HL_LOG_WARN), said);
    wait_until_idle();
    check_fetch(client, 5, 3 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
    fault_shown("tcp-read", "foreign", "refused-served-on");
}

/* Bytes that once ended a daemon that listened by UCX. */
TEST(zeros_and_letters_are_turned_away_at_once)
{
    static uint8_t noise[3000];
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    static const size_t lens[] = {17, 3000};
    for (size_t i = 0; i < 2; i++) {
        memset(noise, i == 0 ? 0 : 'A', sizeof(noise));
        int fd = plain_connect(hl_net_server_address(server));
        uint64_t begin = hl_now_ns();
        (void)plain_send(fd, noise, lens[i]);
        assert_true(is_closed(fd));
        assert_true(hl_now_ns() - begin < BEFORE_HELLO_NS);
        wait_for_refusals(server, i + 1);
        close(fd);
    }
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    check_fetch(client, 5, 2 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

TEST(half_open_connections_keep_nobody_out)
{
    int fds[200];
    uint8_t hello[HL_TCP_HELLO];
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    make_hello(hello);
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++) {
        fds[i] = plain_connect(hl_net_server_address(server));
        assert_true(fds[i] >= 0);
        (void)plain_send(fds[i], hello, i % HL_TCP_HELLO); /* silent, or stops in the middle */
    }
    uint64_t begin = hl_now_ns();
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    assert_true(hl_now_ns() - begin < BEFORE_HELLO_NS);
    check_fetch(client, 5, 2 * MIB);
    assert_true(is_closed(fds[0])); /* the oldest was closed first */
    hl_net_close(client);
    hl_net_server_stop(server);
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        close(fds[i]);
}

TEST(who_says_no_hello_is_let_go_after_connect_ms)
{
    struct hl_net_server *server;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = POOL_LEN,
                                      .connect_ms = 50,
                                      .ops = back_end};
    assert_int_equal(hl_net_server_start(&opts, &server), HL_OK);
    int fd = plain_connect(hl_net_server_address(server));
    assert_true(is_closed(fd));
    assert_int_equal(stats_of(server).peers_now, 0);
    close(fd);
    hl_net_server_stop(server);
}

static int last_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

TEST(a_shortage_of_descriptors_is_warned_of_once_a_second_and_passes)
{
    struct rlimit before, few;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    int fds[8];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* before the shortage */
    struct hl_addr addr;
    assert_int_equal(hl_addr_resolve(hl_net_server_address(server), 1000, &addr), HL_OK);
    few = before;
    few.rlim_cur = (rlim_t)last_fd();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    unsigned said = hl_log_count(HL_LOG_WARN);
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        assert_int_equal(connect(fds[i], (struct sockaddr *)&addr.sa, addr.len), 0);
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (hl_log_count(HL_LOG_WARN) == said)
        assert_true(hl_now_ns() < limit);
    uint64_t from = cpu_ns();
    poll(NULL, 0, 500); /* this is the measured interval, not a wait */
    assert_true(cpu_ns() - from < 100 * HL_NS_PER_MS);
    check_fetch(client, 5, 2 * MIB); /* an admitted client is served */
    assert_true(hl_log_count(HL_LOG_WARN) <= said + 2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    struct hl_net_client *later = join(server, HL_NET_AUTO);
    check_fetch(later, 5, 2 * MIB);
    hl_net_close(later);
    hl_net_close(client);
    hl_net_server_stop(server);
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* ---- the key ---- */

static struct hl_net_server *serve_with_key(const uint8_t key[HL_NET_KEY])
{
    struct hl_net_server *server;
    struct hl_net_server_opts opts = {
        .listen = "127.0.0.1:0", .pool = pool, .pool_len = POOL_LEN, .ops = back_end};
    memcpy(opts.key, key, HL_NET_KEY);
    assert_int_equal(hl_net_server_start(&opts, &server), HL_OK);
    return server;
}

static hl_status join_with_key(const struct hl_net_server *server, const uint8_t key[HL_NET_KEY],
                               struct hl_net_client **out)
{
    struct hl_net_connect_opts opts = {.address = hl_net_server_address(server), .ops = back_end};
    memcpy(opts.key, key, HL_NET_KEY);
    return hl_net_connect_with(&opts, out);
}

TEST(only_who_shows_the_key_is_let_in)
{
    static const uint8_t none[HL_NET_KEY];
    uint8_t key[HL_NET_KEY], wrong[HL_NET_KEY];
    struct hl_net_client *client = NULL;
    memcpy(key, pool, sizeof(key));
    memcpy(wrong, key, sizeof(wrong));
    wrong[31] ^= 1;
    struct hl_net_server *server = serve_with_key(key);
    assert_int_equal(join_with_key(server, none, &client), HL_EPERM);
    assert_int_equal(join_with_key(server, wrong, &client), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "key"));
    assert_null(client);
    assert_int_equal(stats_of(server).refused, 2);
    assert_int_equal(join_with_key(server, key, &client), HL_OK);
    check_fetch(client, 5, 2 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
    server = serve_with_key(none);
    assert_int_equal(join_with_key(server, key, &client),
                     HL_OK); /* the server does not ask for it */
    hl_net_close(client);
    hl_net_server_stop(server);
}

TEST(another_version_is_told_so)
{
    uint8_t hello[HL_TCP_HELLO], payload[HL_TCP_TEXT_MAX];
    struct hl_tcp_msg msg;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    make_hello(hello);
    hello[4] = HL_TCP_VERSION + 1;
    sum_up(hello);
    int fd = plain_connect(hl_net_server_address(server));
    assert_true(plain_send(fd, hello, sizeof(hello)));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, payload, sizeof(payload)));
    assert_int_equal(msg.type, HL_TCP_TYPE_REFUSED);
    assert_int_equal(msg.status, HL_EPROTO);
    assert_true(is_closed(fd));
    close(fd);
    hl_net_server_stop(server);
}

/* ---- after HELLO ---- */

TEST(what_is_no_request_ends_the_connection_that_sent_it)
{
    static const struct hl_tcp_msg wrong[] = {
        {.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY}, /* sent twice */
        {.type = HL_TCP_TYPE_ASK, .op = 1, .len = HL_CHUNK + 1},
        {.type = HL_TCP_TYPE_ASK, .op = 1},
        {.type = HL_TCP_TYPE_READY, .op = 1},                /* only servers say that */
        {.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = 64}, /* not a list */
        {.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = HL_WIRE_LIST_MAX + 1},
    };
    struct vault v = {0};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    for (size_t i = 0; i < HL_ARRAY_LEN(wrong); i++) {
        int fd = greeted_connect(hl_net_server_address(server));
        (void)say(fd, &wrong[i], pool);
        assert_true(is_closed(fd));
        close(fd);
        wait_for_refusals(server, i + 1);
    }
    check_fetch(client, 77, 3 * MIB);
    assert_int_equal(v.begun, 0);
    hl_net_close(client);
    hl_net_server_stop(server);
}

TEST(rdma_is_refused_where_there_is_none)
{
    uint8_t payload[HL_TCP_TEXT_MAX];
    struct hl_tcp_msg msg;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    int fd = greeted_connect(hl_net_server_address(server));
    assert_true(say(fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_MEET, .op = 1}, NULL));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, payload, sizeof(payload)));
    assert_int_equal(msg.type, HL_TCP_TYPE_REFUSED);
    assert_int_equal(msg.status, HL_EUNSUPPORTED);
    close(fd);
    hl_net_server_stop(server);
}

/* A client that asks and does not take the answers occupies one thread, not the others. */
TEST(who_takes_no_answers_holds_up_nobody_else)
{
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    int fd = greeted_connect(hl_net_server_address(server));
    for (uint64_t i = 0; i < 64; i++)
        assert_true(say(
            fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_ASK, .op = i + 1, .len = HL_CHUNK}, NULL));
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    check_fetch(client, 5, 9 * MIB);
    hl_net_close(client);
    uint64_t begin = hl_now_ns();
    hl_net_server_stop(server); /* stopping does not wait for it either */
    assert_true(hl_now_ns() - begin < 4 * HL_NS_PER_S);
    close(fd);
}

TESTS_IN(over_tcp, NULL)

int main(int argc, char **argv)
{
    if (argc > 1)
        mutations = strtol(argv[1], NULL, 10);
    return tests_run(0, NULL);
}
