/* net/tcp/intake.c - puts of clients: batches of small objects, and large ones.
 *
 * For a large object the memory is made first (begin) and announced (READY). Its bytes are received
 * directly into it and summed while they are in the cache. The commit makes the object visible;
 * whatever ends the put before that aborts it. The connection's own thread calls the handler, so an
 * answer needs no other thread; the gate sends WAIT meanwhile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "net/tcp/io.h"
#include "net/tcp/server.h"

/* ---- places: opts.put_queue puts are open at once, the others wait in the order they came ---- */

/* Returns false if the server stops. Under server.lock, a put draws a ticket; its turn comes when
 * `serving` has reached the ticket and fewer than put_queue puts are open. `moved` is broadcast
 * when either has changed and others wait, since all of them use one condition. */
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

/* Also called after a stop: the count must be right for the connections that still end. */
static void place_give(struct hl_net_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->open_puts--;
    if (s->next_ticket != s->serving)
        pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

/* ---- a large object ---- */

/* Receives one chunk into place and sums it. */
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
        atomic_fetch_add_explicit(&c->received, (uint64_t)n, memory_order_relaxed);
    }
    return true;
}

/* Receives the bytes of a PUT. `crcs` has room for the chunks' CRCs; *whole is the CRC of all
 * bytes. */
static bool land_object(struct hl_tcp_conn *c, uint8_t *base, uint64_t size, uint32_t *crcs,
                        uint32_t *whole)
{
    *whole = 0;
    for (uint64_t at = 0, i = 0; at < size; at += HL_CHUNK, i++) {
        size_t len = size - at < HL_CHUNK ? (size_t)(size - at) : HL_CHUNK;
        if (!land_chunk(c, base + at, len, &crcs[i])) {
            if (errno == ETIMEDOUT)
                hl_net_count(&c->server->counts.expired, 1);
            hl_debug("net server: the put of client %s ended after %llu of %llu bytes: %s", c->name,
                     (unsigned long long)at, (unsigned long long)size,
                     errno != 0 ? strerror(errno) : "it disconnected");
            return false;
        }
        *whole = hl_crc32_combine(*whole, crcs[i], len);
    }
    return true;
}

/* Called when all bytes are there. */
static hl_status finish_object(struct hl_net_server *s, const struct hl_tcp_msg *m, void *token,
                               uint32_t crc, const uint32_t *crcs, struct hl_id *id)
{
    if (crc == m->crc)
        return hl_put_sink_commit(&s->sink, token, m->len, crc, crcs, id);
    hl_put_sink_abort(&s->sink, token);
    return hl_put_sink_wrong_sum(&s->sink, m->len, crc, m->crc);
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

/* Called once the memory is made. `doing` is set around each step, so that the gate sends WAIT
 * while this thread is silent, but never while it sends. */
static bool receive_object(struct hl_tcp_conn *c, const struct hl_tcp_msg *m, void *token,
                           uint8_t *base)
{
    struct hl_net_server *s = c->server;
    struct hl_id id = {0, 0};
    uint32_t crc = 0;
    size_t chunks = (size_t)((m->len + HL_CHUNK - 1) / HL_CHUNK);
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(chunks * sizeof(*crcs));
    if (crcs == NULL) {
        hl_put_sink_abort(&s->sink, token);
        return tcp_answer_put(c, m,
                              hl_fail(HL_ENOMEM,
                                      "%s: out of memory for the checksums of %llu bytes",
                                      s->address, (unsigned long long)m->len),
                              id);
    }
    hl_tcp_conn_enter(c, HL_TCP_SERVES);
    bool received =
        hl_tcp_conn_say(c, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_READY, .op = m->op}, NULL);
    hl_tcp_conn_enter(c, HL_TCP_RECEIVES);
    received = received && land_object(c, base, m->len, crcs, &crc);
    hl_tcp_conn_enter(c, HL_TCP_WORKS);
    if (!received || hl_tcp_is_over(c)) {
        hl_put_sink_abort(&s->sink, token);
        return false;
    }
    return tcp_answer_put(c, m, finish_object(s, m, token, crc, crcs, &id), id);
}

/* One put: a place, the handler's begin, READY, the bytes, commit or abort, the answer. The place
 * is always given back; one connection at a time calls the handler (put_sink.h). */
bool hl_tcp_on_put(struct hl_tcp_conn *c, const struct hl_tcp_msg *m)
{
    struct hl_net_server *s = c->server;
    void *token = NULL, *base = NULL;
    if (c->at < c->len) {
        hl_net_count(&s->counts.refused, 1);
        hl_debug("net server: client %s sent bytes before READY", c->name);
        return false;
    }
    if (s->opts.put.begin == NULL)
        return hl_tcp_conn_refuse(c, m->op,
                                  hl_fail(HL_EPERM, "%s does not accept puts", s->address));
    if (m->len > SIZE_MAX / 2)
        return hl_tcp_conn_refuse(c, m->op,
                                  hl_fail(HL_EINVAL,
                                          "%s: put of %llu bytes: more than memory can hold",
                                          s->address, (unsigned long long)m->len));
    if (!place_take(c))
        return false;
    hl_status st = hl_put_sink_begin(&s->sink, m->id, m->len, &token, &base);
    bool goes_on = st == HL_OK ? receive_object(c, m, token, base)
                               : tcp_answer_put(c, m, st, (struct hl_id){0, 0});
    place_give(s);
    return goes_on;
}

/* ---- a batch ---- */

/* A list with an error anywhere stores nothing. */
bool hl_tcp_on_batch(struct hl_tcp_conn *c, const struct hl_tcp_msg *m, const uint8_t *bytes)
{
    struct hl_net_server *s = c->server;
    size_t count = hl_put_batch_count(bytes, m->payload);
    if (count == 0) {
        hl_net_count(&s->counts.refused, 1);
        hl_debug("net server: client %s sent a batch that is not a list of objects", c->name);
        return false;
    }
    if (!place_take(c))
        return false;
    size_t len = hl_put_batch_store(&s->sink, bytes, m->payload, count, c->results);
    place_give(s);
    hl_tcp_conn_enter(c, HL_TCP_ANSWERS);
    bool sent = hl_tcp_conn_say(
        c, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_RESULTS, .op = m->op, .payload = (uint32_t)len},
        c->results);
    hl_tcp_conn_enter(c, HL_TCP_SERVES);
    return sent;
}
