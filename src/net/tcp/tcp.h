/* net/tcp/tcp.h - the TCP back end as seen by auto.c, which chooses a back end.
 *
 * Owns:    nothing beyond what hl_net_ops says.
 * Threads: as of hl_net_ops; hl_tcp_rdma.meet is called by any thread of the server.
 * Errors:  as of hl_net_ops.
 * Units:   bytes, ns of hl_now_ns.
 * Limits:  none.
 */
#ifndef HL_NET_TCP_H
#define HL_NET_TCP_H

#include <stdbool.h>

#include "net/net.h"

/* How a client reaches the server's RDMA side. */
struct hl_tcp_rdma {
    /* Returns the port of UCX, and the ticket that HELLO must carry there. */
    void (*meet)(void *arg, unsigned *port, struct hl_id *ticket);
    void *arg;
};

/* As hl_net_server_start. `rdma` may be NULL; `id` is what clients are told. */
hl_status hl_tcp_server_start(const struct hl_net_server_opts *opts, const struct hl_tcp_rdma *rdma,
                              struct hl_id id, struct hl_net_server **out) HL_CHECK;
/* Whether the server has RDMA. */
bool hl_tcp_client_offered_rdma(const struct hl_net_client *c);
/* For hl_net_client_info. */
void hl_tcp_client_set_lack(struct hl_net_client *c, bool fell_back, bool lacks);
/* Asks the server for the port of UCX and a ticket for it. */
hl_status hl_tcp_client_meet(struct hl_net_client *c, uint64_t deadline_ns, unsigned *port,
                             struct hl_id *ticket) HL_CHECK;

#endif
