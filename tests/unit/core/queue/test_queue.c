/* What a pass decides about a line of gangs, case by case. */
#include "support/test.h"

#include "unit/core/queue/queue_rig.h"

static struct rig r;

static int end_of_rig(void **state)
{
    (void)state;
    hl_queue_pass_fini(&r.pass);
    return 0;
}

#define RULE(name) TEST_IN(NULL, end_of_rig, name)

static const struct hl_queue_verdict *verdict(int gang)
{
    return &r.pass.verdicts[gang];
}

static void waits_for(int gang, enum hl_api_wait_reason reason)
{
    assert_false(verdict(gang)->starts);
    assert_string_equal(hl_api_wait_reason_name(verdict(gang)->reason),
                        hl_api_wait_reason_name(reason));
}

/* ---- queues ---------------------------------------------------------------------------------- */

RULE(a_list_of_queues_says_weight_quota_and_who_is_stopped_for_others)
{
    struct hl_queues q;
    assert_int_equal(hl_queues_parse("prod weight=4, dev  quota=16 preempt=off,x", &q), HL_OK);
    assert_int_equal(q.count, 3);
    assert_string_equal(q.list[1].name, "dev");
    assert_int_equal(q.list[0].weight, 4);
    assert_int_equal(q.list[0].quota, 0);
    assert_int_equal(q.list[1].quota, 16);
    assert_true(q.list[0].preempts);
    assert_false(q.list[1].preempts);
    assert_int_equal(hl_queues_find(&q, ""), 0);
    assert_int_equal(hl_queues_find(&q, "x"), 2);
    assert_int_equal(hl_queues_find(&q, "y"), -1);
}

/* What is kept of a forgotten job counts as the job itself would. */
RULE(use_that_is_kept_as_a_number_fades_like_that_of_its_jobs)
{
    const struct hl_queue_use use = {.slots = 8, .placed_ms = 1000, .released_ms = 3000};
    double then = hl_queue_used(&use, 4000, 500), later = hl_queue_used(&use, 5000, 500);
    assert_true(then > 0);
    assert_true(hl_queue_faded(then, 500, 500) * 2 == then);
    assert_in_range((int)(1e9 * (hl_queue_faded(then, 1000, 500) / later) + 0.5), 999999990,
                    1000000010);
    assert_true(hl_queue_faded(then, -5, 500) == then); /* a clock that was set back */
    assert_true(hl_queue_faded(then, 0, 0) == 0);       /* the past does not count */
}

RULE(a_list_of_queues_that_is_wrong_is_refused_with_the_place)
{
    static const char *const wrong[][2] = {{"", "no name"},
                                           {"a,,b", "no name"},
                                           {"a,a", "twice"},
                                           {"A", "'A' can't name a queue"},
                                           {"-a", "'-a' can't name a queue"},
                                           {"a weight=0", "weight=0: give a number from 1"},
                                           {"a weight=4x", "weight=4x"},
                                           {"a quota=", "quota="},
                                           {"a preempt=maybe", "'preempt=maybe' is not one of"},
                                           {"a preempt=o", "'preempt=o' is not one of"},
                                           {"a fast", "'fast' is not one of"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hl_queues q = {.count = 77};
        assert_int_equal(hl_queues_parse(wrong[i][0], &q), HL_EINVAL);
        assert_int_equal(q.count, 77);
        assert_non_null(strstr(hl_error_text(), wrong[i][1]));
    }
}

RULE(use_counts_half_after_each_half_life)
{
    const struct hl_queue_use ended = {.slots = 8, .placed_ms = 1000, .released_ms = 2000};
    const struct hl_queue_use runs = {.slots = 8, .placed_ms = 1000};
    double then = hl_queue_used(&ended, 2000, 1000);
    assert_float_equal(then, 4, 1e-9); /* half of what is held for ever */
    assert_float_equal(hl_queue_used(&ended, 3000, 1000), then / 2, 1e-9);
    assert_float_equal(hl_queue_used(&runs, 2000, 1000), then, 1e-9);
    assert_float_equal(hl_queue_used(&runs, 100000, 1000), 8, 1e-9);
    assert_float_equal(hl_queue_used(&ended, 2000, 0), 0, 0);
    const struct hl_queue_use twice = {
        .slots = 8, .placed_ms = 1000, .released_ms = 2000, .before = 8000};
    assert_true(hl_queue_used(&twice, 2000, 1000) > then);
}

/* ---- the line -------------------------------------------------------------------------------- */

static void line_is(const int *want, int n)
{
    assert_int_equal(r.pass.line_count, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(r.pass.line[i], want[i]);
        assert_int_equal(verdict(want[i])->place, i + 1);
    }
}

RULE(the_line_goes_by_priority_then_by_submission)
{
    rig_init(&r, 1, 1, "default");
    for (int i = 0; i < 4; i++)
        rig_add(&r, 0, i % 2, 1, 1);
    rig_pass(&r);
    line_is((const int[]){1, 3, 0, 2}, 4);
}

RULE(queues_take_turns_by_their_weights)
{
    rig_init(&r, 1, 1, "a weight=3, b");
    for (int i = 0; i < 8; i++)
        rig_add(&r, i / 4, 0, 1, 1); /* four of a, then four of b */
    rig_pass(&r);
    /* shares before each: a 0, 1/3, 2/3, 1; b 0, 1, 2, 3 */
    line_is((const int[]){0, 4, 1, 2, 3, 5, 6, 7}, 8);
}

RULE(a_queue_that_has_used_more_comes_later_and_so_does_one_that_holds_more)
{
    rig_init(&r, 2, 1, "a, b");
    rig_add(&r, 0, 0, 1, 1);
    rig_add(&r, 1, 0, 1, 1);
    r.used[0] = 0.5;
    rig_pass(&r);
    line_is((const int[]){1, 0}, 2);
    rig_init(&r, 3, 1, "a, b");
    rig_add_running(&r, 0, 0, 1, 0);
    rig_add(&r, 0, 0, 1, 1);
    rig_add(&r, 1, 0, 1, 1);
    rig_pass(&r);
    line_is((const int[]){2, 1}, 2);
}

RULE(who_waits_long_gains_priority_in_the_line_and_not_against_those_that_run)
{
    rig_init(&r, 1, 1, "default");
    rig_add_running(&r, 0, 1, 1, 0);
    rig_add(&r, 0, 1, 1, 1);
    rig_add(&r, 0, 0, 1, 1);
    r.in.age_ms = 1000;
    r.gangs[2].since_ms -= 2000;
    rig_pass(&r);
    line_is((const int[]){2, 1}, 2);
    assert_false(verdict(0)->stops);
}

/* ---- quota ----------------------------------------------------------------------------------- */

RULE(a_queue_stays_within_its_quota_and_nobody_passes_who_waits_for_it)
{
    rig_init(&r, 4, 1, "a quota=2, b");
    int runs = rig_add_running(&r, 0, 0, 1, 0);
    int big = rig_add(&r, 0, 0, 2, 1), small = rig_add(&r, 0, 0, 1, 1);
    int other = rig_add(&r, 1, 0, 3, 1);
    rig_pass(&r);
    waits_for(big, HL_API_WAIT_REASON_QUOTA_EXCEEDED);
    waits_for(small, HL_API_WAIT_REASON_PRIORITY_BEHIND);
    assert_int_equal(verdict(small)->other, big);
    assert_true(verdict(other)->starts);
    assert_false(verdict(runs)->stops);
}

RULE(a_gang_above_its_quota_has_only_its_own_queue_stopped)
{
    rig_init(&r, 4, 1, "a quota=2, b");
    int mine = rig_add_running(&r, 0, 0, 2, 0), other = rig_add_running(&r, 1, 0, 1, 2);
    int urgent = rig_add(&r, 0, 5, 1, 1);
    rig_pass(&r);
    waits_for(urgent, HL_API_WAIT_REASON_QUOTA_EXCEEDED);
    assert_true(verdict(mine)->stops);
    assert_int_equal(verdict(mine)->other, urgent);
    assert_false(verdict(other)->stops);
}

/* ---- backfill -------------------------------------------------------------------------------- */

/* Two servers of one slot; the gang on the first one ends in 100 s, `head` needs both. */
static int backfill_rig(int64_t limit_ms)
{
    rig_init(&r, 2, 1, "default");
    int runs = rig_add_running(&r, 0, 0, 1, 0);
    r.gangs[runs].limit_ms = limit_ms;
    return rig_add(&r, 0, 0, 2, 1);
}

RULE(a_gang_passes_the_first_one_if_it_ends_before_that_can_start)
{
    int head = backfill_rig(100000);
    int long_one = rig_add(&r, 0, 0, 1, 1), unlimited = rig_add(&r, 0, 0, 1, 1);
    int short_one = rig_add(&r, 0, 0, 1, 1);
    int64_t start = r.in.now_ms + 100000 + RIG_GRACE_MS;
    r.gangs[long_one].limit_ms = 100001;
    r.gangs[short_one].limit_ms = 100000;
    rig_pass(&r);
    waits_for(head, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(verdict(head)->start_ms, start);
    waits_for(long_one, HL_API_WAIT_REASON_RESERVED_FOR);
    assert_int_equal(verdict(long_one)->other, head);
    assert_int_equal(verdict(long_one)->start_ms, start);
    waits_for(unlimited, HL_API_WAIT_REASON_RESERVED_FOR);
    assert_true(verdict(short_one)->starts);
}

RULE(what_runs_without_a_limit_may_end_at_any_time_so_nobody_passes_within_the_reservation)
{
    int head = backfill_rig(0);
    int short_one = rig_add(&r, 0, 0, 1, 1);
    r.gangs[short_one].limit_ms = 1;
    rig_pass(&r);
    waits_for(head, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(verdict(head)->start_ms, 0);
    waits_for(short_one, HL_API_WAIT_REASON_RESERVED_FOR);
}

static int add_limited(int slots, int64_t limit_ms)
{
    int g = rig_add(&r, 0, 0, slots, 1);
    r.gangs[g].limit_ms = limit_ms;
    return g;
}

/* Four slots, held for another 1000 ms. By hand: the head has them from 1010 to 1520, then two
 * gangs of two share them until 1630, when the first of these ends. */
RULE(those_behind_the_reservation_are_told_when_slots_will_be_there)
{
    rig_init(&r, 1, 4, "default");
    int runs = rig_add_running(&r, 0, 0, 4, 0);
    r.gangs[runs].limit_ms = 1000;
    int head = add_limited(4, 500), second = add_limited(2, 100), endless = add_limited(2, 0);
    int never = add_limited(5, 100), last = add_limited(1, 100), unknown = add_limited(4, 100);
    rig_pass(&r);
    assert_int_equal(verdict(head)->start_ms, r.in.now_ms + 1010);
    waits_for(second, HL_API_WAIT_REASON_PRIORITY_BEHIND);
    assert_int_equal(verdict(second)->start_ms, r.in.now_ms + 1520);
    assert_int_equal(verdict(endless)->start_ms, r.in.now_ms + 1520);
    assert_int_equal(verdict(never)->start_ms, 0);
    assert_int_equal(verdict(last)->start_ms, r.in.now_ms + 1630);
    assert_int_equal(verdict(unknown)->start_ms, 0); /* the endless one holds two of its slots */
}

/* A gang that starts now is expected to run as long as its limit. */
RULE(gangs_that_start_in_this_pass_give_their_slots_back_in_the_estimate)
{
    rig_init(&r, 2, 1, "default");
    int now = add_limited(2, 300), head = add_limited(2, 200), next = add_limited(1, 50);
    rig_pass(&r);
    assert_true(verdict(now)->starts);
    assert_int_equal(verdict(head)->start_ms, r.in.now_ms + 310);
    assert_int_equal(verdict(next)->start_ms, r.in.now_ms + 520);
}

RULE(a_gang_passes_beside_the_reservation_whatever_its_limit)
{
    rig_init(&r, 3, 2, "default");
    rig_add_running(&r, 0, 0, 1, 0); /* the first server is half used */
    int second = rig_add_running(&r, 0, 0, 2, 1);
    int third = rig_add_running(&r, 0, 0, 1, 2);
    r.gangs[second].limit_ms = 1000;
    r.gangs[third].limit_ms = 2000;
    int head = rig_add(&r, 0, 0, 2, 2); /* needs a whole server: the second one, in a second */
    int beside = rig_add(&r, 0, 0, 2, 1), behind = rig_add(&r, 0, 0, 1, 1);
    rig_pass(&r);
    waits_for(head, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(verdict(head)->start_ms, r.in.now_ms + 1000 + RIG_GRACE_MS);
    assert_true(verdict(beside)->starts);
    waits_for(behind, HL_API_WAIT_REASON_PRIORITY_BEHIND);
    assert_int_equal(verdict(behind)->other, head);
}

RULE(a_gang_that_no_end_helps_keeps_nothing_from_others)
{
    rig_init(&r, 2, 1, "default");
    r.away[1] = true;
    int head = rig_add(&r, 0, 0, 2, 1), small = rig_add(&r, 0, 0, 1, 1);
    rig_pass(&r);
    waits_for(head, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_true(verdict(small)->starts);
}

RULE(a_gang_that_is_held_back_for_a_reason_of_its_own_keeps_nothing_from_others)
{
    rig_init(&r, 1, 1, "default");
    int first = rig_add(&r, 0, 0, 1, 1), second = rig_add(&r, 0, 0, 1, 1);
    r.gangs[first].blocked = HL_API_WAIT_REASON_VERSION_UNAVAILABLE;
    rig_pass(&r);
    waits_for(first, HL_API_WAIT_REASON_VERSION_UNAVAILABLE);
    assert_true(verdict(second)->starts);
}

RULE(a_pass_over_many_gangs_asks_for_each_shape_a_few_times_only)
{
    rig_init(&r, 2, 1, "default");
    rig_add_running(&r, 0, 0, 1, 0);
    for (int i = 0; i < 60; i++) {
        int g = rig_add(&r, 0, 0, 2, 1);
        r.gangs[g].shape = 0;
    }
    rig_pass(&r);
    assert_true(r.questions < 8);
}

/* ---- who has to go --------------------------------------------------------------------------- */

RULE(the_fewest_gangs_are_stopped_and_of_those_the_ones_with_least_to_lose)
{
    rig_init(&r, 4, 1, "default");
    int one[4];
    for (int i = 0; i < 4; i++) {
        one[i] = rig_add_running(&r, 0, 0, 1, i);
        r.gangs[one[i]].placed_ms -= 1000 * (4 - i);
    }
    r.gangs[one[0]].saved_ms = r.in.now_ms - 1; /* the oldest has saved just now */
    int urgent = rig_add(&r, 0, 1, 2, 1);
    rig_pass(&r);
    waits_for(urgent, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_int_equal(verdict(urgent)->start_ms, r.in.now_ms + RIG_GRACE_MS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(verdict(one[i])->stops, i == 0 || i == 3);
    assert_int_equal(verdict(one[0])->other, urgent);

    rig_init(&r, 4, 1, "default");
    int small = rig_add_running(&r, 0, 0, 1, 0), large = rig_add_running(&r, 0, 0, 2, 1);
    int last = rig_add_running(&r, 0, 0, 1, 3);
    r.gangs[large].placed_ms -= 5000000; /* more to lose, but one instead of two */
    rig_add(&r, 0, 1, 2, 1);
    rig_pass(&r);
    assert_true(verdict(large)->stops);
    assert_false(verdict(small)->stops || verdict(last)->stops);
}

RULE(nobody_is_stopped_where_that_does_not_help)
{
    rig_init(&r, 2, 2, "default");
    int low = rig_add_running(&r, 0, 0, 1, 0);
    rig_add_running(&r, 0, 9, 1, 0); /* on the same server */
    rig_add_running(&r, 0, 9, 1, 1);
    int urgent = rig_add(&r, 0, 5, 2, 2); /* needs a whole server */
    rig_pass(&r);
    assert_false(verdict(low)->stops);
    waits_for(urgent, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
}

RULE(equals_are_not_stopped_nor_those_of_a_queue_that_says_so)
{
    rig_init(&r, 3, 1, "a, b preempt=off");
    int equal = rig_add_running(&r, 0, 5, 1, 0), quiet = rig_add_running(&r, 1, 0, 1, 1);
    int stays = rig_add_running(&r, 0, 0, 1, 2);
    r.gangs[stays].stays = true;
    rig_add(&r, 0, 5, 1, 1);
    int other = rig_add(&r, 1, 9, 1, 1);
    rig_pass(&r);
    assert_false(verdict(equal)->stops || verdict(quiet)->stops || verdict(stays)->stops);
    r.gangs[other].queue = 0;
    r.in.preempt = false;
    rig_settle(&r);
    rig_pass(&r);
    assert_false(verdict(equal)->stops);
    r.in.preempt = true;
    rig_settle(&r);
    rig_pass(&r);
    assert_true(verdict(equal)->stops); /* that was the reason for holding them back */
}

RULE(who_had_others_stopped_gets_their_slots_though_others_come_first_in_the_line)
{
    rig_init(&r, 1, 1, "default");
    int victim = rig_add(&r, 0, 0, 1, 1), urgent = rig_add(&r, 0, 1, 1, 1);
    int later = rig_add(&r, 0, 9, 1, 1);
    r.gangs[victim].preemptor = urgent;
    rig_pass(&r);
    line_is((const int[]){urgent, later, victim}, 3);
    assert_true(verdict(urgent)->starts);
    waits_for(victim, HL_API_WAIT_REASON_PRIORITY_BEHIND);
    assert_int_equal(verdict(victim)->other, later);
}

RULE(while_its_victims_stop_a_gang_stops_nobody_else)
{
    rig_init(&r, 2, 1, "default");
    int stopping = rig_add_running(&r, 0, 0, 1, 0), other = rig_add_running(&r, 0, 0, 1, 1);
    int urgent = rig_add(&r, 0, 1, 1, 1);
    r.gangs[stopping].phase = HL_QUEUE_STOPS;
    r.gangs[stopping].preemptor = urgent;
    rig_pass(&r);
    waits_for(urgent, HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS);
    assert_false(verdict(other)->stops || verdict(stopping)->stops);
    assert_int_equal(verdict(urgent)->start_ms, r.in.now_ms + RIG_GRACE_MS);
}

/* ---- what comes back ------------------------------------------------------------------------- */

RULE(a_gang_that_backs_off_starts_later_and_keeps_the_slots_that_it_had)
{
    rig_init(&r, 2, 1, "default");
    int late = rig_add(&r, 0, 0, 1, 1), other = rig_add(&r, 0, 9, 1, 1),
        third = rig_add(&r, 0, 9, 1, 1);
    r.gangs[late].damaged = true;
    r.gangs[late].blocked = HL_API_WAIT_REASON_BACK_OFF;
    r.old[late][0] = true;
    rig_pass(&r);
    waits_for(late, HL_API_WAIT_REASON_BACK_OFF);
    assert_true(verdict(other)->starts);
    assert_int_equal(r.owner[RIG_PER], other); /* not on the reserved slot */
    assert_false(verdict(third)->starts);
}

RULE(a_damaged_gang_comes_first_and_keeps_the_slots_that_it_had)
{
    rig_init(&r, 3, 1, "default");
    int damaged = rig_add(&r, 0, 0, 2, 1), urgent = rig_add(&r, 0, 9, 1, 1);
    rig_add_running(&r, 0, 9, 1, 2);
    r.gangs[damaged].damaged = true;
    r.old[damaged][0 * RIG_PER] = r.old[damaged][1 * RIG_PER] = true;
    r.away[1] = true; /* the server that it lost */
    rig_pass(&r);
    waits_for(damaged, HL_API_WAIT_REASON_WAITING_FOR_RECOVERY);
    waits_for(urgent, HL_API_WAIT_REASON_RESERVED_FOR);
    r.away[1] = false;
    rig_settle(&r);
    rig_pass(&r);
    assert_true(verdict(damaged)->starts);
}
