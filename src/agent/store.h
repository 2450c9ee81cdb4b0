/* agent/store.h - the store of a node: L2 in its memory, L1 in its devices; copies are made on
 * order.
 *
 * The L2 is a pool in a named file, so it outlives the Agent and is adopted by the next one; ranks
 * on this host map it through its Unix socket; other nodes read it over the network and send
 * migrations to it by ZeroMQ. An L1 lives as long as the Agent. The contents are always determined
 * by inventory, never from memory.
 *
 * Owns:    pool, devices, servers, connections, and the threads that copy.
 * Threads: open, close and submit on the loop's thread; everything else from any. Copies run in
 *          separate threads, so that a long one only delays its own caller. `changed` is called
 *          from any thread.
 * Errors:  HL_EUNSUPPORTED (no such tier here), HL_ENOSPC, HL_ENOENT, HL_ECORRUPT (still bad after
 *          all retries), HL_EUNAVAIL, HL_ETIMEDOUT, HL_ECANCELED; a failed copy leaves nothing
 *          behind.
 * Units:   bytes, milliseconds.
 * Limits:  STORE_DEVICES_MAX devices, STORE_JOBS_MAX waiting copies.
 */
#ifndef HL_AGENT_STORE_H
#define HL_AGENT_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "fetch/remote.h"
#include "mem/plank/plank.h"
#include "mem/pool/pool.h"
#include "mem/tier/tier.h"
#include "net/conf.h"
#include "net/zmq/migrate.h"

#define STORE_DEVICES_MAX 16
#define STORE_TIERS_MAX   (1 + STORE_DEVICES_MAX)
#define STORE_JOBS_MAX    4096

struct hl_loop;
struct hl_net_ops;
struct hl_rpc;
struct hl_rpc_call;
struct store;

struct store_opts {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    const char *node; /* serverId */
    const char
        *l2_nodes; /* "0,2": NUMA nodes of this machine that it is spread over; "" = unbound */
    struct hl_pool_options pool;  /* for the L2, except path, capacity and regions */
    struct hl_tier_limits limits; /* watermarks of its tiers */
    struct hl_device_options device;
    struct hl_plank_options plank;
    const struct hl_net_conf *data; /* NULL = defaults */
    struct hl_migrate_tuning migrate;
    struct hl_retry retry; /* retries of a chunk with a wrong checksum */
    /* The whole machine, even if the node is only a share of it; borrowed during open. */
    const struct hl_api_slot_list *machine;
    /* it comes from a file, so its NUMA nodes are not those of the devices */
    bool machine_foreign;
    const struct hl_net_ops *net; /* for fetches; NULL = hl_net_auto */
    const char *rpc_address;      /* of this Agent, for readers; filled in before the loop runs */
    void (*changed)(void *arg);   /* called when the contents of the store have changed */
    void *arg;

    /* Options, from store_rows. */
    const char *host_id;        /* same value = same machine */
    uint64_t l2_size;           /* 0 = no L2 */
    double l2_keep;             /* percent of it for copies kept from reads; 0 = none are kept */
    double l1_keep;             /* the same for each device */
    int loads;                  /* concurrent loads for readers */
    const char *l2_pool;        /* file; its socket is beside it with ".sock" */
    const char *devices;        /* "emu:64MiB,cuda:0", "" = none */
    const char *nic_class;      /* "auto" or a name of core/planner/topo.h */
    const char *data_listen;    /* "" = none */
    const char *migrate_listen; /* "" = none */
    int copies;                 /* threads */
    int locate_timeout_ms; /* timeout for another Agent to say where its copy is; 0 = the copy's */
    int pause_ms;          /* before a copy is retried */
    uint64_t retry_first_ms; /* back-off of the direct path after a failure */
    uint64_t retry_max_ms;
};

extern const struct hl_option_rows store_rows;

hl_status store_open(const struct store_opts *opts, struct store **out) HL_CHECK;
/* Ends copies with HL_ECANCELED; store_busy says how many are not answered yet, while the loop
 * keeps running. */
void store_stop(struct store *s);
unsigned store_busy(const struct store *s);
/* Call it once store_busy is 0. The L2's file stays. NULL is fine. */
void store_close(struct store *s);

/* The addresses on which the servers listen; "" = none. Borrowed. */
const char *store_data_address(const struct store *s);
const char *store_migrate_address(const struct store *s);
const char *store_socket(const struct store *s);
/* Grows with every change of the contents. */
uint64_t store_epoch(const struct store *s);
/* At most STORE_TIERS_MAX. */
size_t store_tiers(struct store *s, struct hl_arena *arena, struct hl_api_tier_info *out);

/* Make a copy here, or send one elsewhere. The call is answered on the loop when it is done; calls
 * for the same copy share the work. */
void store_copy(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request);
void store_send(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request);
/* For a reader: like store_copy into the L2, but the copy stays only as long as the cache rule and
 * the room allow. HL_EUNSUPPORTED: this node keeps none. */
void store_keep(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request);
/* The store keeps copies from reads at all. */
bool store_keeps(const struct store *s);
/* Takes the readers' reports of their reads. */
hl_status store_reads(struct store *s, const struct hl_api_agent_store_reads_params *p) HL_CHECK;
/* The shards of which copies are kept. */
hl_status store_keep_list(struct store *s, struct hl_arena *arena,
                          struct hl_api_text_list *out) HL_CHECK;
/* Drops kept copies of shards that left the catalogue. */
void store_keep_gone(struct store *s, const struct hl_api_text_list *gone);
/* Appends metrics of the kept copies. */
void store_keep_metrics(struct store *s, struct hl_buf *out);
/* On the loop: ends the copies of that migration and returns how many. Copies for which other calls
 * wait continue. */
unsigned store_stop_copies(struct store *s, struct hl_id migration);
/* Results are in the arena. */
hl_status store_drop(struct store *s, const struct hl_api_agent_store_drop_params *p,
                     struct hl_api_agent_store_drop_results *out) HL_CHECK;
hl_status store_list(struct store *s, const struct hl_api_agent_store_list_params *p,
                     struct hl_arena *arena, struct hl_api_agent_store_list_results *out) HL_CHECK;
/* The kept copies of one shard. */
hl_status store_kept(struct store *s, const struct hl_api_agent_store_kept_params *p,
                     struct hl_arena *arena, struct hl_api_agent_store_kept_results *out) HL_CHECK;
hl_status store_locate(struct store *s, const struct hl_api_agent_store_locate_params *p,
                       struct hl_arena *arena,
                       struct hl_api_agent_store_locate_results *out) HL_CHECK;
/* Reads every byte of a copy; ends early with HL_ECANCELED. */
hl_status store_verify(struct store *s, const struct hl_api_agent_store_verify_params *p,
                       struct hl_arena *arena,
                       struct hl_api_agent_store_verify_results *out) HL_CHECK;

#endif
