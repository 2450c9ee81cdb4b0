/* hl_plan_make: chooses how many ranks a container holds (plan_shape.c), asks gang.c for servers,
 * assigns slots, and describes the result (plan_words.c). */
#include "core/planner/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/planner/plan_private.h"
#include "core/planner/spares.h"

/* ---- whether there is room ------------------------------------------------------------------ */

/* Too few slots would fit even if all were free. */
static enum hl_plan_reason reason_ever(const struct hl_plan_tally *t)
{
    if (t->why.fitting + t->but_nic - t->but_memory >= t->why.needed)
        return HL_PLAN_NIC_CLASS_MISSING;
    if (t->why.fitting + t->but_nic >= t->why.needed)
        return HL_PLAN_GPU_MEMORY_TOO_SMALL;
    return HL_PLAN_NOT_ENOUGH_SLOTS_EVER;
}

static enum hl_plan_reason reason_of(const struct hl_plan_tally *t)
{
    if (t->why.fitting < t->why.needed)
        return reason_ever(t);
    if (t->why.free >= t->why.needed)
        return HL_PLAN_FITS;
    if (t->why.free + t->why.reserved >= t->why.needed)
        return HL_PLAN_SERVER_RESERVED;
    return t->why.free + t->why.reserved + t->why.draining >= t->why.needed
               ? HL_PLAN_SERVER_DRAINING
               : HL_PLAN_NOT_ENOUGH_FREE_SLOTS;
}

static bool has_required(const struct hl_place_rules *r)
{
    return r->tensor.required || r->pipeline.required || r->data.required || r->gang.required;
}

/* The level of a rule that these slots can't satisfy. */
static hl_status find_obstacle(const struct hl_plan_shape *s, enum hl_view_of of,
                               enum hl_level *out)
{
    HL_AUTO(hl_place_view_fini) struct hl_place_view v = {0};
    HL_TRY(hl_place_view_init(&v, s->cluster->index, &s->needs, of));
    *out = hl_gang_obstacle(&s->gang, &v);
    return HL_OK;
}

/* Fills the tally with its reason. */
static hl_status judge_job(const struct hl_plan_shape *s, struct hl_plan_tally *out, bool *never)
{
    struct hl_plan_tally t = hl_plan_tally_of(s);
    t.why.reason = reason_of(&t);
    *never = t.why.fitting < t.why.needed;
    if (has_required(&s->gang.rules) && !*never) {
        enum hl_level level;
        HL_TRY(find_obstacle(s, HL_VIEW_IDLE, &level));
        *never = level != HL_LEVEL_ANY;
        if (!*never && t.why.reason == HL_PLAN_FITS)
            HL_TRY(find_obstacle(s, HL_VIEW_FREE, &level));
        if (level != HL_LEVEL_ANY) {
            t.why.reason = HL_PLAN_TOPOLOGY_UNSATISFIABLE;
            t.why.level = level;
        }
    }
    *out = t;
    return HL_OK;
}

hl_status hl_plan_check(const struct hl_job *job, const struct hl_cluster *cluster,
                        struct hl_plan_why *out)
{
    struct hl_plan_tally t;
    bool never;
    HL_TRY(hl_plan_refresh_index(cluster));
    const struct hl_plan_shape s = hl_plan_shape_of(job, cluster);
    HL_TRY(judge_job(&s, &t, &never));
    *out = t.why;
    return HL_OK;
}

/* ---- slots and ranks ------------------------------------------------------------------------ */

/* Fewest GPUs first, so that GPUs remain for jobs that need them; of equal slots the one with the
 * better NIC of its own. */
static bool slot_before(const struct hl_cluster_slot *a, const struct hl_cluster_slot *b)
{
    if (a->gpu_count != b->gpu_count)
        return a->gpu_count < b->gpu_count;
    return a->nic != b->nic ? a->nic > b->nic : a < b;
}

/* Takes the next slot of a node for this job. */
static const struct hl_cluster_slot *next_slot(const struct hl_plan_shape *s,
                                               const struct hl_cluster_node *node,
                                               const struct hl_cluster_slot *after)
{
    const struct hl_cluster_slot *best = NULL;
    for (int j = 0; j < node->slot_count; j++) {
        const struct hl_cluster_slot *x = &node->slots[j];
        if (x->busy || !hl_plan_slot_fits(s, x))
            continue;
        if (after != NULL && !slot_before(after, x))
            continue;
        if (best == NULL || slot_before(x, best))
            best = x;
    }
    return best;
}

static hl_status fill_container(const struct hl_plan_shape *s, int index,
                                const struct hl_cluster_node *node,
                                const struct hl_cluster_slot *slot, struct hl_plan_container *c)
{
    int first = index * s->per_container;
    int n = s->world - first < s->per_container ? s->world - first : s->per_container;
    c->index = index;
    c->node_at = (size_t)(node - s->cluster->nodes);
    memcpy(c->node, node->name, sizeof(c->node));
    c->numa_id = slot->numa_id;
    c->cpus = strdup(slot->cpus);
    c->ranks = calloc((size_t)n, sizeof(*c->ranks));
    if (c->cpus == NULL || c->ranks == NULL)
        return hl_plan_no_memory();
    for (int i = 0; i < n; i++) {
        struct hl_plan_rank *r = &c->ranks[i];
        r->rank = r->known_as = first + i;
        r->local_rank = i;
        r->at = hl_rank_of(&s->job->grid, r->rank);
        r->gpu = strdup(s->use_gpus ? slot->gpus[i] : "");
        c->rank_count = i + 1;
        if (r->gpu == NULL)
            return hl_plan_no_memory();
    }
    return HL_OK;
}

static hl_status fill_containers(const struct hl_plan_shape *s, const uint32_t *where,
                                 struct hl_plan *plan)
{
    const struct hl_cluster_node *nodes = s->cluster->nodes;
    const struct hl_cluster_slot **last = calloc(s->cluster->count + 1, sizeof(void *));
    plan->containers = calloc((size_t)s->gang.containers, sizeof(*plan->containers));
    hl_status st = last != NULL && plan->containers != NULL ? HL_OK : hl_plan_no_memory();
    for (int i = 0; st == HL_OK && i < s->gang.containers; i++) {
        const struct hl_cluster_node *node = &nodes[where[i]];
        last[where[i]] = next_slot(s, node, last[where[i]]);
        st = fill_container(s, i, node, last[where[i]], &plan->containers[i]);
    }
    free(last);
    return st;
}

/* Maps the placed units by their positions to the nodes of containers, in the order of ranks. */
static hl_status place_gang(const struct hl_plan_shape *s, uint32_t *where)
{
    const struct hl_place_index *x = s->cluster->index;
    int unit = s->gang.unit;
    HL_AUTO(hl_freep) uint32_t *listed = calloc((size_t)s->gang.containers, sizeof(*listed));
    HL_AUTO(hl_place_view_fini) struct hl_place_view v = {0};
    if (listed == NULL)
        return hl_plan_no_memory();
    HL_TRY(hl_place_view_init(&v, x, &s->needs, HL_VIEW_FREE));
    HL_TRY(hl_gang_place(&s->gang, &v, listed));
    HL_TRY(hl_plan_prefer_nics(s, listed));
    for (int i = 0; i < s->gang.containers; i++)
        where[hl_plan_unit_rank(s, i / unit) * unit + i % unit] = x->node_at[listed[i]];
    return HL_OK;
}

/* ---- the plan ------------------------------------------------------------------------------- */

static hl_status set_text(char **to, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return hl_plan_no_memory();
    free(*to);
    *to = copy;
    return HL_OK;
}

static hl_status fill_plan(const struct hl_plan_shape *s, struct hl_plan *plan)
{
    struct hl_plan_tally t;
    HL_TRY(judge_job(s, &t, &plan->never));
    plan->why = t.why;
    if (t.why.reason == HL_PLAN_SERVER_RESERVED)
        plan->reserved_until_ms = hl_plan_reserved_until(s, &t);
    if (t.why.reason != HL_PLAN_FITS)
        return hl_plan_explain_refusal(s, &t, plan);
    HL_AUTO(hl_freep) uint32_t *where = calloc((size_t)s->gang.containers, sizeof(*where));
    if (where == NULL)
        return hl_plan_no_memory();
    HL_TRY(place_gang(s, where));
    HL_TRY(fill_containers(s, where, plan));
    HL_TRY(set_text(&plan->master_node, s->cluster->nodes[where[0]].name));
    HL_TRY(set_text(&plan->master_address, s->cluster->nodes[where[0]].rank_address));
    HL_TRY(hl_plan_warn(s, where, plan));
    HL_TRY(hl_plan_add_spares(s, plan));
    plan->feasible = true;
    return HL_OK;
}

hl_status hl_plan_make(const struct hl_job *job, const struct hl_cluster *cluster,
                       struct hl_plan **out)
{
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        return hl_plan_no_memory();
    HL_TRY(hl_plan_refresh_index(cluster));
    const struct hl_plan_shape s = hl_plan_shape_of(job, cluster);
    HL_TRY(set_text(&plan->reason, ""));
    HL_TRY(set_text(&plan->master_node, ""));
    HL_TRY(set_text(&plan->master_address, ""));
    plan->cluster_version = cluster->version;
    plan->world_size = s.world;
    plan->ranks_per_container = s.per_container;
    plan->container_count = s.gang.containers;
    HL_TRY(hl_plan_explain_shape(&s, plan));
    HL_TRY(fill_plan(&s, plan));
    plan->next_index = plan->container_count;
    *out = hl_steal(&plan);
    return HL_OK;
}

static void free_lines(char **list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++)
        free(list[i]);
    free(list);
}

void hl_plan_free(struct hl_plan *plan)
{
    if (plan == NULL)
        return;
    for (int i = 0; plan->containers != NULL && i < plan->container_count; i++) {
        struct hl_plan_container *c = &plan->containers[i];
        for (int k = 0; c->ranks != NULL && k < c->rank_count + c->joining; k++)
            free(c->ranks[k].gpu);
        for (int k = 0; k < c->gpu_count; k++)
            free(c->gpus[k]);
        free(c->gpus);
        free(c->address);
        free(c->ranks);
        free(c->cpus);
    }
    free(plan->containers);
    free_lines(plan->arithmetic);
    free_lines(plan->warnings);
    free(plan->reason);
    free(plan->master_node);
    free(plan->master_address);
    free(plan);
}

void hl_plan_freep(struct hl_plan **plan)
{
    hl_plan_free(*plan);
    *plan = NULL;
}

void hl_plan_mark(const struct hl_plan *plan, struct hl_cluster *cluster, bool busy)
{
    for (int i = 0; plan->containers != NULL && i < plan->container_count; i++) {
        struct hl_plan_container *c = &plan->containers[i];
        hl_cluster_set_busy_at(cluster, &c->node_at, c->node, c->numa_id, busy);
    }
}

hl_status hl_plan_commit(const struct hl_plan *plan, struct hl_cluster *cluster)
{
    if (plan->cluster_version != cluster->version)
        return hl_fail(HL_EBUSY, "the cluster has changed since the plan was made; plan again");
    hl_plan_mark(plan, cluster, true);
    return HL_OK;
}
