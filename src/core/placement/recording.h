/* core/placement/recording.h - the last accesses of shards, for those who record them: a ring that
 * each of them reads at a pace of its own.
 *
 *     oldest           cursor of one            next
 *       |#################|########################|      the ring has HL_RECORDING_ROOM
 *
 * What one has not taken before it is overwritten is lost to it, and counted.
 *
 * Owns:    the entries.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   ms of the clock that dates them; bytes.
 * Limits:  HL_RECORDING_ROOM entries, 12 MB.
 */
#ifndef HL_CORE_PLACEMENT_RECORDING_H
#define HL_CORE_PLACEMENT_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"

#define HL_RECORDING_ROOM 65536u
#define HL_RECORDED_NODE  128

/* Accesses of one shard by one process. */
struct hl_recorded {
    struct hl_id shard;
    int64_t at_ms;       /* of the last of them */
    uint64_t size_bytes; /* of the shard; 0 = it is not known */
    uint32_t span_ms;    /* they lie within so much before at_ms */
    uint32_t count;
    bool is_write;
    char node[HL_RECORDED_NODE]; /* "" = none */
};

/* Zero-initialised it is off. */
struct hl_recording {
    struct hl_recorded *entries;
    uint64_t next; /* entries that were added; the newest is next - 1 */
};

hl_status hl_recording_start(struct hl_recording *r) HL_CHECK;
/* Off; a stopped one may be started again. */
void hl_recording_stop(struct hl_recording *r);

static inline bool hl_recording_is_on(const struct hl_recording *r)
{
    return r->entries != NULL;
}

/* Nothing while it is off. */
void hl_recording_add(struct hl_recording *r, const struct hl_recorded *entry);
/* The next entry for that cursor, which goes on; NULL: there is none yet. Adds to *lost what was
 * overwritten before it was taken. A cursor from nowhere is one at the end. */
const struct hl_recorded *hl_recording_take(const struct hl_recording *r, uint64_t *cursor,
                                            uint64_t *lost);

/* The time in which the accesses of a report can lie that come up to at_ms: since the process's
 * report before, and no longer than libhelios keeps them. before_ms < 0: there was none. */
#define HL_RECORDED_SPAN_MS 5000
uint32_t hl_recorded_span(int64_t before_ms, int64_t at_ms);

#endif
