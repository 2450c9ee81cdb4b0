/* When a lease may be taken. */
#include "support/test.h"

#include "base/clock.h"
#include "ranktabled/lease.h"

static json_t *make(const char *holder, const char *renewed)
{
    return json_pack("{s:{s:s s:s s:i}}", "spec", "holderIdentity", holder, "renewTime", renewed,
                     "leaseDurationSeconds", 15);
}

static bool may(const char *holder, const char *renewed, struct lease_seen *seen, uint64_t now_s)
{
    json_t *lease = make(holder, renewed);
    bool yes = lease_may_take(lease, "me", seen, now_s * HL_NS_PER_S);
    json_decref(lease);
    return yes;
}

TEST(free_ones_and_ones_own)
{
    struct lease_seen seen = {0};
    assert_true(may("", "a", &seen, 1));
    assert_true(may("me", "a", &seen, 1));
    assert_false(may("other", "a", &seen, 1));
}

/* By the time since a change was seen, whichever clock wrote the renewal. */
TEST(one_that_is_not_renewed)
{
    struct lease_seen seen = {0};
    assert_false(may("other", "1970", &seen, 100));
    assert_false(may("other", "1970", &seen, 115));
    assert_false(may("other", "2999", &seen, 116)); /* renewed */
    assert_false(may("other", "2999", &seen, 131));
    assert_true(may("other", "2999", &seen, 132));
}
