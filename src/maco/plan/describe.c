/* A plan as JSON, for people and tests. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/buf.h"
#include "maco/graph/graph.h"
#include "maco/plan/plan_private.h"

struct describing {
    const maco_plan *p;
    struct hl_buf b;
    uint32_t *level;  /* tasks before each one on the longest path to it */
    uint64_t *height; /* ns to the end */
    uint32_t levels;
};

static const char *const event_kinds[] = {[MACO_EVENT_EMPTY] = "EMPTY",
                                          [MACO_EVENT_LAUNCH_TASK] = "LAUNCH_TASK",
                                          [MACO_EVENT_LAUNCH_MASSIVE] = "LAUNCH_MASSIVE",
                                          [MACO_EVENT_BARRIER] = "BARRIER",
                                          [MACO_EVENT_END] = "END"};
static const char *const policies[] = {
    [MACO_DIRECT] = "direct", [MACO_SCHEDULER] = "scheduler", [MACO_STATIC] = "static"};

/* Failures are stored in the buffer and checked once, at the end. */
#define PUT(d, ...) ((void)hl_buf_printf(&(d)->b, __VA_ARGS__))

static void put_text(struct describing *d, const char *key, uint32_t name)
{
    PUT(d, "\"%s\":\"", key);
    for (const char *s = d->p->names + name; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            (void)hl_buf_append(&d->b, "\\", 1);
        (void)hl_buf_append(&d->b, s, 1);
    }
    PUT(d, "\"");
}

/* Writes MACO_NONE as null. */
static void put_number(struct describing *d, const char *key, uint32_t v)
{
    if (v == MACO_NONE)
        PUT(d, ",\"%s\":null", key);
    else
        PUT(d, ",\"%s\":%u", key, v);
}

static void put_numbers(struct describing *d, const char *key, const uint32_t *v, uint32_t n)
{
    PUT(d, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        PUT(d, "%s%u", i == 0 ? "" : ",", v[i]);
    PUT(d, "]");
}

static void put_task(struct describing *d, uint32_t i)
{
    const maco_task *t = &d->p->tasks[i];
    uint32_t n;
    const uint32_t *parents = hl_maco_plan_parents(d->p, i, &n);
    PUT(d, "%s\n{", i == 0 ? "" : ",");
    put_text(d, "name", t->name);
    PUT(d, ",\"type\":\"%s\"", hl_maco_type_name(t->type));
    put_number(d, "id", d->p->id[i]);
    put_number(d, "dependent_event", t->dependent_event);
    put_number(d, "trigger_event", t->trigger_event);
    put_number(d, "worker", d->p->worker[i]);
    PUT(d, ",\"priority\":%d,\"cost_ns\":%" PRIu64 ",\"level\":%u",
        d->p->id[i] == MACO_NONE ? 0 : d->p->priority[i], hl_maco_cost(t), d->level[i]);
    if (hl_maco_is_comm(t->type))
        put_number(d, "group", t->group);
    put_numbers(d, "parents", parents, n);
    PUT(d, "}");
}

static void put_event(struct describing *d, uint32_t i)
{
    const maco_event *e = &d->p->events[i];
    PUT(d, "%s\n{", i == 0 ? "" : ",");
    put_text(d, "name", e->name);
    PUT(d, ",\"kind\":\"%s\",\"needed\":%u,\"first\":%u,\"last\":%u,\"target_worker\":%d}",
        event_kinds[e->kind], e->needed, e->first, e->last, e->target_worker);
}

/* Numbers increase along each dependency, so one pass is enough. */
static void find_levels(struct describing *d)
{
    for (uint32_t i = 0; i < d->p->view.n_tasks; i++) {
        uint32_t n;
        const uint32_t *parents = hl_maco_plan_parents(d->p, i, &n);
        for (uint32_t k = 0; k < n; k++)
            if (d->level[parents[k]] + 1 > d->level[i])
                d->level[i] = d->level[parents[k]] + 1;
        if (d->p->id[i] != MACO_NONE && d->level[i] + 1 > d->levels)
            d->levels = d->level[i] + 1;
    }
}

/* Goes from range to range, always to the task with the longest path to the end. */
static void put_critical_path(struct describing *d)
{
    uint32_t first = 0, last = d->p->view.n_roots, shown = 0;
    uint64_t total = 0;
    PUT(d, ",\"critical_path\":[");
    while (first < last) {
        uint32_t best = first;
        for (uint32_t i = first; i < last; i++)
            if (d->height[i] > d->height[best])
                best = i;
        total = d->height[best] > total ? d->height[best] : total;
        if (d->p->id[best] != MACO_NONE)
            PUT(d, "%s%u", shown++ == 0 ? "" : ",", best);
        const maco_event *e = &d->p->events[d->p->tasks[best].trigger_event];
        first = e->first;
        last = e->last;
    }
    PUT(d, "],\"critical_path_ns\":%" PRIu64, total);
}

static void put_all(struct describing *d)
{
    const maco_plan_view *v = &d->p->view;
    uint32_t joins = 0;
    for (uint32_t i = 0; i < v->n_tasks; i++)
        joins += v->id[i] == MACO_NONE;
    PUT(d, "{\"policy\":\"%s\",\"roots\":%u,\"joins\":%u,\"levels\":%u", policies[v->policy],
        v->n_roots, joins, d->levels);
    put_critical_path(d);
    put_numbers(d, "comm", v->comm, v->n_comm);
    PUT(d, ",\"comm_hash\":\"%016" PRIx64 "\",\"lists\":[", v->comm_hash);
    for (uint32_t w = 0; w < v->n_lists; w++) {
        PUT(d, "%s[", w == 0 ? "" : ",");
        for (uint32_t k = v->first_of_list[w]; k < v->first_of_list[w + 1]; k++)
            PUT(d, "%s%u", k == v->first_of_list[w] ? "" : ",", v->list[k]);
        PUT(d, "]");
    }
    PUT(d, "],\"tasks\":[");
    for (uint32_t i = 0; i < v->n_tasks; i++)
        put_task(d, i);
    PUT(d, "],\"events\":[");
    for (uint32_t i = 0; i < v->n_events; i++)
        put_event(d, i);
    PUT(d, "]}\n");
}

int maco_plan_describe(const maco_plan *p, char **json)
{
    if (p == NULL || json == NULL)
        return hl_fail(HL_EINVAL, "maco_plan_describe: the plan or json is NULL");
    struct describing d = {.p = p, .b = HL_BUF(SIZE_MAX / 2)};
    d.level = calloc(p->view.n_tasks, sizeof(*d.level));
    d.height = malloc(p->view.n_tasks * sizeof(*d.height));
    if (d.level != NULL && d.height != NULL) {
        find_levels(&d);
        hl_maco_plan_heights(p, d.height);
        put_all(&d);
    }
    int short_of = d.level == NULL || d.height == NULL || d.b.failed;
    free(d.level);
    free(d.height);
    if (!short_of)
        *json = hl_buf_take(&d.b);
    hl_buf_fini(&d.b);
    return short_of ? hl_fail(HL_ENOMEM, "out of memory describing a plan") : HL_OK;
}
