/* A gang as a PodGroup of Kubernetes, made from the document of its Volcano Job. */
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

TEST(a_name_of_the_option_is_an_engine_and_back)
{
    assert_string_equal(hl_gang_version_of("volcano"), "");
    assert_string_equal(hl_gang_version_of("v1alpha2"), "v1alpha2");
    assert_null(hl_gang_version_of("v1"));
    assert_null(hl_gang_version_of(""));
    for (size_t i = 0; i < HL_GANG_ENGINES; i++)
        assert_ptr_equal(hl_gang_version_of(hl_gang_engine_name(hl_gang_versions[i])),
                         hl_gang_versions[i]);
}

/* A group can be served without our kind: scheduling.k8s.io has had PriorityClasses for long. */
TEST(an_engine_is_served_by_its_kind_not_by_its_group)
{
    static const struct {
        const char *version, *list;
        bool served;
    } rows[] = {
        {"v1beta1", "{\"resources\":[{\"name\":\"priorityclasses\"}]}", false},
        {"v1beta1", "{\"resources\":[{\"name\":\"podgroups/status\"},{\"name\":\"podgroups\"}]}",
         true},
        {"", "{\"resources\":[{\"name\":\"jobs\"},{\"name\":\"jobs/status\"}]}", true},
        {"", "{\"resources\":[{\"name\":\"cronjobs\"}]}", false},
        {"", "{\"resources\":7}", false},
        {"", "[]", false},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_gang_root root = hl_gang_root(rows[i].version);
        json_t *list = json_of(rows[i].list);
        assert_int_equal(hl_gang_is_served(&root, list), rows[i].served);
        json_decref(list);
    }
}

TEST(the_engine_of_before_goes_before_volcano_and_that_before_the_newest_version)
{
    static const struct {
        bool served[HL_GANG_ENGINES]; /* Volcano, v1beta1, v1alpha3, v1alpha2 */
        const char *kept, *chosen;
    } rows[] = {
        {{true, true, true, true}, NULL, ""},
        {{false, true, true, true}, NULL, "v1beta1"},
        {{false, false, true, true}, NULL, "v1alpha3"},
        {{true, true, true, true}, "v1alpha2", "v1alpha2"},
        {{true, true, false, false}, "v1alpha3", ""},
        {{false, true, false, false}, "", "v1beta1"},
        {{true, true, false, false}, "", ""},
        {{false, false, false, false}, "v1beta1", NULL},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const char *chosen = hl_gang_choose(rows[i].served, rows[i].kept);
        if (rows[i].chosen == NULL)
            assert_null(chosen);
        else
            assert_string_equal(chosen, rows[i].chosen);
    }
}
