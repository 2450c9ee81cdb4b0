/* Which pods count, and what follows. */
#include "ranktable/pods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "ranktable/annotation.h"

/* What is known while pods are looked through. */
struct judging {
    const struct hl_ranktable_rules *rules;
    enum hl_ranktable_kind kind;
    const json_t *job, *spec;
    const json_t *previous; /* server_list of the table there is; NULL = none */
    int64_t version;        /* the incarnation that counts */
    struct hl_ranktable table;
    struct hl_ranktable_verdict *out;
};

static const json_t *meta(const json_t *object)
{
    return json_object_get(object, "metadata");
}

static const char *label(const json_t *object, const char *key)
{
    return hl_json_str(json_object_get(meta(object), "labels"), key, NULL);
}

/* Volcano says the same in both; which one depends on its version. */
static const char *mark(const json_t *pod, const char *key)
{
    const char *s = hl_json_str(json_object_get(meta(pod), "annotations"), key, NULL);
    return s != NULL ? s : label(pod, key);
}

static int same_text(const json_t *a, const json_t *b, const char *key)
{
    const char *x = hl_json_str(a, key, NULL), *y = hl_json_str(b, key, NULL);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

int hl_ranktable_is_ours(const struct hl_ranktable_rules *rules, const json_t *object)
{
    const char *value = label(object, HL_RANKTABLE_LABEL);
    return value != NULL && strcmp(value, rules->label_value) == 0;
}

const char *hl_ranktable_job_of(const json_t *pod)
{
    static const char *const keys[] = {"volcano.sh/job-name", "deploy-name", "job-name"};
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        if (label(pod, keys[i]) != NULL)
            return label(pod, keys[i]);
    return NULL;
}

/* The pod template of the first task. */
static const json_t *template_of(const json_t *job)
{
    const json_t *spec = json_object_get(job, "spec");
    const json_t *task = json_array_get(json_object_get(spec, "tasks"), 0);
    return json_object_get(task != NULL ? task : spec, "template");
}

void hl_ranktable_config_map(const json_t *job, char *out, size_t cap)
{
    const json_t *v, *pod = json_object_get(template_of(job), "spec");
    size_t i;
    snprintf(out, cap, "rings-config-%s", hl_json_str(meta(job), "name", ""));
    json_array_foreach (hl_json_list(pod, "volumes"), i, v) {
        const char *name = hl_json_str(json_object_get(v, "configMap"), "name", NULL);
        if (name != NULL && strcmp(hl_json_str(v, "name", ""), HL_RANKTABLE_VOLUME) == 0)
            snprintf(out, cap, "%s", name);
    }
}

/* ---- reasons --------------------------------------------------------------------------------- */

/* The first of the gravest kind is what is said. */
static void note(struct judging *j, enum hl_ranktable_state state, const char *reason)
{
    struct hl_ranktable_verdict *v = j->out;
    if (v->reason[0] != '\0' && state <= v->state)
        return;
    v->state = state;
    snprintf(v->reason, sizeof(v->reason), "%s", reason);
}

/* ---- the job --------------------------------------------------------------------------------- */

static hl_status add_task(struct judging *j, const char *name, int64_t replicas)
{
    if (replicas < 0 || replicas > HL_RANKTABLE_INDEX_MAX)
        return hl_fail(HL_EINVAL, "task '%.63s' has %lld replicas, at most %d can be numbered",
                       name, (long long)replicas, HL_RANKTABLE_INDEX_MAX);
    j->out->wanted += (size_t)replicas;
    return hl_ranktable_add_group(&j->table, name, (uint32_t)replicas);
}

static hl_status read_tasks(struct judging *j)
{
    const json_t *task;
    size_t i;
    if (j->kind == HL_RANKTABLE_DEPLOYMENT)
        return add_task(j, "", hl_json_int(j->spec, "replicas", 1));
    if (j->kind == HL_RANKTABLE_BATCH)
        return add_task(j, "", hl_json_int(j->spec, "parallelism", 1));
    json_array_foreach (hl_json_list(j->spec, "tasks"), i, task)
        HL_TRY(add_task(j, hl_json_str(task, "name", ""), hl_json_int(task, "replicas", 1)));
    return HL_OK;
}

/* Containers of this pod, or of the job's template, ask for devices. */
static int asks_for_devices(const json_t *pod)
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
                return 1;
        }
    }
    return 0;
}

/* ---- one pod --------------------------------------------------------------------------------- */

static int64_t version_of(const json_t *pod)
{
    const char *s = mark(pod, "volcano.sh/job-version");
    char *end = NULL;
    long long n = s != NULL ? strtoll(s, &end, 10) : 0;
    return s != NULL && (end == s || *end != '\0' || n < 0) ? -1 : n;
}

static int is_owned(const struct judging *j, const json_t *pod)
{
    const char *born = hl_json_str(meta(pod), "creationTimestamp", "");
    const json_t *owner;
    size_t i;
    /* A ReplicaSet stands between: all that is known is that a pod is younger than its Deployment.
     * Times are RFC 3339 in UTC, which sort as text. */
    if (j->kind == HL_RANKTABLE_DEPLOYMENT)
        return strcmp(born, hl_json_str(meta(j->job), "creationTimestamp", "")) >= 0;
    json_array_foreach (hl_json_list(meta(pod), "ownerReferences"), i, owner)
        if (same_text(owner, meta(j->job), "uid"))
            return 1;
    return 0;
}

/* It is this job's, of whatever incarnation, and neither going nor failed. */
static int pod_counts(const struct judging *j, const json_t *pod)
{
    const char *job = hl_ranktable_job_of(pod);
    const json_t *gone = json_object_get(meta(pod), "deletionTimestamp");
    const char *phase = hl_json_str(json_object_get(pod, "status"), "phase", "");
    return hl_ranktable_is_ours(j->rules, pod) && job != NULL &&
           strcmp(job, hl_json_str(meta(j->job), "name", "")) == 0 &&
           same_text(meta(pod), meta(j->job), "namespace") && is_owned(j, pod) &&
           (gone == NULL || json_is_null(gone)) && strcmp(phase, "Failed") != 0;
}

static hl_status group_of(const struct judging *j, const json_t *pod, uint32_t *out)
{
    const char *task = mark(pod, "volcano.sh/task-spec");
    *out = 0;
    if (j->kind != HL_RANKTABLE_VOLCANO || (task == NULL && j->table.group_count == 1))
        return HL_OK;
    for (size_t g = 0; task != NULL && g < j->table.group_count; g++)
        if (strcmp(j->table.groups[g].name, task) == 0) {
            *out = (uint32_t)g;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "%.253s: the job has no task '%.63s' (volcano.sh/task-spec)",
                   hl_json_str(meta(pod), "name", ""), task != NULL ? task : "");
}

static int parse_place(const char *s, uint32_t *out)
{
    if (s == NULL || s[0] == '\0' || strlen(s) > 6 || strspn(s, "0123456789") != strlen(s))
        return 0;
    *out = (uint32_t)atoi(s);
    return 1;
}

/* 0: nothing says which replica it is. */
static int place_of(const struct judging *j, const json_t *pod, uint32_t *out)
{
    const char *dash = strrchr(hl_json_str(meta(pod), "name", ""), '-');
    if (j->kind == HL_RANKTABLE_VOLCANO)
        return parse_place(mark(pod, "volcano.sh/task-index"), out) ||
               (dash != NULL && parse_place(dash + 1, out));
    return parse_place(mark(pod, "batch.kubernetes.io/job-completion-index"), out);
}

/* The rank index that its first device has in the table there is, or -1. */
static int32_t index_before(const struct judging *j, const struct hl_ranktable_instance *x)
{
    const json_t *server;
    size_t i;
    json_array_foreach (j->previous, i, server) {
        const json_t *devices = hl_json_list(server, "device"), *first = json_array_get(devices, 0);
        uint32_t rank;
        if (x->device_count == 0 || json_array_size(devices) != x->device_count ||
            strcmp(hl_json_str(server, "server_id", ""), x->server_id) != 0 ||
            strcmp(hl_json_str(first, "device_id", ""), x->devices[0].id) != 0 ||
            !parse_place(hl_json_str(first, "rank_id", NULL), &rank) ||
            rank % x->device_count != 0 || rank / x->device_count > HL_RANKTABLE_INDEX_MAX)
            continue;
        int32_t index = (int32_t)(rank / x->device_count);
        for (size_t k = 0; k < j->table.count; k++)
            if (j->table.instances[k].rank_index == index)
                return -1;
        return index;
    }
    return -1;
}

static hl_status read_pod(struct judging *j, const json_t *pod, uint32_t order)
{
    struct hl_ranktable_instance x;
    uint32_t place = order;
    hl_status st = hl_ranktable_annotation(pod, &x);
    if (st == HL_ENOENT && !asks_for_devices(pod))
        st = HL_OK;
    HL_TRY(st);
    int placed = place_of(j, pod, &place);
    st = hl_ranktable_wanted_index(pod, &x.rank_index);
    if (st == HL_OK)
        st = group_of(j, pod, &x.group);
    if (st != HL_OK) {
        hl_ranktable_instance_fini(&x);
        return st;
    }
    x.place = place;
    if (x.rank_index < 0 && !placed)
        x.rank_index = index_before(j, &x);
    return hl_ranktable_add(&j->table, &x);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int by_age(const void *a, const void *b)
{
    const json_t *x = meta(*(json_t *const *)a), *y = meta(*(json_t *const *)b);
    int order =
        strcmp(hl_json_str(x, "creationTimestamp", ""), hl_json_str(y, "creationTimestamp", ""));
    return order != 0 ? order : strcmp(hl_json_str(x, "name", ""), hl_json_str(y, "name", ""));
}

/* The job's pods of one incarnation, the oldest first: new pods may be seen before the job's own
 * status says that it was restarted. */
static hl_status pick_pods(struct judging *j, const json_t *pods, const json_t ***out,
                           size_t *count)
{
    const json_t *pod, **list = calloc(json_array_size(pods) + 1, sizeof(*list));
    size_t i, n = 0, kept = 0;
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for %zu pods", json_array_size(pods));
    j->version = hl_json_int(json_object_get(j->job, "status"), "version", 0);
    json_array_foreach (pods, i, pod)
        if (pod_counts(j, pod)) {
            list[n++] = pod;
            if (version_of(pod) > j->version)
                j->version = version_of(pod);
        }
    for (i = 0; i < n; i++)
        if (j->kind != HL_RANKTABLE_VOLCANO || mark(list[i], "volcano.sh/job-version") == NULL ||
            version_of(list[i]) == j->version)
            list[kept++] = list[i];
    qsort(list, kept, sizeof(*list), by_age);
    *out = list;
    *count = kept;
    return HL_OK;
}

static hl_status read_pods(struct judging *j, const json_t *pods)
{
    const json_t **list = NULL;
    size_t n = 0;
    hl_status st = pick_pods(j, pods, &list, &n);
    for (size_t i = 0; i < n && st == HL_OK; i++) {
        hl_status one = read_pod(j, list[i], (uint32_t)i);
        if (one == HL_ENOMEM)
            st = one;
        else if (one != HL_OK)
            note(j, one == HL_ENOENT ? HL_RANKTABLE_WAITING : HL_RANKTABLE_UNABLE, hl_error_text());
    }
    free(list);
    j->out->counted = j->table.count;
    return st;
}

static json_t *unknown_yet(void)
{
    return json_pack("{s:s}", "status", "initializing");
}

static hl_status check_size(const json_t *document)
{
    size_t bytes = json_dumpb(document, NULL, 0, JSON_COMPACT);
    if (bytes <= HL_RANKTABLE_BYTES_MAX)
        return HL_OK;
    return hl_fail(
        HL_EINVAL,
        "the table has %zu bytes, more than a ConfigMap takes (%d); use fewer devices or "
        "another format",
        bytes, HL_RANKTABLE_BYTES_MAX);
}

/* HL_OK also when it can't be made: then it says why. */
static hl_status write_document(struct judging *j)
{
    struct hl_ranktable_verdict *v = j->out;
    char text[128];
    hl_status st = hl_ranktable_number(&j->table);
    if (st == HL_OK)
        st = hl_ranktable_document(&j->table, j->rules->format, &v->document);
    if (st == HL_OK)
        st = check_size(v->document);
    if (st == HL_ENOMEM)
        return st;
    if (st != HL_OK) {
        note(j, HL_RANKTABLE_UNABLE, hl_error_text());
        json_decref(v->document);
        v->document = unknown_yet();
    } else if (v->wanted > 0 && hl_ranktable_is_complete(&j->table)) {
        v->state = HL_RANKTABLE_COMPLETED;
        v->reason[0] = '\0';
        return HL_OK;
    }
    if (v->wanted == 0) {
        json_decref(v->document);
        v->document = unknown_yet();
    }
    snprintf(text, sizeof(text), "%zu of %zu pods have their devices", v->counted, v->wanted);
    note(j, HL_RANKTABLE_WAITING, text);
    return HL_OK;
}

/* server_list of the table in the ConfigMap. New reference or NULL. */
static json_t *previous_servers(const json_t *config_map)
{
    const char *text = hl_json_str(json_object_get(config_map, "data"), HL_RANKTABLE_KEY, NULL);
    json_t *doc = text != NULL ? json_loads(text, 0, NULL) : NULL;
    json_t *list = json_incref(hl_json_list(doc, "server_list"));
    json_decref(doc);
    return list;
}

hl_status hl_ranktable_judge(const struct hl_ranktable_rules *rules, enum hl_ranktable_kind kind,
                             const json_t *job, const json_t *pods, const json_t *config_map,
                             struct hl_ranktable_verdict *out)
{
    json_t *previous = previous_servers(config_map);
    struct judging j = {.rules = rules,
                        .kind = kind,
                        .job = job,
                        .spec = json_object_get(job, "spec"),
                        .previous = previous,
                        .out = out};
    *out = (struct hl_ranktable_verdict){.state = HL_RANKTABLE_WAITING};
    hl_status st = read_tasks(&j);
    if (st == HL_EINVAL) {
        note(&j, HL_RANKTABLE_UNABLE, hl_error_text());
        out->document = unknown_yet();
        st = HL_OK;
    } else if (st == HL_OK) {
        st = read_pods(&j, pods);
        if (st == HL_OK)
            st = write_document(&j);
    }
    hl_ranktable_fini(&j.table);
    json_decref(previous);
    if (st != HL_OK)
        hl_ranktable_verdict_fini(out);
    return st;
}

void hl_ranktable_verdict_fini(struct hl_ranktable_verdict *v)
{
    json_decref(v->document);
    v->document = NULL;
}

int hl_ranktable_is_written(const json_t *config_map, const json_t *document)
{
    const char *text = hl_json_str(json_object_get(config_map, "data"), HL_RANKTABLE_KEY, NULL);
    json_t *doc = text != NULL ? json_loads(text, 0, NULL) : NULL;
    int same = doc != NULL && json_equal(doc, document);
    json_decref(doc);
    return same;
}
