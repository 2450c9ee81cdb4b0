/* The planner's view of the cluster: nodes sorted by name, each with its slots. */
#include "core/planner/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/index.h"

static void node_fini(struct hl_cluster_node *n)
{
    for (int i = 0; i < n->slot_count; i++) {
        for (int g = 0; g < n->slots[i].gpu_count; g++)
            free(n->slots[i].gpus[g]);
        free(n->slots[i].gpus);
        free(n->slots[i].cpus);
    }
    free(n->slots);
    free(n->host_id);
    free(n->rank_address);
    free(n->host_address);
    free(n->leaf);
    free(n->spine);
    free(n->device_addresses);
}

void hl_cluster_fini(struct hl_cluster *c)
{
    for (size_t i = 0; i < c->count; i++)
        node_fini(&c->nodes[i]);
    free(c->nodes);
    hl_place_index_free(c->index);
    *c = (struct hl_cluster){0};
}

/* The position of the name, or where to insert it. strverscmp sorts node-2 before node-10. */
static size_t node_position(const struct hl_cluster *c, const char *name, bool *found)
{
    size_t low = 0, high = c->count;
    *found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int d = strverscmp(c->nodes[mid].name, name);
        if (d == 0) {
            *found = true;
            return mid;
        }
        if (d < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static hl_status out_of_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a node");
}

static char *text_dup(const char *text)
{
    return strdup(text != NULL ? text : "");
}

static hl_status slot_read(const struct hl_api_slot *from, struct hl_cluster_slot *s)
{
    struct hl_cpus cpus;
    s->numa_id = from->numa_id;
    s->memory_bytes = from->memory_bytes;
    if (s->numa_id < 0)
        return hl_fail(HL_EINVAL, "a slot has no numaId");
    s->cpus = text_dup(from->cpus);
    s->gpus = calloc(from->gpus.count + 1, sizeof(char *));
    if (s->cpus == NULL || s->gpus == NULL)
        return out_of_memory();
    HL_TRY(hl_cpus_parse(s->cpus, &cpus));
    s->cpu_count = hl_cpus_count(&cpus);
    for (size_t i = 0; i < from->gpus.count; i++) {
        s->gpus[i] = text_dup(from->gpus.items[i].id);
        if (s->gpus[i] == NULL)
            return out_of_memory();
        uint64_t memory = from->gpus.items[i].memory_bytes;
        if (i == 0 || memory < s->gpu_memory_bytes)
            s->gpu_memory_bytes = memory;
        s->gpu_count++;
    }
    for (size_t i = 0; i < from->nics.count; i++) {
        enum hl_nic_class nic = hl_nic_class_named(from->nics.items[i].nic_class);
        s->nic = nic > s->nic ? nic : s->nic;
    }
    return HL_OK;
}

static int by_numa(const void *x, const void *y)
{
    const struct hl_cluster_slot *a = x, *b = y;
    return (a->numa_id > b->numa_id) - (a->numa_id < b->numa_id);
}

static hl_status node_read(const struct hl_api_node_info *from, struct hl_cluster_node *n)
{
    const char *name = from->name != NULL ? from->name : "";
    size_t count = from->slots.count;
    if (*name == '\0' || strlen(name) > HL_NODE_NAME_MAX)
        return hl_fail(HL_EINVAL, "node name '%.80s' must have 1 to %d characters", name,
                       HL_NODE_NAME_MAX);
    snprintf(n->name, sizeof(n->name), "%s", name);
    if (count > HL_TOPO_SLOTS_MAX)
        return hl_fail(HL_EINVAL, "node %s has more than %d slots", name, HL_TOPO_SLOTS_MAX);
    n->ready = true;
    n->host_id = text_dup(from->host_id);
    n->rank_address = text_dup(from->rank_address);
    n->host_address =
        text_dup(from->host_address != NULL ? from->host_address : from->rank_address);
    if ((from->leaf != NULL && strlen(from->leaf) > HL_SWITCH_NAME_MAX) ||
        (from->spine != NULL && strlen(from->spine) > HL_SWITCH_NAME_MAX))
        return hl_fail(HL_EINVAL, "node %s: names of leaf and spine have at most %d characters",
                       name, HL_SWITCH_NAME_MAX);
    n->leaf = text_dup(from->leaf);
    n->spine = text_dup(from->spine);
    n->device_addresses = text_dup(from->device_addresses);
    n->slots = calloc(count + 1, sizeof(*n->slots));
    if (n->leaf == NULL || n->spine == NULL || n->host_id == NULL || n->rank_address == NULL ||
        n->host_address == NULL || n->device_addresses == NULL || n->slots == NULL)
        return out_of_memory();
    for (size_t i = 0; i < count; i++) {
        hl_status st = slot_read(&from->slots.items[i], &n->slots[n->slot_count++]);
        if (st != HL_OK)
            return hl_fail_prefix(st, "node %s: ", name);
    }
    qsort(n->slots, (size_t)n->slot_count, sizeof(*n->slots), by_numa);
    for (int k = 1; k < n->slot_count; k++)
        if (n->slots[k].numa_id == n->slots[k - 1].numa_id)
            return hl_fail(HL_EINVAL, "node %s: slot %d appears twice", name, n->slots[k].numa_id);
    return HL_OK;
}

static struct hl_cluster_slot *find_slot(const struct hl_cluster_node *n, int numa_id)
{
    for (int i = 0; i < n->slot_count; i++)
        if (n->slots[i].numa_id == numa_id)
            return &n->slots[i];
    return NULL;
}

static hl_status cluster_grow(struct hl_cluster *c)
{
    if (c->count < c->cap)
        return HL_OK;
    size_t cap = c->cap > 0 ? c->cap * 2 : 16;
    struct hl_cluster_node *nodes = realloc(c->nodes, cap * sizeof(*nodes));
    if (nodes == NULL)
        return out_of_memory();
    c->nodes = nodes;
    c->cap = cap;
    return HL_OK;
}

/* Call after nodes have come or gone, or have other slots. */
static void cluster_changed(struct hl_cluster *c)
{
    c->version++;
    if (c->index != NULL)
        c->index->fresh = false;
}

static hl_status cluster_add_index(struct hl_cluster *c)
{
    if (c->index == NULL)
        c->index = calloc(1, sizeof(*c->index));
    return c->index != NULL ? HL_OK : out_of_memory();
}

hl_status hl_cluster_put(struct hl_cluster *c, const struct hl_api_node_info *node)
{
    struct hl_cluster_node n = {0};
    bool found;
    hl_status st = node_read(node, &n);
    if (st == HL_OK)
        st = cluster_grow(c);
    if (st == HL_OK)
        st = cluster_add_index(c);
    if (st != HL_OK) {
        node_fini(&n);
        return st;
    }
    size_t at = node_position(c, n.name, &found);
    if (found) {
        for (int i = 0; i < n.slot_count; i++) {
            const struct hl_cluster_slot *old = find_slot(&c->nodes[at], n.slots[i].numa_id);
            n.slots[i].busy = old != NULL && old->busy;
        }
        n.draining = c->nodes[at].draining;
        n.reserved = c->nodes[at].reserved;
        node_fini(&c->nodes[at]);
    } else {
        memmove(&c->nodes[at + 1], &c->nodes[at], (c->count - at) * sizeof(n));
        c->count++;
    }
    c->nodes[at] = n;
    cluster_changed(c);
    return HL_OK;
}

void hl_cluster_remove(struct hl_cluster *c, const char *name)
{
    bool found;
    size_t at = node_position(c, name, &found);
    if (!found)
        return;
    node_fini(&c->nodes[at]);
    memmove(&c->nodes[at], &c->nodes[at + 1], (c->count - at - 1) * sizeof(*c->nodes));
    c->count--;
    cluster_changed(c);
}

struct hl_cluster_node *hl_cluster_find(const struct hl_cluster *c, const char *name)
{
    bool found;
    size_t at = node_position(c, name, &found);
    return found ? &c->nodes[at] : NULL;
}

static void node_changed(struct hl_cluster *c, const struct hl_cluster_node *n)
{
    c->version++;
    hl_place_index_update(c->index, c, (size_t)(n - c->nodes));
}

void hl_cluster_set_ready(struct hl_cluster *c, const char *name, bool ready)
{
    struct hl_cluster_node *n = hl_cluster_find(c, name);
    if (n == NULL || n->ready == ready)
        return;
    n->ready = ready;
    node_changed(c, n);
}

void hl_cluster_set_draining(struct hl_cluster *c, const char *name, bool draining)
{
    struct hl_cluster_node *n = hl_cluster_find(c, name);
    if (n == NULL || n->draining == draining)
        return;
    n->draining = draining;
    node_changed(c, n);
}

void hl_cluster_set_window(struct hl_cluster *c, const char *name, struct hl_node_window w)
{
    struct hl_cluster_node *n = hl_cluster_find(c, name);
    if (n == NULL || (n->reserved.from_ms == w.from_ms && n->reserved.until_ms == w.until_ms))
        return;
    n->reserved = w;
    node_changed(c, n);
}

void hl_cluster_set_time(struct hl_cluster *c, int64_t now_ms, int64_t grace_ms)
{
    c->now_ms = now_ms;
    c->grace_ms = grace_ms;
}

void hl_cluster_set_busy_at(struct hl_cluster *c, size_t *at, const char *name, int numa_id,
                            bool busy)
{
    bool found = true;
    if (*at >= c->count || strcmp(c->nodes[*at].name, name) != 0)
        *at = node_position(c, name, &found);
    struct hl_cluster_slot *s = found ? find_slot(&c->nodes[*at], numa_id) : NULL;
    if (s == NULL || s->busy == busy)
        return;
    s->busy = busy;
    node_changed(c, &c->nodes[*at]);
}

void hl_cluster_set_busy(struct hl_cluster *c, const char *name, int numa_id, bool busy)
{
    size_t at = SIZE_MAX;
    hl_cluster_set_busy_at(c, &at, name, numa_id, busy);
}
