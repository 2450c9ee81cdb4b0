/* Bytes that are not, or almost, Cap'n Proto: the server drops such a connection and serves the
 * others. */
#include "support/test.h"

#include "unit/rpc/rig.h"

#include "auth/secret.h"
#include "base/log.h"
#include "os/file.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CAPTURE_MAX 65536

static struct sockaddr_in name_of(const char *address)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    return name;
}

/* Sends the bytes, ends the sending side, and waits until the server is done. */
static void send_bytes(const char *address, const unsigned char *bytes, size_t len, int half_close)
{
    struct sockaddr_in name = name_of(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
    if (half_close && sent >= 0) {
        shutdown(fd, SHUT_WR);
        char buf[4096];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        while (poll(&p, 1, RIG_PATIENCE_MS) == 1 && recv(fd, buf, sizeof(buf), 0) > 0)
            continue;
    }
    close(fd);
}

static void assert_alive(struct rig *r)
{
    assert_int_equal(rig_call(r, "poolInfo", NULL, NULL), HL_OK);
}

static uint32_t next_random(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    return *x ^= *x << 5;
}

TEST(noise_is_survived)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    send_bytes(r.address, (const unsigned char *)http, sizeof(http) - 1, 1);
    /* 2^32 segments; one segment of 2^32-1 words; 512 segments of 2^31 words. */
    unsigned char huge[4096];
    memset(huge, 0xFF, sizeof(huge));
    send_bytes(r.address, huge, sizeof(huge), 1);
    memset(huge, 0, 4);
    send_bytes(r.address, huge, sizeof(huge), 1);
    uint32_t x = 2463534242u;
    for (int i = 0; i < 50; i++) {
        unsigned char noise[512];
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (unsigned char)next_random(&x);
        memset(noise, 0, (size_t)(i % 9)); /* now and then a plausible first word */
        send_bytes(r.address, noise, sizeof(noise), i % 2);
        assert_alive(&r);
    }
    rig_stop(&r);
}

static int listen_here(char *address, size_t size)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof(name);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, len), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &len), 0);
    snprintf(address, size, "127.0.0.1:%u", ntohs(name.sin_port));
    return fd;
}

/* Length of the first two messages of a stream, 0 if there are fewer: both a call and its answer
 * begin with the exchange of the bootstrap capability. */
static size_t two_messages(const unsigned char *bytes, size_t len)
{
    size_t at = 0;
    for (int message = 0; message < 2; message++) {
        uint32_t head, words;
        if (at + 4 > len)
            return 0;
        memcpy(&head, bytes + at, 4);
        size_t segments = (size_t)head + 1, table = (4 + 4 * segments + 7) / 8 * 8;
        if (at + table > len)
            return 0;
        size_t end = at + table;
        for (size_t i = 0; i < segments; i++) {
            memcpy(&words, bytes + at + 4 + 4 * i, 4);
            end += (size_t)words * 8;
        }
        at = end;
    }
    return at <= len ? at : 0;
}

static size_t receive_two(int fd, unsigned char *out)
{
    size_t got = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (two_messages(out, got) == 0 && poll(&p, 1, RIG_PATIENCE_MS) == 1) {
        ssize_t n = recv(fd, out + got, CAPTURE_MAX - got, 0);
        if (n <= 0)
            return 0;
        got += (size_t)n;
    }
    return two_messages(out, got);
}

/* What a good client sends when it connects and calls. */
static size_t capture(struct rig *r, const char *method, const char *params, unsigned char *out)
{
    char address[64];
    int fd = listen_here(address, sizeof(address));
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_open(r->rpc, address, "L3", &peer), HL_OK);
    json_t *p = json_loads(params, 0, NULL);
    assert_int_equal(rpc_json_call(peer, method, p, 200, NULL), HL_ETIMEDOUT);
    json_decref(p);
    hl_rpc_peer_close(peer);
    int conn = accept(fd, NULL, NULL);
    assert_true(conn >= 0);
    size_t got = receive_two(conn, out);
    close(conn);
    close(fd);
    assert_true(got > 0);
    return got;
}

static size_t damage(const unsigned char *good, size_t len, int round, uint32_t *x,
                     unsigned char *bad)
{
    memcpy(bad, good, len);
    size_t cut = round % 3 == 0 ? next_random(x) % len : len;
    for (unsigned k = 0; k <= next_random(x) % 4; k++)
        bad[next_random(x) % len] = (unsigned char)next_random(x);
    return cut;
}

static const char request[] =
    "{\"request\": {\"importId\": \"i\", \"dir\": \"/models/a\", \"tp\": 2}}";

TEST(damaged_conversations_are_survived)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    static unsigned char good[CAPTURE_MAX], bad[CAPTURE_MAX];
    size_t len = capture(&r, "importModel", request, good);
    uint32_t x = 88172645u;
    for (int i = 0; i < 400; i++)
        send_bytes(r.address, bad, damage(good, len, i, &x, bad), 1);
    assert_alive(&r);
    int before = rig_calls(&r);
    send_bytes(r.address, good, len, 1);
    assert_alive(&r);
    assert_in_range(rig_calls(&r), before + 1, before + 2); /* the end may overtake the good call */
    rig_stop(&r);
}

/* What a good server answers to the captured call. */
static size_t capture_answer(struct rig *r, const unsigned char *call, size_t call_len,
                             unsigned char *out)
{
    struct sockaddr_in name = name_of(r->address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(send(fd, call, call_len, MSG_NOSIGNAL), (ssize_t)call_len);
    size_t got = receive_two(fd, out);
    close(fd);
    assert_true(got > 0);
    return got;
}

struct liar {
    int fd;
    const unsigned char *good;
    size_t len;
    int rounds;
};

/* Answers every connection with a damaged copy of the good answer. */
static void *lie(void *arg)
{
    struct liar *liar = arg;
    static unsigned char bad[CAPTURE_MAX], sink[CAPTURE_MAX];
    uint32_t x = 362436069u;
    for (int i = 0; i < liar->rounds; i++) {
        int conn = accept(liar->fd, NULL, NULL);
        size_t cut = i == 0 ? liar->len : damage(liar->good, liar->len, i, &x, bad);
        receive_two(conn, sink); /* an answer before its question would be another fault */
        if (send(conn, i == 0 ? liar->good : bad, cut, MSG_NOSIGNAL) >= 0)
            shutdown(conn, SHUT_WR);
        struct pollfd p = {.fd = conn, .events = POLLIN};
        while (poll(&p, 1, RIG_PATIENCE_MS) == 1 && recv(conn, sink, sizeof(sink), 0) > 0)
            continue;
        close(conn);
    }
    return NULL;
}

TEST(damaged_answers_are_survived)
{
    static const struct rig_answer answers[] = {
        {"locate", "{\"extents\": [{\"id\": \"a\", \"chunkCrcs\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, "
                   "{\"id\": \"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\", \"offset\": 77}, {}, {}, "
                   "{\"id\": \"ccccccccccccccccccccccccccccccccccccc\", \"chunkCrcs\": [1]}]}"},
        {NULL, NULL}};
    static unsigned char call[CAPTURE_MAX], answer[CAPTURE_MAX];
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", answers);
    char address[64];
    size_t call_len = capture(&r, "locate", "{\"ids\": [\"a\"]}", call);
    struct liar liar = {.good = answer, .rounds = 300};
    liar.len = capture_answer(&r, call, call_len, answer);
    liar.fd = listen_here(address, sizeof(address));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
    for (int i = 0; i < liar.rounds; i++) {
        struct hl_rpc_peer *peer = NULL;
        json_t *params = json_pack("{s: [s]}", "ids", "a"), *result = NULL;
        assert_int_equal(hl_rpc_open(r.rpc, address, "L3", &peer), HL_OK);
        hl_status st = rpc_json_call(peer, "locate", params, RIG_PATIENCE_MS, &result);
        assert_int_not_equal(st, HL_ETIMEDOUT);
        assert_true((st == HL_OK) == (result != NULL));
        if (i == 0)
            assert_int_equal(st, HL_OK); /* the undamaged answer is a good one */
        json_decref(result);
        json_decref(params);
        hl_rpc_peer_close(peer);
    }
    pthread_join(thread, NULL);
    close(liar.fd);
    assert_alive(&r);
    rig_stop(&r);
}

/* The list of five structs in the message becomes one of `count` structs without a byte. */
static void empty_the_structs(unsigned char *message, size_t len, uint64_t count)
{
    int found = 0;
    for (size_t at = 0; at + 8 <= len; at += 8) {
        uint64_t pointer, tag;
        memcpy(&pointer, message + at, 8);
        int64_t target = (int64_t)at + 8 + ((int32_t)(uint32_t)pointer >> 2) * (int64_t)8;
        if ((pointer & 3) != 1 || (pointer >> 32 & 7) != 7 || target < 0 ||
            target + 8 > (int64_t)len)
            continue;
        memcpy(&tag, message + target, 8);
        if ((uint32_t)tag != 5 << 2)
            continue;
        tag = count << 2;
        memcpy(message + target, &tag, 8);
        found++;
    }
    assert_int_equal(found, 1);
}

TEST(an_answer_that_claims_more_than_its_bytes_is_refused)
{
    static const struct rig_answer answers[] = {
        {"locate", "{\"extents\": [{\"id\": \"a\"}, {}, {}, {}, {}]}"}, {NULL, NULL}};
    static unsigned char call[CAPTURE_MAX], answer[CAPTURE_MAX];
    struct hl_rpc_peer *peer = NULL;
    struct rig r;
    char address[64];
    pthread_t thread;
    rig_start(&r, "127.0.0.1:0", "L3", answers);
    size_t call_len = capture(&r, "locate", "{\"ids\": [\"a\"]}", call);
    struct liar liar = {.good = answer, .rounds = 1};
    liar.len = capture_answer(&r, call, call_len, answer);
    empty_the_structs(answer, liar.len, 200000);
    liar.fd = listen_here(address, sizeof(address));
    assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
    json_t *params = json_pack("{s: [s]}", "ids", "a"), *result = NULL;
    assert_int_equal(hl_rpc_open(r.rpc, address, "L3", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "locate", params, RIG_PATIENCE_MS, &result), HL_EPROTO);
    assert_non_null(strstr(hl_error_text(), "extents"));
    json_decref(params);
    hl_rpc_peer_close(peer);
    pthread_join(thread, NULL);
    close(liar.fd);
    rig_stop(&r);
}

static int connect_to(const struct rig *r)
{
    struct sockaddr_in name = name_of(r->address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

/* True if the other side closes within the rig's patience. */
static int is_closed_soon(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;
    return poll(&p, 1, RIG_PATIENCE_MS) == 1 && recv(fd, &c, 1, 0) <= 0;
}

static void rig_limit(struct rig *r, unsigned max_connections)
{
    rig_close_server(r);
    hl_rpc_peer_close(r->peer);
    r->max_connections = max_connections;
    rig_serve(r, "127.0.0.1:0", "L3");
    assert_int_equal(hl_rpc_open(r->rpc, r->address, "L3", &r->peer), HL_OK);
}

TEST(silent_connections_make_room_for_callers)
{

    enum { LIMIT = 32, SILENT = 100 };
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    rig_limit(&r, LIMIT);
    assert_alive(&r); /* one connection is the peer's, and stays */
    int fds[SILENT];
    for (int i = 0; i < SILENT; i++)
        fds[i] = connect_to(&r);
    for (int i = 0; i < SILENT - (LIMIT - 1); i++)
        assert_true(is_closed_soon(fds[i])); /* the oldest */
    assert_alive(&r);
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    hl_rpc_peer_close(peer);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    rig_stop(&r);
}

TEST(a_connection_without_a_call_ends)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    assert_alive(&r);
    int silent = connect_to(&r), half = connect_to(&r);
    assert_int_equal(send(half, "\0\0\0\0\x08", 5, MSG_NOSIGNAL), 5); /* of a header of 8 */
    assert_true(is_closed_soon(silent));
    assert_true(is_closed_soon(half));
    assert_alive(&r);
    close(silent);
    close(half);
    rig_stop(&r);
}

TEST(who_finds_no_room_reads_why)
{

    enum { LIMIT = 4 };
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    rig_limit(&r, LIMIT);
    struct hl_rpc_peer *peers[LIMIT] = {NULL}, *late = NULL;
    for (int i = 0; i < LIMIT; i++) { /* all in use: they have called just now */
        assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &peers[i]), HL_OK);
        assert_int_equal(rpc_json_call(peers[i], "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    }
    assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &late), HL_OK);
    assert_int_equal(rpc_json_call(late, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_EBUSY);
    assert_error_has("too many connections");
    hl_rpc_peer_close(peers[0]);
    uint64_t until = hl_now_ns() + RIG_PATIENCE_MS * HL_NS_PER_MS;
    hl_status st;
    do { /* the refused connection ends by itself, too */
        st = rpc_json_call(late, "poolInfo", NULL, RIG_PATIENCE_MS, NULL);
        if (st != HL_OK) {
            hl_rpc_peer_close(late);
            assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &late), HL_OK);
        }
    } while (st != HL_OK && hl_now_ns() < until);
    assert_int_equal(st, HL_OK);
    hl_rpc_peer_close(late);
    for (int i = 1; i < LIMIT; i++)
        hl_rpc_peer_close(peers[i]);
    rig_stop(&r);
}

/* The number that the next descriptor would get. */
static rlim_t next_descriptor(void)
{
    int fd = dup(STDERR_FILENO);
    assert_true(fd >= 0);
    close(fd);
    return (rlim_t)fd;
}

TEST(a_server_that_ran_out_of_descriptors_serves_again)
{
    struct rig r;
    struct rlimit files, none;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    assert_alive(&r);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    struct sockaddr_in name = name_of(r.address);
    int fds[3];
    for (int i = 0; i < 3; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    unsigned warnings = hl_log_count(HL_LOG_WARN);
    none = (struct rlimit){next_descriptor(), files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 3; i++) /* the kernel takes them, the server can't */
        assert_int_equal(connect(fds[i], (struct sockaddr *)&name, sizeof(name)), 0);
    uint64_t until = hl_now_ns() + RIG_PATIENCE_MS * HL_NS_PER_MS;
    while (hl_log_count(HL_LOG_WARN) < warnings + 2 && hl_now_ns() < until)
        poll(NULL, 0, 10);
    assert_in_range(hl_log_count(HL_LOG_WARN), warnings + 2, warnings + 30); /* it tries, slowly */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    hl_rpc_peer_close(peer);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    rig_stop(&r);
}

/* While the server has no descriptor for them, clients come and reset their connections. */
static void reset_before_accept(struct rig *r)
{

    enum { CLIENTS = 3 };
    static const struct linger reset = {1, 0};
    struct sockaddr_in name = name_of(r->address);
    struct rlimit files, none;
    int fds[CLIENTS];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    unsigned warnings = hl_log_count(HL_LOG_WARN);
    none = (struct rlimit){next_descriptor(), files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(connect(fds[i], (struct sockaddr *)&name, sizeof(name)), 0);
    uint64_t until = hl_now_ns() + RIG_PATIENCE_MS * HL_NS_PER_MS;
    while (hl_log_count(HL_LOG_WARN) == warnings && hl_now_ns() < until)
        poll(NULL, 0, 10);
    assert_true(hl_log_count(HL_LOG_WARN) > warnings);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
        close(fds[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static void assert_accepts(struct rig *r)
{
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_open(r->rpc, r->address, "L3", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    hl_rpc_peer_close(peer);
}

TEST(a_connection_that_is_reset_before_it_is_accepted_ends_no_other)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    assert_alive(&r);
    reset_before_accept(&r);
    assert_accepts(&r);
    rig_stop(&r);
}

/* ---- peers without the secret ---------------------------------------------------------------- */

static void rig_start_with_secret(struct rig *r, unsigned max_connections)
{
    char path[] = "/tmp/helios-test-XXXXXX";
    static const char text[] = "the secret of this cluster\n";
    HL_AUTO(hl_closep) int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    unlink(path);
    rig_start(r, "127.0.0.1:0", "L3", NULL);
    rig_limit(r, max_connections);
    assert_alive(r);
}

static void rig_stop_with_secret(struct rig *r)
{
    rig_stop(r);
    hl_auth_use_none();
}

TEST(peers_without_the_secret_take_no_room_from_those_that_have_it)
{

    enum { LIMIT = 32, STRANGERS = 100 };
    struct rig r;
    rig_start_with_secret(&r, LIMIT);
    int fds[STRANGERS];
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = connect_to(&r);
    struct hl_rpc_peer *peers[LIMIT - 1];
    for (int i = 0; i < LIMIT - 1; i++) { /* all of its room is theirs */
        assert_int_equal(hl_rpc_open(r.rpc, r.address, "L3", &peers[i]), HL_OK);
        assert_int_equal(rpc_json_call(peers[i], "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    }
    assert_alive(&r);
    for (int i = 0; i < STRANGERS - LIMIT / 4; i++)
        assert_true(is_closed_soon(fds[i])); /* the oldest */
    for (int i = 0; i < LIMIT - 1; i++)
        hl_rpc_peer_close(peers[i]);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    rig_stop_with_secret(&r);
}

/* As the client does in rpc/greeting.cpp, in two halves. */
struct greeting {
    uint8_t magic[8], mine[HL_AUTH_LEN];

    struct {
        uint8_t nonce[HL_AUTH_LEN], proof[HL_AUTH_LEN];
    } theirs;
};

static void greeting_begin(struct greeting *g, int fd)
{
    memcpy(g->magic, "HELIOSA1", sizeof(g->magic));
    assert_int_equal(hl_auth_nonce(g->mine), HL_OK);
    assert_int_equal(send(fd, g, offsetof(struct greeting, theirs), MSG_NOSIGNAL),
                     offsetof(struct greeting, theirs));
    assert_int_equal(recv(fd, &g->theirs, sizeof(g->theirs), MSG_WAITALL), sizeof(g->theirs));
}

static void greeting_end(const struct greeting *g, int fd)
{
    uint8_t proof[HL_AUTH_LEN];
    hl_auth_proof("helios rpc client", g->mine, g->theirs.nonce, proof);
    assert_int_equal(send(fd, proof, sizeof(proof), MSG_NOSIGNAL), sizeof(proof));
}

TEST(a_connection_that_is_reset_before_its_greeting_ends_no_other)
{
    struct rig r;
    rig_start_with_secret(&r, 0);
    reset_before_accept(&r);
    assert_accepts(&r);
    rig_stop_with_secret(&r);
}

TEST(peers_that_only_connect_push_out_no_greeting_that_has_begun)
{

    enum { LIMIT = 32, STRANGERS = 100 };

    static unsigned char call[CAPTURE_MAX], answer[CAPTURE_MAX];
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    size_t len = capture(&r, "poolInfo", "{}", call);
    rig_stop(&r);
    rig_start_with_secret(&r, LIMIT);
    struct greeting g;
    int slow = connect_to(&r), fds[STRANGERS];
    greeting_begin(&g, slow);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = connect_to(&r);
    for (int i = 0; i < STRANGERS - LIMIT / 4; i++)
        assert_true(is_closed_soon(fds[i])); /* the oldest */
    greeting_end(&g, slow);
    assert_int_equal(send(slow, call, len, MSG_NOSIGNAL), (ssize_t)len);
    assert_true(receive_two(slow, answer) > 0);
    close(slow);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    assert_alive(&r);
    rig_stop_with_secret(&r);
}

/* Those whose greeting has begun have places enough for a quarter of the connections, too. */
TEST(peers_that_begin_a_greeting_replace_the_oldest_that_did)
{

    enum { LIMIT = 32, STRANGERS = 20 };
    struct rig r;
    struct greeting g;
    int fds[STRANGERS];
    rig_start_with_secret(&r, LIMIT);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = connect_to(&r);
        greeting_begin(&g, fds[i]);
    }
    for (int i = 0; i < STRANGERS - LIMIT / 4; i++)
        assert_true(is_closed_soon(fds[i]));
    struct pollfd newest = {.fd = fds[STRANGERS - 1], .events = POLLIN};
    assert_int_equal(poll(&newest, 1, 0), 0);
    assert_alive(&r);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    rig_stop_with_secret(&r);
}

TEST(a_peer_without_the_secret_gets_no_memory_for_its_message)
{

    enum { BYTES = 48 << 20 };
    struct rig r;
    rig_start_with_secret(&r, 0);
    static const uint32_t head[2] = {0, BYTES / 8}; /* one segment of so many words */
    static const char zeros[65536];
    int fd = connect_to(&r);
    ssize_t n = send(fd, head, sizeof(head), MSG_NOSIGNAL);
    size_t sent = 0;
    while (n > 0 && sent < BYTES - sizeof(zeros)) {
        n = send(fd, zeros, sizeof(zeros), MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
    }
    assert_true(n < 0);
    assert_in_range(sent, 0, BYTES / 2); /* what sockets hold */
    close(fd);
    assert_alive(&r);
    rig_stop_with_secret(&r);
}

TEST(peers_without_the_secret_do_not_fill_the_log)
{

    enum { STRANGERS = 50 };
    struct rig r;
    rig_start_with_secret(&r, 0);
    unsigned warnings = hl_log_count(HL_LOG_WARN);
    uint64_t began_ns = hl_now_ns();
    for (int i = 0; i < STRANGERS; i++)
        send_bytes(r.address, (const unsigned char *)"GET / HTTP/1.1\r\n\r\n", 18, 1);
    unsigned seconds = (unsigned)((hl_now_ns() - began_ns) / HL_NS_PER_S);
    assert_in_range(hl_log_count(HL_LOG_WARN), warnings + 1, warnings + 1 + seconds);
    assert_alive(&r);
    rig_stop_with_secret(&r);
}
