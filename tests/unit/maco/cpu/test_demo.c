/* The demo of the three policies: what it computes, in which order, what it refuses. */
#include "support/test.h"

#include <math.h>

#include "base/status.h"
#include "helios/maco.h"

TEST(the_demo_keeps_its_rounds)
{

    enum { N = 1003, ROUNDS = 10, WORKERS = 4 };

    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        float data[N], want[N];
        int32_t order[ROUNDS * WORKERS];
        uint8_t seen[WORKERS][ROUNDS] = {{0}};
        for (int i = 0; i < N; i++) {
            data[i] = want[i] = (float)i / 7;
            for (int k = 0; k < ROUNDS; k++)
                want[i] = fmaf(want[i], 1.5f, 0.1f);
        }
        if (maco_demo(data, N, ROUNDS, WORKERS, policy, order) != 0)
            fail_msg("%s", hl_error_text());
        assert_memory_equal(data, want, sizeof(data));
        for (int i = 0; i < ROUNDS * WORKERS; i++) {
            assert_int_equal(order[i] % 1000, i / WORKERS);
            assert_in_range(order[i] / 1000, 0, WORKERS - 1);
            assert_int_equal(seen[order[i] / 1000][order[i] % 1000]++, 0);
        }
    }
}

TEST(the_demo_refuses_what_it_could_not_tell)
{
    float data[4] = {0};
    int32_t order[4];
    assert_int_equal(maco_demo(data, 4, 1000, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 0, 1, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 5, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 0, MACO_DIRECT, order), HL_EINVAL);
    assert_int_equal(maco_demo(data, 4, 1, 1, 3, order), HL_EINVAL);
    assert_int_equal(maco_demo(NULL, 4, 1, 1, MACO_DIRECT, order), HL_EINVAL);
}
