/* Checks a task before it enters a graph. Back ends trust dims and pointers, so whatever would make
 * them read or write elsewhere is refused here, with the name that the caller gave. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "maco/graph/graph.h"
#include "maco/graph/span.h"
#include "maco/graph/types.h"

struct checking {
    const maco_op *op;
    const maco_task *task;
    const struct hl_maco_type *type;
};

static hl_status check_pointers(const struct checking *c, const char *what, uint64_t const *p,
                                int slots, int least, int most)
{
    for (int i = 0; i < slots; i++) {
        if (p[i] == 0 && i < least)
            return hl_fail(HL_EINVAL, "%s %d is NULL. Hint: it takes %d to %d %ss", what, i, least,
                           most, what);
        if (p[i] != 0 && i >= most)
            return hl_fail(HL_EINVAL,
                           "%s %d is given. Hint: it takes %d to %d %ss, the rest is "
                           "NULL",
                           what, i, least, most, what);
        if (p[i] != 0 && i > 0 && p[i - 1] == 0 && c->type->type != MACO_TASK_CUSTOM_COMPUTE &&
            c->type->type != MACO_TASK_CUSTOM_COMM && c->type->type != MACO_TASK_ATTENTION)
            return hl_fail(HL_EINVAL, "%s %d is given and %d is NULL. Hint: leave no gaps", what, i,
                           i - 1);
    }
    return HL_OK;
}

static hl_status check_dims(const struct checking *c)
{
    for (int i = 0; i < 8; i++) {
        const struct hl_maco_dim *d = &c->type->dims[i];
        int32_t v = c->op->dims[i];
        if (d->name == NULL && v != 0)
            return hl_fail(HL_EINVAL, "dims[%d] is %d. Hint: it does not use this one, leave it 0",
                           i, v);
        if (d->kind == '+' && v < 1)
            return hl_fail(HL_EINVAL, "%s (dims[%d]) is %d. Hint: sizes are at least 1", d->name, i,
                           v);
        if (d->kind == 's' && v < 0)
            return hl_fail(HL_EINVAL, "%s (dims[%d]) is %d. Hint: strides go forward", d->name, i,
                           v);
        if (d->kind == 'b' && v != 0 && v != 1)
            return hl_fail(HL_EINVAL, "%s (dims[%d]) is %d. Hint: it is 0 or 1", d->name, i, v);
    }
    return HL_OK;
}

static hl_status check_dtype(const struct checking *c)
{
    int dtype = c->op->dtype;
    if (hl_maco_dtype_size(dtype) == 0)
        return hl_fail(HL_EINVAL, "unknown dtype %d. Hint: enum maco_dtype", dtype);
    if (!c->type->all_dtypes && dtype > MACO_BF16)
        return hl_fail(HL_EINVAL,
                       "it can't compute in %s. Hint: F32, F16 or BF16; the others are "
                       "for collectives and copies",
                       hl_maco_dtype_name(dtype));
    return HL_OK;
}

/* ---- types with rules of their own ---- */

static hl_status check_elementwise(const struct checking *c)
{
    int op = c->op->dims[5],
        two = op == MACO_ADD || op == MACO_MUL || op == MACO_SUB || op == MACO_SCALE_ADD;
    if (op < MACO_ADD || op > MACO_SCALE_ADD)
        return hl_fail(HL_EINVAL, "unknown op %d (dims[5]). Hint: enum maco_elementwise", op);
    if (two != (c->op->inputs[1] != NULL))
        return hl_fail(
            HL_EINVAL,
            "op %d has %s. Hint: ADD, MUL, SUB and SCALE_ADD take A and B, the others only A", op,
            two ? "no B" : "a B");
    if (c->op->dims[6] < MACO_F32 || c->op->dims[6] > MACO_BF16)
        return hl_fail(HL_EINVAL, "the dtype of Y (dims[6]) is %d. Hint: F32, F16 or BF16",
                       c->op->dims[6]);
    return HL_OK;
}

static hl_status check_attention(const struct checking *c)
{
    const int32_t *d = c->op->dims;
    if (d[1] % d[2] != 0)
        return hl_fail(HL_EINVAL,
                       "Hq %d is not a multiple of Hkv %d. Hint: each key head serves the same "
                       "number of query heads",
                       d[1], d[2]);
    if (d[6] && d[3] > d[4])
        return hl_fail(HL_EINVAL,
                       "causal with Sq %d over Sk %d leaves queries without a key. Hint: the last "
                       "query is aligned with the last key",
                       d[3], d[4]);
    return HL_OK;
}

static bool is_float(int dtype)
{
    return dtype <= MACO_F64;
}

static hl_status check_collective(const struct checking *c)
{
    const int32_t *d = c->op->dims;
    int type = c->type->type, op = d[2], peer = d[3], ranks = d[5];
    int reduces = type == MACO_TASK_ALLREDUCE || type == MACO_TASK_REDUCE_SCATTER;
    int points = type == MACO_TASK_SEND || type == MACO_TASK_RECV || type == MACO_TASK_BROADCAST;
    int sized = type == MACO_TASK_ALLGATHER || type == MACO_TASK_REDUCE_SCATTER ||
                type == MACO_TASK_ALL_TO_ALL;
    if (hl_maco_count(c->task) == 0)
        return hl_fail(HL_EINVAL, "count (dims[0], dims[1]) is 0. Hint: it counts elements");
    if (op < MACO_SUM || op > MACO_PROD || (!reduces && op != 0))
        return hl_fail(HL_EINVAL,
                       "op (dims[2]) is %d. Hint: enum maco_reduce where it reduces, "
                       "else 0",
                       op);
    if (op == MACO_AVG && !is_float(c->op->dtype))
        return hl_fail(HL_EINVAL, "AVG of %s. Hint: integers have no mean, use SUM",
                       hl_maco_dtype_name(c->op->dtype));
    if (ranks < (sized ? 1 : 0))
        return hl_fail(HL_EINVAL,
                       "ranks (dims[5]) is %d. Hint: the number of ranks of the group, "
                       "which the size of its buffers depends on",
                       ranks);
    if (peer < 0 || (!points && peer != 0) || (ranks > 0 && peer >= ranks))
        return hl_fail(HL_EINVAL,
                       "peer or root (dims[3]) is %d. Hint: a rank of the group, 0 where "
                       "there is none",
                       peer);
    if (d[4] < 0)
        return hl_fail(HL_EINVAL, "tag (dims[4]) is %d. Hint: from 0", d[4]);
    return HL_OK;
}

static hl_status check_custom(const struct checking *c)
{
    const maco_op *op = c->op;
    if (op->function == NULL)
        return hl_fail(HL_EINVAL, "it has no function. Hint: a custom task calls one");
    for (uint64_t i = 0; i < (uint64_t)op->n_reads + op->n_writes; i++) {
        int write = i >= op->n_reads;
        const maco_range *list = write ? op->writes : op->reads;
        uint32_t at = (uint32_t)(write ? i - op->n_reads : i);
        const char *which = write ? "writes" : "reads";
        if (list == NULL)
            return hl_fail(HL_EINVAL, "%s is NULL and counts %u. Hint: n_%s is 0 without ranges",
                           which, write ? op->n_writes : op->n_reads, which);
        if (list[at].bytes == 0 || list[at].first > UINT64_MAX - list[at].bytes)
            return hl_fail(HL_EINVAL,
                           "%s[%u] is empty or goes past the end of memory. Hint: first "
                           "byte and number of bytes",
                           which, at);
    }
    return HL_OK;
}

static hl_status check_type(const struct checking *c)
{
    int type = c->type->type;
    if (type == MACO_TASK_CUSTOM_COMPUTE || type == MACO_TASK_CUSTOM_COMM)
        return check_custom(c);
    if (c->op->function != NULL || c->op->n_reads > 0 || c->op->n_writes > 0)
        return hl_fail(HL_EINVAL, "it has a function or ranges. Hint: those are for CUSTOM_... "
                                  "tasks, ranges of the others follow from dims");
    if (type == MACO_TASK_ELEMENTWISE)
        return check_elementwise(c);
    if (type == MACO_TASK_ATTENTION)
        return check_attention(c);
    if (hl_maco_is_comm(type))
        return check_collective(c);
    if (type == MACO_TASK_MEMSET && (c->op->dims[4] < 0 || c->op->dims[4] > 255))
        return hl_fail(HL_EINVAL, "value (dims[4]) is %d. Hint: one byte, 0 to 255",
                       c->op->dims[4]);
    return HL_OK;
}

/* ---- memory ---- */

static hl_status check_operand(const struct checking *c, const struct hl_maco_operand *o)
{
    struct hl_maco_span s = hl_maco_span_of(o);
    const struct hl_maco_dim *dims = c->type->dims;
    if (o->ld_dim >= 0 && o->ld < o->cols)
        return hl_fail(HL_EINVAL,
                       "%s (dims[%d]) is %d, less than %s = %llu. Hint: a stride counts "
                       "from one row of %s to the next",
                       dims[o->ld_dim].name, o->ld_dim, c->op->dims[o->ld_dim],
                       dims[o->cols_dim].name, (unsigned long long)o->cols, o->name);
    if (o->address % o->elem != 0)
        return hl_fail(HL_EINVAL,
                       "%s at 0x%llx is not aligned to its %u byte elements. Hint: is "
                       "the dtype right?",
                       o->name, (unsigned long long)o->address, o->elem);
    if (hl_maco_span_end(&s) == UINT64_MAX)
        return hl_fail(HL_EINVAL,
                       "%s of %llu x %llu elements goes past the end of memory. Hint: "
                       "are the dims those of this memory?",
                       o->name, (unsigned long long)o->rows, (unsigned long long)o->cols);
    return HL_OK;
}

/* Whether an output may be exactly an input: where an element does not depend on other elements'
 * places. */
static bool in_place(int type)
{
    return type == MACO_TASK_GELU || type == MACO_TASK_SILU || type == MACO_TASK_SOFTMAX ||
           type == MACO_TASK_LAYERNORM || type == MACO_TASK_RMSNORM ||
           type == MACO_TASK_ELEMENTWISE;
}

static bool same_place(const struct hl_maco_operand *a, const struct hl_maco_operand *b)
{
    return a->address == b->address && a->rows == b->rows && a->cols == b->cols &&
           a->elem == b->elem && (a->ld == b->ld || a->rows == 1);
}

static hl_status check_overlap(const struct checking *c, const struct hl_maco_operand *o, int n)
{
    struct hl_maco_span s[HL_MACO_OPERANDS];
    if (hl_maco_is_comm(c->type->type))
        return HL_OK; /* in-place communication has several forms, which the group checks */
    for (int i = 0; i < n; i++)
        s[i] = hl_maco_span_of(&o[i]);
    for (int w = 0; w < n; w++)
        for (int i = 0; i < n && o[w].writes; i++) {
            if (i == w || !hl_maco_span_overlap(&s[w], &s[i]) ||
                (in_place(c->type->type) && same_place(&o[w], &o[i])))
                continue;
            return hl_fail(HL_EINVAL, "%s and %s overlap. Hint: %s", o[i].name, o[w].name,
                           in_place(c->type->type) ? "in place they are one and the same matrix"
                                                   : "it can't work in place");
        }
    return HL_OK;
}

static hl_status check_memory(const struct checking *c)
{
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    int n = hl_maco_operands(c->task, o);
    for (int i = 0; i < n; i++)
        HL_TRY(check_operand(c, &o[i]));
    return check_overlap(c, o, n);
}

static hl_status check_numbers(const struct checking *c)
{
    const maco_op *op = c->op;
    if (op->on_worker < 0)
        return hl_fail(HL_EINVAL, "on_worker is %d. Hint: 1 + the worker's number; 0 is any",
                       op->on_worker);
    if (op->deterministic != 0 && op->deterministic != 1)
        return hl_fail(HL_EINVAL, "deterministic is %d. Hint: it is 0 or 1", op->deterministic);
    if (hl_maco_is_comm(c->type->type) && op->on_worker != 0)
        return hl_fail(
            HL_EINVAL,
            "communication requests worker %d. Hint: the proxy of its group runs it, request none",
            op->on_worker - 1);
    if (op->group > UINT16_MAX || (!hl_maco_is_comm(c->type->type) && op->group != 0))
        return hl_fail(HL_EINVAL,
                       "group is %u. Hint: at most 65535, and 0 where there is no "
                       "communication",
                       op->group);
    if (op->type >= MACO_TASK_CUSTOM_COMPUTE)
        return HL_OK; /* aux is for the caller's use */
    for (int i = 0; i < 4; i++)
        if (!isfinite(op->aux[i]))
            return hl_fail(HL_EINVAL, "aux[%d] is not finite. Hint: unused ones are 0", i);
    return HL_OK;
}

static hl_status check_task(const struct checking *c)
{
    const maco_task *t = c->task;
    HL_TRY(check_numbers(c));
    HL_TRY(check_dtype(c));
    HL_TRY(check_pointers(c, "input", t->inputs, 4, c->type->min_inputs, c->type->max_inputs));
    HL_TRY(check_pointers(c, "output", t->outputs, 2, c->type->min_outputs, c->type->max_outputs));
    HL_TRY(check_dims(c));
    HL_TRY(check_type(c));
    return check_memory(c);
}

hl_status hl_maco_check(const maco_op *op, const maco_task *task, const char *name)
{
    struct checking c = {.op = op, .task = task, .type = hl_maco_type(op->type)};
    if (c.type == NULL)
        return hl_fail(HL_EINVAL,
                       "task \"%s\": a graph has no tasks of type %d. Hint: enum "
                       "maco_task_type, TERMINATE is the runtime's",
                       name, op->type);
    hl_status st = check_task(&c);
    return st == HL_OK ? st : hl_fail_prefix(st, "task \"%s\" (%s): ", name, c.type->name);
}
