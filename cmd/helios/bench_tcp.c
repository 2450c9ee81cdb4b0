/* The limit of the network path: a plain socket on loopback, one thread that writes from a source
 * as large as the pool's shards, so that it is as cold. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "helios/bench.h"

#define SEND_MAX  ((uint64_t)1 << 20)
#define SILENT_MS 10000

struct ask {
    uint64_t size;
    uint64_t count;
};

struct bench_tcp {
    const unsigned char *source;
    uint64_t len, at;
    int listener;
    int fd;     /* of the asking side */
    int served; /* of the serving side */
    pthread_t thread;
    int started;
};

static int transfer(int fd, void *data, uint64_t len, int sending)
{
    char *at = data;
    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (!sending && poll(&p, 1, SILENT_MS) <= 0)
            return -1;
        uint64_t n = len < SEND_MAX ? len : SEND_MAX;
        ssize_t done = sending ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        at += done;
        len -= (uint64_t)done;
    }
    return 0;
}

static void *serve(void *arg)
{
    struct bench_tcp *t = arg;
    struct ask ask;
    for (;;) {
        /* The end of the run closes the other side; until then silence is fine here. */
        ssize_t n = recv(t->served, &ask, sizeof(ask), MSG_WAITALL);
        if (n != (ssize_t)sizeof(ask))
            return NULL;
        for (uint64_t i = 0; i < ask.count; i++) {
            if (t->at + ask.size > t->len)
                t->at = 0;
            if (transfer(t->served, (void *)(t->source + t->at), ask.size, 1) != 0)
                return NULL;
            t->at += (ask.size + 65535) & ~UINT64_C(65535);
        }
    }
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
    if (pthread_create(&t->thread, NULL, serve, t) != 0)
        return hl_fail(HL_ENOMEM, "a thread can't be started");
    t->started = 1;
    return HL_OK;
}

hl_status bench_tcp_start(const unsigned char *source, uint64_t len, struct bench_tcp **out)
{
    struct bench_tcp *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "memory is short");
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
    if (t->fd >= 0)
        shutdown(t->fd, SHUT_RDWR);
    if (t->started)
        pthread_join(t->thread, NULL);
    const int fds[] = {t->fd, t->served, t->listener};
    for (size_t i = 0; i < HL_ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(t);
}

static hl_status send_ask(struct bench_tcp *t, uint64_t size, uint64_t count)
{
    struct ask ask = {.size = size, .count = count};
    if (transfer(t->fd, &ask, sizeof(ask), 1) != 0)
        return hl_fail(HL_EIO, "raw TCP: %s", strerror(errno));
    return HL_OK;
}

hl_status bench_tcp_ask(struct bench_tcp *t, void *buf, uint64_t size)
{
    HL_TRY(send_ask(t, size, 1));
    if (transfer(t->fd, buf, size, 0) != 0)
        return hl_fail(HL_EIO, "raw TCP: %s", strerror(errno));
    return HL_OK;
}

hl_status bench_tcp_stream(struct bench_tcp *t, void *buf, uint64_t size, unsigned count,
                           struct bench_samples *s)
{
    HL_TRY(send_ask(t, size, count));
    uint64_t before = hl_now_ns();
    for (unsigned i = 0; i < count; i++) {
        if (transfer(t->fd, buf, size, 0) != 0)
            return hl_fail(HL_EIO, "raw TCP: %s", strerror(errno));
        uint64_t now = hl_now_ns();
        if (i > 0) /* the first one waits for the question */
            bench_add(s, now - before);
        before = now;
    }
    return HL_OK;
}
