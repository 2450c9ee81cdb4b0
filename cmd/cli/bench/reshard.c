/* bench reshard: imports a model in one layout and reads it in another, through a private
 * Controller and L3, as in a cluster. The import of the same bytes, in the same daemons, is the
 * limit. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cli/bench/model.h"
#include "rpc/controller_calls.h"
#include "rpc/l3_calls.h"

#define POLL_NS    1000000
#define CALL_MS    10000
#define TIMEOUT_NS (600 * HL_NS_PER_S)
#define MIB        ((double)(1 << 20))
#define TP_MAX     8 /* among the cases */
#define PP_MAX     2
#define EXPERTS    8

struct reshard_case {
    const char *name;
    struct hl_api_split from, to;
    bool experts;
    bool view; /* another number of stages, so nothing is cut */
};

static const struct reshard_case cases[] = {
    {"tp 1 to 2", {.tp = 1, .pp = 1}, {.tp = 2, .pp = 1}, false, false},
    {"tp 4 to 2", {.tp = 4, .pp = 1}, {.tp = 2, .pp = 1}, false, false},
    {"tp 2 to 8", {.tp = 2, .pp = 1}, {.tp = 8, .pp = 1}, false, false},
    {"pp 1 to 2", {.tp = 2, .pp = 1}, {.tp = 2, .pp = 2}, false, true},
    {"ep 2 to 4",
     {.tp = 2, .pp = 1, .ep = 2, .etp = 2},
     {.tp = 1, .pp = 1, .ep = 4, .etp = 1},
     true,
     false},
};

struct reshard_bench_args {
    char *gb, *dir;
    int64_t rounds;
};

#define AT(field) HL_OPTION_FIELD(struct reshard_bench_args, field)

static const struct hl_option reshard_bench_rows[] = {
    {"gb", "--gb", "2", "Size of the model in 10^9 bytes.", HL_OPT_STRING, 0, 0, NULL, AT(gb)},
    {"rounds", "--rounds", "3", "How many times each layout is made.", HL_OPT_INT, 1, 100, NULL,
     AT(rounds)},
    {"dir", "--dir", "/tmp", "Directory for the checkpoints, which are removed afterwards.",
     HL_OPT_PATH, 1, 0, NULL, AT(dir)},
};

/* The daemons' memory besides the pool, at its peak. */
struct watch {
    pid_t pids[2];
    atomic_bool stop;
    uint64_t most;
    pthread_t thread;
};

struct reshard_bench {
    struct bench_l3d l3d;
    struct bench_controller controller;
    struct hl_rpc_peer *l3, *peer;
    char dir[BENCH_MODEL_DIR_MAX];
    uint64_t file_size;
    struct watch watch;
    struct bench_samples import, read, again;
    uint64_t beyond, copied, plans; /* the maximum of all rounds; `plans`: of all cases */
    struct bench_report report;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t own_memory(const struct watch *w)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(w->pids); i++)
        bytes += bench_process_bytes(w->pids[i], "RssAnon:");
    return bytes;
}

static void *watch_memory(void *arg)
{
    struct watch *w = arg;
    while (!atomic_load(&w->stop)) {
        uint64_t bytes = own_memory(w);
        w->most = bytes > w->most ? bytes : w->most;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return NULL;
}

static hl_status watch_start(struct watch *w)
{
    w->most = 0;
    atomic_store(&w->stop, false);
    int rc = pthread_create(&w->thread, NULL, watch_memory, w);
    return rc == 0 ? HL_OK : hl_fail(HL_ENOMEM, "a thread that watches memory: %s", strerror(rc));
}

static void watch_stop(struct watch *w)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
}

/* ---- what is asked --------------------------------------------------------------------------- */

static hl_status import_model(struct reshard_bench *b, const struct hl_api_split *split)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_import_model_results started;
    const struct hl_api_controller_import_model_params p = {.request = {.import_id = "",
                                                                        .dir = b->dir,
                                                                        .name = "bench",
                                                                        .tp = split->tp,
                                                                        .pp = split->pp,
                                                                        .ep = split->ep,
                                                                        .etp = split->etp,
                                                                        .base = "",
                                                                        .base_config = ""}};
    uint64_t start = hl_now_ns(), end = start + TIMEOUT_NS;
    HL_TRY(hl_call_controller_import_model(b->peer, &p, CALL_MS, &arena, &started));
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena one = {0};
        struct hl_api_controller_import_progress_results r;
        HL_TRY(hl_call_controller_import_progress(
            b->peer, &(struct hl_api_controller_import_progress_params){started.import_id}, CALL_MS,
            &one, &r));
        if (r.progress.state == HL_API_IMPORT_STATE_DONE) {
            bench_add(&b->import, hl_now_ns() - start);
            return HL_OK;
        }
        if (r.progress.state == HL_API_IMPORT_STATE_FAILED)
            return hl_fail(HL_EIO, "%s", r.progress.error);
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "the import did not end in 10 minutes");
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

/* Lists as the first rank does, until there is a layout to read. */
static hl_status list_position(struct reshard_bench *b, const struct hl_api_split *split,
                               struct bench_samples *samples)
{
    const struct hl_api_controller_request_shards_params p = {
        .model = "bench", .version = -1, .split = *split};
    uint64_t start = hl_now_ns(), end = start + TIMEOUT_NS;
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_controller_request_shards_results r;
        HL_TRY(hl_call_controller_request_shards(b->peer, &p, CALL_MS, &arena, &r));
        if (!r.cutting) {
            bench_add(samples, hl_now_ns() - start);
            return HL_OK;
        }
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "the layout was not made in 10 minutes");
    }
}

/* Waits until the Controller has claimed the pool, or has written a model's manifest into it, after
 * which nothing else is written. *used: the pool's bytes in use at that time. */
static hl_status wait_pool(struct reshard_bench *b, bool with_manifest, uint64_t *used)
{
    uint64_t end = hl_now_ns() + TIMEOUT_NS;
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_l3_pool_info_results r;
        HL_TRY(hl_call_l3_pool_info(b->l3, &(struct hl_api_l3_pool_info_params){0}, CALL_MS, &arena,
                                    &r));
        *used = r.pool.used_bytes;
        if (with_manifest ? r.pool.manifests > 0 : r.pool.revision > 0)
            return HL_OK;
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "the Controller did not %s in 10 minutes",
                           with_manifest ? "write the model's manifest" : "claim the pool");
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

static hl_status derived_bytes(struct reshard_bench *b, uint64_t *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_shards_results r;
    HL_TRY(hl_call_controller_list_shards(b->peer,
                                          &(struct hl_api_controller_list_shards_params){
                                              .model = "bench", .version = -1, .cursor = ""},
                                          CALL_MS, &arena, &r));
    *out = 0;
    for (size_t i = 0; i < r.shards.count; i++)
        *out += r.shards.items[i].derived ? r.shards.items[i].size_bytes : 0;
    return HL_OK;
}

static uint64_t find_counter(const char *text, const char *name)
{
    char line[80];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    return at != NULL ? strtoull(at + strlen(line), NULL, 10) : 0;
}

/* Each cut that was requested from L3 has taken one plan, new or not. */
static hl_status plans_taken(struct reshard_bench *b, uint64_t *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_l3_metrics_results r;
    HL_TRY(hl_call_l3_metrics(b->l3, &(struct hl_api_l3_metrics_params){0}, CALL_MS, &arena, &r));
    *out = find_counter(r.text, "helios_cut_plans_made_total") +
           find_counter(r.text, "helios_cut_plans_reused_total");
    return HL_OK;
}

/* ---- a round --------------------------------------------------------------------------------- */

static uint64_t bytes_above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The first listing makes the layout, the second one finds it. */
static hl_status measure_case(struct reshard_bench *b, const struct reshard_case *k)
{
    uint64_t before, after, derived, first, second;
    HL_TRY(wait_pool(b, false, &before));
    HL_TRY(import_model(b, &k->from));
    HL_TRY(wait_pool(b, true, &before));
    uint64_t own = own_memory(&b->watch);
    HL_TRY(watch_start(&b->watch));
    hl_status st = list_position(b, &k->to, &b->read);
    watch_stop(&b->watch);
    HL_TRY(st);
    HL_TRY(wait_pool(b, true, &after));
    HL_TRY(derived_bytes(b, &derived));
    HL_TRY(plans_taken(b, &first));
    HL_TRY(list_position(b, &k->to, &b->again));
    HL_TRY(plans_taken(b, &second));
    if ((first == 1) == k->view || (derived > b->file_size / 2) == k->view)
        return hl_fail(HL_ECORRUPT,
                       "%s: %" PRIu64 " plans and %" PRIu64
                       " derived bytes differ from the case to be measured",
                       k->name, first, derived);
    uint64_t beyond = bytes_above(b->watch.most, own) + bytes_above(after - before, derived);
    b->beyond = beyond > b->beyond ? beyond : b->beyond;
    b->copied = after - before > b->copied ? after - before : b->copied;
    b->plans += second - first;
    return HL_OK;
}

static void stop_round(struct reshard_bench *b)
{
    hl_rpc_peer_close(b->peer);
    hl_rpc_peer_close(b->l3);
    b->peer = b->l3 = NULL;
    bench_controller_stop(&b->controller);
    bench_l3d_stop(&b->l3d);
}

/* Runs daemons of its own, whose pool is touched and has room for the model twice. */
static hl_status run_round(struct cli *cli, struct reshard_bench *b, const struct reshard_case *k)
{
    struct hl_rpc *rpc;
    uint64_t pool = 2 * (b->file_size + b->file_size / 16) + ((uint64_t)64 << 20);
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(bench_l3d_start(cli, pool, &b->l3d));
    HL_TRY(bench_controller_start(cli, &b->l3d, &b->controller));
    HL_TRY(hl_rpc_open(rpc, b->l3d.address, "L3", &b->l3));
    HL_TRY(hl_rpc_open(rpc, b->controller.address, "Controller", &b->peer));
    b->watch.pids[0] = b->l3d.pid;
    b->watch.pids[1] = b->controller.pid;
    hl_status st = measure_case(b, k);
    stop_round(b);
    return st;
}

static void report_case(struct reshard_bench *b, const struct reshard_case *k)
{
    char name[96];
    const struct bench_row *import =
        bench_row(&b->report, "import", k->name, b->file_size, &b->import);
    double seconds = import->p50_us;
    const struct bench_row *read =
        bench_row(&b->report, "first listing", k->name, b->file_size, &b->read);
    snprintf(name, sizeof(name), "%s: seconds/import", k->name);
    bench_ratio(&b->report, name, read->p50_us / seconds, 2, true);
    (void)bench_row(&b->report, "second listing", k->name, b->file_size, &b->again);
    snprintf(name, sizeof(name), "%s: MiB beyond the derived shards", k->name);
    bench_ratio(&b->report, name, (double)b->beyond / MIB, 64, true);
    if (!k->view)
        return;
    snprintf(name, sizeof(name), "%s: bytes copied", k->name);
    bench_none(&b->report, name, (double)b->copied);
}

static hl_status run_case(struct cli *cli, struct reshard_bench *b, const struct reshard_case *k,
                          int rounds)
{
    struct bench_samples *const samples[] = {&b->import, &b->read, &b->again};
    for (size_t i = 0; i < HL_ARRAY_LEN(samples); i++)
        HL_TRY(bench_samples_init(samples[i], (size_t)rounds));
    b->beyond = b->copied = 0;
    for (int r = 0; r < rounds; r++)
        HL_TRY(run_round(cli, b, k));
    report_case(b, k);
    return HL_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static hl_status run_cases(struct cli *cli, struct reshard_bench *b,
                           const struct reshard_bench_args *a)
{
    bool made = false, experts = false;
    uint64_t bytes;
    HL_TRY(bench_model_bytes(cli, a->gb, &bytes));
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        if (!made || cases[i].experts != experts) {
            experts = cases[i].experts;
            bench_model_dir_remove(b->dir);
            HL_TRY(bench_model_dir_make(cli, a->dir, b->dir));
            const struct bench_model m = {TP_MAX, PP_MAX, experts ? EXPERTS : 0};
            HL_TRY(bench_model_make(b->dir, bytes, &m, &b->file_size));
            made = true;
        }
        HL_TRY(run_case(cli, b, &cases[i], (int)a->rounds));
    }
    bench_none(&b->report, "plans asked for by second listings", (double)b->plans);
    return bench_print(cli, &b->report);
}

hl_status cmd_bench_reshard(struct cli *cli, int argc, char **argv)
{
    struct reshard_bench_args a = {0};
    struct reshard_bench b = {0};
    HL_TRY(
        cli_args(cli, reshard_bench_rows, HL_ARRAY_LEN(reshard_bench_rows), argc, argv, &a, 0, 0));
    hl_status st = run_cases(cli, &b, &a);
    stop_round(&b);
    bench_model_dir_remove(b.dir);
    bench_samples_fini(&b.import);
    bench_samples_fini(&b.read);
    bench_samples_fini(&b.again);
    hl_args_fini(reshard_bench_rows, HL_ARRAY_LEN(reshard_bench_rows), &a);
    return st;
}
