/* Attributes of one shard's use, compared with the specification's example, with computation by
 * hand and with a list of all accesses. */
#include "support/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/placement/attributes.h"

#define S     INT64_C(1000)
#define START (1000000 * S)

static struct hl_placement_params params;
static struct hl_attributes attr;

static int begin(void **state)
{
    (void)state;
    hl_placement_params_init(&params);
    hl_attributes_init(&attr, START);
    return 0;
}

static void access_at(uint16_t node, uint32_t count, int64_t at_ms)
{
    hl_attributes_access(&attr, &params, &(struct hl_access){.node = node, .count = count}, at_ms);
}

static uint32_t count_at(int64_t now_ms)
{
    return hl_attributes_count(&attr, &params, now_ms);
}

/* ---- HeatScore ---- */

TEST_IN(begin, NULL, heat_is_that_of_the_specifications_example)
{
    access_at(0, 20, START);
    assert_int_equal(count_at(START + 100 * S), 20);
    double heat = hl_attributes_heat(&attr, &params, START + 100 * S);
    /* 0.7 * 20 / 300 + 0.3 * exp(-100 / 120); the specification adds rounded terms, 0.1767 */
    assert_float_equal(heat, 0.177046, 1e-6);
    assert_float_equal(heat, 0.1767, 5e-4);
    double frequency = 0.0467, fresh = heat - 0.7 * 20 / 300;
    assert_float_equal(frequency + floor(fresh * 1e3) / 1e3, 0.1767, 1e-9);
}

TEST_IN(begin, NULL, each_weight_scales_its_term)
{
    access_at(0, 30, START);
    params.alpha = 1;
    params.beta = 0;
    assert_float_equal(hl_attributes_heat(&attr, &params, START + 60 * S), 0.1, 1e-9);
    params.alpha = 0;
    params.beta = 1;
    assert_float_equal(hl_attributes_heat(&attr, &params, START + 120 * S), exp(-1), 1e-9);
    params.tau_ms = 60 * S;
    assert_float_equal(hl_attributes_heat(&attr, &params, START + 120 * S), exp(-2), 1e-9);
}

TEST_IN(begin, NULL, a_shard_without_accesses_is_cold)
{
    assert_float_equal(hl_attributes_heat(&attr, &params, START), 0, 0);
    assert_float_equal(hl_attributes_stability(&attr, &params, START + 900 * S), 0, 0);
    assert_float_equal(hl_attributes_fluidity(&attr, &params, START + 900 * S), 0, 0);
}

/* ---- N ---- */

TEST_IN(begin, NULL, accesses_count_for_the_window_and_a_fifteenth_more)
{
    access_at(0, 7, START);
    assert_int_equal(count_at(START + 300 * S), 7);
    assert_int_equal(count_at(START + 320 * S - 1), 7);
    assert_int_equal(count_at(START + 320 * S), 0);
}

TEST_IN(begin, NULL, slices_begin_with_the_first_access)
{
    access_at(0, 7,
              START + 7 * S); /* within the first slice of a window that began with the shard */
    assert_int_equal(count_at(START + 327 * S - 1), 7);
    assert_int_equal(count_at(START + 327 * S), 0);
}

TEST_IN(begin, NULL, an_age_dates_an_access_back_and_is_clamped)
{
    access_at(0, 1, START);
    struct hl_access old = {.node = 0, .count = 5, .age_ms = 90 * S};
    hl_attributes_access(&attr, &params, &old, START + 100 * S);
    assert_int_equal(attr.last_ms, START + 10 * S);
    /* another one that claims to be an hour old counts as old as the window */
    old = (struct hl_access){.node = 0, .count = 2, .age_ms = 3600 * S};
    hl_attributes_access(&attr, &params, &old, START + 100 * S);
    assert_int_equal(attr.last_ms, START + 10 * S);
    assert_int_equal(count_at(START + 100 * S), 8);
    assert_int_equal(count_at(START + 130 * S), 6);
    /* and one from the future counts as now */
    old = (struct hl_access){.node = 0, .count = 1, .age_ms = -3600 * S};
    hl_attributes_access(&attr, &params, &old, START + 110 * S);
    assert_int_equal(attr.last_ms, START + 110 * S);
}

TEST_IN(begin, NULL, counts_stop_at_their_limit)
{
    access_at(3, UINT32_MAX, START);
    access_at(3, 1, START + 1);
    assert_int_equal(count_at(START + 1), UINT16_MAX);
    struct hl_reader_count readers[HL_READERS];
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 1, readers), 1);
    assert_float_equal(readers[0].count, UINT16_MAX, 0);
    access_at(3, 0, START + 500 * S); /* no access */
    assert_int_equal(attr.last_ms, START + 1);
}

struct listed {
    int64_t at_ms;
    uint32_t count;
};

/* Everything in the window is counted, and nothing that is older than it by a fifteenth. */
TEST_IN(begin, NULL, n_agrees_with_a_list_of_all_accesses)
{
    static struct listed list[4000];
    size_t n = 0;
    uint64_t random = 12345;
    int64_t now = START;
    for (unsigned i = 0; i < 4000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        bool pause = (random >> 40) % 97 == 0;
        now += (int64_t)((random >> 33) % (pause ? 400000 : 3000));
        int64_t age = (int64_t)((random >> 20) % 5000);
        struct hl_access access = {.node = 0, .count = (random >> 50) % 4, .age_ms = age};
        hl_attributes_access(&attr, &params, &access, now);
        list[n++] = (struct listed){now - age, access.count};
        uint32_t least = 0, most = 0;
        for (size_t k = n; k-- > 0 && list[k].at_ms > now - 330 * S;) {
            least += list[k].at_ms > now - 300 * S ? list[k].count : 0;
            most += list[k].at_ms > now - 320 * S ? list[k].count : 0;
        }
        assert_in_range(count_at(now), least, most);
    }
}

TEST_IN(begin, NULL, another_window_keeps_what_was_counted)
{
    for (int i = 0; i < 300; i++)
        access_at(1, 1, START + i * S);
    int64_t now = START + 300 * S;
    params.window_ms = 60 * S;
    hl_attributes_rewindow(&attr, &params, 300 * S, now);
    assert_in_range(count_at(now), 60 - 20, 60 + 20 + 4); /* slices of 20 s were kept */
    struct hl_reader_count readers[HL_READERS];
    assert_int_equal(hl_attributes_readers(&attr, &params, now, readers), 1);
    assert_float_equal(readers[0].count, 300, 0);
    assert_int_equal(count_at(now + 64 * S), 0);
}

/* ---- stability and fluidity ---- */

TEST_IN(begin, NULL, stability_is_frequency_by_regularity_by_age)
{
    /* 20 accesses at equal intervals: CV 0; N = 20 = half; residence 600 s = its tau */
    for (int i = 0; i < 20; i++)
        access_at(0, 1, START + (400 + 10 * i) * S);
    double s = hl_attributes_stability(&attr, &params, START + 600 * S);
    assert_float_equal(s, 0.5 * 1 * (1 - exp(-1)), 1e-6);
}

TEST_IN(begin, NULL, irregular_accesses_are_less_stable)
{
    /* intervals of 10 and 30 s alternate: mean 20, standard deviation 10, CV 0.5 */
    int64_t at = START;
    access_at(0, 1, at);
    for (int i = 0; i < 8; i++)
        access_at(0, 1, at += i % 2 == 0 ? 10 * S : 30 * S);
    double n = 9, s = hl_attributes_stability(&attr, &params, START + 200 * S);
    assert_float_equal(s, n / (n + 20) / 1.5 * (1 - exp(-1.0 / 3)), 1e-6);
}

TEST_IN(begin, NULL, of_one_access_the_pattern_is_unknown)
{
    access_at(0, 1, START);
    double s = hl_attributes_stability(&attr, &params, START + 100 * S);
    assert_float_equal(s, 1.0 / 21 / 2 * (1 - exp(-1.0 / 6)), 1e-9);
}

TEST_IN(begin, NULL, accesses_of_a_batch_are_evenly_spread)
{
    access_at(0, 1, START);
    access_at(0, 4, START + 40 * S); /* four intervals of 10 s */
    access_at(0, 1, START + 50 * S);
    assert_float_equal(attr.interval_ms, 10 * S, 1e-3);
    assert_float_equal(attr.interval_m2, 0, 1e-3);
    assert_int_equal(attr.intervals, 5);
}

TEST_IN(begin, NULL, a_late_access_is_counted_and_is_not_the_last)
{
    access_at(0, 1, START);
    access_at(0, 1, START + 20 * S);
    struct hl_access late = {.node = 0, .count = 1, .age_ms = 15 * S};
    hl_attributes_access(&attr, &params, &late, START + 21 * S);
    assert_int_equal(attr.last_ms, START + 20 * S);
    assert_int_equal(attr.intervals, 1);
    assert_int_equal(count_at(START + 21 * S), 3);
}

TEST_IN(begin, NULL, old_intervals_fade)
{
    int64_t at = START;
    for (int i = 0; i < 100; i++)
        access_at(0, 1, at += S);
    for (int i = 0; i < 1000; i++)
        access_at(0, 1, at += 5 * S);
    assert_float_equal(attr.interval_ms, 5 * S, 10);
    double cv = sqrt((double)attr.interval_m2 / attr.intervals) / (double)attr.interval_ms;
    assert_true(cv < 0.01);
}

TEST_IN(begin, NULL, a_move_restarts_the_residence_and_adds_to_fluidity)
{
    hl_attributes_moved(&attr, &params, START + 600 * S);
    assert_int_equal(attr.moves, 1);
    assert_float_equal(hl_attributes_fluidity(&attr, &params, START + 600 * S), 1, 1e-6);
    assert_float_equal(hl_attributes_fluidity(&attr, &params, START + 4200 * S), exp(-1), 1e-6);
    hl_attributes_moved(&attr, &params, START + 4200 * S);
    assert_int_equal(attr.moves, 2);
    assert_float_equal(hl_attributes_fluidity(&attr, &params, START + 4200 * S), 1 + exp(-1), 1e-6);
    access_at(0, 1, START + 4200 * S);
    assert_float_equal(hl_attributes_stability(&attr, &params, START + 4200 * S), 0, 0);
}

/* ---- readers ---- */

TEST_IN(begin, NULL, readers_are_counted_by_server_the_most_frequent_first)
{
    struct hl_reader_count readers[HL_READERS];
    access_at(7, 2, START);
    access_at(5, 9, START + S);
    access_at(2, 2, START + 2 * S);
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 3 * S, readers), 3);
    assert_int_equal(readers[0].node, 5);
    assert_float_equal(readers[0].count, 9, 0);
    assert_int_equal(readers[1].node, 2);
    assert_int_equal(readers[2].node, 7);
}

TEST_IN(begin, NULL, a_readers_accesses_leave_its_count_over_a_window)
{
    struct hl_reader_count readers[HL_READERS];
    access_at(1, 40, START);
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 299 * S, readers), 1);
    assert_float_equal(readers[0].count, 40, 0);
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 450 * S, readers), 1);
    assert_float_equal(readers[0].count, 20, 0);
    access_at(1, 3, START + 450 * S);
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 525 * S, readers), 1);
    assert_float_equal(readers[0].count, 13, 0);
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 900 * S, readers), 0);
}

TEST_IN(begin, NULL, a_reader_of_many_accesses_is_found_among_many_readers)
{
    struct hl_reader_count readers[HL_READERS];
    for (unsigned i = 0; i < 400; i++) {
        access_at((uint16_t)(100 + i % 40), 1, START + i);
        access_at(9, 1, START + i);
    }
    assert_int_equal(hl_attributes_readers(&attr, &params, START + 400, readers), 4);
    assert_int_equal(readers[0].node, 9);
    assert_true(readers[0].count >= 400 && readers[0].count <= 600); /* of 800: a quarter more */
    for (unsigned i = 1; i < 4; i++) /* the others appear several times */
        assert_true(readers[i].count >= 50);
}
