/* core/placement/recording.h - the recent accesses of shards, for recorders: a ring that each
 * recorder reads at its own pace.
 *
 *     oldest           cursor of one            next
 *       |#################|########################|      the ring has HL_RECORDING_ROOM
 *
 * An entry that is overwritten before a recorder has taken it is lost to that recorder, and
 * counted.
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
    uint32_t span_ms;    /* all of them lie within this time before at_ms */
    uint32_t count;
    bool is_write;
    char node[HL_RECORDED_NODE]; /* "" = none */
};

/* Zero-initialise; it is off then. */
struct hl_recording {
    struct hl_recorded *entries;
    uint64_t next; /* number of entries added so far; the newest is next - 1 */
};

hl_status hl_recording_start(struct hl_recording *r) HL_CHECK;
/* Turns it off; it may be started again. */
void hl_recording_stop(struct hl_recording *r);

static inline bool hl_recording_is_on(const struct hl_recording *r)
{
    return r->entries != NULL;
}

/* Does nothing while it is off. */
void hl_recording_add(struct hl_recording *r, const struct hl_recorded *entry);
/* Returns the next entry for that cursor and advances it; NULL: there is none yet. Adds to *lost
 * the number of entries that were overwritten before they were taken. An impossible cursor is moved
 * to the end. */
const struct hl_recorded *hl_recording_take(const struct hl_recording *r, uint64_t *cursor,
                                            uint64_t *lost);

/* The length of the time before at_ms in which the accesses of a report can lie: since the
 * process's previous report, but no longer than libhelios keeps them. before_ms < 0: there was
 * none. */
#define HL_RECORDED_SPAN_MS 5000
uint32_t hl_recorded_span(int64_t before_ms, int64_t at_ms);

#endif
