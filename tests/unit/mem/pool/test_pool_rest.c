/* Pins at rest: the owner takes them when it wants their room, otherwise the borrower has them, and
 * never both. */
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/pool/pool.h"

#define CAPACITY ((uint64_t)4 * HL_POOL_UNIT)
#define SIZE     1000
#define ROUNDS   200

static char path[64];

static struct hl_pool *open_pool(int quarantine_ms)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(&(struct hl_pool_options){.path = path,
                                                          .capacity = CAPACITY,
                                                          .quarantine_ms = quarantine_ms},
                                NULL, &pool);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    return pool;
}

static hl_status seal(struct hl_pool *pool, int byte, bool kept, struct hl_pool_ref *ref)
{
    struct hl_pool_extent x;
    HL_TRY(hl_pool_alloc(pool, SIZE, &x));
    memset(x.ptr, byte, SIZE);
    uint32_t crc = hl_crc32(0, x.ptr, SIZE);
    return (kept ? hl_pool_seal_kept : hl_pool_seal)(pool, &x, crc, &crc, 1, ref);
}

static void pin(struct hl_pool *pool, const struct hl_pool_ref *ref, struct hl_pool_rest *rest,
                hl_rest_word *word)
{
    struct hl_pool_ref got;
    assert_int_equal(hl_pool_pin(pool, ref->id, ref->offset, &got), HL_OK);
    hl_pool_rest_add(pool, &got, rest, word);
}

static uint64_t quarantined(struct hl_pool *pool)
{
    struct hl_pool_info info;
    hl_pool_info(pool, &info);
    return info.quarantined / HL_POOL_UNIT;
}

TEST(a_word_goes_to_and_fro_until_it_is_recalled)
{
    hl_rest_word word = HL_REST_HELD;
    assert_false(hl_rest_end(&word)); /* it is not at rest */
    assert_true(hl_rest_begin(&word));
    assert_false(hl_rest_begin(&word));
    assert_true(hl_rest_ask(&word)); /* which takes nothing */
    assert_true(hl_rest_end(&word));
    assert_true(hl_rest_begin(&word));
    assert_true(hl_rest_recall(&word));
    assert_false(hl_rest_end(&word));
    assert_false(hl_rest_begin(&word));
    assert_false(hl_rest_recall(&word)); /* once */
    word = HL_REST_HELD;
    assert_false(hl_rest_ask(&word));
    assert_false(hl_rest_begin(&word)); /* the owner has asked for it */
}

TEST(an_eviction_takes_pins_that_rest_and_no_others)
{
    struct hl_pool *pool = open_pool(3600000);
    struct hl_pool_ref ref;
    struct hl_pool_rest rests[2];
    hl_rest_word words[2];
    assert_int_equal(seal(pool, 1, false, &ref), HL_OK);
    pin(pool, &ref, &rests[0], &words[0]);
    pin(pool, &ref, &rests[1], &words[1]);
    assert_true(hl_rest_begin(&words[0]));
    assert_false(hl_pool_rest_used(pool, &rests[0]));
    assert_true(hl_pool_rest_used(pool, &rests[1]));
    assert_false(hl_pool_evict_one(pool, &ref));
    assert_false(hl_rest_end(&words[0]));   /* taken by the owner */
    assert_false(hl_rest_begin(&words[1])); /* it must come back with a message */
    assert_true(hl_pool_rest_used(pool, &rests[1]));
    assert_false(hl_pool_rest_end(pool, &rests[0]));
    assert_true(hl_pool_rest_end(pool, &rests[1]));
    assert_false(hl_pool_evict_one(pool, &ref)); /* now an ordinary pin */
    hl_pool_unpin(pool, &ref);
    assert_true(hl_pool_evict_one(pool, &ref));
    hl_pool_remove(pool);
}

static bool any(void *arg, const struct hl_pool_ref *ref)
{
    (void)arg, (void)ref;
    return true;
}

TEST(a_search_for_room_finds_what_rests_and_leaves_the_rest_alone)
{
    struct hl_pool *pool = open_pool(3600000);
    struct hl_pool_ref refs[3];
    struct hl_pool_rest rests[3];
    hl_rest_word words[3];
    struct hl_pool_evicted out;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seal(pool, i, false, &refs[i]), HL_OK);
        pin(pool, &refs[i], &rests[i], &words[i]);
        hl_pool_touch(pool, &refs[i]);
    }
    assert_true(hl_rest_begin(&words[1]));
    assert_true(hl_rest_begin(&words[2]));
    assert_int_equal(
        hl_pool_evict(pool, &(struct hl_pool_eviction){.bytes = 1, .may_go = any}, &out), HL_OK);
    assert_int_equal(out.shards, 1);
    assert_false(hl_rest_end(&words[1])); /* the less recently used one */
    assert_true(hl_rest_end(&words[2]));
    assert_false(hl_rest_begin(&words[0])); /* a caller that waits for room is told of its end */
    assert_int_equal(quarantined(pool), 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hl_pool_rest_end(pool, &rests[i]), i != 1);
    hl_pool_remove(pool);
}

TEST(a_freed_shard_goes_when_its_pins_rest)
{
    struct hl_pool *pool = open_pool(1);
    struct hl_pool_ref refs[2];
    struct hl_pool_rest rests[2];
    hl_rest_word words[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seal(pool, i, false, &refs[i]), HL_OK);
        pin(pool, &refs[i], &rests[i], &words[i]);
        assert_int_equal(hl_pool_free(pool, refs[i].id), HL_OK);
    }
    assert_true(hl_rest_begin(&words[0]));
    usleep(2000); /* their quarantine */
    hl_pool_beat(pool);
    assert_int_equal(quarantined(pool), 1);
    assert_false(hl_rest_begin(&words[1])); /* its last unpin queues it again */
    assert_true(hl_pool_rest_end(pool, &rests[1]));
    hl_pool_unpin(pool, &refs[1]);
    usleep(2000);
    hl_pool_beat(pool);
    assert_int_equal(quarantined(pool), 0);
    assert_false(hl_pool_rest_end(pool, &rests[0]));
    hl_pool_remove(pool);
}

TEST(a_kept_copy_goes_when_its_pin_rests)
{
    struct hl_pool *pool = open_pool(3600000);
    struct hl_pool_ref ref;
    struct hl_pool_rest rest;
    hl_rest_word word;
    assert_int_equal(seal(pool, 1, true, &ref), HL_OK);
    pin(pool, &ref, &rest, &word);
    assert_true(hl_rest_begin(&word));
    assert_int_equal(hl_pool_evict_kept(pool, ref.id), HL_POOL_KEPT_EVICTED);
    assert_false(hl_pool_rest_end(pool, &rest));
    hl_pool_remove(pool);
}

struct world {
    struct hl_pool *pool;
    struct hl_pool_ref ref;
    hl_rest_word word;
    atomic_uint wrong, taken_up;
};

/* Uses its pin and lets it rest, until it is recalled. */
static void *borrow(void *arg)
{
    struct world *w = arg;
    size_t len;
    const volatile uint8_t *bytes = (uint8_t *)hl_pool_base(w->pool, &len) + w->ref.offset;
    do {
        w->wrong += bytes[0] != 1 || bytes[SIZE - 1] != 1;
        w->taken_up++;
    } while (hl_rest_begin(&w->word) && hl_rest_end(&w->word));
    return NULL;
}

TEST(nobody_has_the_room_of_a_pin_that_is_taken_up)
{
    struct world w = {.pool = open_pool(0)};
    unsigned taken = 0, held = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct hl_pool_rest rest;
        struct hl_pool_ref other;
        pthread_t thread;
        assert_int_equal(seal(w.pool, 1, true, &w.ref), HL_OK);
        pin(w.pool, &w.ref, &rest, &w.word);
        assert_int_equal(pthread_create(&thread, NULL, borrow, &w), 0);
        for (unsigned seen = w.taken_up; w.taken_up < seen + 1 + (unsigned)i % 50;)
            sched_yield(); /* into the middle of it */
        bool evicted = hl_pool_evict_kept(w.pool, w.ref.id) == HL_POOL_KEPT_EVICTED;
        if (evicted) /* other bytes in its place */
            assert_int_equal(seal(w.pool, 2, true, &other), HL_OK);
        pthread_join(thread, NULL);
        assert_int_equal(hl_pool_rest_end(w.pool, &rest), !evicted);
        if (!evicted)
            hl_pool_unpin(w.pool, &w.ref);
        assert_int_equal(hl_pool_evict_kept(w.pool, evicted ? other.id : w.ref.id),
                         HL_POOL_KEPT_EVICTED);
        taken += evicted;
        held += !evicted;
    }
    assert_int_equal(w.wrong, 0);
    assert_true(taken > 0 && held > 0); /* it was met in both states */
    hl_pool_remove(w.pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-rest-%d", (int)getpid());
    int failed = tests_run(argc, argv);
    unlink(path);
    return failed;
}
