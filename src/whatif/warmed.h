/* whatif/warmed.h - loads what is in the archive at the start of the trace into the pool before it
 * is read, as the Controller does (core/placement/warm.h): whole versions, in parallel with reads,
 * up to the pool's low watermark.
 *
 * Of a shard only what a catalogue says is known: its size, and its version, which is its name up
 * to the last '/'. Versions are loaded in the order of their names, because it is not known who
 * will read one, or when.
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
    uint64_t low_bytes; /* the pool is warmed while it uses less than this */
    uint32_t *shards;   /* all shards to load, in order */
    uint32_t count, next;
    uint64_t coming_bytes; /* on their way */
};

hl_status hl_warmed_init(struct hl_warmed *x, const struct hl_access_trace *trace,
                         uint64_t low_bytes) HL_CHECK;
void hl_warmed_fini(struct hl_warmed *x);
/* Takes the next shard, which is then on its way. False: there is none, or no room; then no other
 * shard is taken either. */
bool hl_warmed_next(struct hl_warmed *x, uint64_t used_bytes, uint32_t *shard);
void hl_warmed_landed(struct hl_warmed *x, uint32_t shard);

#endif
