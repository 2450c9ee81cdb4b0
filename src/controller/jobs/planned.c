/* Gangs, for the prefetch of the data that ranks will read (controller/planned.h). For an attempt
 * that has its slots, the plan is known. For one that is yet to be placed, it is what the planner
 * would answer now if the slots were free that are about to be: those of the preceding attempt, and
 * those of jobs that are stopping for good. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/jobs_private.h"

#define NEAR_MAX 16 /* places in line */

void jobs_watch(struct hl_controller *c, const struct gang_watch *watch)
{
    c->jobs->watch = watch;
}

bool job_may_start(struct job *j)
{
    struct hl_controller *c = j->controller;
    if (c->jobs->watch == NULL || j->spec.model[0] == '\0')
        return true;
    if (j->looked_attempt != j->run.attempt) {
        j->looked_attempt = j->run.attempt;
        c->jobs->watch->look(c);
    }
    return c->jobs->watch->may_start(c, j->id, j->run.attempt);
}

/* ---- what is planned ------------------------------------------------------------------------- */

static bool leaves_slots(const struct job *k, const struct job *to)
{
    return k->marked && k->run.plan != NULL && k->run.state == HL_API_JOB_STATE_STOPPING &&
           (k == to || k->run.goal != HL_API_JOB_GOAL_RESTART);
}

static void mark_leaving(const struct job *to, bool idle, bool busy)
{
    struct hl_controller *c = to->controller;
    for (struct job *k = c->jobs->table; k != NULL; k = k->hh.next)
        if (leaves_slots(k, to) || (idle && k->marked && k->run.plan != NULL))
            hl_plan_mark(k->run.plan, nodes_cluster(c), busy);
}

struct hl_plan *job_plan_ahead(struct job *j, bool idle)
{
    struct hl_plan *plan = NULL;
    mark_leaving(j, idle, 0);
    hl_status st = j->executor->plan(j->controller, &j->spec, j->id, j->run.attempt, &plan);
    mark_leaving(j, idle, 1);
    if (st == HL_OK && plan->feasible)
        return plan;
    hl_plan_free(plan);
    return NULL;
}

/* All ranks of an attempt load the same version, so it is fixed when the gang is placed. */
hl_status job_find_version(const struct job *j, int64_t *out)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    *out = -1;
    if (j->spec.model[0] == '\0' ||
        hl_catalog_model(&j->controller->catalog, j->spec.model, &m) != HL_OK)
        return HL_OK; /* a job may bring its own model */
    HL_TRY(hl_catalog_version(m, j->spec.model_version, &v));
    /* A restarted job continues from the versions it wrote, even if it was pinned to an older one.
     */
    for (struct hl_version_rec *w = m->versions; w != NULL && w != v; w = w->next) {
        if (w->state == HL_API_VERSION_STATE_VISIBLE && hl_version_whole(w) &&
            strcmp(w->job, j->id) == 0) {
            v = w;
            break;
        }
    }
    char why[160];
    if (v->state == HL_API_VERSION_STATE_VISIBLE &&
        !hl_version_whole(v)) /* some ranks could not load it */
        return hl_fail(HL_ENOENT, "version %" PRId64 " of model '%s' can't be loaded: %s",
                       v->number, m->name, hl_version_trouble(v, why, sizeof(why)));
    *out = v->number;
    return HL_OK;
}

/* The ranks that are on a node; the caller calls free(). */
static struct planned_rank *list_ranks(const struct job *j, const struct hl_plan *plan,
                                       size_t *count)
{
    int etp = j->spec.etp > 0 ? j->spec.etp : j->spec.grid.tp;
    struct planned_rank *list = calloc((size_t)plan->world_size + 1, sizeof(*list));
    size_t n = 0;
    for (int i = 0; i < plan->container_count && list != NULL; i++) {
        const struct hl_plan_container *k = &plan->containers[i];
        for (int r = 0; r < k->rank_count && n < (size_t)plan->world_size; r++) {
            const struct hl_rank at = k->ranks[r].at;
            list[n++] = (struct planned_rank){
                .rank = (uint32_t)k->ranks[r].rank,
                .pp = at.pp,
                .tp = at.tp,
                .dp = hl_rank_replica(&j->spec.grid, at),
                .ep = j->spec.ep > 1 ? hl_rank_expert(&j->spec.grid, at, j->spec.ep, etp) : 0,
                .node = k->node};
        }
    }
    *count = n;
    return list;
}

/* Slots that go to a job earlier in the line are not free for this one: prefetching its data there
 * would be wasted. */
struct slots_taken {
    struct hl_plan **plans; /* of the gangs visited in this round */
    size_t count;
};

static bool plans_overlap(const struct hl_plan *a, const struct hl_plan *b)
{
    for (int i = 0; i < a->container_count; i++)
        for (int k = 0; k < b->container_count; k++)
            if (a->containers[i].numa_id == b->containers[k].numa_id &&
                strcmp(a->containers[i].node, b->containers[k].node) == 0)
                return true;
    return false;
}

/* Takes over the plan, or frees it. */
static bool slots_take(struct slots_taken *t, struct hl_plan *plan)
{
    for (size_t i = 0; i < t->count; i++)
        if (plans_overlap(t->plans[i], plan)) {
            hl_plan_free(plan);
            return false;
        }
    t->plans[t->count++] = plan;
    return true;
}

typedef void (*gang_visit)(struct hl_controller *c, const struct planned_gang *g);

static void visit_plan(struct job *j, const struct hl_plan *plan, struct planned_gang *g,
                       gang_visit visit)
{
    struct planned_rank *ranks = list_ranks(j, plan, &g->rank_count);
    g->ranks = ranks;
    if (ranks != NULL)
        visit(j->controller, g);
    free(ranks);
}

/* Plans for jobs far down the line would be useless, and there may be thousands of them. */
static bool is_near(const struct job *j)
{
    return j->wait.place <= NEAR_MAX;
}

/* For containers whose node is silent: what their ranks would read where they would continue if
 * that node is lost. The caller frees the list. */
static struct planned_rank *list_spare_ranks(const struct job *j, size_t *count)
{
    const struct hl_plan *plan = j->run.plan;
    struct planned_rank *all = list_ranks(j, plan, count);
    size_t at = 0, kept = 0;
    int spare = -1;
    for (int i = 0; all != NULL && i < plan->container_count; i++) {
        const struct node *n = node_find(j->controller, plan->containers[i].node);
        bool silent = plan->containers[i].rank_count > 0 && n != NULL && n->lost;
        if (silent)
            spare = hl_jobrun_next_parked(&j->run, spare + 1);
        for (int k = 0; k < plan->containers[i].rank_count && at < *count; k++, at++) {
            if (!silent || spare < 0)
                continue;
            all[kept] = all[at];
            all[kept++].node = plan->containers[spare].node;
        }
        if (silent && spare < 0)
            break;
    }
    *count = kept;
    return all;
}

/* The data is prefetched as for a following attempt. The version is the newest one, because the
 * gang continues from what it has saved. */
static void visit_spares(struct job *j, struct planned_gang g, gang_visit visit)
{
    struct planned_rank *ranks = list_spare_ranks(j, &g.rank_count);
    g.ranks = ranks;
    g.attempt++;
    g.runs = g.starts = false;
    if (ranks != NULL && g.rank_count > 0 && job_find_version(j, &g.version) == HL_OK &&
        g.version >= 0)
        visit(j->controller, &g);
    free(ranks);
}

static void visit_job(struct job *j, struct slots_taken *taken, gang_visit visit)
{
    enum hl_api_job_state state = j->run.state;
    bool placed = state == HL_API_JOB_STATE_STARTING || state == HL_API_JOB_STATE_RUNNING;
    bool next = state == HL_API_JOB_STATE_PENDING ||
                (state == HL_API_JOB_STATE_STOPPING && j->run.goal == HL_API_JOB_GOAL_RESTART);
    struct planned_gang g = {.job = j->id,
                             .attempt = j->run.attempt + (state == HL_API_JOB_STATE_STOPPING),
                             .model = j->spec.model,
                             .version = j->load_version,
                             .split = {.tp = j->spec.grid.tp,
                                       .pp = j->spec.grid.pp,
                                       .virtual_stages = j->spec.virtual_stages,
                                       .ep = j->spec.ep,
                                       .etp = j->spec.etp},
                             .dp_size = hl_grid_replicas(&j->spec.grid),
                             .starts = state == HL_API_JOB_STATE_STARTING,
                             .runs = state == HL_API_JOB_STATE_RUNNING};
    if (g.runs && j->spec.spare_slots > 0 && j->run.plan != NULL)
        visit_spares(j, g, visit);
    if (g.runs && j->told_attempt == j->run.attempt) {
        visit(j->controller, &g);
    } else if (placed && j->run.plan != NULL && j->load_version >= 0) {
        if (g.runs)
            j->told_attempt = j->run.attempt;
        visit_plan(j, j->run.plan, &g, visit);
    } else if (next && is_near(j) && job_find_version(j, &g.version) == HL_OK && g.version >= 0) {
        struct hl_plan *plan = job_plan_ahead(j, false);
        if (plan != NULL && slots_take(taken, plan))
            visit_plan(j, plan, &g, visit);
    }
}

static void gangs_each(struct hl_controller *c, gang_visit visit)
{
    struct slots_taken taken = {.plans = calloc(jobs_count(c) + 1, sizeof(struct hl_plan *))};
    for (struct job *j = c->jobs->table; j != NULL && taken.plans != NULL; j = j->hh.next)
        if (!hl_job_state_ended(j->run.state) && j->executor == &agents_executor &&
            j->spec.model[0] != '\0' && j->saved.run != NULL)
            visit_job(j, &taken, visit);
    for (size_t i = 0; i < taken.count; i++)
        hl_plan_free(taken.plans[i]);
    free(taken.plans);
    hl_error_clear();
}

static void gang_tell(struct hl_controller *c, const char *job, const char *kind, const char *text)
{
    struct job *j = job_by_id(c, job);
    if (j != NULL)
        job_note(j, kind, text);
}

const struct gang_source jobs_gang_source = {.each = gangs_each, .tell = gang_tell};
