/* Where the ranks of an attempt meet: a port that the Agent of rank 0 found free just before the
 * containers start. Nothing starts before it is in the store, so that all containers get the
 * same one even if the Controller or an Agent is restarted meanwhile.
 *
 * When rank 0 goes on in another container, its Agent is asked again: on another node somebody else
 * may listen at that port, on the same one what the lost process has left. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/jobs/jobs_private.h"
#include "core/job/jobnodes.h"
#include "core/job/ports.h"

#define PORT_TRIES 64 /* candidates in one question */

struct port_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    int attempt, container;
};

static int port_candidate(const struct job *j, int64_t skip)
{
    return hl_ports_candidate(hl_controller_address(j->controller), j->seq, j->run.attempt,
                              (uint64_t)skip);
}

int master_container(const struct job *j)
{
    int at = hl_plan_container_of(j->run.plan, 0);
    return at >= 0 ? j->run.plan->containers[at].index : -1;
}

static bool port_is_settled(const struct job *j)
{
    return j->port_attempt == j->run.attempt && j->port_container == master_container(j);
}

int master_port(const struct job *j)
{
    return j->port != 0 && port_is_settled(j) ? j->port : port_candidate(j, 0);
}

static void port_settle(struct job *j, int port)
{
    j->port = port;
    j->port_attempt = j->run.attempt;
    j->port_container = master_container(j);
    job_keep(j); /* then its containers are started */
}

static void port_answered(struct job *j, hl_status st, const char *text, int port)
{
    enum hl_ports_next next = hl_ports_after(st);
    if (next == HL_PORTS_SETTLED || next == HL_PORTS_BLIND) {
        port_settle(j, next == HL_PORTS_SETTLED ? port : 0);
        return;
    }
    hl_warn("port is asked for again job=%s error=\"%s\"", j->id, text);
    if (next == HL_PORTS_ONWARD)
        j->port_skip += PORT_TRIES;
}

static void on_port(void *arg, hl_status st, const char *text,
                    const struct hl_api_agent_find_port_results *r)
{
    struct port_call *k = arg;
    struct job *j;
    if (controller_stopped(k->c)) {
        free(k);
        return;
    }
    j = job_by_id(k->c, k->job);
    if (j != NULL)
        j->port_asked = false;
    if (j != NULL && j->run.attempt == k->attempt && master_container(j) == k->container &&
        (j->run.state == HL_API_JOB_STATE_STARTING || j->run.state == HL_API_JOB_STATE_RUNNING))
        port_answered(j, st, text, st == HL_OK ? r->port : 0);
    free(k);
}

bool master_port_ready(struct job *j)
{
    struct hl_controller *c = j->controller;
    if (port_is_settled(j))
        return true;
    struct node *n = j->run.plan != NULL ? node_find(c, j->run.plan->master_node) : NULL;
    struct port_call *k = j->port_asked || n == NULL ? NULL : calloc(1, sizeof(*k));
    if (k == NULL)
        return false; /* the next tick asks */
    k->c = c;
    k->attempt = j->run.attempt;
    k->container = master_container(j);
    memcpy(k->job, j->id, sizeof(k->job));
    uint16_t ports[PORT_TRIES];
    for (int i = 0; i < PORT_TRIES; i++)
        ports[i] = (uint16_t)port_candidate(j, j->port_skip + i);
    j->port_asked = true;
    controller_hold(c);
    hl_call_agent_find_port_async(
        n->agent, &(struct hl_api_agent_find_port_params){.ports = {ports, PORT_TRIES}},
        c->opts.rpc_timeout_ms, c->opts.loop, on_port, k);
    return false;
}
