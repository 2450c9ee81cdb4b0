/* The executor whose containers are run by the Agents of this cluster's nodes. Calls start and stop
 * containers; a node's reports, or its silence, become events. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/jobs/jobs_private.h"
#include "core/failure/failure.h"
#include "core/job/jobnodes.h"

#define FORGETS_MAX 64 /* calls to a node's Agent per round */

/* Context of a call to an Agent: the job may be gone by the time the answer arrives. */
struct container_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    int attempt;
    int index;
    char node[HL_NODE_NAME_MAX + 1];
};

/* ---- start and stop -------------------------------------------------------------------------- */

static struct container_call *call_new(struct job *j, const struct hl_job_action *a)
{
    struct container_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL;
    k->c = j->controller;
    k->attempt = a->attempt;
    k->index = a->index;
    memcpy(k->job, j->id, sizeof(k->job));
    memcpy(k->node, a->node, sizeof(k->node));
    return k;
}

/* Why the container failed. A rank that we ended ourselves is told apart from one that was just
 * killed. */
static enum hl_api_failure_kind failure_of(const struct job *j,
                                           const struct hl_api_container_status *status)
{
    int rank;
    if (status->state != HL_API_CONTAINER_STATE_FAILED)
        return HL_API_FAILURE_KIND_UNSAID;
    enum hl_api_failure_kind kind = hl_failure_kind(status, &rank);
    bool ended = rank >= 0 && rank_watch_ended(j, elastic_rank_told(j, status->id, rank));
    return ended ? HL_API_FAILURE_KIND_STALL : kind;
}

static void container_event(struct job *j, const char *node, int attempt, int index,
                            const struct hl_api_container_status *status)
{
    struct hl_job_event ev = {
        .kind = HL_JOB_EV_CONTAINER,
        .attempt = attempt,
        .index = index,
        .node = node,
        .text = status->message,
        .exit_code = status->exit_code,
        .signal = status->signal,
        .container = status->state,
        .failure = failure_of(j, status),
        .is_parked = j->spec.spare_slots > 0 && status->ranks.count == 0,
    };
    job_event(j, &ev);
}

static void on_started(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_start_container_results *r)
{
    struct container_call *k = arg;
    struct job *j;
    if (controller_stopped(k->c)) {
        free(k);
        return;
    }
    j = job_by_id(k->c, k->job);
    int at = j != NULL && j->run.attempt == k->attempt ? job_position(j, k->index) : -1;
    if (at >= 0) {
        j->starting[at] = false;
        if (st == HL_OK) {
            struct node *n = node_find(k->c, k->node);
            if (n != NULL)
                node_container(n, &r->status); /* pids are known as soon as the job runs */
            container_event(j, k->node, k->attempt, k->index, &r->status);
        } else if (!hl_node_call_retryable(st)) {
            const struct hl_api_container_status failed = {.state = HL_API_CONTAINER_STATE_FAILED,
                                                           .message = text};
            container_event(j, k->node, k->attempt, k->index, &failed);
        } else {
            hl_warn("container start is retried job=%s index=%d node=%s error=\"%s\"", j->id,
                    k->index, k->node, text);
        }
    }
    free(k);
}

static void start_container(struct job *j, const struct hl_job_action *a)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, a->node);
    int at = job_position(j, a->index);
    if (n == NULL || at < 0 || j->starting == NULL || j->starting[at] || images_wait(j) ||
        !job_may_start(j) || !master_port_ready(j))
        return; /* the next tick tries again */
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_agent_start_container_params p = {.spec =
                                                              job_container_spec(j, at, &arena)};
    struct container_call *k = call_new(j, a);
    if (hl_arena_failed(&arena) || p.spec.id == NULL || k == NULL) {
        free(k);
        return; /* the next tick tries again */
    }
    j->starting[at] = true;
    controller_hold(c);
    hl_call_agent_start_container_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                        on_started, k);
}

/* A stop that failed is sent again by the job's timer, or when the Agent next reports the stray. */
static void on_stopped(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_stop_container_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_warn("container was not stopped error=\"%s\"", text);
}

static void stop_by_id(struct hl_controller *c, struct node *n, const char *id, int64_t grace_ms)
{
    const struct hl_api_agent_stop_container_params p = {
        .id = id, .grace_ms = (int32_t)grace_ms, .epoch = c->claim.epoch};
    controller_hold(c);
    hl_call_agent_stop_container_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                       on_stopped, c);
}

static void stop_container(struct job *j, const struct hl_job_action *a)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, a->node);
    char id[HL_JOB_ID_MAX + 24];
    if (n != NULL)
        stop_by_id(c, n, hl_container_id(j->id, a->attempt, a->index, id, sizeof(id)),
                   j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : c->opts.stop_grace_ms);
}

/* ---- containers by their ids ----------------------------------------------------------------- */

/* A parsed container id, JOB.ATTEMPT.INDEX. */
struct container_ref {
    bool named; /* the id has that form */
    int attempt, index;
    struct job *job; /* NULL: no such job is known */
    bool damaged;    /* the job exists, but its record can't be read */
};

static struct container_ref container_ref(const struct hl_controller *c, const char *id)
{
    struct container_ref r = {0};
    char job[HL_JOB_ID_MAX + 1];
    r.named = hl_container_id_parse(id, job, sizeof(job), &r.attempt, &r.index) == HL_OK;
    r.job = r.named ? job_by_id(c, job) : NULL;
    r.damaged = r.named && r.job == NULL && job_is_damaged(c, job);
    return r;
}

static bool is_wanted(const struct container_ref *r)
{
    return hl_jobrun_wants(r->job != NULL ? &r->job->run : NULL, r->attempt, r->index);
}

/* ---- what nodes report ----------------------------------------------------------------------- */

/* Stops a container that no job wants: its job was forgotten, or its attempt is over. */
static void stop_stray(struct hl_controller *c, struct node *n,
                       const struct hl_api_container_status *status)
{
    hl_warn("container is not wanted and is being stopped container=%s node=%s", status->id,
            n->name);
    stop_by_id(c, n, status->id, c->opts.stop_grace_ms);
}

static bool node_has(const struct hl_api_container_status_list *containers, const char *id)
{
    for (size_t i = 0; i < containers->count; i++)
        if (strcmp(containers->items[i].id, id) == 0)
            return true;
    return false;
}

static void find_absent(struct job *j, struct node *n,
                        const struct hl_api_container_status_list *containers)
{
    for (int i = 0; i < j->run.container_count; i++) {
        char id[HL_JOB_ID_MAX + 24];
        bool starting = j->starting != NULL && j->starting[i];
        if (!hl_jobrun_is_absent(&j->run, i, n->name, starting) ||
            node_has(containers, hl_container_id(j->id, j->run.attempt, hl_jobrun_index(&j->run, i),
                                                 id, sizeof(id))))
            continue;
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_ABSENT,
                                            .attempt = j->run.attempt,
                                            .index = hl_jobrun_index(&j->run, i),
                                            .node = n->name});
    }
}

void jobs_containers(struct hl_controller *c, struct node *n,
                     const struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++) {
        const struct hl_api_container_status *status = &containers->items[i];
        const struct container_ref r = container_ref(c, status->id);
        if (r.damaged)
            continue;
        if (hl_container_is_stray(r.job != NULL ? &r.job->run : NULL, r.attempt, status->state))
            stop_stray(c, n, status);
        if (r.job != NULL)
            container_event(r.job, n->name, r.attempt, r.index, status);
    }
    struct job *j, *next;
    HASH_ITER (hh, c->jobs->table, j, next) {
        if (!hl_job_state_ended(j->run.state))
            find_absent(j, n, containers);
    }
}

static struct hl_patience job_patience(const struct job *j)
{
    const struct hl_controller_opts *opts = &j->controller->opts;
    return (struct hl_patience){.job_ms = j->spec.node_lost_ms,
                                .default_ms = opts->lost_after_ms,
                                .lost_ms = opts->node_lost_ms};
}

static int64_t patience_ms(const struct job *j, const char *node)
{
    const struct hl_patience patience = job_patience(j);
    return hl_jobrun_patience_ms(&j->run, node, &patience);
}

void jobs_node_silent(struct hl_controller *c, struct node *n)
{
    struct job *j, *next;
    HASH_ITER (hh, c->jobs->table, j, next) {
        char text[96], limit[32];
        if (hl_job_state_ended(j->run.state) || j->executor != &agents_executor)
            continue;
        snprintf(text, sizeof(text), "its ranks may run on; it is lost after %s of silence",
                 hl_format_duration_ms((uint64_t)patience_ms(j, n->name), limit, sizeof(limit)));
        job_event(j, &(struct hl_job_event){
                         .kind = HL_JOB_EV_NODE_SILENT, .node = n->name, .text = text});
    }
}

void jobs_node_back(struct hl_controller *c, struct node *n)
{
    struct job *j, *next;
    HASH_ITER (hh, c->jobs->table, j, next) {
        if (!hl_job_state_ended(j->run.state) && j->executor == &agents_executor)
            job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NODE_BACK, .node = n->name});
    }
}

bool jobs_need_node(const struct hl_controller *c, const struct node *n)
{
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        if (hl_jobrun_needs_node(&j->run, n->name))
            return true;
    return false;
}

bool jobs_hold_containers(const struct hl_controller *c, const struct node *n,
                          const struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++) {
        const struct container_ref r = container_ref(c, containers->items[i].id);
        int at = is_wanted(&r) ? job_position(r.job, r.index) : -1;
        if (at >= 0 && strcmp(r.job->run.containers[at].node, n->name) == 0)
            return true;
    }
    return false;
}

bool jobs_want_container(const struct hl_controller *c, const char *id)
{
    const struct container_ref r = container_ref(c, id);
    return is_wanted(&r) || r.damaged;
}

/* Gives up the first node that has been silent for longer than the job waits. The others follow on
 * the next ticks. */
static void give_up_silent_node(struct job *j)
{
    const struct hl_patience patience = job_patience(j);
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        char text[64], silence[32], name[HL_NODE_NAME_MAX + 1];
        const struct node *n = node_find(j->controller, k->node);
        if (n == NULL)
            continue;
        const struct hl_node_silence now = {n->lost, node_silent_ms(n)};
        if (!hl_jobrun_gives_up(&j->run, i, &now, &patience))
            continue;
        memcpy(name, k->node, sizeof(name));
        snprintf(text, sizeof(text), "silent for %s",
                 hl_format_duration_ms((uint64_t)now.silent_ms, silence, sizeof(silence)));
        elastic_lose_node(j, name, text);
        return;
    }
}

static void watch_gang(struct job *j)
{
    rank_watch_round(j);
    give_up_silent_node(j);
    elastic_round(j);
}

static void look_for_images(struct job *j)
{
    char why[HL_JOB_TEXT_MAX];
    int index;
    images_round(j);
    if (!images_missing(j, &index, why, sizeof(why)))
        return;
    const struct hl_api_container_status failed = {.state = HL_API_CONTAINER_STATE_FAILED,
                                                   .message = why};
    container_event(j, j->run.containers[index].node, j->run.attempt,
                    hl_jobrun_index(&j->run, index), &failed);
}

/* Starts wanted containers again whose start call failed for a reason that may pass. */
static void start_wanted(struct job *j)
{
    enum hl_api_job_state state = j->run.state;
    if (state != HL_API_JOB_STATE_STARTING && state != HL_API_JOB_STATE_RUNNING)
        return; /* a running gang is included: it may have parked containers, a replacement of a
                   lost one, and containers that are about to join */
    for (int i = 0; i < j->run.container_count && j->run.state == state; i++) {
        if (j->run.containers[i].state != HL_API_CONTAINER_STATE_WANTED ||
            j->run.plan->containers[i].leaves)
            continue;
        struct hl_job_action a = {.kind = HL_JOB_DO_START,
                                  .attempt = j->run.attempt,
                                  .index = hl_jobrun_index(&j->run, i)};
        memcpy(a.node, j->run.containers[i].node, sizeof(a.node));
        start_container(j, &a);
    }
}

/* What a running job waits for: the first of its nodes that does not answer. */
static void waits_for_node(const struct job *j, char *out, size_t cap)
{
    struct hl_controller *c = j->controller;
    out[0] = '\0';
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        const struct node *n = hl_jobrun_may_run(&j->run, i) ? node_find(c, k->node) : NULL;
        char silence[32], limit[32];
        if (n == NULL || !n->lost)
            continue;
        snprintf(out, cap, "node %s has not answered for %s, its ranks may run on; lost after %s",
                 n->name,
                 hl_format_duration_ms((uint64_t)node_silent_ms(n), silence, sizeof(silence)),
                 hl_format_duration_ms((uint64_t)patience_ms(j, n->name), limit, sizeof(limit)));
        return;
    }
    images_tell(j, out, cap);
    rank_watch_tell(j, out, cap);
}

/* ---- ended containers ------------------------------------------------------------------------ */

static void on_forgotten(void *arg, hl_status st, const char *text,
                         const struct hl_api_agent_forget_container_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_debug("container was not forgotten error=\"%s\"", text);
}

static void forget_container(struct hl_controller *c, struct node *n, const char *id)
{
    const struct hl_api_agent_forget_container_params p = {.id = id, .epoch = c->claim.epoch};
    controller_hold(c);
    hl_call_agent_forget_container_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                         on_forgotten, c);
}

/* Deletes the records and logs of the job's containers on the nodes that are ready. On the others
 * they go once the node is back and they are old enough (purge_stale_containers). */
static void forget_containers(const struct job *j)
{
    struct hl_controller *c = j->controller;
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        for (size_t i = 0; node_ready(n) && i < n->report.containers.count; i++) {
            const char *id = n->report.containers.items[i].id;
            if (container_ref(c, id).job == j)
                forget_container(c, n, id);
        }
    }
}

void purge_stale_containers(struct hl_controller *c, struct node *n,
                            const struct hl_api_container_status_list *containers)
{
    int sent = 0;
    int64_t keep_ms = c->opts.jobs_keep_age_ms, now = controller_steady_ms(c);
    for (size_t i = 0; i < containers->count; i++) {
        const char *id = containers->items[i].id;
        if (!hl_container_is_stale(containers->items[i].finished_ms, now, keep_ms))
            continue;
        const struct container_ref r = container_ref(c, id);
        if (r.named && r.job == NULL && !r.damaged && sent++ < FORGETS_MAX)
            forget_container(c, n, id);
    }
}

/* ---- the executor ---------------------------------------------------------------------------- */

static hl_status agents_admit(struct job *j)
{
    (void)j;
    return HL_OK;
}

static hl_status agents_restore(struct job *j)
{
    (void)j;
    return HL_OK; /* checked last */
}

static hl_status agents_plan(struct hl_controller *c, const struct hl_job *spec, const char *id,
                             int attempt, struct hl_plan **out)
{
    (void)id;
    (void)attempt;
    hl_cluster_set_time(nodes_cluster(c), hl_wall_ms(), c->opts.stop_grace_ms);
    HL_TRY(hl_plan_make(spec, nodes_cluster(c), out));
    if (nodes_cluster(c)->count == 0 || nodes_expected(c))
        (*out)->never = false; /* an Agent may still come */
    return HL_OK;
}

static void agents_carry_out(struct job *j, const struct hl_job_actions *actions)
{
    for (size_t i = 0; i < actions->count; i++) {
        bool starts = actions->list[i].kind == HL_JOB_DO_START;
        if (starts && j->run.state == HL_API_JOB_STATE_RUNNING &&
            rank_tables_reset(j, j->run.container_count) != HL_OK) /* the ranks have moved */
            hl_warn("%s", hl_error_text());
        if (starts)
            start_container(j, &actions->list[i]);
        else if (actions->list[i].kind == HL_JOB_DO_STOP)
            stop_container(j, &actions->list[i]);
        else if (actions->list[i].kind == HL_JOB_DO_FREE)
            elastic_free_slot(j, &actions->list[i]);
    }
}

static void agents_retry(struct job *j)
{
    look_for_images(j);
    start_wanted(j);
    rank_tables_send(j);
}

/* Uses the Agent's own report where there is one: it has pids and binding. */
static void agents_describe(const struct job *j, const struct hl_jobrun *run, int index,
                            struct hl_arena *arena, struct hl_api_container_status *io)
{
    const struct node *n = node_find(j->controller, run->containers[index].node);
    const struct hl_api_container_status *reported =
        n != NULL && io->id != NULL ? node_reported(n, io->id) : NULL;
    bool replaced = !hl_jobrun_has_ranks(run, index) && !hl_jobrun_is_parked(run, index) &&
                    run->plan->containers[index].joining == 0;
    (void)arena;
    if (reported != NULL && !replaced) /* the lost server's ranks run elsewhere now */
        *io = *reported;
}

const struct job_executor agents_executor = {
    .kind = HL_JOB_EXECUTOR_PROCESS, /* or an engine: jobs_kind */
    .admit = agents_admit,
    .restore = agents_restore,
    .plan = agents_plan,
    .carry_out = agents_carry_out,
    .saved = rank_tables_send,
    .watch = watch_gang,
    .retry = agents_retry,
    .describe = agents_describe,
    .waits_for = waits_for_node,
    .read_log = agents_read_log,
    .forget = forget_containers,
};
