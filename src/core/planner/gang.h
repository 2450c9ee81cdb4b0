/* core/planner/gang.h - places a gang on the cluster: chooses the domain, then the blocks, then the
 * units.
 *
 * The criteria, in order: the required rules; servers per tensor-parallel group; leaves per group;
 * stages of one replica on different servers; one spine for all; few half-used servers; the lowest
 * name. A preferred rule is kept whenever that is possible at all.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   positions of core/planner/index.h.
 * Limits:  none.
 */
#ifndef HL_CORE_PLANNER_GANG_H
#define HL_CORE_PLANNER_GANG_H

#include "core/planner/units.h"

/* Units are listed stage by stage; `per_stage` of them make one stage, so units with the same
 * number modulo per_stage belong to one replica. */
struct hl_gang_shape {
    int containers;
    int unit;      /* containers of a unit; the last unit may be short */
    int per_stage; /* 0: groups cross unit borders, so stages can't be told apart */
    struct hl_place_rules rules;
};

/* The level of a required rule that can't be kept; ANY = all can be kept and there is room. */
enum hl_level hl_gang_obstacle(const struct hl_gang_shape *g, const struct hl_place_view *v);
/* where[i] = position of the server of container i, units in the order described. Requires that
 * there is room and no obstacle. */
hl_status hl_gang_place(const struct hl_gang_shape *g, const struct hl_place_view *v,
                        uint32_t *where) HL_CHECK;

struct hl_gang_score {
    long servers, leaves; /* summed over the units */
    long shared;          /* stages that share a server with another stage of their replica */
};

hl_status hl_gang_score(const struct hl_gang_shape *g, const struct hl_place_index *x,
                        const uint32_t *where, struct hl_gang_score *out) HL_CHECK;

#endif
