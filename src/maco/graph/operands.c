/* Where each type of task has its inputs and outputs in memory. */
#include "maco/graph/types.h"

struct adding {
    const maco_task *t;
    struct hl_maco_operand *out;
    int n;
    uint32_t elem;
};

enum { READ = 1, WRITE = 2 };

static void add_matrix(struct adding *a, const char *name, int use, uint64_t address, int rows,
                       int cols, int ld)
{
    const int32_t *d = a->t->dims;
    if (address == 0)
        return;
    a->out[a->n++] = (struct hl_maco_operand){
        .name = name,
        .reads = (use & READ) != 0,
        .writes = (use & WRITE) != 0,
        .cols_dim = (int8_t)cols,
        .ld_dim = (int8_t)ld,
        .elem = a->elem,
        .address = address,
        .rows = rows < 0 ? 1 : (uint64_t)d[rows],
        .cols = (uint64_t)d[cols],
        .ld = ld < 0 ? (uint64_t)d[cols] : (uint64_t)(uint32_t)d[ld],
    };
}

static void add_dense(struct adding *a, const char *name, int use, uint64_t address,
                      uint64_t elements)
{
    if (address == 0)
        return;
    a->out[a->n++] = (struct hl_maco_operand){
        .name = name,
        .reads = (use & READ) != 0,
        .writes = (use & WRITE) != 0,
        .cols_dim = -1,
        .ld_dim = -1,
        .elem = a->elem,
        .address = address,
        .rows = 1,
        .cols = elements,
        .ld = elements,
    };
}

static void matmul_operands(struct adding *a)
{
    const maco_task *t = a->t;
    int ta = t->dims[6], tb = t->dims[7];
    float beta = t->aux[1];
    add_matrix(a, "A", READ, t->inputs[0], ta ? 2 : 0, ta ? 0 : 2, 3);
    add_matrix(a, "B", READ, t->inputs[1], tb ? 1 : 2, tb ? 2 : 1, 4);
    add_matrix(a, "bias", READ, t->inputs[2], -1, 1, -1);
    add_matrix(a, "C", beta < 0 || beta > 0 ? READ | WRITE : WRITE, t->outputs[0], 0, 1, 5);
}

static void attention_operands(struct adding *a)
{
    const maco_task *t = a->t;
    const int32_t *d = t->dims;
    uint64_t queries =
        hl_maco_mul_capped(hl_maco_mul_capped((uint64_t)d[0], (uint64_t)d[1]), (uint64_t)d[3]);
    uint64_t keys =
        hl_maco_mul_capped(hl_maco_mul_capped((uint64_t)d[0], (uint64_t)d[2]), (uint64_t)d[4]);
    add_dense(a, "Q", READ, t->inputs[0], hl_maco_mul_capped(queries, (uint64_t)d[5]));
    add_dense(a, "K", READ, t->inputs[1], hl_maco_mul_capped(keys, (uint64_t)d[5]));
    add_dense(a, "V", READ, t->inputs[2], hl_maco_mul_capped(keys, (uint64_t)d[5]));
    add_dense(a, "mask", READ, t->inputs[3], hl_maco_mul_capped((uint64_t)d[3], (uint64_t)d[4]));
    add_dense(a, "O", WRITE, t->outputs[0], hl_maco_mul_capped(queries, (uint64_t)d[5]));
    a->elem = 4; /* lse is always float32 */
    add_dense(a, "lse", WRITE, t->outputs[1], queries);
}

static void row_operands(struct adding *a)
{
    const maco_task *t = a->t;
    add_matrix(a, "X", READ, t->inputs[0], 0, 1, 2);
    add_matrix(a, "gamma", READ, t->inputs[1], -1, 1, -1);
    add_matrix(a, "beta", READ, t->inputs[2], -1, 1, -1);
    add_matrix(a, "Y", WRITE, t->outputs[0], 0, 1, 3);
}

static void elementwise_operands(struct adding *a)
{
    const maco_task *t = a->t;
    add_matrix(a, "A", READ, t->inputs[0], 0, 1, 2);
    int whole = t->dims[3] > 0; /* otherwise one row for all */
    add_matrix(a, "B", READ, t->inputs[1], whole ? 0 : -1, 1, whole ? 3 : -1);
    a->elem = hl_maco_dtype_size(t->dims[6]);
    add_matrix(a, "Y", WRITE, t->outputs[0], 0, 1, 4);
}

static void collective_operands(struct adding *a)
{
    const maco_task *t = a->t;
    uint64_t count = hl_maco_count(t),
             all = hl_maco_mul_capped(count, (uint64_t)(uint32_t)t->dims[5]);
    int spread = t->type == MACO_TASK_REDUCE_SCATTER || t->type == MACO_TASK_ALL_TO_ALL;
    int collected = t->type == MACO_TASK_ALLGATHER || t->type == MACO_TASK_ALL_TO_ALL;
    add_dense(a, "X", READ, t->inputs[0], spread ? all : count);
    add_dense(a, "Y", WRITE, t->outputs[0], collected ? all : count);
}

static void copy_operands(struct adding *a)
{
    a->elem = 1;
    add_matrix(a, "X", READ, a->t->inputs[0], 0, 1, 2);
    add_matrix(a, "Y", WRITE, a->t->outputs[0], 0, 1, 3);
}

static void linear_operands(struct adding *a)
{
    const maco_task *t = a->t;
    add_matrix(a, "X", READ, t->inputs[0], 0, 2, 3);
    add_matrix(a, "W", READ, t->inputs[1], 1, 2, 4);
    add_matrix(a, "bias", READ, t->inputs[2], -1, 1, -1);
    add_matrix(a, "Y", WRITE, t->outputs[0], 0, 1, 5);
}

int hl_maco_operands(const maco_task *t, struct hl_maco_operand out[HL_MACO_OPERANDS])
{
    struct adding a = {.t = t, .out = out, .elem = hl_maco_dtype_size(hl_maco_dtype(t))};
    switch (t->type) {
    case MACO_TASK_MATMUL:
        matmul_operands(&a);
        break;
    case MACO_TASK_ATTENTION:
        attention_operands(&a);
        break;
    case MACO_TASK_LINEAR:
        linear_operands(&a);
        break;
    case MACO_TASK_LAYERNORM:
    case MACO_TASK_GELU:
    case MACO_TASK_SILU:
    case MACO_TASK_SOFTMAX:
    case MACO_TASK_RMSNORM:
        row_operands(&a);
        break;
    case MACO_TASK_ELEMENTWISE:
        elementwise_operands(&a);
        break;
    case MACO_TASK_MEMCPY:
    case MACO_TASK_MEMSET:
        copy_operands(&a);
        break;
    default:
        if (hl_maco_is_comm(t->type) && t->type != MACO_TASK_CUSTOM_COMM)
            collective_operands(&a);
    }
    return a.n;
}

uint64_t hl_maco_bytes_moved(const maco_task *t)
{
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    uint64_t most = 0;
    int n = hl_maco_operands(t, o);
    for (int i = 0; i < n; i++) {
        uint64_t bytes = hl_maco_mul_capped(hl_maco_mul_capped(o[i].rows, o[i].cols), o[i].elem);
        most = bytes > most ? bytes : most;
    }
    return most;
}
