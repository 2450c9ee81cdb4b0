/* Which versions are loaded into a pool that has room, and which of them first. */
#include "support/test.h"

#include <string.h>

#include "base/status.h"
#include "core/placement/warm.h"

static void expect_chosen(struct hl_warm_version *v, size_t count, uint64_t room, const char *names)
{
    size_t chosen = hl_warm_choose(v, count, room);
    assert_int_equal(chosen, strlen(names));
    for (size_t i = 0; i < chosen; i++)
        assert_int_equal(*(const char *)v[i].version.version, names[i]);
}

TEST(what_leaves_a_full_pool_last_comes_first)
{
    struct hl_warm_version v[] = {
        {{.version = "o", .used_ms = 900}, 1},
        {{.version = "p", .used_ms = 1, .is_pinned = true}, 1},
        {{.version = "m", .used_ms = 10, .is_newest = true}, 1},
        {{.version = "n", .used_ms = 20, .is_newest = true}, 1},
        {{.version = "a", .used_ms = 5, .sequence = 1}, 1},
        {{.version = "b", .used_ms = 5, .sequence = 2}, 1},
    };
    expect_chosen(v, HL_ARRAY_LEN(v), 6, "pnmoba");
    expect_chosen(v, HL_ARRAY_LEN(v), 3, "pnm");
}

TEST(a_version_that_has_no_room_as_a_whole_is_passed_over)
{
    struct hl_warm_version v[] = {
        {{.version = "a", .used_ms = 40}, 60},
        {{.version = "b", .used_ms = 30}, 50},
        {{.version = "c", .used_ms = 20}, 40},
        {{.version = "d", .used_ms = 10}, 1},
    };
    expect_chosen(v, HL_ARRAY_LEN(v), 100, "ac");
    expect_chosen(v, HL_ARRAY_LEN(v), 0, "");
    expect_chosen(v, 0, 100, "");
}

TEST(what_the_pool_has_already_is_not_chosen)
{
    struct hl_warm_version v[] = {{{.version = "a", .used_ms = 2}, 0},
                                  {{.version = "b", .used_ms = 1}, 5}};
    expect_chosen(v, HL_ARRAY_LEN(v), 5, "b");
}

TEST(room_ends_at_the_low_watermark)
{
    assert_int_equal(hl_warm_room(70, 30), 40);
    assert_int_equal(hl_warm_room(70, 70), 0);
    assert_int_equal(hl_warm_room(70, 90), 0);
}
