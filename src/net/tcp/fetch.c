/* net/tcp/fetch.c - reads ranges of the pool in pieces, several of them requested at a time.
 *
 * The bytes of a large piece are received directly into place and summed while they are in the
 * cache; a small one is received with its header in one call. A lane answers in the order of its
 * requests, so each header must be that of its oldest piece. */
#include <stdio.h>
#include <string.h>

#include "base/copy.h"
#include "base/crc32.h"
#include "net/tcp/client.h"
#include "net/tcp/io.h"

struct hl_tcp_fetch {
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
};

static struct hl_tcp_piece *oldest_piece(struct hl_tcp_lane *lane)
{
    return &lane->pieces[lane->oldest];
}

static void piece_ended(struct hl_tcp_fetch *f, struct hl_tcp_lane *lane)
{
    lane->oldest = (lane->oldest + 1) % HL_TCP_WINDOW;
    lane->asked--;
    lane->body = false;
    f->busy--;
}

static void piece_received(struct hl_tcp_fetch *f, struct hl_tcp_lane *lane)
{
    const struct hl_tcp_piece *p = oldest_piece(lane);
    if (f->crcs != NULL && p->crc != f->crcs[p->chunk])
        hl_net_bad_note(f->bad, p->chunk);
    piece_ended(f, lane);
}

/* Whether the message answers the lane's oldest request; if not, the client ends. */
static bool is_oldest(struct hl_tcp_fetch *f, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m)
{
    if (lane->asked > 0 && m->op == oldest_piece(lane)->op)
        return true;
    const char *cause = m->op <= f->client->last_op ? "duplicate" : "foreign";
    for (unsigned i = 1; i < lane->asked; i++)
        if (lane->pieces[(lane->oldest + i) % HL_TCP_WINDOW].op == m->op)
            cause = "reordered";
    hl_tcp_client_fault(f->client, cause);
    return false;
}

static void fetch_on_piece(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m)
{
    struct hl_tcp_fetch *f = arg;
    const struct hl_tcp_piece *p = oldest_piece(lane);
    if (!is_oldest(f, lane, m))
        return;
    if (m->len != p->len || m->offset != f->offset + p->chunk * HL_CHUNK)
        hl_tcp_client_fault(f->client, "wrong-size");
    else
        lane->body = true;
}

static void fetch_take(void *arg, struct hl_tcp_lane *lane)
{
    struct hl_tcp_fetch *f = arg;
    struct hl_tcp_piece *p = oldest_piece(lane);
    uint8_t *to = f->dst + p->chunk * (size_t)HL_CHUNK + p->got;
    size_t n = lane->len - lane->at < p->len - p->got ? lane->len - lane->at : p->len - p->got;
    if (f->crcs != NULL)
        p->crc = hl_copy_crc32(p->crc, to, lane->in + lane->at, n, f->len);
    else
        hl_copy(to, lane->in + lane->at, n, f->len);
    lane->at += n;
    p->got += n;
    if (p->got == p->len)
        piece_received(f, lane);
}

static ssize_t fetch_receive(void *arg, struct hl_tcp_lane *lane)
{
    struct hl_tcp_fetch *f = arg;
    struct hl_tcp_piece *p = oldest_piece(lane);
    uint8_t *to = f->dst + p->chunk * (size_t)HL_CHUNK + p->got;
    size_t room = p->len - p->got < HL_TCP_STEP ? p->len - p->got : HL_TCP_STEP;
    ssize_t n = hl_tcp_receive(lane->fd, to, room);
    if (n <= 0)
        return n;
    if (f->crcs != NULL)
        p->crc = hl_crc32(p->crc, to, (size_t)n);
    p->got += (size_t)n;
    if (p->got == p->len)
        piece_received(f, lane);
    return n;
}

static bool fetch_on_answer(void *arg, struct hl_tcp_lane *lane, const struct hl_tcp_msg *m,
                            const uint8_t *words)
{
    struct hl_tcp_fetch *f = arg;
    if (m->type != HL_TCP_TYPE_REFUSED)
        return false;
    if (!is_oldest(f, lane, m))
        return true;
    f->refused = m->status;
    snprintf(f->refused_text, sizeof(f->refused_text), "%.*s", (int)m->payload, words);
    piece_ended(f, lane);
    return true;
}

static const struct hl_tcp_receiver fetch_receiver = {.on_answer = fetch_on_answer,
                                                      .on_piece = fetch_on_piece,
                                                      .take = fetch_take,
                                                      .receive = fetch_receive};

static hl_status ask_piece(struct hl_tcp_fetch *f, struct hl_tcp_lane *lane)
{
    struct hl_net_client *c = f->client;
    struct hl_tcp_piece *p = &lane->pieces[(lane->oldest + lane->asked) % HL_TCP_WINDOW];
    size_t left = f->len - f->next;
    *p = (struct hl_tcp_piece){
        .op = ++c->last_op, .chunk = f->next / HL_CHUNK, .len = left < HL_CHUNK ? left : HL_CHUNK};
    lane->asked++;
    f->busy++;
    f->next += p->len;
    return hl_tcp_client_ask(c, lane,
                             &(struct hl_tcp_msg){.type = HL_TCP_TYPE_ASK,
                                                  .op = p->op,
                                                  .offset = f->offset + p->chunk * HL_CHUNK,
                                                  .len = p->len});
}

/* Returns the lane with the fewest pieces in flight; NULL if all have the maximum. */
static struct hl_tcp_lane *free_lane(const struct hl_net_client *c)
{
    struct hl_tcp_lane *best = c->lanes[0];
    for (size_t i = 1; i < c->lane_count; i++)
        if (c->lanes[i]->asked < best->asked)
            best = c->lanes[i];
    return best->asked < HL_TCP_WINDOW ? best : NULL;
}

static bool wants_more(const struct hl_tcp_fetch *f)
{
    return f->next < f->len && f->refused == HL_OK;
}

static bool has_room(void *arg)
{
    const struct hl_tcp_fetch *f = arg;
    return wants_more(f) ? free_lane(f->client) != NULL : f->busy == 0;
}

static hl_status tcp_run_fetch(struct hl_tcp_fetch *f, uint64_t deadline_ns)
{
    while (wants_more(f)) {
        struct hl_tcp_lane *lane;
        while (wants_more(f) && (lane = free_lane(f->client)) != NULL)
            HL_TRY(ask_piece(f, lane));
        HL_TRY(hl_tcp_client_wait(f->client, has_room, f, deadline_ns));
    }
    return hl_tcp_client_wait(f->client, has_room, f, deadline_ns);
}

hl_status hl_tcp_fetch(struct hl_net_client *c, uint64_t offset, void *dst, size_t len,
                       const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad)
{
    HL_TRY(hl_tcp_client_usable(c));
    struct hl_tcp_fetch f = {
        .client = c, .offset = offset, .dst = dst, .len = len, .crcs = chunk_crcs, .bad = bad};
    bad->count = 0;
    c->call = (struct hl_net_call){
        .what = "fetch", .ranged = true, .offset = offset, .len = len, .since_ns = hl_now_ns()};
    hl_tcp_client_receive(c, &fetch_receiver, &f);
    hl_status st =
        len > 0 ? tcp_run_fetch(&f, hl_net_deadline(c->call.since_ns, timeout_ms)) : HL_OK;
    hl_tcp_client_receive(c, NULL, NULL);
    HL_TRY(st);
    return hl_net_fetch_end(&c->call, c->address, f.refused, f.refused_text, bad);
}
