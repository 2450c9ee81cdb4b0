/* Queues of the CPU runtime. */
#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>

#include "maco/cpu/ring.h"

TEST(an_empty_queue_gives_nothing_though_its_slots_are_zero)
{
    struct hl_maco_spsc a;
    struct hl_maco_mpsc b;
    struct hl_maco_share c;
    uint32_t got = 7;
    assert_int_equal(hl_maco_spsc_init(&a, 2), HL_OK);
    assert_int_equal(hl_maco_mpsc_init(&b, 2), HL_OK);
    assert_int_equal(hl_maco_share_init(&c, 2), HL_OK);
    assert_int_equal(hl_maco_spsc_batch(&a), 0);
    assert_int_equal(hl_maco_mpsc_pop(&b, &got), 0);
    assert_int_equal(hl_maco_share_take(&c, &got), 0);
    assert_int_equal(got, 7);
    hl_maco_spsc_stage(&a, 0);
    assert_int_equal(hl_maco_spsc_batch(&a), 0); /* staged is not published */
    assert_int_equal(hl_maco_spsc_publish(&a), 1);
    assert_int_equal(hl_maco_spsc_batch(&a), 1);
    b.ticket++; /* a producer that has its ticket but has not yet written */
    assert_int_equal(hl_maco_mpsc_push(&b, 5), 1);
    assert_int_equal(hl_maco_mpsc_pop(&b, &got), 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(hl_maco_share_push(&c, i), 1);
    assert_int_equal(hl_maco_share_push(&c, 9), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(hl_maco_share_take(&c, &got), 1);
        assert_int_equal(got, i);
    }
    hl_maco_spsc_fini(&a);
    hl_maco_mpsc_fini(&b);
    hl_maco_share_fini(&c);
}

#define MANY 100000

struct takers {
    struct hl_maco_share ring;
    uint8_t *seen; /* atomic */
    int done;
};

static void *take_all(void *arg)
{
    struct takers *t = arg;
    uint32_t got;
    for (;;) {
        int done = __atomic_load_n(&t->done, __ATOMIC_ACQUIRE);
        if (hl_maco_share_take(&t->ring, &got))
            __atomic_add_fetch(&t->seen[got], 1, __ATOMIC_RELAXED);
        else if (done)
            return NULL;
    }
}

TEST(what_is_shared_is_taken_once)
{
    struct takers t = {.seen = calloc(MANY, 1)};
    pthread_t other[2];
    uint32_t got;
    assert_int_equal(hl_maco_share_init(&t.ring, 4), HL_OK);
    for (int i = 0; i < 2; i++)
        pthread_create(&other[i], NULL, take_all, &t);
    for (uint32_t i = 0; i < MANY; i++)
        while (!hl_maco_share_push(&t.ring, i))
            if (hl_maco_share_take(&t.ring, &got))
                __atomic_add_fetch(&t.seen[got], 1, __ATOMIC_RELAXED);
    __atomic_store_n(&t.done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        pthread_join(other[i], NULL);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(t.seen[i], 1);
    hl_maco_share_fini(&t.ring);
    free(t.seen);
}
