/* Names, plans and documents of gangs on Kubernetes. */
#include "support/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "volcano/gang.h"

static const struct hl_volcano_opts plain = {.ns = "train",
                                             .queue = "q",
                                             .topology_policy = "single-numa-node",
                                             .device = "",
                                             .near_key = "",
                                             .podgroups = "",
                                             .slot_devices = 1,
                                             .keep_s = 60};
static const struct hl_volcano_opts with_gpus = {.ns = "train",
                                                 .queue = "q",
                                                 .topology_policy = "restricted",
                                                 .device = "nvidia.com/gpu",
                                                 .near_key = "",
                                                 .podgroups = "",
                                                 .slot_devices = 4,
                                                 .keep_s = 60};

static struct hl_job job_of(const char *text)
{
    struct hl_job job;
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    if (hl_job_parse(doc, NULL, &job) != HL_OK)
        fail_msg("%s", hl_error_text());
    json_decref(doc);
    return job;
}

static struct hl_plan *plan_of(const struct hl_job *job, const struct hl_volcano_opts *opts)
{
    struct hl_plan *plan = NULL;
    if (hl_volcano_plan(job, "gpt-7", 2, opts, &plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    return plan;
}

static struct hl_volcano_gang gang_of(const struct hl_job *job, const struct hl_plan *plan)
{
    return (struct hl_volcano_gang){.job_id = "gpt-7",
                                    .gang = "abcd",
                                    .attempt = 2,
                                    .stop_grace_ms = 1500,
                                    .job = job,
                                    .plan = plan};
}

static hl_status make(const struct hl_job *job, const struct hl_volcano_opts *opts,
                      const struct hl_volcano_nodes *near, json_t **out)
{
    struct hl_plan *plan = plan_of(job, opts);
    struct hl_volcano_gang gang = gang_of(job, plan);
    hl_status st = hl_volcano_job(&gang, opts, near, out);
    hl_plan_free(plan);
    return st;
}

static json_t *variables_of(const struct hl_job *job, const struct hl_volcano_opts *opts)
{
    struct hl_plan *plan = plan_of(job, opts);
    struct hl_volcano_gang gang = gang_of(job, plan);
    struct hl_arena arena = {0};
    const struct hl_plan_spec_opts how = {.job_id = "gpt-7",
                                          .attempt = 2,
                                          .controller_address = "c:1",
                                          .l3_address = "tcp://l:2",
                                          .model_version = -1,
                                          .master_port = 29500};
    struct hl_api_container_spec spec = hl_plan_container_spec(job, plan, 0, &how, &arena);
    json_t *map = hl_volcano_variables(&gang, opts, "u-1", &spec);
    hl_arena_fini(&arena);
    hl_plan_free(plan);
    return map;
}

/* By "a.b.2.c". Borrowed; fails when it is not there. */
static json_t *at(json_t *doc, const char *path)
{
    char step[64];
    json_t *v = doc;
    for (const char *p = path; *p != '\0' && v != NULL;) {
        size_t n = strcspn(p, ".");
        snprintf(step, sizeof(step), "%.*s", (int)n, p);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(step)) : json_object_get(v, step);
        p += n + (p[n] == '.');
    }
    if (v == NULL)
        fail_msg("there is no %s", path);
    return v;
}

static void is_text(json_t *doc, const char *path, const char *want)
{
    assert_string_equal(json_string_value(at(doc, path)), want);
}

static const json_t *var(json_t *container, const char *name)
{
    size_t i;
    json_t *v;
    const json_t *found = NULL;
    json_array_foreach (at(container, "env"), i, v)
        if (strcmp(hl_json_str(v, "name", ""), name) == 0) {
            assert_null(found); /* each once */
            found = v;
        }
    assert_non_null(found);
    return found;
}

TEST(names_are_dns_labels_and_never_the_same)
{
    static const char *const ids[] = {
        "gpt-1",
        "gpt.1",
        "gpt_1",
        "0-1",
        "a-very-long-name-of-a-job-that-somebody-has-chosen-for-his-job-1",
        "a-very-long-name-of-a-job-that-somebody-has-chosen-for-his-job-2"};
    char names[6][HL_VOLCANO_NAME_MAX];
    for (size_t i = 0; i < 6; i++) {
        char pod[HL_VOLCANO_NAME_MAX];
        hl_volcano_job_name(ids[i], 12, names[i]);
        hl_volcano_pod_name(ids[i], 1008, 3584, 511, pod);
        assert_true(strlen(pod) <= 63);
        assert_non_null(strstr(pod, "-a1008-c3584-511"));
        for (const char *p = pod; *p != '\0'; p++)
            assert_true(islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '-');
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(names[i], names[k]);
    }
    assert_string_equal(names[0], "helios-gpt-1-a12");
}

static const char gang_job[] =
    "{\"jobName\":\"gpt\",\"dockerImage\":\"img:1\",\"command\":[\"sh\",\"-c\",\"echo $$ "
    "$(RANK)\"],"
    "\"workdir\":\"/w\",\"parallelism\":{\"tensor_parallel_size\":2,\"pipeline_parallel_size\":2},"
    "\"env\":{\"PRICE\":\"$5\"},\"mounts\":[\"/data:/in:ro\",\"/out:/out\"],"
    "\"resources\":{\"ranks_per_slot\":2,\"cpus_per_rank\":3,\"memory\":\"2GiB\"}}";

TEST(a_gang_is_one_job_of_all_or_nothing)
{
    struct hl_job job = job_of(gang_job);
    static const struct hl_volcano_nodes near[] = {{.count = 0}, {{"node-1", "node-2"}, 2}};
    json_t *doc;
    assert_int_equal(make(&job, &plain, near, &doc), HL_OK);
    is_text(doc, "apiVersion", "batch.volcano.sh/v1alpha1");
    is_text(doc, "metadata.name", "helios-gpt-7-a2");
    is_text(doc, "metadata.namespace", "train");
    assert_string_equal(hl_volcano_job_id(doc), "gpt-7");
    assert_int_equal(hl_volcano_attempt_of(doc, "abcd"), 2);
    assert_int_equal(hl_volcano_attempt_of(doc, "abce"), 0);
    assert_int_equal(hl_volcano_attempt_of(doc, ""), 0);
    static const char *const none[] = {"", "-2", "2x", "4294967298", "99999999999999999999"};
    for (size_t i = 0; i < HL_ARRAY_LEN(none); i++) {
        json_t *copy = json_deep_copy(doc);
        json_t *labels = json_object_get(json_object_get(copy, "metadata"), "labels");
        json_object_set_new(labels, HL_VOLCANO_ATTEMPT, json_string(none[i]));
        assert_int_equal(hl_volcano_attempt_of(copy, "abcd"), 0);
        json_decref(copy);
    }
    assert_int_equal(json_integer_value(at(doc, "spec.minAvailable")), 2);
    assert_int_equal(json_integer_value(at(doc, "spec.ttlSecondsAfterFinished")), 60);
    is_text(doc, "spec.queue", "q");
    is_text(doc, "spec.plugins.svc.0", "--publish-not-ready-addresses=true");
    assert_int_equal(json_array_size(at(doc, "spec.tasks")), 2);
    is_text(doc, "spec.tasks.1.name", "c1");
    is_text(doc, "spec.tasks.1.topologyPolicy", "single-numa-node");
    json_t *template = at(doc, "spec.tasks.1.template");
    assert_int_equal(hl_volcano_attempt_of(template, "abcd"), 2); /* so are its pods */
    json_t *pod = at(template, "spec");
    is_text(pod, "restartPolicy", "Never");
    assert_int_equal(json_integer_value(at(pod, "terminationGracePeriodSeconds")), 2);
    is_text(pod, "volumes.0.configMap.name", "rings-config-helios-gpt-7-a2");
    is_text(pod, "volumes.2.hostPath.path", "/data");
    assert_null(json_object_get(at(doc, "spec.tasks.0.template.spec"), "affinity"));
    json_t *wish = at(pod, "affinity.nodeAffinity");
    wish = at(wish, "preferredDuringSchedulingIgnoredDuringExecution.0.preference");
    is_text(wish, "matchExpressions.0.values.1", "node-2");
    json_decref(doc);
    hl_job_fini(&job);
}

TEST(a_rank_is_a_container_with_its_own_identity)
{
    struct hl_job job = job_of(gang_job);
    json_t *doc;
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_OK);
    json_t *c = at(doc, "spec.tasks.1.template.spec.containers.1");
    is_text(c, "name", "local-1");
    is_text(c, "image", "img:1");
    is_text(c, "workingDir", "/w");
    is_text(c, "command.2", "echo $$$$ $$(RANK)"); /* Kubernetes makes "echo $$ $(RANK)" of it */
    is_text(c, "resources.requests.cpu", "3");
    is_text(c, "resources.limits.memory", "1073741824"); /* two ranks share the 2 GiB */
    is_text(c, "volumeMounts.2.mountPath", "/in");
    assert_true(json_is_true(at(c, "volumeMounts.2.readOnly")));
    assert_true(json_is_false(at(c, "volumeMounts.3.readOnly")));
    static const char *const own[][2] = {{"RANK", "3"},
                                         {"GROUP_RANK", "3"},
                                         {"PIPELINE_PARALLEL_RANK", "1"},
                                         {"TENSOR_PARALLEL_RANK", "1"}};
    for (size_t i = 0; i < HL_ARRAY_LEN(own); i++)
        assert_string_equal(hl_json_str(var(c, own[i][0]), "value", ""), own[i][1]);
    is_text(c, "envFrom.0.configMapRef.name", "helios-gpt-7-a2");
    json_t *node = json_object_get(var(c, "HELIOS_NODE"), "valueFrom");
    is_text(node, "fieldRef.fieldPath", "spec.nodeName");
    json_decref(doc);
    hl_job_fini(&job);
}

TEST(what_all_ranks_have_is_in_a_config_map)
{
    struct hl_job job = job_of(gang_job);
    json_t *map = variables_of(&job, &plain);
    static const char *const want[][2] = {{"WORLD_SIZE", "4"},
                                          {"LOCAL_RANK", "0"},
                                          {"LOCAL_WORLD_SIZE", "1"},
                                          {"GROUP_WORLD_SIZE", "4"},
                                          {"PRICE", "$5"},
                                          {"OMP_NUM_THREADS", "3"},
                                          {"CONTROLLER_L3_CACHE_ADDRESS", "tcp://l:2"},
                                          {"MASTER_ADDR", "helios-gpt-7-a2-c0-0.helios-gpt-7-a2"},
                                          {"TORCHELASTIC_RESTART_COUNT", "1"}};
    static const char *const own[] = {"RANK", "GROUP_RANK", "HELIOS_NODE", "DATA_PARALLEL_RANK"};
    is_text(map, "metadata.name", "helios-gpt-7-a2");
    assert_int_equal(hl_volcano_attempt_of(map, "abcd"), 2);
    for (size_t i = 0; i < HL_ARRAY_LEN(want); i++)
        is_text(at(map, "data"), want[i][0], want[i][1]);
    for (size_t i = 0; i < HL_ARRAY_LEN(own); i++)
        assert_null(json_object_get(at(map, "data"), own[i]));
    json_decref(map);
    hl_job_fini(&job);
}

/* ---- more ranks than can be written out ------------------------------------------------------ */

struct large {
    struct hl_job job;
    struct hl_plan *plan;
    json_t *doc;
};

static void large_make(struct large *l, const char *parallelism, int ranks_per_slot)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"jobName\":\"g\",\"dockerImage\":\"i\",\"command\":[\"prog\",\"a b\",\"$1\"],"
             "\"parallelism\":{%s},\"resources\":{\"ranks_per_slot\":%d}}",
             parallelism, ranks_per_slot);
    l->job = job_of(text);
    l->plan = plan_of(&l->job, &plain);
    if (make(&l->job, &plain, NULL, &l->doc) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void large_free(struct large *l)
{
    json_decref(l->doc);
    hl_plan_free(l->plan);
    hl_job_fini(&l->job);
}

/* Kubernetes' $$ is a $. */
static void put_shell(char *out, size_t cap, const char *text)
{
    size_t n = strlen(out);
    for (; *text != '\0' && n + 1 < cap; text++) {
        out[n++] = *text;
        text += text[0] == '$' && text[1] == '$';
    }
    out[n] = '\0';
}

/* How the shell in a pod expands the rank's command: its words after the variables. */
static void expect_rank(json_t *container, const struct hl_plan_container *c, int local)
{
    const struct hl_plan_rank *r = &c->ranks[local];
    char line[2048] = "", want[256], got[256] = "";
    is_text(container, "command.0", "/bin/sh");
    is_text(container, "command.3", "sh");
    is_text(container, "command.4", "prog");
    is_text(container, "command.5", "a b");
    is_text(container, "command.6", "$$1");
    snprintf(line, sizeof(line), "%s=%s /bin/sh -c '", "HELIOS_POD", c->node);
    put_shell(line, sizeof(line), json_string_value(at(container, "command.2")));
    size_t n = strlen(line);
    snprintf(line + n, sizeof(line) - n,
             "' sh sh -c 'echo $RANK $GLOBAL_RANK $GROUP_RANK $TENSOR_PARALLEL_RANK "
             "$PIPELINE_PARALLEL_RANK $DATA_PARALLEL_RANK $CONTEXT_PARALLEL_RANK \"$0\" \"$1\"' 'a "
             "b' '$1'");
    snprintf(want, sizeof(want), "%d %d %d %d %d %d %d a b $1\n", r->rank, r->rank, r->rank,
             r->at.tp, r->at.pp, r->at.dp, r->at.cp);
    FILE *sh = popen(line, "r");
    assert_non_null(sh);
    assert_non_null(fgets(got, sizeof(got), sh));
    assert_int_equal(pclose(sh), 0);
    assert_string_equal(got, want);
}

/* Every pod has its task and replica; a few of them are checked for their ranks. */
static void expect_ranks(struct large *l)
{
    int i = 0, every = l->plan->container_count / 6 + 1;
    size_t t;
    json_t *task;
    json_array_foreach (at(l->doc, "spec.tasks"), t, task) {
        int pods = (int)json_integer_value(at(task, "replicas"));
        assert_int_equal(json_integer_value(at(task, "minAvailable")), pods);
        for (int k = 0; k < pods; k++, i++) {
            const struct hl_plan_container *c = &l->plan->containers[i];
            char name[128];
            snprintf(name, sizeof(name), "helios-gpt-7-a2-%s-%d", hl_json_str(task, "name", ""), k);
            assert_string_equal(c->node, name);
            json_t *ranks = at(task, "template.spec.containers");
            assert_int_equal(json_array_size(ranks), c->rank_count);
            if (pods == 1)
                assert_int_equal(
                    atoi(hl_json_str(var(json_array_get(ranks, 0), "RANK"), "value", "")),
                    c->ranks[0].rank); /* written out */
            else if (i % every == 0 || k == pods - 1)
                for (int r = 0; r < c->rank_count; r += c->rank_count - (c->rank_count > 1))
                    expect_rank(json_array_get(ranks, (size_t)r), c, r);
        }
    }
    assert_int_equal(i, l->plan->container_count);
    assert_int_equal(json_integer_value(at(l->doc, "spec.minAvailable")), i);
}

TEST(pods_of_a_large_gang_share_tasks_and_count_their_ranks)
{

    static const struct {
        const char *parallelism;
        int ranks_per_slot, tasks;
    } grids[] = {
        {"\"data_parallel_size\":1000", 1, 2}, /* 512 pods to a task */
        {"\"data_parallel_size\":4096", 1, 8},
        {"\"pipeline_parallel_size\":4,\"tensor_parallel_size\":8,\"data_parallel_size\":40", 8, 4},
        {"\"pipeline_parallel_size\":4,\"tensor_parallel_size\":8,\"data_parallel_size\":8,"
         "\"order\":\"tp-pp-dp\"",
         8, 1}, /* stages alternate: they can't be kept apart */
        {"\"pipeline_parallel_size\":3,\"tensor_parallel_size\":2,\"data_parallel_size\":25,"
         "\"order\":\"tp-pp-dp\"",
         4, 2}, /* the last pod has two ranks */
        {"\"pipeline_parallel_size\":4,\"tensor_parallel_size\":8,\"data_parallel_size\":20,"
         "\"context_parallel_size\":2",
         8, 4},
        {"\"pipeline_parallel_size\":4,\"tensor_parallel_size\":2,\"data_parallel_size\":40,"
         "\"context_parallel_size\":2,\"order\":\"tp-pp-dp\"",
         2, 1},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(grids); i++) {
        struct large l;
        large_make(&l, grids[i].parallelism, grids[i].ranks_per_slot);
        assert_int_equal(json_array_size(at(l.doc, "spec.tasks")), grids[i].tasks);
        assert_true(json_dumpb(l.doc, NULL, 0, JSON_COMPACT) < 400000);
        expect_ranks(&l);
        large_free(&l);
    }
}

/* No shell where none is needed; if a shell counts the rank, nothing else gives it. */
TEST(a_small_gang_has_its_ranks_written_out)
{
    static const char *const counted[] = {"RANK",
                                          "GLOBAL_RANK",
                                          "GROUP_RANK",
                                          "TENSOR_PARALLEL_RANK",
                                          "PIPELINE_PARALLEL_RANK",
                                          "DATA_PARALLEL_RANK",
                                          "CONTEXT_PARALLEL_RANK",
                                          "EXPERT_PARALLEL_RANK",
                                          "EXPERT_TENSOR_PARALLEL_RANK",
                                          "EXPERT_DATA_PARALLEL_RANK"};
    struct large few, many;
    large_make(&few, "\"data_parallel_size\":128", 2);
    large_make(&many, "\"data_parallel_size\":130", 2);
    json_t *a = at(few.doc, "spec.tasks.0.template.spec.containers.1");
    json_t *b = at(many.doc, "spec.tasks.0.template.spec.containers.1");
    assert_int_equal(json_array_size(at(a, "env")), HL_ARRAY_LEN(counted) + 1);
    assert_int_equal(json_array_size(at(b, "env")), 2);
    for (size_t i = 0; i < HL_ARRAY_LEN(counted); i++)
        var(a, counted[i]);
    json_t *pod = json_object_get(var(b, "HELIOS_POD"), "valueFrom");
    is_text(pod, "fieldRef.fieldPath", "metadata.name");
    is_text(a, "command.0", "prog");
    large_free(&few);
    large_free(&many);
}

TEST(a_task_wants_to_be_near_what_its_pods_read)
{
    struct hl_job job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\",\"command\":\"x\","
                               "\"parallelism\":{\"pipeline_parallel_size\":2,"
                               "\"data_parallel_size\":100}}");
    struct hl_volcano_nodes *near = calloc(200, sizeof(*near));
    json_t *doc;
    assert_non_null(near);
    for (int i = 100; i < 200; i++) {
        hl_volcano_nodes_add(&near[i], "b");
        hl_volcano_nodes_add(&near[i], i % 2 ? "a" : "c");
        hl_volcano_nodes_add(&near[i], "b");
        assert_int_equal(near[i].count, 2);
    }
    assert_int_equal(make(&job, &plain, near, &doc), HL_OK);
    assert_int_equal(json_array_size(at(doc, "spec.tasks")), 2);
    assert_null(json_object_get(at(doc, "spec.tasks.0.template.spec"), "affinity"));
    json_t *wish = at(doc, "spec.tasks.1.template.spec.affinity.nodeAffinity");
    wish = at(wish, "preferredDuringSchedulingIgnoredDuringExecution.0.preference");
    assert_int_equal(json_array_size(at(wish, "matchExpressions.0.values")), 3);
    json_decref(doc);
    free(near);
    hl_job_fini(&job);
}

TEST(devices_are_asked_for_by_their_resource)
{
    struct hl_job job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\",\"parallelism\":"
                               "{\"tensor_parallel_size\":8}}");
    struct hl_plan *plan = plan_of(&job, &with_gpus);
    json_t *doc;
    assert_int_equal(plan->container_count, 2); /* slots of four */
    hl_plan_free(plan);
    assert_int_equal(make(&job, &with_gpus, NULL, &doc), HL_OK);
    json_t *c = at(doc, "spec.tasks.0.template.spec.containers.3");
    is_text(doc, "spec.tasks.0.topologyPolicy", "none"); /* it says neither CPUs nor memory */
    json_t *limits = at(c, "resources.limits");
    assert_string_equal(hl_json_str(limits, "nvidia.com/gpu", ""), "1");
    assert_null(json_object_get(c, "command")); /* the image's own */
    json_decref(doc);
    hl_job_fini(&job);

    struct hl_volcano_opts ascend = with_gpus;
    ascend.device = "huawei.com/Ascend910";
    ascend.table_label = "ascend-910b";
    ascend.accelerator = "";
    job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\"}");
    assert_int_equal(make(&job, &ascend, NULL, &doc), HL_OK);
    json_t *labels = at(doc, "spec.tasks.0.template.metadata.labels");
    assert_string_equal(hl_json_str(labels, "ring-controller.atlas", ""), "ascend-910b");
    assert_null(json_object_get(at(doc, "spec.tasks.0.template.spec"), "nodeSelector"));
    json_decref(doc);
    ascend.accelerator = "module-910b-8";
    assert_int_equal(make(&job, &ascend, NULL, &doc), HL_OK);
    is_text(doc, "spec.tasks.0.template.spec.nodeSelector.accelerator-type", "module-910b-8");
    json_decref(doc);
    hl_job_fini(&job);
}

TEST(what_kubernetes_can_not_have_is_refused)
{
    struct hl_plan *plan = NULL;
    struct hl_job job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\",\"resources\":"
                               "{\"gpus_per_rank\":1}}");
    assert_int_equal(hl_volcano_plan(&job, "g-1", 1, &plain, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "--kube-device"));
    hl_job_fini(&job);
    job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\",\"parallelism\":"
                 "{\"data_parallel_size\":5000}}");
    assert_int_equal(hl_volcano_plan(&job, "g-1", 1, &plain, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "5000 ranks"));
    hl_job_fini(&job);
    job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\",\"parallelism\":"
                 "{\"data_parallel_size\":2000}}");
    json_t *doc = NULL;
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "at most 1400000 can be stored"));
    assert_non_null(strstr(hl_error_text(), "give it a command"));
    assert_null(doc);
    job.grid = (struct hl_grid){.pp = 8, .tp = 8, .dp = 16}; /* that many fit, four to a pod */
    assert_int_equal(make(&job, &with_gpus, NULL, &doc), HL_OK);
    json_decref(doc);
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_OK);
    json_decref(doc);
    hl_job_fini(&job);
}

/* ---- what the job adds ----------------------------------------------------------------------- */

static json_t *data_of(const char *name)
{
    char path[512];
    json_error_t err;
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(path, sizeof(path), "%s/tests/data/kube/%s", source != NULL ? source : ".", name);
    json_t *doc = json_load_file(path, 0, &err);
    if (doc == NULL)
        fail_msg("%s: %s", path, err.text);
    return doc;
}

/* Which test_command.c runs. */
static void hide_scripts(json_t *doc)
{
    size_t i;
    json_t *task;
    json_array_foreach (at(doc, "spec.tasks"), i, task)
        json_array_set_new(at(task, "template.spec.containers.0.command"), 2, json_string("..."));
}

/* The whole document, so that no change goes unnoticed. */
TEST(a_gang_with_a_pod_template_is_as_in_the_golden_file)
{
    static const struct hl_podspec_rules rules = {.device = "nvidia.com/gpu",
                                                  .host_paths = "/data"};
    static const struct hl_job_source source = {.executor = HL_JOB_EXECUTOR_KUBERNETES,
                                                .pods = &rules};
    static const struct hl_volcano_nodes near[] = {{{"node-1"}, 1}, {.count = 0}};
    struct hl_volcano_opts opts = with_gpus;
    json_t *text = data_of("job.json"), *want = data_of("gang.json"), *doc;
    struct hl_job job;
    opts.near_key = "topology.kubernetes.io/rack";
    if (hl_job_parse(text, &source, &job) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(make(&job, &opts, near, &doc), HL_OK);
    hide_scripts(doc);
    if (!json_equal(doc, want)) {
        json_dumpf(doc, stderr, JSON_INDENT(2) | JSON_SORT_KEYS);
        fail_msg("the gang is another one than tests/data/kube/gang.json");
    }
    json_decref(doc);
    json_decref(want);
    json_decref(text);
    hl_job_fini(&job);
}

TEST(pods_of_a_large_gang_have_what_the_job_adds_too)
{
    struct hl_job job = job_of(
        "{\"jobName\":\"g\",\"dockerImage\":\"i\",\"command\":\"x\",\"parallelism\":"
        "{\"tensor_parallel_size\":2,\"data_parallel_size\":100},\"kubernetes\":{\"podTemplate\":"
        "{\"spec\":{\"runtimeClassName\":\"nvidia\",\"containers\":[{\"name\":\"rank\","
        "\"imagePullPolicy\":\"Always\"}]}}}}");
    struct hl_volcano_opts opts = plain;
    json_t *doc, *task;
    size_t i;
    opts.near_key = "rack";
    assert_int_equal(make(&job, &opts, NULL, &doc), HL_OK);
    json_array_foreach (at(doc, "spec.tasks"), i, task) {
        json_t *template = at(task, "template");
        is_text(template, "spec.runtimeClassName", "nvidia");
        is_text(template, "spec.containers.0.imagePullPolicy", "Always");
        /* its replicas have many groups: near to the gang, without the label of one group */
        json_t *near = at(template, "spec.affinity.podAffinity");
        near = at(near, "preferredDuringSchedulingIgnoredDuringExecution");
        assert_int_equal(json_array_size(near), 1);
        assert_null(json_object_get(at(template, "metadata.labels"), HL_VOLCANO_TP_GROUP));
    }
    json_decref(doc);
    hl_job_fini(&job);
}

static bool warns_of(const char *resources, const struct hl_volcano_opts *opts, const char *words)
{
    char text[256];
    bool found = false;
    snprintf(
        text, sizeof(text),
        "{\"jobName\":\"g\",\"dockerImage\":\"i\",\"parallelism\":{\"tensor_parallel_size\":2},"
        "\"resources\":{%s}}",
        resources);
    struct hl_job job = job_of(text);
    struct hl_plan *plan = plan_of(&job, opts);
    for (char **line = plan->warnings; line != NULL && *line != NULL; line++)
        found |= strstr(*line, words) != NULL;
    hl_plan_free(plan);
    hl_job_fini(&job);
    return found;
}

static bool warns_of_scope(const char *resources, const struct hl_volcano_opts *opts)
{
    return warns_of(resources, opts, "topologyManagerScope: pod");
}

TEST(a_pod_of_several_ranks_that_is_to_be_on_one_numa_node_warns_of_the_kubelets_scope)
{
    struct hl_volcano_opts none = plain;
    none.topology_policy = "none";
    assert_true(
        warns_of_scope("\"ranks_per_slot\":2,\"cpus_per_rank\":1,\"memory\":\"1GiB\"", &plain));
    assert_false(
        warns_of_scope("\"ranks_per_slot\":2,\"cpus_per_rank\":1,\"memory\":\"1GiB\"", &none));
    assert_false(
        warns_of_scope("\"ranks_per_slot\":1,\"cpus_per_rank\":1,\"memory\":\"1GiB\"", &plain));
    assert_false(
        warns_of_scope("\"ranks_per_slot\":2,\"cpus_per_rank\":1", &plain)); /* no policy */
}

TEST(what_is_known_of_the_kubelets_takes_the_warning_back_or_names_a_node)
{
    static const char resources[] = "\"ranks_per_slot\":2,\"cpus_per_rank\":1,\"memory\":\"1GiB\"";
    struct hl_volcano_kubelets all = {.known = 3},
                               some = {.known = 3, .apart = 1, .why = "node n7, its kubelet"},
                               none = {.known = 0};
    struct hl_volcano_opts opts = plain;
    opts.kubelets = &all;
    assert_false(warns_of(resources, &opts, "topologyManagerScope: pod"));
    opts.kubelets = &some;
    assert_true(warns_of(resources, &opts, "1 of 3 have not: node n7, its kubelet"));
    opts.kubelets = &none;
    assert_true(warns_of(resources, &opts, "docs/kubernetes.md says how to look"));
}
