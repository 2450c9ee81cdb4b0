/* fetch/conn_pool.h - connections that nobody uses at the moment, kept for the next transfer.
 *
 * A connection is on loan to one thread at a time:
 *
 *     none kept: connect --.                    .-- broken, or of an older epoch: closed
 *                          v                    |
 *     kept ---take---> on loan ---give---------'--- else: kept, newest first
 *       ^                                                    |
 *       '----------------------------------------------------'
 *
 * Owns:    the connections it keeps; one on loan is the borrower's.
 * Threads: its user's lock is held around every call; none of them waits or closes anything.
 * Errors:  none.
 * Units:   none.
 * Limits:  `max` connections, at most HL_NET_IDLE_MAX; the one that has lain longest makes room.
 */
#ifndef HL_FETCH_CONN_POOL_H
#define HL_FETCH_CONN_POOL_H

#include "net/net.h"

#define HL_NET_IDLE_MAX 8
#define HL_NET_IDLE_KEY 320

struct hl_net_idle {
    unsigned max;   /* connections that are kept; 0 = none */
    unsigned epoch; /* connections of an older one are not kept */
    unsigned count; /* oldest first */

    struct hl_net_idle_conn {
        struct hl_net_client *client;
        char key[HL_NET_IDLE_KEY];
    } kept[HL_NET_IDLE_MAX];
};

struct hl_net_lease {
    struct hl_net_client *client; /* NULL: connect */
    unsigned epoch;
};

/* One to `key`, the last that was given back. `key` names where it leads, for a pool of several
 * places; "" where there is one. */
struct hl_net_lease hl_net_idle_take(struct hl_net_idle *pool, const char *key);
/* `st`: how the last call on it ended. lease->client is then NULL, or what the caller is to close
 * once the lock is released: this connection or one that made room. */
void hl_net_idle_give(struct hl_net_idle *pool, const char *key, struct hl_net_lease *lease,
                      hl_status st);
/* A new epoch: what is kept goes to `out` (room for HL_NET_IDLE_MAX), to be closed by the caller;
 * what is on loan will not be kept. Returns how many. */
unsigned hl_net_idle_empty(struct hl_net_idle *pool, struct hl_net_client **out);

#endif
