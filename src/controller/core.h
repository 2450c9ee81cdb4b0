/* controller/core.h - what all wings of the Controller share: its state, its clocks, and the
 * references that keep it alive while an answer is pending.
 *
 * Owns:    the store, the L3 peer, the server, the catalogue. Each wing owns its data; here it is a
 *          pointer to a struct that only the wing's private header defines.
 * Threads: everything on the loop's thread; the store's writer calls back on it.
 * Errors:  none.
 * Units:   ms, ns; listened time (core/listening.h) wherever others are judged by their silence.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_CORE_H
#define HL_CONTROLLER_CORE_H

#include <jansson.h>
#include <stdbool.h>
#include <uthash.h>

#include "controller/claim.h"
#include "controller/controller.h"
#include "core/catalog/catalog.h"
#include "core/job/job.h"
#include "core/listening.h"
#include "rpc/agent_calls.h"
#include "rpc/controller_calls.h"
#include "rpc/l3_calls.h"

struct change;
struct hl_store;
struct hl_store_writer;

struct hl_controller {
    struct hl_controller_opts opts;
    unsigned refs; /* one for its owner, and one per call in progress */
    void (*destroy)(struct hl_controller *c);
    bool closing;
    struct hl_store *store;
    struct hl_store_writer *writer;
    struct change *changes; /* changes of the catalogue: the first is being written */
    bool making;            /* the first is being made */
    struct hl_catalog catalog;
    json_t *damaged; /* maps keys of unreadable records to the reason; NULL = none */
    struct hl_rpc_server *server;
    struct hl_rpc_peer *l3;
    struct hl_listening listening; /* clock for all deadlines by which others are judged */
    /* This process was paused, or the wall clock was set: shifts open deadlines and ages. NULL:
     * there are none. */
    void (*clocks_shifted)(struct hl_controller *c, int64_t paused_ms, int64_t stepped_ms);
    struct claim claim;
    bool slots_changed; /* slots or versions have changed: pending jobs may try again */
    struct nodes *nodes;
    struct copies *copies;
    struct placement *placement;
    struct models *models;
    struct jobs *jobs;
    struct gangs *gangs; /* kube_executor's; NULL = no Kubernetes */
    struct service *service;
};

/* Checks the clocks. Every external event begins with it, so that a pause of this process is
 * detected before anything is judged. */
void controller_check_clocks(struct hl_controller *c);
/* A clock for ages: starts at wall time and then follows the monotonic clock. */
int64_t controller_steady_ms(const struct hl_controller *c);
/* How the Agents of this cluster run containers. */
enum hl_job_executor controller_agents_kind(const struct hl_controller *c);

/* Takes a reference before a call, so that the Controller outlives the answer. `done` must begin
 * with controller_stopped. */
static inline struct hl_controller *controller_hold(struct hl_controller *c)
{
    c->refs++;
    return c;
}
/* Call it at the beginning of a typed handler, whose `arg` is the Controller. */
struct hl_controller *controller_enter(void *arg);
/* Releases the reference. True: the Controller was stopped meanwhile and must not be touched. */
bool controller_stopped(struct hl_controller *c);
/* Releases a reference; the last one frees the Controller. */
void controller_release(struct hl_controller *c);

/* For work that each round retries: true at the first failure after a success, so that it is logged
 * only once. */
static inline bool trouble_is_new(bool *in_trouble, hl_status st)
{
    bool was = *in_trouble;
    *in_trouble = st != HL_OK;
    return *in_trouble && !was;
}

/* Rejects the call with the thread's error text. */
void call_reject(struct hl_rpc_call *call, hl_status st);

#endif
