/* hl_plan_make: choose how many ranks a container holds, ask units.c for servers, give out
 * slots, and say in words what came out. */
#include "core/place/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "core/place/units.h"

static hl_status short_of_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

/* ---- how many ranks a container holds ------------------------------------------------------- */

struct shape {
    const struct hl_job *job;
    const struct hl_cluster *cluster;
    int world;
    bool use_gpus;
    int most_gpus; /* of any ready slot */
    int per_container;
    int containers;
    int unit;      /* consecutive containers that hold whole TP groups */
    int per_stage; /* units that make one pipeline stage */
};

/* Containers of k ranks don't cut a TP group unevenly and don't join stages of a replica. */
static bool is_clean(const struct hl_grid *g, int k)
{
    if (g->tp % k == 0)
        return true;
    return g->order == HL_ORDER_TP_DP_PP && k % g->tp == 0 && g->dp % (k / g->tp) == 0;
}

static bool slot_fits(const struct shape *s, const struct hl_cluster_slot *slot, int k)
{
    const struct hl_job *job = s->job;
    if (s->use_gpus && slot->gpu_count < k)
        return false;
    if (job->cpus_per_rank > 0 && slot->cpu_count < (int64_t)k * job->cpus_per_rank)
        return false;
    return job->memory_bytes == 0 || slot->memory_bytes == 0 ||
           slot->memory_bytes >= job->memory_bytes;
}

static int count_fitting(const struct shape *s, int k)
{
    int n = 0;
    for (size_t i = 0; i < s->cluster->count; i++) {
        const struct hl_cluster_node *node = &s->cluster->nodes[i];
        for (int j = 0; node->ready && j < node->slot_count; j++)
            n += slot_fits(s, &node->slots[j], k);
    }
    return n;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* As many ranks as a slot has GPUs. Slots that are busy count too: the shape of a job must not
 * depend on what else happens to run. */
static int ranks_per_gpu_slot(const struct shape *s)
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

static void choose_shape(struct shape *s)
{
    const struct hl_grid *g = &s->job->grid;
    s->world = hl_rank_world(g);
    for (size_t i = 0; i < s->cluster->count; i++)
        for (int j = 0; s->cluster->nodes[i].ready && j < s->cluster->nodes[i].slot_count; j++)
            if (s->cluster->nodes[i].slots[j].gpu_count > s->most_gpus)
                s->most_gpus = s->cluster->nodes[i].slots[j].gpu_count;
    s->use_gpus = s->job->gpus_per_rank > 0 || (s->job->gpus_per_rank < 0 && s->most_gpus > 0);
    int k = s->job->ranks_per_slot;
    if (k == 0)
        k = s->use_gpus ? ranks_per_gpu_slot(s) : 1;
    s->per_container = k < s->world ? k : s->world;
    s->containers = ceil_div(s->world, s->per_container);
    s->unit = g->tp / int_gcd(g->tp, s->per_container);
    if (s->unit > s->containers)
        s->unit = s->containers;
    int groups = s->unit * s->per_container / g->tp; /* TP groups in a unit */
    int along = g->order == HL_ORDER_TP_DP_PP ? g->dp : g->pp;
    s->per_stage = s->containers;
    if (groups > 0 && along % groups == 0)
        s->per_stage = g->order == HL_ORDER_TP_DP_PP ? g->dp / groups : g->dp;
}

/* Units as units.c lists them (stage by stage) against units in rank order. */
static int unit_in_rank_order(const struct shape *s, int listed)
{
    int units = s->containers / s->unit;
    if (s->job->grid.order == HL_ORDER_TP_DP_PP || s->per_stage == s->containers || listed >= units)
        return listed;
    return listed % s->per_stage * (units / s->per_stage) + listed / s->per_stage;
}

/* ---- words ---------------------------------------------------------------------------------- */

static hl_status HL_PRINTF(2, 3) add_line(char ***list, const char *fmt, ...)
{
    size_t n = 0;
    char *line = NULL;
    va_list ap;
    while (*list != NULL && (*list)[n] != NULL)
        n++;
    char **more = realloc(*list, (n + 2) * sizeof(*more));
    if (more == NULL)
        return short_of_memory();
    *list = more;
    more[n] = more[n + 1] = NULL;
    va_start(ap, fmt);
    int len = vasprintf(&line, fmt, ap);
    va_end(ap);
    if (len < 0)
        return short_of_memory();
    more[n] = line;
    return HL_OK;
}

static const char *plural_s(int n)
{
    return n == 1 ? "" : "s";
}

static hl_status explain_shape(const struct shape *s, struct hl_plan *plan)
{
    const struct hl_grid *g = &s->job->grid;
    int k = s->per_container, replica = g->pp * g->tp;
    HL_TRY(add_line(&plan->arithmetic,
                    "PP %d × TP %d × DP %d = %d rank%s; %d rank%s per container → %d container%s, "
                    "one serverId:numaId slot each",
                    g->pp, g->tp, g->dp, s->world, plural_s(s->world), k, plural_s(k),
                    s->containers, plural_s(s->containers)));
    if (g->dp > 1)
        HL_TRY(add_line(&plan->arithmetic, "%d data-parallel replicas of PP %d × TP %d = %d rank%s",
                        g->dp, g->pp, g->tp, replica, plural_s(replica)));
    HL_TRY(add_line(&plan->arithmetic, "ranks count tp first, then %s: order %s",
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

struct tally {
    int free;      /* that fit */
    int too_small; /* free, but they don't fit */
    int total;     /* of ready nodes */
    int fitting;   /* free or not; also of nodes that are away, for they may come back */
    int ready_nodes, lost_nodes;
};

static void describe_slot(const struct shape *s, char *buf, size_t cap)
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
    if (s->job->memory_bytes > 0)
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sat least %s", glue,
                 hl_format_bytes(s->job->memory_bytes, size, sizeof(size)));
}

static hl_status explain_refusal(const struct shape *s, const struct tally *t, struct hl_plan *plan)
{
    char what[160];
    struct hl_buf text = HL_BUF(2048);
    describe_slot(s, what, sizeof(what));
    plan->never = t->fitting < s->containers;
    (void)hl_buf_printf(&text, "needs %d slot%s%s, %d %s free of %d on %d ready server%s",
                        s->containers, plural_s(s->containers), what, t->free,
                        t->free == 1 ? "is" : "are", t->total, t->ready_nodes,
                        plural_s(t->ready_nodes));
    if (t->too_small > 0)
        (void)hl_buf_printf(&text, "; %d more free one%s too small", t->too_small,
                            t->too_small == 1 ? " is" : "s are");
    if (t->lost_nodes > 0)
        (void)hl_buf_printf(&text, "; %d server%s not ready", t->lost_nodes,
                            t->lost_nodes == 1 ? " is" : "s are");
    if (plan->never && s->use_gpus && s->most_gpus == 0 && t->lost_nodes == 0)
        (void)hl_buf_printf(&text, "; no slot of this cluster has a GPU (`helios nodes`)");
    else if (plan->never)
        (void)hl_buf_printf(&text,
                            "; even an idle cluster has only %d such slot%s: add servers or "
                            "make the job smaller",
                            t->fitting, plural_s(t->fitting));
    if (text.failed) {
        hl_buf_fini(&text);
        return short_of_memory();
    }
    free(plan->reason);
    plan->reason = hl_buf_take(&text);
    return HL_OK;
}

/* ---- slots and ranks ------------------------------------------------------------------------ */

static struct tally count_slots(const struct shape *s, int *free_slots)
{
    struct tally t = {0};
    for (size_t i = 0; i < s->cluster->count; i++) {
        const struct hl_cluster_node *node = &s->cluster->nodes[i];
        free_slots[i] = 0;
        t.ready_nodes += node->ready != 0;
        t.lost_nodes += !node->ready;
        for (int j = 0; j < node->slot_count; j++) {
            int fits = slot_fits(s, &node->slots[j], s->per_container);
            bool is_free = !node->slots[j].busy;
            t.fitting += fits;
            if (!node->ready)
                continue;
            t.total++;
            free_slots[i] += fits && is_free;
            t.too_small += !fits && is_free;
        }
        t.free += free_slots[i];
    }
    return t;
}

/* The next slot of a node for this job: fewest GPUs first, so that GPUs stay for who needs them. */
static const struct hl_cluster_slot *next_slot(const struct shape *s,
                                               const struct hl_cluster_node *node,
                                               const struct hl_cluster_slot *after)
{
    const struct hl_cluster_slot *best = NULL;
    for (int j = 0; j < node->slot_count; j++) {
        const struct hl_cluster_slot *x = &node->slots[j];
        if (x->busy || !slot_fits(s, x, s->per_container))
            continue;
        if (after != NULL &&
            (x->gpu_count < after->gpu_count || (x->gpu_count == after->gpu_count && x <= after)))
            continue;
        if (best == NULL || x->gpu_count < best->gpu_count)
            best = x;
    }
    return best;
}

static hl_status fill_container(const struct shape *s, int index,
                                const struct hl_cluster_node *node,
                                const struct hl_cluster_slot *slot, struct hl_plan_container *c)
{
    int first = index * s->per_container;
    int n = s->world - first < s->per_container ? s->world - first : s->per_container;
    c->index = index;
    memcpy(c->node, node->name, sizeof(c->node));
    c->numa_id = slot->numa_id;
    c->cpus = strdup(slot->cpus);
    c->ranks = calloc((size_t)n, sizeof(*c->ranks));
    if (c->cpus == NULL || c->ranks == NULL)
        return short_of_memory();
    for (int i = 0; i < n; i++) {
        struct hl_plan_rank *r = &c->ranks[i];
        r->rank = first + i;
        r->local_rank = i;
        r->at = hl_rank_of(&s->job->grid, r->rank);
        r->gpu = strdup(s->use_gpus ? slot->gpus[i] : "");
        c->rank_count = i + 1;
        if (r->gpu == NULL)
            return short_of_memory();
    }
    return HL_OK;
}

static hl_status fill_containers(const struct shape *s, const int *where, struct hl_plan *plan)
{
    const struct hl_cluster_node *nodes = s->cluster->nodes;
    const struct hl_cluster_slot **last = calloc(s->cluster->count + 1, sizeof(void *));
    plan->containers = calloc((size_t)s->containers, sizeof(*plan->containers));
    hl_status st = last != NULL && plan->containers != NULL ? HL_OK : short_of_memory();
    for (int i = 0; st == HL_OK && i < s->containers; i++) {
        const struct hl_cluster_node *node = &nodes[where[i]];
        last[where[i]] = next_slot(s, node, last[where[i]]);
        st = fill_container(s, i, node, last[where[i]], &plan->containers[i]);
    }
    free(last);
    return st;
}

/* From units as placed to containers in rank order. */
static hl_status place_gang(const struct shape *s, const int *free_slots, int *where)
{
    struct hl_place_request req = {.containers = s->containers,
                                   .unit = s->unit,
                                   .per_stage = s->per_stage,
                                   .free = free_slots,
                                   .servers = s->cluster->count};
    HL_AUTO(hl_freep) int *listed = calloc((size_t)s->containers, sizeof(int));
    if (listed == NULL)
        return short_of_memory();
    HL_TRY(hl_place(&req, listed));
    for (int i = 0; i < s->containers; i++) {
        int unit = unit_in_rank_order(s, i / s->unit);
        where[unit * s->unit + i % s->unit] = listed[i];
    }
    return HL_OK;
}

/* ---- what is not as one would like ---------------------------------------------------------- */

/* Servers of a TP group, counted with a stamp per server. */
static int group_servers(const struct shape *s, const int *where, int group, int stamp, int *seen)
{
    int n = 0, tp = s->job->grid.tp;
    int first = group * tp / s->per_container, last = (group * tp + tp - 1) / s->per_container;
    for (int c = first; c <= last; c++) {
        n += seen[where[c]] != stamp;
        seen[where[c]] = stamp;
    }
    return n;
}

static hl_status warn_spread(const struct shape *s, const int *where, int *seen,
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
                    spread, groups, groups == 1 ? " is" : "s are", most, s->unit);
}

static bool stages_share(const struct shape *s, const int *where, int dp, int *seen)
{
    const struct hl_grid *g = &s->job->grid;
    for (int pp = 0; pp < g->pp; pp++) {
        int stamp = dp * g->pp + pp + 1;
        int group = hl_rank_number(g, (struct hl_rank){.pp = pp, .dp = dp}) / g->tp;
        int first = group * g->tp / s->per_container;
        int last = (group * g->tp + g->tp - 1) / s->per_container;
        for (int c = first; c <= last; c++) {
            int before = seen[where[c]];
            if (before > dp * g->pp && before != stamp)
                return true;
            seen[where[c]] = stamp;
        }
    }
    return false;
}

static hl_status warn_stages(const struct shape *s, const int *where, int *seen,
                             struct hl_plan *plan)
{
    int replicas = 0;
    if (s->job->grid.pp < 2)
        return HL_OK;
    memset(seen, 0, s->cluster->count * sizeof(int));
    for (int dp = 0; dp < s->job->grid.dp; dp++)
        replicas += stages_share(s, where, dp, seen);
    if (replicas == 0)
        return HL_OK;
    return add_line(&plan->warnings,
                    "pipeline stages of %d of %d replica%s share a server, because there are not "
                    "enough servers with free slots to keep them apart",
                    replicas, s->job->grid.dp, plural_s(s->job->grid.dp));
}

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

/* Containers list[0..n) run on one machine: how many have a CPU that another one has too. */
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

/* Nodes that share a machine (a local cluster) may have been given the same CPUs. */
static hl_status warn_cpus(const struct shape *s, const int *where, struct hl_plan *plan)
{
    int shared = 0;
    HL_AUTO(hl_freep) struct host_entry *list = calloc((size_t)s->containers, sizeof(*list));
    if (list == NULL)
        return short_of_memory();
    for (int i = 0; i < s->containers; i++) {
        const struct hl_cluster_node *node = &s->cluster->nodes[where[i]];
        list[i] = (struct host_entry){*node->host_id != '\0' ? node->host_id : node->name, i};
    }
    qsort(list, (size_t)s->containers, sizeof(*list), by_host);
    for (int i = 0, n; i < s->containers; i += n) {
        for (n = 1; i + n < s->containers && strcmp(list[i].host, list[i + n].host) == 0;)
            n++;
        shared += count_sharing(plan, &list[i], n);
    }
    if (shared == 0)
        return HL_OK;
    return add_line(&plan->warnings, "%d of %d containers share CPUs with another container",
                    shared, s->containers);
}

/* ---- the plan ------------------------------------------------------------------------------- */

static hl_status set_text(char **to, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return short_of_memory();
    free(*to);
    *to = copy;
    return HL_OK;
}

static hl_status fill_plan(const struct shape *s, struct hl_plan *plan)
{
    HL_AUTO(hl_freep) int *seen = calloc(s->cluster->count + 1, sizeof(int));
    if (seen == NULL)
        return short_of_memory();
    struct tally t = count_slots(s, seen);
    if (t.free < s->containers)
        return explain_refusal(s, &t, plan);
    HL_AUTO(hl_freep) int *where = calloc((size_t)s->containers, sizeof(int));
    if (where == NULL)
        return short_of_memory();
    HL_TRY(place_gang(s, seen, where));
    HL_TRY(fill_containers(s, where, plan));
    HL_TRY(set_text(&plan->master_node, s->cluster->nodes[where[0]].name));
    HL_TRY(set_text(&plan->master_address, s->cluster->nodes[where[0]].rank_address));
    memset(seen, 0, s->cluster->count * sizeof(int));
    HL_TRY(warn_spread(s, where, seen, plan));
    HL_TRY(warn_stages(s, where, seen, plan));
    HL_TRY(warn_cpus(s, where, plan));
    plan->feasible = true;
    return HL_OK;
}

hl_status hl_plan_make(const struct hl_job *job, const struct hl_cluster *cluster,
                       struct hl_plan **out)
{
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = calloc(1, sizeof(*plan));
    struct shape s = {.job = job, .cluster = cluster};
    if (plan == NULL)
        return short_of_memory();
    HL_TRY(set_text(&plan->reason, ""));
    HL_TRY(set_text(&plan->master_node, ""));
    HL_TRY(set_text(&plan->master_address, ""));
    choose_shape(&s);
    plan->world_size = s.world;
    plan->ranks_per_container = s.per_container;
    plan->container_count = s.containers;
    HL_TRY(explain_shape(&s, plan));
    HL_TRY(fill_plan(&s, plan));
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
        for (int k = 0; c->ranks != NULL && k < c->rank_count; k++)
            free(c->ranks[k].gpu);
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
    for (int i = 0; plan->containers != NULL && i < plan->container_count; i++)
        hl_cluster_set_busy(cluster, plan->containers[i].node, plan->containers[i].numa_id, busy);
}
