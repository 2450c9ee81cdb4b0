/* controller/nodes/nodes_private.h - the table of nodes, and a node's record.
 *
 * Threads: the Controller's loop.
 */
#ifndef HL_CONTROLLER_NODES_PRIVATE_H
#define HL_CONTROLLER_NODES_PRIVATE_H

#include "controller/core.h"
#include "controller/nodes/nodes.h"
#include "core/planner/plan.h"
#include "core/planner/switches.h"
#include "store/writer.h"

struct nodes {
    struct node *table;          /* by name */
    struct node *gone;           /* forgotten while calls were in flight */
    struct hl_cluster cluster;   /* what the planner sees */
    struct hl_switches switches; /* from the option nodes.switches */
    const struct node_events *events;
    unsigned arrivals;   /* registrations and returns of lost nodes since this start, and one */
    bool forget_trouble; /* trouble_is_new */
};

/* Adds a node, or updates what it says about itself. HL_EINVAL names what is wrong. */
hl_status node_add(struct hl_controller *c, const struct hl_api_node_info *info,
                   struct node **out) HL_CHECK;
/* The record of a node with that info: includes whether it is drained, and if lost, since when.
 * NULL when out of memory. */
json_t *node_record(const struct node *n, const struct hl_api_node_info *info, bool lost);
/* Writes the node's record; NULL: deletes it. */
hl_status node_write(struct node *n, const json_t *record, hl_store_written done,
                     void *arg) HL_CHECK;
/* The store refused a change of the node, which was taken back: other writers may have stored it
 * with the node's record, so that is written again, until the store accepts it. */
void node_restore(struct node *n);

/* drain.c */
/* Writes the changed record and then answers the call; NULL: no call waits. If that fails, n is as
 * before. */
hl_status node_drain(struct node *n, bool drained, const char *reason,
                     struct hl_rpc_call *call) HL_CHECK;

/* gate.c */
/* Takes the result of a test; failing twice within an hour drains the node. */
void gate_take_test(struct node *n, const struct hl_api_health *health);
/* Checks the node's clock, from a heartbeat that was just sent. */
void gate_take_clock(struct node *n, int64_t node_ms);
/* Tells the planner whether the node gets containers. */
void gate_apply(struct node *n);

/* strays.c */
/* Containers that jobs have given up on lost nodes are ended by other Agents on the same
 * machines. */
void strays_round(struct hl_controller *c);
/* Its Agent speaks for itself again. */
void strays_clear(struct node *n);
bool node_runs_stray(const struct hl_controller *c, const struct hl_api_container_status *k);

#endif
