/* Collectives by messages. Sums: each rank gets all ranks' values of its share, adds them in the
 * order of ranks and sends the result to all, so each byte is sent twice, however many ranks there
 * are. A small array is sent to all ranks at once.
 *
 * A step, for each peer r:   waits: a message of this step is to come     sends: ours is in flight
 *
 *     start_step     sets both as the step wants them, and begins all sends
 *     poll_outboxes  a message has come: waits = 0, kept in `got`; a send has ended: sends = 0
 *     net_step       ends when no peer has either, or one has failed, died, or left
 *
 * All of it runs on the caller's thread; the threads of inbox and outboxes only wake it (inbox.c).
 * Messages of a step are numbered, so one that comes early is kept for its step. Any thread may set
 * `cancelled`; it is read at each look and needs no order, because nothing else is read because of
 * it.
 *
 * Numbers of messages, which separate the exchanges between two ranks:
 *
 *     1, 2, 3 ...              steps of collectives, counted alike by all (g->number)
 *     HL_INBOX_AHEAD | 0, 1 ..  pieces between two ranks, counted by these (sent, received)
 *     LAST                     what a rank says when it leaves
 *
 * A rank's end is noticed by its last message, else by its port, which refuses connections, else by
 * the deadline: in this order, because the first says most. What the rank sent before still
 * counts. */
#include "group/net/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define MAGIC    0x48504743u
#define VERSION  1
#define PIECE    ((size_t)4 << 20)
#define SMALL    ((size_t)32 << 10) /* summed by every rank */
#define LOOK_MS  HL_COLLECTIVE_LOOK_MS
#define LAST     (HL_INBOX_AHEAD - 1) /* number of what a rank says when it leaves */
#define LAST_MS  500
#define AGAIN_MS 2 /* between tries of a full inbox */
#define HEADER   HL_COLLECTIVE_HEADER

_Static_assert(sizeof(struct hl_net_call) <= HEADER, "a call fits its place");
_Static_assert(PIECE + HEADER <= HL_INBOX_BYTES, "a piece is a message");

enum { ALLGATHER = 1, BROADCAST, ALLREDUCE, ALLTOALL, SEND };

/* ---- a step ---- */

static const char *net_describe(const struct hl_net_call *c, char *buf, size_t cap)
{
    static const char *const names[] = {"nothing",   "allgather", "broadcast",
                                        "allreduce", "alltoall",  "send"};
    const char *name = c->kind < HL_ARRAY_LEN(names) ? names[c->kind] : "something else";
    const char *arg = c->kind == BROADCAST ? "src" : c->kind == SEND ? "tag" : "type";
    snprintf(buf, cap, "%s of \"%.*s\" (%" PRIu64 " bytes, %s %d, operation %d)", name,
             (int)sizeof(c->what) - 1, c->what, c->bytes, arg, c->arg, c->op);
    return buf;
}

static hl_status fail_rank(const struct hl_collective_net *g, int r, hl_status st, const char *what)
{
    char call[256];
    return hl_fail(st, "rank %d (%s) %s; rank %d of %d is in %s", r, g->ranks[r].address, what,
                   g->rank, g->world, net_describe(&g->call, call, sizeof(call)));
}

/* Other ranks' messages begin with a description of their call. */
static hl_status check_call(const struct hl_collective_net *g, int r)
{
    const struct hl_inbox_message *m = g->ranks[r].got;
    struct hl_net_call c;
    char theirs[256], own[256];
    if (m->size < HEADER)
        return fail_rank(g, r, HL_EPROTO, "sends something that is not a message of a group");
    memcpy(&c, m->data, sizeof(c));
    c.what[sizeof(c.what) - 1] = '\0';
    if (c.magic != MAGIC || c.version != VERSION)
        return fail_rank(g, r, HL_EPROTO,
                         "has another version of groups: use the same library on all ranks");
    if (c.kind == g->call.kind && c.arg == g->call.arg && c.bytes == g->call.bytes &&
        c.op == g->call.op)
        return HL_OK;
    return hl_fail(HL_ECONFLICT, "rank %d (%s) calls %s; rank %d calls %s", r, g->ranks[r].address,
                   net_describe(&c, theirs, sizeof(theirs)), g->rank,
                   net_describe(&g->call, own, sizeof(own)));
}

/* A rank that left has said so, with the reason if it gave up. */
static hl_status check_last(struct hl_collective_net *g, int r)
{
    struct hl_net_rank *p = &g->ranks[r];
    if (p->last == NULL)
        p->last = hl_inbox_take(g->inbox, g->group, r, LAST);
    if (p->last == NULL)
        return HL_OK;
    char words[HL_ERROR_TEXT_MAX] = "has closed the group";
    if (p->last->size > HEADER)
        snprintf(words, sizeof(words), "gave up: %.*s", (int)(p->last->size - HEADER),
                 (const char *)p->last->data + HEADER);
    return fail_rank(g, r, HL_EUNAVAIL, words);
}

/* Takes the message with that number if it has come. A rank that left has sent it before it said
 * so: the inbox is looked at again after that. */
static hl_status hear_rank(struct hl_collective_net *g, int r, uint64_t number)
{
    struct hl_net_rank *p = &g->ranks[r];
    p->got = hl_inbox_take(g->inbox, g->group, r, number);
    if (p->got != NULL)
        return HL_OK;
    hl_status st = check_last(g, r);
    if (st != HL_OK)
        p->got = hl_inbox_take(g->inbox, g->group, r, number);
    if (p->got == NULL)
        return st;
    hl_error_clear();
    return HL_OK;
}

static hl_status fail_gone(const struct hl_collective_net *g, int r)
{
    return fail_rank(g, r, HL_EUNAVAIL, "has died, or left the group");
}

/* A cancelled group fails like after an error: the other ranks get the reason. */
static hl_status check_cancelled(const struct hl_collective_net *g)
{
    char call[256];
    if (!__atomic_load_n(&g->cancelled, __ATOMIC_RELAXED))
        return HL_OK;
    return hl_fail(HL_ECANCELED, "rank %d of %d was cancelled in %s", g->rank, g->world,
                   net_describe(&g->call, call, sizeof(call)));
}

/* Several ranks may get the same bytes, so all headers are written before the first send begins. */
static hl_status start_step(struct hl_collective_net *g, uint8_t *const *data, const size_t *size,
                            const uint8_t *hears)
{
    for (int r = 0; r < g->world; r++) {
        struct hl_net_rank *p = &g->ranks[r];
        p->waits = r != g->rank && hears[r];
        p->sends = r != g->rank && size[r] > 0;
        if (!p->sends)
            continue;
        memset(data[r], 0, HEADER);
        memcpy(data[r], &g->call, sizeof(g->call));
    }
    for (int r = 0; r < g->world; r++)
        if (g->ranks[r].sends)
            HL_TRY(hl_outbox_send(g->ranks[r].outbox, g->group, g->rank, g->number, data[r],
                                  size[r], g->timeout_ms));
    return HL_OK;
}

/* A message was sent, or its send failed. If a rank that was heard in this step has gone, it had
 * all it needed to end the call; otherwise the next step will miss it. */
static hl_status end_send(struct hl_collective_net *g, int r, hl_status st, const char *words)
{
    char text[HL_ERROR_TEXT_MAX];
    int gone = st == HL_EUNAVAIL || st == HL_ETIMEDOUT;
    if (st == HL_OK || (gone && !g->ranks[r].waits))
        return HL_OK;
    snprintf(text, sizeof(text), "does not take a message: %s", words);
    HL_TRY(check_last(g, r)); /* its own reason is better */
    if (gone && hl_collective_gone(&g->ranks[r]))
        return fail_gone(g, r);
    return fail_rank(g, r, st, text);
}

/* Takes messages that have arrived and sends that have ended; *left counts what is missing. */
static hl_status poll_outboxes(struct hl_collective_net *g, int *left)
{
    *left = 0;
    for (int r = 0; r < g->world; r++) {
        struct hl_net_rank *p = &g->ranks[r];
        hl_status st = HL_OK;
        const char *words = "";
        int ended = p->sends && !hl_outbox_sending(p->outbox, &st, &words);
        if (p->waits)
            HL_TRY(hear_rank(g, r, g->number));
        if (p->waits && p->got != NULL) {
            p->waits = 0;
            HL_TRY(check_call(g, r));
        }
        if (ended) { /* looked at first: the inbox has what a rank sent before it went */
            p->sends = 0;
            HL_TRY(end_send(g, r, st, words));
        }
        if (p->gone && p->got == NULL && (p->waits || p->sends))
            return fail_gone(g, r);
        *left += p->waits + p->sends;
    }
    return HL_OK;
}

/* A rank that was heard in this step may go: sends to it end by themselves. For the other ranks the
 * inbox is checked once more: they may have sent everything before they went. */
static hl_status check_silent(struct hl_collective_net *g, uint64_t deadline_ns)
{
    char text[80];
    snprintf(text, sizeof(text), "does not answer within %d ms", g->timeout_ms);
    for (int r = 0; r < g->world; r++) {
        struct hl_net_rank *p = &g->ranks[r];
        if (!p->waits && !p->sends)
            continue;
        p->gone = p->got == NULL && hl_collective_gone(p);
        if (p->gone)
            hl_inbox_wake(g->inbox);
        else if (hl_now_ns() >= deadline_ns)
            return fail_rank(g, r, HL_ETIMEDOUT, text);
    }
    return HL_OK;
}

/* Runs one step: sends `data[r]`, `size[r]` to each rank r with size > 0, and receives a message of
 * each with hears[r]. The first HEADER bytes of each are the step's own. g->ranks[r].got then stay
 * valid until step_done. */
static hl_status net_step(struct hl_collective_net *g, uint8_t *const *data, const size_t *size,
                          const uint8_t *hears)
{
    uint64_t now = hl_now_ns(), next_look = now + LOOK_MS * HL_NS_PER_MS;
    uint64_t deadline_ns = now + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
    int left = 0;
    HL_TRY(start_step(g, data, size, hears));
    for (;;) {
        HL_TRY(poll_outboxes(g, &left));
        if (left == 0)
            break;
        HL_TRY(check_cancelled(g));
        now = hl_now_ns();
        if (now >= next_look || now >= deadline_ns) {
            HL_TRY(check_silent(g, deadline_ns));
            next_look = hl_now_ns() + LOOK_MS * HL_NS_PER_MS;
        }
        hl_inbox_wait(g->inbox, next_look < deadline_ns ? next_look : deadline_ns);
    }
    g->number++;
    return HL_OK;
}

/* Frees the messages of a step before the next, so at most one of each rank is held. */
static void step_done(struct hl_collective_net *g)
{
    for (int r = 0; r < g->world; r++) {
        free(g->ranks[r].got);
        g->ranks[r].got = NULL;
    }
}

/* Waits until no send is in flight, or until that time. */
static void wait_for_outboxes(struct hl_collective_net *g, uint64_t until_ns)
{
    hl_status st;
    const char *words;
    for (;;) {
        int busy = 0;
        for (int r = 0; r < g->world; r++)
            busy +=
                g->ranks[r].outbox != NULL && hl_outbox_sending(g->ranks[r].outbox, &st, &words);
        if (busy == 0 || hl_now_ns() >= until_ns)
            return;
        hl_inbox_wait(g->inbox, until_ns);
    }
}

/* Tells the other ranks that this rank leaves, as far as they listen within a second, and why if it
 * gives up; without words it closes the group. An outbox sends one message at a time: if one is
 * still in flight after LAST_MS, that peer is not told, and notices by the port or the deadline. */
static void say_last(struct hl_collective_net *g, const char *words)
{
    struct hl_net_call call = {.magic = MAGIC, .version = VERSION};
    size_t len = strnlen(words, sizeof(g->last) - HEADER);
    hl_status st;
    const char *unused;
    if (g->told)
        return;
    g->told = true;
    memcpy(g->last, &call, sizeof(call));
    memcpy(g->last + HEADER, words, len);
    wait_for_outboxes(g, hl_now_ns() + LAST_MS * HL_NS_PER_MS);
    for (int r = 0; r < g->world; r++) {
        struct hl_outbox *l = g->ranks[r].outbox;
        if (l != NULL && !hl_outbox_sending(l, &st, &unused) &&
            hl_outbox_send(l, g->group, g->rank, LAST, g->last, HEADER + len, LAST_MS) != HL_OK)
            hl_error_clear();
    }
    wait_for_outboxes(g, hl_now_ns() + LAST_MS * HL_NS_PER_MS);
}

/* ---- collectives ---- */

/* Writes what all messages of this call begin with. */
static void net_announce(struct hl_collective_net *g, int kind, const char *what, uint64_t bytes,
                         int arg, int op)
{
    g->call = (struct hl_net_call){.magic = MAGIC,
                                   .version = VERSION,
                                   .kind = (uint32_t)kind,
                                   .bytes = bytes,
                                   .arg = arg,
                                   .op = op};
    snprintf(g->call.what, sizeof(g->call.what), "%s", what);
    g->calls++;
}

/* Ends a call; its error text is kept. */
static int net_finish(struct hl_collective_net *g, hl_status st)
{
    step_done(g);
    if (st == HL_OK)
        return HL_OK;
    char words[HL_ERROR_TEXT_MAX];
    snprintf(words, sizeof(words), "%s", hl_error_text());
    say_last(g, words);
    return hl_fail(st, "%s", words);
}

/* Every rank gets `bytes` of every rank. */
static hl_status exchange_all(struct hl_collective_net *g, const void *mine, size_t bytes)
{
    uint8_t *data[HL_COLLECTIVE_RANKS], hears[HL_COLLECTIVE_RANKS];
    size_t size[HL_COLLECTIVE_RANKS];
    memcpy(g->out + HEADER, mine, bytes);
    for (int r = 0; r < g->world; r++) {
        data[r] = g->out;
        size[r] = HEADER + bytes;
        hears[r] = 1;
    }
    HL_TRY(net_step(g, data, size, hears));
    for (int r = 0; r < g->world; r++)
        if (r != g->rank && g->ranks[r].got->size != HEADER + bytes)
            return fail_rank(g, r, HL_EPROTO, "sends a different number of bytes");
    return HL_OK;
}

static const uint8_t *data_from(const struct hl_collective_net *g, int r)
{
    return g->ranks[r].got->data + HEADER;
}

static int net_allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    struct hl_collective_net *g = arg;
    hl_status st = HL_OK;
    net_announce(g, ALLGATHER, what, bytes, 0, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += PIECE) {
        size_t here = bytes - at < PIECE ? bytes - at : PIECE;
        const uint8_t *from = (const uint8_t *)mine + at;
        st = exchange_all(g, from, here);
        for (int r = 0; r < g->world && st == HL_OK; r++)
            memcpy((uint8_t *)all + (uint64_t)r * bytes + at, r == g->rank ? from : data_from(g, r),
                   here);
        step_done(g);
    }
    return net_finish(g, st);
}

static int net_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    struct hl_collective_net *g = arg;
    uint8_t *to[HL_COLLECTIVE_RANKS], hears[HL_COLLECTIVE_RANKS];
    size_t size[HL_COLLECTIVE_RANKS];
    hl_status st = HL_OK;
    net_announce(g, BROADCAST, what, bytes, src, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += PIECE) {
        size_t here = bytes - at < PIECE ? bytes - at : PIECE;
        if (g->rank == src)
            memcpy(g->out + HEADER, (uint8_t *)data + at, here);
        /* The other ranks confirm that they are there. */
        for (int r = 0; r < g->world; r++) {
            hears[r] = g->rank == src || r == src;
            size[r] = g->rank == src ? HEADER + here : r == src ? HEADER : 0;
            to[r] = g->out;
        }
        st = net_step(g, to, size, hears);
        if (st == HL_OK && g->rank != src && g->ranks[src].got->size != HEADER + here)
            st = fail_rank(g, src, HL_EPROTO, "sends a different number of bytes");
        if (st == HL_OK && g->rank != src)
            memcpy((uint8_t *)data + at, data_from(g, src), here);
        step_done(g);
    }
    return net_finish(g, st);
}

/* Adds in the order of ranks, so that all ranks that add the same values get the same bits. */
static void sum_parts(struct hl_collective_net *g, uint8_t *mine, size_t n, int type, int op)
{
    const void *parts[HL_COLLECTIVE_RANKS];
    for (int r = 0; r < g->world; r++)
        parts[r] = r == g->rank ? mine : data_from(g, r);
    hl_collective_reduce(mine, parts, g->world, type, op, 0, n);
}

/* Returns the first element of rank r's share; that of rank r + 1 is its end. Shares differ by at
 * most one element. */
static size_t share_at(size_t n, int r, int world)
{
    return n * (size_t)r / (size_t)world;
}

/* Sends the values of each rank's share to that rank, and receives this rank's into `out`, one
 * after the other. */
static hl_status scatter_shares(struct hl_collective_net *g, const uint8_t *data, size_t n,
                                size_t width)
{
    uint8_t *to[HL_COLLECTIVE_RANKS], hears[HL_COLLECTIVE_RANKS], *at = g->out;
    size_t size[HL_COLLECTIVE_RANKS];
    size_t own = share_at(n, g->rank + 1, g->world) - share_at(n, g->rank, g->world);
    for (int r = 0; r < g->world; r++) {
        size_t first = share_at(n, r, g->world), end = share_at(n, r + 1, g->world);
        size[r] = HEADER + (end - first) * width;
        hears[r] = 1;
        to[r] = at;
        if (r == g->rank)
            continue;
        memcpy(at + HEADER, data + first * width, (end - first) * width);
        at += (size[r] + 63) / 64 * 64;
    }
    HL_TRY(net_step(g, to, size, hears));
    for (int r = 0; r < g->world; r++)
        if (r != g->rank && g->ranks[r].got->size != HEADER + own * width)
            return fail_rank(g, r, HL_EPROTO, "sends a different number of bytes");
    return HL_OK;
}

/* Receives each rank's share of the sum from that rank. */
static hl_status gather_shares(struct hl_collective_net *g, uint8_t *data, size_t n, size_t width)
{
    uint8_t *to[HL_COLLECTIVE_RANKS], hears[HL_COLLECTIVE_RANKS];
    size_t size[HL_COLLECTIVE_RANKS];
    size_t first = share_at(n, g->rank, g->world), end = share_at(n, g->rank + 1, g->world);
    memcpy(g->out + HEADER, data + first * width, (end - first) * width);
    for (int r = 0; r < g->world; r++) {
        to[r] = g->out;
        size[r] = HEADER + (end - first) * width;
        hears[r] = 1;
    }
    HL_TRY(net_step(g, to, size, hears));
    for (int r = 0; r < g->world; r++) {
        size_t a = share_at(n, r, g->world), b = share_at(n, r + 1, g->world);
        if (r == g->rank)
            continue;
        if (g->ranks[r].got->size != HEADER + (b - a) * width)
            return fail_rank(g, r, HL_EPROTO, "sends a different number of bytes");
        memcpy(data + a * width, data_from(g, r), (b - a) * width);
    }
    return HL_OK;
}

/* A small piece takes one step: all ranks send to all, and each adds. A large one takes two: shares
 * to their ranks, then their sums to all. */
static hl_status sum_piece(struct hl_collective_net *g, uint8_t *data, size_t n, int type, int op)
{
    size_t width = hl_collective_size(type);
    if (n * width <= SMALL) {
        HL_TRY(exchange_all(g, data, n * width));
        sum_parts(g, data, n, type, op);
        return HL_OK;
    }
    size_t first = share_at(n, g->rank, g->world), end = share_at(n, g->rank + 1, g->world);
    HL_TRY(scatter_shares(g, data, n, width));
    sum_parts(g, data + first * width, end - first, type, op);
    step_done(g);
    return gather_shares(g, data, n, width);
}

static int net_reduce(void *arg, const char *what, void *data, uint64_t n, int type, int op)
{
    struct hl_collective_net *g = arg;
    size_t width = hl_collective_size(type), most = PIECE / width;
    hl_status st = HL_OK;
    net_announce(g, ALLREDUCE, what, n * width, type, op);
    for (uint64_t at = 0; at < n && st == HL_OK; at += most) {
        st = sum_piece(g, (uint8_t *)data + at * width, n - at < most ? n - at : most, type, op);
        step_done(g);
    }
    return net_finish(g, st);
}

static int net_alltoall(void *arg, const char *what, const void *in, void *out, uint64_t bytes)
{
    struct hl_collective_net *g = arg;
    uint8_t *to[HL_COLLECTIVE_RANKS], hears[HL_COLLECTIVE_RANKS];
    size_t size[HL_COLLECTIVE_RANKS], most = PIECE / (size_t)g->world / 64 * 64;
    hl_status st = HL_OK;
    net_announce(g, ALLTOALL, what, bytes, 0, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += most) {
        size_t here = bytes - at < most ? bytes - at : most;
        for (int r = 0; r < g->world; r++) {
            to[r] = g->out + (size_t)r * (HEADER + most);
            memcpy(to[r] + HEADER, (const uint8_t *)in + (uint64_t)r * bytes + at, here);
            size[r] = HEADER + here;
            hears[r] = 1;
        }
        st = net_step(g, to, size, hears);
        for (int r = 0; r < g->world && st == HL_OK; r++) {
            const uint8_t *from = r == g->rank ? to[r] + HEADER : data_from(g, r);
            if (r != g->rank && g->ranks[r].got->size != size[r])
                st = fail_rank(g, r, HL_EPROTO, "sends a different number of bytes");
            else
                memcpy((uint8_t *)out + (uint64_t)r * bytes + at, from, here);
        }
        step_done(g);
    }
    return net_finish(g, st);
}

/* ---- between two ranks ---- */

/* Waits until rank r has been heard, or has taken the message in flight. *sent: how the send ended;
 * on HL_EBUSY, a full inbox, the caller tries again. */
static hl_status wait_for(struct hl_collective_net *g, int r, uint64_t number, uint64_t deadline_ns,
                          hl_status *sent)
{
    struct hl_net_rank *p = &g->ranks[r];
    uint64_t next_look = hl_now_ns() + LOOK_MS * HL_NS_PER_MS;
    const char *words = "";
    while (p->sends || p->waits) {
        if (p->sends && !hl_outbox_sending(p->outbox, sent, &words))
            break;
        HL_TRY(p->waits ? hear_rank(g, r, number) : check_last(g, r));
        if (p->got != NULL)
            break;
        HL_TRY(check_cancelled(g));
        if (p->gone)
            return fail_gone(g, r);
        if (hl_now_ns() >= next_look || hl_now_ns() >= deadline_ns) {
            HL_TRY(check_silent(g, deadline_ns));
            next_look = hl_now_ns() + LOOK_MS * HL_NS_PER_MS;
        }
        hl_inbox_wait(g->inbox, next_look < deadline_ns ? next_look : deadline_ns);
    }
    p->sends = p->waits = 0;
    if (*sent == HL_OK || *sent == HL_EBUSY)
        return HL_OK;
    HL_TRY(check_last(g, r));
    return fail_rank(g, r, *sent, words);
}

/* Only these two ranks take part. */
static void drop_other_ranks(struct hl_collective_net *g)
{
    for (int r = 0; r < g->world; r++)
        g->ranks[r].waits = g->ranks[r].sends = 0;
}

/* Tries again while the inbox is full: the receiver may be slow. */
static hl_status send_piece(struct hl_collective_net *g, int dst, const void *data, size_t size)
{
    struct hl_net_rank *p = &g->ranks[dst];
    uint64_t deadline_ns = hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
    uint64_t number = HL_INBOX_AHEAD | p->sent++;
    memset(g->out, 0, HEADER);
    memcpy(g->out, &g->call, sizeof(g->call));
    memcpy(g->out + HEADER, data, size);
    for (;;) {
        hl_status sent = HL_OK;
        HL_TRY(hl_outbox_send(p->outbox, g->group, g->rank, number, g->out, HEADER + size,
                              g->timeout_ms));
        p->sends = 1;
        HL_TRY(wait_for(g, dst, 0, deadline_ns, &sent));
        if (sent == HL_OK)
            return HL_OK;
        if (hl_now_ns() >= deadline_ns)
            return fail_rank(g, dst, HL_ETIMEDOUT, "does not accept what is sent");
        hl_inbox_wait(g->inbox, hl_now_ns() + AGAIN_MS * HL_NS_PER_MS);
    }
}

/* The receiver need not have called yet: a piece counts as sent when it is in the receiver's inbox,
 * so a message of few pieces can be sent before it is received. */
static int send_to(void *arg, const char *what, const void *data, uint64_t bytes, int dst, int tag)
{
    struct hl_collective_net *g = arg;
    hl_status st = HL_OK;
    drop_other_ranks(g);
    net_announce(g, SEND, what, bytes, tag, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += PIECE)
        st =
            send_piece(g, dst, (const uint8_t *)data + at, bytes - at < PIECE ? bytes - at : PIECE);
    return net_finish(g, st);
}

static int recv_from(void *arg, const char *what, void *data, uint64_t bytes, int src, int tag)
{
    struct hl_collective_net *g = arg;
    struct hl_net_rank *p = &g->ranks[src];
    hl_status st = HL_OK, unused = HL_OK;
    drop_other_ranks(g);
    net_announce(g, SEND, what, bytes, tag, 0);
    for (uint64_t at = 0; at < bytes && st == HL_OK; at += PIECE) {
        size_t here = bytes - at < PIECE ? bytes - at : PIECE;
        uint64_t deadline_ns = hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
        p->waits = 1;
        st = wait_for(g, src, HL_INBOX_AHEAD | p->received++, deadline_ns, &unused);
        if (st == HL_OK)
            st = check_call(g, src);
        if (st == HL_OK && p->got->size != HEADER + here)
            st = fail_rank(g, src, HL_EPROTO, "sends a different number of bytes");
        if (st == HL_OK)
            memcpy((uint8_t *)data + at, data_from(g, src), here);
        step_done(g);
    }
    return net_finish(g, st);
}

/* ---- coming and going ---- */

/* Called by any thread: sets the flag first, then wakes the thread that reads it. */
static void net_cancel(void *arg)
{
    struct hl_collective_net *g = arg;
    __atomic_store_n(&g->cancelled, 1, __ATOMIC_RELAXED);
    hl_inbox_wake(g->inbox);
}

/* Also closes a group that was joined in part. */
static void net_close(void *arg)
{
    struct hl_collective_net *g = arg;
    if (g->pid != getpid()) /* a forked child has neither threads nor connections */
        return;
    if (g->ranks != NULL && g->group != 0)
        say_last(g, "");
    if (g->ranks != NULL) /* last messages; a rank that stalls has had its time */
        wait_for_outboxes(g, hl_now_ns() + LAST_MS * HL_NS_PER_MS);
    for (int r = 0; r < g->world && g->ranks != NULL; r++) {
        hl_outbox_close(g->ranks[r].outbox);
        free(g->ranks[r].got);
        free(g->ranks[r].last);
    }
    hl_inbox_close(g->inbox);
    free(g->ranks);
    free(g->out);
    free(g);
}

/* `out` is one piece with its header and, if it is cut into shares, a header and the padding to 64
 * bytes for each of them. */
hl_status hl_collective_net_open(const hybridps_net_options *o, hybridps_transport *out)
{
    struct hl_collective_net *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    g->pid = getpid();
    hl_status st = hl_collective_meet(o, g);
    if (st == HL_OK) {
        g->out = malloc(PIECE + ((size_t)g->world + 1) * (HEADER + 64));
        st = g->out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a group");
    }
    if (st != HL_OK) {
        char words[HL_ERROR_TEXT_MAX];
        snprintf(words, sizeof(words), "%s", hl_error_text());
        net_close(g);
        return hl_fail(st, "group at %s: %s", o->address != NULL ? o->address : "no address",
                       words);
    }
    *out = (hybridps_transport){HYBRIDPS_TRANSPORT_INIT,    .rank = g->rank,
                                .world = g->world,          .arg = g,
                                .allgather = net_allgather, .broadcast = net_broadcast,
                                .close = net_close,         .reduce = net_reduce,
                                .alltoall = net_alltoall,   .send = send_to,
                                .recv = recv_from,          .cancel = net_cancel};
    return HL_OK;
}
