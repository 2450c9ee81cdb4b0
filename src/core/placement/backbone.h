/* core/placement/backbone.h - how busy the data backbone is, as one number, computed from what the
 * daemons report about their links to it.
 *
 * It is the load of the L3 host's link, which all share, or the mean of the nodes' links, whichever
 * is higher. Links with unknown load are left out.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure.
 * Errors:  none: an impossible number counts as unknown.
 * Units:   percent of a link's capacity, 0 to 100.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_BACKBONE_H
#define HL_CORE_PLACEMENT_BACKBONE_H

#include "api/types.h"

/* Zero-initialise. */
struct hl_backbone {
    double nodes_pct; /* sum */
    unsigned nodes;
    double l3_pct;
    bool l3; /* the load of its link is known */
};

void hl_backbone_add_node(struct hl_backbone *b, const struct hl_api_line_load *line);
void hl_backbone_add_l3(struct hl_backbone *b, const struct hl_api_line_load *line);
/* -1: not known. */
double hl_backbone_busy_pct(const struct hl_backbone *b);

#endif
