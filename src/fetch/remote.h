/* fetch/remote.h - reading a shard that lies in the memory of another host: ask its owner where it
 * lies, fetch that range, compare every chunk with its checksum, and fetch bad chunks again.
 *
 * Owns:    nothing; connection and extent belong to the caller.
 * Threads: any; one read at a time over a connection.
 * Errors:  HL_ECORRUPT a chunk fails its checksum also after the last retry, or the checksums of a
 *          shard do not add up; HL_ESTALE the shard has other bytes than before; HL_EINVAL a range
 *          outside the shard; HL_EPROTO the owner's answer can't be used; what hl_rpc_call,
 *          hl_net_fetch_verified and the callbacks return. No text names the model: the caller
 *          knows it.
 * Units:   bytes, milliseconds.
 * Limits:  as net/net.h.
 */
#ifndef HL_FETCH_REMOTE_H
#define HL_FETCH_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"
#include "base/status.h"

struct hl_net_client;
struct hl_rpc_peer;

/* How often something bad is read again. The pause before it is `pause_ms`, then ten and a hundred
 * times as long. */
struct hl_retry {
    int count;
    int pause_ms;
};

/* Before attempt number `tried` (0 = the first repetition). */
int hl_retry_pause_ms(const struct hl_retry *retry, int tried);
/* Sleeps so long, at most left_ms. There is nothing to wait for: bad bytes are read again, and who
 * writes them sends no message. */
void hl_retry_pause(const struct hl_retry *retry, int tried, int left_ms);

/* Where a shard lies in a pool or store, and what its bytes are. */
struct hl_extent {
    struct hl_id id;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t gen;
    uint32_t crcs[]; /* one per chunk */
};

/* The daemon that locates the shards of a memory. */
enum hl_extent_owner { HL_EXTENT_OF_L3, HL_EXTENT_OF_AGENT };

hl_status hl_extent_ask(struct hl_rpc_peer *peer, enum hl_extent_owner owner,
                        struct hl_api_text_list ids, int timeout_ms, struct hl_arena *arena,
                        struct hl_api_extent_list *out) HL_CHECK;
/* Checked: the checksums are as many as there are chunks and add up to crc32. free() it. */
hl_status hl_extent_parse(const struct hl_api_extent *said, struct hl_extent **out) HL_CHECK;
/* Both, of one shard. */
hl_status hl_extent_locate(struct hl_rpc_peer *peer, enum hl_extent_owner owner, struct hl_id id,
                           int timeout_ms, struct hl_extent **out) HL_CHECK;

/* What a read needs of its caller. */
struct hl_remote_ops {
    /* Milliseconds until the deadline, at least 1; fails when it has passed. */
    hl_status (*left_ms)(void *arg, int *ms);
    /* Ask again where the shard lies; the old extent may be freed. */
    hl_status (*locate)(void *arg, const struct hl_extent **extent);
    /* So many chunks came with a wrong checksum. NULL: not counted. */
    void (*failed)(void *arg, size_t chunks);
    /* A chunk is fetched again. NULL: not counted. */
    void (*retried)(void *arg);
};

struct hl_remote {
    struct hl_net_client *net;
    const struct hl_extent *extent;
    struct hl_retry retry;
    const struct hl_remote_ops *ops;
    void *arg; /* of ops */
};

/* Bytes [offset, offset + len) of the shard. Chunks that are wanted in part are fetched whole, for
 * only these can be checked. On failure dst holds an undefined mix. */
hl_status hl_remote_read(struct hl_remote *r, uint64_t offset, void *dst, uint64_t len) HL_CHECK;

#endif
