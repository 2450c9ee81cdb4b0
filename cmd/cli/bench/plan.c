/* bench plan: placing gangs on big clusters of two-slot servers, in this process. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "core/place/plan.h"

#define SLOTS 2

struct plan_bench {
    struct hl_cluster cluster;
    struct hl_job job;
    struct bench_samples samples;
    struct bench_report report;
};

static hl_status add_servers(struct hl_cluster *c, int count)
{
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "server-%d", i);
        struct hl_api_slot slots[SLOTS];
        for (int k = 0; k < SLOTS; k++)
            slots[k] = (struct hl_api_slot){.numa_id = k * 8,
                                            .cpus = k == 0 ? "0-87" : "88-175",
                                            .memory_bytes = (uint64_t)1 << 37};
        HL_TRY(hl_cluster_put(c, &(struct hl_api_node_info){
                                     .name = name, .rank_address = name, .slots = {slots, SLOTS}}));
        hl_cluster_set_ready(c, name, 1);
    }
    return HL_OK;
}

/* A job file: a gang of tp 8 x pp 8, one rank to a slot. */
static const char gang_text[] =
    "{\"jobName\": \"gang\","
    " \"parallelism\": {\"pipeline_parallel_size\": 8, \"tensor_parallel_size\": 8,"
    " \"data_parallel_size\": 1},"
    " \"resources\": {\"ranks_per_slot\": 1}, \"command\": [\"true\"]}";

static hl_status make_job(struct hl_job *job)
{
    json_t *doc = json_loads(gang_text, 0, NULL);
    hl_status st = hl_job_parse(doc, NULL, job);
    json_decref(doc);
    return st;
}

/* All slots but every n-th are held; 0 frees all. */
static void hold_slots(struct hl_cluster *c, int servers, int every)
{
    for (int i = 0; i < servers; i++) {
        char name[32];
        snprintf(name, sizeof(name), "server-%d", i);
        for (int k = 0; k < SLOTS; k++)
            hl_cluster_set_busy(c, name, k * 8, every == 0 ? 0 : (i * SLOTS + k) % every != 0);
    }
}

static hl_status time_plans(struct plan_bench *b, const char *op, uint64_t servers, bool feasible,
                            int rounds)
{
    b->samples.count = 0;
    for (int i = 0; i < rounds; i++) {
        struct hl_plan *plan = NULL;
        uint64_t start = hl_now_ns();
        HL_TRY(hl_plan_make(&b->job, &b->cluster, &plan));
        bench_add(&b->samples, hl_now_ns() - start);
        bool got = plan->feasible;
        hl_plan_free(plan);
        if (got != feasible)
            return hl_fail(HL_EINTERNAL, "plan of %s is %sfeasible", op, got ? "" : "not ");
    }
    const struct bench_row *row = bench_row(&b->report, "helios", op, servers, &b->samples);
    char name[96];
    snprintf(name, sizeof(name), "%s on %llu servers p50 us", op, (unsigned long long)servers);
    bench_ratio(&b->report, name, row->p50_us, servers > 1000 ? 10000 : 1000, 1);
    return HL_OK;
}

static hl_status run_plan_bench(struct plan_bench *b)
{
    HL_TRY(bench_samples_init(&b->samples, 1000));
    HL_TRY(make_job(&b->job));
    HL_TRY(add_servers(&b->cluster, 1000));
    HL_TRY(time_plans(b, "gang of 64", 1000, 1, 1000));
    hold_slots(&b->cluster, 1000, 2);
    HL_TRY(time_plans(b, "half used", 1000, 1, 1000));
    hold_slots(&b->cluster, 1000, 40);
    HL_TRY(time_plans(b, "no room", 1000, 0, 1000));
    hl_cluster_fini(&b->cluster);
    HL_TRY(add_servers(&b->cluster, 10000));
    return time_plans(b, "gang of 64", 10000, 1, 200);
}

hl_status cmd_bench_plan(struct cli *cli, int argc, char **argv)
{
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    struct plan_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = run_plan_bench(b);
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    hl_cluster_fini(&b->cluster);
    hl_job_fini(&b->job);
    bench_samples_fini(&b->samples);
    free(b);
    return st;
}
