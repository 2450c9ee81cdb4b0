/* bench queue: the queue of waiting jobs.
 *
 * Passes: 10,000 pending gangs of 40 shapes, four queues and five priorities on 1,000 servers, in
 * this process, with the Controller's code: with all slots held, with all of them free, and with
 * high priorities that stop running gangs. Times are CPU times.
 *
 * Submissions: as many jobs at one moment to a private Controller whose nodes are unfit, so that
 * all jobs wait. Each one is answered; each accepted one is in the queue afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cli/bench/place.h"
#include "conf/options.h"
#include "core/queue/slots.h"
#include "os/loop.h"
#include "rpc/controller_calls.h"

#define SERVERS   1000
#define SLOTS     (SERVERS * BENCH_SERVER_SLOTS)
#define RUNNING   250 /* gangs of eight slots */
#define GRACE_MS  10000
#define NOW_MS    INT64_C(1000000000)
#define PASSES    10
#define ANSWER_MS 60000
#define SHAPES    40
#define QUEUES    "prod weight=4, research weight=2, dev quota=64, batch preempt=off"

struct queue_args {
    int64_t jobs;
};

#define AT(field) HL_OPTION_FIELD(struct queue_args, field)

static const struct hl_option rows[] = {
    {"jobs", "--jobs", "10000", "Jobs that wait.", HL_OPT_INT, 1, 20000, NULL, AT(jobs)},
};

struct queue_bench {
    int jobs;
    struct hl_cluster cluster;
    struct hl_queues queues;
    struct hl_job shapes[SHAPES], held;
    struct hl_queue_gang *gangs;
    struct hl_plan *running[RUNNING];
    struct bench_samples samples;
    struct bench_report report;
};

/* ---- passes ---------------------------------------------------------------------------------- */

static hl_status plan_gang(void *arg, int gang, struct hl_plan **out)
{
    const struct queue_bench *b = arg;
    return hl_plan_make(&b->shapes[b->gangs[gang].shape], &b->cluster, out);
}

static const struct hl_plan *held_plan(void *arg, int gang)
{
    const struct queue_bench *b = arg;
    return gang >= b->jobs ? b->running[gang - b->jobs] : NULL;
}

static hl_status make_shapes(struct queue_bench *b)
{
    static const char *const rules[] = {"", "\"placement\": {\"tensor\": \"leaf required\"},",
                                        "\"placement\": {\"gang\": \"spine required\"},",
                                        "\"placement\": {\"tensor\": \"server preferred\"},"};
    static const int sizes[][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 4},  {1, 8},
                                   {2, 8}, {4, 8}, {8, 8}, {16, 8}, {32, 8}};
    for (int i = 0; i < SHAPES; i++)
        HL_TRY(bench_gang(&b->shapes[i], sizes[i % 10][0], sizes[i % 10][1], rules[i / 10]));
    return bench_gang(&b->held, 1, 8, "");
}

/* urgent: waiting gangs come before running ones. */
static void make_gangs(struct queue_bench *b, bool held, bool urgent)
{
    for (int i = 0; i < b->jobs; i++) {
        const struct hl_grid *grid = &b->shapes[i % SHAPES].grid;
        b->gangs[i] = (struct hl_queue_gang){.queue = i % b->queues.count,
                                             .priority = (urgent ? 10 : 0) + i / 7 % 5 - 2,
                                             .slots = grid->pp * grid->tp,
                                             .seq = RUNNING + i,
                                             .shape = i % SHAPES,
                                             .since_ms = NOW_MS - i,
                                             .limit_ms = i % 3 == 0 ? 0 : 60000 * (1 + i % 50),
                                             .preemptor = -1};
    }
    for (int i = 0; held && i < RUNNING; i++)
        b->gangs[b->jobs + i] = (struct hl_queue_gang){.phase = HL_QUEUE_RUNS,
                                                       .queue = i % b->queues.count,
                                                       .priority = i % 3 - 1,
                                                       .slots = SLOTS / RUNNING,
                                                       .seq = i,
                                                       .placed_ms = NOW_MS - 1000 * i,
                                                       .limit_ms = i % 4 == 0 ? 0 : 3600000,
                                                       .preemptor = -1};
}

/* Gives eight slots to each running gang. */
static hl_status hold_slots(struct queue_bench *b)
{
    for (int i = 0; i < RUNNING; i++) {
        HL_TRY(hl_plan_make(&b->held, &b->cluster, &b->running[i]));
        HL_TRY(hl_plan_commit(b->running[i], &b->cluster));
    }
    return HL_OK;
}

static hl_status run_pass(struct queue_bench *b, bool held, bool urgent, int *started)
{
    struct hl_queue_slots slots = {0};
    struct hl_queue_planner planner;
    struct hl_queue_pass pass = {0};
    double used[HL_QUEUES_MAX] = {10, 500, 20, 3};
    int count = b->jobs + (held ? RUNNING : 0);
    const struct hl_queue_input in = {.queues = &b->queues,
                                      .gangs = b->gangs,
                                      .count = count,
                                      .shapes = SHAPES,
                                      .free_slots = held ? 0 : SLOTS,
                                      .used = used,
                                      .now_ms = NOW_MS,
                                      .age_ms = 3600000,
                                      .grace_ms = GRACE_MS,
                                      .preempt = urgent};
    const struct hl_queue_slots_opts opts = {
        .cluster = &b->cluster, .count = count, .arg = b, .plan = plan_gang, .held = held_plan};
    hl_status st = hl_queue_slots_init(&slots, &opts, &planner);
    if (st == HL_OK)
        st = hl_queue_pass(&in, &planner, &pass);
    *started = 0;
    for (int i = 0; st == HL_OK && i < b->jobs; i++)
        *started += pass.verdicts[i].starts;
    hl_queue_pass_fini(&pass);
    hl_queue_slots_fini(&slots);
    return st;
}

static hl_status time_passes(struct queue_bench *b, const char *op, bool held, bool urgent)
{
    char name[96];
    int started = 0;
    make_gangs(b, held, urgent);
    b->samples.count = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t start = hl_thread_ns();
        HL_TRY(run_pass(b, held, urgent, &started));
        bench_add(&b->samples, hl_thread_ns() - start);
    }
    if ((started > 0) == held)
        return hl_fail(HL_EINTERNAL, "pass '%s' started %d gangs", op, started);
    const struct bench_row *row = bench_row(&b->report, "pass", op, (uint64_t)b->jobs, &b->samples);
    snprintf(name, sizeof(name), "pass over %d gangs (%s) p99 ms", b->jobs, op);
    bench_ratio(&b->report, name, row->p99_us / 1000, 100, true);
    return HL_OK;
}

static hl_status measure_passes(struct queue_bench *b)
{
    HL_TRY(hl_queues_parse(QUEUES, &b->queues));
    HL_TRY(make_shapes(b));
    HL_TRY(bench_samples_init(&b->samples, PASSES));
    b->gangs = calloc((size_t)b->jobs + RUNNING, sizeof(*b->gangs));
    if (b->gangs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %d gangs", b->jobs);
    HL_TRY(bench_servers(&b->cluster, SERVERS));
    HL_TRY(time_passes(b, "free", false, false));
    HL_TRY(hold_slots(b));
    HL_TRY(time_passes(b, "held", true, false));
    return time_passes(b, "preempting", true, true);
}

static void passes_fini(struct queue_bench *b)
{
    for (int i = 0; i < RUNNING; i++)
        hl_plan_free(b->running[i]);
    for (int i = 0; i < SHAPES; i++)
        hl_job_fini(&b->shapes[i]);
    hl_job_fini(&b->held);
    hl_cluster_fini(&b->cluster);
    bench_samples_fini(&b->samples);
    free(b->gangs);
}

/* ---- submissions ----------------------------------------------------------------------------- */

struct crowd {
    struct hl_loop *loop;
    struct hl_rpc_peer *peer;
    pid_t controller;
    int wanted, answered, accepted;
    hl_status refused; /* the last refusal */
    char text[HL_ERROR_TEXT_MAX];
};

static void crowd_answer(struct crowd *w, hl_status st, const char *text)
{
    if (st == HL_OK) {
        w->accepted++;
    } else {
        w->refused = st;
        snprintf(w->text, sizeof(w->text), "%s", text);
    }
    if (++w->answered == w->wanted)
        hl_loop_stop(w->loop);
}

static void on_registered(void *arg, hl_status st, const char *text,
                          const struct hl_api_controller_register_node_results *r)
{
    (void)r;
    crowd_answer(arg, st, text);
}

static void on_submitted(void *arg, hl_status st, const char *text,
                         const struct hl_api_controller_submit_job_results *r)
{
    (void)r;
    crowd_answer(arg, st, text);
}

/* All calls are made; their answers arrive on the loop. */
static hl_status crowd_wait(struct crowd *w)
{
    HL_TRY(hl_loop_run(w->loop));
    return w->accepted == w->wanted ? HL_OK
                                    : hl_fail(w->refused, "%d of %d calls failed, the last: %s",
                                              w->wanted - w->accepted, w->wanted, w->text);
}

static void crowd_begin(struct crowd *w, int wanted)
{
    w->wanted = wanted;
    w->answered = w->accepted = 0;
}

/* Registers unfit servers, so that nothing starts on them. */
static hl_status register_nodes(struct crowd *w)
{
    crowd_begin(w, SERVERS);
    for (int i = 0; i < SERVERS; i++) {
        char name[32], leaf[32];
        snprintf(name, sizeof(name), "server-%d", i);
        snprintf(leaf, sizeof(leaf), "leaf-%d", i / 20);
        struct hl_api_slot slots[BENCH_SERVER_SLOTS] = {{.numa_id = 0, .cpus = "0-87"},
                                                        {.numa_id = 8, .cpus = "88-175"}};
        const struct hl_api_controller_register_node_params p = {
            .node = {.name = name,
                     .agent_address = "127.0.0.1:9",
                     .incarnation = "1",
                     .executor = "process",
                     .rank_address = name,
                     .leaf = leaf,
                     .health = {.time_ms = 1, .state = HL_API_HEALTH_STATE_FAILED, .reason = "-"},
                     .slots = {slots, BENCH_SERVER_SLOTS}}};
        hl_call_controller_register_node_async(w->peer, &p, ANSWER_MS, w->loop, on_registered, w);
    }
    return crowd_wait(w);
}

static void submit_one(struct crowd *w, int i)
{
    static const int sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 3, 6};
    static const char *const queues[] = {"prod", "research", "dev", "batch"};
    char yaml[512], key[32];
    int size = i % 4 == 2 ? sizes[i % 6] : sizes[i % 10]; /* dev has a quota */
    snprintf(yaml, sizeof(yaml),
             "jobName: bench\nparallelism: {pipeline_parallel_size: %d}\n"
             "resources: {ranks_per_slot: 1}\nqueue: %s\npriority: %d\n"
             "timeouts: {run: %dm}\ncommand: [/bin/true]\n",
             size, queues[i % 4], i / 7 % 5 - 2, 1 + i % 50);
    snprintf(key, sizeof(key), "bench-%d", i);
    hl_call_controller_submit_job_async(
        w->peer,
        &(struct hl_api_controller_submit_job_params){
            .yaml = yaml, .source = "bench.yaml", .idempotency_key = key, .cwd = "/"},
        ANSWER_MS, w->loop, on_submitted, w);
}

/* Number of jobs in the queue, once a pass has seen all of them. */
static hl_status count_waiting(struct crowd *w, int *out)
{
    for (uint64_t end = hl_now_ns() + ANSWER_MS * HL_NS_PER_MS; hl_now_ns() < end;) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_controller_list_queue_results r;
        const struct hl_api_controller_list_queue_params p = {0};
        HL_TRY(hl_call_controller_list_queue(w->peer, &p, ANSWER_MS, &arena, &r));
        *out = (int)r.jobs.count;
        if (*out == 0 || r.jobs.items[*out - 1].place == *out)
            return HL_OK;
        nanosleep(&(struct timespec){.tv_nsec = 300 * (long)HL_NS_PER_MS}, NULL);
    }
    return hl_fail(HL_ETIMEDOUT, "no pass has seen all jobs within %d s", ANSWER_MS / 1000);
}

/* Duration of the Controller's last pass. */
static hl_status read_pass_ms(struct crowd *w, double *ms)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_metrics_results r;
    const struct hl_api_controller_metrics_params p = {0};
    HL_TRY(hl_call_controller_metrics(w->peer, &p, ANSWER_MS, &arena, &r));
    const char *pass = strstr(r.text, "\nhelios_queue_pass_processor_seconds ");
    if (pass == NULL)
        return hl_fail(HL_EINTERNAL, "the Controller's metrics lack those of its queue");
    *ms = 1000 * strtod(strchr(pass, ' '), NULL);
    return HL_OK;
}

/* CPU time of all threads of a process; 0: it is gone. */
static uint64_t process_ns(pid_t pid)
{
    struct timespec ts;
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) != 0)
        return 0;
    return (uint64_t)ts.tv_sec * HL_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static hl_status measure_crowd(struct queue_bench *b, struct crowd *w)
{
    int waiting = 0;
    double pass_ms = 0;
    HL_TRY(register_nodes(w));
    uint64_t began = hl_now_ns();
    uint64_t had = process_ns(w->controller);
    crowd_begin(w, b->jobs);
    for (int i = 0; i < b->jobs; i++)
        submit_one(w, i);
    HL_TRY(crowd_wait(w));
    double seconds = (double)(hl_now_ns() - began) / HL_NS_PER_S;
    had = process_ns(w->controller) - had;
    HL_TRY(count_waiting(w, &waiting));
    HL_TRY(read_pass_ms(w, &pass_ms));
    bench_ratio(&b->report, "jobs submitted and durable a second", b->jobs / seconds, 10000, false);
    bench_ratio(&b->report, "of the Controller's processor time for each, us",
                (double)had / 1e3 / b->jobs, 0, true);
    bench_none(&b->report, "accepted jobs that are not in the line", b->jobs - waiting);
    bench_ratio(&b->report, "pass of the Controller over them, ms", pass_ms, 100, true);
    return HL_OK;
}

static hl_status measure_submissions(struct cli *cli, struct queue_bench *b)
{
    struct bench_l3d l3d = {0};
    struct bench_controller controller = {0};
    struct crowd w = {0};
    struct hl_rpc *rpc;
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(hl_loop_create(&w.loop));
    setenv("HELIOS_QUEUE_LIST", QUEUES, 1);
    setenv("HELIOS_NODE_LOST", "10m", 1);
    hl_status st = bench_l3d_start(cli, (uint64_t)64 << 20, &l3d);
    if (st == HL_OK)
        st = bench_controller_start(cli, &l3d, &controller);
    if (st == HL_OK)
        w.controller = controller.pid;
    if (st == HL_OK)
        st = hl_rpc_open(rpc, controller.address, "Controller", &w.peer);
    if (st == HL_OK)
        st = measure_crowd(b, &w);
    hl_rpc_peer_close(w.peer);
    bench_controller_stop(&controller);
    bench_l3d_stop(&l3d);
    hl_loop_destroy(w.loop);
    return st;
}

static hl_status run_queue_bench(struct cli *cli, struct queue_bench *b)
{
    hl_status st = measure_passes(b);
    if (st == HL_OK)
        st = measure_submissions(cli, b);
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    passes_fini(b);
    return st;
}

hl_status cmd_bench_queue(struct cli *cli, int argc, char **argv)
{
    struct queue_args a = {0};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    struct queue_bench *b = st == HL_OK ? calloc(1, sizeof(*b)) : NULL;
    if (st == HL_OK && b == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    if (st == HL_OK) {
        b->jobs = (int)a.jobs;
        st = run_queue_bench(cli, b);
    }
    free(b);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
