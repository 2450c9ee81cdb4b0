/* planJob with defrag: running gangs are the ones that core/planner/defrag.h may move. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/jobs/jobs_private.h"
#include "core/planner/defrag.h"

/* Lists the gangs that hold slots and can't be moved; the caller calls free(). */
static struct hl_defrag_gang *list_gangs(const struct hl_controller *c, size_t *count)
{
    struct hl_defrag_gang *list = calloc(jobs_count(c) + 1, sizeof(*list));
    size_t n = 0;
    for (const struct job *j = c->jobs->table; list != NULL && j != NULL; j = j->hh.next)
        if (j->marked && j->run.plan != NULL && j->executor == &agents_executor &&
            (j->run.state == HL_API_JOB_STATE_STARTING || j->run.state == HL_API_JOB_STATE_RUNNING))
            list[n++] = (struct hl_defrag_gang){j->id, &j->spec, j->run.plan};
    *count = n;
    return list;
}

/* The nodes of a plan, without duplicates. */
static struct hl_api_text_list nodes_of(const struct hl_plan *plan, struct hl_arena *arena)
{
    struct hl_api_text_list list = {
        .items = hl_arena_array(arena, (size_t)plan->container_count, sizeof(*list.items))};
    for (int i = 0; list.items != NULL && i < plan->container_count; i++) {
        bool known = false;
        for (size_t k = 0; k < list.count && !known; k++)
            known = strcmp(list.items[k], plan->containers[i].node) == 0;
        if (!known)
            list.items[list.count++] = hl_arena_strdup(arena, plan->containers[i].node);
    }
    return list;
}

hl_status jobs_defrag(struct hl_controller *c, const struct hl_job *spec, struct hl_arena *arena,
                      struct hl_api_defrag *out)
{
    size_t count;
    struct hl_defrag found = {0};
    if (c->jobs->executor != &agents_executor)
        return hl_fail(HL_EUNSUPPORTED,
                       "Kubernetes places this cluster's jobs, so Helios can't plan moves");
    HL_AUTO(hl_freep) struct hl_defrag_gang *gangs = list_gangs(c, &count);
    if (gangs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory looking for gangs to move");
    hl_cluster_set_time(nodes_cluster(c), hl_wall_ms(), c->opts.stop_grace_ms);
    HL_TRY(hl_defrag_find(spec, nodes_cluster(c), gangs, count, &found));
    out->all_tried = found.all_tried;
    if (found.found)
        out->nodes = nodes_of(found.plan, arena);
    out->moves.items = hl_arena_array(arena, found.count, sizeof(*out->moves.items));
    for (size_t i = 0; out->moves.items != NULL && i < found.count; i++) {
        const struct hl_defrag_gang *g = &gangs[found.moves[i].gang];
        out->moves.items[out->moves.count++] =
            (struct hl_api_defrag_move){.job = g->id,
                                        .containers = g->plan->container_count,
                                        .from = nodes_of(g->plan, arena),
                                        .to = nodes_of(found.moves[i].to, arena)};
    }
    hl_defrag_fini(&found);
    return HL_OK;
}
