#include "support/test.h"

#include <string.h>

#include "base/status.h"
#include "hybridps/client/replay.h"
#include "hybridps/plan/plan.h"
#include "unit/hybridps/plan/trace_maker.h"

static void make(struct hl_trace *t, unsigned i, int copy, unsigned sizes, uint64_t unit)
{
    struct maker m = {.seed = 77 + i, .copy = copy, .sizes = sizes, .unit = unit};
    m.chunks = 2 + maker_pick(&m, 12);
    m.needs = 1 + i % 5;
    m.moments = 5 + maker_pick(&m, 40);
    m.iterations = 1 + maker_pick(&m, 4);
    m.slack = maker_pick(&m, 6) * sizes;
    maker_make(&m, t);
}

static struct hl_replay_result replay(const struct hl_trace *t, const char *policy, int copy,
                                      uint64_t scale)
{
    struct hl_replay_options o = {.policy = policy, .copy = copy, .scale = scale};
    struct hl_replay_result r = {0};
    if (hl_replay(t, &o, &r) != HL_OK)
        fail_msg("%s %s: %s", policy, copy ? "copy" : "move", hl_error_text());
    assert_int_equal(r.count, t->iterations);
    assert_int_equal(r.peak_over_avail, 0);
    return r;
}

static uint64_t total(const struct hl_replay_result *r)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->count; i++)
        sum += r->iterations[i].h2d + r->iterations[i].d2h;
    return sum;
}

TEST(test_the_pool_moves_what_the_plan_foresaw)
{
    for (unsigned i = 0; i < 60; i++) {
        struct hl_trace t = {0};
        int copy = i % 2;
        make(&t, i, copy, i % 3 == 0 ? 4 : 1, 8192);
        struct hl_chunk_plan_options o = {.copy = copy, .iterations = t.iterations};
        struct hl_chunk_plan *p = NULL;
        assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_OK);
        struct hl_replay_result r = replay(&t, "opt", copy, 1);
        for (uint64_t k = 0; k < t.iterations; k++) {
            uint64_t h2d, d2h;
            hl_chunk_plan_cost(p, k, &h2d, &d2h);
            assert_int_equal(r.iterations[k].h2d, h2d);
            assert_int_equal(r.iterations[k].d2h, d2h);
        }
        hl_replay_fini(&r);
        hl_chunk_plan_free(p);
        hl_trace_fini(&t);
    }
}

TEST(test_the_pool_moves_what_an_endless_plan_foresaw)
{
    for (unsigned i = 0; i < 60; i++) {
        struct hl_trace t = {0};
        int copy = i % 2;
        make(&t, 3000 + i, copy, i % 3 == 0 ? 4 : 1, 8192);
        t.iterations = HL_CHUNK_PLAN_AHEAD * HL_CHUNK_PLAN_TRIAL;
        struct hl_chunk_plan_options o = {.copy = copy, .endless = 1};
        struct hl_replay_options ro = {.policy = "opt", .copy = copy, .ahead = HL_CHUNK_PLAN_AHEAD};
        struct hl_replay_result r = {0};
        struct hl_chunk_plan *p = NULL;
        assert_int_equal(hl_chunk_plan_make(&t, &o, &p), HL_OK);
        assert_int_equal(hl_replay(&t, &ro, &r), HL_OK);
        for (uint64_t k = 0; k < t.iterations; k++) {
            uint64_t h2d, d2h;
            hl_chunk_plan_cost(p, k, &h2d, &d2h);
            assert_int_equal(r.iterations[k].h2d, h2d);
            assert_int_equal(r.iterations[k].d2h, d2h);
        }
        hl_replay_fini(&r);
        hl_chunk_plan_free(p);
        hl_trace_fini(&t);
    }
}

/* A rule that looks only at the next use can be beaten; rarely, and never on average. */
TEST(test_on_the_whole_every_policy_moves_more_than_opt)
{
    static const char *const others[] = {"fifo", "lru", "heat", "random"};
    uint64_t sums[4] = {0}, ours = 0;
    unsigned beaten = 0;
    for (unsigned i = 0; i < 400; i++) {
        struct hl_trace t = {0};
        int copy = i % 2;
        make(&t, 500 + i, copy, i % 4 < 2 ? 1 : 5, 4096);
        t.iterations += i % 8 == 0 ? 8 : 0; /* more than are planned in one go */
        struct hl_replay_result best = replay(&t, "opt", copy, 1);
        ours += total(&best);
        for (size_t k = 0; k < HL_ARRAY_LEN(others); k++) {
            struct hl_replay_result r = replay(&t, others[k], copy, 16);
            beaten += total(&r) < total(&best);
            sums[k] += total(&r);
            hl_replay_fini(&r);
        }
        hl_replay_fini(&best);
        hl_trace_fini(&t);
    }
    for (size_t k = 0; k < HL_ARRAY_LEN(others); k++)
        assert_true(sums[k] > ours);
    print_message("beaten %u times of 1600; lru moves %.3f of our bytes\n", beaten,
                  (double)sums[1] / (double)ours);
    assert_true(beaten * 20 < 1600);
}

TEST(test_the_result_is_in_the_traces_own_bytes_at_any_scale)
{
    for (unsigned i = 0; i < 6; i++) {
        struct hl_trace t = {0};
        make(&t, 900 + i, i % 2, 3, 100000);
        struct hl_replay_result a = replay(&t, "lru", i % 2, 1), b = replay(&t, "lru", i % 2, 64);
        for (uint64_t k = 0; k < t.iterations; k++) {
            assert_int_equal(a.iterations[k].h2d, b.iterations[k].h2d);
            assert_int_equal(a.iterations[k].d2h, b.iterations[k].d2h);
        }
        hl_replay_fini(&a);
        hl_replay_fini(&b);
        hl_trace_fini(&t);
    }
}

/* Two chunks of 100, room for one: forward reads a, b; the host writes both. By hand, mode move: a
 * comes (100), leaves for b (100, 100), b leaves for the host (100); a is there already. Mode copy:
 * both come (200), nothing is written back. */
TEST(test_an_iteration_costs_what_it_does_by_hand)
{
    const char *text =
        "{\"chunks\":[{\"id\":\"a\",\"bytes\":100},{\"id\":\"b\",\"bytes\":100}],\"iteration\":["
        "{\"avail\":100,\"need\":[[\"a\",\"gpu\",\"r\"]]},"
        "{\"avail\":100,\"need\":[[\"b\",\"gpu\",\"r\"]]},"
        "{\"avail\":0,\"need\":[[\"a\",\"cpu\",\"w\"],[\"b\",\"cpu\",\"w\"]]}],\"iterations\":2}";
    struct hl_trace t = {0};
    assert_int_equal(hl_trace_parse(text, strlen(text), &t), HL_OK);
    for (int copy = 0; copy < 2; copy++) {
        struct hl_replay_result r = replay(&t, "opt", copy, 1);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(r.iterations[k].h2d, 200);
            assert_int_equal(r.iterations[k].d2h, copy ? 0 : 200);
        }
        hl_replay_fini(&r);
    }
    hl_trace_fini(&t);
}

TEST(test_what_does_not_fit_is_named_with_its_moment)
{
    static const char *const policies[] = {"opt", "lru"};
    const char *text =
        "{\"chunks\":[{\"id\":\"a\",\"bytes\":100},{\"id\":\"b\",\"bytes\":100}],\"iteration\":["
        "{\"stage\":\"FWD\",\"op\":\"x\",\"avail\":100,\"need\":[[\"a\",\"gpu\",\"r\"]]},"
        "{\"stage\":\"FWD\",\"op\":\"y\",\"avail\":150,\"need\":[[\"a\",\"gpu\",\"r\"],"
        "[\"b\",\"gpu\",\"r\"]]}]}";
    struct hl_trace t = {0};
    assert_int_equal(hl_trace_parse(text, strlen(text), &t), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(policies); i++) {
        struct hl_replay_options o = {.policy = policies[i]};
        struct hl_replay_result r = {0};
        assert_int_equal(hl_replay(&t, &o, &r), HL_ENOSPC);
        assert_non_null(strstr(hl_error_text(), "moment 1 (FWD y)"));
        assert_non_null(strstr(hl_error_text(), "200 bytes"));
        assert_non_null(strstr(hl_error_text(), "150"));
        assert_null(r.iterations);
    }
    struct hl_replay_options o = {.policy = "best"};
    struct hl_replay_result r = {0};
    assert_int_equal(hl_replay(&t, &o, &r), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "\"best\""));
    hl_trace_fini(&t);
}

/* Too long to be planned in one go: some iterations are planned, and repeated. */
TEST(test_many_iterations_follow_a_loop)
{
    struct hl_trace t = {0};
    struct hl_replay_options o = {.policy = "opt", .plan_needs = 600};
    struct hl_replay_result parts = {0};
    struct maker m = {
        .seed = 3, .sizes = 1, .unit = 4096, .chunks = 8, .moments = 80, .iterations = 25};
    m.slack = 4;
    maker_make(&m, &t);
    struct hl_replay_result whole = replay(&t, "opt", 0, 1), lru = replay(&t, "lru", 0, 1);
    assert_int_equal(hl_replay(&t, &o, &parts), HL_OK);
    assert_true(total(&parts) < total(&lru));
    assert_true(total(&parts) >= total(&whole));
    assert_true(total(&parts) <= total(&whole) + total(&whole) / 50);
    hl_replay_fini(&parts);
    hl_replay_fini(&whole);
    hl_replay_fini(&lru);
    hl_trace_fini(&t);
}
