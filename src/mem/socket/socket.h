/* mem/socket/socket.h - the pool's Unix socket. The server hands out the pool, accepts puts and
 * holds borrowers' pins. A client on the same host maps the pool, pins shards and puts new ones.
 *
 * Owns:    a server owns the listening socket (whose path is removed at stop), the connections and
 *          their pins. A client owns its connection, one reference to the view, and its pins; the
 *          server drops the pins when the connection ends, so a client that dies leaks nothing.
 * Threads: a server runs on the given loop and copies puts in libuv's worker threads. A client may
 *          be used from any thread; its requests are serialised. Reading through the view needs no
 *          client.
 * Errors:  start: HL_EBUSY when another server answers on the path, HL_EINVAL, HL_EPERM, HL_EIO.
 *          A bad message closes only its own connection. Client: HL_EUNAVAIL (no process listens,
 *          or the connection is lost and the pins are gone: close and connect again), HL_ETIMEDOUT,
 *          HL_ESTALE, HL_ENOENT, HL_ENOSPC, HL_EPROTO. After HL_EUNAVAIL, HL_ETIMEDOUT and
 *          HL_EPROTO every further call returns HL_EUNAVAIL.
 * Units:   bytes, milliseconds.
 * Limits:  `max_clients` connections, at most 256 of one process; further ones are closed at once.
 *          One put at a time and at most HL_L3_PINS_MAX pins and mappings per connection.
 */
#ifndef HL_MEM_SOCKET_H
#define HL_MEM_SOCKET_H

#include <stdbool.h>

#include "mem/pool/pool.h"

#define HL_L3_PINS_MAX 65536

/* ---- server ---------------------------------------------------------------------------------- */

struct hl_loop;
struct hl_l3_server;

typedef void (*hl_l3_loaded)(void *arg, hl_status st, const char *text);

/* A copy in device memory that the server lends to a client. */
struct hl_l3_mapping {
    struct hl_id id;
    int fd;                  /* handed out, then closed by the server */
    uint64_t offset, length; /* the part of fd to map */
    uint64_t size;           /* of the shard */
    uint32_t crc32, gen;
    char device[96];
    char pci[16]; /* PCI address of a real device, "" for others */
    void *handle; /* the lender's own */
};

struct hl_l3_server_opts {
    struct hl_loop *loop;
    struct hl_pool *pool; /* borrowed until stop has returned */
    const char *socket_path;
    /* RPC address of the pool's owner, sent to clients; read when they connect. NULL = none. */
    const char *rpc_address;
    unsigned max_clients; /* 0 = 1024 */
    /* Loads a shard that a client wants to pin into the pool; must call `done` once, on the loop,
     * after this has returned. NULL: only shards in the pool can be pinned. */
    void (*load)(void *arg, struct hl_id id, hl_l3_loaded done, void *done_arg);
    /* Allocates room for a put. Called in a worker thread, where it may wait; no id = a new one.
     * NULL: use the pool's own allocation. */
    hl_status (*alloc)(void *arg, struct hl_id id, uint64_t size, struct hl_pool_extent *out);
    /* Lends a copy in device memory, and takes it back once per loan; on the loop. NULL: there is
     * no device. */
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
/* Pins are not returned: the pool is closing too, and borrowers pin again with its next owner.
 * Waits for running copies, which stop within a MiB. Call it on the loop's thread while the loop
 * does not run. NULL is fine. */
void hl_l3_server_stop(struct hl_l3_server *s);

/* ---- client ---------------------------------------------------------------------------------- */

struct hl_l3_client;

hl_status hl_l3_connect(const char *socket_path, int timeout_ms,
                        struct hl_l3_client **out) HL_CHECK;
/* Drops the pins. NULL is fine. */
void hl_l3_close(struct hl_l3_client *c);
/* The address at which the pool's owner answers RPCs, "" = none given. Borrowed for the client's
 * life. */
const char *hl_l3_rpc_address(const struct hl_l3_client *c);
/* Borrowed for the client's life; hl_pool_view_get to keep it longer. */
struct hl_pool_view *hl_l3_view(struct hl_l3_client *c);
/* HL_OK while the connection is up and the pool's owner is alive; sends no message. */
hl_status hl_l3_alive(struct hl_l3_client *c) HL_CHECK;

/* Whether the connection is up, however busy the owner is. */
bool hl_l3_connected(struct hl_l3_client *c);

/* Keeps the shard's bytes in place until hl_l3_unpin or the end of the connection; pins are
 * counted. `ref` is up to date. offset: 0, or the offset at which the shard is already mapped;
 * after a reconnect this also finds a shard that was freed meanwhile but whose bytes are still
 * there. The last unpin of a pin with offset 0 lets it rest (mem/pool/rest.h): neither that unpin
 * nor the next pin of the shard costs a message, until the server takes the pin back. */
hl_status hl_l3_pin(struct hl_l3_client *c, struct hl_id id, uint64_t offset, int timeout_ms,
                    struct hl_pool_ref *ref) HL_CHECK;
hl_status hl_l3_unpin(struct hl_l3_client *c, const struct hl_pool_ref *ref,
                      int timeout_ms) HL_CHECK;

/* A copy in the memory of one of the node's devices: map [offset, offset + length) of fd
 * (hl_device_import); the shard is its first `size` bytes. It stays until hl_l3_unmap or the end of
 * the connection. The caller closes fd. */
struct hl_l3_device_copy {
    int fd;
    uint64_t offset, length;
    uint64_t size;
    uint32_t crc32;
    uint32_t token;
    char device[96]; /* the node's name of it: "emu:0" */
    char pci[16];    /* "" = none; ordinals of a driver differ between processes */
};

/* HL_ENOENT: in no device; HL_EUNSUPPORTED: the node has none. */
hl_status hl_l3_map(struct hl_l3_client *c, struct hl_id id, int timeout_ms,
                    struct hl_l3_device_copy *out) HL_CHECK;
hl_status hl_l3_unmap(struct hl_l3_client *c, uint32_t token, int timeout_ms) HL_CHECK;

/* Memory for a new shard while it is being written: a memfd that the server copies from. */
struct hl_l3_staging {
    int fd;
    void *ptr;
    uint64_t size;
};

hl_status hl_l3_staging_open(uint64_t size, struct hl_l3_staging *out) HL_CHECK;
/* A zeroed one is fine. */
void hl_l3_staging_close(struct hl_l3_staging *s);
/* Makes the first `size` bytes of the staging memory a sealed shard. */
hl_status hl_l3_put(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                    int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* The same under a given id: HL_EEXIST when the pool already has it. */
hl_status hl_l3_put_as(struct hl_l3_client *c, struct hl_id id, const struct hl_l3_staging *s,
                       uint64_t size, int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* The same, private to this connection: the shard is pinned once, never found, and freed with
 * hl_l3_unpin or the end of the connection. */
hl_status hl_l3_lease(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                      int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* Removes the shard that this connection put last, for when its CRC is not the expected one. */
hl_status hl_l3_drop(struct hl_l3_client *c, struct hl_id id, int timeout_ms) HL_CHECK;

#endif
