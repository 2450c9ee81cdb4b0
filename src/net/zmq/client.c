/* net/zmq/client.c - the sending end, a loop in the caller's thread.
 *
 * There is no reconnect logic beyond libzmq's own: when the bulk side hears nothing for a while, or
 * is told that its frames are unknown, it asks for the bitmap and goes on from there. Frames that
 * libzmq replays on a new connection are harmless, because chunks are idempotent.
 *
 * A sender lives on the stack of hl_migrate_send and is that thread's alone. Only two things of it
 * are seen by others: `line->busy`, which libzmq's threads count down when they are done with a
 * payload, and the caller's `cancel`, which any thread may set. The line is the caller's between
 * two sends, and this sender's until it returns.
 *
 *     ask_state(OPEN) --> asked --STATE--> ready --DONE--> stored
 *                          ^                |  ^
 *                          |                |  '-- CREDIT, NACK: more may be sent, or again
 *                          +- stall_ns of silence, or REFUSED with HL_ENOENT: RESUME
 *                          |
 *     the caller's cancel: CANCEL --> canceling --DONE, REFUSED, CANCEL_MS over--> ends
 *     any state: dead_ms without PONG, the deadline, NACKS_MAX damaged chunks, REFUSED --> fails
 *
 * Each OPEN, RESUME and CANCEL begins a new epoch. Answers of an older one are dropped, but for
 * DONE: a late credit would let more be sent than the receiver has counted in this epoch. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/types.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/pace.h"
#include "base/plane.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"
#include "net/zmq/zstd.h"

#define DEFAULT_DEAD_MS 1000
#define DEFAULT_CHUNK   (1u << 20)
#define STALL_MS        500  /* silence on the bulk side before the first RESUME */
#define STALL_MAX_MS    8000 /* it doubles: a slow link is not to be asked all the time */
#define PULSES          5    /* pings per dead_ms */
#define NACKS_MAX       16   /* damaged chunks before giving up */
#define WAIT_MAX_MS     50
#define EAGER_CHUNKS    2          /* sent behind OPEN: every receiver gives credit for so many */
#define RING            1024       /* chunks under way: no receiver gives more credit */
#define PACKED          (1u << 31) /* of an entry of the ring */
#define RATE_MIN_NS     (20 * HL_NS_PER_MS)
#define CANCEL_MS       500 /* how long a sender that gives up waits for the receiver's word */

/* What the line and the receiver really take, from credit to credit: only a time that was spent
 * waiting and in which all travelled as it is says how much that is, any other how much it is at
 * least. A short one says nothing: credits pile up while one of us is kept from running. */
struct rate {
    uint32_t ring[RING]; /* payload bytes of the last chunks sent, by their number in this epoch */
    uint32_t window;     /* the first credit of the epoch */
    uint32_t acked;      /* chunks of the epoch that have been placed */
    uint64_t from_ns;
    uint64_t waited_ns; /* without credit, since then */
};

/* `sent` marks the chunks that the receiver has or that are on the way; `unsent` counts the others.
 *
 *     sent    [1111 1101 1000 0000]     no chunk in front of `cursor` is unsent
 *                    ^ cursor           used: chunks of this epoch; used < granted: one more may go
 *
 * A NACK moves a chunk back to the unsent ones, and the cursor to it. A STATE replaces both. */
struct sender {
    const struct hl_migrate_send_opts *opts;
    struct hl_migrate_line *line;
    struct hl_mig_frame object; /* OPEN as it was sent; epoch is the current one */
    const uint8_t *data;
    uint8_t *sent; /* bitmap: had by the receiver or on the way */
    uint32_t cursor, unsent;
    uint32_t granted, used;
    bool seen;      /* a bitmap has come */
    bool ready;     /* the bitmap of this epoch has come */
    bool canceling; /* the sender gives up; the answer ends it */
    uint32_t eager; /* the first chunks, sent before the first bitmap came */
    bool stored;
    int nacks;
    int timeout_ms;
    struct hl_mig_pack *pack; /* NULL: nothing is compressed */
    struct rate rate;
    uint64_t start_ns, heard_ns, pong_ns, ping_ns, stall_ns, dead_ns;
    int unanswered; /* pings since the last pong */
    struct hl_migrate_report report;
};

/* "migration 12… of shard 34… to 10.0.0.1:7411 over zmq" and what happened, after how long. */
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

/* From the caller's table where there is one, which saves a pass over the bytes. A chunk smaller
 * than the table's has no entry of its own. */
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

/* Lent as it is, or compressed and copied. */
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

/* The next unsent chunk; there is one. It counts as sent only when libzmq has taken it. */
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

/* 0: the next chunk may go. */
static uint64_t pace_ns(const struct sender *s)
{
    return s->opts->pace != NULL ? hl_pace_wait_ns(s->opts->pace, hl_now_ns()) : 0;
}

/* Ask what has arrived; nothing more is sent until the answer is here. */
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

/* OPEN and, when the id is new so that nothing can be there yet, the first chunks in one go: a
 * small object needs one round trip. */
static hl_status open_object(struct sender *s, uint64_t now_ns)
{
    HL_TRY(ask_state(s, HL_MIG_OPEN, now_ns));
    while (hl_id_is_none(s->opts->id) && s->unsent > 0 && s->eager < EAGER_CHUNKS) {
        HL_TRY(send_chunk(s));
        s->eager++;
    }
    return HL_OK;
}

/* A new epoch: chunks are counted from 0 again, so the ring is, too. */
static void rate_begin(struct rate *r, uint32_t window, uint64_t now_ns)
{
    r->window = window;
    r->acked = 0;
    r->from_ns = now_ns;
    r->waited_ns = 0;
}

/* Credit is the receiver's word on what it has placed: of `granted` all but the first window has
 * been earned by chunks that came. Their bytes and the time since the last look give the rate; a
 * quarter of it enters the average, so that one odd moment does not decide what is compressed. */
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

/* The bitmap is the receiver's before it has seen the eager chunks, which are still under way
 * behind OPEN. A second STATE of an epoch would count what was sent since as missing: it is
 * ignored. */
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
    for (uint32_t i = 0; i < s->eager; i++) { /* they are on the way */
        s->unsent -= !hl_mig_bit(s->sent, i);
        hl_mig_bit_set(s->sent, i);
    }
    s->cursor = 0;
    s->used = s->eager;
    s->granted = f->credit;
    s->ready = s->seen = true;
    rate_begin(&s->rate, s->granted, s->heard_ns);
}

/* The chunk is sent once more. Repeated damage is the network's or a memory's, not chance.
 */
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
        return ask_state(s, HL_MIG_RESUME, now_ns); /* the receiver was started anew */
    return fail_migration(s, f->status >= HL_EINTERNAL ? (hl_status)f->status : HL_EPROTO, "%.*s",
                          (int)f->length, (const char *)text);
}

/* The one place where answers change the sender. Any answer of this epoch is a sign of life; STATE,
 * CREDIT and NACK also bring the time until the next RESUME back to its shortest. */
static hl_status on_answer(struct sender *s, const struct hl_mig_frame *f, const uint8_t *payload,
                           uint64_t now_ns)
{
    if (!hl_id_equal(f->id, s->object.id))
        return HL_OK;
    if (f->type == HL_MIG_DONE) { /* of whatever epoch: it is stored */
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

/* Header and payload of one message; what has other parts or does not decode is dropped. */
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

/* All that has come, pulses first: a long row of credits must not hide that the receiver lives. */
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

/* For messages. What libzmq still holds has not arrived, though it counts as sent. */
static uint32_t chunks_arrived(const struct sender *s)
{
    uint32_t missing = s->unsent + (uint32_t)atomic_load(&s->line->busy);
    return s->ready && missing < s->object.chunk_count ? s->object.chunk_count - missing : 0;
}

static bool is_cancelled(const struct hl_migrate_send_opts *o)
{
    return o->cancel != NULL && atomic_load_explicit(o->cancel, memory_order_relaxed);
}

/* Is the receiver there, and is there time left? Only who was asked can be silent: a time that we
 * spent compressing, or waiting for a processor, is none of its own. */
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

/* Asks the receiver to forget the id. Not ready: nothing more is sent, and its answer ends the
 * loop as REFUSED, or as DONE where the object was stored before the CANCEL came. */
static hl_status cancel_migration(struct sender *s)
{
    s->object.type = HL_MIG_CANCEL;
    s->object.epoch++;
    s->canceling = true;
    s->ready = false;
    return hl_mig_post(s->line->bulk, &s->object, NULL, NULL);
}

/* What the clock asks for: a ping, a RESUME, or the end. */
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

/* From the first frame to the receiver's last word. */
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

/* With the caller's line, or one of its own. The data is the caller's again afterwards. */
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
    uint32_t chunk_size = opts->chunk_size > 0 ? opts->chunk_size : DEFAULT_CHUNK;
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
