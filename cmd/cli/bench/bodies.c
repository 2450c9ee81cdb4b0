/* bench bodies: MACO's task bodies on one CPU. Compares our products, whose sums have a fixed
 * order, with BLAS's; attention with the rate of our product; and rows, elements and a decoder's
 * single row with memcpy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "maco/kernels/bodies.h"

#define ROWS 256
#define COLS 2048
#define MOST ((size_t)1024 * 1024) /* elements of an array */
#define FAR  ((size_t)128 << 20)   /* bytes; more than any cache holds */

struct bodies_args {
    int64_t rounds;
};

static const struct hl_option rows[] = {
    {"rounds", "--rounds", "15", "Runs of each body; ratios are of the best.", HL_OPT_INT, 1, 10000,
     NULL, HL_OPTION_FIELD(struct bodies_args, rounds)},
};

struct bodies_bench {
    float *x, *y, *z;
    void *far;
    int64_t rounds;
    struct hl_maco_scratch scratch;
    struct bench_samples a, b;
    struct bench_report report;
};

static uint64_t address_of(const void *p)
{
    return (uintptr_t)p;
}

/* Times two tasks in turns; NULL stands for a memcpy of ROWS x COLS floats. */
static hl_status time_two(struct bodies_bench *b, const maco_task *one, const maco_task *other)
{
    HL_TRY(bench_samples_init(&b->a, (size_t)b->rounds));
    HL_TRY(bench_samples_init(&b->b, (size_t)b->rounds));
    for (int64_t i = 0; i <= b->rounds; i++) {
        uint64_t start = hl_now_ns();
        HL_TRY(hl_maco_body(one, &b->scratch));
        uint64_t middle = hl_now_ns();
        if (other != NULL)
            HL_TRY(hl_maco_body(other, &b->scratch));
        else
            memcpy(b->z, b->x, (size_t)ROWS * COLS * sizeof(float));
        if (i == 0) /* warm-up of pages and libraries */
            continue;
        bench_add(&b->a, middle - start);
        bench_add(&b->b, hl_now_ns() - middle);
    }
    return HL_OK;
}

static maco_task product_task(const struct bodies_bench *b, int n, bool fixed)
{
    return (maco_task){.type = MACO_TASK_LINEAR,
                       .flags = fixed ? MACO_FLAG_DETERMINISTIC : 0,
                       .inputs = {address_of(b->x), address_of(b->y)},
                       .outputs = {address_of(b->z)},
                       .dims = {n, n, n, n, n, n}};
}

static hl_status time_product(struct bodies_bench *b, int n)
{
    maco_task own = product_task(b, n, 1), blas = product_task(b, n, 0);
    uint64_t bytes = (uint64_t)n * (uint64_t)n * 12;
    char name[96];
    HL_TRY(time_two(b, &own, &blas));
    const struct bench_row *o = bench_row(&b->report, "deterministic", "product", bytes, &b->a);
    const struct bench_row *l = bench_row(&b->report, "default", "product", bytes, &b->b);
    double flops = 2.0 * n * n * n;
    snprintf(name, sizeof(name), "deterministic / default product of %d", n);
    bench_ratio(&b->report, name, o->min_us / l->min_us, 0, 1);
    snprintf(name, sizeof(name), "GFLOP/s deterministic product of %d", n);
    bench_ratio(&b->report, name, flops / o->min_us / 1e3, 0, 0);
    return HL_OK;
}

/* Eight heads of 512 x 512 x 64: as many operations as a deterministic product of size 645. */
static hl_status time_attention(struct bodies_bench *b)
{
    maco_task t = {.type = MACO_TASK_ATTENTION,
                   .inputs = {address_of(b->x), address_of(b->y), address_of(b->y)},
                   .outputs = {address_of(b->z)},
                   .dims = {1, 8, 8, 512, 512, 64},
                   .aux = {0.125f}};
    maco_task own = product_task(b, 512, 1);
    HL_TRY(time_two(b, &t, &own));
    const struct bench_row *a =
        bench_row(&b->report, "body", "attention", 8 * 512 * 64 * 16, &b->a);
    const struct bench_row *o =
        bench_row(&b->report, "deterministic", "product", 512 * 512 * 12, &b->b);
    double rate = 4.0 * 8 * 512 * 512 * 64 / a->min_us, limit = 2.0 * 512 * 512 * 512 / o->min_us;
    bench_ratio(&b->report, "GFLOP/s attention", rate / 1e3, 0, 0);
    bench_ratio(&b->report, "attention's / deterministic product's rate", rate / limit, 0, 0);
    return HL_OK;
}

/* The work for one token of a decoder: one row times a matrix, one query times many keys. The data
 * exceeds all caches; as many bytes are read as memcpy reads and writes together. */
static hl_status time_decode(struct bodies_bench *b, int dtype, bool fixed)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    int k = 4096, size = dtype == MACO_F32 ? 4 : 2, n = (int)(FAR / (size_t)(k * size));
    int keys = (int)(FAR / 2 / 8 / 128 / (size_t)size);
    uint64_t far = address_of(b->far);
    maco_task tasks[] = {
        {.type = MACO_TASK_LINEAR,
         .flags = (uint16_t)(dtype | (fixed ? MACO_FLAG_DETERMINISTIC : 0)),
         .inputs = {address_of(b->x), far},
         .outputs = {address_of(b->z)},
         .dims = {1, n, k, k, k, n}},
        {.type = MACO_TASK_ATTENTION,
         .flags = (uint16_t)dtype,
         .inputs = {address_of(b->x), far, far + FAR / 2},
         .outputs = {address_of(b->z)},
         .dims = {1, 8, 8, 1, keys, 128},
         .aux = {0.1f}},
    };
    maco_task copy = {.type = MACO_TASK_MEMCPY,
                      .inputs = {far},
                      .outputs = {far + FAR / 2},
                      .dims = {1, FAR / 2, FAR / 2, FAR / 2}};
    for (size_t i = 0; i < (fixed ? 1 : HL_ARRAY_LEN(tasks)); i++) {
        const char *what = i == 1 ? "attention" : fixed ? "linear, fixed" : "linear";
        char name[96];
        HL_TRY(time_two(b, &tasks[i], &copy));
        const struct bench_row *body = bench_row(&b->report, names[dtype], what, FAR, &b->a);
        const struct bench_row *moved = bench_row(&b->report, "memcpy", "copy", FAR / 2, &b->b);
        snprintf(name, sizeof(name), "%s %s of one row / copy bandwidth", names[dtype], what);
        bench_ratio(&b->report, name, moved->min_us / body->min_us, 0, 0);
    }
    return HL_OK;
}

static hl_status time_rows(struct bodies_bench *b, int type, const char *what)
{
    maco_task t = {.type = (uint16_t)type,
                   .inputs = {address_of(b->x), address_of(b->y), address_of(b->y)},
                   .outputs = {address_of(b->z)},
                   .dims = {ROWS, COLS, COLS, COLS},
                   .aux = {1e-5f}};
    char name[96];
    uint64_t bytes = (uint64_t)ROWS * COLS * sizeof(float);
    HL_TRY(time_two(b, &t, NULL));
    const struct bench_row *body = bench_row(&b->report, "body", what, bytes, &b->a);
    const struct bench_row *copy = bench_row(&b->report, "memcpy", "copy", bytes, &b->b);
    snprintf(name, sizeof(name), "%s / memcpy", what);
    bench_ratio(&b->report, name, body->min_us / copy->min_us, 0, 1);
    return HL_OK;
}

static hl_status run_bodies_bench(struct bodies_bench *b)
{
    static const int sizes[] = {128, 512, 1024};
    uint32_t seed = 1;
    b->x = malloc(3 * MOST * sizeof(float));
    b->far = malloc(FAR);
    if (b->x == NULL || b->far == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu bytes",
                       3 * MOST * sizeof(float) + FAR);
    memset(b->far, 0x3c, FAR);
    b->y = b->x + MOST;
    b->z = b->y + MOST;
    for (size_t i = 0; i < 3 * MOST; i++) {
        seed = seed * 1664525 + 1013904223;
        b->x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++)
        HL_TRY(time_product(b, sizes[i]));
    HL_TRY(time_attention(b));
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++)
        for (int fixed = 0; fixed <= 1; fixed++)
            HL_TRY(time_decode(b, dtype, fixed));
    HL_TRY(time_rows(b, MACO_TASK_LAYERNORM, "layernorm"));
    HL_TRY(time_rows(b, MACO_TASK_RMSNORM, "rmsnorm"));
    HL_TRY(time_rows(b, MACO_TASK_SOFTMAX, "softmax"));
    HL_TRY(time_rows(b, MACO_TASK_GELU, "gelu"));
    return time_rows(b, MACO_TASK_SILU, "silu");
}

hl_status cmd_bench_bodies(struct cli *cli, int argc, char **argv)
{
    struct bodies_args a = {0};
    struct bodies_bench *b = calloc(1, sizeof(*b));
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK && b == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    if (st == HL_OK) {
        b->rounds = a.rounds;
        hl_maco_bodies_begin();
        st = run_bodies_bench(b);
        hl_maco_bodies_end();
    }
    if (st == HL_OK)
        st = bench_print(cli, &b->report);
    if (b != NULL) {
        hl_maco_scratch_free(&b->scratch);
        bench_samples_fini(&b->a);
        bench_samples_fini(&b->b);
        free(b->x);
        free(b->far);
    }
    free(b);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
