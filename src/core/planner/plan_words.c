/* The texts about a plan: its arithmetic, why there is none, and which preferences it does not
 * meet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "core/job/elastic.h"
#include "core/planner/plan_private.h"

const char *hl_plan_reason_name(enum hl_plan_reason reason)
{
    static const char *const names[HL_PLAN_REASONS] = {"",
                                                       "NotEnoughSlotsEver",
                                                       "GpuMemoryTooSmall",
                                                       "NicClassMissing",
                                                       "ServerReserved",
                                                       "ServerDraining",
                                                       "NotEnoughFreeSlots",
                                                       "TopologyUnsatisfiable"};
    return names[reason];
}

const char *hl_server_offer_name(enum hl_server_offer offer)
{
    static const char *const names[HL_OFFERS] = {"lost", "draining", "reserved",   "free",
                                                 "held", "nic",      "gpu memory", "too small"};
    return names[offer];
}

static hl_status add_line_v(char ***list, const char *fmt, va_list ap)
{
    size_t n = 0;
    char *line = NULL;
    while (*list != NULL && (*list)[n] != NULL)
        n++;
    char **more = realloc(*list, (n + 2) * sizeof(*more));
    if (more == NULL)
        return hl_plan_no_memory();
    *list = more;
    more[n] = more[n + 1] = NULL;
    if (vasprintf(&line, fmt, ap) < 0)
        return hl_plan_no_memory();
    more[n] = line;
    return HL_OK;
}

static hl_status HL_PRINTF(2, 3) add_line(char ***list, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    hl_status st = add_line_v(list, fmt, ap);
    va_end(ap);
    return st;
}

hl_status hl_plan_add_warning(struct hl_plan *plan, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    hl_status st = add_line_v(&plan->warnings, fmt, ap);
    va_end(ap);
    return st;
}

static const char *plural_s(int n)
{
    return n == 1 ? "" : "s";
}

/* ---- the arithmetic ------------------------------------------------------------------------- */

hl_status hl_plan_explain_shape(const struct hl_plan_shape *s, struct hl_plan *plan)
{
    const struct hl_grid *g = &s->job->grid;
    int k = s->per_container, replica = g->pp * g->tp * hl_grid_cp(g);
    char cp[24] = "";
    if (hl_grid_cp(g) > 1)
        snprintf(cp, sizeof(cp), " × CP %d", g->cp);
    HL_TRY(
        add_line(&plan->arithmetic,
                 "PP %d × TP %d%s × DP %d = %d rank%s; %d rank%s per container → %d container%s, "
                 "one serverId:numaId slot each",
                 g->pp, g->tp, cp, g->dp, s->world, plural_s(s->world), k, plural_s(k),
                 s->gang.containers, plural_s(s->gang.containers)));
    if (g->dp > 1)
        HL_TRY(add_line(&plan->arithmetic,
                        "%d data-parallel replicas of PP %d × TP %d%s = %d rank%s", g->dp, g->pp,
                        g->tp, cp, replica, plural_s(replica)));
    if (hl_job_is_elastic(s->job))
        HL_TRY(add_line(&plan->arithmetic,
                        "data_parallel_size may be %d to %d: a gang gets the largest that has "
                        "slots when it starts",
                        s->job->dp_min, s->job->dp_max));
    HL_TRY(add_line(&plan->arithmetic, "ranks count tp first, then %s%s: order %s",
                    hl_grid_cp(g) > 1 ? "cp, " : "",
                    g->order == HL_ORDER_TP_DP_PP ? "dp, then pp" : "pp, then dp",
                    hl_rank_order_name(g->order)));
    if (s->job->ranks_per_slot > 0)
        return add_line(&plan->arithmetic, "%d rank%s per slot because the job says so", k,
                        plural_s(k));
    if (!s->use_gpus)
        return add_line(&plan->arithmetic, "1 rank per slot because it uses no GPU");
    if (s->most_gpus == 0)
        return add_line(&plan->arithmetic, "1 rank per slot because no ready slot has a GPU");
    if (k < s->most_gpus)
        return add_line(&plan->arithmetic,
                        "%d of up to %d GPUs of a slot are used, so that enough slots fit and no "
                        "container cuts a TP group unevenly or joins stages",
                        k, s->most_gpus);
    return add_line(&plan->arithmetic, "%d rank%s per slot, one for each of its GPUs", k,
                    plural_s(k));
}

/* ---- why not -------------------------------------------------------------------------------- */

static void describe_slot(const struct hl_plan_shape *s, char *buf, size_t cap)
{
    char size[32];
    const char *glue = " with ";
    buf[0] = '\0';
    if (s->use_gpus) {
        snprintf(buf, cap, "%sat least %d GPU%s", glue, s->per_container,
                 plural_s(s->per_container));
        glue = ", ";
    }
    if (s->job->cpus_per_rank > 0) {
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sat least %d CPUs", glue,
                 s->per_container * s->job->cpus_per_rank);
        glue = ", ";
    }
    if (s->job->memory_bytes > 0) {
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sat least %s", glue,
                 hl_format_bytes(s->job->memory_bytes, size, sizeof(size)));
        glue = ", ";
    }
    if (s->needs.gpu_memory_bytes > 0) {
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sGPUs of at least %s", glue,
                 hl_format_bytes(s->needs.gpu_memory_bytes, size, sizeof(size)));
        glue = ", ";
    }
    if (s->needs.nic > 0)
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sa NIC of class %s or newer", glue,
                 hl_nic_class_name((enum hl_nic_class)s->needs.nic));
}

static void say_servers(const struct hl_plan_tally *t, struct hl_buf *text)
{
    if (t->too_small > 0)
        (void)hl_buf_printf(text, "; %d more free one%s too small", t->too_small,
                            t->too_small == 1 ? " is" : "s are");
    if (t->draining_nodes > 0)
        (void)hl_buf_printf(text, "; %d server%s draining", t->draining_nodes,
                            t->draining_nodes == 1 ? " is" : "s are");
    if (t->reserved_nodes > 0)
        (void)hl_buf_printf(text, "; %d server%s reserved", t->reserved_nodes,
                            t->reserved_nodes == 1 ? " is" : "s are");
    if (t->lost_nodes > 0)
        (void)hl_buf_printf(text, "; %d server%s not ready (`helios nodes` says why)",
                            t->lost_nodes, t->lost_nodes == 1 ? " is" : "s are");
}

static void say_never(const struct hl_plan_shape *s, const struct hl_plan_tally *t,
                      struct hl_buf *text)
{
    if (t->why.reason == HL_PLAN_TOPOLOGY_UNSATISFIABLE)
        (void)hl_buf_printf(text, "; nor could it be on an idle cluster: give the group a wider "
                                  "level, or make it preferred");
    else if (s->use_gpus && s->most_gpus == 0 &&
             t->lost_nodes + t->draining_nodes + t->reserved_nodes == 0)
        (void)hl_buf_printf(text, "; no slot of this cluster has a GPU (`helios nodes`)");
    else
        (void)hl_buf_printf(text,
                            "; even an idle cluster has only %d such slot%s: add servers or "
                            "make the job smaller",
                            t->why.fitting, plural_s(t->why.fitting));
}

hl_status hl_plan_explain_refusal(const struct hl_plan_shape *s, const struct hl_plan_tally *t,
                                  struct hl_plan *plan)
{
    char what[256];
    struct hl_buf text = HL_BUF(2048);
    int n = s->gang.containers;
    describe_slot(s, what, sizeof(what));
    (void)hl_buf_printf(&text, "needs %d slot%s%s, %d %s free of %d on %d ready server%s", n,
                        plural_s(n), what, t->why.free, t->why.free == 1 ? "is" : "are", t->total,
                        t->ready_nodes, plural_s(t->ready_nodes));
    if (t->why.reason == HL_PLAN_TOPOLOGY_UNSATISFIABLE)
        (void)hl_buf_printf(&text,
                            ", but not so that each group stays within one %s as placement "
                            "requires",
                            hl_level_name(t->why.level));
    say_servers(t, &text);
    if (plan->never)
        say_never(s, t, &text);
    if (text.failed) {
        hl_buf_fini(&text);
        return hl_plan_no_memory();
    }
    free(plan->reason);
    plan->reason = hl_buf_take(&text);
    return HL_OK;
}

/* ---- what is not as one would like ---------------------------------------------------------- */

/* Counts the servers of a TP group, using a stamp per server. */
static int group_servers(const struct hl_plan_shape *s, const uint32_t *where, int group, int stamp,
                         int *seen)
{
    int n = 0, tp = s->job->grid.tp;
    int first = group * tp / s->per_container, last = (group * tp + tp - 1) / s->per_container;
    for (int c = first; c <= last; c++) {
        n += seen[where[c]] != stamp;
        seen[where[c]] = stamp;
    }
    return n;
}

static hl_status warn_spread(const struct hl_plan_shape *s, const uint32_t *where, int *seen,
                             struct hl_plan *plan)
{
    int groups = s->world / s->job->grid.tp, spread = 0, most = 0;
    for (int g = 0; g < groups; g++) {
        int n = group_servers(s, where, g, g + 1, seen);
        spread += n > 1;
        most = n > most ? n : most;
    }
    if (spread == 0)
        return HL_OK;
    return add_line(&plan->warnings,
                    "%d of %d tensor-parallel group%s spread over up to %d servers, because one "
                    "group needs %d slots; their traffic leaves the server",
                    spread, groups, groups == 1 ? " is" : "s are", most, s->gang.unit);
}

static bool stages_share(const struct hl_plan_shape *s, const uint32_t *where, int replica,
                         int *seen)
{
    const struct hl_grid *g = &s->job->grid;
    int cp = hl_grid_cp(g);
    for (int pp = 0; pp < g->pp; pp++) {
        int stamp = replica * g->pp + pp + 1;
        int group =
            hl_rank_number(g, (struct hl_rank){.pp = pp, .dp = replica / cp, .cp = replica % cp}) /
            g->tp;
        int first = group * g->tp / s->per_container;
        int last = (group * g->tp + g->tp - 1) / s->per_container;
        for (int c = first; c <= last; c++) {
            int before = seen[where[c]];
            if (before > replica * g->pp && before != stamp)
                return true;
            seen[where[c]] = stamp;
        }
    }
    return false;
}

static hl_status warn_stages(const struct hl_plan_shape *s, const uint32_t *where, int *seen,
                             struct hl_plan *plan)
{
    int replicas = 0, all = hl_grid_replicas(&s->job->grid);
    if (s->job->grid.pp < 2)
        return HL_OK;
    memset(seen, 0, s->cluster->count * sizeof(int));
    for (int r = 0; r < all; r++)
        replicas += stages_share(s, where, r, seen);
    if (replicas == 0)
        return HL_OK;
    return add_line(&plan->warnings,
                    "pipeline stages of %d of %d replica%s share a server, because there are not "
                    "enough servers with free slots to keep them apart",
                    replicas, all, plural_s(all));
}

/* ---- preferred levels ----------------------------------------------------------------------- */

enum group_kind { GROUP_TENSOR, GROUP_PIPELINE, GROUP_DATA, GROUP_GANG };

/* Identifies the container's domain of the level: numbers differ exactly if the domains do. */
static uint64_t domain_of(const struct hl_plan_shape *s, const uint32_t *where, int container,
                          enum hl_level level)
{
    const struct hl_place_index *x = s->cluster->index;
    uint32_t pos = x->position[where[container]];
    const uint32_t *of = level == HL_LEVEL_LEAF ? x->leaf_of : x->spine_of;
    const struct hl_place_domain *list = level == HL_LEVEL_LEAF ? x->leaves : x->spines;
    if (level == HL_LEVEL_NUMA)
        return (uint64_t)container;
    if (level == HL_LEVEL_SERVER || !list[of[pos]].named)
        return pos;
    return (uint64_t)1 << 32 | of[pos];
}

static int group_number(const struct hl_plan_shape *s, enum group_kind kind, int tp_group)
{
    struct hl_rank r = hl_rank_of(&s->job->grid, tp_group * s->job->grid.tp);
    return kind == GROUP_TENSOR     ? tp_group
           : kind == GROUP_PIPELINE ? hl_rank_replica(&s->job->grid, r)
           : kind == GROUP_DATA     ? r.pp
                                    : 0;
}

/* Counts groups that are not within one domain. */
static hl_status count_spread(const struct hl_plan_shape *s, const uint32_t *where,
                              enum group_kind kind, enum hl_level level, int *out)
{
    int tp = s->job->grid.tp, groups = s->world / tp, spread = 0;
    HL_AUTO(hl_freep) int *first = calloc((size_t)groups + 1, sizeof(int)); /* -1 = spread */
    if (first == NULL)
        return hl_plan_no_memory();
    for (int t = 0; t < groups; t++) {
        int *f = &first[group_number(s, kind, t)];
        int last = (t * tp + tp - 1) / s->per_container;
        for (int c = t * tp / s->per_container; c <= last && *f >= 0; c++) {
            if (*f == 0)
                *f = c + 1;
            if (domain_of(s, where, *f - 1, level) == domain_of(s, where, c, level))
                continue;
            *f = -1;
            spread++;
        }
    }
    *out = spread;
    return HL_OK;
}

static hl_status warn_levels(const struct hl_plan_shape *s, const uint32_t *where,
                             struct hl_plan *plan)
{
    const struct hl_place_rules *r = &s->job->placement;
    const struct hl_grid *g = &s->job->grid;

    const struct {
        const struct hl_place_rule *rule;
        const char *name;
        int groups;
    } rows[] = {{&r->tensor, "tensor-parallel group", s->world / g->tp},
                {&r->pipeline, "pipeline", hl_grid_replicas(g)},
                {&r->data, "stage", g->pp},
                {&r->gang, "gang", 1}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        int spread = 0, n = rows[i].groups;
        if (rows[i].rule->level == HL_LEVEL_ANY || rows[i].rule->required)
            continue;
        HL_TRY(count_spread(s, where, (enum group_kind)i, rows[i].rule->level, &spread));
        if (spread > 0)
            HL_TRY(add_line(&plan->warnings,
                            "%d of %d %s%s %s not within one %s, as placement prefers", spread, n,
                            rows[i].name, plural_s(n), spread == 1 ? "is" : "are",
                            hl_level_name(rows[i].rule->level)));
    }
    return HL_OK;
}

/* ---- CPUs ----------------------------------------------------------------------------------- */

struct host_entry {
    const char *host;
    int container;
};

static int by_host(const void *x, const void *y)
{
    const struct host_entry *a = x, *b = y;
    int d = strcmp(a->host, b->host);
    return d != 0 ? d : a->container - b->container;
}

/* Containers list[0..n) run on one machine: counts those that have a CPU in common with another. */
static int count_sharing(const struct hl_plan *plan, const struct host_entry *list, int n)
{
    struct hl_cpus once = {0}, twice = {0}, mine;
    int shared = 0;
    for (int i = 0; n > 1 && i < n; i++) {
        if (hl_cpus_parse(plan->containers[list[i].container].cpus, &mine) != HL_OK)
            continue;
        for (size_t w = 0; w < HL_ARRAY_LEN(mine.bits); w++) {
            twice.bits[w] |= once.bits[w] & mine.bits[w];
            once.bits[w] |= mine.bits[w];
        }
    }
    for (int i = 0; n > 1 && i < n; i++)
        if (hl_cpus_parse(plan->containers[list[i].container].cpus, &mine) == HL_OK)
            shared += hl_cpus_overlap(&mine, &twice);
    return shared;
}

/* Nodes of one machine (a local cluster) can have been given the same CPUs. */
static hl_status warn_cpus(const struct hl_plan_shape *s, const uint32_t *where,
                           struct hl_plan *plan)
{
    int shared = 0;
    HL_AUTO(hl_freep) struct host_entry *list = calloc((size_t)s->gang.containers, sizeof(*list));
    if (list == NULL)
        return hl_plan_no_memory();
    for (int i = 0; i < s->gang.containers; i++) {
        const struct hl_cluster_node *node = &s->cluster->nodes[where[i]];
        list[i] = (struct host_entry){*node->host_id != '\0' ? node->host_id : node->name, i};
    }
    qsort(list, (size_t)s->gang.containers, sizeof(*list), by_host);
    for (int i = 0, n; i < s->gang.containers; i += n) {
        for (n = 1; i + n < s->gang.containers && strcmp(list[i].host, list[i + n].host) == 0;)
            n++;
        shared += count_sharing(plan, &list[i], n);
    }
    if (shared == 0)
        return HL_OK;
    return add_line(&plan->warnings, "%d of %d containers share CPUs with another container",
                    shared, s->gang.containers);
}

hl_status hl_plan_warn(const struct hl_plan_shape *s, const uint32_t *where, struct hl_plan *plan)
{
    HL_AUTO(hl_freep) int *seen = calloc(s->cluster->count + 1, sizeof(int));
    if (seen == NULL)
        return hl_plan_no_memory();
    HL_TRY(warn_spread(s, where, seen, plan));
    HL_TRY(warn_stages(s, where, seen, plan));
    HL_TRY(warn_levels(s, where, plan));
    return warn_cpus(s, where, plan);
}
