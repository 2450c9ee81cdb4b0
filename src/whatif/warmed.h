/* whatif/warmed.h - what is in the archive when the trace begins, loaded into the pool ahead, as
 * the Controller does (core/placement/warm.h): by whole versions, beside the reads, below the
 * pool's low watermark.
 *
 * What is known of a shard is what a catalogue says of it: its size, and its version, which is its
 * name up to the last '/'. Versions come in the order of their names: neither who will read one is
 * known, nor when.
 *
 * Owns:    its list; zero-initialise, end with hl_warmed_fini. Borrows the trace.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of a trace.
 */
#ifndef HL_WHATIF_WARMED_H
#define HL_WHATIF_WARMED_H

#include "whatif/access_trace.h"

struct hl_warmed {
    const struct hl_access_trace *trace;
    uint64_t low_bytes; /* of the pool, below which it is warmed */
    uint32_t *shards;   /* all to be loaded, the first one first */
    uint32_t count, next;
    uint64_t coming_bytes; /* on their way */
};

hl_status hl_warmed_init(struct hl_warmed *x, const struct hl_access_trace *trace,
                         uint64_t low_bytes) HL_CHECK;
void hl_warmed_fini(struct hl_warmed *x);
/* The next one, which is on its way from now on. False: there is none, or no room: then no other
 * one comes, either. */
bool hl_warmed_next(struct hl_warmed *x, uint64_t used_bytes, uint32_t *shard);
void hl_warmed_landed(struct hl_warmed *x, uint32_t shard);

#endif
