/* net/zmq/server.c - the receiving end: one thread, one ROUTER, one inbox.
 *
 * libzmq can't receive into our memory: a frame lands in a buffer of libzmq's and the inbox copies
 * it to its place, computing the CRC in the same pass. The credit bounds how many such buffers can
 * pile up. For peers that ignore it, the queue limit does, and the watch ends a message without
 * end.
 *
 *     libzmq's threads        serve_migrations                     any thread
 *     sockets of peers -->    take_parts --> inbox --> send_reply    address: constant
 *     monitor, `told` -->     hl_mig_watch_take                      stats: atomics of the inbox
 *                             every TICK_MS: hl_mig_inbox_expire     stop: `stopping`, wake_fd
 *
 * A ZMQ socket may be used by one thread at a time. `sock` and `watch` belong to the starting
 * thread until pthread_create, to the server's thread until pthread_join, and then to the stopping
 * thread. All of these threads only carry moves, and yield the processor to threads that serve
 * reads.
 *
 * A message has three parts: the routing id of the peer, the header, and the payload if there is
 * one. The answer goes back under the same routing id. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "net/addr.h"
#include "net/zmq/inbox.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"
#include "os/background.h"

#define QUEUE_MAX  64  /* messages per peer in the kernel and libzmq */
#define TICK_MS    100 /* how often abandoned migrations are searched for */
#define PARTS      3   /* routing id, header, payload */
#define RESOLVE_MS 3000
#define BACKLOG    1024

#define LEAST_CONNECTIONS 64
#define MOST_CONNECTIONS  4096

struct hl_migrate_server {
    struct hl_mig_inbox *inbox;
    void *ctx;
    void *sock;                /* the thread's while it runs */
    struct hl_mig_watch watch; /* likewise */
    int wake_fd;               /* readable when the thread has to stop */
    bool running;
    pthread_t thread;
    atomic_bool stopping;
    char address[HL_ADDR_TEXT_MAX];
};

struct parts {
    zmq_msg_t msg[PARTS];
    int count; /* parts that were sent; only the first PARTS are kept */
};

/* Takes one whole message; returns false if there is none. */
static bool take_parts(void *sock, struct parts *p)
{
    int more = 1;
    p->count = 0;
    while (more) {
        zmq_msg_t extra, *msg = p->count < PARTS ? &p->msg[p->count] : &extra;
        zmq_msg_init(msg);
        if (zmq_msg_recv(msg, sock, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(msg);
            return p->count > 0;
        }
        more = zmq_msg_more(msg);
        if (msg == &extra)
            zmq_msg_close(msg);
        p->count++;
    }
    return true;
}

static void free_parts(struct parts *p)
{
    for (int i = 0; i < p->count && i < PARTS; i++)
        zmq_msg_close(&p->msg[i]);
}

static void send_reply(struct hl_migrate_server *s, zmq_msg_t *to, const struct hl_mig_reply *r)
{
    /* A peer that has gone or does not read loses its answer; it will ask again. */
    if (zmq_msg_send(to, s->sock, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        hl_mig_post(s->sock, &r->frame, r->payload, NULL) != HL_OK)
        hl_debug("migration receiver: an answer was not sent: %s", zmq_strerror(errno));
}

static void on_message(struct hl_migrate_server *s, struct parts *p)
{
    struct hl_mig_reply reply;
    if (p->count > 1)
        hl_mig_watch_heard(&s->watch, zmq_msg_get(&p->msg[1], ZMQ_SRCFD));
    if (p->count != 2 && p->count != PARTS) {
        hl_mig_inbox_count_refused(s->inbox);
        return;
    }
    zmq_msg_t *header = &p->msg[1], *payload = p->count == PARTS ? &p->msg[2] : NULL;
    hl_mig_inbox_message(s->inbox, zmq_msg_data(header), zmq_msg_size(header),
                         payload != NULL ? zmq_msg_data(payload) : NULL,
                         payload != NULL ? zmq_msg_size(payload) : 0, hl_now_ns(), &reply);
    if (reply.send)
        send_reply(s, &p->msg[0], &reply);
}

/* The socket is read before it is polled, and polled only when it was empty: while frames arrive,
 * no system call is spent on polling. Each turn takes one message, so refused connections and
 * silent migrations are handled under full load too. */
static void *serve_migrations(void *arg)
{
    struct hl_migrate_server *s = arg;
    struct parts p;
    hl_background_enter();
    uint64_t next_tick = hl_now_ns();
    while (!atomic_load_explicit(&s->stopping, memory_order_acquire)) {
        zmq_pollitem_t items[] = {{.socket = s->sock, .events = ZMQ_POLLIN},
                                  {.socket = s->watch.told, .events = ZMQ_POLLIN},
                                  {.fd = s->wake_fd, .events = ZMQ_POLLIN}};
        if (take_parts(s->sock, &p)) {
            on_message(s, &p);
            free_parts(&p);
        } else {
            zmq_poll(items, HL_ARRAY_LEN(items), TICK_MS);
        }
        hl_mig_inbox_add_refused(s->inbox, hl_mig_watch_take(&s->watch));
        if (hl_now_ns() >= next_tick) {
            hl_mig_inbox_expire(s->inbox, hl_now_ns());
            hl_mig_watch_tend(&s->watch);
            next_tick = hl_now_ns() + TICK_MS * HL_NS_PER_MS;
        }
    }
    return NULL;
}

/* libzmq starts its threads with a context's first socket, and they inherit the priority of the
 * thread that makes it. */
static void *context_begin(void *ctx)
{
    hl_background_enter();
    void *first = zmq_socket(ctx, ZMQ_PAIR);
    if (first != NULL)
        zmq_close(first);
    return NULL;
}

static hl_status context_start(struct hl_migrate_server *s, int io_threads)
{
    pthread_t thread;
    HL_TRY(hl_mig_context(io_threads, &s->ctx));
    if ((errno = pthread_create(&thread, NULL, context_begin, s->ctx)) != 0)
        return hl_fail(HL_EIO, "migration receiver: starting libzmq's threads: %m");
    pthread_join(thread, NULL);
    return HL_OK;
}

/* A quarter of the descriptors that the process may have: its files and other servers need some. */
static unsigned connections_by_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 4 > MOST_CONNECTIONS)
        return MOST_CONNECTIONS;
    return files.rlim_cur / 4 < LEAST_CONNECTIONS ? LEAST_CONNECTIONS
                                                  : (unsigned)(files.rlim_cur / 4);
}

/* A connection carries one migration at a time: its credit, and what was sent before there was any.
 * Twice that is a peer that keeps to none. */
static struct hl_mig_watch watch_limits(const struct hl_migrate_server_opts *o)
{
    uint64_t window = o->window_bytes > 0 ? o->window_bytes : HL_MIG_WINDOW;
    uint64_t each = 2 * window + 4 * (uint64_t)HL_MIG_CHUNK_MAX;
    unsigned open = o->max_open > 0 ? o->max_open : HL_MIG_MAX_OPEN;
    return (struct hl_mig_watch){
        .most = o->max_connections > 0 ? o->max_connections : connections_by_limit(),
        .unread_each = each,
        .unread_all = open * each,
    };
}

/* Binds, and learns the port if any was requested; the host stays as it was written. */
static hl_status bind_to(struct hl_migrate_server *s, const struct hl_migrate_server_opts *o)
{
    char endpoint[HL_MIG_ENDPOINT_MAX], bound[HL_MIG_ENDPOINT_MAX];
    size_t len = sizeof(bound);
    int v6, queue = QUEUE_MAX, backlog = BACKLOG;
    struct hl_addr a;
    HL_TRY(hl_addr_resolve(o->listen, RESOLVE_MS, &a));
    HL_TRY(hl_mig_endpoint(o->listen, RESOLVE_MS, endpoint, &v6));
    HL_TRY(hl_mig_socket(s->ctx, ZMQ_ROUTER, v6, &s->sock));
    s->watch = watch_limits(o);
    HL_TRY(hl_mig_watch_start(&s->watch, s->ctx, s->sock));
    if (zmq_setsockopt(s->sock, ZMQ_RCVHWM, &queue, sizeof(queue)) != 0 ||
        zmq_setsockopt(s->sock, ZMQ_BACKLOG, &backlog, sizeof(backlog)) != 0 ||
        zmq_bind(s->sock, endpoint) != 0 ||
        zmq_getsockopt(s->sock, ZMQ_LAST_ENDPOINT, bound, &len) != 0)
        return hl_fail(HL_EUNAVAIL,
                       "migration receiver: listening on %s: %s; is another program using it?",
                       o->listen, zmq_strerror(errno));
    struct hl_host_port x;
    HL_TRY(hl_host_port_split(bound + strlen("tcp://"), &x));
    s->watch.port = x.port;
    hl_addr_format(&a, x.port, s->address);
    return HL_OK;
}

hl_status hl_migrate_server_start(const struct hl_migrate_server_opts *opts,
                                  struct hl_migrate_server **out)
{
    if (opts->listen == NULL || opts->listen[0] == '\0')
        return hl_fail(HL_EINVAL, "migration receiver: no listen address; use \"host:port\"");
    struct hl_migrate_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "migration receiver: out of memory");
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    hl_status st = HL_OK;
    if (s->wake_fd < 0)
        st = hl_fail(HL_EIO, "migration receiver: eventfd: %m");
    if (st == HL_OK)
        st = hl_mig_inbox_create(opts, &s->inbox);
    if (st == HL_OK)
        st = context_start(s, opts->io_threads);
    if (st == HL_OK)
        st = bind_to(s, opts);
    if (st == HL_OK && (errno = pthread_create(&s->thread, NULL, serve_migrations, s)) != 0)
        st = hl_fail(HL_EIO, "migration receiver: starting the thread: %m");
    s->running = st == HL_OK;
    if (st != HL_OK) {
        hl_migrate_server_stop(s);
        return st;
    }
    *out = s;
    return HL_OK;
}

const char *hl_migrate_server_address(const struct hl_migrate_server *server)
{
    return server->address;
}

void hl_migrate_server_stats(const struct hl_migrate_server *server,
                             struct hl_migrate_server_stats *out)
{
    hl_mig_inbox_stats(server->inbox, out);
}

/* Also stops a server whose set-up failed: what is NULL was not reached. The thread is joined
 * before its resources are closed, and the socket is closed before its watch and its context, which
 * waits for it. The inbox comes last: it tells the sink to abort what is unfinished. */
void hl_migrate_server_stop(struct hl_migrate_server *s)
{
    if (s == NULL)
        return;
    if (s->running) {
        uint64_t one = 1;
        atomic_store_explicit(&s->stopping, true, memory_order_release);
        if (write(s->wake_fd, &one, sizeof(one)) < 0)
            hl_debug("migration receiver: waking the thread: %m");
        pthread_join(s->thread, NULL);
    }
    if (s->sock != NULL)
        zmq_close(s->sock);
    hl_mig_watch_stop(&s->watch);
    hl_mig_context_term(s->ctx);
    hl_mig_inbox_destroy(s->inbox);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    free(s);
}
