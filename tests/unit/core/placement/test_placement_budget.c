/* Budgets of moves, and when a version counts as committed. */
#include "support/test.h"

#include <math.h>
#include <string.h>

#include "core/placement/budget.h"
#include "core/placement/durability.h"

#define S   INT64_C(1000)
#define MIB (INT64_C(1) << 20)

static struct hl_budget budget;
static struct hl_budget_limits limits;

static int begin(void **state)
{
    (void)state;
    limits = (struct hl_budget_limits){.rates = {[HL_MOVE_INSIDE] = HUGE_VAL,
                                                 [HL_MOVE_MIGRATION] = 100.0 * MIB,
                                                 [HL_MOVE_BACKBONE] = 50.0 * MIB},
                                       .burst_ms = 2 * S};
    assert_int_equal(hl_budget_init(&budget, &limits, 10 * S), HL_OK);
    return 0;
}

static int64_t left(enum hl_move_path path, int64_t now_ms)
{
    int64_t out[HL_MOVE_PATHS];
    hl_budget_look(&budget, now_ms, out);
    return out[path];
}

TEST_IN(begin, NULL, a_bucket_fills_at_its_rate_and_owes_what_a_move_took_too_much)
{
    assert_int_equal(left(HL_MOVE_MIGRATION, 10 * S), 200 * MIB);
    assert_int_equal(left(HL_MOVE_ARCHIVE, 10 * S), 0);
    hl_budget_take(&budget, HL_MOVE_MIGRATION, 500 * MIB);
    hl_budget_take(&budget, HL_MOVE_INSIDE, 500 * MIB);
    assert_int_equal(left(HL_MOVE_MIGRATION, 10 * S), -300 * MIB);
    assert_int_equal(left(HL_MOVE_INSIDE, 10 * S), INT64_MAX);
    assert_int_equal(left(HL_MOVE_BACKBONE, 10 * S), 100 * MIB); /* paths have separate budgets */
    assert_int_equal(left(HL_MOVE_MIGRATION, 12500), -50 * MIB);
    assert_int_equal(left(HL_MOVE_MIGRATION, 14 * S), 100 * MIB);
    hl_budget_take(&budget, HL_MOVE_MIGRATION, -20 * MIB); /* it was cancelled */
    assert_int_equal(left(HL_MOVE_MIGRATION, 14 * S), 120 * MIB);
}

TEST_IN(begin, NULL, a_clock_that_jumps_gives_no_more_than_a_bucket_holds)
{
    hl_budget_take(&budget, HL_MOVE_MIGRATION, 200 * MIB);
    assert_int_equal(left(HL_MOVE_MIGRATION, 5 * S), 0);
    assert_int_equal(left(HL_MOVE_MIGRATION, 10 * S), 0); /* earlier savings do not count again */
    assert_int_equal(left(HL_MOVE_MIGRATION, 3600 * S), 200 * MIB);
    assert_int_equal(left(HL_MOVE_MIGRATION, INT64_MAX), 200 * MIB);
}

TEST_IN(begin, NULL, moves_rest_until_the_last_reason_to_is_over)
{
    hl_budget_rest(&budget, HL_REST_GANG_STARTS, true);
    hl_budget_rest(&budget, HL_REST_SAVE_COMMITS, true);
    assert_int_equal(left(HL_MOVE_MIGRATION, 11 * S), 0);
    assert_int_equal(left(HL_MOVE_INSIDE, 11 * S), 0);
    hl_budget_rest(&budget, HL_REST_GANG_STARTS, false);
    assert_int_equal(left(HL_MOVE_MIGRATION, 11 * S), 0);
    hl_budget_rest(&budget, HL_REST_SAVE_COMMITS, false);
    assert_int_equal(left(HL_MOVE_MIGRATION, 11 * S), 200 * MIB);
}

TEST_IN(begin, NULL, limits_change_at_run_time_and_are_refused_by_name)
{
    hl_budget_take(&budget, HL_MOVE_MIGRATION, 300 * MIB);
    limits.rates[HL_MOVE_MIGRATION] = 10.0 * MIB;
    limits.rates[HL_MOVE_BACKBONE] = 5.0 * MIB;
    assert_int_equal(hl_budget_configure(&budget, &limits, 10 * S), HL_OK);
    assert_int_equal(left(HL_MOVE_MIGRATION, 10 * S), -100 * MIB);
    assert_int_equal(left(HL_MOVE_BACKBONE, 10 * S), 10 * MIB); /* no more than it holds now */
    assert_int_equal(left(HL_MOVE_MIGRATION, 20 * S), 0);
    limits.rates[HL_MOVE_BACKBONE] = NAN;
    assert_int_equal(hl_budget_configure(&budget, &limits, 20 * S), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "backbone"));
    limits.rates[HL_MOVE_BACKBONE] = -1;
    assert_int_equal(hl_budget_configure(&budget, &limits, 20 * S), HL_EINVAL);
    limits.rates[HL_MOVE_BACKBONE] = 1;
    limits.burst_ms = 0;
    assert_int_equal(hl_budget_init(&budget, &limits, 20 * S), HL_EINVAL);
    assert_int_equal(left(HL_MOVE_BACKBONE, 22 * S), 10 * MIB); /* as before */
}

/* ---- durability ---- */

/* For each domain its tier, '!' if it is away, '?' if it is not verified. */
static size_t holders_read(const char *text, struct hl_holder *list)
{
    size_t n = 0;
    for (; *text != '\0'; text += 3)
        list[n++] = (struct hl_holder){.domain = (uint32_t)(text[0] - 'a'),
                                       .tier = (uint8_t)(text[1] - '0'),
                                       .verified = text[2] != '?',
                                       .reachable = text[2] != '!'};
    return n;
}

static bool held(enum hl_durability durability, const char *holders)
{
    struct hl_holder list[8];
    return hl_durability_holds(durability, list, holders_read(holders, list));
}

TEST(durability_counts_verified_copies_in_different_failure_domains)
{
    static const struct {
        const char *holders;
        bool pool, two, archive;
    } cases[] = {
        {"", false, false, false},      {"a1 ", false, false, false},
        {"a2 ", true, false, false},    {"a3 ", true, false, false},
        {"a2 a3 ", true, false, false}, {"a2 b3 ", true, true, false},
        {"a2 b2 ", true, true, false},  {"a2?b2 ", true, false, false},
        {"a2!b2 ", true, false, false}, {"a1 b2 ", true, false, false},
        {"a3 a4 ", true, true, true},   {"a4 ", true, false, true},
        {"a4 b4 ", true, false, true},  {"a2 a2 a3 b1 c2 ", true, true, false},
        {"a3 a4?", true, false, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (held(HL_DURABILITY_POOL, cases[i].holders) != cases[i].pool ||
            held(HL_DURABILITY_TWO, cases[i].holders) != cases[i].two ||
            held(HL_DURABILITY_ARCHIVE, cases[i].holders) != cases[i].archive)
            fail_msg("holders '%s'", cases[i].holders);
}

TEST(a_durability_has_a_word)
{
    enum hl_durability d = HL_DURABILITY_POOL;
    assert_int_equal(hl_durability_parse("two", &d), HL_OK);
    assert_int_equal(d, HL_DURABILITY_TWO);
    assert_string_equal(hl_durability_word(d), "two");
    assert_int_equal(hl_durability_parse("three", &d), HL_EINVAL);
    assert_int_equal(d, HL_DURABILITY_TWO);
}

/* What brings 10 bytes nearer to durability: '=' nothing is missing, 'P' the pool of domain a, 'A'
 * the archive, '0'.. that node, '-' no way. nodes: domain, free bytes in tens, 'r' if it reads the
 * shard, '!' if it takes nothing. */
static char next_way(enum hl_durability durability, const char *holders, bool archive,
                     const char *nodes)
{
    struct hl_holder list[8];
    struct hl_durability_node to[8];
    struct hl_durability_ways ways = {.pool = true, .archive = archive, .nodes = to};
    size_t node = 0, count = holders_read(holders, list);
    for (; *nodes != '\0'; nodes += 3)
        to[ways.node_count++] =
            (struct hl_durability_node){.domain = (uint32_t)(nodes[0] - 'a'),
                                        .free_bytes = (uint64_t)(nodes[1] - '0') * 10,
                                        .takes = nodes[2] != '!',
                                        .reads = nodes[2] == 'r'};
    switch (hl_durability_next(durability, 10, list, count, &ways, &node)) {
    case HL_DURABILITY_HELD:
        return '=';
    case HL_DURABILITY_TO_POOL:
        return 'P';
    case HL_DURABILITY_TO_ARCHIVE:
        return 'A';
    case HL_DURABILITY_TO_NODE:
        return (char)('0' + node);
    default:
        return '-';
    }
}

TEST(a_further_copy_goes_to_the_archive_or_to_another_host_and_first_to_its_reader)
{
    static const struct {
        enum hl_durability durability;
        const char *holders;
        bool archive;
        const char *nodes;
        char way;
    } cases[] = {
        {HL_DURABILITY_POOL, "a3 ", true, "b9 ", '='},
        {HL_DURABILITY_TWO, "a3 b2 ", true, "c9 ", '='},
        {HL_DURABILITY_TWO, "a3 ", true, "b9 ", 'A'},
        {HL_DURABILITY_TWO, "a3 ", false, "b9 ", '0'},
        {HL_DURABILITY_TWO, "a3 ", false, "a9 b1 c5 b7 ", '3'}, /* most room elsewhere */
        {HL_DURABILITY_TWO, "a3 ", false, "b9 c1rb8 ", '1'},    /* its reader */
        {HL_DURABILITY_TWO, "a3 ", false, "a9rb1 ", '1'},       /* not beside the pool */
        {HL_DURABILITY_TWO, "a3 ", false, "b9!c0rd1 ", '2'},    /* no room at the reader */
        {HL_DURABILITY_TWO, "a3 ", false, "a9 b0 c9!", '-'},
        {HL_DURABILITY_TWO, "a3 b2!", false, "b9!c2 ", '1'}, /* its holder is away */
        {HL_DURABILITY_TWO, "d4 ", true, "a1 ", '0'},        /* evicted from the pool */
        {HL_DURABILITY_TWO, "b2 ", true, "c9 ", 'P'},        /* the pool has lost it */
        {HL_DURABILITY_TWO, "a2 ", false, "c9 ", '0'},       /* beside the pool */
        {HL_DURABILITY_ARCHIVE, "b2 ", true, "c9 ", 'A'},
        {HL_DURABILITY_TWO, "d4?a3 ", true, "", 'A'},
        {HL_DURABILITY_TWO, "", true, "b9 ", '-'}, /* nothing to copy from */
        {HL_DURABILITY_TWO, "a1 ", true, "b9 ", '-'},
        {HL_DURABILITY_ARCHIVE, "a3 b2 ", true, "c9 ", 'A'},
        {HL_DURABILITY_ARCHIVE, "a3 b2 ", false, "c9 ",
         '-'}, /* another host does not replace the archive */
        {HL_DURABILITY_ARCHIVE, "a4 ", true, "", '='},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char way =
            next_way(cases[i].durability, cases[i].holders, cases[i].archive, cases[i].nodes);
        if (way != cases[i].way)
            fail_msg("case %zu, holders '%s', nodes '%s': '%c', not '%c'", i, cases[i].holders,
                     cases[i].nodes, way, cases[i].way);
    }
}
