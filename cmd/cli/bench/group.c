/* bench group: collectives of processes on this node against memcpy of as many bytes, which all of
 * them do at the same time. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "helios/hybridps.h"

#define SIZES   8
#define CALLS   4
#define WAIT_MS 60000

struct group_args {
    int64_t ranks, rounds;
    char *size;
};

#define AT(field) HL_OPTION_FIELD(struct group_args, field)

static const struct hl_option rows[] = {
    {"ranks", "--ranks", "2", "Processes of the group.", HL_OPT_INT, 2, 64, NULL, AT(ranks)},
    {"rounds", "--rounds", "15", "Calls timed; ratios are of the best.", HL_OPT_INT, 1, 10000, NULL,
     AT(rounds)},
    {"size", "--size", "4KiB,64KiB,1MiB,16MiB", "Sizes of the array in bytes, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
};

static const char *const names[CALLS] = {"memcpy", "allreduce", "reduce_scatter", "alltoall"};

struct group_bench {
    hybridps_group *g;
    const struct group_args *args;
    uint64_t sizes[SIZES];
    size_t n_sizes;
    char *in, *out;
    struct bench_samples samples[CALLS];
};

static hl_status call_collective(struct group_bench *b, int which, uint64_t size)
{
    uint64_t part = size / (uint64_t)b->args->ranks / 4 * 4;
    switch (which) {
    case 0:
        memcpy(b->out, b->in, size);
        return HL_OK;
    case 1:
        return (hl_status)hybridps_group_allreduce(b->g, names[1], b->in, size / 4, HYBRIDPS_F32,
                                                   HYBRIDPS_SUM);
    case 2:
        return (hl_status)hybridps_group_reduce_scatter(b->g, names[2], b->in, b->out, part / 4,
                                                        HYBRIDPS_F32, HYBRIDPS_SUM);
    default:
        return (hl_status)hybridps_group_alltoall(b->g, names[3], b->in, b->out, part);
    }
}

/* All ranks begin together. */
static hl_status time_size(struct group_bench *b, uint64_t size)
{
    float together = 0;
    for (int64_t i = 0; i <= b->args->rounds; i++)
        for (int k = 0; k < CALLS; k++) {
            HL_TRY((hl_status)hybridps_group_allreduce(b->g, "begin", &together, 1, HYBRIDPS_F32,
                                                       HYBRIDPS_SUM));
            uint64_t start = hl_now_ns();
            HL_TRY(call_collective(b, k, size));
            if (i > 0) /* the first one warms up pages */
                bench_add(&b->samples[k], hl_now_ns() - start);
        }
    return HL_OK;
}

static hl_status report_size(struct group_bench *b, struct bench_report *r, uint64_t size)
{
    double limit = 0;
    char name[96];
    for (int k = 0; k < CALLS; k++) {
        const struct bench_row *row = bench_row(r, "shm", names[k], size, &b->samples[k]);
        limit = k == 0 ? row->min_us : limit;
        snprintf(name, sizeof(name), "%s / memcpy %llu B", names[k], (unsigned long long)size);
        if (k > 0)
            bench_ratio(r, name, row->min_us / limit, 0, 1);
    }
    return HL_OK;
}

/* r is NULL except on rank 0. */
static hl_status one_rank(struct group_bench *b, const char *name, int rank, struct bench_report *r)
{
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = rank,
                              .world = (int)b->args->ranks, .timeout_ms = WAIT_MS};
    uint64_t most = 0;
    HL_TRY((hl_status)hybridps_group_shm(&o, &b->g));
    for (size_t i = 0; i < b->n_sizes; i++)
        most = b->sizes[i] > most ? b->sizes[i] : most;
    b->in = calloc(1, most);
    b->out = calloc(1, most);
    hl_status st = b->in != NULL && b->out != NULL
                       ? HL_OK
                       : hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    for (size_t i = 0; i < b->n_sizes && st == HL_OK; i++) {
        for (int k = 0; k < CALLS && st == HL_OK; k++)
            st = bench_samples_init(&b->samples[k], (size_t)b->args->rounds);
        if (st == HL_OK)
            st = time_size(b, b->sizes[i]);
        if (st == HL_OK && r != NULL)
            st = report_size(b, r, b->sizes[i]);
    }
    hybridps_group_close(b->g);
    for (int k = 0; k < CALLS; k++)
        bench_samples_fini(&b->samples[k]);
    free(b->in);
    free(b->out);
    return st;
}

/* Rank 0 notices if a rank fails, because the rank then leaves the group. */
static hl_status run_ranks(struct group_bench *b, struct bench_report *r)
{
    pid_t pids[64], parent = getpid();
    char name[64];
    int started = 1;
    snprintf(name, sizeof(name), "helios-bench-%d", (int)parent);
    for (; started < b->args->ranks; started++) {
        pids[started] = fork();
        if (pids[started] < 0)
            break;
        if (pids[started] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent && one_rank(b, name, started, NULL) == HL_OK ? 0 : 1);
        }
    }
    hl_status st = started < b->args->ranks
                       ? hl_fail(HL_EUNAVAIL, "starting the process of rank %d: %m", started)
                       : one_rank(b, name, 0, r);
    for (int k = 1; k < started; k++) {
        if (st != HL_OK)
            kill(pids[k], SIGKILL);
        waitpid(pids[k], NULL, 0);
    }
    return st;
}

hl_status cmd_bench_group(struct cli *cli, int argc, char **argv)
{
    struct group_args a = {0};
    struct group_bench b = {.args = &a};
    struct bench_report *r = calloc(1, sizeof(*r));
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK)
        st = bench_sizes(cli, "--size", a.size, UINT64_C(1) << 30, b.sizes, SIZES, &b.n_sizes);
    if (st == HL_OK && r == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    if (st == HL_OK)
        st = run_ranks(&b, r);
    if (st == HL_OK)
        st = bench_print(cli, r);
    free(r);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
