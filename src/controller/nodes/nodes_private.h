/* What the files of this wing share: the table, and a node's record. */
#ifndef HL_CONTROLLER_NODES_PRIVATE_H
#define HL_CONTROLLER_NODES_PRIVATE_H

#include "controller/core.h"
#include "controller/nodes/nodes.h"
#include "core/planner/plan.h"
#include "core/planner/switches.h"
#include "store/writer.h"

struct nodes {
    struct node *table;          /* by name */
    struct node *gone;           /* forgotten while calls were under way */
    struct hl_cluster cluster;   /* what the planner sees */
    struct hl_switches switches; /* of the option nodes.switches */
    const struct node_events *events;
    unsigned arrivals;   /* registrations and returns of lost nodes since this start, and one */
    bool forget_trouble; /* trouble_is_new */
};

/* A new one, or what it says of itself now. HL_EINVAL names what is wrong. */
hl_status node_add(struct hl_controller *c, const struct hl_api_node_info *info,
                   struct node **out) HL_CHECK;
/* What is stored of a node that says this of itself: whether it is drained, and if it is lost since
 * when. NULL when out of memory. */
json_t *node_record(const struct node *n, const struct hl_api_node_info *info, bool lost);
/* The node's record; NULL: there is none any more. */
hl_status node_write(struct node *n, const json_t *record, hl_store_written done,
                     void *arg) HL_CHECK;

/* drain.c */
/* Its new record is on its way, and the call is answered then; NULL: nobody waits. n is as it was
 * before when that fails. */
hl_status node_drain(struct node *n, bool drained, const char *reason,
                     struct hl_rpc_call *call) HL_CHECK;

/* gate.c */
/* What a test of the node has found; failing twice within an hour drains it. */
void gate_take_test(struct node *n, const struct hl_api_health *health);
/* Its clock, by what a heartbeat says that was sent just now. */
void gate_take_clock(struct node *n, int64_t node_ms);
/* Tell the planner whether the node gets containers. */
void gate_apply(struct node *n);

/* strays.c */
/* What lost nodes still run of what jobs have given up is ended by other Agents of their machines.
 */
void strays_round(struct hl_controller *c);
/* Its Agent speaks for itself again. */
void strays_clear(struct node *n);
bool node_runs_stray(const struct hl_controller *c, const struct hl_api_container_status *k);

#endif
