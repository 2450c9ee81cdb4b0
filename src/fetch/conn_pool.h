/* fetch/conn_pool.h - idle connections, kept for the next transfer.
 *
 * A connection is leased to one thread at a time:
 *
 *     none idle: connect --.                      .-- broken, or of an older epoch: closed
 *                          v                      |
 *     idle ---acquire---> leased ---release-------'-- else: idle, the newest
 *       ^                                                    |
 *       '----------------------------------------------------'
 *
 * Owns:    the idle connections; a leased one belongs to its holder.
 * Threads: the user's lock is held around every call; no function waits or closes anything.
 * Errors:  none.
 * Units:   none.
 * Limits:  `max` connections, at most HL_CONN_POOL_MAX; the one that was idle longest makes room.
 */
#ifndef HL_FETCH_CONN_POOL_H
#define HL_FETCH_CONN_POOL_H

#include "net/net.h"

#define HL_CONN_POOL_MAX 8
#define HL_CONN_POOL_KEY 320

struct hl_conn_pool {
    unsigned max;   /* connections that are kept; 0 = none */
    unsigned epoch; /* connections of an older one are not kept */
    unsigned count; /* oldest first */

    struct hl_conn_pool_entry {
        struct hl_net_client *client;
        char key[HL_CONN_POOL_KEY];
    } kept[HL_CONN_POOL_MAX];
};

struct hl_conn_lease {
    struct hl_net_client *client; /* NULL: connect */
    unsigned epoch;
};

/* Whether a connection can't be used again after a call, of any kind, that ended with `st`: an
 * answer may still arrive, or the peer is gone or was replaced. */
bool hl_conn_is_broken(hl_status st);

/* Leases the connection to `key` that was released last. `key` names the destination, for a pool
 * with several; "" if there is only one. */
struct hl_conn_lease hl_conn_pool_acquire(struct hl_conn_pool *pool, const char *key);
/* `st`: how the last call on it ended. lease->client is then NULL, or what the caller is to close
 * once the lock is released: this connection, or one that had to make room. */
void hl_conn_pool_release(struct hl_conn_pool *pool, const char *key, struct hl_conn_lease *lease,
                          hl_status st);
/* Starts a new epoch: moves the idle connections to `out` (room for HL_CONN_POOL_MAX) for the
 * caller to close, and returns how many. Connections that are leased now will not be kept. */
unsigned hl_conn_pool_clear(struct hl_conn_pool *pool, struct hl_net_client **out);

#endif
