/* How many ranks a container holds, which containers belong together, and what the cluster's
 * classes of servers have for them. */
#include "core/planner/plan_private.h"

/* Containers of k ranks neither cut a TP group unevenly nor join stages of a replica. */
static bool is_clean(const struct hl_grid *g, int k)
{
    if (g->tp % k == 0)
        return true;
    int along = g->order == HL_ORDER_TP_DP_PP ? hl_grid_replicas(g) : hl_grid_cp(g);
    return k % g->tp == 0 && along % (k / g->tp) == 0;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* The latest end of the job: its time limit and its grace. Without a limit it can run for ever. */
static int64_t end_of(const struct hl_job *job, const struct hl_cluster *c)
{
    int64_t grace = job->stop_grace_ms >= 0 ? job->stop_grace_ms : c->grace_ms;
    return job->run_timeout_ms > 0 ? c->now_ms + job->run_timeout_ms + grace : INT64_MAX;
}

static struct hl_slot_needs needs_of(const struct hl_plan_shape *s, int k)
{
    const struct hl_job *job = s->job;
    return (struct hl_slot_needs){.gpus = s->use_gpus ? k : 0,
                                  .cpus = job->cpus_per_rank * k,
                                  .memory_bytes = job->memory_bytes,
                                  .gpu_memory_bytes = s->use_gpus ? job->gpu_memory_bytes : 0,
                                  .nic = (int)job->nic_class,
                                  .begin_ms = s->cluster->now_ms,
                                  .end_ms = end_of(job, s->cluster)};
}

bool hl_plan_slot_fits(const struct hl_plan_shape *s, const struct hl_cluster_slot *slot)
{
    const struct hl_slot_group g = {.gpus = slot->gpu_count,
                                    .cpus = slot->cpu_count,
                                    .nic = (int)slot->nic,
                                    .memory_bytes = slot->memory_bytes,
                                    .gpu_memory_bytes = slot->gpu_memory_bytes};
    return hl_slot_fault(&s->needs, &g) == HL_SLOT_FITS;
}

static const struct hl_place_kind *first_kind(const struct hl_cluster *c)
{
    return c->index != NULL ? c->index->kinds : NULL;
}

static long ready_servers(const struct hl_place_kind *kind)
{
    long n = 0;
    for (const struct hl_place_class *c = kind->classes; c != NULL; c = c->next)
        n += c->state == HL_SERVER_READY ? c->servers : 0;
    return n;
}

/* Counts slots of ready servers that can take k ranks, free or not. */
static long count_fitting(const struct hl_plan_shape *s, int k)
{
    const struct hl_slot_needs needs = needs_of(s, k);
    long n = 0;
    for (const struct hl_place_kind *kind = first_kind(s->cluster); kind; kind = kind->hh.next) {
        int slots = 0;
        for (int g = 0; g < kind->group_count; g++)
            if (hl_slot_fault(&needs, &kind->groups[g]) == HL_SLOT_FITS)
                slots += kind->groups[g].slots;
        n += slots > 0 ? slots * ready_servers(kind) : 0;
    }
    return n;
}

static int most_gpus(const struct hl_cluster *c)
{
    int most = 0;
    for (const struct hl_place_kind *kind = first_kind(c); kind != NULL; kind = kind->hh.next)
        for (int g = 0; g < kind->group_count; g++)
            if (kind->groups[g].gpus > most && ready_servers(kind) > 0)
                most = kind->groups[g].gpus;
    return most;
}

/* As many ranks as a slot has GPUs. Busy slots count too: the shape of a job must not depend on
 * what else is running. */
static int ranks_per_gpu_slot(const struct hl_plan_shape *s)
{
    int widest = 1;
    for (int k = s->most_gpus < s->world ? s->most_gpus : s->world; k >= 1; k--) {
        if (!is_clean(&s->job->grid, k))
            continue;
        if (count_fitting(s, k) >= ceil_div(s->world, k))
            return k;
        widest = k > widest ? k : widest;
    }
    return widest;
}

static int int_gcd(int a, int b)
{
    while (b != 0) {
        int t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* For a unit with this number of TP groups; 0: its groups span several stages and replicas. */
static int units_of_stage(const struct hl_grid *g, int groups)
{
    int replicas = hl_grid_replicas(g);
    if (groups == 0)
        return 0;
    if (g->order == HL_ORDER_TP_DP_PP)
        return replicas % groups == 0 ? replicas / groups : 0;
    if (hl_grid_cp(g) % groups == 0)
        return replicas / groups;
    return hl_grid_cp(g) == 1 && g->pp % groups == 0 ? g->dp : 0; /* a unit has several stages */
}

struct hl_plan_shape hl_plan_shape_of(const struct hl_job *job, const struct hl_cluster *cluster)
{
    const struct hl_grid *g = &job->grid;
    struct hl_plan_shape s = {.job = job,
                              .cluster = cluster,
                              .world = hl_rank_world(g),
                              .most_gpus = most_gpus(cluster),
                              .gang.rules = job->placement};
    s.use_gpus = job->gpus_per_rank > 0 ||
                 (job->gpus_per_rank < 0 && (s.most_gpus > 0 || job->gpu_memory_bytes > 0));
    int k = job->ranks_per_slot;
    if (k == 0)
        k = s.use_gpus ? ranks_per_gpu_slot(&s) : 1;
    s.per_container = k < s.world ? k : s.world;
    s.needs = needs_of(&s, s.per_container);
    s.gang.containers = ceil_div(s.world, s.per_container);
    s.gang.unit = g->tp / int_gcd(g->tp, s.per_container);
    if (s.gang.unit > s.gang.containers)
        s.gang.unit = s.gang.containers;
    s.gang.per_stage = units_of_stage(g, s.gang.unit * s.per_container / g->tp);
    return s;
}

int hl_plan_unit_rank(const struct hl_plan_shape *s, int listed)
{
    int units = s->gang.containers / s->gang.unit, per_stage = s->gang.per_stage;
    if (s->job->grid.order == HL_ORDER_TP_DP_PP || per_stage == 0 || listed >= units)
        return listed;
    int inner = per_stage / s->job->grid.dp; /* units that count through cp */
    int replica = listed % per_stage, stage = listed / per_stage;
    return replica % inner + inner * (stage + units / per_stage * (replica / inner));
}

/* ---- what the cluster has ------------------------------------------------------------------- */

/* Counts for one server of a class. */
struct server_tally {
    int slots, fitting, free, too_small, but_memory, but_nic;
    enum hl_server_offer offer;
};

static struct server_tally tally_server(const struct hl_plan_shape *s,
                                        const struct hl_place_class *c)
{
    static const enum hl_server_offer of_fault[HL_SLOT_FAULTS] = {
        HL_OFFER_HELD, HL_OFFER_TOO_SMALL, HL_OFFER_GPU_MEMORY, HL_OFFER_NIC};
    struct server_tally t = {.offer = HL_OFFER_TOO_SMALL};
    for (int g = 0; g < c->kind->group_count; g++) {
        const struct hl_slot_group *group = &c->kind->groups[g];
        enum hl_slot_fault fault = hl_slot_fault(&s->needs, group);
        enum hl_server_offer offer = of_fault[fault];
        t.slots += group->slots;
        if (fault == HL_SLOT_FITS) {
            t.fitting += group->slots;
            t.free += c->free[g];
            offer = c->free[g] > 0 ? HL_OFFER_FREE : offer;
        } else {
            t.too_small += c->free[g];
            t.but_nic += fault != HL_SLOT_TOO_SMALL ? group->slots : 0;
            t.but_memory += fault == HL_SLOT_GPU_MEMORY ? group->slots : 0;
        }
        t.offer = offer < t.offer ? offer : t.offer;
    }
    if (c->state != HL_SERVER_READY)
        t.offer = c->state == HL_SERVER_LOST ? HL_OFFER_LOST : HL_OFFER_DRAINING;
    else if (hl_class_is_reserved(c, &s->needs))
        t.offer = HL_OFFER_RESERVED;
    return t;
}

static void tally_add(struct hl_plan_tally *sum, const struct hl_place_class *c,
                      const struct server_tally *t)
{
    int n = (int)c->servers;
    sum->why.servers[t->offer] += n;
    sum->why.fitting += t->fitting * n;
    sum->but_nic += t->but_nic * n;
    sum->but_memory += t->but_memory * n;
    sum->lost_nodes += c->state == HL_SERVER_LOST ? n : 0;
    if (c->state == HL_SERVER_DRAINING) {
        sum->draining_nodes += n;
        sum->why.draining += t->free * n;
    }
    if (t->offer == HL_OFFER_RESERVED) {
        sum->reserved_nodes += n;
        sum->why.reserved += t->free * n;
    }
    if (c->state != HL_SERVER_READY || t->offer == HL_OFFER_RESERVED)
        return;
    sum->ready_nodes += n;
    sum->total += t->slots * n;
    sum->too_small += t->too_small * n;
    sum->why.free += t->free * n;
}

struct hl_plan_tally hl_plan_tally_of(const struct hl_plan_shape *s)
{
    struct hl_plan_tally t = {.why.needed = s->gang.containers};
    for (const struct hl_place_kind *kind = first_kind(s->cluster); kind; kind = kind->hh.next)
        for (const struct hl_place_class *c = kind->classes; c != NULL; c = c->next) {
            const struct server_tally one = tally_server(s, c);
            if (c->servers > 0)
                tally_add(&t, c, &one);
        }
    return t;
}

/* Free slots that fit, on servers whose reservation is over at that time. */
static int free_until(const struct hl_plan_shape *s, int64_t until_ms)
{
    int n = 0;
    for (const struct hl_place_kind *kind = first_kind(s->cluster); kind; kind = kind->hh.next)
        for (const struct hl_place_class *c = kind->classes; c != NULL; c = c->next)
            if (c->servers > 0 && hl_class_is_reserved(c, &s->needs) &&
                c->reserved.until_ms <= until_ms)
                n += tally_server(s, c).free * (int)c->servers;
    return n;
}

int64_t hl_plan_reserved_until(const struct hl_plan_shape *s, const struct hl_plan_tally *t)
{
    int64_t best = 0;
    for (const struct hl_place_kind *kind = first_kind(s->cluster); kind; kind = kind->hh.next)
        for (const struct hl_place_class *c = kind->classes; c != NULL; c = c->next) {
            int64_t until = c->reserved.until_ms;
            if (c->servers > 0 && hl_class_is_reserved(c, &s->needs) &&
                (best == 0 || until < best) && t->why.free + free_until(s, until) >= t->why.needed)
                best = until;
        }
    return best;
}
