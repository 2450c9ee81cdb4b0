/* The data port over TCP: a connection that sends any bytes to a real server with a key, and takes
 * objects. The server says WELCOME to who shows the key and nobody else; every request is answered
 * as the protocol says or ends the connection; afterwards nothing of it is left. The first byte
 * chooses: HELLO is made right, headers are, the checksums of objects are. The second is where
 * messages are cut in two. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "net/put_list.h"
#include "net/tcp/wire.h"

#define POOL        ((size_t)1 << 16)
#define OBJECT_MAX  ((uint64_t)1 << 16)
#define DEADLINE_NS (20 * HL_NS_PER_S)
#define PATIENCE_MS 40000 /* of the server: this side gives up first */

enum { KEY = 1, HEADERS = 2, SUMS = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(4096) uint8_t pool[POOL];
static struct hl_net_server *server;
static struct sockaddr_in address;
static atomic_int open_puts;

struct talk {
    int fd;
    uint8_t choices, cut;
    const uint8_t *at;
    size_t left;
};

static void check_line(int ok, int line)
{
    if (!ok) {
        fprintf(stderr, "line %d: %s\n", line, hl_error_text());
        abort();
    }
}

#define check(ok) check_line(ok, __LINE__)

/* ---- the server ---- */

static hl_status begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    (void)arg;
    check(size > 0);
    if (size > OBJECT_MAX || id.hi == 1)
        return hl_fail(HL_ENOSPC, "no room for %llu bytes", (unsigned long long)size);
    *token = *ptr = malloc(size);
    check(*ptr != NULL);
    atomic_fetch_add(&open_puts, 1);
    return HL_OK;
}

static void drop(void *arg, void *token)
{
    (void)arg;
    free(token);
    atomic_fetch_sub(&open_puts, 1);
}

static hl_status commit(void *arg, void *token, uint32_t crc, const uint32_t *crcs, size_t count,
                        struct hl_id *id)
{
    check(count == 1 && crcs[0] == crc);
    drop(arg, token);
    *id = (struct hl_id){7, crc};
    return HL_OK;
}

static void make_hello(uint8_t hello[HL_TCP_HELLO])
{
    struct hl_tcp_msg m = {.type = HL_TCP_TYPE_HELLO, .payload = HL_NET_KEY};
    hl_tcp_encode(&m, hello);
    memset(hello + HL_TCP_HEAD, 'k', HL_NET_KEY);
}

static void world_stop(void)
{
    hl_net_server_stop(server);
}

static void world_start(void)
{
    struct hl_net_server_opts o = {.listen = "127.0.0.1:0",
                                   .pool = pool,
                                   .pool_len = POOL,
                                   .put = {begin, commit, drop, NULL},
                                   .spin_us = -1,
                                   .connect_ms = PATIENCE_MS,
                                   .put_timeout_ms = PATIENCE_MS,
                                   .ops = hl_net_tcp()};
    hl_log_set_level(HL_LOG_ERROR);
    memset(o.key, 'k', sizeof(o.key));
    for (size_t i = 0; i < POOL; i++)
        pool[i] = (uint8_t)(i * 7 + (i >> 8));
    check(hl_net_server_start(&o, &server) == HL_OK);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)atoi(strrchr(hl_net_server_address(server), ':') + 1));
    atexit(world_stop);
}

/* ---- the connection ---- */

/* False: the server has closed it. */
static bool say(const struct talk *t, const void *bytes, size_t len)
{
    size_t first = len > 0 ? t->cut % len : 0;
    return (first == 0 || send(t->fd, bytes, first, MSG_NOSIGNAL) == (ssize_t)first) &&
           send(t->fd, (const uint8_t *)bytes + first, len - first, MSG_NOSIGNAL) ==
               (ssize_t)(len - first);
}

/* False: the connection ends before so many bytes. */
static bool hear(const struct talk *t, void *to, size_t len)
{
    size_t got = 0;
    uint64_t end = hl_now_ns() + DEADLINE_NS;
    while (got < len) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        check(hl_now_ns() < end);
        if (poll(&p, 1, 1000) <= 0)
            continue;
        ssize_t n = recv(t->fd, (uint8_t *)to + got, len - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool hear_message(const struct talk *t, struct hl_tcp_msg *m, uint8_t *payload)
{
    uint8_t head[HL_TCP_HEAD];
    do {
        if (!hear(t, head, sizeof(head)))
            return false;
        check(hl_tcp_decode(HL_TCP_TO_CLIENT, head, m) && m->payload <= HL_CHUNK);
        if (m->payload > 0 && !hear(t, payload, m->payload))
            return false;
    } while (m->type == HL_TCP_TYPE_WAIT);
    return true;
}

/* Nothing but a refusal of the connection itself follows. */
static void hear_the_end(const struct talk *t, uint8_t *payload)
{
    struct hl_tcp_msg m;
    shutdown(t->fd, SHUT_WR);
    if (hear_message(t, &m, payload)) {
        check(m.type == HL_TCP_TYPE_REFUSED && m.op == 0);
        check(!hear_message(t, &m, payload));
    }
}

static size_t take(struct talk *t, void *to, size_t len)
{
    size_t n = t->left < len ? t->left : len;
    memcpy(to, t->at, n);
    t->at += n;
    t->left -= n;
    return n;
}

/* ---- what is said ---- */

static void mend(const struct talk *t, uint8_t *head)
{
    struct hl_tcp_msg m;
    uint64_t op = 1;
    memcpy(head, "HLT1\1", 5);
    head[6] = head[7] = 0;
    if (head[8] == 0)
        memcpy(head + 8, &op, sizeof(op));
    uint32_t crc = hl_crc32(0, head, HL_TCP_HEAD - 4);
    memcpy(head + HL_TCP_HEAD - 4, &crc, sizeof(crc));
    if (!(t->choices & SUMS) || !hl_tcp_decode(HL_TCP_TO_SERVER, head, &m) ||
        m.type != HL_TCP_TYPE_PUT || m.len > t->left)
        return;
    m.crc = hl_crc32(0, t->at, m.len);
    hl_tcp_encode(&m, head);
}

/* The sums of the objects in a batch. */
static void mend_batch(uint8_t *bytes, size_t len)
{
    struct hl_wire_list list = {bytes, len};
    struct hl_wire_item item;
    const uint8_t *data;
    while (hl_wire_next_item(&list, &item, &data) == 1) {
        uint32_t crc = hl_crc32(0, data, item.len);
        memcpy((uint8_t *)data - sizeof(item) + offsetof(struct hl_wire_item, crc), &crc,
               sizeof(crc));
    }
}

/* False: it must be the last. */
static bool greet(struct talk *t, uint8_t *payload)
{
    uint8_t right[HL_TCP_HELLO], hello[HL_TCP_HELLO];
    struct hl_tcp_msg m;
    make_hello(right);
    size_t len = t->choices & KEY ? sizeof(right) : take(t, hello, sizeof(hello));
    if (t->choices & KEY)
        memcpy(hello, right, sizeof(hello));
    else if ((t->choices & HEADERS) && len >= HL_TCP_HEAD)
        mend(t, hello);
    bool welcome = len == sizeof(right) && memcmp(hello, right, sizeof(right)) == 0;
    if (!say(t, hello, len) || !welcome) {
        check(!welcome);
        hear_the_end(t, payload);
        return false;
    }
    check(hear_message(t, &m, payload) && m.type == HL_TCP_TYPE_WELCOME && m.len == POOL);
    return true;
}

static bool store(struct talk *t, const struct hl_tcp_msg *put, struct hl_tcp_msg *m,
                  uint8_t *payload)
{
    size_t len = put->len < t->left ? (size_t)put->len : t->left;
    uint32_t crc = hl_crc32(0, t->at, len);
    check(put->len <= OBJECT_MAX && put->id.hi != 1);
    check(say(t, t->at, len));
    t->at += len;
    t->left -= len;
    if (len < put->len) {
        hear_the_end(t, payload);
        return false;
    }
    check(hear_message(t, m, payload) && m->op == put->op);
    check(crc == put->crc ? m->type == HL_TCP_TYPE_STORED && m->id.lo == crc
                          : m->type == HL_TCP_TYPE_REFUSED && m->status == HL_ECORRUPT);
    return true;
}

static bool answered(struct talk *t, const struct hl_tcp_msg *asked, const uint8_t *list,
                     uint8_t *payload)
{
    struct hl_wire_list items = {list, asked->payload}, results;
    struct hl_wire_item item;
    struct hl_wire_result result;
    const uint8_t *bytes;
    struct hl_tcp_msg m;
    int more;
    if (!hear_message(t, &m, payload)) { /* a batch that is no list */
        check(asked->type == HL_TCP_TYPE_BATCH);
        do
            more = hl_wire_next_item(&items, &item, &bytes);
        while (more == 1);
        check(more < 0);
        return false;
    }
    check(m.op == asked->op);
    if (m.type == HL_TCP_TYPE_READY) {
        check(asked->type == HL_TCP_TYPE_PUT);
        return store(t, asked, &m, payload);
    }
    if (m.type == HL_TCP_TYPE_DATA) {
        check(asked->type == HL_TCP_TYPE_ASK && m.len == asked->len && m.len <= POOL &&
              asked->offset <= POOL - m.len && memcmp(payload, pool + asked->offset, m.len) == 0);
    } else if (m.type == HL_TCP_TYPE_RESULTS) {
        check(asked->type == HL_TCP_TYPE_BATCH);
        results = (struct hl_wire_list){payload, m.payload};
        do {
            more = hl_wire_next_item(&items, &item, &bytes);
            check(hl_wire_next_result(&results, &result, &bytes) == more && more >= 0);
        } while (more == 1);
    } else {
        check(m.type == HL_TCP_TYPE_REFUSED && m.status != HL_OK && m.payload > 0);
    }
    return true;
}

/* False: it was the last. */
static bool request(struct talk *t, uint8_t *payload)
{
    static uint8_t bytes[HL_TCP_HEAD + HL_WIRE_LIST_MAX];
    struct hl_tcp_msg m = {0};
    size_t len = take(t, bytes, HL_TCP_HEAD);
    bool whole = len == HL_TCP_HEAD;
    if (whole && (t->choices & HEADERS))
        mend(t, bytes);
    bool ours = whole && hl_tcp_decode(HL_TCP_TO_SERVER, bytes, &m) && m.type != HL_TCP_TYPE_HELLO;
    if (ours) {
        len += take(t, bytes + HL_TCP_HEAD, m.payload);
        whole = len == HL_TCP_HEAD + m.payload;
        if (m.payload > 0 && whole && (t->choices & SUMS))
            mend_batch(bytes + HL_TCP_HEAD, m.payload);
    }
    check(say(t, bytes, len));
    if (ours && whole)
        return answered(t, &m, bytes + HL_TCP_HEAD, payload);
    hear_the_end(t, payload);
    return false;
}

/* The next connection begins without anything of this one. */
static void wait_until_gone(void)
{
    struct hl_net_server_stats stats;
    uint64_t end = hl_now_ns() + DEADLINE_NS;
    hl_net_server_stats(server, &stats);
    while (stats.peers_now > 0) {
        check(hl_now_ns() < end);
        sched_yield(); /* it has closed the connection, and its thread ends */
        hl_net_server_stats(server, &stats);
    }
    check(atomic_load(&open_puts) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t payload[HL_CHUNK];
    struct linger none = {1, 0}; /* ports do not wait */
    int one = 1;
    if (size < 2)
        return 0;
    if (server == NULL)
        world_start();
    struct talk t = {.choices = data[0], .cut = data[1], .at = data + 2, .left = size - 2};
    t.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(t.fd >= 0 && connect(t.fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    setsockopt(t.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(t.fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    bool goes_on = greet(&t, payload);
    while (goes_on && t.left > 0)
        goes_on = request(&t, payload);
    close(t.fd);
    wait_until_gone();
    return 0;
}
