/* net/zmq_client.c - the sending end, a loop in the caller's thread.
 *
 * Two connections: `bulk` carries the chunks and their answers, `pulse` only pings, so that a slow
 * link with megabytes queued in front of a ping is not mistaken for a dead receiver. There is no
 * reconnect logic beyond libzmq's own: when the bulk side hears nothing for a while, or is told
 * that its frames are unknown, it asks for the bitmap and goes on from there. Frames that libzmq
 * replays on a new connection are harmless, because chunks are idempotent. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "net/migrate.h"
#include "net/zmq_private.h"

#define DEFAULT_DEAD_MS 1000
#define DEFAULT_CHUNK   (1u << 20)
#define STALL_MS        500  /* silence on the bulk side before the first RESUME */
#define STALL_MAX_MS    8000 /* it doubles: a slow link is not to be asked all the time */
#define PULSES          5    /* pings per dead_ms */
#define NACKS_MAX       16   /* damaged chunks before giving up */
#define WAIT_MAX_MS     50
#define PULSE_QUEUE     4

struct sender {
    const struct hl_migrate_send_opts *opts;
    struct hl_mig_frame object; /* OPEN as it was sent; epoch is the current one */
    const uint8_t *data;
    void *bulk, *pulse;
    uint8_t *sent; /* bitmap: had by the receiver or on the way */
    uint32_t cursor, unsent;
    uint32_t granted, used;
    int ready; /* the bitmap of this epoch has come */
    int stored;
    hl_status refused;
    int nacks;
    uint64_t heard_ns, pong_ns, ping_ns, stall_ns, dead_ns;
    atomic_uint busy; /* payloads in libzmq's hands */
    struct hl_migrate_report report;
};

static uint32_t chunk_crc(const struct sender *s, uint32_t chunk, const uint8_t *p, uint32_t len)
{
    const uint32_t *table = s->opts->chunk_crcs;
    if (table == NULL || s->object.chunk_size < HL_NET_CHUNK)
        return hl_crc32(0, p, len);
    table += (size_t)chunk * (s->object.chunk_size / HL_NET_CHUNK);
    uint32_t crc = 0;
    for (uint32_t off = 0, i = 0; off < len; off += HL_NET_CHUNK, i++)
        crc = off == 0 ? table[0]
                       : hl_crc32_combine(crc, table[i],
                                          len - off < HL_NET_CHUNK ? len - off : HL_NET_CHUNK);
    return crc;
}

/* Ask what has arrived; nothing more is sent until the answer is here. */
static hl_status ask(struct sender *s, enum hl_mig_type type, uint64_t now_ns)
{
    s->object.type = type;
    s->object.epoch++;
    s->ready = 0;
    s->heard_ns = now_ns;
    if (type == HL_MIG_RESUME)
        s->report.resumes++;
    return hl_mig_post(s->bulk, &s->object, NULL, NULL);
}

static hl_status send_chunk(struct sender *s)
{
    while (hl_mig_bit(s->sent, s->cursor))
        s->cursor++;
    struct hl_mig_frame f = s->object;
    f.type = HL_MIG_DATA;
    f.chunk = s->cursor;
    f.length = hl_mig_chunk_len(f.total, f.chunk_size, f.chunk);
    const uint8_t *p = s->data + (uint64_t)f.chunk * f.chunk_size;
    f.crc = chunk_crc(s, f.chunk, p, f.length);
    HL_TRY(hl_mig_post(s->bulk, &f, p, &s->busy));
    hl_mig_bit_set(s->sent, f.chunk);
    s->unsent--;
    s->used++;
    s->report.chunks_sent++;
    return HL_OK;
}

static void on_state(struct sender *s, const struct hl_mig_frame *f, const uint8_t *bitmap)
{
    if (s->ready)
        return;
    memcpy(s->sent, bitmap, f->length);
    s->unsent = 0;
    for (uint32_t i = 0; i < f->chunk_count; i++)
        s->unsent += !hl_mig_bit(bitmap, i);
    if (s->report.chunks_sent == 0)
        s->report.chunks_had = f->chunk_count - s->unsent;
    s->cursor = 0;
    s->used = 0;
    s->granted = f->credit;
    s->ready = 1;
}

static hl_status on_nack(struct sender *s, const struct hl_mig_frame *f)
{
    s->report.chunks_nacked++;
    if (++s->nacks > NACKS_MAX)
        return hl_fail(
            HL_ECORRUPT,
            "migration %s to %s: %d chunks arrived damaged, the last was %u of %u; check "
            "the network and the memory of both hosts",
            hl_id_format(f->id).s, s->opts->address, s->nacks, f->chunk, f->chunk_count);
    if (hl_mig_bit(s->sent, f->chunk)) {
        hl_mig_bit_clear(s->sent, f->chunk);
        s->unsent++;
    }
    if (f->chunk < s->cursor)
        s->cursor = f->chunk;
    return HL_OK;
}

static hl_status on_answer(struct sender *s, const struct hl_mig_frame *f, const uint8_t *payload,
                           uint64_t now_ns)
{
    if (!hl_id_equal(f->id, s->object.id))
        return HL_OK;
    if (f->type == HL_MIG_DONE) { /* of whatever epoch: it is stored */
        s->stored = 1;
        s->report.stored = f->result;
        return HL_OK;
    }
    if (f->epoch != s->object.epoch)
        return HL_OK;
    s->heard_ns = now_ns;
    if (f->type == HL_MIG_REFUSED && f->status == HL_ENOENT && s->ready)
        return ask(s, HL_MIG_RESUME, now_ns); /* the receiver was started anew */
    if (f->type == HL_MIG_REFUSED)
        return s->refused = hl_fail(f->status >= HL_EINTERNAL ? (hl_status)f->status : HL_EPROTO,
                                    "migration to %s: %.*s", s->opts->address, (int)f->length,
                                    (const char *)payload);
    if (f->total != s->object.total || f->chunk_size != s->object.chunk_size)
        return HL_OK;
    if (f->type == HL_MIG_STATE)
        on_state(s, f, payload);
    if (!s->ready)
        return HL_OK;
    s->stall_ns = STALL_MS * HL_NS_PER_MS;
    if (f->type == HL_MIG_CREDIT || f->type == HL_MIG_NACK)
        s->granted = f->credit > s->granted ? f->credit : s->granted;
    return f->type == HL_MIG_NACK ? on_nack(s, f) : HL_OK;
}

/* Header and payload of one message; what has other parts or does not decode is dropped. */
static hl_status take(struct sender *s, void *sock, int *got)
{
    zmq_msg_t header, payload, *part = &header;
    int parts = 0, more = 1;
    zmq_msg_init(&header);
    zmq_msg_init(&payload);
    while (more && zmq_msg_recv(part, sock, ZMQ_DONTWAIT) >= 0) {
        more = zmq_msg_more(part);
        parts++;
        part = &payload;
    }
    *got = parts > 0;
    hl_status st = HL_OK;
    struct hl_mig_frame f;
    uint64_t now = hl_now_ns();
    if ((parts == 1 || parts == 2) &&
        hl_mig_decode(zmq_msg_data(&header), zmq_msg_size(&header), &f) == HL_OK &&
        zmq_msg_size(&payload) == f.length) {
        if (f.type == HL_MIG_PONG)
            s->pong_ns = now;
        else
            st = on_answer(s, &f, zmq_msg_data(&payload), now);
    }
    zmq_msg_close(&header);
    zmq_msg_close(&payload);
    return st;
}

static hl_status drain(struct sender *s)
{
    int got = 1;
    while (got)
        HL_TRY(take(s, s->pulse, &got));
    got = 1;
    while (got && !s->stored)
        HL_TRY(take(s, s->bulk, &got));
    return HL_OK;
}

static uint32_t arrived(const struct sender *s)
{
    uint32_t missing = s->unsent + (uint32_t)(s->ready ? atomic_load(&s->busy) : 0);
    return missing < s->object.chunk_count ? s->object.chunk_count - missing : 0;
}

/* What the clock asks for: a ping, a RESUME, or the end. */
static hl_status tend(struct sender *s, uint64_t deadline_ns, int timeout_ms)
{
    uint64_t now = hl_now_ns();
    if (now >= deadline_ns)
        return hl_fail(HL_ETIMEDOUT,
                       "migration %s to %s: %d ms passed with about %u of %u chunks sent; send it "
                       "again with the same id to go on",
                       hl_id_format(s->object.id).s, s->opts->address, timeout_ms, arrived(s),
                       s->object.chunk_count);
    if (now - s->pong_ns > s->dead_ns)
        return hl_fail(HL_EUNAVAIL,
                       "migration %s to %s: the receiver has not answered for %llu ms, with about "
                       "%u of %u chunks sent; send it again with the same id to go on",
                       hl_id_format(s->object.id).s, s->opts->address,
                       (unsigned long long)((now - s->pong_ns) / HL_NS_PER_MS), arrived(s),
                       s->object.chunk_count);
    if (now - s->ping_ns >= s->dead_ns / PULSES) {
        s->ping_ns = now;
        hl_status st =
            hl_mig_post(s->pulse, &(struct hl_mig_frame){.type = HL_MIG_PING}, NULL, NULL);
        if (st != HL_OK && st != HL_EBUSY)
            return st;
    }
    if (now - s->heard_ns < s->stall_ns)
        return HL_OK;
    s->stall_ns = s->stall_ns * 2 < STALL_MAX_MS * HL_NS_PER_MS ? s->stall_ns * 2
                                                                : STALL_MAX_MS * HL_NS_PER_MS;
    return ask(s, HL_MIG_RESUME, now);
}

static hl_status run(struct sender *s, int timeout_ms)
{
    uint64_t now = hl_now_ns();
    uint64_t deadline = now + (uint64_t)timeout_ms * HL_NS_PER_MS;
    s->pong_ns = now;
    s->stall_ns = STALL_MS * HL_NS_PER_MS;
    HL_TRY(ask(s, HL_MIG_OPEN, now));
    while (!s->stored) {
        int can_send = s->ready && s->unsent > 0 && s->used < s->granted;
        if (can_send) {
            HL_TRY(send_chunk(s));
        } else {
            zmq_pollitem_t items[] = {{.socket = s->bulk, .events = ZMQ_POLLIN},
                                      {.socket = s->pulse, .events = ZMQ_POLLIN}};
            zmq_poll(items, HL_ARRAY_LEN(items), WAIT_MAX_MS);
        }
        HL_TRY(drain(s));
        if (!s->stored)
            HL_TRY(tend(s, deadline, timeout_ms));
    }
    return HL_OK;
}

static hl_status connect_to(struct sender *s, void *ctx, int timeout_ms)
{
    char endpoint[HL_MIG_ENDPOINT_MAX];
    int v6, unlimited = 0, few = PULSE_QUEUE;
    HL_TRY(hl_mig_endpoint(s->opts->address, timeout_ms, endpoint, &v6));
    HL_TRY(hl_mig_socket(ctx, ZMQ_DEALER, v6, &s->bulk));
    HL_TRY(hl_mig_socket(ctx, ZMQ_DEALER, v6, &s->pulse));
    /* The credit bounds the bulk queue; a full one would only split what belongs together. */
    if (zmq_setsockopt(s->bulk, ZMQ_SNDHWM, &unlimited, sizeof(unlimited)) != 0 ||
        zmq_setsockopt(s->pulse, ZMQ_SNDHWM, &few, sizeof(few)) != 0 ||
        zmq_connect(s->bulk, endpoint) != 0 || zmq_connect(s->pulse, endpoint) != 0)
        return hl_fail(HL_EUNAVAIL, "migration to %s: connecting: %s", s->opts->address,
                       zmq_strerror(errno));
    return HL_OK;
}

static hl_status check(const struct hl_migrate_send_opts *o, const void *data, size_t size,
                       uint32_t chunk_size)
{
    if (o->address == NULL || o->address[0] == '\0')
        return hl_fail(HL_EINVAL, "migration: no receiver's address given; use \"host:port\"");
    if (data == NULL || size == 0)
        return hl_fail(HL_EINVAL, "migration to %s: an object has at least one byte", o->address);
    if (chunk_size < HL_MIG_CHUNK_MIN || chunk_size > HL_MIG_CHUNK_MAX ||
        (chunk_size & (chunk_size - 1)) != 0 || size > (uint64_t)chunk_size * HL_MIG_CHUNKS_MAX)
        return hl_fail(HL_EINVAL,
                       "migration to %s: %zu bytes in chunks of %u; a chunk is a power of two from "
                       "%u to %u, an object has at most %u of them",
                       o->address, size, chunk_size, HL_MIG_CHUNK_MIN, HL_MIG_CHUNK_MAX,
                       HL_MIG_CHUNKS_MAX);
    return HL_OK;
}

/* Everything but the bitmap: sockets live and die in here, and so do lent payloads. */
static hl_status transfer(struct sender *s, int timeout_ms)
{
    void *ctx = NULL;
    HL_TRY(hl_mig_context(s->opts->io_threads, &ctx));
    hl_status st = connect_to(s, ctx, timeout_ms);
    if (st == HL_OK)
        st = run(s, timeout_ms);
    if (s->bulk != NULL)
        zmq_close(s->bulk);
    if (s->pulse != NULL)
        zmq_close(s->pulse);
    hl_mig_context_term(ctx);
    while (atomic_load_explicit(&s->busy, memory_order_acquire) != 0)
        sched_yield(); /* libzmq is done with them; this only pairs with the release */
    return st;
}

hl_status hl_migrate_send(const struct hl_migrate_send_opts *opts, const void *data, size_t size,
                          uint32_t crc, int timeout_ms, struct hl_migrate_report *out)
{
    uint32_t chunk_size = opts->chunk_size > 0 ? opts->chunk_size : DEFAULT_CHUNK;
    HL_TRY(check(opts, data, size, chunk_size));
    struct sender s = {.opts = opts, .data = data};
    s.object = (struct hl_mig_frame){
        .id = hl_id_is_none(opts->id) ? hl_id_random() : opts->id,
        .epoch = (uint32_t)hl_random_u64(),
        .total = size,
        .chunk_size = chunk_size,
        .chunk_count = hl_mig_chunk_count(size, chunk_size),
        .crc = crc,
        .result = opts->object,
    };
    s.dead_ns = (uint64_t)(opts->dead_ms > 0 ? opts->dead_ms : DEFAULT_DEAD_MS) * HL_NS_PER_MS;
    s.report.id = s.object.id;
    s.report.chunks = s.object.chunk_count;
    s.unsent = s.object.chunk_count;
    HL_AUTO(hl_freep) uint8_t *sent = calloc(1, hl_mig_bitmap_len(s.object.chunk_count));
    if (sent == NULL)
        return hl_fail(HL_ENOMEM, "migration to %s: no memory for the bitmap of %u chunks",
                       opts->address, s.object.chunk_count);
    s.sent = sent;
    hl_status st = transfer(&s, timeout_ms);
    if (out != NULL)
        *out = s.report;
    return st;
}
