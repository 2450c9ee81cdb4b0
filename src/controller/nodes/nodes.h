/* controller/nodes/nodes.h - the nodes of the cluster: all known nodes, the addresses of their
 * Agents, their last reports, and since when they are silent.
 *
 * A node becomes known by registerNode or from the store. It is ready once it has registered since
 * this start, lost after a silence of node_lost_ms, and forgotten after being lost for too long.
 *
 *     from the store --register--> ready --silence--> lost --age, number--> forgotten
 *                                    ^---- register ----'
 *
 * A drained node gets no new containers, lost or not, until it is undrained or forgotten.
 *
 * Owns:    the nodes, their peers, and the planner's view of their slots (nodes_cluster).
 * Threads: the Controller's loop.
 * Errors:  HL_EEXIST if another Agent has the name; HL_EINVAL names what is wrong.
 * Units:   ms; listened ns.
 * Limits:  a name has 127 bytes.
 */
#ifndef HL_CONTROLLER_NODES_NODES_H
#define HL_CONTROLLER_NODES_NODES_H

#include <jansson.h>
#include <stdbool.h>
#include <uthash.h>

#include "api/types.h"
#include "base/arena.h"
#include "core/planner/cluster.h"
#include "rpc/controller_calls.h"

#define HL_NODE_WHY_MAX 512

struct copy;
struct hl_controller;
struct hl_rpc_peer;

/* The copies wing's data about a node's store; no other wing writes it. */
struct node_store {
    uint64_t list_epoch;   /* of the inventory in progress */
    uint64_t listed_epoch; /* of the last complete inventory */
    unsigned list_round;
    bool listing, listed, list_again;
    /* the inventory is complete; copies that it lacks are being looked for */
    bool list_ended, pruning;
    unsigned drops;      /* in flight */
    bool rdma;           /* a copy on it came by one-sided reads */
    struct copy *copies; /* all its copies */
};

/* A reservation for maintenance; until_ms 0 = none. */
struct node_reservation {
    struct hl_node_window window;
    char reason[256];
};

/* since_ms 0 = not drained. */
struct node_drained {
    int64_t since_ms;
    char reason[256];
};

/* What a silent Agent still runs, according to another Agent of its machine. */
struct node_strays {
    bool asked;  /* a call is in flight */
    bool listed; /* ids are known: such an Agent starts nothing more */
    struct hl_api_text_list ids;
    struct hl_arena arena;
    size_t ended;   /* of the ids: those that jobs have given up */
    unsigned alone; /* nodes.arrivals when its machine had no other Agent that answers */
};

struct node {
    char name[128];
    char incarnation[64]; /* "" = it must register (again) */
    /* from its registration; tiers and storeEpoch are from the last report */
    struct hl_api_node_info info;
    struct hl_arena info_arena;
    json_t *written; /* its record in the store; NULL = unknown */
    /* Its last heartbeat, or the data from its registration. */
    struct hl_api_controller_heartbeat_params report;
    struct hl_arena report_arena;
    /* answers about containers that no heartbeat has confirmed: it may be older than they are */
    struct hl_api_container_status_list answered;
    struct hl_arena answered_arena;
    uint64_t answered_ns; /* listened_ns of the last one */
    struct hl_rpc_peer *agent;
    bool readdressed; /* it has other addresses than when it last registered */
    uint64_t seen_ns; /* listened_ns of the last sign of life, or since when one is awaited */
    int64_t seen_ms;
    bool lost;
    int64_t lost_ms;           /* since when it is lost, for people */
    int64_t lost_steady_ms;    /* the same, for its age */
    struct node_strays strays; /* while it is lost */
    bool forgetting;           /* its record is being deleted, and was not written since */
    bool gone;                 /* forgotten: no longer in the table, but answers may still come */
    struct node *next_gone;
    uint64_t store_epoch; /* as reported */
    struct node_store store;
    int64_t drained_ms; /* since when it is drained; 0 = not drained */
    char drain_reason[256];
    struct node_reservation reserved;
    /* Calls whose drain, or reservation, is being written, and what the store had before them or
     * has accepted since: if it refuses the last of them, that is restored. */
    unsigned drains, reserves;
    struct node_drained drain_kept;
    struct node_reservation reserve_kept;
    bool unrestored; /* node_restore is due again */
    bool held;       /* it runs containers of a job with a damaged record, so it gets no others */
    struct hl_api_health health; /* of its last test */
    struct hl_arena health_arena;
    int64_t failed_ms;      /* when the last failed test ended; 0 = none has failed */
    int64_t failed_test_ms; /* the same, by the node's clock */
    int64_t ahead_ms;       /* how far its clock was ahead of ours at the last heartbeat */
    int ahead_count;        /* consecutive heartbeats in which that was too much */
    /* why it gets no new containers; "" = it does, if ready and not drained */
    char why[HL_NODE_WHY_MAX];
    bool why_told; /* the log has it, or the reason before it; that a test runs is not logged */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

/* Callbacks of other wings for events of a node. */
struct node_events {
    /* The node has registered: it has a new or restarted Agent. */
    void (*registered)(struct hl_controller *c, struct node *n);
    /* The node reports these containers; borrowed. */
    void (*reported)(struct hl_controller *c, struct node *n,
                     const struct hl_api_container_status_list *containers);
    /* The node became lost: its containers may still run. */
    void (*silent)(struct hl_controller *c, struct node *n);
    /* A lost node has answered again. */
    void (*back)(struct hl_controller *c, struct node *n);
    /* True: a lost node must not be forgotten yet. */
    bool (*needed)(const struct hl_controller *c, const struct node *n);
    /* The node is needed because of some of these containers. */
    bool (*holds)(const struct hl_controller *c, const struct node *n,
                  const struct hl_api_container_status_list *containers);
    /* False: no job needs that container, wherever it runs. */
    bool (*wants)(const struct hl_controller *c, const char *id);
    /* What the HybridPS processes of the node are asked for, by its last report. */
    struct hl_api_chunk_request_list (*asks)(struct hl_controller *c, const struct node *n,
                                             struct hl_arena *arena);
    /* The node is forgotten: drop all data about it. */
    void (*forgotten)(struct hl_controller *c, struct node *n);
};

/* `events` is borrowed for the Controller's lifetime. */
hl_status nodes_create(struct hl_controller *c, const struct node_events *events) HL_CHECK;
/* Loads a record of the store. */
hl_status nodes_load(struct hl_controller *c, const json_t *record) HL_CHECK;
/* Marks silent nodes as lost. */
void nodes_tick(struct hl_controller *c);
/* Forgets lost nodes, by number and by age. */
void nodes_retain(struct hl_controller *c);
/* Frees forgotten nodes for which no answer is pending any more. */
void nodes_reap(struct hl_controller *c);
/* Closes the peers; calls in progress end. */
void nodes_disconnect(struct hl_controller *c);
void nodes_fini(struct hl_controller *c);

/* For loops: the first, then n->hh.next. NULL: there is none. */
struct node *nodes_first(const struct hl_controller *c);
unsigned nodes_count(const struct hl_controller *c);
/* What the planner sees. */
struct hl_cluster *nodes_cluster(const struct hl_controller *c);
/* Some nodes were here before this start and still have time to come back. */
bool nodes_expected(const struct hl_controller *c);
/* Borrowed, NULL when unknown. */
struct node *node_find(const struct hl_controller *c, const char *name);
bool node_ready(const struct node *n);
/* HL_EUNAVAIL: nothing new may be brought there. The node is away or drained, or node_why_not says
 * why. */
hl_status node_takes(const struct node *n) HL_CHECK;
/* The node has a reservation that is not over. */
bool node_is_reserved(const struct node *n);
/* Ms since its last sign of life. */
int64_t node_silent_ms(const struct node *n);
/* Why nothing new is placed on a node that is ready and not drained; "" = no reason. Borrowed. */
const char *node_why_not(const struct node *n);
/* Keeps the node's answer about one of its containers until a heartbeat confirms it. */
void node_container(struct node *n, const struct hl_api_container_status *status);
/* Keeps a copy of the heartbeat in place of the last one; HL_ENOMEM. */
hl_status node_keep_report(struct node *n,
                           const struct hl_api_controller_heartbeat_params *report) HL_CHECK;
/* What the node reported about the container; NULL: nothing. */
const struct hl_api_container_status *node_reported(const struct node *n, const char *id);

void method_register_node(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_register_node_params *p);
void method_drain_node(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_drain_node_params *p);
void method_reserve_nodes(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_reserve_nodes_params *p);
void method_test_node(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_test_node_params *p);
void method_heartbeat(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_heartbeat_params *p);

#endif
