/* net/dispatch/retry.h - a connection that had to do without RDMA looks for it again, beside its
 * transfers.
 *
 * Owns:    a copy of the options of the connection, and while an attempt is under way its thread
 *          and what that has made.
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

/* The options are complete. `both`: both sides have RDMA, so that every failure is one; else an
 * attempt that finds none at one of them is not a fault, and the pauses double up to 16 times
 * theirs. NULL when out of memory: then it stays as it is. */
struct hl_net_retry *hl_net_retry_new(const struct hl_net_connect_opts *opts, bool both);
/* Never waits: the connection over RDMA that an attempt has made (the caller's then), else NULL;
 * starts an attempt when its time has come. */
struct hl_net_client *hl_net_retry_poll(struct hl_net_retry *r);
/* An attempt under way is given up. NULL is allowed. */
void hl_net_retry_free(struct hl_net_retry *r);

#endif
