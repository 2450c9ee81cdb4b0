/* l3d/l3d_private.h - the state of the L3 daemon.
 *
 * Threads: the daemon's loop, except for the atomic members.
 */
#ifndef HL_L3D_PRIVATE_H
#define HL_L3D_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/catalog/importing.h"
#include "l3d/l3d.h"
#include "os/netline.h"
#include "rpc/l3_calls.h"

/* Extents in one answer. */
#define INVENTORY_MAX 10000

struct hl_l3_server;
struct hl_net_server;
struct hl_tier_store;
struct cut_plans;
struct import;
struct heal;
struct l4;

struct hl_l3d {
    struct hl_loop *loop;
    struct hl_pool *pool;
    struct hl_netline backbone;
    struct hl_tier_store *tier;                         /* over the pool; for usage figures */
    struct hl_pool_region regions[HL_POOL_REGIONS_MAX]; /* `used` is that of the start */
    size_t region_count;
    struct hl_l3_server *local;
    struct hl_net_server *net;
    struct hl_rpc_server *server;
    struct hl_rpc *rpc;
    struct import *imports; /* by id */
    struct cut_plans *cut_plans;
    struct l4 *l4;      /* the archive, and workers */
    struct heal *heals; /* by id */
    /* Numbers of the running cuts (core/catalog/derived_id.h), 0 = a free place. Their shards are
     * not evicted for later ones. */
    _Atomic uint64_t running_cuts[HL_IMPORT_PLACES];
    int import_threads;
    int connect_ms; /* deadline of a connect to a node's store */
    struct hl_retry read_retry;
    bool remove_pool;
    bool claiming;        /* a claim is being written into the archive */
    unsigned verifying;   /* calls of verify not yet answered */
    atomic_bool stopping; /* ends the work in workers */
    char *socket_path;
    char host_id[64];
};

/* imports.c */
hl_status import_start(struct hl_l3d *d, const struct hl_api_import_request *request) HL_CHECK;
hl_status import_start_cut(struct hl_l3d *d, const struct hl_api_cut_request *request) HL_CHECK;
hl_status import_progress(struct hl_l3d *d, const char *id, struct hl_arena *arena,
                          struct hl_api_import_progress *out) HL_CHECK;
/* Unknown id: fine. */
void import_cancel(struct hl_l3d *d, const char *id);
/* Cancels all imports and waits for their threads. */
void imports_stop(struct hl_l3d *d);

/* locate.c */
void method_locate(void *arg, struct hl_rpc_call *call,
                   const struct hl_api_l3_locate_params *params);
void method_look(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_look_params *params);
struct hl_api_extent extent_of(const struct hl_pool_ref *ref, struct hl_arena *arena);

/* heal.c */
void method_heal(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_heal_params *params);

/* l4_methods.c */
/* PoolInfo.archiveMode. */
enum hl_api_archive_mode l4_mode(const struct hl_l3d *d);
/* False without an archive. */
bool l4_tier(struct hl_l3d *d, struct hl_api_tier_info *out);
void method_archive(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_l3_archive_params *params);
void method_evict(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_evict_params *params);
void method_order_eviction(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_order_eviction_params *params);
void method_touch(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_touch_params *params);
void method_drop_archived(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_l3_drop_archived_params *params);
void method_list_archived(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_l3_list_archived_params *params);
void method_state_archived(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_state_archived_params *params);

void method_stop(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_stop_params *params);
void method_untrash(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_l3_untrash_params *params);

/* trash.c */
void method_list_trash(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_l3_list_trash_params *params);

/* claim.c */
void method_claim(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_claim_params *params);
/* HL_EPERM unless the call names the pool's cluster, or the pool is unclaimed. */
hl_status claim_allows(struct hl_l3d *d, const char *cluster) HL_CHECK;
/* The same, but a call that names no cluster is allowed. */
hl_status claim_allows_import(struct hl_l3d *d, const char *cluster) HL_CHECK;
/* The same for pool and archive. */
hl_status claim_allows_archive(struct hl_l3d *d, const char *cluster) HL_CHECK;

/* manifests.c */
void method_put_manifest(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_l3_put_manifest_params *params);
void method_describe(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_l3_describe_params *params);

/* put.c */
hl_status net_start(struct hl_l3d *d, const struct hl_l3d_opts *opts);

#endif
