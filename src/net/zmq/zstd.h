/* net/zmq/zstd.h - chunks of the migration channel, compressed where it pays.
 *
 * Owns:    struct hl_mig_pack and struct hl_mig_unpack their zstd contexts and a buffer.
 * Threads: one per object.
 * Errors:  HL_ENOMEM; HL_ECORRUPT for bytes that are not exactly one chunk.
 * Units:   bytes, bytes per second.
 * Limits:  what a hostile frame can cost is one chunk's worth of writing: the output is bounded by
 * the chunk it belongs to, and no window memory is allocated for it.
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
/* The chunk compressed, borrowed until the next call; NULL when it shall travel as it is. line_Bps:
 * what the line has carried lately, 0 = not known yet. */
const void *hl_mig_pack(struct hl_mig_pack *p, const void *chunk, uint32_t len, double line_Bps,
                        uint32_t *packed);
/* Whether a line gets faster by it: `left` is what remains of a byte, pack_Bps how fast bytes are
 * compressed. */
bool hl_mig_pack_pays(double left, double pack_Bps, double line_Bps);

hl_status hl_mig_unpack_create(struct hl_mig_unpack **out) HL_CHECK;
/* NULL is allowed. */
void hl_mig_unpack_destroy(struct hl_mig_unpack *u);
/* dst gets exactly `len` bytes, or HL_ECORRUPT and an undefined mix. */
hl_status hl_mig_unpack(struct hl_mig_unpack *u, void *dst, uint32_t len, const void *packed,
                        size_t packed_len) HL_CHECK;

#endif
