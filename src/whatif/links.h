/* whatif/links.h - the links of a cluster in virtual time: reads one after the other, and
 * moves in what they leave.
 *
 * Owns:    its links and the moves in flight.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   bytes, bytes per second, seconds.
 * Limits:  none of its own.
 */
#ifndef HL_WHATIF_LINKS_H
#define HL_WHATIF_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "core/placement/rules.h"

#define HL_STAGES_MAX 2

/* One shard on its way over one link, or two in turn. */
struct hl_link_move {
    uint32_t shard;
    uint32_t serial; /* the caller's */
    uint16_t node;   /* the same */
    uint64_t size_bytes;
    uint32_t stages[HL_STAGES_MAX]; /* links */
    unsigned stage, stage_count;
    double ready_s; /* this stage begins then at the earliest */
    double left;    /* bytes of this stage */
    struct hl_link_move *next;
};

struct hl_link {
    double rate;
    double reads_until; /* reads take it until then */
    double moves_at;    /* moves have been carried on to then */
    struct hl_link_move *first, *last;
};

struct hl_links {
    struct hl_link *items; /* the archive, then inside, migration and backbone of each node */
    uint32_t count;
    size_t moves; /* in flight */
};

typedef hl_status (*hl_link_done_fn)(void *arg, const struct hl_link_move *move, double at_s);

hl_status hl_links_init(struct hl_links *l, uint32_t nodes,
                        const double rates[HL_MOVE_PATHS]) HL_CHECK;
void hl_links_fini(struct hl_links *l);
/* A node's link of that path; of the archive, the one there is. */
uint32_t hl_links_of(enum hl_move_path path, uint32_t node);
/* When a read that begins now has its bytes. */
double hl_links_read(struct hl_links *l, uint32_t link, uint64_t bytes, double now_s);
hl_status hl_links_move(struct hl_links *l, const struct hl_link_move *move) HL_CHECK;
/* Carries the moves on to now; `done` hears of each that ended. */
hl_status hl_links_advance(struct hl_links *l, double now_s, hl_link_done_fn done,
                           void *arg) HL_CHECK;
/* Bytes of moves that wait for the link or are on it. */
double hl_links_backlog(const struct hl_links *l, uint32_t link);

#endif
