/* Calls in any order on several clients, compared with a model written from the header alone. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/client/client_private.h"
#include "hybridps/client/replay.h"

#define PAGES   12
#define TENSORS 48
#define CLIENTS 3
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 150
#else
#define ROUNDS 1200
#endif

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            fail_msg("%s: %s", #call, hl_error_text());                                            \
    } while (0)

struct tensor {
    uint32_t id, chunk;
    uint64_t bytes;
    unsigned pins; /* accesses not released */
    int where, state;
    uint64_t value; /* 0 = no content */
};

struct client {
    hybridps *h;
    int copy;
    struct tensor t[TENSORS];
    unsigned count, placed;
    uint8_t written[TENSORS]; /* of a chunk, since it came into use */
    uint64_t avail, last;
    unsigned planned; /* courses that began with a plan */
};

static uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned pick(uint64_t *seed, unsigned below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*seed >> 33) % below;
}

static void open_client(struct client *c, unsigned i)
{
    static const char *const policies[] = {"opt", "opt", "lru", "heat"};
    char spec[32];
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(PAGES * page()));
    *c = (struct client){.copy = i % 2, .avail = PAGES * page()};
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT,     .device = spec,
                          .policy = policies[i % 4], .mode = c->copy ? "copy" : "move",
                          .chunk_bytes = page(),     .prefetch = (int)(i % 3)};
    OK(hybridps_open(&o, &c->h));
}

static void audit(struct client *c)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    if (hl_chunk_pool_audit(c->h->pool) != HL_OK)
        fail_msg("%s", hl_error_text());
    OK(hybridps_stats(c->h, &s));
    assert_int_equal(s.peak_over_avail, 0);
    assert_int_equal(s.avail, c->avail);
    assert_int_equal(s.tensors, c->count);
}

/* ---- the expected result of a call ---- */

static uint64_t chunk_bytes(const struct client *c, uint32_t chunk)
{
    return c->h->tensors.chunks[chunk].bytes;
}

/* Bytes of chunks that are in use on the device, or will be. */
static uint64_t in_use(const struct client *c, const hybridps_use *uses, unsigned n)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < c->h->tensors.chunk_count; k++) {
        int used = 0;
        for (unsigned i = 0; i < c->placed; i++)
            used |= c->t[i].chunk == k && c->t[i].pins > 0 && c->t[i].where == HYBRIDPS_DEVICE;
        for (unsigned i = 0; i < n; i++)
            used |= c->t[uses[i].tensor].chunk == k && uses[i].where == HYBRIDPS_DEVICE;
        bytes += used ? chunk_bytes(c, k) : 0;
    }
    return bytes;
}

/* Whether chunk k is used in both places, now or by the call, in a forbidden way. */
static int clashes(const struct client *c, uint32_t k, const hybridps_use *uses, unsigned n)
{
    int where[2] = {0}, write = c->written[k];
    for (unsigned i = 0; i < c->placed; i++)
        if (c->t[i].chunk == k && c->t[i].pins > 0)
            where[c->t[i].where] = 1;
    for (unsigned i = 0; i < n; i++)
        if (c->t[uses[i].tensor].chunk == k) {
            where[uses[i].where] = 1;
            write |= uses[i].write;
        }
    return where[0] && where[1] && (!c->copy || write);
}

static int may_access(const struct client *c, const hybridps_use *uses, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const struct tensor *t = &c->t[uses[i].tensor];
        if (uses[i].tensor >= c->placed || (t->pins > 0 && t->where != uses[i].where))
            return 0;
        for (unsigned k = 0; k < i; k++)
            if (uses[k].tensor == uses[i].tensor && uses[k].where != uses[i].where)
                return 0;
        if (clashes(c, t->chunk, uses, n))
            return 0;
    }
    return in_use(c, uses, n) <= c->avail;
}

/* ---- the calls ---- */

static void some_tensors(struct client *c, uint64_t *seed)
{
    unsigned n = 1 + pick(seed, 4);
    for (unsigned i = 0; i < n && c->count < TENSORS; i++) {
        struct tensor *t = &c->t[c->count];
        *t = (struct tensor){.bytes = page() / 4 * (1 + pick(seed, 6))};
        OK(hybridps_add(c->h, "t", (int)pick(seed, HYBRIDPS_KINDS), t->bytes, &t->id));
        assert_int_equal(t->id, c->count++);
    }
}

static void layout(struct client *c)
{
    OK(hybridps_layout(c->h));
    for (; c->placed < c->count; c->placed++) {
        hybridps_tensor_info info = {HYBRIDPS_TENSOR_INFO_INIT};
        OK(hybridps_tensor(c->h, c->placed, &info));
        c->t[c->placed].chunk = info.chunk;
    }
}

static void check(const struct tensor *t, const volatile uint64_t *at, const char *when)
{
    size_t last = t->bytes / 8 - 1;
    if (at[0] != t->value || at[last] != t->value)
        fail_msg("tensor %u %s: %llx and %llx, not %llx", t->id, when, (unsigned long long)at[0],
                 (unsigned long long)at[last], (unsigned long long)t->value);
}

static void put(struct client *c, struct tensor *t, volatile uint64_t *at)
{
    t->value = ++c->last << 8 | t->id;
    at[0] = at[t->bytes / 8 - 1] = t->value;
}

static void some_access(struct client *c, uint64_t *seed)
{
    hybridps_use uses[4];
    unsigned n = 1 + pick(seed, 8) / 5 * (1 + pick(seed, 3));
    for (unsigned i = 0; i < n; i++)
        uses[i] = (hybridps_use){.tensor = pick(seed, c->count),
                                 .where = pick(seed, 4) > 0,
                                 .write = pick(seed, 3) == 0};
    /* An access that finds no content writes it. */
    for (unsigned i = 0; i < n; i++)
        uses[i].write |= c->t[uses[i].tensor].value == 0;
    int want = may_access(c, uses, n), got = hybridps_access(c->h, uses, n);
    if (want != (got == 0))
        fail_msg("an access that %s gave %d: %s", want ? "may be" : "can't be", got,
                 got != 0 ? hl_error_text() : "");
    for (unsigned i = 0; i < n && got == 0; i++) {
        struct tensor *t = &c->t[uses[i].tensor];
        if (t->value != 0)
            check(t, uses[i].address, "accessed");
        if (uses[i].write)
            put(c, t, uses[i].address);
        t->pins++;
        c->written[t->chunk] |= uses[i].write != 0;
        t->where = uses[i].where;
        t->state = HYBRIDPS_COMPUTE;
    }
}

static void release(struct client *c, struct tensor *t, int state)
{
    void *at = NULL;
    OK(hybridps_address(c->h, t->id, t->where, &at));
    check(t, at, "released");
    OK(hybridps_release(c->h, &t->id, 1, state));
    if (--t->pins > 0)
        return;
    t->state = state;
    if (state == HYBRIDPS_FREE)
        t->value = 0;
    int used = 0;
    for (unsigned i = 0; i < c->placed; i++)
        used |= c->t[i].chunk == t->chunk && c->t[i].pins > 0;
    c->written[t->chunk] &= used;
}

static void some_release(struct client *c, uint64_t *seed)
{
    static const int states[] = {HYBRIDPS_HOLD, HYBRIDPS_HOLD, HYBRIDPS_AFTER_FWD,
                                 HYBRIDPS_AFTER_BWD, HYBRIDPS_FREE};
    unsigned first = pick(seed, c->count), n = 1 + pick(seed, 4);
    int state = states[pick(seed, 5)];
    for (unsigned i = 0; i < c->count && n > 0; i++) {
        struct tensor *t = &c->t[(first + i) % c->count];
        if (t->pins > 0)
            release(c, t, state);
        else if (i == 0)
            assert_int_equal(hybridps_release(c->h, &t->id, 1, state), HL_EINVAL);
        n -= t->pins == 0;
    }
}

static void some_moment(struct client *c, uint64_t *seed)
{
    static const char *const stages[] = {"FWD", "BWD", "ADAM"};
    uint64_t other = pick(seed, 3) == 0 ? page() * pick(seed, PAGES + 2) : 0;
    uint64_t avail = other < PAGES * page() ? PAGES * page() - other : 0;
    int want = in_use(c, NULL, 0) <= avail;
    int got = hybridps_moment(c->h, stages[pick(seed, 3)], "op", other);
    assert_int_equal(got, want ? HL_OK : HL_ENOSPC);
    c->avail = want ? avail : c->avail;
}

static void some_iteration(struct client *c, uint64_t *seed)
{
    static const char *const phases[] = {"train", "eval", NULL};
    OK(hybridps_iteration(c->h, phases[pick(seed, 3)]));
}

static void some_call(struct client *c, uint64_t *seed)
{
    unsigned what = pick(seed, 1000);
    if (what < 4)
        some_tensors(c, seed);
    else if (what < 10)
        layout(c);
    else if (what < 20)
        some_iteration(c, seed);
    else if (what < 120)
        some_moment(c, seed);
    else if (what < 500)
        some_access(c, seed);
    else
        some_release(c, seed);
}

static void release_all(struct client *c)
{
    for (unsigned i = 0; i < c->count; i++)
        while (c->t[i].pins > 0)
            release(c, &c->t[i], HYBRIDPS_HOLD);
}

/* Whatever was called, the record is a trace that can be planned and replayed. */
static void replay_record(struct client *c)
{
    char *json = NULL;
    struct hl_trace t = {0};
    struct hl_replay_result r = {0};
    struct hl_replay_options o = {.policy = "opt", .copy = c->copy, .plan_needs = 1000};
    int st = hybridps_trace(c->h, NULL, &json);
    if (st == HL_ENOENT)
        return;
    OK(st);
    OK(hl_trace_parse(json, strlen(json), &t));
    if (t.moment_count > 0)
        OK(hl_replay(&t, &o, &r));
    assert_int_equal(r.peak_over_avail, 0);
    hl_replay_fini(&r);
    hl_trace_fini(&t);
    hybridps_free_text(json);
}

/* The same course again and again, with a different call now and then: followed, left, recorded
 * again. Everything is released at its ends. */
static void course(struct client *c, uint64_t seed, unsigned calls, uint64_t *other)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    OK(hybridps_iteration(c->h, "train"));
    OK(hybridps_moment(c->h, "BEGIN", "", 0));
    OK(hybridps_stats(c->h, &s));
    c->planned += s.planned != 0;
    c->avail = PAGES * page();
    for (unsigned i = 0; i < calls; i++) {
        some_call(c, &seed);
        if (pick(other, 200) == 0)
            some_call(c, other);
    }
    release_all(c);
    audit(c);
}

TEST(test_any_order_of_calls_keeps_contents_and_books)
{
    struct client clients[CLIENTS];
    uint64_t seed = 20, other = 4, loads = 0, deviations = 0, planned = 0;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct client *c = &clients[round % CLIENTS];
        if (round >= CLIENTS && pick(&seed, 4) == 0) {
            hybridps_close(c->h);
            c->h = NULL;
        }
        if (round < CLIENTS || c->h == NULL) {
            open_client(c, pick(&seed, 12));
            some_tensors(c, &seed);
            if (pick(&seed, 2) == 0)
                layout(c);
        }
        uint64_t same = seed;
        unsigned calls = 10 + pick(&seed, 150), times = 1 + pick(&seed, 4);
        for (unsigned k = 0; k < times; k++)
            course(c, same, calls, &other);
        replay_record(c);
        OK(hybridps_stats(c->h, &s));
        loads += s.total.loads;
        deviations += s.deviations;
        planned += c->planned;
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        hybridps_close(clients[i].h);
    assert_true(loads > ROUNDS && deviations > ROUNDS / 10 && planned > ROUNDS / 10);
}

/* State that is created lazily: tensors are added and used while an iteration is recorded. */
TEST(test_tensors_added_while_an_iteration_is_recorded_are_in_the_record)
{
    struct client c;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    open_client(&c, 1);
    for (int k = 0; k < 3; k++) {
        uint32_t id;
        OK(hybridps_iteration(c.h, "train"));
        for (unsigned i = 0; i < 3 * PAGES; i++) {
            OK(hybridps_moment(c.h, "FWD", "", 0));
            if (k == 0) {
                OK(hybridps_add(c.h, "late", HYBRIDPS_MOMENTUM, page(), &id));
                assert_int_equal(id, i);
                OK(hybridps_layout(c.h));
            }
            hybridps_use u = {.tensor = i, .where = HYBRIDPS_DEVICE, .write = 1};
            OK(hybridps_access(c.h, &u, 1));
            OK(hybridps_release(c.h, &u.tensor, 1, HYBRIDPS_HOLD));
        }
        OK(hybridps_stats(c.h, &s));
        assert_int_equal(s.deviations, 0);
        assert_int_equal(s.planned, k > 0);
    }
    c.count = 3 * PAGES;
    audit(&c);
    replay_record(&c);
    hybridps_close(c.h);
}
