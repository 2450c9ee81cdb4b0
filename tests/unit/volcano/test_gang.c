/* Names, plans and documents of gangs on Kubernetes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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
                                             .slot_devices = 1,
                                             .keep_s = 60};
static const struct hl_volcano_opts with_gpus = {.ns = "train",
                                                 .queue = "q",
                                                 .topology_policy = "restricted",
                                                 .device = "nvidia.com/gpu",
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

static json_t *specs_of(const struct hl_job *job, const struct hl_plan *plan)
{
    json_t *specs = json_array();
    for (int i = 0; i < plan->container_count; i++)
        json_array_append_new(
            specs, hl_plan_container_spec(job, plan, i,
                                          &(struct hl_plan_spec_opts){.job_id = "gpt-7",
                                                                      .attempt = 2,
                                                                      .controller_address = "c:1",
                                                                      .l3_address = "tcp://l:2",
                                                                      .model_version = -1,
                                                                      .master_port = 29500,
                                                                      .stop_grace_ms = 1500}));
    return specs;
}

static hl_status make(const struct hl_job *job, const struct hl_volcano_opts *opts,
                      const json_t *near, json_t **out)
{
    struct hl_plan *plan = plan_of(job, opts);
    json_t *specs = specs_of(job, plan);
    hl_status st = hl_volcano_job(
        &(struct hl_volcano_gang){
            .job_id = "gpt-7", .gang = "abcd", .attempt = 2, .job = job, .plan = plan},
        opts, specs, near, out);
    json_decref(specs);
    hl_plan_free(plan);
    return st;
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

static void names_are_dns_labels_and_never_the_same(void **state)
{
    (void)state;
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
        hl_volcano_pod_name(ids[i], 1008, 4095, pod);
        assert_true(strlen(pod) <= 63);
        assert_non_null(strstr(pod, "-a1008-c4095-0"));
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

static void a_gang_is_one_job_of_all_or_nothing(void **state)
{
    (void)state;
    struct hl_job job = job_of(gang_job);
    json_t *doc, *near = json_pack("[[] [s s]]", "node-1", "node-2");
    assert_int_equal(make(&job, &plain, near, &doc), HL_OK);
    is_text(doc, "apiVersion", "batch.volcano.sh/v1alpha1");
    is_text(doc, "metadata.name", "helios-gpt-7-a2");
    is_text(doc, "metadata.namespace", "train");
    assert_string_equal(hl_volcano_job_id(doc), "gpt-7");
    assert_int_equal(hl_volcano_attempt_of(doc, "abcd"), 2);
    assert_int_equal(hl_volcano_attempt_of(doc, "abce"), 0);
    assert_int_equal(hl_volcano_attempt_of(doc, ""), 0);
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
    json_decref(near);
    hl_job_fini(&job);
}

static void a_rank_is_a_container_with_its_own_identity(void **state)
{
    (void)state;
    struct hl_job job = job_of(gang_job);
    json_t *doc;
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_OK);
    json_t *c = at(doc, "spec.tasks.1.template.spec.containers.1");
    is_text(c, "name", "rank-3");
    is_text(c, "image", "img:1");
    is_text(c, "workingDir", "/w");
    is_text(c, "command.2", "echo $$$$ $$(RANK)"); /* Kubernetes makes "echo $$ $(RANK)" of it */
    is_text(c, "resources.requests.cpu", "3");
    is_text(c, "resources.limits.memory", "1073741824"); /* two ranks share the 2 GiB */
    is_text(c, "volumeMounts.2.mountPath", "/in");
    assert_true(json_is_true(at(c, "volumeMounts.2.readOnly")));
    assert_true(json_is_false(at(c, "volumeMounts.3.readOnly")));
    static const char *const want[][2] = {{"RANK", "3"},
                                          {"WORLD_SIZE", "4"},
                                          {"PIPELINE_PARALLEL_RANK", "1"},
                                          {"TENSOR_PARALLEL_RANK", "1"},
                                          {"LOCAL_RANK", "0"},
                                          {"LOCAL_WORLD_SIZE", "1"},
                                          {"GROUP_RANK", "3"},
                                          {"PRICE", "$$5"},
                                          {"OMP_NUM_THREADS", "3"},
                                          {"CONTROLLER_L3_CACHE_ADDRESS", "tcp://l:2"},
                                          {"MASTER_ADDR", "helios-gpt-7-a2-c0-0.helios-gpt-7-a2"},
                                          {"TORCHELASTIC_RESTART_COUNT", "1"}};
    for (size_t i = 0; i < HL_ARRAY_LEN(want); i++)
        assert_string_equal(hl_json_str(var(c, want[i][0]), "value", ""), want[i][1]);
    json_t *node = json_object_get(var(c, "HELIOS_NODE"), "valueFrom");
    is_text(node, "fieldRef.fieldPath", "spec.nodeName");
    json_decref(doc);
    hl_job_fini(&job);
}

static void devices_are_asked_for_by_their_resource(void **state)
{
    (void)state;
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
    job = job_of("{\"jobName\":\"g\",\"dockerImage\":\"i\"}");
    assert_int_equal(make(&job, &ascend, NULL, &doc), HL_OK);
    json_t *labels = at(doc, "spec.tasks.0.template.metadata.labels");
    assert_string_equal(hl_json_str(labels, "ring-controller.atlas", ""), "ascend-910");
    json_decref(doc);
    hl_job_fini(&job);
}

static void what_kubernetes_can_not_have_is_refused(void **state)
{
    (void)state;
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
                 "{\"data_parallel_size\":1000}}");
    json_t *doc = NULL;
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "at most 1400000 can be stored"));
    assert_null(doc);
    job.grid.dp = 300; /* that many fit */
    assert_int_equal(make(&job, &plain, NULL, &doc), HL_OK);
    json_decref(doc);
    hl_job_fini(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_dns_labels_and_never_the_same),
        cmocka_unit_test(a_gang_is_one_job_of_all_or_nothing),
        cmocka_unit_test(a_rank_is_a_container_with_its_own_identity),
        cmocka_unit_test(devices_are_asked_for_by_their_resource),
        cmocka_unit_test(what_kubernetes_can_not_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
