/* core/planner/gang.h - a gang onto the cluster: which domain, which blocks, which units.
 *
 * What counts, in this order: the required rules; servers per tensor-parallel group; leaves per
 * group; stages of one replica on different servers; one spine for all; few half-used servers; the
 * lowest name. A preferred rule is kept where that is possible at all.
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
    int unit;      /* of a unit; the last one may be short */
    int per_stage; /* 0: groups are cut across units, stages are not known apart */
    struct hl_place_rules rules;
};

/* The level of the required rule that can't be kept; ANY = all are kept and there is room. */
enum hl_level hl_gang_obstacle(const struct hl_gang_shape *g, const struct hl_place_view *v);
/* where[i] = position of the server of container i, units in the order described. There is room and
 * no obstacle. */
hl_status hl_gang_place(const struct hl_gang_shape *g, const struct hl_place_view *v,
                        uint32_t *where) HL_CHECK;

struct hl_gang_score {
    long servers, leaves; /* summed over the units */
    long shared;          /* stages that are on a server with another one of their replica */
};

hl_status hl_gang_score(const struct hl_gang_shape *g, const struct hl_place_index *x,
                        const uint32_t *where, struct hl_gang_score *out) HL_CHECK;

#endif
