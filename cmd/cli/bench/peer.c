/* The receiving process. The rate of plain TCP between the two processes, with the same source and
 * destination memory, is the limit for everything else that they transfer. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/bench/peer.h"
#include "net/zmq/migrate.h"

#define PIECE     ((uint64_t)1 << 20) /* size of one recv */
#define SILENT_MS 20000

/* What the child writes to its parent as soon as it serves. */
struct hello {
    char migrate[64];
    unsigned raw_port;
};

static int receive_all(int fd, void *data, uint64_t len)
{
    char *at = data;
    while (len > 0) {
        uint64_t n = len < PIECE ? len : PIECE;
        ssize_t done = recv(fd, at, n, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        at += done;
        len -= (uint64_t)done;
    }
    return 0;
}

/* ---- the child ---- */

static hl_status sink_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct bench_peer *p = arg;
    (void)id;
    if (size > p->room)
        return hl_fail(HL_ENOSPC, "the peer has room for %llu bytes", (unsigned long long)p->room);
    *token = p;
    *ptr = p->memory;
    return HL_OK;
}

static hl_status sink_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                             size_t count, struct hl_id *id)
{
    (void)arg;
    (void)token;
    *id = (struct hl_id){crc, count > 0 ? chunk_crcs[0] : 0};
    return HL_OK;
}

static void sink_abort(void *arg, void *token)
{
    (void)arg;
    (void)token;
}

/* The protocol of the plain connection: a size of 8 bytes in host order, that many bytes, and one
 * byte back once all of them are in `memory`. */
struct raw_sink {
    struct bench_peer *peer;
    int listener;
};

static void *raw_serve(void *arg)
{
    struct raw_sink *s = arg;
    uint64_t size;
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
    if (fd < 0)
        return NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    while (receive_all(fd, &size, sizeof(size)) == 0 && size <= s->peer->room &&
           receive_all(fd, s->peer->memory, size) == 0 && bench_send_all(fd, &(char){1}, 1) == 0)
        ;
    close(fd);
    return NULL;
}

static int raw_listen(unsigned *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return -1;
    *port = ntohs(a.sin_port);
    return fd;
}

/* Serves until the parent is gone. It never returns and leaves only by _exit, because this process
 * has a copy of the parent's stdio with its unwritten data. */
static void peer_main(struct bench_peer *p, uint64_t window, int io_threads, int tell)
{
    struct hl_migrate_server *server;
    struct hl_migrate_server_opts o = {.listen = "127.0.0.1:0",
                                       .sink = {sink_begin, sink_commit, sink_abort, p},
                                       .window_bytes = window,
                                       .io_threads = io_threads};
    struct hello hello = {0};
    struct raw_sink raw = {.peer = p};
    pthread_t thread;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raw.listener = raw_listen(&hello.raw_port);
    if (raw.listener < 0 || hl_migrate_server_start(&o, &server) != HL_OK ||
        pthread_create(&thread, NULL, raw_serve, &raw) != 0)
        _exit(1);
    snprintf(hello.migrate, sizeof(hello.migrate), "%s", hl_migrate_server_address(server));
    if (write(tell, &hello, sizeof(hello)) != (ssize_t)sizeof(hello))
        _exit(1);
    for (;;)
        pause();
}

/* ---- the parent ---- */

static hl_status connect_raw(struct bench_peer *p)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)p->raw_port)};
    struct timeval limit = {.tv_sec = SILENT_MS / 1000};
    int one = 1;
    p->raw_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->raw_fd < 0 || connect(p->raw_fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        return hl_fail(HL_EIO, "a TCP connection to the peer: %s", strerror(errno));
    setsockopt(p->raw_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(p->raw_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(p->raw_fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    return HL_OK;
}

/* Shared, touched memory, on huge pages where available for shared memory: like a pool. */
static hl_status map_room(struct bench_peer *p, uint64_t room)
{
    void *m = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes", (unsigned long long)room);
    p->memory = m;
    p->room = room;
    (void)madvise(m, room, MADV_HUGEPAGE);
    memset(m, 0, room);
    return HL_OK;
}

static hl_status start_peer(struct bench_peer *p, uint64_t window, int io_threads)
{
    int tell[2];
    struct hello hello;
    if (pipe2(tell, O_CLOEXEC) != 0)
        return hl_fail(HL_EIO, "pipe: %s", strerror(errno));
    p->pid = fork();
    if (p->pid == 0)
        peer_main(p, window, io_threads, tell[1]);
    close(tell[1]);
    struct pollfd ready = {.fd = tell[0], .events = POLLIN};
    bool ok = p->pid > 0 && poll(&ready, 1, SILENT_MS) == 1 &&
              read(tell[0], &hello, sizeof(hello)) == (ssize_t)sizeof(hello);
    close(tell[0]);
    if (!ok)
        return hl_fail(HL_EUNAVAIL, "the receiving process did not start");
    memcpy(p->migrate, hello.migrate, sizeof(p->migrate));
    p->raw_port = hello.raw_port;
    return connect_raw(p);
}

hl_status bench_peer_start(uint64_t room, uint64_t window, int io_threads, struct bench_peer *out)
{
    struct bench_peer p = {.raw_fd = -1};
    hl_status st = map_room(&p, room);
    if (st == HL_OK)
        st = start_peer(&p, window, io_threads);
    if (st != HL_OK) {
        bench_peer_stop(&p);
        return st;
    }
    *out = p;
    return HL_OK;
}

void bench_peer_stop(struct bench_peer *p)
{
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        if (p->raw_fd >= 0)
            close(p->raw_fd);
    }
    if (p->memory != NULL)
        munmap(p->memory, p->room);
    *p = (struct bench_peer){.raw_fd = -1};
}

hl_status bench_peer_raw(struct bench_peer *p, const void *data, uint64_t size)
{
    char done;
    if (bench_send_all(p->raw_fd, &size, sizeof(size)) != 0 ||
        bench_send_all(p->raw_fd, data, size) != 0 || receive_all(p->raw_fd, &done, 1) != 0)
        return hl_fail(HL_EIO, "plain TCP to the peer: %s", strerror(errno));
    return HL_OK;
}
