/* Compiles a graph to a plan: first the order of tasks (explicit and inferred), then events and
 * numbers, then the order of communication, then lists. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

#define REDUCE_WORK 4096 /* limit of grandparents examined for one task */
#define WORKERS_MAX 4096

struct compiling {
    const maco_graph *g;
    uint32_t n;
    struct hl_maco_csr parents, children;
    uint32_t *order, *place; /* topological order, and each task's place in it */
    struct hl_maco_edge *edges;
    size_t n_edges, edge_cap;
    struct reach *reach; /* if infer = 0 */
};

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory compiling a graph of tasks");
}

/* ---- explicit order ---- */

static const char *name_of(const void *arg, uint32_t task)
{
    return hl_maco_graph_name(arg, task);
}

static hl_status explain_cycle(const struct compiling *c)
{
    uint32_t *cycle = NULL, length = 0;
    HL_TRY(hl_maco_cycle(c->n, &c->parents, &c->children, &cycle, &length));
    hl_status st = hl_maco_fail_cycle("tasks wait for each other", cycle, length, name_of, c->g);
    free(cycle);
    return st;
}

static hl_status order_explicit(struct compiling *c)
{
    uint32_t placed = 0;
    c->order = malloc((size_t)c->n * sizeof(*c->order));
    c->place = malloc((size_t)c->n * sizeof(*c->place));
    if (c->order == NULL || c->place == NULL)
        return no_memory();
    HL_TRY(hl_maco_csr_build(c->n, c->g->edges, c->g->n_edges, &c->parents, &c->children));
    HL_TRY(hl_maco_topo(c->n, &c->parents, &c->children, NULL, c->order, &placed));
    if (placed < c->n)
        return explain_cycle(c);
    for (uint32_t i = 0; i < c->n; i++)
        c->place[c->order[i]] = i;
    return HL_OK;
}

/* ---- orders that contradict what tasks read ---- */

static hl_status check_reader(void *arg, uint32_t task, uint32_t on, enum hl_maco_conflict how)
{
    const struct compiling *c = arg;
    if (how != HL_MACO_RAW || c->place[task] > c->place[on])
        return HL_OK;
    return hl_fail(HL_ECONFLICT,
                   "task \"%s\" reads what task \"%s\" writes, but dependencies put \"%s\" first, "
                   "so that it would read memory before that is written. Hint: the arguments are "
                   "(task, the one that it waits for); to read the old contents, add \"%s\" first",
                   hl_maco_graph_name(c->g, task), hl_maco_graph_name(c->g, on),
                   hl_maco_graph_name(c->g, task), hl_maco_graph_name(c->g, task));
}

/* A task uses the result of the last writer that was added before it. Dependencies may reorder
 * writers, but not move a reader before its writer. */
static hl_status refuse_early_readers(struct compiling *c)
{
    bool reordered = false;
    for (uint32_t i = 0; i < c->n; i++)
        reordered |= c->order[i] != i;
    if (!reordered)
        return HL_OK;
    uint32_t *added = malloc((size_t)c->n * sizeof(*added));
    if (added == NULL)
        return no_memory();
    for (uint32_t i = 0; i < c->n; i++)
        added[i] = i;
    hl_status st = hl_maco_conflicts(c->g, added, check_reader, c);
    free(added);
    return st;
}

/* ---- inferred order ---- */

static hl_status add_edge(void *arg, uint32_t task, uint32_t on, enum hl_maco_conflict how)
{
    struct compiling *c = arg;
    (void)how;
    HL_TRY(hl_maco_grow(&c->edges, &c->edge_cap, c->n_edges, 1, sizeof(*c->edges)));
    c->edges[c->n_edges++] = (struct hl_maco_edge){task, on};
    return HL_OK;
}

static hl_status infer_edges(struct compiling *c)
{
    HL_TRY(refuse_early_readers(c));
    HL_TRY(hl_maco_grow(&c->edges, &c->edge_cap, 0, c->g->n_edges + 1, sizeof(*c->edges)));
    if (c->g->n_edges > 0)
        memcpy(c->edges, c->g->edges, c->g->n_edges * sizeof(*c->edges));
    c->n_edges = c->g->n_edges;
    HL_TRY(hl_maco_conflicts(c->g, c->order, add_edge, c));
    if (c->n_edges == c->g->n_edges)
        return HL_OK;
    hl_maco_csr_fini(&c->parents);
    hl_maco_csr_fini(&c->children);
    return hl_maco_csr_build(c->n, c->edges, c->n_edges, &c->parents, &c->children);
}

/* ---- missing order ---- */

/* Searches backwards from one task, only among tasks placed at or after the one searched for. */
struct reach {
    uint32_t *seen; /* the last search that visited each task */
    uint32_t *stack;
    uint32_t searches;
};

static bool task_reaches(const struct compiling *c, uint32_t task, uint32_t on)
{
    uint32_t top = 0, least = c->place[on];
    struct reach *r = c->reach;
    r->stack[top++] = task;
    r->searches++;
    while (top > 0) {
        uint32_t t = r->stack[--top];
        for (uint32_t k = c->parents.first[t]; k < c->parents.first[t + 1]; k++) {
            uint32_t p = c->parents.item[k];
            if (p == on)
                return true;
            if (c->place[p] < least || r->seen[p] == r->searches)
                continue;
            r->seen[p] = r->searches;
            r->stack[top++] = p;
        }
    }
    return false;
}

static bool is_parent(const struct compiling *c, uint32_t task, uint32_t on)
{
    uint32_t lo = c->parents.first[task], hi = c->parents.first[task + 1];
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->parents.item[mid] == on)
            return true;
        if (c->parents.item[mid] < on)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

static hl_status check_edge(void *arg, uint32_t task, uint32_t on, enum hl_maco_conflict how)
{
    struct compiling *c = arg;
    if (is_parent(c, task, on) || task_reaches(c, task, on))
        return HL_OK;
    return hl_fail(HL_ECONFLICT,
                   "task \"%s\" %s what task \"%s\" %s and neither waits for the other. Hint: "
                   "let one depend on the other, or compile with infer",
                   hl_maco_graph_name(c->g, task), how == HL_MACO_RAW ? "reads" : "writes",
                   hl_maco_graph_name(c->g, on), how == HL_MACO_WAR ? "reads" : "writes");
}

static hl_status refuse_unordered(struct compiling *c)
{
    struct reach r = {.seen = calloc((size_t)c->n + 1, sizeof(*r.seen)),
                      .stack = malloc(((size_t)c->n + 1) * sizeof(*r.stack))};
    hl_status st = no_memory();
    c->reach = &r;
    if (r.seen != NULL && r.stack != NULL)
        st = hl_maco_conflicts(c->g, c->order, check_edge, c);
    free(r.seen);
    free(r.stack);
    c->reach = NULL;
    return st;
}

/* ---- redundant dependencies ---- */

/* Drops parents that are also parents of a parent: fewer events, the same order. */
static void reduce_task(const struct hl_maco_csr *old, uint32_t t, uint32_t *mark, uint32_t *to,
                        uint32_t *at)
{
    uint64_t work = 0;
    uint32_t begin = old->first[t], end = old->first[t + 1];
    for (uint32_t k = begin; k < end; k++)
        work += old->first[old->item[k] + 1] - old->first[old->item[k]];
    for (uint32_t k = begin; k < end && end - begin > 1 && work <= REDUCE_WORK; k++)
        for (uint32_t j = old->first[old->item[k]]; j < old->first[old->item[k] + 1]; j++)
            mark[old->item[j]] = t + 1;
    for (uint32_t k = begin; k < end; k++)
        if (mark[old->item[k]] != t + 1)
            to[(*at)++] = old->item[k];
}

static hl_status reduce_edges(struct compiling *c)
{
    uint32_t at = 0, *mark = calloc((size_t)c->n + 1, sizeof(*mark));
    struct hl_maco_csr less = {
        .first = malloc(((size_t)c->n + 1) * sizeof(*less.first)),
        .item = malloc(((size_t)c->parents.first[c->n] + 1) * sizeof(*less.item))};
    if (mark == NULL || less.first == NULL || less.item == NULL) {
        free(mark);
        hl_maco_csr_fini(&less);
        return no_memory();
    }
    for (uint32_t t = 0; t < c->n; t++) {
        less.first[t] = at;
        reduce_task(&c->parents, t, mark, less.item, &at);
    }
    less.first[c->n] = at;
    free(mark);
    hl_maco_csr_fini(&c->parents);
    hl_maco_csr_fini(&c->children);
    c->parents = less;
    return hl_maco_csr_turn(c->n, &c->parents, &c->children);
}

/* ---- the order of communication ---- */

static uint64_t hash_more(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}

/* Default names contain the task's number, which may legitimately differ between ranks. */
static uint64_t task_likeness(const maco_graph *g, uint32_t id)
{
    const maco_task *t = &g->tasks[id];
    const char *name = g->nodes[id].named ? hl_maco_graph_name(g, id) : "";
    uint64_t h = hash_more(t->type, (uint64_t)hl_maco_dtype(t) << 32 | t->group);
    for (int i = 0; i < 6 && t->type != MACO_TASK_CUSTOM_COMM; i++)
        h = hash_more(h, (uint32_t)t->dims[i]);
    for (; *name != '\0'; name++)
        h = hash_more(h, (uint8_t)*name);
    return h;
}

struct alike {
    uint64_t like;
    uint32_t id, at; /* at: in the order of communication */
};

static int by_likeness(const void *left, const void *right)
{
    const struct alike *a = left, *b = right;
    if (a->like != b->like)
        return a->like < b->like ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Two equal collectives can be swapped on one rank, by its dependencies or priorities. So equal
 * ones are counted in the order in which they were added. */
static hl_status count_alike(const maco_graph *g, maco_plan *p)
{
    uint32_t n = p->view.n_comm, nth = 0;
    struct alike *a = malloc(((size_t)n + 1) * sizeof(*a));
    p->turns = malloc(((size_t)n + 1) * sizeof(*p->turns));
    if (a == NULL || p->turns == NULL) {
        free(a);
        return no_memory();
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = p->id[p->comm[i]];
        a[i] = (struct alike){task_likeness(g, id), id, i};
    }
    qsort(a, n, sizeof(*a), by_likeness);
    for (uint32_t i = 0; i < n; i++) {
        nth = i > 0 && a[i].like == a[i - 1].like ? nth + 1 : 0;
        p->turns[a[i].at] = (struct hl_maco_turn){a[i].like, nth};
    }
    free(a);
    return HL_OK;
}

static uint64_t hash_turn(uint64_t h, const maco_plan *p, uint32_t at)
{
    return hash_more(hash_more(h, p->turns[at].like), p->turns[at].nth);
}

/* Uses only dependencies, priorities and ids, so that ranks with the same program agree even if
 * their costs differ. `number` maps each id to its number in the plan. */
static hl_status order_comm(struct compiling *c, maco_plan *p, const uint32_t *number)
{
    uint32_t placed = 0, n = 0;
    int32_t *priority = malloc(((size_t)c->n + 1) * sizeof(*priority));
    if (priority == NULL)
        return no_memory();
    for (uint32_t i = 0; i < c->n; i++) {
        priority[i] = c->g->nodes[i].priority;
        n += hl_maco_is_comm(c->g->tasks[i].type) != 0;
    }
    hl_status st = hl_maco_topo(c->n, &c->parents, &c->children, priority, c->order, &placed);
    free(priority);
    p->comm = malloc(((size_t)n + 1) * sizeof(*p->comm));
    if (st == HL_OK && p->comm == NULL)
        st = no_memory();
    for (uint32_t i = 0; i < placed && st == HL_OK; i++)
        if (hl_maco_is_comm(c->g->tasks[c->order[i]].type))
            p->comm[p->view.n_comm++] = number[c->order[i]];
    p->view.comm = p->comm;
    HL_TRY(st);
    HL_TRY(count_alike(c->g, p));
    for (uint32_t i = 0; i < n; i++)
        if (hl_maco_is_collective(p->tasks[p->comm[i]].type))
            p->view.comm_hash = hash_turn(p->view.comm_hash, p, i);
    return HL_OK;
}

uint64_t hl_maco_plan_order_hash(const maco_plan *p, uint32_t group, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0, k = 0; i < p->view.n_comm && k < n; i++) {
        const maco_task *t = &p->tasks[p->comm[i]];
        if (t->group != group || !hl_maco_is_collective(t->type))
            continue;
        h = hash_turn(h, p, i);
        k++;
    }
    return h;
}

uint32_t hl_maco_plan_collective(const maco_plan *p, uint32_t group, uint32_t n)
{
    for (uint32_t i = 0; i < p->view.n_comm; i++) {
        const maco_task *t = &p->tasks[p->comm[i]];
        if (t->group == group && hl_maco_is_collective(t->type) && n-- == 0)
            return p->comm[i];
    }
    return MACO_NONE;
}

uint32_t hl_maco_plan_alike(const maco_plan *p, uint32_t task)
{
    for (uint32_t i = 0; i < p->view.n_comm; i++)
        if (p->comm[i] == task)
            return p->turns[i].nth;
    return 0;
}

/* ---- the whole plan ---- */

/* Converts the parents to the plan's numbers, for traces. */
static hl_status number_parents(const struct compiling *c, maco_plan *p, const uint32_t *number)
{
    size_t items = 0, edges = c->parents.first[c->n];
    struct hl_maco_csr *to = &p->parents;
    to->first = malloc(((size_t)p->view.n_tasks + 1) * sizeof(*to->first));
    to->item = malloc((edges + 1) * sizeof(*to->item));
    if (to->first == NULL || to->item == NULL)
        return no_memory();
    for (uint32_t t = 0; t < p->view.n_tasks; t++) {
        uint32_t id = p->id[t];
        to->first[t] = (uint32_t)items;
        for (uint32_t k = id == MACO_NONE ? 0 : c->parents.first[id];
             id != MACO_NONE && k < c->parents.first[id + 1]; k++)
            to->item[items++] = number[c->parents.item[k]];
    }
    to->first[p->view.n_tasks] = (uint32_t)items;
    return HL_OK;
}

static hl_status finish_plan(struct compiling *c, maco_plan *p, const maco_compile_options *o)
{
    uint32_t *number = malloc(((size_t)c->n + 1) * sizeof(*number));
    if (number == NULL)
        return no_memory();
    for (uint32_t t = 0; t < p->view.n_tasks; t++)
        if (p->id[t] != MACO_NONE)
            number[p->id[t]] = t;
    hl_status st = order_comm(c, p, number);
    if (st == HL_OK)
        st = number_parents(c, p, number);
    free(number);
    p->view.policy = o->policy;
    p->view.balance = o->balance;
    if (st == HL_OK && o->policy == MACO_STATIC)
        st = hl_maco_plan_lists(p, o);
    return st;
}

static hl_status compile_plan(struct compiling *c, const maco_compile_options *o, maco_plan *p)
{
    HL_TRY(order_explicit(c));
    HL_TRY(o->infer ? infer_edges(c) : refuse_unordered(c));
    HL_TRY(reduce_edges(c));
    HL_TRY(hl_maco_plan_build(c->g, &c->parents, p));
    return finish_plan(c, p, o);
}

static hl_status check_options(const maco_graph *g, const maco_compile_options *o)
{
    if (g->n == 0)
        return hl_fail(HL_EINVAL, "the graph has no tasks. Hint: maco_graph_add first");
    if (o->policy < MACO_DIRECT || o->policy > MACO_STATIC || o->balance < MACO_ROUND_ROBIN ||
        o->balance > MACO_LEAST_LOADED)
        return hl_fail(HL_EINVAL,
                       "unknown policy %d with balance %d. Hint: enum maco_policy, "
                       "enum maco_balance",
                       o->policy, o->balance);
    if (o->workers < (o->policy == MACO_STATIC) || o->workers > WORKERS_MAX)
        return hl_fail(HL_EINVAL, "lists for %d workers. Hint: 1 to %d, those of the runtime",
                       o->workers, WORKERS_MAX);
    if (o->infer != 0 && o->infer != 1)
        return hl_fail(HL_EINVAL, "infer is %d. Hint: it is 0 or 1", o->infer);
    if (o->lists != NULL && o->policy != MACO_STATIC)
        return hl_fail(HL_EINVAL, "lists without MACO_STATIC. Hint: the other policies have none");
    return HL_OK;
}

int maco_compile(const maco_graph *g, const maco_compile_options *options, maco_plan **out)
{
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .infer = 1};
    static uint64_t serials;
    if (g == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "maco_compile: the graph or out is NULL");
    if (options != NULL)
        HL_TRY(HL_ABI_READ(maco_compile_options, options, &o));
    HL_TRY(check_options(g, &o));
    struct compiling c = {.g = g, .n = (uint32_t)g->n};
    maco_plan *p = calloc(1, sizeof(*p));
    hl_status st = p == NULL ? no_memory() : compile_plan(&c, &o, p);
    hl_maco_csr_fini(&c.parents);
    hl_maco_csr_fini(&c.children);
    free(c.order);
    free(c.place);
    free(c.edges);
    if (st == HL_OK) {
        p->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
        *out = p;
    } else {
        maco_plan_free(p);
    }
    return st;
}
