/* Reads over TCP from a server that answers wrongly: twice, in another order, too much, to the
 * wrong request. The server is a plain socket on a thread of its own. */
#include "support/test.h"

#include <stdatomic.h>

#include "base/plane.h"
#include "support/fault.h"
#include "unit/net/tcp/tcp_rig.h"

#define PIECES 3
#define LEN    (PIECES * MIB)
#define GUARD  ((size_t)4096)

#define PATIENCE_MS ((int)(TEST_PATIENCE_NS / HL_NS_PER_MS))

enum lie {
    HONEST,
    TWICE,        /* each answer comes two times */
    BACKWARD,     /* the last request is answered first */
    WRONG_OFFSET, /* the header names another range */
    TOO_LONG,     /* more bytes than were asked for */
    TOO_SHORT,
    UNASKED,  /* for a request that was never made */
    NOISE,    /* bytes that are not of the protocol */
    FLIPPED,  /* a bit of the header */
    CLOSES,   /* in the middle of an answer */
    PUT_WORD, /* an answer to a put */
};

struct liar {
    int listener, fd;
    enum lie lie;
    pthread_t thread;
    char address[64];
};

static bool sends(struct liar *l, uint64_t op, uint64_t offset, size_t len)
{
    return say(l->fd,
               &(struct hl_tcp_msg){.type = HL_TCP_TYPE_DATA,
                                    .op = op,
                                    .offset = offset,
                                    .len = len,
                                    .payload = (uint32_t)len},
               pool + offset);
}

static bool answers(struct liar *l, const struct hl_tcp_msg *ask)
{
    uint8_t head[HL_TCP_HEAD];
    switch (l->lie) {
    case TWICE:
        return sends(l, ask->op, ask->offset, ask->len) && sends(l, ask->op, ask->offset, ask->len);
    case WRONG_OFFSET:
        return sends(l, ask->op, ask->offset + 64, ask->len);
    case TOO_LONG: /* a piece of the range can be MIB long, so the small fetch gets this */
        return sends(l, ask->op, ask->offset, ask->len < MIB ? ask->len + 1 : ask->len);
    case TOO_SHORT:
        return sends(l, ask->op, ask->offset, ask->len - 1);
    case UNASKED:
        return sends(l, ask->op + 1000, ask->offset, ask->len);
    case NOISE:
        return plain_send(l->fd, pool + 99, 5000);
    case FLIPPED:
        hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_DATA,
                                           .op = ask->op,
                                           .offset = ask->offset,
                                           .len = ask->len,
                                           .payload = (uint32_t)ask->len},
                      head);
        head[26] ^= 4;
        return plain_send(l->fd, head, sizeof(head));
    case CLOSES:
        hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_DATA,
                                           .op = ask->op,
                                           .offset = ask->offset,
                                           .len = ask->len,
                                           .payload = (uint32_t)ask->len},
                      head);
        (void)(plain_send(l->fd, head, sizeof(head)) && plain_send(l->fd, pool, ask->len / 2));
        return false;
    case PUT_WORD:
        return say(l->fd,
                   &(struct hl_tcp_msg){.type = HL_TCP_TYPE_STORED, .op = ask->op, .id = {1, 2}},
                   NULL);
    default:
        return sends(l, ask->op, ask->offset, ask->len);
    }
}

/* Welcomes one client; answers three requests at a time, or small ones alone. */
static void *liar_main(void *arg)
{
    struct liar *l = arg;
    struct hl_tcp_msg ask[PIECES];
    uint8_t key[HL_NET_KEY];
    l->fd = accept(l->listener, NULL, NULL);
    bool goes_on =
        l->fd >= 0 && listen_to(l->fd, HL_TCP_TO_SERVER, &ask[0], key, sizeof(key)) &&
        say(l->fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_WELCOME, .len = POOL_LEN, .id = {1, 2}},
            NULL);
    while (goes_on) {
        size_t count = 0;
        do
            goes_on = listen_to(l->fd, HL_TCP_TO_SERVER, &ask[count], NULL, 0);
        while (goes_on && ask[count++].len == MIB && count < PIECES);
        for (size_t i = 0; goes_on && i < count; i++)
            goes_on = answers(l, &ask[l->lie == BACKWARD ? count - 1 - i : i]);
    }
    close(l->fd);
    return NULL;
}

static void liar_start(struct liar *l, enum lie lie)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    *l = (struct liar){.lie = lie, .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(bind(l->listener, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(l->listener, 4), 0);
    assert_int_equal(getsockname(l->listener, (struct sockaddr *)&a, &len), 0);
    snprintf(l->address, sizeof(l->address), "127.0.0.1:%u", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&l->thread, NULL, liar_main, l), 0);
}

/* What a client got from a lying server. */
struct seen {
    hl_status first, again;        /* of two fetches; `first` may be that of the connect */
    char words[HL_ERROR_TEXT_MAX]; /* of the first one that failed */
    bool whole;                    /* the bytes of a fetch that was HL_OK are right */
};

/* Asserts nothing: a failed assertion would leave the caller's frame, which the server's thread
 * uses. The client waits as long as its deadline, so a busy machine does not count as a stall. */
static void talk_to_liar(const struct liar *l, uint8_t *at, size_t len, struct seen *seen)
{
    uint32_t crcs[PIECES];
    struct hl_net_bad bad;
    struct hl_net_client *client = NULL;
    struct hl_net_connect_opts opts = {.address = l->address,
                                       .timeout_ms = PATIENCE_MS,
                                       .stall_ms = PATIENCE_MS,
                                       .endpoints = 1,
                                       .ops = back_end};
    for (size_t i = 0; i < PIECES; i++)
        crcs[i] = hl_crc32(0, pool + GUARD + i * MIB, len < MIB ? len : MIB);
    *seen = (struct seen){.first = hl_net_connect_with(&opts, &client), .whole = true};
    if (seen->first == HL_OK)
        seen->first = hl_net_fetch_verified(client, GUARD, at, len, crcs, PATIENCE_MS, &bad);
    if (seen->first != HL_OK)
        snprintf(seen->words, sizeof(seen->words), "%s", hl_error_text());
    else
        seen->whole = memcmp(at, pool + GUARD, len) == 0;
    if (seen->first != HL_OK && client != NULL)
        seen->again = hl_net_fetch(client, 0, at, 64, PATIENCE_MS);
    hl_net_close(client);
}

/* Fetches `len` bytes from a server that tells `lie`, into `dst` between two guards. */
static void fetch_from_liar(enum lie lie, uint8_t *dst, size_t len, struct seen *seen)
{
    struct liar l;
    liar_start(&l, lie);
    talk_to_liar(&l, dst + GUARD, len, seen);
    shutdown(l.listener, SHUT_RDWR); /* where it still waits for a client */
    pthread_join(l.thread, NULL);
    close(l.listener);
    if (seen->first != HL_OK && strstr(seen->words, l.address) == NULL)
        fail_msg("lie %d: '%s' does not name %s", lie, seen->words, l.address);
}

/* helios_fault_total of this process. */
static uint64_t counted(const char *cause)
{
    char line[128];
    struct hl_buf text = HL_BUF(1 << 20);
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    snprintf(line, sizeof(line), "helios_fault_total{cause=\"%s\",path=\"tcp\"} ", cause);
    const char *at = strstr(text.data, line);
    uint64_t n = at != NULL ? strtoull(at + strlen(line), NULL, 10) : 0;
    hl_buf_fini(&text);
    return n;
}

/* The fetch must end with `want`, and leave the bytes around it unchanged. */
static void expect(enum lie lie, size_t len, hl_status want, const char *cause)
{
    struct seen seen;
    uint8_t *dst = malloc(len + 2 * GUARD);
    bool guarded = true;
    uint64_t before = cause != NULL ? counted(cause) : 0;
    memset(dst, 0x5a, len + 2 * GUARD);
    fetch_from_liar(lie, dst, len, &seen);
    for (size_t i = 0; i < GUARD; i++)
        guarded &= dst[i] == 0x5a && dst[GUARD + len + i] == 0x5a;
    free(dst);
    if (seen.first != want)
        fail_msg("lie %d of %zu bytes: %s, not %s: %s", lie, len, hl_status_name(seen.first),
                 hl_status_name(want), seen.words);
    if (want != HL_OK)
        assert_int_equal(seen.again, HL_EUNAVAIL); /* the client was given up */
    assert_true(guarded && seen.whole);
    if (cause != NULL && counted(cause) != before + 1)
        fail_msg("lie %d of %zu bytes was not counted as %s", lie, len, cause);
}

TEST(an_honest_answer_is_taken)
{
    expect(HONEST, LEN, HL_OK, NULL);
    expect(HONEST, 64, HL_OK, NULL);
}

TEST(an_answer_that_comes_twice_ends_the_connection)
{
    expect(TWICE, LEN, HL_EPROTO, "duplicate");
    fault_shown("tcp-read", "duplicate", "refused");
}

TEST(answers_in_another_order_end_the_connection)
{
    expect(BACKWARD, LEN, HL_EPROTO, "reordered");
    fault_shown("tcp-read", "reorder", "refused");
}

TEST(an_answer_of_a_wrong_size_is_never_taken)
{
    expect(WRONG_OFFSET, LEN, HL_EPROTO, "wrong-size");
    expect(TOO_SHORT, LEN, HL_EPROTO, "wrong-size");
    expect(TOO_LONG, 64, HL_EPROTO, "wrong-size");
    expect(TOO_SHORT, 64, HL_EPROTO, "wrong-size");
    fault_shown("tcp-read", "wrong-size", "refused");
}

TEST(what_nobody_asked_for_ends_the_connection)
{
    expect(UNASKED, LEN, HL_EPROTO, "foreign");
    expect(UNASKED, 64, HL_EPROTO, "foreign");
    expect(PUT_WORD, LEN, HL_EPROTO, "duplicate");
    expect(NOISE, LEN, HL_EPROTO, "garbled");
    expect(NOISE, 64, HL_EPROTO, "garbled");
    expect(FLIPPED, LEN, HL_EPROTO, "garbled");
    fault_shown("tcp-read", "foreign", "refused");
}

TEST(an_answer_that_breaks_off_is_the_end_of_the_server)
{
    expect(CLOSES, LEN, HL_EUNAVAIL, NULL);
    expect(CLOSES, 64, HL_EUNAVAIL, NULL);
}

/* ---- IPv6 ---- */

TEST(a_server_and_its_client_may_use_ipv6)
{
    struct hl_net_server *server = NULL;
    struct hl_net_server_opts opts = {
        .listen = "[::1]:0", .pool = pool, .pool_len = POOL_LEN, .ops = back_end};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool here = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
    close(fd);
    if (!here)
        TEST_SKIP("no IPv6 here");
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(strncmp(hl_net_server_address(server), "[::1]:", 6), 0);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    check_fetch(client, 1, 9 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

TEST(one_sided_reads_are_refused_where_there_is_no_rdma)
{
    struct hl_net_client *client = NULL;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_connect_opts opts = {
        .address = hl_net_server_address(server), .mode = HL_NET_GET, .ops = back_end};
    assert_int_equal(hl_net_connect_with(&opts, &client), HL_EUNSUPPORTED);
    assert_null(client);
    hl_net_server_stop(server);
}

TESTS_IN(over_tcp, NULL)
