/* Runs a collective task as calls of its group. */
#include "maco/kernels/bodies.h"

#include <string.h>

#include "maco/graph/graph.h"

_Static_assert((int)MACO_F32 == HYBRIDPS_F32 && (int)MACO_F16 == HYBRIDPS_F16 &&
                   (int)MACO_BF16 == HYBRIDPS_BF16 && (int)MACO_F64 == HYBRIDPS_F64 &&
                   (int)MACO_I32 == HYBRIDPS_I32 && (int)MACO_I64 == HYBRIDPS_I64 &&
                   (int)MACO_U8 == HYBRIDPS_U8,
               "one numbering of types");
_Static_assert((int)MACO_SUM == HYBRIDPS_SUM && (int)MACO_AVG == HYBRIDPS_MEAN &&
                   (int)MACO_MIN == HYBRIDPS_MIN && (int)MACO_MAX == HYBRIDPS_MAX &&
                   (int)MACO_PROD == HYBRIDPS_PROD,
               "one numbering of operations");

struct call {
    hybridps_group *group;
    const char *name;
    const void *in;
    void *out;
    uint64_t count, bytes;
    int dtype, op, peer, tag;
};

static hl_status comm_allreduce(const struct call *c)
{
    if (c->in != c->out)
        memcpy(c->out, c->in, c->bytes);
    return (hl_status)hybridps_group_allreduce(c->group, c->name, c->out, c->count, c->dtype,
                                               c->op);
}

static hl_status comm_broadcast(const struct call *c)
{
    if (c->in != c->out && hybridps_group_rank(c->group) == c->peer)
        memcpy(c->out, c->in, c->bytes);
    return (hl_status)hybridps_group_broadcast(c->group, c->name, c->out, c->bytes, c->peer);
}

hl_status hl_maco_comm(const maco_task *t, const char *name, hybridps_group *group)
{
    struct call c = {.group = group,
                     .name = name,
                     .in = (const void *)(uintptr_t)t->inputs[0],
                     .out = (void *)(uintptr_t)t->outputs[0],
                     .count = hl_maco_count(t),
                     .dtype = hl_maco_dtype(t),
                     .op = t->dims[2],
                     .peer = t->dims[3],
                     .tag = t->dims[4]};
    size_t size = hl_maco_dtype_size(c.dtype);
    if (size == 0 || __builtin_mul_overflow(c.count, size, &c.bytes))
        return hl_fail(HL_EINVAL, "%s: unknown element type %d", name != NULL ? name : "comm",
                       c.dtype);
    switch (t->type) {
    case MACO_TASK_ALLREDUCE:
        return comm_allreduce(&c);
    case MACO_TASK_ALLGATHER:
        return (hl_status)hybridps_group_allgather(group, name, c.in, c.out, c.bytes);
    case MACO_TASK_BROADCAST:
        return comm_broadcast(&c);
    case MACO_TASK_REDUCE_SCATTER:
        return (hl_status)hybridps_group_reduce_scatter(group, name, c.in, c.out, c.count, c.dtype,
                                                        c.op);
    case MACO_TASK_ALL_TO_ALL:
        return (hl_status)hybridps_group_alltoall(group, name, c.in, c.out, c.bytes);
    case MACO_TASK_SEND:
        return (hl_status)hybridps_group_send(group, name, c.in, c.bytes, c.peer, c.tag);
    case MACO_TASK_RECV:
        return (hl_status)hybridps_group_recv(group, name, c.out, c.bytes, c.peer, c.tag);
    default:
        return hl_fail(HL_EINVAL, "%s: a task of type %d is not a collective",
                       name != NULL ? name : "comm", t->type);
    }
}

hl_status hl_maco_comm_fits(const maco_task *t, const char *name, int world)
{
    int peer = t->dims[3], ranks = t->dims[5];
    if (ranks != 0 && ranks != world)
        return hl_fail(HL_EINVAL, "task %s is for %d ranks (dims[5]), and its group has %d", name,
                       ranks, world);
    if (peer >= world)
        return hl_fail(HL_EINVAL, "task %s names rank %d (dims[3]), and its group has %d", name,
                       peer, world);
    return HL_OK;
}
