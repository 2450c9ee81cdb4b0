#include "support/test.h"

#include <sched.h>

#include "os/cpus.h"

TEST(quotas_are_rounded_up)
{
    assert_int_equal(hl_cpus_quota("150000 100000\n"), 2);
    assert_int_equal(hl_cpus_quota("100000 100000\n"), 1);
    assert_int_equal(hl_cpus_quota("5000 100000"), 1);
    assert_int_equal(hl_cpus_quota("400000\n 100000\n "), 4); /* v1: two files */
}

TEST(no_quota_and_garbage_are_no_limit)
{
    assert_int_equal(hl_cpus_quota("max 100000\n"), 0);
    assert_int_equal(hl_cpus_quota("-1\n 100000\n"), 0);
    assert_int_equal(hl_cpus_quota(""), 0);
    assert_int_equal(hl_cpus_quota("7"), 0);
    assert_int_equal(hl_cpus_quota("1 0"), 0);
}

TEST(the_affinity_mask_counts)
{
    cpu_set_t all, one;
    unsigned before = hl_cpus_usable();
    assert_true(before >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_true(before <= (unsigned)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(hl_cpus_usable(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}
