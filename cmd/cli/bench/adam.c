/* bench adam: the optimizer's step against a loop with the same loads and stores and three
 * additions, over the same arrays, taking turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "helios/hybridps.h"
#include "hybridps/adam/split.h"

#define LANES       16 /* floats in a vector: one 64-byte line */
#define BLOCK_LINES 64
#define PART        4  /* lines between two rounds of prefetching */
#define AHEAD       16 /* prefetch distance in lines */
#define BYTES_EACH  28 /* four loads and three stores of a float */
#define BAR         1.10
#define HUGE        ((size_t)2 << 20) /* size of a huge page */

struct adam_args {
    int64_t elements, rounds;
};

#define AT(field) HL_OPTION_FIELD(struct adam_args, field)

static const struct hl_option rows[] = {
    {"elements", "--elements", "16777216", "Parameters, a multiple of 1024.", HL_OPT_INT, 1024,
     INT32_MAX, NULL, AT(elements)},
    {"rounds", "--rounds", "15", "Pairs of passes timed; the best counts.", HL_OPT_INT, 1, 10000,
     NULL, AT(rounds)},
};

typedef float line_t __attribute__((vector_size(4 * LANES)));

struct arrays {
    line_t *p, *g, *m, *v;
    size_t n;  /* number of floats */
    int minus; /* the next pass subtracts what the last one added, so that values stay in range */
};

#define ALWAYS __attribute__((always_inline)) static inline

/* The kernel prefetches lines, so the limit does too. */
ALWAYS void call_ahead(const struct arrays *a, size_t at)
{
    for (size_t i = at + AHEAD; i < at + AHEAD + PART; i++) {
        __builtin_prefetch(&a->p[i], 1);
        __builtin_prefetch(&a->g[i], 0);
        __builtin_prefetch(&a->m[i], 1);
        __builtin_prefetch(&a->v[i], 1);
    }
}

ALWAYS void add_pass(const struct arrays *a, size_t first, size_t last)
{
    line_t *restrict p = a->p, *restrict m = a->m, *restrict v = a->v;
    const line_t *restrict g = a->g;
    for (size_t at = first; at < last; at += PART) {
        call_ahead(a, at);
        for (size_t i = at; i < at + PART; i++) {
            line_t d = a->minus ? -g[i] : g[i];
            p[i] += d;
            m[i] += d;
            v[i] += d;
        }
    }
}

static void pass_portable(const struct arrays *a, size_t first, size_t last)
{
    add_pass(a, first, last);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void pass_avx2(const struct arrays *a, size_t first,
                                                      size_t last)
{
    add_pass(a, first, last);
}

__attribute__((target("avx512f"))) static void pass_avx512(const struct arrays *a, size_t first,
                                                           size_t last)
{
    add_pass(a, first, last);
}
#endif

static void pass_blocks(void *arg, size_t first, size_t last)
{
    first *= BLOCK_LINES;
    last *= BLOCK_LINES;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        pass_avx512(arg, first, last);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        pass_avx2(arg, first, last);
        return;
    }
#endif
    pass_portable(arg, first, last);
}

static hl_status make_arrays(struct arrays *a, size_t n)
{
    line_t **all[] = {&a->p, &a->g, &a->m, &a->v};
    uint32_t seed = 1;
    size_t bytes = (n * sizeof(float) + HUGE - 1) / HUGE * HUGE;
    for (int i = 0; i < 4; i++) {
        *all[i] = aligned_alloc(HUGE, bytes);
        if (*all[i] == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating 4 arrays of %zu floats", n);
        (void)madvise(*all[i], bytes, MADV_HUGEPAGE); /* as for the memory of chunks */
    }
    a->n = n;
    float *p = (float *)a->p, *g = (float *)a->g, *m = (float *)a->m, *v = (float *)a->v;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        g[i] = (float)(seed >> 8) / (float)(1 << 25) - 0.25f; /* never makes v negative */
        p[i] = m[i] = 0.5f;
        v[i] = 1;
    }
    return HL_OK;
}

static hl_status time_both(struct arrays *a, int threads, int64_t rounds, struct bench_samples *s,
                           struct bench_report *r)
{
    struct bench_samples roof = {0};
    size_t bytes = a->n * BYTES_EACH;
    char op[32], name[96];
    hl_status st = bench_samples_init(s, (size_t)rounds * 2);
    if (st == HL_OK)
        st = bench_samples_init(&roof, (size_t)rounds * 2);
    for (int64_t i = 0; i < 2 * rounds && st == HL_OK; i++) {
        uint64_t start = hl_now_ns();
        hl_split(a->n / LANES / BLOCK_LINES, threads, pass_blocks, a);
        uint64_t middle = hl_now_ns();
        st = hybridps_adam_step((float *)a->p, (const float *)a->g, (float *)a->m, (float *)a->v,
                                a->n, (long)i + 1, 1e-3, 0.9, 0.999, 1e-8, 0.01, 1, threads);
        bench_add(&roof, middle - start);
        bench_add(s, hl_now_ns() - middle);
        a->minus = !a->minus;
    }
    if (st == HL_OK) {
        snprintf(op, sizeof(op), "%d thread%s", threads, threads == 1 ? "" : "s");
        const struct bench_row *limit = bench_row(r, "roofline", op, bytes, &roof);
        const struct bench_row *adam = bench_row(r, "adam", op, bytes, s);
        snprintf(name, sizeof(name), "ns per parameter %s", op);
        bench_ratio(r, name, adam->min_us * 1e3 / (double)a->n, 0, 1);
        snprintf(name, sizeof(name), "adam / roofline %s", op);
        bench_ratio(r, name, adam->min_us / limit->min_us, BAR, 1);
    }
    bench_samples_fini(&roof);
    return st;
}

static hl_status bench_adam(struct cli *cli, const struct adam_args *a)
{
    struct arrays arrays = {0};
    struct bench_samples s = {0};
    struct bench_report *r = calloc(1, sizeof(*r));
    hl_status st = r == NULL ? hl_fail(HL_ENOMEM, "out of memory allocating the benchmark")
                             : make_arrays(&arrays, (size_t)a->elements / 1024 * 1024);
    for (int threads = 1; threads <= 2 && st == HL_OK; threads++)
        st = time_both(&arrays, threads, a->rounds, &s, r);
    if (st == HL_OK)
        st = bench_print(cli, r);
    free(arrays.p);
    free(arrays.g);
    free(arrays.m);
    free(arrays.v);
    bench_samples_fini(&s);
    free(r);
    return st;
}

hl_status cmd_bench_adam(struct cli *cli, int argc, char **argv)
{
    struct adam_args a = {0};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK)
        st = bench_adam(cli, &a);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
