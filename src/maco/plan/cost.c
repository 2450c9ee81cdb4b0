/* Estimates what a task costs, for balance among tasks without a known cost: the larger of its work
 * at a rate and its bytes at a rate. Only ratios matter; a caller that knows better sets
 * cost_ns. */
#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

#define FLOPS_PER_NS 32.0
#define BYTES_PER_NS 8.0
#define LEAST_NS     50.0
#define CUSTOM_NS    1000

static double task_flops(const maco_task *t)
{
    const int32_t *d = t->dims;
    if (t->type == MACO_TASK_MATMUL || t->type == MACO_TASK_LINEAR)
        return 2.0 * d[0] * d[1] * d[2];
    if (t->type == MACO_TASK_ATTENTION)
        return 4.0 * d[0] * d[1] * d[3] * d[4] * d[5] / (d[6] ? 2 : 1);
    if (t->type >= MACO_TASK_LAYERNORM && t->type <= MACO_TASK_RMSNORM)
        return 64.0 * d[0] * d[1]; /* exp, erf and division count as 64 operations */
    return 0;
}

static double task_bytes(const maco_task *t)
{
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    double sum = 0;
    for (int n = hl_maco_operands(t, o); n-- > 0;)
        sum += (double)o[n].rows * (double)o[n].cols * o[n].elem * (o[n].reads + o[n].writes);
    return sum;
}

uint64_t hl_maco_cost(const maco_task *t)
{
    if (t->cost_ns != 0)
        return t->cost_ns;
    if (t->type == MACO_TASK_NOP)
        return 0;
    if (t->type == MACO_TASK_CUSTOM_COMPUTE || t->type == MACO_TASK_CUSTOM_COMM)
        return CUSTOM_NS;
    double work = task_flops(t) / FLOPS_PER_NS, moved = task_bytes(t) / BYTES_PER_NS;
    double ns = LEAST_NS + (work > moved ? work : moved);
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

void hl_maco_plan_heights(const maco_plan *p, uint64_t *height)
{
    for (uint32_t t = p->view.n_tasks; t-- > 0;) {
        const maco_event *e = &p->events[p->tasks[t].trigger_event];
        uint64_t most = 0, own = hl_maco_cost(&p->tasks[t]);
        for (uint32_t i = e->first; i < e->last; i++)
            most = height[i] > most ? height[i] : most;
        height[t] = own > UINT64_MAX - most ? UINT64_MAX : own + most;
    }
}
