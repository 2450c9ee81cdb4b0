/* bench policy: decisions about where shards live, on one core: access reports, passes of the
 * policy, and the memory of both. Half of the shards are on 64 nodes and are read; decisions are
 * carried out a second later. The cluster's clock is virtual and times are CPU times, so a core
 * that is shared gives the same figures except for effects of caches. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "core/placement/policy.h"
#include "os/huge.h"

#define NODES         64
#define START_MS      INT64_C(1000000)
#define SECOND_MS     INT64_C(1000)
#define CHANGES       10000 /* accesses per second */
#define BATCH         1000  /* entries in a report */
#define SETTLE        320   /* seconds: more than the window of accesses */
#define REPORT_ROUNDS 500
#define FULL_PASSES   30
#define MIB           (UINT64_C(1) << 20)
#define BAR_SHARDS    1000000 /* the bars of passes apply to this many */

struct policy_args {
    int64_t shards, passes;
};

#define AT(field) HL_OPTION_FIELD(struct policy_args, field)

static const struct hl_option rows[] = {
    {"shards", "--shards", "1000000", "Shards of the cluster.", HL_OPT_INT, 1000, 20000000, NULL,
     AT(shards)},
    {"passes", "--passes", "300", "Passes timed, one a second of the virtual clock.", HL_OPT_INT, 1,
     100000, NULL, AT(passes)},
};

struct policy_bench {
    uint32_t shards;
    int64_t passes, now_ms;
    uint64_t seed, sequence[NODES];
    struct hl_placement place;
    struct hl_policy policy;
    struct hl_node_limits nodes[NODES];
    struct hl_policy_limits limits;
    struct hl_decision *moving; /* decisions of the previous pass */
    size_t moving_count, moving_room;
    struct hl_report_entry entries[BATCH];
    struct bench_samples samples;
    struct bench_report report;
};

static uint64_t mix_bits(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint32_t draw_number(struct policy_bench *b, uint32_t below)
{
    return (uint32_t)((mix_bits(b->seed += UINT64_C(0x9e3779b97f4a7c15)) >> 32) * below >> 32);
}

static struct hl_id id_of(uint32_t shard)
{
    return (struct hl_id){.hi = mix_bits(shard + UINT64_C(1)), .lo = mix_bits(~(uint64_t)shard)};
}

/* ---- the cluster ----------------------------------------------------------------------------- */

static const struct hl_place in_l3 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
static const struct hl_place in_l4 = {.node = HL_READER_NONE, .tier = HL_API_TIER_L4};

/* Of ten shards one is in L1, four are in L2 and three in L3, waiting for their first reader; one
 * is archived in L3, and one is in L4. */
static uint16_t home_node(uint32_t shard)
{
    return (uint16_t)(shard / 10 % NODES);
}

static void use_bytes(struct policy_bench *b, struct hl_place place, uint64_t bytes)
{
    if (place.tier == HL_API_TIER_L1)
        b->nodes[place.node].l1_used += bytes;
    else if (place.tier == HL_API_TIER_L2)
        b->nodes[place.node].l2_used += bytes;
}

static hl_status step_shard(struct policy_bench *b, struct hl_id id, enum hl_life_event event,
                            struct hl_place goal)
{
    struct hl_change change = {.at_ms = b->now_ms, .event = event};
    return hl_placement_shard_move(&b->place, id, &change, goal);
}

static hl_status place_shard(struct policy_bench *b, uint32_t shard)
{
    struct hl_id id = id_of(shard);
    unsigned kind = shard % 10;
    struct hl_place home = {.node = home_node(shard),
                            .tier = kind == 0 ? HL_API_TIER_L1 : HL_API_TIER_L2};
    bool waits = kind >= 5 && kind < 8;
    uint64_t size = (1 + mix_bits(shard + UINT64_C(7)) % 64) * MIB;
    HL_TRY(hl_placement_shard_add(&b->place, id, size, waits ? in_l3 : home, b->now_ms));
    if (waits)
        return HL_OK;
    HL_TRY(step_shard(b, id, HL_LIFE_ON_LOAD, home));
    HL_TRY(step_shard(b, id, HL_LIFE_ON_LOADED, home));
    if (kind < 5) {
        use_bytes(b, home, size);
        return HL_OK;
    }
    HL_TRY(step_shard(b, id, HL_LIFE_ON_COOL, home));
    HL_TRY(step_shard(b, id, HL_LIFE_ON_LEAVE, in_l3));
    HL_TRY(step_shard(b, id, HL_LIFE_ON_SWITCHED, in_l3));
    return kind == 8 ? HL_OK : step_shard(b, id, HL_LIFE_ON_IDLE, in_l4);
}

static hl_status make_cluster(struct policy_bench *b)
{
    static const double rates[HL_MOVE_PATHS] = {100e9, 25e9, 12e9, 2e9};
    struct hl_placement_opts opts = {
        .shards_max = b->shards, .now_ms = b->now_ms, .advise = hl_huge_advise};
    hl_placement_params_init(&opts.params);
    HL_TRY(hl_placement_init(&b->place, &opts));
    for (unsigned i = 0; i < NODES; i++) {
        uint16_t node;
        HL_TRY(hl_placement_node_add(&b->place, 1, b->now_ms, &node));
    }
    for (uint32_t i = 0; i < b->shards; i++)
        HL_TRY(place_shard(b, i));
    for (unsigned i = 0; i < NODES; i++) { /* L1 is between its watermarks, L2 has room */
        struct hl_node_limits *n = &b->nodes[i];
        n->l1_bytes = (uint64_t)((double)n->l1_used / 0.8);
        n->l2_bytes = n->l2_used * 2;
        n->takes = true;
    }
    b->limits = (struct hl_policy_limits){.nodes = b->nodes, .node_count = NODES};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++) {
        b->limits.rates[i] = rates[i];
        b->limits.budget[i] = (int64_t)(rates[i] * NODES);
    }
    return HL_OK;
}

/* ---- accesses -------------------------------------------------------------------------------- */

/* Draws one of the shards on a node; half of the accesses go to one in sixteen of them. */
static uint32_t draw_shard_of(struct policy_bench *b, uint16_t node)
{
    uint32_t tens = (b->shards - node * 10 - 1) / (NODES * 10) + 1;
    uint32_t ten = draw_number(b, tens);
    if (draw_number(b, 2) == 0)
        ten = ten / 16 * 16;
    uint32_t shard = (ten * NODES + node) * 10 + draw_number(b, 5);
    return shard < b->shards ? shard : node * 10;
}

static struct hl_report_entry entry_of(struct policy_bench *b, uint32_t shard, uint32_t age_ms)
{
    return (struct hl_report_entry){
        .shard = id_of(shard), .count = 1, .age_ms = draw_number(b, age_ms)};
}

static void give_report(struct policy_bench *b, uint16_t node, const struct hl_report_entry *e,
                        size_t count)
{
    struct hl_report report = {
        .incarnation = 1, .sequence = ++b->sequence[node], .entries = e, .count = count};
    hl_placement_report(&b->place, node, &report, b->now_ms);
}

/* Nine of ten accesses go to shards on the reader's own node, one in twenty to any shard. */
static void give_access(struct policy_bench *b)
{
    uint16_t node = (uint16_t)draw_number(b, NODES);
    unsigned kind = draw_number(b, 20);
    uint32_t shard = kind == 0   ? draw_number(b, b->shards)
                     : kind == 1 ? draw_shard_of(b, (uint16_t)draw_number(b, NODES))
                                 : draw_shard_of(b, node);
    struct hl_report_entry e = entry_of(b, shard, SECOND_MS);
    give_report(b, node, &e, 1);
}

/* Accesses each shard on a node once; some of the older ones are soon forgotten. */
static void warm_shards(struct policy_bench *b)
{
    for (uint16_t node = 0; node < NODES; node++) {
        size_t n = 0;
        for (uint32_t ten = node * 10; ten < b->shards; ten += NODES * 10)
            for (uint32_t shard = ten; shard < ten + 5 && shard < b->shards; shard++) {
                b->entries[n++] = entry_of(b, shard, 200 * SECOND_MS);
                if (n == BATCH) {
                    give_report(b, node, b->entries, n);
                    n = 0;
                }
            }
        give_report(b, node, b->entries, n);
    }
}

/* Each sample has BATCH entries, in reports of `count`. */
static hl_status time_reports(struct policy_bench *b, size_t count, const char *op)
{
    HL_TRY(bench_samples_init(&b->samples, REPORT_ROUNDS));
    uint64_t before = b->place.stats.accesses, sum_ns = 0;
    for (unsigned i = 0; i < REPORT_ROUNDS; i++) {
        uint16_t node = i % NODES;
        for (size_t k = 0; k < BATCH; k++)
            b->entries[k] = entry_of(b, draw_shard_of(b, node), SECOND_MS);
        uint64_t start = hl_thread_ns();
        for (size_t k = 0; k < BATCH; k += count)
            give_report(b, node, b->entries + k, count);
        bench_add(&b->samples, hl_thread_ns() - start);
        sum_ns += b->samples.ns[i];
    }
    uint64_t applied = b->place.stats.accesses - before;
    if (applied != (uint64_t)REPORT_ROUNDS * BATCH)
        return hl_fail(HL_EINTERNAL, "%llu of %u accesses were applied",
                       (unsigned long long)applied, REPORT_ROUNDS * BATCH);
    bench_row(&b->report, "helios", op, 0, &b->samples);
    char name[96];
    snprintf(name, sizeof(name), "million access reports/s of %zu in a message", count);
    bench_ratio(&b->report, name, (double)applied * 1e3 / (double)sum_ns, 1, false);
    return HL_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hl_status finish_move(struct policy_bench *b, const struct hl_decision *d)
{
    const struct hl_placed_shard *s = hl_placement_shard_find(&b->place, d->shard);
    struct hl_place old = s->place;
    switch ((enum hl_life_state)s->life.state) {
    case HL_LIFE_PREHEAT:
        HL_TRY(step_shard(b, d->shard, HL_LIFE_ON_LOADED, s->goal));
        break;
    case HL_LIFE_MIGRATING:
    case HL_LIFE_DEMOTED_L2:
    case HL_LIFE_DEMOTED_L3:
        HL_TRY(step_shard(b, d->shard, HL_LIFE_ON_SWITCHED, s->goal));
        break;
    default: /* its copy was not needed any more */
        return HL_OK;
    }
    use_bytes(b, old, -s->size_bytes);
    use_bytes(b, s->place, s->size_bytes);
    if (s->life.state != HL_LIFE_MIGRATED)
        return HL_OK;
    return step_shard(
        b, d->shard,
        s->place.tier == HL_API_TIER_L2 ? HL_LIFE_ON_CLEANED_L2 : HL_LIFE_ON_CLEANED_L3, s->place);
}

static hl_status carry_out(struct policy_bench *b)
{
    if (b->policy.count > b->moving_room) {
        size_t room = b->policy.count * 2;
        struct hl_decision *moving = realloc(b->moving, room * sizeof(*moving));
        if (moving == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %zu moves", room);
        b->moving = moving;
        b->moving_room = room;
    }
    for (size_t i = 0; i < b->policy.count; i++) {
        HL_TRY(hl_policy_begin(&b->place, &b->policy.decisions[i], b->now_ms));
        b->moving[b->moving_count++] = b->policy.decisions[i];
    }
    return HL_OK;
}

static hl_status time_pass(struct policy_bench *b, bool full)
{
    uint64_t start = hl_thread_ns();
    HL_TRY(hl_policy_pass(&b->policy, &b->place, &b->limits, full, b->now_ms));
    bench_add(&b->samples, hl_thread_ns() - start);
    return HL_OK;
}

static hl_status run_second(struct policy_bench *b)
{
    b->now_ms += SECOND_MS;
    for (size_t i = 0; i < b->moving_count; i++)
        HL_TRY(finish_move(b, &b->moving[i]));
    b->moving_count = 0;
    for (unsigned i = 0; i < CHANGES; i++)
        give_access(b);
    HL_TRY(time_pass(b, false));
    return carry_out(b);
}

static void say_passes(struct policy_bench *b, const char *op, double p50_bar, double p99_bar)
{
    static const char *const names[] = {"p50", "p99", "max"};
    const struct bench_row *row = bench_row(&b->report, "helios", op, b->shards, &b->samples);
    double us[] = {row->p50_us, row->p99_us, (double)b->samples.ns[b->samples.count - 1] / 1e3};
    double bars[] = {p50_bar, p99_bar, 0};
    for (unsigned i = 0; i < HL_ARRAY_LEN(names); i++) {
        char name[96];
        snprintf(name, sizeof(name), "%s of %u shards %s ms", op, b->shards, names[i]);
        bench_ratio(&b->report, name, us[i] / 1e3, b->shards <= BAR_SHARDS ? bars[i] : 0, true);
    }
}

static hl_status time_passes(struct policy_bench *b)
{
    HL_TRY(bench_samples_init(&b->samples, SETTLE));
    for (unsigned i = 0; i < SETTLE; i++)
        HL_TRY(run_second(b));
    HL_TRY(bench_samples_init(&b->samples, (size_t)b->passes));
    size_t judged = 0, decided = 0;
    for (int64_t i = 0; i < b->passes; i++) {
        HL_TRY(run_second(b));
        judged += b->policy.judged;
        decided += b->policy.count;
    }
    say_passes(b, "pass", 0, 5);
    bench_ratio(&b->report, "shards judged in a pass", (double)judged / (double)b->passes, 0, true);
    bench_ratio(&b->report, "decisions of a pass", (double)decided / (double)b->passes, 0, true);
    HL_TRY(bench_samples_init(&b->samples, FULL_PASSES));
    for (unsigned i = 0; i < FULL_PASSES; i++) {
        b->now_ms++;
        HL_TRY(time_pass(b, true));
    }
    say_passes(b, "full pass", 50, 0);
    return HL_OK;
}

static void say_memory(struct policy_bench *b)
{
    char name[96];
    double bytes = (double)(hl_placement_bytes(&b->place) + hl_policy_bytes(&b->policy));
    snprintf(name, sizeof(name), "MB of %u shards", b->shards);
    double bar = b->shards >= 10 * BAR_SHARDS ? 250 : b->shards >= BAR_SHARDS ? 256 : 0;
    bench_ratio(&b->report, name, bytes / 1e6, b->shards * bar / 1e6, true);
}

static hl_status run_policy_bench(struct policy_bench *b)
{
    HL_TRY(make_cluster(b));
    warm_shards(b);
    HL_TRY(time_reports(b, BATCH, "reports"));
    HL_TRY(time_reports(b, 1, "report"));
    HL_TRY(bench_samples_init(&b->samples, 1));
    HL_TRY(time_pass(b, true));
    say_passes(b, "first pass", 0, 0);
    HL_TRY(time_passes(b));
    say_memory(b);
    return HL_OK;
}

hl_status cmd_bench_policy(struct cli *cli, int argc, char **argv)
{
    struct policy_args a = {0};
    struct policy_bench *b = calloc(1, sizeof(*b));
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK && b == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    if (st == HL_OK) {
        b->shards = (uint32_t)a.shards;
        b->passes = a.passes;
        b->now_ms = START_MS;
        st = run_policy_bench(b);
    }
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    if (b != NULL) {
        hl_policy_fini(&b->policy);
        hl_placement_fini(&b->place);
        bench_samples_fini(&b->samples);
        free(b->moving);
    }
    free(b);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
