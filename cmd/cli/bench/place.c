/* bench place: places gangs on big clusters of two-slot servers, in this process, with 20 servers
 * per leaf and 10 leaves per spine, in four states of use. Also measures how many servers are left
 * half used by many gangs that come and go. Times are CPU times. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cli/bench/place.h"
#include "core/planner/plan.h"

#define PER_LEAF    20
#define PER_SPINE   200
#define ROUNDS      1000
#define ARRIVALS    10000
#define RUNNING_MAX 4096
#define LOAD_PCT    85

struct place_bench {
    struct hl_cluster cluster;
    struct hl_job plain, ruled;
    struct bench_samples samples;
    struct bench_report report;
};

hl_status bench_servers(struct hl_cluster *c, int count)
{
    hl_cluster_fini(c);
    for (int i = 0; i < count; i++) {
        char name[32], leaf[32], spine[32];
        snprintf(name, sizeof(name), "server-%d", i);
        snprintf(leaf, sizeof(leaf), "leaf-%d", i / PER_LEAF);
        snprintf(spine, sizeof(spine), "spine-%d", i / PER_SPINE);
        struct hl_api_slot slots[BENCH_SERVER_SLOTS];
        for (int k = 0; k < BENCH_SERVER_SLOTS; k++)
            slots[k] = (struct hl_api_slot){.numa_id = k * 8,
                                            .cpus = k == 0 ? "0-87" : "88-175",
                                            .memory_bytes = (uint64_t)1 << 37};
        HL_TRY(hl_cluster_put(c, &(struct hl_api_node_info){.name = name,
                                                            .rank_address = name,
                                                            .leaf = leaf,
                                                            .spine = spine,
                                                            .slots = {slots, BENCH_SERVER_SLOTS}}));
    }
    return HL_OK;
}

hl_status bench_gang(struct hl_job *job, int pp, int tp, const char *placement)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"jobName\": \"gang\", \"parallelism\": {\"pipeline_parallel_size\": %d,"
             " \"tensor_parallel_size\": %d}, \"resources\": {\"ranks_per_slot\": 1}, %s"
             " \"command\": [\"true\"]}",
             pp, tp, placement);
    json_t *doc = json_loads(text, 0, NULL);
    hl_status st = hl_job_parse(doc, NULL, job);
    json_decref(doc);
    return st;
}

enum use { USE_NONE, USE_SERVERS, USE_SLOTS, USE_ALL };

/* Half of the servers, one slot of each, or all of them. */
static void hold_slots(struct hl_cluster *c, enum use use)
{
    for (size_t i = 0; i < c->count; i++)
        for (int k = 0; k < BENCH_SERVER_SLOTS; k++) {
            size_t at = i;
            bool busy = use == USE_ALL || (use == USE_SERVERS && i % 2 == 0) ||
                        (use == USE_SLOTS && k == (int)(i % BENCH_SERVER_SLOTS));
            hl_cluster_set_busy_at(c, &at, c->nodes[i].name, k * 8, busy);
        }
}

static hl_status time_plans(struct place_bench *b, const char *op, const struct hl_job *job,
                            bool feasible)
{
    size_t servers = b->cluster.count;
    b->samples.count = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct hl_plan *plan = NULL;
        uint64_t start = hl_thread_ns();
        HL_TRY(hl_plan_make(job, &b->cluster, &plan));
        bench_add(&b->samples, hl_thread_ns() - start);
        bool got = plan->feasible;
        hl_plan_free(plan);
        if (got != feasible)
            return hl_fail(HL_EINTERNAL, "plan of %s is %sfeasible", op, got ? "" : "not ");
    }
    const struct bench_row *row = bench_row(&b->report, "helios", op, servers, &b->samples);
    char name[96];
    snprintf(name, sizeof(name), "%s on %zu servers p50 us", op, servers);
    bench_ratio(&b->report, name, row->p50_us, servers > 1000 && feasible ? 500 : 100, true);
    if (servers > 1000)
        return HL_OK;
    snprintf(name, sizeof(name), "%s on %zu servers p99 us", op, servers);
    bench_ratio(&b->report, name, row->p99_us, 1000, true);
    return HL_OK;
}

static hl_status time_states(struct place_bench *b, int servers)
{
    static const struct {
        const char *name, *ruled;
        enum use use;
    } states[] = {{"empty", "empty ruled", USE_NONE},
                  {"half", "half ruled", USE_SERVERS},
                  {"fragments", "frags ruled", USE_SLOTS},
                  {"full", "full ruled", USE_ALL}};

    HL_TRY(bench_servers(&b->cluster, servers));
    for (size_t i = 0; i < HL_ARRAY_LEN(states); i++) {
        hold_slots(&b->cluster, states[i].use);
        HL_TRY(time_plans(b, states[i].name, &b->plain, states[i].use != USE_ALL));
        HL_TRY(time_plans(b, states[i].ruled, &b->ruled, states[i].use != USE_ALL));
    }
    return HL_OK;
}

/* ---- what is left half used ----------------------------------------------------------------- */

struct crowd {
    struct hl_cluster *cluster;
    struct hl_job jobs[7];
    struct hl_plan *running[RUNNING_MAX];
    size_t running_count;
    long slots_used;
    uint64_t random;
};

static uint32_t crowd_random(struct crowd *w, uint32_t below)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % below;
}

static hl_status crowd_arrive(struct crowd *w)
{
    struct hl_plan *plan;
    HL_TRY(hl_plan_make(&w->jobs[crowd_random(w, HL_ARRAY_LEN(w->jobs))], w->cluster, &plan));
    if (!plan->feasible || w->running_count == RUNNING_MAX) {
        hl_plan_free(plan);
        return hl_fail(HL_EINTERNAL, "no room below the load");
    }
    w->slots_used += plan->container_count;
    w->running[w->running_count++] = plan;
    return hl_plan_commit(plan, w->cluster);
}

static void crowd_leave(struct crowd *w)
{
    uint32_t at = crowd_random(w, (uint32_t)w->running_count);
    struct hl_plan *plan = w->running[at];
    hl_plan_mark(plan, w->cluster, false);
    w->slots_used -= plan->container_count;
    w->running[at] = w->running[--w->running_count];
    hl_plan_free(plan);
}

static int half_used(const struct hl_cluster *c)
{
    int n = 0;
    for (size_t i = 0; i < c->count; i++)
        n += c->nodes[i].slots[0].busy != c->nodes[i].slots[1].busy;
    return n;
}

static hl_status crowd_run(struct crowd *w)
{
    static const int shapes[][2] = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 8}, {4, 8}, {8, 8}};
    for (size_t i = 0; i < HL_ARRAY_LEN(shapes); i++)
        HL_TRY(bench_gang(&w->jobs[i], shapes[i][0], shapes[i][1], ""));
    long most = (long)w->cluster->count * BENCH_SERVER_SLOTS * LOAD_PCT / 100;
    for (int i = 0; i < ARRIVALS; i++) {
        while (w->slots_used >= most)
            crowd_leave(w);
        HL_TRY(crowd_arrive(w));
    }
    return HL_OK;
}

static hl_status measure_crowd(struct place_bench *b)
{
    struct crowd *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    w->cluster = &b->cluster;
    w->random = 20;
    hl_status st = bench_servers(&b->cluster, 1000);
    if (st == HL_OK)
        st = crowd_run(w);
    if (st == HL_OK)
        bench_ratio(&b->report, "percent of servers half used at 85 % load",
                    100.0 * half_used(&b->cluster) / (double)b->cluster.count, 2, true);
    for (size_t i = 0; i < w->running_count; i++)
        hl_plan_free(w->running[i]);
    for (size_t i = 0; i < HL_ARRAY_LEN(w->jobs); i++)
        hl_job_fini(&w->jobs[i]);
    free(w);
    return st;
}

static hl_status run_place_bench(struct place_bench *b)
{
    static const char rules[] =
        "\"placement\": {\"tensor\": \"leaf required\","
        " \"pipeline\": \"spine required\", \"gang\": \"spine preferred\"},";
    HL_TRY(bench_samples_init(&b->samples, ROUNDS));
    HL_TRY(bench_gang(&b->plain, 8, 8, ""));
    HL_TRY(bench_gang(&b->ruled, 8, 8, rules));
    HL_TRY(time_states(b, 1000));
    HL_TRY(time_states(b, 10000));
    return measure_crowd(b);
}

hl_status cmd_bench_place(struct cli *cli, int argc, char **argv)
{
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    struct place_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = run_place_bench(b);
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    hl_cluster_fini(&b->cluster);
    hl_job_fini(&b->plain);
    hl_job_fini(&b->ruled);
    bench_samples_fini(&b->samples);
    free(b);
    return st;
}
