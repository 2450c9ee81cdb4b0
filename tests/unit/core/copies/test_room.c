/* Which tier gets a copy, and what a full pool evicts. */
#include "support/test.h"

#include "core/copies/room.h"

static const struct hl_tier_offer offers[] = {
    {.tier = HL_API_TIER_L2, .device = "", .numa = -1, .quota = 1000, .used = 100},
    {.tier = HL_API_TIER_L1, .device = "emu:0", .numa = 0, .quota = 100, .used = 90},
    {.tier = HL_API_TIER_L1, .device = "emu:1", .numa = 1, .quota = 100, .used = 50},
    {.tier = HL_API_TIER_L1, .device = "emu:2", .numa = 0, .quota = 100, .used = 50},
    {.tier = HL_API_TIER_L1, .device = "cuda:0", .numa = 1, .quota = 0, .used = 1 << 30},
};

static int chosen(enum hl_api_tier tier, const char *device, int numa, uint64_t size)
{
    const struct hl_tier_need need = {.tier = tier, .device = device, .numa = numa, .size = size};
    return hl_tier_choose(offers, sizeof(offers) / sizeof(*offers), &need);
}

TEST(a_copy_goes_to_its_tier_only)
{
    assert_int_equal(chosen(HL_API_TIER_L2, "", 0, 10), 0);
    assert_int_equal(chosen(HL_API_TIER_L4, "", 0, 10), -1);
    assert_int_equal(hl_tier_choose(offers, 0, &(struct hl_tier_need){.device = ""}), -1);
}

TEST(a_named_device_is_taken_though_it_is_full)
{
    assert_int_equal(chosen(HL_API_TIER_L1, "emu:0", 1, 1000), 1);
    assert_int_equal(chosen(HL_API_TIER_L1, "emu:9", 1, 1), -1);
    assert_int_equal(chosen(HL_API_TIER_L2, "emu:0", 0, 1), -1);
}

TEST(room_counts_more_than_nearness)
{
    assert_int_equal(chosen(HL_API_TIER_L1, "", 0, 10), 1);  /* exactly full afterwards */
    assert_int_equal(chosen(HL_API_TIER_L1, "", 0, 11), 3);  /* emu:0 is near, without room */
    assert_int_equal(chosen(HL_API_TIER_L1, "", 0, 51), 4);  /* only the one without a quota */
    assert_int_equal(chosen(HL_API_TIER_L1, "", 1, 20), 2);  /* near and room, before cuda:0 */
    assert_int_equal(chosen(HL_API_TIER_L1, "", -1, 20), 2); /* the first with room */
    assert_int_equal(chosen(HL_API_TIER_L1, "", 0, UINT64_MAX), 4); /* sums do not wrap */
}

TEST(where_nothing_has_room_the_near_one_makes_some)
{
    const struct hl_tier_need need = {
        .tier = HL_API_TIER_L1, .device = "", .numa = 1, .size = 1000};
    assert_int_equal(hl_tier_choose(offers, 4, &need), 2);
}

TEST(a_full_pool_is_emptied_to_its_low_watermark)
{
    struct hl_room room = {.capacity = 1000, .used = 900};
    assert_int_equal(hl_room_to_free(&room, 100, 70), 200); /* 900 - 700 */
    assert_int_equal(hl_room_to_free(&room, 300, 70), 300); /* needed */
    room.used = 600;
    assert_int_equal(hl_room_to_free(&room, 50, 70), 50); /* below it: no more than needed */
}

TEST(what_rests_in_quarantine_is_room_that_comes)
{
    assert_true(hl_room_comes(&(struct hl_room){.free = 10, .quarantined = 90}, 100));
    assert_false(hl_room_comes(&(struct hl_room){.free = 10, .quarantined = 89}, 100));
    /* Free bytes alone were tried already, and are fragmented. */
    assert_false(hl_room_comes(&(struct hl_room){.free = 100, .quarantined = 0}, 100));
}

/* What a pool evicts, for a caller that can wait for the archive and for one that can't. */
TEST(derived_shards_go_first_and_spilled_ones_last)
{
    static const struct {
        struct hl_room room;
        bool waits[HL_ROOM_KINDS], hurries[HL_ROOM_KINDS];
    } rows[] = {
        {{.has_archive = false}, {true, false, false}, {true, false, false}},
        {{.has_archive = true}, {true, true, false}, {true, true, false}},
        {{.has_archive = true, .writes_behind = true}, {true, true, true}, {true, true, false}},
        /* an unreachable archive takes nothing */
        {{.has_archive = false, .writes_behind = true}, {true, false, false}, {true, false, false}},
    };

    assert_true(HL_ROOM_DERIVED < HL_ROOM_ARCHIVED && HL_ROOM_ARCHIVED < HL_ROOM_SPILLED);
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        for (int kind = 0; kind < HL_ROOM_KINDS; kind++) {
            enum hl_room_kind k = (enum hl_room_kind)kind;
            assert_int_equal(hl_room_gives(&rows[i].room, k, true), rows[i].waits[kind]);
            assert_int_equal(hl_room_gives(&rows[i].room, k, false), rows[i].hurries[kind]);
        }
}

TEST(room_is_looked_for_where_something_may_go)
{
    static const struct {
        struct hl_room room;
        uint64_t need;
        bool comes, imports;
    } rows[] = {
        {{.capacity = 100}, 100, false, false}, /* nothing can be evicted */
        {{.capacity = 100, .quarantined = 1}, 100, true, false},
        {{.capacity = 100, .has_derived = true}, 100, true, true},
        {{.capacity = 100, .has_derived = true}, 101, false, false},
        {{.capacity = 100, .has_archive = true}, 100, true, true},
        {{.capacity = 100, .has_archive = true}, 101, false, false},
        {{.capacity = 100, .has_archive = true, .writes_behind = true}, 101, false, true},
        {{.capacity = 100, .has_derived = true, .writes_behind = true}, 101, false, false},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_room_may_come(&rows[i].room, rows[i].need), rows[i].comes);
        assert_int_equal(hl_room_takes_import(&rows[i].room, rows[i].need), rows[i].imports);
    }
}
