/* net/dispatch/auto.c - TCP for every client, RDMA between two hosts that both have it.
 *
 * The TCP server admits clients of both kinds. A client that has RDMA too sends MEET and gets a
 * ticket and the port at which UCX listens with the RDMA connection manager, which is not a TCP
 * port. So UCX reads no byte from TCP. The client keeps its TCP connection until RDMA is found to
 * work, and continues with it otherwise.
 *
 *     TCP connections' threads --begin, commit, abort--.
 *     the put worker (RDMA) --begin, commit, abort------+--one_call--> the caller's handler
 *
 * A handler is promised one call at a time (net.h). Each server keeps that promise by itself, and
 * `one_call` keeps it for both together. Lock order: TCP's handler lock, then this one; both are
 * held only for the call. */
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/addr.h"
#include "net/tcp/tcp.h"
#include "net/ucx/ucx.h"

#define RESOLVE_MS 3000

/* ---- the server ---- */

struct hl_net_server {
    const struct hl_net_ops *ops;
    struct hl_net_server *tcp, *rdma; /* rdma: NULL if this host has none */
    struct hl_net_put_handler put;    /* the caller's */
    pthread_mutex_t one_call;         /* held around calls of it, as both servers make them */
};

static hl_status put_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct hl_net_server *s = arg;
    pthread_mutex_lock(&s->one_call);
    hl_status st = s->put.begin(s->put.arg, id, size, token, ptr);
    pthread_mutex_unlock(&s->one_call);
    return st;
}

static hl_status put_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                            size_t chunk_count, struct hl_id *id)
{
    struct hl_net_server *s = arg;
    pthread_mutex_lock(&s->one_call);
    hl_status st = s->put.commit(s->put.arg, token, crc, chunk_crcs, chunk_count, id);
    pthread_mutex_unlock(&s->one_call);
    return st;
}

static void put_abort(void *arg, void *token)
{
    struct hl_net_server *s = arg;
    pthread_mutex_lock(&s->one_call);
    s->put.abort(s->put.arg, token);
    pthread_mutex_unlock(&s->one_call);
}

static void meet_client(void *arg, unsigned *port, struct hl_id *ticket)
{
    struct hl_net_server *s = arg;
    hl_ucx_server_meet(s->rdma, port, ticket);
}

/* An unusable adapter must not prevent reads of the pool over TCP. */
static hl_status start_rdma(struct hl_net_server *s, const struct hl_net_server_opts *opts,
                            struct hl_id id)
{
    struct hl_addr addr;
    char device[IF_NAMESIZE], devices[512];
    if (!hl_ucx_verbs_present())
        return HL_OK;
    HL_TRY(hl_addr_resolve(opts->listen, RESOLVE_MS, &addr));
    hl_addr_device((const struct sockaddr *)&addr.sa, device);
    size_t pinned = opts->mode != HL_NET_ASK ? opts->pool_len : 0;
    if (!hl_ucx_verbs_usable(device, pinned, devices, sizeof(devices)))
        return HL_OK;
    hl_status st = hl_ucx_server_start_rdma(opts, device, devices, id, &s->rdma);
    if (st == HL_OK)
        hl_info("net server on %s: rdma devices=\"%s\"", opts->listen,
                devices[0] != '\0' ? devices : "all");
    if (st == HL_OK || opts->mode == HL_NET_GET)
        return st;
    hl_warn("net server on %s: rdma is off because it does not work here: %s", opts->listen,
            hl_error_text());
    return HL_OK;
}

static void auto_server_stop(struct hl_net_server *s)
{
    hl_net_server_stop(s->tcp); /* first, because it hands clients to the other */
    hl_net_server_stop(s->rdma);
    pthread_mutex_destroy(&s->one_call);
    free(s);
}

static hl_status auto_server_start(const struct hl_net_server_opts *opts,
                                   struct hl_net_server **out)
{
    struct hl_net_server_opts own = *opts;
    struct hl_id id = hl_id_random();
    struct hl_net_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "net server on %s: out of memory", opts->listen);
    s->ops = hl_net_auto();
    s->put = opts->put;
    pthread_mutex_init(&s->one_call, NULL);
    if (opts->put.begin != NULL)
        own.put = (struct hl_net_put_handler){put_begin, put_commit, put_abort, s};
    struct hl_tcp_rdma rdma = {meet_client, s};
    hl_status st = start_rdma(s, &own, id);
    if (st == HL_OK)
        st = hl_tcp_server_start(&own, s->rdma != NULL ? &rdma : NULL, id, &s->tcp);
    if (st != HL_OK) {
        auto_server_stop(s);
        return st;
    }
    *out = s;
    return HL_OK;
}

static const char *auto_server_address(const struct hl_net_server *s)
{
    return hl_net_server_address(s->tcp);
}

static void auto_server_stats(const struct hl_net_server *s, struct hl_net_server_stats *out)
{
    struct hl_net_server_stats more = {0};
    hl_net_server_stats(s->tcp, out);
    if (s->rdma != NULL)
        hl_net_server_stats(s->rdma, &more);
    out->peers_now += more.peers_now;
    out->gets += more.gets;
    out->get_bytes += more.get_bytes;
    out->puts += more.puts;
    out->put_bytes += more.put_bytes;
    out->puts_aborted += more.puts_aborted;
    out->puts_expired += more.puts_expired;
    out->batches += more.batches;
    out->refused += more.refused;
}

/* ---- the client ---- */

/* Whether the route to the server goes through an adapter that this process can use. */
static hl_status look_for_adapter(const struct hl_net_connect_opts *opts, char device[IF_NAMESIZE],
                                  char *devices, size_t cap, bool *found)
{
    struct hl_addr addr;
    device[0] = devices[0] = '\0';
    *found = false;
    if (!hl_ucx_verbs_present())
        return HL_OK;
    HL_TRY(hl_addr_resolve(opts->address, opts->timeout_ms, &addr));
    hl_addr_route_device(&addr, device);
    *found = hl_ucx_verbs_usable(device, 0, devices, cap) != 0;
    return HL_OK;
}

static hl_status connect_tcp(const struct hl_net_connect_opts *opts, int endpoints, int timeout_ms,
                             struct hl_net_client **out)
{
    struct hl_net_connect_opts tcp = *opts;
    tcp.mode = HL_NET_ASK;
    tcp.rdma_only = false;
    tcp.endpoints = endpoints;
    tcp.timeout_ms = timeout_ms;
    return hl_net_tcp()->connect(&tcp, out);
}

static bool needs_rdma(const struct hl_net_connect_opts *opts)
{
    return opts->rdma_only || opts->mode == HL_NET_GET;
}

/* Connects over RDMA by means of `tcp`, which stays open. A network that looks usable but drops
 * everything only shows as silence, so the attempt gets two thirds of the time. */
static hl_status try_rdma(const struct hl_net_connect_opts *opts, struct hl_net_client *tcp,
                          const char *device, const char *devices, struct hl_net_client **out)
{
    struct hl_net_connect_opts rdma = *opts;
    struct hl_ucx_meeting meeting = {.device = device, .devices = devices};
    if (!hl_tcp_client_offered_rdma(tcp))
        return hl_fail(HL_EUNSUPPORTED, "%s: the server has no RDMA", opts->address);
    if (!needs_rdma(opts))
        rdma.timeout_ms -= opts->timeout_ms / 3;
    uint64_t deadline_ns = hl_now_ns() + (uint64_t)rdma.timeout_ms * HL_NS_PER_MS;
    HL_TRY(hl_tcp_client_meet(tcp, deadline_ns, &meeting.port, &meeting.ticket));
    return hl_ucx_connect_rdma(&rdma, &meeting, out);
}

/* Reconnects over TCP with all endpoints, since the probe has one; RDMA has failed, or there is
 * none. */
static hl_status go_on_over_tcp(const struct hl_net_connect_opts *opts, struct hl_net_client *probe,
                                struct hl_net_client **out)
{
    bool fell_back = opts->mode == HL_NET_AUTO && hl_tcp_client_offered_rdma(probe);
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    hl_net_tcp()->close(probe);
    HL_TRY(connect_tcp(opts, opts->endpoints, opts->timeout_ms / 3 + 1, out));
    hl_tcp_client_set_lack(*out, fell_back, false);
    if (fell_back)
        hl_warn("net: reads from %s go over tcp, rdma did not work: %s", opts->address, why);
    return HL_OK;
}

static hl_status auto_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    char device[IF_NAMESIZE], devices[512];
    bool found;
    struct hl_net_client *tcp;
    HL_TRY(look_for_adapter(opts, device, devices, sizeof(devices), &found));
    if (!found && needs_rdma(opts))
        return hl_fail(HL_EUNSUPPORTED, "%s: no usable RDMA adapter belongs to \"%s\"",
                       opts->address, device);
    HL_TRY(connect_tcp(opts, found ? 1 : opts->endpoints, opts->timeout_ms, &tcp));
    if (!found) {
        hl_tcp_client_set_lack(tcp, false, opts->mode == HL_NET_AUTO);
        *out = tcp;
        return HL_OK;
    }
    hl_status st = try_rdma(opts, tcp, device, devices, out);
    if (st != HL_OK && st != HL_ECANCELED && !needs_rdma(opts))
        return go_on_over_tcp(opts, tcp, out);
    hl_net_tcp()->close(tcp);
    return st;
}

const struct hl_net_ops *hl_net_auto(void)
{
    static const struct hl_net_ops ops = {
        .name = "auto",
        .server_start = auto_server_start,
        .server_address = auto_server_address,
        .server_stats = auto_server_stats,
        .server_stop = auto_server_stop,
        .connect = auto_connect, /* a client belongs to the back end that it got */
    };
    return &ops;
}
