/* When shards are due for a check. */
#include "support/test.h"

#include "core/placement/timers.h"

#include <stdlib.h>

#define TICK INT64_C(64)

/* Takes one that is due; false: there is none. */
static bool take(struct hl_timers *t, int64_t now_ms, struct hl_shard_timer *out)
{
    uint32_t count;
    assert_int_equal(hl_timers_take(t, now_ms, out, 1, &count), HL_OK);
    return count == 1;
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 32);
}

enum { MANY = 3000, BATCH = 7 };

/* At `tick`: takes all that are due by then and no others, compared with a scan of all. */
static void take_all(struct hl_timers *t, uint32_t tick, uint32_t *due_tick, uint32_t *left)
{
    struct hl_shard_timer out[BATCH];
    uint32_t count;
    do {
        assert_int_equal(hl_timers_take(t, tick * TICK + TICK - 1, out, BATCH, &count), HL_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(out[i].shard < MANY);
            assert_int_equal(due_tick[out[i].shard], out[i].tick);
            assert_true(out[i].tick <= tick);
            due_tick[out[i].shard] = UINT32_MAX; /* each comes once */
            --*left;
        }
    } while (count > 0);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(due_tick[i] == UINT32_MAX || due_tick[i] > tick);
    assert_int_equal(t->count, *left);
}

TEST(each_timer_comes_out_once_when_it_is_due)
{
    /* steps within a slot, over slots of each level, and over a gap in which nothing is due */
    static const uint32_t spans[] = {3, 200, 1000, 70000, 20000000};
    static uint32_t due_tick[MANY];
    for (unsigned k = 0; k < sizeof(spans) / sizeof(spans[0]); k++) {
        struct hl_timers t = {0};
        uint64_t seed = k + 1;
        uint32_t left = 0, tick = 0;
        hl_timers_clear(&t, 0);
        for (unsigned i = 0; i < MANY; i++)
            due_tick[i] = UINT32_MAX;
        for (unsigned round = 0; round < 60; round++) {
            for (unsigned i = 0; i < MANY; i++) {
                if (due_tick[i] != UINT32_MAX || draw(&seed) % 4 != 0)
                    continue;
                uint32_t ahead = draw(&seed) % (spans[k] + 1);
                due_tick[i] = draw(&seed) % 50 == 0 ? tick / 2 : tick + ahead; /* some are late */
                assert_int_equal(hl_timers_add(&t, due_tick[i] * TICK, i), HL_OK);
                left++;
            }
            tick += draw(&seed) % (spans[k] / 4 + 2);
            take_all(&t, tick, due_tick, &left);
        }
        take_all(&t, tick += 2 * spans[k], due_tick, &left);
        assert_int_equal(left, 0);
        hl_timers_fini(&t);
    }
}

TEST(a_timer_is_due_a_tick_too_early_at_most_and_never_too_late)
{
    struct hl_timers t = {0};
    struct hl_shard_timer got;
    hl_timers_clear(&t, 0);
    assert_int_equal(hl_timers_add(&t, 2 * TICK + TICK - 1, 5), HL_OK);
    assert_false(take(&t, 2 * TICK - 1, &got));
    assert_true(take(&t, 2 * TICK, &got));
    assert_int_equal(got.shard, 5);
    assert_false(take(&t, INT64_MAX, &got));
    hl_timers_fini(&t);
}

TEST(the_earliest_timer_is_known_on_each_level)
{
    static const uint32_t ticks[] = {3000000000u, 20000000, 70000, 300, 255, 4};
    struct hl_timers t = {0};
    hl_timers_clear(&t, 1000);
    assert_true(hl_timers_next_ms(&t) == INT64_MAX);
    for (unsigned i = 0; i < sizeof(ticks) / sizeof(ticks[0]); i++) {
        assert_int_equal(hl_timers_add(&t, 1000 + (ticks[i] + INT64_C(1)) * TICK, 9), HL_OK);
        assert_int_equal(hl_timers_add(&t, 1000 + ticks[i] * TICK, 9), HL_OK);
        assert_true(hl_timers_next_ms(&t) == 1000 + ticks[i] * TICK);
    }
    hl_timers_fini(&t);
}

TEST(timers_that_are_cleared_leave_their_memory_for_others)
{
    struct hl_timers t = {0};
    struct hl_shard_timer got;
    for (unsigned round = 0; round < 3; round++) {
        hl_timers_clear(&t, round * 1000);
        assert_int_equal(t.count, 0);
        assert_false(take(&t, INT64_C(1) << 40, &got));
        hl_timers_clear(&t, round * 1000);
        for (unsigned i = 0; i < MANY; i++)
            assert_int_equal(hl_timers_add(&t, round * 1000 + i * i * TICK, i), HL_OK);
        uint64_t bytes = hl_timers_bytes(&t);
        assert_in_range(bytes, MANY * sizeof(got), 1 << 20);
        hl_timers_clear(&t, round * 1000);
        assert_int_equal(hl_timers_bytes(&t), bytes);
    }
    hl_timers_fini(&t);
}

TEST(timers_are_old_when_half_of_their_ticks_are_over)
{
    struct hl_timers t = {0};
    struct hl_shard_timer got;
    const int64_t half = (INT64_C(1) << 31) * TICK;
    hl_timers_clear(&t, 500);
    assert_false(hl_timers_are_old(&t, 500 + half - 1));
    assert_true(hl_timers_are_old(&t, 500 + half));
    /* what is too far away waits at the end, not at the front */
    assert_int_equal(hl_timers_add(&t, 500 + 4 * half, 1), HL_OK);
    assert_false(take(&t, 500 + half, &got));
    hl_timers_fini(&t);
}
