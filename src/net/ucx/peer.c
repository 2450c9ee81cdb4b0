/* net/ucx/peer.c - one client of the server: its endpoint, sending to it, its failure.
 *
 * UCX keeps the peer's address as the argument of its error handler and of every send. So a peer is
 * freed only when its endpoint is closed and `sends` and `refusing` are 0 (serve.c), and all that a
 * callback does to it is to count, and to set FAILED. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "api/types.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/ucx/server.h"

void hl_ucx_peer_enter(struct hl_ucx_peer *p, enum hl_ucx_peer_state state)
{
    p->server->in_state[p->state]--;
    p->server->in_state[state]++;
    p->state = state;
    p->since_ns = hl_now_ns();
}

void hl_ucx_peer_fail(struct hl_ucx_peer *p, const char *why)
{
    if (p->state != HL_UCX_PEER_NEW && p->state != HL_UCX_PEER_READY)
        return;
    hl_debug("net server: dropping client %s: %s", p->name, why);
    hl_ucx_peer_enter(p, HL_UCX_PEER_FAILED);
    p->server->attention = true;
}

static void on_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    hl_ucx_peer_fail(arg, ucs_status_string(status));
}

static void name_peer(struct hl_ucx_peer *p, ucp_conn_request_h request)
{
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    char host[INET_ADDRSTRLEN] = "?";
    unsigned port = 0;
    if (ucp_conn_request_query(request, &attr) == UCS_OK) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&attr.client_address;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        port = ntohs(v4->sin_port);
    }
    snprintf(p->name, sizeof(p->name), "%s:%u", host, port);
}

/* Random, so that another peer can't guess the tags. */
static uint32_t new_session(const struct hl_net_server *s)
{
    uint32_t session;
    struct hl_ucx_peer *other;
    do {
        session = (uint32_t)hl_id_random().lo & ((1u << HL_WIRE_SESSION_BITS) - 1);
        HASH_FIND(hs, s->by_session, &session, sizeof(session), other);
    } while (session == 0 || other != NULL);
    return session;
}

static void make_room(struct hl_net_server *s)
{
    struct hl_ucx_peer *p = s->peers;
    if (s->in_state[HL_UCX_PEER_NEW] < HL_UCX_HALF_OPEN)
        return;
    while (p->state != HL_UCX_PEER_NEW)
        p = p->next;
    hl_ucx_peer_fail(p, "it has not sent HELLO, and other clients wait for its place");
}

void hl_ucx_peer_accept(struct hl_net_server *s, ucp_conn_request_h request)
{
    struct hl_ucx_peer *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        hl_net_count(&s->counts.refused, 1);
        ucp_listener_reject(s->listener, request);
        return;
    }
    p->server = s;
    name_peer(p, request);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .conn_request = request,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_peer_error, .arg = p},
    };
    ucs_status_t status = ucp_ep_create(s->ucx.worker, &params, &p->ep);
    if (status != UCS_OK) {
        hl_debug("net server: endpoint for client %s: %s", p->name, ucs_status_string(status));
        hl_net_count(&s->counts.refused, 1);
        free(p);
        return;
    }
    make_room(s);
    p->since_ns = hl_now_ns();
    s->in_state[HL_UCX_PEER_NEW]++;
    DL_APPEND(s->peers, p);
    HASH_ADD_PTR(s->by_ep, ep, p);
    p->session = new_session(s);
    HASH_ADD(hs, s->by_session, session, sizeof(p->session), p);
    hl_net_count(&s->counts.peers, 1);
}

void hl_ucx_peer_sent(void *peer, bool failed)
{
    struct hl_ucx_peer *p = peer;
    p->sends--;
    if (failed)
        hl_ucx_peer_fail(p, "an answer could not be sent");
}

void hl_ucx_peer_answer(struct hl_ucx_peer *p, struct hl_ucx_send *s)
{
    if (p->state != HL_UCX_PEER_READY)
        return;
    if (p->sends >= HL_UCX_PEER_SENDS) {
        hl_ucx_peer_fail(p, "it sends requests faster than it receives the answers");
        return;
    }
    s->owner = p;
    if (s->done == NULL)
        s->done = hl_ucx_peer_sent;
    p->sends++;
    if (hl_ucx_send(p->ep, s) != HL_OK) {
        p->sends--;
        hl_ucx_peer_fail(p, hl_error_text());
    }
}

void hl_ucx_peer_refuse(struct hl_ucx_peer *p, uint64_t op, hl_status st, const char *text)
{
    hl_net_count(&p->server->counts.refused, 1);
    hl_ucx_peer_answer(p, &(struct hl_ucx_send){
                              .wire = {.type = HL_WIRE_REFUSED, .op = op, .status = st},
                              .data = text,
                              .len = strnlen(text, HL_WIRE_TEXT_MAX - 1),
                              .copy = true,
                          });
}
