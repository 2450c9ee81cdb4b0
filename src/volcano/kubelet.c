#include "volcano/kubelet.h"

#include <stdio.h>
#include <string.h>

#include "core/json.h"

#define POD_LEVEL       "PodLevel"
#define CONTAINER_LEVEL "ContainerLevel"

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The format of objects before attributes existed: "SingleNUMANodePodLevel". */
static struct hl_kubelet read_policies(const json_t *object)
{
    const json_t *first = json_array_get(json_object_get(object, "topologyPolicies"), 0);
    const char *word = json_is_string(first) ? json_string_value(first) : "";
    struct hl_kubelet k = {.policy = "", .scope = ""};
    if (strcmp(word, "None") == 0)
        k.policy = "none";
    else if (word[0] != '\0')
        k.policy = word;
    if (ends_with(word, POD_LEVEL))
        k.scope = "pod";
    else if (ends_with(word, CONTAINER_LEVEL))
        k.scope = "container";
    return k;
}

struct hl_kubelet hl_kubelet_read(const json_t *object)
{
    struct hl_kubelet k = read_policies(object);
    const json_t *a;
    size_t i;
    json_array_foreach (hl_json_list(object, "attributes"), i, a) {
        const char *name = hl_json_str(a, "name", ""), *value = hl_json_str(a, "value", "");
        if (strcmp(name, "topologyManagerPolicy") == 0)
            k.policy = value;
        else if (strcmp(name, "topologyManagerScope") == 0)
            k.scope = value;
    }
    return k;
}

void hl_kubelet_spreads(const struct hl_kubelet *k, bool several, char *out, size_t cap)
{
    out[0] = '\0';
    if (strcmp(k->policy, "none") == 0)
        snprintf(out, cap,
                 "its kubelet keeps no pod on one NUMA node (topologyManagerPolicy: none)");
    else if (several && k->scope[0] != '\0' && strcmp(k->scope, "pod") != 0)
        snprintf(out, cap,
                 "its kubelet places each container of a pod separately (topologyManagerScope: "
                 "%.20s, not pod)",
                 k->scope);
}
