/* net/net.h - the wire between hosts: reading a pool by offset, and putting new bytes into it.
 *
 * Between two hosts that both have RDMA the bytes go over UCX, otherwise over TCP
 * (docs/formats.md). A server listens on one TCP port; UCX listens on no TCP port.
 *
 * Owns:    a server owns its threads and its listener and borrows the pool's memory until
 *          hl_net_server_stop; a client owns its connections.
 * Threads: hl_net_server_* from one thread at a time; the put handler is called on the server's own
 *          threads, one call at a time; it may block, but other puts wait for it. A client is used
 *          by one thread at a time.
 * Errors:  HL_EUNAVAIL the peer is dead, refused or unreachable; HL_ETIMEDOUT the deadline or the
 *          stall limit passed; HL_EINVAL a range outside the pool; HL_ECORRUPT a checksum differs;
 *          HL_EPERM the server does not accept the key; HL_EBUSY it has too many connections;
 *          HL_EPROTO the peer does not speak this protocol. After HL_EUNAVAIL, HL_ETIMEDOUT and
 *          HL_EPROTO the connection is dead: close the client and connect again. The text names
 *          peer, range or objects, path and elapsed time. A call's buffers are never accessed after
 *          it has returned.
 * Units:   bytes, milliseconds, chunk numbers (a chunk is HL_CHUNK bytes, the last is shorter).
 * Limits:  no limit on a range; HL_NET_PEERS_MAX connections per server; HL_NET_BAD_MAX reported
 *          chunks. A server without a key lets anyone who reaches its port read the pool, so it
 *          belongs on a network of trusted hosts. Neither the bytes nor the key are encrypted.
 */
#ifndef HL_NET_NET_H
#define HL_NET_NET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/id.h"
#include "base/status.h"

#define HL_NET_BAD_MAX   64
#define HL_NET_PEERS_MAX 1024
/* Bytes of the key that a client shows; all zero = none. */
#define HL_NET_KEY 32

#define HL_NET_ENDPOINTS_MAX 8

struct hl_net_server;
struct hl_net_client;
struct hl_net_conf;
struct hl_net_ops;
struct hl_pace;

/* Where a put goes. `begin` provides `size` bytes of memory for an object that the sender wants to
 * call `id` (none = the sink chooses). Exactly one of `commit` and `abort` follows every successful
 * begin. Before commit is called, the chunk checksums, computed as the bytes arrived, have been
 * combined and found equal to the sender's `crc`. The text of a failing begin or commit (hl_fail)
 * is sent to the client. */
struct hl_net_put_handler {
    hl_status (*begin)(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr);
    hl_status (*commit)(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                        size_t chunk_count, struct hl_id *id);
    void (*abort)(void *arg, void *token);
    void *arg;
};

/* How reads are done. */
enum hl_net_mode {
    HL_NET_AUTO, /* one-sided if the host has verbs and the self-test passes, else requests */
    HL_NET_GET,  /* always one-sided: fails without RDMA */
    HL_NET_ASK,  /* always requests, answered by the server's thread */
};

struct hl_net_server_opts {
    const char *listen;            /* "host:port", port 0 = any free one; RDMA: IPv4 only */
    void *pool;                    /* memory that clients read by offset; page aligned */
    size_t pool_len;               /* bytes */
    struct hl_net_put_handler put; /* begin == NULL: puts are refused */
    enum hl_net_mode mode; /* what clients may use: with HL_NET_GET every client gets a key */
    const struct hl_net_conf *conf; /* for these where they are 0; NULL = the options' defaults */
    int put_queue;                  /* puts open at once, the others wait */
    int put_timeout_ms;             /* a put without progress for this long is given up */
    int connect_ms;                 /* a client must send HELLO within this time */
    int spin_us;                  /* its thread spins this long before it sleeps; < 0: not at all */
    uint8_t key[HL_NET_KEY];      /* clients must present it; none: anyone may connect */
    const struct hl_net_ops *ops; /* NULL: hl_net_auto */
};

struct hl_net_server_stats {
    uint64_t peers_now;
    uint64_t gets;
    /* only what the server's thread sent itself; it can't see one-sided reads */
    uint64_t get_bytes;
    uint64_t puts;
    uint64_t put_bytes;
    uint64_t puts_aborted;
    uint64_t puts_expired; /* those of the aborted that made no progress for too long */
    uint64_t batches;      /* messages that brought several small puts */
    uint64_t refused;      /* ranges outside the pool, malformed messages, puts refused */
};

hl_status hl_net_server_start(const struct hl_net_server_opts *opts,
                              struct hl_net_server **out) HL_CHECK;
/* "host:port" with the real port; borrowed until stop. */
const char *hl_net_server_address(const struct hl_net_server *server);
void hl_net_server_stats(const struct hl_net_server *server, struct hl_net_server_stats *out);
/* Aborts open puts, disconnects the peers and joins the thread. NULL is allowed. */
void hl_net_server_stop(struct hl_net_server *server);

struct hl_net_connect_opts {
    const char *address; /* "host:port", a scheme "tcp://", "rdma://" in front is ignored */
    const struct hl_net_conf *conf; /* for these where they are 0; NULL = the options' defaults */
    int timeout_ms;                 /* deadline of the connect, counted once this host is ready */
    int stall_ms;                   /* a transfer that moves no byte for this long fails */
    int spin_us;                    /* a wait spins this long before it sleeps; < 0: not at all */
    int endpoints;                  /* connections that share the pieces of a large read */
    size_t batch_bytes;             /* small puts share a message of at most this size */
    int rdma_retry_ms; /* time before RDMA is tried again, see hl_net_renew; < 0 never */
    enum hl_net_mode mode;
    uint8_t key[HL_NET_KEY];      /* the key that the server asks for */
    const struct hl_net_ops *ops; /* NULL: hl_net_auto */
    bool rdma_only;               /* fail instead of falling back from RDMA */
    const atomic_bool *cancel;    /* once set, the connect gives up soon; may be NULL */
    const atomic_bool *abandon;   /* likewise for later calls; must outlive the client */
};

/* Numbers of the chunks that arrived with a wrong checksum. */
struct hl_net_bad {
    size_t count;                   /* may be larger than HL_NET_BAD_MAX */
    uint32_t chunk[HL_NET_BAD_MAX]; /* ascending, the first ones */
};

struct hl_net_client_info {
    const char *path; /* "rdma", "tcp" or "emulated", determined by a test, never guessed */
    uint64_t pool_len;
    struct hl_id server; /* random per hl_net_server_start, so a restart is noticed */
    int fell_back;       /* both sides have RDMA, but it did not work */
    bool lacks;          /* this host had no usable adapter when it connected */
};

hl_status hl_net_connect(const char *address, int timeout_ms, struct hl_net_client **out) HL_CHECK;
hl_status hl_net_connect_with(const struct hl_net_connect_opts *opts,
                              struct hl_net_client **out) HL_CHECK;
/* Call between transfers, when a connection is about to be reused: replaces a connection that fell
 * back by one over RDMA if RDMA was found to work meanwhile. Never waits; RDMA is tried in parallel
 * with the transfers, once every rdma_retry_ms. */
void hl_net_renew(struct hl_net_client **client);
/* NULL is allowed. */
void hl_net_close(struct hl_net_client *client);
void hl_net_client_info(const struct hl_net_client *client, struct hl_net_client_info *out);
const char *hl_net_path_name(const struct hl_net_client *client);

/* From now on a transfer ends with HL_ECANCELED soon after the flag is set, and the connection is
 * dead. The flag is borrowed until another one replaces it; NULL = none. */
void hl_net_stop_with(struct hl_net_client *client, const atomic_bool *stop);

/* From now on large puts are paced by `pace`; borrowed like the flag above. */
void hl_net_pace_with(struct hl_net_client *client, struct hl_pace *pace);

/* Copies pool[offset, offset+len) to dst. On failure dst's content is undefined. */
hl_status hl_net_fetch(struct hl_net_client *client, uint64_t offset, void *dst, size_t len,
                       int timeout_ms) HL_CHECK;
/* The same, and computes the CRC-32 of every chunk as it arrives and compares it with chunk_crcs
 * (one per started HL_CHUNK counted from `offset`). HL_ECORRUPT: `bad` names the chunks to fetch
 * again, all others are good. `bad` may be NULL. */
hl_status hl_net_fetch_verified(struct hl_net_client *client, uint64_t offset, void *dst,
                                size_t len, const uint32_t *chunk_crcs, int timeout_ms,
                                struct hl_net_bad *bad) HL_CHECK;
/* Stores len bytes with CRC-32 `crc` as a new object of the server and returns its id. */
hl_status hl_net_put(struct hl_net_client *client, const void *data, size_t len, uint32_t crc,
                     int timeout_ms, struct hl_id *id) HL_CHECK;
/* The same under a given id: HL_EEXIST when the server already has it. */
hl_status hl_net_put_as(struct hl_net_client *client, struct hl_id id, const void *data, size_t len,
                        uint32_t crc, int timeout_ms) HL_CHECK;

/* One of several puts. */
struct hl_net_item {
    const void *data;
    size_t len;
    uint32_t crc;
    struct hl_id id; /* id it wants (none = any), then the one it got */
    hl_status status;
    char *words; /* room for the reason why it was not stored; may be NULL */
    size_t words_cap;
};

/* Stores many objects. Small ones share messages, several of which are in flight; large ones go by
 * themselves. Each item's status is its result. If the connection breaks, items without an answer
 * get the status of the failure, although they may have been stored. Returns the first status that
 * is not HL_OK, with its text. */
hl_status hl_net_put_many(struct hl_net_client *client, struct hl_net_item *items, size_t count,
                          int timeout_ms) HL_CHECK;

/* A back end. A server begins with a pointer to its table, a client with a hl_net_head; `connect`
 * sets `ops`. Arguments are already checked. */
struct hl_net_retry;

struct hl_net_head {
    const struct hl_net_ops *ops;
    struct hl_net_retry *retry; /* net.c's; NULL: nothing better to try */
    const atomic_bool *stop;    /* hl_net_stop_with */
    struct hl_pace *pace;       /* hl_net_pace_with */
};

struct hl_net_ops {
    const char *name;
    hl_status (*server_start)(const struct hl_net_server_opts *opts, struct hl_net_server **out);
    const char *(*server_address)(const struct hl_net_server *server);
    void (*server_stats)(const struct hl_net_server *server, struct hl_net_server_stats *out);
    void (*server_stop)(struct hl_net_server *server);
    hl_status (*connect)(const struct hl_net_connect_opts *opts, struct hl_net_client **out);
    void (*close)(struct hl_net_client *client);
    void (*info)(const struct hl_net_client *client, struct hl_net_client_info *out);
    /* chunk_crcs NULL: nothing is verified. */
    hl_status (*fetch)(struct hl_net_client *client, uint64_t offset, void *dst, size_t len,
                       const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad);
    hl_status (*put)(struct hl_net_client *client, struct hl_net_item *items, size_t count,
                     int timeout_ms);
};

/* For back ends: records another chunk with a wrong checksum. */
void hl_net_bad_note(struct hl_net_bad *bad, size_t chunk);

/* TCP, and RDMA over UCX between two hosts that both have it. */
const struct hl_net_ops *hl_net_auto(void);
const struct hl_net_ops *hl_net_tcp(void);
/* UCX over TCP, with its own listener. For tests only, because malformed bytes on that port crash
 * UCX. */
const struct hl_net_ops *hl_net_ucx(void);

#endif
