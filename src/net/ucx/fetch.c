/* net/ucx/fetch.c - reads ranges of the pool in pieces, several in flight, each verified when it
 * arrives.
 *
 * Over TCP the client requests a piece and the server answers with fragments, sent from the pool
 * without a copy. The client copies a fragment from the transport's buffer, which is still in the
 * cache, to its place and sums it in the same pass. (Tried and rejected: ucp_get over TCP is
 * emulated with 8 KiB messages at a third of the speed; rendezvous with UCT's put saves the copy,
 * but its bytes can land after the connection was closed, and it asserts when a peer has gone.)
 * Over verbs without one-sided reads a whole piece comes by rendezvous. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/crc32.h"
#include "base/plane.h"
#include "net/ucx/client.h"

static_assert(HL_UCX_PIECE == HL_CHUNK, "a piece is verified as one chunk");

/* A request in flight. Requests are sent in order and answered in any order; a bad piece is
 * recorded by its number, and the others continue. */
struct slot {
    struct hl_ucx_fetch *fetch;
    size_t lane; /* endpoint of its pieces */
    uint64_t op; /* 0: free */
    size_t chunk;
    size_t len;
    size_t begun; /* bytes whose message has arrived, in order */
    uint32_t crc;
};

struct hl_ucx_fetch {
    struct hl_net_client *client;
    uint64_t offset;
    uint8_t *dst;
    size_t len;
    size_t next; /* first byte not requested yet */
    unsigned busy;
    const uint32_t *crcs;
    struct hl_net_bad *bad;
    hl_status refused;
    char refused_text[HL_ERROR_TEXT_MAX];
    struct slot slots[HL_UCX_WINDOW];
};

static void slot_landed(struct slot *s)
{
    struct hl_ucx_fetch *f = s->fetch;
    if (f->crcs != NULL && s->crc != f->crcs[s->chunk])
        hl_net_bad_note(f->bad, s->chunk);
    s->op = 0;
    f->busy--;
    f->client->moved = true;
}

static void slot_failed(struct slot *s, ucs_status_t status)
{
    s->op = 0;
    s->fetch->busy--;
    if (s->fetch->client->broke == UCS_OK)
        s->fetch->client->broke = status;
}

static uint8_t *slot_place(const struct slot *s)
{
    return s->fetch->dst + s->chunk * HL_UCX_PIECE;
}

static void slot_verify(struct slot *s)
{
    if (s->fetch->crcs != NULL)
        s->crc = hl_crc32(0, slot_place(s), s->len);
    slot_landed(s);
}

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    struct slot *s = user_data;
    if (status != UCS_OK || length != s->len)
        slot_failed(s, status != UCS_OK ? status : UCS_ERR_MESSAGE_TRUNCATED);
    else
        slot_verify(s);
    ucp_request_free(request);
}

static void on_got(void *request, ucs_status_t status, void *user_data)
{
    struct slot *s = user_data;
    if (status != UCS_OK)
        slot_failed(s, status);
    else
        slot_verify(s);
    ucp_request_free(request);
}

static struct slot *slot_of(struct hl_net_client *c, uint64_t op)
{
    for (size_t i = 0; c->fetch != NULL && op != 0 && i < HL_UCX_WINDOW; i++) {
        if (c->fetch->slots[i].op == op)
            return &c->fetch->slots[i];
    }
    return NULL;
}

static void receive_whole(struct slot *s, void *desc)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = s,
    };
    void *request =
        ucp_am_recv_data_nbx(s->fetch->client->ucx.worker, desc, slot_place(s), s->len, &param);
    if (UCS_PTR_IS_ERR(request))
        slot_failed(s, UCS_PTR_STATUS(request));
    else if (request == NULL)
        slot_verify(s);
}

/* Counts an answer that nothing waits for: a second one, or one to a request that was never
 * made. */
static void drop_unasked(const struct hl_net_client *c, uint64_t op)
{
    hl_fault_count(op != 0 && op <= c->last_op ? "duplicate" : "foreign", c->path);
}

/* Refuses a fragment that does not start where the last one ended; its piece is lost. */
static void refuse_fragment(struct slot *s, uint64_t offset, uint64_t expected)
{
    hl_fault_count(offset < expected   ? "duplicate"
                   : offset > expected ? "reordered"
                                       : "wrong-size",
                   s->fetch->client->path);
    slot_failed(s, UCS_ERR_MESSAGE_TRUNCATED);
}

void hl_ucx_fetch_on_data(struct hl_net_client *c, const struct hl_wire *w, void *data, size_t len,
                          bool rndv)
{
    struct slot *s = slot_of(c, w->op);
    if (s == NULL || s->begun == s->len) {
        drop_unasked(c, w->op);
        return;
    }
    uint64_t expected = s->fetch->offset + s->chunk * (uint64_t)HL_UCX_PIECE + s->begun;
    if (w->offset != expected || len == 0 || len > s->len - s->begun || (rndv && len != s->len)) {
        refuse_fragment(s, w->offset, expected);
        return;
    }
    uint8_t *place = slot_place(s) + s->begun;
    s->begun += len;
    if (rndv) {
        receive_whole(s, data);
        return;
    }
    if (s->fetch->crcs != NULL)
        s->crc = hl_copy_crc32(s->crc, place, data, len, s->fetch->len);
    else
        hl_copy(place, data, len, s->fetch->len);
    if (s->begun == s->len)
        slot_landed(s);
}

void hl_ucx_fetch_on_refused(struct hl_net_client *c, const struct hl_wire *w, const char *text,
                             size_t len)
{
    struct slot *s = slot_of(c, w->op);
    if (s == NULL || s->begun > 0)
        return;
    struct hl_ucx_fetch *f = s->fetch;
    f->refused = w->status < 0 ? w->status : HL_EPROTO;
    snprintf(f->refused_text, sizeof(f->refused_text), "%.*s", (int)len, text);
    s->op = 0;
    f->busy--;
}

static hl_status issue_get(struct slot *s)
{
    struct hl_ucx_fetch *f = s->fetch;
    struct hl_net_client *c = f->client;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_got,
        .user_data = s,
    };
    uint64_t remote = c->key_base + f->offset + s->chunk * (uint64_t)HL_UCX_PIECE;
    const struct hl_ucx_endpoint *e = s->lane > 0 ? &c->more[s->lane - 1] : NULL;
    void *request = ucp_get_nbx(e != NULL ? e->ep : c->ep, slot_place(s), s->len, remote,
                                e != NULL ? e->key : c->key, &param);
    if (UCS_PTR_IS_ERR(request)) {
        ucs_status_t status = UCS_PTR_STATUS(request);
        return hl_ucx_client_kill(c, HL_EUNAVAIL, "%s", ucs_status_string(status));
    }
    if (request == NULL)
        slot_verify(s);
    return HL_OK;
}

/* Slots alternate between the endpoints. For gets, an endpoint without a key is replaced by the
 * first. */
static size_t lane_of(const struct hl_net_client *c, size_t slot)
{
    size_t lane = slot % (c->more_count + 1);
    return lane > 0 && c->one_sided && c->more[lane - 1].key == NULL ? 0 : lane;
}

static hl_status issue_slot(struct hl_ucx_fetch *f, size_t slot)
{
    struct slot *s = &f->slots[slot];
    size_t left = f->len - f->next;
    s->fetch = f;
    s->lane = lane_of(f->client, slot);
    s->chunk = f->next / HL_UCX_PIECE;
    s->len = left < HL_UCX_PIECE ? left : HL_UCX_PIECE;
    s->op = ++f->client->last_op;
    s->begun = 0;
    s->crc = 0;
    f->next += s->len;
    f->busy++;
    if (f->client->one_sided)
        return issue_get(s);
    return hl_ucx_send_control(
        f->client, s->lane,
        &(struct hl_wire){.type = HL_WIRE_ASK,
                          .op = s->op,
                          .offset = f->offset + s->chunk * (uint64_t)HL_UCX_PIECE,
                          .len = s->len});
}

static hl_status fill_window(struct hl_ucx_fetch *f)
{
    for (size_t i = 0; i < HL_UCX_WINDOW && f->next < f->len; i++) {
        if (f->slots[i].op == 0 && f->refused == HL_OK)
            HL_TRY(issue_slot(f, i));
    }
    return HL_OK;
}

static bool has_room(void *arg)
{
    const struct hl_ucx_fetch *f = arg;
    bool more = f->next < f->len && f->refused == HL_OK;
    return more ? f->busy < HL_UCX_WINDOW : f->busy == 0;
}

static hl_status ucx_run_fetch(struct hl_ucx_fetch *f, uint64_t deadline_ns)
{
    while (f->refused == HL_OK && (f->next < f->len)) {
        HL_TRY(fill_window(f));
        HL_TRY(hl_ucx_client_wait(f->client, has_room, f, deadline_ns));
    }
    return hl_ucx_client_wait(f->client, has_room, f, deadline_ns);
}

/* Only the adapter would check the range of a get, so it is checked here too. */
static hl_status check_range(const struct hl_net_client *c, uint64_t offset, size_t len)
{
    uint64_t end;
    if (c->one_sided && (__builtin_add_overflow(offset, len, &end) || end > c->pool_len))
        return hl_fail(HL_EINVAL, "%s: range %llu+%zu is outside the pool of %llu bytes",
                       c->address, (unsigned long long)offset, len,
                       (unsigned long long)c->pool_len);
    return HL_OK;
}

hl_status hl_ucx_fetch(struct hl_net_client *c, uint64_t offset, void *dst, size_t len,
                       const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad)
{
    HL_TRY(hl_ucx_client_usable(c));
    HL_TRY(check_range(c, offset, len));
    struct hl_ucx_fetch f = {
        .client = c, .offset = offset, .dst = dst, .len = len, .crcs = chunk_crcs, .bad = bad};
    bad->count = 0;
    c->call = (struct hl_net_call){
        .what = "fetch", .ranged = true, .offset = offset, .len = len, .since_ns = hl_now_ns()};
    c->fetch = &f;
    hl_status st =
        len > 0 ? ucx_run_fetch(&f, hl_net_deadline(c->call.since_ns, timeout_ms)) : HL_OK;
    c->fetch = NULL;
    HL_TRY(st);
    return hl_net_fetch_end(&c->call, c->address, f.refused, f.refused_text, bad);
}
