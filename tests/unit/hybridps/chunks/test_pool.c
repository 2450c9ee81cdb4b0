#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/chunks/pool.h"
#include "hybridps/plan/plan.h"

#define CHUNKS 24
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPERATIONS 60000
#else
#define OPERATIONS 1000000
#endif

static uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Fails the k-th call; 0 = never. */
struct fault {
    unsigned calls, fail_at;
};

static int fails(void *arg)
{
    struct fault *f = arg;
    return ++f->calls == f->fail_at;
}

struct rig {
    struct hl_chunk_pool *pool;
    struct fault fault;
    uint64_t version[CHUNKS]; /* 0 = no content */
    unsigned pages[CHUNKS];
    unsigned device_pins[CHUNKS], host_pins[CHUNKS];
    int device_writes[CHUNKS], host_writes[CHUNKS];
    uint64_t seed, avail, last;
    int copy;
};

static unsigned pick(struct rig *r, unsigned below)
{
    r->seed = r->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(r->seed >> 33) % below;
}

static void open_rig(struct rig *r, unsigned pages, int copy, const char *policy, unsigned sizes)
{
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(pages * page()));
    struct hl_chunk_pool_options o = {
        .device = spec, .copy = copy, .policy = policy, .fail = fails, .fail_arg = &r->fault};
    assert_int_equal(hl_chunk_pool_open(&o, &r->pool), HL_OK);
    r->copy = copy;
    r->avail = pages * page();
    for (unsigned i = 0; i < CHUNKS; i++) {
        uint32_t c;
        r->pages[i] = 1 + i % sizes;
        assert_int_equal(
            hl_chunk_pool_add(r->pool, (int)i % HYBRIDPS_KINDS, r->pages[i] * page(), 0, &c),
            HL_OK);
        assert_int_equal(c, i);
    }
}

static void audit(struct rig *r)
{
    if (hl_chunk_pool_audit(r->pool) != HL_OK)
        fail_msg("%s", hl_error_text());
}

/* ---- contents ---- */

static uint64_t *at(struct rig *r, uint32_t c, bool on_host)
{
    struct hl_chunk_info info;
    hl_chunk_pool_info(r->pool, c, &info);
    return on_host ? info.host : (uint64_t *)(uintptr_t)info.address;
}

static void write_content(struct rig *r, uint32_t c, bool on_host)
{
    uint64_t *p = at(r, c, on_host), words = r->pages[c] * page() / 8;
    r->version[c] = ++r->last;
    p[0] = p[words / 2] = p[words - 1] = r->version[c] << 8 | c;
}

static void check_content(struct rig *r, uint32_t c, bool on_host)
{
    uint64_t *p = at(r, c, on_host), words = r->pages[c] * page() / 8;
    uint64_t want = r->version[c] << 8 | c;
    if (p[0] != want || p[words / 2] != want || p[words - 1] != want)
        fail_msg("chunk %u on the %s has %llx, not %llx", c, on_host ? "host" : "device",
                 (unsigned long long)p[0], (unsigned long long)want);
}

/* Fills a chunk without content; then compares it, and writes it if asked. */
static void use_content(struct rig *r, const struct hl_trace_use *u)
{
    if (r->version[u->chunk] == 0)
        write_content(r, u->chunk, u->on_host);
    check_content(r, u->chunk, u->on_host);
    if (u->write)
        write_content(r, u->chunk, u->on_host);
}

/* ---- an iteration in which every copy fails once ---- */

static hl_status step(struct rig *r, uint32_t c, bool on_host, int write)
{
    struct hl_trace_use u = {.chunk = c, .on_host = on_host != 0, .write = write != 0};
    hl_status st = hl_chunk_pool_access(r->pool, &u, 1);
    audit(r);
    if (st != HL_OK)
        return st;
    use_content(r, &u);
    hl_chunk_pool_release(r->pool, c, on_host);
    return HL_OK;
}

/* A failed access is tried once more; returns how many failed. */
static unsigned iteration(struct rig *r)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < 3 * CHUNKS; i++) {
        unsigned pass = i / CHUNKS, k = i % CHUNKS;
        uint32_t c = pass == 1 ? CHUNKS - 1 - k : k;
        hl_chunk_pool_moment(r->pool, r->avail - (pass == 1 ? k % 3 : 0) * page());
        if (step(r, c, pass == 2, pass > 0) == HL_OK)
            continue;
        failed++;
        assert_non_null(strstr(hl_error_text(), "made to fail"));
        assert_int_equal(step(r, c, pass == 2, pass > 0), HL_OK);
    }
    return failed;
}

TEST(test_whichever_copy_fails_all_is_well_and_the_next_access_succeeds)
{
    for (int copy = 0; copy < 2; copy++) {
        unsigned calls = 0, failures = 0;
        for (unsigned k = 0; k == 0 || k <= calls; k++) {
            struct rig r = {.seed = 1};
            open_rig(&r, 8, copy, "lru", 3);
            assert_int_equal(iteration(&r), 0); /* all chunks get content */
            r.fault = (struct fault){.fail_at = k};
            failures += iteration(&r);
            calls = k == 0 ? r.fault.calls : calls;
            r.fault.fail_at = 0;
            assert_int_equal(iteration(&r), 0);
            hl_chunk_pool_close(r.pool);
        }
        assert_true(calls > CHUNKS);
        assert_int_equal(failures, calls);
    }
}

/* ---- random operations ---- */

/* The expected result of an access, by the rules alone. */
static hl_status foresee(const struct rig *r, const struct hl_trace_use *uses, unsigned n)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < CHUNKS; c++) {
        int device = 0, host = 0, write = 0;
        for (unsigned i = 0; i < n; i++)
            if (uses[i].chunk == c) {
                device |= !uses[i].on_host;
                host |= uses[i].on_host;
                write |= uses[i].write;
            }
        if (device && host && (!r->copy || write))
            return HL_EINVAL;
        bytes += device || r->device_pins[c] > 0 ? r->pages[c] * page() : 0;
    }
    for (unsigned i = 0; i < n; i++) {
        uint32_t c = uses[i].chunk;
        int other = uses[i].on_host ? r->device_pins[c] > 0 : r->host_pins[c] > 0;
        int writes = uses[i].on_host ? r->device_writes[c] : r->host_writes[c];
        for (unsigned k = 0; k < n; k++)
            writes |= uses[k].chunk == c && uses[k].write;
        if (other && (!r->copy || writes))
            return HL_EBUSY;
    }
    return bytes > r->avail ? HL_ENOSPC : HL_OK;
}

static void random_access(struct rig *r)
{
    struct hl_trace_use uses[4];
    unsigned n = 1 + pick(r, 10) / 8 * (1 + pick(r, 3));
    for (unsigned i = 0; i < n; i++)
        uses[i] = (struct hl_trace_use){
            .chunk = pick(r, CHUNKS), .on_host = pick(r, 3) == 0, .write = pick(r, 3) == 0};
    hl_status want = foresee(r, uses, n), got = hl_chunk_pool_access(r->pool, uses, n);
    /* If there are two reasons, either can be named. */
    if ((want == HL_OK) != (got == HL_OK) || (want == HL_ENOSPC && got != HL_ENOSPC))
        fail_msg("expected %s, got %s: %s", hl_status_name(want), hl_status_name(got),
                 hl_error_text());
    for (unsigned i = 0; i < n && got == HL_OK; i++) {
        uint32_t c = uses[i].chunk;
        int conflict = 0;
        for (unsigned k = 0; k < n; k++) /* read in both places: no write of new content */
            conflict |= uses[k].chunk == c && uses[k].on_host != uses[i].on_host;
        if (r->version[c] == 0 && conflict) {
            write_content(r, c, 1);
            memcpy(at(r, c, 0), at(r, c, 1), r->pages[c] * page());
        }
        use_content(r, &uses[i]);
        *(uses[i].on_host ? &r->host_pins[c] : &r->device_pins[c]) += 1;
        *(uses[i].on_host ? &r->host_writes[c] : &r->device_writes[c]) |= uses[i].write;
    }
}

static void random_release(struct rig *r)
{
    uint32_t c = pick(r, CHUNKS);
    for (unsigned i = 0; i < CHUNKS; i++, c = (c + 1) % CHUNKS) {
        bool on_host = r->host_pins[c] > 0;
        if (r->device_pins[c] + r->host_pins[c] == 0)
            continue;
        unsigned *pins = on_host ? &r->host_pins[c] : &r->device_pins[c];
        check_content(r, c, on_host);
        hl_chunk_pool_release(r->pool, c, on_host);
        if (--*pins == 0)
            *(on_host ? &r->host_writes[c] : &r->device_writes[c]) = 0;
        return;
    }
}

static void random_moment(struct rig *r, unsigned pages)
{
    uint64_t pinned = 0, old = r->avail;
    for (uint32_t c = 0; c < CHUNKS; c++)
        pinned += r->device_pins[c] > 0 ? r->pages[c] * page() : 0;
    r->avail = (pages - pick(r, pages) * (pick(r, 4) == 0)) * page();
    hl_chunk_pool_moment(r->pool, r->avail);
    hl_status st = hl_chunk_pool_access(r->pool, NULL, 0);
    assert_int_equal(st, pinned > r->avail ? HL_ENOSPC : HL_OK);
    if (st != HL_OK) {
        r->avail = old;
        hl_chunk_pool_moment(r->pool, old);
    }
}

static void random_operation(struct rig *r, unsigned pages)
{
    unsigned what = pick(r, 100);
    uint32_t c = pick(r, CHUNKS);
    if (what < 45)
        random_access(r);
    else if (what < 94)
        random_release(r);
    else if (what < 98)
        random_moment(r, pages);
    else if (r->device_pins[c] + r->host_pins[c] == 0) {
        hl_chunk_pool_end(r->pool, c);
        r->version[c] = 0;
    }
}

TEST(test_random_operations_keep_contents_and_books)
{
    static const char *const policies[] = {"lru", "random", "heat", "fifo"};
    for (unsigned i = 0; i < 4; i++) {
        struct rig r = {.seed = 100 + i};
        struct hl_chunk_pool_stats s;
        open_rig(&r, 36, i % 2, policies[i], 3);
        for (unsigned k = 0; k < OPERATIONS / 4; k++) {
            random_operation(&r, 36);
            if (k % 64 == 0)
                audit(&r);
        }
        hl_chunk_pool_stats(r.pool, &s);
        assert_true(s.total.loads > OPERATIONS / 400 && s.total.evictions > OPERATIONS / 400);
        hl_chunk_pool_close(r.pool);
    }
}

/* ---- other threads ---- */

struct looker {
    struct rig *rig;
    int pipe[2];
    unsigned looks, wrong;
};

/* Acts as a thread that has long had the address: whatever it can read there at once is the
 * content. */
static void look(struct looker *l, uint32_t c, bool on_host)
{
    struct rig *r = l->rig;
    uint64_t word = 0;
    if (write(l->pipe[1], at(r, c, on_host), sizeof(word)) != sizeof(word))
        return; /* it would fault, and wait */
    assert_int_equal(read(l->pipe[0], &word, sizeof(word)), sizeof(word));
    l->looks++;
    l->wrong += word != (r->version[c] << 8 | c);
}

static int look_at_all(void *arg)
{
    struct looker *l = arg;
    for (uint32_t c = 0; c < CHUNKS && l->rig->pool != NULL; c++)
        if (l->rig->version[c] != 0) {
            look(l, c, false);
            look(l, c, true);
        }
    return 0;
}

static void use_beside(struct looker *l, int copy)
{
    struct rig r = {.seed = 5, .copy = copy, .avail = 4 * page()};
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)r.avail);
    struct hl_chunk_pool_options o = {
        .device = spec, .copy = copy, .policy = "lru", .fail = look_at_all, .fail_arg = l};
    l->rig = &r;
    assert_int_equal(hl_chunk_pool_open(&o, &r.pool), HL_OK);
    assert_int_equal(hl_chunk_pool_serve(r.pool), HL_OK);
    for (uint32_t i = 0, c; i < CHUNKS; i++) {
        r.pages[i] = 1;
        assert_int_equal(hl_chunk_pool_add(r.pool, 0, page(), 0, &c), HL_OK);
    }
    for (unsigned n = 0; n < 2000; n++) {
        hl_chunk_pool_moment(r.pool, r.avail);
        assert_int_equal(step(&r, pick(&r, CHUNKS), pick(&r, 4) == 0, pick(&r, 2) == 0), HL_OK);
    }
    hl_chunk_pool_close(r.pool);
}

TEST(test_whoever_reads_while_chunks_move_finds_the_content_or_waits)
{
    struct looker l = {0};
    assert_int_equal(pipe(l.pipe), 0);
    for (int copy = 0; copy < 2; copy++)
        use_beside(&l, copy);
    close(l.pipe[0]);
    close(l.pipe[1]);
    assert_true(l.looks > 1000);
    assert_int_equal(l.wrong, 0);
}

TEST(test_a_chunk_finds_room_in_pieces)
{
    struct rig r = {.seed = 1};
    open_rig(&r, 4, 1, "lru", 3); /* pages: 1 2 3 1 2 3 ... */
    for (uint32_t c = 0; c < 12; c += 3)
        assert_int_equal(step(&r, c, 0, 1), HL_OK); /* four single pages fill it */
    hl_chunk_pool_end(r.pool, 0);
    hl_chunk_pool_end(r.pool, 6); /* every other one is free now */
    assert_int_equal(step(&r, 1, 0, 1), HL_OK);
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r.pool, &s);
    assert_int_equal(s.total.evictions, 0);
    assert_int_equal(step(&r, 2, 0, 1), HL_OK); /* and all others leave for this one */
    assert_int_equal(step(&r, 1, 0, 0), HL_OK);
    assert_int_equal(step(&r, 3, 0, 0), HL_OK);
    hl_chunk_pool_close(r.pool);
}

/* Any placement, whichever copy fails on the way; chunks without content are not moved. */
TEST(test_chunks_go_where_they_are_placed_and_keep_their_content)
{
    for (int copy = 0; copy < 2; copy++) {
        struct rig r = {.seed = 5};
        unsigned failed = 0;
        open_rig(&r, 20, copy, "lru", 3);
        for (uint32_t c = 1; c < CHUNKS; c++)
            assert_int_equal(step(&r, c, 1, 1), HL_OK);
        for (int k = 0; k < 400; k++) {
            uint8_t places[CHUNKS] = {0};
            unsigned pages = 0;
            for (uint32_t c = 0; c < CHUNKS; c++) {
                int there = pages + r.pages[c] <= 20 && pick(&r, 2);
                pages += there ? r.pages[c] : 0;
                places[c] = there
                                ? HL_CHUNK_ON_DEVICE | (copy && pick(&r, 2) ? HL_CHUNK_ON_HOST : 0)
                                : HL_CHUNK_ON_HOST;
            }
            r.fault = (struct fault){.fail_at = k % 5};
            hl_status st = hl_chunk_pool_place(r.pool, places, CHUNKS);
            r.fault.fail_at = 0;
            failed += st != HL_OK;
            audit(&r);
            for (uint32_t c = 1; c < CHUNKS && st == HL_OK; c++) {
                struct hl_chunk_info info;
                hl_chunk_pool_info(r.pool, c, &info);
                assert_int_equal(info.on_device, (places[c] & HL_CHUNK_ON_DEVICE) != 0);
                assert_int_equal(info.on_host, (places[c] & HL_CHUNK_ON_HOST) != 0);
            }
            assert_int_equal(step(&r, 1 + pick(&r, CHUNKS - 1), pick(&r, 2), pick(&r, 2)), HL_OK);
        }
        struct hl_trace_use held = {.chunk = 2};
        uint8_t nowhere[CHUNKS] = {0}, everywhere[CHUNKS];
        memset(everywhere, HL_CHUNK_ON_DEVICE, sizeof(everywhere));
        assert_int_equal(hl_chunk_pool_place(r.pool, everywhere, CHUNKS), HL_ENOSPC);
        assert_int_equal(hl_chunk_pool_access(r.pool, &held, 1), HL_OK);
        assert_int_equal(hl_chunk_pool_place(r.pool, nowhere, CHUNKS), HL_EBUSY);
        hl_chunk_pool_release(r.pool, 2, 0);
        for (uint32_t c = 0; c < CHUNKS; c++)
            assert_int_equal(step(&r, c, 1, 0), HL_OK); /* and everything is as last written */
        assert_true(failed > 20);
        hl_chunk_pool_close(r.pool);
    }
}

TEST(test_what_comes_next_is_fetched_while_another_is_used)
{
    for (int copy = 0; copy < 2; copy++) {
        struct rig r = {.seed = 1};
        struct hl_chunk_pool_stats s;
        struct hl_chunk_info info;
        struct hl_trace_use first = {.chunk = 0}, next = {.chunk = 1}, third = {.chunk = 2};
        open_rig(&r, 2, copy, "lru", 1);
        for (uint32_t c = 0; c < 3; c++)
            assert_int_equal(step(&r, c, 1, 1), HL_OK);
        assert_int_equal(hl_chunk_pool_access(r.pool, &first, 1), HL_OK);
        hl_chunk_pool_ahead(r.pool, &next, 1, 2 * page(), 2); /* there is room */
        audit(&r);
        hl_chunk_pool_info(r.pool, 1, &info);
        assert_false(info.on_device); /* not before it is needed */
        hl_chunk_pool_release(r.pool, 0, 0);
        hl_chunk_pool_moment(r.pool, 2 * page());
        assert_int_equal(hl_chunk_pool_access(r.pool, NULL, 0), HL_OK);
        hl_chunk_pool_info(r.pool, 1, &info);
        assert_true(info.on_device);
        hl_chunk_pool_stats(r.pool, &s);
        assert_int_equal(s.total.h2d, 2 * page());
        assert_int_equal(step(&r, 1, 0, 1), HL_OK);
        assert_int_equal(hl_chunk_pool_access(r.pool, &next, 1), HL_OK);
        hl_chunk_pool_ahead(r.pool, &third, 1, 2 * page(), 2); /* chunk 0 leaves for it */
        hl_chunk_pool_release(r.pool, 1, 0);
        assert_int_equal(hl_chunk_pool_access(r.pool, NULL, 0), HL_OK);
        hl_chunk_pool_info(r.pool, 0, &info);
        assert_false(info.on_device);
        hl_chunk_pool_info(r.pool, 2, &info);
        assert_int_equal(info.on_device, copy); /* in mode move it had to be written back */
        for (uint32_t c = 0; c < 3; c++)
            assert_int_equal(step(&r, c, 0, 0), HL_OK);
        hl_chunk_pool_end(r.pool, 0);
        hl_chunk_pool_close(r.pool);
    }
}

TEST(test_a_fetch_that_fails_is_done_again_by_the_access)
{
    for (unsigned k = 1; k <= 2; k++) {
        struct rig r = {.seed = 1};
        struct hl_trace_use next = {.chunk = 1};
        open_rig(&r, 2, 1, "lru", 1);
        assert_int_equal(step(&r, 1, 1, 1), HL_OK);
        r.fault = (struct fault){.fail_at = k}; /* to begin, to end */
        hl_chunk_pool_ahead(r.pool, &next, 1, 2 * page(), 1);
        audit(&r);
        assert_int_equal(step(&r, 1, 0, 0), HL_OK);
        assert_true(r.fault.calls > k);
        hl_chunk_pool_close(r.pool);
    }
}

TEST(test_the_hosts_limit_is_kept)
{
    struct hl_chunk_pool *p = NULL;
    uint32_t c[3];
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)page());
    struct hl_chunk_pool_options o = {.device = spec, .policy = "lru", .host_bytes = page()};
    assert_int_equal(hl_chunk_pool_open(&o, &p), HL_OK);
    for (int i = 0; i < 3; i++) {
        struct hl_trace_use u = {.write = 1};
        assert_int_equal(hl_chunk_pool_add(p, 0, page(), 0, &c[i]), HL_OK);
        u.chunk = c[i];
        hl_status st = hl_chunk_pool_access(p, &u, 1);
        if (i < 2) { /* one on the device, one on the host */
            assert_int_equal(st, HL_OK);
            hl_chunk_pool_release(p, c[i], 0);
        } else {
            assert_int_equal(st, HL_ENOSPC);
            assert_non_null(strstr(hl_error_text(), "on the host"));
        }
    }
    assert_int_equal(hl_chunk_pool_audit(p), HL_OK);
    hl_chunk_pool_close(p);
}
