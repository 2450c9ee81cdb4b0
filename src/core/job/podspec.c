/* The accepted fields are listed in tables. For a refused field, `instead` says why and what to
 * do. */
#include "core/job/podspec.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "core/job/job.h"

enum shape {
    ANY,
    OBJECT,
    LIST, /* a list of objects */
    TEXT,
    BOOLEAN,
};

struct field {
    const char *name;
    enum shape shape;
    const char *instead; /* NULL = accepted */
};

#define BY_KEY(key) "Helios sets it from the key " key " of the job"
#define BY_PLAN     "Helios sets it"

/* clang-format off */
static const struct field section_fields[] = {
    {"queue", TEXT, NULL},
    {"networkTopology", OBJECT, NULL},
    {"podTemplate", OBJECT, NULL},
};
static const struct field topology_fields[] = {
    {"mode", TEXT, NULL},
    {"highestTierAllowed", ANY, NULL},
};
static const struct field template_fields[] = {
    {"metadata", OBJECT, NULL},
    {"spec", OBJECT, NULL},
};
static const struct field metadata_fields[] = {
    {"labels", OBJECT, NULL},
    {"annotations", OBJECT, NULL},
    {"name", TEXT, BY_PLAN},
    {"namespace", TEXT, "the option kube.namespace of helios-controller sets it"},
};
static const struct field spec_fields[] = {
    {"affinity", OBJECT, NULL},
    {"automountServiceAccountToken", BOOLEAN, NULL},
    {"containers", LIST, NULL},
    {"dnsConfig", OBJECT, NULL},
    {"dnsPolicy", TEXT, NULL},
    {"hostAliases", LIST, NULL},
    {"hostIPC", BOOLEAN, NULL},
    {"hostNetwork", BOOLEAN, NULL},
    {"imagePullSecrets", LIST, NULL},
    {"nodeSelector", OBJECT, NULL},
    {"preemptionPolicy", TEXT, NULL},
    {"priorityClassName", TEXT, NULL},
    {"runtimeClassName", TEXT, NULL},
    {"securityContext", OBJECT, NULL},
    {"serviceAccountName", TEXT, NULL},
    {"shareProcessNamespace", BOOLEAN, NULL},
    {"tolerations", LIST, NULL},
    {"topologySpreadConstraints", LIST, NULL},
    {"volumes", LIST, NULL},
    {"activeDeadlineSeconds", ANY, BY_KEY("timeouts.run")},
    {"enableServiceLinks", ANY, BY_PLAN},
    {"ephemeralContainers", ANY, "a gang's pods have its ranks only"},
    {"hostname", ANY, "Volcano sets it, and ranks find each other by it"},
    {"initContainers", ANY, "a gang's pods have its ranks only; prepare what they need in command"},
    {"nodeName", ANY, "Volcano chooses the nodes; use nodeSelector or affinity"},
    {"priority", ANY, "Kubernetes sets it; use priorityClassName"},
    {"restartPolicy", ANY, "it is Never: Helios restarts the gang as a whole (key restarts)"},
    {"schedulerName", ANY, "it is volcano, which starts gangs as a whole"},
    {"subdomain", ANY, "Volcano sets it, and ranks find each other by it"},
    {"terminationGracePeriodSeconds", ANY, BY_KEY("stopGrace")},
};
static const struct field rank_fields[] = {
    {"name", TEXT, NULL},
    {"env", LIST, NULL},
    {"envFrom", LIST, NULL},
    {"imagePullPolicy", TEXT, NULL},
    {"lifecycle", OBJECT, NULL},
    {"ports", LIST, NULL},
    {"resources", OBJECT, NULL},
    {"securityContext", OBJECT, NULL},
    {"volumeDevices", LIST, NULL},
    {"volumeMounts", LIST, NULL},
    {"args", ANY, BY_KEY("command")},
    {"command", ANY, BY_KEY("command")},
    {"image", ANY, BY_KEY("dockerImage")},
    {"livenessProbe", ANY, "a rank that hangs is found by its steps (docs/job.md)"},
    {"readinessProbe", ANY, "nothing waits for a rank to be ready"},
    {"startupProbe", ANY, "nothing waits for a rank to be ready"},
    {"workingDir", ANY, BY_KEY("workdir")},
};
static const struct field resources_fields[] = {
    {"limits", OBJECT, NULL},
    {"requests", OBJECT, NULL},
};

/* clang-format on */

struct walk {
    const struct hl_podspec_rules *rules;
    struct hl_podspec_fault *fault;
    size_t field_len, pointer_len; /* of the current position */
};

/* ---- places -------------------------------------------------------------------------------- */

static bool HL_PRINTF(3, 4) walk_fail(struct walk *w, bool of_key, const char *fmt, ...)
{
    va_list ap;
    w->fault->of_key = of_key;
    w->fault->field[w->field_len] = w->fault->pointer[w->pointer_len] = '\0';
    va_start(ap, fmt);
    vsnprintf(w->fault->text, sizeof(w->fault->text), fmt, ap);
    va_end(ap);
    return false;
}

static size_t text_append(char *to, size_t cap, size_t at, const char *text)
{
    int n = snprintf(to + at, cap - at, "%s", text);
    return at + (size_t)n < cap ? at + (size_t)n : cap - 1;
}

/* Enters a member. *w is copied, so the caller keeps its position. */
static struct walk walk_into(const struct walk *from, const char *key)
{
    struct walk w = *from;
    struct hl_podspec_fault *f = w.fault;
    w.field_len = text_append(f->field, sizeof(f->field), w.field_len, ".");
    w.field_len = text_append(f->field, sizeof(f->field), w.field_len, key);
    w.pointer_len = text_append(f->pointer, sizeof(f->pointer), w.pointer_len, "/");
    for (const char *p = key; *p != '\0'; p++) {
        const char one[2] = {*p, '\0'};
        w.pointer_len = text_append(f->pointer, sizeof(f->pointer), w.pointer_len,
                                    *p == '~'   ? "~0"
                                    : *p == '/' ? "~1"
                                                : one);
    }
    return w;
}

static struct walk walk_item(const struct walk *from, size_t index)
{
    char number[32];
    struct walk w = *from;
    struct hl_podspec_fault *f = w.fault;
    snprintf(number, sizeof(number), "[%zu]", index);
    w.field_len = text_append(f->field, sizeof(f->field), w.field_len, number);
    snprintf(number, sizeof(number), "/%zu", index);
    w.pointer_len = text_append(f->pointer, sizeof(f->pointer), w.pointer_len, number);
    return w;
}

/* ---- fields -------------------------------------------------------------------------------- */

static bool check_shape(struct walk *w, enum shape shape, const json_t *v)
{
    size_t i;
    const json_t *item;
    if (shape == OBJECT && !json_is_object(v))
        return walk_fail(w, false, "must be KEY: VALUE lines, indented below it");
    if (shape == TEXT && (!json_is_string(v) || json_string_length(v) == 0))
        return walk_fail(w, false, "must be a text");
    if (shape == BOOLEAN && !json_is_boolean(v))
        return walk_fail(w, false, "must be true or false");
    if (shape != LIST)
        return true;
    if (!json_is_array(v))
        return walk_fail(w, false, "must be a list");
    json_array_foreach (v, i, item) {
        struct walk at = walk_item(w, i);
        if (!json_is_object(item))
            return walk_fail(&at, false, "must be KEY: VALUE lines");
    }
    return true;
}

static bool fail_unknown(struct walk *w, const struct field *fields, size_t count, const char *of,
                         const char *key)
{
    const char *names[40] = {0};
    char all[300] = "";
    size_t n = 0, used = 0;
    for (size_t i = 0; i < count && n < HL_ARRAY_LEN(names); i++)
        if (fields[i].instead == NULL)
            names[n++] = fields[i].name;
    const char *near = hl_did_you_mean(key, names, n);
    if (near != NULL)
        return walk_fail(w, true, "'%.64s' is not accepted in %s; did you mean '%s'?", key, of,
                         near);
    for (size_t i = 0; i < n; i++)
        used = text_append(all, sizeof(all), text_append(all, sizeof(all), used, i > 0 ? ", " : ""),
                           names[i]);
    return walk_fail(w, true, "'%.64s' is not accepted in %s; these are: %s", key, of, all);
}

/* Checks that every member of the object is an accepted field. */
static bool check_fields(const struct walk *w, const json_t *object, const struct field *fields,
                         size_t count, const char *of)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)object, key, v) {
        struct walk at = walk_into(w, key);
        size_t i = 0;
        while (i < count && strcmp(fields[i].name, key) != 0)
            i++;
        if (i == count)
            return fail_unknown(&at, fields, count, of, key);
        if (fields[i].instead != NULL)
            return walk_fail(&at, true, "can't be given: %s", fields[i].instead);
        if (!check_shape(&at, fields[i].shape, v))
            return false;
    }
    return true;
}

#define CHECK_FIELDS(w, object, fields, of)                                                        \
    check_fields(w, object, fields, HL_ARRAY_LEN(fields), of)

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* ---- the parts of a template ---------------------------------------------------------------- */

static bool check_texts(const struct walk *w, const json_t *all)
{
    static const char *const ours[] = {"helios.io/", "app.kubernetes.io/managed-by", "volcano.sh/",
                                       "ring-controller.atlas", "scheduling.k8s.io/group-name"};
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)all, key, v) {
        struct walk at = walk_into(w, key);
        for (size_t i = 0; i < HL_ARRAY_LEN(ours); i++)
            if (strncmp(key, ours[i], strlen(ours[i])) == 0)
                return walk_fail(&at, true, "can't be given: Helios and Volcano use it");
        if (!json_is_string(v))
            return walk_fail(&at, false, "must be a text; put it in quotes");
    }
    return true;
}

static bool check_metadata(const struct walk *w, const json_t *metadata)
{
    if (!CHECK_FIELDS(w, metadata, metadata_fields, "a pod's metadata"))
        return false;
    struct walk labels = walk_into(w, "labels");
    if (!check_texts(&labels, json_object_get(metadata, "labels")))
        return false;
    struct walk annotations = walk_into(w, "annotations");
    return check_texts(&annotations, json_object_get(metadata, "annotations"));
}

bool hl_podspec_may_mount(const char *host_paths, const char *path, size_t n)
{
    for (size_t i = 0; i < n; i++) /* no component is ".." */
        if (path[i] == '/' && n - i >= 3 && strncmp(path + i, "/..", 3) == 0 &&
            (i + 3 == n || path[i + 3] == '/'))
            return false;
    for (const char *p = host_paths; *p != '\0';) {
        size_t len = strcspn(p, ","), dir = len;
        while (dir > 0 && p[dir - 1] == '/')
            dir--;
        if (len > 0 && *p == '/' && n >= dir && strncmp(path, p, dir) == 0 &&
            (n == dir || path[dir] == '/'))
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

static bool check_volume(struct walk *w, const json_t *volume)
{
    const json_t *host = json_object_get(volume, "hostPath");
    const char *name = text_of(volume, "name");
    if (name[0] == '\0')
        return walk_fail(w, false, "a volume needs a name");
    if (strcmp(name, "shm") == 0 || strcmp(name, "ascend-910-config") == 0 ||
        strncmp(name, "mount-", 6) == 0)
        return walk_fail(w, false, "Helios uses the name '%.64s' itself; use another one", name);
    if (host == NULL)
        return true;
    const char *path = text_of(host, "path");
    if (hl_podspec_may_mount(w->rules->host_paths, path, strlen(path)))
        return true;
    struct walk at = walk_into(w, "hostPath");
    return walk_fail(&at, false,
                     "'%.128s' is in no directory that pods may mount (%s%.100s); the option "
                     "kube.host_paths of helios-controller lists them",
                     path, w->rules->host_paths[0] != '\0' ? "these are: " : "there is none",
                     w->rules->host_paths);
}

static bool check_volumes(const struct walk *w, const json_t *list)
{
    size_t i, k;
    const json_t *volume;
    json_array_foreach (list, i, volume) {
        struct walk at = walk_item(w, i);
        if (!check_volume(&at, volume))
            return false;
        for (k = 0; k < i; k++)
            if (strcmp(text_of(json_array_get(list, k), "name"), text_of(volume, "name")) == 0)
                return walk_fail(&at, false, "there are two volumes '%.64s'",
                                 text_of(volume, "name"));
    }
    return true;
}

static bool check_env(const struct walk *w, const json_t *list)
{
    size_t i;
    const json_t *var;
    json_array_foreach (list, i, var) {
        struct walk at = walk_item(w, i);
        const char *why = hl_job_var_problem(text_of(var, "name"), HL_JOB_VAR_FILE);
        if (why != NULL)
            return walk_fail(&at, false, "%.64s: %s", text_of(var, "name"), why);
        if (json_object_get(var, "valueFrom") == NULL)
            return walk_fail(&at, false, "has no valueFrom; plain values belong to env of the job");
    }
    return true;
}

/* The same directory: repeated and trailing slashes are ignored. */
static bool same_path(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a == '/' && (a[1] == '/' || a[1] == '\0'))
            a++;
        if (*a != *b)
            return false;
        if (*a == '\0')
            return true;
    }
}

static bool has_volume(const json_t *volumes, const char *name)
{
    size_t i;
    const json_t *volume;
    json_array_foreach (volumes, i, volume)
        if (strcmp(text_of(volume, "name"), name) == 0)
            return true;
    return false;
}

static bool check_mounts(const struct walk *w, const json_t *list, const json_t *volumes)
{
    static const char *const ours[] = {"/dev/shm", "/user/serverid/devindex/config"};
    size_t i;
    const json_t *mount;
    json_array_foreach (list, i, mount) {
        struct walk at = walk_item(w, i);
        const char *path = text_of(mount, "mountPath");
        if (path[0] != '/' || text_of(mount, "name")[0] == '\0')
            return walk_fail(&at, false, "needs the name of a volume and an absolute mountPath");
        for (size_t k = 0; k < HL_ARRAY_LEN(ours); k++)
            if (same_path(path, ours[k]))
                return walk_fail(&at, false, "%s is mounted by Helios", ours[k]);
        if (!has_volume(volumes, text_of(mount, "name")))
            return walk_fail(&at, false, "the template has no volume '%.64s'",
                             text_of(mount, "name"));
    }
    return true;
}

static bool check_amounts(const struct walk *w, const json_t *amounts)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)amounts, key, v) {
        struct walk at = walk_into(w, key);
        if (strcmp(key, "cpu") == 0 || strcmp(key, "memory") == 0)
            return walk_fail(&at, true, "can't be given: Helios sets it from the key resources.%s",
                             key[0] == 'c' ? "cpus_per_rank" : "memory");
        if (strcmp(key, w->rules->device) == 0)
            return walk_fail(&at, true,
                             "can't be given: each rank has one (key "
                             "resources.gpus_per_rank)");
        if (!json_is_string(v) && !json_is_integer(v))
            return walk_fail(&at, false, "must be an amount: 1, 8Gi");
    }
    return true;
}

static bool check_rank(struct walk *w, const json_t *rank, const json_t *volumes)
{
    if (strcmp(text_of(rank, "name"), HL_PODSPEC_RANK) != 0)
        return walk_fail(
            w, false,
            "must be called '" HL_PODSPEC_RANK
            "': it describes the container of each rank, and a pod has no other container");
    if (!CHECK_FIELDS(w, rank, rank_fields, "the container of a rank"))
        return false;
    struct walk env = walk_into(w, "env");
    if (!check_env(&env, json_object_get(rank, "env")))
        return false;
    struct walk mounts = walk_into(w, "volumeMounts");
    if (!check_mounts(&mounts, json_object_get(rank, "volumeMounts"), volumes))
        return false;
    const json_t *resources = json_object_get(rank, "resources");
    struct walk at = walk_into(w, "resources");
    if (resources != NULL && !CHECK_FIELDS(&at, resources, resources_fields, "a rank's resources"))
        return false;
    struct walk limits = walk_into(&at, "limits");
    if (!check_amounts(&limits, json_object_get(resources, "limits")))
        return false;
    struct walk requests = walk_into(&at, "requests");
    return check_amounts(&requests, json_object_get(resources, "requests"));
}

static bool check_spec(const struct walk *w, const json_t *spec)
{
    const json_t *containers = json_object_get(spec, "containers");
    if (!CHECK_FIELDS(w, spec, spec_fields, "a pod's spec"))
        return false;
    struct walk volumes = walk_into(w, "volumes");
    if (!check_volumes(&volumes, json_object_get(spec, "volumes")))
        return false;
    struct walk list = walk_into(w, "containers");
    if (json_array_size(containers) > 1)
        return walk_fail(&list, false, "has %zu containers; the only one is '" HL_PODSPEC_RANK "'",
                         json_array_size(containers));
    struct walk first = walk_item(&list, 0);
    return json_array_size(containers) == 0 ||
           check_rank(&first, json_array_get(containers, 0), json_object_get(spec, "volumes"));
}

/* ---- the section ---------------------------------------------------------------------------- */

static bool check_topology(const struct walk *w, const json_t *topology)
{
    const char *mode = text_of(topology, "mode");
    const json_t *tier = json_object_get(topology, "highestTierAllowed");
    if (!CHECK_FIELDS(w, topology, topology_fields, "networkTopology"))
        return false;
    struct walk at = walk_into(w, "mode");
    if (strcmp(mode, "hard") != 0 && strcmp(mode, "soft") != 0)
        return walk_fail(&at, false, "must be hard or soft");
    at = walk_into(w, "highestTierAllowed");
    if (tier != NULL && (!json_is_integer(tier) || json_integer_value(tier) < 1))
        return walk_fail(&at, false,
                         "must be a whole number from 1, a tier of Volcano's HyperNodes");
    return true;
}

static bool check_template(const struct walk *w, const json_t *template)
{
    if (!CHECK_FIELDS(w, template, template_fields, "podTemplate"))
        return false;
    const json_t *metadata = json_object_get(template, "metadata");
    const json_t *spec = json_object_get(template, "spec");
    struct walk at = walk_into(w, "metadata");
    if (metadata != NULL && !check_metadata(&at, metadata))
        return false;
    at = walk_into(w, "spec");
    return spec == NULL || check_spec(&at, spec);
}

bool hl_podspec_check(const json_t *section, const struct hl_podspec_rules *rules,
                      struct hl_podspec_fault *fault)
{
    struct walk w = {.rules = rules, .fault = fault};
    *fault = (struct hl_podspec_fault){.text = ""};
    w.field_len = text_append(fault->field, sizeof(fault->field), 0, "kubernetes");
    w.pointer_len = text_append(fault->pointer, sizeof(fault->pointer), 0, "/kubernetes");
    if (!check_shape(&w, OBJECT, section) ||
        !CHECK_FIELDS(&w, section, section_fields, "kubernetes"))
        return false;
    const json_t *topology = json_object_get(section, "networkTopology");
    const json_t *template = json_object_get(section, "podTemplate");
    const char *only = topology != NULL ? "networkTopology" : "queue";
    struct walk at = walk_into(&w, only);
    if (rules->no_volcano && json_object_get(section, only) != NULL)
        return walk_fail(&at, true,
                         "is Volcano's, and this cluster starts gangs by PodGroups; "
                         "remove the key");
    at = walk_into(&w, "networkTopology");
    if (topology != NULL && !check_topology(&at, topology))
        return false;
    at = walk_into(&w, "podTemplate");
    return template == NULL || check_template(&at, template);
}

/* ---- use ------------------------------------------------------------------------------------ */

bool hl_podspec_merge(json_t *into, const json_t *from)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)from, key, v) {
        json_t *have = json_object_get(into, key);
        json_t *copy = NULL;
        if (json_is_object(have) && json_is_object(v)) {
            if (!hl_podspec_merge(have, v))
                return false;
            continue;
        }
        if ((copy = json_deep_copy(v)) == NULL)
            return false;
        int failed = json_is_array(have) && json_is_array(copy) ? json_array_extend(have, copy)
                                                                : json_object_set(into, key, copy);
        json_decref(copy);
        if (failed != 0)
            return false;
    }
    return true;
}

const json_t *hl_podspec_metadata(const json_t *section)
{
    return json_object_get(json_object_get(section, "podTemplate"), "metadata");
}

const json_t *hl_podspec_spec(const json_t *section)
{
    return json_object_get(json_object_get(section, "podTemplate"), "spec");
}

const json_t *hl_podspec_rank(const json_t *section)
{
    return json_array_get(json_object_get(hl_podspec_spec(section), "containers"), 0);
}
