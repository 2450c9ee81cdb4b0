/* net/zmq/zstd.h - compresses chunks of the migration channel if that pays.
 *
 * Owns:    hl_mig_pack and hl_mig_unpack own their zstd contexts and a buffer.
 * Threads: one per object.
 * Errors:  HL_ENOMEM; HL_ECORRUPT for bytes that are not exactly one chunk.
 * Units:   bytes, bytes per second.
 * Limits:  a hostile frame can cost at most the writing of one chunk: the output is bounded by its
 *          chunk, and no window memory is allocated for it.
 */
#ifndef HL_NET_ZMQ_ZSTD_H
#define HL_NET_ZMQ_ZSTD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hl_mig_pack;
struct hl_mig_unpack;

/* mode: HL_MIGRATE_ZSTD_AUTO or a level. */
hl_status hl_mig_pack_create(int mode, uint32_t chunk_size, struct hl_mig_pack **out) HL_CHECK;
/* NULL is allowed. */
void hl_mig_pack_destroy(struct hl_mig_pack *p);
/* The compressed chunk, borrowed until the next call; NULL: send it uncompressed. line_Bps: recent
 * throughput of the line, 0 = not known yet. */
const void *hl_mig_pack(struct hl_mig_pack *p, const void *chunk, uint32_t len, double line_Bps,
                        uint32_t *packed);
/* Whether compression makes the transfer faster: `left` is the ratio of compressed to original
 * size, pack_Bps the speed of compression. */
bool hl_mig_pack_pays(double left, double pack_Bps, double line_Bps);

hl_status hl_mig_unpack_create(struct hl_mig_unpack **out) HL_CHECK;
/* NULL is allowed. */
void hl_mig_unpack_destroy(struct hl_mig_unpack *u);
/* Writes exactly `len` bytes to dst. On HL_ECORRUPT dst's content is undefined. */
hl_status hl_mig_unpack(struct hl_mig_unpack *u, void *dst, uint32_t len, const void *packed,
                        size_t packed_len) HL_CHECK;

#endif
