/* Reads of another host's memory over a connection that corrupts data on request. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "base/crc32.h"
#include "fetch/remote.h"
#include "net/net.h"

#define CHUNKS 70 /* more than HL_NET_BAD_MAX */
#define SIZE   ((CHUNKS - 1) * HL_CHUNK + 1000)
#define MOVED  HL_CHUNK /* offset of the shard after it has moved */

struct world {
    struct hl_net_head head; /* first: a pointer to it is the connection, too */
    uint8_t *memory;         /* MOVED + SIZE bytes */
    struct hl_extent *extent;
    int spoil[CHUNKS]; /* how often the chunk will still arrive corrupt */
    int fetches, located, failed, retried;
    bool expired; /* the deadline has passed */
    struct hl_remote remote;
};

static hl_status stub_fetch(struct hl_net_client *client, uint64_t offset, void *dst, size_t len,
                            const uint32_t *crcs, int timeout_ms, struct hl_net_bad *bad)
{
    struct world *w = (struct world *)client;
    size_t count = 0;
    assert_true(timeout_ms > 0);
    assert_true(offset + len <= MOVED + SIZE);
    w->fetches++;
    memcpy(dst, w->memory + offset, len);
    for (uint64_t i = 0; i < hl_chunk_count(len); i++) {
        uint8_t *at = (uint8_t *)dst + i * HL_CHUNK;
        uint64_t chunk = (offset - w->extent->offset) / HL_CHUNK + i;
        if (w->spoil[chunk] > 0 && w->spoil[chunk]-- > 0)
            at[0] ^= 1;
        if (hl_crc32(0, at, hl_chunk_len(len, i)) == crcs[i])
            continue;
        count++;
        if (bad != NULL)
            hl_net_bad_note(bad, (size_t)i);
    }
    return count == 0 ? HL_OK : hl_fail(HL_ECORRUPT, "%zu bad chunks", count);
}

static const struct hl_net_ops stub_net = {.name = "stub", .fetch = stub_fetch};

static hl_status left_ms(void *arg, int *ms)
{
    struct world *w = arg;
    if (w->expired)
        return hl_fail(HL_ETIMEDOUT, "the deadline passed");
    *ms = 1000;
    return HL_OK;
}

static hl_status locate(void *arg, const struct hl_extent **extent)
{
    struct world *w = arg;
    w->located++;
    *extent = w->extent;
    return HL_OK;
}

static void count_failed(void *arg, size_t chunks)
{
    ((struct world *)arg)->failed += (int)chunks;
}

static void count_retried(void *arg)
{
    ((struct world *)arg)->retried++;
}

static int setup(void **state)
{
    static const struct hl_remote_ops ops = {left_ms, locate, count_failed, count_retried};
    struct world *w = calloc(1, sizeof(*w));
    w->head.ops = &stub_net;
    w->memory = malloc(MOVED + SIZE);
    w->extent = calloc(1, sizeof(*w->extent) + CHUNKS * sizeof(uint32_t));
    for (size_t i = 0; i < SIZE; i++)
        w->memory[i] = (uint8_t)(i * 2654435761u >> 13);
    w->extent->size = SIZE;
    for (uint64_t i = 0; i < CHUNKS; i++)
        w->extent->crcs[i] = hl_crc32(0, w->memory + i * HL_CHUNK, hl_chunk_len(SIZE, i));
    w->extent->crc32 = hl_crc32(0, w->memory, SIZE);
    w->remote = (struct hl_remote){.net = (struct hl_net_client *)w,
                                   .extent = w->extent,
                                   .retry = {.count = 3, .pause_ms = 0},
                                   .ops = &ops,
                                   .arg = w};
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    free(w->memory);
    free(w->extent);
    free(w);
    return 0;
}

static void assert_reads(struct world *w, uint64_t offset, uint64_t len)
{
    uint8_t *dst = malloc(len + 1);
    dst[len] = 0xA5;
    assert_int_equal(hl_remote_read(&w->remote, offset, dst, len), HL_OK);
    assert_memory_equal(dst, w->memory + w->extent->offset + offset, len);
    assert_int_equal(dst[len], 0xA5);
    free(dst);
}

TEST_IN(setup, teardown, any_range_arrives_and_only_whole_chunks_are_asked_for)
{
    struct world *w = *state;
    static const uint64_t ranges[][3] = {
        {0, SIZE, 1},                                 /* all of it */
        {5, 10, 1},                                   /* within a chunk */
        {HL_CHUNK - 3, 6, 2},                         /* across a boundary */
        {7, 3 * HL_CHUNK, 3},                         /* part, two whole, part */
        {HL_CHUNK, 2 * HL_CHUNK, 1},                  /* only whole ones */
        {(CHUNKS - 1) * HL_CHUNK, 1000, 1},           /* the short last one */
        {(CHUNKS - 2) * HL_CHUNK, HL_CHUNK + 999, 2}, /* up to before its end */
        {SIZE, 0, 0},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(ranges); i++) {
        w->fetches = 0;
        assert_reads(w, ranges[i][0], ranges[i][1]);
        assert_int_equal(w->fetches, ranges[i][2]);
    }
    uint8_t byte;
    assert_int_equal(hl_remote_read(&w->remote, SIZE, &byte, 1), HL_EINVAL);
    assert_int_equal(hl_remote_read(&w->remote, UINT64_MAX, &byte, 2), HL_EINVAL);
}

TEST_IN(setup, teardown, a_bad_chunk_is_fetched_again_and_no_other)
{
    struct world *w = *state;
    w->spoil[3] = 1;
    w->spoil[5] = 2;
    assert_reads(w, 0, SIZE);
    assert_int_equal(w->fetches, 1 + 1 + 2);
    assert_int_equal(w->located, 3);
    assert_int_equal(w->failed, 2 + 1);
    assert_int_equal(w->retried, 3);
}

TEST_IN(setup, teardown, what_stays_bad_is_an_error_that_names_the_chunk)
{
    struct world *w = *state;
    uint8_t *dst = malloc(SIZE);
    w->spoil[4] = 100;
    assert_int_equal(hl_remote_read(&w->remote, 0, dst, SIZE), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "chunk 4 of 70 fails its checksum, also after 3 "));
    assert_int_equal(w->fetches, 1 + 3);
    w->remote.retry.count = 0;
    assert_int_equal(hl_remote_read(&w->remote, 0, dst, SIZE), HL_ECORRUPT);
    assert_int_equal(w->fetches, 1 + 3 + 1);
    free(dst);
}

/* A connection lists HL_NET_BAD_MAX bad chunks: those after the last listed one may be bad, too. */
TEST_IN(setup, teardown, more_bad_chunks_than_a_list_holds)
{
    struct world *w = *state;
    for (int i = 0; i < CHUNKS; i++)
        w->spoil[i] = 1;
    assert_reads(w, 0, SIZE);
    assert_int_equal(w->fetches, 1 + CHUNKS);
}

static hl_status locate_moved(void *arg, const struct hl_extent **extent)
{
    struct world *w = arg;
    if (w->extent->offset == 0) {
        memmove(w->memory + MOVED, w->memory, SIZE);
        memset(w->memory, 0, MOVED);
        w->extent->offset = MOVED;
    }
    return locate(arg, extent);
}

TEST_IN(setup, teardown, a_shard_that_moves_is_followed)
{
    struct world *w = *state;
    const struct hl_remote_ops ops = {.left_ms = left_ms, .locate = locate_moved};
    w->remote.ops = &ops;
    w->spoil[0] = 1;
    w->spoil[60] = 1;
    assert_reads(w, 0, SIZE);
    assert_int_equal(w->located, 2);
}

static hl_status locate_another(void *arg, const struct hl_extent **extent)
{
    struct world *w = arg;
    w->extent->crc32 ^= 1;
    return locate(arg, extent);
}

TEST_IN(setup, teardown, a_shard_that_has_other_bytes_is_stale)
{
    struct world *w = *state;
    const struct hl_remote_ops ops = {.left_ms = left_ms, .locate = locate_another};
    uint8_t *dst = malloc(SIZE);
    w->remote.ops = &ops;
    w->spoil[0] = 1;
    assert_int_equal(hl_remote_read(&w->remote, 0, dst, SIZE), HL_ESTALE);
    free(dst);
}

TEST_IN(setup, teardown, a_deadline_ends_the_retries)
{
    struct world *w = *state;
    uint8_t byte;
    w->expired = true;
    assert_int_equal(hl_remote_read(&w->remote, 0, &byte, 1), HL_ETIMEDOUT);
    assert_int_equal(w->fetches, 0);
}

TEST(pauses_grow_tenfold_twice)
{
    const struct hl_retry retry = {.count = 5, .pause_ms = 2};
    assert_int_equal(hl_retry_pause_ms(&retry, 0), 2);
    assert_int_equal(hl_retry_pause_ms(&retry, 1), 20);
    assert_int_equal(hl_retry_pause_ms(&retry, 2), 200);
    assert_int_equal(hl_retry_pause_ms(&retry, 3), 200);
}

TEST_IN(setup, teardown, an_extent_whose_checksums_do_not_add_up_is_refused)
{
    struct world *w = *state;
    struct hl_extent *x = NULL;
    struct hl_api_extent said = {.id = "00112233445566778899aabbccddeeff",
                                 .offset = 4096,
                                 .size_bytes = SIZE,
                                 .crc32 = w->extent->crc32,
                                 .generation = 3,
                                 .chunk_crcs = {w->extent->crcs, CHUNKS}};
    assert_int_equal(hl_extent_parse(&said, &x), HL_OK);
    assert_int_equal(x->offset, 4096);
    assert_int_equal(x->gen, 3);
    assert_memory_equal(x->crcs, w->extent->crcs, CHUNKS * sizeof(uint32_t));
    free(x);
    x = NULL;
    said.crc32 ^= 1;
    assert_int_equal(hl_extent_parse(&said, &x), HL_ECORRUPT);
    said.crc32 ^= 1;
    said.chunk_crcs.count--;
    assert_int_equal(hl_extent_parse(&said, &x), HL_EPROTO);
    said.size_bytes = 0;
    said.chunk_crcs.count = 0;
    assert_int_equal(hl_extent_parse(&said, &x), HL_EPROTO);
    said.id = "no id";
    assert_int_not_equal(hl_extent_parse(&said, &x), HL_OK);
    assert_null(x);
}
