/* net/ucx_put.c - storing one object: announce it, send its chunks, hear its id.
 *
 * The server allocates first; the bytes go to their place in order, out of the caller's memory. An
 * object is stored only when the server's checksum of what landed equals ours. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "net/ucx_client.h"

struct hl_ucx_store {
    struct hl_net_client *client;
    uint64_t op;
    const uint8_t *data;
    size_t len;
    size_t next;
    unsigned busy;
    unsigned window; /* messages */
    int ready;
    int stored;
    int failed;
    struct hl_id id;
    hl_status refused;
    char refused_text[HL_ERROR_TEXT_MAX];
};

void hl_ucx_store_on_answer(struct hl_net_client *c, const struct hl_wire *w, const char *text,
                            size_t len)
{
    struct hl_ucx_store *s = c->store;
    if (s == NULL || w->op != s->op)
        return;
    if (w->type == HL_WIRE_READY) {
        s->ready = 1;
    } else if (w->type == HL_WIRE_STORED) {
        s->stored = s->next == s->len;
        s->id = (struct hl_id){w->id_hi, w->id_lo};
    } else if (w->type == HL_WIRE_REFUSED) {
        s->refused = w->status < 0 ? w->status : HL_EPROTO;
        snprintf(s->refused_text, sizeof(s->refused_text), "%.*s", (int)len, text);
    }
}

static void on_piece_sent(void *owner, int failed)
{
    struct hl_ucx_store *s = owner;
    s->busy--;
    s->failed |= failed;
    s->client->moved_ns = hl_now_ns();
}

static int is_ready(void *arg)
{
    const struct hl_ucx_store *s = arg;
    return s->ready || s->refused != HL_OK;
}

static int has_room(void *arg)
{
    const struct hl_ucx_store *s = arg;
    return s->busy < s->window || s->failed || s->refused != HL_OK;
}

static int is_finished(void *arg)
{
    const struct hl_ucx_store *s = arg;
    return s->busy == 0 && (s->stored || s->refused != HL_OK);
}

static hl_status send_piece(struct hl_ucx_store *s)
{
    size_t left = s->len - s->next;
    size_t max = hl_ucx_message_max(&s->client->ucx);
    size_t len = left < max ? left : max;
    struct hl_ucx_send send = {
        .wire = {.type = HL_WIRE_PIECE, .op = s->op, .offset = s->next, .len = len},
        .data = s->data + s->next,
        .len = len,
        .done = on_piece_sent,
        .owner = s,
    };
    s->next += len;
    s->busy++;
    if (hl_ucx_send(s->client->ep, &send) != HL_OK)
        return hl_ucx_client_kill(s->client, HL_EUNAVAIL, "put to %s: %s", s->client->address,
                                  hl_error_text());
    return HL_OK;
}

static hl_status run(struct hl_ucx_store *s, uint32_t crc, uint64_t deadline_ns)
{
    struct hl_net_client *c = s->client;
    HL_TRY(hl_ucx_send_control(c, &(struct hl_wire){.type = HL_WIRE_PUT,
                                                    .op = s->op,
                                                    .len = s->len,
                                                    .crc = crc,
                                                    .id_hi = s->id.hi,
                                                    .id_lo = s->id.lo}));
    HL_TRY(hl_ucx_client_wait(c, is_ready, s, deadline_ns, "put"));
    while (s->next < s->len && s->refused == HL_OK) {
        HL_TRY(send_piece(s));
        HL_TRY(hl_ucx_client_wait(c, has_room, s, deadline_ns, "put"));
        if (s->failed)
            return hl_ucx_client_kill(c, HL_EUNAVAIL, "put to %s: a piece could not be sent",
                                      c->address);
    }
    return hl_ucx_client_wait(c, is_finished, s, deadline_ns, "put");
}

hl_status hl_ucx_put(struct hl_net_client *c, const void *data, size_t len, uint32_t crc,
                     int timeout_ms, struct hl_id *id)
{
    HL_TRY(hl_ucx_client_usable(c));
    struct hl_ucx_store s = {.client = c, .op = ++c->last_op, .data = data, .len = len, .id = *id};
    s.window = HL_UCX_WINDOW * HL_UCX_PIECE / (unsigned)hl_ucx_message_max(&c->ucx);
    c->began_ns = hl_now_ns();
    c->store = &s;
    hl_status st = run(&s, crc, hl_ucx_deadline(timeout_ms));
    c->store = NULL;
    HL_TRY(st);
    if (s.refused != HL_OK)
        return hl_fail(s.refused, "%s", s.refused_text);
    *id = s.id;
    return HL_OK;
}
