/* net/zmq/inbox.c - a table of unfinished migrations, and one answer per frame.
 *
 * Chunks may come in any order, twice, or from a connection that is already replaced: the bitmap
 * decides, and a chunk that is there is never written again. Credit is counted per epoch, from the
 * bitmap that opened it, so what was lost before can't leak credit. Checksums are kept per "grain"
 * (a chunk, or 1 MiB of a larger one), so that commit gets the same table that a pool keeps.
 *
 *     open (hash, by id)               done[HL_MIG_REMEMBERED] (ring, oldest replaced)
 *       migration -> have  [1101..]      id, geometry, result or refusal
 *                    crcs  [c0 c1 ..]
 *                    bytes [the sink's memory, chunks at their places]
 *
 * States of an id, and the answer to a frame in each:
 *
 *     unknown --OPEN, room--> open --last chunk, CRC right--> done (stored)   DONE
 *        |                     |---CANCEL, wrong CRC, commit failed--> done (refused) REFUSED
 *        | DATA: REFUSED       |---silent for keep_ns--> unknown
 *        | CANCEL: REFUSED     '---OPEN, RESUME: a new epoch--> open           STATE (bitmap)
 *
 * An OPEN of a refused id begins a new migration. All else is answered with DONE or REFUSED again:
 * the sender ignores answers to an epoch that it has left, so it may have missed the first one.
 *
 * Credit: the sender may send chunk `used` while used < granted, both counted from the epoch's
 * STATE. Chunks of an older epoch are placed, and spend no credit. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <uthash.h>

#include "api/types.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/crc32.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/zmq/inbox.h"
#include "net/zmq/zstd.h"

#define DEFAULT_KEEP_MS 30000
#define WINDOW_MIN      2u /* chunks: one on the wire while another is being placed */

/* Used by one thread, without a lock; only the counters of hl_mig_inbox are atomic. */
struct migration {
    struct hl_mig_frame object; /* id and geometry; crc is the object's */
    uint32_t left;              /* missing chunks */
    uint32_t granted, used;     /* chunks in this epoch */
    uint32_t grain;             /* bytes per checksum */
    uint8_t *have;
    uint32_t *crcs; /* one per grain */
    void *token;
    uint8_t *bytes;
    uint64_t wire; /* payload bytes that arrived for it */
    uint64_t begun_ns, heard_ns;
    UT_hash_handle hh;
};

/* A finished migration: stored, or refused. */
struct done {
    struct hl_mig_frame object;
    struct hl_id result;
    hl_status refusal; /* HL_OK: it is stored */
    char text[256];    /* of the refusal, truncated */
};

struct hl_mig_inbox {
    struct hl_net_put_handler sink;
    uint64_t window;
    unsigned max_open;
    uint64_t keep_ns;
    struct migration *open;
    struct hl_mig_unpack *unpack;
    struct done done[HL_MIG_REMEMBERED];
    unsigned done_next;
    char text[HL_ERROR_TEXT_MAX];
    _Atomic uint64_t open_now, committed, aborted, canceled, resumed, chunks, packed, bytes, wire,
        duplicate, corrupted, refused;
};

static void inbox_counter_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

hl_status hl_mig_inbox_create(const struct hl_migrate_server_opts *o, struct hl_mig_inbox **out)
{
    if (o->sink.begin == NULL || o->sink.commit == NULL || o->sink.abort == NULL)
        return hl_fail(HL_EINVAL, "migration receiver: the sink lacks begin, commit or abort");
    struct hl_mig_inbox *in = calloc(1, sizeof(*in));
    if (in == NULL)
        return hl_fail(HL_ENOMEM, "migration receiver: out of memory");
    in->sink = o->sink;
    in->window = o->window_bytes > 0 ? o->window_bytes : HL_MIG_WINDOW;
    in->max_open = o->max_open > 0 ? o->max_open : HL_MIG_MAX_OPEN;
    in->keep_ns = (uint64_t)(o->keep_ms > 0 ? o->keep_ms : DEFAULT_KEEP_MS) * HL_NS_PER_MS;
    hl_status st = hl_mig_unpack_create(&in->unpack);
    if (st != HL_OK) {
        free(in);
        return st;
    }
    *out = in;
    return HL_OK;
}

/* Removes the migration from the table after the sink was told. Both callers tell it once:
 * drop_migration (abort) and finish_migration (commit). */
static void forget_migration(struct hl_mig_inbox *in, struct migration *m)
{
    HASH_DEL(in->open, m);
    atomic_store_explicit(&in->open_now, HASH_COUNT(in->open), memory_order_relaxed);
    free(m->have);
    free(m->crcs);
    free(m);
}

/* Counts an ended transfer of the migration plane. */
static void count_migration(const struct migration *m, hl_status st, uint64_t now_ns)
{
    hl_plane_count(
        &(struct hl_transfer){.plane = HL_PLANE_MIGRATION,
                              .op = "migrate",
                              .path = "zmq",
                              .reason = hl_api_route_reason_name(HL_API_ROUTE_REASON_MIGRATION_NET),
                              .bytes = m->wire,
                              .ns = now_ns - m->begun_ns,
                              .status = st});
}

static void drop_migration(struct hl_mig_inbox *in, struct migration *m, hl_status why)
{
    in->sink.abort(in->sink.arg, m->token);
    inbox_counter_add(&in->aborted, 1);
    count_migration(m, why, m->heard_ns);
    forget_migration(in, m);
}

/* A sender asks again if its DONE or REFUSED was lost. The ring answers it, where a table would
 * grow with all that was ever stored. A sender that asks after HL_MIG_REMEMBERED others sends the
 * object again. */
static void remember_done(struct hl_mig_inbox *in, const struct done *d)
{
    in->done[in->done_next++ % HL_MIG_REMEMBERED] = *d;
}

/* Keeps st and its text, this thread's last error. Frames that are still in flight, a RESUME above
 * all, then begin no new migration. */
static void remember_refused(struct hl_mig_inbox *in, const struct migration *m, hl_status st)
{
    struct done d = {.object = m->object, .refusal = st};
    snprintf(d.text, sizeof(d.text), "%s", hl_error_text());
    remember_done(in, &d);
}

void hl_mig_inbox_destroy(struct hl_mig_inbox *in)
{
    struct migration *m, *next;
    if (in == NULL)
        return;
    HASH_ITER (hh, in->open, m, next)
        drop_migration(in, m, HL_ECANCELED);
    hl_mig_unpack_destroy(in->unpack);
    free(in);
}

/* A silent sender's memory is needed by others; the sender can begin again with the same id. */
void hl_mig_inbox_expire(struct hl_mig_inbox *in, uint64_t now_ns)
{
    struct migration *m, *next;
    HASH_ITER (hh, in->open, m, next) {
        if (now_ns - m->heard_ns < in->keep_ns)
            continue;
        hl_warn("migration abandoned id=%s missing_chunks=%u of=%u silent_ms=%llu",
                hl_id_format(m->object.id).s, m->left, m->object.chunk_count,
                (unsigned long long)((now_ns - m->heard_ns) / HL_NS_PER_MS));
        hl_fault_count("abandoned", "zmq");
        drop_migration(in, m, HL_EUNAVAIL);
    }
}

void hl_mig_inbox_count_refused(struct hl_mig_inbox *in)
{
    inbox_counter_add(&in->refused, 1);
    hl_fault_count("foreign", "zmq");
}

void hl_mig_inbox_add_refused(struct hl_mig_inbox *in, uint64_t connections)
{
    inbox_counter_add(&in->refused, connections);
}

void hl_mig_inbox_stats(const struct hl_mig_inbox *in, struct hl_migrate_server_stats *out)
{
#define GET(field) atomic_load_explicit(&in->field, memory_order_relaxed)
    *out = (struct hl_migrate_server_stats){
        .open_now = GET(open_now),
        .committed = GET(committed),
        .aborted = GET(aborted),
        .canceled = GET(canceled),
        .resumed = GET(resumed),
        .chunks = GET(chunks),
        .packed = GET(packed),
        .bytes = GET(bytes),
        .wire = GET(wire),
        .duplicate = GET(duplicate),
        .corrupted = GET(corrupted),
        .refused = GET(refused),
    };
#undef GET
}

/* Does not compare the CRC: in frames of chunks that field has the chunk's CRC. */
static bool same_object(const struct hl_mig_frame *a, const struct hl_mig_frame *b)
{
    return a->total == b->total && a->chunk_size == b->chunk_size;
}

static struct migration *find_migration(struct hl_mig_inbox *in, struct hl_id id)
{
    struct migration *m = NULL;
    HASH_FIND(hh, in->open, &id, sizeof(id), m);
    return m;
}

static struct done *find_done(struct hl_mig_inbox *in, struct hl_id id)
{
    for (unsigned i = 0; i < HL_MIG_REMEMBERED; i++)
        if (hl_id_equal(in->done[i].object.id, id))
            return &in->done[i];
    return NULL;
}

/* An answer repeats the frame that it answers. */
static void answer_frame(struct hl_mig_reply *r, const struct hl_mig_frame *to,
                         enum hl_mig_type type)
{
    r->send = true;
    r->payload = NULL;
    r->frame = *to;
    r->frame.type = type;
    r->frame.flags = 0;
    r->frame.length = 0;
}

/* Refuses; the text is this thread's last error. */
static void say_refused(struct hl_mig_inbox *in, const struct hl_mig_frame *to, hl_status st,
                        struct hl_mig_reply *r)
{
    answer_frame(r, to, HL_MIG_REFUSED);
    size_t len = strnlen(hl_error_text(), sizeof(in->text) - 1);
    memcpy(in->text, hl_error_text(), len);
    r->frame.status = st;
    r->frame.length = (uint32_t)len;
    r->payload = in->text;
}

static void refuse_frame(struct hl_mig_inbox *in, const struct hl_mig_frame *to, hl_status st,
                         struct hl_mig_reply *r)
{
    inbox_counter_add(&in->refused, 1);
    say_refused(in, to, st, r);
}

/* A finished migration stays finished. */
static void answer_done(struct hl_mig_inbox *in, const struct done *d,
                        const struct hl_mig_frame *to, struct hl_mig_reply *r)
{
    if (d->refusal != HL_OK) {
        say_refused(in, to, hl_fail(d->refusal, "%s", d->text), r);
        return;
    }
    answer_frame(r, &d->object, HL_MIG_DONE); /* a canceller may not know the geometry */
    r->frame.epoch = to->epoch;
    r->frame.result = d->result;
}

/* The number of chunks that one migration may have in flight: its share of the window. */
static uint32_t window_of(const struct hl_mig_inbox *in, const struct migration *m)
{
    uint64_t n = in->window / HASH_COUNT(in->open) / m->object.chunk_size;
    return n < WINDOW_MIN ? WINDOW_MIN : n > 1024 ? 1024 : (uint32_t)n;
}

/* Raises the credit if that is worth a message. */
static bool grant_credit(const struct hl_mig_inbox *in, struct migration *m)
{
    uint32_t window = window_of(in, m), target = m->used + window;
    /* If the share has shrunk, the unsigned difference wraps and is larger than any window. */
    if (target - m->granted > window || target - m->granted < (window + 3) / 4)
        return false; /* the share has shrunk, or little was used */
    m->granted = target;
    return true;
}

/* Asks the sink last, when everything else is there: a successful begin then never has to be
 * undone. */
static hl_status begin_migration(struct hl_mig_inbox *in, const struct hl_mig_frame *f,
                                 uint64_t now_ns, struct migration **out)
{
    if (HASH_COUNT(in->open) >= in->max_open)
        return hl_fail(HL_EBUSY,
                       "migration receiver: %u migrations are open, as many as allowed; try again "
                       "later",
                       in->max_open);
    struct migration *m = calloc(1, sizeof(*m));
    uint32_t grain = f->chunk_size < HL_CHUNK ? f->chunk_size : HL_CHUNK;
    if (m != NULL) {
        m->have = calloc(1, hl_mig_bitmap_len(f->chunk_count));
        m->crcs = calloc((f->total + grain - 1) / grain, sizeof(*m->crcs));
    }
    void *bytes = NULL;
    hl_status st = HL_OK;
    if (m == NULL || m->have == NULL || m->crcs == NULL)
        st = hl_fail(HL_ENOMEM,
                     "migration receiver: out of memory allocating the bitmap of %u chunks",
                     f->chunk_count);
    else
        st = in->sink.begin(in->sink.arg, f->result, f->total, &m->token, &bytes);
    if (st != HL_OK) {
        if (m != NULL) {
            free(m->have);
            free(m->crcs);
        }
        free(m);
        return st;
    }
    m->begun_ns = now_ns;
    m->object = *f;
    m->left = f->chunk_count;
    m->grain = grain;
    m->bytes = bytes;
    HASH_ADD(hh, in->open, object.id, sizeof(m->object.id), m);
    atomic_store_explicit(&in->open_now, HASH_COUNT(in->open), memory_order_relaxed);
    *out = m;
    return HL_OK;
}

/* OPEN and RESUME: the answer is the current bitmap, in the sender's new epoch. */
static void on_open(struct hl_mig_inbox *in, const struct hl_mig_frame *f, uint64_t now_ns,
                    struct hl_mig_reply *r)
{
    struct done *d = find_done(in, f->id);
    struct migration *m = find_migration(in, f->id);
    if (d != NULL && d->refusal != HL_OK && f->type == HL_MIG_OPEN) {
        *d = (struct done){0}; /* a sender begins it again */
        d = NULL;
    }
    const struct hl_mig_frame *known = d != NULL ? &d->object : m != NULL ? &m->object : f;
    if (!same_object(known, f) || known->crc != f->crc) {
        refuse_frame(in, f,
                     hl_fail(HL_ECONFLICT,
                             "migration %s is already in use for other bytes; take a new id",
                             hl_id_format(f->id).s),
                     r);
        return;
    }
    if (d != NULL) {
        answer_done(in, d, f, r);
        return;
    }
    if (m != NULL) {
        inbox_counter_add(&in->resumed, 1);
    } else {
        hl_status st = begin_migration(in, f, now_ns, &m);
        if (st != HL_OK) {
            refuse_frame(in, f, st, r);
            return;
        }
    }
    m->heard_ns = now_ns;
    m->object.epoch = f->epoch;
    m->used = 0;
    m->granted = window_of(in, m);
    answer_frame(r, f, HL_MIG_STATE);
    r->frame.credit = m->granted;
    r->frame.length = (uint32_t)hl_mig_bitmap_len(f->chunk_count);
    r->payload = m->have;
}

/* If chunks are smaller than HL_CHUNK, folds their checksums to one per HL_CHUNK, in place. */
static size_t fold_crcs(const struct migration *m)
{
    size_t n = (size_t)((m->object.total + m->grain - 1) / m->grain);
    size_t per = HL_CHUNK / m->grain, folded = 0;
    if (per == 1)
        return n;
    for (size_t i = 0; i < n; i++) {
        uint32_t len = hl_mig_chunk_len(m->object.total, m->grain, (uint32_t)i);
        if (i % per == 0)
            m->crcs[folded++] = m->crcs[i];
        else
            m->crcs[folded - 1] = hl_crc32_combine(m->crcs[folded - 1], m->crcs[i], len);
    }
    return folded;
}

/* Called when all chunks are there. The sum of their CRCs must equal the announced one; only then
 * does the sink make the object visible. */
static void finish_migration(struct hl_mig_inbox *in, struct migration *m,
                             const struct hl_mig_frame *f, uint64_t now_ns, struct hl_mig_reply *r)
{
    size_t n = fold_crcs(m);
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++)
        crc = hl_crc32_combine(crc, m->crcs[i],
                               hl_mig_chunk_len(m->object.total, HL_CHUNK, (uint32_t)i));
    if (crc != m->object.crc) {
        hl_status st = hl_fail(HL_ECORRUPT,
                               "migration %s: all chunks arrived as they were sent, but the whole "
                               "has checksum %08x and %08x was announced: the source is damaged",
                               hl_id_format(m->object.id).s, crc, m->object.crc);
        remember_refused(in, m, st);
        drop_migration(in, m, st);
        refuse_frame(in, f, st, r);
        return;
    }
    struct done d = {.object = m->object};
    hl_status st = in->sink.commit(in->sink.arg, m->token, crc, m->crcs, n, &d.result);
    count_migration(m, st, now_ns);
    if (st != HL_OK)
        remember_refused(in, m, st);
    forget_migration(in, m);
    if (st != HL_OK) {
        inbox_counter_add(&in->aborted, 1);
        refuse_frame(in, f, st, r);
        return;
    }
    inbox_counter_add(&in->committed, 1);
    remember_done(in, &d);
    answer_done(in, &d, f, r);
}

/* Puts the chunk into place: a compressed one is unpacked there, any other is copied. The same pass
 * computes its CRC and those of its grains. */
static uint32_t place_chunk(struct hl_mig_inbox *in, const struct migration *m,
                            const struct hl_mig_frame *f, const uint8_t *src)
{
    uint64_t at = (uint64_t)f->chunk * f->chunk_size;
    uint32_t chunk = hl_mig_chunk_len(f->total, f->chunk_size, f->chunk), crc = 0;
    bool packed = (f->flags & HL_MIG_F_ZSTD) != 0;
    if (packed && hl_mig_unpack(in->unpack, m->bytes + at, chunk, src, f->length) != HL_OK)
        return ~f->crc;
    for (uint32_t off = 0; off < chunk; off += m->grain) {
        uint32_t left = chunk - off, len = left < m->grain ? left : m->grain;
        uint8_t *dst = m->bytes + at + off;
        uint32_t one =
            packed ? hl_crc32(0, dst, len) : hl_copy_crc32(0, dst, src + off, len, f->total);
        m->crcs[(at + off) / m->grain] = one;
        crc = off == 0 ? one : hl_crc32_combine(crc, one, len);
    }
    return crc;
}

static void answer_credit(struct migration *m, const struct hl_mig_frame *f, enum hl_mig_type type,
                          struct hl_mig_reply *r)
{
    answer_frame(r, f, type);
    r->frame.credit = m->granted;
}

/* The bit is set after the bytes are placed and their CRC is right. A damaged chunk is requested
 * again (NACK); a chunk that is there is never written again. */
static void on_data(struct hl_mig_inbox *in, const struct hl_mig_frame *f, const uint8_t *payload,
                    uint64_t now_ns, struct hl_mig_reply *r)
{
    struct migration *m = find_migration(in, f->id);
    if (m == NULL) {
        const struct done *d = find_done(in, f->id);
        if (d != NULL) {
            inbox_counter_add(&in->duplicate, d->refusal == HL_OK);
            answer_done(in, d, f, r);
        } else {
            refuse_frame(in, f,
                         hl_fail(HL_ENOENT, "migration %s is not open here", hl_id_format(f->id).s),
                         r);
        }
        return;
    }
    if (!same_object(&m->object, f)) {
        refuse_frame(
            in, f,
            hl_fail(HL_EPROTO, "migration %s: a chunk of another object", hl_id_format(f->id).s),
            r);
        return;
    }
    bool current = f->epoch == m->object.epoch;
    if (current && m->used == m->granted) {
        refuse_frame(in, f,
                     hl_fail(HL_EPROTO, "migration %s: chunk %u was sent without credit",
                             hl_id_format(f->id).s, f->chunk),
                     r);
        return;
    }
    m->heard_ns = now_ns;
    m->used += current ? 1 : 0;
    if (hl_mig_bit(m->have, f->chunk)) {
        inbox_counter_add(&in->duplicate, 1);
    } else if (place_chunk(in, m, f, payload) != f->crc) {
        inbox_counter_add(&in->corrupted, 1);
        hl_fault_count("corrupt", "zmq");
        (void)grant_credit(in, m);
        answer_credit(m, f, HL_MIG_NACK, r);
        return;
    } else {
        hl_mig_bit_set(m->have, f->chunk);
        inbox_counter_add(&in->bytes, hl_mig_chunk_len(f->total, f->chunk_size, f->chunk));
        inbox_counter_add(&in->chunks, 1);
        inbox_counter_add(&in->packed, (f->flags & HL_MIG_F_ZSTD) != 0);
        inbox_counter_add(&in->wire, f->length);
        m->wire += f->length;
        if (--m->left == 0) {
            finish_migration(in, m, f, now_ns, r);
            return;
        }
    }
    if (current && grant_credit(in, m))
        answer_credit(m, f, HL_MIG_CREDIT, r);
}

static void on_cancel(struct hl_mig_inbox *in, const struct hl_mig_frame *f, struct hl_mig_reply *r)
{
    struct migration *m = find_migration(in, f->id);
    const struct done *d = find_done(in, f->id);
    if (m != NULL) {
        hl_status st = hl_fail(HL_ECANCELED, "it was cancelled at the receiver");
        inbox_counter_add(&in->canceled, 1);
        hl_fault_count("canceled", "zmq");
        remember_refused(in, m, st);
        say_refused(in, f, st, r);
        drop_migration(in, m, st);
    } else if (d != NULL) {
        answer_done(in, d, f, r);
    } else {
        say_refused(in, f, hl_fail(HL_ENOENT, "it is not open at the receiver"), r);
    }
}

void hl_mig_inbox_message(struct hl_mig_inbox *in, const void *header, size_t header_len,
                          const void *payload, size_t payload_len, uint64_t now_ns,
                          struct hl_mig_reply *r)
{
    struct hl_mig_frame f;
    r->send = false;
    if (hl_mig_decode(header, header_len, &f) != HL_OK || f.length != payload_len) {
        hl_mig_inbox_count_refused(in);
        return; /* nothing in it can be trusted enough for an answer */
    }
    if (f.type == HL_MIG_PING)
        answer_frame(r, &f, HL_MIG_PONG);
    else if (f.type == HL_MIG_OPEN || f.type == HL_MIG_RESUME)
        on_open(in, &f, now_ns, r);
    else if (f.type == HL_MIG_DATA)
        on_data(in, &f, payload, now_ns, r);
    else if (f.type == HL_MIG_CANCEL)
        on_cancel(in, &f, r);
    else
        hl_mig_inbox_count_refused(in);
}
