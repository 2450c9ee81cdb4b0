/* Where the ranks of an attempt meet: a port that the Agent of rank 0 found free just before the
 * containers start. Nothing starts before the port is in the store, so all containers get the same
 * one even if the Controller or an Agent restarts meanwhile.
 *
 * A port is only valid for one location of rank 0. When rank 0 continues in another container, the
 * Agent there is asked for a new one: on another node another process may listen on the old port,
 * and on the same node the lost process may have left it in use. Answers for a location that rank 0
 * has left are dropped. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/jobs/jobs_private.h"
#include "core/job/jobnodes.h"
#include "core/job/ports.h"

#define PORT_TRIES 64 /* candidates per call */

struct port_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    struct master_place place;
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

const char *master_address(const struct job *j)
{
    const struct hl_plan *plan = j->run.plan;
    const struct hl_cluster_node *n =
        plan->master_node != NULL ? hl_cluster_find(nodes_cluster(j->controller), plan->master_node)
                                  : NULL;
    return n != NULL && n->rank_address[0] != '\0' ? n->rank_address : plan->master_address;
}

static struct master_place place_now(const struct job *j)
{
    return (struct master_place){j->run.attempt, master_container(j)};
}

static bool is_same_place(struct master_place a, struct master_place b)
{
    return a.attempt == b.attempt && a.container == b.container;
}

static bool port_is_settled(const struct job *j)
{
    return is_same_place(j->port.settled, place_now(j));
}

int master_port(const struct job *j)
{
    return j->port.number != 0 && port_is_settled(j) ? j->port.number : port_candidate(j, 0);
}

static void port_settle(struct job *j, int port)
{
    j->port.number = port;
    j->port.settled = place_now(j);
    job_keep(j); /* after that its containers are started */
}

static void port_answered(struct job *j, hl_status st, const char *text, int port)
{
    enum hl_ports_next next = hl_ports_after(st);
    if (next == HL_PORTS_SETTLED || next == HL_PORTS_BLIND) {
        port_settle(j, next == HL_PORTS_SETTLED ? port : 0);
        return;
    }
    hl_warn("a port is requested again job=%s error=\"%s\"", j->id, text);
    if (next == HL_PORTS_ONWARD)
        j->port.skip += PORT_TRIES;
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
    if (j != NULL && is_same_place(j->port.asked, k->place))
        j->port.asked = (struct master_place){0};
    if (j != NULL && is_same_place(k->place, place_now(j)) &&
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
    bool asked = is_same_place(j->port.asked, place_now(j));
    struct port_call *k = asked || n == NULL ? NULL : calloc(1, sizeof(*k));
    if (k == NULL)
        return false; /* the next tick asks */
    k->c = c;
    k->place = j->port.asked = place_now(j);
    memcpy(k->job, j->id, sizeof(k->job));
    uint16_t ports[PORT_TRIES];
    for (int i = 0; i < PORT_TRIES; i++)
        ports[i] = (uint16_t)port_candidate(j, j->port.skip + i);
    controller_hold(c);
    hl_call_agent_find_port_async(
        n->agent, &(struct hl_api_agent_find_port_params){.ports = {ports, PORT_TRIES}},
        c->opts.rpc_timeout_ms, c->opts.loop, on_port, k);
    return false;
}
