#include "ranktable/pod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "core/json.h"
#include "ranktable/annotation.h"
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

static const char *pod_label(const json_t *pod, const char *key)
{
    return hl_json_str(json_object_get(object_meta(pod), "labels"), key, NULL);
}

/* Volcano says the same in both; which one depends on its version. */
static const char *pod_mark(const json_t *pod, const char *key)
{
    const char *s = hl_json_str(json_object_get(object_meta(pod), "annotations"), key, NULL);
    return s != NULL ? s : pod_label(pod, key);
}

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a pod");
}

static hl_status copy_text(const char *from, char **to)
{
    *to = from != NULL ? strdup(from) : NULL;
    return from == NULL || *to != NULL ? HL_OK : no_memory();
}

static const char *job_of(const json_t *pod)
{
    static const char *const keys[] = {"volcano.sh/job-name", "deploy-name", "job-name"};
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        if (pod_label(pod, keys[i]) != NULL)
            return pod_label(pod, keys[i]);
    return NULL;
}

/* A container of it asks for devices. */
static bool asks_for_devices(const json_t *pod)
{
    static const char prefix[] = "huawei.com/";
    const json_t *container, *amount;
    const char *resource;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(pod, "spec"), "containers"), i, container) {
        const json_t *limits = json_object_get(json_object_get(container, "resources"), "limits");
        json_object_foreach ((json_t *)limits, resource, amount) {
            const char *text = json_string_value(amount);
            if (strncmp(resource, prefix, strlen(prefix)) == 0 &&
                (text == NULL || strcmp(text, "0") != 0))
                return true;
        }
    }
    return false;
}

static int64_t parse_number(const char *s)
{
    uint64_t number;
    return s != NULL && hl_parse_number(s, 999999, &number) ? (int64_t)number : -1;
}

static void read_numbers(const json_t *from, struct hl_ranktable_pod *p)
{
    const char *version = pod_mark(from, "volcano.sh/job-version");
    const char *dash = strrchr(p->instance.name, '-');
    uint64_t number = 0;
    p->has_version = version != NULL;
    int known = version == NULL || hl_parse_number(version, INT64_MAX, &number);
    p->version = known ? (int64_t)number : -1;
    p->task_index = parse_number(pod_mark(from, "volcano.sh/task-index"));
    if (p->task_index < 0 && dash != NULL)
        p->task_index = parse_number(dash + 1);
    p->index = parse_number(pod_mark(from, "batch.kubernetes.io/job-completion-index"));
}

static hl_status read_owners(const json_t *from, struct hl_ranktable_pod *p)
{
    struct hl_buf text = HL_BUF(65536);
    const json_t *owner;
    size_t i;
    hl_buf_printf(&text, "\n");
    json_array_foreach (hl_json_list(object_meta(from), "ownerReferences"), i, owner)
        hl_buf_printf(&text, "%s\n", hl_json_str(owner, "uid", ""));
    hl_status st = text.failed ? no_memory() : copy_text(text.data, &p->owners);
    hl_buf_fini(&text);
    return st;
}

static hl_status read_texts(const json_t *from, struct hl_ranktable_pod *p)
{
    const json_t *gone = json_object_get(object_meta(from), "deletionTimestamp");
    const char *phase = hl_json_str(json_object_get(from, "status"), "phase", "");
    p->gone = (gone != NULL && !json_is_null(gone)) || strcmp(phase, "Failed") == 0;
    snprintf(p->born, sizeof(p->born), "%.31s",
             hl_json_str(object_meta(from), "creationTimestamp", ""));
    HL_TRY(copy_text(hl_json_str(object_meta(from), "uid", ""), &p->uid));
    HL_TRY(copy_text(hl_json_str(object_meta(from), "namespace", ""), &p->ns));
    HL_TRY(copy_text(job_of(from), &p->job));
    HL_TRY(copy_text(pod_label(from, HL_RANKTABLE_LABEL), &p->label));
    HL_TRY(copy_text(pod_mark(from, "volcano.sh/task-spec"), &p->task));
    return read_owners(from, p);
}

static hl_status read_pod(const json_t *from, struct hl_ranktable_pod *p)
{
    HL_TRY(read_texts(from, p));
    p->st = hl_ranktable_annotation(from, &p->instance);
    if (p->st == HL_ENOENT && !asks_for_devices(from))
        p->st = HL_OK;
    if (p->st == HL_OK)
        p->st = hl_ranktable_wanted_index(from, &p->instance.rank_index);
    if (p->st == HL_ENOMEM)
        return p->st;
    if (p->st != HL_OK)
        HL_TRY(copy_text(hl_error_text(), &p->reason));
    snprintf(p->instance.name, sizeof(p->instance.name), "%s",
             hl_json_str(object_meta(from), "name", ""));
    read_numbers(from, p);
    return HL_OK;
}

hl_status hl_ranktable_pod_read(const json_t *from, struct hl_ranktable_pod **out)
{
    struct hl_ranktable_pod *p = calloc(1, sizeof(*p));
    hl_status st = p != NULL ? read_pod(from, p) : no_memory();
    if (st != HL_OK) {
        hl_ranktable_pod_free(p);
        return no_memory();
    }
    *out = p;
    return HL_OK;
}

void hl_ranktable_pod_free(struct hl_ranktable_pod *p)
{
    if (p == NULL)
        return;
    hl_ranktable_instance_fini(&p->instance);
    free(p->uid);
    free(p->ns);
    free(p->job);
    free(p->label);
    free(p->task);
    free(p->owners);
    free(p->reason);
    free(p);
}

/* ---- comparing ------------------------------------------------------------------------------- */

int hl_ranktable_pod_order(const struct hl_ranktable_pod *a, const struct hl_ranktable_pod *b)
{
    int order = strcmp(a->born, b->born);
    return order != 0 ? order : strcmp(a->instance.name, b->instance.name);
}

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_device(const struct hl_ranktable_device *a, const struct hl_ranktable_device *b)
{
    return same_text(a->id, b->id) && same_text(a->ip, b->ip) &&
           same_text(a->super_id, b->super_id) &&
           (a->levels == b->levels || json_equal(a->levels, b->levels));
}

static bool same_instance(const struct hl_ranktable_instance *a,
                          const struct hl_ranktable_instance *b)
{
    if (!same_text(a->name, b->name) || !same_text(a->server_id, b->server_id) ||
        !same_text(a->host_ip, b->host_ip) || !same_text(a->container_ip, b->container_ip) ||
        !same_text(a->hardware_type, b->hardware_type) ||
        !same_text(a->super_pod_id, b->super_pod_id) || a->rank_index != b->rank_index ||
        a->device_count != b->device_count)
        return false;
    for (size_t i = 0; i < a->device_count; i++)
        if (!same_device(&a->devices[i], &b->devices[i]))
            return false;
    return true;
}

bool hl_ranktable_pod_equal(const struct hl_ranktable_pod *a, const struct hl_ranktable_pod *b)
{
    return same_text(a->uid, b->uid) && same_text(a->ns, b->ns) && same_text(a->job, b->job) &&
           same_text(a->label, b->label) && same_text(a->task, b->task) &&
           same_text(a->owners, b->owners) && same_text(a->born, b->born) && a->gone == b->gone &&
           a->has_version == b->has_version && a->version == b->version &&
           a->task_index == b->task_index && a->index == b->index && a->st == b->st &&
           same_text(a->reason, b->reason) && same_instance(&a->instance, &b->instance);
}
