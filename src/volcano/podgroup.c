#include "volcano/podgroup.h"

#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "volcano/gang.h"

struct hl_gang_root hl_gang_root(const char *version)
{
    struct hl_gang_root root = {"batch.volcano.sh/v1alpha1", "Job", "jobs", "Volcano Job"};
    if (version[0] == '\0')
        return root;
    root = (struct hl_gang_root){.kind = "PodGroup", .plural = "podgroups", .word = "PodGroup"};
    snprintf(root.api, sizeof(root.api), "scheduling.k8s.io/%.32s", version);
    return root;
}

const char *const hl_gang_versions[HL_GANG_ENGINES] = {"", "v1beta1", "v1alpha3", "v1alpha2"};

const char *hl_gang_engine_name(const char *version)
{
    return version[0] != '\0' ? version : "volcano";
}

const char *hl_gang_version_of(const char *name)
{
    for (size_t i = 0; i < HL_GANG_ENGINES; i++)
        if (strcmp(hl_gang_engine_name(hl_gang_versions[i]), name) == 0)
            return hl_gang_versions[i];
    return NULL;
}

bool hl_gang_is_served(const struct hl_gang_root *root, const json_t *list)
{
    size_t i;
    const json_t *resource;
    json_array_foreach (hl_json_list(list, "resources"), i, resource)
        if (strcmp(hl_json_str(resource, "name", ""), root->plural) == 0)
            return true;
    return false;
}

const char *hl_gang_choose(const bool served[HL_GANG_ENGINES], const char *kept)
{
    const char *first = NULL;
    for (size_t i = HL_GANG_ENGINES; i-- > 0;) {
        if (!served[i])
            continue;
        if (kept != NULL && strcmp(hl_gang_versions[i], kept) == 0)
            return hl_gang_versions[i];
        first = hl_gang_versions[i];
    }
    return first;
}

static const json_t *metadata_of(const json_t *job)
{
    return json_object_get(job, "metadata");
}

static const char *name_of(const json_t *job)
{
    return hl_json_str(metadata_of(job), "name", "");
}

static json_t *owners_of(const json_t *job, const char *version, const char *uid)
{
    const struct hl_gang_root root = hl_gang_root(version);
    return json_pack("[{s:s s:s s:s s:s}]", "apiVersion", root.api, "kind", root.kind, "name",
                     name_of(job), "uid", uid);
}

json_t *hl_podgroup_of(const json_t *job, const char *version)
{
    const struct hl_gang_root root = hl_gang_root(version);
    const json_t *spec = json_object_get(job, "spec");
    const char *class = hl_json_str(spec, "priorityClassName", "");
    json_t *group =
        json_pack("{s:s s:s s:o s:{s:{s:{s:O}}}}", "apiVersion", root.api, "kind", root.kind,
                  "metadata", json_deep_copy(metadata_of(job)), "spec", "schedulingPolicy", "gang",
                  "minCount", json_object_get(spec, "minAvailable"));
    if (group != NULL && class[0] != '\0')
        json_object_set_new(json_object_get(group, "spec"), "priorityClassName",
                            json_string(class));
    return group;
}

/* A service with the Job's name, as Volcano's svc plugin makes it: a pod resolves as NAME.JOB
 * before it is ready. */
json_t *hl_podgroup_service(const json_t *job, const char *version, const char *uid)
{
    json_t *metadata = json_deep_copy(metadata_of(job));
    if (metadata == NULL)
        return NULL;
    json_object_set_new(metadata, "ownerReferences", owners_of(job, version, uid));
    return json_pack("{s:s s:s s:o s:{s:s s:b s:O}}", "apiVersion", "v1", "kind", "Service",
                     "metadata", metadata, "spec", "clusterIP", "None", "publishNotReadyAddresses",
                     1, "selector", json_object_get(metadata_of(job), "labels"));
}

static json_t *pod_of(const json_t *job, const json_t *task, int replica, const char *version,
                      const char *uid)
{
    char name[HL_VOLCANO_NAME_MAX + 32];
    json_t *pod = json_deep_copy(json_object_get(task, "template"));
    json_t *metadata = json_object_get(pod, "metadata"), *spec = json_object_get(pod, "spec");
    if (pod == NULL)
        return NULL;
    snprintf(name, sizeof(name), "%s-%s-%d", name_of(job), hl_json_str(task, "name", ""), replica);
    json_object_set_new(pod, "apiVersion", json_string("v1"));
    json_object_set_new(pod, "kind", json_string("Pod"));
    json_object_set_new(metadata, "name", json_string(name));
    json_object_set(metadata, "namespace", json_object_get(metadata_of(job), "namespace"));
    json_object_set_new(metadata, "ownerReferences", owners_of(job, version, uid));
    json_object_del(spec, "schedulerName"); /* uses the cluster's own scheduler */
    json_object_set_new(spec, "hostname", json_string(name));
    json_object_set_new(spec, "subdomain", json_string(name_of(job)));
    json_object_set_new(spec, "schedulingGroup", json_pack("{s:s}", "podGroupName", name_of(job)));
    return pod;
}

json_t *hl_podgroup_pods(const json_t *job, const char *version, const char *uid)
{
    json_t *list = json_array();
    size_t i;
    const json_t *task;
    json_array_foreach (hl_json_list(json_object_get(job, "spec"), "tasks"), i, task) {
        int pods = (int)hl_json_int(task, "replicas", 0);
        for (int k = 0; k < pods; k++)
            if (json_array_append_new(list, pod_of(job, task, k, version, uid)) != 0) {
                json_decref(list);
                return NULL;
            }
    }
    return list;
}

/* Older versions call the condition PodGroupScheduled instead of PodGroupInitiallyScheduled. */
void hl_podgroup_waits(const json_t *group, char *out, size_t cap)
{
    const json_t *status = json_object_get(group, "status"), *c;
    size_t i;
    out[0] = '\0';
    json_array_foreach (hl_json_list(status, "conditions"), i, c) {
        const char *type = hl_json_str(c, "type", "");
        if ((strcmp(type, "PodGroupInitiallyScheduled") == 0 ||
             strcmp(type, "PodGroupScheduled") == 0) &&
            strcmp(hl_json_str(c, "status", ""), "False") == 0)
            snprintf(out, cap, "%.60s: %.300s", hl_json_str(c, "reason", ""),
                     hl_json_str(c, "message", ""));
    }
}
