/* Containers that jobs have given up because their Agent is silent, and that may live on. Where it
 * was stopped on a machine that has another Agent, as in a local cluster, that one ends them:
 * nothing has cut the connections of their ranks, so the rest of their gang would compute with them
 * until a save is refused. What ran there is known from the last heartbeat, so not after a restart.
 * Where the jobs' decision is lost with a crash, an Agent that comes back reports a lost container.
 */
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "base/log.h"
#include "controller/nodes/nodes_private.h"
#include "rpc/agent_calls.h"

struct stray_call {
    struct hl_controller *c;
    char node[128];
    size_t count;
};

bool node_runs_stray(const struct hl_controller *c, const struct hl_api_container_status *k)
{
    return k->state <= HL_API_CONTAINER_STATE_RUNNING && !c->nodes->events->wants(c, k->id);
}

static const struct node *find_neighbour(const struct hl_controller *c, const struct node *n)
{
    const struct node *m = nodes_first(c);
    if (n->info.host_id[0] == '\0' || n->info.state_directory[0] == '\0')
        return NULL;
    while (m != NULL && (m == n || !node_ready(m) || strcmp(m->info.host_id, n->info.host_id) != 0))
        m = m->hh.next;
    return m;
}

static void on_ended(void *arg, hl_status st, const char *text,
                     const struct hl_api_agent_end_strays_results *r)
{
    struct stray_call *k = arg;
    struct node *n = !controller_stopped(k->c) ? node_find(k->c, k->node) : NULL;
    if (n != NULL) {
        n->strays_asked = false;
        if (st == HL_OK)
            hl_info("containers of a silent node were ended node=%s asked=%zu ran=%u", n->name,
                    k->count, (unsigned)r->ended);
        else
            hl_warn("containers of a silent node were not ended node=%s error=\"%s\"", n->name,
                    text);
        if (n->lost && !hl_status_retryable(st))
            n->strays_ended = k->count;
    }
    free(k);
}

static void end_strays(struct hl_controller *c, struct node *n)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    const struct node *neighbour = find_neighbour(c, n);
    for (size_t i = 0; neighbour != NULL && i < n->report.containers.count; i++)
        if (node_runs_stray(c, &n->report.containers.items[i]))
            hl_api_text_add(&arena, &ids, n->report.containers.items[i].id);
    struct stray_call *k =
        ids.count > n->strays_ended && !hl_arena_failed(&arena) ? calloc(1, sizeof(*k)) : NULL;
    if (k == NULL)
        return;
    *k = (struct stray_call){.c = controller_hold(c), .count = ids.count};
    memcpy(k->node, n->name, sizeof(k->node));
    n->strays_asked = true;
    hl_call_agent_end_strays_async(
        neighbour->agent,
        &(struct hl_api_agent_end_strays_params){
            .ids = ids, .state_directory = n->info.state_directory, .epoch = c->claim.epoch},
        c->opts.rpc_timeout_ms, c->opts.loop, on_ended, k);
}

void strays_round(struct hl_controller *c)
{
    for (struct node *n = c->nodes->table; n != NULL; n = n->hh.next)
        if (n->lost && !n->strays_asked && n->report.containers.count > n->strays_ended)
            end_strays(c, n);
}
