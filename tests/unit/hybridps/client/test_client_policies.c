/* The same course of accesses under each policy: opt moves least as soon as it has a plan. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/text.h"
#include "helios/hybridps.h"

#define TENSORS    12
#define OPERATIONS 60
#define ITERATIONS 6
#define WARM       3 /* iterations: recorded, and recorded again from the chunks' new places */

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            fail_msg("%s: %s", #call, hl_error_text());                                            \
    } while (0)

struct course {
    uint64_t seed;
    unsigned pages, sizes; /* of the device; of a tensor: 1 .. sizes */
    unsigned held;         /* maximum, accessed one after the other */
    unsigned tide; /* moments need up to so many pages; 0 = only moments that begin by themselves */
    int copy;
};

static uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned pick(uint64_t *seed, unsigned below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*seed >> 33) % below;
}

static hybridps *open_course(const struct course *c, const char *policy, uint64_t *seed)
{
    char spec[32];
    hybridps *h = NULL;
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(c->pages * page()));
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = spec,
                          .policy = policy,      .mode = c->copy ? "copy" : "move",
                          .chunk_bytes = page(), .prefetch = (int)(c->seed % 3)};
    OK(hybridps_open(&o, &h));
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint32_t t;
        OK(hybridps_add(h, "t", (int)pick(seed, 3), page() * (1 + pick(seed, c->sizes)), &t));
    }
    OK(hybridps_layout(h));
    for (uint32_t i = 0; i < TENSORS; i++) {
        hybridps_use u = {.tensor = i, .where = HYBRIDPS_HOST, .write = 1};
        OK(hybridps_access(h, &u, 1));
        OK(hybridps_release(h, &u.tensor, 1, HYBRIDPS_HOLD));
    }
    return h;
}

/* What does not fit, or is in use elsewhere, is skipped, in the same way under every policy. */
static void iteration(hybridps *h, const struct course *c, uint64_t seed)
{
    uint32_t held[8];
    unsigned count = 0;
    OK(hybridps_iteration(h, "train"));
    for (unsigned i = 0; i < OPERATIONS; i++) {
        unsigned what = pick(&seed, 10), known = 0;
        hybridps_use u = {.tensor = pick(&seed, TENSORS),
                          .where = pick(&seed, 6) > 0,
                          .write = pick(&seed, 3) == 0};
        if (c->tide > 0 && pick(&seed, 3) == 0 &&
            hybridps_moment(h, "S", "op", page() * pick(&seed, c->tide)) != 0)
            assert_non_null(strstr(hl_error_text(), "Use at least"));
        for (unsigned k = 0; k < count; k++)
            known |= held[k] == u.tensor;
        if (what < 6 && count < c->held && !known) {
            if (hybridps_access(h, &u, 1) == 0)
                held[count++] = u.tensor;
        } else if (count > 0) {
            unsigned k = pick(&seed, count);
            OK(hybridps_release(h, &held[k], 1, HYBRIDPS_HOLD));
            held[k] = held[--count];
        }
    }
    for (; count > 0; count--)
        OK(hybridps_release(h, &held[count - 1], 1, HYBRIDPS_HOLD));
    OK(hybridps_iteration(h, NULL));
}

static uint64_t bytes_under(const struct course *c, const char *policy)
{
    uint64_t seed = c->seed, bytes = 0;
    hybridps *h = open_course(c, policy, &seed);
    for (unsigned k = 0; k < ITERATIONS; k++) {
        hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
        iteration(h, c, seed);
        OK(hybridps_stats(h, &s));
        bytes += k < WARM ? 0 : s.last.h2d + s.last.d2h;
    }
    hybridps_close(h);
    return bytes;
}

/* With several sizes, the furthest next use is not always the best to leave; rarely another rule is
 * better. */
static void compare(struct course c, unsigned count)
{
    static const char *const others[] = {"lru", "fifo", "heat", "random"};
    uint64_t sums[HL_ARRAY_LEN(others)] = {0}, least = 0;
    unsigned beaten = 0;
    for (unsigned i = 0; i < count; i++) {
        c.seed = i * 17 + 3;
        c.copy = i % 2;
        uint64_t opt = bytes_under(&c, "opt");
        least += opt;
        for (size_t k = 0; k < HL_ARRAY_LEN(others); k++) {
            uint64_t bytes = bytes_under(&c, others[k]);
            sums[k] += bytes;
            beaten += opt > bytes;
            if (opt > bytes && c.sizes == 1)
                fail_msg("course %u, %s: opt moves %llu bytes, %s %llu", i,
                         c.copy ? "copy" : "move", (unsigned long long)opt, others[k],
                         (unsigned long long)bytes);
        }
    }
    for (size_t k = 0; k < HL_ARRAY_LEN(others); k++)
        assert_true(least < sums[k]);
    print_message("beaten %u times of %zu\n", beaten, count * HL_ARRAY_LEN(others));
    assert_true(beaten * 20 < count * HL_ARRAY_LEN(others));
}

TEST(test_one_at_a_time)
{
    compare((struct course){.pages = 6, .sizes = 1, .held = 1}, 60);
}

/* In use from one moment to the next: each moment is a use, and what follows counts. */
TEST(test_several_in_use_across_moments)
{
    compare((struct course){.pages = 6, .sizes = 1, .held = 4}, 60);
}

TEST(test_several_in_use_while_the_tide_rises_and_falls)
{
    compare((struct course){.pages = 9, .sizes = 1, .held = 4, .tide = 4}, 60);
}

TEST(test_tensors_of_several_sizes)
{
    compare((struct course){.pages = 16, .sizes = 4, .held = 4, .tide = 5}, 60);
}
