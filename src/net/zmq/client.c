/* net/zmq/client.c - the sending end, a loop in the caller's thread.
 *
 * There is no reconnect logic beyond libzmq's own: when the bulk side hears nothing for a while, or
 * is told that its frames are unknown, it asks for the bitmap and continues from there. Frames that
 * libzmq replays on a new connection are harmless, because chunks are idempotent.
 *
 * A sender is on the stack of hl_migrate_send and belongs to that thread. Others only see two parts
 * of it: `line->busy`, which libzmq's threads count down when they are done with a payload, and the
 * caller's `cancel`, which any thread may set. Between two sends the line belongs to the caller,
 * and during a send to the sender.
 *
 *     ask_state(OPEN) --> asked --STATE--> ready --DONE--> stored
 *                          ^                |  ^
 *                          |                |  '-- CREDIT, NACK: more may be sent, or again
 *                          +- stall_ns of silence, or REFUSED with HL_ENOENT: RESUME
 *                          |
 *     the caller's cancel: CANCEL --> canceling --DONE, REFUSED, CANCEL_MS over--> ends
 *     any state: dead_ms without PONG, the deadline, NACKS_MAX damaged chunks, REFUSED --> fails
 *
 * Each OPEN, RESUME and CANCEL begins a new epoch. Answers of an older epoch are dropped, except
 * DONE: a late credit would allow more than the receiver has counted in this epoch. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/types.h"
#include "base/chunk.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/pace.h"
#include "base/plane.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"
#include "net/zmq/zstd.h"

#define DEFAULT_DEAD_MS 1000
#define STALL_MS        500  /* silence on the bulk side before the first RESUME */
#define STALL_MAX_MS    8000 /* it doubles, so that a slow link is not asked all the time */
#define PULSES          5    /* pings per dead_ms */
#define NACKS_MAX       16   /* damaged chunks before giving up */
#define WAIT_MAX_MS     50
#define EAGER_CHUNKS    2          /* sent right after OPEN: every receiver gives credit for them */
#define RING            1024       /* chunks in flight: no receiver gives more credit */
#define PACKED          (1u << 31) /* flag in an entry of the ring */
#define RATE_MIN_NS     (20 * HL_NS_PER_MS)
#define CANCEL_MS       500 /* how long a cancelled sender waits for the receiver's answer */

/* Measures the real rate of the line and the receiver, from credit to credit. Only a period that
 * was spent waiting for credit, with all chunks uncompressed, gives the rate; any other gives a
 * lower bound. A short period says nothing, because credits pile up while either side is not
 * scheduled. */
struct rate {
    uint32_t ring[RING]; /* payload bytes of the last chunks sent, by their number in this epoch */
    uint32_t window;     /* the first credit of the epoch */
    uint32_t acked;      /* chunks of the epoch that have been placed */
    uint64_t from_ns;
    uint64_t waited_ns; /* spent without credit, since from_ns */
};

/* `sent` marks the chunks that the receiver has or that are in flight; `unsent` counts the others.
 *
 *     sent    [1111 1101 1000 0000]     no chunk in front of `cursor` is unsent
 *                    ^ cursor           used: chunks of this epoch; used < granted: one more may go
 *
 * A NACK makes a chunk unsent again and moves the cursor back to it. A STATE replaces both. */
struct sender {
    const struct hl_migrate_send_opts *opts;
    struct hl_migrate_line *line;
    struct hl_mig_frame object; /* the OPEN that was sent; epoch is the current one */
    const uint8_t *data;
    uint8_t *sent; /* bitmap: at the receiver or in flight */
    uint32_t cursor, unsent;
    uint32_t granted, used;
    bool seen;      /* some bitmap has arrived */
    bool ready;     /* the bitmap of this epoch has arrived */
    bool canceling; /* cancelled; the answer ends the loop */
    uint32_t eager; /* chunks sent before the first bitmap arrived */
    bool stored;
    int nacks;
    int timeout_ms;
    struct hl_mig_pack *pack; /* NULL: no compression */
    struct rate rate;
    uint64_t start_ns, heard_ns, pong_ns, ping_ns, stall_ns, dead_ns;
    int unanswered; /* pings since the last pong */
    struct hl_migrate_report report;
};

/* Fails with "migration 12… of shard 34… to 10.0.0.1:7411 over zmq" and what happened, after how
 * long. */
static hl_status fail_migration(const struct sender *s, hl_status st, const char *fmt, ...)
    HL_PRINTF(3, 4) HL_CHECK;

static hl_status fail_migration(const struct sender *s, hl_status st, const char *fmt, ...)
{
    char what[HL_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    double seconds = (double)(hl_now_ns() - s->start_ns) / (double)HL_NS_PER_S;
    if (hl_id_is_none(s->opts->object))
        return hl_fail(st, "migration %s to %s over zmq, after %.2f s: %s",
                       hl_id_format(s->object.id).s, s->line->address, seconds, what);
    return hl_fail(st, "migration %s of shard %s to %s over zmq, after %.2f s: %s",
                   hl_id_format(s->object.id).s, hl_id_format(s->opts->object).s, s->line->address,
                   seconds, what);
}

/* Takes the CRC from the caller's table if there is one, which saves a pass over the bytes. A chunk
 * smaller than the table's has no entry. */
static uint32_t chunk_crc(const struct sender *s, uint32_t chunk, const uint8_t *p, uint32_t len)
{
    const uint32_t *table = s->opts->chunk_crcs;
    if (table == NULL || s->object.chunk_size < HL_CHUNK)
        return hl_crc32(0, p, len);
    table += (size_t)chunk * (s->object.chunk_size / HL_CHUNK);
    uint32_t crc = 0;
    for (uint32_t off = 0, i = 0; off < len; off += HL_CHUNK, i++)
        crc = off == 0
                  ? table[0]
                  : hl_crc32_combine(crc, table[i], len - off < HL_CHUNK ? len - off : HL_CHUNK);
    return crc;
}

/* Sends the payload either lent as it is, or compressed and copied. */
static hl_status post_chunk(struct sender *s, struct hl_mig_frame *f, const uint8_t *p)
{
    const void *packed = NULL;
    if (s->pack != NULL)
        packed = hl_mig_pack(s->pack, p, f->length, s->line->Bps, &f->length);
    s->rate.ring[s->used % RING] = f->length | (packed != NULL ? PACKED : 0);
    if (packed == NULL)
        return hl_mig_post(s->line->bulk, f, p, &s->line->busy);
    f->flags = HL_MIG_F_ZSTD;
    HL_TRY(hl_mig_post(s->line->bulk, f, packed, NULL));
    s->report.chunks_packed++;
    return HL_OK;
}

/* Sends the next unsent chunk, which must exist. It counts as sent only when libzmq has taken
 * it. */
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
    HL_TRY(post_chunk(s, &f, p));
    hl_mig_bit_set(s->sent, f.chunk);
    s->unsent--;
    s->used++;
    s->report.wire_bytes += f.length;
    s->report.chunks_sent++;
    if (s->opts->pace != NULL) {
        s->heard_ns = hl_now_ns(); /* the receiver had nothing to answer until now */
        hl_pace_sent(s->opts->pace, f.length, s->heard_ns);
    }
    return HL_OK;
}

/* Returns 0 if the next chunk may go. */
static uint64_t pace_ns(const struct sender *s)
{
    return s->opts->pace != NULL ? hl_pace_wait_ns(s->opts->pace, hl_now_ns()) : 0;
}

/* Asks which chunks have arrived; nothing more is sent until the answer is here. */
static hl_status ask_state(struct sender *s, enum hl_mig_type type, uint64_t now_ns)
{
    s->object.type = type;
    s->object.epoch++;
    s->ready = false;
    s->eager = 0;
    s->heard_ns = now_ns;
    if (type == HL_MIG_RESUME)
        s->report.resumes++;
    return hl_mig_post(s->line->bulk, &s->object, NULL, NULL);
}

/* Sends OPEN and, if the id is new so that nothing can be there yet, the first chunks at once: a
 * small object then needs one round trip. */
static hl_status open_object(struct sender *s, uint64_t now_ns)
{
    HL_TRY(ask_state(s, HL_MIG_OPEN, now_ns));
    while (hl_id_is_none(s->opts->id) && s->unsent > 0 && s->eager < EAGER_CHUNKS) {
        HL_TRY(send_chunk(s));
        s->eager++;
    }
    return HL_OK;
}

/* In a new epoch chunks are counted from 0 again, and so is the ring. */
static void rate_begin(struct rate *r, uint32_t window, uint64_t now_ns)
{
    r->window = window;
    r->acked = 0;
    r->from_ns = now_ns;
    r->waited_ns = 0;
}

/* Credit says what the receiver has placed: arrived chunks earned all of `granted` but the first
 * window. Their bytes and the time since the last look give the rate. A quarter of it enters the
 * average, so that one odd period does not decide what is compressed. */
static void rate_credit(struct rate *r, uint32_t granted, uint32_t used, uint64_t now_ns,
                        double *line_Bps)
{
    uint64_t bytes = 0, packed = 0;
    if (now_ns < r->from_ns + RATE_MIN_NS)
        return;
    uint32_t acked = granted - r->window < used ? granted - r->window : used;
    for (; (int32_t)(acked - r->acked) > 0; r->acked++) {
        bytes += r->ring[r->acked % RING] & ~PACKED;
        packed |= r->ring[r->acked % RING] & PACKED;
    }
    if (bytes == 0)
        return;
    uint64_t ns = now_ns - r->from_ns;
    double Bps = (double)bytes * (double)HL_NS_PER_S / (double)ns;
    if (!packed && r->waited_ns > ns / 2)
        *line_Bps = *line_Bps > 0 ? (3 * *line_Bps + Bps) / 4 : Bps;
    else if (*line_Bps > 0 && Bps > *line_Bps)
        *line_Bps = Bps;
    r->from_ns = now_ns;
    r->waited_ns = 0;
}

/* The receiver made the bitmap before it saw the eager chunks, which are still in flight behind
 * OPEN. A second STATE of an epoch is ignored: it would count what was sent since as missing. */
static void on_state(struct sender *s, const struct hl_mig_frame *f, const uint8_t *bitmap)
{
    if (s->ready)
        return;
    memcpy(s->sent, bitmap, f->length);
    s->unsent = 0;
    for (uint32_t i = 0; i < f->chunk_count; i++)
        s->unsent += !hl_mig_bit(bitmap, i);
    if (!s->seen)
        s->report.chunks_had = f->chunk_count - s->unsent;
    for (uint32_t i = 0; i < s->eager; i++) { /* they are in flight */
        s->unsent -= !hl_mig_bit(s->sent, i);
        hl_mig_bit_set(s->sent, i);
    }
    s->cursor = 0;
    s->used = s->eager;
    s->granted = f->credit;
    s->ready = s->seen = true;
    rate_begin(&s->rate, s->granted, s->heard_ns);
}

/* Sends the chunk once more. Repeated damage is no chance, but a fault of the network or of a
 * memory. */
static hl_status on_nack(struct sender *s, const struct hl_mig_frame *f)
{
    s->report.chunks_nacked++;
    hl_fault_count("corrupt", "zmq");
    if (++s->nacks > NACKS_MAX)
        return fail_migration(
            s, HL_ECORRUPT,
            "%d chunks arrived damaged, the last was %u of %u; check the network and the "
            "memory of both hosts",
            s->nacks, f->chunk, f->chunk_count);
    if (hl_mig_bit(s->sent, f->chunk)) {
        hl_mig_bit_clear(s->sent, f->chunk);
        s->unsent++;
    }
    if (f->chunk < s->cursor)
        s->cursor = f->chunk;
    return HL_OK;
}

static hl_status on_refused(struct sender *s, const struct hl_mig_frame *f, const uint8_t *text,
                            uint64_t now_ns)
{
    if (f->status == HL_ENOENT && s->ready && !s->canceling)
        return ask_state(s, HL_MIG_RESUME, now_ns); /* the receiver was restarted */
    return fail_migration(s, f->status >= HL_EINTERNAL ? (hl_status)f->status : HL_EPROTO, "%.*s",
                          (int)f->length, (const char *)text);
}

/* The only place where answers change the sender. Any answer of this epoch is a sign of life;
 * STATE, CREDIT and NACK also reset the time until the next RESUME to its minimum. */
static hl_status on_answer(struct sender *s, const struct hl_mig_frame *f, const uint8_t *payload,
                           uint64_t now_ns)
{
    if (!hl_id_equal(f->id, s->object.id))
        return HL_OK;
    if (f->type == HL_MIG_DONE) { /* of any epoch: the object is stored */
        s->stored = true;
        s->report.stored = f->result;
        return HL_OK;
    }
    if (f->epoch != s->object.epoch)
        return HL_OK;
    s->heard_ns = now_ns;
    if (f->type == HL_MIG_REFUSED)
        return on_refused(s, f, payload, now_ns);
    if (s->canceling || f->total != s->object.total || f->chunk_size != s->object.chunk_size)
        return HL_OK;
    if (f->type == HL_MIG_STATE)
        on_state(s, f, payload);
    s->stall_ns = STALL_MS * HL_NS_PER_MS;
    if (s->ready && (f->type == HL_MIG_CREDIT || f->type == HL_MIG_NACK) && f->credit > s->granted)
        s->granted = f->credit;
    return s->ready && f->type == HL_MIG_NACK ? on_nack(s, f) : HL_OK;
}

/* Takes header and payload of one message; drops one with other parts or that does not decode. */
static hl_status take_message(struct sender *s, void *sock, int *got)
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
        if (f.type == HL_MIG_PONG) {
            s->pong_ns = now;
            s->unanswered = 0;
        } else {
            st = on_answer(s, &f, zmq_msg_data(&payload), now);
        }
    } else if (parts > 0) {
        hl_fault_count("foreign", "zmq");
    }
    zmq_msg_close(&header);
    zmq_msg_close(&payload);
    return st;
}

/* Takes all that has arrived, pulses first: a long series of credits must not hide that the
 * receiver is alive. */
static hl_status drain_sockets(struct sender *s)
{
    int got = 1;
    while (got)
        HL_TRY(take_message(s, s->line->pulse, &got));
    got = 1;
    while (got && !s->stored)
        HL_TRY(take_message(s, s->line->bulk, &got));
    if (s->ready)
        rate_credit(&s->rate, s->granted, s->used, hl_now_ns(), &s->line->Bps);
    return HL_OK;
}

/* For messages. What libzmq still holds counts as sent, but has not arrived. */
static uint32_t chunks_arrived(const struct sender *s)
{
    uint32_t missing = s->unsent + (uint32_t)atomic_load(&s->line->busy);
    return s->ready && missing < s->object.chunk_count ? s->object.chunk_count - missing : 0;
}

static bool is_cancelled(const struct hl_migrate_send_opts *o)
{
    return o->cancel != NULL && atomic_load_explicit(o->cancel, memory_order_relaxed);
}

/* Checks that the receiver answers and time is left. Only an unanswered ping counts as silence:
 * time that we spent compressing, or waiting for a processor, does not. */
static hl_status check_clock(struct sender *s, uint64_t deadline_ns)
{
    uint64_t now = hl_now_ns();
    if (now >= deadline_ns && is_cancelled(s->opts))
        return fail_migration(s, HL_ECANCELED,
                              "it was cancelled; the receiver has not confirmed that");
    if (now >= deadline_ns) {
        hl_fault_count("timeout", "zmq");
        return fail_migration(
            s, HL_ETIMEDOUT,
            "%d ms passed with about %u of %u chunks sent; send it again with the same id "
            "to go on",
            s->timeout_ms, chunks_arrived(s), s->object.chunk_count);
    }
    if (now - s->pong_ns > s->dead_ns && s->unanswered >= PULSES - 1) {
        hl_fault_count("dead-peer", "zmq");
        return fail_migration(
            s, HL_EUNAVAIL,
            "the receiver has not answered for %llu ms, with about %u of %u chunks sent; "
            "send it again with the same id to go on",
            (unsigned long long)((now - s->pong_ns) / HL_NS_PER_MS), chunks_arrived(s),
            s->object.chunk_count);
    }
    if (now - s->ping_ns < s->dead_ns / PULSES)
        return HL_OK;
    s->ping_ns = now;
    s->unanswered++;
    hl_status st =
        hl_mig_post(s->line->pulse, &(struct hl_mig_frame){.type = HL_MIG_PING}, NULL, NULL);
    return st == HL_EBUSY ? HL_OK : st;
}

/* Asks the receiver to forget the id. The sender is no longer ready, so nothing more is sent. The
 * answer ends the loop: REFUSED, or DONE if the object was stored before the CANCEL arrived. */
static hl_status cancel_migration(struct sender *s)
{
    s->object.type = HL_MIG_CANCEL;
    s->object.epoch++;
    s->canceling = true;
    s->ready = false;
    return hl_mig_post(s->line->bulk, &s->object, NULL, NULL);
}

/* Does what is due: a ping, a RESUME, or the end. */
static hl_status tend_sender(struct sender *s, uint64_t *deadline_ns)
{
    HL_TRY(check_clock(s, *deadline_ns));
    uint64_t now = hl_now_ns();
    if (s->canceling)
        return HL_OK;
    if (is_cancelled(s->opts)) {
        uint64_t soon = now + CANCEL_MS * HL_NS_PER_MS;
        *deadline_ns = soon < *deadline_ns ? soon : *deadline_ns;
        return cancel_migration(s);
    }
    if (now - s->heard_ns < s->stall_ns)
        return HL_OK;
    s->stall_ns = s->stall_ns * 2 < STALL_MAX_MS * HL_NS_PER_MS ? s->stall_ns * 2
                                                                : STALL_MAX_MS * HL_NS_PER_MS;
    return ask_state(s, HL_MIG_RESUME, now);
}

/* Runs from the first frame to the receiver's final answer. */
static hl_status run_sender(struct sender *s, hl_status (*first)(struct sender *, uint64_t))
{
    uint64_t now = hl_now_ns();
    uint64_t deadline = s->start_ns + (uint64_t)s->timeout_ms * HL_NS_PER_MS;
    s->pong_ns = s->heard_ns = now;
    s->stall_ns = STALL_MS * HL_NS_PER_MS;
    HL_TRY(first(s, now));
    while (!s->stored) {
        bool can_send = s->ready && s->unsent > 0 && s->used < s->granted;
        uint64_t paced = can_send ? pace_ns(s) : 0;
        if (can_send && paced == 0) {
            HL_TRY(send_chunk(s));
        } else {
            uint64_t before = hl_now_ns();
            zmq_pollitem_t items[] = {{.socket = s->line->bulk, .events = ZMQ_POLLIN},
                                      {.socket = s->line->pulse, .events = ZMQ_POLLIN}};
            long wait_ms = (long)(paced / HL_NS_PER_MS) + 1;
            zmq_poll(items, HL_ARRAY_LEN(items),
                     paced > 0 && wait_ms < WAIT_MAX_MS ? wait_ms : WAIT_MAX_MS);
            if (s->ready && s->unsent > 0 && paced == 0)
                s->rate.waited_ns += hl_now_ns() - before;
        }
        HL_TRY(drain_sockets(s));
        if (!s->stored)
            HL_TRY(tend_sender(s, &deadline));
    }
    return HL_OK;
}

/* Uses the caller's line, or a line of its own. Afterwards the data belongs to the caller again. */
static hl_status on_line(struct sender *s, hl_status (*first)(struct sender *, uint64_t))
{
    struct hl_migrate_line *own = NULL;
    s->start_ns = hl_now_ns();
    if (s->opts->line == NULL)
        HL_TRY(hl_migrate_line_open(s->opts->address, s->opts->io_threads, &own));
    s->line = own != NULL ? own : s->opts->line;
    s->dead_ns = (uint64_t)(s->opts->dead_ms > 0 ? s->opts->dead_ms : DEFAULT_DEAD_MS);
    s->dead_ns *= HL_NS_PER_MS;
    hl_status st = hl_mig_line_ready(s->line, s->timeout_ms);
    if (st == HL_OK)
        st = run_sender(s, first);
    if (st != HL_OK)
        hl_mig_line_reset(s->line);
    else
        hl_mig_line_settle(s->line);
    hl_migrate_line_close(own);
    return st;
}

static const char *address_of(const struct hl_migrate_send_opts *o)
{
    const char *address = o->line != NULL ? o->line->address : o->address;
    return address != NULL ? address : "";
}

static hl_status check_send(const struct hl_migrate_send_opts *o, const void *data, size_t size,
                            uint32_t chunk_size)
{
    if (data == NULL || size == 0)
        return hl_fail(HL_EINVAL, "migration to %s: an object has at least one byte",
                       address_of(o));
    if (chunk_size < HL_MIG_CHUNK_MIN || chunk_size > HL_MIG_CHUNK_MAX ||
        (chunk_size & (chunk_size - 1)) != 0 || size > (uint64_t)chunk_size * HL_MIG_CHUNKS_MAX)
        return hl_fail(HL_EINVAL,
                       "migration to %s: %zu bytes in chunks of %u; a chunk is a power of two from "
                       "%u to %u, an object has at most %u of them",
                       address_of(o), size, chunk_size, HL_MIG_CHUNK_MIN, HL_MIG_CHUNK_MAX,
                       HL_MIG_CHUNKS_MAX);
    return HL_OK;
}

hl_status hl_migrate_send(const struct hl_migrate_send_opts *opts, const void *data, size_t size,
                          uint32_t crc, int timeout_ms, struct hl_migrate_report *out)
{
    uint32_t chunk_size = opts->chunk_size > 0 ? opts->chunk_size : (uint32_t)HL_CHUNK;
    HL_TRY(check_send(opts, data, size, chunk_size));
    if (opts->zstd < HL_MIGRATE_ZSTD_AUTO || opts->zstd > HL_MIGRATE_ZSTD_MAX)
        return hl_fail(HL_EINVAL, "migration to %s: zstd level %d; use 1 to %d", address_of(opts),
                       opts->zstd, HL_MIGRATE_ZSTD_MAX);
    struct sender s = {.opts = opts, .data = data, .timeout_ms = timeout_ms};
    s.object = (struct hl_mig_frame){
        .id = hl_id_is_none(opts->id) ? hl_id_random() : opts->id,
        .epoch = (uint32_t)hl_random_u64(),
        .total = size,
        .chunk_size = chunk_size,
        .chunk_count = hl_mig_chunk_count(size, chunk_size),
        .crc = crc,
        .result = opts->object,
    };
    s.report.id = s.object.id;
    s.report.chunks = s.object.chunk_count;
    s.unsent = s.object.chunk_count;
    HL_AUTO(hl_freep) uint8_t *sent = calloc(1, hl_mig_bitmap_len(s.object.chunk_count));
    if (sent == NULL)
        return hl_fail(HL_ENOMEM,
                       "migration to %s: out of memory allocating the bitmap of %u chunks",
                       address_of(opts), s.object.chunk_count);
    s.sent = sent;
    if (opts->zstd != HL_MIGRATE_ZSTD_OFF)
        HL_TRY(hl_mig_pack_create(opts->zstd, chunk_size, &s.pack));
    hl_status st = on_line(&s, open_object);
    hl_mig_pack_destroy(s.pack);
    hl_plane_count(
        &(struct hl_transfer){.plane = HL_PLANE_MIGRATION,
                              .op = "migrate",
                              .path = "zmq",
                              .reason = hl_api_route_reason_name(HL_API_ROUTE_REASON_MIGRATION_NET),
                              .sent = 1,
                              .bytes = s.report.wire_bytes,
                              .ns = hl_now_ns() - s.start_ns,
                              .status = st});
    if (out != NULL)
        *out = s.report;
    return st;
}

static hl_status send_cancel(struct sender *s, uint64_t now_ns)
{
    (void)now_ns;
    return cancel_migration(s);
}

hl_status hl_migrate_cancel(const struct hl_migrate_send_opts *opts, int timeout_ms)
{
    if (hl_id_is_none(opts->id))
        return hl_fail(HL_EINVAL, "cancelling a migration to %s: its id must not be 0",
                       address_of(opts));
    struct sender s = {.opts = opts, .timeout_ms = timeout_ms};
    s.object = (struct hl_mig_frame){.id = opts->id, .epoch = (uint32_t)hl_random_u64()};
    hl_status st = on_line(&s, send_cancel);
    if (st == HL_OK)
        return fail_migration(&s, HL_EEXIST, "it is stored already");
    if (st != HL_ECANCELED && st != HL_ENOENT)
        return st;
    hl_error_clear();
    return HL_OK;
}
