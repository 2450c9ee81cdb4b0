/* volcano/kubelet.h - how a kubelet places a pod on NUMA nodes, according to a
 * NodeResourceTopology.
 *
 * Node Feature Discovery's topology updater maintains one such object per node, under the node's
 * name. So the kubelet itself need not be asked: that would require a right that also allows
 * running commands in every pod. Source: topology.node.k8s.io/v1alpha2; NFD 0.13 and later.
 *
 * Owns:    nothing; texts are borrowed from the object.
 * Threads: any. Pure.
 * Errors:  none; an object without these attributes counts as absent.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_VOLCANO_KUBELET_H
#define HL_VOLCANO_KUBELET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define HL_VOLCANO_TOPOLOGIES "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

struct hl_kubelet {
    const char *policy,
        *scope; /* of its topology manager: "single-numa-node", "pod"; "" = unknown */
};

/* object: NULL is allowed. */
struct hl_kubelet hl_kubelet_read(const json_t *object);
/* Writes why a pod's ranks may be on several NUMA nodes; "" = they are not, or it is not known.
 * several: the pod has more than one container. */
void hl_kubelet_spreads(const struct hl_kubelet *k, bool several, char *out, size_t cap);

#endif
