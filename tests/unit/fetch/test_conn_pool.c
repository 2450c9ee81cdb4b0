/* Connections kept for the next transfer; here a client is only its address in an array. */
#include "support/test.h"

#include <string.h>

#include "fetch/conn_pool.h"

struct hl_net_client {
    int number;
};

static struct hl_net_client clients[HL_CONN_POOL_MAX + 1];

static struct hl_conn_lease made(const struct hl_conn_pool *pool, int i)
{
    return (struct hl_conn_lease){&clients[i], pool->epoch};
}

static struct hl_net_client *give(struct hl_conn_pool *pool, const char *key, int i, hl_status st)
{
    struct hl_conn_lease lease = made(pool, i);
    hl_conn_pool_release(pool, key, &lease, st);
    return lease.client;
}

TEST(a_connection_given_back_is_the_next_one)
{
    struct hl_conn_pool pool = {.max = 4};
    assert_null(hl_conn_pool_acquire(&pool, "").client);
    assert_null(give(&pool, "", 0, HL_OK));
    assert_null(give(&pool, "", 1, HL_ENOENT)); /* the server refused: the connection is fine */
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "").client, &clients[1]);
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "").client, &clients[0]);
    assert_null(hl_conn_pool_acquire(&pool, "").client);
}

TEST(a_broken_connection_is_not_kept)
{
    static const hl_status broken[] = {HL_EUNAVAIL, HL_ETIMEDOUT, HL_EPROTO, HL_ESTALE,
                                       HL_ECANCELED};
    struct hl_conn_pool pool = {.max = 4};
    for (size_t i = 0; i < HL_ARRAY_LEN(broken); i++)
        assert_ptr_equal(give(&pool, "", 0, broken[i]), &clients[0]);
    assert_null(hl_conn_pool_acquire(&pool, "").client);
}

TEST(a_refusal_does_not_break_a_connection)
{
    static const hl_status fine[] = {HL_OK,       HL_ENOENT, HL_EEXIST,       HL_EBUSY, HL_ENOSPC,
                                     HL_ECORRUPT, HL_EINVAL, HL_EUNSUPPORTED, HL_ENOMEM};
    static const hl_status broken[] = {HL_EUNAVAIL, HL_ETIMEDOUT, HL_EPROTO, HL_ESTALE,
                                       HL_ECANCELED};
    for (size_t i = 0; i < HL_ARRAY_LEN(fine); i++)
        assert_false(hl_conn_is_broken(fine[i]));
    for (size_t i = 0; i < HL_ARRAY_LEN(broken); i++)
        assert_true(hl_conn_is_broken(broken[i]));
}

TEST(each_place_has_its_own)
{
    struct hl_conn_pool pool = {.max = 4};
    assert_null(give(&pool, "a:1", 0, HL_OK));
    assert_null(give(&pool, "b:1", 1, HL_OK));
    assert_null(hl_conn_pool_acquire(&pool, "c:1").client);
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "a:1").client, &clients[0]);
    assert_null(hl_conn_pool_acquire(&pool, "a:1").client);
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "b:1").client, &clients[1]);
}

TEST(the_one_that_has_lain_longest_makes_room)
{
    struct hl_conn_pool pool = {.max = 2};
    assert_null(give(&pool, "old:1", 0, HL_OK));
    assert_null(give(&pool, "a:1", 1, HL_OK));
    assert_ptr_equal(give(&pool, "a:1", 2, HL_OK), &clients[0]);
    assert_null(hl_conn_pool_acquire(&pool, "old:1").client);
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "a:1").client, &clients[2]);
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "a:1").client, &clients[1]);
}

TEST(what_was_on_loan_over_a_new_epoch_is_not_kept)
{
    struct hl_conn_pool pool = {.max = 4};
    struct hl_net_client *out[HL_CONN_POOL_MAX];
    struct hl_conn_lease before = made(&pool, 0);
    assert_null(give(&pool, "", 1, HL_OK));
    assert_null(give(&pool, "", 2, HL_OK));
    assert_int_equal(hl_conn_pool_clear(&pool, out), 2);
    assert_true(out[0] == &clients[1] && out[1] == &clients[2]);
    hl_conn_pool_release(&pool, "", &before, HL_OK);
    assert_ptr_equal(before.client, &clients[0]);
    assert_null(hl_conn_pool_acquire(&pool, "").client);
    assert_null(give(&pool, "", 3, HL_OK));
    assert_ptr_equal(hl_conn_pool_acquire(&pool, "").client, &clients[3]);
}

TEST(a_pool_that_keeps_none_and_a_place_without_a_name_that_fits)
{
    char key[HL_CONN_POOL_KEY + 1];
    struct hl_conn_pool none = {.max = 0}, pool = {.max = HL_CONN_POOL_MAX};
    assert_ptr_equal(give(&none, "", 0, HL_OK), &clients[0]);
    memset(key, 'x', HL_CONN_POOL_KEY);
    key[HL_CONN_POOL_KEY] = '\0';
    assert_ptr_equal(give(&pool, key, 0, HL_OK), &clients[0]); /* two long ones could differ */
    for (int i = 0; i < HL_CONN_POOL_MAX; i++)
        assert_null(give(&pool, "a:1", i, HL_OK));
    assert_ptr_equal(give(&pool, "a:1", HL_CONN_POOL_MAX, HL_OK), &clients[0]);
}
