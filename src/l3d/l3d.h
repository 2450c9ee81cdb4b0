/* l3d/l3d.h - the L3 daemon: a pool, its socket for this host, its data port for others, and
 * imports.
 *
 * Owns:    the pool, the archive, the socket, the network server, the RPC server, the running
 *          imports.
 * Threads: calls on the loop's thread; imports have one thread each (and its workers), the network
 *          a thread of its own.
 * Errors:  start-up failures as status; later ones are answered to the caller.
 * Units:   bytes, ms.
 * Limits:  5 imports and cuts at a time, 4 of them imports; 1000 remembered.
 */
#ifndef HL_L3D_L3D_H
#define HL_L3D_L3D_H

#include "base/buf.h"
#include "fetch/remote.h"
#include "l3d/l4.h"
#include "mem/pool/pool.h"
#include "mem/tier/tier.h"
#include "net/conf.h"

struct hl_loop;
struct hl_rpc;
struct hl_l3d;

struct hl_l3d_opts {
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    const struct hl_net_conf *net; /* for its data port, and for reads from other stores */
    struct hl_retry read_retry;    /* for chunks of another store with a wrong checksum */
    struct hl_pool_options pool;
    struct hl_tier_limits limits; /* of the pool; the quota is its size */
    struct l4_opts archive;

    /* Set by options, see hl_l3d_rows. */
    const char *listen;      /* host:port of the RPC */
    const char *data_listen; /* host:port; "" = none */
    const char *socket_path;
    int import_threads; /* 0 = one per CPU */
    uint64_t cut_plans; /* bytes */
    bool remove_pool;   /* on stop */
    /* The caller makes `pool` from these: */
    const char *name;
    const char *pool_path; /* "" = derived from the name */
    const char *numa;      /* for hl_pool_regions_parse */
    uint64_t size;
};

extern const struct hl_option_rows hl_l3d_rows;

hl_status hl_l3d_start(const struct hl_l3d_opts *opts, struct hl_l3d **out) HL_CHECK;
/* Cancels and undoes running imports. The pool's file stays, unless remove_pool is set. NULL is
 * fine. */
void hl_l3d_stop(struct hl_l3d *d);
const char *hl_l3d_address(const struct hl_l3d *d);
/* "" when there is none. */
const char *hl_l3d_data_address(const struct hl_l3d *d);
/* Appends the gauges of the tiers; call on the loop. */
hl_status hl_l3d_gauges(struct hl_l3d *d, struct hl_buf *out) HL_CHECK;
/* Appends a line for each problem; nothing when all is well. Call on the loop. */
hl_status hl_l3d_health(struct hl_l3d *d, struct hl_buf *out) HL_CHECK;

#endif
