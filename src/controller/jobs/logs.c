/* The output of ranks: which node has it, and what the job was when somebody asked. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/controller_private.h"

/* A question that an Agent is to answer. */
struct log_call {
    struct hl_rpc_call *call;
    json_t *about;
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
        if (strcmp(r->state, "failed") != 0 || r->finished_ms >= *first_ms)
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

static json_t *about(const struct hl_controller *c, const struct job *j, const struct log_ask *ask)
{
    int over = is_over(j, ask->attempt);
    return json_pack("{s:i s:i s:i s:i s:s s:s s:s}", "rank", ask->rank, "attempt", ask->attempt,
                     "lastAttempt", j->run.attempt, "failedRank",
                     over ? first_failed(c, j, ask->attempt) : -1, "job", j->id, "jobState",
                     hl_job_state_name(j->run.state), "jobReason", j->run.reason);
}

static void reply_empty(struct hl_rpc_call *call, json_t *about, bool over)
{
    json_t *result = json_pack("{s:b}", "finished", over);
    json_object_update(result, about);
    hl_rpc_reply(call, result);
}

static void on_log(void *arg, hl_status st, const char *text, json_t *result)
{
    struct log_call *k = arg;
    if (st == HL_ENOENT && k->unstarted) {
        reply_empty(k->call, k->about, k->over);
    } else if (st != HL_OK) {
        hl_rpc_reject(k->call, st, text);
    } else {
        json_t *answer = json_copy(result);
        json_object_update(answer, k->about);
        hl_rpc_reply(k->call, answer);
    }
    json_decref(k->about);
    free(k);
}

static hl_status ask_agent(struct hl_controller *c, const struct job *j, struct hl_rpc_call *call,
                           const struct log_ask *ask)
{
    char id[HL_JOB_ID_MAX + 24];
    struct node *n = NULL;
    HL_TRY(find_log(c, j, ask, id, sizeof(id), &n));
    struct log_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading a log");
    k->call = call;
    k->about = json_incref(ask->about);
    k->over = is_over(j, ask->attempt);
    if (ask->attempt == j->run.containers_attempt) {
        enum hl_container_state state = j->run.containers[ask->index].state;
        k->unstarted = state != HL_CONTAINER_RUNNING && state != HL_CONTAINER_SUCCEEDED;
    }
    json_t *params = json_pack("{s:s s:i s:I s:I}", "id", id, "rank", ask->rank, "offset",
                               (json_int_t)ask->offset, "maxBytes", (json_int_t)ask->max_bytes);
    hl_rpc_call_async(n->agent, "readLog", params, c->opts.rpc_timeout_ms, c->opts.loop, on_log, k);
    json_decref(params);
    return HL_OK;
}

/* ---- what is wrong with what runs -------------------------------------------------------------
 */

json_t *jobs_warnings(const struct hl_controller *c)
{
    json_t *found = json_object();
    for (const struct node *n = c->nodes; n != NULL; n = n->hh.next) {
        for (size_t i = 0; i < n->report.containers.count; i++) {
            const struct hl_api_container_status *status = &n->report.containers.items[i];
            const char *warning = status->warning;
            char id[HL_JOB_ID_MAX + 1];
            int attempt, index;
            struct job *j = NULL;
            if (warning[0] == '\0' ||
                hl_container_id_parse(status->id, id, sizeof(id), &attempt, &index) != HL_OK)
                continue;
            HASH_FIND_STR(c->jobs, id, j);
            if (j != NULL && attempt == j->run.containers_attempt)
                json_object_set_new(found, id, json_string(warning));
        }
    }
    for (const struct job *j = c->jobs; j != NULL; j = j->hh.next)
        if (j->unsaved)
            json_object_set_new(found, j->id,
                                json_string("the Controller cannot store the job's state and tries "
                                            "again: is the disk of its state directory full?"));
    return found;
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

void method_read_log(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    struct job *j = NULL;
    struct log_ask ask = {
        .rank = (int)hl_json_int(params, "rank", 0),
        .attempt = (int)hl_json_int(params, "attempt", 0),
        .offset = hl_json_int(params, "offset", 0),
        .max_bytes = hl_json_int(params, "maxBytes", 65536),
    };
    hl_status st = job_find(c, hl_json_str(params, "id", ""), &j);
    if (st == HL_OK)
        st = complete(c, j, &ask);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    j->read_ns = hl_now_ns();
    ask.about = about(c, j, &ask);
    if (ask.index < 0 || ask.attempt > j->run.containers_attempt)
        reply_empty(call, ask.about, is_over(j, ask.attempt)); /* not placed yet */
    else if (c->gangs != NULL && j->gang.id[0] != '\0')
        gangs_read_log(j, call, &ask);
    else if ((st = ask_agent(c, j, call, &ask)) != HL_OK)
        reject(call, st);
    json_decref(ask.about);
}
