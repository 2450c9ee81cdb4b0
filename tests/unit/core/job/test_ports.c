/* Ports at which ranks meet. */
#include "support/test.h"

#include "core/job/ports.h"

TEST(candidates_stay_in_their_range_and_wrap)
{
    int seen[HL_PORTS_COUNT] = {0};
    for (uint64_t skip = 0; skip < HL_PORTS_COUNT; skip++) {
        int port = hl_ports_candidate("127.0.0.1:7400", 3, 2, skip);
        assert_in_range(port, HL_PORTS_FIRST, HL_PORTS_FIRST + HL_PORTS_COUNT - 1);
        assert_int_equal(seen[port - HL_PORTS_FIRST]++, 0); /* each comes once */
    }
    assert_int_equal(hl_ports_candidate("127.0.0.1:7400", 3, 2, HL_PORTS_COUNT),
                     hl_ports_candidate("127.0.0.1:7400", 3, 2, 0));
}

TEST(jobs_attempts_and_clusters_begin_apart)
{
    const char *one = "unix:/run/one.sock", *two = "unix:/run/two.sock";
    int first = hl_ports_candidate(one, 0, 0, 0);
    assert_int_equal(hl_ports_candidate(one, 0, 0, 0),
                     first); /* the same question, the same port */
    assert_int_not_equal(hl_ports_candidate(one, 1, 0, 0), first);
    assert_int_not_equal(hl_ports_candidate(one, 0, 1, 0), first);
    assert_int_not_equal(hl_ports_candidate(two, 0, 0, 0), first);
    assert_int_not_equal(hl_ports_candidate(one, UINT64_MAX / 7, 0, 0), 0);
}

TEST(an_agents_answer_settles_the_port_or_asks_again)
{
    static const struct {
        hl_status answer;
        enum hl_ports_next next;
    } rows[] = {
        {HL_OK, HL_PORTS_SETTLED},         {HL_EBUSY, HL_PORTS_ONWARD},
        {HL_EUNAVAIL, HL_PORTS_AGAIN},     {HL_ETIMEDOUT, HL_PORTS_AGAIN},
        {HL_EUNSUPPORTED, HL_PORTS_BLIND}, {HL_EINVAL, HL_PORTS_BLIND},
        {HL_ECANCELED, HL_PORTS_AGAIN},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_ports_after(rows[i].answer), rows[i].next);
}
