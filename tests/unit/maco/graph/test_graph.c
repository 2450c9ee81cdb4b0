#include "support/test.h"

#include <math.h>

#include "maco/graph/graph.h"
#include "unit/maco/maker.h"

static float x[4096], y[4096], w[4096], bias[64];

/* ---- valid operations ---- */

static maco_op good(int type)
{
    maco_op op = {MACO_OP_INIT, .type = type, .name = "t", .inputs = {x}, .outputs = {y}};
    static const maco_range r = {64, 8};
    switch (type) {
    case MACO_TASK_NOP:
        op.inputs[0] = op.outputs[0] = NULL;
        break;
    case MACO_TASK_MATMUL:
        op = (maco_op){MACO_OP_INIT,     .type = type,   .name = "t",
                       .inputs = {x, w}, .outputs = {y}, .dims = {4, 8, 16, 16, 8, 8},
                       .aux = {1}};
        break;
    case MACO_TASK_LINEAR:
        op.inputs[1] = w;
        op.inputs[2] = bias;
        memcpy(op.dims, (int32_t[8]){4, 8, 16, 16, 16, 8}, sizeof(op.dims));
        break;
    case MACO_TASK_ATTENTION:
        op.inputs[1] = w;
        op.inputs[2] = w + 1024;
        memcpy(op.dims, (int32_t[8]){1, 4, 2, 3, 5, 8, 1}, sizeof(op.dims));
        break;
    case MACO_TASK_ELEMENTWISE:
        op.inputs[1] = w;
        memcpy(op.dims, (int32_t[8]){4, 8, 8, 8, 8, MACO_ADD, MACO_F32}, sizeof(op.dims));
        break;
    case MACO_TASK_CUSTOM_COMPUTE:
    case MACO_TASK_CUSTOM_COMM:
        op.function = do_nothing;
        op.reads = op.writes = &r;
        op.n_reads = op.n_writes = 1;
        break;
    case MACO_TASK_MEMSET:
        op.inputs[0] = NULL;
        memcpy(op.dims, (int32_t[8]){4, 8, 0, 8, 255}, sizeof(op.dims));
        break;
    default:
        if (hl_maco_is_comm(type)) {
            memcpy(op.dims, (int32_t[8]){16, 0, 0, 0, 0, 2}, sizeof(op.dims));
            op.inputs[0] = type == MACO_TASK_RECV ? NULL : x;
            op.outputs[0] = type == MACO_TASK_SEND ? NULL : y;
        } else {
            memcpy(op.dims, (int32_t[8]){4, 8, 8, 8}, sizeof(op.dims));
        }
    }
    return op;
}

static const int all_types[] = {
    MACO_TASK_NOP,       MACO_TASK_MATMUL,         MACO_TASK_ATTENTION,      MACO_TASK_LINEAR,
    MACO_TASK_LAYERNORM, MACO_TASK_GELU,           MACO_TASK_SILU,           MACO_TASK_SOFTMAX,
    MACO_TASK_RMSNORM,   MACO_TASK_ELEMENTWISE,    MACO_TASK_CUSTOM_COMPUTE, MACO_TASK_ALLREDUCE,
    MACO_TASK_ALLGATHER, MACO_TASK_REDUCE_SCATTER, MACO_TASK_ALL_TO_ALL,     MACO_TASK_SEND,
    MACO_TASK_RECV,      MACO_TASK_BROADCAST,      MACO_TASK_CUSTOM_COMM,    MACO_TASK_MEMCPY,
    MACO_TASK_MEMSET,
};

TEST(every_type_can_be_added_and_is_stored_as_given)
{
    maco_graph *g = NULL;
    uint32_t id = 99;
    OK(maco_graph_new(&g));
    for (size_t i = 0; i < HL_ARRAY_LEN(all_types); i++) {
        maco_op op = good(all_types[i]);
        OK(maco_graph_add(g, &op, &id));
        assert_int_equal(id, i);
        assert_int_equal(g->tasks[i].type, all_types[i]);
        assert_memory_equal(g->tasks[i].dims, op.dims, sizeof(op.dims));
        assert_int_equal(g->tasks[i].inputs[1], (uintptr_t)op.inputs[1]);
        assert_int_equal(g->tasks[i].trigger_event, MACO_NONE);
    }
    maco_graph_free(g);
    maco_graph_free(NULL);
}

TEST(numbers_are_those_that_were_published)
{
    assert_int_equal(MACO_TASK_TERMINATE, 0);
    assert_int_equal(MACO_TASK_MATMUL, 100);
    assert_int_equal(MACO_TASK_ATTENTION, 101);
    assert_int_equal(MACO_TASK_LINEAR, 102);
    assert_int_equal(MACO_TASK_ALLREDUCE, 200);
    assert_int_equal(MACO_TASK_CUSTOM_COMM, 250);
    assert_int_equal(sizeof(maco_task), 128);
    assert_int_equal(sizeof(maco_event), 64);
    assert_int_equal(offsetof(maco_task, inputs), 16);
    assert_int_equal(offsetof(maco_task, dims), 64);
    assert_int_equal(offsetof(maco_task, user), 120);
    assert_int_equal(offsetof(maco_event, cursor), 32);
}

/* ---- invalid operations ---- */

static void refuse(maco_op op, const char *words)
{
    maco_graph *g = NULL;
    uint32_t id = 77;
    OK(maco_graph_new(&g));
    REFUSED(maco_graph_add(g, &op, &id), HL_EINVAL, words);
    if (strstr(hl_error_text(), "Hint: ") == NULL || strstr(hl_error_text(), "task") == NULL)
        fail_msg("no task or no hint: %s", hl_error_text());
    assert_int_equal(id, 77);
    assert_int_equal(g->n, 0);
    maco_graph_free(g);
}

#define BAD(type_, words, ...)                                                                     \
    do {                                                                                           \
        maco_op op = good(type_);                                                                  \
        __VA_ARGS__;                                                                               \
        refuse(op, words);                                                                         \
    } while (0)

TEST(unknown_types_and_terminate_are_refused)
{
    static const int none[] = {MACO_TASK_TERMINATE, 2, 99, 108, 199, 207, 302, -1, 65536 + 100};
    for (size_t i = 0; i < HL_ARRAY_LEN(none); i++)
        BAD(MACO_TASK_NOP, "no tasks of type", op.type = none[i]);
}

/* For every type: each required input or output, each that it can't have, each size. */
TEST(what_is_missing_or_too_much_is_named)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(all_types); i++) {
        int type = all_types[i];
        const struct hl_maco_type *t = hl_maco_type(type);
        for (int k = 0; k < 4; k++) {
            if (k < t->min_inputs)
                BAD(type, "is NULL", op.inputs[k] = NULL);
            else if (k >= t->max_inputs)
                BAD(type, "is given", op.inputs[k] = w);
        }
        for (int k = 0; k < 2; k++) {
            if (k < t->min_outputs)
                BAD(type, "is NULL", op.outputs[k] = NULL);
            else if (k >= t->max_outputs)
                BAD(type, "is given", op.outputs[k] = w);
        }
        for (int k = 0; k < 8; k++) {
            if (t->dims[k].kind == '+')
                BAD(type, "sizes are at least 1", op.dims[k] = 0);
            if (t->dims[k].kind == '+')
                BAD(type, t->dims[k].name, op.dims[k] = -4);
            if (t->dims[k].kind == 's')
                BAD(type, "strides go forward", op.dims[k] = -8);
            if (t->dims[k].kind == 's')
                BAD(type, "stride counts", op.dims[k] = 1);
            if (t->dims[k].kind == 'b')
                BAD(type, "0 or 1", op.dims[k] = 2);
            if (t->dims[k].name == NULL)
                BAD(type, "does not use this one", op.dims[k] = 1);
        }
        BAD(type, "unknown dtype 7", op.dtype = 7);
        BAD(type, "unknown dtype 16", op.dtype = 16);
        if (!t->all_dtypes)
            BAD(type, "can't compute in F64", op.dtype = MACO_F64);
        BAD(type, "on_worker is -1", op.on_worker = -1);
        BAD(type, "deterministic is 3", op.deterministic = 3);
        BAD(type, "group is 70000", op.group = 70000);
        if (!hl_maco_is_comm(type))
            BAD(type, "group is 1", op.group = 1);
        else
            BAD(type, "requests worker 0", op.on_worker = 1);
        if (type != MACO_TASK_CUSTOM_COMPUTE && type != MACO_TASK_CUSTOM_COMM)
            BAD(type, "a function or ranges", op.function = do_nothing);
    }
}

TEST(shapes_that_make_no_sense_are_refused)
{
    BAD(MACO_TASK_LINEAR, "task \"t\" (LINEAR): ldx (dims[3]) is 15, less than K = 16. Hint: a",
        op.dims[3] = 15);
    BAD(MACO_TASK_MATMUL, "lda (dims[3]) is 3, less than M = 4", op.dims[6] = 1, op.dims[3] = 3);
    BAD(MACO_TASK_MATMUL, "ldb (dims[4]) is 8, less than K = 16", op.dims[7] = 1);
    BAD(MACO_TASK_ATTENTION, "Hq 4 is not a multiple of Hkv 3", op.dims[2] = 3);
    BAD(MACO_TASK_ATTENTION, "Sq 6 over Sk 5", op.dims[3] = 6);
    BAD(MACO_TASK_LAYERNORM, "input 2 is given and 1 is NULL", op.inputs[2] = w);
    BAD(MACO_TASK_ELEMENTWISE, "unknown op 7", op.dims[5] = 7);
    BAD(MACO_TASK_ELEMENTWISE, "op 3 has a B", op.dims[5] = MACO_RELU);
    BAD(MACO_TASK_ELEMENTWISE, "op 1 has no B", op.dims[5] = MACO_MUL, op.inputs[1] = NULL);
    BAD(MACO_TASK_ELEMENTWISE, "dtype of Y (dims[6]) is 3", op.dims[6] = MACO_F64);
    BAD(MACO_TASK_MEMSET, "value (dims[4]) is 256", op.dims[4] = 256);
    BAD(MACO_TASK_LAYERNORM, "aux[0] is not finite", op.aux[0] = NAN);
    BAD(MACO_TASK_MATMUL, "aux[1] is not finite", op.aux[1] = INFINITY);
    BAD(MACO_TASK_CUSTOM_COMPUTE, "it has no function", op.function = NULL);
    BAD(MACO_TASK_CUSTOM_COMM, "writes[0] is empty", op.writes = &(maco_range){64, 0});
    BAD(MACO_TASK_CUSTOM_COMM, "reads[0] is empty", op.reads = &(maco_range){UINT64_MAX, 2});
    BAD(MACO_TASK_CUSTOM_COMPUTE, "reads is NULL and counts 1", op.reads = NULL);
}

TEST(collectives_know_their_ranks)
{
    BAD(MACO_TASK_ALLREDUCE, "count (dims[0], dims[1]) is 0", op.dims[0] = 0);
    BAD(MACO_TASK_ALLREDUCE, "op (dims[2]) is 5", op.dims[2] = 5);
    BAD(MACO_TASK_ALLGATHER, "op (dims[2]) is 1", op.dims[2] = 1);
    BAD(MACO_TASK_ALLREDUCE, "AVG of I32", op.dims[2] = MACO_AVG, op.dtype = MACO_I32);
    BAD(MACO_TASK_ALLGATHER, "ranks (dims[5]) is 0", op.dims[5] = 0);
    BAD(MACO_TASK_REDUCE_SCATTER, "ranks (dims[5]) is 0", op.dims[5] = 0);
    BAD(MACO_TASK_ALL_TO_ALL, "ranks (dims[5]) is 0", op.dims[5] = 0);
    BAD(MACO_TASK_ALLREDUCE, "ranks (dims[5]) is -1", op.dims[5] = -1);
    BAD(MACO_TASK_SEND, "peer or root (dims[3]) is 2", op.dims[3] = 2);
    BAD(MACO_TASK_SEND, "peer or root (dims[3]) is -1", op.dims[3] = -1);
    BAD(MACO_TASK_ALLREDUCE, "peer or root (dims[3]) is 1", op.dims[3] = 1);
    BAD(MACO_TASK_RECV, "tag (dims[4]) is -1", op.dims[4] = -1);
    BAD(MACO_TASK_ALLREDUCE, "goes past the end of memory", op.dims[1] = -1, op.dims[0] = -1);
    BAD(MACO_TASK_ALLGATHER, "goes past the end of memory", op.dims[1] = 1 << 30,
        op.dims[5] = 1 << 30);
}

TEST(memory_that_can_not_be_is_refused)
{
    BAD(MACO_TASK_GELU, "X at 0x", op.inputs[0] = (char *)x + 2);
    BAD(MACO_TASK_GELU, "not aligned to its 4 byte elements", op.outputs[0] = (char *)y + 1);
    BAD(MACO_TASK_GELU, "goes past the end of memory", op.inputs[0] = (void *)(UINTPTR_MAX - 15));
    BAD(MACO_TASK_MATMUL, "goes past the end of memory", op.dims[0] = INT32_MAX,
        op.dims[3] = INT32_MAX, op.inputs[0] = (void *)0xc000000000000000);
    BAD(MACO_TASK_ATTENTION, "goes past the end of memory",
        op.dims[0] = op.dims[1] = op.dims[2] = op.dims[3] = op.dims[4] = op.dims[5] = INT32_MAX);
    BAD(MACO_TASK_MATMUL, "A and C overlap. Hint: it can't work in place", op.outputs[0] = x + 8);
    BAD(MACO_TASK_LINEAR, "bias and Y overlap", op.inputs[2] = y + 8);
    BAD(MACO_TASK_GELU, "X and Y overlap. Hint: in place they are one", op.outputs[0] = x + 4);
    BAD(MACO_TASK_RMSNORM, "gamma and Y overlap", op.inputs[1] = y);
    BAD(MACO_TASK_ELEMENTWISE, "A and Y overlap", op.outputs[0] = x, op.dims[6] = MACO_BF16);
    BAD(MACO_TASK_ATTENTION, "lse and O overlap", op.outputs[1] = y + 10);
    BAD(MACO_TASK_MEMCPY, "X and Y overlap", op.outputs[0] = (char *)x + 16);
}

TEST(in_place_is_fine_where_it_works)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    static const int types[] = {MACO_TASK_GELU, MACO_TASK_SOFTMAX, MACO_TASK_LAYERNORM,
                                MACO_TASK_ELEMENTWISE, MACO_TASK_ALLREDUCE};
    for (size_t i = 0; i < HL_ARRAY_LEN(types); i++) {
        maco_op op = good(types[i]);
        op.outputs[0] = x;
        add_op(g, op);
    }
    maco_op op = good(MACO_TASK_MEMCPY); /* columns 0 to 3 to columns 4 to 7 of the same rows */
    memcpy(op.dims, (int32_t[8]){16, 4, 8, 8}, sizeof(op.dims));
    op.inputs[0] = x;
    op.outputs[0] = (char *)x + 4;
    add_op(g, op);
    maco_graph_free(g);
}

TEST(names_are_text_or_made)
{
    maco_graph *g = NULL;
    char text[300];
    maco_op op = good(MACO_TASK_NOP);
    static const char *const wrong[] = {"",
                                        "a\nb",
                                        "\xff",
                                        "\xc3",
                                        "\xed\xa0\x80",
                                        "\xc0\xaf",
                                        "ok\x7f",
                                        "\xf4\x90\x80\x80",
                                        "\xe0\x9f\xbf"};
    OK(maco_graph_new(&g));
    for (size_t i = 0; i < HL_ARRAY_LEN(wrong); i++) {
        op.name = wrong[i];
        REFUSED(maco_graph_add(g, &op, NULL), HL_EINVAL, "the name of a task");
    }
    memset(text, 'x', 256);
    text[256] = '\0';
    op.name = text;
    REFUSED(maco_graph_add(g, &op, NULL), HL_EINVAL, "the name of a task");
    text[255] = '\0';
    OK(maco_graph_add(g, &op, NULL));
    op.name = "\xe6\x9d\x83\xe9\x87\x8d \"0\" \xf0\x9f\x98\x80";
    OK(maco_graph_add(g, &op, NULL));
    op.name = NULL;
    OK(maco_graph_add(g, &op, NULL));
    assert_string_equal(hl_maco_graph_name(g, 2), "NOP 2");
    maco_graph_free(g);
}

TEST(dependencies_name_tasks_that_are_there)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "a", 1), b = add_work(g, "b", 1);
    OK(maco_graph_depend(g, b, a));
    OK(maco_graph_depend(g, b, a)); /* twice is once */
    REFUSED(maco_graph_depend(g, b, 2), HL_EINVAL, "task 2: the graph has 2");
    REFUSED(maco_graph_depend(g, 7, a), HL_EINVAL, "task 7 can't wait");
    REFUSED(maco_graph_depend(NULL, 0, 1), HL_EINVAL, "NULL");
    REFUSED(maco_graph_add(g, NULL, NULL), HL_EINVAL, "NULL");
    REFUSED(maco_graph_new(NULL), HL_EINVAL, "NULL");
    maco_plan *p = NULL;
    maco_plan_view v;
    OK(maco_compile(g, NULL, &p));
    v = *maco_plan_read(p);
    assert_int_equal(v.events[0].needed, 1);
    maco_plan_free(p);
    maco_graph_free(g);
}
