/* Writable views: helios_map_private against a real helios-l3d. */
#include "support/test.h"

#include "view_world.h"

#define BYTES (3 * MIB + 12345)

static struct world world;

static int setup(void **state)
{
    (void)state;
    world_start(&world, "32MiB");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_end(&world);
    return 0;
}

static helios_shard put(helios_client *c, const char *model, const void *data)
{
    static const int64_t shape[] = {(int64_t)BYTES};
    const helios_tensor t = {.name = "w", .dtype = "U8", .shape = shape, .rank = 1, .data = data};
    helios_shard shard;
    if (helios_version_put(c, model, 1, 0, 0, "head", &t, 1, &shard) != HELIOS_OK)
        fail_msg("helios_version_put: %s", helios_last_error());
    return shard;
}

TEST(what_is_written_is_seen_by_nobody_else)
{
    static const char *const paths[] = {"shm", "net"};
    for (size_t i = 0; i < 2; i++) {
        unsigned char *w = noise(BYTES, 15);
        helios_client *c = world_client(&world, paths[i], 0, 0);
        helios_shard s = put(c, "one", w);
        const void *shared;
        void *mine, *other;
        size_t size;
        assert_int_equal(helios_map(c, s.id, &shared, NULL), HELIOS_OK);
        assert_int_equal(helios_map_private(c, s.id, &mine, &size), HELIOS_OK);
        assert_int_equal(helios_map_private(c, s.id, &other, NULL), HELIOS_OK);
        assert_int_equal(size, s.size);
        assert_memory_equal(mine, shared, size);
        memset(mine, 0xa5, size / 2);
        assert_memory_equal(other, shared, size);
        assert_memory_equal((char *)mine + size / 2, (const char *)shared + size / 2,
                            size - size / 2);
        assert_non_null(memmem(shared, size, w, BYTES));
        unsigned char *copy = malloc(size);
        assert_int_equal(helios_get(c, s.id, copy, size), HELIOS_OK); /* checks every MiB */
        assert_memory_equal(copy, shared, size);
        assert_int_equal(helios_unmap(c, shared), HELIOS_OK);
        assert_int_equal(helios_unmap(c, mine), HELIOS_OK);
        assert_memory_equal(other, copy, size);
        assert_int_equal(helios_unmap(c, other), HELIOS_OK);
        assert_int_equal(helios_unmap(c, mine), HELIOS_EINVAL);
        free(copy);
        free(w);
        helios_close(c);
    }
}

/* Unwritten pages are the pool's: the pin must hold them, also after a restart. */
TEST(it_stays_as_it_is_when_its_shard_is_removed)
{
    for (int killed = 0; killed < 2; killed++) {
        unsigned char *w = noise(BYTES, 16);
        helios_client *c = world_client(&world, "shm", 0, 0);
        helios_shard s = put(c, "kept", w), other = put(c, "other", w);
        void *view, *more;
        size_t size;
        char byte;
        assert_int_equal(helios_map_private(c, s.id, &view, &size), HELIOS_OK);
        if (killed) {
            world_kill(&world);
            world_launch(&world);
            world_wait(&world);
            /* This call needs the socket, so the old pin is restored when it returns. */
            assert_int_equal(helios_map_private(c, other.id, &more, NULL), HELIOS_OK);
        }
        world_free_shard(&world, &s);
        assert_int_equal(helios_get_range(c, s.id, 0, &byte, 1), HELIOS_ENOENT);
        world_fill(&world, BYTES);
        assert_non_null(memmem(view, size, w, BYTES));
        free(w);
        helios_close(c);
        world_end(&world); /* a fresh pool for the next test */
        world_start(&world, "32MiB");
    }
}

TESTS_IN(setup, teardown)
