/* whatif/planned.h - prefetches what gangs are planned to read to their nodes' L2, as the
 * Controller does (core/placement/ahead.h): as soon as a plan is known, everything in it that is
 * missing there.
 *
 *     plan --> wanted --> on its way --> there --read--> a copy as any other
 *                            |             '--unplan, or the end--> in vain
 *                            '--read by its node meanwhile, unplan--> in vain once it is there
 *
 * Owns:    its table; zero-initialise the rest, end with hl_planned_fini. Borrows trace, links and
 *          limits.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   bytes, seconds of the trace's first row.
 * Limits:  those of a trace.
 */
#ifndef HL_WHATIF_PLANNED_H
#define HL_WHATIF_PLANNED_H

#include "core/placement/policy.h"
#include "whatif/access_trace.h"
#include "whatif/links.h"

struct hl_planned_shard;

struct hl_planned {
    const struct hl_access_trace *trace;
    struct hl_links *links;
    const double *rates;           /* by path, per node; for the archive the total */
    struct hl_node_limits *limits; /* by node; prefetched copies are part of l2_used */
    bool fetches;                  /* false: only counts what was already local */
    uint32_t serial;               /* marks its moves */
    /* Returns where the nearest copy is; for a copy in the node itself, its L2. */
    struct hl_place (*nearest)(void *arg, uint32_t shard, uint16_t node);
    void *arg;
    struct hl_planned_shard *table;
    uint32_t next; /* the trace's next plan */
    uint64_t planned_bytes, local_bytes, ahead_bytes, vain_bytes;
};

/* Applies the plans up to that time. */
hl_status hl_planned_advance(struct hl_planned *x, double now_s) HL_CHECK;
/* The time of the next plan; HUGE_VAL: none. */
double hl_planned_next_s(const struct hl_planned *x);
/* A move with its serial has ended. */
void hl_planned_landed(struct hl_planned *x, const struct hl_link_move *move);
/* The node reads the shard. local: the shard was in its memory. True: it was prefetched, and its
 * room is now free for an ordinary copy. */
bool hl_planned_read(struct hl_planned *x, uint16_t node, uint32_t shard, bool local);
/* Counts everything that was not read as fetched in vain. */
void hl_planned_end(struct hl_planned *x);
void hl_planned_fini(struct hl_planned *x);

#endif
