/* A sender that compresses its chunks, and what may happen to them on the way. The input says what
 * the object holds and then, step by step, what is sent:
 *
 *     packed, as our own sender does it; plain; packed and damaged, cut off, or with a tail; a zstd
 *     frame whose blocks are the input's bytes; a header that lies; OPEN, RESUME, CANCEL
 *
 * Every header has the right checksum, so that all of it reaches the receiver. What is stored must
 * be the object, and an undamaged chunk is never called damaged. Chunks end with their memory, so
 * that a byte too many is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/zmq/inbox.h"
#include "net/zmq/zstd.h"

#define CHUNK      HL_MIG_CHUNK_MIN
#define STEPS_MAX  40
#define LEVELS     3 /* higher ones only take longer */
#define SLOW_LINE  1.0
#define OBJECT_ID  7
#define FRAME_HEAD 9 /* magic, descriptor, content size of 4 bytes */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at;
    size_t left;
};

struct sender {
    struct input in;
    uint8_t *content;
    struct hl_mig_frame object;
    struct hl_mig_pack *pack;
    struct hl_mig_inbox *inbox;
    uint64_t now;
};

static unsigned take(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static unsigned take2(struct input *in)
{
    unsigned low = take(in);
    return low | take(in) << 8;
}

/* ---- the receiver's end ---------------------------------------------------------------------- */

struct stored {
    const struct sender *of;
    uint8_t *bytes;
};

static hl_status sink_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct stored *s = malloc(sizeof(*s));
    (void)id;
    if (s == NULL)
        abort();
    *s = (struct stored){arg, malloc(size)};
    if (s->bytes == NULL)
        abort();
    *token = s;
    *ptr = s->bytes;
    return HL_OK;
}

static void sink_abort(void *arg, void *token)
{
    struct stored *s = token;
    (void)arg;
    free(s->bytes);
    free(s);
}

static hl_status sink_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                             size_t chunk_count, struct hl_id *id)
{
    const struct sender *s = arg;
    if (memcmp(((struct stored *)token)->bytes, s->content, s->object.total) != 0)
        abort(); /* what is stored is not the object */
    *id = (struct hl_id){crc, chunk_crcs[chunk_count - 1]};
    sink_abort(arg, token);
    return HL_OK;
}

/* ---- what is sent ---------------------------------------------------------------------------- */

/* Also that our own answers are valid. */
static struct hl_mig_reply post(struct sender *s, const struct hl_mig_frame *f, const void *payload)
{
    uint8_t header[HL_MIG_HEADER];
    struct hl_mig_reply r;
    struct hl_mig_frame again;
    uint8_t *exact = malloc(f->length + 1);
    if (exact == NULL)
        abort();
    if (f->length > 0)
        memcpy(exact + 1, payload, f->length);
    hl_mig_encode(f, header);
    hl_mig_inbox_message(s->inbox, header, sizeof(header), exact + 1, f->length, s->now += 1000,
                         &r);
    free(exact);
    if (r.send) {
        hl_mig_encode(&r.frame, header);
        if (hl_mig_decode(header, sizeof(header), &again) != HL_OK)
            abort();
    }
    return r;
}

static struct hl_mig_frame frame_of(const struct sender *s, enum hl_mig_type type, uint32_t chunk)
{
    struct hl_mig_frame f = s->object;
    f.type = type;
    f.chunk = chunk;
    if (type != HL_MIG_DATA)
        return f;
    f.length = hl_mig_chunk_len(f.total, f.chunk_size, chunk);
    f.crc = hl_crc32(0, s->content + (size_t)chunk * CHUNK, f.length);
    return f;
}

static void send_good(struct sender *s, const struct hl_mig_frame *f, const void *payload)
{
    struct hl_mig_reply r = post(s, f, payload);
    if (r.send && r.frame.type == HL_MIG_NACK)
        abort();
}

/* NULL: it does not get smaller. */
static const uint8_t *pack_chunk(struct sender *s, struct hl_mig_frame *f)
{
    uint32_t n;
    const void *packed =
        hl_mig_pack(s->pack, s->content + (size_t)f->chunk * CHUNK, f->length, SLOW_LINE, &n);
    if (packed == NULL)
        return NULL;
    f->flags = HL_MIG_F_ZSTD;
    f->length = n;
    return packed;
}

static void send_packed(struct sender *s, uint32_t chunk)
{
    struct hl_mig_frame f = frame_of(s, HL_MIG_DATA, chunk);
    const uint8_t *packed = pack_chunk(s, &f);
    send_good(s, &f, packed != NULL ? packed : s->content + (size_t)chunk * CHUNK);
}

/* how: 0 some bits, 1 its end is missing, 2 the input's bytes follow it. */
static void send_broken(struct sender *s, uint32_t chunk, unsigned how)
{
    struct hl_mig_frame f = frame_of(s, HL_MIG_DATA, chunk);
    const uint8_t *packed = pack_chunk(s, &f);
    unsigned at = take2(&s->in), bits = take(&s->in), tail = bits % 32;
    uint8_t *broken = packed != NULL ? malloc(f.length + tail) : NULL;
    if (broken == NULL)
        return;
    memcpy(broken, packed, f.length);
    if (how == 0) {
        broken[at % f.length] ^= (uint8_t)bits;
    } else if (how == 1) {
        f.length = at % f.length;
    } else {
        for (unsigned i = 0; i < tail; i++)
            broken[f.length + i] = (uint8_t)take(&s->in);
        f.length += tail;
    }
    (void)post(s, &f, broken);
    free(broken);
}

/* The head says the right size, so that the decoder looks at the blocks. */
static void send_blocks(struct sender *s, uint32_t chunk)
{
    uint8_t frame[FRAME_HEAD + UINT8_MAX] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0}; /* single segment */
    struct hl_mig_frame f = frame_of(s, HL_MIG_DATA, chunk);
    memcpy(frame + 5, &f.length, sizeof(f.length));
    f.flags = HL_MIG_F_ZSTD;
    f.length = FRAME_HEAD + take(&s->in);
    for (uint32_t i = FRAME_HEAD; i < f.length; i++)
        frame[i] = (uint8_t)take(&s->in);
    (void)post(s, &f, frame);
}

static void send_lie(struct sender *s, uint32_t chunk)
{
    struct hl_mig_frame f = frame_of(s, HL_MIG_DATA, chunk);
    const uint8_t *packed = pack_chunk(s, &f);
    const uint8_t *payload = packed != NULL ? packed : s->content + (size_t)chunk * CHUNK;
    unsigned what = take(&s->in), by = take2(&s->in);
    uint32_t *const fields[] = {&f.chunk, &f.crc,        &f.epoch, &f.chunk_count,
                                &f.flags, &f.chunk_size, &f.credit};
    size_t field = what % (sizeof(fields) / sizeof(fields[0]) + 1);
    if (field < sizeof(fields) / sizeof(fields[0]))
        *fields[field] ^= by;
    else
        f.total ^= by;
    (void)post(s, &f, payload);
}

static void send_control(struct sender *s)
{
    static const enum hl_mig_type types[] = {HL_MIG_OPEN, HL_MIG_RESUME, HL_MIG_CANCEL,
                                             HL_MIG_STATE};

    unsigned b = take(&s->in);
    struct hl_mig_frame f = frame_of(s, types[b % 4], 0);
    s->object.epoch += b >> 2 & 1;
    f.epoch = s->object.epoch;
    f.crc ^= b >> 4 & 1; /* of the whole: what then comes is never stored */
    if (b & 8)
        hl_mig_inbox_expire(s->inbox, s->now += 2000000);
    (void)post(s, &f, NULL);
}

static void step(struct sender *s, unsigned b)
{
    uint32_t chunk = (b >> 3) % s->object.chunk_count;
    struct hl_mig_frame plain = frame_of(s, HL_MIG_DATA, chunk);
    switch (b % 8) {
    case 0:
        send_packed(s, chunk);
        break;
    case 1:
        send_good(s, &plain, s->content + (size_t)chunk * CHUNK);
        break;
    case 2:
    case 3:
    case 4:
        send_broken(s, chunk, b % 8 - 2);
        break;
    case 5:
        send_blocks(s, chunk);
        break;
    case 6:
        send_lie(s, chunk);
        break;
    default:
        send_control(s);
        break;
    }
}

/* ---- the object ------------------------------------------------------------------------------ */

/* A pattern that repeats, or changes as it does, or bytes that don't compress. */
static void fill(uint8_t *to, size_t n, struct input *in, unsigned kind)
{
    size_t period = 1 + take(in) % 64;
    uint32_t noise = 1;
    for (size_t i = 0; i < n; i++) {
        if (i < period)
            to[i] = (uint8_t)take(in);
        else
            to[i] = (uint8_t)(to[i - period] + (kind == 1 ? 1 : 0));
        if (kind == 2)
            to[i] = (uint8_t)((noise = noise * 1664525 + 1013904223) >> 24);
    }
}

static void begin(struct sender *s)
{
    unsigned kind = take(&s->in);
    uint64_t total = 1 + (uint64_t)take2(&s->in);
    if (kind & 4)
        total = CHUNK + total * 8;
    s->content = malloc(total);
    if (s->content == NULL)
        abort();
    fill(s->content, total, &s->in, kind % 4);
    s->object = (struct hl_mig_frame){.epoch = 1,
                                      .id = {OBJECT_ID, OBJECT_ID},
                                      .total = total,
                                      .chunk_size = CHUNK,
                                      .chunk_count = hl_mig_chunk_count(total, CHUNK),
                                      .crc = hl_crc32(0, s->content, total)};
    int level = (int)(kind >> 3) % (LEVELS + 1);
    if (hl_mig_pack_create(level == 0 ? HL_MIGRATE_ZSTD_AUTO : level, CHUNK, &s->pack) != HL_OK)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sender s = {.in = {data, size}};
    struct hl_migrate_server_opts opts = {.sink = {sink_begin, sink_commit, sink_abort, &s},
                                          .window_bytes = CHUNK * 4,
                                          .max_open = 2,
                                          .keep_ms = 1};
    if (hl_mig_inbox_create(&opts, &s.inbox) != HL_OK)
        abort();
    begin(&s);
    struct hl_mig_frame open = frame_of(&s, HL_MIG_OPEN, 0);
    (void)post(&s, &open, NULL);
    for (int i = 0; s.in.left > 0 && i < STEPS_MAX; i++)
        step(&s, take(&s.in));
    hl_mig_inbox_destroy(s.inbox);
    hl_mig_pack_destroy(s.pack);
    free(s.content);
    return 0;
}
