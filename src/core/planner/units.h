/* core/planner/units.h - units of a gang onto the servers of a range.
 *
 * A unit is `unit` consecutive containers that want to share a server: they hold a tensor-parallel
 * group. Taken out of the view, in order: units that a server holds whole, each replica's stages on
 * different servers, servers filled up before others are begun; then units that no server holds, on
 * the fewest servers and of those in the fewest leaves.
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
    int unit;          /* containers of one */
    int count;         /* of whole units */
    int first, stride; /* the j-th is unit first + j * stride of the gang */
    int tail;          /* containers of a last, short one, behind them all; 0 = none */
    int apart; /* so many neighbours may share a server without joining a replica's stages */
    enum hl_level within; /* no unit may be spread beyond it */
};

/* How many units the range holds. */
long hl_units_max(const struct hl_place_view *v, struct hl_place_range in, int unit,
                  enum hl_level within);
/* where[c] = position of the server of container c of the gang. The range holds them. */
hl_status hl_units_place(struct hl_place_view *v, struct hl_place_range in,
                         const struct hl_units *units, uint32_t *where) HL_CHECK;

/* Domains of a level that lie in a range: leaves or spines, by their place in the index. */
struct hl_place_domains {
    const struct hl_place_domain *list;
    size_t first, end;
};

struct hl_place_domains hl_place_domains_in(const struct hl_place_index *x, enum hl_level level,
                                            struct hl_place_range in);
/* What of the domain lies in the range. */
struct hl_place_range hl_place_range_of(const struct hl_place_domain *d, struct hl_place_range in);

#endif
