/* The migration frames and the receiver's table, without any socket. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/crc32.h"
#include "net/zmq/inbox.h"
#include "net/zmq/zstd.h"

#define CHUNK 262144u
#define TOTAL (4 * (uint64_t)CHUNK + 100) /* five chunks, the last of 100 bytes */

/* A cell of the fault matrix, see tests/net/matrix.py. */
#define FAULT(fault, result) printf("FAULT path=zmq-migrate fault=" fault " result=" result "\n")

static uint8_t object[TOTAL];
static uint8_t placed[TOTAL];

struct sink {
    int begun, committed, aborted;
};

static hl_status sink_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct sink *s = arg;
    (void)id;
    if (size > sizeof(placed))
        return hl_fail(HL_ENOSPC, "%llu bytes do not fit", (unsigned long long)size);
    s->begun++;
    memset(placed, 0, sizeof(placed));
    *token = s;
    *ptr = placed;
    return HL_OK;
}

static hl_status sink_commit(void *arg, void *token, uint32_t crc, const uint32_t *crcs, size_t n,
                             struct hl_id *id)
{
    (void)token;
    (void)crcs;
    ((struct sink *)arg)->committed++;
    *id = (struct hl_id){n, crc};
    return HL_OK;
}

static void sink_abort(void *arg, void *token)
{
    (void)token;
    ((struct sink *)arg)->aborted++;
}

static struct hl_mig_inbox *inbox_with(struct sink *s, uint64_t window, unsigned max_open)
{
    struct hl_migrate_server_opts o = {.sink = {sink_begin, sink_commit, sink_abort, s},
                                       .window_bytes = window,
                                       .max_open = max_open,
                                       .keep_ms = 10};
    struct hl_mig_inbox *in = NULL;
    assert_int_equal(hl_mig_inbox_create(&o, &in), HL_OK);
    return in;
}

static struct hl_mig_frame frame(enum hl_mig_type type)
{
    return (struct hl_mig_frame){.type = type,
                                 .epoch = 9,
                                 .id = {1, 2},
                                 .total = TOTAL,
                                 .chunk_size = CHUNK,
                                 .chunk_count = 5,
                                 .crc = hl_crc32(0, object, TOTAL)};
}

static struct hl_mig_reply tell(struct hl_mig_inbox *in, const struct hl_mig_frame *f,
                                const void *payload)
{
    uint8_t header[HL_MIG_HEADER];
    struct hl_mig_reply r;
    hl_mig_encode(f, header);
    hl_mig_inbox_message(in, header, sizeof(header), payload, f->length, 1000, &r);
    return r;
}

static struct hl_mig_frame data_frame(uint32_t chunk)
{
    struct hl_mig_frame f = frame(HL_MIG_DATA);
    f.chunk = chunk;
    f.length = chunk < 4 ? CHUNK : 100;
    f.crc = hl_crc32(0, object + (size_t)chunk * CHUNK, f.length);
    return f;
}

static struct hl_mig_reply tell_chunk(struct hl_mig_inbox *in, uint32_t chunk)
{
    struct hl_mig_frame f = data_frame(chunk);
    return tell(in, &f, object + (size_t)chunk * CHUNK);
}

static struct hl_migrate_server_stats stats_of(const struct hl_mig_inbox *in)
{
    struct hl_migrate_server_stats st;
    hl_mig_inbox_stats(in, &st);
    return st;
}

TEST(a_header_reads_back_as_it_was_written)
{
    uint8_t header[HL_MIG_HEADER];
    struct hl_mig_frame f = data_frame(4), back;
    f.credit = 77;
    f.result = (struct hl_id){5, 6};
    hl_mig_encode(&f, header);
    assert_memory_equal(header, "HLMG\1\0\3\0", 8); /* magic, version 1, type 3 */
    assert_int_equal(header[16], 1);                /* the id's upper half */
    assert_int_equal(header[24], 2);
    assert_int_equal(header[48], 4);   /* chunk */
    assert_int_equal(header[52], 100); /* length */
    assert_int_equal(hl_mig_decode(header, sizeof(header), &back), HL_OK);
    uint8_t again[HL_MIG_HEADER];
    hl_mig_encode(&back, again);
    assert_memory_equal(again, header, sizeof(header));
    assert_int_equal(back.credit, 77);
    assert_int_equal(back.crc, hl_crc32(0, object + 4 * CHUNK, 100));
}

TEST(every_flipped_bit_of_a_header_is_noticed)
{
    uint8_t header[HL_MIG_HEADER];
    struct hl_mig_frame f = data_frame(2), back;
    hl_mig_encode(&f, header);
    for (size_t bit = 0; bit < sizeof(header) * 8; bit++) {
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(hl_mig_decode(header, sizeof(header), &back), HL_EPROTO);
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t len = 0; len < sizeof(header); len++)
        assert_int_equal(hl_mig_decode(header, len, &back), HL_EPROTO);
}

TEST(headers_that_contradict_themselves_are_refused)
{
    struct hl_mig_frame bad[16], back;
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        bad[i] = data_frame(1);
    bad[0].chunk = 5;
    bad[1].length = 100;
    bad[2].chunk_count = 6;
    bad[3].chunk_size = CHUNK + 1;
    bad[4].chunk_size = CHUNK / 2;
    bad[5].chunk_size = 16u << 20;
    bad[6].total = 0;
    bad[7].total = UINT64_MAX;
    bad[8].id = (struct hl_id){0, 0};
    bad[9].flags = HL_MIG_F_ZSTD;
    bad[10].type = HL_MIG_TYPE_END;
    bad[11].flags = 2; /* an unknown flag */
    bad[12].flags = HL_MIG_F_ZSTD, bad[12].length = 0;
    bad[13].flags = HL_MIG_F_ZSTD, bad[13].length = CHUNK; /* no smaller than the chunk */
    bad[14].flags = HL_MIG_F_ZSTD, bad[14].type = HL_MIG_OPEN, bad[14].length = 0;
    bad[15] = (struct hl_mig_frame){.type = HL_MIG_PING, .flags = HL_MIG_F_ZSTD};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        uint8_t header[HL_MIG_HEADER];
        hl_mig_encode(&bad[i], header);
        if (hl_mig_decode(header, sizeof(header), &back) != HL_EPROTO)
            fail_msg("case %zu was accepted", i);
    }
}

TEST(chunks_may_come_in_any_order_and_twice)
{
    static const uint32_t order[] = {4, 2, 2, 0, 4, 3};
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 8 * CHUNK, 0);
    struct hl_mig_frame open = frame(HL_MIG_OPEN);
    struct hl_mig_reply r = tell(in, &open, NULL);
    assert_int_equal(r.frame.type, HL_MIG_STATE);
    assert_int_equal(r.frame.credit, 8);
    for (size_t i = 0; i < HL_ARRAY_LEN(order); i++)
        (void)tell_chunk(in, order[i]);
    assert_int_equal(s.committed, 0);
    assert_int_equal(stats_of(in).duplicate, 2);

    open.type = HL_MIG_RESUME;
    open.epoch = 10;
    r = tell(in, &open, NULL);
    assert_int_equal(r.frame.type, HL_MIG_STATE);
    assert_int_equal(r.frame.epoch, 10);
    assert_int_equal(((const uint8_t *)r.payload)[0], 0x1d); /* all but chunk 1 */

    r = tell_chunk(in, 1); /* from the previous epoch: good nevertheless */
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    assert_int_equal(r.frame.result.hi, 2); /* MiB, started */
    assert_int_equal(r.frame.result.lo, hl_crc32(0, object, TOTAL));
    assert_memory_equal(placed, object, TOTAL);
    r = tell_chunk(in, 3);
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    assert_int_equal(s.committed, 1);
    hl_mig_inbox_destroy(in);
    assert_int_equal(s.aborted, 0);
    FAULT("duplicate", "dropped");
    FAULT("reorder", "placed");
}

TEST(a_damaged_chunk_is_asked_for_again_and_never_replaces_a_good_one)
{
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 16 * CHUNK, 0);
    struct hl_mig_frame open = frame(HL_MIG_OPEN), f = data_frame(0);
    (void)tell(in, &open, NULL);
    struct hl_mig_reply r = tell(in, &f, object + 8);
    assert_int_equal(r.frame.type, HL_MIG_NACK);
    assert_int_equal(r.frame.chunk, 0);
    assert_int_equal(stats_of(in).corrupted, 1);
    (void)tell_chunk(in, 0);
    (void)tell(in, &f, object + 8);
    assert_memory_equal(placed, object, CHUNK);
    assert_int_equal(stats_of(in).duplicate, 1);
    for (uint32_t i = 1; i < 5; i++)
        r = tell_chunk(in, i);
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    hl_mig_inbox_destroy(in);
    FAULT("corrupt", "resent");
}

TEST(foreign_and_unasked_for_chunks_are_refused)
{
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 1, 0); /* the smallest window: two chunks */
    struct hl_mig_frame open = frame(HL_MIG_OPEN), f = data_frame(0);
    struct hl_mig_reply r = tell_chunk(in, 0);
    assert_int_equal(r.frame.type, HL_MIG_REFUSED);
    assert_int_equal(r.frame.status, HL_ENOENT);
    r = tell(in, &open, NULL);
    assert_int_equal(r.frame.credit, 2);
    f.total += 1;
    f.length = CHUNK;
    r = tell(in, &f, object);
    assert_int_equal(r.frame.status, HL_EPROTO);
    f = frame(HL_MIG_STATE); /* only a receiver sends this */
    f.length = 1;
    assert_int_equal(tell(in, &f, "x").send, 0);
    uint8_t header[HL_MIG_HEADER];
    f = data_frame(0);
    hl_mig_encode(&f, header);
    hl_mig_inbox_message(in, header, sizeof(header), object, 99, 0, &r); /* payload cut */
    assert_int_equal(r.send, 0);
    assert_int_equal(stats_of(in).refused, 4);
    assert_int_equal(stats_of(in).chunks, 0);
    /* A sender that ignores its credit. */
    unsigned without = 0;
    struct hl_mig_frame again = data_frame(0);
    again.crc ^= 1;
    for (int i = 0; i < 4; i++) {
        r = tell(in, &again, object);
        assert_int_equal(r.frame.type, HL_MIG_NACK);
        without += r.frame.credit;
    }
    assert_int_equal(without, 3 + 4 + 5 + 6); /* every chunk taken gives the room back */
    hl_mig_inbox_destroy(in);
    assert_int_equal(s.aborted, 1);
    FAULT("wrong-size", "refused");
    FAULT("foreign", "refused");
}

TEST(an_id_in_use_full_tables_and_silence_are_answered)
{
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 0, 2);
    struct hl_mig_frame open = frame(HL_MIG_OPEN);
    (void)tell(in, &open, NULL);
    open.crc ^= 1;
    struct hl_mig_reply r = tell(in, &open, NULL);
    assert_int_equal(r.frame.status, HL_ECONFLICT);
    open.id.lo = 3;
    assert_int_equal(tell(in, &open, NULL).frame.type, HL_MIG_STATE);
    open.id.lo = 4;
    r = tell(in, &open, NULL);
    assert_int_equal(r.frame.status, HL_EBUSY);
    assert_memory_equal(r.payload, "migration receiver: 2 migrations are open", 41);
    hl_mig_inbox_expire(in, 1000 + 9999999);
    assert_int_equal(stats_of(in).open_now, 2);
    hl_mig_inbox_expire(in, 1000 + 10000000);
    assert_int_equal(stats_of(in).open_now, 0);
    assert_int_equal(s.aborted, 2);
    open.total = 64 << 20;
    open.chunk_count = 256;
    r = tell(in, &open, NULL);
    assert_int_equal(r.frame.status, HL_ENOSPC);
    assert_int_equal(r.frame.length, 25);
    assert_memory_equal(r.payload, "67108864 bytes do not fit", 25);
    struct hl_mig_frame ping = {.type = HL_MIG_PING};
    assert_int_equal(tell(in, &ping, NULL).frame.type, HL_MIG_PONG);
    hl_mig_inbox_destroy(in);
}

TEST(a_canceled_migration_is_freed_at_once_and_stays_canceled)
{
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 8 * CHUNK, 0);
    struct hl_mig_frame open = frame(HL_MIG_OPEN);
    struct hl_mig_frame cancel = {.type = HL_MIG_CANCEL, .epoch = 77, .id = {1, 2}};
    struct hl_mig_reply r = tell(in, &cancel, NULL);
    assert_int_equal(r.frame.status, HL_ENOENT); /* nothing is open yet */
    (void)tell(in, &open, NULL);
    (void)tell_chunk(in, 3);
    r = tell(in, &cancel, NULL);
    assert_int_equal(r.frame.type, HL_MIG_REFUSED);
    assert_int_equal(r.frame.status, HL_ECANCELED);
    assert_int_equal(r.frame.epoch, 77);
    assert_int_equal(s.aborted, 1);
    assert_int_equal(stats_of(in).open_now, 0);
    assert_int_equal(stats_of(in).canceled, 1);
    /* Its sender does not know yet and is told; it can't reopen it by asking for more. */
    assert_int_equal(tell_chunk(in, 0).frame.status, HL_ECANCELED);
    open.type = HL_MIG_RESUME;
    assert_int_equal(tell(in, &open, NULL).frame.status, HL_ECANCELED);
    assert_int_equal(stats_of(in).refused, 0);
    assert_int_equal(s.begun, 1);
    /* Starting again is allowed. */
    open.type = HL_MIG_OPEN;
    assert_int_equal(tell(in, &open, NULL).frame.type, HL_MIG_STATE);
    for (uint32_t i = 0; i < 5; i++)
        r = tell_chunk(in, i);
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    r = tell(in, &cancel, NULL); /* too late: it is stored, and the answer says so */
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    assert_int_equal(r.frame.total, TOTAL);
    assert_int_equal(s.committed, 1);
    hl_mig_inbox_destroy(in);
    assert_int_equal(s.begun, s.committed + s.aborted);
}

/* A sender that asks for the state while the last chunks are being placed leaves the epoch of their
 * answer, and would send everything again and again. */
TEST(a_refused_migration_is_not_begun_again_by_a_resume)
{
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 16 * CHUNK, 0);
    struct hl_mig_frame open = frame(HL_MIG_OPEN);
    struct hl_mig_reply r;
    open.crc ^= 1;
    (void)tell(in, &open, NULL);
    for (uint32_t i = 0; i < 5; i++)
        r = tell_chunk(in, i);
    assert_int_equal(r.frame.status, HL_ECORRUPT);
    open.type = HL_MIG_RESUME;
    open.epoch++;
    r = tell(in, &open, NULL);
    assert_int_equal(r.frame.type, HL_MIG_REFUSED);
    assert_int_equal(r.frame.status, HL_ECORRUPT);
    assert_int_equal(r.frame.epoch, open.epoch);
    assert_memory_equal(r.payload, "migration ", 10);
    assert_int_equal(tell_chunk(in, 0).frame.status, HL_ECORRUPT);
    assert_int_equal(s.begun, 1);
    assert_int_equal(s.aborted, 1);
    /* An OPEN starts again. */
    open = frame(HL_MIG_OPEN);
    assert_int_equal(tell(in, &open, NULL).frame.type, HL_MIG_STATE);
    for (uint32_t i = 0; i < 5; i++)
        r = tell_chunk(in, i);
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    hl_mig_inbox_destroy(in);
}

/* A chunk of the object compressed by zstd itself, as a frame that says so. */
static struct hl_mig_frame packed_frame(uint32_t chunk, uint8_t *buf, size_t cap)
{
    struct hl_mig_frame f = data_frame(chunk);
    size_t n = ZSTD_compress(buf, cap, object + (size_t)chunk * CHUNK, f.length, 1);
    assert_false(ZSTD_isError(n));
    f.flags = HL_MIG_F_ZSTD;
    f.length = (uint32_t)n;
    return f;
}

TEST(compressed_chunks_land_and_damaged_ones_are_asked_for_again)
{
    static uint8_t buf[2 * CHUNK];
    struct sink s = {0};
    struct hl_mig_inbox *in = inbox_with(&s, 16 * CHUNK, 0);
    struct hl_mig_frame open = frame(HL_MIG_OPEN), f = packed_frame(2, buf, sizeof(buf));
    (void)tell(in, &open, NULL);
    buf[f.length / 2] ^= 0x40;
    struct hl_mig_reply r = tell(in, &f, buf);
    assert_int_equal(r.frame.type, HL_MIG_NACK);
    assert_int_equal(r.frame.flags, 0);
    buf[f.length / 2] ^= 0x40;
    (void)tell(in, &f, buf);
    for (uint32_t i = 0; i < 4; i++) {
        f = packed_frame(i, buf, sizeof(buf));
        (void)tell(in, &f, buf);
    }
    r = tell_chunk(in, 4); /* with others as they are */
    assert_int_equal(r.frame.type, HL_MIG_DONE);
    assert_memory_equal(placed, object, TOTAL);
    assert_int_equal(stats_of(in).packed, 4);
    assert_int_equal(stats_of(in).corrupted, 1);
    assert_int_equal(stats_of(in).bytes, TOTAL);
    assert_true(stats_of(in).wire < TOTAL);
    hl_mig_inbox_destroy(in);
}

/* The destination ends where the chunk ends, so that ASan sees one byte too many. */
TEST(hostile_compressed_bytes_are_refused_and_stay_within_the_chunk)
{
    struct hl_mig_unpack *u;
    static uint8_t zeros[4 * CHUNK], buf[2 * CHUNK];
    uint8_t *dst = malloc(CHUNK);
    assert_int_equal(hl_mig_unpack_create(&u), HL_OK);
    /* A bomb: a few bytes that hold a MiB. */
    size_t bomb = ZSTD_compress(buf, sizeof(buf), zeros, sizeof(zeros), 1);
    assert_true(bomb < 1000);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, buf, bomb), HL_ECORRUPT);
    /* Two frames of half a chunk: the first says half, whatever follows. */
    size_t half = ZSTD_compress(buf, sizeof(buf), zeros, CHUNK / 2, 1);
    memcpy(buf + half, buf, half);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, buf, 2 * half), HL_ECORRUPT);
    /* A whole chunk, and then more of it. */
    size_t whole = ZSTD_compress(buf, sizeof(buf), zeros, CHUNK, 1);
    memcpy(buf + whole, buf, whole);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, buf, 2 * whole), HL_ECORRUPT);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, buf, whole - 1), HL_ECORRUPT);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, "rubbish", 7), HL_ECORRUPT);
    assert_int_equal(hl_mig_unpack(u, dst, CHUNK, buf, whole), HL_OK);
    assert_memory_equal(dst, zeros, CHUNK);
    free(dst);
    hl_mig_unpack_destroy(u);
}

TEST(compression_pays_on_slow_lines_only)
{
    /* 125 MB/s and half of it left: 250 MB/s, if the compressor keeps up. */
    assert_true(hl_mig_pack_pays(0.5, 500e6, 125e6));
    assert_true(hl_mig_pack_pays(0.5, 150e6, 125e6));
    assert_false(hl_mig_pack_pays(0.5, 130e6, 125e6)); /* no gain worth the doubt */
    assert_false(hl_mig_pack_pays(0.95, 500e6, 125e6));
    assert_false(hl_mig_pack_pays(0.5, 500e6, 3e9));
    assert_false(hl_mig_pack_pays(0.5, 500e6, 0)); /* not known yet */
}

TEST(a_packer_gives_up_on_what_does_not_shrink)
{
    static uint8_t noise[CHUNK], zeros[CHUNK];
    struct hl_mig_pack *p;
    uint32_t n = 0;
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < CHUNK; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(noise + i, &x, 8);
    }
    assert_int_equal(hl_mig_pack_create(1, CHUNK, &p), HL_OK);
    assert_null(hl_mig_pack(p, noise, CHUNK, 1, &n));
    assert_non_null(hl_mig_pack(p, zeros, CHUNK, 0, &n)); /* a level does not depend on the rate */
    assert_true(n > 0 && n < CHUNK / 100);
    hl_mig_pack_destroy(p);
    assert_int_equal(hl_mig_pack_create(HL_MIGRATE_ZSTD_AUTO, CHUNK, &p), HL_OK);
    assert_null(hl_mig_pack(p, zeros, CHUNK, 0, &n)); /* the line's rate is not known */
    assert_null(
        hl_mig_pack(p, noise, CHUNK, 1, &n)); /* does not shrink: the next chunk is not tried */
    assert_null(hl_mig_pack(p, zeros, CHUNK, 1, &n));     /* that one */
    assert_non_null(hl_mig_pack(p, zeros, CHUNK, 1, &n)); /* a line of 1 byte/s: pays */
    assert_null(hl_mig_pack(p, zeros, CHUNK, 1e15, &n));  /* a line faster than any compressor */
    assert_non_null((hl_mig_pack(p, zeros, CHUNK, 1, &n), hl_mig_pack(p, zeros, CHUNK, 1, &n)));
    hl_mig_pack_destroy(p);
    int level = 7;
    assert_int_equal(hl_migrate_zstd_parse("off", &level), HL_OK);
    assert_int_equal(level, 0);
    assert_int_equal(hl_migrate_zstd_parse("auto", &level), HL_OK);
    assert_int_equal(level, -1);
    assert_int_equal(hl_migrate_zstd_parse("19", &level), HL_OK);
    assert_int_equal(level, 19);
    static const char *const bad[] = {"", "0", "20", "-1", "on", "3x", " "};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_migrate_zstd_parse(bad[i], &level), HL_EINVAL);
    assert_int_equal(level, 19);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < TOTAL; i++)
        object[i] = (uint8_t)(i * 2654435761u >> 24 ^ i / 251);
    return tests_run(argc, argv);
}
