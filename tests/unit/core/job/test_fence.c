/* Which starts of containers arrive too late. */
#include "core/job/fence.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

TEST(a_start_behind_its_stop_is_refused_and_the_others_of_its_attempt_are_not)
{
    struct hl_fence f = {0};
    hl_fence_stop(&f, 5, "j.1.0"); /* it was never started here */
    assert_int_equal(hl_fence_start(&f, 5, "j.1.0"), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "j.1.0 comes too late: it has been stopped"));
    assert_int_equal(hl_fence_start(&f, 5, "j.1.1"), HL_OK);
    assert_int_equal(hl_fence_start(&f, 5, "k.1.0"), HL_OK);
    assert_int_equal(hl_fence_start(&f, 5, "j.2.0"), HL_OK);
}

TEST(the_same_start_may_come_twice)
{
    struct hl_fence f = {0};
    assert_int_equal(hl_fence_start(&f, 5, "j.1.0"), HL_OK);
    assert_int_equal(hl_fence_start(&f, 5, "j.1.0"), HL_OK);
    hl_fence_stop(&f, 5, "j.1.0");
    assert_int_equal(hl_fence_start(&f, 5, "j.1.0"), HL_EPERM);
}

TEST(a_start_of_an_earlier_attempt_is_refused_whichever_container_began_the_later_one)
{
    struct hl_fence f = {0};
    assert_int_equal(hl_fence_start(&f, 5, "a.b.3.1"), HL_OK); /* the job is a.b */
    assert_int_equal(hl_fence_start(&f, 5, "a.b.2.0"), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "attempt 3 of the job has begun"));
    hl_fence_stop(&f, 5, "a.b.4.7");
    assert_int_equal(hl_fence_start(&f, 5, "a.b.3.2"), HL_EPERM);
    assert_int_equal(hl_fence_start(&f, 5, "a.2.0"), HL_OK);
}

/* A late stop of attempt 1 does not concern attempt 2, whose record stays. */
TEST(a_late_stop_does_not_open_the_fence_of_a_later_attempt)
{
    struct hl_fence f = {0};
    hl_fence_stop(&f, 5, "j.2.0");
    hl_fence_stop(&f, 5, "j.1.0");
    assert_int_equal(hl_fence_start(&f, 5, "j.2.0"), HL_EPERM);
    assert_int_equal(hl_fence_start(&f, 5, "j.1.0"), HL_EPERM);
}

/* Its store may be an older copy in which the attempt does not exist. */
TEST(a_newer_controller_begins_anew_and_an_unsaid_one_does_not)
{
    struct hl_fence f = {0};
    hl_fence_stop(&f, 5, "j.2.0");
    assert_int_equal(hl_fence_start(&f, 0, "j.2.0"), HL_EPERM);
    assert_int_equal(hl_fence_start(&f, 6, "j.1.0"), HL_OK);
    assert_int_equal(hl_fence_start(&f, 6, "j.2.0"), HL_OK);
}

TEST(the_last_thousand_are_remembered_and_no_more)
{
    struct hl_fence f = {0};
    char id[64];
    for (int i = 0; i <= HL_FENCE_MAX; i++) {
        snprintf(id, sizeof(id), "j%d.1.0", i);
        hl_fence_stop(&f, 5, id);
    }
    assert_int_equal(f.count, HL_FENCE_MAX);
    assert_int_equal(hl_fence_start(&f, 5, "j1.1.0"), HL_EPERM);
    assert_int_equal(hl_fence_start(&f, 5, "j1024.1.0"), HL_EPERM);
    assert_int_equal(hl_fence_start(&f, 5, "j0.1.0"), HL_OK);
}

TEST(other_ids_have_no_attempts)
{
    struct hl_fence f = {0};
    hl_fence_stop(&f, 5, "live");
    assert_int_equal(hl_fence_start(&f, 5, "live"), HL_OK);
    assert_true(hl_fence_is_earlier("j.1.3", "j.2.0"));
    assert_false(hl_fence_is_earlier("j.2.0", "j.2.1"));
    assert_false(hl_fence_is_earlier("j.3.0", "j.2.1"));
    assert_false(hl_fence_is_earlier("k.1.0", "j.2.0"));
    assert_false(hl_fence_is_earlier("live", "j.2.0"));
}
