/* Decides which rank goes into which pod. */
#include <string.h>

#include "controller/kube/gangs_private.h"
#include "ranktable/products.h"

/* A pod that requests another number of devices would wait for ever, because no node offers it. */
static hl_status check_devices(const struct gangs *g, const struct hl_job *spec,
                               const struct hl_plan *plan)
{
    const struct hl_ranktable_product *p = hl_ranktable_product_find(g->accelerator);
    if (!hl_volcano_is_ascend(&g->volcano) || p == NULL)
        return HL_OK;
    for (int i = 0; i < plan->container_count; i++) {
        int devices = plan->containers[i].rank_count;
        if (!hl_ranktable_product_gives(p, (uint64_t)devices, plan->container_count == 1))
            return hl_fail(HL_EINVAL,
                           "job '%s': a pod of it has %d devices, which %s does not give%s; set "
                           "resources.ranks_per_slot",
                           spec->name, devices, p->type,
                           plan->container_count == 1 ? "" : " to one of several pods");
    }
    return HL_OK;
}

hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out)
{
    if (hl_volcano_is_ascend(&g->volcano) && strcmp(spec->rank_table, "v2") != 0)
        return hl_fail(HL_EINVAL,
                       "job '%s': rankTable: on huawei.com devices helios-ranktable writes the "
                       "table, in the format of its own option --json; remove the key",
                       spec->name);
    struct hl_volcano_opts opts = g->volcano;
    struct hl_volcano_kubelets kubelets;
    gangs_kubelets(g, &kubelets);
    opts.kubelets = &kubelets;
    HL_TRY(hl_volcano_plan(spec, job_id, attempt, &opts, out));
    hl_status st = check_devices(g, spec, *out);
    if (st != HL_OK) {
        hl_plan_free(*out);
        *out = NULL;
    }
    return st;
}

const struct hl_plan *gangs_plan_of(const struct job *j, int attempt, struct hl_plan **made)
{
    if (attempt == j->run.containers_attempt)
        return j->run.plan;
    if (gangs_plan(j->controller->gangs, &j->spec, j->id, attempt, made) != HL_OK)
        return NULL;
    return *made;
}
