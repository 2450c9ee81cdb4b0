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
