/* controller/placement/placement.h - decides where shards are: collects ranks' reports of their
 * reads, and carries out what the policy (core/placement) decides.
 *
 * It follows the catalogue, the copies and the nodes: the place of each shard of a visible version
 * is that of its nearest copy. All of this is soft state; only pins are stored.
 *
 * Owns:    the placement of all shards, and the options placement.* and policy.* in force.
 * Threads: the Controller's loop.
 * Errors:  the hooks have none: what can't be placed is logged once.
 * Units:   ms of the monotonic clock inside, wall time towards callers.
 * Limits:  2^24 shards; 65,536 processes that report; 65,535 nodes.
 */
#ifndef HL_CONTROLLER_PLACEMENT_PLACEMENT_H
#define HL_CONTROLLER_PLACEMENT_PLACEMENT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/id.h"
#include "rpc/controller_calls.h"

struct gang_source;
struct gang_watch;
struct hl_controller;
struct hl_version_rec;
struct node;

/* Decides when containers may start. */
extern const struct gang_watch placement_gang_watch;

/* gang_starts: tells whether containers of a gang are starting; the policy's moves pause then. */
hl_status placement_create(struct hl_controller *c,
                           bool (*gang_starts)(const struct hl_controller *c)) HL_CHECK;
/* Sets the source of gangs whose shards are prefetched; borrowed for the Controller's lifetime. */
void placement_gangs(struct hl_controller *c, const struct gang_source *source);
/* Call it after the store was read: passes begin. */
hl_status placement_start(struct hl_controller *c) HL_CHECK;
/* Call it before the loop ends. c->placement may be NULL. */
void placement_stop(struct hl_controller *c);
void placement_fini(struct hl_controller *c);
/* Load records of the store, "pin/...", "move/..." and "use/...". */
hl_status placement_load_pin(struct hl_controller *c, const char *key,
                             const json_t *record) HL_CHECK;
hl_status placement_load_move(struct hl_controller *c, const char *key,
                              const json_t *record) HL_CHECK;
hl_status placement_load_use(struct hl_controller *c, const char *key,
                             const json_t *record) HL_CHECK;
/* Advances moves. */
void placement_tick(struct hl_controller *c);

void placement_node_registered(struct hl_controller *c, struct node *n);
void placement_node_silent(struct hl_controller *c, struct node *n);
void placement_node_forgotten(struct hl_controller *c, struct node *n);

/* What the HybridPS processes of the node are asked for, by its last report. */
struct hl_api_chunk_request_list placement_asks(struct hl_controller *c, const struct node *n,
                                                struct hl_arena *arena);

/* False: the report was already taken, or can't be distinguished from one that was; it is
 * ignored. */
bool placement_report(struct hl_controller *c,
                      const struct hl_api_controller_report_access_params *p);
/* A rank has committed shards. node: where it runs, "" = unknown. */
void placement_written(struct hl_controller *c, const char *node,
                       const struct hl_api_shard_list *shards);
/* Fills in life and heat of a listed shard, if it is placed. */
void placement_describe(const struct hl_controller *c, struct hl_id id, struct hl_api_shard *shard);
/* Fills in heat, pin and memory of a visible version. */
void placement_describe_version(struct hl_controller *c, const struct hl_version_rec *v,
                                struct hl_api_model_version *version);
/* Appends Prometheus text. */
void placement_gauges(struct hl_controller *c, struct hl_buf *out);

void method_set_option(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_set_option_params *p);
void method_shard_placement(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_shard_placement_params *p);
void method_move_shard(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_move_shard_params *p);
void method_list_moves(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_moves_params *p);
void method_cancel_move(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_cancel_move_params *p);
void method_pin(void *arg, struct hl_rpc_call *call, const struct hl_api_controller_pin_params *p);
void method_record_accesses(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_record_accesses_params *p);

#endif
