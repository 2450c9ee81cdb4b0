/* The allocator of the pool's units, against a plain array of bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mem/pool_extents.h"

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

/* Best fit by looking at everything: start, or UNITS when nothing fits. */
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

static void a_hundred_thousand_random_operations_agree_with_the_model(void **state)
{
    (void)state;
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
            int room = start + units <= UNITS;
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

static void the_worst_fragmentation_fits_the_nodes(void **state)
{
    (void)state;
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

static void units_outside_or_used_are_not_claimed(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_thousand_random_operations_agree_with_the_model),
        cmocka_unit_test(the_worst_fragmentation_fits_the_nodes),
        cmocka_unit_test(units_outside_or_used_are_not_claimed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
