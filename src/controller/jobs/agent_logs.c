/* The output of ranks that Agents ran: finds the node that has it. HL_EUNAVAIL: the node that has
 * the log is away and may come back; HL_ENOENT: no node has it. */
#include <stdio.h>

#include "controller/jobs/jobs_private.h"
#include "core/job/jobnodes.h"

/* A log query to an Agent, kept for the duration of its call. */
struct log_call {
    struct hl_rpc_call *call;
    struct hl_api_controller_read_log_results about;
    bool unstarted; /* the container may never have been created there: then nothing was written */
    bool over;      /* and nothing will be written */
};

static bool has_rank(const struct hl_api_container_status *status, int rank)
{
    for (size_t i = 0; i < status->ranks.count; i++)
        if (status->ranks.items[i].rank == rank)
            return true;
    return false;
}

/* The node that reported the rank's container of an earlier attempt. */
static struct node *find_past(struct hl_controller *c, const struct job *j,
                              const struct log_query *query, const char **container)
{
    for (struct node *n = nodes_first(c); n != NULL; n = n->hh.next) {
        for (size_t i = 0; i < n->report.containers.count; i++) {
            const struct hl_api_container_status *status = &n->report.containers.items[i];
            if (job_owns_container(status, j, query->attempt) && has_rank(status, query->rank)) {
                *container = status->id;
                return n;
            }
        }
    }
    return NULL;
}

static hl_status find_log(struct hl_controller *c, const struct job *j,
                          const struct log_query *query, char *id, size_t cap, struct node **out)
{
    const char *container = "";
    struct node *n;
    if (query->attempt == j->run.containers_attempt) {
        n = node_find(c, j->run.containers[query->index].node);
        if (n == NULL)
            return hl_fail(HL_EUNAVAIL, "node '%s', which has the log, is no longer known",
                           j->run.containers[query->index].node);
        hl_container_id(j->id, query->attempt, hl_jobrun_index(&j->run, query->index), id, cap);
        *out = n;
        return HL_OK;
    }
    n = find_past(c, j, query, &container);
    if (n == NULL && nodes_expected(c))
        return hl_fail(HL_EUNAVAIL,
                       "not every node has come back since the Controller was started: the one "
                       "with the log of attempt %d may be missing",
                       query->attempt);
    if (n == NULL)
        return hl_fail(HL_ENOENT,
                       "no node has the log of rank %d of attempt %d of job '%s': its container "
                       "never started there, or its node is unreachable (`helios nodes`)",
                       query->rank, query->attempt, j->id);
    snprintf(id, cap, "%s", container);
    *out = n;
    return HL_OK;
}

static void on_log(void *arg, hl_status st, const char *text,
                   const struct hl_api_agent_read_log_results *log)
{
    struct log_call *k = arg;
    if (st == HL_ENOENT && k->unstarted) {
        log_reply_empty(k->call, &k->about, k->over);
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

/* A gang that was resized has new rank numbers; its nodes still know the old ones. */
static int rank_on_node(const struct job *j, const struct log_query *query)
{
    const struct hl_plan *plan = j->run.plan;
    if (query->attempt != j->run.containers_attempt || plan == NULL)
        return query->rank;
    const struct hl_plan_container *c = &plan->containers[query->index];
    for (int k = 0; k < c->rank_count; k++)
        if (c->ranks[k].rank == query->rank)
            return c->ranks[k].known_as;
    return query->rank;
}

static hl_status ask_agent(struct hl_controller *c, const struct job *j, struct hl_rpc_call *call,
                           const struct log_query *query)
{
    char id[HL_JOB_ID_MAX + 24];
    struct node *n = NULL;
    HL_TRY(find_log(c, j, query, id, sizeof(id), &n));
    struct log_call *k = hl_arena_alloc(hl_rpc_call_arena(call), sizeof(*k));
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading a log");
    k->call = call;
    k->about = query->about;
    k->over = hl_jobrun_attempt_is_over(&j->run, query->attempt);
    if (query->attempt == j->run.containers_attempt) {
        enum hl_api_container_state state = j->run.containers[query->index].state;
        k->unstarted =
            state != HL_API_CONTAINER_STATE_RUNNING && state != HL_API_CONTAINER_STATE_SUCCEEDED;
    }
    hl_call_agent_read_log_async(
        n->agent,
        &(struct hl_api_agent_read_log_params){.id = id,
                                               .rank = rank_on_node(j, query),
                                               .offset = query->offset,
                                               .max_bytes = (uint32_t)query->max_bytes},
        c->opts.rpc_timeout_ms, c->opts.loop, on_log, k);
    return HL_OK;
}

void agents_read_log(struct job *j, struct hl_rpc_call *call, const struct log_query *query)
{
    hl_status st = ask_agent(j->controller, j, call, query);
    if (st != HL_OK)
        call_reject(call, st);
}
