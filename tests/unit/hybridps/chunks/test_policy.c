#include "support/test.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "hybridps/chunks/policy.h"

static struct hl_policy *policy(const char *name, const struct hl_policy_options *o)
{
    struct hl_policy *p = NULL;
    assert_int_equal(hl_policy_create(name, o, &p), HL_OK);
    assert_int_equal(hl_policy_grow(p, 3), HL_OK);
    assert_string_equal(hl_policy_name(p), name);
    return p;
}

/* Loaded in the order 0, 1, 2; then 0 used again. */
static void load_three(struct hl_policy *p)
{
    for (uint32_t c = 0; c < 3; c++) {
        hl_policy_loaded(p, c);
        hl_policy_used(p, c, c);
    }
    hl_policy_used(p, 0, 3);
}

static uint32_t first_to_leave(struct hl_policy *p, uint64_t now)
{
    uint32_t first = 0;
    for (uint32_t c = 1; c < 3; c++)
        if (hl_policy_rank(p, c, now, 0) > hl_policy_rank(p, first, now, 0))
            first = c;
    return first;
}

TEST(test_fifo_looks_at_arrival_and_lru_at_use)
{
    struct hl_policy *fifo = policy("fifo", NULL), *lru = policy("lru", NULL);
    struct hl_policy *opt = policy("opt", NULL);
    load_three(fifo);
    load_three(lru);
    load_three(opt);
    assert_int_equal(first_to_leave(fifo, 4), 0);
    assert_int_equal(first_to_leave(lru, 4), 1);
    assert_int_equal(first_to_leave(opt, 4), 1); /* without a plan it is lru */
    hl_policy_destroy(fifo);
    hl_policy_destroy(lru);
    hl_policy_destroy(opt);
}

/* 0.7 * N / T + 0.3 * exp(-dt / tau), as in the platform's score of shards. */
TEST(test_heat_is_the_platforms_score)
{
    struct hl_policy_options o = {.alpha = 0.7, .beta = 0.3, .window = 10, .tau = 4};
    struct hl_policy *p = policy("heat", &o);
    for (uint64_t now = 1; now <= 12; now++)
        hl_policy_used(p, 0, now);
    hl_policy_used(p, 1, 12);
    /* At 14, the uses at 5 .. 12 are within the last ten moments. */
    assert_float_equal(hl_policy_rank(p, 0, 14, 0), -(0.7 * 8 / 10 + 0.3 * exp(-2.0 / 4)), 1e-6);
    assert_float_equal(hl_policy_rank(p, 1, 14, 0), -(0.7 * 1 / 10 + 0.3 * exp(-2.0 / 4)), 1e-6);
    assert_float_equal(hl_policy_rank(p, 1, 112, 0), -(0.3 * exp(-25.0)), 1e-12);
    hl_policy_destroy(p);
    o = (struct hl_policy_options){.window = 10, .tau = 4, .alpha = 0.1, .beta = 0.9};
    p = policy("heat", &o);
    hl_policy_used(p, 2, 1);
    assert_float_equal(hl_policy_rank(p, 2, 5, 0), -(0.1 / 10 + 0.9 * exp(-1.0)), 1e-6);
    hl_policy_destroy(p);
    o = (struct hl_policy_options){.window = 10, .tau = 4, .beta = 1}; /* a weight of zero */
    p = policy("heat", &o);
    hl_policy_used(p, 2, 1);
    assert_float_equal(hl_policy_rank(p, 2, 5, 0), -exp(-1.0), 1e-6);
    hl_policy_destroy(p);
    o = (struct hl_policy_options){0};
    p = policy("heat", &o);
    hl_policy_used(p, 2, 1);
    assert_float_equal(hl_policy_rank(p, 2, 61, 0), -(0.7 / 300 + 0.3 * exp(-1.0)), 1e-6);
    hl_policy_destroy(p);
}

TEST(test_random_is_repeated_by_its_seed)
{
    struct hl_policy_options o = {.seed = 5}, other = {.seed = 6};
    struct hl_policy *a = policy("random", &o), *b = policy("random", &o);
    struct hl_policy *c = policy("random", &other);
    int same = 0;
    for (uint32_t i = 0; i < 30; i++) {
        double x = hl_policy_rank(a, i % 3, i, 0);
        assert_true(fabs(x - hl_policy_rank(b, i % 3, i, 0)) < 0.5);
        same += fabs(x - hl_policy_rank(c, i % 3, i, 0)) < 0.5;
    }
    assert_true(same < 5);
    hl_policy_destroy(a);
    hl_policy_destroy(b);
    hl_policy_destroy(c);
}

TEST(test_an_unknown_policy_is_refused_with_the_known_ones)
{
    struct hl_policy *p = NULL;
    assert_int_equal(hl_policy_create("lfu", NULL, &p), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "lfu"));
    assert_non_null(strstr(hl_error_text(), "heat"));
    assert_null(p);
}
