/* When chunks of HybridPS are asked for memory, and how much they may keep. */
#include "support/test.h"

#include "core/placement/chunk_request.h"

/* Of 1000 bytes: the watermarks are at 850 and 700, the goal is 775. */
static const struct hl_placement_params usual = {.high_pct = 85, .low_pct = 70};

static uint64_t decide(uint64_t shards, uint64_t stay, uint64_t chunks, uint64_t before)
{
    const struct hl_chunk_tier t = {
        .capacity = 1000, .shards = shards, .stay = stay, .chunks = chunks};
    return hl_chunk_request_decide(&t, &usual, before);
}

TEST(chunks_are_asked_above_the_high_watermark_and_not_at_it)
{
    assert_int_equal(decide(0, 0, 850, 0), 0);
    assert_int_equal(decide(0, 0, 851, 0), 775);
    assert_int_equal(decide(0, 0, 5000, 0), 775);
}

TEST(shards_leave_first)
{
    assert_int_equal(decide(600, 0, 400, 0), 0); /* without the shards it is below the goal */
    assert_int_equal(decide(600, 375, 400, 0), 0);
    assert_int_equal(decide(600, 376, 400, 0), 399);
    assert_int_equal(decide(100, 0, 776, 0), 775); /* not even without them */
    assert_int_equal(decide(900, 900, 0, 0), 0);
}

TEST(a_request_ends_below_the_low_watermark_or_without_chunks)
{
    assert_int_equal(decide(0, 0, 775, 775), 775);
    assert_int_equal(decide(100, 0, 600, 775), 775);
    assert_int_equal(decide(100, 0, 599, 775), 0);
    assert_int_equal(decide(100, 0, 599, 0), 0);
    assert_int_equal(decide(900, 900, 0, 775), 0);
}

TEST(what_was_given_back_may_not_begin_it_anew)
{
    uint64_t asked = decide(50, 0, 900, 0);
    assert_int_equal(asked, 775);
    assert_int_equal(decide(50, 0, asked, asked), asked); /* 825: between the watermarks */
    assert_int_equal(decide(0, 0, asked - 75, asked), asked);
    assert_int_equal(decide(0, 0, asked - 76, asked), 0);
    assert_int_equal(decide(0, 0, 850, 0), 0);
}

TEST(a_request_follows_the_shards_that_stay)
{
    assert_int_equal(decide(300, 300, 600, 0), 475);
    assert_int_equal(decide(300, 200, 600, 475), 575); /* one was unpinned */
    assert_int_equal(decide(400, 400, 475, 475), 375);
}

TEST(shards_that_fill_the_tier_by_themselves_leave_one_byte_to_ask_for)
{
    assert_int_equal(decide(775, 775, 100, 0), 1);
    assert_int_equal(decide(2000, 2000, 100, 0), 1);
    assert_int_equal(decide(800, UINT64_MAX, 100, 0), 1); /* no more can stay than there is */
}

TEST(a_tier_of_unknown_capacity_is_never_asked)
{
    const struct hl_chunk_tier t = {.shards = 10, .stay = 10, .chunks = 1000};
    assert_int_equal(hl_chunk_request_decide(&t, &usual, 0), 0);
    assert_int_equal(hl_chunk_request_decide(&t, &usual, 500), 0);
}

TEST(absurd_numbers_do_not_overflow)
{
    const struct hl_placement_params all = {.high_pct = 100, .low_pct = 100};
    struct hl_chunk_tier t = {
        .capacity = 1000, .shards = UINT64_MAX, .stay = UINT64_MAX, .chunks = UINT64_MAX};
    assert_int_equal(hl_chunk_request_decide(&t, &all, 0), 1);
    t.stay = 0;
    assert_int_equal(hl_chunk_request_decide(&t, &all, 0), 1000);
    assert_int_equal(hl_chunk_request_decide(&t, &all, 1000), 1000);
}

TEST(devices_share_a_request_by_what_they_hold)
{
    assert_int_equal(hl_chunk_request_part(775, 300, 900), 258);
    assert_int_equal(hl_chunk_request_part(775, 900, 900), 775);
    assert_int_equal(hl_chunk_request_part(1, 1, 900), 1); /* asked all the same */
    assert_int_equal(hl_chunk_request_part(775, 0, 900), 0);
    assert_int_equal(hl_chunk_request_part(0, 300, 900), 0);
}
