/* Elementwise operations, in blocks of a row as float32. */
#include "maco/kernels/body_private.h"

static void gelu_or_silu(const maco_task *t, float *x, size_t n)
{
    if (t->type == MACO_TASK_SILU)
        hl_vec_silu(x, n);
    else if (t->dims[4] == 1)
        hl_vec_gelu_tanh(x, n);
    else
        hl_vec_gelu_erf(x, n);
}

hl_status hl_body_unary(const maco_task *t)
{
    int dtype = hl_maco_dtype(t);
    size_t rows = (size_t)t->dims[0], cols = (size_t)t->dims[1];
    float x[HL_BLOCK];
    for (size_t r = 0; r < rows; r++) {
        const void *from = hl_at(t->inputs[0], dtype, r * (size_t)t->dims[2]);
        void *to = hl_at(t->outputs[0], dtype, r * (size_t)t->dims[3]);
        for (size_t at = 0; at < cols; at += HL_BLOCK) {
            size_t n = cols - at < HL_BLOCK ? cols - at : HL_BLOCK;
            hl_load(from, dtype, at, n, 0, x);
            gelu_or_silu(t, x, hl_round_up(n, HL_LANES));
            hl_store(x, n, to, dtype, at);
        }
    }
    return HL_OK;
}

/* a = op(a, b) */
static void apply_binary(const maco_task *t, float *restrict a, const float *restrict b, size_t n)
{
    switch (t->dims[5]) {
    case MACO_ADD:
        for (size_t i = 0; i < n; i++)
            a[i] += b[i];
        break;
    case MACO_SUB:
        for (size_t i = 0; i < n; i++)
            a[i] -= b[i];
        break;
    case MACO_MUL:
        for (size_t i = 0; i < n; i++)
            a[i] *= b[i];
        break;
    case MACO_RELU:
        for (size_t i = 0; i < n; i++)
            a[i] = a[i] < 0 ? 0 : a[i]; /* keeps NaN */
        break;
    case MACO_AXPB:
        hl_vec_fma(a, n, t->aux[0], NULL, t->aux[1]);
        break;
    case MACO_SCALE_ADD:
        hl_vec_fma(a, n, t->aux[0], b, 0);
        break;
    default: /* MACO_CAST */
        break;
    }
}

hl_status hl_body_elementwise(const maco_task *t)
{
    int dtype = hl_maco_dtype(t), out = t->dims[6], op = t->dims[5];
    int two = op == MACO_ADD || op == MACO_SUB || op == MACO_MUL || op == MACO_SCALE_ADD;
    size_t rows = (size_t)t->dims[0], cols = (size_t)t->dims[1];
    float a[HL_BLOCK], b[HL_BLOCK];
    if (op < MACO_ADD || op > MACO_SCALE_ADD)
        return hl_fail(HL_EINVAL, "ELEMENTWISE has no operation %d", op);
    if (out < MACO_F32 || out > MACO_BF16)
        return hl_fail(HL_EUNSUPPORTED, "ELEMENTWISE gives float32, float16 and bfloat16, not %d",
                       out);
    for (size_t r = 0; r < rows; r++) {
        const void *from = hl_at(t->inputs[0], dtype, r * (size_t)t->dims[2]);
        const void *other = two ? hl_at(t->inputs[1], dtype, r * (size_t)t->dims[3]) : NULL;
        void *to = hl_at(t->outputs[0], out, r * (size_t)t->dims[4]);
        for (size_t at = 0; at < cols; at += HL_BLOCK) {
            size_t n = cols - at < HL_BLOCK ? cols - at : HL_BLOCK;
            hl_load(from, dtype, at, n, 0, a);
            if (two)
                hl_load(other, dtype, at, n, 0, b);
            apply_binary(t, a, b, hl_round_up(n, HL_LANES));
            hl_store(a, n, to, out, at);
        }
    }
    return HL_OK;
}
