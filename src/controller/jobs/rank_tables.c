/* The rank tables of running gangs. A container starts with a table that says "initializing"; once
 * the last container of the gang runs, each node is sent the complete table. What was sent is not
 * persisted: after a restart of the Controller or an Agent it is sent again, and an Agent that
 * already has it writes nothing new.
 *
 * Per container, on the loop's thread:
 *
 *     UNSENT --the gang runs--> SENDING --HL_OK--> SENT --the node's Agent is a new one,--> UNSENT
 *        ^                         |                      a node's address is a new one
 *        '-------- failed ---------'   the next tick sends again */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/jobs/jobs_private.h"
#include "core/planner/resize.h"
#include "core/planner/spares.h"
#include "ranktable/plan.h"

enum { TABLE_UNSENT, TABLE_SENDING, TABLE_SENT };

struct table_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    int attempt;
    int index;
};

hl_status rank_tables_reset(struct job *j, int containers)
{
    free(j->table);
    j->table = NULL;
    free(j->table_sent);
    j->table_sent = calloc((size_t)containers + 1, 1);
    return j->table_sent != NULL ? HL_OK
                                 : hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
}

static hl_status table_text(const struct job *j, const char *format, char **out)
{
    enum hl_ranktable_format f = HL_RANKTABLE_V2;
    HL_TRY(hl_ranktable_format_parse(format, &f));
    return hl_ranktable_plan_text(j->run.plan, nodes_cluster(j->controller), j->id, f, out);
}

/* "" when there is no table: the ranks then wait for it, and the log says why. */
static const char *table_of(struct job *j)
{
    if (j->table == NULL && table_text(j, j->spec.rank_table, &j->table) != HL_OK) {
        hl_error("job has no rank table job=%s error=\"%s\"", j->id, hl_error_text());
        j->table = strdup("");
    }
    return j->table != NULL ? j->table : "";
}

/* The ranks of this container have moved elsewhere. */
static bool is_left(const struct job *j, int at)
{
    const struct hl_plan_container *c = &j->run.plan->containers[at];
    return !hl_jobrun_has_ranks(&j->run, at) && !hl_plan_is_spare(c) && !hl_plan_is_guest(c);
}

/* True when ranks are not where they started, or rank 0 is in another container or at another
 * address. */
static bool has_moved(const struct job *j)
{
    bool moved = j->elastic.lost != NULL || master_container(j) > 0 ||
                 strcmp(master_address(j), j->run.plan->master_address) != 0;
    for (int i = 0; i < j->run.container_count && !moved; i++)
        moved = is_left(j, i) ||
                (hl_jobrun_has_ranks(&j->run, i) && hl_plan_is_spare(&j->run.plan->containers[i]));
    return moved;
}

/* What the ranks are told when their gang lost a server or a container and continues, or when rank
 * 0 has another address; "" before that. */
static hl_status meeting_text(const struct job *j, struct hl_buf *out)
{
    const struct hl_plan *plan = j->run.plan;
    if (!has_moved(j))
        return HL_OK;
    HL_TRY(
        hl_buf_printf(out, "MASTER_ADDR=%s\nMASTER_PORT=%d\n", master_address(j), master_port(j)));
    if (j->elastic.lost != NULL)
        return hl_buf_printf(out, "%s", j->elastic.lost);
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_cluster_node *n =
            is_left(j, i) ? hl_cluster_find(nodes_cluster(j->controller), plan->containers[i].node)
                          : NULL;
        if (n != NULL && n->host_address[0] != '\0')
            HL_TRY(hl_buf_printf(out, "LOST=%s\n", n->host_address));
    }
    return HL_OK;
}

static void on_table_sent(void *arg, hl_status st, const char *text,
                          const struct hl_api_agent_put_rank_table_results *r)
{
    struct table_call *k = arg;
    struct job *j;
    (void)r;
    if (controller_stopped(k->c)) {
        free(k);
        return;
    }
    j = job_by_id(k->c, k->job);
    int at = j != NULL && j->table_sent != NULL && j->run.attempt == k->attempt
                 ? job_position(j, k->index)
                 : -1;
    if (at >= 0 && j->table_sent[at] == TABLE_SENDING) {
        j->table_sent[at] = st == HL_OK ? TABLE_SENT : TABLE_UNSENT; /* the next tick tries again */
        if (st != HL_OK)
            hl_debug("rank table of %s is not written yet: %s", k->job, text);
    }
    free(k);
}

static void rank_table_send(struct job *j, int index)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, j->run.containers[index].node);
    char id[HL_JOB_ID_MAX + 24];
    HL_AUTO(hl_buf_fini) struct hl_buf meeting = HL_BUF(1 << 16);
    if (n == NULL || !node_ready(n) || meeting_text(j, &meeting) != HL_OK)
        return;
    struct table_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return;
    *k = (struct table_call){
        .c = c, .attempt = j->run.attempt, .index = hl_jobrun_index(&j->run, index)};
    memcpy(k->job, j->id, sizeof(k->job));
    const struct hl_api_agent_put_rank_table_params p = {
        .id = hl_container_id(j->id, k->attempt, k->index, id, sizeof(id)),
        .document = table_of(j),
        .epoch = c->claim.epoch,
        .meeting = meeting.len > 0 ? meeting.data : ""};
    j->table_sent[index] = TABLE_SENDING;
    controller_hold(c);
    hl_call_agent_put_rank_table_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                       on_table_sent, k);
}

void rank_tables_send(struct job *j)
{
    if (j->run.state != HL_API_JOB_STATE_RUNNING || j->table_sent == NULL || !master_port_ready(j))
        return; /* ranks that are told the new location of rank 0 must not reach another process at
                   its old port */
    for (int i = 0; i < j->run.container_count; i++)
        if (j->table_sent[i] == TABLE_UNSENT && hl_jobrun_has_ranks(&j->run, i) &&
            j->run.containers[i].state == HL_API_CONTAINER_STATE_RUNNING)
            rank_table_send(j, i);
}

void rank_tables_resend(struct hl_controller *c, const char *node)
{
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        for (int i = 0; j->table_sent != NULL && i < j->run.container_count; i++)
            if (strcmp(j->run.containers[i].node, node) == 0)
                j->table_sent[i] = TABLE_UNSENT;
}

void rank_tables_renew(struct hl_controller *c, const char *node)
{
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next) {
        bool uses = false;
        for (int i = 0; !uses && i < j->run.container_count; i++)
            uses = strcmp(j->run.containers[i].node, node) == 0;
        if (uses && rank_tables_reset(j, j->run.container_count) != HL_OK)
            hl_warn("rank table is not sent again job=%s error=\"%s\"", j->id, hl_error_text());
    }
}

void method_rank_table(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_rank_table_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    char *text = NULL;
    const char *format = p->format;
    enum hl_ranktable_format parsed;
    hl_status st = job_find(c, p->id, &j);
    if (st == HL_OK && format[0] == '\0')
        format = j->spec.rank_table;
    if (st == HL_OK)
        st = hl_ranktable_format_parse(format, &parsed);
    bool complete =
        st == HL_OK && j->run.plan != NULL &&
        (j->run.state == HL_API_JOB_STATE_RUNNING || j->run.state == HL_API_JOB_STATE_SUCCEEDED);
    if (st == HL_OK && complete)
        st = table_text(j, format, &text);
    if (st == HL_OK)
        hl_reply_controller_rank_table(call, &(struct hl_api_controller_rank_table_results){
                                                 complete ? text : HL_RANKTABLE_INITIALIZING});
    else
        call_reject(call, st);
    free(text);
}
