/* sim: simulates a trace of shard accesses, from a file or generated from a seed, under policies
 * and a bound.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/sim/commands.h"
#include "core/placement/keep.h"
#include "os/file.h"
#include "whatif/whatif.h"

#define READ_BYTES  (64u * 1024)
#define WRITE_BYTES (1u << 20)

struct sim_args {
    char *trace, *generate, *out, *policy, *placement, *warm;
    int64_t seed, nodes;
    uint64_t l1, l2, l3;
    uint64_t inside, migration, backbone, archive;
    int64_t pass;
    double keep, keep_l1;
};

#define AT(field) HL_OPTION_FIELD(struct sim_args, field)

#define SIZE_MAX_BYTES (HL_OPTION_TIB * 1024)
#define RATE_MAX_BPS   1000000000000000ll

static const struct hl_option rows[] = {
    {"trace", "--trace", "",
     "The trace: CSV with the columns t_seconds,node,shard,size_bytes,op; - is stdin.",
     HL_OPT_STRING, 0, 0, NULL, AT(trace)},
    {"generate", "--generate", "none",
     "Generate the trace: epochs of training with checkpoints, inference for many tenants, or "
     "scans next to a hot set.",
     HL_OPT_ENUM, 0, 0, "none|training|inference|scan", AT(generate)},
    {"seed", "--seed", "1",
     "With --generate: seed of the trace; the same seed gives the same trace.", HL_OPT_INT, 0,
     INT32_MAX, NULL, AT(seed)},
    {"nodes", "--nodes", "8", "With --generate: number of nodes in the trace.", HL_OPT_INT, 1,
     HL_GENERATE_NODES_MAX, NULL, AT(nodes)},
    {"out", "--out", "",
     "With --generate: only write the trace to a file, without simulating it; - is stdout.",
     HL_OPT_PATH, 1, 0, NULL, AT(out)},
    {"policy", "--policy", "all",
     "The policy that decides where shards are placed; all compares them.", HL_OPT_ENUM, 0, 0,
     "all|helios|lru|lfu|sieve|s3fifo|wtinylfu|gdsf|static|optimal", AT(policy)},
    {"l1", "--l1", "16GiB", "Device memory for shards on each node.", HL_OPT_BYTES, 0,
     SIZE_MAX_BYTES, NULL, AT(l1)},
    {"l2", "--l2", "64GiB", "Host memory for shards on each node.", HL_OPT_BYTES, 0, SIZE_MAX_BYTES,
     NULL, AT(l2)},
    {"l3", "--l3", "1TiB", "Memory of the pool.", HL_OPT_BYTES, 0, SIZE_MAX_BYTES, NULL, AT(l3)},
    {"inside", "--inside", "800Gbit", "Rate between L2 and L1 of a node.", HL_OPT_RATE, 8,
     RATE_MAX_BPS, NULL, AT(inside)},
    {"migration", "--migration", "200Gbit", "Rate of a node in the migration network.", HL_OPT_RATE,
     8, RATE_MAX_BPS, NULL, AT(migration)},
    {"backbone", "--backbone", "100Gbit", "Rate of a node in the backbone network.", HL_OPT_RATE, 8,
     RATE_MAX_BPS, NULL, AT(backbone)},
    {"archive", "--archive", "16Gbit", "Rate of the archive, which all nodes share.", HL_OPT_RATE,
     8, RATE_MAX_BPS, NULL, AT(archive)},
    {"pass", "--pass", "1s", "Policy helios: time between its passes.", HL_OPT_DURATION, 1,
     HL_OPTION_DAY_MS, NULL, AT(pass)},
    {"placement", "--placement", "observe",
     "Policy helios: whether shards are moved as its passes decide, as with placement.policy.",
     HL_OPT_ENUM, 0, 0, "observe|on", AT(placement)},
    {"warm", "--warm", "off",
     "Policy helios: whether archived shards are loaded ahead into a pool that has room, as with "
     "placement.warm.",
     HL_OPT_ENUM, 0, 0, "off|on", AT(warm)},
    {"keep", "--keep", HL_KEEP_SHARE,
     "Policy helios: share of a node's L2 for copies that reads leave there, as with "
     "agent.l2_keep.",
     HL_OPT_PERCENT, 0, 100, NULL, AT(keep)},
    {"keep_l1", "--keep-l1", HL_KEEP_L1_SHARE,
     "Policy helios: the same share of a node's L1, as with agent.l1_keep.", HL_OPT_PERCENT, 0, 100,
     NULL, AT(keep_l1)},
};

#undef AT

static const char *const found_names[HL_FOUND_KINDS] = {[HL_FOUND_L1] = "l1",
                                                        [HL_FOUND_L2] = "l2",
                                                        [HL_FOUND_OTHER] = "other_node",
                                                        [HL_FOUND_L3] = "l3",
                                                        [HL_FOUND_L4] = "l4"};
static const char *const path_names[HL_MOVE_PATHS] = {[HL_MOVE_INSIDE] = "inside",
                                                      [HL_MOVE_MIGRATION] = "migration",
                                                      [HL_MOVE_BACKBONE] = "backbone",
                                                      [HL_MOVE_ARCHIVE] = "archive"};

/* ---- the trace ------------------------------------------------------------------------------- */

static hl_status feed_file(int fd, const char *path, struct hl_access_reader *reader)
{
    static char bytes[READ_BYTES];
    for (;;) {
        ssize_t got = read(fd, bytes, sizeof(bytes));
        if (got == 0)
            return hl_access_reader_end(reader);
        if (got > 0)
            HL_TRY(hl_access_reader_feed(reader, bytes, (size_t)got));
        else if (errno != EINTR)
            return hl_fail(hl_status_of_errno(errno), "read %s: %m", path);
    }
}

static hl_status read_trace(const char *path, struct hl_access_trace *trace)
{
    struct hl_access_reader reader;
    bool is_stdin = strcmp(path, "-") == 0;
    HL_AUTO(hl_closep) int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hl_fail(hl_status_of_errno(errno), "open %s: %m", path);
    hl_access_reader_init(&reader, trace);
    hl_status st = feed_file(fd, path, &reader);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", is_stdin ? "stdin" : path);
}

hl_status trace_print(const struct hl_access_trace *trace, struct outfile *file)
{
    struct hl_buf text = HL_BUF(2 * WRITE_BYTES);
    hl_status st = hl_buf_printf(&text, "%s\n", HL_ACCESS_HEADER);
    for (uint32_t i = 0; st == HL_OK && i < trace->count; i++) {
        st = hl_access_row_print(trace, i, &text);
        if (st == HL_OK && (text.len >= WRITE_BYTES || i + 1 == trace->count)) {
            st = outfile_write(file, text.data, text.len);
            hl_buf_clear(&text);
        }
    }
    hl_buf_fini(&text);
    return st;
}

static hl_status write_trace(const struct hl_access_trace *trace, const char *path)
{
    struct outfile file;
    HL_TRY(outfile_open(path, &file));
    hl_status st = trace_print(trace, &file);
    if (st == HL_OK)
        st = outfile_commit(&file);
    if (st != HL_OK)
        outfile_abort(&file);
    return st;
}

static hl_status make_trace(const struct sim_args *a, struct hl_access_trace *trace)
{
    struct hl_generate_opts opts = {.seed = (uint64_t)a->seed, .nodes = (uint32_t)a->nodes};
    if (!hl_generate_find(a->generate, &opts.kind))
        return read_trace(a->trace, trace);
    return hl_generate(&opts, trace);
}

/* ---- output ---------------------------------------------------------------------------------- */

struct outcome {
    enum hl_whatif_policy policy;
    struct hl_whatif_result result;
};

static void describe_world(const struct sim_args *a, const struct hl_access_trace *t,
                           uint64_t loads, struct hl_api_simulation_world *out)
{
    *out = (struct hl_api_simulation_world){
        .accesses = t->count,
        .loads = loads,
        .shards = t->shards.count,
        .nodes = t->nodes.count,
        .seconds = (double)(t->rows[t->count - 1].at_ns - t->rows[0].at_ns) / 1e9,
        .l1_bytes = a->l1,
        .l2_bytes = a->l2,
        .l3_bytes = a->l3,
        .inside_bps = a->inside,
        .migration_bps = a->migration,
        .backbone_bps = a->backbone,
        .archive_bps = a->archive,
        .pass_ms = (uint64_t)a->pass,
        .keep_pct = a->keep,
        .keep_l1_pct = a->keep_l1,
        .placement = a->placement,
        .warm = a->warm};
    for (uint32_t i = 0; i < t->shards.count; i++)
        out->bytes += t->sizes[i];
}

static void describe_outcome(const struct outcome *o, struct hl_arena *arena,
                             struct hl_api_simulation_policy *out)
{
    const struct hl_whatif_result *r = &o->result;
    bool bound = o->policy == HL_WHATIF_OPTIMAL;
    *out = (struct hl_api_simulation_policy){.policy = hl_whatif_policy_name(o->policy),
                                             .bound = bound,
                                             .wait_s = r->wait_s,
                                             .wait_mean_s = r->wait_mean_s,
                                             .wait_p99_s = r->wait_p99_s};
    if (bound)
        return;
    struct hl_api_simulation_run *run = &out->run;
    run->again_p99_s = r->again_p99_s;
    run->access_mean_s = r->access_s;
    run->moves = r->moves;
    run->planned_bytes = r->planned_bytes;
    run->planned_local_bytes = r->planned_local_bytes;
    run->ahead_bytes = r->ahead_bytes;
    run->vain_bytes = r->vain_bytes;
    run->hits.items = hl_arena_array(arena, HL_FOUND_KINDS, sizeof(*run->hits.items));
    run->bytes.items = hl_arena_array(arena, HL_MOVE_PATHS, sizeof(*run->bytes.items));
    if (hl_arena_failed(arena))
        return;
    for (unsigned i = 0; i < HL_FOUND_KINDS; i++)
        run->hits.items[run->hits.count++] =
            (struct hl_api_simulation_hits){.found = found_names[i], .reads = r->hits[i]};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        run->bytes.items[run->bytes.count++] = (struct hl_api_simulation_bytes){
            .path = path_names[i], .read = r->read_bytes[i], .moved = r->moved_bytes[i]};
}

static hl_status print_json(const struct hl_api_simulation_world *world,
                            const struct outcome *outcomes, size_t count)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_simulation doc = {.world = *world};
    doc.policies.items = hl_arena_array(&arena, count, sizeof(*doc.policies.items));
    for (size_t i = 0; doc.policies.items != NULL && i < count; i++)
        describe_outcome(&outcomes[i], &arena, &doc.policies.items[doc.policies.count++]);
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory for %zu policies", count);
    return cli_print_value(&hl_api_simulation_type, &doc);
}

static void print_world(const struct hl_api_simulation_world *w)
{
    char l1[32], l2[32], l3[32], all[32];
    printf("%" PRIu64 " accesses in %" PRIu64 " loads of %" PRIu64 " shards (%s) on %" PRIu64
           " nodes in %.0f s\n",
           w->accesses, w->loads, w->shards, hl_format_bytes(w->bytes, all, sizeof(all)), w->nodes,
           w->seconds);
    printf(
        "each node L1 %s, L2 %s; L3 %s; Gbit/s: inside %g, migration %g, backbone %g, "
        "archive %g; a pass every %g s, placement %s, warm %s, %g%% of L2 and %g%% of L1 for what "
        "reads leave\n",
        hl_format_bytes(w->l1_bytes, l1, sizeof(l1)), hl_format_bytes(w->l2_bytes, l2, sizeof(l2)),
        hl_format_bytes(w->l3_bytes, l3, sizeof(l3)), (double)w->inside_bps / 1e9,
        (double)w->migration_bps / 1e9, (double)w->backbone_bps / 1e9, (double)w->archive_bps / 1e9,
        (double)w->pass_ms / 1e3, w->placement, w->warm, w->keep_pct, w->keep_l1_pct);
}

static void add_row(struct cli_table *t, const struct outcome *o, double bound_s)
{
    const struct hl_whatif_result *r = &o->result;
    bool bound = o->policy == HL_WHATIF_OPTIMAL;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        bytes += i == HL_MOVE_INSIDE ? 0 : r->read_bytes[i] + r->moved_bytes[i];
    cli_cell(t, "%s", hl_whatif_policy_name(o->policy));
    for (unsigned i = 0; i < HL_FOUND_KINDS; i++)
        cli_cell(t, bound ? "-" : "%.1f%%",
                 (double)r->hits[i] * 100 / (double)(r->reads > 0 ? r->reads : 1));
    if (bound)
        cli_cell(t, "-");
    else
        cli_cell_bytes(t, bytes);
    cli_cell(t, bound ? "-" : "%.2f", r->access_s * 1e3);
    cli_cell(t, "%.2f", r->wait_s);
    cli_cell(t, "%.2f", r->wait_mean_s * 1e3);
    cli_cell(t, "%.2f", r->wait_p99_s * 1e3);
    cli_cell(t, bound ? "-" : "%.2f", r->again_p99_s * 1e3);
    if (bound_s > 0)
        cli_cell(t, "%.2f", r->wait_s / bound_s);
    else
        cli_cell(t, "-");
}

/* What the gangs' plans said they would read. */
static void print_planned(const struct hl_whatif_result *r)
{
    char planned[32], ahead[32];
    if (r->planned_bytes == 0 && r->ahead_bytes == 0)
        return;
    printf("planned gangs read %s, %.1f%% of it in their nodes' memory; fetched ahead %s, %.1f%% "
           "of it in vain\n",
           hl_format_bytes(r->planned_bytes, planned, sizeof(planned)),
           (double)r->planned_local_bytes * 100 /
               (double)(r->planned_bytes > 0 ? r->planned_bytes : 1),
           hl_format_bytes(r->ahead_bytes, ahead, sizeof(ahead)),
           (double)r->vain_bytes * 100 / (double)(r->ahead_bytes > 0 ? r->ahead_bytes : 1));
}

static hl_status print_table(const struct outcome *outcomes, size_t count)
{
    struct cli_table t;
    double bound_s = 0;
    for (size_t i = 0; i < count; i++)
        if (outcomes[i].policy == HL_WHATIF_OPTIMAL)
            bound_s = outcomes[i].result.wait_s;
    cli_table_init(&t, "POLICY|>L1|>L2|>OTHER|>L3|>L4|>MOVED|>ACCESS ms|>WAIT s|>MEAN ms|>P99 ms|"
                       ">AGAIN ms|>x OPTIMAL");
    for (size_t i = 0; i < count; i++)
        add_row(&t, &outcomes[i], bound_s);
    return cli_table_print(&t);
}

/* ---- the command ----------------------------------------------------------------------------- */

static hl_status run_policies(struct cli *cli, const struct sim_args *a,
                              const struct hl_access_trace *trace)
{
    struct hl_whatif_world world = {.l1_bytes = a->l1,
                                    .l2_bytes = a->l2,
                                    .l3_bytes = a->l3,
                                    .rates = {[HL_MOVE_INSIDE] = (double)a->inside / 8,
                                              [HL_MOVE_MIGRATION] = (double)a->migration / 8,
                                              [HL_MOVE_BACKBONE] = (double)a->backbone / 8,
                                              [HL_MOVE_ARCHIVE] = (double)a->archive / 8},
                                    .pass_ms = a->pass,
                                    .keep_pct = a->keep,
                                    .keep_l1_pct = a->keep_l1,
                                    .moves = strcmp(a->placement, "on") == 0,
                                    .warms = strcmp(a->warm, "on") == 0};
    struct outcome outcomes[HL_WHATIF_POLICIES];
    struct hl_api_simulation_world described;
    enum hl_whatif_policy only = HL_WHATIF_HELIOS;
    size_t count = 0;
    bool one = hl_whatif_policy_find(a->policy, &only);
    hl_placement_params_init(&world.params);
    for (unsigned i = 0; i < HL_WHATIF_POLICIES; i++) {
        if (one && i != only)
            continue;
        outcomes[count].policy = (enum hl_whatif_policy)i;
        HL_TRY(hl_whatif_run(trace, &world, outcomes[count].policy, &outcomes[count].result));
        count++;
    }
    describe_world(a, trace, outcomes[0].result.loads, &described);
    if (cli->json)
        return print_json(&described, outcomes, count);
    print_world(&described);
    HL_TRY(print_table(outcomes, count));
    if (outcomes[0].policy == HL_WHATIF_HELIOS)
        print_planned(&outcomes[0].result);
    return HL_OK;
}

static bool is_given(const struct hl_api_key_value_list *given, const char *name)
{
    for (size_t i = 0; i < given->count; i++)
        if (strcmp(given->items[i].key, name) == 0)
            return true;
    return false;
}

static hl_status check_args(struct cli *cli, const struct sim_args *a,
                            const struct hl_api_key_value_list *given)
{
    bool generates = strcmp(a->generate, "none") != 0;
    if (generates && a->trace[0] != '\0')
        return cli_usage(cli, "--trace and --generate exclude each other");
    if (generates == (a->trace[0] != '\0'))
        return cli_usage(cli, "give a trace with --trace FILE, or have one made with --generate "
                              "training, inference or scan");
    for (unsigned i = 0; !generates && i < 3; i++) {
        static const char *const only[] = {"seed", "nodes", "out"};
        if (is_given(given, only[i]))
            return cli_usage(cli, "--%s needs --generate", only[i]);
    }
    return HL_OK;
}

hl_status cmd_sim(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list given = {0};
    struct sim_args a = {0};
    struct hl_access_trace trace = {0};
    hl_status st =
        cli_args_given(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0, &arena, &given);
    if (st == HL_OK)
        st = check_args(cli, &a, &given);
    if (st == HL_OK)
        st = make_trace(&a, &trace);
    if (st == HL_OK)
        st = a.out[0] != '\0' ? write_trace(&trace, a.out) : run_policies(cli, &a, &trace);
    hl_access_trace_fini(&trace);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
