/* A gang by a PodGroup of Kubernetes, from the document of its Volcano Job. */
#include "support/test.h"

#include <string.h>

#include "base/status.h"
#include "core/json.h"
#include "volcano/podgroup.h"

static const char job_text[] =
    "{\"metadata\":{\"name\":\"helios-g-1-a2\",\"namespace\":\"train\",\"labels\":{\"helios.io/"
    "gang\":"
    "\"abc\"}},\"spec\":{\"minAvailable\":3,\"priorityClassName\":\"high\",\"schedulerName\":"
    "\"volcano\","
    "\"tasks\":[{\"name\":\"c0\",\"replicas\":2,\"template\":{\"metadata\":{\"labels\":{\"helios."
    "io/"
    "gang\":\"abc\"}},\"spec\":{\"schedulerName\":\"volcano\",\"containers\":[{\"name\":\"local-"
    "0\"}]}}},"
    "{\"name\":\"c2\",\"replicas\":1,\"template\":{\"metadata\":{},\"spec\":{}}}]}}";

static json_t *json_of(const char *text)
{
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    return doc;
}

static void is_doc(json_t *doc, const char *want)
{
    json_t *expected = json_of(want);
    if (!json_equal(doc, expected))
        fail_msg("%s", json_dumps(doc, JSON_SORT_KEYS));
    json_decref(expected);
    json_decref(doc);
}

TEST(a_pod_group_asks_for_all_pods_of_its_gang)
{
    json_t *job = json_of(job_text);
    is_doc(hl_podgroup_of(job, "v1beta1"),
           "{\"apiVersion\":\"scheduling.k8s.io/"
           "v1beta1\",\"kind\":\"PodGroup\",\"metadata\":{\"name\":"
           "\"helios-g-1-a2\",\"namespace\":\"train\",\"labels\":{\"helios.io/"
           "gang\":\"abc\"}},\"spec\":{"
           "\"schedulingPolicy\":{\"gang\":{\"minCount\":3}},\"priorityClassName\":\"high\"}}");
    is_doc(hl_podgroup_service(job, "v1beta1", "u-1"),
           "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"helios-g-1-a2\","
           "\"namespace\":\"train\",\"labels\":{\"helios.io/gang\":\"abc\"},\"ownerReferences\":[{"
           "\"apiVersion\":\"scheduling.k8s.io/"
           "v1beta1\",\"kind\":\"PodGroup\",\"name\":\"helios-g-1-a2\","
           "\"uid\":\"u-1\"}]},\"spec\":{\"clusterIP\":\"None\",\"publishNotReadyAddresses\":true,"
           "\"selector\":{\"helios.io/gang\":\"abc\"}}}");
    json_decref(job);
}

TEST(its_pods_are_those_that_volcano_would_make)
{
    json_t *job = json_of(job_text), *pods = hl_podgroup_pods(job, "v1beta1", "u-1"), *pod;
    static const char *const names[] = {"helios-g-1-a2-c0-0", "helios-g-1-a2-c0-1",
                                        "helios-g-1-a2-c2-0"};
    size_t i;
    assert_int_equal(json_array_size(pods), HL_ARRAY_LEN(names));
    json_array_foreach (pods, i, pod)
        assert_string_equal(hl_json_str(json_object_get(pod, "metadata"), "name", ""), names[i]);
    is_doc(json_incref(json_array_get(pods, 1)),
           "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"helios-g-1-a2-c0-1\","
           "\"namespace\":\"train\",\"labels\":{\"helios.io/gang\":\"abc\"},\"ownerReferences\":[{"
           "\"apiVersion\":\"scheduling.k8s.io/"
           "v1beta1\",\"kind\":\"PodGroup\",\"name\":\"helios-g-1-a2\","
           "\"uid\":\"u-1\"}]},\"spec\":{\"containers\":[{\"name\":\"local-0\"}],\"hostname\":"
           "\"helios-g-1-a2-c0-1\",\"subdomain\":\"helios-g-1-a2\",\"schedulingGroup\":{"
           "\"podGroupName\":"
           "\"helios-g-1-a2\"}}}");
    json_decref(pods);
    json_decref(job);
}

TEST(a_group_that_is_not_scheduled_says_why)
{
    static const struct {
        const char *group, *says;
    } rows[] = {
        {"{}", ""},
        {"{\"status\":{\"conditions\":[{\"type\":\"PodGroupInitiallyScheduled\",\"status\":"
         "\"False\","
         "\"reason\":\"Unschedulable\",\"message\":\"no room\"}]}}",
         "Unschedulable: no room"},
        {"{\"status\":{\"conditions\":[{\"type\":\"PodGroupScheduled\",\"status\":\"False\","
         "\"reason\":\"SchedulerError\",\"message\":\"x\"}]}}",
         "SchedulerError: x"},
        {"{\"status\":{\"conditions\":[{\"type\":\"PodGroupInitiallyScheduled\",\"status\":"
         "\"True\"}]}}",
         ""},
        {"{\"status\":{\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"False\"}]}}",
         ""},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char text[256];
        json_t *group = json_of(rows[i].group);
        hl_podgroup_waits(group, text, sizeof(text));
        assert_string_equal(text, rows[i].says);
        json_decref(group);
    }
}
