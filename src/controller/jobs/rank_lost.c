/* How a rank was lost that has been replaced since. A kill gives no reason, but the kernel log does
 * if it was an out-of-memory kill. So the rank's node is asked before anything is reported. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/jobs_private.h"

#define LOG_MS 2000 /* the kernel's line is written before the process is gone */

struct lost_rank {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    char node[HL_NODE_NAME_MAX + 1];
    int rank, code, signal;
};

static void note_lost(const struct lost_rank *l, const char *evidence)
{
    char text[HL_JOB_TEXT_MAX + 64], how[160]; /* an event is cut to HL_JOB_TEXT_MAX */
    struct job *j = job_by_id(l->c, l->job);
    if (j == NULL)
        return;
    if (evidence[0] != '\0')
        snprintf(how, sizeof(how), "killed for want of memory (%.100s)", evidence);
    else if (l->signal != 0)
        snprintf(how, sizeof(how), "killed by signal %d (%s)", l->signal, strsignal(l->signal));
    else
        snprintf(how, sizeof(how), "exit code %d", l->code);
    snprintf(text, sizeof(text), "rank %d on %s was lost, %s; it is replaced, the others stay",
             l->rank, l->node, how);
    job_note(j, "rank-replaced", text);
}

static void on_evidence(void *arg, hl_status st, const char *text,
                        const struct hl_api_agent_kill_evidence_results *r)
{
    struct lost_rank *l = arg;
    (void)text;
    if (!controller_stopped(l->c))
        note_lost(l, st == HL_OK ? r->text : "");
    free(l);
}

void rank_lost_note(struct job *j, const char *node, const struct hl_api_rank_status *r, int pid)
{
    struct hl_controller *c = j->controller;
    const struct node *n = node_find(c, node);
    struct lost_rank said = {
        .c = c, .rank = r->rank, .code = r->lost_code, .signal = r->lost_signal};
    memcpy(said.job, j->id, sizeof(said.job));
    snprintf(said.node, sizeof(said.node), "%s", node);
    struct lost_rank *l = r->lost_signal == SIGKILL && n != NULL && node_ready(n) && pid > 0
                              ? malloc(sizeof(*l))
                              : NULL;
    if (l == NULL) {
        note_lost(&said, "");
        return;
    }
    *l = said;
    controller_hold(c);
    const struct hl_api_agent_kill_evidence_params p = {.pid = pid,
                                                        .since_ms = r->lost_ms - LOG_MS};
    hl_call_agent_kill_evidence_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                      on_evidence, l);
}
