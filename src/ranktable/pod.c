/* Makes a pod from the view that the readers of JSON and Protocol Buffers fill in. */
#include "ranktable/pod_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/json.h"
#include "ranktable/annotation.h"

const char *const pod_keys[POD_KEYS] = {
    [KEY_DEVICES] = "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    [KEY_DEVICES_NPU] = "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
    [KEY_DEVICES_ATLAS] = "atlas.kubectl.kubernetes.io/ascend-910-configuration",
    [KEY_RANK] = "hccl/rankIndex",
    [KEY_LABEL] = HL_RANKTABLE_LABEL,
    [KEY_VOLCANO_JOB] = "volcano.sh/job-name",
    [KEY_DEPLOYMENT] = "deploy-name",
    [KEY_BATCH_JOB] = "job-name",
    [KEY_TASK] = "volcano.sh/task-spec",
    [KEY_TASK_INDEX] = "volcano.sh/task-index",
    [KEY_VERSION] = "volcano.sh/job-version",
    [KEY_INDEX] = "batch.kubernetes.io/job-completion-index",
};

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a pod");
}

bool pod_is_device(struct pod_text resource, struct pod_text amount)
{
    static const char prefix[] = "huawei.com/";
    return resource.len >= strlen(prefix) && memcmp(resource.at, prefix, strlen(prefix)) == 0 &&
           !(amount.at != NULL && amount.len == 1 && amount.at[0] == '0');
}

/* Volcano writes it as an annotation or as a label, depending on its version. */
static struct pod_text view_mark(const struct pod_view *v, enum pod_key key)
{
    return v->annotations[key].at != NULL ? v->annotations[key] : v->labels[key];
}

static struct pod_text view_job(const struct pod_view *v)
{
    enum pod_key key = KEY_VOLCANO_JOB;
    while (key < KEY_BATCH_JOB && v->labels[key].at == NULL)
        key++;
    return v->labels[key];
}

/* -1: not a number. */
static int64_t parse_number(struct pod_text from, uint64_t most)
{
    char text[24];
    uint64_t number;
    if (from.at == NULL || from.len >= sizeof(text) || memchr(from.at, 0, from.len) != NULL)
        return -1;
    memcpy(text, from.at, from.len);
    text[from.len] = '\0';
    return hl_parse_number(text, most, &number) ? (int64_t)number : -1;
}

static void read_numbers(const struct pod_view *v, struct hl_ranktable_pod *p)
{
    const char *dash = strrchr(p->instance.name, '-');
    struct pod_text version = view_mark(v, KEY_VERSION);
    p->has_version = version.at != NULL;
    p->version = p->has_version ? parse_number(version, INT64_MAX) : 0;
    p->task_index = parse_number(view_mark(v, KEY_TASK_INDEX), 999999);
    if (p->task_index < 0 && dash != NULL)
        p->task_index = parse_number((struct pod_text){dash + 1, strlen(dash + 1)}, 999999);
    p->index = parse_number(view_mark(v, KEY_INDEX), 999999);
}

/* Copies all texts into one block, which the first of them owns. */
static hl_status read_texts(const struct pod_view *v, struct hl_ranktable_pod *p)
{
    static const struct pod_text none = {"", 0};
    const struct pod_text from[] = {
        v->uid.at != NULL ? v->uid : none,
        v->ns.at != NULL ? v->ns : none,
        view_job(v),
        v->labels[KEY_LABEL],
        view_mark(v, KEY_TASK),
        {v->owners.data != NULL ? v->owners.data : "", v->owners.len},
    };
    char **const to[] = {&p->uid, &p->ns, &p->job, &p->label, &p->task, &p->owners};
    size_t len = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(from); i++)
        len += from[i].len + 1;
    char *at = malloc(len);
    if (at == NULL)
        return no_memory();
    for (size_t i = 0; i < HL_ARRAY_LEN(from); i++) {
        if (from[i].at == NULL)
            continue;
        *to[i] = memcpy(at, from[i].at, from[i].len);
        at[from[i].len] = '\0';
        at += from[i].len + 1;
    }
    return HL_OK;
}

static hl_status read_devices(const struct pod_view *v, struct hl_ranktable_instance *out)
{
    enum pod_key key = KEY_DEVICES;
    while (key < KEY_DEVICES_ATLAS && v->annotations[key].at == NULL)
        key++;
    snprintf(out->container_ip, sizeof(out->container_ip), "%.*s",
             (int)(v->ip.len < sizeof(out->container_ip) ? v->ip.len : 0), v->ip.at);
    return hl_ranktable_annotation(v->annotations[key].at, v->annotations[key].len, out);
}

static hl_status read_pod(const struct pod_view *v, struct hl_ranktable_pod *p)
{
    struct hl_ranktable_instance *instance = &p->instance;
    struct pod_text rank = v->annotations[KEY_RANK];
    p->gone = v->gone;
    memcpy(p->born, v->born, sizeof(p->born));
    HL_TRY(read_texts(v, p));
    *instance = (struct hl_ranktable_instance){.rank_index = -1};
    snprintf(instance->name, sizeof(instance->name), "%.*s",
             (int)(v->name.len < sizeof(instance->name) ? v->name.len : 0), v->name.at);
    p->st = read_devices(v, instance);
    if (p->st == HL_ENOENT && !v->asks)
        p->st = HL_OK;
    if (p->st == HL_OK && rank.at != NULL)
        p->st = hl_ranktable_wanted_index(rank.at, rank.len, instance);
    if (p->st == HL_ENOMEM)
        return p->st;
    if (p->st != HL_OK && (p->reason = strdup(hl_error_text())) == NULL)
        return no_memory();
    read_numbers(v, p);
    return HL_OK;
}

hl_status pod_of_view(struct pod_view *v, struct hl_ranktable_pod **out)
{
    struct hl_ranktable_pod *p = calloc(1, sizeof(*p));
    hl_status st = p != NULL && !v->owners.failed ? read_pod(v, p) : no_memory();
    hl_buf_fini(&v->owners);
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
    free(p->uid); /* the block of all texts */
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
