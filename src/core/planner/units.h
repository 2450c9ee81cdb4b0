/* core/planner/units.h - places the units of a gang on the servers of a range.
 *
 * A unit is `unit` consecutive containers that want to share a server: they hold a tensor-parallel
 * group. Units are placed, and taken out of the view, in this order: first those that fit on one
 * server, with each replica's stages on different servers and each server filled before the next is
 * used; then units that fit on no single server, on the fewest servers and then in the fewest
 * leaves.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   positions of core/planner/index.h.
 * Limits:  none.
 */
#ifndef HL_CORE_PLANNER_UNITS_H
#define HL_CORE_PLANNER_UNITS_H

#include "core/planner/level.h"
#include "core/planner/view.h"

struct hl_units {
    int unit;          /* containers per unit */
    int count;         /* number of whole units */
    int first, stride; /* the j-th is unit first + j * stride of the gang */
    int tail;          /* containers of a last, short unit behind all others; 0 = none */
    /* this many neighbouring units may share a server without putting two stages of a replica
     * together */
    int apart;
    enum hl_level within; /* no unit may cross a domain of this level */
};

/* How many units fit into the range. */
long hl_units_max(const struct hl_place_view *v, struct hl_place_range in, int unit,
                  enum hl_level within);
/* where[c] = position of the server of container c of the gang. They must fit into the range. */
hl_status hl_units_place(struct hl_place_view *v, struct hl_place_range in,
                         const struct hl_units *units, uint32_t *where) HL_CHECK;

/* Domains of a level that lie in a range: leaves or spines, by their place in the index. */
struct hl_place_domains {
    const struct hl_place_domain *list;
    size_t first, end;
};

struct hl_place_domains hl_place_domains_in(const struct hl_place_index *x, enum hl_level level,
                                            struct hl_place_range in);
/* The part of the domain that lies in the range. */
struct hl_place_range hl_place_range_of(const struct hl_place_domain *d, struct hl_place_range in);

#endif
