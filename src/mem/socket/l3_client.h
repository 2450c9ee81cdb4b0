/* mem/socket/l3_client.h - a process on the pool's host: gets the pool mapped, pins shards, puts
 * new ones.
 *
 * Owns:    the connection, one reference to the view, and its pins (the server drops them when the
 *          connection ends, so a client that dies leaks nothing).
 * Threads: any; requests on one client are serialised. Reading through the view needs no client.
 * Errors:  HL_EUNAVAIL (nobody listens, or the connection is lost: close and connect again; pins
 *          are gone), HL_ETIMEDOUT, HL_ESTALE, HL_ENOENT, HL_ENOSPC, HL_EPROTO. After HL_EUNAVAIL,
 *          HL_ETIMEDOUT and HL_EPROTO every further call says HL_EUNAVAIL.
 * Units:   bytes, milliseconds.
 * Limits:  HL_L3_PINS_MAX pins per connection.
 */
#ifndef HL_MEM_L3_CLIENT_H
#define HL_MEM_L3_CLIENT_H

#include "mem/pool/pool.h"

#define HL_L3_PINS_MAX 65536

struct hl_l3_client;

hl_status hl_l3_connect(const char *socket_path, int timeout_ms,
                        struct hl_l3_client **out) HL_CHECK;
/* Drops the pins. NULL is fine. */
void hl_l3_close(struct hl_l3_client *c);
/* Borrowed for the client's life; hl_pool_view_get to keep it longer. */
struct hl_pool_view *hl_l3_view(struct hl_l3_client *c);
/* HL_OK while the connection stands and the pool's owner is alive; costs no message. */
hl_status hl_l3_alive(struct hl_l3_client *c) HL_CHECK;

/* Whether the connection stands, however busy the owner is. */
int hl_l3_connected(struct hl_l3_client *c);

/* Keep the shard's bytes in place until hl_l3_unpin or the end of the connection; counted. `ref` is
 * fresh. offset: 0, or where the shard is mapped already (after a reconnect: also finds a shard
 * that was freed meanwhile but whose bytes are still there). */
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
    char device[96]; /* "emu:0" */
};

/* HL_ENOENT: in no device; HL_EUNSUPPORTED: the node has none. */
hl_status hl_l3_map(struct hl_l3_client *c, struct hl_id id, int timeout_ms,
                    struct hl_l3_device_copy *out) HL_CHECK;
hl_status hl_l3_unmap(struct hl_l3_client *c, uint32_t token, int timeout_ms) HL_CHECK;

/* Memory of a new shard while it is written: a memfd that the server copies from. */
struct hl_l3_staging {
    int fd;
    void *ptr;
    uint64_t size;
};

hl_status hl_l3_staging_open(uint64_t size, struct hl_l3_staging *out) HL_CHECK;
/* A zeroed one is fine. */
void hl_l3_staging_close(struct hl_l3_staging *s);
/* The first `size` bytes of the staging become a sealed shard. */
hl_status hl_l3_put(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                    int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* The same under a name: HL_EEXIST when the pool has it already. */
hl_status hl_l3_put_as(struct hl_l3_client *c, struct hl_id id, const struct hl_l3_staging *s,
                       uint64_t size, int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* The first `size` bytes of the staging, for this connection alone: pinned once, found by nobody,
 * and gone with hl_l3_unpin or the end of the connection. */
hl_status hl_l3_lease(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                      int timeout_ms, struct hl_pool_ref *ref) HL_CHECK;
/* Take back the shard that this connection has put last (its CRC was not the expected one). */
hl_status hl_l3_drop(struct hl_l3_client *c, struct hl_id id, int timeout_ms) HL_CHECK;

#endif
