/* net/tcp/put.c - storing objects: small ones share messages, large ones go by themselves.
 *
 * A batch needs no permission: HL_TCP_BATCHES may be without an answer. A large object is announced
 * (PUT); when the server has made its memory (READY) the bytes follow out of the caller's memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/tcp/client.h"

struct batch {
    bool used; /* its results have not come */
    uint64_t op;
    size_t first, count; /* items */
};

struct large {
    const struct hl_net_item *item; /* NULL: none */
    uint64_t op;
    bool ready, answered;
};

struct hl_tcp_store {
    struct hl_net_client *client;
    struct hl_net_item *items;
    size_t count;
    struct batch batches[HL_TCP_BATCHES];
    struct large large;
    hl_status first; /* that is not HL_OK, of the item with the lowest number */
    size_t first_item;
    char words[HL_ERROR_TEXT_MAX];
};

/* An item's end. */
static void tcp_settle_item(struct hl_tcp_store *s, size_t i, hl_status st, struct hl_id id,
                            const void *words, size_t len)
{
    struct hl_net_item *item = &s->items[i];
    item->status = st;
    if (st == HL_OK) {
        item->id = id;
        return;
    }
    if (item->words != NULL)
        snprintf(item->words, item->words_cap, "%.*s", (int)len,
                 len > 0 ? (const char *)words : "");
    if (s->first == HL_OK || i < s->first_item) {
        s->first = st;
        s->first_item = i;
        snprintf(s->words, sizeof(s->words), "%.*s", (int)len, len > 0 ? (const char *)words : "");
    }
}

static void settle_here(struct hl_tcp_store *s, size_t i, hl_status st)
{
    tcp_settle_item(s, i, st, (struct hl_id){0, 0}, hl_error_text(), HL_ERROR_TEXT_MAX - 1);
}

/* ---- answers ---- */

static void on_results(struct hl_tcp_store *s, const struct hl_tcp_msg *m, const uint8_t *payload)
{
    struct hl_wire_list list = {payload, m->payload};
    struct hl_wire_result r;
    const uint8_t *words;
    struct batch *b = NULL;
    for (size_t i = 0; i < HL_TCP_BATCHES; i++)
        if (s->batches[i].used && s->batches[i].op == m->op)
            b = &s->batches[i];
    if (b == NULL) {
        hl_tcp_client_fault(s->client, m->op <= s->client->last_op ? "duplicate" : "foreign");
        return;
    }
    size_t seen = 0;
    int got;
    while ((got = hl_wire_next_result(&list, &r, &words)) == 1 && seen < b->count)
        tcp_settle_item(s, b->first + seen++, (hl_status)r.status, (struct hl_id){r.id_hi, r.id_lo},
                        words, r.len);
    if (got != 0 || seen != b->count)
        hl_tcp_client_fault(s->client, "wrong-size");
    b->used = false;
}

static void on_large(struct hl_tcp_store *s, const struct hl_tcp_msg *m, const uint8_t *payload)
{
    struct large *l = &s->large;
    size_t i = (size_t)(l->item - s->items);
    bool sent = l->ready && s->client->out_count == 0;
    if (m->type == HL_TCP_TYPE_READY && !l->ready) {
        l->ready = true;
        s->client->out[0] = (struct iovec){(void *)l->item->data, l->item->len};
        s->client->out_count = 1;
    } else if (m->type == HL_TCP_TYPE_STORED && sent) {
        tcp_settle_item(s, i, HL_OK, m->id, "", 0);
        l->answered = true;
    } else if (m->type == HL_TCP_TYPE_REFUSED && (sent || !l->ready)) {
        tcp_settle_item(s, i, m->status, (struct hl_id){0, 0}, payload, m->payload);
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

static bool is_small(const struct hl_tcp_store *s, const struct hl_net_item *item)
{
    return item->len <= s->client->batch_bytes &&
           hl_wire_entry(item->len) <= s->client->batch_bytes;
}

/* As many items from `first` on as fit into one batch; *next = the one after them. */
static hl_status put_batch(struct hl_tcp_store *s, size_t first, uint64_t deadline_ns, size_t *next)
{
    struct hl_net_client *c = s->client;
    HL_TRY(hl_tcp_client_wait(c, may_send_batch, s, deadline_ns));
    struct batch *b = idle_batch(s);
    uint8_t **bytes = &c->batch[b - s->batches];
    if (*bytes == NULL && (*bytes = malloc(HL_TCP_HEAD + c->batch_bytes)) == NULL) {
        settle_here(s, first, hl_fail(HL_ENOMEM, "put to %s: out of memory", c->address));
        *next = first + 1;
        return HL_OK;
    }
    *b = (struct batch){.used = true, .op = ++c->last_op, .first = first};
    uint8_t *list = *bytes + HL_TCP_HEAD;
    size_t len = 0;
    for (size_t i = first; i < s->count && is_small(s, &s->items[i]); i++) {
        const struct hl_net_item *item = &s->items[i];
        if (len + hl_wire_entry(item->len) > c->batch_bytes)
            break;
        struct hl_wire_item head = {item->id.hi, item->id.lo, (uint32_t)item->len, item->crc};
        len += hl_wire_add_item(list + len, &head, item->data);
        b->count++;
    }
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
    for (size_t i = 0; i < s->count;) {
        if (is_small(s, &s->items[i]))
            HL_TRY(put_batch(s, i, deadline_ns, &i));
        else
            HL_TRY(put_large(s, &s->items[i++], deadline_ns));
    }
    return hl_tcp_client_wait(s->client, all_settled, s, deadline_ns);
}

#define UNSETTLED ((hl_status)1)

hl_status hl_tcp_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                     int timeout_ms)
{
    struct hl_tcp_store s = {.client = c, .items = items, .count = count};
    hl_status st = hl_tcp_client_usable(c);
    c->call = (struct hl_tcp_call){.kind = HL_TCP_PUTS, .objects = count, .since_ns = hl_now_ns()};
    for (size_t i = 0; i < count; i++) {
        items[i].status = UNSETTLED;
        c->call.len += items[i].len;
    }
    hl_tcp_client_receive(c, &store_receiver, &s);
    if (st == HL_OK)
        st = tcp_run_store(&s, hl_tcp_deadline(c->call.since_ns, timeout_ms));
    hl_tcp_client_receive(c, NULL, NULL);
    c->out_count = 0;
    bool open = false; /* a server that stops may answer all and be gone in one breath */
    for (size_t i = 0; i < count; i++)
        if (items[i].status == UNSETTLED) {
            settle_here(&s, i, st);
            open = true;
        }
    if (open)
        return st;
    return s.first == HL_OK ? HL_OK : hl_fail(s.first, "%s", s.words);
}
