/* bench device: copies between host memory and a CUDA device as the store's L1 and HybridPS make
 * them, against the driver's own asynchronous copies of memory that it has allocated itself. All
 * take turns. Our memory is either pinned, as a plank's, or plain, as a pool's. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "cuda/driver.h"
#include "mem/device/device.h"

#define SIZES_MAX   8
#define MOST        ((uint64_t)1 << 30)
#define ROUND_BYTES ((uint64_t)1 << 30)
#define ROUND_OPS   200
#define BULK        ((uint64_t)16 << 20)

struct device_args {
    char *device, *size, *driver;
    int64_t rounds;
};

#define AT(field) HL_OPTION_FIELD(struct device_args, field)

static const struct hl_option device_rows[] = {
    {"device", "--device", "cuda:0",
     "The CUDA device, in the form that --devices of an Agent takes.", HL_OPT_STRING, 0, 0, NULL,
     AT(device)},
    {"size", "--size", "64KiB,1MiB,64MiB,256MiB", "Sizes of the copies, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
    {"driver", "--cuda-driver", "", "CUDA driver library; empty for libcuda.so.1.", HL_OPT_PATH, 0,
     0, NULL, AT(driver)},
    {"rounds", "--rounds", "3", "Rounds; all systems take turns in each.", HL_OPT_INT, 1, 100, NULL,
     AT(rounds)},
};

enum way { DRIVER, PINNED, PLAIN, WAYS };

static const char *const way_names[] = {"driver-pinned", "helios-pinned", "helios-plain"};

struct device_bench {
    struct cuda_driver cu;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    cu_device ordinal;
    cu_ptr raw; /* the driver's own memory on the device */
    void *host[WAYS];
    uint64_t sizes[SIZES_MAX], largest;
    size_t count;
    bool pinned;
    struct hl_device *device;
    struct hl_device_block block;
    struct bench_samples samples[2][WAYS];
    struct bench_report report;
};

/* ---- setting up ---- */

/* In the primary context, which the device layer uses too. */
static hl_status open_driver(struct device_bench *b, const struct device_args *a)
{
    struct hl_device_info info;
    HL_TRY(cuda_driver_load(a->driver, &b->cu));
    hl_device_info(b->device, &info);
    CUDA_TRY(&b->cu, cuDeviceGetByPCIBusId, (&b->ordinal, info.pci));
    CUDA_TRY(&b->cu, cuDevicePrimaryCtxRetain, (&b->context, b->ordinal));
    CUDA_TRY(&b->cu, cuCtxPushCurrent_v2, (b->context));
    CUDA_TRY(&b->cu, cuStreamCreate, (&b->stream, HL_CU_STREAM_NON_BLOCKING));
    CUDA_TRY(&b->cu, cuMemAlloc_v2, (&b->raw, b->largest));
    CUDA_TRY(&b->cu, cuMemHostAlloc, (&b->host[DRIVER], b->largest, 0));
    return HL_OK;
}

static hl_status setup_device_bench(struct device_bench *b, const struct device_args *a)
{
    struct hl_device_options o = {.cuda_driver = a->driver};
    if (strncmp(a->device, "cuda", 4) != 0)
        return hl_fail(HL_EINVAL,
                       "--device %s: only a CUDA device can be measured; give one such as cuda:0",
                       a->device);
    HL_TRY(hl_device_open(a->device, &o, &b->device));
    HL_TRY(hl_device_alloc(b->device, b->largest, HL_DEVICE_ANYWHERE, &b->block));
    for (int way = PINNED; way < WAYS; way++) {
        void *p = mmap(NULL, b->largest, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (p == MAP_FAILED)
            return hl_fail(HL_ENOMEM, "out of memory for the copies");
        b->host[way] = p;
    }
    HL_TRY(hl_device_pin(b->device, b->host[PINNED], b->largest));
    b->pinned = true;
    HL_TRY(open_driver(b, a));
    for (int way = 0; way < WAYS; way++)
        memset(b->host[way], 0x5a + way, b->largest);
    return HL_OK;
}

static void fini_device_bench(struct device_bench *b)
{
    struct CUctx_st *old;
    if (b->stream != NULL)
        (void)b->cu.cuStreamDestroy_v2(b->stream);
    if (b->raw != 0)
        (void)b->cu.cuMemFree_v2(b->raw);
    if (b->host[DRIVER] != NULL)
        (void)b->cu.cuMemFreeHost(b->host[DRIVER]);
    if (b->context != NULL) {
        (void)b->cu.cuCtxPopCurrent_v2(&old);
        (void)b->cu.cuDevicePrimaryCtxRelease_v2(b->ordinal);
    }
    if (b->pinned)
        hl_device_unpin(b->device, b->host[PINNED]);
    for (int way = PINNED; way < WAYS; way++)
        if (b->host[way] != NULL)
            munmap(b->host[way], b->largest);
    hl_device_close(b->device);
    for (int out = 0; out < 2; out++)
        for (int way = 0; way < WAYS; way++)
            bench_samples_fini(&b->samples[out][way]);
    free(b);
}

/* ---- measuring ---- */

static hl_status copy_by_driver(struct device_bench *b, bool out, uint64_t size)
{
    if (out)
        CUDA_TRY(&b->cu, cuMemcpyDtoHAsync_v2, (b->host[DRIVER], b->raw, size, b->stream));
    else
        CUDA_TRY(&b->cu, cuMemcpyHtoDAsync_v2, (b->raw, b->host[DRIVER], size, b->stream));
    cu_result r;
    do
        r = b->cu.cuStreamQuery(b->stream);
    while (r == HL_CUDA_ERROR_NOT_READY);
    return r == HL_CUDA_SUCCESS ? HL_OK : cuda_fail(&b->cu, "copying", r);
}

static hl_status time_copy(struct device_bench *b, enum way way, bool out, uint64_t size)
{
    uint64_t start = hl_now_ns();
    if (way == DRIVER)
        HL_TRY(copy_by_driver(b, out, size));
    else if (out)
        HL_TRY(hl_device_copy_out(b->device, &b->block, 0, b->host[way], size));
    else
        HL_TRY(hl_device_copy_in(b->device, &b->block, 0, b->host[way], size));
    bench_add(&b->samples[out][way], hl_now_ns() - start);
    return HL_OK;
}

static size_t ops_of(uint64_t size)
{
    return bench_ops(ROUND_BYTES, size, 3, ROUND_OPS);
}

static hl_status one_round(struct device_bench *b, uint64_t size)
{
    for (size_t i = 0; i < ops_of(size); i++)
        for (int out = 0; out < 2; out++)
            for (int way = 0; way < WAYS; way++)
                HL_TRY(time_copy(b, (enum way)way, out, size));
    return HL_OK;
}

static void report_size(struct device_bench *b, uint64_t size)
{
    static const char *const ops[] = {"in", "out"};
    char name[96], text[32];
    hl_format_bytes(size, text, sizeof(text));
    for (int out = 0; out < 2; out++) {
        const struct bench_row *rows[WAYS];
        for (int way = 0; way < WAYS; way++)
            rows[way] =
                bench_row(&b->report, way_names[way], ops[out], size, &b->samples[out][way]);
        for (int way = PINNED; way < WAYS; way++) {
            snprintf(name, sizeof(name), "%s/driver %s %s", way_names[way], ops[out], text);
            bench_ratio(&b->report, name, rows[DRIVER]->p50_us / rows[way]->p50_us,
                        way == PINNED && size >= BULK ? 0.95 : 0, false);
        }
    }
}

static hl_status run_device_bench(struct cli *cli, struct device_bench *b,
                                  const struct device_args *a)
{
    HL_TRY(setup_device_bench(b, a));
    for (size_t i = 0; i < b->count; i++) {
        HL_TRY(one_round(b, b->sizes[i])); /* warm-up; its samples are dropped below */
        for (int out = 0; out < 2; out++)
            for (int way = 0; way < WAYS; way++)
                HL_TRY(bench_samples_init(&b->samples[out][way],
                                          ops_of(b->sizes[i]) * (size_t)a->rounds));
        for (int64_t r = 0; r < a->rounds; r++)
            HL_TRY(one_round(b, b->sizes[i]));
        report_size(b, b->sizes[i]);
    }
    return bench_print(cli, &b->report);
}

hl_status cmd_bench_device(struct cli *cli, int argc, char **argv)
{
    struct device_args a = {0};
    struct device_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, device_rows, HL_ARRAY_LEN(device_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK) {
        st = bench_sizes(cli, "--size", a.size, MOST, b->sizes, SIZES_MAX, &b->count);
        for (size_t i = 0; i < b->count; i++)
            b->largest = b->sizes[i] > b->largest ? b->sizes[i] : b->largest;
        if (st == HL_OK)
            st = run_device_bench(cli, b, &a);
        hl_args_fini(device_rows, HL_ARRAY_LEN(device_rows), &a);
    }
    fini_device_bench(b);
    return st;
}
