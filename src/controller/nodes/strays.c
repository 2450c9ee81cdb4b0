/* Stray containers: jobs have given them up because their Agent is silent, but they may still run.
 * They hold CPUs, ports and devices. Nothing has cut the connections of their ranks, so the rest of
 * their gang would compute with them until a save is refused. If the machine has another Agent, as
 * in a local cluster, that Agent ends them.
 *
 *     lost --another Agent of the machine: listStrays--> listed --a job gives some up: endStrays-.
 *      ^                                                    ^-----------------------------------'
 *      '-- silence        (strays_clear: the Agent speaks for itself again)
 *
 * None of this is stored, and a restarted Controller still finds the strays. The node's record
 * tells which node is lost, on which machine, and with which state directory. A job's record tells
 * which containers the job counts on. What really runs is read from the processes, including what
 * was started after the last heartbeat. If a crash loses a job's decision, an Agent that comes back
 * reports a lost container. */
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "base/log.h"
#include "controller/nodes/nodes_private.h"
#include "rpc/agent_calls.h"

struct stray_call {
    struct hl_controller *c;
    char node[128];
    int64_t lost_ms; /* it may have been back in between */
    size_t count;
};

/* The ready nodes, sorted so that those of one machine are adjacent. */
struct ready_nodes {
    const struct node **items; /* NULL: not built yet */
    size_t count;
};

bool node_runs_stray(const struct hl_controller *c, const struct hl_api_container_status *k)
{
    return k->state <= HL_API_CONTAINER_STATE_RUNNING && !c->nodes->events->wants(c, k->id);
}

void strays_clear(struct node *n)
{
    bool asked = n->strays.asked;
    hl_arena_fini(&n->strays.arena);
    n->strays = (struct node_strays){.asked = asked};
}

/* ---- who can end them ------------------------------------------------------------------------ */

static int by_machine(const void *a, const void *b)
{
    const struct node *const *x = a, *const *y = b;
    return strcmp((*x)->info.host_id, (*y)->info.host_id);
}

static void ready_nodes_list(const struct hl_controller *c, struct ready_nodes *ready)
{
    ready->items = calloc(nodes_count(c) + 1, sizeof(const struct node *));
    for (const struct node *m = nodes_first(c); ready->items != NULL && m != NULL; m = m->hh.next)
        if (node_ready(m))
            ready->items[ready->count++] = m;
    if (ready->items != NULL)
        qsort(ready->items, ready->count, sizeof(const struct node *), by_machine);
}

/* NULL: there is no neighbour, or the silent Agent itself is back under another name and reports
 * what it runs. */
static const struct node *find_neighbour(const struct ready_nodes *ready, const struct node *n)
{
    const char *host = n->info.host_id;
    if (ready->count == 0 || host[0] == '\0' || n->info.state_directory[0] == '\0')
        return NULL;
    const struct node **end = ready->items + ready->count,
                      **first = bsearch(&n, ready->items, ready->count, sizeof(const struct node *),
                                        by_machine);
    if (first == NULL)
        return NULL;
    while (first > ready->items && strcmp(first[-1]->info.host_id, host) == 0)
        first--;
    for (const struct node **m = first; m < end && strcmp((*m)->info.host_id, host) == 0; m++)
        if (strcmp((*m)->info.state_directory, n->info.state_directory) == 0)
            return NULL;
    return *first;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct stray_call *call_new(struct hl_controller *c, struct node *n, size_t count)
{
    struct stray_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL; /* the next round tries again */
    *k = (struct stray_call){.c = controller_hold(c), .lost_ms = n->lost_ms, .count = count};
    memcpy(k->node, n->name, sizeof(k->node));
    n->strays.asked = true;
    return k;
}

/* The node, if it is still lost as it was when the call was made. */
static struct node *call_node(const struct stray_call *k)
{
    struct node *n = !controller_stopped(k->c) ? node_find(k->c, k->node) : NULL;
    if (n == NULL)
        return NULL;
    n->strays.asked = false;
    return n->lost && n->lost_ms == k->lost_ms ? n : NULL;
}

static void on_listed(void *arg, hl_status st, const char *text,
                      const struct hl_api_agent_list_strays_results *r)
{
    struct stray_call *k = arg;
    struct node *n = call_node(k);
    if (n != NULL && st == HL_OK)
        for (size_t i = 0; i < r->ids.count; i++)
            hl_api_text_add(&n->strays.arena, &n->strays.ids, r->ids.items[i]);
    if (n != NULL && st != HL_OK)
        hl_warn("containers of a silent node are unknown node=%s error=\"%s\"", n->name, text);
    if (n != NULL && hl_arena_failed(&n->strays.arena))
        strays_clear(n);
    else if (n != NULL)
        n->strays.listed = !hl_status_retryable(st);
    free(k);
}

static void list_strays(struct hl_controller *c, const struct node *neighbour, struct node *n)
{
    struct stray_call *k = call_new(c, n, 0);
    if (k == NULL)
        return;
    hl_call_agent_list_strays_async(
        neighbour->agent,
        &(struct hl_api_agent_list_strays_params){.state_directory = n->info.state_directory,
                                                  .epoch = c->claim.epoch},
        c->opts.rpc_timeout_ms, c->opts.loop, on_listed, k);
}

static void on_ended(void *arg, hl_status st, const char *text,
                     const struct hl_api_agent_end_strays_results *r)
{
    struct stray_call *k = arg;
    struct node *n = call_node(k);
    if (n != NULL && st == HL_OK)
        hl_info("containers of a silent node were ended node=%s asked=%zu ran=%u", n->name,
                k->count, (unsigned)r->ended);
    else if (n != NULL)
        hl_warn("containers of a silent node were not ended node=%s error=\"%s\"", n->name, text);
    if (n != NULL && !hl_status_retryable(st))
        n->strays.ended = k->count;
    free(k);
}

/* The strays that jobs have given up. */
static struct hl_api_text_list strays_of(const struct hl_controller *c, const struct node *n,
                                         struct hl_arena *arena)
{
    struct hl_api_text_list ids = {0};
    for (size_t i = 0; i < n->strays.ids.count; i++)
        if (!c->nodes->events->wants(c, n->strays.ids.items[i]))
            hl_api_text_add(arena, &ids, n->strays.ids.items[i]);
    return ids;
}

static void end_strays(struct hl_controller *c, const struct node *neighbour, struct node *n)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_text_list ids = strays_of(c, n, &arena);
    struct stray_call *k = !hl_arena_failed(&arena) ? call_new(c, n, ids.count) : NULL;
    if (k == NULL)
        return;
    hl_call_agent_end_strays_async(
        neighbour->agent,
        &(struct hl_api_agent_end_strays_params){
            .ids = ids, .state_directory = n->info.state_directory, .epoch = c->claim.epoch},
        c->opts.rpc_timeout_ms, c->opts.loop, on_ended, k);
}

/* True when another Agent has something left to do about them, as far as we know. */
static bool strays_are_due(const struct hl_controller *c, const struct node *n)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    if (!n->lost || n->strays.asked || n->strays.alone == c->nodes->arrivals)
        return false;
    return !n->strays.listed || strays_of(c, n, &arena).count > n->strays.ended;
}

void strays_round(struct hl_controller *c)
{
    struct ready_nodes ready = {0};
    for (struct node *n = c->nodes->table; n != NULL; n = n->hh.next) {
        if (!strays_are_due(c, n))
            continue;
        if (ready.items == NULL)
            ready_nodes_list(c, &ready);
        const struct node *neighbour = find_neighbour(&ready, n);
        if (neighbour == NULL && ready.items != NULL)
            n->strays.alone = c->nodes->arrivals;
        else if (neighbour != NULL && n->strays.listed)
            end_strays(c, neighbour, n);
        else if (neighbour != NULL)
            list_strays(c, neighbour, n);
    }
    free(ready.items);
}
