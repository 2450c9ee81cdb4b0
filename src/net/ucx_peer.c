/* net/ucx_peer.c - what the server does with one client: answers, puts, death.
 *
 * Every byte that arrives is foreign: a header that is not ours, a request before HELLO, a piece
 * that was not announced or comes twice ends the connection. A range outside the pool is refused
 * with words, because a stale shard location is an honest mistake.
 *
 * The memory of an open put may be written until all its receives came back, so abort() waits for
 * that. When the client died UCX returns them; when we drop a live client with a rendezvous under
 * way, UCX 1.13 does not, and its TCP receive side outlives the endpoint: then the put stays open
 * until the worker is gone. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "core/route.h"
#include "net/ucx_server.h"

#define HELLO_MAX_NS (3 * HL_NS_PER_S)
#define CLOSE_MAX_NS (HL_NS_PER_S / 2)

struct landing {
    struct hl_ucx_peer *peer;
    size_t chunk;
    size_t len;
};

static void enter(struct hl_ucx_peer *p, enum hl_ucx_peer_state state)
{
    p->state = state;
    p->since_ns = hl_now_ns();
}

void hl_ucx_peer_fail(struct hl_ucx_peer *p, const char *why)
{
    if (p->state != HL_UCX_PEER_NEW && p->state != HL_UCX_PEER_READY)
        return;
    hl_debug("net server: dropping client %s: %s", p->name, why);
    enter(p, HL_UCX_PEER_FAILED);
    p->server->attention = 1;
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

void hl_ucx_peer_accept(struct hl_net_server *s, ucp_conn_request_h request)
{
    struct hl_ucx_peer *p = s->peer_count < HL_NET_PEERS_MAX ? calloc(1, sizeof(*p)) : NULL;
    if (p == NULL) {
        hl_ucx_count(&s->stat_refused, 1);
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
        hl_ucx_count(&s->stat_refused, 1);
        free(p);
        return;
    }
    enter(p, HL_UCX_PEER_NEW);
    DL_APPEND(s->peers, p);
    HASH_ADD_PTR(s->by_ep, ep, p);
    s->peer_count++;
    hl_ucx_count(&s->stat_peers, 1);
}

static void drop_put(struct hl_ucx_peer *p, int aborted)
{
    struct hl_ucx_put *put = p->put;
    if (put == NULL)
        return;
    p->put = NULL;
    if (aborted) {
        p->server->opts.put.abort(p->server->opts.put.arg, put->token);
        hl_ucx_count(&p->server->stat_aborted, 1);
    }
    free(put->chunk_crcs);
    free(put);
}

static void remove_peer(struct hl_ucx_peer *p)
{
    drop_put(p, 1);
    DL_DELETE(p->server->peers, p);
    free(p);
}

static void close_peer(struct hl_ucx_peer *p)
{
    struct hl_net_server *s = p->server;
    HASH_DEL(s->by_ep, p);
    s->peer_count--;
    atomic_fetch_sub_explicit(&s->stat_peers, 1, memory_order_relaxed);
    p->closing = hl_ucx_ep_close(p->ep);
    enter(p, HL_UCX_PEER_CLOSING);
}

static void tend_closing(struct hl_ucx_peer *p, uint64_t now_ns)
{
    if (p->closing != NULL && hl_ucx_request_done(p->closing))
        p->closing = NULL;
    if (p->closing == NULL && p->sends == 0 && p->recvs == 0) {
        remove_peer(p);
        return;
    }
    if (now_ns - p->since_ns < CLOSE_MAX_NS)
        return;
    hl_debug("net server: %u sends and %u receives of the dropped client %s did not come back",
             p->sends, p->recvs, p->name);
    enter(p, HL_UCX_PEER_STUCK);
}

unsigned hl_ucx_peers_tend(struct hl_net_server *s, uint64_t now_ns)
{
    struct hl_ucx_peer *p, *tmp;
    unsigned closing = 0;
    DL_FOREACH_SAFE(s->peers, p, tmp)
    {
        if (p->state == HL_UCX_PEER_NEW && now_ns > p->since_ns + HELLO_MAX_NS)
            hl_ucx_peer_fail(p, "no HELLO in time");
        if (p->state == HL_UCX_PEER_FAILED)
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
    DL_FOREACH_SAFE(s->peers, p, tmp)
    remove_peer(p);
}

static void on_answer_sent(void *owner, int failed)
{
    struct hl_ucx_peer *p = owner;
    p->sends--;
    if (failed)
        hl_ucx_peer_fail(p, "an answer could not be sent");
}

static void on_pause_sent(void *owner, int failed)
{
    struct hl_ucx_peer *p = owner;
    if (!failed)
        p->server->pause_ms = HL_UCX_PAUSE_MS;
    on_answer_sent(owner, failed);
}

static void answer(struct hl_ucx_peer *p, struct hl_ucx_send *s)
{
    if (p->sends >= HL_UCX_PEER_SENDS) {
        hl_ucx_peer_fail(p, "it asks faster than it takes the answers");
        return;
    }
    s->owner = p;
    if (s->done == NULL)
        s->done = on_answer_sent;
    p->sends++;
    if (hl_ucx_send(p->ep, s) != HL_OK) {
        p->sends--;
        hl_ucx_peer_fail(p, hl_error_text());
    }
}

/* Tell the client why, in the words of hl_error_text(). */
static void refuse(struct hl_ucx_peer *p, uint64_t op, hl_status st)
{
    const char *text = hl_error_text();
    hl_ucx_count(&p->server->stat_refused, 1);
    answer(p, &(struct hl_ucx_send){
                  .wire = {.type = HL_WIRE_REFUSED, .op = op, .status = st},
                  .data = text,
                  .len = strnlen(text, HL_WIRE_TEXT_MAX - 1),
                  .copy = 1,
              });
}

static void on_hello(struct hl_ucx_peer *p)
{
    struct hl_net_server *s = p->server;
    enter(p, HL_UCX_PEER_READY);
    answer(p, &(struct hl_ucx_send){
                  .wire = {.type = HL_WIRE_WELCOME,
                           .offset = s->key != NULL ? (uintptr_t)s->opts.pool : 0,
                           .len = s->opts.pool_len,
                           .id_hi = s->id.hi,
                           .id_lo = s->id.lo},
                  .data = s->key,
                  .len = s->key_len,
                  .copy = 1,
              });
}

static void on_pause(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    uint64_t now = hl_now_ns();
    int yes = s->key != NULL && now - s->paused_ns > HL_UCX_PAUSE_GAP_NS;
    if (yes)
        s->paused_ns = now;
    answer(p, &(struct hl_ucx_send){
                  .wire = {.type = HL_WIRE_PAUSED, .op = w->op, .len = yes ? HL_UCX_PAUSE_MS : 0},
                  .done = yes ? on_pause_sent : NULL,
              });
}

/* What a peer reads one-sidedly is not seen here: the reader counts it. */
static void count_served(uint64_t bytes)
{
    hl_plane_count(&(struct hl_transfer){.plane = HL_PLANE_BACKBONE,
                                         .op = hl_route_op_name(HL_ROUTE_READ),
                                         .path = hl_route_path_name(HL_PATH_TCP),
                                         .reason = hl_route_reason_name(HL_REASON_NO_RDMA),
                                         .sent = 1,
                                         .bytes = bytes});
}

static void on_ask(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    uint64_t end;
    if (w->len == 0 || w->len > HL_UCX_PIECE) {
        hl_ucx_peer_fail(p, "it asks for an empty or too long piece");
        return;
    }
    if (__builtin_add_overflow(w->offset, w->len, &end) || end > s->opts.pool_len) {
        hl_status st = hl_fail(HL_EINVAL,
                               "%s: range %llu+%llu is outside the pool of %zu bytes; the shard's "
                               "location is stale or wrong",
                               s->address, (unsigned long long)w->offset,
                               (unsigned long long)w->len, s->opts.pool_len);
        refuse(p, w->op, st);
        return;
    }
    hl_ucx_count(&s->stat_gets, 1);
    hl_ucx_count(&s->stat_get_bytes, w->len);
    count_served(w->len);
    size_t max = hl_ucx_message_max(&s->ucx);
    for (uint64_t at = w->offset; at < end && p->state == HL_UCX_PEER_READY; at += max) {
        size_t len = end - at < max ? (size_t)(end - at) : max;
        answer(p, &(struct hl_ucx_send){
                      .wire = {.type = HL_WIRE_DATA, .op = w->op, .offset = at, .len = len},
                      .data = (const char *)s->opts.pool + at,
                      .len = len,
                  });
    }
}

static hl_status begin_put(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    struct hl_net_server *s = p->server;
    const struct hl_net_put_handler *h = &s->opts.put;
    if (h->begin == NULL)
        return hl_fail(HL_EPERM, "%s takes no puts", s->address);
    if (w->len == 0)
        return hl_fail(HL_EINVAL, "%s: put of 0 bytes", s->address);
    struct hl_ucx_put *put = calloc(1, sizeof(*put));
    if (put == NULL)
        return hl_fail(HL_ENOMEM, "%s: put of %llu bytes", s->address, (unsigned long long)w->len);
    void *base = NULL;
    hl_status st = h->begin(h->arg, (struct hl_id){w->id_hi, w->id_lo}, w->len, &put->token, &base);
    if (st != HL_OK) {
        free(put);
        return st;
    }
    put->op = w->op;
    put->size = w->len;
    put->crc = w->crc;
    put->base = base;
    put->chunk_count = (w->len + HL_NET_CHUNK - 1) / HL_NET_CHUNK;
    put->chunk_crcs = calloc(put->chunk_count, sizeof(*put->chunk_crcs));
    p->put = put;
    if (put->chunk_crcs == NULL) {
        drop_put(p, 1);
        return hl_fail(HL_ENOMEM, "%s: put of %llu bytes", s->address, (unsigned long long)w->len);
    }
    return HL_OK;
}

static void on_put(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    if (p->put != NULL) {
        hl_ucx_peer_fail(p, "it begins a put while another one is open");
        return;
    }
    hl_status st = begin_put(p, w);
    if (st != HL_OK) {
        refuse(p, w->op, st);
        return;
    }
    answer(p, &(struct hl_ucx_send){.wire = {.type = HL_WIRE_READY, .op = w->op}});
}

static size_t chunk_len(const struct hl_ucx_put *put, size_t chunk)
{
    uint64_t left = put->size - (uint64_t)chunk * HL_NET_CHUNK;
    return left < HL_NET_CHUNK ? (size_t)left : HL_NET_CHUNK;
}

static hl_status finish_put(struct hl_ucx_peer *p, struct hl_id *id)
{
    struct hl_ucx_put *put = p->put;
    const struct hl_net_put_handler *h = &p->server->opts.put;
    uint32_t crc = 0;
    for (size_t i = 0; i < put->chunk_count; i++)
        crc = hl_crc32_combine(crc, put->chunk_crcs[i], chunk_len(put, i));
    if (crc != put->crc) {
        hl_status st = hl_fail(HL_ECORRUPT,
                               "%s: put of %llu bytes arrived with CRC %08x, the sender says %08x",
                               p->server->address, (unsigned long long)put->size, crc, put->crc);
        drop_put(p, 1);
        return st;
    }
    hl_status st = h->commit(h->arg, put->token, crc, put->chunk_crcs, put->chunk_count, id);
    if (st == HL_OK) {
        hl_ucx_count(&p->server->stat_puts, 1);
        hl_ucx_count(&p->server->stat_put_bytes, put->size);
    }
    drop_put(p, 0);
    return st;
}

static void landed(struct hl_ucx_peer *p, size_t len)
{
    struct hl_ucx_put *put = p->put;
    put->landed += len;
    if (put->landed < put->size)
        return;
    uint64_t op = put->op;
    struct hl_id id = {0, 0};
    hl_status st = finish_put(p, &id);
    if (st != HL_OK) {
        refuse(p, op, st);
        return;
    }
    answer(p, &(struct hl_ucx_send){
                  .wire = {.type = HL_WIRE_STORED, .op = op, .id_hi = id.hi, .id_lo = id.lo}});
}

static void chunk_landed(struct hl_ucx_peer *p, const struct landing *l)
{
    const uint8_t *at = p->put->base + (uint64_t)l->chunk * HL_NET_CHUNK;
    p->put->chunk_crcs[l->chunk] = hl_crc32(0, at, l->len);
    landed(p, l->len);
}

static void on_landed(void *request, ucs_status_t status, size_t length, void *user_data)
{
    struct landing *l = user_data;
    struct hl_ucx_peer *p = l->peer;
    p->recvs--;
    if (status != UCS_OK || length != l->len)
        hl_ucx_peer_fail(p, ucs_status_string(status));
    else if (p->state == HL_UCX_PEER_READY)
        chunk_landed(p, l);
    free(l);
    if (request != NULL)
        ucp_request_free(request);
}

static void receive_piece(struct hl_ucx_peer *p, size_t chunk, size_t len, void *desc)
{
    struct landing *l = malloc(sizeof(*l));
    if (l == NULL) {
        hl_ucx_peer_fail(p, "out of memory");
        return;
    }
    *l = (struct landing){.peer = p, .chunk = chunk, .len = len};
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_landed,
        .user_data = l,
    };
    p->recvs++;
    void *request = ucp_am_recv_data_nbx(
        p->server->ucx.worker, desc, p->put->base + (uint64_t)chunk * HL_NET_CHUNK, len, &param);
    if (UCS_PTR_IS_ERR(request) || request == NULL)
        on_landed(NULL, UCS_PTR_STATUS(request), len, l);
}

/* A rendezvous brings a whole chunk; smaller messages are copied and summed up as they come. */
static void on_piece(struct hl_ucx_peer *p, const struct hl_wire *w, void *data, size_t len,
                     int rndv)
{
    struct hl_ucx_put *put = p->put;
    size_t chunk = (size_t)(w->offset / HL_NET_CHUNK);
    uint64_t in_chunk = w->offset % HL_NET_CHUNK;
    if (put == NULL || w->op != put->op || len == 0 || w->len != len || w->offset != put->next ||
        len > chunk_len(put, chunk) - in_chunk || (rndv && len != chunk_len(put, chunk))) {
        hl_ucx_peer_fail(p, "a piece that belongs to no open put");
        return;
    }
    put->next += len;
    if (rndv) {
        receive_piece(p, chunk, len, data);
        return;
    }
    put->chunk_crcs[chunk] =
        hl_crc32_copy(put->chunk_crcs[chunk], put->base + w->offset, data, len);
    landed(p, len);
}

static void dispatch(struct hl_ucx_peer *p, const struct hl_wire *w, void *data, size_t len,
                     int rndv)
{
    int first = w->type == HL_WIRE_HELLO;
    if (first != (p->state == HL_UCX_PEER_NEW))
        hl_ucx_peer_fail(p, first ? "it says HELLO twice" : "it did not say HELLO first");
    switch (p->state == HL_UCX_PEER_FAILED ? 0 : w->type) {
    case 0:
        break;
    case HL_WIRE_HELLO:
        on_hello(p);
        break;
    case HL_WIRE_PAUSE:
        on_pause(p, w);
        break;
    case HL_WIRE_ASK:
        on_ask(p, w);
        break;
    case HL_WIRE_PUT:
        on_put(p, w);
        break;
    case HL_WIRE_PIECE:
        on_piece(p, w, data, len, rndv);
        break;
    default:
        hl_ucx_peer_fail(p, "a message that only servers send");
        break;
    }
    if (p->state == HL_UCX_PEER_FAILED)
        hl_ucx_count(&p->server->stat_refused, 1);
}

/* Returning UCS_OK tells UCX to release what was not received. */
ucs_status_t hl_ucx_on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct hl_net_server *s = arg;
    struct hl_ucx_peer *p = NULL;
    struct hl_wire w;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) {
        ucp_ep_h ep = param->reply_ep;
        HASH_FIND_PTR(s->by_ep, &ep, p);
    }
    if (header_len == sizeof(w))
        memcpy(&w, header, sizeof(w));
    int ours = header_len == sizeof(w) && hl_wire_check(&w, sizeof(w));
    if (p == NULL || !ours) {
        hl_ucx_count(&s->stat_refused, 1);
        if (p != NULL)
            hl_ucx_peer_fail(p, "a message that is not of this protocol");
        return UCS_OK;
    }
    if (p->state == HL_UCX_PEER_NEW || p->state == HL_UCX_PEER_READY)
        dispatch(p, &w, data, len, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
    return UCS_OK;
}
