/* net/ucx/server.c - listener and progress thread of the UCX server.
 *
 * Only this thread uses the worker. It spins for spin_us after the last event, because an answer
 * takes only microseconds, and then sleeps on the worker's event descriptor. Other threads reach it
 * only through `stopping`, the put worker's finished jobs and wake_fd.
 *
 *     spinning --spin_us without an event--> sleeping (sleeps = 1)
 *        ^                                      |  UCX's event: a message, a completion
 *        |                                      |  wake_fd: hand_back, or a stop
 *        '--------------------------------------'  HL_UCX_NAP_NS: housekeeping
 *
 * A stop joins the thread first. From then on the stop's caller drives the worker, so one thread
 * uses UCX at any time. Everything ends in the order that UCX 1.13 needs: peers, put worker,
 * listener, worker.
 *
 *     step of the stop        UCX's callbacks run in    the put handler is called by
 *     stopping, wake_fd       the progress thread       the put worker
 *     join, close_peers       the stop's caller         the put worker
 *     put worker is ended     (none)                    the put worker: its queue to the end
 *     listener, worker go     the stop's caller         (none)
 *     what is left is freed   (none)                    the stop's caller: abort of what is left
 *
 * Each wait has a limit: CLOSE_MAX_NS for peers, for answers, and for silence. Only the put handler
 * itself has none: its owner must end a call that waits for room. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/ucx/server.h"

#define RESOLVE_MS     3000
#define CLOSE_MAX_NS   (2 * HL_NS_PER_S)
#define QUIET_NS       (20 * HL_NS_PER_MS)
#define ACCEPT_AT_ONCE 16

/* Called inside ucp_worker_progress, where no endpoint may be made: the request is recorded, and
 * accepted later. `stopping` may be read late: close_peers accepts what is left, to close it. */
static void on_conn_request(ucp_conn_request_h request, void *arg)
{
    struct hl_net_server *s = arg;
    bool late = atomic_load_explicit(&s->stopping, memory_order_relaxed);
    struct hl_ucx_pending_conn *k = late ? NULL : malloc(sizeof(*k));
    s->last_conn_ns = hl_now_ns();
    if (k == NULL) {
        ucp_listener_reject(s->listener, request);
        return;
    }
    k->request = request;
    DL_APPEND(s->pending_conns, k);
}

/* Called outside of any callback, where endpoints may be made. Accepts a few at a time, so that the
 * HELLO of peers is received in between. */
static void accept_some(struct hl_net_server *s)
{
    for (int i = 0; i < ACCEPT_AT_ONCE && s->pending_conns != NULL; i++) {
        struct hl_ucx_pending_conn *k = s->pending_conns;
        DL_DELETE(s->pending_conns, k);
        hl_ucx_peer_accept(s, k->request);
        free(k);
    }
}

/* Called every HL_UCX_NAP_NS, and at once when a peer failed (`attention`). */
static void tend_server(struct hl_net_server *s, uint64_t now, uint64_t *next_tick)
{
    if (!s->attention && now < *next_tick)
        return;
    if (now >= *next_tick) {
        *next_tick = now + HL_UCX_NAP_NS;
        hl_ucx_puts_tend(s, now);
    }
    s->attention = false;
    if (hl_ucx_peers_tend(s, now) > 0)
        s->attention = true;
}

/* No wake-up is lost: `sleeps` is stored before `finished` is loaded, and the put worker stores
 * `finished` before it loads `sleeps` (hand_back). One of the two sees the other's store. That
 * needs all four to be sequentially consistent, as they are by default.
 *
 *     this thread      sleeps = 1; finished? 0: poll        finished? 1: no nap
 *     put worker       finished + 1; sleeps? 1: write       sleeps? 0: no write
 *
 * The eventfd is read after the nap, so a write that comes too late only costs one empty round. */
static void sleep_on_worker(struct hl_net_server *s)
{
    uint64_t count;
    atomic_store(&s->sleeps, true);
    if (atomic_load(&s->put_worker.finished) == 0) {
        hl_ucx_nap(&s->ucx, s->wake_fd, HL_UCX_NAP_NS);
        (void)!read(s->wake_fd, &count, sizeof(count));
    }
    atomic_store(&s->sleeps, false);
}

/* Pauses for a client's self-test (path.c): a read that completes during the pause did not need
 * this thread. The pause itself is the test, so there is no event to wait for. */
static void stand_still(struct hl_net_server *s)
{
    struct timespec t = {0, (long)s->pause_ms * 1000000l};
    s->pause_ms = 0;
    nanosleep(&t, NULL);
}

/* One round: UCX's events, new connections, puts that arrived or were executed, housekeeping; then
 * it spins or sleeps. Nothing in it waits for a peer or for the put handler. */
static void *server_main(void *arg)
{
    struct hl_net_server *s = arg;
    uint64_t next_tick = 0;
    uint64_t idle_since = 0;
    while (!atomic_load_explicit(&s->stopping, memory_order_acquire)) {
        unsigned events = ucp_worker_progress(s->ucx.worker);
        uint64_t now = hl_now_ns();
        accept_some(s);
        if (events > 0)
            hl_ucx_puts_collect(s);
        hl_ucx_puts_answer(s);
        tend_server(s, now, &next_tick);
        if (s->pause_ms > 0)
            stand_still(s);
        if (events > 0 || s->pending_conns != NULL)
            idle_since = now;
        else if (now - idle_since > s->ucx.spin_ns)
            sleep_on_worker(s);
        else
            sched_yield(); /* a client on this host may be waiting for this CPU */
    }
    return NULL;
}

/* Answers what the put worker stores: otherwise its sender would consider it lost. Nothing new is
 * received. */
static void answer_executed(struct hl_net_server *s, uint64_t limit_ns)
{
    hl_ucx_puts_answer(s);
    while (hl_ucx_puts_executing(s) && hl_now_ns() < limit_ns) {
        sched_yield();
        hl_ucx_puts_answer(s);
    }
}

/* The thread has ended: from here on the stop's caller drives the worker. */
static void close_peers(struct hl_net_server *s)
{
    uint64_t limit = hl_now_ns() + CLOSE_MAX_NS;
    answer_executed(s, limit);
    while (s->pending_conns != NULL)
        accept_some(s);
    for (struct hl_ucx_peer *p = s->peers; p != NULL; p = p->next)
        hl_ucx_peer_fail(p, "server is shutting down");
    while ((hl_ucx_peers_tend(s, hl_now_ns()) > 0 || s->puts != NULL) && hl_now_ns() < limit) {
        if (ucp_worker_progress(s->ucx.worker) == 0)
            sched_yield();
        hl_ucx_puts_answer(s);
    }
}

/* UCX 1.13 calls a listener that no longer exists when a connection that it took over identifies
 * itself later. Clients that were just closed reconnect at once, so they are refused first. The
 * steps that closed peers left to the worker's progress are done meanwhile. */
static void refuse_late_ones(struct hl_net_server *s)
{
    uint64_t limit = hl_now_ns() + CLOSE_MAX_NS;
    s->last_conn_ns = hl_now_ns();
    while (hl_now_ns() - s->last_conn_ns < QUIET_NS && hl_now_ns() < limit)
        if (ucp_worker_progress(s->ucx.worker) == 0)
            sched_yield();
}

/* The key and the registration are released before their context. */
static void close_worker(struct hl_net_server *s)
{
    if (s->key != NULL)
        ucp_rkey_buffer_release(s->key);
    if (s->memory != NULL)
        ucp_mem_unmap(s->ucx.context, s->memory);
    s->key = NULL;
    s->memory = NULL;
    hl_ucx_fini(&s->ucx);
}

/* `stopping` is stored before wake_fd is written, so the thread sees it when it wakes. Peers are
 * closed while the put worker still runs, so what it executes is answered. Then the put worker
 * ends, and after that no thread uses their memory. */
void hl_ucx_server_stop(struct hl_net_server *s)
{
    if (s->running) {
        uint64_t one = 1;
        atomic_store_explicit(&s->stopping, true, memory_order_release);
        if (write(s->wake_fd, &one, sizeof(one)) < 0)
            hl_debug("net server: waking the thread: %m");
        pthread_join(s->thread, NULL);
    }
    if (s->ucx.worker != NULL)
        close_peers(s);
    hl_ucx_put_worker_stop(&s->put_worker);
    if (s->listener != NULL) { /* closed last before its worker */
        refuse_late_ones(s);
        ucp_listener_destroy(s->listener);
    }
    close_worker(s);
    hl_ucx_puts_free(s);
    if (s->summing != 0)
        ucp_dt_destroy(s->summing);
    hl_ucx_peers_free(s);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    hl_ucx_put_worker_fini(&s->put_worker);
    pthread_mutex_destroy(&s->door);
    free(s);
}

/* Registering gives clients a key to read the pool. Without verbs it is not handed out, because
 * UCX's emulated get serves any address of this process to any client. */
static hl_status export_pool(struct hl_net_server *s)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT,
        .address = s->opts.pool,
        .length = s->opts.pool_len,
        .prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE |
                UCP_MEM_MAP_PROT_REMOTE_READ,
    };
    ucs_status_t status = ucp_mem_map(s->ucx.context, &params, &s->memory);
    if (status == UCS_OK)
        status = ucp_rkey_pack(s->ucx.context, s->memory, &s->key, &s->key_len);
    if (status != UCS_OK)
        return hl_fail(HL_ENOMEM,
                       "registering the pool of %zu bytes with the network adapter: %s; check the "
                       "limit of locked memory (ulimit -l)",
                       s->opts.pool_len, ucs_status_string(status));
    if (s->key_len > HL_WIRE_TEXT_MAX)
        return hl_fail(HL_EINTERNAL, "the pool's key has %zu bytes, more than %d", s->key_len,
                       HL_WIRE_TEXT_MAX);
    return HL_OK;
}

/* Binds once without UCX, which reports all causes alike. */
static hl_status try_address(const struct hl_net_server *s, const struct hl_addr *addr)
{
    int one = 1;
    int fd = socket(addr->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return hl_addr_listen_failed(s->opts.listen, errno);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    hl_status st = HL_OK;
    if (bind(fd, (const struct sockaddr *)&addr->sa, addr->len) != 0 || listen(fd, 1) != 0)
        st = hl_addr_listen_failed(s->opts.listen, errno);
    close(fd);
    return st;
}

static hl_status open_listener(struct hl_net_server *s, const struct hl_addr *addr)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)&addr->sa, .addrlen = addr->len},
        .conn_handler = {.cb = on_conn_request, .arg = s},
    };
    ucs_status_t status = ucp_listener_create(s->ucx.worker, &params, &s->listener);
    if (status != UCS_OK)
        return hl_fail(HL_EUNAVAIL, "listen on %s: %s", s->opts.listen, ucs_status_string(status));
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    status = ucp_listener_query(s->listener, &attr);
    if (status != UCS_OK)
        return hl_fail(HL_EINTERNAL, "asking UCX for the listener's port: %s",
                       ucs_status_string(status));
    struct hl_addr real = *addr;
    real.sa = attr.sockaddr;
    s->port = hl_addr_port(&real);
    hl_addr_format(addr, hl_addr_port(&real), s->address);
    return HL_OK;
}

static hl_status open_worker(struct hl_net_server *s, const char *device, const char *devices)
{
    struct hl_ucx_opts ucx = {.device = device,
                              .devices = devices,
                              .verbs = devices != NULL,
                              .listens = true,
                              .spin_us = s->opts.spin_us};
    ucx.rma = s->opts.mode == HL_NET_GET || (s->opts.mode != HL_NET_ASK && ucx.verbs);
    HL_TRY(hl_ucx_init(&s->ucx, &ucx));
    if (ucx.rma)
        HL_TRY(export_pool(s));
    HL_TRY(hl_ucx_puts_prepare(s));
    return hl_ucx_listen_to(&s->ucx, hl_ucx_on_message, s);
}

static hl_status start_threads(struct hl_net_server *s)
{
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return hl_fail(HL_EIO, "net server: eventfd: %m");
    s->put_worker.wake_fd = s->wake_fd;
    s->put_worker.server_sleeps = &s->sleeps;
    s->put_worker.spin_ns =
        s->ucx.spin_ns; /* a single put waits for both threads: neither may sleep first */
    HL_TRY(hl_ucx_put_worker_start(&s->put_worker));
    if (pthread_create(&s->thread, NULL, server_main, s) != 0)
        return hl_fail(HL_ENOMEM, "net server: starting its thread: %m");
    s->running = true;
    return HL_OK;
}

static hl_status set_up_listener(struct hl_net_server *s)
{
    struct hl_addr addr;
    char device[IF_NAMESIZE];
    HL_TRY(hl_addr_resolve(s->opts.listen, RESOLVE_MS, &addr));
    HL_TRY(hl_ucx_check_family(&addr));
    HL_TRY(try_address(s, &addr));
    hl_addr_device((const struct sockaddr *)&addr.sa, device);
    HL_TRY(open_worker(s, device, NULL));
    HL_TRY(open_listener(s, &addr));
    return start_threads(s);
}

static void forget_port(struct hl_addr *addr)
{
    ((struct sockaddr_in *)&addr->sa)->sin_port = 0;
}

static hl_status set_up_rdma(struct hl_net_server *s, const char *device, const char *devices)
{
    struct hl_addr addr;
    s->asks_ticket = true;
    HL_TRY(hl_addr_resolve(s->opts.listen, RESOLVE_MS, &addr));
    HL_TRY(hl_ucx_check_family(&addr));
    forget_port(&addr);
    HL_TRY(open_worker(s, device, devices));
    HL_TRY(open_listener(s, &addr));
    return start_threads(s);
}

static struct hl_net_server *server_new(const struct hl_net_server_opts *opts, struct hl_id id)
{
    struct hl_net_server *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        (void)hl_fail(HL_ENOMEM, "net server on %s: out of memory", opts->listen);
        return NULL;
    }
    s->opts = *opts;
    s->wake_fd = -1;
    s->ucx.efd = -1;
    s->id = id;
    s->sink =
        (struct hl_put_sink){.handler = &s->opts.put, .counts = &s->counts, .address = s->address};
    pthread_mutex_init(&s->door, NULL);
    hl_ucx_put_worker_init(&s->put_worker);
    return s;
}

static hl_status finish_start(struct hl_net_server *s, hl_status st, struct hl_net_server **out)
{
    if (st != HL_OK) {
        hl_ucx_server_stop(s);
        return st;
    }
    s->opts.listen = s->address;
    *out = s;
    return HL_OK;
}

hl_status hl_ucx_server_new_rdma(const struct hl_net_server_opts *opts, const char *device,
                                 const char *devices, struct hl_id id, struct hl_net_server **out)
{
    struct hl_net_server *s = server_new(opts, id);
    return s != NULL ? finish_start(s, set_up_rdma(s, device, devices), out) : HL_ENOMEM;
}

hl_status hl_ucx_server_new(const struct hl_net_server_opts *opts, struct hl_net_server **out)
{
    struct hl_net_server *s = server_new(opts, hl_id_random());
    return s != NULL ? finish_start(s, set_up_listener(s), out) : HL_ENOMEM;
}

const char *hl_ucx_server_address(const struct hl_net_server *s)
{
    return s->address;
}

void hl_ucx_server_stats(const struct hl_net_server *s, struct hl_net_server_stats *out)
{
    hl_net_counts_read(&s->counts, out);
}
