/* The owner of a pool: it outlives the process, and half of a change is not taken for an owner. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mem/pool/pool.h"

#define MIB ((uint64_t)1 << 20)

static char path[64];

static struct hl_pool *open_pool(void)
{
    struct hl_pool *pool = NULL;
    hl_status st =
        hl_pool_open(&(struct hl_pool_options){.path = path, .capacity = MIB}, NULL, &pool);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return pool;
}

static struct hl_pool_claim claimed(struct hl_pool *pool)
{
    struct hl_pool_claim c;
    hl_pool_claimed(pool, &c);
    return c;
}

/* Of the same file, while the pool is open. */
static struct hl_pool_super *super_of(struct hl_pool *pool)
{
    size_t len;
    return hl_pool_base(pool, &len);
}

static const struct hl_id A = {1, 2}, B = {3, 4};

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/hl-claim-%d", getpid());
    unlink(path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

TEST_IN(setup, teardown, a_new_pool_is_unclaimed)
{
    struct hl_pool *pool = open_pool();
    assert_true(hl_id_is_none(claimed(pool).cluster));
    assert_int_equal(claimed(pool).revision, 0);
    hl_pool_close(pool);
}

TEST_IN(setup, teardown, the_next_owner_finds_the_claim)
{
    struct hl_pool *pool = open_pool();
    hl_pool_claim(pool, &(struct hl_pool_claim){A, 7});
    hl_pool_claim(pool, &(struct hl_pool_claim){A, 8});
    hl_pool_close(pool);
    pool = open_pool();
    assert_true(hl_id_equal(claimed(pool).cluster, A));
    assert_int_equal(claimed(pool).revision, 8);
    hl_pool_claim(pool, &(struct hl_pool_claim){B, 1});
    hl_pool_close(pool);
    pool = open_pool();
    assert_true(hl_id_equal(claimed(pool).cluster, B));
    assert_int_equal(claimed(pool).revision, 1);
    hl_pool_close(pool);
}

/* The words of the claim were spare and zero before claims existed. */
TEST_IN(setup, teardown, a_pool_of_before_there_were_claims_is_unclaimed)
{
    struct hl_pool *pool = open_pool();
    hl_pool_claim(pool, &(struct hl_pool_claim){A, 7});
    size_t from = offsetof(struct hl_pool_super, region_crc) + sizeof(uint32_t);
    memset((char *)super_of(pool) + from, 0, offsetof(struct hl_pool_super, incarnation) - from);
    hl_pool_close(pool);
    pool = open_pool();
    assert_true(hl_id_is_none(claimed(pool).cluster));
    assert_int_equal(claimed(pool).revision, 0);
    hl_pool_close(pool);
}

TEST_IN(setup, teardown, half_a_change_is_no_owner)
{
    struct hl_pool *pool = open_pool();
    hl_pool_claim(pool, &(struct hl_pool_claim){A, 7});
    super_of(pool)->cluster.lo = B.lo; /* the owner died between two words */
    hl_pool_close(pool);
    pool = open_pool();
    assert_true(hl_id_is_none(claimed(pool).cluster));
    hl_pool_claim(pool, &(struct hl_pool_claim){B, 9});
    assert_true(hl_id_equal(claimed(pool).cluster, B));
    assert_int_equal(claimed(pool).revision, 9);
    hl_pool_close(pool);
}
