/* core/placement/backbone.h - how busy the data backbone is, as one number, of what the daemons say
 * of their lines to it.
 *
 * It is the line of the L3 host, which all share, or the mean of the nodes' lines, whichever is
 * busier. Lines of which that is not known are left out.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure.
 * Errors:  none: a number that can't be is one that is not known.
 * Units:   percent of what a line carries, 0 to 100.
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
    bool l3; /* its line is known */
};

void hl_backbone_add_node(struct hl_backbone *b, const struct hl_api_line_load *line);
void hl_backbone_add_l3(struct hl_backbone *b, const struct hl_api_line_load *line);
/* -1: not known. */
double hl_backbone_busy_pct(const struct hl_backbone *b);

#endif
