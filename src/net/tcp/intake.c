/* net/tcp/intake.c - what clients put: batches of small objects, and large ones.
 *
 * A large object's memory is made first (begin) and announced (READY); its bytes are received
 * straight into it and summed up while they are in the cache. It becomes visible with the commit;
 * whatever ends in between aborts it. The connection's own thread calls the handler, so an answer
 * needs no other thread; the gate says WAIT meanwhile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "net/tcp/io.h"
#include "net/tcp/server.h"

#define WORDS_MAX 256 /* of one refusal in a list of results */

/* ---- places: opts.put_queue puts are open at once, the others wait in the order they came ---- */

static bool place_take(struct hl_tcp_conn *c)
{
    struct hl_net_server *s = c->server;
    hl_tcp_conn_enter(c, HL_TCP_WORKS);
    pthread_mutex_lock(&s->lock);
    uint64_t ticket = s->next_ticket++;
    while (!hl_tcp_is_over(c) && (s->serving != ticket || s->open_puts >= s->opts.put_queue))
        pthread_cond_wait(&s->moved, &s->lock);
    bool mine = !hl_tcp_is_over(c);
    if (mine) {
        s->serving++;
        s->open_puts++;
        if (s->next_ticket != s->serving)
            pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
    return mine;
}

static void place_give(struct hl_net_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->open_puts--;
    if (s->next_ticket != s->serving)
        pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the handler, one call at a time ---- */

static hl_status begin_object(struct hl_net_server *s, struct hl_id id, uint64_t size, void **token,
                              void **base)
{
    const struct hl_net_put_handler *h = &s->opts.put;
    pthread_mutex_lock(&s->handler);
    hl_status st = h->begin(h->arg, id, size, token, base);
    pthread_mutex_unlock(&s->handler);
    return st;
}

static hl_status commit_object(struct hl_net_server *s, void *token, uint64_t size, uint32_t crc,
                               const uint32_t *crcs, struct hl_id *id)
{
    const struct hl_net_put_handler *h = &s->opts.put;
    size_t chunks = (size_t)((size + HL_CHUNK - 1) / HL_CHUNK);
    pthread_mutex_lock(&s->handler);
    hl_status st = h->commit(h->arg, token, crc, crcs, chunks, id);
    pthread_mutex_unlock(&s->handler);
    if (st == HL_OK) {
        hl_tcp_count(&s->stat_puts, 1);
        hl_tcp_count(&s->stat_put_bytes, size);
    }
    return st;
}

static void give_up(struct hl_net_server *s, void *token)
{
    const struct hl_net_put_handler *h = &s->opts.put;
    pthread_mutex_lock(&s->handler);
    h->abort(h->arg, token);
    pthread_mutex_unlock(&s->handler);
    hl_tcp_count(&s->stat_aborted, 1);
}

static hl_status wrong_sum(const struct hl_net_server *s, uint64_t size, uint32_t got,
                           uint32_t said)
{
    return hl_fail(HL_ECORRUPT, "%s: put of %llu bytes arrived with CRC %08x, the sender says %08x",
                   s->address, (unsigned long long)size, got, said);
}

/* ---- a large object ---- */

/* One chunk into its place, summed up as it lands. */
static bool land_chunk(struct hl_tcp_conn *c, uint8_t *to, size_t len, uint32_t *crc)
{
    *crc = 0;
    for (size_t done = 0; done < len;) {
        size_t room = len - done < HL_TCP_STEP ? len - done : HL_TCP_STEP;
        ssize_t n = hl_tcp_conn_receive(c, to + done, room, hl_tcp_conn_stall_ns(c));
        if (n < 0)
            return false;
        *crc = hl_crc32(*crc, to + done, (size_t)n);
        done += (size_t)n;
        atomic_fetch_add_explicit(&c->landed, (uint64_t)n, memory_order_relaxed);
    }
    return true;
}

/* The bytes of a PUT; crcs has room for those of the chunks, *whole is the CRC of all. */
static bool land_object(struct hl_tcp_conn *c, uint8_t *base, uint64_t size, uint32_t *crcs,
                        uint32_t *whole)
{
    *whole = 0;
    for (uint64_t at = 0, i = 0; at < size; at += HL_CHUNK, i++) {
        size_t len = size - at < HL_CHUNK ? (size_t)(size - at) : HL_CHUNK;
        if (!land_chunk(c, base + at, len, &crcs[i])) {
            if (errno == ETIMEDOUT)
                hl_tcp_count(&c->server->stat_expired, 1);
            hl_debug("net server: the put of client %s ended after %llu of %llu bytes: %s", c->name,
                     (unsigned long long)at, (unsigned long long)size,
                     errno != 0 ? strerror(errno) : "it left");
            return false;
        }
        *whole = hl_crc32_combine(*whole, crcs[i], len);
    }
    return true;
}

/* All bytes are here. */
static hl_status finish_object(struct hl_net_server *s, const struct hl_tcp_msg *m, void *token,
                               uint32_t crc, const uint32_t *crcs, struct hl_id *id)
{
    if (crc == m->crc)
        return commit_object(s, token, m->len, crc, crcs, id);
    give_up(s, token);
    return wrong_sum(s, m->len, crc, m->crc);
}

static bool tcp_answer_put(struct hl_tcp_conn *c, const struct hl_tcp_msg *m, hl_status st,
                           struct hl_id id)
{
    hl_tcp_conn_enter(c, HL_TCP_ANSWERS);
    bool sent =
        st != HL_OK
            ? hl_tcp_conn_refuse(c, m->op, st)
            : hl_tcp_conn_say(
                  c, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_STORED, .op = m->op, .id = id}, NULL);
    hl_tcp_conn_enter(c, HL_TCP_SERVES);
    return sent;
}

/* With its memory made. */
static bool receive_object(struct hl_tcp_conn *c, const struct hl_tcp_msg *m, void *token,
                           uint8_t *base)
{
    struct hl_net_server *s = c->server;
    struct hl_id id = {0, 0};
    uint32_t crc = 0;
    size_t chunks = (size_t)((m->len + HL_CHUNK - 1) / HL_CHUNK);
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(chunks * sizeof(*crcs));
    if (crcs == NULL) {
        give_up(s, token);
        return tcp_answer_put(c, m,
                              hl_fail(HL_ENOMEM,
                                      "%s: out of memory for the checksums of %llu bytes",
                                      s->address, (unsigned long long)m->len),
                              id);
    }
    hl_tcp_conn_enter(c, HL_TCP_SERVES);
    bool landed =
        hl_tcp_conn_say(c, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_READY, .op = m->op}, NULL);
    hl_tcp_conn_enter(c, HL_TCP_LANDS);
    landed = landed && land_object(c, base, m->len, crcs, &crc);
    hl_tcp_conn_enter(c, HL_TCP_WORKS);
    if (!landed || hl_tcp_is_over(c)) {
        give_up(s, token);
        return false;
    }
    return tcp_answer_put(c, m, finish_object(s, m, token, crc, crcs, &id), id);
}

bool hl_tcp_on_put(struct hl_tcp_conn *c, const struct hl_tcp_msg *m)
{
    struct hl_net_server *s = c->server;
    void *token = NULL, *base = NULL;
    if (c->at < c->len) {
        hl_tcp_count(&s->stat_refused, 1);
        hl_debug("net server: client %s sent bytes before READY", c->name);
        return false;
    }
    if (s->opts.put.begin == NULL)
        return hl_tcp_conn_refuse(c, m->op, hl_fail(HL_EPERM, "%s takes no puts", s->address));
    if (m->len > SIZE_MAX / 2)
        return hl_tcp_conn_refuse(c, m->op,
                                  hl_fail(HL_EINVAL, "%s: put of %llu bytes: more than can be held",
                                          s->address, (unsigned long long)m->len));
    if (!place_take(c))
        return false;
    hl_status st = begin_object(s, m->id, m->len, &token, &base);
    bool goes_on = st == HL_OK ? receive_object(c, m, token, base)
                               : tcp_answer_put(c, m, st, (struct hl_id){0, 0});
    place_give(s);
    return goes_on;
}

/* ---- a batch ---- */

static hl_status store_item(struct hl_net_server *s, const struct hl_wire_item *item,
                            const uint8_t *bytes, struct hl_id *id)
{
    void *token, *base = NULL;
    if (s->opts.put.begin == NULL)
        return hl_fail(HL_EPERM, "%s takes no puts", s->address);
    HL_TRY(begin_object(s, (struct hl_id){item->id_hi, item->id_lo}, item->len, &token, &base));
    uint32_t crc = hl_crc32_copy(0, base, bytes, item->len);
    if (crc == item->crc)
        return commit_object(s, token, item->len, crc, &crc, id);
    give_up(s, token);
    return wrong_sum(s, item->len, crc, item->crc);
}

/* Number of items, 0 when it is no list of items. */
static size_t count_items(struct hl_wire_list list)
{
    struct hl_wire_item item;
    const uint8_t *bytes;
    size_t count = 0;
    int got;
    while ((got = hl_wire_next_item(&list, &item, &bytes)) == 1)
        count++;
    return got == 0 ? count : 0;
}

/* Words go along as far as there is room for them; returns the new length. */
static size_t add_result(uint8_t *results, size_t len, hl_status st, struct hl_id id, size_t left)
{
    struct hl_wire_result r = {.id_hi = id.hi, .id_lo = id.lo, .status = st};
    const char *text = hl_error_text();
    size_t room = HL_WIRE_LIST_MAX - len - left * hl_wire_entry(0);
    r.len = st != HL_OK ? (uint32_t)strnlen(text, WORDS_MAX) : 0;
    if (hl_wire_entry(r.len) > room)
        r.len = 0;
    return len + hl_wire_add_result(results + len, &r, text);
}

/* A list that is broken anywhere stores nothing. */
bool hl_tcp_on_batch(struct hl_tcp_conn *c, const struct hl_tcp_msg *m, const uint8_t *bytes)
{
    struct hl_net_server *s = c->server;
    struct hl_wire_list list = {bytes, m->payload};
    size_t left = count_items(list), len = 0;
    struct hl_wire_item item;
    const uint8_t *data;
    if (left == 0) {
        hl_tcp_count(&s->stat_refused, 1);
        hl_debug("net server: client %s sent a batch that is not a list of objects", c->name);
        return false;
    }
    if (!place_take(c))
        return false;
    while (hl_wire_next_item(&list, &item, &data) == 1) {
        struct hl_id id = {0, 0};
        hl_status st = store_item(s, &item, data, &id);
        if (st != HL_OK)
            hl_tcp_count(&s->stat_refused, 1);
        len = add_result(c->results, len, st, id, --left);
    }
    place_give(s);
    hl_tcp_count(&s->stat_batches, 1);
    hl_tcp_conn_enter(c, HL_TCP_ANSWERS);
    bool sent = hl_tcp_conn_say(
        c, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_RESULTS, .op = m->op, .payload = (uint32_t)len},
        c->results);
    hl_tcp_conn_enter(c, HL_TCP_SERVES);
    return sent;
}
