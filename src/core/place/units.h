/* core/place/units.h - placement of a gang on servers, apart from what the gang is. */
#ifndef HL_CORE_PLACE_UNITS_H
#define HL_CORE_PLACE_UNITS_H

#include "core/place/plan.h"

/* A gang of `containers` in units: `unit` consecutive containers that want to share a server (they
 * hold a tensor-parallel group); the last unit may be short. Units are listed stage by stage;
 * `per_stage` of them make one stage, so units with the same number modulo per_stage belong to one
 * replica. */
struct hl_place_request {
    int containers;
    int unit;
    int per_stage;
    const int *free; /* slots that fit, per server */
    size_t servers;
};

/* where[i] = server of container i, units in the order described. The sum of `free` must be at
 * least `containers`. HL_ENOMEM. */
hl_status hl_place(const struct hl_place_request *req, int *where) HL_CHECK;

#endif
