/* Peers that fail the handshake of a receiver with a secret are counted, and no others. However
 * many connect, or however much one sends, they keep no member out. */
#include "support/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth/secret.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/plane.h"
#include "net/zmq/migrate.h"

#define SEND_MS   10000
#define DEAD_MS   8000 /* sanitizers on a busy machine need longer than the default second */
#define CHUNK     (256u << 10)
#define GREETING  64
#define STRANGERS 300
#define FEW       8 /* connections */

#define ENDLESS_PART (1u << 20)
#define ENDLESS      ((size_t)1 << 30)

static char secret[] = "/tmp/helios-test-watch-XXXXXX";
static uint8_t object[4096];

static hl_status begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    (void)arg, (void)id;
    assert_int_equal(size, sizeof(object));
    *token = *ptr = object;
    return HL_OK;
}

static hl_status commit(void *arg, void *token, uint32_t crc, const uint32_t *crcs, size_t count,
                        struct hl_id *id)
{
    (void)arg, (void)token, (void)crcs, (void)count;
    *id = (struct hl_id){1, crc};
    return HL_OK;
}

static void drop(void *arg, void *token)
{
    (void)arg, (void)token;
}

static struct hl_migrate_server *serve_few(unsigned connections)
{
    struct hl_migrate_server *server = NULL;
    struct hl_migrate_server_opts o = {.listen = "127.0.0.1:0",
                                       .sink = {begin, commit, drop, NULL},
                                       .window_bytes = 1 << 20,
                                       .max_connections = connections};
    assert_int_equal(hl_migrate_server_start(&o, &server), HL_OK);
    return server;
}

static struct hl_migrate_server *serve(void)
{
    return serve_few(0);
}

static uint64_t refused(const struct hl_migrate_server *server)
{
    struct hl_migrate_server_stats st;
    hl_migrate_server_stats(server, &st);
    return st.refused;
}

static uint64_t faults(const char *cause)
{
    struct hl_buf text = HL_BUF(1 << 20);
    char line[96];
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    assert_int_equal(hl_buf_append(&text, "", 1), HL_OK);
    snprintf(line, sizeof(line), "helios_fault_total{cause=\"%s\",path=\"zmq\"} ", cause);
    const char *at = strstr(text.data, line);
    uint64_t n = at != NULL ? strtoull(at + strlen(line), NULL, 10) : 0;
    hl_buf_fini(&text);
    return n;
}

/* The receiver counts faults first, then what it has refused. */
static void wait_until_refused(const struct hl_migrate_server *server, uint64_t count)
{
    uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
    while (refused(server) < count) {
        assert_true(hl_now_ns() < end);
        usleep(1000);
    }
    assert_int_equal(refused(server), count);
}

static int connect_to(const struct hl_migrate_server *server)
{
    const char *colon = strrchr(hl_migrate_server_address(server), ':');
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Reads until the receiver closes. */
static void await_end(int fd)
{
    uint8_t bytes[256];
    while (recv(fd, bytes, sizeof(bytes), 0) > 0)
        ;
    close(fd);
}

/* Sends ZMTP 3.0's greeting and some bytes; reads until the receiver closes. */
static void stranger(const struct hl_migrate_server *server, const char *mechanism,
                     const uint8_t *more, size_t more_len)
{
    uint8_t bytes[GREETING + 256] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3};
    memcpy(bytes + 12, mechanism, strlen(mechanism));
    memcpy(bytes + GREETING, more, more_len);
    int fd = connect_to(server);
    assert_int_equal(send(fd, bytes, GREETING + more_len, MSG_NOSIGNAL), GREETING + more_len);
    await_end(fd);
}

static void send_object(const struct hl_migrate_server *server)
{
    uint8_t bytes[sizeof(object)];
    memset(bytes, 9, sizeof(bytes));
    struct hl_migrate_send_opts o = {
        .address = hl_migrate_server_address(server), .chunk_size = CHUNK, .dead_ms = DEAD_MS};
    uint32_t crc = hl_crc32(0, bytes, sizeof(bytes));
    assert_int_equal(hl_migrate_send(&o, bytes, sizeof(bytes), crc, SEND_MS, NULL), HL_OK);
    assert_memory_equal(object, bytes, sizeof(bytes));
}

TEST(a_peer_with_another_mechanism_is_counted)
{
    uint64_t before = faults("no-secret");
    struct hl_migrate_server *server = serve();
    stranger(server, "NULL", (const uint8_t *)"", 0);
    wait_until_refused(server, 1);
    assert_int_equal(faults("no-secret"), before + 1);
    hl_migrate_server_stop(server);
}

TEST(a_hello_made_without_the_secret_is_counted)
{
    uint8_t hello[2 + 200] = {4, 200, 5, 'H', 'E', 'L', 'L', 'O', 1, 0};
    uint64_t before = faults("no-secret");
    struct hl_migrate_server *server = serve();
    stranger(server, "CURVE", hello, sizeof(hello));
    wait_until_refused(server, 1);
    assert_int_equal(faults("no-secret"), before + 1);
    hl_migrate_server_stop(server);
}

TEST(many_are_counted_each_and_a_peer_with_the_secret_is_served)
{
    uint64_t before = faults("no-secret");
    struct hl_migrate_server *server = serve();
    for (int i = 0; i < STRANGERS; i++)
        stranger(server, "NULL", (const uint8_t *)"", 0);
    send_object(server);
    wait_until_refused(server, STRANGERS);
    assert_int_equal(faults("no-secret"), before + STRANGERS);
    hl_migrate_server_stop(server);
}

TEST(silent_connections_make_room_for_newer_ones)
{
    int silent[FEW];
    struct hl_migrate_server *server = serve_few(FEW);
    for (int i = 0; i < FEW; i++)
        silent[i] = connect_to(server);
    send_object(server); /* over two connections */
    await_end(silent[0]);
    await_end(silent[1]);
    wait_until_refused(server, 2);
    for (int i = 2; i < FEW; i++)
        close(silent[i]);
    hl_migrate_server_stop(server);
}

/* As a peer of a cluster without a secret. */
static int greet_plainly(const struct hl_migrate_server *server)
{
    static const uint8_t ready[] = "\4\x29\5READY\xbSocket-Type\0\0\0\6DEALER\x8Identity\0\0\0";
    uint8_t bytes[GREETING] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    int fd = connect_to(server);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
    assert_int_equal(send(fd, ready, sizeof(ready), MSG_NOSIGNAL), sizeof(ready));
    return fd;
}

TEST(a_message_without_end_is_cut)
{
    static uint8_t part[9 + ENDLESS_PART] = {3 /* long, more follows */, 0, 0, 0, 0, 0,
                                             ENDLESS_PART >> 16};
    hl_auth_use_none();
    struct hl_migrate_server *server = serve();
    int fd = greet_plainly(server);
    size_t sent = 0;
    ssize_t n = 1;
    while (n > 0 && sent < ENDLESS) {
        n = send(fd, part + sent % sizeof(part), sizeof(part) - sent % sizeof(part), MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
    }
    assert_true(n < 0);
    close(fd);
    wait_until_refused(server, 1);
    send_object(server);
    hl_migrate_server_stop(server);
    assert_int_equal(hl_auth_use_file(secret), HL_OK);
}

TEST(a_receiver_stops_while_strangers_come)
{
    struct hl_migrate_server *server = serve();
    stranger(server, "NULL", (const uint8_t *)"", 0);
    hl_migrate_server_stop(server);
}

static int set_secret(void **state)
{
    (void)state;
    int fd = mkstemp(secret);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "0123456789abcdef\n", 17), 17);
    close(fd);
    return hl_auth_use_file(secret) == HL_OK ? 0 : -1;
}

static int forget_secret(void **state)
{
    (void)state;
    hl_auth_use_none();
    return unlink(secret);
}

TESTS_IN(set_secret, forget_secret)
