#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "hybridps/plan/plan.h"
#include "unit/hybridps/plan/trace_maker.h"

#define NO UINT64_MAX

/* ---- Belady's rule, written independently ---- */

static uint64_t next_use(const struct hl_trace *t, uint64_t now, uint32_t chunk)
{
    for (uint64_t k = now + 1; k <= now + t->moment_count; k++) {
        const struct hl_trace_moment *m = &t->moments[k % t->moment_count];
        for (size_t i = 0; i < m->need_count; i++)
            if (m->need[i].chunk == chunk && !m->need[i].on_host)
                return k;
    }
    return NO;
}

static int needs_on_device(const struct hl_trace_moment *m, uint32_t chunk)
{
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].chunk == chunk && !m->need[i].on_host)
            return 1;
    return 0;
}

static uint64_t belady_bytes(const struct hl_trace *t, int copy)
{
    uint8_t device[64] = {0}, host[64] = {0};
    uint64_t cost = 0;
    for (uint32_t c = 0; c < t->chunk_count; c++)
        host[c] = t->chunks[c].has_content != 0;
    for (uint64_t k = 0; k < t->iterations * t->moment_count; k++) {
        const struct hl_trace_moment *m = &t->moments[k % t->moment_count];
        for (size_t i = 0; i < m->need_count; i++) {
            uint32_t c = m->need[i].chunk;
            if (!m->need[i].on_host || needs_on_device(m, c))
                continue;
            cost += device[c] && !host[c] ? t->chunks[c].bytes : 0;
            device[c] &= copy && !m->need[i].write;
            host[c] = 1;
        }
        for (;;) {
            uint64_t bytes = 0, far = 0;
            int victim = -1;
            for (uint32_t c = 0; c < t->chunk_count; c++) {
                bytes += device[c] || needs_on_device(m, c) ? t->chunks[c].bytes : 0;
                if (!device[c] || needs_on_device(m, c))
                    continue;
                uint64_t next = next_use(t, k, c);
                if (victim < 0 || next > far) {
                    victim = (int)c;
                    far = next;
                }
            }
            if (bytes <= m->avail)
                break;
            assert_true(victim >= 0);
            cost += host[victim] ? 0 : t->chunks[victim].bytes;
            host[victim] = 1;
            device[victim] = 0;
        }
        for (size_t i = 0; i < m->need_count; i++) {
            uint32_t c = m->need[i].chunk;
            if (m->need[i].on_host)
                continue;
            cost += !device[c] && host[c] ? t->chunks[c].bytes : 0;
            device[c] = 1;
            host[c] &= copy && !m->need[i].write;
        }
        for (size_t i = 0; i < m->need_count; i++) {
            uint32_t c = m->need[i].chunk;
            if (!m->need[i].on_host || !needs_on_device(m, c))
                continue;
            cost += host[c] ? 0 : t->chunks[c].bytes;
            host[c] = 1;
        }
        for (size_t i = 0; i < m->free_count; i++)
            device[m->free[i]] = host[m->free[i]] = 0;
    }
    return cost;
}

/* ---- tests ---- */

static struct hl_chunk_plan_facts plan_of(const struct hl_trace *t, int copy)
{
    struct hl_chunk_plan_options o = {.copy = copy, .iterations = t->iterations};
    struct hl_chunk_plan_facts facts;
    struct hl_chunk_plan *p = NULL;
    if (hl_chunk_plan_make(t, &o, &p) != HL_OK)
        fail_msg("%s", hl_error_text());
    hl_chunk_plan_facts(p, &facts);
    hl_chunk_plan_free(p);
    return facts;
}

/* Several uses in a moment, all kinds of sizes and room. */
TEST(test_belady_is_never_better)
{
    uint64_t ours = 0, belady = 0;
    for (unsigned i = 0; i < 2000; i++) {
        struct maker m = {.seed = 70000 + i, .copy = i % 2, .unit = 2};
        m.sizes = i % 4 < 2 ? 1 : 7;
        m.needs = 1 + maker_pick(&m, 6);
        m.chunks = 2 + maker_pick(&m, 30);
        m.moments = 3 + maker_pick(&m, 60);
        m.iterations = 1 + maker_pick(&m, 3);
        m.slack = maker_pick(&m, m.chunks * m.sizes);
        struct hl_trace t = {0};
        maker_make(&m, &t);
        struct hl_chunk_plan_facts f = plan_of(&t, m.copy);
        uint64_t b = belady_bytes(&t, m.copy);
        if (f.moved > b)
            fail_msg("trace %u: %s moves %llu bytes, Belady %llu", i, f.rule,
                     (unsigned long long)f.moved, (unsigned long long)b);
        ours += f.moved;
        belady += b;
        hl_trace_fini(&t);
    }
    print_message("Belady moves %.3f of the plans' bytes\n", (double)belady / (double)ours);
    assert_true(ours < belady);
}

/* Chunks of 10, room for two: forward 0 1 2, backward 2 1 0. All three come in (30), chunk 0 leaves
 * for 2 (10), 1 is still there, and at the end 0 comes back (10) for 1 or 2 (10). If they are only
 * read in mode copy, nothing is written back. */
TEST(test_a_palindrome_costs_what_it_does_by_hand)
{
    static const uint32_t order[] = {0, 1, 2, 2, 1, 0};
    struct hl_trace t = {.iterations = 1};
    for (int c = 0; c < 3; c++)
        assert_int_equal(hl_trace_add_chunk(&t, (char[]){(char)('a' + c), 0}, 0, "param", 10, 1),
                         HL_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(hl_trace_add_moment(&t, i < 3 ? "FWD" : "BWD", "", 20), HL_OK);
        assert_int_equal(hl_trace_add_need(&t, order[i], 0, 0), HL_OK);
    }
    struct hl_chunk_plan_options o = {.iterations = 1};
    struct hl_chunk_plan *p = NULL;
    uint64_t h2d, d2h;
    assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_OK);
    hl_chunk_plan_cost(p, 0, &h2d, &d2h);
    assert_int_equal(h2d, 40);
    assert_int_equal(d2h, 20);
    hl_chunk_plan_free(p);
    o.copy = 1;
    assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_OK);
    hl_chunk_plan_cost(p, 0, &h2d, &d2h);
    assert_int_equal(h2d, 40);
    assert_int_equal(d2h, 0);
    hl_chunk_plan_free(p);
    hl_trace_fini(&t);
}

static uint64_t endless(const struct hl_trace *t, int copy, uint64_t ends_after, int *again)
{
    struct hl_chunk_plan_options o = {.copy = copy, .endless = 1};
    struct hl_chunk_plan_facts f;
    struct hl_chunk_plan *p = NULL;
    uint64_t sum = 0;
    assert_int_equal(hl_chunk_plan_make(t, &o, &p), HL_OK);
    *again = hl_chunk_plan_places(p, 1000000) != NULL;
    assert_non_null(hl_chunk_plan_places(p, 1));
    if (ends_after > 0)
        assert_int_equal(hl_chunk_plan_end(p, t, &o, ends_after), HL_OK);
    hl_chunk_plan_facts(p, &f);
    for (uint64_t k = 0; k < t->iterations; k++) {
        uint64_t h2d, d2h;
        hl_chunk_plan_cost(p, k, &h2d, &d2h);
        sum += h2d + d2h;
    }
    hl_chunk_plan_free(p);
    return sum;
}

/* Belady's rule looks only at the next use, so it is just as good without an end. */
TEST(test_an_endless_plan_moves_no_more_than_belady)
{
    uint64_t ended = 0, open = 0;
    unsigned settled = 0;
    for (unsigned i = 0; i < 300; i++) {
        struct maker m = {.seed = 170000 + i, .copy = i % 2, .unit = 2};
        int again = 0;
        m.sizes = i % 4 < 2 ? 1 : 7;
        m.needs = 1 + maker_pick(&m, 4);
        m.chunks = 2 + maker_pick(&m, 20);
        m.moments = 3 + maker_pick(&m, 30);
        m.iterations = HL_CHUNK_PLAN_AHEAD * HL_CHUNK_PLAN_TRIAL;
        m.slack = maker_pick(&m, m.chunks * m.sizes);
        struct hl_trace t = {0};
        maker_make(&m, &t);
        uint64_t belady = belady_bytes(&t, m.copy), a = endless(&t, m.copy, 0, &again);
        uint64_t b = endless(&t, m.copy, t.iterations, &again);
        if (a > belady || b > belady || b > a)
            fail_msg("trace %u: endless %llu, ended %llu, Belady %llu", i, (unsigned long long)a,
                     (unsigned long long)b, (unsigned long long)belady);
        open += a;
        ended += b;
        settled += again != 0;
        hl_trace_fini(&t);
    }
    print_message("the end saves %.4f of the bytes; %u of 300 courses repeat\n",
                  1 - (double)ended / (double)open, settled);
    assert_true(ended < open && settled > 250);
}

TEST(test_what_does_not_fit_is_named)
{
    struct hl_trace t = {.iterations = 1};
    struct hl_chunk_plan_options o = {.iterations = 1};
    struct hl_chunk_plan *p = NULL;
    assert_int_equal(hl_trace_add_chunk(&t, "a", 0, "param", 70, 1), HL_OK);
    assert_int_equal(hl_trace_add_chunk(&t, "b", 0, "param", 50, 1), HL_OK);
    assert_int_equal(hl_trace_add_moment(&t, "FWD", "l0", 70), HL_OK);
    assert_int_equal(hl_trace_add_need(&t, 0, 0, 0), HL_OK);
    assert_int_equal(hl_trace_add_moment(&t, "FWD", "l1", 100), HL_OK);
    assert_int_equal(hl_trace_add_need(&t, 0, 0, 0), HL_OK);
    assert_int_equal(hl_trace_add_need(&t, 1, 0, 0), HL_OK);
    assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "moment 1 (FWD l1)"));
    assert_non_null(strstr(hl_error_text(), "120 bytes"));
    assert_non_null(strstr(hl_error_text(), "20 are missing"));
    hl_trace_fini(&t);
}

TEST(test_a_long_iteration_of_many_chunks_is_planned)
{
    for (int copy = 0; copy < 2; copy++) {
        struct maker m = {.seed = 5,
                          .copy = copy,
                          .sizes = 1,
                          .unit = 4096,
                          .chunks = 1000,
                          .moments = 10000,
                          .iterations = 2,
                          .slack = 300};
        struct hl_trace t = {0};
        maker_make(&m, &t);
        for (size_t i = 0; i < t.moment_count; i++) /* slow changes, not noise */
            t.moments[i].avail = 4096 * (300 + 200 * (i / 1000 % 2));
        struct hl_chunk_plan_facts f = plan_of(&t, copy);
        print_message("%s: %s, %.0f chunks moved\n", copy ? "copy" : "move", f.rule,
                      (double)f.moved / 4096);
        assert_true(f.moved > 0);
        hl_trace_fini(&t);
    }
}
