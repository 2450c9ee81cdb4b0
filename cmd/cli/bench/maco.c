/* bench maco: the cost of a task, against other task libraries in the same run, with one reading of
 * each in turn; how short tasks may be; the cost of a record; overlap. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/commands.h"
#include "cli/bench/maco.h"

#define BODIES 6 /* 25, 50, ... 800 ns */

struct maco_args {
    int64_t tasks, rounds;
};

#define AT(field) HL_OPTION_FIELD(struct maco_args, field)

static const struct hl_option rows[] = {
    {"tasks", "--tasks", "10000", "Tasks of a graph, a multiple of 50.", HL_OPT_INT, 100, 100000,
     NULL, AT(tasks)},
    {"rounds", "--rounds", "21", "Readings of each; the median counts.", HL_OPT_INT, 3, 10000, NULL,
     AT(rounds)},
};

static const char *const graphs[] = {"indep", "chain", "layer"};
static const char *const policies[] = {"direct", "scheduler", "static"};
static const char *const peers[] = {"tbb", "gomp", "lomp"};

/* ---- what the parts share ---- */

static int empty_task(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    return 0;
}

/* ---- the table ---- */

enum { OWN = 3, SYSTEMS = 7 }; /* policies; with peers (oneTBB has two ways for layers) */

struct table {
    struct cli *cli;
    struct bench_report *report;
    struct maco_args args;
    int workers;
    maco_runtime *runtimes[OWN];
    struct bench_maco_peer peers[OWN];
    struct bench_samples samples[SYSTEMS];
    double ns[SYSTEMS]; /* per task */
};

static hl_status read_own(struct table *t, const struct bench_maco_plan *plans)
{
    for (int i = 0; i < OWN; i++) {
        uint64_t ns;
        HL_TRY(bench_maco_time(t->runtimes[i], plans[i].plan, &ns));
        bench_add(&t->samples[i], ns);
    }
    return HL_OK;
}

static hl_status read_peers(struct table *t, const char *graph)
{
    uint64_t ns;
    for (int i = 0; i < OWN; i++) {
        if (t->peers[i].pid == 0)
            continue;
        HL_TRY(bench_maco_peer_ask(&t->peers[i], graph, (uint32_t)t->args.tasks, &ns));
        bench_add(&t->samples[OWN + i], ns);
    }
    if (t->peers[0].pid == 0 || strcmp(graph, "layer") != 0)
        return HL_OK;
    HL_TRY(bench_maco_peer_ask(&t->peers[0], "groups", (uint32_t)t->args.tasks, &ns));
    bench_add(&t->samples[SYSTEMS - 1], ns);
    return HL_OK;
}

static void report_graph(struct table *t, const char *graph)
{
    char op[32], name[96];
    double best = 0;
    const char *who = NULL;
    snprintf(op, sizeof(op), "%s %dw", graph, t->workers);
    for (int i = 0; i < SYSTEMS; i++) {
        const char *system = i < OWN ? policies[i] : i < 2 * OWN ? peers[i - OWN] : "tbb groups";
        if (t->samples[i].count == 0)
            continue;
        const struct bench_row *row =
            bench_row(t->report, system, op, (uint64_t)t->args.tasks, &t->samples[i]);
        t->ns[i] = row->p50_us * 1e3 / (double)t->args.tasks;
        if (i >= OWN && (best == 0 || t->ns[i] < best)) {
            best = t->ns[i];
            who = system;
        }
    }
    snprintf(name, sizeof(name), "%s %d workers direct ns per task", graph, t->workers);
    bench_ratio(t->report, name, t->ns[0], 0, 0);
    if (t->workers == 1 && strcmp(graph, "chain") == 0) /* two threads: two processors suffice */
        bench_ratio(t->report, "chain 1 workers scheduler ns per task", t->ns[1], 2000, 1);
    if (best == 0)
        return;
    snprintf(name, sizeof(name), "%s %d workers best peer (%s) over direct", graph, t->workers,
             who);
    double bar = t->workers < 2 ? 0 : strcmp(graph, "chain") == 0 ? 2 : 4;
    bench_ratio(t->report, name, best / t->ns[0], bar, 0);
}

static hl_status time_graph(struct table *t, const char *graph)
{
    struct bench_maco_plan plans[OWN] = {{0}};
    hl_status st = HL_OK;
    for (int i = 0; i < SYSTEMS && st == HL_OK; i++)
        st = bench_samples_init(&t->samples[i], (size_t)t->args.rounds);
    for (int i = 0; i < OWN && st == HL_OK; i++)
        st = bench_maco_plan(graph, i, t->workers, (uint32_t)t->args.tasks, empty_task, NULL,
                             &plans[i]);
    for (int64_t k = 0; k <= t->args.rounds && st == HL_OK; k++) {
        st = read_own(t, plans);
        if (st == HL_OK)
            st = read_peers(t, graph);
        for (int i = 0; k == 0 && i < SYSTEMS; i++)
            t->samples[i].count = 0; /* the first run builds and warms up */
    }
    if (st == HL_OK)
        report_graph(t, graph);
    for (int i = 0; i < OWN; i++)
        bench_maco_plan_free(&plans[i]);
    return st;
}

static hl_status open_systems(struct table *t)
{
    for (int i = 0; i < OWN; i++) {
        maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .policy = i, .workers = t->workers};
        HL_TRY((hl_status)maco_runtime_open(&o, &t->runtimes[i]));
        hl_status st = bench_maco_peer_start(t->cli, peers[i], t->workers, &t->peers[i]);
        if (st == HL_ENOENT)
            fprintf(stderr, "helios: %s\n", hl_error_text());
        else if (st != HL_OK)
            return st;
    }
    return HL_OK;
}

static void close_systems(struct table *t)
{
    for (int i = 0; i < OWN; i++) {
        maco_runtime_close(t->runtimes[i]);
        bench_maco_peer_stop(&t->peers[i]);
        t->runtimes[i] = NULL;
    }
}

static hl_status time_systems(struct table *t)
{
    hl_status st = HL_OK;
    for (t->workers = 1; t->workers <= 2 && st == HL_OK; t->workers++) {
        st = open_systems(t);
        for (size_t g = 0; g < HL_ARRAY_LEN(graphs) && st == HL_OK; g++)
            st = time_graph(t, graphs[g]);
        close_systems(t);
    }
    for (int i = 0; i < SYSTEMS; i++)
        bench_samples_fini(&t->samples[i]);
    return st;
}

/* ---- how short a task may be ---- */

/* The share of two workers' time in which they do what one thread alone does, for one length of
 * body; that length is in *ns. */
static hl_status measure_efficiency(maco_runtime *rt, const struct bench_maco_plan *p,
                                    uint64_t *operations, int rounds, double *ns, double *share)
{
    struct bench_samples one = {0}, two = {0};
    HL_TRY(bench_samples_init(&one, (size_t)rounds));
    hl_status st = bench_samples_init(&two, (size_t)rounds);
    for (int k = 0; k < rounds && st == HL_OK; k++) {
        uint64_t took, from = hl_now_ns();
        for (uint32_t i = 0; i < p->tasks; i++)
            (void)bench_maco_spin_task(operations, NULL);
        bench_add(&one, hl_now_ns() - from);
        st = bench_maco_time(rt, p->plan, &took);
        bench_add(&two, took);
    }
    *ns = bench_maco_median(&one) / p->tasks;
    *share = *ns * p->tasks / (2 * bench_maco_median(&two));
    bench_samples_fini(&one);
    bench_samples_fini(&two);
    return st;
}

/* The shortest body for which half of the two workers' time is useful work, interpolated linearly
 * between the last body that gives less and the next one. */
static hl_status bench_shortest_task(struct bench_report *r, const struct maco_args *args,
                                     const char *graph)
{
    uint64_t operations = 0;
    struct bench_maco_plan p = {0};
    maco_runtime *rt = NULL;
    maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .workers = 2};
    double ns = 0, share = 0, before_ns = 0, before = 0;
    char name[96];
    hl_status st = bench_maco_plan(graph, MACO_DIRECT, 2, (uint32_t)args->tasks,
                                   bench_maco_spin_task, &operations, &p);
    if (st == HL_OK)
        st = (hl_status)maco_runtime_open(&o, &rt);
    for (int k = 0; k < BODIES && st == HL_OK && share < 0.5; k++) {
        before_ns = ns;
        before = share;
        operations = UINT64_C(8) << k;
        st = measure_efficiency(rt, &p, &operations, (int)args->rounds, &ns, &share);
    }
    if (st == HL_OK) {
        double metg = share >= 0.5 && before_ns > 0
                          ? before_ns + (ns - before_ns) * (0.5 - before) / (share - before)
                          : ns;
        snprintf(name, sizeof(name), "%s shortest task at half efficiency ns", graph);
        bench_ratio(r, name, share >= 0.5 ? metg : INFINITY, 200, 1);
    }
    maco_runtime_close(rt);
    bench_maco_plan_free(&p);
    return st;
}

/* ---- what a record costs ---- */

static hl_status bench_records(struct bench_report *r, const struct maco_args *args,
                               const char *graph)
{
    struct bench_maco_plan p = {0};
    struct bench_samples s[2] = {{0}, {0}};
    maco_runtime *rt[2] = {NULL, NULL};
    char name[96];
    hl_status st =
        bench_maco_plan(graph, MACO_DIRECT, 1, (uint32_t)args->tasks, empty_task, NULL, &p);
    for (int i = 0; i < 2 && st == HL_OK; i++) {
        maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .workers = 1, .trace = i};
        st = bench_samples_init(&s[i], (size_t)args->rounds);
        if (st == HL_OK)
            st = (hl_status)maco_runtime_open(&o, &rt[i]);
    }
    for (int64_t k = 0; k <= args->rounds && st == HL_OK; k++)
        for (int i = 0; i < 2 && st == HL_OK; i++) {
            uint64_t ns;
            st = bench_maco_time(rt[i], p.plan, &ns);
            if (k > 0)
                bench_add(&s[i], ns);
        }
    if (st == HL_OK) {
        snprintf(name, sizeof(name), "%s record ns per task", graph);
        bench_ratio(r, name, (bench_maco_median(&s[1]) - bench_maco_median(&s[0])) / p.tasks, 30,
                    1);
    }
    for (int i = 0; i < 2; i++) {
        maco_runtime_close(rt[i]);
        bench_samples_fini(&s[i]);
    }
    bench_maco_plan_free(&p);
    return st;
}

static hl_status run_maco_bench(struct table *t)
{
    HL_TRY(time_systems(t));
    HL_TRY(bench_shortest_task(t->report, &t->args, "indep"));
    HL_TRY(bench_shortest_task(t->report, &t->args, "layer"));
    HL_TRY(bench_records(t->report, &t->args, "indep"));
    HL_TRY(bench_records(t->report, &t->args, "chain"));
    return bench_maco_link(t->report, (int)t->args.rounds);
}

static hl_status bench_maco(struct table *t)
{
    if (t->args.tasks % BENCH_MACO_WIDTH != 0)
        return cli_usage(t->cli, "--tasks %lld is not a multiple of %d", (long long)t->args.tasks,
                         BENCH_MACO_WIDTH);
    t->report = calloc(1, sizeof(*t->report));
    if (t->report == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = run_maco_bench(t);
    if (st == HL_OK)
        st = bench_print(t->cli, t->report);
    free(t->report);
    return st;
}

hl_status cmd_bench_maco(struct cli *cli, int argc, char **argv)
{
    struct table t = {.cli = cli};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &t.args, 0, 0);
    if (st == HL_OK)
        st = bench_maco(&t);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &t.args);
    return st;
}
