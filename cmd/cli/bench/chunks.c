/* bench chunks: the cost of managing a parameter that is on the device already, and the speed at
 * which chunks move if they are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "helios/hybridps.h"

#define TENSORS 256
#define BATCH   1000 /* accesses timed as one sample */
#define BAR_US  1.0

struct chunks_args {
    int64_t rounds;
    uint64_t chunk;
};

#define AT(field) HL_OPTION_FIELD(struct chunks_args, field)

static const struct hl_option rows[] = {
    {"rounds", "--rounds", "200", "Batches of 1000 accesses timed; the best counts.", HL_OPT_INT, 1,
     1000000, NULL, AT(rounds)},
    {"chunk", "--chunk", "4MiB", "Size of a chunk that is moved.", HL_OPT_BYTES, 4096,
     (int64_t)1 << 30, NULL, AT(chunk)},
};

static hl_status access_release(hybridps *h, uint32_t tensor)
{
    hybridps_use u = {.tensor = tensor, .where = HYBRIDPS_DEVICE};
    HL_TRY((hl_status)hybridps_access(h, &u, 1));
    return (hl_status)hybridps_release(h, &u.tensor, 1, HYBRIDPS_HOLD);
}

static hl_status make_tensors(hybridps **out, const char *device, uint64_t chunk, uint64_t bytes,
                              uint32_t n)
{
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = device, .chunk_bytes = chunk};
    uint32_t tensor;
    HL_TRY((hl_status)hybridps_open(&o, out));
    for (uint32_t i = 0; i < n; i++)
        HL_TRY((hl_status)hybridps_add(*out, "parameter", HYBRIDPS_PARAM, bytes, &tensor));
    HL_TRY((hl_status)hybridps_layout(*out));
    for (uint32_t i = 0; i < n; i++) {
        hybridps_use u = {.tensor = i, .where = HYBRIDPS_HOST, .write = 1};
        HL_TRY((hl_status)hybridps_access(*out, &u, 1));
        memset(u.address, 1, bytes);
        HL_TRY((hl_status)hybridps_release(*out, &i, 1, HYBRIDPS_HOLD));
    }
    return HL_OK;
}

static hl_status access_batch(hybridps *h)
{
    for (uint32_t i = 0; i < BATCH; i++)
        HL_TRY(access_release(h, i % TENSORS));
    return HL_OK;
}

/* Outside of iterations, or in one that is recorded or follows its plan; each access begins a
 * moment.
 */
static hl_status time_resident(hybridps *h, const char *op, const char *phase, int64_t rounds,
                               struct bench_report *r)
{
    struct bench_samples s = {0};
    char name[96];
    HL_TRY(bench_samples_init(&s, (size_t)rounds));
    hl_status st = access_batch(h); /* all chunks are on the device from now on */
    for (int64_t i = -2; i < rounds && st == HL_OK; i++) {
        if (phase != NULL)
            st = (hl_status)hybridps_iteration(h, phase);
        uint64_t start = hl_now_ns();
        if (st == HL_OK)
            st = access_batch(h);
        if (i >= 0) /* earlier iterations are for recording and planning */
            bench_add(&s, hl_now_ns() - start);
    }
    if (st == HL_OK) {
        const struct bench_row *row = bench_row(r, "1000 accesses", op, 0, &s);
        snprintf(name, sizeof(name), "us per access and release, %s", op);
        bench_ratio(r, name, row->min_us / BATCH, BAR_US, 1);
    }
    bench_samples_fini(&s);
    return st;
}

static hl_status bench_resident(int64_t rounds, struct bench_report *r)
{
    hybridps *h = NULL;
    hl_status st = make_tensors(&h, "emu:16MiB", 16384, 4096, TENSORS);
    if (st == HL_OK)
        st = time_resident(h, "by itself", NULL, rounds, r);
    if (st == HL_OK)
        st = time_resident(h, "by plan", "train", rounds, r);
    hybridps_close(h);
    return st;
}

/* Two chunks take turns on a device with room for one. */
static hl_status bench_moving(uint64_t chunk, int64_t rounds, struct bench_report *r)
{
    struct bench_samples s = {0}, copies = {0};
    char device[48];
    hybridps *h = NULL;
    uint8_t *from = malloc(chunk), *to = malloc(chunk);
    hl_status st = from != NULL && to != NULL
                       ? HL_OK
                       : hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    snprintf(device, sizeof(device), "emu:%llu", (unsigned long long)chunk);
    if (st == HL_OK)
        st = bench_samples_init(&s, (size_t)rounds);
    if (st == HL_OK)
        st = bench_samples_init(&copies, (size_t)rounds);
    if (st == HL_OK) {
        memset(from, 1, chunk);
        memset(to, 1, chunk);
        st = make_tensors(&h, device, chunk, chunk, 2);
    }
    for (int64_t i = 0; i < rounds && st == HL_OK; i++) {
        uint64_t start = hl_now_ns();
        memcpy(to, from, chunk);
        uint64_t middle = hl_now_ns();
        st = access_release(h, (uint32_t)(i & 1));
        bench_add(&copies, middle - start);
        bench_add(&s, hl_now_ns() - middle);
        from[i % (int64_t)chunk] = to[i % (int64_t)chunk];
    }
    if (st == HL_OK) {
        const struct bench_row *limit = bench_row(r, "memcpy", "chunk", chunk, &copies);
        const struct bench_row *load = bench_row(r, "load", "chunk", chunk, &s);
        bench_ratio(r, "load / memcpy", load->min_us / limit->min_us, 0, 1);
    }
    hybridps_close(h);
    bench_samples_fini(&s);
    bench_samples_fini(&copies);
    free(from);
    free(to);
    return st;
}

hl_status cmd_bench_chunks(struct cli *cli, int argc, char **argv)
{
    struct chunks_args a = {0};
    struct bench_report *r = calloc(1, sizeof(*r));
    hl_status st = r == NULL ? hl_fail(HL_ENOMEM, "out of memory allocating the benchmark")
                             : cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK)
        st = bench_resident(a.rounds, r);
    if (st == HL_OK)
        st = bench_moving(a.chunk, a.rounds, r);
    if (st == HL_OK)
        st = bench_print(cli, r);
    free(r);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
