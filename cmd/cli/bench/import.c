/* bench import: turns a checkpoint in the page cache into shards in a private pool, as in a
 * cluster. The limit is one thread that copies as many bytes. */
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/id.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cli/bench/model.h"
#include "rpc/l3_calls.h"

#define POLL_NS    1000000
#define CALL_MS    10000
#define TIMEOUT_NS (600 * HL_NS_PER_S)
#define PIECE      ((uint64_t)1 << 20)

struct import_bench_args {
    char *gb, *dir;
    int64_t tp, pp, rounds;
};

#define AT(field) HL_OPTION_FIELD(struct import_bench_args, field)

static const struct hl_option import_bench_rows[] = {
    {"gb", "--gb", "1", "Size of the checkpoint in 10^9 bytes.", HL_OPT_STRING, 0, 0, NULL, AT(gb)},
    {"tp", "--tp", "4", "Tensor-parallel size.", HL_OPT_INT, 1, 16, NULL, AT(tp)},
    {"pp", "--pp", "2", "Pipeline-parallel size.", HL_OPT_INT, 1, 64, NULL, AT(pp)},
    {"rounds", "--rounds", "3", "Number of imports.", HL_OPT_INT, 1, 100, NULL, AT(rounds)},
    {"dir", "--dir", "/tmp", "Directory for the checkpoint, which is removed afterwards.",
     HL_OPT_PATH, 1, 0, NULL, AT(dir)},
};

struct import_bench {
    struct bench_l3d l3d;
    struct hl_rpc_peer *peer;
    char dir[BENCH_MODEL_DIR_MAX];
    uint64_t file_size;
    int tp, pp;
    uint64_t hwm; /* peak memory in bytes */
    struct bench_samples import_s, memcpy_s;
    struct bench_report report;
};

static hl_status free_shards(struct import_bench *b, const struct hl_api_shard_list *shards,
                             struct hl_arena *arena)
{
    struct hl_api_l3_free_params p = {
        .ids.items = hl_arena_array(arena, shards->count, sizeof(*p.ids.items))};
    struct hl_api_l3_free_results r;
    if (p.ids.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu ids", shards->count);
    for (size_t i = 0; i < shards->count; i++)
        p.ids.items[p.ids.count++] = shards->items[i].id;
    return hl_call_l3_free(b->peer, &p, CALL_MS, arena, &r);
}

/* Waits until the import has ended; its shards are in the arena. */
static hl_status wait_import(struct import_bench *b, const char *id, struct hl_arena *arena,
                             struct hl_api_shard_list *shards)
{
    uint64_t end = hl_now_ns() + TIMEOUT_NS;
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena one = {0};
        struct hl_api_l3_import_progress_results r;
        HL_TRY(hl_call_l3_import_progress(b->peer, &(struct hl_api_l3_import_progress_params){id},
                                          CALL_MS, &one, &r));
        if (r.progress.state == HL_API_IMPORT_STATE_DONE) {
            *shards = r.progress.shards;
            hl_arena_move(arena, &one);
            return HL_OK;
        }
        if (r.progress.state == HL_API_IMPORT_STATE_FAILED)
            return hl_fail(HL_EIO, "%s", r.progress.error);
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "the import did not end in 10 minutes");
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

static hl_status import_once(struct import_bench *b)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_id_text id = hl_id_format(hl_id_random());
    struct hl_api_l3_import_model_results started;
    struct hl_api_shard_list shards = {0};
    const struct hl_api_l3_import_model_params p = {.request = {.import_id = id.s,
                                                                .dir = b->dir,
                                                                .name = "bench",
                                                                .version = 1,
                                                                .tp = b->tp,
                                                                .pp = b->pp,
                                                                .vocab_divisor = 128}};
    uint64_t start = hl_now_ns();
    HL_TRY(hl_call_l3_import_model(b->peer, &p, CALL_MS, &arena, &started));
    HL_TRY(wait_import(b, id.s, &arena, &shards));
    bench_add(&b->import_s, hl_now_ns() - start);
    return free_shards(b, &shards, &arena);
}

/* Copies as many bytes as the file has between touched memory, piece by piece. */
static hl_status copy_once(struct import_bench *b, int rounds)
{
    uint64_t len = (b->file_size / 2 + PIECE) / PIECE * PIECE;
    unsigned char *p =
        mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes",
                       (unsigned long long)(2 * len));
    (void)madvise(p, 2 * len, MADV_HUGEPAGE);
    memset(p, 1, 2 * len);
    for (int r = 0; r < rounds; r++) {
        uint64_t start = hl_now_ns();
        for (uint64_t at = 0; at < b->file_size; at += PIECE) {
            uint64_t in = at % len;
            memcpy(p + len + in, p + in, PIECE);
        }
        __asm__ __volatile__("" : : "r"(p) : "memory");
        bench_add(&b->memcpy_s, hl_now_ns() - start);
    }
    munmap(p, 2 * len);
    return HL_OK;
}

static void report_import(struct import_bench *b)
{
    const struct bench_row *limit =
        bench_row(&b->report, "memcpy", "copy", b->file_size, &b->memcpy_s);
    const struct bench_row *own =
        bench_row(&b->report, "helios", "import", b->file_size, &b->import_s);
    bench_ratio(&b->report, "import seconds", own->p50_us / 1e6,
                b->file_size <= 1100000000 ? 1.0 : 0, 1);
    bench_ratio(&b->report, "import/memcpy", own->gbps / limit->gbps, 0, 0);
    bench_ratio(&b->report, "peak memory of helios-l3d/file", (double)b->hwm / (double)b->file_size,
                1.2, 1);
}

static hl_status run_import_bench(struct cli *cli, struct import_bench *b,
                                  const struct import_bench_args *a)
{
    struct hl_rpc *rpc;
    uint64_t bytes;
    int rounds = (int)a->rounds;
    HL_TRY(bench_model_bytes(cli, a->gb, &bytes));
    HL_TRY(bench_model_dir_make(cli, a->dir, b->dir));
    HL_TRY(bench_model_make(b->dir, bytes, &(struct bench_model){b->tp, b->pp, 0}, &b->file_size));
    HL_TRY(bench_samples_init(&b->import_s, (size_t)rounds));
    HL_TRY(bench_samples_init(&b->memcpy_s, (size_t)rounds));
    HL_TRY(cli_runtime(cli, &rpc));
    /* Each round has a daemon of its own, so that its peak memory is that of one import. The pool
     * has room for the padding of the vocabulary and the units of 64 KiB, and little more. */
    for (int r = 0; r < rounds; r++) {
        uint64_t pool = b->file_size + b->file_size / 32 + ((uint64_t)16 << 20);
        HL_TRY(bench_l3d_start(cli, pool, &b->l3d));
        HL_TRY(hl_rpc_open(rpc, b->l3d.address, "L3", &b->peer));
        HL_TRY(import_once(b));
        uint64_t hwm = bench_process_bytes(b->l3d.pid, "VmHWM:");
        b->hwm = hwm > b->hwm ? hwm : b->hwm;
        hl_rpc_peer_close(b->peer);
        b->peer = NULL;
        bench_l3d_stop(&b->l3d);
    }
    HL_TRY(copy_once(b, rounds));
    report_import(b);
    return bench_print(cli, &b->report);
}

hl_status cmd_bench_import(struct cli *cli, int argc, char **argv)
{
    struct import_bench_args a = {0};
    HL_TRY(cli_args(cli, import_bench_rows, HL_ARRAY_LEN(import_bench_rows), argc, argv, &a, 0, 0));
    struct import_bench b = {.tp = (int)a.tp, .pp = (int)a.pp};
    hl_status st = run_import_bench(cli, &b, &a);
    hl_rpc_peer_close(b.peer);
    bench_l3d_stop(&b.l3d);
    bench_model_dir_remove(b.dir);
    bench_samples_fini(&b.import_s);
    bench_samples_fini(&b.memcpy_s);
    hl_args_fini(import_bench_rows, HL_ARRAY_LEN(import_bench_rows), &a);
    return st;
}
