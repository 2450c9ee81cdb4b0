/* fetch/remote.h - reads a shard from the memory of another host: asks its owner where it is,
 * fetches that range, compares every chunk with its checksum, and fetches bad chunks again.
 *
 * Owns:    nothing; connection and extent belong to the caller.
 * Threads: any; one read at a time over a connection.
 * Errors:  HL_ECORRUPT a chunk still fails its checksum after the last retry, or the checksums of a
 *          shard do not add up; HL_ESTALE the shard's bytes have changed; HL_EINVAL a range outside
 *          the shard; HL_EPROTO the owner's answer is unusable; and what hl_rpc_call,
 *          hl_net_fetch_verified and the callbacks return. Texts do not name the model, which only
 *          the caller knows.
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

/* How often bad bytes are read again. The pause is `pause_ms` before the first repetition, then ten
 * and a hundred times as long. */
struct hl_retry {
    int count;
    int pause_ms;
};

/* The pause before repetition number `tried` (0 = the first). */
int hl_retry_pause_ms(const struct hl_retry *retry, int tried);
/* Sleeps that long, at most left_ms. It can't wait for an event, because the writer of the bytes
 * sends no message. */
void hl_retry_pause(const struct hl_retry *retry, int tried, int left_ms);

/* The location of a shard in a pool or store, with its checksums. */
struct hl_extent {
    struct hl_id id;
    uint64_t offset;
    uint64_t size;
    uint32_t crc32;
    uint32_t gen;
    uint32_t crcs[]; /* one per chunk */
};

/* The daemon that knows the location of shards. */
enum hl_extent_owner { HL_EXTENT_OF_L3, HL_EXTENT_OF_AGENT };

hl_status hl_extent_ask(struct hl_rpc_peer *peer, enum hl_extent_owner owner,
                        struct hl_api_text_list ids, int timeout_ms, struct hl_arena *arena,
                        struct hl_api_extent_list *out) HL_CHECK;
/* Checks that there is one checksum per chunk and that they add up to crc32. free() the result. */
hl_status hl_extent_parse(const struct hl_api_extent *said, struct hl_extent **out) HL_CHECK;
/* Asks and parses, for one shard. */
hl_status hl_extent_locate(struct hl_rpc_peer *peer, enum hl_extent_owner owner, struct hl_id id,
                           int timeout_ms, struct hl_extent **out) HL_CHECK;

/* What a read needs of its caller. */
struct hl_remote_ops {
    /* Milliseconds until the deadline, at least 1; fails when it has passed. */
    hl_status (*left_ms)(void *arg, int *ms);
    /* Asks again for the shard's location; can free the old extent. */
    hl_status (*locate)(void *arg, const struct hl_extent **extent);
    /* This number of chunks arrived with a wrong checksum. NULL: not counted. */
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

/* Reads bytes [offset, offset + len) of the shard. Chunks that are needed in part are fetched
 * whole, because only whole chunks can be checked. On failure dst's content is undefined. */
hl_status hl_remote_read(struct hl_remote *r, uint64_t offset, void *dst, uint64_t len) HL_CHECK;

#endif
