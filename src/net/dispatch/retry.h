/* net/dispatch/retry.h - a connection that fell back from RDMA tries RDMA again, in parallel with
 * its transfers.
 *
 * Owns:    a copy of the connection's options and, during an attempt, its thread and what that has
 *          created.
 * Threads: one at a time, its client's.
 * Errors:  none: an attempt that fails is counted (helios_fault_total{cause="rdma-failed"}) and
 *          repeated.
 * Units:   ms of the options.
 * Limits:  one attempt at a time.
 */
#ifndef HL_NET_RETRY_H
#define HL_NET_RETRY_H

#include "net/net.h"

struct hl_net_retry;

/* All options must be filled in. `both`: both sides have RDMA, so every failure is a fault.
 * Otherwise an attempt that finds no RDMA on one side is not a fault, and the pauses double, up to
 * 16 times. NULL when out of memory: the connection then stays as it is. */
struct hl_net_retry *hl_net_retry_new(const struct hl_net_connect_opts *opts, bool both);
/* Returns the connection over RDMA that an attempt has made, which the caller then owns, else NULL.
 * Starts an attempt when one is due. Never waits. */
struct hl_net_client *hl_net_retry_poll(struct hl_net_retry *r);
/* Gives up a running attempt. NULL is allowed. */
void hl_net_retry_free(struct hl_net_retry *r);

#endif
