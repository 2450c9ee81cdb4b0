/* After which failures of the pool another copy is looked for. */
#include "support/test.h"

#include "client/client_private.h"

TEST(another_copy_is_read_where_it_would_not_fail_alike)
{
#define X(name, number, text) HL_##name,
    static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        bool helps = false;
        switch (all[i]) {
        case HL_ECORRUPT:  /* the pool's copy is bad */
        case HL_ENOENT:    /* it has none */
        case HL_ESTALE:    /* the daemon was restarted */
        case HL_EUNAVAIL:  /* it is away */
        case HL_ETIMEDOUT: /* or stuck */
            helps = true;
            break;
        default:
            break;
        }
        assert_int_equal(read_worth_looking(all[i]), helps);
    }
}

TEST(a_read_without_time_keeps_the_failure_that_it_has)
{
#define X(name, number, text) HL_##name,
    static const hl_status all[] = {HL_STATUS_MAP(X)};
#undef X
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        static helios_client client; /* of no daemon: to ask one would crash */
        struct operation op = {.client = &client, .deadline_ns = 1};
        hl_status st = all[i];
        assert_false(read_recover(&op, &st));
        assert_int_equal(st, all[i]); /* the failure stays what it was */
    }
}
