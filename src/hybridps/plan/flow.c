/* Packing spans into slots of limited room, the linear program, as a min-cost flow. A node is the
 * border between two slots. Flow that goes slot by slot is unused room, flow that takes a span's
 * arc keeps it. As much flows as the widest slot has room; narrower slots must pass the rest idle,
 * which an arc with a prize sees to. Successive shortest paths, all of one length at a time. */
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan_private.h"

#define FAR (INT64_MAX / 4)

struct arc {
    uint32_t to;
    uint32_t back; /* index of the reverse arc */
    int64_t cap;
    int64_t cost;
};

struct flow {
    uint32_t nodes, arc_count;
    uint32_t *first; /* [nodes + 1] */
    struct arc *arcs;
    int64_t *high; /* potentials */
    int64_t *dist;
    uint32_t *heap, *place; /* nodes by dist; where a node is in the heap, + 1 */
    uint32_t heap_count;
    uint32_t *next; /* arc to look at next */
    uint32_t *path; /* arcs */
    uint8_t *seen;
    int64_t *work;
};

static void flow_fini(struct flow *f)
{
    free(f->first);
    free(f->arcs);
    free(f->high);
    free(f->dist);
    free(f->heap);
    free(f->place);
    free(f->next);
    free(f->path);
    free(f->seen);
}

static hl_status flow_init(struct flow *f, uint32_t slots, size_t items)
{
    size_t n = (size_t)slots + 1, arcs = 2 * (items + 2 * (size_t)slots);
    f->nodes = (uint32_t)n;
    f->arc_count = (uint32_t)arcs;
    f->first = calloc(n + 1, sizeof(*f->first));
    f->arcs = calloc(arcs + 1, sizeof(*f->arcs));
    f->high = calloc(n, sizeof(*f->high));
    f->dist = calloc(n, sizeof(*f->dist));
    f->heap = calloc(n, sizeof(*f->heap));
    f->place = calloc(n, sizeof(*f->place));
    f->next = calloc(n, sizeof(*f->next));
    f->path = calloc(n, sizeof(*f->path));
    f->seen = calloc(n, 1);
    if (f->first == NULL || f->arcs == NULL || f->high == NULL || f->dist == NULL ||
        f->heap == NULL || f->place == NULL || f->next == NULL || f->path == NULL ||
        f->seen == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    return HL_OK;
}

static void put_arc(struct flow *f, uint32_t from, uint32_t to, int64_t cap, int64_t cost)
{
    uint32_t i = f->next[from]++, k = f->next[to]++;
    f->arcs[i] = (struct arc){.to = to, .back = k, .cap = cap, .cost = cost};
    f->arcs[k] = (struct arc){.to = from, .back = i, .cap = 0, .cost = -cost};
}

/* Item i's arc is where the i-th of its node was put: remembered in got until the end. */
static void build(struct flow *f, const int64_t *cap, uint32_t slots, struct flow_item *items,
                  size_t count, int64_t widest)
{
    int64_t most = 1;
    for (size_t i = 0; i < count; i++) {
        f->first[items[i].a + 1]++;
        f->first[items[i].b + 1]++;
        most = items[i].weight > most ? items[i].weight : most;
    }
    for (uint32_t s = 0; s < slots; s++) {
        f->first[s + 1] += 2;
        f->first[s + 2] += 2;
    }
    for (uint32_t v = 0; v < f->nodes; v++)
        f->first[v + 1] += f->first[v];
    memcpy(f->next, f->first, f->nodes * sizeof(*f->next));
    int64_t prize = ((int64_t)slots + 1) * most + 1;
    for (uint32_t s = 0; s < slots; s++) {
        put_arc(f, s, s + 1, widest - cap[s], -prize);
        put_arc(f, s, s + 1, widest, 0);
    }
    for (size_t i = 0; i < count; i++) {
        items[i].got = f->next[items[i].a];
        put_arc(f, items[i].a, items[i].b, items[i].size, -items[i].weight);
    }
}

/* Arcs with room all lead forward at first: distances in order of the nodes. */
static void first_potentials(struct flow *f)
{
    for (uint32_t v = 1; v < f->nodes; v++)
        f->high[v] = FAR;
    for (uint32_t v = 0; v < f->nodes; v++)
        for (uint32_t i = f->first[v]; i < f->first[v + 1]; i++) {
            const struct arc *a = &f->arcs[i];
            if (a->cap > 0 && f->high[v] + a->cost < f->high[a->to])
                f->high[a->to] = f->high[v] + a->cost;
        }
}

static void heap_set(struct flow *f, uint32_t at, uint32_t node)
{
    f->heap[at] = node;
    f->place[node] = at + 1;
}

static void heap_up(struct flow *f, uint32_t node)
{
    uint32_t at = f->place[node] > 0 ? f->place[node] - 1 : f->heap_count++;
    while (at > 0 && f->dist[f->heap[(at - 1) / 2]] > f->dist[node]) {
        heap_set(f, at, f->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(f, at, node);
}

static uint32_t heap_pop(struct flow *f)
{
    uint32_t top = f->heap[0], last = f->heap[--f->heap_count], at = 0;
    f->place[top] = 0;
    while (f->heap_count > 0) {
        uint32_t child = 2 * at + 1;
        if (child >= f->heap_count)
            break;
        if (child + 1 < f->heap_count && f->dist[f->heap[child + 1]] < f->dist[f->heap[child]])
            child++;
        if (f->dist[f->heap[child]] >= f->dist[last])
            break;
        heap_set(f, at, f->heap[child]);
        at = child;
    }
    if (f->heap_count > 0)
        heap_set(f, at, last);
    return top;
}

static void shortest(struct flow *f)
{
    for (uint32_t v = 1; v < f->nodes; v++)
        f->dist[v] = FAR;
    f->dist[0] = 0;
    f->heap_count = 0;
    heap_up(f, 0);
    while (f->heap_count > 0) {
        uint32_t v = heap_pop(f);
        *f->work -= 8 + (int64_t)(f->first[v + 1] - f->first[v]);
        for (uint32_t i = f->first[v]; i < f->first[v + 1]; i++) {
            const struct arc *a = &f->arcs[i];
            int64_t d = f->dist[v] + a->cost + f->high[v] - f->high[a->to];
            if (a->cap > 0 && d < f->dist[a->to]) {
                f->dist[a->to] = d;
                heap_up(f, a->to);
            }
        }
    }
    int64_t end = f->dist[f->nodes - 1];
    for (uint32_t v = 0; v < f->nodes; v++)
        f->high[v] += f->dist[v] < end ? f->dist[v] : end;
}

static int64_t push_path(struct flow *f, uint32_t depth, int64_t most)
{
    for (uint32_t i = 0; i < depth; i++)
        most = f->arcs[f->path[i]].cap < most ? f->arcs[f->path[i]].cap : most;
    for (uint32_t i = 0; i < depth; i++) {
        struct arc *a = &f->arcs[f->path[i]];
        a->cap -= most;
        f->arcs[a->back].cap += most;
    }
    return most;
}

/* Paths of arcs that cost nothing beside the potentials, as many as a search finds. */
static int64_t push_all(struct flow *f, int64_t most)
{
    int64_t pushed = 0;
    uint32_t v = 0, depth = 0;
    memcpy(f->next, f->first, f->nodes * sizeof(*f->next));
    memset(f->seen, 0, f->nodes);
    f->seen[0] = 1;
    while (pushed < most) {
        *f->work -= 1;
        if (v == f->nodes - 1) {
            pushed += push_path(f, depth, most - pushed);
            while (depth > 0) /* dead ends stay seen */
                f->seen[f->arcs[f->path[--depth]].to] = 0;
            v = 0;
            continue;
        }
        uint32_t i = f->next[v];
        if (i == f->first[v + 1]) {
            if (depth == 0)
                break;
            v = f->arcs[f->arcs[f->path[--depth]].back].to;
            f->next[v]++;
            continue;
        }
        const struct arc *a = &f->arcs[i];
        if (a->cap > 0 && !f->seen[a->to] && a->cost + f->high[v] - f->high[a->to] == 0) {
            f->path[depth++] = i;
            v = a->to;
            f->seen[v] = 1;
        } else {
            f->next[v]++;
        }
    }
    return pushed;
}

static hl_status run(struct flow *f, int64_t widest)
{
    first_potentials(f);
    for (int64_t left = widest; left > 0;) {
        left -= push_all(f, left);
        if (*f->work < 0)
            return hl_fail(HL_ETIMEDOUT, "a plan takes too many steps");
        if (left > 0)
            shortest(f);
    }
    return HL_OK;
}

hl_status flow_solve(const int64_t *cap, uint32_t slots, struct flow_item *items, size_t count,
                     int64_t *value, int64_t *work)
{
    struct flow f = {.work = work};
    int64_t widest = 0, sum = 0;
    for (uint32_t s = 0; s < slots; s++)
        widest = cap[s] > widest ? cap[s] : widest;
    hl_status st = flow_init(&f, slots, count);
    if (st == HL_OK) {
        build(&f, cap, slots, items, count, widest);
        st = run(&f, widest);
    }
    for (size_t i = 0; i < count && st == HL_OK; i++) {
        items[i].got = items[i].size - f.arcs[items[i].got].cap;
        sum += items[i].got * items[i].weight;
    }
    if (st == HL_OK)
        *value = sum;
    flow_fini(&f);
    return st;
}
