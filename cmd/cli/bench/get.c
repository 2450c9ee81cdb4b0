/* bench get: reads through the C API against copies and raw TCP, in one run. They take turns, so
 * that a busy minute of the machine affects all of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/copy.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "helios/helios.h"
#include "mem/socket/socket.h"

#define SIZES_MAX    8
#define FOOTPRINT    ((uint64_t)192 << 20)   /* bytes of a size's shards: more than most caches */
#define SIZE_MOST    (FOOTPRINT - (1 << 20)) /* a shard is a little larger with its index entry */
#define SHARDS_MAX   3072
#define ROUND_BYTES  ((uint64_t)1 << 30)
#define ROUND_OPS    20000
#define EXTENT       ((uint64_t)64 << 10)
#define STREAM_BYTES ((uint64_t)256 << 20)
#define STREAMS      4 /* per round */
#define BULK         ((uint64_t)16 << 20)

struct get_args {
    char *size, *path;
    int64_t rounds;
};

#define AT(field) HL_OPTION_FIELD(struct get_args, field)

static const struct hl_option get_rows[] = {
    {"size", "--size", "64,4KiB,1MiB,64MiB", "Sizes of the shards, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
    {"path", "--path", "both", "Which way to read.", HL_OPT_ENUM, 0, 0, "shm|net|both", AT(path)},
    {"rounds", "--rounds", "5", "Rounds; all systems take turns in each.", HL_OPT_INT, 1, 100, NULL,
     AT(rounds)},
};

/* One size: its shards, and its measurements. */
struct size_run {
    uint64_t size;
    size_t shards;
    helios_id *ids;
    struct bench_samples memcpy_s, shm_s, net_s, tcp_s, stream_s;
    struct bench_samples copy_s[HL_COPY_KERNELS_MAX]; /* for bulk sizes */
};

struct get_bench {
    struct bench_l3d l3d;
    struct size_run sizes[SIZES_MAX];
    size_t count;
    int shm, net;
    int rounds;
    helios_client *shm_client, *net_client;
    struct bench_tcp *tcp;
    const struct hl_copy_kernel *copies[HL_COPY_KERNELS_MAX]; /* kernels without a CRC */
    size_t copy_count;
    unsigned char *source, *buf;
    uint64_t source_len, buf_len;
    struct bench_report report;
};

static hl_status parse_sizes(struct cli *cli, const char *text, struct get_bench *b)
{
    uint64_t sizes[SIZES_MAX];
    HL_TRY(bench_sizes(cli, "--size", text, SIZE_MOST, sizes, SIZES_MAX, &b->count));
    for (size_t i = 0; i < b->count; i++)
        b->sizes[i].size = sizes[i];
    return HL_OK;
}

static uint64_t stride_of(uint64_t size)
{
    return (size + size / 262144 + 8 + EXTENT - 1) / EXTENT * EXTENT;
}

/* Maps anonymous memory, on huge pages where available, and touches it. */
static hl_status map_memory(uint64_t len, unsigned char **out)
{
    unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes", (unsigned long long)len);
    (void)madvise(p, len, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < len; i += 8) {
        uint64_t word = i * UINT64_C(0x9e3779b97f4a7c15);
        memcpy(p + i, &word, 8);
    }
    *out = p;
    return HL_OK;
}

static hl_status put_shards(struct get_bench *b, struct size_run *run, struct hl_l3_client *l3)
{
    struct hl_l3_staging s;
    run->shards = FOOTPRINT / stride_of(run->size);
    if (run->shards > SHARDS_MAX)
        run->shards = SHARDS_MAX;
    run->ids = calloc(run->shards, sizeof(*run->ids));
    if (run->ids == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu ids", run->shards);
    HL_TRY(hl_l3_staging_open(run->size, &s));
    hl_status st = HL_OK;
    for (size_t i = 0; i < run->shards && st == HL_OK; i++) {
        struct hl_pool_ref ref;
        memcpy(s.ptr, b->source + i % 4096, run->size);
        st = hl_l3_put(l3, &s, run->size, 30000, &ref);
        if (st == HL_OK)
            run->ids[i] = (helios_id){.hi = ref.id.hi, .lo = ref.id.lo};
    }
    hl_l3_staging_close(&s);
    return st;
}

static hl_status open_client(const struct get_bench *b, const char *path, helios_client **out)
{
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = "", .l3 = b->l3d.address, .path = path};
    return (hl_status)helios_open(&o, out);
}

static hl_status setup_get_bench(struct cli *cli, struct get_bench *b)
{
    struct hl_l3_client *l3;
    uint64_t pool = (uint64_t)16 << 20;
    for (size_t i = 0; i < b->count; i++) {
        pool += FOOTPRINT + 2 * stride_of(b->sizes[i].size);
        if (b->sizes[i].size > b->buf_len)
            b->buf_len = b->sizes[i].size;
    }
    b->source_len = FOOTPRINT + b->buf_len + 4096;
    HL_TRY(map_memory(b->source_len, &b->source));
    b->buf_len = (b->buf_len + 4095) & ~UINT64_C(4095);
    HL_TRY(map_memory(b->buf_len, &b->buf));
    HL_TRY(bench_l3d_start(cli, pool, &b->l3d));
    HL_TRY(hl_l3_connect(b->l3d.socket, 5000, &l3));
    hl_status st = HL_OK;
    for (size_t i = 0; i < b->count && st == HL_OK; i++)
        st = put_shards(b, &b->sizes[i], l3);
    hl_l3_close(l3);
    HL_TRY(st);
    if (b->shm)
        HL_TRY(open_client(b, "shm", &b->shm_client));
    if (b->net) {
        HL_TRY(open_client(b, "net", &b->net_client));
        HL_TRY(bench_tcp_start(b->source, b->source_len, &b->tcp));
    }
    return HL_OK;
}

static size_t ops_of(const struct size_run *run)
{
    return bench_ops(ROUND_BYTES, run->size, 4, ROUND_OPS);
}

static void time_memcpy(struct get_bench *b, struct size_run *run, size_t ops)
{
    uint64_t stride = stride_of(run->size), at = 0;
    for (size_t i = 0; i < ops; i++) {
        uint64_t start = hl_now_ns();
        memcpy(b->buf, b->source + at, run->size);
        __asm__ __volatile__("" : : "r"(b->buf) : "memory");
        bench_add(&run->memcpy_s, hl_now_ns() - start);
        at = at + stride + run->size > FOOTPRINT ? 0 : at + stride;
    }
}

/* Times every other way to copy as much; the best one is the limit. */
static void time_copies(struct get_bench *b, struct size_run *run, size_t ops)
{
    uint64_t stride = stride_of(run->size), at = 0;
    for (size_t k = 0; k < b->copy_count; k++) {
        for (size_t i = 0; i < ops; i++) {
            uint64_t start = hl_now_ns();
            b->copies[k]->copy(0, b->buf, b->source + at, run->size);
            bench_add(&run->copy_s[k], hl_now_ns() - start);
            at = at + stride + run->size > FOOTPRINT ? 0 : at + stride;
        }
    }
}

static hl_status time_get(struct get_bench *b, struct size_run *run, helios_client *client,
                          size_t ops, struct bench_samples *s)
{
    for (size_t i = 0; i < ops; i++) {
        uint64_t start = hl_now_ns();
        hl_status st = (hl_status)helios_get(client, run->ids[i % run->shards], b->buf, run->size);
        bench_add(s, hl_now_ns() - start);
        HL_TRY(st);
    }
    return HL_OK;
}

static hl_status time_tcp(struct get_bench *b, struct size_run *run, size_t ops)
{
    for (size_t i = 0; i < ops; i++) {
        uint64_t start = hl_now_ns();
        HL_TRY(bench_tcp_ask(b->tcp, b->buf, run->size));
        bench_add(&run->tcp_s, hl_now_ns() - start);
    }
    if (run->size < HL_CHUNK)
        return HL_OK;
    for (int i = 0; i < STREAMS; i++)
        HL_TRY(bench_tcp_stream(b->tcp, b->buf, run->size, (unsigned)(STREAM_BYTES / run->size) + 1,
                                &run->stream_s));
    return HL_OK;
}

static hl_status one_round(struct get_bench *b, struct size_run *run)
{
    size_t ops = ops_of(run);
    size_t net_ops = ops > 2000 ? 2000 : ops;
    time_memcpy(b, run, ops);
    if (b->shm && run->size >= BULK)
        time_copies(b, run, ops);
    if (b->shm)
        HL_TRY(time_get(b, run, b->shm_client, ops, &run->shm_s));
    if (b->net) {
        HL_TRY(time_tcp(b, run, net_ops));
        HL_TRY(time_get(b, run, b->net_client, net_ops, &run->net_s));
    }
    return HL_OK;
}

static hl_status measure_get(struct get_bench *b, struct size_run *run)
{
    size_t room = (ops_of(run) + STREAMS) * (size_t)b->rounds;
    struct bench_samples *all[] = {&run->memcpy_s, &run->shm_s, &run->net_s, &run->tcp_s,
                                   &run->stream_s};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        HL_TRY(bench_samples_init(all[i], room));
    for (size_t k = 0; k < b->copy_count && run->size >= BULK; k++)
        HL_TRY(bench_samples_init(&run->copy_s[k], room));
    HL_TRY(one_round(b, run)); /* warm-up of page tables, connections and places */
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        all[i]->count = 0;
    for (size_t k = 0; k < b->copy_count; k++)
        run->copy_s[k].count = 0;
    for (int r = 0; r < b->rounds; r++)
        HL_TRY(one_round(b, run));
    return HL_OK;
}

static double best_copy_gbps(struct get_bench *b, struct size_run *run, double best)
{
    for (size_t k = 0; k < b->copy_count; k++) {
        const struct bench_row *row =
            bench_row(&b->report, b->copies[k]->name, "copy", run->size, &run->copy_s[k]);
        if (row->gbps > best)
            best = row->gbps;
    }
    return best;
}

static void report_shm(struct get_bench *b, struct size_run *run, const struct bench_row *limit,
                       const char *size)
{
    char name[64];
    const struct bench_row *shm =
        bench_row(&b->report, "helios-shm", "get", run->size, &run->shm_s);
    double gbps = shm->gbps;
    if (run->size <= 4096) {
        snprintf(name, sizeof(name), "helios-shm p50 us %s", size);
        bench_ratio(&b->report, name, shm->p50_us, run->size <= 64 ? 0.3 : 0, 1);
    } else if (run->size < BULK) {
        snprintf(name, sizeof(name), "helios-shm/memcpy %s", size);
        bench_ratio(&b->report, name, gbps / limit->gbps, 0.65, 0);
    } else {
        snprintf(name, sizeof(name), "helios-shm/best copy %s", size);
        bench_ratio(&b->report, name, gbps / best_copy_gbps(b, run, limit->gbps), 0.7, 0);
    }
}

static void report_net(struct get_bench *b, struct size_run *run, const char *size)
{
    char name[96], system[24];
    helios_stats stats = {HELIOS_STATS_INIT};
    (void)helios_get_stats(b->net_client, &stats);
    snprintf(system, sizeof(system), "helios-%.15s", stats.path);
    const struct bench_row *tcp = bench_row(&b->report, "tcp", "ask", run->size, &run->tcp_s);
    const struct bench_row *limit = tcp;
    if (run->size >= HL_CHUNK)
        limit = bench_row(&b->report, "tcp", "stream", run->size, &run->stream_s);
    const struct bench_row *net = bench_row(&b->report, system, "get", run->size, &run->net_s);
    /* A small read is a round trip; a large one has to keep up with a plain stream of bytes. */
    if (run->size < HL_CHUNK) {
        snprintf(name, sizeof(name), "%s/tcp round trip %s", system, size);
        bench_ratio(&b->report, name, net->p50_us / tcp->p50_us, run->size <= 64 ? 1.5 : 0, 1);
    } else {
        snprintf(name, sizeof(name), "%s/tcp stream %s", system, size);
        bench_ratio(&b->report, name, net->gbps / limit->gbps, 0.9, 0);
    }
}

static void find_copies(struct get_bench *b)
{
    const struct hl_copy_kernel *all[HL_COPY_KERNELS_MAX];
    size_t count = hl_copy_kernels(all);
    for (size_t i = 0; i < count; i++)
        if (!all[i]->sums && strcmp(all[i]->name, "memcpy") != 0)
            b->copies[b->copy_count++] = all[i];
}

static hl_status run_get_bench(struct cli *cli, struct get_bench *b)
{
    find_copies(b);
    HL_TRY(setup_get_bench(cli, b));
    for (size_t i = 0; i < b->count; i++) {
        char size[32];
        struct size_run *s = &b->sizes[i];
        HL_TRY(measure_get(b, s));
        hl_format_bytes(s->size, size, sizeof(size));
        const struct bench_row *limit =
            bench_row(&b->report, "memcpy", "copy", s->size, &s->memcpy_s);
        if (b->shm)
            report_shm(b, s, limit, size);
        if (b->net)
            report_net(b, s, size);
        if (s->size == HL_CHUNK)
            HL_TRY(bench_verify(&b->report, &(struct bench_verify_of){.shm = b->shm_client,
                                                                      .ids = s->ids,
                                                                      .count = s->shards,
                                                                      .net = b->net,
                                                                      .data = b->l3d.data}));
    }
    return bench_print(cli, &b->report);
}

static void fini_get_bench(struct get_bench *b)
{
    helios_close(b->shm_client);
    helios_close(b->net_client);
    bench_tcp_stop(b->tcp);
    bench_l3d_stop(&b->l3d);
    for (size_t i = 0; i < b->count; i++) {
        struct size_run *s = &b->sizes[i];
        bench_samples_fini(&s->memcpy_s);
        bench_samples_fini(&s->shm_s);
        bench_samples_fini(&s->net_s);
        bench_samples_fini(&s->tcp_s);
        bench_samples_fini(&s->stream_s);
        for (size_t k = 0; k < b->copy_count; k++)
            bench_samples_fini(&s->copy_s[k]);
        free(s->ids);
    }
    if (b->source != NULL)
        munmap(b->source, b->source_len);
    if (b->buf != NULL)
        munmap(b->buf, b->buf_len);
    free(b);
}

hl_status cmd_bench_get(struct cli *cli, int argc, char **argv)
{
    struct get_args a = {0};
    struct get_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, get_rows, HL_ARRAY_LEN(get_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK) {
        b->shm = strcmp(a.path, "net") != 0;
        b->net = strcmp(a.path, "shm") != 0;
        b->rounds = (int)a.rounds;
        st = parse_sizes(cli, a.size, b);
        if (st == HL_OK)
            st = run_get_bench(cli, b);
        hl_args_fini(get_rows, HL_ARRAY_LEN(get_rows), &a);
    }
    fini_get_bench(b);
    return st;
}
