/* ranktable/plan.h - the rank table of a gang that Helios placed itself.
 *
 * An instance is a container, and its server is the node's name. The ranks are those of the plan; a
 * restarted gang keeps them wherever it is placed. A rank's device is its GPU, numbered on the node
 * in the order of PCI addresses. If any rank has no GPU, all ranks of the job are numbered by their
 * slots instead: place of the slot on its node x ranks per container + local rank. The device
 * address is the one that the node lists for the device's number. Without a list it is the node's
 * own address; that one is left out if it would occur twice and can be missing: on one server, and
 * in format 1.2. The whole job is one super pod, where a device's number is its rank.
 *
 * Owns:    nothing; the table belongs to the caller, also after a failure.
 * Threads: any. Pure.
 * Errors:  HL_ENOENT: a node of the plan is not in the cluster; HL_EINVAL: a device's address is
 *          missing or occurs twice; errors of table.h.
 * Units:   none.
 * Limits:  HL_RANKTABLE_INDEX_MAX + 1 containers of HL_RANKTABLE_DEVICES_MAX ranks.
 */
#ifndef HL_RANKTABLE_PLAN_H
#define HL_RANKTABLE_PLAN_H

#include "core/planner/plan.h"
#include "ranktable/table.h"

/* The table that a rank reads until every container of its gang has started. */
#define HL_RANKTABLE_INITIALIZING "{\"status\":\"initializing\"}"

/* plan: must be feasible. *out: zero-initialised. Instances are called PREFIX.INDEX. */
hl_status hl_ranktable_of_plan(const struct hl_plan *plan, const struct hl_cluster *cluster,
                               const char *prefix, struct hl_ranktable *out) HL_CHECK;
/* The same as text, which the caller frees. */
hl_status hl_ranktable_plan_text(const struct hl_plan *plan, const struct hl_cluster *cluster,
                                 const char *prefix, enum hl_ranktable_format format,
                                 char **out) HL_CHECK;

#endif
