/* net/ucx/serve.c - serving clients: HELLO, answers to reads, the end of a connection.
 *
 * All received bytes are untrusted: a foreign header or a request before HELLO ends the connection.
 * A range outside the pool is refused with a reason, because a stale shard location is an honest
 * mistake. */
#include <stdlib.h>
#include <utlist.h>

#include "api/types.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/ucx/server.h"

#define CLOSE_MAX_NS (HL_NS_PER_S / 2)

static void remove_peer(struct hl_ucx_peer *p)
{
    DL_DELETE(p->server->peers, p);
    p->server->in_state[p->state]--;
    free(p);
}

static void close_peer(struct hl_ucx_peer *p)
{
    struct hl_net_server *s = p->server;
    HASH_DEL(s->by_ep, p);
    HASH_DELETE(hs, s->by_session, p);
    hl_ucx_puts_of_peer_drop(p);
    atomic_fetch_sub_explicit(&s->counts.peers, 1, memory_order_relaxed);
    p->closing = hl_ucx_ep_close(p->ep);
    hl_ucx_peer_enter(p, HL_UCX_PEER_CLOSING);
}

static void tend_closing(struct hl_ucx_peer *p, uint64_t now_ns)
{
    if (p->closing != NULL && hl_ucx_request_done(p->closing))
        p->closing = NULL;
    if (p->closing == NULL && p->sends == 0 && p->refusing == 0) {
        remove_peer(p);
        return;
    }
    if (now_ns - p->since_ns < CLOSE_MAX_NS)
        return;
    hl_debug("net server: %u sends and %u receives of the dropped client %s did not complete",
             p->sends, p->refusing, p->name);
    hl_ucx_peer_enter(p, HL_UCX_PEER_STUCK);
}

unsigned hl_ucx_peers_tend(struct hl_net_server *s, uint64_t now_ns)
{
    struct hl_ucx_peer *p, *tmp;
    unsigned closing = 0;
    uint64_t hello_ns = (uint64_t)s->opts.connect_ms * HL_NS_PER_MS;
    DL_FOREACH_SAFE (s->peers, p, tmp) {
        if (p->state == HL_UCX_PEER_NEW && now_ns > p->since_ns + hello_ns)
            hl_ucx_peer_fail(p, "no HELLO in time");
        bool lingers = p->refusing > 0 && now_ns < p->since_ns + CLOSE_MAX_NS;
        if (p->state == HL_UCX_PEER_FAILED && lingers)
            closing++;
        else if (p->state == HL_UCX_PEER_FAILED)
            close_peer(p);
        if (p->state == HL_UCX_PEER_CLOSING) {
            closing++;
            tend_closing(p, now_ns);
        }
    }
    return closing;
}

void hl_ucx_peers_free(struct hl_net_server *s)
{
    struct hl_ucx_peer *p, *tmp;
    HASH_CLEAR(hh, s->by_ep);
    HASH_CLEAR(hs, s->by_session);
    DL_FOREACH_SAFE (s->peers, p, tmp)
        remove_peer(p);
}

static void on_pause_sent(void *owner, bool failed)
{
    struct hl_ucx_peer *p = owner;
    if (!failed)
        p->server->pause_ms = HL_UCX_PAUSE_MS;
    hl_ucx_peer_sent(owner, failed);
}

static void on_hello(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    char text[1024];
    if (!hl_ucx_server_knows(s, (struct hl_id){w->id_hi, w->id_lo})) {
        hl_ucx_peer_fail(p, "its HELLO has no ticket");
        return;
    }
    if (s->in_state[HL_UCX_PEER_READY] >= HL_NET_PEERS_MAX) {
        hl_ucx_peer_fail(p, "there are too many clients");
        return;
    }
    p->lanes = hl_ucx_lanes(p->ep, text, sizeof(text));
    hl_debug("net server on %s: a client lanes=\"%s\"", s->address, text);
    hl_ucx_peer_enter(p, HL_UCX_PEER_READY);
    hl_ucx_peer_answer(p, &(struct hl_ucx_send){
                              .wire = {.type = HL_WIRE_WELCOME,
                                       .op = p->session,
                                       .offset = s->key != NULL ? (uintptr_t)s->opts.pool : 0,
                                       .len = s->opts.pool_len,
                                       .id_hi = s->id.hi,
                                       .id_lo = s->id.lo},
                              .data = s->key,
                              .len = s->key_len,
                              .copy = true,
                          });
}

static void on_pause(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    uint64_t now = hl_now_ns();
    bool yes = s->key != NULL && now - s->paused_ns > HL_UCX_PAUSE_GAP_NS;
    if (yes)
        s->paused_ns = now;
    hl_ucx_peer_answer(
        p, &(struct hl_ucx_send){
               .wire = {.type = HL_WIRE_PAUSED, .op = w->op, .len = yes ? HL_UCX_PAUSE_MS : 0},
               .done = yes ? on_pause_sent : NULL,
           });
}

static void on_ask(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    uint64_t end;
    if (w->len == 0 || w->len > HL_UCX_PIECE) {
        hl_ucx_peer_fail(p, "it requests an empty or too long piece");
        return;
    }
    if (__builtin_add_overflow(w->offset, w->len, &end) || end > s->opts.pool_len) {
        hl_status st = hl_fail(HL_EINVAL,
                               "%s: range %llu+%llu is outside the pool of %zu bytes; the shard's "
                               "location is stale or wrong",
                               s->address, (unsigned long long)w->offset,
                               (unsigned long long)w->len, s->opts.pool_len);
        hl_ucx_peer_refuse(p, w->op, st, hl_error_text());
        return;
    }
    hl_net_count(&s->counts.gets, 1);
    hl_net_count(&s->counts.get_bytes, w->len);
    size_t max = hl_ucx_message_max(p->lanes);
    for (uint64_t at = w->offset; at < end && p->state == HL_UCX_PEER_READY; at += max) {
        size_t len = end - at < max ? (size_t)(end - at) : max;
        hl_ucx_peer_answer(
            p, &(struct hl_ucx_send){
                   .wire = {.type = HL_WIRE_DATA, .op = w->op, .offset = at, .len = len},
                   .data = (const char *)s->opts.pool + at,
                   .len = len,
               });
    }
    /* Counted after the answer, to save the client some hundred ns. One-sided reads are not visible
     * here: the reader counts them. */
    hl_net_plane_served(w->len);
}

static void peer_dispatch_message(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    bool first = w->type == HL_WIRE_HELLO;
    if (first != (p->state == HL_UCX_PEER_NEW))
        hl_ucx_peer_fail(p, first ? "it sent HELLO twice" : "it did not send HELLO first");
    switch (p->state == HL_UCX_PEER_FAILED ? 0 : w->type) {
    case 0:
        break;
    case HL_WIRE_HELLO:
        on_hello(p, w);
        break;
    case HL_WIRE_PAUSE:
        on_pause(p, w);
        break;
    case HL_WIRE_ASK:
        on_ask(p, w);
        break;
    case HL_WIRE_PUT:
        hl_ucx_put_asked(p, w);
        break;
    default: /* the decoder has checked the direction */
        break;
    }
    if (p->state == HL_UCX_PEER_FAILED)
        hl_net_count(&p->server->counts.refused, 1);
}

/* Returning UCS_OK tells UCX to release what was not received: no message here has a payload. */
ucs_status_t hl_ucx_on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct hl_net_server *s = arg;
    struct hl_ucx_peer *p = NULL;
    struct hl_wire w;
    (void)data;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) {
        ucp_ep_h ep = param->reply_ep;
        HASH_FIND_PTR(s->by_ep, &ep, p);
    }
    bool ours = hl_wire_decode(HL_WIRE_TO_SERVER, header, header_len, len, &w);
    if (p == NULL || !ours) {
        hl_net_count(&s->counts.refused, 1);
        if (p != NULL)
            hl_ucx_peer_fail(p, "a message that is not of this protocol");
        return UCS_OK;
    }
    if (p->state == HL_UCX_PEER_NEW || p->state == HL_UCX_PEER_READY)
        peer_dispatch_message(p, &w);
    return UCS_OK;
}
