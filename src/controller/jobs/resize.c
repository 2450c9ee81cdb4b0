/* Resizes a running gang without a new attempt. core/planner/resize.h works out the new plan, which
 * becomes an event of the job like everything else that happens to it.
 *
 *     a node is lost --NODE_LOST with a plan--> the gang consists of the other replicas
 *     slots are free --GROW--> containers start --their ranks ask--> all are there
 *     a rank of the gang asks --RESIZED--> they are members
 *     a spare slot was used, and one is free --GROW--> a container starts that is parked there
 *
 * The ranks of the gang ask for their place when they meet again, and rank 0 asks after all have
 * saved. So the gang grows at a point where no work is lost. Who has asked is kept in memory only,
 * because waiting ranks repeat the call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/jobs/queue.h"
#include "core/job/elastic.h"
#include "core/job/jobnodes.h"
#include "core/planner/resize.h"
#include "core/planner/spares.h"

#define LOOK_MS  1000 /* between two passes that are requested because a gang could grow */
#define LOST_MAX 32768

static bool gang_resizes(const struct job *j)
{
    return hl_job_resizes(&j->spec) && j->run.state == HL_API_JOB_STATE_RUNNING;
}

static int count_joining(const struct hl_plan *plan)
{
    int n = 0;
    for (int i = 0; i < plan->container_count; i++)
        n += plan->containers[i].joining;
    return n;
}

/* ---- the next plan --------------------------------------------------------------------------- */

/* Takes over the plan, or frees it. True: it was taken over. */
static bool give_plan(struct job *j, struct hl_job_event *ev)
{
    struct hl_plan *plan = ev->plan;
    job_event(j, ev);
    if (plan != NULL && j->run.plan == plan)
        return true;
    hl_plan_free(plan);
    return false;
}

/* Its ranks cut their connections to the lost node on this notice (python/helios/_lost.py). */
static void note_lost(struct job *j, const char *node)
{
    const struct hl_cluster_node *n = hl_cluster_find(nodes_cluster(j->controller), node);
    const char *before = j->elastic.lost != NULL ? j->elastic.lost : "";
    char *lost = NULL;
    if (n == NULL || n->host_address[0] == '\0' || strlen(before) > LOST_MAX ||
        asprintf(&lost, "%sLOST=%s\n", before, n->host_address) < 0)
        return; /* their collectives end by timeout */
    free(j->elastic.lost);
    j->elastic.lost = lost;
}

/* The ranks have new numbers now. */
static void renew_tables(struct job *j)
{
    free(j->elastic.asked);
    j->elastic.asked = NULL;
    if (rank_tables_reset(j, j->run.container_count) != HL_OK)
        hl_error_clear();
}

static hl_status plan_without(const struct job *j, const char *node, struct hl_plan **out)
{
    int dp = 0, n = j->run.container_count;
    HL_AUTO(hl_freep) bool *lost = calloc((size_t)n + 1, sizeof(*lost));
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = NULL;
    if (lost == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the loss of a node");
    for (int i = 0; i < n; i++)
        lost[i] = hl_jobrun_may_run(&j->run, i) && strcmp(j->run.containers[i].node, node) == 0;
    HL_TRY(hl_plan_copy(j->run.plan, &plan));
    HL_TRY(hl_plan_shrink(plan, &j->spec, lost, &dp));
    if (dp == 0)
        return hl_fail(HL_ENOENT, "fewer than %d whole replicas are left", j->spec.dp_min);
    HL_TRY(hl_plan_find_master(plan, nodes_cluster(j->controller)));
    *out = hl_steal(&plan);
    return HL_OK;
}

void elastic_lose_node(struct job *j, const char *node, const char *text)
{
    char why[HL_JOB_TEXT_MAX];
    struct hl_job_event ev = {.kind = HL_JOB_EV_NODE_LOST, .node = node, .text = text};
    if (gang_resizes(j) && hl_job_restarts_lost(&j->spec) &&
        plan_without(j, node, &ev.plan) != HL_OK) {
        snprintf(why, sizeof(why), "%s; %s", text, hl_error_text());
        ev.text = why;
        hl_error_clear();
    }
    if (give_plan(j, &ev)) {
        note_lost(j, node);
        renew_tables(j);
    }
}

/* ---- growing --------------------------------------------------------------------------------- */

/* Where that many more replicas would run; NULL: nowhere. */
static struct hl_plan *plan_more(struct job *j, int replicas, int most_slots)
{
    struct hl_job job = j->spec;
    job.grid.dp = job.dp_min = job.dp_max = replicas;
    job.ranks_per_slot = j->run.plan->ranks_per_container;
    const struct elastic_want want = {.spec = &job,
                                      .executor = j->executor,
                                      .id = j->id,
                                      .attempt = j->run.attempt,
                                      .most_slots = most_slots};
    return elastic_plan(j->controller, &want);
}

/* A plan for as many replicas as there are slots for. */
static struct hl_plan *plan_most(struct job *j, int most_slots)
{
    int had = j->spec.grid.dp, size = hl_job_size_up_to(&j->spec, j->spec.dp_max);
    struct hl_plan *plan = NULL;
    while (size > had && (plan = plan_more(j, size - had, most_slots)) == NULL)
        size = hl_job_size_up_to(&j->spec, size - 1);
    return plan;
}

static bool may_grow(const struct job *j)
{
    const struct hl_jobrun *run = &j->run;
    int64_t since = run->resized_ms > run->placed_ms ? run->resized_ms : run->placed_ms;
    return gang_resizes(j) && j->spec.grid.dp < j->spec.dp_max && job_is_saved(j) &&
           run->container_count > 0 && count_joining(run->plan) == 0 &&
           hl_wall_ms() - since >= j->spec.grow_after_ms;
}

/* Makes room in the per-container arrays: containers that join are appended. */
static bool make_room(struct job *j, int more)
{
    size_t had = (size_t)j->run.container_count, all = had + (size_t)more;
    bool *starting = realloc(j->starting, (all + 1) * sizeof(*starting));
    if (starting == NULL)
        return false;
    memset(starting + had, 0, (all + 1 - had) * sizeof(*starting));
    j->starting = starting;
    free(j->elastic.asked);
    j->elastic.asked = NULL;
    return rank_tables_reset(j, (int)all) == HL_OK;
}

/* ---- spare slots ----------------------------------------------------------------------------- */

static bool lacks_spares(const struct job *j)
{
    return j->spec.spare_slots > 0 && job_is_saved(j) &&
           hl_jobrun_missing_spares(&j->run, j->spec.spare_slots) > 0;
}

/* Starts as many parked containers as the gang has lost, or never had, as far as slots are free. */
static int refill_spares(struct job *j, int most_slots)
{
    struct hl_job_event ev = {.kind = HL_JOB_EV_GROW};
    struct hl_cluster *cluster = nodes_cluster(j->controller);
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = NULL;
    int found = 0, missing = hl_jobrun_missing_spares(&j->run, j->spec.spare_slots);
    if (hl_plan_copy(j->run.plan, &plan) != HL_OK ||
        hl_plan_refill_spares(plan, &j->spec, cluster, missing < most_slots ? missing : most_slots,
                              &found) != HL_OK ||
        found == 0 || !make_room(j, found))
        return 0;
    ev.plan = hl_steal(&plan);
    if (!give_plan(j, &ev))
        return 0;
    for (int i = j->run.container_count - found; i < j->run.container_count; i++) {
        struct hl_plan_container *c = &j->run.plan->containers[i];
        hl_cluster_set_busy_at(cluster, &c->node_at, c->node, c->numa_id, true);
    }
    return found;
}

/* ---- growing or refilling -------------------------------------------------------------------- */

int elastic_grow(struct job *j, int used)
{
    struct hl_cluster *cluster = nodes_cluster(j->controller);
    struct hl_job_event ev = {.kind = HL_JOB_EV_GROW};
    int had = j->run.container_count;
    if (lacks_spares(j))
        return refill_spares(j, elastic_quota_left(j->controller, &j->spec, used));
    if (!may_grow(j))
        return 0;
    HL_AUTO(hl_plan_freep)
    struct hl_plan *more = plan_most(j, elastic_quota_left(j->controller, &j->spec, used));
    HL_AUTO(hl_plan_freep) struct hl_plan *slots = NULL;
    if (more == NULL || !make_room(j, more->container_count) ||
        hl_plan_copy(more, &slots) != HL_OK || hl_plan_copy(j->run.plan, &ev.plan) != HL_OK)
        return 0;
    hl_plan_mark(slots, cluster, true);
    if (hl_plan_grow(ev.plan, &j->spec, more) != HL_OK)
        hl_plan_freep(&ev.plan);
    else if (give_plan(j, &ev))
        return j->run.container_count - had;
    hl_plan_mark(slots, cluster, false);
    return 0;
}

/* True when all ranks that are to join have asked for their place. */
static bool all_asked(const struct job *j)
{
    const struct hl_plan *plan = j->run.plan;
    if (j->elastic.asked == NULL)
        return false;
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].joining; k++)
            if (!j->elastic.asked[plan->containers[i].ranks[k].rank])
                return false;
    return true;
}

void elastic_tell(const struct job *j, char *io, size_t cap)
{
    size_t n = strlen(io);
    char wait[32];
    int joining = gang_resizes(j) ? count_joining(j->run.plan) : 0;
    if (!gang_resizes(j) || j->spec.grid.dp == j->spec.dp_max)
        return;
    hl_format_duration_ms((uint64_t)j->spec.grow_after_ms, wait, sizeof(wait));
    snprintf(io + n, cap - n, "; it has %d of at most %d replicas and grows ", j->spec.grid.dp,
             j->spec.dp_max);
    n = strlen(io);
    if (joining > 0)
        snprintf(io + n, cap - n, "with its next save: %d new rank%s %s", joining,
                 joining == 1 ? "" : "s", all_asked(j) ? "wait for that" : "start");
    else
        snprintf(io + n, cap - n,
                 "when no job of the line needs the slots, %s after its last change", wait);
}

static void note_asked(struct job *j, int rank)
{
    size_t world = (size_t)(j->run.plan->world_size + count_joining(j->run.plan));
    if (j->elastic.asked == NULL)
        j->elastic.asked = calloc(world + 1, sizeof(*j->elastic.asked));
    if (j->elastic.asked != NULL) /* otherwise it repeats its call */
        j->elastic.asked[rank] = true;
}

static void admit_joining(struct job *j)
{
    struct hl_job_event ev = {.kind = HL_JOB_EV_RESIZED};
    if (!gang_resizes(j) || count_joining(j->run.plan) == 0 || !all_asked(j) ||
        hl_plan_copy(j->run.plan, &ev.plan) != HL_OK)
        return;
    hl_plan_admit(ev.plan, &j->spec);
    if (give_plan(j, &ev))
        renew_tables(j);
}

/* ---- what ranks ask -------------------------------------------------------------------------- */

static const char *why_wait(struct job *j, const struct hl_plan_container *c)
{
    if (c->joining > 0)
        return "the gang accepts it after its next save, or when it re-forms";
    if (!job_is_saved(j))
        return "the size of the gang is being stored";
    return master_port_ready(j) ? "" : "the node of rank 0 looks for a port";
}

static bool tells_size(const char *name)
{
    static const char *const names[] = {"WORLD_SIZE",       "DATA_PARALLEL_SIZE", "GROUP_RANK",
                                        "GROUP_WORLD_SIZE", "MASTER_ADDR",        "MASTER_PORT"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static struct hl_api_key_value_list place_env(const struct job *j, int at, int local,
                                              struct hl_arena *arena)
{
    const struct hl_api_container_spec spec = job_container_spec(j, at, arena);
    const struct hl_api_key_value_list *own = &spec.ranks.items[local].env;
    struct hl_api_key_value_list list = {
        .items = hl_arena_array(arena, spec.env.count + own->count, sizeof(*list.items))};
    if (list.items == NULL)
        return list;
    for (size_t i = 0; i < own->count; i++)
        list.items[list.count++] = own->items[i];
    for (size_t i = 0; i < spec.env.count; i++)
        if (tells_size(spec.env.items[i].key))
            list.items[list.count++] = spec.env.items[i];
    return list;
}

static hl_status find_place(struct hl_controller *c,
                            const struct hl_api_controller_join_gang_params *p, struct job **out,
                            int *at)
{
    struct job *j = job_by_id(c, p->job);
    bool runs =
        j != NULL && j->run.attempt == p->attempt &&
        (j->run.state == HL_API_JOB_STATE_STARTING || j->run.state == HL_API_JOB_STATE_RUNNING);
    *at = runs ? job_position(j, p->container) : -1;
    const struct hl_plan_container *k = *at >= 0 ? &j->run.plan->containers[*at] : NULL;
    if (k == NULL || p->local_rank < 0 || p->local_rank >= k->rank_count + k->joining)
        return hl_fail(HL_ENOENT,
                       "container %d of attempt %d no longer belongs to the gang of job '%.100s'",
                       p->container, p->attempt, p->job);
    *out = j;
    return HL_OK;
}

hl_status elastic_join(struct hl_controller *c, const struct hl_api_controller_join_gang_params *p,
                       struct hl_arena *arena, struct hl_api_controller_join_gang_results *out)
{
    struct job *j = NULL;
    int at;
    HL_TRY(find_place(c, p, &j, &at));
    const struct hl_plan_container *k = &j->run.plan->containers[at];
    if (k->joining > 0)
        note_asked(j, k->ranks[p->local_rank].rank);
    else
        admit_joining(j);
    struct hl_api_controller_join_gang_results r = {
        .number = j->run.resizes, .waits = why_wait(j, &j->run.plan->containers[at])};
    if (r.waits[0] == '\0')
        r.env = place_env(j, at, p->local_rank, arena);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the place of a rank");
    *out = r;
    return HL_OK;
}

void method_join_gang(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_join_gang_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_api_controller_join_gang_results r;
    hl_status st = elastic_join(c, p, hl_rpc_call_arena(call), &r);
    if (st == HL_OK)
        hl_reply_controller_join_gang(call, &r);
    else
        call_reject(call, st);
}

/* ---- leaving --------------------------------------------------------------------------------- */

void elastic_free_slot(struct job *j, const struct hl_job_action *a)
{
    int at = a->attempt == j->run.attempt ? job_position(j, a->index) : -1;
    bool held = at >= 0 && j->marked && j->run.slots_held;
    if (!held || !j->run.plan->containers[at].leaves || hl_jobrun_may_run(&j->run, at))
        return;
    struct hl_plan_container *c = &j->run.plan->containers[at];
    size_t behind = (size_t)(j->run.container_count - at - 1);
    hl_cluster_set_busy_at(nodes_cluster(j->controller), &c->node_at, c->node, c->numa_id, false);
    j->controller->slots_changed = true;
    if (j->starting != NULL)
        memmove(j->starting + at, j->starting + at + 1, behind * sizeof(*j->starting));
    if (j->table_sent != NULL)
        memmove(j->table_sent + at, j->table_sent + at + 1, behind);
    job_event(j, &(struct hl_job_event){
                     .kind = HL_JOB_EV_FREED, .attempt = a->attempt, .index = a->index});
}

/* Frees the slots of containers that ended: another job may have them by now, whatever the record
 * says. */
void elastic_restore(struct job *j)
{
    struct hl_jobrun *run = &j->run;
    for (int i = run->container_count - 1; run->slots_held && run->plan != NULL && i >= 0; i--) {
        struct hl_job_actions none = {0};
        const struct hl_job_event freed = {.kind = HL_JOB_EV_FREED,
                                           .now_ms = hl_wall_ms(),
                                           .attempt = run->attempt,
                                           .index = hl_jobrun_index(run, i)};
        if (!run->plan->containers[i].leaves || hl_jobrun_may_run(run, i))
            continue;
        if (hl_jobrun_step(run, &freed, &none) != HL_OK)
            hl_error_clear(); /* its slot stays held until it is freed */
        hl_job_actions_fini(&none);
    }
}

/* Repeats the order, because the first one may have been lost with a call or a crash. */
static void clear_again(struct job *j, int64_t now)
{
    if (now - j->elastic.stopped_ms < j->run.stop_resend_ms || !job_is_saved(j))
        return;
    j->elastic.stopped_ms = now;
    bool leaves = false;
    for (int i = 0; i < j->run.container_count; i++)
        leaves |= j->run.plan->containers[i].leaves;
    if (leaves)
        job_resume(j);
}

static void give_up_joining(struct job *j)
{
    int64_t limit = j->run.start_timeout_ms, since = hl_wall_ms() - j->run.resized_ms;
    char text[HL_JOB_TEXT_MAX];
    if (count_joining(j->run.plan) == 0 || limit <= 0 || since < limit || all_asked(j))
        return;
    snprintf(text, sizeof(text), "not all of its %d new ranks have asked to join within %lld ms",
             count_joining(j->run.plan), (long long)limit);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_DISMISS, .text = text});
}

void elastic_round(struct job *j)
{
    struct hl_controller *c = j->controller;
    int64_t now = controller_steady_ms(c);
    int free_slots = 0;
    if (j->run.state != HL_API_JOB_STATE_RUNNING || (!gang_resizes(j) && j->spec.spare_slots == 0))
        return;
    clear_again(j, now);
    give_up_joining(j);
    bool wants = may_grow(j) || lacks_spares(j);
    if (!wants || now - j->elastic.looked_ms < LOOK_MS || c->jobs->want_pass == NULL)
        return;
    j->elastic.looked_ms = now;
    (void)queue_cluster_mark(nodes_cluster(c), &free_slots);
    if (free_slots > 0)
        c->jobs->want_pass(c);
}
