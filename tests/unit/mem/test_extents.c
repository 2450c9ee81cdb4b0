/* The allocator of the pool's units, compared with a plain array of bytes. */
#include "support/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "mem/extents.h"

#define UNITS 600
#define HELD  200

/* xorshift: the same operations in every run. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct model {
    uint8_t used[UNITS];
};

/* Best fit by exhaustive search: start, or UNITS if nothing fits. */
static uint64_t model_best(const struct model *m, uint64_t units)
{
    uint64_t best = UNITS, best_len = UNITS + 1;
    for (uint64_t i = 0; i < UNITS;) {
        uint64_t j = i;
        while (j < UNITS && !m->used[j])
            j++;
        if (j - i >= units && j > i && j - i < best_len) {
            best = i;
            best_len = j - i;
        }
        i = j + 1;
    }
    return best;
}

static void model_sums(const struct model *m, uint64_t *free, uint64_t *largest, uint64_t *count)
{
    *free = *largest = *count = 0;
    for (uint64_t i = 0; i < UNITS;) {
        uint64_t j = i;
        while (j < UNITS && !m->used[j])
            j++;
        *free += j - i;
        *count += j > i;
        *largest = j - i > *largest ? j - i : *largest;
        i = j + 1;
    }
}

struct held {
    uint64_t start, units;
};

static void check_sums(const struct hl_extents *x, const struct model *m)
{
    uint64_t free_units, largest, count;
    model_sums(m, &free_units, &largest, &count);
    assert_int_equal(hl_extents_free(x), free_units);
    assert_int_equal(hl_extents_largest(x), largest);
    assert_int_equal(hl_extents_count(x), count);
}

TEST(a_hundred_thousand_random_operations_agree_with_the_model)
{
    struct hl_extents *x;
    struct model m = {{0}};
    struct held held[HELD];
    size_t held_count = 0;
    uint64_t seed = 88172645463325252u;
    assert_int_equal(hl_extents_create(UNITS, HELD, &x), HL_OK);
    for (int op = 0; op < 100000; op++) {
        uint64_t what = next_random(&seed) % 10;
        uint64_t units = 1 + next_random(&seed) % (next_random(&seed) % 8 == 0 ? 60 : 6);
        uint64_t start = next_random(&seed) % UNITS;
        if (what < 5 && held_count < HELD) {
            uint64_t expected = model_best(&m, units);
            hl_status st = hl_extents_take(x, units, &start);
            assert_int_equal(st, expected == UNITS ? HL_ENOSPC : HL_OK);
            if (st != HL_OK)
                continue;
            assert_int_equal(start, expected);
        } else if (what == 5 && held_count < HELD) {
            bool room = start + units <= UNITS;
            for (uint64_t i = start; room && i < start + units; i++)
                room = !m.used[i];
            assert_int_equal(hl_extents_claim(x, start, units), room ? HL_OK : HL_ECONFLICT);
            if (!room)
                continue;
        } else if (held_count > 0) {
            size_t victim = next_random(&seed) % held_count;
            hl_extents_give(x, held[victim].start, held[victim].units);
            memset(m.used + held[victim].start, 0, held[victim].units);
            held[victim] = held[--held_count];
            check_sums(x, &m);
            continue;
        } else {
            continue;
        }
        memset(m.used + start, 1, units);
        held[held_count++] = (struct held){start, units};
        check_sums(x, &m);
    }
    while (held_count > 0) {
        held_count--;
        hl_extents_give(x, held[held_count].start, held[held_count].units);
    }
    assert_int_equal(hl_extents_free(x), UNITS);
    assert_int_equal(hl_extents_count(x), 1);
    hl_extents_destroy(x);
}

/* ---- regions ---- */

static const uint64_t ends[] = {150, 150, 310, 600}; /* the second one is empty */

/* The longest run of free units in [from, to). */
static uint64_t longest_run(const struct model *m, uint64_t from, uint64_t to)
{
    uint64_t longest = 0, run = 0;
    for (uint64_t i = from; i < to; i++) {
        run = m->used[i] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static size_t region_of(uint64_t unit)
{
    size_t r = 0;
    while (unit >= ends[r])
        r++;
    return r;
}

static void check_taken(const struct model *m, uint64_t start, uint64_t units, uint32_t wanted)
{
    bool fits_wanted = false, fits_any = 0;
    assert_true(start + units <= UNITS);
    for (uint64_t i = start; i < start + units; i++)
        assert_false(m->used[i]);
    for (size_t r = 0; r < HL_ARRAY_LEN(ends); r++) {
        bool fits = longest_run(m, r > 0 ? ends[r - 1] : 0, ends[r]) >= units;
        fits_any |= fits;
        fits_wanted |= fits && (wanted >> r & 1) != 0;
    }
    size_t first = region_of(start), last = region_of(start + units - 1);
    if (fits_any)
        assert_int_equal(first, last);
    if (fits_wanted)
        assert_true((wanted >> first & 1) != 0);
}

static void check_regions(const struct hl_extents *x, const struct model *m)
{
    assert_int_equal(hl_extents_largest(x), longest_run(m, 0, UNITS));
    for (size_t r = 0; r < HL_ARRAY_LEN(ends); r++) {
        uint64_t spare = 0;
        for (uint64_t i = r > 0 ? ends[r - 1] : 0; i < ends[r]; i++)
            spare += !m->used[i];
        assert_int_equal(hl_extents_free_in(x, r), spare);
    }
}

TEST(the_wanted_region_is_used_while_it_can_be_and_no_border_loses_room)
{
    struct hl_extents *x;
    struct model m = {{0}};
    struct held held[HELD];
    size_t n = 0, across = 0;
    uint64_t seed = 88172645463325252u;
    assert_int_equal(hl_extents_create(UNITS, HELD, &x), HL_OK);
    hl_extents_divide(x, ends, HL_ARRAY_LEN(ends));
    for (int op = 0; op < 50000; op++) {
        uint64_t units = 1 + next_random(&seed) % (next_random(&seed) % 4 == 0 ? 200 : 9);
        uint32_t wanted = (uint32_t)next_random(&seed) % 16;
        uint64_t start = next_random(&seed) % UNITS;
        if (next_random(&seed) % 2 == 0 && n < HELD) {
            bool claim = next_random(&seed) % 8 == 0;
            bool room =
                claim ? start + units <= UNITS && longest_run(&m, start, start + units) == units
                      : longest_run(&m, 0, UNITS) >= units;
            hl_status st = claim ? hl_extents_claim(x, start, units)
                                 : hl_extents_take_in(x, units, wanted, &start);
            assert_int_equal(st, room ? HL_OK : claim ? HL_ECONFLICT : HL_ENOSPC);
            if (!room)
                continue;
            if (!claim)
                check_taken(&m, start, units, wanted);
            across += region_of(start) != region_of(start + units - 1);
            memset(m.used + start, 1, units);
            held[n++] = (struct held){start, units};
        } else if (n > 0) {
            size_t victim = next_random(&seed) % n;
            hl_extents_give(x, held[victim].start, held[victim].units);
            memset(m.used + held[victim].start, 0, held[victim].units);
            held[victim] = held[--n];
        }
        check_regions(x, &m);
    }
    assert_true(across > 100);
    while (n-- > 0)
        hl_extents_give(x, held[n].start, held[n].units);
    assert_int_equal(hl_extents_free(x), UNITS);
    assert_int_equal(hl_extents_count(x), 3);
    assert_int_equal(hl_extents_largest(x), UNITS);
    hl_extents_destroy(x);
}

TEST(the_worst_fragmentation_fits_the_nodes)
{
    struct hl_extents *x;
    uint64_t start;
    assert_int_equal(hl_extents_create(UNITS, UNITS, &x), HL_OK);
    for (int i = 0; i < UNITS; i++)
        assert_int_equal(hl_extents_take(x, 1, &start), HL_OK);
    assert_int_equal(hl_extents_take(x, 1, &start), HL_ENOSPC);
    assert_int_equal(hl_extents_largest(x), 0);
    for (uint64_t i = 0; i < UNITS; i += 2)
        hl_extents_give(x, i, 1);
    assert_int_equal(hl_extents_count(x), UNITS / 2);
    assert_int_equal(hl_extents_take(x, 2, &start), HL_ENOSPC);
    for (uint64_t i = 1; i < UNITS; i += 2)
        hl_extents_give(x, i, 1);
    assert_int_equal(hl_extents_count(x), 1);
    hl_extents_destroy(x);
}

TEST(units_outside_or_used_are_not_claimed)
{
    struct hl_extents *x;
    assert_int_equal(hl_extents_create(10, 8, &x), HL_OK);
    assert_int_equal(hl_extents_claim(x, 10, 1), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, 9, 2), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, UINT64_MAX, 2), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, 0, 0), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, 3, 4), HL_OK);
    assert_int_equal(hl_extents_claim(x, 0, 4), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, 6, 1), HL_ECONFLICT);
    assert_int_equal(hl_extents_claim(x, 0, 3), HL_OK);
    assert_int_equal(hl_extents_claim(x, 7, 3), HL_OK);
    assert_int_equal(hl_extents_free(x), 0);
    hl_extents_destroy(x);
}
