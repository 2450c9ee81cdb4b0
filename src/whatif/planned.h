/* whatif/planned.h - what gangs are planned to read, fetched ahead to their nodes' L2, as the
 * Controller does (core/placement/ahead.h): all of a plan that is not there, as soon as it is
 * known.
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
    const double *rates;           /* by path, of a node; of the archive all there is */
    struct hl_node_limits *limits; /* by node; copies fetched ahead are in l2_used */
    bool fetches;                  /* else it is only counted what was there */
    uint32_t serial;               /* of its moves */
    /* Where the nearest copy is: of the node itself, in its L2. */
    struct hl_place (*nearest)(void *arg, uint32_t shard, uint16_t node);
    void *arg;
    struct hl_planned_shard *table;
    uint32_t next; /* plan of the trace */
    uint64_t planned_bytes, local_bytes, ahead_bytes, vain_bytes;
};

/* Plans up to that time are known. */
hl_status hl_planned_advance(struct hl_planned *x, double now_s) HL_CHECK;
/* When the next one is; HUGE_VAL: none. */
double hl_planned_next_s(const struct hl_planned *x);
/* A move of its serial has ended. */
void hl_planned_landed(struct hl_planned *x, const struct hl_link_move *move);
/* The node reads it. *local: it was in its memory. True: it was fetched ahead, and its room is free
 * for a copy as any other. */
bool hl_planned_read(struct hl_planned *x, uint16_t node, uint32_t shard, bool local);
/* What was not read was fetched in vain. */
void hl_planned_end(struct hl_planned *x);
void hl_planned_fini(struct hl_planned *x);

#endif
