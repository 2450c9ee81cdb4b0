/* A node that asks a pool for memory: it gives back what is not in use, and nothing fails or
 * changes because of that. */
#include "support/test.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/chunks/pool.h"

#define CHUNKS     12
#define DEVICE     8 /* pages */
#define OPERATIONS 4000

static uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- a place below ---- */

static bool refuses; /* slowly */
static unsigned refused;

static hl_status keep_below(void *arg, const void *data, uint64_t bytes, uint64_t *handle)
{
    if (refuses) {
        refused += poll(NULL, 0, 2) == 0;
        return hl_fail(HL_EUNAVAIL, "the place below does not answer");
    }
    void *copy = malloc(bytes);
    memcpy(copy, data, bytes);
    ++*(int *)arg;
    *handle = (uint64_t)(uintptr_t)copy;
    return HL_OK;
}

static hl_status get_below(void *arg, uint64_t handle, void *data, uint64_t bytes)
{
    (void)arg;
    memcpy(data, (const void *)(uintptr_t)handle, bytes);
    return HL_OK;
}

static void drop_below(void *arg, uint64_t handle)
{
    --*(int *)arg;
    free((void *)(uintptr_t)handle);
}

static void close_below(void *arg)
{
    (void)arg;
}

static const struct hl_spill_ops below_ops = {"L3", keep_below, get_below, drop_below, close_below};

/* ---- a pool whose memory a node counts ---- */

struct rig {
    struct hl_chunk_pool *pool;
    uint64_t part[2], room[2],
        used[2];              /* pages asked for (0 = none) and bytes, of device and host */
    uint64_t version[CHUNKS]; /* 0 = no content */
    uint64_t seed, last;
    unsigned pins[2][CHUNKS];
    int below;
    unsigned calls, every; /* every k-th copy fails; 0 = none */
};

static hl_status charge(void *arg, bool on_host, int64_t bytes)
{
    struct rig *r = arg;
    if (bytes > 0 && r->room[on_host] > 0 && r->used[on_host] + (uint64_t)bytes > r->room[on_host])
        return hl_fail(HL_ENOSPC, "the node is full");
    r->used[on_host] += (uint64_t)bytes;
    return HL_OK;
}

static uint64_t part(void *arg, bool on_host)
{
    const struct rig *r = arg;
    return r->part[on_host] > 0 ? (r->part[on_host] - 1) * page() : UINT64_MAX;
}

/* Asks the pool to use at most so many pages. */
static void ask(struct rig *r, bool on_host, unsigned pages)
{
    r->part[on_host] = pages + 1;
}

static void lift(struct rig *r)
{
    r->part[0] = r->part[1] = 0;
}

static int fails(void *arg)
{
    struct rig *r = arg;
    return r->every > 0 && ++r->calls % r->every == 0;
}

static void open_rig(struct rig *r, bool copy, bool spills)
{
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(DEVICE * page()));
    struct hl_chunk_pool_options o = {.device = spec,
                                      .copy = copy,
                                      .policy = "lru",
                                      .charge = charge,
                                      .part = part,
                                      .charge_arg = r,
                                      .spill = spills ? &below_ops : NULL,
                                      .spill_arg = &r->below,
                                      .fail = fails,
                                      .fail_arg = r};
    assert_int_equal(hl_chunk_pool_open(&o, &r->pool), HL_OK);
    for (unsigned i = 0; i < CHUNKS; i++) {
        uint32_t c;
        assert_int_equal(hl_chunk_pool_add(r->pool, HYBRIDPS_PARAM, page(), 0, &c), HL_OK);
    }
}

static struct hl_chunk_pool_stats stats(struct rig *r)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r->pool, &s);
    return s;
}

static void audit(struct rig *r)
{
    if (hl_chunk_pool_audit(r->pool) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(stats(r).device, r->used[0]);
    assert_int_equal(stats(r).host, r->used[1]);
}

static struct hl_chunk_info info(struct rig *r, uint32_t c)
{
    struct hl_chunk_info i;
    hl_chunk_pool_info(r->pool, c, &i);
    return i;
}

static void close_rig(struct rig *r)
{
    for (uint32_t c = 0; c < CHUNKS; c++)
        if (info(r, c).below)
            hl_chunk_pool_end(r->pool, c);
    assert_int_equal(r->below, 0);
    hl_chunk_pool_close(r->pool);
}

static void touch(struct rig *r, uint32_t c, bool on_host, bool write)
{
    uint64_t *p = on_host ? info(r, c).host : (uint64_t *)(uintptr_t)info(r, c).address;
    uint64_t want = r->version[c] << 8 | c, last = page() / 8 - 1;
    if (r->version[c] != 0 && (p[0] != want || p[last] != want))
        fail_msg("chunk %u has %llx, not %llx", c, (unsigned long long)p[0],
                 (unsigned long long)want);
    if (write || r->version[c] == 0) {
        r->version[c] = ++r->last;
        p[0] = p[last] = r->version[c] << 8 | c;
    }
}

static hl_status pin(struct rig *r, uint32_t c, bool on_host, bool write)
{
    struct hl_trace_use u = {.chunk = c, .on_host = on_host, .write = write};
    hl_status st = hl_chunk_pool_access(r->pool, &u, 1);
    audit(r);
    if (st != HL_OK)
        return st;
    touch(r, c, on_host, write);
    r->pins[on_host][c]++;
    return HL_OK;
}

static void unpin(struct rig *r, uint32_t c, bool on_host)
{
    r->pins[on_host][c]--;
    hl_chunk_pool_release(r->pool, c, on_host);
}

static void use(struct rig *r, uint32_t c, bool on_host, bool write)
{
    if (pin(r, c, on_host, write) != HL_OK)
        fail_msg("chunk %u: %s", c, hl_error_text());
    unpin(r, c, on_host);
}

static void moment(struct rig *r, uint64_t pages)
{
    hl_chunk_pool_moment(r->pool, pages * page());
    assert_int_equal(hl_chunk_pool_access(r->pool, NULL, 0), HL_OK);
    audit(r);
}

/* ---- the device ---- */

TEST(the_device_gives_back_by_rank_and_does_not_grow_until_the_request_is_lifted)
{
    for (int copy = 0; copy < 2; copy++) {
        struct rig r = {0};
        open_rig(&r, copy, false);
        for (uint32_t c = 0; c < DEVICE; c++)
            use(&r, c, false, true);
        ask(&r, false, 3);
        moment(&r, DEVICE);
        for (uint32_t c = 0; c < DEVICE; c++) /* the least recently used left */
            assert_int_equal(info(&r, c).on_device, c >= DEVICE - 3);
        assert_int_equal(stats(&r).given_back, (DEVICE - 3) * page());
        assert_int_equal(stats(&r).avail, DEVICE * page());
        for (uint32_t c = 0; c < CHUNKS; c++) {
            use(&r, c, false, c % 2);
            assert_true(stats(&r).device <= 3 * page());
        }
        assert_int_equal(stats(&r).given_back, (DEVICE - 3) * page());
        lift(&r);
        for (uint32_t c = 0; c < CHUNKS; c++)
            use(&r, c, false, false);
        assert_int_equal(stats(&r).device, DEVICE * page());
        close_rig(&r);
    }
}

TEST(what_is_in_use_or_needed_in_this_moment_stays)
{
    struct rig r = {0};
    struct hl_trace_use next[] = {{.chunk = 0}, {.chunk = 1}};
    open_rig(&r, true, false);
    for (uint32_t c = 0; c < 5; c++)
        use(&r, c, false, true);
    assert_int_equal(pin(&r, 2, false, true), HL_OK);
    ask(&r, false, 0);
    hl_chunk_pool_expect(r.pool, next, 2);
    moment(&r, DEVICE);
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(info(&r, c).on_device, c <= 2);
    hl_chunk_pool_give_back(r.pool); /* the iteration is over */
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(info(&r, c).on_device, c == 2);
    unpin(&r, 2, false);
    hl_chunk_pool_give_back(r.pool);
    assert_int_equal(stats(&r).device, 0);
    assert_int_equal(stats(&r).given_back, 5 * page());
    close_rig(&r);
}

TEST(an_access_that_needs_more_than_is_asked_gets_it)
{
    struct rig r = {0};
    struct hl_trace_use u[DEVICE];
    open_rig(&r, false, false);
    ask(&r, false, 1);
    for (uint32_t c = 0; c < DEVICE; c++)
        u[c] = (struct hl_trace_use){.chunk = c, .write = 1};
    assert_int_equal(hl_chunk_pool_access(r.pool, u, DEVICE), HL_OK);
    assert_int_equal(stats(&r).device, DEVICE * page());
    moment(&r, DEVICE);
    hl_chunk_pool_give_back(r.pool);
    assert_int_equal(stats(&r).device, DEVICE * page()); /* all of it is pinned */
    assert_int_equal(pin(&r, CHUNKS - 1, false, true), HL_ENOSPC);
    for (uint32_t c = 0; c < DEVICE; c++)
        hl_chunk_pool_release(r.pool, c, false);
    use(&r, CHUNKS - 1, false, true);
    assert_int_equal(stats(&r).device, page());
    close_rig(&r);
}

TEST(a_host_without_room_for_what_would_leave_fails_nothing)
{
    struct rig r = {0};
    open_rig(&r, false, false);
    r.room[1] = 2 * page();
    for (uint32_t c = 0; c < DEVICE; c++)
        use(&r, c, false, true);
    ask(&r, false, 2);
    moment(&r, DEVICE);
    use(&r, 3, false, true);
    hl_chunk_pool_give_back(r.pool);
    assert_int_equal(stats(&r).device, DEVICE * page());
    assert_false(stats(&r).host_short);
    r.room[1] = 0;
    while (stats(&r).device > 2 * page()) /* there is a pause first */
        hl_chunk_pool_give_back(r.pool);
    for (uint32_t c = 0; c < DEVICE; c++)
        use(&r, c, false, false);
    close_rig(&r);
}

TEST(what_is_fetched_ahead_stays_within_the_request)
{
    struct rig r = {0};
    struct hl_trace_use next[] = {{.chunk = 2}, {.chunk = 3}};
    open_rig(&r, true, false);
    for (uint32_t c = 0; c < 4; c++)
        use(&r, c, true, true);
    ask(&r, false, 3);
    use(&r, 0, false, true); /* it is counted until it is copied out */
    assert_int_equal(pin(&r, 1, false, false), HL_OK);
    hl_chunk_pool_ahead(r.pool, next, 2, DEVICE * page(), 2);
    hl_chunk_pool_settle_ahead(r.pool);
    audit(&r);
    assert_false(info(&r, 0).on_device);
    assert_true(info(&r, 2).on_device);
    assert_int_equal(stats(&r).device_peak, 3 * page());
    ask(&r, false, 1);
    hl_chunk_pool_ahead(r.pool, next, 2, DEVICE * page(), 2);
    hl_chunk_pool_settle_ahead(r.pool);
    assert_false(info(&r, 3).on_device);
    unpin(&r, 1, false);
    close_rig(&r);
}

/* ---- the host ---- */

TEST(the_host_gives_back_content_only_to_a_place_below)
{
    for (int spills = 0; spills < 2; spills++) {
        struct rig r = {0};
        open_rig(&r, true, spills);
        for (uint32_t c = 0; c < 8; c++)
            use(&r, c, true, true);
        use(&r, 0, false, true); /* its host memory is stale now */
        ask(&r, true, 2);
        moment(&r, DEVICE);
        assert_int_equal(stats(&r).host, (spills ? 2 : 7) * page());
        assert_int_equal(stats(&r).given_back, (spills ? 6 : 1) * page());
        assert_int_equal(r.below, spills ? 5 : 0);
        for (uint32_t c = 0; c < 8; c++) {
            use(&r, c, true, c % 2);
            assert_true(!spills || stats(&r).host <= 2 * page());
        }
        lift(&r);
        for (uint32_t c = 0; c < 8; c++)
            use(&r, c, true, false);
        assert_int_equal(stats(&r).host, 8 * page());
        close_rig(&r);
    }
}

TEST(what_the_moment_needs_and_what_is_pinned_stays_on_the_host)
{
    struct rig r = {0};
    struct hl_trace_use next[] = {{.chunk = 0, .on_host = 1}, {.chunk = 1}};
    open_rig(&r, true, true);
    for (uint32_t c = 0; c < 6; c++)
        use(&r, c, true, true);
    assert_int_equal(pin(&r, 2, true, true), HL_OK);
    ask(&r, true, 0);
    hl_chunk_pool_expect(r.pool, next, 2);
    moment(&r, DEVICE);
    for (uint32_t c = 0; c < 6; c++)
        assert_int_equal(info(&r, c).below, c > 2);
    unpin(&r, 2, true);
    close_rig(&r);
}

/* A daemon that does not answer must not hold up each access. */
TEST(a_slow_place_below_is_not_tried_again_at_once)
{
    struct rig r = {0};
    open_rig(&r, true, true);
    for (uint32_t c = 0; c < 8; c++)
        use(&r, c, true, true);
    ask(&r, true, 2);
    refuses = true;
    for (int i = 0; i < 400; i++)
        use(&r, (uint32_t)i % 8, true, false);
    refuses = false;
    assert_true(refused > 0 && refused < 100);
    while (stats(&r).host > 2 * page())
        moment(&r, DEVICE);
    assert_int_equal(r.below, 6);
    close_rig(&r);
}

/* Kept memory belongs to others, whatever is asked for then. */
TEST(kept_memory_is_not_given_back)
{
    struct rig r = {0};
    struct hl_chunk_kept kept[4];
    open_rig(&r, true, true);
    assert_int_equal(hl_chunk_pool_serve(r.pool), HL_OK);
    for (uint32_t c = 0; c < 4; c++)
        use(&r, c, true, true);
    ask(&r, true, 0);
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(hl_chunk_pool_keep(r.pool, c, true, &kept[c]), HL_OK);
    hl_chunk_pool_close(r.pool);
    for (uint32_t c = 0; c < 4; c++) {
        assert_int_equal(*(uint64_t *)kept[c].address, r.version[c] << 8 | c);
        hybridps_kept_free(kept[c].address, kept[c].bytes);
    }
}

/* ---- any course ---- */

static unsigned pick(struct rig *r, unsigned below)
{
    r->seed = r->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(r->seed >> 33) % below;
}

static void change_request(struct rig *r)
{
    bool on_host = pick(r, 2);
    if (pick(r, 3) == 0)
        lift(r);
    else
        ask(r, on_host, pick(r, on_host ? CHUNKS : DEVICE));
}

/* What the model of the pool says about an access: nothing but pins and the device's size decide.
 */
static bool may_pin(const struct rig *r, uint32_t c, bool on_host)
{
    unsigned pinned = 0;
    for (uint32_t i = 0; i < CHUNKS; i++)
        pinned += i != c && r->pins[0][i] > 0;
    return r->pins[!on_host][c] == 0 && (on_host || pinned < DEVICE);
}

static void operate(struct rig *r)
{
    uint32_t c = pick(r, CHUNKS);
    bool on_host = pick(r, 3) == 0, write = pick(r, 2);
    unsigned what = pick(r, 10);
    if (what == 0)
        change_request(r);
    else if (what == 1)
        moment(r, DEVICE);
    else if (what == 2)
        hl_chunk_pool_give_back(r->pool);
    else if (what < 7 && r->pins[on_host][c] > 0)
        unpin(r, c, on_host);
    else if (may_pin(r, c, on_host) && pin(r, c, on_host, write) != HL_OK)
        fail_msg("chunk %u, asked %d and %d: %s", c, (int)r->part[0] - 1, (int)r->part[1] - 1,
                 hl_error_text());
}

/* The same course with and without requests: the same calls succeed, with the same contents. */
TEST(requests_change_no_content_and_no_result)
{
    for (unsigned k = 0; k < 8; k++) {
        struct rig r = {.seed = k};
        open_rig(&r, k % 2, k & 2);
        if (k & 4)
            assert_int_equal(hl_chunk_pool_serve(r.pool), HL_OK);
        for (int i = 0; i < OPERATIONS; i++)
            operate(&r);
        assert_true(stats(&r).given_back > OPERATIONS / 200 * page());
        close_rig(&r);
    }
}

/* A copy that is made only because of a request may fail without an effect. */
TEST(a_copy_that_fails_for_a_request_fails_no_access)
{
    struct rig r = {0};
    open_rig(&r, true, false);
    for (uint32_t c = 0; c < DEVICE; c++)
        use(&r, c, false, true);
    ask(&r, false, 1);
    r.every = 1;
    moment(&r, DEVICE);
    use(&r, 4, false, true);
    assert_int_equal(stats(&r).device, DEVICE * page());
    r.every = 0;
    while (stats(&r).device > page())
        moment(&r, DEVICE);
    for (uint32_t c = 0; c < DEVICE; c++)
        use(&r, c, false, false);
    close_rig(&r);
}
