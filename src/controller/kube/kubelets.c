/* How the cluster's kubelets place pods on NUMA nodes, if that is published (volcano/kubelet.h). No
 * job is refused because of it: a job that runs slower for it says so. */
#include <stdio.h>
#include <string.h>

#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "volcano/kubelet.h"

void gangs_kubelets(const struct gangs *g, struct hl_volcano_kubelets *out)
{
    const char *name;
    json_t *object;
    *out = (struct hl_volcano_kubelets){0};
    json_object_foreach (g->topologies.now, name, object) {
        const struct hl_kubelet k = hl_kubelet_read(object);
        char why[192];
        if (k.policy[0] == '\0' && k.scope[0] == '\0')
            continue;
        out->known++;
        hl_kubelet_spreads(&k, true, why, sizeof(why));
        if (why[0] != '\0' && out->apart++ == 0)
            snprintf(out->why, sizeof(out->why), "node %.60s, %.180s", name, why);
    }
}

void gang_pod_spreads(const struct job *j, const json_t *pod, char *out, size_t cap)
{
    const struct gangs *g = j->controller->gangs;
    const char *node;
    char why[192];
    out[0] = '\0';
    if (!hl_volcano_needs_pod_scope(&j->spec, j->run.plan, &g->volcano) ||
        object_text_if_any(pod, "spec.nodeName", &node) != HL_OK || node[0] == '\0')
        return;
    const struct hl_kubelet k = hl_kubelet_read(hl_kube_table_find(&g->topologies, node));
    hl_kubelet_spreads(&k, true, why, sizeof(why));
    if (why[0] != '\0')
        snprintf(out, cap, "its ranks may be on several NUMA nodes: node %.60s, %.180s", node, why);
}
