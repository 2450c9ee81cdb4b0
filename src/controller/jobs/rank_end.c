/* Has a node end a rank that keeps its gang from making progress. The consequences are handled
 * elsewhere: the rank is replaced in its container, or the container fails. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/jobs/jobs_private.h"

#define END_AGAIN_MS 5000 /* a stopped process is gone at once, but its record may lag behind */

struct end_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    int rank;
};

static void on_ended(void *arg, hl_status st, const char *text,
                     const struct hl_api_agent_end_rank_results *r)
{
    struct end_call *k = arg;
    if (!controller_stopped(k->c)) {
        if (st != HL_OK)
            hl_warn("rank was not ended job=%s rank=%d error=\"%s\"", k->job, k->rank, text);
        else if (!r->ended)
            hl_info("rank has another process already job=%s rank=%d", k->job, k->rank);
    }
    free(k);
}

void rank_end(struct job *j, int container, const struct hl_api_rank_status *rank,
              struct rank_end *io)
{
    struct hl_controller *c = j->controller;
    char id[HL_JOB_ID_MAX + 32];
    const struct node *n = node_find(c, j->run.containers[container].node);
    int64_t now = controller_steady_ms(c);
    if (n == NULL || !node_ready(n) || rank->pid <= 0 ||
        (io->pid == rank->pid && now - io->sent_ms < END_AGAIN_MS))
        return;
    struct end_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return; /* the next round tries again */
    *k = (struct end_call){.c = controller_hold(c), .rank = rank->rank};
    memcpy(k->job, j->id, sizeof(k->job));
    *io = (struct rank_end){.pid = rank->pid, .sent_ms = now};
    hl_info("rank is ended job=%s rank=%d pid=%d", j->id, rank->rank, rank->pid);
    const struct hl_api_agent_end_rank_params p = {
        .id = hl_container_id(j->id, j->run.attempt, hl_jobrun_index(&j->run, container), id,
                              sizeof(id)),
        .rank = rank->rank,
        .pid = rank->pid,
        .epoch = c->claim.epoch};
    hl_call_agent_end_rank_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop, on_ended, k);
}
