/* controller/core.h - what every wing of the Controller works with: its state, its clocks, and the
 * holds that keep it alive while an answer is awaited.
 *
 * Owns:    the store, the peer of L3, the server, the catalogue. What a wing keeps is its own: here
 *          it is a pointer to a struct that only the wing's private header defines.
 * Threads: everything on the loop's thread; the store's writer calls back on it.
 * Errors:  none.
 * Units:   ms, ns; listened time (core/listening.h) for what judges others by their silence.
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
    unsigned refs; /* its owner's, and one per call under way */
    void (*destroy)(struct hl_controller *c);
    bool closing;
    struct hl_store *store;
    struct hl_store_writer *writer;
    struct change *changes; /* of the catalogue: the first is being written */
    bool making;            /* the first is being made */
    struct hl_catalog catalog;
    json_t *damaged; /* key of a record that can't be read: why; NULL = none */
    struct hl_rpc_server *server;
    struct hl_rpc_peer *l3;
    struct hl_listening listening; /* the time for every deadline by which others are judged */
    /* This process stood still, or the wall clock was set: move deadlines and ages that are open.
     * NULL: there are none. */
    void (*clocks_shifted)(struct hl_controller *c, int64_t paused_ms, int64_t stepped_ms);
    struct claim claim;
    bool slots_changed; /* or versions: pending jobs may try again */
    struct nodes *nodes;
    struct copies *copies;
    struct placement *placement;
    struct models *models;
    struct jobs *jobs;
    struct gangs *gangs; /* kube_executor's; NULL = no Kubernetes */
    struct service *service;
};

/* Look at the clocks. Everything that comes from outside begins with it, so that a pause of this
 * process is known before anything is judged. */
void controller_check_clocks(struct hl_controller *c);
/* For ages: wall time at the start, from then on the monotonic clock. */
int64_t controller_steady_ms(const struct hl_controller *c);
/* How the Agents of this cluster run containers. */
enum hl_job_executor controller_agents_kind(const struct hl_controller *c);

/* Before a call: the Controller outlives the answer. `done` begins with controller_stopped. */
static inline struct hl_controller *controller_hold(struct hl_controller *c)
{
    c->refs++;
    return c;
}
/* At the begin of a typed handler, whose `arg` is the Controller. */
struct hl_controller *controller_enter(void *arg);
/* True: the Controller was stopped meanwhile, nothing of it may be touched. */
bool controller_stopped(struct hl_controller *c);
/* Ends a hold, and with the last one the Controller. */
void controller_release(struct hl_controller *c);

/* Of what each round tries again: true with the first failure after a success, for it is logged
 * once. */
static inline bool trouble_is_new(bool *in_trouble, hl_status st)
{
    bool was = *in_trouble;
    *in_trouble = st != HL_OK;
    return *in_trouble && !was;
}

/* Reject with the thread's failure text. */
void call_reject(struct hl_rpc_call *call, hl_status st);

#endif
