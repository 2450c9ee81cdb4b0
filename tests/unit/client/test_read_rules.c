/* What a read does after a failure of the pool. */
#include "support/test.h"

#include "client/client_private.h"

TEST(a_read_without_time_keeps_the_failure_that_it_has)
{
#define X(name, number, text) HL_##name,
    static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        static helios_client client; /* without a daemon: asking one would crash */
        struct operation op = {.client = &client, .deadline_ns = 1};
        hl_status st = all[i];
        assert_false(read_recover(&op, &st));
        assert_int_equal(st, all[i]); /* the failure stays the same */
    }
}

/* The pool does not have the shard, and the way to its other copies has failed. */
TEST(a_read_waits_for_copies_that_failed_unless_that_is_final)
{
#define X(name, number, text) HL_##name,
    static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X
    static helios_client client = {.controller_seen = true};
    client.controller = (struct hl_rpc_peer *)&client; /* only its presence counts */
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        bool final = all[i] == HL_ENOENT || all[i] == HL_EINVAL || all[i] == HL_ENOMEM;
        bool away = all[i] == HL_EUNAVAIL || all[i] == HL_ETIMEDOUT;
        struct operation op = {.client = &client, .deadline_ns = hl_now_ns() + 60 * HL_NS_PER_S};
        hl_status st = HL_ENOENT;
        assert_int_equal(read_retry(&op, (struct hl_id){1, 2}, all[i], &st), !final);
        op.unsure_ns = 1; /* it has been so since the machine was started */
        assert_int_equal(read_retry(&op, (struct hl_id){1, 2}, all[i], &st), away);
        assert_int_equal(st, HL_ENOENT);
    }
}

/* What a search of two holders, asked in this order, ends with. */
static hl_status search(hl_status first, hl_status second)
{
    struct copies_failure failure = {.st = HL_ENOENT};
    copies_note_failure(&failure, hl_fail(first, "the first holder's failure"));
    copies_note_failure(&failure, hl_fail(second, "the second holder's failure"));
    assert_string_equal(failure.text, failure.st == second ? "the second holder's failure"
                                                           : "the first holder's failure");
    return failure.st;
}

/* Otherwise a read would give up after 5 s although a holder that is away may come back. */
TEST(a_holder_that_is_away_counts_in_whatever_order_holders_are_asked)
{
    assert_int_equal(search(HL_EUNAVAIL, HL_ENOENT), HL_EUNAVAIL);
    assert_int_equal(search(HL_ENOENT, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_int_equal(search(HL_ETIMEDOUT, HL_ECORRUPT), HL_ETIMEDOUT);
    assert_int_equal(search(HL_ECORRUPT, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_int_equal(search(HL_ECORRUPT, HL_ENOENT), HL_ECORRUPT);
    assert_int_equal(search(HL_ENOENT, HL_ECANCELED), HL_ECANCELED);
    assert_int_equal(search(HL_ENOENT, HL_ENOENT), HL_ENOENT);
}
