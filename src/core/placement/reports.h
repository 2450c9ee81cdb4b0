/* core/placement/reports.h - access reports of a node; each one is applied exactly once.
 *
 * Each incarnation of a node numbers its reports from 1. A window of the last HL_REPORT_WINDOW
 * numbers distinguishes a late report from one that was already applied.
 *
 * Owns:    nothing; entries are borrowed for the call.
 * Threads: one at a time.
 * Errors:  none: the fate of a report that is not applied says why.
 * Units:   ms.
 * Limits:  a report that is HL_REPORT_WINDOW or more numbers behind the newest is not applied.
 */
#ifndef HL_CORE_PLACEMENT_REPORTS_H
#define HL_CORE_PLACEMENT_REPORTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"

#define HL_REPORT_WINDOW 256

/* Accesses of one shard since the node's last report. */
struct hl_report_entry {
    struct hl_id shard;
    uint32_t count;
    uint32_t age_ms; /* of the last of them, when the report was sent */
};

struct hl_report {
    uint64_t incarnation;
    uint64_t sequence;
    const struct hl_report_entry *entries;
    size_t count;
};

/* clang-format off */
#define HL_REPORT_FATE_MAP(X)                                                                   \
    X(NEW,     "applied")                                                                       \
    X(DOUBLED, "applied before")                                                                \
    X(LATE,    "too old to be told from one that was applied")                                  \
    X(STALE,   "of another life of the node")                                                   \
    X(FENCED,  "of a fenced node")                                                              \
    X(UNKNOWN, "of an unknown node")

/* clang-format on */

enum hl_report_fate {

#define X(name, text) HL_REPORT_##name,
    HL_REPORT_FATE_MAP(X)
#undef X
        HL_REPORT_FATES
};

const char *hl_report_fate_text(enum hl_report_fate fate);

/* Which reports were seen from one incarnation of a node. */
struct hl_report_window {
    uint64_t incarnation;
    uint64_t first, highest;              /* first: the one that arrived first; 0 = none yet */
    uint64_t taken;                       /* number of reports taken, from `first` on */
    uint64_t seen[HL_REPORT_WINDOW / 64]; /* bit i: highest - i */
};

void hl_report_window_start(struct hl_report_window *w, uint64_t incarnation);
/* HL_REPORT_NEW: the caller must apply the report now. */
enum hl_report_fate hl_report_window_take(struct hl_report_window *w,
                                          const struct hl_report *report);
/* Reports between the first and the newest that did not arrive, or not yet. Their share of all
 * reports is the share of accesses that N misses. */
uint64_t hl_report_window_missing(const struct hl_report_window *w);

#endif
