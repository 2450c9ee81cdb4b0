/* core/job/podspec.h - the section `kubernetes` of a job file: additions to the pods that Helios
 * creates for the job.
 *
 *     queue             Volcano's queue, instead of the option kube.queue
 *     networkTopology   of the Volcano Job: {mode: hard|soft, highestTierAllowed: N}
 *     podTemplate       a core/v1 PodTemplateSpec; its container `rank` stands for each
 *                       rank's, or for that of all ranks of a pod (volcano/command.h)
 *
 * Only fields that Helios does not set itself are accepted. Their contents (say, the terms of an
 * affinity) are validated by the API server. Source: core/v1 PodSpec; batch.volcano.sh/v1alpha1
 * JobSpec.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  the fault names the place and what to write instead.
 * Units:   none.
 * Limits:  what fits into one Volcano Job (volcano/gang.h).
 */
#ifndef HL_CORE_JOB_PODSPEC_H
#define HL_CORE_JOB_PODSPEC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define HL_PODSPEC_RANK "rank" /* the template's container that stands for all ranks */

/* What the cluster allows. */
struct hl_podspec_rules {
    const char *device;     /* resource name of a GPU or NPU, which Helios requests; "" = none */
    const char *host_paths; /* host directories that pods may mount, comma-separated; "" = none */
    bool no_volcano;        /* gangs are started with Kubernetes's own PodGroups */
};

struct hl_podspec_fault {
    char field[256], pointer[512]; /* below the job: "kubernetes.queue", "/kubernetes/queue" */
    bool of_key;
    char text[400];
};

/* Checks a job's section `kubernetes`. False: *fault says why. */
bool hl_podspec_check(const json_t *section, const struct hl_podspec_rules *rules,
                      struct hl_podspec_fault *fault);
/* The path lies in one of the directories; a path with ".." never does. n: length of the path. */
bool hl_podspec_may_mount(const char *host_paths, const char *path, size_t n);

/* Merges one document into another: objects key by key, lists are appended, anything else is
 * replaced. False: out of memory. */
bool hl_podspec_merge(json_t *into, const json_t *from);
/* The template's metadata, its pod spec, and its container `rank`; NULL = absent. Borrowed. */
const json_t *hl_podspec_metadata(const json_t *section);
const json_t *hl_podspec_spec(const json_t *section);
const json_t *hl_podspec_rank(const json_t *section);

#endif
