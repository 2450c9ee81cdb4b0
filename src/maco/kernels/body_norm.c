/* Row by row: loads a row into the scratch as float32, sums it up, and writes the result. */
#include <math.h>

#include "maco/kernels/body_private.h"

struct row_work {
    float *x, *gamma, *beta; /* the last two are NULL if the task has none */
};

static hl_status prepare_rows(const maco_task *t, struct hl_maco_scratch *s, struct row_work *w)
{
    int dtype = hl_maco_dtype(t);
    size_t cols = (size_t)t->dims[1], room = hl_round_up(cols, HL_LANES);
    void *data;
    HL_TRY(hl_scratch_reserve(s, 3 * room * sizeof(float), &data));
    *w = (struct row_work){.x = data};
    if (t->type == MACO_TASK_SOFTMAX)
        return HL_OK;
    if (t->inputs[1] != 0) {
        w->gamma = w->x + room;
        hl_load(hl_at(t->inputs[1], dtype, 0), dtype, 0, cols, 0, w->gamma);
    }
    if (t->type == MACO_TASK_LAYERNORM && t->inputs[2] != 0) {
        w->beta = w->x + 2 * room;
        hl_load(hl_at(t->inputs[2], dtype, 0), dtype, 0, cols, 0, w->beta);
    }
    return HL_OK;
}

/* Subtracting the mean of the deviations removes the rounding error of the mean. */
static void layernorm_row(const struct row_work *w, size_t cols, float eps)
{
    size_t n = hl_round_up(cols, HL_LANES);
    float mean = hl_vec_sum(w->x, n) / (float)cols;
    for (size_t i = 0; i < n; i++)
        w->x[i] -= mean;
    for (size_t i = cols; i < n; i++)
        w->x[i] = 0;
    float rest = hl_vec_sum(w->x, n) / (float)cols;
    float variance = hl_vec_squares(w->x, n, 0) / (float)cols - rest * rest;
    float scale = 1.0f / sqrtf((variance > 0 || isnan(variance) ? variance : 0) + eps);
    hl_vec_norm(w->x, n, rest, scale, w->gamma, w->beta);
}

static void rmsnorm_row(const struct row_work *w, size_t cols, float eps)
{
    size_t n = hl_round_up(cols, HL_LANES);
    float scale = 1.0f / sqrtf(hl_vec_squares(w->x, n, 0) / (float)cols + eps);
    hl_vec_norm(w->x, n, 0, scale, w->gamma, NULL);
}

static void softmax_row(const struct row_work *w, size_t cols)
{
    size_t n = hl_round_up(cols, HL_LANES);
    float sum = hl_vec_exp(w->x, n, hl_vec_max(w->x, n));
    hl_vec_scale(w->x, n, 1.0f / sum);
}

static hl_status rows_of(const maco_task *t, struct hl_maco_scratch *s)
{
    struct row_work w;
    int dtype = hl_maco_dtype(t);
    size_t rows = (size_t)t->dims[0], cols = (size_t)t->dims[1];
    float pad = t->type == MACO_TASK_SOFTMAX ? -INFINITY : 0;
    HL_TRY(prepare_rows(t, s, &w));
    for (size_t r = 0; r < rows; r++) {
        hl_load(hl_at(t->inputs[0], dtype, r * (size_t)t->dims[2]), dtype, 0, cols, pad, w.x);
        if (t->type == MACO_TASK_LAYERNORM)
            layernorm_row(&w, cols, t->aux[0]);
        else if (t->type == MACO_TASK_RMSNORM)
            rmsnorm_row(&w, cols, t->aux[0]);
        else
            softmax_row(&w, cols);
        hl_store(w.x, cols, hl_at(t->outputs[0], dtype, r * (size_t)t->dims[3]), dtype, 0);
    }
    return HL_OK;
}

hl_status hl_body_layernorm(const maco_task *t, struct hl_maco_scratch *s)
{
    return rows_of(t, s);
}

hl_status hl_body_rmsnorm(const maco_task *t, struct hl_maco_scratch *s)
{
    return rows_of(t, s);
}

hl_status hl_body_softmax(const maco_task *t, struct hl_maco_scratch *s)
{
    return rows_of(t, s);
}
