/* mem/socket/l3_server.h - the pool's Unix socket: hands out the pool, takes puts, holds borrowers'
 * pins.
 *
 * Owns:    the listening socket (its path is removed at stop), the connections and their pins.
 * Threads: everything on the loop given; the copies of puts run in libuv's worker threads.
 * Errors:  start: HL_EBUSY when another server answers on the path, HL_EINVAL, HL_EPERM, HL_EIO.
 *          Bad messages end only their own connection.
 * Units:   bytes.
 * Limits:  `max_clients` connections; further ones are closed at once. One put at a time per
 *          connection, HL_L3_PINS_MAX pins and mappings.
 */
#ifndef HL_MEM_L3_SERVER_H
#define HL_MEM_L3_SERVER_H

#include "mem/pool/pool.h"

struct hl_loop;
struct hl_l3_server;

typedef void (*hl_l3_loaded)(void *arg, hl_status st, const char *text);

/* A copy in device memory that is lent to a client. */
struct hl_l3_mapping {
    struct hl_id id;
    int fd;                  /* handed out, then closed by the server */
    uint64_t offset, length; /* to map of it */
    uint64_t size;           /* of the shard */
    uint32_t crc32, gen;
    char device[96];
    void *handle; /* the lender's own */
};

struct hl_l3_server_opts {
    struct hl_loop *loop;
    struct hl_pool *pool; /* borrowed until stop has returned */
    const char *socket_path;
    unsigned max_clients; /* 0 = 1024 */
    /* Bring a shard that a client wants to pin into the pool; `done` comes once, on the loop, after
     * this has returned. NULL: what is not in the pool can't be pinned. */
    void (*load)(void *arg, struct hl_id id, hl_l3_loaded done, void *done_arg);
    /* Room for a put, called in a worker thread, where it may wait; id none = a fresh one. NULL:
     * the pool's own. */
    hl_status (*alloc)(void *arg, struct hl_id id, uint64_t size, struct hl_pool_extent *out);
    /* Lend a copy in device memory, and take it back, once for each; on the loop. NULL: there is no
     * device. */
    hl_status (*map)(void *arg, struct hl_id id, struct hl_l3_mapping *out);
    void (*unmap)(void *arg, struct hl_l3_mapping *mapping);
    void *arg;
};

struct hl_l3_server_stats {
    uint64_t clients;
    uint64_t pins;
    uint64_t puts;
    uint64_t put_bytes;
    uint64_t puts_aborted;
    uint64_t refused; /* bad messages and connections above the limit */
};

hl_status hl_l3_server_start(const struct hl_l3_server_opts *opts,
                             struct hl_l3_server **out) HL_CHECK;
void hl_l3_server_stats(const struct hl_l3_server *s, struct hl_l3_server_stats *out);
/* Pins are not given back: the pool ends too, and its next owner's borrowers pin again. Waits for
 * copies under way (they stop within a MiB); call it on the loop's thread when the loop
 * does not run. NULL is fine. */
void hl_l3_server_stop(struct hl_l3_server *s);

#endif
