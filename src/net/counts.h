/* net/counts.h - what a server of any back end counts.
 *
 * Owns:    nothing.
 * Threads: any; each counter is atomic by itself.
 * Errors:  none.
 * Units:   as hl_net_server_stats.
 * Limits:  none.
 */
#ifndef HL_NET_COUNTS_H
#define HL_NET_COUNTS_H

#include "net/net.h"

struct hl_net_counts {
    _Atomic uint64_t peers, gets, get_bytes, puts, put_bytes, aborted, expired, batches, refused;
};

static inline void hl_net_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void hl_net_counts_read(const struct hl_net_counts *c, struct hl_net_server_stats *out);
/* Bytes that a server sent by TCP, for the use of the networks (base/plane.h). */
void hl_net_plane_served(uint64_t bytes);

#endif
