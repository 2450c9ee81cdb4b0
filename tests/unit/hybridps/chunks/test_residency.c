/* Decisions made moment by moment over random courses and carried out on flags, compared with all
 * ways of evicting and with the planner's result for the same course. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "hybridps/chunks/residency.h"
#include "hybridps/plan/plan.h"
#include "unit/hybridps/plan/trace_maker.h"

#define MOST   64
#define FEW    6
#define STATES (1u << (2 * FEW)) /* two bits a chunk: on the device, on the host */

/* ---- a course, decided by the engine ---- */

struct course {
    const struct hl_trace *t;
    bool copy;
    struct hl_chunk_plan *plan; /* NULL: Belady's rule */
    uint64_t moment;
    struct hl_resident chunks[MOST];
    uint64_t device, moved;
    struct hl_moves moves;
};

static int used_on_device(const struct hl_trace_moment *m, uint32_t chunk)
{
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].chunk == chunk && !m->need[i].on_host)
            return 1;
    return 0;
}

static double rank(void *arg, uint32_t chunk, uint64_t now, bool dirty)
{
    const struct course *x = arg;
    uint64_t far = 1;
    (void)now;
    if (x->plan != NULL)
        return hl_chunk_plan_rank(x->plan, chunk, dirty);
    for (; far <= x->t->moment_count; far++)
        if (used_on_device(&x->t->moments[(x->moment + far) % x->t->moment_count], chunk))
            break;
    return (double)far;
}

static struct hl_residency input(struct course *x, uint64_t avail)
{
    return (struct hl_residency){.chunks = x->chunks,
                                 .count = (uint32_t)x->t->chunk_count,
                                 .copy = x->copy,
                                 .now = x->moment + 1,
                                 .device = x->device,
                                 .avail = avail,
                                 .rank = rank,
                                 .arg = x};
}

static size_t merge(struct course *x, const struct hl_trace_moment *m, uint32_t *wanted)
{
    size_t count = 0;
    for (size_t i = 0; i < m->need_count; i++) {
        const struct hl_trace_use *u = &m->need[i];
        struct hl_resident *c = &x->chunks[u->chunk];
        if (c->want == 0)
            wanted[count++] = u->chunk;
        c->want |= u->on_host ? HL_WANT_HOST : HL_WANT_DEVICE;
        c->want |= !u->write ? 0 : u->on_host ? HL_WRITE_HOST : HL_WRITE_DEVICE;
    }
    return count;
}

/* No content is lost, no chunk leaves twice, and none leaves needlessly. */
static void carry_out(struct course *x, uint64_t avail)
{
    const struct hl_moves *m = &x->moves;
    for (size_t i = 0; i < m->out_count; i++) {
        struct hl_resident *c = &x->chunks[m->out[i]];
        assert_true(c->device && !c->host);
        c->host = 1;
        x->moved += c->bytes;
    }
    for (size_t i = 0; i < m->leave_count; i++) {
        struct hl_resident *c = &x->chunks[m->leave[i]];
        assert_true(c->device && c->host && !(c->want & HL_WANT_DEVICE));
        bool taken = (c->want & HL_WANT_HOST) && (!x->copy || (c->want & HL_WRITE_HOST));
        assert_true(taken || x->device + m->load_bytes > avail);
        c->device = 0;
        x->device -= c->bytes;
    }
    for (size_t i = 0; i < m->load_count; i++) {
        struct hl_resident *c = &x->chunks[m->load[i]];
        assert_true(!c->device && (c->want & HL_WANT_DEVICE));
        c->device = 1;
        x->device += c->bytes;
        x->moved += c->host ? c->bytes : 0;
    }
    assert_true(x->device <= avail);
}

static void use(struct course *x, const struct hl_trace_moment *m)
{
    for (size_t i = 0; i < m->need_count; i++) {
        const struct hl_trace_use *u = &m->need[i];
        struct hl_resident *c = &x->chunks[u->chunk];
        int both = (c->want & HL_WANT_DEVICE) && (c->want & HL_WANT_HOST);
        assert_true(u->on_host || c->device);
        if (both && !c->host)
            x->moved += c->bytes; /* new in both places: one copy */
        if (u->on_host || both)
            c->host = 1;
        else if (!x->copy || u->write)
            c->host = 0;
        if (!u->on_host && x->plan != NULL)
            hl_chunk_plan_used(x->plan, u->chunk);
    }
    for (size_t i = 0; i < m->need_count; i++)
        x->chunks[m->need[i].chunk].want = 0;
    for (size_t i = 0; i < m->free_count; i++) {
        struct hl_resident *c = &x->chunks[m->free[i]];
        x->device -= c->device ? c->bytes : 0;
        c->device = c->host = 0;
    }
}

/* Bytes that were moved. */
static uint64_t decide_all(const struct hl_trace *t, bool copy, struct hl_chunk_plan *plan)
{
    struct course x = {.t = t, .copy = copy, .plan = plan};
    uint32_t wanted[MOST];
    assert_int_equal(hl_moves_reserve(&x.moves, t->chunk_count), HL_OK);
    for (size_t c = 0; c < t->chunk_count; c++)
        x.chunks[c] = (struct hl_resident){.bytes = t->chunks[c].bytes,
                                           .host = t->chunks[c].has_content != 0};
    for (uint64_t k = 0; k < t->iterations * t->moment_count; k++) {
        const struct hl_trace_moment *m = &t->moments[k % t->moment_count];
        x.moment = k;
        if (plan != NULL)
            hl_chunk_plan_seek(plan, k);
        size_t count = merge(&x, m, wanted);
        struct hl_residency r = input(&x, m->avail);
        assert_true(hl_residency_access(&r, wanted, count, &x.moves));
        carry_out(&x, m->avail);
        use(&x, m);
    }
    hl_moves_fini(&x.moves);
    return x.moved;
}

/* ---- the minimum, by trying all ways ---- */

struct search {
    const struct hl_trace *t;
    bool copy;
    uint64_t *now, *next; /* fewest bytes to reach a state */
};

static int bit(uint32_t s, uint32_t c, int host)
{
    return (int)(s >> (2 * c + (uint32_t)host) & 1);
}

static uint32_t with(uint32_t s, uint32_t c, int device, int host)
{
    return (s & ~(3u << (2 * c))) | (uint32_t)device << (2 * c) | (uint32_t)host << (2 * c + 1);
}

static void arrive(struct search *x, const struct hl_trace_moment *m, uint32_t s, uint64_t cost)
{
    uint64_t resident = 0;
    for (size_t i = 0; i < m->need_count; i++) {
        uint32_t c = m->need[i].chunk;
        if (m->need[i].on_host)
            continue;
        cost += !bit(s, c, 0) && bit(s, c, 1) ? x->t->chunks[c].bytes : 0;
        s = with(s, c, 1, x->copy && bit(s, c, 1) && !m->need[i].write);
    }
    for (size_t i = 0; i < m->need_count; i++) {
        uint32_t c = m->need[i].chunk;
        if (!m->need[i].on_host)
            continue;
        cost += bit(s, c, 0) && !bit(s, c, 1) ? x->t->chunks[c].bytes : 0;
        s = with(s, c, x->copy && !m->need[i].write && bit(s, c, 0), 1);
    }
    for (uint32_t c = 0; c < x->t->chunk_count; c++)
        resident += bit(s, c, 0) ? x->t->chunks[c].bytes : 0;
    if (resident > m->avail)
        return;
    for (size_t i = 0; i < m->free_count; i++)
        s = with(s, m->free[i], 0, 0);
    if (cost < x->next[s])
        x->next[s] = cost;
}

static void leave_all_ways(struct search *x, const struct hl_trace_moment *m, uint32_t s,
                           uint64_t cost, uint32_t c)
{
    if (c == x->t->chunk_count) {
        arrive(x, m, s, cost);
        return;
    }
    leave_all_ways(x, m, s, cost, c + 1);
    if (bit(s, c, 0))
        leave_all_ways(x, m, with(s, c, 0, 1), cost + (bit(s, c, 1) ? 0 : x->t->chunks[c].bytes),
                       c + 1);
}

static uint64_t least_bytes(const struct hl_trace *t, bool copy)
{
    struct search x = {.t = t, .copy = copy};
    uint32_t start = 0;
    uint64_t least = UINT64_MAX;
    x.now = malloc(STATES * sizeof(uint64_t));
    x.next = malloc(STATES * sizeof(uint64_t));
    assert_true(x.now != NULL && x.next != NULL);
    memset(x.now, 0xff, STATES * sizeof(uint64_t));
    for (uint32_t c = 0; c < t->chunk_count; c++)
        start = with(start, c, 0, t->chunks[c].has_content != 0);
    x.now[start] = 0;
    for (uint64_t k = 0; k < t->iterations * t->moment_count; k++) {
        memset(x.next, 0xff, STATES * sizeof(uint64_t));
        for (uint32_t s = 0; s < STATES; s++)
            if (x.now[s] != UINT64_MAX)
                leave_all_ways(&x, &t->moments[k % t->moment_count], s, x.now[s], 0);
        uint64_t *swap = x.now;
        x.now = x.next;
        x.next = swap;
    }
    for (uint32_t s = 0; s < STATES; s++)
        least = x.now[s] < least ? x.now[s] : least;
    free(x.now);
    free(x.next);
    return least;
}

/* ---- tests ---- */

/* Chunks of one size, each with content and only read on the device: there Belady's rule is
 * optimal. The course ends where it is cut, so that all of it is one iteration. */
TEST(only_reads_of_equal_chunks_move_the_least_there_is)
{
    for (unsigned i = 0; i < 400; i++) {
        struct maker m = {.seed = 300 + i, .copy = 1, .unit = 3, .sizes = 1};
        struct hl_trace t = {.iterations = 1};
        m.chunks = 2 + maker_pick(&m, FEW - 1);
        m.slack = 1 + maker_pick(&m, 3);
        for (unsigned c = 0; c < m.chunks; c++)
            assert_int_equal(hl_trace_add_chunk(&t, (char[]){(char)('a' + c), 0}, 0, "param", 3, 1),
                             HL_OK);
        unsigned moments = 4 + maker_pick(&m, 20);
        for (unsigned k = 0; k < moments; k++) {
            assert_int_equal(hl_trace_add_moment(&t, "S", "", 3 * m.slack), HL_OK);
            assert_int_equal(hl_trace_add_need(&t, maker_pick(&m, m.chunks), 0, 0), HL_OK);
        }
        uint64_t ours = decide_all(&t, true, NULL), least = least_bytes(&t, true);
        if (ours != least)
            fail_msg("course %u: %llu bytes move, %llu would do", i, (unsigned long long)ours,
                     (unsigned long long)least);
        hl_trace_fini(&t);
    }
}

/* Writes, hosts, ends and sizes of all kinds. What is decided can be carried out, moves no less
 * than the least, and what the planner said to the byte. */
TEST(any_course_moves_what_the_planner_says_and_no_less_than_the_least)
{
    uint64_t ours = 0, least = 0;
    for (unsigned i = 0; i < 600; i++) {
        struct maker m = {.seed = 4000 + i, .copy = i % 2, .unit = 2};
        struct hl_chunk_plan *p = NULL;
        struct hl_chunk_plan_facts facts;
        struct hl_trace t = {0};
        m.sizes = i % 4 < 2 ? 1 : 5;
        m.chunks = 2 + maker_pick(&m, FEW - 1);
        m.moments = 3 + maker_pick(&m, 14);
        m.iterations = 1 + maker_pick(&m, 2);
        m.slack = 1 + maker_pick(&m, 2 * m.sizes);
        maker_make(&m, &t);
        struct hl_chunk_plan_options o = {.copy = m.copy, .iterations = t.iterations};
        assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_OK);
        hl_chunk_plan_facts(p, &facts);
        uint64_t moved = decide_all(&t, m.copy, p), best = least_bytes(&t, m.copy);
        if (moved != facts.moved || moved < best)
            fail_msg("course %u, %s, by %s: %llu bytes move, planned were %llu, %llu would do", i,
                     m.copy ? "copy" : "move", facts.rule, (unsigned long long)moved,
                     (unsigned long long)facts.moved, (unsigned long long)best);
        ours += moved;
        least += best;
        hl_chunk_plan_free(p);
        hl_trace_fini(&t);
    }
    print_message("%.4f of the least bytes\n", (double)ours / (double)least);
    assert_true(ours * 100 <= least * 103);
}

static double by_number(void *arg, uint32_t chunk, uint64_t now, bool dirty)
{
    (void)arg, (void)now;
    return (double)chunk + (dirty ? 0 : 100);
}

static uint64_t next_of_four(void *arg, uint32_t chunk)
{
    static const uint64_t next[] = {8, 7, 6, 9};
    (void)arg;
    return next[chunk];
}

static struct hl_residency four(struct hl_resident *c, uint64_t avail)
{
    for (int i = 0; i < 4; i++)
        c[i] = (struct hl_resident){.bytes = 10, .device = i < 3, .host = i == 3};
    return (struct hl_residency){.chunks = c,
                                 .count = 4,
                                 .copy = true,
                                 .now = 5,
                                 .device = 30,
                                 .avail = avail,
                                 .rank = by_number,
                                 .next_use = next_of_four};
}

/* Of equals by rank 2 would leave: it is pinned, or the moment needs it, or the host takes 0. */
TEST(pins_go_nowhere_and_turns_come_before_ranks)
{
    struct hl_resident c[4];
    struct hl_moves m = {0};
    uint32_t wanted = 3;
    assert_int_equal(hl_moves_reserve(&m, 4), HL_OK);
    struct hl_residency r = four(c, 30);
    c[3].want = HL_WANT_DEVICE;
    assert_true(hl_residency_access(&r, &wanted, 1, &m));
    assert_int_equal(m.leave_count, 1);
    assert_int_equal(m.leave[0], 2);
    assert_int_equal(m.host_bytes, 10);
    c[2].device_pins = 1;
    assert_true(hl_residency_access(&r, &wanted, 1, &m) && m.leave[0] == 1);
    c[1].expected = 5;
    assert_true(hl_residency_access(&r, &wanted, 1, &m) && m.leave[0] == 0);
    c[0].device_pins = 1;
    assert_true(hl_residency_access(&r, &wanted, 1, &m) && m.leave[0] == 1);
    c[1].device_pins = 1;
    assert_false(hl_residency_access(&r, &wanted, 1, &m));
    r = four(c, 30);
    c[3].want = HL_WANT_DEVICE;
    c[0].host_next = 5;
    c[0].host_takes = 1;
    c[1].host = 1; /* clean, as what the host takes will be: here that ranks before all others */
    assert_true(hl_residency_access(&r, &wanted, 1, &m) && m.leave[0] == 0);
    c[0].host_next = 0;
    assert_true(hl_residency_access(&r, &wanted, 1, &m) && m.leave[0] == 1 && m.out_count == 0);
    hl_moves_fini(&m);
}

TEST(ahead_waits_for_a_victim_that_is_pinned)
{
    struct hl_resident c[4];
    struct hl_moves m = {0};
    struct hl_trace_use use = {.chunk = 3};
    assert_int_equal(hl_moves_reserve(&m, 4), HL_OK);
    struct hl_residency r = four(c, 30);
    assert_true(hl_residency_ahead(&r, &use, 1, &m) && m.leave_count == 1 && m.leave[0] == 2);
    c[2].expected = 6; /* the next moment's */
    assert_true(hl_residency_ahead(&r, &use, 1, &m) && m.leave[0] == 1);
    c[1].device_pins = 1;
    assert_false(hl_residency_ahead(&r, &use, 1, &m));
    hl_moves_fini(&m);
}

TEST(places_are_reached_where_there_is_content)
{
    struct hl_resident c[4];
    struct hl_moves m = {0};
    const uint8_t places[4] = {HL_CHUNK_ON_HOST, HL_CHUNK_ON_DEVICE | HL_CHUNK_ON_HOST,
                               HL_CHUNK_ON_DEVICE, HL_CHUNK_ON_DEVICE};
    assert_int_equal(hl_moves_reserve(&m, 4), HL_OK);
    struct hl_residency r = four(c, 30);
    assert_true(hl_residency_place(&r, places, 4, &m));
    assert_true(m.leave_count == 1 && m.leave[0] == 0);
    assert_true(m.out_count == 2 && m.out[0] == 0 && m.out[1] == 1);
    assert_true(m.load_count == 1 && m.load[0] == 3);
    r.avail = 29;
    assert_false(hl_residency_place(&r, places, 4, &m));
    hl_moves_fini(&m);
}

TEST(the_host_gives_up_what_is_stale_then_what_is_needed_last)
{
    struct hl_resident c[4];
    uint32_t victim = 9;
    struct hl_residency r = four(c, 30);
    assert_false(hl_residency_host_victim(&r, true, &victim));
    assert_int_equal(victim, 9);
    c[3].host_memory = c[1].host_memory = HL_HOST_CONTENT;
    c[1].host = 1;
    assert_true(hl_residency_host_victim(&r, true, &victim) && victim == 3);
    assert_true(hl_residency_host_victim(&r, false, &victim) &&
                victim == 1); /* has no other place */
    c[3].host_pins = 1;
    assert_true(hl_residency_host_victim(&r, true, &victim) && victim == 1);
    c[0].host_memory = HL_HOST_CONTENT;
    c[0].host = 1;
    assert_true(hl_residency_host_victim(&r, true, &victim) && victim == 0);
    c[2].host_memory = HL_HOST_STALE;
    assert_true(hl_residency_host_victim(&r, true, &victim) && victim == 2);
    c[2].busy = 1;
    assert_true(hl_residency_host_victim(&r, true, &victim) && victim == 0);
}
