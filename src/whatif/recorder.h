/* whatif/recorder.h - a trace out of what a live cluster tells of its accesses, late and in any
 * order.
 *
 * Several accesses of one shard that are told together lie somewhere in the time since their
 * process told before: they become rows that are spread evenly over it, and of which none is before
 * the beginning.
 *
 * Owns:    the trace.
 * Threads: one at a time.
 * Errors:  HL_ENOSPC beyond the limits of a trace; HL_ENOMEM.
 * Units:   ms of the cluster's clock; the trace's zero is the beginning.
 * Limits:  those of access_trace.h.
 */
#ifndef HL_WHATIF_RECORDER_H
#define HL_WHATIF_RECORDER_H

#include "whatif/access_trace.h"

/* Zero-initialise, and say the times; hl_recorder_fini ends it. */
struct hl_recorder {
    int64_t begin_ms, end_ms;
    struct hl_access_trace trace; /* unsorted before hl_recorder_finish */
    uint64_t before;              /* accesses before the beginning, left out */
    uint64_t unknown;             /* accesses of shards without a size, left out */
};

struct hl_told_access {
    const char *node, *shard; /* node "": of none, a row has "-" */
    uint64_t size_bytes;      /* 0 = not known */
    int64_t at_ms;            /* of the last */
    uint32_t span_ms, count;
    bool is_write;
};

/* What is after the end is no part of it. After an error the rows before it are there. */
hl_status hl_recorder_add(struct hl_recorder *r, const struct hl_told_access *told) HL_CHECK;
/* Its rows are a trace. */
void hl_recorder_finish(struct hl_recorder *r);
void hl_recorder_fini(struct hl_recorder *r);

#endif
