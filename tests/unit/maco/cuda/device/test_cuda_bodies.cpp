/* The GPU's bodies, run on the CPU as blocks of 256 fibers (support/cuda_cpu.h), against the CPU's
 * own bodies: every type and dtype, sizes that fill no tile, strides and addresses that allow no
 * vectors; what lies around an output must stay as it is. Fibers run in orders that change. */
#include "support/test.h"

#include "support/cuda_cpu.h"

#include "maco/cuda/device/kernel.cu"

extern "C" {
#include "maco/graph/types.h"
#include "maco/kernels/bodies.h"
}

thread_local gpu::cta_of_fibers *gpu::cta;

#define GUARD 64u /* elements around a buffer that nobody may touch */

struct alignas(64) line_of_bytes {
    unsigned char byte[64];
};

/* Elements of a dtype, `skew` of them off the alignment that an allocation has. */
struct tensor {
    int dtype = MACO_F32;
    size_t n = 0, skew = 0;
    std::vector<line_of_bytes> lines; /* copies are aligned alike */

    tensor(int type, size_t count, size_t off) : dtype(type), n(count), skew(off)
    {
        line_of_bytes mark;
        memset(&mark, 0x5a, sizeof(mark));
        lines.assign((n + skew + 2 * GUARD) * size() / 64 + 1, mark);
    }

    size_t size() const
    {
        return hl_maco_dtype_size(dtype);
    }

    unsigned char *start()
    {
        return lines[0].byte;
    }

    void *at()
    {
        return start() + (GUARD + skew) * size();
    }

    float get(size_t i)
    {
        if (dtype == MACO_F32)
            return ((float *)at())[i];
        uint16_t bits = ((uint16_t *)at())[i];
        return dtype == MACO_F16 ? gpu::float_of_half(bits)
                                 : gpu::float_of_bits((uint32_t)bits << 16);
    }

    void set(size_t i, float x)
    {
        if (dtype == MACO_F32)
            ((float *)at())[i] = x;
        else
            ((uint16_t *)at())[i] =
                dtype == MACO_F16 ? gpu::half_of_float(x) : gpu::bfloat_of_float(x);
    }
};

static uint64_t dice = 1;

static float random_float()
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(dice >> 40) / (1 << 24) * 4 - 2);
}

static tensor filled(int dtype, size_t n, size_t skew)
{
    tensor t(dtype, n, skew);
    for (size_t i = 0; i < n; i++)
        t.set(i, random_float());
    return t;
}

struct block_of_task {
    const maco_task *task;
    int known;
};

static void one_block(void *p)
{
    block_of_task *b = (block_of_task *)p;
    HL_SHARED(gpu::hl_space, space);
    int known = gpu::run_body(b->task, space);
    gpu::block_sync();
    if (gpu::thread_id() == 0)
        b->known = known;
}

static void run_gpu(const maco_task *t)
{
    static uint32_t seed = 1;
    block_of_task b = {t, 0};
    gpu::run_cta(0, HL_GPU_THREADS, seed++, one_block, &b);
    assert_int_equal(b.known, 1);
}

/* Both from the same start; every byte that is not an element of the output must stay. */
static void compare(maco_task t, tensor &out, size_t rows, size_t cols, size_t ld, double tolerance)
{
    struct hl_maco_scratch scratch = {};
    tensor want = out, start = out;
    t.outputs[0] = (uint64_t)(uintptr_t)want.at();
    assert_int_equal(hl_maco_body(&t, &scratch), HL_OK);
    t.outputs[0] = (uint64_t)(uintptr_t)out.at();
    run_gpu(&t);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            double x = out.get(r * ld + c), y = want.get(r * ld + c);
            if (!(fabs(x - y) <= tolerance * (1 + fabs(y))) && !(std::isnan(x) && std::isnan(y)))
                fail_msg("%s, dtype %d: row %zu, column %zu: %g, and the CPU has %g",
                         hl_maco_type_name(t.type), t.flags, r, c, x, y);
            memcpy((unsigned char *)out.at() + (r * ld + c) * out.size(),
                   (unsigned char *)start.at() + (r * ld + c) * out.size(), out.size());
        }
    }
    assert_memory_equal(out.start(), start.start(), (out.n + out.skew + 2 * GUARD) * out.size());
    hl_maco_scratch_free(&scratch);
}

static uint64_t address(tensor &t)
{
    return (uint64_t)(uintptr_t)t.at();
}

static maco_task task_of(int type, int dtype)
{
    maco_task t = {};
    t.type = (uint16_t)type;
    t.flags = (uint16_t)dtype;
    t.dependent_event = t.trigger_event = MACO_NONE;
    return t;
}

/* ---- products ---- */

static const double close_to[] = {2e-5, 4e-3, 3e-2}; /* of float32, float16, bfloat16 */

struct matmul_case {
    uint32_t m, n, k, pad, skew;
    int ta, tb, bias;
    float alpha, beta;
};

static void one_matmul(int dtype, const matmul_case &c)
{
    uint32_t lda = (c.ta ? c.m : c.k) + c.pad, ldb = (c.tb ? c.k : c.n) + c.pad, ldc = c.n + c.pad;
    tensor a = filled(dtype, (size_t)lda * (c.ta ? c.k : c.m), c.skew);
    tensor b = filled(dtype, (size_t)ldb * (c.tb ? c.n : c.k), c.skew);
    tensor out = filled(dtype, (size_t)ldc * c.m, c.skew), bias = filled(dtype, c.n, 0);
    maco_task t = task_of(MACO_TASK_MATMUL, dtype);
    t.inputs[0] = address(a);
    t.inputs[1] = address(b);
    t.inputs[2] = c.bias ? address(bias) : 0;
    const int32_t dims[8] = {(int32_t)c.m, (int32_t)c.n, (int32_t)c.k, (int32_t)lda,
                             (int32_t)ldb, (int32_t)ldc, c.ta,         c.tb};
    memcpy(t.dims, dims, sizeof(dims));
    t.aux[0] = c.alpha;
    t.aux[1] = c.beta;
    compare(t, out, c.m, c.n, ldc, close_to[dtype] * sqrt((double)c.k));
}

TEST(matmul)
{
    static const matmul_case cases[] = {
        {128, 128, 64, 0, 0, 0, 0, 0, 1, 0},   {128, 128, 64, 0, 0, 1, 1, 0, 1, 0},
        {130, 70, 33, 0, 0, 0, 0, 1, 1, 0},    {70, 130, 40, 8, 0, 1, 0, 0, 1, 0.5f},
        {33, 257, 72, 8, 0, 0, 1, 1, 0.5f, 1}, {257, 17, 9, 3, 1, 1, 1, 0, 1, 0},
        {1, 1, 1, 0, 0, 0, 0, 0, 1, 0},        {16, 128, 96, 0, 2, 0, 1, 0, 2, 0},
        {96, 40, 100, 4, 0, 0, 0, 0, 1, 0},
    };
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++)
        for (const matmul_case &c : cases)
            one_matmul(dtype, c);
}

TEST(linear)
{
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
        tensor x = filled(dtype, 50 * 64, 0), w = filled(dtype, 140 * 64, 0);
        tensor bias = filled(dtype, 140, 0), y(dtype, 50 * 144, 0);
        maco_task t = task_of(MACO_TASK_LINEAR, dtype);
        t.inputs[0] = address(x);
        t.inputs[1] = address(w);
        t.inputs[2] = address(bias);
        const int32_t dims[8] = {50, 140, 64, 64, 64, 144, 0, 0};
        memcpy(t.dims, dims, sizeof(dims));
        compare(t, y, 50, 140, 144, close_to[dtype] * 8);
    }
}

/* float16 and bfloat16 where there are no tensor cores. */
static void plain_block(void *p)
{
    HL_SHARED(gpu::hl_plain_tiles, tiles);
    gpu::plain_product<gpu::bf16>((const gpu::hl_product *)p, tiles);
}

TEST(halves_without_tensor_cores)
{
    tensor a = filled(MACO_BF16, 40 * 48, 0), b = filled(MACO_BF16, 60 * 48, 0);
    tensor one(MACO_BF16, 40 * 60, 0), two(MACO_BF16, 40 * 60, 0);
    gpu::hl_product p = {};
    p.a = {a.at(), 48, 40, 48, 1};
    p.b = {b.at(), 48, 60, 48, 1};
    p.c = one.at();
    p.ldc = 60;
    p.m = 40;
    p.n = 60;
    p.k = 48;
    p.alpha = 1;
    gpu::run_cta(0, HL_GPU_THREADS, 3, plain_block, &p);
    maco_task t = task_of(MACO_TASK_LINEAR, MACO_BF16);
    t.inputs[0] = address(a);
    t.inputs[1] = address(b);
    t.outputs[0] = address(two);
    const int32_t dims[8] = {40, 60, 48, 48, 48, 60, 0, 0};
    memcpy(t.dims, dims, sizeof(dims));
    run_gpu(&t);
    for (size_t i = 0; i < one.n; i++)
        assert_true(fabsf(one.get(i) - two.get(i)) <= 0.02f * (1 + fabsf(two.get(i))));
}

/* Rows cut into chunks: the same bits. */
TEST(rows_may_be_cut)
{
    tensor x = filled(MACO_F16, 200 * 80, 0), w = filled(MACO_F16, 64 * 80, 0);
    tensor whole(MACO_F16, 200 * 64, 0), cut(MACO_F16, 200 * 64, 0);
    maco_task t = task_of(MACO_TASK_LINEAR, MACO_F16);
    t.inputs[0] = address(x);
    t.inputs[1] = address(w);
    t.outputs[0] = address(whole);
    const int32_t dims[8] = {200, 64, 80, 80, 80, 64, 0, 0};
    memcpy(t.dims, dims, sizeof(dims));
    run_gpu(&t);
    for (uint32_t from = 0; from < 200; from += 56) {
        t.dims[0] = from + 56 < 200 ? 56 : (int32_t)(200 - from);
        t.inputs[0] = address(x) + from * 80 * 2;
        t.outputs[0] = address(cut) + from * 64 * 2;
        run_gpu(&t);
    }
    assert_memory_equal(whole.at(), cut.at(), 200 * 64 * 2);
}

/* ---- attention ---- */

static void one_attention(int dtype, int b, int hq, int hkv, int sq, int sk, int d, int causal,
                          int mask)
{
    tensor q = filled(dtype, (size_t)b * hq * sq * d, 0),
           k = filled(dtype, (size_t)b * hkv * sk * d, 0);
    tensor v = filled(dtype, (size_t)b * hkv * sk * d, 0), m = filled(dtype, (size_t)sq * sk, 0);
    tensor o(dtype, (size_t)b * hq * sq * d, 0), lse(MACO_F32, (size_t)b * hq * sq, 0), lse2 = lse;
    struct hl_maco_scratch scratch = {};
    maco_task t = task_of(MACO_TASK_ATTENTION, dtype);
    t.inputs[0] = address(q);
    t.inputs[1] = address(k);
    t.inputs[2] = address(v);
    t.inputs[3] = mask ? address(m) : 0;
    const int32_t dims[8] = {b, hq, hkv, sq, sk, d, causal, 0};
    memcpy(t.dims, dims, sizeof(dims));
    t.aux[0] = 1.0f / sqrtf((float)d);
    t.outputs[1] = address(lse2);
    tensor copy = o;
    t.outputs[0] = address(copy);
    assert_int_equal(hl_maco_body(&t, &scratch), HL_OK);
    hl_maco_scratch_free(&scratch);
    t.outputs[0] = address(o);
    t.outputs[1] = address(lse);
    run_gpu(&t);
    for (size_t i = 0; i < lse.n; i++)
        assert_true(lse.get(i) == lse2.get(i) || fabsf(lse.get(i) - lse2.get(i)) < 1e-3f);
    t.outputs[1] = 0;
    tensor again(dtype, o.n, 0);
    compare(t, again, (size_t)b * hq * sq, (size_t)d, (size_t)d, close_to[dtype]);
}

TEST(attention)
{
    for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
        one_attention(dtype, 1, 2, 1, 40, 70, 64, 0, 0);
        one_attention(dtype, 2, 2, 2, 33, 33, 40, 1, 0);
    }
    one_attention(MACO_F32, 1, 4, 2, 5, 80, 18, 1, 1);   /* no vectors, the last rows of many */
    one_attention(MACO_F32, 1, 1, 1, 20, 8, 128, 1, 0);  /* rows that see nothing */
    one_attention(MACO_F32, 1, 1, 1, 20, 35, 200, 1, 1); /* wide heads */
    one_attention(MACO_F16, 1, 1, 1, 3, 35, 256, 0, 0);
}

/* ---- rows ---- */

static void rows_of(int type, int dtype, uint32_t rows, uint32_t cols, uint32_t pad, size_t skew,
                    int weights)
{
    uint32_t ldx = cols + pad, ldy = cols + 2 * pad;
    tensor x = filled(dtype, (size_t)rows * ldx, skew), y(dtype, (size_t)rows * ldy, skew);
    tensor gamma = filled(dtype, cols, 0), beta = filled(dtype, cols, 0);
    maco_task t = task_of(type, dtype);
    t.inputs[0] = address(x);
    if (weights && type != MACO_TASK_SOFTMAX)
        t.inputs[1] = address(gamma);
    if (weights && type == MACO_TASK_LAYERNORM)
        t.inputs[2] = address(beta);
    const int32_t dims[8] = {(int32_t)rows, (int32_t)cols, (int32_t)ldx, (int32_t)ldy, 0, 0, 0, 0};
    memcpy(t.dims, dims, sizeof(dims));
    t.aux[0] = 1e-5f;
    compare(t, y, rows, cols, ldy, close_to[dtype]);
    t.dims[4] = 1; /* GELU by tanh */
    if (type == MACO_TASK_GELU)
        compare(t, y, rows, cols, ldy, close_to[dtype]);
}

TEST(norms_softmax_gelu_silu)
{
    static const int types[] = {MACO_TASK_LAYERNORM, MACO_TASK_RMSNORM, MACO_TASK_SOFTMAX,
                                MACO_TASK_GELU, MACO_TASK_SILU};
    for (int type : types) {
        for (int dtype = MACO_F32; dtype <= MACO_BF16; dtype++) {
            rows_of(type, dtype, 19, 64, 0, 0, 1);
            rows_of(type, dtype, 3, 1500, 4, 0, 0);
            rows_of(type, dtype, 5, 33, 1, 1, 1);
            rows_of(type, dtype, 1, 1, 0, 0, 0);
            rows_of(type, dtype, 2, 1031, 3, 1, 1);
        }
    }
}

/* ---- elementwise ---- */

TEST(elementwise)
{
    for (int op = MACO_ADD; op <= MACO_SCALE_ADD; op++) {
        for (int from = MACO_F32; from <= MACO_BF16; from++) {
            for (int to = MACO_F32; to <= MACO_BF16; to++) {
                for (int shape = 0; shape < 3; shape++) {
                    /* one long row with all paths; rows apart; no vectors */
                    uint32_t rows = shape == 0 ? 5 : 7, cols = shape == 0 ? 1021 : 37;
                    uint32_t pad = shape == 1 ? 3 : 0;
                    size_t skew = shape == 2;
                    tensor a = filled(from, rows * (cols + pad), skew);
                    tensor b = filled(from, rows * (cols + pad), skew);
                    tensor y(to, rows * (cols + pad), skew);
                    maco_task t = task_of(MACO_TASK_ELEMENTWISE, from);
                    int ld = (int)(cols + pad);
                    t.inputs[0] = address(a);
                    if (op != MACO_AXPB && op != MACO_RELU && op != MACO_CAST)
                        t.inputs[1] = address(b);
                    const int32_t dims[8] = {(int32_t)rows, (int32_t)cols, ld, ld, ld, op, to, 0};
                    memcpy(t.dims, dims, sizeof(dims));
                    t.aux[0] = 1.5f;
                    t.aux[1] = 0.1f;
                    compare(t, y, rows, cols, cols + pad, to == MACO_F32 ? 0 : 1e-7);
                }
            }
        }
    }
}

/* ---- bytes ---- */

TEST(copies_and_fills)
{
    static const struct {
        uint32_t rows, bytes, ldx, ldy, skew;
    } cases[] = {{1, 40000, 40000, 40000, 0},
                 {7, 100, 128, 112, 0},
                 {3, 5, 5, 5, 1},
                 {2, 4099, 4112, 4099, 0},
                 {9, 64, 64, 64, 3}};

    for (const auto &c : cases) {
        tensor x(MACO_U8, (size_t)c.rows * c.ldx, c.skew),
            y(MACO_U8, (size_t)c.rows * c.ldy, c.skew);
        for (size_t i = 0; i < x.n; i++)
            ((uint8_t *)x.at())[i] = (uint8_t)(i * 7 + i / 251);
        for (int set = 0; set < 2; set++) {
            struct hl_maco_scratch scratch = {};
            maco_task t = task_of(set ? MACO_TASK_MEMSET : MACO_TASK_MEMCPY, MACO_F32);
            tensor want = y;
            const int32_t dims[8] = {(int32_t)c.rows,
                                     (int32_t)c.bytes,
                                     set ? 0 : (int32_t)c.ldx,
                                     (int32_t)c.ldy,
                                     set ? 0xab : 0,
                                     0,
                                     0,
                                     0};
            memcpy(t.dims, dims, sizeof(dims));
            t.inputs[0] = set ? 0 : address(x);
            t.outputs[0] = address(want);
            assert_int_equal(hl_maco_body(&t, &scratch), HL_OK);
            hl_maco_scratch_free(&scratch);
            t.outputs[0] = address(y);
            run_gpu(&t);
            assert_memory_equal(y.start(), want.start(), y.n + y.skew + 2 * GUARD);
        }
    }
}

TEST(conversions_agree_with_the_cpus)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = gpu::float_of_half((uint16_t)bits);
        if (!std::isnan(x))
            assert_int_equal(gpu::half_of_float(x), bits);
    }
}

int main(int argc, char **argv)
{
#if defined(__SANITIZE_THREAD__)
    print_message("skipped: ThreadSanitizer does not know fibers\n");
    return 77;
#endif
    return tests_run(argc, argv);
}
