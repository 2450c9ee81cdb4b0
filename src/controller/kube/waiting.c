/* What a gang that is not up waits for: Volcano reports it in the conditions of its PodGroup,
 * Kubernetes in those of its pods. */
#include <stdio.h>
#include <string.h>

#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"

const char *gang_of_group(const json_t *group)
{
    const json_t *owners = json_object_get(json_object_get(group, "metadata"), "ownerReferences"),
                 *o;
    size_t i;
    json_array_foreach (owners, i, o) {
        const char *kind, *name;
        if (object_text_if_any(o, "kind", &kind) == HL_OK && strcmp(kind, "Job") == 0 &&
            object_text(o, "name", &name) == HL_OK)
            return name;
    }
    return NULL;
}

/* Takes the first pod that gives a reason. */
static void pod_waits_for(const struct job *j, char *out, size_t cap)
{
    out[0] = '\0';
    for (int i = 0; i < j->run.container_count && out[0] == '\0'; i++) {
        const json_t *pod = gang_pod(j, i);
        struct hl_volcano_pod p;
        if (pod == NULL)
            continue;
        gang_pod_read(j, i, pod, &p);
        if (p.state == HL_API_CONTAINER_STATE_WANTED && p.message[0] != '\0')
            snprintf(out, cap, "%.60s: %.180s", j->run.plan->containers[i].node, p.message);
    }
}

void gang_waits_for(const struct job *j, char *out, size_t cap)
{
    const struct gangs *g = j->controller->gangs;
    char name[HL_VOLCANO_NAME_MAX], group[HL_JOB_TEXT_MAX], pod[HL_JOB_TEXT_MAX];
    out[0] = '\0';
    if (g == NULL || j->run.state != HL_API_JOB_STATE_STARTING)
        return;
    hl_volcano_job_name(j->id, j->run.attempt, name);
    if (g->podgroups[0] != '\0')
        hl_podgroup_waits(hl_kube_table_find(&g->jobs, name), group, sizeof(group));
    else
        hl_volcano_group_waits(hl_kube_table_find(&g->groups, name), group, sizeof(group));
    pod_waits_for(j, pod, sizeof(pod));
    snprintf(out, cap, "%s%s%s", group, group[0] != '\0' && pod[0] != '\0' ? "; " : "", pod);
}
