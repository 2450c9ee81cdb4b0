/* Orders tasks by their dependencies, finds cycles, and sorts numbers. */
#include "maco/graph/graph.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/heap.h"

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory ordering tasks");
}

/* ---- lists ---- */

void hl_maco_csr_fini(struct hl_maco_csr *c)
{
    free(c->first);
    free(c->item);
    *c = (struct hl_maco_csr){0};
}

static hl_status csr_alloc(uint32_t n, size_t items, struct hl_maco_csr *c)
{
    c->first = calloc((size_t)n + 1, sizeof(*c->first));
    c->item = malloc((items + 1) * sizeof(*c->item));
    if (c->first != NULL && c->item != NULL)
        return HL_OK;
    hl_maco_csr_fini(c);
    return no_memory();
}

/* Turns the counts in first[] into the positions where the lists begin. */
static void csr_sum(uint32_t n, struct hl_maco_csr *c)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t count = c->first[i];
        c->first[i] = at;
        at += count;
    }
}

/* After filling, first[i] is the start of list i + 1: shifts all by one. */
static void csr_settle(uint32_t n, struct hl_maco_csr *c)
{
    memmove(c->first + 1, c->first, (size_t)n * sizeof(*c->first));
    c->first[0] = 0;
}

hl_status hl_maco_csr_turn(uint32_t n, const struct hl_maco_csr *a, struct hl_maco_csr *out)
{
    struct hl_maco_csr c;
    HL_TRY(csr_alloc(n, a->first[n], &c));
    for (uint32_t i = 0; i < a->first[n]; i++)
        c.first[a->item[i]]++;
    csr_sum(n, &c);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = a->first[i]; k < a->first[i + 1]; k++)
            c.item[c.first[a->item[k]]++] = i;
    csr_settle(n, &c);
    *out = c;
    return HL_OK;
}

/* Drops duplicates; the lists are sorted. */
static void csr_distinct(uint32_t n, struct hl_maco_csr *c)
{
    uint32_t at = 0, from = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = c->first[i + 1], begin = at;
        for (uint32_t k = from; k < end; k++)
            if (at == begin || c->item[at - 1] != c->item[k])
                c->item[at++] = c->item[k];
        from = end;
        c->first[i + 1] = at;
    }
}

hl_status hl_maco_csr_build(uint32_t n, const struct hl_maco_edge *edges, size_t n_edges,
                            struct hl_maco_csr *parents, struct hl_maco_csr *children)
{
    struct hl_maco_csr by_parent, p;
    if (n_edges > UINT32_MAX)
        return hl_fail(HL_EINVAL, "more than 2^32 - 1 dependencies. Hint: join them in NOP tasks");
    HL_TRY(csr_alloc(n, n_edges, &by_parent));
    for (size_t i = 0; i < n_edges; i++)
        by_parent.first[edges[i].on]++;
    csr_sum(n, &by_parent);
    for (size_t i = 0; i < n_edges; i++)
        by_parent.item[by_parent.first[edges[i].on]++] = edges[i].task;
    csr_settle(n, &by_parent);
    hl_status st = hl_maco_csr_turn(n, &by_parent, &p); /* ascending, with duplicates */
    hl_maco_csr_fini(&by_parent);
    if (st != HL_OK)
        return st;
    csr_distinct(n, &p);
    st = hl_maco_csr_turn(n, &p, children);
    if (st != HL_OK)
        hl_maco_csr_fini(&p);
    else
        *parents = p;
    return st;
}

/* ---- order ---- */

static uint64_t key_of(const int32_t *priority, uint32_t i)
{
    return priority == NULL ? 0 : (uint64_t)((int64_t)INT32_MAX - priority[i]);
}

static hl_status order_kahn(uint32_t n, const struct hl_maco_csr *children, const int32_t *priority,
                            uint32_t *waits, uint32_t *order, uint32_t *placed)
{
    struct hl_heap ready = {0};
    hl_status st = HL_OK;
    *placed = 0;
    for (uint32_t i = 0; i < n && st == HL_OK; i++)
        if (waits[i] == 0)
            st = hl_heap_push(&ready, key_of(priority, i), i);
    while (ready.n > 0 && st == HL_OK) {
        uint32_t i = (uint32_t)hl_heap_pop(&ready).tie;
        order[(*placed)++] = i;
        for (uint32_t k = children->first[i]; k < children->first[i + 1] && st == HL_OK; k++)
            if (--waits[children->item[k]] == 0)
                st = hl_heap_push(&ready, key_of(priority, children->item[k]), children->item[k]);
    }
    hl_heap_fini(&ready);
    return st;
}

/* The usual graph: each task only waits for earlier ones, and all have the same priority. */
static bool is_ordered(uint32_t n, const struct hl_maco_csr *parents, const int32_t *priority)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = parents->first[i + 1];
        if ((end > parents->first[i] && parents->item[end - 1] >= i) ||
            (priority != NULL && priority[i] != priority[0]))
            return false;
    }
    return true;
}

hl_status hl_maco_topo(uint32_t n, const struct hl_maco_csr *parents,
                       const struct hl_maco_csr *children, const int32_t *priority, uint32_t *order,
                       uint32_t *placed)
{
    if (is_ordered(n, parents, priority)) {
        for (uint32_t i = 0; i < n; i++)
            order[i] = i;
        *placed = n;
        return HL_OK;
    }
    uint32_t *waits = malloc(((size_t)n + 1) * sizeof(*waits));
    if (waits == NULL)
        return no_memory();
    for (uint32_t i = 0; i < n; i++)
        waits[i] = parents->first[i + 1] - parents->first[i];
    hl_status st = order_kahn(n, children, priority, waits, order, placed);
    free(waits);
    return st;
}

/* ---- cycles ---- */

/* Removes nodes without open dependencies. left[i] stays above 0 if i is on a cycle or depends on
 * one. */
static void peel_ready(uint32_t n, const struct hl_maco_csr *parents,
                       const struct hl_maco_csr *children, uint32_t *left, uint32_t *stack)
{
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((left[i] = parents->first[i + 1] - parents->first[i]) == 0)
            stack[top++] = i;
    while (top > 0) {
        uint32_t i = stack[--top];
        for (uint32_t k = children->first[i]; k < children->first[i + 1]; k++)
            if (--left[children->item[k]] == 0)
                stack[top++] = children->item[k];
    }
}

/* Every remaining node waits for another remaining one, so following the dependencies must reach a
 * node that was visited before. */
static uint32_t walk_cycle(uint32_t n, const struct hl_maco_csr *parents, const uint32_t *left,
                           uint32_t *path, uint32_t *seen)
{
    uint32_t at = 0, length = 0;
    memset(seen, 0xff, (size_t)n * sizeof(*seen));
    while (at < n && left[at] == 0)
        at++;
    while (at < n && seen[at] == UINT32_MAX) {
        seen[at] = length;
        path[length++] = at;
        uint32_t k = parents->first[at];
        while (left[parents->item[k]] == 0)
            k++;
        at = parents->item[k];
    }
    if (at == n)
        return 0;
    memmove(path, path + seen[at], (size_t)(length - seen[at]) * sizeof(*path));
    return length - seen[at];
}

hl_status hl_maco_cycle(uint32_t n, const struct hl_maco_csr *parents,
                        const struct hl_maco_csr *children, uint32_t **cycle, uint32_t *length)
{
    uint32_t *left = malloc(((size_t)n + 1) * sizeof(*left));
    uint32_t *seen = malloc(((size_t)n + 1) * sizeof(*seen));
    uint32_t *path = malloc(((size_t)n + 1) * sizeof(*path));
    hl_status st = HL_OK;
    if (left == NULL || seen == NULL || path == NULL) {
        st = no_memory();
    } else {
        peel_ready(n, parents, children, left, seen);
        *length = walk_cycle(n, parents, left, path, seen);
        *cycle = hl_steal(&path);
    }
    free(left);
    free(seen);
    free(path);
    return st;
}

hl_status hl_maco_fail_cycle(const char *what, const uint32_t *cycle, uint32_t length,
                             const char *(*name)(const void *arg, uint32_t node), const void *arg)
{
    struct hl_buf text = HL_BUF(HL_ERROR_TEXT_MAX / 2);
    uint32_t shown = 0;
    while (shown < length &&
           hl_buf_printf(&text, "\"%s\" waits for ", name(arg, cycle[shown])) == HL_OK)
        shown++;
    hl_status st = hl_fail(HL_ECONFLICT, "%s: %s%s\"%s\" (%u tasks). Hint: remove one of these",
                           what, text.data != NULL ? text.data : "",
                           shown < length ? "... waits for " : "", name(arg, cycle[0]), length);
    hl_buf_fini(&text);
    return st;
}

/* ---- sorting ---- */

#define DIGIT 11
#define CELLS (1u << DIGIT)

static bool sort_pass(const uint64_t *key, const uint32_t *value, uint64_t *key_out,
                      uint32_t *value_out, size_t n, int shift)
{
    size_t count[CELLS] = {0}, at = 0;
    for (size_t i = 0; i < n; i++)
        count[key[i] >> shift & (CELLS - 1)]++;
    if (count[key[0] >> shift & (CELLS - 1)] == n)
        return false; /* this digit is the same in all keys */
    for (size_t c = 0; c < CELLS; c++) {
        size_t here = count[c];
        count[c] = at;
        at += here;
    }
    for (size_t i = 0; i < n; i++) {
        size_t to = count[key[i] >> shift & (CELLS - 1)]++;
        key_out[to] = key[i];
        value_out[to] = value[i];
    }
    return true;
}

static void sort_insert(uint64_t *key, uint32_t *value, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint64_t k = key[i];
        uint32_t v = value[i];
        size_t at = i;
        for (; at > 0 && key[at - 1] > k; at--) {
            key[at] = key[at - 1];
            value[at] = value[at - 1];
        }
        key[at] = k;
        value[at] = v;
    }
}

hl_status hl_maco_sort(uint64_t *key, uint32_t *value, size_t n)
{
    if (n <= 64) {
        sort_insert(key, value, n);
        return HL_OK;
    }
    uint64_t *key_to = malloc(n * sizeof(*key_to)), *k = key, *k2 = key_to;
    uint32_t *value_to = malloc(n * sizeof(*value_to)), *v = value, *v2 = value_to;
    if (key_to == NULL || value_to == NULL) {
        free(key_to);
        free(value_to);
        return no_memory();
    }
    for (int shift = 0; shift < 64; shift += DIGIT)
        if (sort_pass(k, v, k2, v2, n, shift)) {
            uint64_t *kt = k;
            uint32_t *vt = v;
            k = k2, k2 = kt;
            v = v2, v2 = vt;
        }
    if (k != key) {
        memcpy(key, k, n * sizeof(*key));
        memcpy(value, v, n * sizeof(*value));
    }
    free(key_to);
    free(value_to);
    return HL_OK;
}
