/* Lists of MACO_STATIC: a worker runs its own list from front to back and waits for each task's
 * event. The lists come from a run of the plan on the virtual clock, where the ready task with the
 * longest path to the end goes first. All lists, also those from a caller, are checked against
 * everything that a task waits for: its parents, the previous task in its list, and the previous
 * communication in its group. A cycle among these would deadlock. */
#include <stdlib.h>
#include <string.h>

#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

#define LINK_BYTES_PER_S 10000000000u /* for a group of unknown rate */
#define LINK_LATENCY_NS  10000

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating lists of tasks");
}

static bool is_listed(const maco_plan *p, uint32_t task)
{
    return p->id[task] != MACO_NONE && !hl_maco_is_comm(p->tasks[task].type);
}

/* ---- lists from costs ---- */

/* Ranks tasks by priority, then height, then number. */
static hl_status rank_tasks(const maco_plan *p, uint32_t **out)
{
    size_t n = p->view.n_tasks;
    uint64_t *key = malloc(n * sizeof(*key));
    uint32_t *task = malloc(n * sizeof(*task)), *rank = malloc(n * sizeof(*rank));
    hl_status st = key == NULL || task == NULL || rank == NULL ? no_memory() : HL_OK;
    if (st == HL_OK) {
        hl_maco_plan_heights(p, key);
        for (uint32_t i = 0; i < n; i++) {
            key[i] = UINT64_MAX - key[i];
            task[i] = i;
        }
        st = hl_maco_sort(key, task, n);
    }
    for (size_t i = 0; i < n && st == HL_OK; i++)
        key[i] = (uint64_t)((int64_t)INT32_MAX - p->priority[task[i]]);
    if (st == HL_OK)
        st = hl_maco_sort(key, task, n);
    for (uint32_t i = 0; i < n && st == HL_OK; i++)
        rank[task[i]] = i;
    free(key);
    free(task);
    *out = rank;
    return st;
}

static void fill_lists(maco_plan *p, const struct hl_maco_record *r, size_t n, uint32_t workers)
{
    for (size_t i = 0; i < n; i++)
        if (r[i].kind == HL_MACO_COMPUTE)
            p->first_of_list[r[i].worker + 1]++;
    for (uint32_t w = 0; w < workers; w++)
        p->first_of_list[w + 1] += p->first_of_list[w];
    for (size_t i = 0; i < n; i++)
        if (r[i].kind == HL_MACO_COMPUTE) {
            p->worker[r[i].task] = r[i].worker;
            p->list[p->first_of_list[r[i].worker]++] = r[i].task;
        }
    memmove(p->first_of_list + 1, p->first_of_list, workers * sizeof(*p->first_of_list));
    p->first_of_list[0] = 0;
}

static hl_status make_lists(maco_plan *p, uint32_t workers)
{
    struct hl_maco_model m = {.clock = {.workers = (int)workers,
                                        .link_bytes_per_s = LINK_BYTES_PER_S,
                                        .link_latency_ns = LINK_LATENCY_NS},
                              .policy = MACO_DIRECT};
    struct hl_maco_record *records = malloc(p->view.n_tasks * sizeof(*records));
    uint32_t *rank = NULL;
    size_t n = 0;
    hl_status st = records == NULL ? no_memory() : rank_tasks(p, &rank);
    m.rank = rank;
    if (st == HL_OK)
        st = hl_maco_simulate(p, &m, records, &n);
    if (st == HL_OK)
        fill_lists(p, records, n, workers);
    free(records);
    free(rank);
    return st;
}

/* ---- lists from the caller ---- */

static hl_status take_task(maco_plan *p, const uint32_t *number, uint32_t n_ids, uint32_t w,
                           uint32_t id, uint32_t *at)
{
    uint32_t task = id < n_ids ? number[id] : MACO_NONE;
    if (task == MACO_NONE)
        return hl_fail(HL_EINVAL, "list %u names task %u of %u. Hint: ids of the graph", w, id,
                       n_ids);
    if (!is_listed(p, task))
        return hl_fail(HL_EINVAL,
                       "list %u has task \"%s\", which is communication. Hint: the proxy of its "
                       "group runs it",
                       w, hl_maco_plan_name(p, task));
    if (p->worker[task] & 0x80000000u && p->worker[task] != MACO_NONE)
        return hl_fail(HL_EINVAL,
                       "task \"%s\" is in lists twice. Hint: put it in one of them, once",
                       hl_maco_plan_name(p, task));
    if (p->worker[task] != MACO_NONE && p->worker[task] != w)
        return hl_fail(HL_EINVAL, "task \"%s\" requests worker %u but is in list %u",
                       hl_maco_plan_name(p, task), p->worker[task], w);
    p->worker[task] = 0x80000000u | w;
    p->list[(*at)++] = task;
    return HL_OK;
}

static hl_status take_lists(maco_plan *p, const maco_list *lists, uint32_t workers)
{
    uint32_t *number = malloc(((size_t)p->view.n_tasks + 1) * sizeof(*number));
    uint32_t at = 0, n_ids = 0;
    hl_status st = HL_OK;
    if (number == NULL)
        return no_memory();
    for (uint32_t t = 0; t < p->view.n_tasks; t++)
        if (p->id[t] != MACO_NONE) {
            number[p->id[t]] = t;
            n_ids++;
        }
    for (uint32_t w = 0; w < workers && st == HL_OK; w++) {
        for (uint32_t i = 0; i < lists[w].n && st == HL_OK; i++)
            st = take_task(p, number, n_ids, w, lists[w].ids[i], &at);
        p->first_of_list[w + 1] = at;
    }
    for (uint32_t t = 0; t < p->view.n_tasks && st == HL_OK; t++) {
        if (!is_listed(p, t))
            continue;
        if (p->worker[t] == MACO_NONE || !(p->worker[t] & 0x80000000u))
            st = hl_fail(HL_EINVAL, "task \"%s\" is in no list. Hint: put it in one of them",
                         hl_maco_plan_name(p, t));
        p->worker[t] &= 0x7fffffffu;
    }
    free(number);
    return st;
}

/* ---- deadlocks ---- */

static const char *name_of(const void *arg, uint32_t task)
{
    return hl_maco_plan_name(arg, task);
}

/* Collects everything that a task can wait for. */
static size_t find_waits(const maco_plan *p, struct hl_maco_edge *e, uint32_t *last_of_group)
{
    size_t n = 0;
    for (uint32_t t = 0; t < p->view.n_tasks; t++)
        for (uint32_t k = p->parents.first[t]; k < p->parents.first[t + 1]; k++)
            e[n++] = (struct hl_maco_edge){t, p->parents.item[k]};
    for (uint32_t w = 0; w < p->view.n_lists; w++)
        for (uint32_t k = p->first_of_list[w] + 1; k < p->first_of_list[w + 1]; k++)
            e[n++] = (struct hl_maco_edge){p->list[k], p->list[k - 1]};
    for (uint32_t i = 0; i < p->view.n_comm; i++) {
        uint32_t *last = &last_of_group[p->tasks[p->comm[i]].group];
        if (*last != MACO_NONE)
            e[n++] = (struct hl_maco_edge){p->comm[i], *last};
        *last = p->comm[i];
    }
    return n;
}

static hl_status check_waits(const maco_plan *p, const struct hl_maco_edge *e, size_t n_edges,
                             uint32_t *order)
{
    struct hl_maco_csr parents, children;
    uint32_t placed = 0, *cycle = NULL, length = 0, n = p->view.n_tasks;
    HL_TRY(hl_maco_csr_build(n, e, n_edges, &parents, &children));
    hl_status st = hl_maco_topo(n, &parents, &children, NULL, order, &placed);
    if (st == HL_OK && placed < n)
        st = hl_maco_cycle(n, &parents, &children, &cycle, &length);
    if (st == HL_OK && placed < n)
        st = hl_maco_fail_cycle("the order of the lists deadlocks", cycle, length, name_of, p);
    free(cycle);
    hl_maco_csr_fini(&parents);
    hl_maco_csr_fini(&children);
    return st;
}

static hl_status check_lists(const maco_plan *p)
{
    size_t n = p->view.n_tasks;
    struct hl_maco_edge *e = malloc((p->parents.first[n] + 2 * n + 1) * sizeof(*e));
    uint32_t *last = malloc((UINT16_MAX + 1) * sizeof(*last)), *order = malloc(n * sizeof(*order));
    hl_status st = no_memory();
    if (e != NULL && last != NULL && order != NULL) {
        memset(last, 0xff, (UINT16_MAX + 1) * sizeof(*last));
        st = check_waits(p, e, find_waits(p, e, last), order);
    }
    free(e);
    free(last);
    free(order);
    return st;
}

hl_status hl_maco_plan_lists(maco_plan *p, const maco_compile_options *o)
{
    uint32_t workers = (uint32_t)o->workers;
    p->list = malloc((size_t)p->view.n_tasks * sizeof(*p->list));
    p->first_of_list = calloc((size_t)workers + 1, sizeof(*p->first_of_list));
    if (p->list == NULL || p->first_of_list == NULL)
        return no_memory();
    HL_TRY(o->lists != NULL ? take_lists(p, o->lists, workers) : make_lists(p, workers));
    p->view.list = p->list;
    p->view.first_of_list = p->first_of_list;
    p->view.n_lists = workers;
    return check_lists(p);
}
