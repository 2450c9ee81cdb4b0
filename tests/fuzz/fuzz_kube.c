/* The answer of a watch, of any bytes and cut anywhere: however it is cut, the same events come and
 * the same end, as JSON and as Protocol Buffers; what is left out of an event's text is what would
 * be dropped from its object. Pods and Jobs are read as the executor does, annotations as
 * helios-ranktable does. The first byte says how it is cut. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "kube/parse.h"
#include "kube/stream.h"
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
    struct seen *s = arg;
    hl_volcano_pod_read(object, &(struct hl_volcano_ranks){.first = 3, .count = 4}, &pod);
    (void)hl_volcano_rank_ended(object, 1);
    (void)hl_volcano_job_trouble(object);
    json_array_append_new(s->events, json_pack("[i o]", (int)type, object));
    return HL_OK;
}

/* The same objects again are the same pods. */
static hl_status on_encoded(void *arg, enum hl_kube_event type, const char *bytes, size_t len)
{
    struct hl_ranktable_pod *pod = NULL;
    struct seen *s = arg;
    hl_status st = hl_ranktable_pod_decode(bytes, len, &pod);
    json_array_append_new(s->events, json_pack("[i i i]", (int)type, (int)st,
                                               st == HL_OK ? (int)strlen(pod->owners) : 0));
    hl_ranktable_pod_free(pod);
    return st;
}

/* Pieces of `cut` bytes, 0 = in one. */
static void run(const char *bytes, size_t len, size_t cut, const struct hl_kube_members *members,
                bool is_encoded, struct seen *out)
{
    struct hl_kube_stream s;
    *out = (struct seen){.events = json_array(), .st = HL_OK};
    hl_kube_stream_init(&s, "1", on_event, out);
    s.members = members;
    s.encoded = on_encoded;
    s.is_encoded = is_encoded;
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

static void free_seen(struct seen *s)
{
    json_decref(s->events);
}

/* However it is cut. */
static void check_cuts(const char *bytes, size_t len, size_t cut, bool is_encoded)
{
    struct seen whole, pieces;
    run(bytes, len, 0, NULL, is_encoded, &whole);
    run(bytes, len, cut, NULL, is_encoded, &pieces);
    if (whole.st != pieces.st || strcmp(whole.version, pieces.version) != 0 ||
        !json_equal(whole.events, pieces.events))
        abort();
    free_seen(&whole);
    free_seen(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole, less, pods;
    if (size < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    check_cuts(bytes, size - 1, 1 + data[0] % 64, false);
    check_cuts(bytes, size - 1, 1 + data[0] % 64, true);
    run(bytes, size - 1, 0, NULL, false, &whole);
    run(bytes, size - 1, 0, &but_skipped, false, &less);
    run(bytes, size - 1, 0, &of_pods, false, &pods);
    if (whole.st == HL_OK && (json_array_size(whole.events) != json_array_size(less.events) ||
                              !same_pods(whole.events, pods.events)))
        abort();
    check_parse(bytes, size - 1);
    free_seen(&whole);
    free_seen(&less);
    free_seen(&pods);
    return 0;
}
