/* bench migrate: objects between two processes over the migration channel, including checksums and
 * placement, against plain TCP into the same memory. All take turns in every round, so that a busy
 * minute of the machine affects all of them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cli/bench/peer.h"
#include "net/zmq/migrate.h"
#include "os/copy_measure.h"

#define SIZES_MAX   4
#define CHUNKS_MAX  6
#define OBJECT_MAX  ((uint64_t)2 << 30)
#define ROUND_BYTES ((uint64_t)64 << 20) /* small objects are sent several times per round */
#define BULK        ((uint64_t)64 << 20) /* size of objects from which the bar applies */
#define BAR         0.9
#define SEND_MS     60000
#define ROUNDS_MAX  100
#define TIMES_MAX   64
#define ZSTD_BYTES  ((uint64_t)64 << 20)

struct migrate_args {
    char *size, *chunk;
    uint64_t window;
    int64_t rounds, io_threads;
};

#define AT(field) HL_OPTION_FIELD(struct migrate_args, field)

static const struct hl_option migrate_rows[] = {
    {"size", "--size", "1MiB,64MiB,512MiB", "Sizes of the objects, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
    {"chunk", "--chunk", "256KiB,1MiB,8MiB", "Sizes of the chunks, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(chunk)},
    {"window", "--window", "16MiB", "Credit of the receiver.", HL_OPT_BYTES, 1 << 20, 1 << 30, NULL,
     AT(window)},
    {"rounds", "--rounds", "5", "Rounds; all systems take turns in each.", HL_OPT_INT, 1,
     ROUNDS_MAX, NULL, AT(rounds)},
    {"io_threads", "--io-threads", "1", "Threads of libzmq at either end.", HL_OPT_INT, 1, 16, NULL,
     AT(io_threads)},
};

/* One chunk size: its times, and for each round the time of the plain TCP before it divided by
 * them. */
struct cell {
    struct bench_samples s;
    uint64_t chunk;
    double ratio[ROUNDS_MAX];
    int rounds;
};

struct size_run {
    uint64_t size;
    uint32_t crc;
    struct bench_samples raw;
    struct cell cells[CHUNKS_MAX];
};

struct migrate_bench {
    struct size_run sizes[SIZES_MAX];
    uint64_t chunks[CHUNKS_MAX];
    size_t size_count, chunk_count;
    int rounds, io_threads;
    uint64_t window, largest;
    unsigned char *source;
    uint32_t *crcs; /* per MiB, as in a pool */
    struct bench_peer peer;
    struct hl_migrate_line *line;
    struct bench_report report;
};

static hl_status make_source(struct migrate_bench *b)
{
    uint64_t mib = (b->largest + HL_CHUNK - 1) / HL_CHUNK;
    void *m = mmap(NULL, b->largest, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes",
                       (unsigned long long)b->largest);
    b->source = m;
    (void)madvise(m, b->largest, MADV_HUGEPAGE);
    uint64_t x = 88172645463325252u; /* incompressible noise */
    for (uint64_t i = 0; i + sizeof(x) <= b->largest; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(b->source + i, &x, sizeof(x));
    }
    b->crcs = calloc(mib, sizeof(*b->crcs));
    if (b->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu checksums",
                       (unsigned long long)mib);
    for (uint64_t i = 0; i < mib; i++) {
        uint64_t at = i * HL_CHUNK, left = b->largest - at;
        b->crcs[i] = hl_crc32(0, b->source + at, left < HL_CHUNK ? left : HL_CHUNK);
    }
    for (size_t i = 0; i < b->size_count; i++)
        b->sizes[i].crc = hl_crc32(0, b->source, b->sizes[i].size);
    return HL_OK;
}

static hl_status time_raw(struct migrate_bench *b, struct size_run *run)
{
    uint64_t start = hl_now_ns();
    HL_TRY(bench_peer_raw(&b->peer, b->source, run->size));
    bench_add(&run->raw, hl_now_ns() - start);
    return HL_OK;
}

static hl_status time_send(struct migrate_bench *b, struct size_run *run, struct cell *c)
{
    struct hl_migrate_send_opts o = {
        .line = b->line,
        .chunk_size = (uint32_t)c->chunk,
        /* A table whose last entry covers a whole MiB fits no object that ends within that MiB. */
        .chunk_crcs = run->size % HL_CHUNK == 0 ? b->crcs : NULL,
    };
    uint64_t start = hl_now_ns();
    HL_TRY(hl_migrate_send(&o, b->source, run->size, run->crc, SEND_MS, NULL));
    bench_add(&c->s, hl_now_ns() - start);
    return HL_OK;
}

static uint64_t sum_of_last(const struct bench_samples *s, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += s->ns[s->count - 1 - i];
    return sum;
}

static hl_status one_round(struct migrate_bench *b, struct size_run *run)
{
    size_t times = run->size < ROUND_BYTES ? ROUND_BYTES / run->size : 1;
    times = times > TIMES_MAX ? TIMES_MAX : times;
    for (size_t i = 0; i < b->chunk_count; i++) {
        struct cell *c = &run->cells[i];
        for (size_t t = 0; t < times; t++)
            HL_TRY(time_raw(b, run));
        for (size_t t = 0; t < times; t++)
            HL_TRY(time_send(b, run, c));
        c->ratio[c->rounds++] =
            (double)sum_of_last(&run->raw, times) / (double)sum_of_last(&c->s, times);
    }
    return HL_OK;
}

/* The first round warms memory and connections, and checks that the bytes really arrive. */
static hl_status measure_migrate(struct migrate_bench *b, struct size_run *run)
{
    size_t room = (size_t)(b->rounds + 1) * TIMES_MAX + 1;
    HL_TRY(bench_samples_init(&run->raw, room * b->chunk_count));
    for (size_t i = 0; i < b->chunk_count; i++) {
        run->cells[i].chunk = b->chunks[i];
        HL_TRY(bench_samples_init(&run->cells[i].s, room));
    }
    memset(b->peer.memory, 0, run->size);
    HL_TRY(time_send(b, run, &run->cells[0]));
    if (memcmp(b->peer.memory, b->source, run->size) != 0)
        return hl_fail(HL_ECORRUPT, "an object of %llu bytes arrived with different contents",
                       (unsigned long long)run->size);
    HL_TRY(one_round(b, run));
    run->raw.count = 0;
    for (size_t i = 0; i < b->chunk_count; i++)
        run->cells[i].s.count = 0, run->cells[i].rounds = 0;
    for (int r = 0; r < b->rounds; r++)
        HL_TRY(one_round(b, run));
    return HL_OK;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double cell_median(struct cell *c)
{
    qsort(c->ratio, (size_t)c->rounds, sizeof(*c->ratio), by_size);
    return c->ratio[c->rounds / 2];
}

static void report_migrate(struct migrate_bench *b, struct size_run *run)
{
    char size[16], chunk[16], op[32], name[96];
    bench_row(&b->report, "tcp", "stream", run->size, &run->raw);
    hl_format_bytes(run->size, size, sizeof(size));
    for (size_t i = 0; i < b->chunk_count; i++) {
        hl_format_bytes(b->chunks[i], chunk, sizeof(chunk));
        snprintf(op, sizeof(op), "chunk %s", chunk);
        bench_row(&b->report, "helios-zmq", op, run->size, &run->cells[i].s);
        snprintf(name, sizeof(name), "helios-zmq/tcp stream %s, chunks of %s", size, chunk);
        bench_ratio(&b->report, name, cell_median(&run->cells[i]), run->size >= BULK ? BAR : 0, 0);
    }
}

/* ---- when compression pays ---- */

/* Half of every 64 bytes is noise and half is zeros: zstd halves the size. */
static void make_compressible(unsigned char *data, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        if (i % 64 >= 32)
            data[i] = 0;
}

static hl_status zstd_row(struct migrate_bench *b, const char *kind, const char *mode, double *off)
{
    uint64_t size = b->largest < ZSTD_BYTES ? b->largest : ZSTD_BYTES;
    uint32_t crc = hl_crc32(0, b->source, size);
    struct hl_migrate_send_opts o = {.line = b->line};
    struct hl_migrate_report sent = {0};
    struct bench_samples s = {0};
    char op[16], name[96];
    HL_TRY(hl_migrate_zstd_parse(mode, &o.zstd));
    HL_TRY(bench_samples_init(&s, (size_t)b->rounds));
    hl_status st = HL_OK;
    for (int r = 0; r < b->rounds && st == HL_OK; r++) {
        uint64_t start = hl_now_ns();
        st = hl_migrate_send(&o, b->source, size, crc, SEND_MS, &sent);
        bench_add(&s, hl_now_ns() - start);
    }
    if (st == HL_OK) {
        snprintf(op, sizeof(op), "%s zstd %s", kind, mode);
        double gbps = bench_row(&b->report, "helios-zmq", op, size, &s)->gbps;
        *off = *off > 0 ? *off : gbps;
        snprintf(name, sizeof(name), "%s, zstd %s/off (%.2f of the bytes sent)", kind, mode,
                 (double)sent.wire_bytes / (double)size);
        bench_ratio(&b->report, name, gbps / *off, 0, 0);
    }
    bench_samples_fini(&s);
    return st;
}

static hl_status zstd_rows(struct migrate_bench *b)
{
    static const char *const modes[] = {"off", "auto", "1"};
    for (int half = 0; half < 2; half++) {
        double off = 0;
        if (half)
            make_compressible(b->source, b->largest);
        for (size_t i = 0; i < HL_ARRAY_LEN(modes); i++)
            HL_TRY(zstd_row(b, half ? "half" : "noise", modes[i], &off));
    }
    return HL_OK;
}

static hl_status run_migrate_bench(struct cli *cli, struct migrate_bench *b)
{
    HL_TRY(make_source(b));
    HL_TRY(bench_peer_start(b->largest, b->window, b->io_threads, &b->peer));
    HL_TRY(hl_migrate_line_open(b->peer.migrate, b->io_threads, &b->line));
    for (size_t i = 0; i < b->size_count; i++) {
        HL_TRY(measure_migrate(b, &b->sizes[i]));
        report_migrate(b, &b->sizes[i]);
    }
    HL_TRY(zstd_rows(b));
    return bench_print(cli, &b->report);
}

static hl_status configure_migrate_bench(struct cli *cli, const struct migrate_args *a,
                                         struct migrate_bench *b)
{
    uint64_t sizes[SIZES_MAX];
    HL_TRY(bench_sizes(cli, "--size", a->size, OBJECT_MAX, sizes, SIZES_MAX, &b->size_count));
    HL_TRY(bench_sizes(cli, "--chunk", a->chunk, (uint64_t)8 << 20, b->chunks, CHUNKS_MAX,
                       &b->chunk_count));
    for (size_t i = 0; i < b->size_count; i++) {
        b->sizes[i].size = sizes[i];
        b->largest = sizes[i] > b->largest ? sizes[i] : b->largest;
    }
    b->window = a->window;
    b->rounds = (int)a->rounds;
    b->io_threads = (int)a->io_threads;
    return HL_OK;
}

static void fini_migrate_bench(struct migrate_bench *b)
{
    hl_migrate_line_close(b->line);
    bench_peer_stop(&b->peer);
    for (size_t i = 0; i < b->size_count; i++) {
        bench_samples_fini(&b->sizes[i].raw);
        for (size_t c = 0; c < b->chunk_count; c++)
            bench_samples_fini(&b->sizes[i].cells[c].s);
    }
    if (b->source != NULL)
        munmap(b->source, b->largest);
    free(b->crcs);
    free(b);
}

hl_status cmd_bench_migrate(struct cli *cli, int argc, char **argv)
{
    struct migrate_args a = {0};
    struct migrate_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, migrate_rows, HL_ARRAY_LEN(migrate_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK) {
        st = configure_migrate_bench(cli, &a, b);
        hl_copy_measure(); /* as the Agent does; the peer inherits it */
        if (st == HL_OK)
            st = run_migrate_bench(cli, b);
        hl_args_fini(migrate_rows, HL_ARRAY_LEN(migrate_rows), &a);
    }
    fini_migrate_bench(b);
    return st;
}
