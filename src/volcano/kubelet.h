/* volcano/kubelet.h - how kubelets place a pod on NUMA nodes, as a NodeResourceTopology says it.
 *
 * Node Feature Discovery's topology updater keeps one such object for each node, of the node's
 * name. So nobody has to ask a kubelet itself, which takes a right by which one may also run
 * commands in every pod. Source: topology.node.k8s.io/v1alpha2; NFD 0.13 and later.
 *
 * Owns:    nothing; texts are borrowed from the object.
 * Threads: any. Pure.
 * Errors:  none; an object that says nothing of it is one that was not there.
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
        *scope; /* of its topology manager: "single-numa-node", "pod"; "" = unsaid */
};

/* object may be NULL. */
struct hl_kubelet hl_kubelet_read(const json_t *object);
/* Why a pod's ranks may be on several NUMA nodes; "" = they are not, or it is not known. several:
 * it has more than one container. Into cap bytes. */
void hl_kubelet_spreads(const struct hl_kubelet *k, bool several, char *out, size_t cap);

#endif
