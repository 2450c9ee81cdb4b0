/* Reads a pod from JSON. */
#include "ranktable/pod_private.h"

#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "ranktable/object_private.h"

const char *const hl_ranktable_pod_members[] = {
    "metadata",
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
    "labels",
    HL_RANKTABLE_LABEL,
    "volcano.sh/job-name",
    "volcano.sh/task-spec",
    "volcano.sh/task-index",
    "volcano.sh/job-version",
    "deploy-name",
    "job-name",
    "batch.kubernetes.io/job-completion-index",
    "annotations",
    "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
    "atlas.kubectl.kubernetes.io/ascend-910-configuration",
    "hccl/rankIndex",
    "spec",
    "containers",
    "resources",
    "limits*",
    "status",
    "phase",
    "podIP",
    NULL,
};

static struct pod_text text_of(const json_t *value)
{
    return (struct pod_text){json_string_value(value), json_string_length(value)};
}

static void view_marks(const json_t *from, struct pod_text *out)
{
    for (int i = 0; i < POD_KEYS; i++)
        out[i] = text_of(json_object_get(from, pod_keys[i]));
}

static bool asks_for_devices(const json_t *pod)
{
    const json_t *container, *amount;
    const char *resource;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(pod, "spec"), "containers"), i, container) {
        const json_t *limits = json_object_get(json_object_get(container, "resources"), "limits");
        json_object_foreach ((json_t *)limits, resource, amount)
            if (pod_is_device((struct pod_text){resource, strlen(resource)}, text_of(amount)))
                return true;
    }
    return false;
}

static void view_owners(const json_t *meta, struct hl_buf *out)
{
    const json_t *owner;
    size_t i;
    hl_buf_printf(out, "\n");
    json_array_foreach (hl_json_list(meta, "ownerReferences"), i, owner)
        hl_buf_printf(out, "%s\n", hl_json_str(owner, "uid", ""));
}

hl_status hl_ranktable_pod_read(const json_t *from, struct hl_ranktable_pod **out)
{
    const json_t *meta = object_meta(from), *status = json_object_get(from, "status");
    const json_t *deleted = json_object_get(meta, "deletionTimestamp");
    struct pod_view v = POD_VIEW;
    v.name = text_of(json_object_get(meta, "name"));
    v.ns = text_of(json_object_get(meta, "namespace"));
    v.uid = text_of(json_object_get(meta, "uid"));
    v.ip = text_of(json_object_get(status, "podIP"));
    v.gone = (deleted != NULL && !json_is_null(deleted)) ||
             strcmp(hl_json_str(status, "phase", ""), "Failed") == 0;
    v.asks = asks_for_devices(from);
    snprintf(v.born, sizeof(v.born), "%.31s", hl_json_str(meta, "creationTimestamp", ""));
    view_marks(json_object_get(meta, "labels"), v.labels);
    view_marks(json_object_get(meta, "annotations"), v.annotations);
    view_owners(meta, &v.owners);
    return pod_of_view(&v, out);
}
