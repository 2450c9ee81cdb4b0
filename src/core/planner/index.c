/* The index of free slots: rebuilt when nodes come or go, updated when slots change. */
#include "core/planner/index.h"

#include <stdlib.h>
#include <string.h>

static hl_status short_of_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating an index of servers");
}

static void kind_free(struct hl_place_kind *kind)
{
    while (kind->classes != NULL) {
        struct hl_place_class *c = kind->classes;
        kind->classes = c->next;
        free(c->bits);
        free(c);
    }
    free(kind->groups);
    free(kind->group_of);
    free(kind);
}

static void index_clear(struct hl_place_index *x)
{
    struct hl_place_kind *kind, *next;
    HASH_ITER (hh, x->kinds, kind, next) {
        HASH_DEL(x->kinds, kind);
        kind_free(kind);
    }
    free(x->position);
    free(x->node_at);
    free(x->leaf_of);
    free(x->spine_of);
    free(x->leaves);
    free(x->spines);
    free(x->class_of);
    *x = (struct hl_place_index){0};
}

void hl_place_index_free(struct hl_place_index *x)
{
    if (x != NULL)
        index_clear(x);
    free(x);
}

/* ---- positions and domains ------------------------------------------------------------------ */

struct located {
    const struct hl_cluster_node *node;
    uint32_t at;
};

static int by_location(const void *x, const void *y)
{
    const struct located *a = x, *b = y;
    int d = strverscmp(a->node->spine, b->node->spine);
    if (d == 0)
        d = strverscmp(a->node->leaf, b->node->leaf);
    return d != 0 ? d : (a->at > b->at) - (a->at < b->at);
}

static bool same_spine(const struct hl_cluster_node *a, const struct hl_cluster_node *b)
{
    return strcmp(a->spine, b->spine) == 0;
}

static void domain_extend(struct hl_place_domain *list, size_t *count, uint32_t *of, uint32_t pos,
                          bool begins, const char *name)
{
    if (begins)
        list[(*count)++] = (struct hl_place_domain){.lo = pos, .named = name[0] != '\0'};
    list[*count - 1].hi = pos + 1;
    of[pos] = (uint32_t)*count - 1;
}

static hl_status index_locate(struct hl_place_index *x, const struct hl_cluster *c)
{
    HL_AUTO(hl_freep) struct located *order = calloc(c->count + 1, sizeof(*order));
    if (order == NULL)
        return short_of_memory();
    for (size_t i = 0; i < c->count; i++)
        order[i] = (struct located){&c->nodes[i], (uint32_t)i};
    qsort(order, c->count, sizeof(*order), by_location);
    for (uint32_t pos = 0; pos < c->count; pos++) {
        const struct hl_cluster_node *n = order[pos].node;
        bool spine = pos == 0 || !same_spine(n, order[pos - 1].node);
        bool leaf = spine || strcmp(n->leaf, order[pos - 1].node->leaf) != 0;
        x->position[order[pos].at] = pos;
        x->node_at[pos] = order[pos].at;
        domain_extend(x->leaves, &x->leaf_count, x->leaf_of, pos, leaf, n->leaf);
        domain_extend(x->spines, &x->spine_count, x->spine_of, pos, spine, n->spine);
    }
    return HL_OK;
}

/* ---- kinds and classes ---------------------------------------------------------------------- */

static struct hl_slot_group group_of_slot(const struct hl_cluster_slot *s)
{
    struct hl_slot_group g;
    memset(&g, 0, sizeof(g)); /* clears padding too: the struct is a hash key */
    g.gpus = s->gpu_count;
    g.cpus = s->cpu_count;
    g.nic = (int)s->nic;
    g.memory_bytes = s->memory_bytes;
    g.gpu_memory_bytes = s->gpu_memory_bytes;
    return g;
}

static hl_status kind_fill(struct hl_place_kind *kind, const struct hl_slot_group *slots, size_t n)
{
    kind->groups = calloc(n + 1, sizeof(*kind->groups));
    kind->group_of = calloc(n + 1, sizeof(*kind->group_of));
    if (kind->groups == NULL || kind->group_of == NULL)
        return short_of_memory();
    kind->slot_count = (int)n;
    for (size_t i = 0; i < n; i++) {
        int g = 0;
        while (g < kind->group_count) {
            struct hl_slot_group like = kind->groups[g];
            like.slots = 0;
            if (memcmp(&like, &slots[i], sizeof(like)) == 0)
                break;
            g++;
        }
        if (g == kind->group_count)
            kind->groups[kind->group_count++] = slots[i];
        kind->groups[g].slots++;
        kind->group_of[i] = (uint16_t)g;
    }
    return HL_OK;
}

static hl_status index_find_kind(struct hl_place_index *x, const struct hl_cluster_node *node,
                                 struct hl_place_kind **out)
{
    size_t n = (size_t)node->slot_count;
    HL_AUTO(hl_freep) struct hl_slot_group *slots = calloc(n + 1, sizeof(*slots));
    size_t len = (n + 1) * sizeof(*slots);
    if (slots == NULL)
        return short_of_memory();
    for (size_t i = 0; i < n; i++)
        slots[i] = group_of_slot(&node->slots[i]);
    HASH_FIND(hh, x->kinds, slots, len, *out);
    if (*out != NULL)
        return HL_OK;
    struct hl_place_kind *kind = calloc(1, sizeof(*kind) + len);
    if (kind == NULL)
        return short_of_memory();
    memcpy(kind->key, slots, len);
    kind->key_len = len;
    kind->word = SIZE_MAX;
    hl_status st = kind_fill(kind, slots, n);
    if (st != HL_OK) {
        kind_free(kind);
        return st;
    }
    HASH_ADD(hh, x->kinds, key, len, kind);
    *out = kind;
    return HL_OK;
}

static enum hl_server_state state_of(const struct hl_cluster_node *node)
{
    return !node->ready ? HL_SERVER_LOST : node->draining ? HL_SERVER_DRAINING : HL_SERVER_READY;
}

/* The current class of a server of this kind; NULL when out of memory. */
static struct hl_place_class *kind_class(struct hl_place_kind *kind,
                                         const struct hl_cluster_node *node)
{
    uint16_t left[HL_TOPO_SLOTS_MAX];
    size_t len = (size_t)kind->group_count * sizeof(left[0]);
    enum hl_server_state state = state_of(node);
    memset(left, 0, len);
    for (int i = 0; i < node->slot_count; i++)
        left[kind->group_of[i]] += !node->slots[i].busy;
    for (struct hl_place_class *c = kind->classes; c != NULL; c = c->next)
        if (c->state == state && c->reserved.from_ms == node->reserved.from_ms &&
            c->reserved.until_ms == node->reserved.until_ms && memcmp(c->free, left, len) == 0)
            return c;
    struct hl_place_class *c = calloc(1, sizeof(*c) + len);
    uint64_t *bits = calloc(kind->words + 1, sizeof(*bits));
    if (c == NULL || bits == NULL) {
        free(c);
        free(bits);
        return NULL;
    }
    *c = (struct hl_place_class){.kind = kind,
                                 .next = kind->classes,
                                 .state = state,
                                 .reserved = node->reserved,
                                 .bits = bits};
    memcpy(c->free, left, len);
    kind->classes = c;
    return c;
}

static void class_flip(struct hl_place_class *c, uint32_t pos, bool add)
{
    c->bits[pos / 64 - c->kind->word] ^= (uint64_t)1 << pos % 64;
    c->servers += add ? 1u : UINT32_MAX;
}

static hl_status index_classify(struct hl_place_index *x, const struct hl_cluster *c)
{
    HL_AUTO(hl_freep) struct hl_place_kind **kinds = calloc(c->count + 1, sizeof(*kinds));
    if (kinds == NULL)
        return short_of_memory();
    for (size_t i = 0; i < c->count; i++) {
        HL_TRY(index_find_kind(x, &c->nodes[i], &kinds[i]));
        size_t word = x->position[i] / 64, end = kinds[i]->word + kinds[i]->words;
        if (kinds[i]->word == SIZE_MAX)
            end = word + 1;
        kinds[i]->word = word < kinds[i]->word ? word : kinds[i]->word;
        kinds[i]->words = (word + 1 > end ? word + 1 : end) - kinds[i]->word;
    }
    for (size_t i = 0; i < c->count; i++) {
        x->class_of[i] = kind_class(kinds[i], &c->nodes[i]);
        if (x->class_of[i] == NULL)
            return short_of_memory();
        class_flip(x->class_of[i], x->position[i], true);
    }
    return HL_OK;
}

hl_status hl_place_index_refresh(struct hl_place_index *x, const struct hl_cluster *c)
{
    if (x->fresh)
        return HL_OK;
    index_clear(x);
    x->count = c->count;
    x->words = c->count / 64 + 1;
    x->position = calloc(c->count + 1, sizeof(uint32_t));
    x->node_at = calloc(c->count + 1, sizeof(uint32_t));
    x->leaf_of = calloc(c->count + 1, sizeof(uint32_t));
    x->spine_of = calloc(c->count + 1, sizeof(uint32_t));
    x->leaves = calloc(c->count + 1, sizeof(*x->leaves));
    x->spines = calloc(c->count + 1, sizeof(*x->spines));
    x->class_of = calloc(c->count + 1, sizeof(struct hl_place_class *));
    if (x->position == NULL || x->node_at == NULL || x->leaf_of == NULL || x->spine_of == NULL ||
        x->leaves == NULL || x->spines == NULL || x->class_of == NULL)
        return short_of_memory();
    HL_TRY(index_locate(x, c));
    HL_TRY(index_classify(x, c));
    x->fresh = true;
    return HL_OK;
}

void hl_place_index_update(struct hl_place_index *x, const struct hl_cluster *c, size_t node)
{
    if (x == NULL || !x->fresh)
        return;
    struct hl_place_class *was = x->class_of[node];
    struct hl_place_class *now = kind_class(was->kind, &c->nodes[node]);
    if (now == NULL) {
        x->fresh = false; /* the next plan rebuilds it or reports that it is out of memory */
        return;
    }
    if (now == was)
        return;
    class_flip(was, x->position[node], false);
    class_flip(now, x->position[node], true);
    x->class_of[node] = now;
}
