/* A heap compared with a counting sort. */
#include "base/heap.h"

#include "support/test.h"

TEST(entries_come_out_by_key_and_then_by_tie)
{
    enum { KEYS = 13, TIES = 17, N = KEYS * TIES };
    struct hl_heap h = {0};
    for (uint32_t i = 0; i < N; i++) {
        uint32_t k = i * 100 % N; /* each number once, because 100 and N have no common divisor */
        assert_int_equal(hl_heap_push(&h, k / TIES, k % TIES), HL_OK);
    }
    assert_int_equal(h.n, N);
    for (uint32_t k = 0; k < N; k++) {
        struct hl_heap_entry e = hl_heap_pop(&h);
        assert_int_equal(e.key, k / TIES);
        assert_int_equal(e.tie, k % TIES);
    }
    assert_int_equal(h.n, 0);
    hl_heap_fini(&h);
}

TEST(pushes_between_pops_keep_the_order)
{
    struct hl_heap h = {0};
    for (uint64_t k = 9; k > 0; k--)
        assert_int_equal(hl_heap_push(&h, k, 0), HL_OK);
    assert_int_equal(hl_heap_pop(&h).key, 1);
    assert_int_equal(hl_heap_push(&h, 1, 0), HL_OK);
    assert_int_equal(hl_heap_push(&h, 20, 0), HL_OK);
    assert_int_equal(hl_heap_pop(&h).key, 1);
    assert_int_equal(hl_heap_pop(&h).key, 2);
    hl_heap_fini(&h);
}
