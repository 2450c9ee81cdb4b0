/* net/ucx/connect.c - a client's connections: endpoints, HELLO, and the dispatch of answers.
 *
 *     made --endpoint, HELLO--> waits --WELCOME--> path tested --more endpoints--> usable
 *        '-----------------------'-- no answer, an error, `cancel` --> killed, closed
 *
 * All of it runs on the caller's thread. Another thread can only set the flag `cancel`, which a
 * wait checks once per HL_UCX_NAP_NS; when the connect has ended, `abandon` takes its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/ucx/client.h"

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct hl_net_client *c = arg;
    (void)ep;
    c->broke = status;
}

/* Each endpoint is welcomed once, in the order in which they are opened. */
static void on_welcome(struct hl_net_client *c, const struct hl_wire *w, const void *key,
                       size_t key_len)
{
    if (c->welcome)
        return;
    c->welcome = true;
    ucp_ep_h ep = c->more_count == 0 ? c->ep : c->more[c->more_count - 1].ep;
    ucp_rkey_h *unpacked = c->more_count == 0 ? &c->key : &c->more[c->more_count - 1].key;
    if (c->more_count == 0) {
        c->session = (uint32_t)w->op;
        c->pool_len = w->len;
        c->key_base = w->offset;
        c->server = (struct hl_id){w->id_hi, w->id_lo};
        c->offered = key_len > 0;
    }
    if (key_len > 0 && ucp_ep_rkey_unpack(ep, key, unpacked) != UCS_OK)
        *unpacked = NULL; /* no common one-sided transport: reads use requests */
}

/* A message that the client did not ask for is dropped: only answers to the open request count. */
static ucs_status_t on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct hl_net_client *c = arg;
    struct hl_wire w;
    bool rndv = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (!hl_wire_decode(HL_WIRE_TO_CLIENT, header, header_len, len, &w) ||
        (rndv && w.type != HL_WIRE_DATA)) {
        hl_fault_count("garbled", c->path);
        return UCS_OK;
    }
    c->moved = true;
    switch (w.type) {
    case HL_WIRE_WELCOME:
        on_welcome(c, &w, data, len);
        break;
    case HL_WIRE_PAUSED:
        c->paused = w.len > 0 ? 1 : -1;
        break;
    case HL_WIRE_DATA:
        hl_ucx_fetch_on_data(c, &w, data, len, rndv);
        break;
    case HL_WIRE_REFUSED:
        hl_ucx_fetch_on_refused(c, &w, data, len);
        hl_ucx_store_on_answer(c, &w, data, len);
        break;
    case HL_WIRE_READY:
    case HL_WIRE_STORED:
    case HL_WIRE_RESULTS:
        hl_ucx_store_on_answer(c, &w, data, len);
        break;
    default: /* WAIT: the server makes progress */
        break;
    }
    return UCS_OK;
}

static hl_status open_endpoint(struct hl_net_client *c, const struct hl_addr *addr, ucp_ep_h *out)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)&addr->sa, .addrlen = addr->len},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = c},
    };
    ucp_ep_h ep;
    ucs_status_t status = ucp_ep_create(c->ucx.worker, &params, &ep);
    if (status != UCS_OK)
        return hl_fail(HL_EUNAVAIL, "%s", ucs_status_string(status));
    *out = ep;
    return HL_OK;
}

static bool is_welcome(void *arg)
{
    return ((const struct hl_net_client *)arg)->welcome;
}

static hl_status ucx_greet_server(struct hl_net_client *c, size_t lane, uint64_t deadline_ns)
{
    c->welcome = false;
    HL_TRY(hl_ucx_send_control(
        c, lane,
        &(struct hl_wire){.type = HL_WIRE_HELLO, .id_hi = c->ticket.hi, .id_lo = c->ticket.lo}));
    return hl_ucx_client_wait(c, is_welcome, c, deadline_ns);
}

/* Large reads spread their pieces over several connections: one TCP stream uses one processor of
 * the kernel, and one path through a bonded network. */
static hl_status open_more(struct hl_net_client *c, const struct hl_addr *addr, int endpoints,
                           uint64_t deadline_ns)
{
    while ((int)c->more_count + 1 < endpoints) {
        struct hl_ucx_endpoint *e = &c->more[c->more_count];
        HL_TRY(open_endpoint(c, addr, &e->ep));
        e->key = NULL;
        c->more_count++;
        HL_TRY(ucx_greet_server(c, c->more_count, deadline_ns));
    }
    return HL_OK;
}

static hl_status shake_hands(struct hl_net_client *c, const struct hl_net_connect_opts *opts,
                             const struct hl_addr *addr, uint64_t deadline_ns)
{
    HL_TRY(hl_ucx_listen_to(&c->ucx, on_message, c));
    HL_TRY(open_endpoint(c, addr, &c->ep));
    HL_TRY(ucx_greet_server(c, 0, deadline_ns));
    HL_TRY(hl_ucx_client_find_path(c, opts->mode, deadline_ns));
    return open_more(c, addr, opts->endpoints, deadline_ns);
}

/* UCX reports "unreachable" for everything; a plain TCP connection finds the cause. */
static hl_status explain_unreachable(const struct hl_net_client *c, const struct hl_addr *addr,
                                     hl_status st, int timeout_ms)
{
    char words[256];
    int err = hl_addr_probe(addr, 200);
    snprintf(words, sizeof(words), "%.255s", hl_error_text());
    if (err != 0)
        return hl_fail(HL_EUNAVAIL,
                       "connect to %s: %s; check that helios-l3d runs there and listens on this "
                       "address",
                       c->address, strerror(err));
    return hl_fail(st == HL_ETIMEDOUT ? HL_ETIMEDOUT : HL_EUNAVAIL,
                   "connect to %s: something listens there but did not answer as a Helios data "
                   "server within %d ms (%s)",
                   c->address, timeout_ms, words);
}

/* Makes a client that is not connected yet. */
static hl_status client_new(const struct hl_net_connect_opts *opts, const struct hl_ucx_opts *ucx,
                            struct hl_net_client **out)
{
    struct hl_net_client *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "connect to %s: out of memory", opts->address);
    c->cancel = opts->cancel;
    c->path = ucx->verbs ? "rdma" : "tcp";
    c->call = (struct hl_net_call){.what = "connect to", .since_ns = hl_now_ns()};
    c->batch_bytes = opts->batch_bytes;
    c->stall_ns = (uint64_t)opts->timeout_ms * HL_NS_PER_MS;
    snprintf(c->address, sizeof(c->address), "%s", opts->address);
    hl_status st = hl_ucx_init(&c->ucx, ucx);
    if (st != HL_OK)
        hl_ucx_close(c);
    else
        *out = c;
    return st;
}

static hl_status finish_connect(const struct hl_net_connect_opts *opts, struct hl_net_client *c,
                                hl_status st, struct hl_net_client **out)
{
    if (st != HL_OK) {
        hl_ucx_close(c);
        return st;
    }
    c->stall_ns = (uint64_t)opts->stall_ms * HL_NS_PER_MS;
    c->cancel = opts->abandon;
    *out = c;
    return HL_OK;
}

static hl_status check_one_sided(const struct hl_net_connect_opts *opts,
                                 const struct hl_net_client *c)
{
    if (opts->mode == HL_NET_ASK || c->one_sided)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED, "%s: the test of a one-sided read failed: %s", opts->address,
                   c->path);
}

/* The deadline starts when the transports are open; opening them only concerns this host. */
hl_status hl_ucx_client_meet(const struct hl_net_connect_opts *opts,
                             const struct hl_ucx_meeting *meeting, struct hl_net_client **out)
{
    struct hl_addr addr;
    struct hl_net_client *c;
    struct hl_ucx_opts ucx = {.device = meeting->device,
                              .devices = meeting->devices,
                              .verbs = true,
                              .rma = opts->mode != HL_NET_ASK,
                              .spin_us = opts->spin_us};
    HL_TRY(hl_addr_resolve(opts->address, opts->timeout_ms, &addr));
    HL_TRY(hl_ucx_check_family(&addr));
    ((struct sockaddr_in *)&addr.sa)->sin_port = htons((uint16_t)meeting->port);
    HL_TRY(client_new(opts, &ucx, &c));
    c->ticket = meeting->ticket;
    hl_status st = shake_hands(c, opts, &addr, hl_net_deadline(hl_now_ns(), opts->timeout_ms));
    if (st == HL_OK)
        st = check_one_sided(opts, c);
    return finish_connect(opts, c, st, out);
}

/* Connects over TCP to a listener of UCX; only for tests. */
hl_status hl_ucx_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    struct hl_addr addr;
    char device[IF_NAMESIZE];
    struct hl_net_client *c;
    HL_TRY(hl_addr_resolve(opts->address, opts->timeout_ms, &addr));
    HL_TRY(hl_ucx_check_family(&addr));
    hl_addr_route_device(&addr, device);
    struct hl_ucx_opts ucx = {
        .device = device, .rma = opts->mode == HL_NET_GET, .spin_us = opts->spin_us};
    HL_TRY(client_new(opts, &ucx, &c));
    hl_status st = shake_hands(c, opts, &addr, hl_net_deadline(hl_now_ns(), opts->timeout_ms));
    if (st != HL_OK && st != HL_ECANCELED && !c->welcome)
        st = explain_unreachable(c, &addr, st, opts->timeout_ms);
    return finish_connect(opts, c, st, out);
}
