/* The words of one connection's pins that may rest: how they are numbered, that both sides see the
 * same ones, and what a client refuses to map. */
#include "support/test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "mem/socket/l3_rests.h"
#include "os/file.h"

static struct l3_rests server;
static int words_fd = -1;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(l3_rests_create(&server, &words_fd), HL_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    l3_rests_unmap(&server);
    hl_closep(&words_fd);
    return 0;
}

TEST_IN(setup, teardown, words_are_taken_once_until_none_is_free)
{
    for (uint32_t word = 1; word <= HL_L3_RESTS; word++)
        assert_int_equal(l3_rests_take(&server), word);
    assert_int_equal(l3_rests_take(&server), 0);
    l3_rests_give(&server, HL_L3_RESTS);
    l3_rests_give(&server, 65);
    assert_int_equal(l3_rests_take(&server), 65); /* the lowest first */
    assert_int_equal(l3_rests_take(&server), HL_L3_RESTS);
    assert_int_equal(l3_rests_take(&server), 0);
}

TEST_IN(setup, teardown, both_sides_see_the_same_words)
{
    struct l3_rests client;
    assert_int_equal(l3_rests_map(&client, words_fd), HL_OK);
    for (uint32_t word = 1; word <= HL_L3_RESTS; word += 101) {
        assert_int_equal(atomic_load(l3_rests_word(&client, word)), 0);
        atomic_store(l3_rests_word(&server, word), word);
        assert_int_equal(atomic_load(l3_rests_word(&client, word)), word);
    }
    l3_rests_unmap(&client);
    assert_null(client.words);
}

TEST(without_words_no_pin_rests)
{
    struct l3_rests none = {0};
    assert_int_equal(l3_rests_take(&none), 0);
    l3_rests_unmap(&none);
}

TEST(a_descriptor_that_the_server_could_shrink_is_refused)
{
    struct l3_rests client = {0};
    char path[64];
    snprintf(path, sizeof(path), "/dev/shm/helios-test-rests-%d", (int)getpid());
    assert_int_equal(hl_file_write_atomic(path, "x", 1), HL_OK);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, HL_L3_RESTS * sizeof(hl_rest_word)), 0);
    assert_int_equal(l3_rests_map(&client, fd), HL_EPERM);
    assert_null(client.words);
    close(fd);
    unlink(path);
}
