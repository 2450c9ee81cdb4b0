/* Checks the manifest of a job: what MindCluster's scheduler and device plugin require of its pods,
 * and what is needed for its rank table to be made. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/json.h"
#include "ranktable/lint_private.h"
#include "ranktable/object_private.h"
#include "ranktable/pods.h"
#include "ranktable/products.h"

#define SELECTOR   "accelerator-type"
#define AMOUNT_MAX 64

struct judging {
    struct lint *l;
    const json_t *const *objects;
    size_t count;
    const char *label, *resource; /* required for the chip */
};

/* ---- labels ---------------------------------------------------------------------------------- */

static void lint_label(struct judging *j, const char *place, const json_t *meta)
{
    const char *value = hl_json_str(json_object_get(meta, "labels"), HL_RANKTABLE_LABEL, NULL);
    if (value == NULL)
        lint_say(j->l, place, "the label " HL_RANKTABLE_LABEL ": %s is missing", j->label);
    else if (strcmp(value, j->label) != 0)
        lint_say(j->l, place, "the label " HL_RANKTABLE_LABEL " is %.64s; this chip's is %s", value,
                 j->label);
}

/* ---- devices --------------------------------------------------------------------------------- */

/* NULL: the selector does not tell which product the node is. */
static const struct hl_ranktable_product *lint_selector(struct judging *j, const char *place,
                                                        const json_t *pod)
{
    char known[256];
    const char *type = hl_json_str(json_object_get(pod, "nodeSelector"), SELECTOR, NULL);
    const struct hl_ranktable_product *p = type != NULL ? hl_ranktable_product_find(type) : NULL;
    hl_ranktable_product_list(j->l->chip, known, sizeof(known));
    if (type == NULL && j->l->chip != HL_RANKTABLE_A5)
        lint_say(j->l, place, "nodeSelector has no " SELECTOR ": one of %s", known);
    else if (type != NULL && (p == NULL || p->chip != j->l->chip))
        lint_say(j->l, place, SELECTOR " is %.64s; this chip's are %s", type, known);
    else
        return p;
    return NULL;
}

static uint64_t amount_of(const json_t *amounts, const char *resource)
{
    const json_t *v = json_object_get(amounts, resource);
    uint64_t n = 0;
    if (json_is_integer(v) && json_integer_value(v) > 0)
        return (uint64_t)json_integer_value(v);
    return json_is_string(v) && hl_parse_number(json_string_value(v), AMOUNT_MAX, &n) ? n : 0;
}

static void lint_other_resources(struct judging *j, const char *place, const json_t *limits)
{
    static const char prefix[] = "huawei.com/";
    const char *name;
    const json_t *amount;
    json_object_foreach ((json_t *)limits, name, amount)
        if (strncmp(name, prefix, strlen(prefix)) == 0 && strcmp(name, j->resource) != 0)
            lint_say(j->l, place, "a container requests %.64s; this chip's resource is %s", name,
                     j->resource);
}

/* Checks the devices of a pod and returns their number. One container must have them all, because
 * the device plugin finds a pod by the number of devices that one container requests. */
static uint64_t lint_devices(struct judging *j, const char *place, const json_t *pod)
{
    const json_t *container;
    uint64_t sum = 0;
    size_t i, asking = 0;
    json_array_foreach (hl_json_list(pod, "containers"), i, container) {
        const json_t *all = json_object_get(container, "resources");
        const json_t *limits = json_object_get(all, "limits");
        uint64_t n = amount_of(limits, j->resource);
        uint64_t asked = amount_of(json_object_get(all, "requests"), j->resource);
        if (json_object_get(all, "requests") != NULL && asked != n)
            lint_say(j->l, place, "requests has %llu %s and limits %llu: they must be the same",
                     (unsigned long long)asked, j->resource, (unsigned long long)n);
        lint_other_resources(j, place, limits);
        asking += n > 0;
        sum += n;
    }
    if (asking == 0)
        lint_say(j->l, place, "no container has %s in its limits", j->resource);
    if (asking > 1)
        lint_say(j->l, place,
                 "%zu containers ask for %s: the device plugin gives a pod's devices to one",
                 asking, j->resource);
    return sum;
}

static void lint_template(struct judging *j, const char *place, const json_t *template, bool alone)
{
    const json_t *pod = json_object_get(template, "spec");
    lint_label(j, place, object_meta(template));
    const struct hl_ranktable_product *p = lint_selector(j, place, pod);
    uint64_t devices = lint_devices(j, place, pod);
    if (p == NULL || devices == 0)
        return;
    if (!hl_ranktable_product_gives(p, devices, alone))
        lint_say(j->l, place, "its pods have %llu devices, which %s does not give%s",
                 (unsigned long long)devices, p->type, alone ? "" : " to one of several pods");
}

/* ---- the ConfigMap --------------------------------------------------------------------------- */

static bool mounts_map(const json_t *template, const char *map)
{
    const json_t *v;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(template, "spec"), "volumes"), i, v)
        if (strcmp(hl_json_str(json_object_get(v, "configMap"), "name", ""), map) == 0)
            return true;
    return false;
}

static void lint_map(struct judging *j, const char *name)
{
    char place[LINT_PLACE_MAX];
    for (size_t i = 0; i < j->count; i++) {
        const json_t *o = j->objects[i];
        if (strcmp(hl_json_str(o, "kind", ""), "ConfigMap") != 0 ||
            strcmp(hl_json_str(object_meta(o), "name", ""), name) != 0)
            continue;
        snprintf(place, sizeof(place), "ConfigMap %.100s", name);
        lint_label(j, place, object_meta(o));
        if (hl_json_str(json_object_get(o, "data"), HL_RANKTABLE_KEY, NULL) == NULL)
            lint_say(j->l, place,
                     "data has no " HL_RANKTABLE_KEY ": pods that start before the table find no "
                     "file");
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void lint_tasks(struct judging *j, const char *name, const json_t *job, const char *map)
{
    char place[LINT_PLACE_MAX];
    const json_t *spec = json_object_get(job, "spec"), *task;
    int64_t pods = 0;
    size_t i;
    json_array_foreach (hl_json_list(spec, "tasks"), i, task)
        pods += hl_json_int(task, "replicas", 1);
    if (hl_json_int(spec, "minAvailable", pods) != pods)
        lint_say(j->l, name, "minAvailable is %lld, and its tasks have %lld pods: ranks would wait",
                 (long long)hl_json_int(spec, "minAvailable", 0), (long long)pods);
    json_array_foreach (hl_json_list(spec, "tasks"), i, task) {
        const json_t *template = json_object_get(task, "template");
        snprintf(place, sizeof(place), "%.80s, tasks[%zu]", name, i);
        lint_template(j, place, template, pods == 1);
        if (!mounts_map(template, map))
            lint_say(j->l, place, "no volume has the ConfigMap %.100s: pods could not read it",
                     map);
    }
}

static bool lint_one(struct judging *j, const json_t *job)
{
    char name[LINT_PLACE_MAX], map[256];
    const char *kind = hl_json_str(job, "kind", ""), *api = hl_json_str(job, "apiVersion", "");
    bool is_volcano = strncmp(api, "batch.volcano.sh/", 17) == 0 && strcmp(kind, "Job") == 0;
    bool is_batch = strcmp(api, "batch/v1") == 0 && strcmp(kind, "Job") == 0;
    if (!is_volcano && !is_batch && strcmp(kind, "Deployment") != 0)
        return false;
    const json_t *spec = json_object_get(job, "spec"),
                 *template = json_object_get(spec, "template");
    int64_t pods = hl_json_int(spec, is_batch ? "parallelism" : "replicas", 1);
    snprintf(name, sizeof(name), "%s %.80s", kind, hl_json_str(object_meta(job), "name", ""));
    hl_ranktable_config_map(job, map, sizeof(map));
    lint_label(j, name, object_meta(job));
    if (is_volcano)
        lint_tasks(j, name, job, map);
    else
        lint_template(j, name, template, pods == 1);
    if (!is_volcano && !mounts_map(template, map))
        lint_say(j->l, name, "no volume has the ConfigMap %.100s: pods could not read it", map);
    lint_map(j, map);
    return true;
}

void lint_objects(struct lint *l, const json_t *const *objects, size_t count)
{
    struct judging j = {.l = l,
                        .objects = objects,
                        .count = count,
                        .label = l->chip == HL_RANKTABLE_A5 ? "ascend-npu" : "ascend-910b",
                        .resource =
                            l->chip == HL_RANKTABLE_A5 ? "huawei.com/npu" : "huawei.com/Ascend910"};
    size_t jobs = 0;
    for (size_t i = 0; i < count; i++)
        jobs += lint_one(&j, objects[i]);
    if (jobs == 0)
        lint_say(l, "", "there is no Volcano Job, batch Job or Deployment in it");
}
