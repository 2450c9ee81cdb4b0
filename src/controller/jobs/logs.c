/* The output of ranks: which node has it, and what the job was when somebody asked. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/controller_private.h"

#define LOG_BYTES 65536 /* where the question leaves it to us */

/* A question that an Agent is to answer, in the memory of its call. */
struct log_call {
    struct hl_rpc_call *call;
    struct hl_api_controller_read_log_results about;
    int unstarted; /* the container may never have been made there: then nothing was written */
    int over;      /* and nothing will be */
};

static bool is_of(const struct hl_api_container_status *status, const struct job *j, int attempt)
{
    char job[HL_JOB_ID_MAX + 1];
    int number, index;
    return hl_container_id_parse(status->id, job, sizeof(job), &number, &index) == HL_OK &&
           number == attempt && strcmp(job, j->id) == 0;
}

static bool has_rank(const struct hl_api_container_status *status, int rank)
{
    for (size_t i = 0; i < status->ranks.count; i++)
        if (status->ranks.items[i].rank == rank)
            return true;
    return false;
}

/* Container index that holds a rank, -1 when the plan has none. */
static int container_of(const struct hl_plan *plan, int rank)
{
    for (int i = 0; plan != NULL && i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++)
            if (plan->containers[i].ranks[k].rank == rank)
                return i;
    return -1;
}

/* ---- which rank failed first ------------------------------------------------------------------
 */

static void look_for_failure(const struct hl_api_container_status *status, int *rank,
                             int64_t *first_ms)
{
    for (size_t i = 0; i < status->ranks.count; i++) {
        const struct hl_api_rank_status *r = &status->ranks.items[i];
        if (r->state != HL_API_CONTAINER_STATE_FAILED || r->finished_ms >= *first_ms)
            continue;
        *rank = r->rank;
        *first_ms = r->finished_ms;
    }
}

/* Of pods only their message is left, and it begins with the rank. */
static int failed_by_message(const struct job *j)
{
    int64_t first_ms = INT64_MAX;
    int rank = -1, said;
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        if (k->state != HL_CONTAINER_FAILED || k->finished_ms >= first_ms ||
            sscanf(k->message, "rank %d", &said) != 1 || container_of(j->run.plan, said) != i)
            continue;
        rank = said;
        first_ms = k->finished_ms;
    }
    return rank;
}

/* -1 when none is known to have failed. */
static int first_failed(const struct hl_controller *c, const struct job *j, int attempt)
{
    int64_t first_ms = INT64_MAX;
    int rank = -1;
    for (const struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        for (size_t i = 0; i < n->report.containers.count; i++) {
            const struct hl_api_container_status *status = &n->report.containers.items[i];
            if (is_of(status, j, attempt))
                look_for_failure(status, &rank, &first_ms);
        }
    }
    if (rank < 0 && attempt == j->run.containers_attempt)
        rank = failed_by_message(j);
    return rank;
}

/* ---- where a log lies -------------------------------------------------------------------------
 */

/* The node that reported the rank's container of an earlier attempt. */
static struct node *find_past(struct hl_controller *c, const struct job *j,
                              const struct log_ask *ask, const char **container)
{
    for (struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        for (size_t i = 0; i < n->report.containers.count; i++) {
            const struct hl_api_container_status *status = &n->report.containers.items[i];
            if (is_of(status, j, ask->attempt) && has_rank(status, ask->rank)) {
                *container = status->id;
                return n;
            }
        }
    }
    return NULL;
}

static hl_status find_log(struct hl_controller *c, const struct job *j, const struct log_ask *ask,
                          char *id, size_t cap, struct node **out)
{
    const char *container = "";
    struct node *n;
    if (ask->attempt == j->run.containers_attempt) {
        n = node_find(c, j->run.containers[ask->index].node);
        if (n == NULL)
            return hl_fail(HL_EUNAVAIL, "node '%s', which has the log, is not known any more",
                           j->run.containers[ask->index].node);
        hl_container_id(j->id, ask->attempt, ask->index, id, cap);
        *out = n;
        return HL_OK;
    }
    n = find_past(c, j, ask, &container);
    if (n == NULL && nodes_expected(c))
        return hl_fail(HL_EUNAVAIL,
                       "not every node has come back since the Controller was started: the one "
                       "with the log of attempt %d may be missing",
                       ask->attempt);
    if (n == NULL)
        return hl_fail(HL_ENOENT,
                       "no node has the log of rank %d of attempt %d of job '%s': its container "
                       "never started there, or its node is away (`helios nodes`)",
                       ask->rank, ask->attempt, j->id);
    snprintf(id, cap, "%s", container);
    *out = n;
    return HL_OK;
}

/* ---- the answer -------------------------------------------------------------------------------
 */

static bool is_over(const struct job *j, int attempt)
{
    return attempt < j->run.attempt || hl_job_state_ended(j->run.state);
}

/* Its texts outlive the job. */
static struct hl_api_controller_read_log_results about(const struct hl_controller *c,
                                                       const struct job *j,
                                                       const struct log_ask *ask,
                                                       struct hl_arena *arena)
{
    return (struct hl_api_controller_read_log_results){
        .rank = ask->rank,
        .attempt = ask->attempt,
        .last_attempt = j->run.attempt,
        .failed_rank = is_over(j, ask->attempt) ? first_failed(c, j, ask->attempt) : -1,
        .job = hl_arena_strdup(arena, j->id),
        .job_state = (enum hl_api_job_state)j->run.state,
        .job_reason = hl_arena_strdup(arena, j->run.reason)};
}

static void reply_empty(struct hl_rpc_call *call,
                        const struct hl_api_controller_read_log_results *about, bool over)
{
    struct hl_api_controller_read_log_results r = *about;
    r.finished = over;
    hl_reply_controller_read_log(call, &r);
}

static void on_log(void *arg, hl_status st, const char *text,
                   const struct hl_api_agent_read_log_results *log)
{
    struct log_call *k = arg;
    if (st == HL_ENOENT && k->unstarted) {
        reply_empty(k->call, &k->about, k->over);
    } else if (st != HL_OK) {
        hl_rpc_reject(k->call, st, text);
    } else {
        k->about.data = log->data;
        k->about.offset = log->offset;
        k->about.size = log->size;
        k->about.finished = log->finished;
        hl_reply_controller_read_log(k->call, &k->about);
    }
}

static hl_status ask_agent(struct hl_controller *c, const struct job *j, struct hl_rpc_call *call,
                           const struct log_ask *ask)
{
    char id[HL_JOB_ID_MAX + 24];
    struct node *n = NULL;
    HL_TRY(find_log(c, j, ask, id, sizeof(id), &n));
    struct log_call *k = hl_arena_alloc(hl_rpc_call_arena(call), sizeof(*k));
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading a log");
    k->call = call;
    k->about = ask->about;
    k->over = is_over(j, ask->attempt);
    if (ask->attempt == j->run.containers_attempt) {
        enum hl_container_state state = j->run.containers[ask->index].state;
        k->unstarted = state != HL_CONTAINER_RUNNING && state != HL_CONTAINER_SUCCEEDED;
    }
    hl_call_agent_read_log_async(
        n->agent,
        &(struct hl_api_agent_read_log_params){.id = id,
                                               .rank = ask->rank,
                                               .offset = ask->offset,
                                               .max_bytes = (uint32_t)ask->max_bytes},
        c->opts.rpc_timeout_ms, c->opts.loop, on_log, k);
    return HL_OK;
}

/* ---- what is wrong with what runs -------------------------------------------------------------
 */

const char *job_warning(const struct job *j)
{
    if (j->unsaved)
        return "the Controller cannot store the job's state and tries again: is the disk of its "
               "state directory full?";
    for (int i = 0; i < j->run.container_count; i++) {
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.containers_attempt, i, id, sizeof(id));
        const struct hl_api_container_status *status = n != NULL ? node_reported(n, id) : NULL;
        if (status != NULL && status->warning[0] != '\0')
            return status->warning;
    }
    return "";
}

/* ---- the question -----------------------------------------------------------------------------
 */

/* Attempt and rank, where they are left to us; HL_ENOENT: the job has none such. */
static hl_status complete(const struct hl_controller *c, const struct job *j, struct log_ask *ask)
{
    int world = (int)hl_rank_world(&j->spec.grid);
    int last = j->run.plan != NULL ? j->run.containers_attempt : 0;
    if (ask->attempt == 0)
        ask->attempt = last > 0 ? last : 1;
    if (ask->attempt < 1 || ask->attempt > j->run.attempt)
        return hl_fail(HL_ENOENT, "job '%s' has no attempt %d, it is in attempt %d", j->id,
                       ask->attempt, j->run.attempt);
    if (ask->rank == -1 && is_over(j, ask->attempt))
        ask->rank = first_failed(c, j, ask->attempt);
    if (ask->rank == -1)
        ask->rank = 0;
    if (ask->rank < 0 || ask->rank >= world)
        return hl_fail(HL_ENOENT, "job '%s' has no rank %d, its ranks are 0 to %d", j->id,
                       ask->rank, world - 1);
    ask->index = container_of(j->run.plan, ask->rank);
    return HL_OK;
}

void method_read_log(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    struct log_ask ask = {.rank = p->rank,
                          .attempt = p->attempt,
                          .offset = p->offset,
                          .max_bytes = p->max_bytes > 0 ? p->max_bytes : LOG_BYTES};
    hl_status st = job_find(c, p->id, &j);
    if (st == HL_OK)
        st = complete(c, j, &ask);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    j->read_ns = hl_now_ns();
    ask.about = about(c, j, &ask, hl_rpc_call_arena(call));
    if (ask.index < 0 || ask.attempt > j->run.containers_attempt)
        reply_empty(call, &ask.about, is_over(j, ask.attempt)); /* not placed yet */
    else if (c->gangs != NULL && j->gang.id[0] != '\0')
        gangs_read_log(j, call, &ask);
    else if ((st = ask_agent(c, j, call, &ask)) != HL_OK)
        reject(call, st);
}
