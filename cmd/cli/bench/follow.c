/* bench follow: how long the Controller's loop is blocked by shards that it follows: all of them
 * after a start, those of one more version, all of them when a node falls silent, and those of a
 * removed version. The catalogue, the placement wing and the loop are the real ones. The policy is
 * off and no daemon runs, so all copies are the pool's. Times are CPU times from one turn of the
 * loop to the next. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "controller/copies/copies.h"
#include "controller/core.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "os/loop.h"

#define RANKS       64
#define PARTS       64 /* per rank; a version has RANKS times as many shards */
#define PASS_MS     50
#define QUIET_TURNS 200 /* turns in a row that did almost nothing: all shards are followed */
#define QUIET_NS    (200 * UINT64_C(1000))

struct follow_args {
    int64_t shards;
};

#define AT(field) HL_OPTION_FIELD(struct follow_args, field)

static const struct hl_option rows[] = {
    {"shards", "--shards", "1000000", "Shards of the cluster.", HL_OPT_INT, RANKS *PARTS, 20000000,
     NULL, AT(shards)},
};

struct follow_bench {
    struct hl_controller c;
    struct hl_placement_conf conf;
    struct node node;
    unsigned models;
    uint64_t last_ns, longest_ns, sum_ns;
    unsigned quiet;
    struct bench_report report;
};

/* ---- the cluster ----------------------------------------------------------------------------- */

static bool no_imports(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static bool no_gangs(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static hl_status keep_nothing(void *arg, const struct hl_records *records)
{
    (void)arg;
    (void)records;
    return HL_OK;
}

static void model_name(unsigned model, char name[32])
{
    snprintf(name, 32, "model-%u", model);
}

/* One version of RANKS * PARTS shards. */
static hl_status import_model(struct follow_bench *b)
{
    char name[32];
    struct hl_arena arena = {0};
    struct hl_version_rec *v;
    struct hl_api_shard_list shards = {
        .items = hl_arena_array(&arena, RANKS * PARTS, sizeof(*shards.items))};
    for (int i = 0; shards.items != NULL && i < RANKS * PARTS; i++) {
        struct hl_id id = {.hi = hl_random_u64(),
                           .lo = b->models * UINT64_C(1000000) + (unsigned)i};
        shards.items[shards.count++] =
            (struct hl_api_shard){.id = hl_id_print(id, &arena),
                                  .tp = i / PARTS,
                                  .part = hl_arena_printf(&arena, "layer-%04d", i % PARTS),
                                  .size_bytes = 1 << 20,
                                  .tensors = 1,
                                  .layout = "w\tF32\t4,2\n"};
    }
    model_name(b->models++, name);
    struct hl_import_done done = {.name = name,
                                  .source = "/",
                                  .tp = RANKS,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = "{}",
                                  .now_ms = 1,
                                  .shards = shards};
    hl_status st = hl_arena_failed(&arena)
                       ? hl_fail(HL_ENOMEM, "out of memory for a version")
                       : hl_catalog_import(&b->c.catalog, &done, keep_nothing, NULL, &v);
    hl_arena_fini(&arena);
    return st;
}

static hl_status cluster_create(struct follow_bench *b, int64_t shards)
{
    static const struct node_events no_events = {0};
    struct hl_controller *c = &b->c;
    c->refs = 1;
    hl_listening_init(&c->listening, HL_NS_PER_S, hl_now_ns(), hl_wall_ms());
    b->node = (struct node){.controller = c, .name = "node-0", .incarnation = "1", .seen_ns = 1};
    HL_TRY(hl_options_defaults(hl_placement_rows.rows, hl_placement_rows.count, &b->conf));
    HL_TRY(hl_options_defaults(hl_policy_rows.rows, hl_policy_rows.count, &b->conf.params));
    free((char *)b->conf.policy);
    b->conf.policy = "off";
    b->conf.interval_ms = PASS_MS;
    c->opts.placement = &b->conf;
    HL_TRY(hl_loop_create(&c->opts.loop));
    HL_TRY(nodes_create(c, &no_events));
    HL_TRY(copies_create(c, no_imports));
    HL_TRY(placement_create(c, no_gangs));
    for (int64_t n = 0; n < shards; n += RANKS * PARTS)
        HL_TRY(import_model(b));
    HL_TRY(placement_start(c));
    placement_node_registered(c, &b->node);
    return HL_OK;
}

static void cluster_destroy(struct follow_bench *b)
{
    struct hl_controller *c = &b->c;
    placement_stop(c);
    placement_fini(c);
    copies_fini(c);
    nodes_fini(c);
    hl_catalog_fini(&c->catalog);
    hl_loop_destroy(c->opts.loop);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void on_turn(void *arg)
{
    struct follow_bench *b = arg;
    uint64_t now = hl_thread_ns(), turn = now - b->last_ns;
    b->last_ns = now;
    b->longest_ns = turn > b->longest_ns ? turn : b->longest_ns;
    b->sum_ns += turn;
    b->quiet = turn < QUIET_NS ? b->quiet + 1 : 0;
    if (b->quiet == QUIET_TURNS)
        hl_loop_stop(b->c.opts.loop);
}

static hl_status time_turns(struct follow_bench *b, const char *what)
{
    struct hl_timer *timer;
    char name[96];
    b->longest_ns = b->sum_ns = b->quiet = 0;
    HL_TRY(hl_timer_create(b->c.opts.loop, 1, 1, on_turn, b, &timer));
    b->last_ns = hl_thread_ns();
    hl_status st = hl_loop_run(b->c.opts.loop);
    hl_timer_destroy(timer);
    snprintf(name, sizeof(name), "longest turn of the loop, %s, ms", what);
    bench_ratio(&b->report, name, (double)b->longest_ns / 1e6, 0, true);
    snprintf(name, sizeof(name), "all of its turns, %s, ms", what);
    bench_ratio(&b->report, name, (double)b->sum_ns / 1e6, 0, true);
    return st;
}

static hl_status time_removal(struct follow_bench *b)
{
    char name[32];
    struct hl_model_rec *m;
    struct hl_id *ids = NULL;
    size_t count;
    uint64_t bytes, start = hl_thread_ns();
    model_name(0, name);
    HL_TRY(hl_catalog_model(&b->c.catalog, name, &m));
    HL_TRY(hl_catalog_remove(&b->c.catalog, m, -1, keep_nothing, NULL, &ids, &count, &bytes));
    bench_ratio(&b->report, "removal of a version, with its records, ms",
                (double)(hl_thread_ns() - start) / 1e6, 0, true);
    free(ids);
    return HL_OK;
}

/* Checks that every shard of the newest version is placed; otherwise the times are meaningless. */
static hl_status check_placed(struct follow_bench *b)
{
    const struct hl_model_rec *m;
    struct hl_model_rec *found;
    char name[32];
    model_name(b->models - 1, name);
    HL_TRY(hl_catalog_model(&b->c.catalog, name, &found));
    m = found;
    for (size_t i = 0; i < m->versions->shard_count; i++) {
        struct hl_api_shard shard = {.life = ""};
        placement_describe(&b->c, m->versions->shards[i]->id, &shard);
        if (shard.life[0] == '\0')
            return hl_fail(HL_EINTERNAL, "a shard was not followed");
    }
    return HL_OK;
}

static hl_status run_follow_bench(struct follow_bench *b, int64_t shards)
{
    HL_TRY(cluster_create(b, shards));
    HL_TRY(time_turns(b, "start"));
    HL_TRY(check_placed(b));
    HL_TRY(import_model(b));
    HL_TRY(time_turns(b, "one version more"));
    HL_TRY(check_placed(b));
    placement_node_silent(&b->c, &b->node);
    HL_TRY(time_turns(b, "a silent node"));
    return time_removal(b);
}

hl_status cmd_bench_follow(struct cli *cli, int argc, char **argv)
{
    struct follow_args a = {0};
    struct follow_bench *b = calloc(1, sizeof(*b));
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK && b == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    if (st == HL_OK) {
        st = run_follow_bench(b, a.shards);
        cluster_destroy(b);
    }
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    free(b);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
