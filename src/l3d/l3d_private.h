/* State of the L3 daemon, shared by the files of this folder. */
#ifndef HL_L3D_PRIVATE_H
#define HL_L3D_PRIVATE_H

#include <jansson.h>
#include <stdatomic.h>

#include "l3d/l3d.h"
#include "rpc/rpc.h"

struct hl_l3_server;
struct hl_net_server;
struct import;

struct hl_l3d {
    struct hl_loop *loop;
    struct hl_pool *pool;
    struct hl_l3_server *local;
    struct hl_net_server *net;
    struct hl_rpc_server *server;
    struct import *imports; /* by id */
    int import_threads;
    int remove_pool;
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

/* put.c */
hl_status net_start(struct hl_l3d *d, const char *listen);

#endif
