/* agent/agent_private.h - the parts of an Agent.
 *
 * Threads: the loop, except for what workers get in their own structs.
 */
#ifndef HL_AGENT_AGENT_PRIVATE_H
#define HL_AGENT_AGENT_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "agent/agent.h"
#include "agent/heartbeat.h"
#include "agent/obeyed.h"
#include "agent/orders.h"
#include "agent/ports.h"
#include "base/host_port.h"
#include "hw/engine/image_pulls.h"
#include "hw/executor.h"
#include "hw/health/health.h"
#include "hw/load/telemetry.h"
#include "os/loop.h"
#include "rpc/agent_calls.h"

/* The state of our link to the Controller; a change is logged once. */
enum link_state { LINK_NEW, LINK_REGISTERED, LINK_AWAY, LINK_REFUSED };

struct link {
    struct hl_rpc_peer *peer;
    uv_timer_t timer;
    enum link_state state;
    struct heartbeat heartbeat;
    bool in_flight;   /* gathering or calling */
    uint64_t sent_ms; /* when that call was made, from hl_now_ns */
    int64_t test_told,
        test_sent; /* timeMs of the test that the Controller knows; of the one being sent */

    struct kept_check {
        bool known, asking;
        uint64_t seen, asked; /* shardsLeft of the last answer; of the pending question */
        uint64_t again_ns;    /* 0 = never */
    } kept;
};

/* Changes of containers; counted by the executor's thread. */
struct agent_changes {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned count;
};

#define STEPS_DIR_MAX  4096
#define STEPS_PATH_MAX (STEPS_DIR_MAX + HL_CONTAINER_ID_MAX + 2)

struct hl_agent;

/* health.c: the last test. */
struct agent_health {
    struct hl_health_opts opts;       /* slots and strings are in the agent's arena */
    bool wanted;                      /* a test is wanted when the Agent starts */
    pthread_t thread;                 /* runs the first test */
    void (*tell)(struct hl_agent *a); /* called on the loop when the first test is done */
    pthread_mutex_t lock;             /* guards the following fields; not held while a test runs */
    struct hl_arena arena;
    struct hl_api_health last;
};

struct hl_agent {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_executor *executor;
    struct agent_changes changes;
    struct hl_rpc_server *server;
    struct link link;
    struct obeyed obeyed;
    struct orders orders;
    char name[128];
    char address[HL_HOST_PORT_MAX];
    char host_id[64];
    char rank_address[128];
    char host_address[64]; /* rank_address as an IP address, "" = it has none */
    char interface[64];    /* network interface of rank_address, "" = unknown */
    const char *verbs_dir; /* /sys/class/infiniband */
    const char **gpus;     /* PCI addresses, in the order of the driver's numbers */
    size_t gpu_count;
    char *python_dir;
    char *library;
    char steps_dir[STEPS_DIR_MAX]; /* steps.c */
    struct hl_arena arena; /* holds node and gpus, which don't change while other threads run */
    struct hl_api_node_info node; /* without tiers and storeEpoch */
    struct store *store;
    struct ports ports;
    struct hl_image_pulls *pulls;
    struct chunks *chunks;          /* NULL = the table could not be made */
    struct hl_telemetry *telemetry; /* NULL = none */
    struct agent_health health;
    int rpc_timeout_ms;
    /* told to ranks; 0 = they know best */
    const struct hl_auth_conf *auth; /* what ranks are told of */
    const struct hl_net_conf *data;
    const struct hl_read_conf *read;
    bool closing;
    size_t pending; /* workers and calls in progress */
};

/* link.c */
hl_status link_start(struct hl_agent *a, const char *controller);
/* When the Controller will not have been heard for so long that jobs may continue without this
 * node; hl_now_ns in ms. UINT64_MAX: never. */
uint64_t link_lapses_ms(const struct hl_agent *a);
/* Sends a heartbeat now, or right after the call in progress. */
void link_tell(struct hl_agent *a);
void link_stop(struct hl_agent *a);

/* The node's tiers, for shards and for chunks. */
hl_status agent_tiers(struct hl_agent *a, struct hl_arena *arena,
                      struct hl_api_tier_info_list *out) HL_CHECK;
/* The node's current telemetry; time 0: unknown. Any thread. */
void agent_telemetry(struct hl_agent *a, const struct hl_api_container_status_list *containers,
                     struct hl_arena *arena, struct hl_api_telemetry *out);
/* health.c; any thread. Call it after make_node. */
hl_status health_init(struct hl_agent *a, const struct hl_agent_opts *opts) HL_CHECK;
void health_fini(struct hl_agent *a);
/* Tests the node; whole: includes tests that slow down running ranks. *out is in the arena. */
hl_status health_test(struct hl_agent *a, bool whole, struct hl_arena *arena,
                      struct hl_api_health *out) HL_CHECK;
/* The result of the last test, in the arena; TESTING: the first one is still running. */
hl_status health_tell(struct hl_agent *a, struct hl_arena *arena,
                      struct hl_api_health *out) HL_CHECK;
/* Call it once, on the loop: starts the first test in its own thread, if one is wanted; `tell` is
 * called afterwards. */
hl_status health_begin(struct hl_agent *a, void (*tell)(struct hl_agent *a)) HL_CHECK;
/* What the node reports about itself now. */
hl_status agent_node(struct hl_agent *a, struct hl_arena *arena,
                     struct hl_api_node_info *out) HL_CHECK;

#define CHUNKS_TIERS_MAX 33

/* store_chunks.c: the HybridPS table of this node's ranks. Any thread. */
/* Writes capacities to `out`, which has HL_MANAGER_DEVICES entries: the host's bytes, then those of
 * the GPUs in order of their numbers, or an emulated device without a limit if there are none.
 * Returns how many. */
uint32_t chunks_capacities(const struct hl_api_slot_list *slots, uint64_t host, uint64_t *out);
/* limit: bytes of host memory; 0 = all of it. */
hl_status chunks_open(const char *node, const char *state_dir, const struct hl_api_slot_list *slots,
                      uint64_t limit, struct chunks **out) HL_CHECK;
/* NULL is fine, here and below. The table stays while ranks use it. */
void chunks_close(struct chunks *c);
const char *chunks_name(const struct chunks *c);
/* The tiers of the host and each device, while there are processes; at most CHUNKS_TIERS_MAX. */
size_t chunks_tiers(struct chunks *c, struct hl_arena *arena, struct hl_api_tier_info *out);
/* Asks the ranks for this and nothing else; nothing is asked at first. Does not wait. */
void chunks_ask(struct chunks *c, const struct hl_api_chunk_request_list *requests);

/* calls.c */
extern const struct hl_agent_handlers calls_handlers;

/* ranks.c: any thread. Kills a rank's process; *ended false: it was already replaced or gone. */
hl_status rank_end(struct hl_agent *a, const struct hl_api_agent_end_rank_params *p,
                   struct hl_arena *arena, bool *ended) HL_CHECK;
/* steps.c: any thread. */
hl_status steps_open(struct hl_agent *a, const char *state_dir) HL_CHECK;
/* Passes each rank of the container its page. */
hl_status steps_prepare(struct hl_agent *a, struct hl_container_spec *spec) HL_CHECK;
/* Fills in the progress of the ranks of running containers. */
void steps_tell(struct hl_agent *a, struct hl_arena *arena,
                struct hl_api_container_status_list *containers);
void steps_forget(struct hl_agent *a, const char *id);
/* After a start that was refused: forgets the pages unless the container exists. */
void steps_forget_refused(struct hl_agent *a, const char *id);

/* env.c */
/* Fills in rank_address, host_address and interface. */
void env_find_addresses(struct hl_agent *a, const char *controller, const char *wanted);
/* Checks a comma-separated list of addresses; it may be empty. */
hl_status env_check_addresses(const char *list) HL_CHECK;
/* Numbers the GPUs of a machine as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID. */
hl_status env_find_gpus(struct hl_agent *a, const struct hl_api_slot_list *slots) HL_CHECK;
/* Adds what a rank needs to know about its node, unless the spec has it. */
hl_status env_complete(const struct hl_agent *a, struct hl_container_spec *spec);

#endif
