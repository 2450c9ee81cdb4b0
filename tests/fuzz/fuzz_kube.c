/* The answer of a watch, of any bytes and cut anywhere: however it is cut, the same events come and
 * the same end; what is left out of an event's text is what would be dropped from its object. Pods
 * and Jobs are read as the executor does, annotations as helios-ranktable does. The first byte says
 * how it is cut. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "kube/parse.h"
#include "kube/stream.h"
#include "ranktable/annotation.h"
#include "ranktable/pod.h"
#include "volcano/gang.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const skipped[] = {"managedFields", "env", "a", NULL};
static const struct hl_kube_members but_skipped = {.names = skipped};
static const struct hl_kube_members of_pods = {.names = hl_ranktable_pod_members, .only = 1};

struct seen {
    json_t *events; /* [type, object] */
    char version[64];
    hl_status st;
};

static hl_status on_event(void *arg, enum hl_kube_event type, json_t *object)
{
    struct hl_volcano_pod pod;
    struct hl_ranktable_instance devices = {0};
    int32_t index;
    struct seen *s = arg;
    if (hl_ranktable_annotation(object, &devices) == HL_OK)
        hl_ranktable_instance_fini(&devices);
    (void)!hl_ranktable_wanted_index(object, &index);
    hl_volcano_pod_read(object, &(struct hl_volcano_ranks){.first = 3, .count = 4}, &pod);
    (void)hl_volcano_rank_ended(object, 1);
    (void)hl_volcano_job_trouble(object);
    json_array_append_new(s->events, json_pack("[i o]", (int)type, object));
    return HL_OK;
}

/* Pieces of `cut` bytes, 0 = in one. */
static void run(const char *bytes, size_t len, size_t cut, const struct hl_kube_members *members,
                struct seen *out)
{
    struct hl_kube_stream s;
    *out = (struct seen){.events = json_array(), .st = HL_OK};
    hl_kube_stream_init(&s, "1", on_event, out);
    s.members = members;
    for (size_t at = 0; at < len && out->st == HL_OK;) {
        size_t n = cut == 0 || cut > len - at ? len - at : cut;
        char *piece = malloc(n); /* so that a read behind it is seen */
        if (piece == NULL)
            abort();
        memcpy(piece, bytes + at, n);
        out->st = hl_kube_stream_feed(&s, piece, n);
        free(piece);
        at += n;
    }
    memcpy(out->version, s.version, sizeof(out->version));
    hl_kube_stream_fini(&s);
}

static void prune(json_t *v)
{
    const char *key;
    json_t *child;
    void *next;
    size_t i;
    for (const char *const *name = skipped; json_is_object(v) && *name != NULL; name++)
        json_object_del(v, *name);
    json_object_foreach_safe(v, next, key, child) prune(child);
    json_array_foreach (v, i, child)
        prune(child);
}

/* jansson is the measure: the same texts are taken, to the same objects. But a byte 0 is none of a
 * text here. */
static void check_parse(const char *text, size_t len)
{
    json_t *whole = json_loadb(text, len, 0, NULL), *same = NULL, *rest = NULL;
    char *copy = malloc(len); /* so that a read behind it is seen */
    if (copy == NULL)
        abort();
    memcpy(copy, text, len);
    hl_status st = hl_kube_parse(copy, len, NULL, &same);
    if (memchr(text, 0, len) == NULL && (st == HL_OK) != (whole != NULL))
        abort();
    if (st == HL_OK && !json_equal(whole, same))
        abort();
    if (hl_kube_parse(copy, len, &but_skipped, &rest) != HL_OK) {
        if (st == HL_OK)
            abort();
    } else if (whole != NULL) {
        prune(whole);
        if (!json_equal(whole, rest))
            abort();
    }
    json_decref(whole);
    json_decref(same);
    json_decref(rest);
    free(copy);
}

/* A pod is the same when only what is looked at was taken. */
static int same_pods(const json_t *whole, const json_t *less)
{
    int same = json_array_size(whole) == json_array_size(less);
    for (size_t i = 0; same && i < json_array_size(whole); i++) {
        struct hl_ranktable_pod *a = NULL, *b = NULL;
        if (hl_ranktable_pod_read(json_array_get(json_array_get(whole, i), 1), &a) != HL_OK ||
            hl_ranktable_pod_read(json_array_get(json_array_get(less, i), 1), &b) != HL_OK)
            abort();
        same = hl_ranktable_pod_equal(a, b);
        hl_ranktable_pod_free(a);
        hl_ranktable_pod_free(b);
    }
    return same;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole, cut, less, pods;
    if (size < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    run(bytes, size - 1, 0, NULL, &whole);
    run(bytes, size - 1, 1 + data[0] % 64, NULL, &cut);
    if (whole.st != cut.st || strcmp(whole.version, cut.version) != 0 ||
        !json_equal(whole.events, cut.events))
        abort();
    run(bytes, size - 1, 0, &but_skipped, &less);
    run(bytes, size - 1, 0, &of_pods, &pods);
    if (whole.st == HL_OK && (json_array_size(whole.events) != json_array_size(less.events) ||
                              !same_pods(whole.events, pods.events)))
        abort();
    check_parse(bytes, size - 1);
    json_decref(whole.events);
    json_decref(cut.events);
    json_decref(less.events);
    json_decref(pods.events);
    return 0;
}
