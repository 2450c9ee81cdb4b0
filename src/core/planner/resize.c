/* A plan for another size. Ranks are numbered by their position in the grid, so a replica only gets
 * a new data parallel index. */
#include "core/planner/resize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/elastic.h"
#include "core/planner/plan_private.h"

hl_status hl_plan_copy(const struct hl_plan *plan, struct hl_plan **out)
{
    json_t *doc = hl_plan_to_json(plan);
    hl_status st = doc != NULL ? hl_plan_from_json(doc, out) : hl_plan_no_memory();
    json_decref(doc);
    return st;
}

int hl_plan_position(const struct hl_plan *plan, int index)
{
    for (int i = 0; plan != NULL && i < plan->container_count; i++)
        if (plan->containers[i].index == index)
            return i;
    return -1;
}

static void container_leave(struct hl_plan_container *c)
{
    int n = c->rank_count + c->joining;
    for (int k = 0; k < n; k++)
        free(c->ranks[k].gpu);
    c->rank_count = c->joining = 0;
    c->leaves = true;
}

void hl_plan_leave(struct hl_plan *plan, int position)
{
    container_leave(&plan->containers[position]);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void lines_clear(char **lines)
{
    for (size_t i = 0; lines != NULL && lines[i] != NULL; i++) {
        free(lines[i]);
        lines[i] = NULL;
    }
}

/* Rewrites the plan's texts, which described the old size. Out of memory, it leaves none. */
static void plan_retell(struct hl_plan *plan, const struct hl_grid *g)
{
    bool has_room = plan->arithmetic != NULL && plan->arithmetic[0] != NULL;
    char *text = NULL, cp[24] = "";
    int ranks = hl_rank_world(g) / g->dp;
    lines_clear(plan->arithmetic);
    lines_clear(plan->warnings);
    if (hl_grid_cp(g) > 1)
        snprintf(cp, sizeof(cp), " × CP %d", g->cp);
    if (has_room &&
        asprintf(&text, "now %d replica%s of PP %d × TP %d%s = %d rank%s", g->dp,
                 g->dp == 1 ? "" : "s", g->pp, g->tp, cp, ranks, ranks == 1 ? "" : "s") >= 0)
        plan->arithmetic[0] = text;
}

/* place: the new data parallel index of each old one. */
static void plan_renumber(struct hl_plan *plan, const struct hl_job *job, const int *place, int dp)
{
    struct hl_grid grid = job->grid;
    grid.dp = dp;
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++) {
            struct hl_plan_rank *r = &plan->containers[i].ranks[k];
            r->at.dp = place != NULL ? place[r->at.dp] : r->at.dp;
            r->rank = hl_rank_number(&grid, r->at);
        }
    plan->world_size = hl_rank_world(&grid);
    plan_retell(plan, &grid);
}

hl_status hl_plan_find_master(struct hl_plan *plan, const struct hl_cluster *cluster)
{
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++) {
            const char *name = plan->containers[i].node;
            const struct hl_cluster_node *node = hl_cluster_find(cluster, name);
            if (plan->containers[i].ranks[k].rank != 0 || strcmp(name, plan->master_node) == 0)
                continue;
            char *host = strdup(name), *address = strdup(node != NULL ? node->rank_address : name);
            if (host == NULL || address == NULL) {
                free(host);
                free(address);
                return hl_plan_no_memory();
            }
            free(plan->master_node);
            free(plan->master_address);
            plan->master_node = host;
            plan->master_address = address;
        }
    return HL_OK;
}

/* ---- smaller --------------------------------------------------------------------------------- */

static bool has_dead(const struct hl_plan_container *c, const bool *dead)
{
    for (int k = 0; k < c->rank_count; k++)
        if (dead[c->ranks[k].at.dp])
            return true;
    return false;
}

/* A replica is lost as a whole with any of its containers; repeats until no more are lost. */
static void spread_loss(const struct hl_plan *plan, bool *dead)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < plan->container_count; i++) {
            const struct hl_plan_container *c = &plan->containers[i];
            for (int k = 0; has_dead(c, dead) && k < c->rank_count; k++) {
                more |= !dead[c->ranks[k].at.dp];
                dead[c->ranks[k].at.dp] = true;
            }
        }
    }
}

static int count_alive(const bool *dead, int dp)
{
    int n = 0;
    for (int d = 0; d < dp; d++)
        n += !dead[d];
    return n;
}

/* Finds the replicas that are lost if as many stay as the job's sizes allow; returns how many
 * stay. */
static int find_dead(const struct hl_plan *plan, const struct hl_job *job, const bool *lost,
                     bool *dead)
{
    int dp = job->grid.dp;
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; lost[i] && k < plan->containers[i].rank_count; k++)
            dead[plan->containers[i].ranks[k].at.dp] = true;
    spread_loss(plan, dead);
    for (int last = dp - 1; last >= 0; last--) {
        int alive = count_alive(dead, dp);
        if (hl_job_size_is_allowed(job, alive))
            return alive;
        dead[last] = true;
        spread_loss(plan, dead);
    }
    return 0;
}

hl_status hl_plan_shrink(struct hl_plan *plan, const struct hl_job *job, const bool *lost, int *dp)
{
    size_t n = (size_t)job->grid.dp + 1;
    HL_AUTO(hl_freep) bool *dead = calloc(n, sizeof(*dead));
    HL_AUTO(hl_freep) int *place = calloc(n, sizeof(*place));
    if (dead == NULL || place == NULL)
        return hl_plan_no_memory();
    *dp = find_dead(plan, job, lost, dead);
    if (*dp == 0)
        return HL_OK;
    for (int d = 0, next = 0; d < job->grid.dp; d++)
        place[d] = dead[d] ? -1 : next++;
    hl_plan_dismiss(plan);
    for (int i = 0; i < plan->container_count; i++)
        if (lost[i] || has_dead(&plan->containers[i], dead))
            container_leave(&plan->containers[i]);
    plan_renumber(plan, job, place, *dp);
    return HL_OK;
}

void hl_plan_dismiss(struct hl_plan *plan)
{
    for (int i = 0; i < plan->container_count; i++)
        if (plan->containers[i].joining > 0)
            container_leave(&plan->containers[i]);
}

void hl_plan_remove(struct hl_plan *plan, int position)
{
    struct hl_plan_container *c = &plan->containers[position];
    container_leave(c);
    for (int k = 0; k < c->gpu_count; k++)
        free(c->gpus[k]);
    free(c->gpus);
    free(c->address);
    free(c->ranks);
    free(c->cpus);
    plan->container_count--;
    memmove(c, c + 1, (size_t)(plan->container_count - position) * sizeof(*c));
}

/* ---- larger ---------------------------------------------------------------------------------- */

hl_status hl_plan_grow(struct hl_plan *plan, const struct hl_job *job, struct hl_plan *more)
{
    size_t all = (size_t)(plan->container_count + more->container_count);
    struct hl_plan_container *list = realloc(plan->containers, all * sizeof(*list));
    struct hl_grid grid = job->grid;
    if (list == NULL)
        return hl_plan_no_memory();
    plan->containers = list;
    grid.dp += more->world_size / hl_job_replica_ranks(job);
    for (int i = 0; i < more->container_count; i++) {
        struct hl_plan_container *c = &list[plan->container_count++];
        *c = more->containers[i];
        c->index = plan->next_index++;
        c->joining = c->rank_count;
        c->rank_count = 0;
        for (int k = 0; k < c->joining; k++) {
            struct hl_plan_rank *r = &c->ranks[k];
            r->at.dp += job->grid.dp;
            r->rank = r->known_as = hl_rank_number(&grid, r->at);
        }
    }
    more->container_count = 0;
    return HL_OK;
}

int hl_plan_admit(struct hl_plan *plan, const struct hl_job *job)
{
    int dp = job->grid.dp;
    for (int i = 0; i < plan->container_count; i++) {
        struct hl_plan_container *c = &plan->containers[i];
        c->rank_count += c->joining;
        c->joining = 0;
        for (int k = 0; k < c->rank_count; k++)
            dp = c->ranks[k].at.dp >= dp ? c->ranks[k].at.dp + 1 : dp;
    }
    plan_renumber(plan, job, NULL, dp);
    return dp;
}
