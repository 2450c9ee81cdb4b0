/* volcano/podgroup.h - a gang without Volcano: a PodGroup of Kubernetes, the gang's pods, and the
 * service through which they find each other.
 *
 * They are made from the Volcano Job's document (gang.h), so that pods are the same either way.
 * Like the Volcano Job, the PodGroup is the gang's root: Kubernetes deletes all other objects with
 * it. Source: scheduling.k8s.io PodGroup (KEP-4671, KEP-5832), core/v1 Pod.spec.schedulingGroup.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  NULL: out of memory.
 * Units:   none.
 * Limits:  HL_VOLCANO_RANKS_MAX only, because each pod is a separate object.
 */
#ifndef HL_VOLCANO_PODGROUP_H
#define HL_VOLCANO_PODGROUP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* How Kubernetes names a gang's root. Static texts. */
struct hl_gang_root {
    char api[64]; /* "batch.volcano.sh/v1alpha1" */
    const char *kind, *plural, *word;
};

/* version: of scheduling.k8s.io; "" = a Volcano Job. */
struct hl_gang_root hl_gang_root(const char *version);

/* What can start gangs, in order of preference: Volcano (""), which has queues and knows networks;
 * then the versions of PodGroups, the newest first. */
#define HL_GANG_ENGINES 4
extern const char *const hl_gang_versions[HL_GANG_ENGINES];
/* "volcano", or the version, as in the option kube.podgroups. Borrowed. */
const char *hl_gang_engine_name(const char *version);
/* The member of hl_gang_versions with that name; NULL = none. */
const char *hl_gang_version_of(const char *name);
/* Whether the cluster serves the root. list: the APIResourceList of the root's group and
 * version. */
bool hl_gang_is_served(const struct hl_gang_root *root, const json_t *list);
/* Chooses one that is served: `kept`, an earlier choice (NULL = none), or otherwise the preferred
 * one. NULL = none is served. */
const char *hl_gang_choose(const bool served[HL_GANG_ENGINES], const char *kept);

/* job: the Volcano Job's document. These return new references. */
json_t *hl_podgroup_of(const json_t *job, const char *version);
/* uid: of the PodGroup. */
json_t *hl_podgroup_service(const json_t *job, const char *version, const char *uid);
/* All pods of the gang, as a list. */
json_t *hl_podgroup_pods(const json_t *job, const char *version, const char *uid);

/* Writes why the gang of a PodGroup waits, as the scheduler reports it; "" = it doesn't wait.
 * group: NULL is allowed. */
void hl_podgroup_waits(const json_t *group, char *out, size_t cap);

#endif
