/* net/ucx/put.c - storing objects: small ones share tagged messages, large ones are sent singly.
 *
 * A batch needs no permission: the server keeps room for HL_UCX_BATCHES of them. A large object is
 * announced first (PUT); its pieces follow from the caller's memory as far as the server has made
 * room (READY). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/put_items.h"
#include "net/ucx/client.h"

#define SENDING_MAX ((size_t)4 << 20)

/* free --filled, sent--> sending, used --sent--> used --RESULTS--> free
 *
 * The two flags end in any order: results can arrive before UCX reports that the message was sent,
 * and the buffer is free only after both. */
struct batch {
    struct hl_ucx_store *store;
    bool used; /* its results have not arrived */
    bool sending;
    uint64_t number;
    size_t first, count; /* range of items */
    size_t len;
};

/* none --PUT--> announced --READY n--> pieces below n are sent --STORED or REFUSED--> none
 *
 *     pieces   |0|1|2|3|4|5|6|7|       next: the next to be sent
 *                   ^next   ^room      room: the server has posted receives up to here
 *
 * A piece is sent only below `room`: at or above it the server has no receive for it. */
struct large {
    struct hl_net_item *item; /* NULL: none */
    uint64_t op;
    uint32_t pieces, next, room;
    size_t piece_len;
    unsigned sending;
    bool answered;
};

struct hl_ucx_store {
    struct hl_net_client *client;
    struct hl_put_items items;
    bool failed; /* a message could not be sent */
    struct batch batches[HL_UCX_BATCHES];
    struct large large;
};

static void on_results(struct hl_ucx_store *s, uint64_t number, const void *payload, size_t len)
{
    struct batch *b = NULL;
    for (size_t i = 0; i < HL_UCX_BATCHES; i++)
        if (s->batches[i].used && s->batches[i].number == number)
            b = &s->batches[i];
    if (b == NULL)
        return;
    if (!hl_put_items_settle_list(&s->items, b->first, b->count, payload, len))
        s->client->broke = UCS_ERR_INVALID_PARAM;
    b->used = false;
}

static void on_large(struct hl_ucx_store *s, const struct hl_wire *w, const char *words, size_t len)
{
    struct large *l = &s->large;
    size_t i = (size_t)(l->item - s->items.items);
    if (w->type == HL_WIRE_READY) {
        if (w->len > l->room)
            l->room = w->len < l->pieces ? (uint32_t)w->len : l->pieces;
    } else if (w->type == HL_WIRE_STORED && l->next == l->pieces) {
        hl_put_items_settle(&s->items, i, HL_OK, (struct hl_id){w->id_hi, w->id_lo}, "", 0);
        l->answered = true;
    } else if (w->type == HL_WIRE_REFUSED) {
        hl_put_items_settle(&s->items, i, (hl_status)w->status, (struct hl_id){0, 0}, words, len);
        l->answered = true;
    }
}

void hl_ucx_store_on_answer(struct hl_net_client *c, const struct hl_wire *w, const void *payload,
                            size_t len)
{
    struct hl_ucx_store *s = c->store;
    if (s != NULL && w->type == HL_WIRE_RESULTS)
        on_results(s, w->op, payload, len);
    else if (s != NULL && s->large.item != NULL && w->op == s->large.op && !s->large.answered)
        on_large(s, w, payload, len);
}

/* ---- sending ---- */

static void batch_sent(struct batch *b, ucs_status_t status)
{
    b->sending = false;
    b->store->failed |= status != UCS_OK;
    b->store->client->moved = true;
}

static void on_batch_sent(void *request, ucs_status_t status, void *user_data)
{
    batch_sent(user_data, status);
    ucp_request_free(request);
}

static void piece_sent(struct hl_ucx_store *s, ucs_status_t status)
{
    s->large.sending--;
    s->failed |= status != UCS_OK;
    s->client->moved = true;
}

static void on_piece_sent(void *request, ucs_status_t status, void *user_data)
{
    piece_sent(user_data, status);
    ucp_request_free(request);
}

static void *send_tagged(struct hl_net_client *c, const struct hl_wire_tag *tag, const void *bytes,
                         size_t len, ucp_send_nbx_callback_t done, void *arg)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = done,
        .user_data = arg,
    };
    return ucp_tag_send_nbx(c->ep, bytes, len, hl_wire_tag(tag), &param);
}

static void send_batch(struct hl_ucx_store *s, struct batch *b, const uint8_t *bytes)
{
    struct hl_net_client *c = s->client;
    b->number = c->batches++;
    b->used = b->sending = true;
    struct hl_wire_tag tag = {HL_WIRE_BATCH, c->session, 0,
                              (uint32_t)(b->number % HL_WIRE_PIECES_MAX)};
    void *request = send_tagged(c, &tag, bytes, b->len, on_batch_sent, b);
    if (UCS_PTR_IS_ERR(request) || request == NULL)
        batch_sent(b, UCS_PTR_STATUS(request));
}

static void send_piece(struct hl_ucx_store *s)
{
    struct large *l = &s->large;
    uint32_t number = l->next++;
    size_t at = (size_t)number * l->piece_len;
    size_t len = l->item->len - at < l->piece_len ? l->item->len - at : l->piece_len;
    struct hl_wire_tag tag = {HL_WIRE_PIECE, s->client->session, (uint8_t)l->op, number};
    l->sending++;
    if (s->client->head.pace != NULL)
        hl_pace_sent(s->client->head.pace, len, hl_now_ns());
    void *request =
        send_tagged(s->client, &tag, (const uint8_t *)l->item->data + at, len, on_piece_sent, s);
    if (UCS_PTR_IS_ERR(request) || request == NULL)
        piece_sent(s, UCS_PTR_STATUS(request));
}

/* ---- waiting ---- */

static struct batch *idle_batch(struct hl_ucx_store *s)
{
    for (size_t i = 0; i < HL_UCX_BATCHES; i++)
        if (!s->batches[i].used && !s->batches[i].sending)
            return &s->batches[i];
    return NULL;
}

static bool has_idle_batch(void *arg)
{
    struct hl_ucx_store *s = arg;
    return s->failed || idle_batch(s) != NULL;
}

static bool all_settled(void *arg)
{
    const struct hl_ucx_store *s = arg;
    for (size_t i = 0; i < HL_UCX_BATCHES; i++)
        if (s->batches[i].used || s->batches[i].sending)
            return s->failed;
    return true;
}

/* A paced transfer pauses on purpose. */
static bool put_is_paced(const struct hl_ucx_store *s)
{
    if (s->large.answered || hl_net_pace_wait_ns(&s->client->head, hl_now_ns()) == 0)
        return false;
    s->client->moved = true;
    return true;
}

/* Bounds bytes in flight, not only pieces: large pieces sent at the same time over a slow link
 * would all end together, and until then look like a stalled transfer. */
static bool piece_may_go(const struct large *l)
{
    return !l->answered && l->next < l->room && l->sending < HL_UCX_POSTED_MAX &&
           (l->sending == 0 || l->sending * l->piece_len < SENDING_MAX);
}

static bool large_moves(void *arg)
{
    const struct hl_ucx_store *s = arg;
    const struct large *l = &s->large;
    return s->failed || (piece_may_go(l) && !put_is_paced(s)) || (l->answered && l->sending == 0);
}

static hl_status wait_for(struct hl_ucx_store *s, bool (*done)(void *arg), uint64_t deadline_ns)
{
    HL_TRY(hl_ucx_client_wait(s->client, done, s, deadline_ns));
    if (s->failed)
        return hl_ucx_client_kill(s->client, HL_EUNAVAIL, "a message could not be sent");
    return HL_OK;
}

/* ---- the row of items ---- */

/* Sends as many items, from `first` on, as fit into one batch; *next = the one after them. */
static hl_status put_batch(struct hl_ucx_store *s, size_t first, uint64_t deadline_ns, size_t *next)
{
    struct hl_net_client *c = s->client;
    HL_TRY(wait_for(s, has_idle_batch, deadline_ns));
    struct batch *b = idle_batch(s);
    uint8_t **bytes = &c->batch[b - s->batches];
    if (*bytes == NULL && (*bytes = malloc(c->batch_bytes)) == NULL) {
        hl_put_items_fail(&s->items, first,
                          hl_fail(HL_ENOMEM, "put to %s: out of memory", c->address));
        *next = first + 1;
        return HL_OK;
    }
    *b = (struct batch){.store = s, .first = first};
    b->count = hl_put_items_pack(&s->items, first, c->batch_bytes, *bytes, &b->len);
    *next = first + b->count;
    send_batch(s, b, *bytes);
    return HL_OK;
}

static hl_status put_large(struct hl_ucx_store *s, struct hl_net_item *item, uint64_t deadline_ns)
{
    struct hl_net_client *c = s->client;
    size_t piece = hl_ucx_message_max(c->lanes);
    if (item->len / piece >= HL_WIRE_PIECES_MAX) {
        hl_put_items_fail(
            &s->items, (size_t)(item - s->items.items),
            hl_fail(HL_EINVAL, "put of %zu bytes: more than can be counted", item->len));
        return HL_OK;
    }
    s->large = (struct large){.item = item,
                              .op = ++c->last_op,
                              .piece_len = piece,
                              .pieces = (uint32_t)((item->len + piece - 1) / piece)};
    HL_TRY(hl_ucx_send_control(c, 0,
                               &(struct hl_wire){.type = HL_WIRE_PUT,
                                                 .op = s->large.op,
                                                 .offset = piece,
                                                 .len = item->len,
                                                 .crc = item->crc,
                                                 .id_hi = item->id.hi,
                                                 .id_lo = item->id.lo}));
    while (!s->large.answered || s->large.sending > 0) {
        HL_TRY(wait_for(s, large_moves, deadline_ns));
        while (piece_may_go(&s->large) && !put_is_paced(s))
            send_piece(s);
    }
    s->large.item = NULL;
    return HL_OK;
}

static hl_status ucx_run_store(struct hl_ucx_store *s, uint64_t deadline_ns)
{
    for (size_t i = 0; i < s->items.count;) {
        if (hl_put_items_small(&s->items, i, s->client->batch_bytes))
            HL_TRY(put_batch(s, i, deadline_ns, &i));
        else
            HL_TRY(put_large(s, &s->items.items[i++], deadline_ns));
    }
    return wait_for(s, all_settled, deadline_ns);
}

hl_status hl_ucx_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                     int timeout_ms)
{
    struct hl_ucx_store s = {.client = c};
    c->call = (struct hl_net_call){.what = "put", .objects = count, .since_ns = hl_now_ns()};
    c->call.len = hl_put_items_begin(&s.items, items, count);
    c->store = &s;
    hl_status st = hl_ucx_client_usable(c);
    if (st == HL_OK)
        st = ucx_run_store(&s, hl_net_deadline(hl_now_ns(), timeout_ms));
    c->store = NULL;
    return hl_put_items_end(&s.items, st);
}
