/* A pod decodes equally from JSON and from Protocol Buffers. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/pod.h"
#include "support/protobuf.h"

#define DEVICES                                                                                    \
    "{\"pod_name\":\"3\",\"server_id\":\"10.1.0.3\",\"devices\":[{\"device_id\":\"0\","            \
    "\"device_ip\":\"10.2.0.3\"}]}"
#define ODD "{\"server_id\":\"s\",\"devices\":[{\"device_id\":3}]}"

static const struct sample {
    const char *name, *ns, *uid, *phase, *ip, *limit, *amount; /* NULL = none */
    bool is_deleted;
    const char *owners[3];
    const char *labels[5][2], *annotations[5][2];
} samples[] = {
    {.name = "j-w-3",
     .ns = "default",
     .uid = "u1",
     .phase = "Running",
     .ip = "10.9.9.9",
     .limit = "huawei.com/Ascend910",
     .amount = "8",
     .owners = {"job-1", "other"},
     .labels = {{"volcano.sh/job-name", "j"}, {"ring-controller.atlas", "ascend-910"}, {"x", "y"}},
     .annotations = {{"volcano.sh/task-spec", "w"},
                     {"volcano.sh/task-index", "3"},
                     {"volcano.sh/job-version", "2"},
                     {"ascend.kubectl.kubernetes.io/ascend-910-configuration", DEVICES},
                     {"hccl/rankIndex", "5"}}},
    {.name = "no-annotation-7",
     .ns = "n",
     .uid = "u2",
     .limit = "huawei.com/Ascend910",
     .amount = "1",
     .labels = {{"deploy-name", "d"}, {"job-name", "b"}}},
    {.name = "asks-for-none",
     .ns = "n",
     .uid = "u3",
     .limit = "huawei.com/Ascend910",
     .amount = "0",
     .phase = "Pending"},
    {.name = "cpu-only", .ns = "n", .uid = "u4", .limit = "cpu", .amount = "3"},
    {.name = "failed",
     .ns = "n",
     .uid = "u5",
     .phase = "Failed",
     .labels = {{"job-name", "b"}, {"batch.kubernetes.io/job-completion-index", "4"}}},
    {.name = "goes",
     .ns = "n",
     .uid = "u6",
     .is_deleted = true,
     .annotations = {{"volcano.sh/job-version", "x"},
                     {"hccl/rankIndex", "-1"},
                     {"atlas.kubectl.kubernetes.io/ascend-910-configuration", ODD}}},
    {.name = "can't-be-used",
     .ns = "n",
     .uid = "u7",
     .annotations = {{"ascend.kubectl.kubernetes.io/ascend-npu-configuration", "{\"a\":"}}},
    {.name = "index-of-many-digits",
     .ns = "n",
     .uid = "u8",
     .annotations = {{"ascend.kubectl.kubernetes.io/ascend-npu-configuration", DEVICES},
                     {"hccl/rankIndex", "00000000000000000000000000000000000001"},
                     {"volcano.sh/task-index", "00000000000000000000000000000000000001"}}},
    {.uid = "nothing"},
};

static json_t *texts(const char *const from[5][2])
{
    json_t *out = json_object();
    for (int i = 0; i < 5 && from[i][0] != NULL; i++)
        json_object_set_new(out, from[i][0], json_string(from[i][1]));
    return out;
}

static struct hl_ranktable_pod *of_json(const struct sample *s)
{
    json_t *owners = json_array(), *limits = json_object();
    for (int i = 0; s->owners[i] != NULL; i++)
        json_array_append_new(owners, json_pack("{s:s s:s}", "kind", "Job", "uid", s->owners[i]));
    if (s->limit != NULL)
        json_object_set_new(limits, s->limit, json_string(s->amount));
    json_t *pod = json_pack(
        "{s:{s:s* s:s* s:s* s:s s:s* s:o s:o s:o} s:{s:[{s:s}{s:{s:o}}]} s:{s:s* s:s*}}",
        "metadata", "name", s->name, "namespace", s->ns, "uid", s->uid, "creationTimestamp",
        "2026-03-04T05:06:07Z", "deletionTimestamp", s->is_deleted ? "2026-03-04T05:06:08Z" : NULL,
        "labels", texts(s->labels), "annotations", texts(s->annotations), "ownerReferences", owners,
        "spec", "containers", "name", "sidecar", "resources", "limits", limits, "status", "phase",
        s->phase, "podIP", s->ip);
    struct hl_ranktable_pod *out = NULL;
    assert_int_equal(hl_ranktable_pod_read(pod, &out), HL_OK);
    json_decref(pod);
    return out;
}

static void add_text(struct hl_buf *b, unsigned field, const char *text)
{
    if (text != NULL)
        pb_text(b, field, text);
}

static void add_meta(struct hl_buf *pod, const struct sample *s)
{
    struct hl_buf meta = HL_BUF(65536), part = HL_BUF(65536);
    add_text(&meta, 1, s->name);
    pb_text(&meta, 2, "");
    add_text(&meta, 3, s->ns);
    add_text(&meta, 5, s->uid);
    pb_text(&meta, 6, "4711");
    pb_number(&meta, 7, 0);
    pb_number(&part, 1, 1772600767); /* 2026-03-04T05:06:07Z */
    pb_number(&part, 2, 0);
    pb_message(&meta, 8, &part);
    if (s->is_deleted)
        pb_text(&meta, 9, "");
    for (int i = 0; i < 5 && s->labels[i][0] != NULL; i++)
        pb_entry(&meta, 11, s->labels[i][0], s->labels[i][1]);
    for (int i = 0; i < 5 && s->annotations[i][0] != NULL; i++)
        pb_entry(&meta, 12, s->annotations[i][0], s->annotations[i][1]);
    for (int i = 0; s->owners[i] != NULL; i++) {
        pb_text(&part, 1, "Job");
        pb_text(&part, 4, s->owners[i]);
        pb_number(&part, 6, 1);
        pb_message(&meta, 13, &part);
    }
    pb_text(&meta, 17, "what the server keeps for itself");
    pb_message(pod, 1, &meta);
}

static void add_spec(struct hl_buf *pod, const struct sample *s)
{
    struct hl_buf spec = HL_BUF(65536), container = HL_BUF(65536), resources = HL_BUF(65536);
    struct hl_buf entry = HL_BUF(65536), quantity = HL_BUF(64);
    pb_text(&spec, 1, "volume");
    pb_text(&container, 1, "sidecar");
    pb_message(&spec, 2, &container);
    if (s->limit != NULL) {
        pb_text(&entry, 1, s->limit);
        pb_text(&quantity, 1, s->amount);
        pb_message(&entry, 2, &quantity);
        pb_message(&resources, 1, &entry);
        pb_entry(&resources, 2, "huawei.com/asked", "");
    }
    pb_message(&container, 8, &resources);
    pb_message(&spec, 2, &container);
    pb_number(&spec, 4, 30);
    pb_message(pod, 2, &spec);
}

static void encode(const struct sample *s, struct hl_buf *pod)
{
    struct hl_buf status = HL_BUF(4096);
    add_meta(pod, s);
    add_spec(pod, s);
    add_text(&status, 1, s->phase);
    pb_text(&status, 5, "10.0.0.1");
    add_text(&status, 6, s->ip);
    pb_message(pod, 3, &status);
    pb_text(pod, 99, "a part of tomorrow");
    pb_number(pod, 100, 1);
}

TEST(both_are_the_same)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(samples); i++) {
        struct hl_buf bytes = HL_BUF(65536);
        struct hl_ranktable_pod *a = of_json(&samples[i]), *b = NULL;
        encode(&samples[i], &bytes);
        assert_int_equal(hl_ranktable_pod_decode(bytes.data, bytes.len, &b), HL_OK);
        if (!hl_ranktable_pod_equal(a, b))
            fail_msg("%s: %d %s, %d %s; %s %s", samples[i].uid, (int)a->st, a->reason, (int)b->st,
                     b->reason, a->born, b->born);
        hl_ranktable_pod_free(a);
        hl_ranktable_pod_free(b);
        hl_buf_fini(&bytes);
    }
}

/* And what they are. */
TEST(what_a_table_asks_of_them)
{
    struct hl_ranktable_pod *p = of_json(&samples[0]);
    assert_string_equal(p->job, "j");
    assert_string_equal(p->owners, "\njob-1\nother\n");
    assert_string_equal(p->born, "2026-03-04T05:06:07Z");
    assert_string_equal(p->instance.container_ip, "10.9.9.9");
    assert_int_equal(p->instance.rank_index, 5);
    assert_int_equal(p->version, 2);
    assert_int_equal(p->task_index, 3);
    assert_int_equal(p->st, HL_OK);
    hl_ranktable_pod_free(p);
    static const hl_status sts[] = {HL_OK,     HL_ENOENT, HL_OK,     HL_OK, HL_OK,
                                    HL_EINVAL, HL_EINVAL, HL_EINVAL, HL_OK};
    static const bool gone[] = {0, 0, 0, 0, 1, 1, 0, 0, 0};
    for (size_t i = 0; i < HL_ARRAY_LEN(samples); i++) {
        p = of_json(&samples[i]);
        if (p->st != sts[i] || p->gone != gone[i])
            fail_msg("%s: %d %s", samples[i].uid, (int)p->st, p->reason);
        hl_ranktable_pod_free(p);
    }
}

/* Wherever it is cut, nothing is read beyond its end: the sanitizers check. */
TEST(cut_anywhere)
{
    struct hl_buf bytes = HL_BUF(65536);
    size_t pods = 0;
    encode(&samples[0], &bytes);
    for (size_t n = 0; n < bytes.len; n++) {
        struct hl_ranktable_pod *p = NULL;
        char *copy = malloc(n > 0 ? n : 1);
        memcpy(copy, bytes.data, n);
        hl_status st = hl_ranktable_pod_decode(copy, n, &p);
        free(copy);
        assert_true(st == HL_OK || st == HL_EPROTO);
        pods += st == HL_OK;
        hl_ranktable_pod_free(p);
    }
    assert_int_equal(pods, 5); /* where one of its fields ends */
    hl_buf_fini(&bytes);
}
