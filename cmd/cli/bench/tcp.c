/* The limit of the network path: a plain socket on loopback. A process of its own serves it, as the
 * L3 daemon does, from a source as large as the pool's shards, so the data is as cold. Both sides
 * wait as the data path does: they poll for a while before they sleep. A limit that slept at once
 * would be easy to beat. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench/bench.h"

#define SEND_MAX  ((uint64_t)1 << 20)
#define SILENT_MS 10000
#define SPIN_NS   60000

/* What the client sends: how many answers of what size it wants, one request for a whole stream. So
 * only the first answer of a stream has to wait for a request. */
enum way {
    SERVE,   /* answer with bytes of the source */
    SWALLOW, /* take the bytes, then answer one */
};

struct ask {
    uint64_t way;
    uint64_t size;
    uint64_t count;
};

struct bench_tcp {
    const unsigned char *source;
    uint64_t len, at;
    int listener;
    int fd;     /* the client's end */
    int served; /* the server's end */
    pid_t server;
};

/* 0: `len` bytes were moved. -1: the other side is gone, or silent for silent_ms (-1 = no
 * limit). */
static int receive_all(int fd, void *data, uint64_t len, int silent_ms)
{
    char *at = data;
    uint64_t idle_since = hl_now_ns();
    while (len > 0) {
        ssize_t n = recv(fd, at, len < SEND_MAX ? len : SEND_MAX, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (n > 0) {
            at += n;
            len -= (uint64_t)n;
            idle_since = hl_now_ns();
        } else if (hl_now_ns() - idle_since > SPIN_NS) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            if (poll(&p, 1, silent_ms) <= 0)
                return -1;
        } else {
            sched_yield();
        }
    }
    return 0;
}

int bench_send_all(int fd, const void *data, uint64_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = send(fd, at, len < SEND_MAX ? len : SEND_MAX, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        len -= (uint64_t)n;
    }
    return 0;
}

static int serve_one(struct bench_tcp *t, const struct ask *ask, void *sink)
{
    if (ask->way == SWALLOW)
        return receive_all(t->served, sink, ask->size, SILENT_MS) == 0
                   ? bench_send_all(t->served, "", 1)
                   : -1;
    if (t->at + ask->size > t->len) /* uses the whole source, so that no cache has the next bytes */
        t->at = 0;
    if (bench_send_all(t->served, t->source + t->at, ask->size) != 0)
        return -1;
    t->at += (ask->size + 65535) & ~UINT64_C(65535);
    return 0;
}

/* The end of the run closes the other side; until then it may be silent. */
static void serve_asks(struct bench_tcp *t)
{
    struct ask ask;
    void *sink = NULL;
    while (receive_all(t->served, &ask, sizeof(ask), -1) == 0) {
        if (ask.way == SWALLOW && (sink = realloc(sink, ask.size)) == NULL)
            return;
        for (uint64_t i = 0; i < ask.count; i++)
            if (serve_one(t, &ask, sink) != 0)
                return;
    }
}

static hl_status start_server(struct bench_tcp *t)
{
    pid_t parent = getpid();
    t->server = fork();
    if (t->server < 0) {
        t->server = 0;
        return hl_fail(HL_ENOMEM, "starting a process: %s", strerror(errno));
    }
    if (t->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(t->fd);
        if (getppid() == parent)
            serve_asks(t);
        _exit(0);
    }
    close(t->served);
    t->served = -1;
    return HL_OK;
}

static hl_status connect_pair(struct bench_tcp *t)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int one = 1;
    t->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    t->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (t->listener < 0 || t->fd < 0 || bind(t->listener, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        listen(t->listener, 1) != 0 || getsockname(t->listener, (struct sockaddr *)&a, &len) != 0 ||
        connect(t->fd, (struct sockaddr *)&a, len) != 0)
        return hl_fail(HL_EIO, "a TCP pair on loopback: %s", strerror(errno));
    t->served = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC);
    if (t->served < 0)
        return hl_fail(HL_EIO, "a TCP pair on loopback: %s", strerror(errno));
    setsockopt(t->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(t->served, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return start_server(t);
}

hl_status bench_tcp_start(const unsigned char *source, uint64_t len, struct bench_tcp **out)
{
    struct bench_tcp *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a TCP pair");
    *t = (struct bench_tcp){.source = source, .len = len, .listener = -1, .fd = -1, .served = -1};
    hl_status st = connect_pair(t);
    if (st != HL_OK) {
        bench_tcp_stop(t);
        return st;
    }
    *out = t;
    return HL_OK;
}

void bench_tcp_stop(struct bench_tcp *t)
{
    if (t == NULL)
        return;
    const int fds[] = {t->fd, t->served, t->listener};
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (t->server > 0) {
        kill(t->server, SIGKILL);
        waitpid(t->server, NULL, 0);
    }
    free(t);
}

static hl_status fail_lost(void)
{
    return hl_fail(HL_EIO, "raw TCP: the peer closed the connection or does not answer");
}

static hl_status send_ask(struct bench_tcp *t, enum way way, uint64_t size, uint64_t count)
{
    struct ask ask = {.way = way, .size = size, .count = count};
    return bench_send_all(t->fd, &ask, sizeof(ask)) == 0 ? HL_OK : fail_lost();
}

hl_status bench_tcp_ask(struct bench_tcp *t, void *buf, uint64_t size)
{
    HL_TRY(send_ask(t, SERVE, size, 1));
    return receive_all(t->fd, buf, size, SILENT_MS) == 0 ? HL_OK : fail_lost();
}

hl_status bench_tcp_give(struct bench_tcp *t, const void *data, uint64_t size)
{
    char done;
    HL_TRY(send_ask(t, SWALLOW, size, 1));
    if (bench_send_all(t->fd, data, size) != 0 || receive_all(t->fd, &done, 1, SILENT_MS) != 0)
        return fail_lost();
    return HL_OK;
}

hl_status bench_tcp_stream(struct bench_tcp *t, void *buf, uint64_t size, unsigned count,
                           struct bench_samples *s)
{
    HL_TRY(send_ask(t, SERVE, size, count));
    uint64_t start = 0;
    for (unsigned i = 0; i < count; i++) {
        if (receive_all(t->fd, buf, size, SILENT_MS) != 0)
            return fail_lost();
        if (i == 0) /* this one waited for the request */
            start = hl_now_ns();
    }
    bench_add(s, (hl_now_ns() - start) / (count - 1));
    return HL_OK;
}
