/* net/tcp/server.c - starting and stopping the TCP server; server.h says how it works.
 *
 * A stop ends the threads in the order in which they depend on each other:
 *
 *     stopping = true, `moved` broadcast     puts that wait for a place give up
 *     wake_fd, join                          the gate: no more accepts and admissions
 *     hl_tcp_conns_stop, join                the connections, after their last answers
 *
 * `stopping` is set under `lock`, so a put that has just checked it is already waiting when the
 * broadcast comes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/tcp/server.h"
#include "os/cond.h"

#define RESOLVE_MS 3000
#define BACKLOG    1024

static hl_status open_listener(struct hl_net_server *s)
{
    struct hl_addr addr, real;
    int one = 1;
    HL_TRY(hl_addr_resolve(s->opts.listen, RESOLVE_MS, &addr));
    s->listener = socket(addr.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0)
        return hl_addr_listen_failed(s->opts.listen, errno);
    setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    real = addr;
    if (bind(s->listener, (const struct sockaddr *)&addr.sa, addr.len) != 0 ||
        listen(s->listener, BACKLOG) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&real.sa, &real.len) != 0)
        return hl_addr_listen_failed(s->opts.listen, errno);
    hl_addr_format(&addr, hl_addr_port(&real), s->address);
    return HL_OK;
}

/* The gate's thread starts last, because it uses everything made before. */
static hl_status set_up(struct hl_net_server *s)
{
    HL_TRY(open_listener(s));
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return hl_fail(HL_EIO, "net server on %s: eventfd: %m", s->address);
    int error = pthread_create(&s->gate, NULL, hl_tcp_gate_run, s);
    if (error != 0)
        return hl_fail(HL_ENOMEM, "net server on %s: starting its thread: %s", s->address,
                       strerror(error));
    s->running = true;
    return HL_OK;
}

/* The gate checks `stopping` after each ppoll; the write wakes one that waits. */
static void stop_gate(struct hl_net_server *s)
{
    uint64_t one = 1;
    if (!s->running)
        return;
    if (write(s->wake_fd, &one, sizeof(one)) < 0)
        hl_debug("net server on %s: waking its thread: %m", s->address);
    pthread_join(s->gate, NULL);
}

/* Also stops a server whose set-up failed: what does not run is skipped. */
void hl_tcp_server_stop(struct hl_net_server *s)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->stopping, true);
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    stop_gate(s);
    if (s->listener >= 0)
        close(s->listener);
    hl_tcp_conns_stop(s);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->handler);
    free(s);
}

hl_status hl_tcp_server_new(const struct hl_net_server_opts *opts, const struct hl_tcp_rdma *rdma,
                            struct hl_id id, struct hl_net_server **out)
{
    struct hl_net_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "net server on %s: out of memory", opts->listen);
    s->opts = *opts;
    s->id = id;
    s->spin_ns = (uint64_t)(opts->spin_us > 0 ? opts->spin_us : 0) * 1000;
    if (rdma != NULL)
        s->rdma = *rdma;
    s->listener = s->wake_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->handler, NULL);
    s->sink = (struct hl_put_sink){
        .handler = &s->opts.put, .lock = &s->handler, .counts = &s->counts, .address = s->address};
    hl_cond_init(&s->moved);
    hl_status st = set_up(s);
    if (st != HL_OK) {
        hl_tcp_server_stop(s);
        return st;
    }
    s->opts.listen = s->address;
    *out = s;
    return HL_OK;
}

const char *hl_tcp_server_address(const struct hl_net_server *s)
{
    return s->address;
}

void hl_tcp_server_stats(const struct hl_net_server *s, struct hl_net_server_stats *out)
{
    hl_net_counts_read(&s->counts, out);
}
