/* Which versions leave a full pool, and which of them first. */
#include "support/test.h"

#include <string.h>

#include "core/placement/pool_order.h"

static void expect_order(struct hl_pool_version *v, size_t count, const char *names)
{
    size_t leaving = hl_pool_order(v, count);
    assert_int_equal(leaving, strlen(names));
    for (size_t i = 0; i < leaving; i++)
        assert_int_equal(*(const char *)v[i].version, names[i]);
}

TEST(what_was_used_longest_ago_leaves_first)
{
    struct hl_pool_version v[] = {{.version = "a", .used_ms = 30},
                                  {.version = "b", .used_ms = 10},
                                  {.version = "c", .used_ms = 20}};
    expect_order(v, 3, "bca");
}

TEST(the_newest_version_of_a_model_outlives_the_older_ones)
{
    struct hl_pool_version v[] = {{.version = "n", .used_ms = 1, .is_newest = true},
                                  {.version = "o", .used_ms = 900},
                                  {.version = "m", .used_ms = 2, .is_newest = true},
                                  {.version = "p", .used_ms = 800}};
    expect_order(v, 4, "ponm");
}

TEST(pinned_versions_do_not_leave)
{
    struct hl_pool_version v[] = {{.version = "x", .used_ms = 1, .is_pinned = true},
                                  {.version = "y", .used_ms = 2},
                                  {.version = "z", .is_newest = true, .is_pinned = true}};
    expect_order(v, 3, "y");
    expect_order(v, 0, "");
}

TEST(of_those_used_at_once_the_lower_number_leaves_first)
{
    struct hl_pool_version v[] = {{.version = "b", .used_ms = 5, .sequence = 2},
                                  {.version = "a", .used_ms = 5, .sequence = 1}};
    expect_order(v, 2, "ab");
}
