/* net/tcp/put.c - storing objects: small ones share messages, large ones are sent singly.
 *
 * A batch needs no permission: up to HL_TCP_BATCHES may be without an answer. A large object is
 * announced (PUT); when the server has made its memory (READY), the bytes follow from the caller's
 * memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/put_items.h"
#include "net/tcp/client.h"

struct batch {
    bool used; /* its results have not arrived */
    uint64_t op;
    size_t first, count; /* range of items */
};

struct large {
    const struct hl_net_item *item; /* NULL: none */
    uint64_t op;
    bool ready, answered;
};

struct hl_tcp_store {
    struct hl_net_client *client;
    struct hl_put_items items;
    struct batch batches[HL_TCP_BATCHES];
    struct large large;
};

/* ---- answers ---- */

static void on_results(struct hl_tcp_store *s, const struct hl_tcp_msg *m, const uint8_t *payload)
{
    struct batch *b = NULL;
    for (size_t i = 0; i < HL_TCP_BATCHES; i++)
        if (s->batches[i].used && s->batches[i].op == m->op)
            b = &s->batches[i];
    if (b == NULL) {
        hl_tcp_client_fault(s->client, m->op <= s->client->last_op ? "duplicate" : "foreign");
        return;
    }
    if (!hl_put_items_settle_list(&s->items, b->first, b->count, payload, m->payload))
        hl_tcp_client_fault(s->client, "wrong-size");
    b->used = false;
}

static void on_large(struct hl_tcp_store *s, const struct hl_tcp_msg *m, const uint8_t *payload)
{
    struct large *l = &s->large;
    size_t i = (size_t)(l->item - s->items.items);
    bool sent = l->ready && s->client->out_count == 0;
    if (m->type == HL_TCP_TYPE_READY && !l->ready) {
        l->ready = true;
        s->client->out[0] = (struct iovec){(void *)l->item->data, l->item->len};
        s->client->out_count = 1;
    } else if (m->type == HL_TCP_TYPE_STORED && sent) {
        hl_put_items_settle(&s->items, i, HL_OK, m->id, "", 0);
        l->answered = true;
    } else if (m->type == HL_TCP_TYPE_REFUSED && (sent || !l->ready)) {
        hl_put_items_settle(&s->items, i, m->status, (struct hl_id){0, 0}, payload, m->payload);
        l->answered = true;
    } else {
        hl_tcp_client_fault(s->client, "reordered");
    }
}

static bool store_on_answer(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m,
                            const uint8_t *payload)
{
    struct hl_tcp_store *s = arg;
    const struct large *l = &s->large;
    (void)lane;
    if (m->type == HL_TCP_TYPE_RESULTS) {
        on_results(s, m, payload);
        return true;
    }
    if (m->type == HL_TCP_TYPE_MET || l->item == NULL || m->op != l->op || l->answered)
        return false;
    on_large(s, m, payload);
    return true;
}

static const struct hl_tcp_receiver store_receiver = {.on_answer = store_on_answer};

/* ---- the row of items ---- */

static struct batch *idle_batch(struct hl_tcp_store *s)
{
    for (size_t i = 0; i < HL_TCP_BATCHES; i++)
        if (!s->batches[i].used)
            return &s->batches[i];
    return NULL;
}

static bool may_send_batch(void *arg)
{
    struct hl_tcp_store *s = arg;
    return s->client->out_count == 0 && idle_batch(s) != NULL;
}

static bool all_settled(void *arg)
{
    const struct hl_tcp_store *s = arg;
    for (size_t i = 0; i < HL_TCP_BATCHES; i++)
        if (s->batches[i].used)
            return false;
    return s->client->out_count == 0;
}

static bool is_sent(void *arg)
{
    return ((const struct hl_tcp_store *)arg)->client->out_count == 0;
}

static bool large_answered(void *arg)
{
    return ((const struct hl_tcp_store *)arg)->large.answered;
}

/* Sends as many items, from `first` on, as fit into one batch; *next = the one after them. */
static hl_status put_batch(struct hl_tcp_store *s, size_t first, uint64_t deadline_ns, size_t *next)
{
    struct hl_net_client *c = s->client;
    HL_TRY(hl_tcp_client_wait(c, may_send_batch, s, deadline_ns));
    struct batch *b = idle_batch(s);
    uint8_t **bytes = &c->batch[b - s->batches];
    if (*bytes == NULL && (*bytes = malloc(HL_TCP_HEAD + c->batch_bytes)) == NULL) {
        hl_put_items_fail(&s->items, first,
                          hl_fail(HL_ENOMEM, "put to %s: out of memory", c->address));
        *next = first + 1;
        return HL_OK;
    }
    *b = (struct batch){.used = true, .op = ++c->last_op, .first = first};
    size_t len;
    b->count = hl_put_items_pack(&s->items, first, c->batch_bytes, *bytes + HL_TCP_HEAD, &len);
    hl_tcp_encode(
        &(struct hl_tcp_msg){.type = HL_TCP_TYPE_BATCH, .op = b->op, .payload = (uint32_t)len},
        *bytes);
    c->out[0] = (struct iovec){*bytes, HL_TCP_HEAD + len};
    c->out_count = 1;
    *next = first + b->count;
    return HL_OK;
}

static hl_status put_large(struct hl_tcp_store *s, const struct hl_net_item *item,
                           uint64_t deadline_ns)
{
    struct hl_net_client *c = s->client;
    HL_TRY(hl_tcp_client_wait(c, is_sent, s, deadline_ns));
    s->large = (struct large){.item = item, .op = ++c->last_op};
    HL_TRY(hl_tcp_client_ask(c, c->lanes[0],
                             &(struct hl_tcp_msg){.type = HL_TCP_TYPE_PUT,
                                                  .op = s->large.op,
                                                  .len = item->len,
                                                  .id = item->id,
                                                  .crc = item->crc}));
    HL_TRY(hl_tcp_client_wait(c, large_answered, s, deadline_ns));
    s->large.item = NULL;
    return HL_OK;
}

static hl_status tcp_run_store(struct hl_tcp_store *s, uint64_t deadline_ns)
{
    for (size_t i = 0; i < s->items.count;) {
        if (hl_put_items_small(&s->items, i, s->client->batch_bytes))
            HL_TRY(put_batch(s, i, deadline_ns, &i));
        else
            HL_TRY(put_large(s, &s->items.items[i++], deadline_ns));
    }
    return hl_tcp_client_wait(s->client, all_settled, s, deadline_ns);
}

hl_status hl_tcp_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                     int timeout_ms)
{
    struct hl_tcp_store s = {.client = c};
    hl_status st = hl_tcp_client_usable(c);
    c->call = (struct hl_net_call){.what = "put", .objects = count, .since_ns = hl_now_ns()};
    c->call.len = hl_put_items_begin(&s.items, items, count);
    hl_tcp_client_receive(c, &store_receiver, &s);
    if (st == HL_OK)
        st = tcp_run_store(&s, hl_net_deadline(c->call.since_ns, timeout_ms));
    hl_tcp_client_receive(c, NULL, NULL);
    c->out_count = 0;
    return hl_put_items_end(&s.items, st);
}
