/* State of the L3 daemon, shared by the files of this folder. */
#ifndef HL_L3D_PRIVATE_H
#define HL_L3D_PRIVATE_H

#include <jansson.h>
#include <stdatomic.h>

#include "l3d/l3d.h"
#include "rpc/rpc.h"

/* Extents in one answer. */
#define INVENTORY_MAX 10000

struct hl_l3_server;
struct hl_net_server;
struct hl_tier_store;
struct import;
struct heal;
struct l4;

struct hl_l3d {
    struct hl_loop *loop;
    struct hl_pool *pool;
    struct hl_tier_store *tier;                         /* over the pool; for its numbers */
    struct hl_pool_region regions[HL_POOL_REGIONS_MAX]; /* `used` of the start */
    size_t region_count;
    struct hl_l3_server *local;
    struct hl_net_server *net;
    struct hl_rpc_server *server;
    struct hl_rpc *rpc;
    struct import *imports; /* by id */
    struct l4 *l4;          /* the archive, and workers */
    struct heal *heals;     /* by id */
    int import_threads;
    int connect_ms; /* of a connection to a node's store */
    int remove_pool;
    int claiming;        /* a claim is being written into the archive */
    unsigned verifying;  /* calls of verify not yet answered */
    atomic_int stopping; /* ends what runs in workers */
    char *socket_path;
    char host_id[64];
};

/* imports.c */
hl_status import_start(struct hl_l3d *d, const json_t *request);
hl_status import_progress(struct hl_l3d *d, const char *id, json_t **out);
/* Unknown id: fine. */
void import_cancel(struct hl_l3d *d, const char *id);
/* Cancel all and wait for their threads. */
void imports_stop(struct hl_l3d *d);

/* locate.c */
void method_locate(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_look(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
json_t *extent_json(const struct hl_pool_ref *ref);

/* heal.c */
void method_heal(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

/* l4_methods.c */
/* PoolInfo.archiveMode. */
const char *l4_mode(const struct hl_l3d *d);
/* TierInfo; NULL without an archive. */
json_t *l4_tier(struct hl_l3d *d);
void method_archive(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_evict(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_touch(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_drop_archived(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_list_archived(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

void method_untrash(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

/* trash.c */
void method_list_trash(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

/* claim.c */
void method_claim(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
/* HL_EPERM unless the call names the pool's cluster, or the pool is unclaimed. */
hl_status claim_allows(struct hl_l3d *d, const json_t *params) HL_CHECK;
/* The same; a call that names none is fine. */
hl_status claim_allows_import(struct hl_l3d *d, const json_t *params) HL_CHECK;
/* The same of pool and archive. */
hl_status claim_allows_archive(struct hl_l3d *d, const json_t *params) HL_CHECK;

/* manifests.c */
void method_put_manifest(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);
void method_describe(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

/* put.c */
hl_status net_start(struct hl_l3d *d, const struct hl_l3d_opts *opts);

#endif
