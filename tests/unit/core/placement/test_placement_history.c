/* The history of a shard's moves. */
#include "support/test.h"

#include <string.h>

#include "core/placement/history.h"

#define START INT64_C(1600)

static struct hl_history history;
static struct hl_life life;

static int begin(void **state)
{
    (void)state;
    memset(&life, 0, sizeof(life));
    return hl_history_init(&history, 8, START);
}

static int end(void **state)
{
    (void)state;
    hl_history_fini(&history);
    return 0;
}

static hl_status change_at(struct hl_life *l, uint32_t shard, enum hl_life_event event,
                           int64_t at_ms)
{
    return hl_life_change(l, &history, shard,
                          &(struct hl_change){.at_ms = at_ms, .event = event, .node = 4});
}

static void change(struct hl_life *l, uint32_t shard, enum hl_life_event event, int64_t at_ms)
{
    assert_int_equal(change_at(l, shard, event, at_ms), HL_OK);
}

TEST_IN(begin, end, changes_are_kept_with_their_numbers_the_newest_first)
{
    struct hl_change out[HL_CHANGES_MAX];
    assert_int_equal(hl_life_history(&life, &history, 0, out), 0);
    change(&life, 0, HL_LIFE_ON_LOAD, START + 32);
    change(&life, 0, HL_LIFE_ON_LOADED, START + 64);
    struct hl_change cool = {
        .at_ms = START + 160, .event = HL_LIFE_ON_COOL, .node = 9, .value = 0.25, .limit = 0.5};
    assert_int_equal(hl_life_change(&life, &history, 0, &cool), HL_OK);
    assert_int_equal(hl_life_history(&life, &history, 0, out), 3);
    assert_int_equal(out[0].event, HL_LIFE_ON_COOL);
    assert_int_equal(out[0].from, HL_LIFE_ACTIVE);
    assert_int_equal(out[0].to, HL_LIFE_COOLING);
    assert_int_equal(out[0].at_ms, START + 160);
    assert_int_equal(out[0].node, 9);
    assert_float_equal(out[0].value, 0.25, 0);
    assert_float_equal(out[0].limit, 0.5, 0);
    assert_int_equal(out[1].event, HL_LIFE_ON_LOADED);
    assert_int_equal(out[2].from, HL_LIFE_CREATED);
    assert_int_equal(out[2].at_ms, START + 32);
}

TEST_IN(begin, end, what_the_life_cycle_has_not_is_refused_and_not_kept)
{
    struct hl_change out[HL_CHANGES_MAX];
    change(&life, 0, HL_LIFE_ON_LOAD, START);
    struct hl_life same = life;
    assert_int_equal(change_at(&life, 0, HL_LIFE_ON_IDLE, START + 16), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "preheat"));
    assert_memory_equal(&life, &same, sizeof(life));
    assert_int_equal(hl_life_history(&life, &history, 0, out), 1);
}

TEST_IN(begin, end, a_move_that_is_undone_goes_back_to_where_it_began)
{
    change(&life, 0, HL_LIFE_ON_LOAD, START);
    change(&life, 0, HL_LIFE_ON_UNDONE, START);
    assert_int_equal(life.state, HL_LIFE_CREATED);
    change(&life, 0, HL_LIFE_ON_LOAD, START);
    change(&life, 0, HL_LIFE_ON_LOADED, START);
    change(&life, 0, HL_LIFE_ON_COOL, START);
    change(&life, 0, HL_LIFE_ON_LEAVE, START);
    change(&life, 0, HL_LIFE_ON_REMOTE, START); /* one move follows the other */
    change(&life, 0, HL_LIFE_ON_UNDONE, START);
    assert_int_equal(life.state, HL_LIFE_COOLING);
}

TEST_IN(begin, end, a_busy_shard_takes_old_changes_of_others_never_their_newest)
{
    struct hl_change out[HL_CHANGES_MAX];
    struct hl_life busy = {.older = 0};
    change(&life, 0, HL_LIFE_ON_LOAD, START);
    change(&life, 0, HL_LIFE_ON_LOADED, START);
    change(&life, 0, HL_LIFE_ON_COOL, START);
    change(&busy, 1, HL_LIFE_ON_LOAD, START);
    change(&busy, 1, HL_LIFE_ON_LOADED, START);
    assert_int_equal(hl_life_history(&life, &history, 0, out), 3);
    for (int i = 0; i < 40; i++) {
        change(&busy, 1, HL_LIFE_ON_COOL, START);
        change(&busy, 1, HL_LIFE_ON_WARM, START);
    }
    assert_int_equal(hl_life_history(&life, &history, 0, out), 1);
    assert_int_equal(out[0].event, HL_LIFE_ON_COOL);
    unsigned n = hl_life_history(&busy, &history, 1, out);
    assert_int_equal(n, 1 + 8);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(out[i].event, i % 2 == 0 ? HL_LIFE_ON_WARM : HL_LIFE_ON_COOL);
    assert_true(hl_history_bytes(&history) <= 8 * sizeof(struct hl_history_entry));
}

TEST_IN(begin, end, numbers_wrap)
{
    struct hl_change out[HL_CHANGES_MAX];
    history.written = UINT32_MAX - 3;
    change(&life, 0, HL_LIFE_ON_LOAD, START);
    change(&life, 0, HL_LIFE_ON_LOADED, START);
    for (int i = 0; i < 3; i++) {
        change(&life, 0, HL_LIFE_ON_COOL, START);
        change(&life, 0, HL_LIFE_ON_WARM, START);
    }
    assert_true(history.wrapped);
    assert_int_equal(hl_life_history(&life, &history, 0, out), 8);
    assert_int_equal(out[7].event, HL_LIFE_ON_LOAD);
}

TEST(a_history_has_room)
{
    struct hl_history h;
    assert_int_equal(hl_history_init(&h, 0, 0), HL_EINVAL);
    assert_int_equal(hl_history_init(&h, UINT32_MAX, 0), HL_EINVAL);
    assert_int_equal(hl_history_init(&h, 1000, 0), HL_OK);
    assert_int_equal(h.room, 512);
    hl_history_fini(&h);
}
