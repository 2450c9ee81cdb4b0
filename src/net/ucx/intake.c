/* net/ucx/intake.c - puts of clients: batches of small objects, and large ones in pieces.
 *
 * A put has two phases. Room is made first and announced piece by piece (READY), so bytes land in
 * their place and a sender never runs ahead of the server. The commit makes the object visible. A
 * put is aborted if its peer dies, breaks the protocol, or is silent for put_timeout_ms before
 * that.
 *
 * A piece over TCP is one message of the transport, so a posted receive is either untouched, and
 * can be cancelled at once, or complete. The exception is a longer message of another sender that
 * broke off: that receive never ends, so its room is given back and the record of the put stays
 * with the worker. Over verbs a piece is a rendezvous: UCX completes the receive if the client
 * died, but not if we drop a live client in the middle of one. Such a put stays open until the
 * worker is destroyed, because its memory may still be written. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "net/ucx/server.h"

#define WAIT_SENDS_MAX 8 /* a peer with more answers in flight needs no WAIT */

static void submit_put(struct hl_ucx_put *put, enum hl_ucx_task task)
{
    put->state = HL_UCX_PUT_EXECUTING;
    put->job = (struct hl_ucx_job){.task = task, .put = put};
    hl_ucx_put_worker_give(&put->server->put_worker, &put->job);
}

static void free_put(struct hl_ucx_put *put)
{
    DL_DELETE(put->server->puts, put);
    free(put->sums);
    free(put->piece_crcs);
    free(put->items);
    free(put->results);
    free(put);
}

/* The put has one of the put_queue places, and the put worker begins it. */
static void open_put(struct hl_ucx_put *put)
{
    put->open = true;
    put->server->open_puts++;
    submit_put(put, put->batch ? HL_UCX_UNPACK : HL_UCX_BEGIN);
}

static void leave_line(struct hl_ucx_put *put)
{
    DL_DELETE2(put->server->line, put, line_prev, line_next);
}

/* Gives the free place to the first put in line. */
static void end_put(struct hl_ucx_put *put)
{
    struct hl_net_server *s = put->server;
    if (put->open)
        s->open_puts--;
    put->open = false;
    if (put->peer != NULL && put->batch)
        put->peer->open_batches--;
    else if (put->peer != NULL)
        put->peer->put = NULL;
    put->peer = NULL;
    if (put->recvs > 0)
        put->state = HL_UCX_PUT_ORPHANED;
    else
        free_put(put);
    while (s->line != NULL && s->open_puts < (unsigned)s->opts.put_queue) {
        struct hl_ucx_put *next = s->line;
        leave_line(next);
        open_put(next);
    }
}

/* First come, first served: no put overtakes the queue, even if a place is free again. */
static void queue_put(struct hl_ucx_put *put)
{
    struct hl_net_server *s = put->server;
    if (s->line == NULL && s->open_puts < (unsigned)s->opts.put_queue) {
        open_put(put);
        return;
    }
    put->state = HL_UCX_PUT_QUEUED;
    DL_APPEND2(s->line, put, line_prev, line_next);
}

static struct hl_ucx_put *new_put(struct hl_ucx_peer *p, bool batch)
{
    struct hl_ucx_put *put = calloc(1, sizeof(*put));
    if (put == NULL)
        return NULL;
    put->server = p->server;
    put->peer = p;
    put->batch = batch;
    put->moved_ns = hl_now_ns();
    DL_APPEND(p->server->puts, put);
    return put;
}

/* ---- a large object ---- */

static void on_piece(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *user_data);

static size_t piece_len(const struct hl_ucx_put *put, uint32_t number)
{
    uint64_t left = put->size - (uint64_t)number * put->piece_len;
    return left < put->piece_len ? (size_t)left : put->piece_len;
}

/* Over verbs a piece is a rendezvous. */
static bool is_rendezvous(const struct hl_ucx_put *put)
{
    return put->piece_len > HL_UCX_FRAGMENT;
}

/* SUMs go into the same queue before the COMMIT, so all sums are complete when it runs. */
static void piece_received(struct hl_ucx_put *put, const struct hl_ucx_piece *piece, size_t len)
{
    uint32_t number = piece->number;
    put->received += len;
    put->moved_ns = hl_now_ns();
    if (put->sums == NULL) {
        put->piece_crcs[number] = piece->crc;
    } else {
        put->sums[number] = (struct hl_ucx_job){.task = HL_UCX_SUM, .put = put, .piece = number};
        hl_ucx_put_worker_give(&put->server->put_worker, &put->sums[number]);
    }
    if (put->received == put->size)
        submit_put(put, HL_UCX_COMMIT);
}

/* A datatype of our own makes UCX let us copy a piece from the transport's buffer to its place, so
 * copy and CRC are one pass. UCX does so only for messages that it receives itself; a rendezvous
 * over verbs writes directly, and the put worker sums it. */
static void *start_piece(void *context, void *buffer, size_t count)
{
    struct hl_ucx_piece *piece = buffer;
    (void)context, (void)count;
    piece->crc = 0;
    piece->received = 0;
    return piece;
}

static size_t piece_size(void *state)
{
    const struct hl_ucx_piece *piece = state;
    return piece_len(piece->put, piece->number);
}

static ucs_status_t take_piece(void *state, size_t offset, const void *src, size_t length)
{
    struct hl_ucx_piece *piece = state;
    const struct hl_ucx_put *put = piece->put;
    size_t whole = piece_size(state);
    if (put->base == NULL || offset != piece->received || length > whole - offset)
        return UCS_ERR_MESSAGE_TRUNCATED;
    uint8_t *place = put->base + (uint64_t)piece->number * put->piece_len + offset;
    piece->crc = hl_copy_crc32(piece->crc, place, src, length, put->size);
    piece->received += length;
    return UCS_OK;
}

static void end_piece(void *state)
{
    (void)state;
}

hl_status hl_ucx_puts_prepare(struct hl_net_server *s)
{
    static const ucp_generic_dt_ops_t ops = {
        .start_unpack = start_piece,
        .packed_size = piece_size,
        .unpack = take_piece,
        .finish = end_piece,
    };
    ucs_status_t status = ucp_dt_create_generic(&ops, NULL, &s->summing);
    if (status != UCS_OK)
        return hl_fail(HL_ENOMEM, "net server: a UCX datatype: %s", ucs_status_string(status));
    return HL_OK;
}

static void finish_receive(struct hl_ucx_piece *piece, ucs_status_t status, size_t len)
{
    struct hl_ucx_put *put = piece->put;
    piece->request = NULL;
    put->recvs--;
    if (put->state != HL_UCX_PUT_RECEIVING || put->peer->state != HL_UCX_PEER_READY)
        return;
    if (status == UCS_OK && len == piece_len(put, piece->number)) {
        piece_received(put, piece, len);
        return;
    }
    hl_net_count(&put->server->counts.refused, 1);
    hl_ucx_peer_fail(put->peer, "a piece of a put has the wrong size");
}

static bool post_piece(struct hl_ucx_put *put, struct hl_ucx_piece *piece)
{
    struct hl_wire_tag tag = {HL_WIRE_PIECE, put->peer->session, (uint8_t)put->op, piece->number};
    ucp_tag_recv_info_t info;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO,
        .cb.recv = on_piece,
        .user_data = piece,
        .recv_info.tag_info = &info,
    };
    void *buffer = put->base + (uint64_t)piece->number * put->piece_len;
    if (!is_rendezvous(put)) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = put->server->summing;
        buffer = piece;
    }
    put->recvs++;
    void *request = ucp_tag_recv_nbx(put->server->ucx.worker, buffer, piece_len(put, piece->number),
                                     hl_wire_tag(&tag), ~UINT64_C(0), &param);
    if (request == NULL) {
        finish_receive(piece, UCS_OK, info.length);
    } else if (UCS_PTR_IS_ERR(request)) {
        put->recvs--;
        hl_ucx_peer_fail(put->peer, ucs_status_string(UCS_PTR_STATUS(request)));
        return false;
    } else {
        piece->request = request;
    }
    return true;
}

/* Posts as many receives as allowed, and announces them to the client, several at a time. */
static void post_pieces(struct hl_ucx_put *put)
{
    while (put->state == HL_UCX_PUT_RECEIVING && put->posted < put->pieces &&
           put->peer->state == HL_UCX_PEER_READY) {
        struct hl_ucx_piece *piece = &put->window[put->posted % HL_UCX_POSTED_MAX];
        if (piece->request != NULL)
            break;
        *piece = (struct hl_ucx_piece){.put = put, .number = put->posted++};
        if (!post_piece(put, piece))
            return;
    }
    uint32_t unannounced = put->posted - put->announced;
    if (put->state != HL_UCX_PUT_RECEIVING || unannounced == 0 ||
        (unannounced < HL_UCX_POSTED_MAX / 4 && put->posted < put->pieces))
        return;
    put->announced = put->posted;
    hl_ucx_peer_answer(
        put->peer,
        &(struct hl_ucx_send){.wire = {.type = HL_WIRE_READY, .op = put->op, .len = put->posted}});
}

static void finish_drop(struct hl_ucx_put *put)
{
    if (put->batch)
        end_put(put);
    else
        submit_put(put, HL_UCX_ABORT);
}

static void on_piece(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *user_data)
{
    struct hl_ucx_piece *piece = user_data;
    struct hl_ucx_put *put = piece->put;
    finish_receive(piece, status, info->length);
    ucp_request_free(request);
    if (put->state == HL_UCX_PUT_RECEIVING)
        post_pieces(put);
    else if (put->state == HL_UCX_PUT_DROPPED && put->recvs == 0)
        finish_drop(put);
    else if (put->state == HL_UCX_PUT_ORPHANED && put->recvs == 0)
        free_put(put);
}

static hl_status check_put(const struct hl_ucx_peer *p, const struct hl_wire *w)
{
    const struct hl_net_server *s = p->server;
    uint64_t piece = w->offset;
    if (s->opts.put.begin == NULL)
        return hl_fail(HL_EPERM, "%s does not accept puts", s->address);
    if (w->len == 0)
        return hl_fail(HL_EINVAL, "%s: put of 0 bytes", s->address);
    if (piece != HL_UCX_FRAGMENT && piece != HL_UCX_PIECE)
        return hl_fail(HL_EPROTO, "%s: put in pieces of %llu bytes", s->address,
                       (unsigned long long)piece);
    if (w->len > (uint64_t)HL_WIRE_PIECES_MAX * piece)
        return hl_fail(HL_EINVAL, "%s: put of %llu bytes, more than can be counted", s->address,
                       (unsigned long long)w->len);
    return HL_OK;
}

void hl_ucx_put_asked(struct hl_ucx_peer *p, const struct hl_wire *w)
{
    if (p->put != NULL) {
        hl_ucx_peer_fail(p, "it begins a put while another one is open");
        return;
    }
    hl_status st = check_put(p, w);
    struct hl_ucx_put *put = st == HL_OK ? new_put(p, false) : NULL;
    if (put == NULL && st == HL_OK)
        st = hl_fail(HL_ENOMEM, "%s: out of memory allocating a put of %llu bytes",
                     p->server->address, (unsigned long long)w->len);
    if (st != HL_OK) {
        hl_ucx_peer_refuse(p, w->op, st, hl_error_text());
        return;
    }
    put->op = w->op;
    put->id = (struct hl_id){w->id_hi, w->id_lo};
    put->size = w->len;
    put->crc = w->crc;
    put->piece_len = (size_t)w->offset;
    put->pieces = (uint32_t)((w->len + put->piece_len - 1) / put->piece_len);
    p->put = put;
    queue_put(put);
}

/* The handler has made room, so this host can hold an object of that size. */
static void put_begun(struct hl_ucx_put *put)
{
    bool later = is_rendezvous(put);
    put->piece_crcs = calloc(put->pieces, sizeof(*put->piece_crcs));
    put->sums = later ? calloc(put->pieces, sizeof(*put->sums)) : NULL;
    if (put->peer != NULL && (put->piece_crcs == NULL || (later && put->sums == NULL)))
        hl_ucx_peer_fail(put->peer, "out of memory allocating its put");
    if (put->peer == NULL || put->peer->state != HL_UCX_PEER_READY) {
        if (put->peer != NULL)
            put->peer->put = NULL;
        put->peer = NULL;
        submit_put(put, HL_UCX_ABORT);
        return;
    }
    put->state = HL_UCX_PUT_RECEIVING;
    put->moved_ns = hl_now_ns();
    post_pieces(put);
}

static void put_committed(struct hl_ucx_put *put)
{
    hl_ucx_peer_answer(put->peer, &(struct hl_ucx_send){.wire = {.type = HL_WIRE_STORED,
                                                                 .op = put->op,
                                                                 .id_hi = put->id.hi,
                                                                 .id_lo = put->id.lo}});
}

/* ---- a batch ---- */

static void batch_came(struct hl_ucx_put *put, ucs_status_t status, size_t len)
{
    put->recvs--;
    if (put->state == HL_UCX_PUT_DROPPED) {
        finish_drop(put);
    } else if (status != UCS_OK || len != put->items_len) {
        hl_ucx_peer_fail(put->peer, "a batch that could not be received");
        end_put(put);
    } else {
        queue_put(put);
    }
}

static void on_batch(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *user_data)
{
    batch_came(user_data, status, info->length);
    ucp_request_free(request);
}

static void on_refused(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                       void *user_data)
{
    struct hl_ucx_peer *p = user_data;
    (void)status, (void)info;
    if (p != NULL)
        p->refusing--;
    ucp_request_free(request);
}

/* A message leaves UCX's queue only by being received, and a long one only when its end has
 * arrived. So its peer (NULL: unknown) is not closed before, if receiving it takes no time. */
static void refuse_message(struct hl_net_server *s, struct hl_ucx_peer *p,
                           ucp_tag_message_h message)
{
    static char nowhere;
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.recv = on_refused,
                                 .user_data = p};
    hl_net_count(&s->counts.refused, 1);
    void *request = ucp_tag_msg_recv_nbx(s->ucx.worker, &nowhere, 0, message, &param);
    if (p != NULL && request != NULL && !UCS_PTR_IS_ERR(request))
        p->refusing++;
}

static void receive_batch(struct hl_ucx_peer *p, ucp_tag_message_h message, size_t len)
{
    uint8_t *items = malloc(len);
    struct hl_ucx_put *put = items != NULL ? new_put(p, true) : NULL;
    if (put == NULL) {
        free(items);
        refuse_message(p->server, p, message);
        hl_ucx_peer_fail(p, "out of memory allocating a batch");
        return;
    }
    put->op = p->batches++;
    put->items = items;
    put->items_len = len;
    put->recvs = 1;
    p->open_batches++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv = on_batch,
        .user_data = put,
    };
    void *request = ucp_tag_msg_recv_nbx(p->server->ucx.worker, items, len, message, &param);
    if (UCS_PTR_IS_ERR(request) || request == NULL)
        batch_came(put, UCS_PTR_STATUS(request), len);
}

static const char *why_not(const struct hl_ucx_peer *p, const struct hl_wire_tag *tag, size_t len)
{
    if (tag->kind == HL_WIRE_PIECE)
        return "a piece that was not requested";
    if (tag->put != 0 || tag->number != p->batches % HL_WIRE_PIECES_MAX)
        return "a batch out of order";
    if (len == 0 || len > HL_WIRE_LIST_MAX)
        return "a batch of the wrong size";
    if (p->open_batches >= HL_UCX_BATCHES)
        return "more batches than it may send at once";
    return NULL;
}

void hl_ucx_puts_collect(struct hl_net_server *s)
{
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    while ((message = ucp_tag_probe_nb(s->ucx.worker, 0, 0, 1, &info)) != NULL) {
        struct hl_wire_tag tag;
        struct hl_ucx_peer *p = NULL;
        if (hl_wire_tag_decode(info.sender_tag, &tag))
            HASH_FIND(hs, s->by_session, &tag.session, sizeof(tag.session), p);
        const char *why = p != NULL ? why_not(p, &tag, info.length) : "";
        if (p != NULL && p->state == HL_UCX_PEER_READY && why == NULL) {
            receive_batch(p, message, info.length);
            continue;
        }
        refuse_message(s, p, message);
        if (p != NULL)
            hl_ucx_peer_fail(p, why != NULL ? why : "a batch after its end");
    }
}

/* ---- all of them ---- */

static void ucx_answer_put(struct hl_ucx_put *put)
{
    struct hl_ucx_peer *p = put->peer;
    if (p == NULL)
        return;
    if (put->batch && put->status == HL_OK) {
        hl_ucx_peer_answer(p, &(struct hl_ucx_send){
                                  .wire = {.type = HL_WIRE_RESULTS, .op = put->op},
                                  .data = put->results,
                                  .len = put->results_len,
                                  .copy = true,
                              });
    } else if (put->batch) {
        hl_net_count(&p->server->counts.refused, 1);
        hl_ucx_peer_fail(p, put->text);
    } else if (put->status == HL_OK) {
        put_committed(put);
    } else {
        hl_ucx_peer_refuse(p, put->op, put->status, put->text);
    }
}

void hl_ucx_puts_answer(struct hl_net_server *s)
{
    for (struct hl_ucx_job *job = hl_ucx_put_worker_take(&s->put_worker); job != NULL;
         job = hl_ucx_put_worker_take(&s->put_worker)) {
        struct hl_ucx_put *put = job->put;
        if (job->task == HL_UCX_BEGIN && put->status == HL_OK) {
            put_begun(put);
            continue;
        }
        if (job->task != HL_UCX_ABORT)
            ucx_answer_put(put);
        end_put(put);
    }
}

bool hl_ucx_puts_executing(const struct hl_net_server *s)
{
    const struct hl_ucx_put *put;
    DL_FOREACH (s->puts, put)
        if (put->state == HL_UCX_PUT_EXECUTING)
            return true;
    return false;
}

void hl_ucx_puts_tend(struct hl_net_server *s, uint64_t now_ns)
{
    uint64_t limit_ns = (uint64_t)s->opts.put_timeout_ms * HL_NS_PER_MS;
    struct hl_ucx_put *put;
    DL_FOREACH (s->puts, put) {
        struct hl_ucx_peer *p = put->peer;
        if (p == NULL || p->state != HL_UCX_PEER_READY)
            continue;
        bool ours = put->state == HL_UCX_PUT_EXECUTING || put->state == HL_UCX_PUT_QUEUED;
        if (ours && p->sends < WAIT_SENDS_MAX) {
            hl_ucx_peer_answer(p, &(struct hl_ucx_send){.wire = {.type = HL_WIRE_WAIT}});
        } else if (!ours && now_ns > put->moved_ns + limit_ns) {
            hl_net_count(&s->counts.expired, 1);
            hl_ucx_peer_fail(p, "its put makes no progress");
        }
    }
}

/* Called when the peer is lost. A put that the put worker has is left to it: ending it here would
 * free memory that the worker reads. Its job comes back and finds no peer. */
static void drop_put(struct hl_ucx_put *put)
{
    put->peer = NULL;
    if (put->state == HL_UCX_PUT_QUEUED) {
        leave_line(put);
        end_put(put);
        return;
    }
    if (put->state != HL_UCX_PUT_RECEIVING && put->state != HL_UCX_PUT_ARRIVING)
        return; /* the put worker finishes it first */
    put->state = HL_UCX_PUT_DROPPED;
    put->recvs++; /* so that the callbacks below don't finish it */
    for (size_t i = 0; i < HL_UCX_POSTED_MAX; i++)
        if (put->window[i].request != NULL)
            ucp_request_cancel(put->server->ucx.worker, put->window[i].request);
    put->recvs--;
    if (put->recvs == 0) {
        finish_drop(put);
    } else if (!put->batch && !is_rendezvous(put)) {
        put->base = NULL; /* take_piece discards what still arrives */
        finish_drop(put);
    }
}

void hl_ucx_puts_of_peer_drop(struct hl_ucx_peer *p)
{
    struct hl_ucx_put *put, *tmp;
    DL_FOREACH_SAFE (p->server->puts, put, tmp)
        if (put->peer == p)
            drop_put(put);
    p->put = NULL;
    p->open_batches = 0;
}

void hl_ucx_puts_free(struct hl_net_server *s)
{
    struct hl_ucx_put *put, *tmp;
    DL_FOREACH_SAFE (s->puts, put, tmp) {
        if (put->base != NULL) { /* begun, neither committed nor aborted */
            put->job = (struct hl_ucx_job){.task = HL_UCX_ABORT, .put = put};
            hl_ucx_put_work(&put->job);
        }
        free_put(put);
    }
}
