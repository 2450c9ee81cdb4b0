/* whatif/recorder.h - makes a trace from the access reports of a live cluster, which arrive late
 * and in any order.
 *
 * A report can contain several accesses of one shard. They happened at unknown times since the
 * previous report of their process, so they become rows that are spread evenly over that time. No
 * row is before the beginning of the trace.
 *
 * Owns:    the trace.
 * Threads: one at a time.
 * Errors:  HL_ENOSPC beyond the limits of a trace; HL_ENOMEM.
 * Units:   ms of the cluster's clock; the trace's time 0 is the beginning.
 * Limits:  those of access_trace.h.
 */
#ifndef HL_WHATIF_RECORDER_H
#define HL_WHATIF_RECORDER_H

#include "whatif/access_trace.h"

/* Zero-initialise and set the times; hl_recorder_fini frees it. */
struct hl_recorder {
    int64_t begin_ms, end_ms;
    struct hl_access_trace trace; /* unsorted before hl_recorder_finish */
    uint64_t before;              /* accesses before the beginning, left out */
    uint64_t unknown;             /* accesses of shards without a size, left out */
};

struct hl_told_access {
    const char *node, *shard; /* node "": no node, written as "-" in a row */
    uint64_t size_bytes;      /* 0 = not known */
    int64_t at_ms;            /* of the last access */
    uint32_t span_ms, count;
    bool is_write;
};

/* Adds accesses; those after the end are left out. After an error, the rows added so far remain. */
hl_status hl_recorder_add(struct hl_recorder *r, const struct hl_told_access *told) HL_CHECK;
/* Makes the rows a valid trace. */
void hl_recorder_finish(struct hl_recorder *r);
void hl_recorder_fini(struct hl_recorder *r);

#endif
