/* Which Controller a holder obeys. */
#include "core/migration/epoch.h"
#include "support/test.h"

#include <string.h>

static const struct hl_id ours = {1, 2}, others = {3, 4}, unsaid = {0, 0};

static hl_status hear(struct hl_epoch *newest, struct hl_id cluster, uint64_t number)
{
    return hl_epoch_hear(newest, &(struct hl_epoch){cluster, number});
}

TEST(an_older_controller_is_refused_and_changes_nothing)
{
    struct hl_epoch newest = {0};
    assert_int_equal(hear(&newest, ours, 7), HL_OK);
    assert_int_equal(hear(&newest, unsaid, 6), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "belongs to Controller epoch 6, and epoch 7"));
    assert_int_equal(hear(&newest, ours, 6),
                     HL_EPERM); /* it registers with a Controller that was replaced */
    assert_int_equal(newest.number, 7);
    assert_int_equal(hear(&newest, unsaid, 7), HL_OK);
}

TEST(an_order_tells_of_a_newer_controller)
{
    struct hl_epoch newest = {ours, 7};
    assert_int_equal(hear(&newest, unsaid, 9), HL_OK);
    assert_true(hl_id_equal(newest.cluster, ours));
    assert_int_equal(newest.number, 9);
    assert_int_equal(hear(&newest, unsaid, 8), HL_EPERM);
}

TEST(another_cluster_begins_with_its_own_numbers)
{
    struct hl_epoch newest = {ours, 7};
    assert_int_equal(hear(&newest, others, 2), HL_OK);
    assert_true(hl_id_equal(newest.cluster, others));
    assert_int_equal(hear(&newest, unsaid, 1), HL_EPERM);
    assert_int_equal(hear(&newest, unsaid, 2), HL_OK);
}

TEST(what_no_controller_has_ordered_is_obeyed)
{
    struct hl_epoch newest = {ours, 7};
    assert_int_equal(hear(&newest, unsaid, 0), HL_OK);
    assert_int_equal(newest.number, 7);
}

TEST(each_start_is_newer_than_all_before_whatever_the_clock)
{
    assert_int_equal(hl_epoch_next(0, 1700000000), 1700000000);
    assert_int_equal(hl_epoch_next(1700000000, 1700000000), 1700000001);
    assert_int_equal(hl_epoch_next(1700000000, 12), 1700000001);
    assert_int_equal(hl_epoch_next(5, -3), 6);
    assert_int_equal(hl_epoch_next(1600000000, 1700000000),
                     1700000000); /* from an old copy of its state */
}

TEST(it_is_read_as_it_was_written)
{
    struct hl_epoch read = {0}, kept = {ours, 1700000001};
    char text[HL_EPOCH_TEXT_MAX];
    hl_epoch_print(&kept, text);
    assert_string_equal(text, "00000000000000010000000000000002 1700000001\n");
    assert_int_equal(hl_epoch_parse(text, &read), HL_OK);
    assert_true(hl_id_equal(read.cluster, ours));
    assert_int_equal(read.number, kept.number);
    static const char *const damaged[] = {"", "7", "00000000000000010000000000000002", "x 7",
                                          "00000000000000010000000000000002 7 8"};
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++)
        assert_int_equal(hl_epoch_parse(damaged[i], &read), HL_EINVAL);
    assert_int_equal(read.number, kept.number);
}
