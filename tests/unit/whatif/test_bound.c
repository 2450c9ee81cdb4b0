/* The lower bound of waiting: worked out by hand, compared with exhaustive search on small traces,
 * and below every policy on random ones. */
#include <stdio.h>
#include <string.h>

#include "support/test.h"
#include "whatif/whatif.h"

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Seconds are bytes: backbone and archive have 1 byte a second. */
static struct hl_whatif_world small_world(uint64_t l1, uint64_t l2, uint64_t l3)
{
    struct hl_whatif_world w = {.l1_bytes = l1,
                                .l2_bytes = l2,
                                .l3_bytes = l3,
                                .rates = {[HL_MOVE_INSIDE] = 10,
                                          [HL_MOVE_MIGRATION] = 2,
                                          [HL_MOVE_BACKBONE] = 1,
                                          [HL_MOVE_ARCHIVE] = 1},
                                .pass_ms = 1000};
    hl_placement_params_init(&w.params);
    return w;
}

static void add_read(struct hl_access_trace *t, int64_t at_s, int node, int shard, uint64_t size)
{
    char n[16], s[16];
    snprintf(n, sizeof(n), "n%d", node);
    snprintf(s, sizeof(s), "s%d", shard);
    assert_int_equal(hl_access_trace_add(t, &(struct hl_trace_access){.at_ns = at_s * 1000000000,
                                                                      .node = n,
                                                                      .shard = s,
                                                                      .size_bytes = size}),
                     HL_OK);
}

static struct hl_whatif_result run_under(const struct hl_access_trace *t,
                                         const struct hl_whatif_world *w,
                                         enum hl_whatif_policy policy)
{
    struct hl_whatif_result r;
    assert_int_equal(hl_whatif_run(t, w, policy, &r), HL_OK);
    return r;
}

static double wait_under(const struct hl_access_trace *t, const struct hl_whatif_world *w,
                         enum hl_whatif_policy policy)
{
    return run_under(t, w, policy).wait_s;
}

TEST(with_room_for_one_of_two_the_bound_is_what_can_be_reached)
{
    /* ABABAB, L2 holds one of them, no pool: A is kept and costs 4 + 0.4 + 0.4, B is read three
     * times for 4 */
    struct hl_access_trace t = {0};
    struct hl_whatif_world w = small_world(0, 4, 0);
    for (int i = 0; i < 6; i++)
        add_read(&t, i * 100, 0, i % 2, 4);
    double bound = wait_under(&t, &w, HL_WHATIF_OPTIMAL);
    assert_true(bound <= 16.8 + 1e-9);
    if (bound < 16.8 * 0.97)
        fail_msg("the bound is %g", bound);
    hl_access_trace_fini(&t);
}

TEST(a_load_waits_for_the_longest_of_its_links_once)
{
    /* three unread shards at once: one after the other from the archive */
    struct hl_access_trace t = {0};
    struct hl_whatif_world w = small_world(100, 100, 100);
    w.rates[HL_MOVE_BACKBONE] = 2;
    for (int i = 0; i < 3; i++)
        add_read(&t, 0, 0, i, 10);
    add_read(&t, 0, 1, 3, 10); /* and another node after them */
    double bound = wait_under(&t, &w, HL_WHATIF_OPTIMAL);
    assert_true(bound <= 30 + 40 + 1e-6);
    assert_true(bound > (30 + 40) * 0.999);
    hl_access_trace_fini(&t);
}

/* ---- exhaustive search ----------------------------------------------------------------------- */

#define SHARDS 4
#define READS  10

/* The minimum waiting time from read `i` on, if the shards of the mask are in L2; of those and of
 * what was read any subset can be kept. One node, loads of one read, no pool. */
static double least_wait(const struct hl_access_trace *t, uint64_t room, uint32_t i, unsigned mask,
                         double known[READS][1 << SHARDS])
{
    if (i == t->count)
        return 0;
    if (known[i][mask] > 0)
        return known[i][mask];
    uint32_t shard = t->rows[i].shard;
    double size = (double)t->sizes[shard], best = 1e300;
    double now = mask >> shard & 1 ? size / 10 : size;
    unsigned may = mask | 1u << shard;
    for (unsigned keep = 0; keep < 1u << SHARDS; keep++) {
        uint64_t bytes = 0;
        for (unsigned s = 0; s < t->shards.count; s++)
            bytes += keep >> s & 1 ? t->sizes[s] : 0;
        if ((keep & ~may) != 0 || bytes > room)
            continue;
        double later = least_wait(t, room, i + 1, keep, known);
        best = later < best ? later : best;
    }
    return known[i][mask] = now + best;
}

TEST(the_bound_is_below_the_best_of_all_choices_and_near_it)
{
    double bounds = 0, bests = 0;
    uint64_t seed = 7;
    for (int round = 0; round < 30; round++) {
        struct hl_access_trace t = {0};
        uint64_t sizes[SHARDS], room = 4 + next_random(&seed) % 8;
        struct hl_whatif_world w = small_world(0, room, 0);
        for (int s = 0; s < SHARDS; s++)
            sizes[s] = 1 + next_random(&seed) % 6;
        for (int i = 0; i < READS; i++) {
            int shard = (int)(next_random(&seed) % SHARDS);
            add_read(&t, i * 1000, 0, shard, sizes[shard]);
        }
        double known[READS][1 << SHARDS] = {{0}};
        double best = least_wait(&t, room, 0, 0, known),
               bound = wait_under(&t, &w, HL_WHATIF_OPTIMAL);
        if (bound > best + 1e-9)
            fail_msg("round %d: bound %g, but %g can be reached", round, bound, best);
        bounds += bound;
        bests += best;
        hl_access_trace_fini(&t);
    }
    if (bounds < 0.9 * bests)
        fail_msg("bounds are %.3f of what can be reached", bounds / bests);
}

TEST(no_policy_waits_for_less_than_the_bound)
{
    uint64_t seed = 11;
    for (int round = 0; round < 200; round++) {
        struct hl_access_trace t = {0};
        struct hl_whatif_world w =
            small_world(next_random(&seed) % 30, next_random(&seed) % 60, next_random(&seed) % 120);
        int64_t at = 0;
        int nodes = 1 + (int)(next_random(&seed) % 3);
        for (int i = 0; i < 80; i++) {
            int shard = (int)(next_random(&seed) % 12);
            at += (int64_t)(next_random(&seed) % 3) * 20;
            add_read(&t, at, (int)(next_random(&seed) % (unsigned)nodes), shard,
                     1 + (uint64_t)shard * 5 % 9);
        }
        w.keep_pct = (double)(round % 3) * 50;
        w.keep_l1_pct = (double)(round % 2) * 100;
        w.moves = round % 4 < 2;
        const struct hl_whatif_result least = run_under(&t, &w, HL_WHATIF_OPTIMAL);
        double bound = least.wait_s, bound_p99 = least.wait_p99_s;
        assert_true(bound > 0 && bound_p99 > 0);
        for (int p = 0; p < HL_WHATIF_OPTIMAL; p++) {
            const struct hl_whatif_result r = run_under(&t, &w, (enum hl_whatif_policy)p);
            double wait = r.wait_s, p99 = r.wait_p99_s;
            if (wait < bound * (1 - 1e-9))
                fail_msg("round %d: %s waits for %g s, the bound is %g s", round,
                         hl_whatif_policy_name((enum hl_whatif_policy)p), wait, bound);
            if (p99 < bound_p99 * (1 - 1e-9))
                fail_msg("round %d: p99 of %s is %g s, that of the bound %g s", round,
                         hl_whatif_policy_name((enum hl_whatif_policy)p), p99, bound_p99);
        }
        hl_access_trace_fini(&t);
    }
}
