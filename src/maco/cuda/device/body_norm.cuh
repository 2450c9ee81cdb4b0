/* maco/cuda/device/body_norm.cuh - LAYERNORM, RMSNORM, SOFTMAX: a warp computes a short row, the
 * block a long one. A row is read once for each of its sums and stays in the L1 cache in between.
 */
#ifndef HL_MACO_CUDA_DEVICE_BODY_NORM_CUH
#define HL_MACO_CUDA_DEVICE_BODY_NORM_CUH

#include "helios/maco.h"
#include "maco/cuda/device/element.cuh"

namespace gpu
{

#define HL_WARP_ROW 1024u /* longest row that a single warp computes */

struct hl_rows {
    const void *x, *gamma, *beta;
    void *y;
    uint64_t ldx, ldy;
    uint32_t rows, cols, type;
    float eps;
};

/* Calls f(i, x[i]) for the elements of thread `me` of `of`. */
template <typename T, typename F>
HL_DEV void each(const T *x, uint32_t n, uint32_t me, uint32_t of, F f)
{
    uint32_t done = 0;
    if (aligned4(x)) {
        for (uint32_t i = me * 4; i + 4 <= n; i += of * 4) {
            float v[4];
            load4(x + i, v);
            for (uint32_t k = 0; k < 4; k++)
                f(i + k, v[k]);
        }
        done = n / 4 * 4;
    }
    for (uint32_t i = done + me; i < n; i += of)
        f(i, to_float(x[i]));
}

template <typename T> HL_DEV float weight(const void *p, uint32_t i, float otherwise)
{
    return p != nullptr ? to_float(((const T *)p)[i]) : otherwise;
}

/* y = (x - shift) * scale * gamma + beta */
template <typename T>
HL_DEV void write_normed(const hl_rows *r, const T *x, T *y, float shift, float scale, uint32_t me,
                         uint32_t of)
{
    each(x, r->cols, me, of, [=](uint32_t i, float v) {
        float z = (v - shift) * scale * weight<T>(r->gamma, i, 1.0f);
        from_float(z + weight<T>(r->beta, i, 0.0f), &y[i]);
    });
}

template <typename T, int whole>
HL_DEV void norm_row(const hl_rows *r, const T *x, T *y, uint32_t me, uint32_t of, float *scratch)
{
    float sum = 0.0f, mean = 0.0f;
    if (r->type == MACO_TASK_LAYERNORM) {
        each(x, r->cols, me, of, [&](uint32_t, float v) { sum += v; });
        mean = team_sum<whole>(sum, scratch) / (float)r->cols;
    }
    sum = 0.0f;
    each(x, r->cols, me, of, [&](uint32_t, float v) { sum += (v - mean) * (v - mean); });
    sum = team_sum<whole>(sum, scratch);
    write_normed(r, x, y, mean, 1.0f / sqrtf(sum / (float)r->cols + r->eps), me, of);
}

template <typename T, int whole>
HL_DEV void softmax_row(const hl_rows *r, const T *x, T *y, uint32_t me, uint32_t of,
                        float *scratch)
{
    float most = -INFINITY, sum = 0.0f;
    each(x, r->cols, me, of, [&](uint32_t, float v) { most = v > most || v != v ? v : most; });
    most = team_max<whole>(most, scratch);
    each(x, r->cols, me, of, [&](uint32_t, float v) { sum += expf(v - most); });
    sum = team_sum<whole>(sum, scratch);
    each(x, r->cols, me, of, [=](uint32_t i, float v) { from_float(expf(v - most) / sum, &y[i]); });
}

/* x and y can be the same row: after the last sum, a thread writes only elements that it alone
 * reads. */
template <typename T, int whole> HL_DEV void norm_rows(const hl_rows *r, float *scratch)
{
    uint32_t of = whole ? thread_count() : HL_LANES;
    uint32_t me = thread_id() % of, teams = thread_count() / of;
    for (uint32_t i = thread_id() / of; i < r->rows; i += teams) {
        const T *x = (const T *)r->x + i * r->ldx;
        T *y = (T *)r->y + i * r->ldy;
        if (r->type == MACO_TASK_SOFTMAX)
            softmax_row<T, whole>(r, x, y, me, of, scratch);
        else
            norm_row<T, whole>(r, x, y, me, of, scratch);
    }
}

template <typename T> HL_BODY void run_rows(const hl_rows *r, float *scratch)
{
    if (r->cols <= HL_WARP_ROW)
        norm_rows<T, 0>(r, scratch);
    else
        norm_rows<T, 1>(r, scratch);
}

HL_DEV int body_norm(const maco_task *t, float *scratch)
{
    hl_rows r = {};
    r.type = t->type;
    r.x = (const void *)t->inputs[0];
    if (t->type != MACO_TASK_SOFTMAX)
        r.gamma = (const void *)t->inputs[1];
    if (t->type == MACO_TASK_LAYERNORM)
        r.beta = (const void *)t->inputs[2];
    r.y = (void *)t->outputs[0];
    r.rows = (uint32_t)t->dims[0];
    r.cols = (uint32_t)t->dims[1];
    r.ldx = (uint32_t)t->dims[2];
    r.ldy = (uint32_t)t->dims[3];
    r.eps = t->aux[0];
    switch (t->flags & MACO_FLAG_DTYPE) {
    case MACO_F32:
        run_rows<float>(&r, scratch);
        return 1;
    case MACO_F16:
        run_rows<f16>(&r, scratch);
        return 1;
    case MACO_BF16:
        run_rows<bf16>(&r, scratch);
        return 1;
    }
    return 0;
}

} // namespace gpu

#endif
