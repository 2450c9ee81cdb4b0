/* bench put: objects into a private L3 daemon, over the network and through its local socket,
 * against raw TCP and memcpy, in one run, taking turns. The pool keeps every object until the end,
 * so it is made large enough for all of them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "mem/socket/socket.h"
#include "net/net.h"

#define SIZES_MAX   8
#define SIZE_MAX_   ((uint64_t)256 << 20)
#define EXTENT      ((uint64_t)64 << 10)
#define ROUND_BYTES ((uint64_t)128 << 20)
#define ROUND_OPS   300
#define SHM_OPS     50
#define MANY        256 /* objects per call in the batched row */
#define MANY_CALLS  4
#define MANY_UP_TO  ((uint64_t)4 << 10)
#define STREAM      ((uint64_t)256 << 20)
#define PUT_MS      30000

struct put_args {
    char *size;
    int64_t rounds;
};

#define AT(field) HL_OPTION_FIELD(struct put_args, field)

static const struct hl_option put_rows[] = {
    {"size", "--size", "64,4KiB,1MiB,64MiB", "Sizes of the objects, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
    {"rounds", "--rounds", "3", "Rounds; all systems take turns in each.", HL_OPT_INT, 1, 100, NULL,
     AT(rounds)},
};

struct size_run {
    uint64_t size;
    struct bench_samples memcpy_s, shm_s, give_s, stream_s, net_s, many_s;
};

struct put_bench {
    struct bench_l3d l3d;
    struct size_run sizes[SIZES_MAX];
    size_t count;
    int rounds;
    struct hl_net_client *net;
    struct hl_l3_client *local;
    struct bench_tcp *tcp;
    unsigned char *source, *sink;
    uint64_t len;
    struct bench_report report;
};

static hl_status parse_sizes(struct cli *cli, const char *text, struct put_bench *b)
{
    uint64_t sizes[SIZES_MAX];
    HL_TRY(bench_sizes(cli, "--size", text, SIZE_MAX_, sizes, SIZES_MAX, &b->count));
    for (size_t i = 0; i < b->count; i++) {
        b->sizes[i].size = sizes[i];
        b->len = sizes[i] > b->len ? sizes[i] : b->len;
    }
    return HL_OK;
}

static size_t ops_of(uint64_t size, size_t most)
{
    return bench_ops(ROUND_BYTES, size, 2, most);
}

static uint64_t room_of(const struct size_run *run)
{
    uint64_t one = (run->size + run->size / 262144 + 8 + EXTENT - 1) / EXTENT * EXTENT;
    uint64_t many = run->size <= MANY_UP_TO ? MANY * MANY_CALLS : 0;
    return one * (ops_of(run->size, ROUND_OPS) + ops_of(run->size, SHM_OPS) + many);
}

static hl_status setup_put_bench(struct cli *cli, struct put_bench *b)
{
    uint64_t pool = (uint64_t)64 << 20;
    for (size_t i = 0; i < b->count; i++)
        pool += room_of(&b->sizes[i]) * (uint64_t)(b->rounds + 1);
    b->source = malloc(b->len + MANY);
    b->sink = malloc(b->len);
    if (b->source == NULL || b->sink == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes",
                       (unsigned long long)b->len);
    for (uint64_t i = 0; i < b->len + MANY; i++)
        b->source[i] = (unsigned char)(i * 167 + (i >> 11));
    memset(b->sink, 0, b->len);
    HL_TRY(bench_tcp_start(b->source, b->len, &b->tcp));
    HL_TRY(bench_l3d_start(cli, pool, &b->l3d));
    HL_TRY(hl_l3_connect(b->l3d.socket, 5000, &b->local));
    return hl_net_connect(b->l3d.data, 5000, &b->net);
}

static hl_status time_limits(struct put_bench *b, struct size_run *run, size_t ops)
{
    for (size_t i = 0; i < ops; i++) {
        uint64_t start = hl_now_ns();
        HL_TRY(bench_tcp_give(b->tcp, b->source, run->size));
        bench_add(&run->give_s, hl_now_ns() - start);
    }
    for (size_t i = 0; i < ops; i++) {
        uint64_t start = hl_now_ns();
        memcpy(b->sink, b->source, run->size);
        __asm__ __volatile__("" : : "r"(b->sink) : "memory");
        bench_add(&run->memcpy_s, hl_now_ns() - start);
    }
    if (run->size < HL_CHUNK)
        return HL_OK;
    return bench_tcp_stream(b->tcp, b->sink, run->size, (unsigned)(STREAM / run->size) + 1,
                            &run->stream_s);
}

static hl_status time_net(struct put_bench *b, struct size_run *run, size_t ops)
{
    uint32_t crc = hl_crc32(0, b->source, run->size);
    for (size_t i = 0; i < ops; i++) {
        struct hl_id id;
        uint64_t start = hl_now_ns();
        HL_TRY(hl_net_put(b->net, b->source, run->size, crc, PUT_MS, &id));
        bench_add(&run->net_s, hl_now_ns() - start);
    }
    return HL_OK;
}

/* A sample is the time per object. */
static hl_status time_many(struct put_bench *b, struct size_run *run)
{
    struct hl_net_item items[MANY];
    for (size_t call = 0; call < MANY_CALLS && run->size <= MANY_UP_TO; call++) {
        for (size_t i = 0; i < MANY; i++)
            items[i] = (struct hl_net_item){.data = b->source + i,
                                            .len = run->size,
                                            .crc = hl_crc32(0, b->source + i, run->size)};
        uint64_t start = hl_now_ns();
        HL_TRY(hl_net_put_many(b->net, items, MANY, PUT_MS));
        bench_add(&run->many_s, (hl_now_ns() - start) / MANY);
    }
    return HL_OK;
}

static hl_status time_shm(struct put_bench *b, struct size_run *run, size_t ops)
{
    struct hl_l3_staging s;
    HL_TRY(hl_l3_staging_open(run->size, &s));
    memcpy(s.ptr, b->source, run->size);
    hl_status st = HL_OK;
    for (size_t i = 0; i < ops && st == HL_OK; i++) {
        struct hl_pool_ref ref;
        uint64_t start = hl_now_ns();
        st = hl_l3_put(b->local, &s, run->size, PUT_MS, &ref);
        bench_add(&run->shm_s, hl_now_ns() - start);
    }
    hl_l3_staging_close(&s);
    return st;
}

static hl_status one_round(struct put_bench *b, struct size_run *run)
{
    size_t ops = ops_of(run->size, ROUND_OPS);
    HL_TRY(time_limits(b, run, ops));
    HL_TRY(time_net(b, run, ops));
    HL_TRY(time_many(b, run));
    return time_shm(b, run, ops_of(run->size, SHM_OPS));
}

static hl_status measure_put(struct put_bench *b, struct size_run *run)
{
    size_t room = (ops_of(run->size, ROUND_OPS) + MANY_CALLS) * (size_t)b->rounds;
    struct bench_samples *all[] = {&run->memcpy_s, &run->shm_s, &run->give_s,
                                   &run->stream_s, &run->net_s, &run->many_s};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        HL_TRY(bench_samples_init(all[i], room));
    HL_TRY(one_round(b, run)); /* warm-up of connections, places and pages */
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        all[i]->count = 0;
    for (int r = 0; r < b->rounds; r++)
        HL_TRY(one_round(b, run));
    return HL_OK;
}

static void report_put(struct put_bench *b, struct size_run *run)
{
    struct bench_report *r = &b->report;
    char size[32], name[96], system[24];
    int bulk = run->size >= HL_CHUNK;
    hl_format_bytes(run->size, size, sizeof(size));
    snprintf(system, sizeof(system), "helios-%.15s", hl_net_path_name(b->net));
    const struct bench_row *copy = bench_row(r, "memcpy", "copy", run->size, &run->memcpy_s);
    const struct bench_row *shm = bench_row(r, "helios-shm", "put", run->size, &run->shm_s);
    const struct bench_row *give = bench_row(r, "tcp", "give", run->size, &run->give_s);
    const struct bench_row *stream =
        bulk ? bench_row(r, "tcp", "stream", run->size, &run->stream_s) : NULL;
    const struct bench_row *net = bench_row(r, system, "put", run->size, &run->net_s);
    snprintf(name, sizeof(name), "helios-shm/memcpy %s", size);
    bench_ratio(r, name, bulk ? shm->gbps / copy->gbps : shm->p50_us / copy->p50_us, 0, !bulk);
    snprintf(name, sizeof(name), "%s/tcp %s %s", system, bulk ? "stream" : "round trip", size);
    bench_ratio(r, name, bulk ? net->gbps / stream->gbps : net->p50_us / give->p50_us, 0, !bulk);
    if (run->size > MANY_UP_TO)
        return;
    const struct bench_row *many = bench_row(r, system, "put-batched", run->size, &run->many_s);
    snprintf(name, sizeof(name), "%s batched/tcp round trip %s", system, size);
    bench_ratio(r, name, many->p50_us / give->p50_us, 0, 1);
}

static hl_status run_put_bench(struct cli *cli, struct put_bench *b)
{
    HL_TRY(setup_put_bench(cli, b));
    for (size_t i = 0; i < b->count; i++) {
        HL_TRY(measure_put(b, &b->sizes[i]));
        report_put(b, &b->sizes[i]);
    }
    return bench_print(cli, &b->report);
}

static void fini_put_bench(struct put_bench *b)
{
    hl_net_close(b->net);
    hl_l3_close(b->local);
    bench_tcp_stop(b->tcp);
    bench_l3d_stop(&b->l3d);
    for (size_t i = 0; i < b->count; i++) {
        struct size_run *s = &b->sizes[i];
        struct bench_samples *all[] = {&s->memcpy_s, &s->shm_s, &s->give_s,
                                       &s->stream_s, &s->net_s, &s->many_s};
        for (size_t k = 0; k < HL_ARRAY_LEN(all); k++)
            bench_samples_fini(all[k]);
    }
    free(b->source);
    free(b->sink);
    free(b);
}

hl_status cmd_bench_put(struct cli *cli, int argc, char **argv)
{
    struct put_args a = {0};
    struct put_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, put_rows, HL_ARRAY_LEN(put_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK) {
        b->rounds = (int)a.rounds;
        st = parse_sizes(cli, a.size, b);
        if (st == HL_OK)
            st = run_put_bench(cli, b);
        hl_args_fini(put_rows, HL_ARRAY_LEN(put_rows), &a);
    }
    fini_put_bench(b);
    return st;
}
