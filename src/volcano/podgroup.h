/* volcano/podgroup.h - a gang without Volcano: a PodGroup of Kubernetes, the gang's pods, and the
 * service by which they find each other.
 *
 * They are made from the Volcano Job's document (gang.h), so that a pod is the same either way. The
 * PodGroup is the gang's root, as the Volcano Job is: what Kubernetes deletes with it.
 * Source: scheduling.k8s.io PodGroup (KEP-4671, KEP-5832), core/v1 Pod.spec.schedulingGroup.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  NULL: out of memory.
 * Units:   none.
 * Limits:  a pod is an object of its own: no limit but HL_VOLCANO_RANKS_MAX.
 */
#ifndef HL_VOLCANO_PODGROUP_H
#define HL_VOLCANO_PODGROUP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* What a gang's root is to Kubernetes. Static texts. */
struct hl_gang_root {
    char api[64]; /* "batch.volcano.sh/v1alpha1" */
    const char *kind, *plural, *word;
};

/* version: of scheduling.k8s.io; "" = a Volcano Job. */
struct hl_gang_root hl_gang_root(const char *version);

/* What can start gangs, the preferred one first: Volcano (""), which has queues and knows networks;
 * then the versions of PodGroups, the newest first. */
#define HL_GANG_ENGINES 4
extern const char *const hl_gang_versions[HL_GANG_ENGINES];
/* "volcano", or the version: what the option kube.podgroups says. Borrowed. */
const char *hl_gang_engine_name(const char *version);
/* The member of hl_gang_versions of that name, NULL = none. */
const char *hl_gang_version_of(const char *name);
/* list: the APIResourceList of the root's group and version. */
bool hl_gang_is_served(const struct hl_gang_root *root, const json_t *list);
/* Of those that are served: `kept`, an earlier choice (NULL = none), else the preferred one; NULL =
 * none is. */
const char *hl_gang_choose(const bool served[HL_GANG_ENGINES], const char *kept);

/* job: the Volcano Job's document. New references. */
json_t *hl_podgroup_of(const json_t *job, const char *version);
/* uid: the PodGroup's. */
json_t *hl_podgroup_service(const json_t *job, const char *version, const char *uid);
/* All pods of the gang: a list. */
json_t *hl_podgroup_pods(const json_t *job, const char *version, const char *uid);

/* Why the gang of a PodGroup waits, as the scheduler says it; "" = it doesn't. NULL: no group. Into
 * cap bytes. */
void hl_podgroup_waits(const json_t *group, char *out, size_t cap);

#endif
