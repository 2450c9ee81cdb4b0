/* Which rank is in which pod. */
#include <string.h>

#include "controller/kube/gangs_private.h"

hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out)
{
    if (hl_volcano_is_ascend(&g->volcano) && strcmp(spec->rank_table, "v2") != 0)
        return hl_fail(HL_EINVAL,
                       "job '%s': rankTable: on huawei.com devices helios-ranktable writes the "
                       "table, in the format of its own option --json; remove the key",
                       spec->name);
    return hl_volcano_plan(spec, job_id, attempt, &g->volcano, out);
}

const struct hl_plan *gangs_plan_of(const struct job *j, int attempt, struct hl_plan **made)
{
    if (attempt == j->run.containers_attempt)
        return j->run.plan;
    if (gangs_plan(j->controller->gangs, &j->spec, j->id, attempt, made) != HL_OK)
        return NULL;
    return *made;
}
