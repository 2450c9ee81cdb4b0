#include <stdlib.h>

#include "maco/plan/plan_private.h"

void maco_plan_free(maco_plan *p)
{
    if (p == NULL)
        return;
    free(p->tasks);
    free(p->events);
    free(p->id);
    free(p->worker);
    free(p->priority);
    free(p->list);
    free(p->first_of_list);
    free(p->comm);
    free(p->turns);
    free(p->names);
    free(p->calls);
    hl_maco_csr_fini(&p->parents);
    free(p);
}

const maco_plan_view *maco_plan_read(const maco_plan *p)
{
    return &p->view;
}

hl_status hl_maco_plan_function(const maco_plan *p, uint64_t user, maco_function *f, void **arg)
{
    if (user >= p->n_calls)
        return hl_fail(HL_EINVAL, "the plan has %zu functions, so none has the number %llu",
                       p->n_calls, (unsigned long long)user);
    *f = p->calls[user].function;
    *arg = p->calls[user].arg;
    return HL_OK;
}

const uint32_t *hl_maco_plan_parents(const maco_plan *p, uint32_t task, uint32_t *n)
{
    *n = p->parents.first[task + 1] - p->parents.first[task];
    return p->parents.item + p->parents.first[task];
}

const char *hl_maco_plan_name(const maco_plan *p, uint32_t task)
{
    return p->names + p->tasks[task].name;
}

uint64_t hl_maco_plan_serial(const maco_plan *p)
{
    return p->serial;
}
