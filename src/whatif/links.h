/* whatif/links.h - the links of a cluster in virtual time. Reads use a link one after the
 * other; moves use the time that reads leave.
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

/* A shard that is moved over one link, or over two in sequence. */
struct hl_link_move {
    uint32_t shard;
    uint32_t serial; /* for the caller */
    uint16_t node;   /* for the caller */
    uint64_t size_bytes;
    uint32_t stages[HL_STAGES_MAX]; /* links */
    unsigned stage, stage_count;
    double ready_s; /* earliest start of this stage */
    double left;    /* bytes of this stage */
    struct hl_link_move *next;
};

struct hl_link {
    double rate;
    double reads_until; /* occupied by reads until then */
    double moves_at;    /* moves are simulated until then */
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
/* A node's link for that path; there is only one for the archive. */
uint32_t hl_links_of(enum hl_move_path path, uint32_t node);
/* Returns when a read that begins now has its bytes. */
double hl_links_read(struct hl_links *l, uint32_t link, uint64_t bytes, double now_s);
hl_status hl_links_move(struct hl_links *l, const struct hl_link_move *move) HL_CHECK;
/* Simulates the moves until now; calls `done` for each one that ended. */
hl_status hl_links_advance(struct hl_links *l, double now_s, hl_link_done_fn done,
                           void *arg) HL_CHECK;
/* Bytes of moves that wait for the link or are on it. */
double hl_links_backlog(const struct hl_links *l, uint32_t link);

#endif
