/* The norm of a gradient. Each block is summed on its own, and the sums of the blocks are added in
 * order, so the result does not depend on the number of threads. */
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/status.h"
#include "base/text.h"
#include "helios/hybridps.h"
#include "hybridps/adam/split.h"

#define BLOCK 1024
#define LANES 16 /* partial sums of a block, added in order */

struct norm_job {
    const void *g;
    int type;
    size_t n;
    float scale;
    double *sums; /* one per block */
};

static double block_sum(const float *g, size_t n, float scale)
{
    double lane[LANES] = {0}, sum = 0;
    size_t whole = n - n % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t l = 0; l < LANES; l++) {
            double x = (double)(g[i + l] * scale);
            lane[l] += x * x;
        }
    for (size_t i = whole; i < n; i++) {
        double x = (double)(g[i] * scale);
        lane[i - whole] += x * x;
    }
    for (size_t l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static void sum_blocks(void *arg, size_t first, size_t last)
{
    struct norm_job *j = arg;
    float g[BLOCK];
    for (size_t b = first; b < last; b++) {
        size_t at = b * BLOCK, left = j->n - at, n = left < BLOCK ? left : BLOCK;
        hl_half_load(j->g, j->type, at, n, g);
        j->sums[b] = block_sum(g, n, j->scale);
    }
}

int hybridps_grad_norm(const void *g, int grad_type, size_t n, double scale, int nthreads,
                       double *sum_of_squares, int *finite)
{
    if ((g == NULL && n > 0) || sum_of_squares == NULL || finite == NULL)
        return hl_fail(HL_EINVAL, "gradient norm: g and the results must not be NULL");
    if (grad_type < HYBRIDPS_F32 || grad_type > HYBRIDPS_BF16)
        return hl_fail(HL_EINVAL, "gradient norm: type %d is not one of f32 0, f16 1, bf16 2",
                       grad_type);
    size_t count = (n + BLOCK - 1) / BLOCK;
    HL_AUTO(hl_freep) double *sums = calloc(count + 1, sizeof(*sums));
    if (sums == NULL)
        return hl_fail(HL_ENOMEM, "gradient norm: out of memory allocating the sums of %zu blocks",
                       count);
    struct norm_job j = {.g = g, .type = grad_type, .n = n, .scale = (float)scale, .sums = sums};
    hl_split(count, nthreads, sum_blocks, &j);
    double sum = 0;
    for (size_t b = 0; b < count; b++)
        sum += sums[b];
    /* The square of a finite float32 is finite in float64, and so is the sum of 2^64 squares. */
    *sum_of_squares = sum;
    *finite = isfinite(sum);
    return HL_OK;
}
