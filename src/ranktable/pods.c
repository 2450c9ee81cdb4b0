/* Selects the pods that count, numbers them, and decides what the ConfigMap should contain. `said`
 * is what it contains now. */
#include "ranktable/pods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "core/json.h"
#include "ranktable/object_private.h"

#define SKEW_S 5

/* The state of one judgement. */
struct judging {
    const struct hl_ranktable_rules *rules;
    enum hl_ranktable_kind kind;
    const json_t *job, *spec;
    const char *name, *ns;
    char earliest[32]; /* earliest creation time of a Deployment's pod */
    char owner[128];   /* the job's uid, as in a pod's `owners`; "" = it has none */
    const char *said;
    json_t *said_doc;                       /* parsed on first use */
    json_t *before;                         /* ranks of devices in `said`; also made on first use */
    bool by_age;                            /* a pod has no index: only `said` records its place */
    char taken[HL_RANKTABLE_INDEX_MAX + 1]; /* rank indices in use */
    int64_t version;                        /* the incarnation whose pods count */
    struct hl_ranktable table;
    struct hl_ranktable_verdict *out;
};

static const json_t *parse_said(struct judging *j)
{
    if (j->said_doc == NULL && j->said != NULL)
        j->said_doc = json_loads(j->said, 0, NULL);
    return j->said_doc;
}

/* The status in the ConfigMap. Our own completed tables are recognised by their start, so a whole
 * table is parsed only if another program wrote it. */
static const char *said_status(struct judging *j)
{
    static const char ours[] = "{\"status\":\"completed\",";
    if (j->said != NULL && strncmp(j->said, ours, sizeof(ours) - 1) == 0)
        return "completed";
    return hl_json_str(parse_said(j), "status", "");
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
    snprintf(out, cap, "rings-config-%s", hl_json_str(object_meta(job), "name", ""));
    json_array_foreach (hl_json_list(pod, "volumes"), i, v) {
        const char *name = hl_json_str(json_object_get(v, "configMap"), "name", NULL);
        if (name != NULL && strcmp(hl_json_str(v, "name", ""), HL_RANKTABLE_VOLUME) == 0)
            snprintf(out, cap, "%s", name);
    }
}

/* ---- reasons --------------------------------------------------------------------------------- */

/* Keeps the first reason of the most serious state. */
static void note_state(struct judging *j, enum hl_ranktable_state state, const char *reason)
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

/* A Deployment's pod can be SKEW_S older than the Deployment, because the API servers that set the
 * two times can have different clocks. */
static void set_earliest(struct judging *j)
{
    static const char form[] = "%Y-%m-%dT%H:%M:%SZ";
    const char *born = hl_json_str(object_meta(j->job), "creationTimestamp", "");
    struct tm tm = {0};
    const char *end = strptime(born, form, &tm);
    time_t at = end != NULL && *end == '\0' ? timegm(&tm) - SKEW_S : -1;
    if (at < 0 || gmtime_r(&at, &tm) == NULL ||
        strftime(j->earliest, sizeof(j->earliest), form, &tm) == 0)
        snprintf(j->earliest, sizeof(j->earliest), "%.31s", born);
}

/* ---- one pod --------------------------------------------------------------------------------- */

static bool is_owned(const struct judging *j, const struct hl_ranktable_pod *pod)
{
    /* The owner is a ReplicaSet: all that is known is that a pod is younger than its Deployment. */
    if (j->kind == HL_RANKTABLE_DEPLOYMENT)
        return strcmp(pod->born, j->earliest) >= 0;
    return j->owner[0] != '\0' && strstr(pod->owners, j->owner) != NULL;
}

/* Whether the pod belongs to this job, in whatever incarnation, is not being deleted and has not
 * failed. */
static bool pod_counts(const struct judging *j, const struct hl_ranktable_pod *pod)
{
    return pod->label != NULL && strcmp(pod->label, j->rules->label_value) == 0 &&
           pod->job != NULL && strcmp(pod->job, j->name) == 0 && strcmp(pod->ns, j->ns) == 0 &&
           !pod->gone && is_owned(j, pod);
}

static hl_status group_of(const struct judging *j, const struct hl_ranktable_pod *pod,
                          uint32_t *out)
{
    *out = 0;
    if (j->kind != HL_RANKTABLE_VOLCANO || (pod->task == NULL && j->table.group_count == 1))
        return HL_OK;
    for (size_t g = 0; pod->task != NULL && g < j->table.group_count; g++)
        if (strcmp(j->table.groups[g].name, pod->task) == 0) {
            *out = (uint32_t)g;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "%.253s: its job has no task '%.63s' (volcano.sh/task-spec)",
                   pod->instance.name, pod->task != NULL ? pod->task : "");
}

static bool parse_rank(const char *s, size_t *out)
{
    uint64_t rank;
    if (s == NULL || !hl_parse_number(s, 999999, &rank))
        return false;
    *out = (size_t)rank;
    return true;
}

/* The key of a device in `before`. */
static void key_of(const char *server, const char *device, char out[128])
{
    snprintf(out, 128, "%.63s %.11s", server, device);
}

static void remember_ranks(struct judging *j, const json_t *server)
{
    const json_t *device;
    size_t i, rank;
    char key[128];
    json_array_foreach (hl_json_list(server, "device"), i, device) {
        if (!parse_rank(hl_json_str(device, "rank_id", NULL), &rank))
            continue;
        key_of(hl_json_str(server, "server_id", ""), hl_json_str(device, "device_id", ""), key);
        if (json_object_get(j->before, key) == NULL)
            json_object_set_new(j->before, key, json_integer((json_int_t)rank));
    }
}

static json_int_t rank_before(const struct judging *j, const struct hl_ranktable_instance *x,
                              size_t device)
{
    char key[128];
    key_of(x->server_id, x->devices[device].id, key);
    return hl_json_int(j->before, key, -1);
}

/* The rank index that the instance's devices have in the present table, or -1. */
static int32_t index_before(struct judging *j, const struct hl_ranktable_instance *x)
{
    const json_t *server;
    size_t i;
    if (j->before == NULL) {
        j->before = json_object();
        json_array_foreach (hl_json_list(parse_said(j), "server_list"), i, server)
            remember_ranks(j, server);
    }
    if (x->device_count == 0)
        return -1;
    json_int_t first = rank_before(j, x, 0), count = (json_int_t)x->device_count;
    if (first < 0 || first % count != 0 || first / count > HL_RANKTABLE_INDEX_MAX)
        return -1;
    for (i = 1; i < x->device_count; i++)
        if (rank_before(j, x, i) != first + (json_int_t)i)
            return -1;
    return !j->taken[first / count] ? (int32_t)(first / count) : -1;
}

static hl_status read_pod(struct judging *j, const struct hl_ranktable_pod *pod, uint32_t order)
{
    const struct hl_ranktable_instance *x = &pod->instance;
    uint32_t group;
    int32_t rank_index = x->rank_index;
    int64_t place = j->kind == HL_RANKTABLE_VOLCANO ? pod->task_index : pod->index;
    if (pod->st != HL_OK)
        return hl_fail(pod->st, "%s", pod->reason);
    HL_TRY(group_of(j, pod, &group));
    j->by_age |= place < 0;
    if (rank_index < 0 && place < 0)
        rank_index = index_before(j, x);
    HL_TRY(
        hl_ranktable_borrow(&j->table, x, group, place >= 0 ? (uint32_t)place : order, rank_index));
    if (rank_index >= 0)
        j->taken[rank_index] = 1;
    return HL_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int by_age(const void *a, const void *b)
{
    return hl_ranktable_pod_order(*(const struct hl_ranktable_pod *const *)a,
                                  *(const struct hl_ranktable_pod *const *)b);
}

/* The pods are usually sorted already. */
static void sort_by_age(const struct hl_ranktable_pod **pods, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (hl_ranktable_pod_order(pods[i - 1], pods[i]) > 0) {
            qsort(pods, count, sizeof(struct hl_ranktable_pod *), by_age);
            return;
        }
}

/* Selects the job's pods of the newest incarnation, the oldest first. New pods can be seen before
 * the job's own status says that it was restarted. */
static size_t pick_pods(struct judging *j, const struct hl_ranktable_pod *const *pods, size_t count,
                        const struct hl_ranktable_pod **out)
{
    size_t n = 0, kept = 0;
    j->version = hl_json_int(json_object_get(j->job, "status"), "version", 0);
    for (size_t i = 0; i < count; i++)
        if (pod_counts(j, pods[i])) {
            out[n++] = pods[i];
            if (pods[i]->version > j->version)
                j->version = pods[i]->version;
        }
    for (size_t i = 0; i < n; i++)
        if (j->kind != HL_RANKTABLE_VOLCANO || !out[i]->has_version ||
            out[i]->version == j->version)
            out[kept++] = out[i];
    sort_by_age(out, kept);
    return kept;
}

static hl_status read_pods(struct judging *j, const struct hl_ranktable_pod *const *pods,
                           size_t count)
{
    const struct hl_ranktable_pod **list = calloc(count + 1, sizeof(struct hl_ranktable_pod *));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu pods", count);
    hl_status st = HL_OK;
    size_t n = pick_pods(j, pods, count, list);
    for (size_t i = 0; i < n && st == HL_OK; i++) {
        hl_status one = read_pod(j, list[i], (uint32_t)i);
        if (one == HL_ENOMEM)
            st = one;
        else if (one != HL_OK)
            note_state(j, one == HL_ENOENT ? HL_RANKTABLE_WAITING : HL_RANKTABLE_UNABLE,
                       hl_error_text());
    }
    free(list);
    j->out->counted = j->table.count;
    return st;
}

static hl_status make_text(struct judging *j)
{
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    hl_status st = hl_ranktable_document(&j->table, j->rules->format, &text);
    if (st == HL_OK && text.len > HL_RANKTABLE_BYTES_MAX)
        st = hl_fail(HL_EINVAL,
                     "the table has %zu bytes, more than a ConfigMap can hold (%d); use fewer "
                     "devices or another format",
                     text.len, HL_RANKTABLE_BYTES_MAX);
    if (st == HL_OK)
        j->out->text = hl_buf_take(&text);
    hl_buf_fini(&text);
    return st;
}

/* Whether the ConfigMap contains this table already. Another writer can have written the same JSON
 * as a different text. */
static bool is_said(struct judging *j)
{
    if (j->said == NULL || strcmp(j->said, j->out->text) == 0)
        return j->said != NULL;
    if (strcmp(said_status(j), "completed") != 0)
        return false;
    json_t *mine = json_loads(j->out->text, 0, NULL);
    bool same = json_equal(parse_said(j), mine);
    json_decref(mine);
    return same;
}

/* Lists the present pods only if pods have no index: then the list keeps their ranks, and is worth
 * its bytes. */
static hl_status say_initializing(struct judging *j, bool numbered)
{
    struct hl_ranktable_verdict *v = j->out;
    hl_status st = HL_EINVAL;
    if (strcmp(said_status(j), "initializing") == 0)
        return HL_OK;
    if (numbered && j->by_age)
        st = make_text(j);
    if (st != HL_OK)
        v->text = strdup("{\"status\":\"initializing\"}");
    return v->text != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
}

/* HL_OK also if no table can be made: the verdict then says why. */
static hl_status decide_verdict(struct judging *j)
{
    struct hl_ranktable_verdict *v = j->out;
    char text[128];
    hl_status st = hl_ranktable_number(&j->table);
    int complete = st == HL_OK && v->wanted > 0 && hl_ranktable_is_complete(&j->table);
    int numbered = st == HL_OK;
    if (complete)
        st = make_text(j);
    if (st == HL_ENOMEM)
        return st;
    if (complete && st == HL_OK) {
        v->state = HL_RANKTABLE_COMPLETED;
        v->reason[0] = '\0';
        if (is_said(j))
            hl_ranktable_verdict_fini(v);
        return HL_OK;
    }
    if (st != HL_OK)
        note_state(j, HL_RANKTABLE_UNABLE, hl_error_text());
    snprintf(text, sizeof(text), "%zu of %zu pods have their devices", v->counted, v->wanted);
    note_state(j, HL_RANKTABLE_WAITING, text);
    return say_initializing(j, numbered && !complete);
}

hl_status hl_ranktable_judge(const struct hl_ranktable_rules *rules, enum hl_ranktable_kind kind,
                             const json_t *job, const struct hl_ranktable_pod *const *pods,
                             size_t count, const char *said, struct hl_ranktable_verdict *out)
{
    struct judging j = {.rules = rules,
                        .kind = kind,
                        .job = job,
                        .spec = json_object_get(job, "spec"),
                        .name = hl_json_str(object_meta(job), "name", ""),
                        .ns = hl_json_str(object_meta(job), "namespace", ""),
                        .said = said,
                        .out = out};
    const char *uid = hl_json_str(object_meta(job), "uid", "");
    if (uid[0] != '\0')
        snprintf(j.owner, sizeof(j.owner), "\n%.120s\n", uid);
    *out = (struct hl_ranktable_verdict){.state = HL_RANKTABLE_WAITING};
    set_earliest(&j);
    hl_status st = read_tasks(&j);
    if (st == HL_EINVAL) {
        note_state(&j, HL_RANKTABLE_UNABLE, hl_error_text());
        st = say_initializing(&j, 0);
    } else if (st == HL_OK) {
        st = read_pods(&j, pods, count);
        if (st == HL_OK)
            st = decide_verdict(&j);
    }
    hl_ranktable_fini(&j.table);
    json_decref(j.said_doc);
    json_decref(j.before);
    if (st != HL_OK)
        hl_ranktable_verdict_fini(out);
    return st;
}

void hl_ranktable_verdict_fini(struct hl_ranktable_verdict *v)
{
    free(v->text);
    v->text = NULL;
}
