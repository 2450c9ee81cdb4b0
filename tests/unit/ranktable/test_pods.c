/* Decisions from a job, its pods and its ConfigMap. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/pods.h"

#define NEW_KEY "ascend.kubectl.kubernetes.io/ascend-910-configuration"
#define NPU_KEY "ascend.kubectl.kubernetes.io/ascend-npu-configuration"
#define OLD_KEY "atlas.kubectl.kubernetes.io/ascend-910-configuration"

static struct hl_ranktable_rules rules = {.label_value = "ascend-910", .format = HL_RANKTABLE_V2};

struct world {
    json_t *job, *pods;
    const char *said; /* by the ConfigMap; NULL = nothing */
};

static json_t *limits(void)
{
    return json_pack("{s:[{s:{s:{s:s}}}]}", "containers", "resources", "limits",
                     "huawei.com/Ascend910", "2");
}

/* Two tasks, "master" of one replica and "worker" of `workers`. */
static struct world make(int workers)
{
    return (struct world){
        .job = json_pack("{s:{s:s s:s s:s s:s s:{s:s}} s:{s:[{s:s s:i} {s:s s:i}]} s:{s:i}}",
                         "metadata", "name", "j", "namespace", "ns", "uid", "u1",
                         "creationTimestamp", "2026-01-01T00:00:00Z", "labels", HL_RANKTABLE_LABEL,
                         "ascend-910", "spec", "tasks", "name", "master", "replicas", 1, "name",
                         "worker", "replicas", workers, "status", "version", 0),
        .pods = json_array(),
    };
}

static void end(struct world *w)
{
    json_decref(w->job);
    json_decref(w->pods);
}

static json_t *meta(json_t *object)
{
    return json_object_get(object, "metadata");
}

static void annotate(json_t *pod, const char *key, const char *text)
{
    json_object_set_new(json_object_get(meta(pod), "annotations"), key, json_string(text));
}

/* Two devices of a server of its own. */
static void give_devices(json_t *pod, const char *key, int server)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"pod_name\":\"%d\",\"server_id\":\"10.0.0.%d\",\"devices\":[{\"device_id\":\"0\","
             "\"device_ip\":\"10.%d.%d.1\"},{\"device_id\":\"1\",\"device_ip\":\"10.%d.%d.2\"}]}",
             server, server, server / 256, server % 256, server / 256, server % 256);
    annotate(pod, key, text);
}

/* A pod of the job, without devices. Borrowed. */
static json_t *add_pod(struct world *w, const char *task, int index)
{
    char name[64], text[16];
    snprintf(name, sizeof(name), "j-%s-%d", task, index);
    snprintf(text, sizeof(text), "%d", index);
    json_t *pod =
        json_pack("{s:{s:s s:s s:s s:s s:{s:s s:s} s:{s:s s:s s:s} s:[{s:s s:s}]} s:o s:{s:s}}",
                  "metadata", "name", name, "namespace", "ns", "uid", name, "creationTimestamp",
                  "2026-01-01T00:00:01Z", "labels", HL_RANKTABLE_LABEL, "ascend-910",
                  "volcano.sh/job-name", "j", "annotations", "volcano.sh/task-spec", task,
                  "volcano.sh/task-index", text, "volcano.sh/job-version", "0", "ownerReferences",
                  "name", "j", "uid", "u1", "spec", limits(), "status", "phase", "Running");
    assert_non_null(pod);
    json_array_append_new(w->pods, pod);
    return pod;
}

static struct world whole(int workers)
{
    struct world w = make(workers);
    give_devices(add_pod(&w, "master", 0), NEW_KEY, 1);
    for (int i = 0; i < workers; i++)
        give_devices(add_pod(&w, "worker", i), NEW_KEY, 2 + i);
    return w;
}

static struct hl_ranktable_verdict judge_as(const struct world *w, enum hl_ranktable_kind kind,
                                            const json_t *job)
{
    struct hl_ranktable_verdict v;
    size_t n = json_array_size(w->pods);
    struct hl_ranktable_pod **pods = calloc(n + 1, sizeof(*pods));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(hl_ranktable_pod_read(json_array_get(w->pods, i), &pods[i]), HL_OK);
    assert_int_equal(hl_ranktable_judge(&rules, kind, job,
                                        (const struct hl_ranktable_pod *const *)pods, n, w->said,
                                        &v),
                     HL_OK);
    for (size_t i = 0; i < n; i++)
        hl_ranktable_pod_free(pods[i]);
    free(pods);
    assert_int_equal(v.reason[0] == '\0', v.state == HL_RANKTABLE_COMPLETED);
    return v;
}

static struct hl_ranktable_verdict judge(const struct world *w)
{
    struct hl_ranktable_verdict v = judge_as(w, HL_RANKTABLE_VOLCANO, w->job);
    assert_non_null(v.text);
    const char *status = v.state == HL_RANKTABLE_COMPLETED ? "{\"status\":\"completed\""
                                                           : "{\"status\":\"initializing\"";
    assert_memory_equal(v.text, status, strlen(status));
    return v;
}

static void expect(const struct world *w, enum hl_ranktable_state state, const char *word)
{
    struct hl_ranktable_verdict v = judge(w);
    if (v.state != state || strstr(v.reason, word) == NULL)
        fail_msg("state %d, reason '%s'", (int)v.state, v.reason);
    hl_ranktable_verdict_fini(&v);
}

/* "server:rank server:rank" of the first devices, in the order of the document. */
static void expect_ranks(const struct world *w, const char *want)
{
    struct hl_ranktable_verdict v = judge(w);
    char got[256] = "";
    const json_t *server;
    size_t i;
    json_t *doc = json_loads(v.text, 0, NULL);
    json_array_foreach (json_object_get(doc, "server_list"), i, server) {
        const json_t *first = json_array_get(json_object_get(server, "device"), 0);
        const char *id = json_string_value(json_object_get(server, "server_id"));
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s:%s", i > 0 ? " " : "",
                 strrchr(id, '.') + 1, json_string_value(json_object_get(first, "rank_id")));
    }
    assert_string_equal(got, want);
    json_decref(doc);
    hl_ranktable_verdict_fini(&v);
}

TEST(completed_with_the_last_annotation)
{
    struct world w = make(2);
    expect(&w, HL_RANKTABLE_WAITING, "0 of 3");
    give_devices(add_pod(&w, "worker", 1), NEW_KEY, 3);
    give_devices(add_pod(&w, "master", 0), NPU_KEY, 1);
    json_t *last = add_pod(&w, "worker", 0);
    expect(&w, HL_RANKTABLE_WAITING, "j-worker-0");
    give_devices(last, OLD_KEY, 2);
    expect(&w, HL_RANKTABLE_COMPLETED, "");
    expect_ranks(&w, "1:0 2:2 3:4");
    end(&w);
}

TEST(the_newest_key_counts)
{
    struct world w = whole(1);
    give_devices(json_array_get(w.pods, 1), OLD_KEY, 9);
    expect_ranks(&w, "1:0 2:2");
    end(&w);
}

TEST(indices_that_are_wished)
{
    struct world w = whole(2);
    annotate(json_array_get(w.pods, 0), "hccl/rankIndex", "2");
    expect_ranks(&w, "2:0 3:2 1:4");
    annotate(json_array_get(w.pods, 1), "hccl/rankIndex", "2");
    expect(&w, HL_RANKTABLE_UNABLE, "rank index 2");
    annotate(json_array_get(w.pods, 1), "hccl/rankIndex", "-1");
    expect(&w, HL_RANKTABLE_UNABLE, "hccl/rankIndex is '-1'");
    end(&w);
}

TEST(a_replaced_pod_takes_its_place)
{
    struct world w = whole(2);
    json_array_remove(w.pods, 1);
    expect(&w, HL_RANKTABLE_WAITING, "2 of 3");
    give_devices(add_pod(&w, "worker", 0), NEW_KEY, 7);
    expect_ranks(&w, "1:0 7:2 3:4");
    end(&w);
}

static void set_meta(json_t *pod, const char *key, json_t *value)
{
    json_object_set_new(meta(pod), key, value);
}

TEST(who_does_not_count)
{
    for (int what = 0; what < 6; what++) {
        struct world w = whole(1);
        json_t *pod = json_array_get(w.pods, 1), *labels = json_object_get(meta(pod), "labels");
        if (what == 0)
            set_meta(pod, "deletionTimestamp", json_string("2026-01-01T00:01:00Z"));
        else if (what == 1)
            json_object_set_new(json_object_get(pod, "status"), "phase", json_string("Failed"));
        else if (what == 2)
            json_object_set_new(labels, HL_RANKTABLE_LABEL, json_string("ascend-310"));
        else if (what == 3)
            set_meta(pod, "namespace", json_string("other"));
        else if (what == 4)
            set_meta(pod, "ownerReferences", json_pack("[{s:s s:s}]", "name", "j", "uid", "u0"));
        else
            json_object_del(labels, HL_RANKTABLE_LABEL);
        expect(&w, HL_RANKTABLE_WAITING, "1 of 2");
        end(&w);
    }
}

/* Lingering pods of the previous incarnation never form a table with those of this one. */
TEST(incarnations_are_not_mixed)
{
    struct world w = whole(1);
    json_object_set_new(json_object_get(w.job, "status"), "version", json_integer(1));
    expect(&w, HL_RANKTABLE_WAITING, "0 of 2");
    annotate(json_array_get(w.pods, 0), "volcano.sh/job-version", "1");
    expect(&w, HL_RANKTABLE_WAITING, "1 of 2");
    annotate(json_array_get(w.pods, 1), "volcano.sh/job-version", "1");
    expect(&w, HL_RANKTABLE_COMPLETED, "");
    /* A pod of the next incarnation is seen before the job says so. */
    annotate(json_array_get(w.pods, 1), "volcano.sh/job-version", "2");
    expect(&w, HL_RANKTABLE_WAITING, "1 of 2");
    end(&w);
}

TEST(more_pods_than_replicas)
{
    struct world w = whole(1);
    give_devices(add_pod(&w, "worker", 1), NEW_KEY, 5);
    expect(&w, HL_RANKTABLE_WAITING, "3 of 2");
    end(&w);
}

TEST(a_pod_without_devices_counts_if_it_wants_none)
{
    struct world w = make(1);
    give_devices(add_pod(&w, "worker", 0), NEW_KEY, 2);
    json_object_del(add_pod(&w, "master", 0), "spec");
    expect(&w, HL_RANKTABLE_COMPLETED, "");
    expect_ranks(&w, "2:0");
    end(&w);
}

TEST(hostile_annotations_cost_their_own_job)
{
    char *deep = malloc(20001), *longer = malloc(100001);
    memset(deep, '[', 20000);
    memset(longer, 'x', 100000);
    deep[20000] = longer[100000] = '\0';
    const char *bad[] = {
        deep,
        longer,
        "",
        "null",
        "[]",
        "{}",
        "{\"server_id\":7.5,\"devices\":[]}",
        "{\"server_id\":\"a b\",\"devices\":[{}]}",
        "{\"server_id\":\"s\",\"devices\":{}}",
        "{\"server_id\":\"s\",\"devices\":[]}",
        "{\"server_id\":\"s\",\"devices\":[7]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":[]}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\",\"device_ip\":\"-1\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"-3\",\"device_ip\":\"1.1.1.1\"}]}",
        "{\"server_id\":\"s\",\"server_id\":\"t\",\"devices\":[{\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"99999999999999999999\"}]}",
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct world w = whole(1);
        annotate(json_array_get(w.pods, 1), NEW_KEY, bad[i]);
        expect(&w, HL_RANKTABLE_UNABLE, "j-worker-0");
        end(&w);
    }
    free(deep);
    free(longer);
}

TEST(strange_jobs)
{
    struct world w = whole(1);
    json_t *spec = json_object_get(w.job, "spec");
    json_t *worker = json_array_get(json_object_get(spec, "tasks"), 1);
    json_object_set_new(worker, "replicas", json_integer(-1));
    expect(&w, HL_RANKTABLE_UNABLE, "-1 replicas");
    json_object_set_new(worker, "replicas", json_integer(2000000000));
    expect(&w, HL_RANKTABLE_UNABLE, "2000000000 replicas");
    json_object_set_new(spec, "tasks", json_string("none"));
    expect(&w, HL_RANKTABLE_UNABLE, "no task");
    json_object_del(w.job, "spec");
    json_array_clear(w.pods);
    expect(&w, HL_RANKTABLE_WAITING, "0 of 0");
    end(&w);
}

static json_t *make_deployment(void)
{
    return json_pack("{s:{s:s s:s s:s s:s s:{s:s}} s:{s:i}}", "metadata", "name", "j", "namespace",
                     "ns", "uid", "u1", "creationTimestamp", "2026-01-01T00:00:00Z", "labels",
                     HL_RANKTABLE_LABEL, "ascend-910", "spec", "replicas", 3);
}

static void give_to_deployment(struct world *w)
{
    size_t i;
    json_t *pod;
    json_array_foreach (w->pods, i, pod) {
        json_object_del(json_object_get(meta(pod), "labels"), "volcano.sh/job-name");
        json_object_set_new(json_object_get(meta(pod), "labels"), "deploy-name", json_string("j"));
        json_object_del(meta(pod), "ownerReferences");
    }
}

/* In the order of their ranks. */
static void expect_servers(const char *text, const char *const want[3])
{
    json_t *doc = json_loads(text, 0, NULL);
    const json_t *servers = json_object_get(doc, "server_list");
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(servers, i), "server_id")), want[i]);
    json_decref(doc);
}

/* Its pods have no number: the ranks in the table stay. */
TEST(a_deployment_keeps_its_ranks)
{
    struct hl_ranktable_verdict v;
    json_t *job = make_deployment();
    struct world w = whole(2);
    char *text = NULL;
    for (int step = 0; step < 3; step++) {
        if (step == 1)
            json_array_remove(w.pods, 1);
        if (step == 2)
            give_devices(add_pod(&w, "late", 0), NEW_KEY, 9);
        give_to_deployment(&w);
        w.said = text;
        v = judge_as(&w, HL_RANKTABLE_DEPLOYMENT, job);
        assert_int_equal(v.state, step == 1 ? HL_RANKTABLE_WAITING : HL_RANKTABLE_COMPLETED);
        assert_non_null(v.text);
        free(text);
        text = strdup(v.text);
        if (step < 2)
            hl_ranktable_verdict_fini(&v);
    }
    free(text);
    /* 10.0.0.3 was third and is; the new one has the place of 10.0.0.2. */
    expect_servers(v.text, (const char *const[]){"10.0.0.1", "10.0.0.9", "10.0.0.3"});
    hl_ranktable_verdict_fini(&v);
    json_decref(job);
    end(&w);
}

/* A replaced pod leaves the others of its server where they are. */
TEST(a_deployments_pods_on_one_server_keep_their_ranks)
{
    static const char said[] =
        "{\"status\":\"completed\",\"server_list\":[{\"server_id\":\"10.0.0.1\",\"device\":["
        "{\"device_id\":\"4\",\"rank_id\":\"0\"},{\"device_id\":\"5\",\"rank_id\":\"1\"},"
        "{\"device_id\":\"0\",\"rank_id\":\"2\"},{\"device_id\":\"1\",\"rank_id\":\"3\"}]},"
        "{\"server_id\":\"10.0.0.2\",\"device\":[{\"device_id\":\"0\",\"rank_id\":\"4\"},"
        "{\"device_id\":\"1\",\"rank_id\":\"5\"}]}],\"server_count\":\"2\"}";
    json_t *job = make_deployment();
    struct world w = whole(2); /* of these three the first has devices 0 and 1 of server 1 */
    give_to_deployment(&w);
    w.said = said;
    struct hl_ranktable_verdict v = judge_as(&w, HL_RANKTABLE_DEPLOYMENT, job);
    assert_int_equal(v.state, HL_RANKTABLE_COMPLETED);
    expect_servers(v.text, (const char *const[]){"10.0.0.3", "10.0.0.1", "10.0.0.2"});
    hl_ranktable_verdict_fini(&v);
    json_decref(job);
    end(&w);
}

/* Pods of an earlier deployment with the same name do not count; clocks of API servers can differ a
 * little. */
TEST(a_deployments_pods_are_younger_than_it)
{

    static const struct {
        const char *born;
        enum hl_ranktable_state state;
    } rows[] = {
        {"2025-12-31T23:59:58Z", HL_RANKTABLE_COMPLETED},
        {"2025-12-31T23:59:55Z", HL_RANKTABLE_COMPLETED},
        {"2025-12-31T23:59:54Z", HL_RANKTABLE_WAITING},
        {"", HL_RANKTABLE_WAITING},
    };

    json_t *job = make_deployment();
    struct world w = whole(2);
    give_to_deployment(&w);
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        json_object_set_new(meta(json_array_get(w.pods, 1)), "creationTimestamp",
                            json_string(rows[i].born));
        struct hl_ranktable_verdict v = judge_as(&w, HL_RANKTABLE_DEPLOYMENT, job);
        assert_int_equal(v.state, rows[i].state);
        hl_ranktable_verdict_fini(&v);
    }
    json_decref(job);
    end(&w);
}

/* The table was edited and gives the second one the first one's rank: the older one keeps it. */
TEST(a_rank_that_a_table_gives_twice)
{

#define SERVER(n, rank, next)                                                                      \
    "{\"server_id\":\"10.0.0." n "\",\"device\":[{\"device_id\":\"0\",\"rank_id\":\"" rank         \
    "\"},{\"device_id\":\"1\",\"rank_id\":\"" next "\"}]}"
    static const char said[] =
        "{\"status\":\"initializing\",\"server_list\":[" SERVER("1", "4", "5") "," SERVER(
            "2", "4", "5") "," SERVER("3", "x", "y") "," SERVER("3", "0", "1") "]}";
    json_t *job = make_deployment();
    struct world w = whole(2);
    give_to_deployment(&w);
    w.said = said;
    struct hl_ranktable_verdict v = judge_as(&w, HL_RANKTABLE_DEPLOYMENT, job);
    assert_int_equal(v.state, HL_RANKTABLE_COMPLETED);
    expect_servers(v.text, (const char *const[]){"10.0.0.3", "10.0.0.2", "10.0.0.1"});
    hl_ranktable_verdict_fini(&v);
    json_decref(job);
    end(&w);
}

static int is_written(struct world *w, const char *text)
{
    w->said = text;
    struct hl_ranktable_verdict v = judge_as(w, HL_RANKTABLE_VOLCANO, w->job);
    int written = v.text == NULL;
    hl_ranktable_verdict_fini(&v);
    w->said = NULL;
    return written;
}

/* Pods that come one after the other cost no writes; one that is lost costs one. */
TEST(an_incomplete_table_is_written_once)
{

    static const char *const not_yet[] = {"",   "initializing",   "{}",
                                          "[]", "{\"status\":7}", "{\"status\":\"Initializing\"}"};

    struct world w = whole(2);
    struct hl_ranktable_verdict v = judge(&w);
    json_t *doc = json_loads(v.text, 0, NULL);
    char *text = strdup(v.text), *pretty = json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(doc);
    hl_ranktable_verdict_fini(&v);
    assert_false(is_written(&w, NULL));
    assert_false(is_written(&w, "{\"status\":\"initializing\"}"));
    assert_true(is_written(&w, text));
    assert_true(is_written(&w, pretty));
    json_array_remove(w.pods, 1);
    assert_false(is_written(&w, text));
    assert_true(is_written(&w, "{\"status\": \"initializing\"}"));
    assert_true(is_written(&w, "{\"status\":\"initializing\",\"server_list\":[]}"));
    for (size_t i = 0; i < HL_ARRAY_LEN(not_yet); i++)
        assert_false(is_written(&w, not_yet[i]));
    free(text);
    free(pretty);
    end(&w);
}

TEST(a_big_job_fits_and_a_huge_one_says_so)
{
    struct world w = whole(999);
    expect(&w, HL_RANKTABLE_COMPLETED, "");
    end(&w);
    w = whole(9000);
    expect(&w, HL_RANKTABLE_UNABLE, "more than a ConfigMap can hold");
    end(&w);
}

TEST(the_config_map_of_a_job)
{
    char name[64];
    struct world w = make(1);
    hl_ranktable_config_map(w.job, name, sizeof(name));
    assert_string_equal(name, "rings-config-j");
    json_t *task = json_array_get(json_object_get(json_object_get(w.job, "spec"), "tasks"), 0);
    json_object_set_new(task, "template",
                        json_pack("{s:{s:[{s:s s:{s:s}} {s:s s:{s:s}}]}}", "spec", "volumes",
                                  "name", "data", "configMap", "name", "other", "name",
                                  HL_RANKTABLE_VOLUME, "configMap", "name", "mine"));
    hl_ranktable_config_map(w.job, name, sizeof(name));
    assert_string_equal(name, "mine");
    end(&w);
}
