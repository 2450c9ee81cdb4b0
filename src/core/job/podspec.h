/* core/job/podspec.h - the section `kubernetes` of a job file: what the job's pods have beside what
 * Helios gives them.
 *
 *     queue             Volcano's queue, instead of the option kube.queue
 *     networkTopology   of the Volcano Job: {mode: hard|soft, highestTierAllowed: N}
 *     podTemplate       a core/v1 PodTemplateSpec; its container `rank` stands for each
 *                       rank's, or for that of all ranks of a pod (volcano/command.h)
 *
 * Only fields that Helios does not set itself are taken. What is inside of them (an affinity's
 * terms) the API server judges. Source: core/v1 PodSpec; batch.volcano.sh/v1alpha1 JobSpec.
 *
 * Owns:    nothing; documents belong to the caller.
 * Threads: any. Pure.
 * Errors:  the fault names the place, and what to write instead.
 * Units:   none.
 * Limits:  what one Volcano Job holds (volcano/gang.h).
 */
#ifndef HL_CORE_JOB_PODSPEC_H
#define HL_CORE_JOB_PODSPEC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define HL_PODSPEC_RANK "rank" /* the container of the template that all ranks are */

/* What the cluster allows. */
struct hl_podspec_rules {
    const char *device;     /* resource of one GPU or NPU, which Helios asks for; "" = none */
    const char *host_paths; /* directories of nodes that pods may mount, by commas; "" = none */
    bool no_volcano;        /* it starts gangs by PodGroups of Kubernetes */
};

struct hl_podspec_fault {
    char field[256], pointer[512]; /* below the job: "kubernetes.queue", "/kubernetes/queue" */
    bool of_key;
    char text[400];
};

/* False: *fault says why. The section is a job's `kubernetes`. */
bool hl_podspec_check(const json_t *section, const struct hl_podspec_rules *rules,
                      struct hl_podspec_fault *fault);
/* The path lies in one of the directories; one with ".." lies nowhere. n: bytes of it. */
bool hl_podspec_may_mount(const char *host_paths, const char *path, size_t n);

/* Merges one document into another: objects key by key, lists are appended, anything else is
 * replaced. False: out of memory. */
bool hl_podspec_merge(json_t *into, const json_t *from);
/* The template's member of its spec or of its container `rank`, NULL = it has none. Borrowed. */
const json_t *hl_podspec_metadata(const json_t *section);
const json_t *hl_podspec_spec(const json_t *section);
const json_t *hl_podspec_rank(const json_t *section);

#endif
