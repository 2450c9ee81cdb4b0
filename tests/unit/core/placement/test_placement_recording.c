/* The ring of the last accesses: a reader that comes in time gets all of them. */
#include <string.h>

#include "core/placement/recording.h"
#include "support/test.h"

static void add(struct hl_recording *r, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        hl_recording_add(r, &(struct hl_recorded){.count = i});
}

/* Takes everything available: consecutive numbers from `first`. */
static uint32_t take_all(const struct hl_recording *r, uint64_t *cursor, uint64_t *lost,
                         uint32_t first)
{
    const struct hl_recorded *e;
    uint32_t n = 0;
    for (; (e = hl_recording_take(r, cursor, lost)) != NULL; n++)
        assert_int_equal(e->count, first + n);
    return n;
}

TEST(readers_of_their_own_pace_get_all_that_comes)
{
    struct hl_recording r = {0};
    uint64_t quick = 0, slow = 0, lost = 0;
    assert_int_equal(hl_recording_start(&r), HL_OK);
    add(&r, 0, 3);
    assert_int_equal(take_all(&r, &quick, &lost, 0), 3);
    add(&r, 3, 4);
    assert_int_equal(take_all(&r, &quick, &lost, 3), 4);
    assert_int_equal(take_all(&r, &quick, &lost, 7), 0);
    assert_int_equal(take_all(&r, &slow, &lost, 0), 7);
    assert_int_equal(lost, 0);
    hl_recording_stop(&r);
}

TEST(what_is_overwritten_is_lost_and_counted)
{
    struct hl_recording r = {0};
    uint64_t cursor = 0, lost = 0;
    assert_int_equal(hl_recording_start(&r), HL_OK);
    add(&r, 0, HL_RECORDING_ROOM);
    assert_int_equal(take_all(&r, &cursor, &lost, 0), HL_RECORDING_ROOM);
    assert_int_equal(lost, 0); /* it was exactly full */
    add(&r, HL_RECORDING_ROOM, HL_RECORDING_ROOM + 5);
    assert_int_equal(take_all(&r, &cursor, &lost, HL_RECORDING_ROOM + 5), HL_RECORDING_ROOM);
    assert_int_equal(lost, 5);
    cursor = UINT64_MAX; /* without a starting point */
    assert_int_equal(take_all(&r, &cursor, &lost, 0), 0);
    add(&r, 9, 1);
    assert_int_equal(take_all(&r, &cursor, &lost, 9), 1);
    assert_int_equal(lost, 5);
    hl_recording_stop(&r);
}

TEST(one_that_is_off_keeps_nothing)
{
    struct hl_recording r = {0};
    uint64_t cursor = 0, lost = 0;
    add(&r, 0, 3);
    assert_false(hl_recording_is_on(&r));
    assert_int_equal(hl_recording_start(&r), HL_OK);
    assert_int_equal(take_all(&r, &cursor, &lost, 0), 0);
    add(&r, 0, 1);
    hl_recording_stop(&r);
    assert_int_equal(hl_recording_start(&r), HL_OK);
    assert_int_equal(take_all(&r, &cursor, &lost, 0), 0);
    hl_recording_stop(&r);
}

TEST(accesses_lie_since_the_report_before_and_within_what_a_client_keeps)
{
    assert_int_equal(hl_recorded_span(1000, 1400), 400);
    assert_int_equal(hl_recorded_span(1000, 900), 0); /* its report arrived late */
    assert_int_equal(hl_recorded_span(1000, 100000), HL_RECORDED_SPAN_MS);
    assert_int_equal(hl_recorded_span(-1, 100000), HL_RECORDED_SPAN_MS);
}
