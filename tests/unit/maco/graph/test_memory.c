/* Which bytes tasks use, compared with sets of bytes. */
#include "support/test.h"

#include "maco/graph/pieces.h"
#include "maco/graph/span.h"
#include "unit/maco/maker.h"

#define BYTES 320
#define BASE  0x10000u
#define TASKS 14

typedef uint8_t bytes[BYTES];

static void put_span(bytes b, const struct hl_maco_span *s)
{
    for (uint64_t r = 0; r < s->rows; r++)
        memset(b + (s->first - BASE) + r * s->stride, 1, s->row_bytes);
}

static int meet(const bytes a, const bytes b)
{
    int any = 0;
    for (int i = 0; i < BYTES; i++)
        any |= a[i] & b[i];
    return any;
}

static struct hl_maco_span some_span(uint64_t *seed, uint64_t stride)
{
    struct hl_maco_span s = {.rows = 1 + below(seed, 6),
                             .row_bytes = 1 + below(seed, (uint32_t)stride - 1),
                             .stride = stride};
    if (below(seed, 3) == 0)
        s = (struct hl_maco_span){.rows = 1, .row_bytes = 1 + below(seed, 90)};
    s.stride = s.rows == 1 ? s.row_bytes : stride;
    uint64_t size = hl_maco_span_end(&s);
    s.first = BASE + below(seed, (uint32_t)(BYTES - size));
    return s;
}

TEST(spans_overlap_where_they_share_a_byte)
{
    uint64_t seed = 9;
    int yes = 0, no = 0, sure = 0;
    for (int k = 0; k < 50000; k++) {
        uint64_t sa = 2 + below(&seed, 30), sb = k % 4 == 0 ? 2 + below(&seed, 30) : sa;
        struct hl_maco_span a = some_span(&seed, sa), b = some_span(&seed, sb);
        bytes x = {0}, y = {0};
        put_span(x, &a);
        put_span(y, &b);
        int want = meet(x, y), got = hl_maco_span_overlap(&a, &b);
        assert_int_equal(got, hl_maco_span_overlap(&b, &a));
        if (a.rows > 1 && b.rows > 1 && sa != sb) {
            assert_true(got >= want); /* bounds */
            sure += got > want;
            continue;
        }
        assert_int_equal(got, want);
        want ? yes++ : no++;
    }
    assert_true(yes > 5000 && no > 5000 && sure > 100);
}

/* ---- what a task of each type uses ---- */

TEST(chunks_of_rows_do_not_touch_and_slices_of_columns_do_not_either)
{
    maco_task t = {.type = MACO_TASK_LINEAR,
                   .inputs = {0x100000, 0x200000},
                   .outputs = {BASE},
                   .dims = {4, 8, 3, 3, 3, 8}};
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    assert_int_equal(hl_maco_operands(&t, o), 3);
    struct hl_maco_span whole = hl_maco_span_of(&o[2]);
    assert_int_equal(whole.rows, 1); /* no gaps: ldy is N */
    assert_int_equal(whole.row_bytes, 4 * 8 * 4);
    t.outputs[0] += whole.row_bytes;
    hl_maco_operands(&t, o);
    struct hl_maco_span below_it = hl_maco_span_of(&o[2]);
    assert_false(hl_maco_span_overlap(&whole, &below_it));
    t.dims[5] = 16; /* now the left half of a wider one */
    t.outputs[0] = BASE;
    hl_maco_operands(&t, o);
    struct hl_maco_span left = hl_maco_span_of(&o[2]);
    t.outputs[0] = BASE + 8 * 4;
    hl_maco_operands(&t, o);
    struct hl_maco_span right = hl_maco_span_of(&o[2]);
    assert_int_equal(left.rows, 4);
    assert_false(hl_maco_span_overlap(&left, &right));
    assert_true(left.first < right.first && right.first < hl_maco_span_end(&left));
}

static void operands(maco_task t, const char *const *names, const uint64_t *size, int n)
{
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    for (int i = 0; i < 4; i++)
        t.inputs[i] = t.inputs[i] ? (uint64_t)(i + 1) << 32 : 0;
    for (int i = 0; i < 2; i++)
        t.outputs[i] = t.outputs[i] ? (uint64_t)(i + 5) << 32 : 0;
    assert_int_equal(hl_maco_operands(&t, o), n);
    for (int i = 0; i < n; i++) {
        struct hl_maco_span s = hl_maco_span_of(&o[i]);
        assert_string_equal(o[i].name, names[i]);
        assert_int_equal(hl_maco_span_end(&s) - s.first, size[i]);
    }
}

#define OPERANDS(task, names, ...)                                                                 \
    operands((maco_task)task, (const char *const[])names, (const uint64_t[])__VA_ARGS__,           \
             (int)(sizeof((const uint64_t[])__VA_ARGS__) / 8))
#define L(...)                                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

TEST(every_type_uses_what_its_dims_say)
{
    OPERANDS(L(.type = MACO_TASK_MATMUL, .inputs = {1, 1, 1}, .outputs = {1},
               .dims = {3, 5, 7, 9, 10, 11, 0, 0}),
             L("A", "B", "bias", "C"), L((2 * 9 + 7) * 4, (6 * 10 + 5) * 4, 20, (2 * 11 + 5) * 4));
    OPERANDS(L(.type = MACO_TASK_MATMUL, .flags = MACO_BF16, .inputs = {1, 1}, .outputs = {1},
               .dims = {3, 5, 7, 9, 10, 11, 1, 1}),
             L("A", "B", "C"), L((6 * 9 + 3) * 2, (4 * 10 + 7) * 2, (2 * 11 + 5) * 2));
    OPERANDS(L(.type = MACO_TASK_ATTENTION, .flags = MACO_F16, .inputs = {1, 1, 1, 1},
               .outputs = {1, 1}, .dims = {2, 6, 3, 5, 7, 4}),
             L("Q", "K", "V", "mask", "O", "lse"),
             L(2 * 6 * 5 * 4 * 2, 2 * 3 * 7 * 4 * 2, 2 * 3 * 7 * 4 * 2, 5 * 7 * 2,
               2 * 6 * 5 * 4 * 2, 2 * 6 * 5 * 4));
    OPERANDS(
        L(.type = MACO_TASK_LAYERNORM, .inputs = {1, 1, 1}, .outputs = {1}, .dims = {3, 5, 6, 7}),
        L("X", "gamma", "beta", "Y"), L((2 * 6 + 5) * 4, 20, 20, (2 * 7 + 5) * 4));
    OPERANDS(L(.type = MACO_TASK_ELEMENTWISE, .inputs = {1, 1}, .outputs = {1},
               .dims = {3, 5, 6, 7, 8, 0, MACO_BF16}),
             L("A", "B", "Y"), L((2 * 6 + 5) * 4, (2 * 7 + 5) * 4, (2 * 8 + 5) * 2));
    OPERANDS(L(.type = MACO_TASK_REDUCE_SCATTER, .flags = MACO_F64, .inputs = {1}, .outputs = {1},
               .dims = {6, 0, 0, 0, 0, 4}),
             L("X", "Y"), L(6 * 8 * 4, 6 * 8));
    OPERANDS(
        L(.type = MACO_TASK_ALLGATHER, .inputs = {1}, .outputs = {1}, .dims = {6, 0, 0, 0, 0, 4}),
        L("X", "Y"), L(24, 96));
    OPERANDS(
        L(.type = MACO_TASK_ALL_TO_ALL, .inputs = {1}, .outputs = {1}, .dims = {6, 0, 0, 0, 0, 4}),
        L("X", "Y"), L(96, 96));
    OPERANDS(L(.type = MACO_TASK_ALLREDUCE, .inputs = {1}, .outputs = {1}, .dims = {6, 1}),
             L("X", "Y"), L(((1ull << 32) + 6) * 4, ((1ull << 32) + 6) * 4));
    OPERANDS(L(.type = MACO_TASK_MEMCPY, .inputs = {1}, .outputs = {1}, .dims = {3, 5, 6, 7}),
             L("X", "Y"), L(17, 19));
    OPERANDS(L(.type = MACO_TASK_MEMSET, .outputs = {1}, .dims = {3, 5, 0, 7}), L("Y"), L(19));
    maco_task t = {.type = MACO_TASK_MATMUL, .inputs = {1, 1}, .outputs = {1}, .aux = {1, 0.5f}};
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    assert_int_equal(hl_maco_operands(&t, o), 3);
    assert_true(o[2].reads && o[2].writes); /* beta reads C */
}

/* ---- inferred order ---- */

struct use {
    bytes reads, writes;
};

/* Reads or writes anywhere, in rows with gaps or in one piece. Returns what it uses. */
static void add_use(maco_graph *g, uint32_t place, uint64_t *seed, uint64_t stride, struct use *u)
{
    struct hl_maco_span s = some_span(seed, stride);
    static uint8_t elsewhere[TASKS * BYTES];
    int write = (int)below(seed, 2);
    size_t mine = (size_t)place * BYTES;
    maco_op op = {MACO_OP_INIT, .type = write ? MACO_TASK_MEMSET : MACO_TASK_MEMCPY,
                  .outputs = {(void *)(uintptr_t)s.first},
                  .dims = {(int32_t)s.rows, (int32_t)s.row_bytes, 0, (int32_t)s.stride}};
    memset(u, 0, sizeof(*u));
    put_span(write ? u->writes : u->reads, &s);
    if (!write) { /* into memory that only it uses */
        op.inputs[0] = op.outputs[0];
        op.outputs[0] = elsewhere + mine;
        op.dims[2] = op.dims[3];
        op.dims[3] = op.dims[1];
    }
    add_op(g, op);
}

TEST(order_of_slices_is_that_of_their_bytes)
{
    uint64_t seed = 10;
    for (int k = 0; k < 5000; k++) {
        uint64_t stride = 2 + below(&seed, 30);
        struct use u[TASKS];
        struct order want = {0}, got = {0};
        maco_graph *g = NULL;
        maco_plan *p = NULL;
        maco_plan_view v;
        OK(maco_graph_new(&g));
        for (uint32_t b = 0; b < TASKS; b++) {
            add_use(g, b, &seed, stride, &u[b]);
            for (uint32_t a = 0; a < b; a++)
                if (meet(u[a].writes, u[b].writes) || meet(u[a].writes, u[b].reads) ||
                    meet(u[a].reads, u[b].writes))
                    put_before(&want, a, b);
        }
        OK(maco_compile(g, NULL, &p));
        v = *maco_plan_read(p);
        for (uint32_t t = 0; t < v.n_tasks; t++) {
            uint32_t n;
            const uint32_t *parents = hl_maco_plan_parents(p, t, &n);
            for (uint32_t i = 0; i < n; i++)
                put_before(&got, v.id[parents[i]], v.id[t]);
        }
        close_order(&want, TASKS);
        close_order(&got, TASKS);
        assert_memory_equal(&got, &want, sizeof(got));
        maco_plan_free(p);
        maco_graph_free(g);
    }
}

/* Several strides over each other: there may be too much order, never too little. */
TEST(several_strides_are_taken_as_bounds)
{
    uint64_t seed = 11;
    for (int k = 0; k < 2000; k++) {
        struct use u[TASKS];
        maco_graph *g = NULL;
        maco_plan *p = NULL;
        maco_plan_view v;
        struct order got = {0};
        OK(maco_graph_new(&g));
        for (uint32_t b = 0; b < TASKS; b++)
            add_use(g, b, &seed, 2 + below(&seed, 30), &u[b]);
        OK(maco_compile(g, NULL, &p));
        v = *maco_plan_read(p);
        for (uint32_t t = 0; t < v.n_tasks; t++) {
            uint32_t n;
            const uint32_t *parents = hl_maco_plan_parents(p, t, &n);
            for (uint32_t i = 0; i < n; i++)
                put_before(&got, v.id[parents[i]], v.id[t]);
        }
        close_order(&got, TASKS);
        for (uint32_t b = 0; b < TASKS; b++)
            for (uint32_t a = 0; a < b; a++)
                if (meet(u[a].writes, u[b].writes) || meet(u[a].writes, u[b].reads) ||
                    meet(u[a].reads, u[b].writes))
                    assert_true(is_before(&got, a, b));
        maco_plan_free(p);
        maco_graph_free(g);
    }
}

/* Four column slices of a product, reduced one by one; then the whole is read. */
TEST(slices_of_columns_run_side_by_side)
{
    static float c[8 * 16], x[8 * 4], w[4 * 16], out[8 * 16];
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_plan_view v;
    OK(maco_graph_new(&g));
    for (int s = 0; s < 4; s++)
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_LINEAR, .inputs = {x, w + s * 16},
                            .outputs = {c + s * 4}, .dims = {8, 4, 4, 4, 4, 16}});
    add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_GELU, .inputs = {c}, .outputs = {out},
                        .dims = {8, 16, 16, 16}});
    OK(maco_compile(g, NULL, &p));
    v = *maco_plan_read(p);
    assert_int_equal(v.n_roots, 4);
    assert_int_equal(v.events[0].needed, 4);
    maco_plan_free(p);
    maco_graph_free(g);
}
