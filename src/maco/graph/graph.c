#include "maco/graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "maco/graph/types.h"

#define NAME_MAX_BYTES 255

hl_status hl_maco_grow(void *list, size_t *cap, size_t count, size_t more, size_t size)
{
    void *p;
    if (more <= *cap - count)
        return HL_OK;
    memcpy(&p, list, sizeof(p));
    size_t want = *cap + *cap / 2 + 16;
    want = want < count + more ? count + more : want;
    p = reallocarray(p, want, size);
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu x %zu bytes of a graph of tasks",
                       want, size);
    memcpy(list, &p, sizeof(p));
    *cap = want;
    return HL_OK;
}

int maco_graph_new(maco_graph **out)
{
    if (out == NULL)
        return hl_fail(HL_EINVAL, "maco_graph_new: out is NULL");
    maco_graph *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a graph of tasks");
    *out = g;
    return HL_OK;
}

void maco_graph_free(maco_graph *g)
{
    if (g == NULL)
        return;
    free(g->tasks);
    free(g->nodes);
    free(g->edges);
    free(g->ranges);
    free(g->calls);
    free(g->names);
    free(g);
}

/* ---- names ---- */

/* Length in bytes of the UTF-8 character at s; 0 if it is invalid or a control character. Names
 * are written to JSON and messages. */
static size_t character_bytes(const unsigned char *s)
{
    if (s[0] >= 0x20 && s[0] < 0x7f)
        return 1;
    size_t n = s[0] >= 0xc2 && s[0] <= 0xdf   ? 2
               : s[0] >= 0xe0 && s[0] <= 0xef ? 3
               : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0; /* an overlong form, a surrogate, or past U+10FFFF */
    return n;
}

static hl_status check_name(const char *name)
{
    const unsigned char *s = (const unsigned char *)name;
    size_t at = 0, n;
    while (s[at] != 0 && at <= NAME_MAX_BYTES && (n = character_bytes(s + at)) > 0)
        at += n;
    if (at > NAME_MAX_BYTES || s[at] != 0 || at == 0)
        return hl_fail(HL_EINVAL,
                       "the name of a task is empty, longer than %d bytes or bad at byte %zu. "
                       "Hint: UTF-8 without control characters, or NULL",
                       NAME_MAX_BYTES, at);
    return HL_OK;
}

static hl_status add_name(maco_graph *g, const char *name, uint32_t *offset)
{
    size_t len = strlen(name) + 1;
    if (len > UINT32_MAX - 64 - g->names_len)
        return hl_fail(HL_EINVAL, "the names of tasks exceed 4 GiB. Hint: use shorter ones");
    HL_TRY(hl_maco_grow(&g->names, &g->name_cap, g->names_len, len, 1));
    memcpy(g->names + g->names_len, name, len);
    *offset = (uint32_t)g->names_len;
    g->names_len += len;
    return HL_OK;
}

/* ---- tasks ---- */

static maco_task task_of(const maco_op *op)
{
    maco_task t = {.type = (uint16_t)op->type,
                   .flags = (uint16_t)((unsigned)op->dtype & MACO_FLAG_DTYPE),
                   .dependent_event = MACO_NONE,
                   .trigger_event = MACO_NONE,
                   .cost_ns = op->cost_ns,
                   .group = op->group};
    t.flags |= op->deterministic ? MACO_FLAG_DETERMINISTIC : 0;
    for (int i = 0; i < 4; i++)
        t.inputs[i] = (uintptr_t)op->inputs[i];
    for (int i = 0; i < 2; i++)
        t.outputs[i] = (uintptr_t)op->outputs[i];
    memcpy(t.dims, op->dims, sizeof(t.dims));
    memcpy(t.aux, op->aux, sizeof(t.aux));
    return t;
}

/* Reserves room for everything first, so that nothing fails half way. */
static hl_status make_room(maco_graph *g, const maco_op *op)
{
    HL_TRY(hl_maco_grow(&g->tasks, &g->task_cap, g->n, 1, sizeof(*g->tasks)));
    HL_TRY(hl_maco_grow(&g->nodes, &g->node_cap, g->n, 1, sizeof(*g->nodes)));
    HL_TRY(hl_maco_grow(&g->calls, &g->call_cap, g->n_calls, 1, sizeof(*g->calls)));
    return hl_maco_grow(&g->ranges, &g->range_cap, g->n_ranges, (size_t)op->n_reads + op->n_writes,
                        sizeof(*g->ranges));
}

static void add_custom(maco_graph *g, const maco_op *op, maco_task *t, struct hl_maco_node *node)
{
    node->first_range = (uint32_t)g->n_ranges;
    node->n_reads = op->n_reads;
    node->n_writes = op->n_writes;
    if (op->n_reads > 0)
        memcpy(g->ranges + g->n_ranges, op->reads, op->n_reads * sizeof(*g->ranges));
    g->n_ranges += op->n_reads;
    if (op->n_writes > 0)
        memcpy(g->ranges + g->n_ranges, op->writes, op->n_writes * sizeof(*g->ranges));
    g->n_ranges += op->n_writes;
    t->user = g->n_calls;
    g->calls[g->n_calls++] = (struct hl_maco_call){op->function, op->arg};
}

static hl_status add_task(maco_graph *g, const maco_op *op, uint32_t *id)
{
    char text[64];
    const char *name = op->name;
    if (name == NULL)
        snprintf(text, sizeof(text), "%s %zu", hl_maco_type_name(op->type), g->n);
    else
        HL_TRY(check_name(name));
    name = name == NULL ? text : name;
    maco_task t = task_of(op);
    HL_TRY(hl_maco_check(op, &t, name));
    if (g->n >= MACO_MAX_TASKS || g->n_ranges > UINT32_MAX - op->n_reads - op->n_writes)
        return hl_fail(HL_EINVAL, "task \"%s\": the graph is full. Hint: at most %u tasks", name,
                       MACO_MAX_TASKS);
    struct hl_maco_node node = {.priority = op->priority,
                                .worker = op->on_worker - 1,
                                .named = op->name != NULL && !op->local_name};
    HL_TRY(make_room(g, op));
    HL_TRY(add_name(g, name, &t.name));
    if (op->function != NULL)
        add_custom(g, op, &t, &node);
    g->tasks[g->n] = t;
    g->nodes[g->n] = node;
    if (id != NULL)
        *id = (uint32_t)g->n;
    g->n++;
    return HL_OK;
}

int maco_graph_add(maco_graph *g, const maco_op *op, uint32_t *id)
{
    maco_op given;
    if (g == NULL || op == NULL)
        return hl_fail(HL_EINVAL, "maco_graph_add: the graph or the task is NULL");
    HL_TRY(HL_ABI_READ(maco_op, op, &given));
    return add_task(g, &given, id);
}

int maco_graph_depend(maco_graph *g, uint32_t task, uint32_t on)
{
    if (g == NULL)
        return hl_fail(HL_EINVAL, "maco_graph_depend: the graph is NULL");
    if (task >= g->n || on >= g->n)
        return hl_fail(HL_EINVAL,
                       "task %u can't wait for task %u: the graph has %zu. Hint: ids are those "
                       "that maco_graph_add gave",
                       task, on, g->n);
    if (task == on)
        return hl_fail(HL_ECONFLICT,
                       "task \"%s\" would wait for itself. Hint: the arguments are (task, the one "
                       "that it waits for)",
                       hl_maco_graph_name(g, task));
    if (g->n_edges >= UINT32_MAX)
        return hl_fail(HL_EINVAL, "more than 2^32 - 1 dependencies. Hint: join them in NOP tasks");
    HL_TRY(hl_maco_grow(&g->edges, &g->edge_cap, g->n_edges, 1, sizeof(*g->edges)));
    g->edges[g->n_edges++] = (struct hl_maco_edge){task, on};
    return HL_OK;
}
