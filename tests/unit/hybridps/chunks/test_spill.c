/* A full host: which chunks leave it, and that no failure loses content. */
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/chunks/pool.h"

#define CHUNKS 12
#define KEPT   64
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPERATIONS 8000
#else
#define OPERATIONS 24000
#endif

static uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- a place below: memory that fails every k-th call, with limited room ---- */

struct fake {
    void *kept[KEPT];
    uint64_t bytes[KEPT];
    unsigned calls, every, count, room, puts, gets;
    int closed, well;
};

static int fails(struct fake *f)
{
    return f->every > 0 && !f->well && ++f->calls % f->every == 0;
}

static hl_status fake_put(void *arg, const void *data, uint64_t bytes, uint64_t *handle)
{
    struct fake *f = arg;
    unsigned at = 0;
    if (fails(f))
        return hl_fail(HL_EIO, "a put was made to fail");
    if (f->count >= f->room)
        return hl_fail(HL_ENOSPC, "the place is full");
    while (f->kept[at] != NULL)
        at++;
    f->kept[at] = malloc(bytes);
    memcpy(f->kept[at], data, bytes);
    f->bytes[at] = bytes;
    f->count++;
    f->puts++;
    *handle = at + 1;
    return HL_OK;
}

static hl_status fake_get(void *arg, uint64_t handle, void *data, uint64_t bytes)
{
    struct fake *f = arg;
    assert_non_null(f->kept[handle - 1]);
    assert_int_equal(f->bytes[handle - 1], bytes);
    if (fails(f)) {
        memset(data, 0xee, bytes);
        return hl_fail(HL_ECORRUPT, "a get was made to fail");
    }
    memcpy(data, f->kept[handle - 1], bytes);
    f->gets++;
    return HL_OK;
}

static void fake_drop(void *arg, uint64_t handle)
{
    struct fake *f = arg;
    assert_non_null(f->kept[handle - 1]);
    free(f->kept[handle - 1]);
    f->kept[handle - 1] = NULL;
    f->count--;
}

static void fake_close(void *arg)
{
    struct fake *f = arg;
    for (unsigned i = 0; i < KEPT; i++)
        free(f->kept[i]);
    f->closed++;
}

static const struct hl_spill_ops fake_ops = {"L3", fake_put, fake_get, fake_drop, fake_close};

/* ---- a pool over it ---- */

struct rig {
    struct hl_chunk_pool *pool;
    struct fake fake;
    uint64_t version[CHUNKS]; /* 0 = no content */
    uint64_t next[CHUNKS];
    uint64_t seed, last, books, books_max; /* 0 = no accounting */
    int next_known, faults;
};

static int next_use(void *arg, uint32_t chunk, uint64_t *moments)
{
    struct rig *r = arg;
    *moments = r->next[chunk];
    return r->next_known;
}

static hl_status charge(void *arg, bool on_host, int64_t bytes)
{
    struct rig *r = arg;
    if (!on_host || r->books_max == 0)
        return HL_OK;
    if (bytes > 0 && r->books + (uint64_t)bytes > r->books_max)
        return hl_fail(HL_ENOSPC, "the books are full");
    r->books += (uint64_t)bytes;
    return HL_OK;
}

static void open_rig(struct rig *r, unsigned device, unsigned host, int copy)
{
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(device * page()));
    struct hl_chunk_pool_options o = {.device = spec,
                                      .copy = copy,
                                      .policy = "lru",
                                      .host_bytes = host * page(),
                                      .charge = charge,
                                      .charge_arg = r,
                                      .spill = &fake_ops,
                                      .spill_arg = &r->fake,
                                      .next_use = next_use,
                                      .next_use_arg = r};
    r->fake.room = KEPT;
    assert_int_equal(hl_chunk_pool_open(&o, &r->pool), HL_OK);
    for (unsigned i = 0; i < CHUNKS; i++) {
        uint32_t c;
        assert_int_equal(hl_chunk_pool_add(r->pool, (int)i % HYBRIDPS_KINDS, page(), 0, &c), HL_OK);
    }
}

static void close_rig(struct rig *r)
{
    hl_chunk_pool_close(r->pool);
    assert_int_equal(r->fake.closed, 1);
}

static void audit(struct rig *r)
{
    struct hl_chunk_pool_stats s;
    if (hl_chunk_pool_audit(r->pool) != HL_OK)
        fail_msg("%s", hl_error_text());
    hl_chunk_pool_stats(r->pool, &s);
    assert_int_equal(s.below, r->fake.count * page());
    if (r->books_max > 0)
        assert_int_equal(s.host, r->books);
}

static uint64_t *words(struct rig *r, uint32_t c, bool on_host)
{
    struct hl_chunk_info info;
    hl_chunk_pool_info(r->pool, c, &info);
    return on_host ? info.host : (uint64_t *)(uintptr_t)info.address;
}

static void touch(struct rig *r, uint32_t c, bool on_host, int write)
{
    uint64_t *p = words(r, c, on_host), last = page() / 8 - 1;
    uint64_t want = r->version[c] << 8 | c;
    if (r->version[c] != 0 && (p[0] != want || p[last] != want))
        fail_msg("chunk %u has %llx, not %llx", c, (unsigned long long)p[0],
                 (unsigned long long)want);
    if (r->version[c] == 0 || write) {
        r->version[c] = ++r->last;
        p[0] = p[last] = r->version[c] << 8 | c;
    }
}

static hl_status use(struct rig *r, uint32_t c, bool on_host, int write)
{
    struct hl_trace_use u = {.chunk = c, .on_host = on_host != 0, .write = write != 0};
    hl_status st = hl_chunk_pool_access(r->pool, &u, 1);
    audit(r);
    if (st != HL_OK)
        return st;
    touch(r, c, on_host, write);
    hl_chunk_pool_release(r->pool, c, on_host);
    return HL_OK;
}

static int is_below(struct rig *r, uint32_t c)
{
    struct hl_chunk_info info;
    hl_chunk_pool_info(r->pool, c, &info);
    assert_true(!info.below || info.on_host);
    return info.below;
}

/* ---- which chunk leaves ---- */

TEST(the_chunk_that_is_needed_last_leaves_a_full_host)
{
    struct rig r = {.next = {5, 2, 9, 7}, .next_known = 1};
    struct hl_chunk_pool_stats s;
    open_rig(&r, 2, 3, 1);
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(use(&r, c, 1, 1), HL_OK);
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(is_below(&r, c), c == 2);
    r.next_known = 0; /* no record: the least recently used */
    assert_int_equal(use(&r, 4, 1, 1), HL_OK);
    assert_true(is_below(&r, 0));
    assert_int_equal(use(&r, 2, 0, 0), HL_OK); /* back to the device through the host */
    assert_false(is_below(&r, 2));
    hl_chunk_pool_stats(r.pool, &s);
    assert_int_equal(s.below_out, 3 * page());
    assert_int_equal(s.below_in, page());
    assert_int_equal(s.host_peak, 3 * page());
    hl_chunk_pool_end(r.pool, 0);
    assert_int_equal(r.fake.count, 1); /* its copy below ended with that */
    audit(&r);
    close_rig(&r);
}

TEST(what_costs_nothing_goes_first)
{
    struct rig r = {.next_known = 1};
    open_rig(&r, 2, 2, 1);
    assert_int_equal(use(&r, 0, 1, 1), HL_OK);
    assert_int_equal(use(&r, 0, 0, 1), HL_OK); /* its host memory is now stale */
    assert_int_equal(use(&r, 1, 1, 1), HL_OK);
    assert_int_equal(use(&r, 2, 1, 1), HL_OK);
    assert_int_equal(r.fake.puts, 0);
    assert_int_equal(use(&r, 1, 0, 0), HL_OK); /* in both places */
    r.next[1] = 5;
    assert_int_equal(use(&r, 3, 1, 1), HL_OK);
    assert_int_equal(r.fake.puts, 0);
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(use(&r, c, 0, 0), HL_OK);
    close_rig(&r);
}

TEST(what_is_in_use_stays_and_is_named)
{
    struct rig r = {0};
    struct hl_trace_use u[2] = {{.chunk = 0, .on_host = 1}, {.chunk = 1, .on_host = 1}};
    struct hl_chunk_pool_stats s;
    open_rig(&r, 1, 2, 0);
    assert_int_equal(hl_chunk_pool_access(r.pool, u, 2), HL_OK);
    assert_int_equal(use(&r, 2, 1, 1), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "all of it in use"));
    hl_chunk_pool_stats(r.pool, &s);
    assert_true(s.host_short);
    hl_chunk_pool_release(r.pool, 0, 1);
    assert_int_equal(use(&r, 2, 1, 1), HL_OK);
    hl_chunk_pool_release(r.pool, 1, 1);
    close_rig(&r);
}

TEST(a_place_that_is_full_is_said_and_nothing_is_lost)
{
    struct rig r = {0};
    open_rig(&r, 1, 2, 1);
    r.fake.room = 3;
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(use(&r, c, 1, 1), HL_OK);
    assert_int_equal(use(&r, 5, 1, 1), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "on the host"));
    assert_non_null(strstr(hl_error_text(), "could not be moved to L3: the place is full"));
    hl_chunk_pool_end(r.pool, 0);
    assert_int_equal(use(&r, 5, 1, 1), HL_OK);
    for (uint32_t c = 1; c < 6; c++)
        if (!is_below(&r, c))
            assert_int_equal(use(&r, c, 1, 0), HL_OK);
    close_rig(&r);
}

TEST(full_books_of_others_make_chunks_leave_too)
{
    struct rig r = {.books_max = 3 * page()};
    open_rig(&r, 2, 0, 1);
    for (int pass = 0; pass < 3; pass++)
        for (uint32_t c = 0; c < CHUNKS; c++)
            assert_int_equal(use(&r, c, pass != 1, pass != 2), HL_OK);
    assert_true(r.fake.puts > 0);
    r.fake.room = 0;
    hl_status st = HL_OK;
    for (uint32_t c = 0; c < CHUNKS && st == HL_OK; c++)
        st = use(&r, c, 1, 1);
    assert_int_equal(st, HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "the books are full"));
    close_rig(&r);
}

TEST(kept_memory_does_not_leave_for_another_chunk_under_full_books)
{
    struct rig r = {.books_max = 2 * page()};
    struct hl_chunk_kept kept[3];
    open_rig(&r, 1, 0, 0);
    assert_int_equal(hl_chunk_pool_serve(r.pool), HL_OK);
    for (uint32_t c = 0; c < 3; c++)
        assert_int_equal(use(&r, c, c < 2, 1), HL_OK);
    for (uint32_t c = 0; c < 3; c++)
        assert_int_equal(hl_chunk_pool_keep(r.pool, c, true, &kept[c]), HL_OK);
    assert_int_equal(r.fake.puts, 0);
    close_rig(&r);
    for (uint32_t c = 0; c < 3; c++) {
        assert_int_equal(*(uint64_t *)kept[c].address, r.version[c] << 8 | c);
        hybridps_kept_free(kept[c].address, kept[c].bytes);
    }
}

/* ---- whatever fails ---- */

static unsigned pick(struct rig *r, unsigned below)
{
    r->seed = r->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(r->seed >> 33) % below;
}

/* A chunk is used in a wrong place, outside of an access. */
static void fault(struct rig *r, uint32_t c, bool on_host, int write)
{
    struct hl_chunk_info before;
    uint64_t *p = words(r, c, on_host);
    struct hl_pagefault_access a = {.address = p + 1, .write_known = pick(r, 2) > 0};
    uint32_t found = CHUNKS;
    bool lost = false;
    hl_chunk_pool_info(r->pool, c, &before);
    assert_int_equal(hl_chunk_pool_fault(r->pool, &a, &found, &lost), HL_OK);
    assert_int_equal(found, c);
    audit(r);
    if (lost) { /* its content ended, or the place below returned nothing */
        assert_true(p[0] == UINT64_MAX);
        return;
    }
    touch(r, c, on_host, 0);
    bool home = on_host ? before.on_host && !before.below : before.on_device != 0;
    if (!write || r->version[c] == 0 || home)
        return; /* chunks in their home are written in an access */
    a.write = a.write_known;
    assert_int_equal(hl_chunk_pool_fault(r->pool, &a, &found, &lost), HL_OK);
    touch(r, c, on_host, 1);
}

/* One operation; returns 1 if it failed, and then it is tried once more. */
static int operate(struct rig *r)
{
    uint32_t c = pick(r, CHUNKS);
    if (pick(r, 16) == 0) {
        hl_chunk_pool_end(r->pool, c);
        r->version[c] = 0;
        return 0;
    }
    bool on_host = (int)pick(r, 2), write = (int)pick(r, 2);
    if (pick(r, 4) == 0)
        hl_chunk_pool_moment(r->pool, (1 + pick(r, 3)) * page());
    r->next[c] = pick(r, 100);
    r->next_known = (int)pick(r, 2);
    if (r->faults && pick(r, 3) == 0) {
        fault(r, c, on_host, write);
        return 0;
    }
    if (r->faults && pick(r, 8) == 0)
        hl_chunk_pool_end_views(r->pool);
    hl_status st = use(r, c, on_host, write);
    if (st == HL_OK)
        return 0;
    assert_non_null(strstr(hl_error_text(), "made to fail"));
    r->fake.well = 1;
    assert_int_equal(use(r, c, on_host, write), HL_OK);
    r->fake.well = 0;
    return 1;
}

TEST(whichever_call_fails_contents_and_books_are_right)
{
    for (unsigned round = 0; round < 16; round++) {
        unsigned every = round % 8, failed = 0;
        struct rig r = {.seed = every, .books_max = (every % 3 == 2) * 4 * page()};
        open_rig(&r, 3, 4, every % 2 == 0);
        r.faults = round >= 8;
        if (r.faults)
            assert_int_equal(hl_chunk_pool_serve(r.pool), HL_OK);
        r.fake.every = every == 1 ? 11 : every; /* if every call failed, nothing would work */
        for (int i = 0; i < OPERATIONS / 8; i++)
            failed += (unsigned)operate(&r);
        assert_true(every == 0 ? failed == 0 : failed > OPERATIONS / 1000);
        assert_true(r.fake.puts > OPERATIONS / 1000 && r.fake.gets > OPERATIONS / 1000);
        close_rig(&r);
    }
}

/* ---- the order of uses ---- */

TEST(the_next_use_is_that_of_the_record_around_its_end)
{

    static const struct {
        uint32_t chunk;
        uint64_t moment, next;
    } cases[] = {{0, 0, 0},
                 {0, 1, 2},
                 {0, 3, 0},
                 {0, 4, 1},
                 {1, 0, 1},
                 {1, 1, 0},
                 {1, 2, 4},
                 {1, 4, 2},
                 {2, 0, HL_NEXT_USE_NEVER},
                 {9, 0, HL_NEXT_USE_NEVER}};
    struct hl_trace t = {0};
    struct hl_next_use *n = NULL;
    for (int c = 0; c < 3; c++)
        assert_int_equal(hl_trace_add_chunk(&t, "x", 0, "param", 1, 1), HL_OK);
    for (int m = 0; m < 5; m++) {
        assert_int_equal(hl_trace_add_moment(&t, "", "", 1), HL_OK);
        if (m == 0 || m == 3)
            assert_int_equal(hl_trace_add_need(&t, 0, m == 3, 0), HL_OK);
        if (m == 1)
            assert_int_equal(hl_trace_add_need(&t, 1, 0, 0), HL_OK);
    }
    assert_int_equal(hl_next_use_make(&t, &n), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++)
        assert_int_equal(hl_next_use(n, cases[i].chunk, cases[i].moment), cases[i].next);
    hl_next_use_free(n);
    hl_trace_fini(&t);
}
