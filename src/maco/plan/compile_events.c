/* Events and numbers. In a plan a task can trigger one event and depend on one; a graph has no such
 * limit:
 *
 *   tasks with the same parents are one group    its event needs as many triggers as parents
 *   a parent of one group                        triggers that event itself
 *   a parent of several                          triggers an event of its own, `home`, which
 *                                                launches a join for each of them; the group that
 *                                                has it as its only parent is in home's range
 *
 * Then the graph is traversed first come, first served, and the tasks that an event launches get
 * the next numbers. So a launch is a range, and each task has a higher number than its parents. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

#define NO UINT32_MAX

struct building {
    const maco_graph *g;
    const struct hl_maco_csr *parents;
    uint32_t n, n_groups, n_homes, n_joins;
    uint32_t *group;                     /* of each task; NO = a root */
    uint32_t *first_of;                  /* one task of each group */
    struct hl_maco_csr members, targets; /* group -> tasks in launch order; task -> groups */
    uint32_t *ranked;                    /* all tasks in launch order */
    uint32_t *home;                      /* event of each task with several groups; NO */
    uint32_t *event;                     /* final number of each event: of groups, then of homes */
    uint32_t *owner;                     /* task of each home */
    uint32_t *count;                     /* triggers so far */
    uint32_t *target_of;                 /* group that each join triggers, by the join's number */
    uint32_t next, next_event;           /* numbers assigned so far */
    uint32_t leaves;                     /* numbered tasks without a numbered child */
    uint8_t *inner;                      /* nonzero: has a numbered child */
    uint32_t join_name, end_name;
    maco_plan *p;
};

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory compiling a graph of tasks");
}

/* Allocates n numbers, all NO. */
static uint32_t *new_numbers(size_t n)
{
    uint32_t *x = malloc((n + 1) * sizeof(*x));
    if (x != NULL)
        memset(x, 0xff, (n + 1) * sizeof(*x));
    return x;
}

/* ---- groups ---- */

static uint64_t hash_list(const struct hl_maco_csr *c, uint32_t i)
{
    uint64_t h = 0;
    for (uint32_t k = c->first[i]; k < c->first[i + 1]; k++) {
        h = (h ^ c->item[k]) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h;
}

static bool same_list(const struct hl_maco_csr *c, uint32_t a, uint32_t b)
{
    uint32_t n = c->first[a + 1] - c->first[a];
    return n == c->first[b + 1] - c->first[b] &&
           memcmp(c->item + c->first[a], c->item + c->first[b], n * sizeof(*c->item)) == 0;
}

static hl_status find_groups(struct building *b)
{
    uint32_t slots = 16;
    while (slots < (uint64_t)b->n * 2)
        slots *= 2;
    uint32_t *table = new_numbers(slots); /* slot -> group */
    b->group = new_numbers(b->n);
    b->first_of = new_numbers(b->n);
    if (table == NULL || b->group == NULL || b->first_of == NULL) {
        free(table);
        return no_memory();
    }
    for (uint32_t t = 0; t < b->n; t++) {
        if (b->parents->first[t] == b->parents->first[t + 1])
            continue;
        uint32_t at = (uint32_t)hash_list(b->parents, t) & (slots - 1);
        while (table[at] != NO && !same_list(b->parents, b->first_of[table[at]], t))
            at = (at + 1) & (slots - 1);
        if (table[at] == NO) {
            b->first_of[b->n_groups] = t;
            table[at] = b->n_groups++;
        }
        b->group[t] = table[at];
    }
    free(table);
    return HL_OK;
}

/* Communication first, then by descending priority, then in the order of adding. */
static hl_status rank_tasks(struct building *b)
{
    uint64_t *key = malloc(((size_t)b->n + 1) * sizeof(*key));
    b->ranked = new_numbers(b->n);
    if (key == NULL || b->ranked == NULL) {
        free(key);
        return no_memory();
    }
    for (uint32_t t = 0; t < b->n; t++) {
        key[t] = (uint64_t)!hl_maco_is_comm(b->g->tasks[t].type) << 32 |
                 (uint64_t)((int64_t)INT32_MAX - b->g->nodes[t].priority);
        b->ranked[t] = t;
    }
    hl_status st = hl_maco_sort(key, b->ranked, b->n);
    free(key);
    return st;
}

static hl_status fill_groups(struct building *b)
{
    struct hl_maco_csr *m = &b->members;
    m->first = calloc((size_t)b->n_groups + 2, sizeof(*m->first));
    m->item = new_numbers(b->n);
    if (m->first == NULL || m->item == NULL)
        return no_memory();
    for (uint32_t t = 0; t < b->n; t++)
        if (b->group[t] != NO)
            m->first[b->group[t] + 2]++;
    for (uint32_t i = 2; i < b->n_groups + 2; i++)
        m->first[i] += m->first[i - 1];
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t t = b->ranked[i];
        if (b->group[t] != NO)
            m->item[m->first[b->group[t] + 1]++] = t;
    }
    return HL_OK;
}

/* Finds the groups that each task is a parent of. */
static hl_status find_targets(struct building *b)
{
    struct hl_maco_csr *t = &b->targets;
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < b->n_groups; i++)
        pairs += b->parents->first[b->first_of[i] + 1] - b->parents->first[b->first_of[i]];
    t->first = calloc((size_t)b->n + 2, sizeof(*t->first));
    t->item = new_numbers(pairs);
    if (t->first == NULL || t->item == NULL)
        return no_memory();
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < b->n_groups; i++)
            for (uint32_t k = b->parents->first[b->first_of[i]];
                 k < b->parents->first[b->first_of[i] + 1]; k++) {
                if (!fill)
                    t->first[b->parents->item[k] + 2]++;
                else
                    t->item[t->first[b->parents->item[k] + 1]++] = i;
            }
        for (uint32_t i = 2; i < b->n + 2 && !fill; i++)
            t->first[i] += t->first[i - 1];
    }
    return HL_OK;
}

static uint32_t n_targets(const struct building *b, uint32_t t)
{
    return b->targets.first[t + 1] - b->targets.first[t];
}

/* The group whose only parent is t. */
static uint32_t only_child(const struct building *b, uint32_t t)
{
    for (uint32_t k = b->targets.first[t]; k < b->targets.first[t + 1]; k++) {
        uint32_t f = b->first_of[b->targets.item[k]];
        if (b->parents->first[f + 1] - b->parents->first[f] == 1)
            return b->targets.item[k];
    }
    return NO;
}

static hl_status find_homes(struct building *b)
{
    b->home = new_numbers(b->n);
    b->owner = new_numbers(b->n);
    if (b->home == NULL || b->owner == NULL)
        return no_memory();
    for (uint32_t t = 0; t < b->n; t++) {
        if (n_targets(b, t) < 2)
            continue;
        b->n_joins += n_targets(b, t) - (only_child(b, t) != NO);
        b->owner[b->n_homes] = t;
        b->home[t] = b->n_groups + b->n_homes++;
    }
    if ((uint64_t)b->n + b->n_joins >= NO)
        return hl_fail(HL_EINVAL, "the graph needs 2^32 joins. Hint: fewer dependencies");
    return HL_OK;
}

/* ---- numbers ---- */

static void put_task(struct building *b, uint32_t id, uint32_t event)
{
    uint32_t at = b->next++;
    b->p->tasks[at] = b->g->tasks[id];
    b->p->tasks[at].dependent_event = event;
    b->p->id[at] = id;
    b->p->priority[at] = b->g->nodes[id].priority;
    b->p->worker[at] = (uint32_t)b->g->nodes[id].worker;
    b->leaves++;
    for (uint32_t k = b->parents->first[id]; k < b->parents->first[id + 1]; k++) {
        b->leaves -= !b->inner[b->parents->item[k]];
        b->inner[b->parents->item[k]] = 1;
    }
}

static void put_join(struct building *b, uint32_t group, uint32_t event)
{
    uint32_t at = b->next++;
    b->p->tasks[at] =
        (maco_task){.type = MACO_TASK_NOP, .dependent_event = event, .name = b->join_name};
    b->p->priority[at] = INT32_MAX;
    b->target_of[at] = group;
}

static void put_group(struct building *b, uint32_t group, uint32_t event)
{
    for (uint32_t k = b->members.first[group]; k < b->members.first[group + 1]; k++)
        put_task(b, b->members.item[k], event);
}

/* The worker that all tasks of a range have an affinity to; -1: there is none. */
static int32_t common_wish(const struct building *b, uint32_t first, uint32_t last)
{
    uint32_t w = b->p->worker[first];
    for (uint32_t i = first; i < last; i++)
        if (b->p->worker[i] != w)
            return -1;
    return (int32_t)w;
}

/* Whether every task numbered so far leads to this group: then its parents are exactly the
 * leaves. */
static bool is_barrier(const struct building *b, uint32_t event)
{
    uint32_t mine = 0, f = event < b->n_groups ? b->first_of[event] : 0;
    if (event >= b->n_groups || b->parents->first[f + 1] - b->parents->first[f] < 2)
        return false;
    for (uint32_t k = b->parents->first[f]; k < b->parents->first[f + 1]; k++)
        mine += !b->inner[b->parents->item[k]];
    return mine == b->leaves;
}

/* Called when an event has all its triggers: numbers the tasks that it launches. */
static void fire_event(struct building *b, uint32_t event)
{
    uint32_t number = b->next_event++, first = b->next, group = event;
    int barrier = is_barrier(b, event);
    if (event >= b->n_groups) {
        uint32_t t = b->owner[event - b->n_groups];
        group = only_child(b, t);
        for (uint32_t k = b->targets.first[t]; k < b->targets.first[t + 1]; k++)
            if (b->targets.item[k] != group)
                put_join(b, b->targets.item[k], number);
    }
    uint32_t real = b->next;
    if (group != NO)
        put_group(b, group, number);
    maco_event *e = &b->p->events[number];
    e->needed = b->count[event];
    e->first = e->cursor = first;
    e->last = b->next;
    e->kind = barrier                   ? MACO_EVENT_BARRIER
              : e->last == e->first + 1 ? MACO_EVENT_LAUNCH_TASK
                                        : MACO_EVENT_LAUNCH_MASSIVE;
    e->target_worker = real < b->next ? common_wish(b, real, b->next) : -1;
    e->name = b->p->tasks[real < b->next ? real : first].name;
    b->event[event] = number;
}

/* Number of triggers that an event needs. */
static uint32_t needed_triggers(const struct building *b, uint32_t event)
{
    uint32_t f = event < b->n_groups ? b->first_of[event] : 0;
    return event < b->n_groups ? b->parents->first[f + 1] - b->parents->first[f] : 1;
}

static void add_trigger(struct building *b, uint32_t event)
{
    if (++b->count[event] == needed_triggers(b, event))
        fire_event(b, event);
}

/* The event that task `at` triggers; NO = the end. If a group's only parent has other groups too,
 * the group has no event of its own: its tasks are in the range of the parent's home. */
static uint32_t triggered_event(const struct building *b, uint32_t at)
{
    uint32_t id = b->p->id[at];
    if (id == MACO_NONE)
        return b->target_of[at];
    if (b->home[id] != NO)
        return b->home[id];
    return n_targets(b, id) == 1 ? b->targets.item[b->targets.first[id]] : NO;
}

static void number_all(struct building *b)
{
    uint32_t ends = 0;
    for (uint32_t i = 0; i < b->n; i++)
        if (b->group[b->ranked[i]] == NO)
            put_task(b, b->ranked[i], MACO_NONE);
    b->p->view.n_roots = b->next;
    for (uint32_t at = 0; at < b->next; at++) {
        uint32_t event = triggered_event(b, at);
        if (event != NO)
            add_trigger(b, event);
        else
            ends++;
    }
    maco_event *end = &b->p->events[b->next_event];
    *end = (maco_event){
        .needed = ends, .kind = MACO_EVENT_END, .target_worker = -1, .name = b->end_name};
    for (uint32_t at = 0; at < b->next; at++) {
        uint32_t event = triggered_event(b, at);
        b->p->tasks[at].trigger_event = event == NO ? b->next_event : b->event[event];
    }
}

/* ---- memory ---- */

static hl_status copy_names(struct building *b)
{
    static const char words[] = "join\0END";
    maco_plan *p = b->p;
    p->names = malloc(b->g->names_len + sizeof(words));
    p->calls = malloc((b->g->n_calls + 1) * sizeof(*p->calls));
    if (p->names == NULL || p->calls == NULL)
        return no_memory();
    memcpy(p->names, b->g->names, b->g->names_len);
    memcpy(p->names + b->g->names_len, words, sizeof(words));
    if (b->g->n_calls > 0)
        memcpy(p->calls, b->g->calls, b->g->n_calls * sizeof(*p->calls));
    p->n_calls = b->g->n_calls;
    b->join_name = (uint32_t)b->g->names_len;
    b->end_name = b->join_name + 5;
    p->view.names = p->names;
    p->view.names_bytes = b->g->names_len + sizeof(words);
    return HL_OK;
}

static hl_status plan_alloc(struct building *b)
{
    maco_plan *p = b->p;
    size_t tasks = (size_t)b->n + b->n_joins, events = (size_t)b->n_groups + b->n_homes + 1;
    p->tasks = aligned_alloc(64, tasks * sizeof(*p->tasks));
    p->events = aligned_alloc(64, events * sizeof(*p->events));
    p->id = new_numbers(tasks);
    p->worker = new_numbers(tasks);
    p->priority = calloc(tasks, sizeof(*p->priority));
    b->event = new_numbers(events);
    b->count = calloc(events, sizeof(*b->count));
    b->target_of = new_numbers(tasks);
    b->inner = calloc((size_t)b->n + 1, 1);
    if (p->tasks == NULL || p->events == NULL || p->id == NULL || p->worker == NULL ||
        p->priority == NULL || b->event == NULL || b->count == NULL || b->target_of == NULL ||
        b->inner == NULL)
        return no_memory();
    memset(p->events, 0, events * sizeof(*p->events));
    return copy_names(b);
}

static void set_view(struct building *b)
{
    maco_plan_view *v = &b->p->view;
    v->tasks = b->p->tasks;
    v->events = b->p->events;
    v->id = b->p->id;
    v->worker = b->p->worker;
    v->priority = b->p->priority;
    v->n_tasks = b->next;
    v->n_events = b->next_event + 1;
}

static hl_status build_plan(struct building *b)
{
    HL_TRY(find_groups(b));
    HL_TRY(rank_tasks(b));
    HL_TRY(fill_groups(b));
    HL_TRY(find_targets(b));
    HL_TRY(find_homes(b));
    HL_TRY(plan_alloc(b));
    number_all(b);
    set_view(b);
    return HL_OK;
}

hl_status hl_maco_plan_build(const maco_graph *g, const struct hl_maco_csr *parents, maco_plan *p)
{
    struct building b = {.g = g, .parents = parents, .n = (uint32_t)g->n, .p = p};
    hl_status st = build_plan(&b);
    free(b.group);
    free(b.first_of);
    free(b.ranked);
    free(b.home);
    free(b.owner);
    free(b.event);
    free(b.count);
    free(b.target_of);
    free(b.inner);
    hl_maco_csr_fini(&b.members);
    hl_maco_csr_fini(&b.targets);
    return st;
}
