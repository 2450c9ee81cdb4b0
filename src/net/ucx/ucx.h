/* net/ucx/ucx.h - the RDMA back end as seen by dispatch/auto.c, which chooses a back end.
 *
 * Owns:    nothing beyond what hl_net_ops says.
 * Threads: as of hl_net_ops; hl_ucx_server_meet from any.
 * Errors:  as of hl_net_ops.
 * Units:   bytes.
 * Limits:  a ticket is valid for HL_UCX_TICKET_NS.
 */
#ifndef HL_NET_UCX_H
#define HL_NET_UCX_H

#include <stdbool.h>

#include "net/net.h"

/* Whether RDMA can be used on this network device ("" = any) by a process that registers `pinned`
 * bytes of its own; `devices` then is UCX's list of the device and its adapters, "" for all. */
bool hl_ucx_verbs_usable(const char *device, size_t pinned, char *devices, size_t cap);
/* Whether this host has an adapter at all. */
bool hl_ucx_verbs_present(void);
/* ---- RDMA only: UCX listens through the RDMA connection manager, on no TCP port; a client gets
 * port and ticket over TCP (auto.c) ---- */

/* As hl_net_server_start, on any free port. `device` and `devices`: the network device and what
 * hl_ucx_verbs_usable wrote for it; `id` is what clients are told. */
hl_status hl_ucx_server_start_rdma(const struct hl_net_server_opts *opts, const char *device,
                                   const char *devices, struct hl_id id,
                                   struct hl_net_server **out) HL_CHECK;
/* Returns the port, and a ticket that HELLO may carry for HL_UCX_TICKET_NS; any thread. */
void hl_ucx_server_meet(struct hl_net_server *s, unsigned *port, struct hl_id *ticket);

struct hl_ucx_meeting {
    const char *device, *devices; /* as above */
    unsigned port;                /* replaces the port of opts->address */
    struct hl_id ticket;
};

/* Fails if a one-sided read does not pass its test, except with HL_NET_ASK, which needs none. */
hl_status hl_ucx_connect_rdma(const struct hl_net_connect_opts *opts,
                              const struct hl_ucx_meeting *meeting,
                              struct hl_net_client **out) HL_CHECK;

#endif
