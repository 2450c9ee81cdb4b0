/* Nodes as the API server reports them: if a kubelet goes silent, its pods are lost long before
 * Kubernetes evicts them (their tolerationSeconds, 300 s by default).
 *
 * There is an entry for each node that was listed or changed. A node that was deleted, or is
 * missing in a later list, counts as silent from then on; its entry goes once no pod of ours is
 * there.
 *
 * Not every cluster lets us watch nodes: without that right no node counts as silent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "core/json.h"

struct kube_node {
    char *name;
    char why[160];
    struct hl_gang_node is;
    bool listed;  /* seen in the list whose pages are arriving */
    bool removed; /* from the cluster */
    bool used;    /* while nodes_prune runs: by a pod of ours */
    UT_hash_handle hh;
};

static void node_set(struct gangs *g, struct kube_node *n, bool silent, const char *why)
{
    if (silent != n->is.silent)
        n->is = (struct hl_gang_node){.silent = silent, .since_ns = g->c->listening.listened_ns};
    snprintf(n->why, sizeof(n->why), "%s", why);
}

/* NULL: out of memory, which is logged; the node then stays unknown. */
static struct kube_node *node_enter(struct gangs *g, const char *name)
{
    struct kube_node *n;
    HASH_FIND_STR(g->nodes, name, n);
    if (n != NULL)
        return n;
    n = calloc(1, sizeof(*n));
    if (n == NULL || (n->name = strdup(name)) == NULL) {
        free(n);
        hl_error("Kubernetes: out of memory for node %s", name);
        return NULL;
    }
    HASH_ADD_KEYPTR(hh, g->nodes, n->name, strlen(n->name), n);
    return n;
}

static struct kube_node *node_take(struct gangs *g, const json_t *object)
{
    const char *name;
    if (object_text(object, "metadata.name", &name) != HL_OK) {
        hl_error("Kubernetes: a node is left out error=\"%s\"", hl_error_text());
        return NULL;
    }
    struct kube_node *n = node_enter(g, name);
    if (n == NULL)
        return NULL;
    const json_t *ready = NULL, *c;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(object, "status"), "conditions"), i, c)
        if (strcmp(hl_json_str(c, "type", ""), "Ready") == 0)
            ready = c;
    n->removed = false;
    node_set(g, n, strcmp(hl_json_str(ready, "status", ""), "Unknown") == 0,
             hl_json_str(ready, "message", ""));
    return n;
}

static void node_remove(struct gangs *g, struct kube_node *n)
{
    n->removed = true;
    node_set(g, n, true, "it was removed from the cluster");
}

void nodes_listed(void *arg, const json_t *objects, unsigned page)
{
    struct gangs *g = arg;
    struct kube_node *n, *next;
    const json_t *o;
    size_t i;
    if ((page & HL_KUBE_FIRST) != 0)
        HASH_ITER (hh, g->nodes, n, next)
            n->listed = false;
    json_array_foreach (objects, i, o)
        if ((n = node_take(g, o)) != NULL)
            n->listed = true;
    if ((page & HL_KUBE_LAST) == 0)
        return;
    HASH_ITER (hh, g->nodes, n, next)
        if (!n->listed)
            node_remove(g, n);
}

void nodes_changed(void *arg, enum hl_kube_event type, json_t *object)
{
    struct kube_node *n = node_take(arg, object);
    if (n == NULL)
        return;
    n->listed = true;
    if (type == HL_KUBE_DELETED)
        node_remove(arg, n);
}

static struct kube_node *node_of_pod(const struct gangs *g, const json_t *pod)
{
    const char *name;
    struct kube_node *n = NULL;
    if (object_text_if_any(pod, "spec.nodeName", &name) == HL_OK)
        HASH_FIND_STR(g->nodes, name, n);
    return n;
}

static void node_free(struct gangs *g, struct kube_node *n)
{
    HASH_DEL(g->nodes, n);
    free(n->name);
    free(n);
}

/* Pods and nodes are watched separately, so a pod that was bound before its node was removed may
 * arrive later: entries stay as long as a node may be silent. */
void nodes_prune(struct gangs *g)
{
    struct kube_node *n, *next;
    const char *name;
    json_t *pod;
    uint64_t lost_ns = (uint64_t)g->node_lost_ms * HL_NS_PER_MS;
    HASH_ITER (hh, g->nodes, n, next)
        n->used = false;
    json_object_foreach (g->pods.now, name, pod)
        if ((n = node_of_pod(g, pod)) != NULL)
            n->used = true;
    HASH_ITER (hh, g->nodes, n, next)
        if (n->removed && !n->used &&
            hl_gang_node_lost(&n->is, lost_ns, g->c->listening.listened_ns))
            node_free(g, n);
}

bool gang_node_lost(const struct job *j, const json_t *pod, char *why, size_t cap)
{
    const struct gangs *g = j->controller->gangs;
    int64_t after_ms = j->spec.node_lost_ms >= 0 ? j->spec.node_lost_ms : g->node_lost_ms;
    const struct kube_node *n = node_of_pod(g, pod);
    if (n == NULL ||
        !hl_gang_node_lost(&n->is, (uint64_t)after_ms * HL_NS_PER_MS, g->c->listening.listened_ns))
        return false;
    snprintf(why, cap, "its node %s is silent: %s", n->name, n->why);
    return true;
}

void nodes_free(struct gangs *g)
{
    struct kube_node *n, *next;
    HASH_ITER (hh, g->nodes, n, next)
        node_free(g, n);
}
