/* What a job file can add to its pods, and where a forbidden member of the section is reported. */
#include "support/test.h"

#include <string.h>

#include "core/job/job.h"
#include "core/job/podspec.h"

static const struct hl_podspec_rules rules = {.device = "nvidia.com/gpu",
                                              .host_paths = "/data/,/opt/models"};

static json_t *json_of(const char *text)
{
    json_error_t err;
    json_t *doc = json_loads(text, JSON_DECODE_ANY, &err);
    if (doc == NULL)
        fail_msg("%s in %s", err.text, text);
    return doc;
}

TEST(a_section_of_what_helios_does_not_set_is_taken)
{
    json_t *section = json_of(
        "{\"queue\":\"research\",\"networkTopology\":{\"mode\":\"soft\",\"highestTierAllowed\":2},"
        "\"podTemplate\":{\"metadata\":{\"labels\":{\"team\":\"a\"},\"annotations\":{\"n\":\"1\"}},"
        "\"spec\":{\"nodeSelector\":{\"gpu\":\"h100\"},\"hostNetwork\":true,\"tolerations\":[{}],"
        "\"affinity\":{\"anything\":[1]},\"imagePullSecrets\":[{\"name\":\"s\"}],"
        "\"volumes\":[{\"name\":\"d\",\"persistentVolumeClaim\":{\"claimName\":\"c\"}},"
        "{\"name\":\"h\",\"hostPath\":{\"path\":\"/data/x\"}}],"
        "\"containers\":[{\"name\":\"rank\",\"envFrom\":[{\"secretRef\":{\"name\":\"s\"}}],"
        "\"env\":[{\"name\":\"TOKEN\",\"valueFrom\":{\"secretKeyRef\":{}}}],"
        "\"volumeMounts\":[{\"name\":\"d\",\"mountPath\":\"/d\"}],"
        "\"resources\":{\"limits\":{\"rdma/hca\":1,\"ephemeral-storage\":\"8Gi\"}},"
        "\"securityContext\":{\"runAsUser\":1000}}]}}}");
    struct hl_podspec_fault fault;
    if (!hl_podspec_check(section, &rules, &fault))
        fail_msg("%s: %s", fault.field, fault.text);
    assert_string_equal(json_string_value(json_object_get(hl_podspec_rank(section), "name")),
                        "rank");
    json_decref(section);
}

#define SPEC(text) "{\"podTemplate\":{\"spec\":{" text "}}}"
#define RANK(text) SPEC("\"containers\":[{\"name\":\"rank\"," text "}]")

static const struct {
    const char *section, *pointer, *says;
    bool of_key;
} bad_sections[] = {
    {"[]", "/kubernetes", "KEY: VALUE", false},
    {"{\"Queue\":\"q\"}", "/kubernetes/Queue", "did you mean 'queue'", true},
    {"{\"x\":1}", "/kubernetes/x", "these are: queue, networkTopology, podTemplate", true},
    {"{\"queue\":\"\"}", "/kubernetes/queue", "must be a text", false},
    {"{\"networkTopology\":{\"mode\":\"near\"}}", "/kubernetes/networkTopology/mode",
     "hard or soft", false},
    {"{\"networkTopology\":{\"mode\":\"hard\",\"highestTierAllowed\":0}}",
     "/kubernetes/networkTopology/highestTierAllowed", "from 1", false},
    {"{\"podTemplate\":{\"metadata\":{\"labels\":{\"helios.io/gang\":\"x\"}}}}",
     "/kubernetes/podTemplate/metadata/labels/helios.io~1gang", "use it", true},
    {"{\"podTemplate\":{\"metadata\":{\"annotations\":{\"a\":1}}}}",
     "/kubernetes/podTemplate/metadata/annotations/a", "in quotes", false},
    {SPEC("\"nodeSelektor\":{}"), "/kubernetes/podTemplate/spec/nodeSelektor",
     "did you mean 'nodeSelector'", true},
    {SPEC("\"restartPolicy\":\"Always\""), "/kubernetes/podTemplate/spec/restartPolicy",
     "it is Never", true},
    {SPEC("\"terminationGracePeriodSeconds\":1"),
     "/kubernetes/podTemplate/spec/terminationGracePeriodSeconds", "key stopGrace", true},
    {SPEC("\"nodeName\":\"n\""), "/kubernetes/podTemplate/spec/nodeName", "nodeSelector", true},
    {SPEC("\"hostNetwork\":\"yes\""), "/kubernetes/podTemplate/spec/hostNetwork", "true or false",
     false},
    {SPEC("\"tolerations\":[1]"), "/kubernetes/podTemplate/spec/tolerations/0", "KEY: VALUE",
     false},
    {SPEC("\"volumes\":[{}]"), "/kubernetes/podTemplate/spec/volumes/0", "needs a name", false},
    {SPEC("\"volumes\":[{\"name\":\"shm\"}]"), "/kubernetes/podTemplate/spec/volumes/0",
     "Helios uses the name", false},
    {SPEC("\"volumes\":[{\"name\":\"a\",\"hostPath\":{\"path\":\"/data\"}},{\"name\":\"a\"}]"),
     "/kubernetes/podTemplate/spec/volumes/1", "two volumes 'a'", false},
    {SPEC("\"volumes\":[{\"name\":\"a\",\"hostPath\":{\"path\":\"/etc\"}}]"),
     "/kubernetes/podTemplate/spec/volumes/0/hostPath", "these are: /data/,/opt/models", false},
    {SPEC("\"containers\":[{\"name\":\"rank\"},{\"name\":\"b\"}]"),
     "/kubernetes/podTemplate/spec/containers", "2 containers", false},
    {SPEC("\"containers\":[{\"name\":\"main\"}]"), "/kubernetes/podTemplate/spec/containers/0",
     "must be called 'rank'", false},
    {RANK("\"image\":\"i\""), "/kubernetes/podTemplate/spec/containers/0/image", "key dockerImage",
     true},
    {RANK("\"env\":[{\"name\":\"RANK\",\"valueFrom\":{}}]"),
     "/kubernetes/podTemplate/spec/containers/0/env/0", "RANK", false},
    {RANK("\"env\":[{\"name\":\"A\",\"value\":\"1\"}]"),
     "/kubernetes/podTemplate/spec/containers/0/env/0", "env of the job", false},
    {RANK("\"volumeMounts\":[{\"name\":\"a\",\"mountPath\":\"/dev/shm\"}]"),
     "/kubernetes/podTemplate/spec/containers/0/volumeMounts/0", "mounted by Helios", false},
    {RANK("\"volumeMounts\":[{\"name\":\"a\",\"mountPath\":\"/user//serverid/devindex/config/\"}]"),
     "/kubernetes/podTemplate/spec/containers/0/volumeMounts/0", "mounted by Helios", false},
    {RANK("\"volumeMounts\":[{\"name\":\"a\",\"mountPath\":\"/dev/shmem\"}]"),
     "/kubernetes/podTemplate/spec/containers/0/volumeMounts/0", "no volume 'a'", false},
    {RANK("\"volumeMounts\":[{\"mountPath\":\"/a\"}]"),
     "/kubernetes/podTemplate/spec/containers/0/volumeMounts/0", "the name of a volume", false},
    {RANK("\"resources\":{\"claims\":[]}"),
     "/kubernetes/podTemplate/spec/containers/0/resources/claims", "limits, requests", true},
    {RANK("\"resources\":{\"limits\":{\"cpu\":1}}"),
     "/kubernetes/podTemplate/spec/containers/0/resources/limits/cpu", "resources.cpus_per_rank",
     true},
    {RANK("\"resources\":{\"requests\":{\"nvidia.com/gpu\":1}}"),
     "/kubernetes/podTemplate/spec/containers/0/resources/requests/nvidia.com~1gpu",
     "gpus_per_rank", true},
    {RANK("\"resources\":{\"limits\":{\"rdma/hca\":true}}"),
     "/kubernetes/podTemplate/spec/containers/0/resources/limits/rdma~1hca", "an amount", false},
};

TEST(what_is_not_taken_is_told_with_its_place_and_what_to_do)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(bad_sections); i++) {
        struct hl_podspec_fault fault;
        json_t *section = json_of(bad_sections[i].section);
        if (hl_podspec_check(section, &rules, &fault))
            fail_msg("%s is taken", bad_sections[i].section);
        assert_string_equal(fault.pointer, bad_sections[i].pointer);
        assert_int_equal(fault.of_key, bad_sections[i].of_key);
        if (strstr(fault.text, bad_sections[i].says) == NULL)
            fail_msg("'%s' should hold '%s'", fault.text, bad_sections[i].says);
        json_decref(section);
    }
}

TEST(a_directory_holds_what_is_below_it_and_nothing_beside)
{
    static const struct {
        const char *dirs, *path;
        bool may;
    } rows[] = {
        {"", "/data", false},          {"/data", "/data", true},
        {"/data/", "/data/x/y", true}, {"/data", "/database", false},
        {"/a,/data", "/data/x", true}, {"/data", "/data/../etc", false},
        {"/data", "/data/..", false},  {"/data", "/data/..x", true},
        {"/data", "data", false},      {"/", "/etc", true},
        {",,/b", "/a", false},         {"data", "data", false},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        if (hl_podspec_may_mount(rows[i].dirs, rows[i].path, strlen(rows[i].path)) != rows[i].may)
            fail_msg("%s in %s", rows[i].path, rows[i].dirs);
}

TEST(objects_merge_key_by_key_and_lists_are_appended)
{
    json_t *into = json_of("{\"a\":{\"x\":1,\"list\":[1]},\"b\":1,\"keep\":true}");
    json_t *from = json_of("{\"a\":{\"y\":2,\"list\":[2,3]},\"b\":{\"z\":1},\"new\":[{}]}");
    json_t *want = json_of("{\"a\":{\"x\":1,\"y\":2,\"list\":[1,2,3]},\"b\":{\"z\":1},"
                           "\"keep\":true,\"new\":[{}]}");
    assert_true(hl_podspec_merge(into, from));
    assert_true(json_equal(into, want));
    json_array_append_new(json_object_get(into, "new"), json_true());
    assert_int_equal(json_array_size(json_object_get(from, "new")), 1); /* copied */
    json_decref(into);
    json_decref(from);
    json_decref(want);
}

TEST(what_is_volcanos_is_refused_where_pod_groups_start_gangs)
{
    const struct hl_podspec_rules none = {.device = "", .host_paths = "", .no_volcano = true};
    static const char *const keys[] = {"queue", "networkTopology"};
    static const char *const rows[] = {"{\"queue\":\"q\"}",
                                       "{\"networkTopology\":{\"mode\":\"soft\"}}"};
    struct hl_podspec_fault fault;
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        json_t *section = json_of(rows[i]);
        assert_false(hl_podspec_check(section, &none, &fault));
        assert_string_equal(fault.pointer + strlen("/kubernetes/"), keys[i]);
        assert_non_null(strstr(fault.text, "is Volcano's"));
        json_decref(section);
    }
    json_t *section = json_of("{\"podTemplate\":{}}");
    assert_true(hl_podspec_check(section, &none, &fault));
    json_decref(section);
}
