/* Pins at rest, between a client and the pool's server: what takes a message, what does not, and
 * who gets the shard's space. */
#include "integration/l3_socket_world.h"
#include "mem/socket/l3_rests.h"

/* The client needs no messages to the server: the server does not run. */
TEST(a_pin_that_was_given_back_is_taken_up_without_the_server)
{
    struct world w;
    struct hl_pool_ref ref, pin;
    world_start(&w, 0);
    struct hl_l3_client *c = connect_to(&w);
    assert_int_equal(put(c, 100, 7, &ref), HL_OK);
    assert_int_equal(hl_l3_pin(c, ref.id, 0, MS, &pin), HL_OK);
    hl_loop_stop(w.loop);
    pthread_join(w.thread, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hl_l3_unpin(c, &pin, 1), HL_OK);
        assert_int_equal(hl_l3_pin(c, ref.id, 0, 1, &pin), HL_OK);
        assert_int_equal(pin.offset, ref.offset);
    }
    assert_int_equal(hl_l3_pin(c, ref.id, 0, 1, &pin), HL_OK); /* twice at the same time */
    assert_false(hl_pool_evict_one(w.pool, &ref));
    hl_l3_server_stats(w.server, &w.stats);
    assert_int_equal(w.stats.pins, 1); /* counted by the server once, however often it is used */
    assert_int_equal(pthread_create(&w.thread, NULL, run_loop, &w), 0);
    /* The pool wants the space: the server is told of the last unpin. */
    assert_int_equal(hl_l3_unpin(c, &pin, MS), HL_OK);
    assert_false(hl_pool_evict_one(w.pool, &ref));
    assert_int_equal(hl_l3_unpin(c, &pin, MS), HL_OK);
    assert_true(hl_pool_evict_one(w.pool, &ref));
    assert_int_equal(hl_l3_unpin(c, &pin, MS), HL_ENOENT);
    hl_l3_close(c);
    world_end(&w);
}

TEST(a_pin_at_rest_is_the_pools_when_it_wants_it)
{
    struct world w;
    struct hl_pool_ref ref, pin, other;
    world_start(&w, 0);
    struct hl_l3_client *a = connect_to(&w), *b = connect_to(&w);
    assert_int_equal(put(a, 100, 7, &ref), HL_OK);
    assert_int_equal(put(a, 100, 8, &other), HL_OK);
    assert_int_equal(hl_l3_pin(a, ref.id, 0, MS, &pin), HL_OK);
    assert_int_equal(hl_l3_unpin(a, &pin, MS), HL_OK);
    assert_int_equal(hl_l3_pin(b, other.id, 0, MS, &pin), HL_OK);
    assert_int_equal(hl_l3_unpin(b, &pin, MS), HL_OK);
    assert_true(hl_pool_evict_one(w.pool, &ref));
    assert_int_equal(hl_l3_pin(a, ref.id, 0, MS, &pin), HL_ENOENT);
    assert_int_equal(hl_pool_free(w.pool, other.id), HL_OK); /* not recalled, and gone anyway */
    assert_int_equal(hl_l3_pin(b, other.id, 0, MS, &pin), HL_ENOENT);
    wait_for_space(&w, 0, 0);
    assert_int_equal(put(a, 100, 9, &ref), HL_OK); /* the connections go on */
    assert_int_equal(hl_l3_pin(b, ref.id, 0, MS, &pin), HL_OK);
    hl_l3_close(b);
    hl_l3_close(a);
    server_end(&w);
    assert_int_equal(w.stats.pins, 0);
    world_end(&w);
}

TEST(more_pins_rest_than_there_are_words)
{
    struct world w;
    struct hl_pool_ref refs[3], pin;
    struct hl_id ids[HL_L3_RESTS + 2];
    world_start(&w, 0);
    struct hl_l3_client *c = connect_to(&w);
    for (size_t i = 0; i < HL_ARRAY_LEN(ids); i++) {
        assert_int_equal(put(c, 100, 7, &refs[i % 3]), HL_OK);
        ids[i] = refs[i % 3].id;
        assert_int_equal(hl_l3_pin(c, ids[i], 0, MS, &pin), HL_OK);
        assert_int_equal(hl_l3_unpin(c, &pin, MS), HL_OK);
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(ids); i++)
        assert_int_equal(hl_pool_free(w.pool, ids[i]), HL_OK);
    wait_for_space(&w, 0, 0);
    hl_l3_close(c);
    world_end(&w);
}

TEST(a_word_is_the_pins_that_it_was_given_for)
{
    struct world w;
    struct hl_pool_ref ref;
    world_start(&w, 0);
    struct hl_l3_client *good = connect_to(&w);
    assert_int_equal(put(good, 100, 1, &ref), HL_OK);
    struct hl_l3_request pin = {
        .type = HL_L3_PIN, .id_hi = ref.id.hi, .id_lo = ref.id.lo, .size = 1};
    struct hl_l3_request unpin = {
        .type = HL_L3_UNPIN, .id_hi = ref.id.hi, .id_lo = ref.id.lo, .offset = ref.offset};
    int fd = raw_connect(&w);
    assert_int_equal(raw(fd, (struct hl_l3_request){.type = HL_L3_HELLO}, -1), HL_OK);
    assert_int_equal(raw(fd, pin, -1), HL_OK); /* this client shares no words */
    assert_int_equal(raw(fd, unpin, -1), HL_OK);
    assert_int_equal(raw(fd, (struct hl_l3_request){.type = HL_L3_REST}, -1), HL_OK);
    assert_int_equal(raw(fd, (struct hl_l3_request){.type = HL_L3_REST}, -1), HL_EEXIST);
    assert_int_equal(raw(fd, pin, -1), HL_OK);
    assert_int_equal(raw(fd, unpin, -1), HL_ENOENT);
    for (uint64_t word = 2; word < 5; word++) {
        unpin.size = word;
        assert_int_equal(raw(fd, unpin, -1), HL_ENOENT);
    }
    unpin.size = 1;
    assert_int_equal(raw(fd, unpin, -1), HL_OK);
    assert_int_equal(raw(fd, unpin, -1), HL_ENOENT);
    close(fd);
    hl_l3_close(good);
    world_end(&w);
}
