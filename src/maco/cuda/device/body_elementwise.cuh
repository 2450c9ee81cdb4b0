/* maco/cuda/device/body_elementwise.cuh - operations that compute each element from the inputs'
 * elements at the same place: ELEMENTWISE, GELU, SILU. They are limited by memory: four elements
 * per access, four accesses in flight per thread.
 */
#ifndef HL_MACO_CUDA_DEVICE_BODY_ELEMENTWISE_CUH
#define HL_MACO_CUDA_DEVICE_BODY_ELEMENTWISE_CUH

#include "helios/maco.h"
#include "maco/cuda/device/element.cuh"

namespace gpu
{

enum { HL_OP_GELU_ERF = 100, HL_OP_GELU_TANH, HL_OP_SILU };

struct hl_map {
    const void *a, *b; /* b: NULL = the op has one operand */
    void *y;
    uint64_t rows, cols, lda, ldb, ldy;
    uint32_t op;
    float alpha, beta;
};

/* Not inlined: in every loop, they would be most of the kernel. */
HL_BODY float gelu_erf(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
}

HL_BODY float gelu_tanh(float x)
{
    float inner = 0.7978845608028654f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

HL_BODY float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* Applies one op to n elements; the op is the same for all threads, so the branch does not
 * diverge. */
template <int n> HL_DEV void apply(const hl_map *m, const float *a, const float *b, float *y)
{
#define EACH(expression)                                                                           \
    for (int i = 0; i < n; i++)                                                                    \
        y[i] = (expression);                                                                       \
    break
    switch (m->op) {
    case MACO_ADD:
        EACH(a[i] + b[i]);
    case MACO_MUL:
        EACH(a[i] * b[i]);
    case MACO_SUB:
        EACH(a[i] - b[i]);
    case MACO_AXPB:
        EACH(fmaf(a[i], m->alpha, m->beta));
    case MACO_SCALE_ADD:
        EACH(fmaf(m->alpha, a[i], b[i]));
    case MACO_RELU:
        EACH(a[i] < 0.0f ? 0.0f : a[i]); /* keeps NaN */
    case HL_OP_GELU_ERF:
        EACH(gelu_erf(a[i]));
    case HL_OP_GELU_TANH:
        EACH(gelu_tanh(a[i]));
    case HL_OP_SILU:
        EACH(silu(a[i]));
    default: /* MACO_CAST */
        EACH(a[i]);
    }
#undef EACH
}

/* For CAST between different types: the loop is the same, without the ops. */
template <int n> HL_DEV void apply_none(const float *a, float *y)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i];
}

template <int n, int ops>
HL_DEV void apply_if(const hl_map *m, const float *a, const float *b, float *y)
{
    if (ops)
        apply<n>(m, a, b, y);
    else
        apply_none<n>(a, y);
}

template <typename T, typename Y, int ops>
HL_DEV void map_tail(const hl_map *m, const T *a, const T *b, Y *y, uint64_t from, uint64_t n)
{
    float one, two = 0.0f, out;
    for (uint64_t i = from + thread_id(); i < n; i += thread_count()) {
        one = to_float(a[i]);
        if (ops && b != nullptr)
            two = to_float(b[i]);
        apply_if<1, ops>(m, &one, &two, &out);
        from_float(out, &y[i]);
    }
}

template <typename T, typename Y, int ops>
HL_DEV void map_row(const hl_map *m, const T *a, const T *b, Y *y, uint64_t n)
{
    const uint64_t step = (uint64_t)thread_count() * 4;
    uint64_t at = (uint64_t)thread_id() * 4;
    float one[16], two[16], out[16];
    if (!aligned4(a) || !aligned4(y) || (ops && b != nullptr && !aligned4(b))) {
        map_tail<T, Y, ops>(m, a, b, y, 0, n);
        return;
    }
    for (; at + 3 * step + 4 <= n; at += 4 * step) {
        for (int k = 0; k < 4; k++)
            load4(a + at + k * step, one + 4 * k);
        if (ops && b != nullptr)
            for (int k = 0; k < 4; k++)
                load4(b + at + k * step, two + 4 * k);
        apply_if<16, ops>(m, one, two, out);
        for (int k = 0; k < 4; k++)
            store4(y + at + k * step, out + 4 * k);
    }
    for (; at + 4 <= n; at += step) {
        load4(a + at, one);
        if (ops && b != nullptr)
            load4(b + at, two);
        apply_if<4, ops>(m, one, two, out);
        store4(y + at, out);
    }
    map_tail<T, Y, ops>(m, a, b, y, n / 4 * 4, n);
}

template <typename T, typename Y, int ops> HL_DEV void map_rows(const hl_map *m)
{
    uint64_t rows = m->rows, cols = m->cols;
    if (m->lda == cols && m->ldy == cols && (m->b == nullptr || m->ldb == cols)) {
        cols *= rows; /* one long row */
        rows = 1;
    }
    for (uint64_t i = 0; i < rows; i++)
        map_row<T, Y, ops>(m, (const T *)m->a + i * m->lda,
                           m->b != nullptr ? (const T *)m->b + i * m->ldb : nullptr,
                           (Y *)m->y + i * m->ldy, cols);
}

/* Any op with another result type: not common, so without vectors. */
template <typename T> HL_DEV void map_slowly(const hl_map *m, uint32_t to)
{
    for (uint64_t i = 0; i < m->rows; i++) {
        const T *a = (const T *)m->a + i * m->lda;
        const T *b = m->b != nullptr ? (const T *)m->b + i * m->ldb : nullptr;
        if (to == MACO_F32)
            map_tail<T, float, 1>(m, a, b, (float *)m->y + i * m->ldy, 0, m->cols);
        else if (to == MACO_F16)
            map_tail<T, f16, 1>(m, a, b, (f16 *)m->y + i * m->ldy, 0, m->cols);
        else
            map_tail<T, bf16, 1>(m, a, b, (bf16 *)m->y + i * m->ldy, 0, m->cols);
    }
}

template <typename T> HL_BODY void map_cast(const hl_map *m, uint32_t to)
{
    if (to == MACO_F32)
        map_rows<T, float, 0>(m);
    else if (to == MACO_F16)
        map_rows<T, f16, 0>(m);
    else
        map_rows<T, bf16, 0>(m);
}

template <typename T> HL_BODY int map_from(const hl_map *m, uint32_t from, uint32_t to)
{
    if (to > MACO_BF16)
        return 0;
    if (m->op == MACO_CAST)
        map_cast<T>(m, to);
    else if (from == to)
        map_rows<T, T, 1>(m);
    else
        map_slowly<T>(m, to);
    return 1;
}

HL_DEV int run_map(const hl_map *m, uint32_t from, uint32_t to)
{
    switch (from) {
    case MACO_F32:
        return map_from<float>(m, from, to);
    case MACO_F16:
        return map_from<f16>(m, from, to);
    case MACO_BF16:
        return map_from<bf16>(m, from, to);
    }
    return 0;
}

HL_DEV int body_elementwise(const maco_task *t)
{
    hl_map m = {};
    uint32_t dtype = t->flags & MACO_FLAG_DTYPE;
    m.a = (const void *)t->inputs[0];
    m.y = (void *)t->outputs[0];
    m.rows = (uint32_t)t->dims[0];
    m.cols = (uint32_t)t->dims[1];
    m.lda = (uint32_t)t->dims[2];
    if (t->type == MACO_TASK_ELEMENTWISE) {
        m.op = (uint32_t)t->dims[5];
        if (m.op == MACO_ADD || m.op == MACO_MUL || m.op == MACO_SUB || m.op == MACO_SCALE_ADD)
            m.b = (const void *)t->inputs[1];
        m.ldb = (uint32_t)t->dims[3];
        m.ldy = (uint32_t)t->dims[4];
        m.alpha = t->aux[0];
        m.beta = t->aux[1];
        return run_map(&m, dtype, (uint32_t)t->dims[6]);
    }
    m.ldy = (uint32_t)t->dims[3];
    if (t->type == MACO_TASK_SILU)
        m.op = HL_OP_SILU;
    else
        m.op = t->dims[4] ? HL_OP_GELU_TANH : HL_OP_GELU_ERF;
    return run_map(&m, dtype, dtype);
}

} // namespace gpu

#endif
